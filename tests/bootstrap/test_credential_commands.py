"""`kokuban token` and `kokuban certs dev`, as an operator runs them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import socket
import ssl
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

KOKUBAN = [sys.executable, "-c", "import sys; from kokuban_client.cli import main; sys.exit(main())"]
BOUND_S = 30.0


def kokuban(*arguments: str | Path, principals: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command; the file of principals is told by the environment, where it is."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KOKUBAN_")}
    if principals is not None:
        environment["KOKUBAN_PRINCIPALS_FILE"] = str(principals)
    return subprocess.run(
        [*KOKUBAN, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


def refused(told: str, *arguments: str | Path, principals: Path | None = None, code: int = 1) -> None:
    done = kokuban(*arguments, principals=principals)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def created(principals: Path, *options: str) -> str:
    """Make a token; give all of standard output, which is the token and nothing else."""
    done = kokuban("token", "create", *options, principals=principals)
    assert done.returncode == 0, done.stderr
    assert "kk_" not in done.stderr
    return done.stdout.removesuffix("\n")


def listed(principals: Path) -> list[list[str]]:
    done = kokuban("token", "ls", principals=principals)
    assert (done.returncode, done.stderr) == (0, "")
    assert "kk_" not in done.stdout
    return [re.split(" {2,}", line) for line in done.stdout.splitlines()]


def stored(principals: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(principals.read_text())["principals"]
    return found


@pytest.fixture
def principals(tmp_path: Path) -> Path:
    return tmp_path / "principals.json"


def test_a_token_is_printed_once_and_only_its_hash_is_kept(principals: Path) -> None:
    token = created(principals, "--agent", "planner-1", "--tenant", "acme")
    assert re.fullmatch("kk_[A-Za-z0-9_-]{43}", token)
    assert token not in principals.read_text()
    assert stored(principals) == [
        {
            "name": "planner-1",
            "agent": "planner-1",
            "tenant": "acme",
            "roles": ["member"],
            "boards": ["main"],
            "token_sha256": hashlib.sha256(token.encode()).hexdigest(),
        }
    ]
    assert stat.S_IMODE(principals.stat().st_mode) == 0o600
    assert listed(principals) == [
        ["NAME", "TENANT", "AGENT", "ROLES", "BOARDS", "ACTS FOR", "TRUSTED", "CALLS WITH", "EXPIRES"],
        ["planner-1", "acme", "planner-1", "member", "main", "-", "-", "token", "never"],
    ]


def test_everything_that_a_credential_can_say_is_said_by_options(principals: Path) -> None:
    one = created(
        principals,
        *("--agent", "a-1", "--tenant", "acme", "--name", "ci", "--role", "member", "--role", "operator"),
        *("--board", "main", "--board", "other", "--user", "u-1", "--user", "u-2", "--conversation", "*"),
        *("--task", "t-1", "--trust-ceiling", "agent", "--browses", "--expires", "2000-01-31T12:00:00+01:00"),
    )
    before = datetime.now(UTC)
    other = created(principals, "--agent", "a-1", "--tenant", "acme", "--board", "*", "--expires", "36h")
    assert one != other
    ci, a_1 = stored(principals)
    assert (ci["roles"], ci["boards"]) == (["member", "operator"], ["main", "other"])
    assert (ci["users"], ci["conversations"], ci["tasks"]) == (["u-1", "u-2"], "*", ["t-1"])
    assert (ci["trust_ceiling"], ci["browses"]) == ("agent", True)
    assert ci["expires"] == "2000-01-31T11:00:00.000Z"
    assert a_1["boards"] == "*"
    ends = datetime.fromisoformat(a_1["expires"]) - timedelta(hours=36)
    assert before - timedelta(milliseconds=1) <= ends <= datetime.now(UTC)
    row = listed(principals)[1]
    assert row[3:] == [
        "member,operator",
        "main,other",
        "user:u-1,user:u-2,conversation:*,task:t-1",
        "up to agent, browses",
        "token",
        "2000-01-31T11:00:00.000Z (expired)",
    ]


def test_a_principal_of_a_certificate_gets_no_token(principals: Path) -> None:
    uri = "spiffe://acme/agent/a-1"
    assert created(principals, "--agent", "a-1", "--tenant", "acme", "--san-uri", uri) == ""
    (entry,) = stored(principals)
    assert entry["san_uri"] == uri
    assert "token_sha256" not in entry
    assert listed(principals)[1][7] == uri


def test_a_revoked_credential_is_gone_and_the_others_stay(principals: Path) -> None:
    for agent in ("a-1", "a-2", "a-3"):
        created(principals, "--agent", agent, "--tenant", "acme")
    _, second, third = stored(principals)
    done = kokuban("token", "revoke", "--principals", principals, "a-1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "a-1 is revoked\n")
    assert stored(principals) == [second, third]
    refused("no credential 'a-1'", "token", "revoke", "a-1", principals=principals)
    assert stored(principals) == [second, third]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--agent", "a 1"], "the principal: name"),
        (["--agent", "a 1", "--name", "a-1"], "agent"),
        (["--name", "a-0"], "name: stands there twice"),
        (["--tenant", "Acme Inc"], "tenant"),
        (["--role", "root"], "roles: 'root'"),
        (["--board", "Main"], "boards: 'Main'"),
        (["--board", "*", "--board", "main"], "boards"),
        (["--user", "a/b"], "users: 'a/b'"),
        (["--trust-ceiling", "suspect"], "trust_ceiling: 'suspect'"),
        (["--expires", "soon"], "expires: 'soon'"),
        (["--expires", "2030-01-01T00:00:00"], "expires"),
        (["--expires", "0d"], "expires"),
        (["--expires", "999999d"], "expires"),
        (["--san-uri", "planner"], "san_uri"),
        (["--san-uri", ""], "san_uri"),
    ],
)
def test_what_a_server_would_refuse_is_not_written(principals: Path, options: list[str], told: str) -> None:
    there = {
        "name": "a-0",
        "agent": "a-0",
        "tenant": "acme",
        "roles": ["member"],
        "boards": "*",
        "san_uri": "spiffe://a",
    }
    principals.write_text(json.dumps({"principals": [there]}))
    before = principals.read_bytes()
    refused(told, "token", "create", "--agent", "a-1", "--tenant", "acme", *options, principals=principals)
    assert principals.read_bytes() == before


def test_a_file_that_is_not_named_not_there_or_broken_is_refused_by_name(principals: Path, tmp_path: Path) -> None:
    make = ("token", "create", "--agent", "a-1", "--tenant", "acme")
    for command in (("token", "ls"), ("token", "revoke", "a"), make):
        refused("KOKUBAN_PRINCIPALS_FILE", *command, code=2)
    for command in (("token", "ls"), ("token", "revoke", "a")):
        refused(f"{principals} cannot be read", *command, principals=principals)
    assert not principals.exists()
    refused("cannot be changed: No such file", *make, principals=tmp_path / "none" / "principals.json")
    principals.write_text("{}")
    for command in (("token", "ls"), ("token", "revoke", "a"), make):
        refused(str(principals), *command, principals=principals)
    assert principals.read_text() == "{}"


def loaded(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def uris(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def test_certificates_are_made_for_their_owner_alone_and_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    done = kokuban("certs", "dev", folder, "--agent", "a-1", "--agent", "a-2", "--tenant", "acme")
    assert (done.returncode, done.stderr) == (0, "")
    names = {f"{name}.{kind}" for name in ("ca", "server", "a-1", "a-2") for kind in ("pem", "key")}
    assert {file.name for file in folder.iterdir()} == names
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert uris(loaded(folder / "a-1.pem")) == ["spiffe://acme/agent/a-1"]
    assert uris(loaded(folder / "a-2.pem")) == ["spiffe://acme/agent/a-2"]
    before = {file: file.read_bytes() for file in folder.iterdir()}
    refused("exists; nothing is overwritten", "certs", "dev", folder, "--agent", "a-3")
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--agent", "../a"], "cannot name a file"),
        (["--agent", "a/b"], "cannot name a file"),
        (["--agent", "ca"], "cannot name a file"),
        (["--agent", "Server"], "cannot name a file"),
        (["--agent", ""], "name"),
        (["--agent", "a-1", "--agent", "A-1"], "same name"),
        (["--tenant", "Acme"], "tenant"),
    ],
)
def test_certificates_that_cannot_be_used_are_not_made(tmp_path: Path, options: list[str], told: str) -> None:
    refused(told, "certs", "dev", tmp_path / "pki", *options)
    assert list(tmp_path.iterdir()) == []


def test_what_certs_dev_says_to_run_next_can_be_run(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    done = kokuban("certs", "dev", folder, "--agent", "a-1", "--agent", "a-2")
    assert done.returncode == 0, done.stderr
    shown = [shlex.split(line) for line in done.stdout.replace("\\\n", " ").splitlines() if line.startswith("  ")]
    assert [command[:2] for command in shown[:2]] == [["kokuban", "token"]] * 2
    for command in shown[:2]:
        assert kokuban(*command[1:]).returncode == 0
    principals = folder / "principals.json"
    assert [entry["san_uri"] for entry in stored(principals)] == [f"spiffe://dev/agent/a-{n}" for n in (1, 2)]
    named = [Path(word.rpartition("=")[2]) for command in shown for word in command if str(folder) in word]
    assert {file for file in named if not file.is_file()} == set()


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> dict[str, Any]:
    """Let a client and a server of these contexts meet; give what the server has seen of the client's certificate."""
    here, there = socket.socketpair()
    here.settimeout(BOUND_S)
    there.settimeout(BOUND_S)
    seen: list[dict[str, Any]] = []

    def serve() -> None:
        with there:
            try:
                with server.wrap_socket(there, server_side=True) as wrapped:
                    seen.append(dict(wrapped.getpeercert() or {}))
                    wrapped.sendall(b"y")
            except OSError:
                return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(here, server_hostname=name) as wrapped:
            assert wrapped.recv(1) == b"y"
    finally:
        here.close()
        thread.join(BOUND_S)
    return seen[0]


