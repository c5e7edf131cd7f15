"""What is encrypted, by the library and on the command line: a server process with a file of keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import Policy, RedactionHandling, RegionRule, Trust, errors, sync
from kokuban_client.cli import main
from kokuban_client.cli._connection import EXIT_CODES
from kokuban_client.testing import ServerProcess
from kokuban_server.adapters.encryption import key_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAIL = "li.wei@mail.internal"
REGION = "shared:contacts"
ENCRYPTING = Policy(
    (RegionRule("shared:*", revealers=("agent:opener",)),),
    secrets=RedactionHandling.ENCRYPT,
    personal_data="encrypt",
)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a key, on whose board everything is encrypted."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(key_line("k1"), encoding="utf-8")
    with ServerProcess(environment={"KOKUBAN_ENCRYPTION_KEYS_FILE": str(keys)}) as process:
        with sync.connect(process.address, agent="op", roles=["member", "operator"]) as client:
            client.set_policy("main", ENCRYPTING, replaces=0)
        yield process


@pytest.fixture
def kokuban(
    keyed: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    for name in ("ROLES", "BOARD", "TIMEOUT", "JSON"):
        monkeypatch.delenv(f"KOKUBAN_{name}", raising=False)
    monkeypatch.setenv("KOKUBAN_ADDRESS", keyed.address)

    def run(agent: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("KOKUBAN_AGENT", agent)
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


async def test_an_entry_and_what_it_was_are_opened_for_whom_the_policy_names(keyed: ServerProcess) -> None:
    async with (
        kokuban_client.connect(keyed.address, agent="writer-1") as writer,
        kokuban_client.connect(keyed.address, agent="opener") as opener,
    ):
        board, theirs = writer.board("main"), opener.board("main")
        first = await board.put(REGION, "a", {"mail": MAIL}, metadata={"of": MAIL}, must_not_exist=True)
        assert first.content is None  # it is not what was sent
        assert {one.handling for one in first.redactions} == {RedactionHandling.ENCRYPT}
        await board.put(REGION, "a", "nothing", at=first.revision)
        assert MAIL not in str((await board.history(REGION, "a"))[-1].entry.content)
        found = await theirs.reveal(REGION, "a", at=first.revision)
        assert (found.entry.value, dict(found.entry.metadata)) == ({"mail": MAIL}, {"of": MAIL})
        assert {(one.field, one.opened, one.unknown_keys, one.unopened) for one in found.texts} == {
            ("value", 1, 0, 0),
            ("metadata[of]", 1, 0, 0),
        }
        assert MAIL not in repr(found)
        now = await theirs.reveal(REGION, "a", floor=Trust.AGENT)
        assert (now.entry.value, [one.field for one in now.texts]) == ("nothing", ["metadata[of]"])  # which was kept
        with pytest.raises(errors.RevealForbidden):
            await board.reveal(REGION, "a")
        with pytest.raises(errors.NotFound):
            await theirs.reveal(REGION, "missing")


def test_the_client_for_threads_opens_alike(keyed: ServerProcess) -> None:
    with sync.connect(keyed.address, agent="opener") as client:
        board = client.board("main")
        board.put(REGION, "b", f"write to {MAIL}", must_not_exist=True)
        assert MAIL not in board.get(REGION, "b").value
        assert board.reveal(REGION, "b").entry.value == f"write to {MAIL}"


def test_a_server_without_keys_says_so(server: ServerProcess) -> None:
    with (
        sync.connect(server.address, agent="op", roles=["member", "operator"]) as client,
        pytest.raises(errors.EncryptionUnavailable) as caught,
    ):
        client.set_policy("main", ENCRYPTING, replaces=0)
    assert caught.value.facts == {"field": "policy.secrets"}


def test_the_command_shows_it_and_says_what_it_could_not_open(kokuban: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = kokuban("opener", "put", REGION, "c", f"write to {MAIL}", "--new", "--json")
    revision = json.loads(out)["revision"]
    assert kokuban("opener", "put", REGION, "d", MAIL, "--new")[1].endswith(
        "  encrypted: email in mutations[0].put.value.text\n"
    )
    _, sealed, _ = kokuban("opener", "get", REGION, "c")
    assert MAIL not in sealed
    assert kokuban("opener", "trust", "reveal", REGION, "c") == (0, f"write to {MAIL}\n", "")
    assert kokuban("opener", "trust", "reveal", REGION, "c", "--raw", "--at", revision)[1] == f"write to {MAIL}"
    code, out, _ = kokuban("opener", "trust", "reveal", REGION, "c", "--json")
    told = json.loads(out)
    assert (code, told["entry"]["value"], told["texts"][0]["opened"]) == (0, f"write to {MAIL}", 1)
    code, out, err = kokuban("other", "trust", "reveal", REGION, "c")
    assert (code, out) == (EXIT_CODES["refused"], "")
    assert "REVEAL_FORBIDDEN" in err
    kokuban("opener", "put", "shared:elsewhere", "copy", sealed.strip(), "--new")
    code, out, err = kokuban("opener", "trust", "reveal", "shared:elsewhere", "copy")
    assert (code, out) == (0, sealed)
    assert err == "value: 0 under keys that the server has not, 1 that do not open here\n"
    assert kokuban("opener", "policy", "explain", REGION, "reveal")[1].startswith("allowed")
