"""One audit log of two servers on one etcd: whatever is done to it is found, and a kill leaves it whole."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import errors
from kokuban_server.adapters.system import SystemClock
from kokuban_server.bootstrap.stores import open_store
from kokuban_server.settings import Settings
from tests.audit_harm import each_is_found
from tests.replicas.pair import Pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from kokuban_client import AuditVerdict, Client
    from kokuban_client.testing import ServerProcess
    from kokuban_server.ports.board_store import BoardStore
    from tests.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd
BOUND_S = 30.0
_numbers = itertools.count(1)


@pytest.fixture
def pair(etcd: EtcdServer) -> Iterator[Pair]:
    """Two servers of a store of their own, that anchor often."""
    store = f"etcd://{etcd.members[0].endpoint}/audit/{next(_numbers)}"
    made = Pair(store, KOKUBAN_AUDIT_ANCHOR_INTERVAL_S="0.1")
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
async def store(pair: Pair) -> AsyncIterator[BoardStore]:
    """The servers' store, behind their backs."""
    opened = await open_store(Settings(store=pair.store), SystemClock())
    yield opened
    await opened.close()


def calls(server: ServerProcess, agent: str, *roles: str) -> Client:
    return kokuban_client.connect(server.address, agent=agent, roles=roles or None, timeout_s=BOUND_S)


async def acts(server: ServerProcess, name: str, count: int) -> None:
    """Do acts of each kind through one server."""
    async with (
        calls(server, "chief", "operator") as chief,
        calls(server, "keeper", "supervisor") as keeper,
        calls(server, f"holder-{name}") as holder,
        holder.board("main").session() as session,
    ):
        for number in range(count):
            await chief.create_board(f"{name}{number}")
            with pytest.raises(errors.NotFound):
                await holder.board("main").get("agent:somebody", "note")
            hold = holder.board("main").lock("shared:plan", f"{name}/{number}", purpose="to test", session=session)
            with contextlib.suppress(errors.LockLost):  # it may be told so before the block's end, or not
                async with hold as held:
                    await keeper.board("main").break_lock(held.fence.lock_id, f"reason {number}")


async def anchored(auditor: Client, records: int = 0) -> AuditVerdict:
    """Give the verdict when everything is anchored, and there are so many records."""
    async with asyncio.timeout(BOUND_S):
        while True:
            verdict = await auditor.verify_audit()
            is_anchored = all(chain.anchored_sequence == chain.newest_sequence for chain in verdict.chains)
            if is_anchored and verdict.record_count >= records:
                return verdict
            assert verdict.fault_count == 0, verdict.faults
            await asyncio.sleep(0.05)


async def test_removing_editing_or_moving_any_record_is_found_over_two_servers(pair: Pair, store: BoardStore) -> None:
    async with calls(pair.b, "bookkeeper", "auditor") as auditor:
        await acts(pair.a, "a", 1)
        await anchored(auditor, records=3)
        await asyncio.gather(acts(pair.a, "again", 1), acts(pair.b, "b", 2))
        verdict = await anchored(auditor, records=12)
        assert (verdict.record_count, verdict.chain_count, verdict.fault_count) == (12, 2, 0)
        listed = [record async for record in auditor.audit_records()]
        assert len({record.chain for record in listed}) == 2
        assert [record.record_time for record in listed] == sorted(record.record_time for record in listed)
        pair.a.stop()  # it would go on anchoring what is being harmed

        async def found() -> set[str]:
            verdict = await auditor.verify_audit()
            return {fault.kind.name for fault in verdict.faults}

        done = await each_is_found(store, "dev", found)
        assert done["removed"] == done["swapped"] == done["forged"] == 12


async def test_the_newest_anchors_hash_is_in_a_servers_log_and_is_missed_when_it_is_gone(pair: Pair) -> None:
    await acts(pair.a, "a", 1)
    async with calls(pair.b, "bookkeeper", "auditor") as auditor:
        verdict = await anchored(auditor, records=3)
        assert verdict.newest_anchor is not None
        logged = re.findall(r'"hash": "([0-9a-f]{64})"', pair.a.log + pair.b.log)
        assert verdict.newest_anchor.hash in logged
        assert (await auditor.verify_audit(anchor_hash=logged[0])).fault_count == 0
        assert (await auditor.verify_audit(anchor_hash="f" * 64)).fault_count == 1


async def test_a_killed_server_leaves_a_whole_log_and_the_other_anchors_its_end(pair: Pair) -> None:
    made: set[str] = set()
    enough = asyncio.Event()

    async def make(server: ServerProcess, name: str) -> None:
        async with calls(server, "chief", "operator") as chief:
            for number in range(10_000):
                await chief.create_board(f"{name}{number}", timeout_s=2.0)
                made.add(f"{name}{number}")
                if len(made) >= 20 * (turn + 1):
                    enough.set()

    for turn in range(3):
        enough.clear()
        makers = [asyncio.ensure_future(make(pair.a, f"t{turn}m{number}x")) for number in range(4)]
        await asyncio.wait_for(enough.wait(), BOUND_S)
        pair.a.kill()
        await asyncio.gather(*makers, return_exceptions=True)
        async with calls(pair.b, "bookkeeper", "auditor") as auditor:
            verdict = await anchored(auditor)
            assert verdict.fault_count == 0
            assert verdict.chain_count == turn + 1
            recorded = [record.board async for record in auditor.audit_records(act="board.create")]
            boards = {board.id for board in await auditor.boards()}
        assert len(set(recorded)) == len(recorded)
        assert made <= set(recorded) == boards - {"main"}
        await asyncio.to_thread(pair.a.start)
