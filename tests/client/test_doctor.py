"""`kokuban doctor` and its library call, against a real server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kokuban.v1 import examination_pb2 as pb
from kokuban_client import StoreFindingKind, StoreFindingOutcome, errors, sync
from kokuban_client._wire import examination
from kokuban_client.cli import main
from kokuban_client.cli._connection import EXIT_CODES
from kokuban_client.testing import ServerProcess
from kokuban_server.adapters.sqlite import SqliteStore
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core import keys
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.records.codec import encode_owner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.client.commands import Answer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    """A server on a store in which one record would stay for ever, and one is of no known class."""
    folder = tmp_path / "store"
    store = await SqliteStore.open(folder, SystemClock())
    puts = (Put(keys.owner("painting"), encode_owner("dead")), Put(b"~/newer/", b"x"))
    await store.commit(ChangeSet((), puts), 5.0)
    await store.close()
    with ServerProcess(store=f"sqlite:{folder}") as process:
        yield process


def test_the_command_tells_repairs_and_says_what_is_left(kokuban: Callable[..., Answer]) -> None:
    code, out, _ = kokuban("--roles", "operator", "doctor")
    assert code == EXIT_CODES["store has findings"]
    lines = out.splitlines()
    assert "found  owner  painting  unleased: it hangs on no lease, so it would stay for ever" in lines
    assert lines[-1].endswith(" records looked at: 1 found, 1 not repairable")
    code, out, _ = kokuban("--roles", "operator", "--json", "doctor", "--repair")
    assert code == EXIT_CODES["store has findings"]
    repaired, unknown, summary = map(json.loads, out.splitlines())
    assert (repaired["record_class"], repaired["record"], repaired["outcome"]) == ("owner", "painting", "repaired")
    assert repaired["kind"] == "unleased"
    assert (unknown["kind"], unknown["outcome"]) == ("unknown record", "not repairable")
    assert unknown["record"].startswith("sha256:")
    assert summary["outcomes"] == {"not repairable": 1, "repaired": 1}
    assert summary["examined"]["owner"] >= 1
    _, out, _ = kokuban("--roles", "operator", "doctor", "--repair")
    assert out.splitlines()[-1].endswith(": 1 not repairable")


def test_the_command_says_who_may_use_it_and_that_it_needs_a_server(
    kokuban: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = kokuban("doctor")
    assert (code, out) == (EXIT_CODES["refused"], "")
    assert "operator" in err
    monkeypatch.setenv("KOKUBAN_ADDRESS", "127.0.0.1:1")
    code, out, err = kokuban("--timeout", "0.5", "--roles", "operator", "doctor")
    assert (code, out) == (EXIT_CODES["unavailable"], "")
    assert "127.0.0.1:1" in err


def test_a_healthy_store_ends_with_exit_code_0(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with ServerProcess() as healthy:
        monkeypatch.setenv("KOKUBAN_ADDRESS", healthy.address)
        assert main(["--agent", "chief", "--roles", "operator", "doctor"]) == 0
    assert capfd.readouterr().out.endswith(" records looked at: nothing wrong\n")


def test_the_library_gives_pages_also_for_threads(server: ServerProcess) -> None:
    with sync.connect(server.address, agent="chief", roles=["operator"]) as chief:
        findings = [finding for page in chief.examine_store() for finding in page.findings]
        assert {(one.kind, one.outcome) for one in findings} == {
            (StoreFindingKind.UNLEASED, StoreFindingOutcome.FOUND),
            (StoreFindingKind.UNKNOWN_RECORD, StoreFindingOutcome.NOT_REPAIRABLE),
        }
    with sync.connect(server.address, agent="writer-1") as writer, pytest.raises(errors.Refused, match="operator"):
        next(iter(writer.examine_store()))


def test_a_newer_servers_words_are_shown_as_unknown() -> None:
    page = pb.ExamineStoreResponse(findings=[pb.StoreFinding()])
    [finding] = examination.page(page).findings
    assert (finding.kind, finding.outcome) == (StoreFindingKind.UNKNOWN, StoreFindingOutcome.UNKNOWN)