def server_of(folder: Path, name: str = "server") -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


def client_of(folder: Path, name: str, authority: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=(authority or folder) / "ca.pem")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


def test_the_certificates_are_good_for_mutual_tls_and_for_nothing_else(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    for folder in (ours, others):
        assert kokuban("certs", "dev", folder, "--agent", "a-1").returncode == 0
    for name in ("localhost", "127.0.0.1", "::1"):
        peer = handshake(server_of(ours), client_of(ours, "a-1"), name)
        assert peer["subjectAltName"] == (("URI", "spiffe://dev/agent/a-1"),)
        ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(peer["notAfter"]), UTC)
        assert timedelta(days=89) < ends - datetime.now(UTC) <= timedelta(days=90)
    with pytest.raises(OSError, match=r"(?i)hostname mismatch"):
        handshake(server_of(ours), client_of(ours, "a-1"), "example.org")
    for server, client in (
        (server_of(ours), client_of(others, "a-1", ours)),  # another authority's agent
        (server_of(others), client_of(ours, "a-1")),  # another authority's server
        (server_of(ours), client_of(ours, "server")),  # a server as an agent
        (server_of(ours, "a-1"), client_of(ours, "a-1")),  # an agent as a server
    ):
        with pytest.raises(OSError):  # noqa: PT011 - a refusal by either side, told in several ways
            handshake(server, client, "localhost")
