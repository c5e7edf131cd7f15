"""What is shipped: three packages in one wheel, of which the client's part stands alone and runs beside protobuf 7."""

from __future__ import annotations

import email
import os
import re
import socket
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(400)]  # installs from an index, which may be slow

PACKAGES = {"kokuban", "kokuban_client", "kokuban_server"}
OF_THE_SERVER = {
    "cryptography",
    "google-re2",
    "pyjwt",
    "pydantic",
    "pydantic-settings",
    "structlog",
    "uvloop",
    "rich",
    "grpcio-health-checking",
    "grpcio-reflection",
    "numpy",
    "onnxruntime",
    "stackone-defender",
    "tokenizers",
}


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_the_three_packages_and_nothing_else(root: Path, wheel: Path) -> None:
    shipped = {name for name in names(wheel) if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in shipped} == PACKAGES
    homes = {"kokuban": "proto/gen", "kokuban_client": "client", "kokuban_server": "server"}
    sources = {
        str(path.relative_to(root / home))
        for package, home in homes.items()
        for path in (root / home / package).rglob("*")
        if path.suffix in {".py", ".pyi"} or path.name == "py.typed"
    }
    assert sources <= shipped
    assert not {name for name in shipped if name.endswith((".pyc", ".proto", ".db"))}


def test_the_wheel_is_typed(wheel: Path) -> None:
    shipped = set(names(wheel))
    assert {f"{package}/py.typed" for package in PACKAGES} <= shipped
    stubs = {name for name in shipped if name.endswith(("_pb2.py", "_pb2_grpc.py"))}
    assert stubs
    assert {f"{name}i" for name in stubs} <= shipped


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    told = metadata(wheel)
    assert told["Name"] == "kokuban"
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Requires-Python"] == "<3.14,>=3.11"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names(wheel))
    assert str(told.get_payload()).strip(), "the README is the package's front page"
    with zipfile.ZipFile(wheel) as archive:
        (entry_points,) = (archive.read(name) for name in archive.namelist() if name.endswith("/entry_points.txt"))
    assert b"kokuban = kokuban_client.cli:main" in entry_points


def test_the_client_needs_nothing_of_the_server(wheel: Path) -> None:
    wanted = metadata(wheel).get_all("Requires-Dist") or []
    without_extra = {re.split(r"[<>=!~;\[ ]", line)[0] for line in wanted if "extra ==" not in line}
    assert without_extra == {"grpcio", "protobuf", "googleapis-common-protos", "click"}
    of_the_extra = {re.split(r"[<>=!~;\[ ]", line)[0] for line in wanted if "extra == 'server'" in line}
    assert of_the_extra == OF_THE_SERVER - {"pydantic"}


def test_the_source_distribution_holds_the_api_and_builds_on_its_own(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "proto/kokuban/v1/board_service.proto",
        "proto/generate.py",
    } <= held
    assert not {name for name in held if name.startswith((".venv", ".git/", "build/", "dist/"))}


def test_the_lock_has_hashes_and_no_address(root: Path) -> None:
    lock = (root / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in lock
    pins = [block for block in re.split(r"\n(?=\S)", lock.strip()) if not block.startswith("#")]
    assert len(pins) > 30
    for pin in pins:
        assert re.match(r"[a-z0-9._-]+==\S+", pin), pin.splitlines()[0]
        assert "--hash=sha256:" in pin, pin.splitlines()[0]


@pytest.fixture(scope="module")
def client_alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, without extras, and protobuf 7."""
    folder = tmp_path_factory.mktemp("client") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    done = run([*install, str(wheel), "protobuf>=7,<8", "grpcio"], timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return python


def run(command: list[str], timeout_s: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command without this checkout on Python's path."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KOKUBAN_"))}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**inherited, **environment},
        cwd="/",
    )


def test_the_client_installs_alone_beside_protobuf_7(client_alone: Path) -> None:
    """Importing the stubs with protobuf 7 warns of nothing, and no part of the server comes along."""
    program = """
import importlib.metadata, pkgutil, google.protobuf, kokuban, kokuban_client, kokuban_client.cli
for module in pkgutil.walk_packages(kokuban.__path__, 'kokuban.'):
    importlib.import_module(module.name)
print(google.protobuf.__version__)
print(kokuban_client.__file__)
print(*sorted(found.metadata['Name'].lower() for found in importlib.metadata.distributions()))
"""
    done = run([str(client_alone), "-W", "error", "-c", program])
    assert done.returncode == 0, done.stderr
    version, place, installed = done.stdout.splitlines()
    assert version.startswith("7.")
    assert place.startswith(str(client_alone.parents[1]))
    assert not OF_THE_SERVER & set(installed.split())


def test_the_command_line_starts_without_the_server(client_alone: Path) -> None:
    """A verb of the server says what to install; it does not break."""
    command = str(client_alone.with_name("kokuban"))
    assert run([command, "--help"]).returncode == 0
    done = run([command, "serve"])
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "kokuban[server]" in done.stderr


def test_the_client_beside_protobuf_7_writes_and_reads_a_board(client_alone: Path) -> None:
    """Against a server in the development environment, whose protobuf is 6."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    program = f"""
from kokuban_client import AlreadyExists, Text
from kokuban_client.sync import connect
with connect({address!r}, agent="writer-1", timeout_s=60) as client:
    board = client.board("main")
    written = board.put("shared:plan", "task_1", "beside protobuf 7", must_not_exist=True)
    entry = board.get("shared:plan", "task_1")
    assert entry.content == Text("beside protobuf 7"), entry
    assert entry.author == "writer-1", entry
    try:
        board.put("shared:plan", "task_1", "again", must_not_exist=True)
    except AlreadyExists as refused:
        assert refused.facts["actual_revision"] == str(entry.revision.number), refused
    else:
        raise AssertionError("a put over an entry that must not exist")
"""
    serve = [str(Path(sys.executable).with_name("kokuban")), "serve", "--store", "memory:", "--listen", address]
    server = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        done = run([str(client_alone), "-W", "error", "-c", program], timeout_s=120)
    finally:
        server.terminate()
        try:
            log, _ = server.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
            log, _ = server.communicate()
    assert done.returncode == 0, done.stderr + log
