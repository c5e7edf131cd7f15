"""The audit log by the library and on the command line."""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import AuditFaultKind, errors, sync
from kokuban_client.cli._connection import EXIT_CODES
from kokuban_client.testing import ServerProcess
from kokuban_server.adapters.sqlite import SqliteStore
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core import keys
from tests.audit_harm import content, write
from tests.client.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.client.commands import Answer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def server(folder: Path) -> Iterator[ServerProcess]:
    """A server of the test's own, because a log is the whole tenant's."""
    with ServerProcess(store=f"sqlite:{folder}", environment={"KOKUBAN_AUDIT_ANCHOR_INTERVAL_S": "0.05"}) as process:
        yield process


async def test_an_auditor_reads_all_records_and_has_the_log_judged(server: ServerProcess) -> None:
    before = datetime.now(UTC) - timedelta(minutes=5)
    async with kokuban_client.connect(server.address, agent="chief", roles=["operator"]) as chief:
        for number in range(5):
            await chief.create_board(f"b{number}")
    async with kokuban_client.connect(server.address, agent="bookkeeper", roles=["auditor"]) as auditor:
        found = [record async for record in auditor.audit_records(page_size=2)]
        assert [(record.act, record.agent, record.board) for record in found] == [
            ("board.create", "chief", f"b{number}") for number in range(5)
        ]
        assert all(record.hash == hashlib.sha256(record.body).hexdigest() for record in found)
        assert [record.previous_hash for record in found] == ["", *(record.hash for record in found[:-1])]
        assert found[0].peer.startswith("ipv4:127.0.0.1:")
        assert found[0].roles == ("operator",)
        assert [one.board async for one in auditor.audit_records(board="b3", agent="chief", act="board.create")] == [
            "b3"
        ]
        assert [one async for one in auditor.audit_records(end=before)] == []
        assert len([one async for one in auditor.audit_records(begin=before)]) == 5
        with pytest.raises(ValueError, match="zone"):
            auditor.audit_records(begin=datetime.now())  # noqa: DTZ005 - that is what is refused

        async def is_anchored() -> bool:
            told = await auditor.verify_audit()
            return told.newest_anchor is not None and told.chains[0].anchored_sequence >= 5

        await until(is_anchored)
        verdict = await auditor.verify_audit()
        assert verdict.newest_anchor is not None
        assert (verdict.record_count, verdict.chain_count, verdict.fault_count, verdict.faults) == (5, 1, 0, ())
        assert verdict.chains[0].newest_hash == found[-1].hash
        assert (await auditor.verify_audit(anchor_hash=verdict.newest_anchor.hash)).fault_count == 0
        broken = await auditor.verify_audit(anchor_hash="0" * 64)
        assert [fault.kind for fault in broken.faults] == [AuditFaultKind.ANCHOR_BROKEN]
    async with kokuban_client.connect(server.address, agent="member") as member:
        with pytest.raises(errors.RoleRequired):
            await member.verify_audit()
        with pytest.raises(errors.RoleRequired):
            await anext(member.audit_records())


def test_the_command_line_shows_the_log_and_fails_when_it_is_broken(
    server: ServerProcess, folder: Path, kokuban: Callable[..., Answer]
) -> None:
    with sync.connect(server.address, agent="chief", roles=["operator"]) as chief:
        for name in ("launch", "landing", "return"):
            chief.create_board(name)
    assert kokuban("audit", "ls")[0] == EXIT_CODES["refused"]
    code, out, _ = kokuban("audit", "ls", "--roles", "auditor", "--act", "board.create")
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 3)
    for word in ("chief", "ipv4:127.0.0.1:", "board.create", "AdminService.CreateBoard", "launch", "done"):
        assert word in lines[0]
    _, out, _ = kokuban("audit", "ls", "--roles", "auditor", "--json", "--board", "landing", "--since", "1h")
    (only,) = map(json.loads, out.splitlines())
    assert (only["board"], only["agent"], only["outcome"]) == ("landing", "chief", "done")
    assert kokuban("audit", "ls", "--roles", "auditor", "--until", "2026-01-01T00:00:00Z")[:2] == (0, "")
    code, _, err = kokuban("audit", "ls", "--since", "yesterday")
    assert code == EXIT_CODES["usage"]
    assert "neither a time" in err
    code, out, _ = kokuban("audit", "verify", "--roles", "auditor")
    assert code == 0
    assert "as it was written" in out
    code, out, _ = kokuban("audit", "verify", "--roles", "auditor", "--anchor", "0" * 64)
    assert code == EXIT_CODES["audit log broken"]
    assert "the anchor that was kept is not there" in out
    server.stop()
    asyncio.run(edit(folder, b"landing", b"nothing"))
    server.start()
    code, out, _ = kokuban("audit", "verify", "--roles", "operator", "--json")
    assert code == EXIT_CODES["audit log broken"]
    told = json.loads(out)
    assert [(fault["kind"], fault["sequence"]) for fault in told["faults"]] == [("edited", 2)]
    code, out, _ = kokuban("audit", "verify", "--roles", "auditor")
    assert "edited" in out


async def edit(folder: Path, old: bytes, new: bytes) -> None:
    """Have a record tell another story, behind the server's back."""
    assert len(old) == len(new)
    store = await SqliteStore.open(folder, SystemClock())
    records = {at: value for at, value in (await content(store)).items() if at.startswith(keys.AUDIT_RECORD)}
    await write(store, {at: value.replace(old, new) for at, value in records.items() if old in value})
    await store.close()
