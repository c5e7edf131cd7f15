"""Boards that are made, described and removed, with all that they hold and nothing of others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kokuban.v1 import admin_service_pb2, board_service_pb2, policy_pb2, session_service_pb2
from kokuban_server.app import purges
from kokuban_server.core import keys, limits
from kokuban_server.core.boards import PurgeCount
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.records.board_codec import encode_purge
from tests.wire.calls import (
    REGION,
    Agent,
    Deaf,
    HeldStore,
    acquire_request,
    delete,
    end_of,
    increment,
    key,
    lasting,
    new_id,
    outcome,
    put,
    records,
    refused,
    rule,
    whatever,
)

if TYPE_CHECKING:
    import pytest

    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started

LIVE, DELETED, PURGED = (
    admin_service_pb2.BOARD_STATE_LIVE,
    admin_service_pb2.BOARD_STATE_DELETED,
    admin_service_pb2.BOARD_STATE_PURGED,
)
KEPT = (keys.BOARD, keys.OPERATION, keys.AUDIT, keys.OWNER, keys.MARK, keys.SECRET, keys.SERVER)
"""What does not go with a board: its own record, what makes commits happen once, what somebody has to answer for, and what
is of no board."""


class Operator:
    """An operator's calls about boards."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._metadata = agent.metadata

    async def create(self, board: str) -> admin_service_pb2.Board:
        request = admin_service_pb2.CreateBoardRequest(board=board)
        return (await self.agent.admin.CreateBoard(request, metadata=self._metadata)).board

    async def get(self, board: str) -> admin_service_pb2.Board:
        request = admin_service_pb2.GetBoardRequest(board=board)
        return (await self.agent.admin.GetBoard(request, metadata=self._metadata)).board

    async def delete(self, board: str, reason: str = "over") -> admin_service_pb2.Board:
        request = admin_service_pb2.DeleteBoardRequest(board=board, reason=reason)
        return (await self.agent.admin.DeleteBoard(request, metadata=self._metadata)).board

    async def list(self, **more: Any) -> list[str]:  # noqa: ANN401 - any field of the request
        request = admin_service_pb2.ListBoardsRequest(**more)
        return [board.id for board in (await self.agent.admin.ListBoards(request, metadata=self._metadata)).boards]


def operator(running: Running) -> Operator:
    return Operator(running.as_agent("op", "member,operator"))


async def fill(agent: Agent, board: str, entries: int = 3) -> None:
    """Write something of every kind on a board."""
    for number in range(entries):
        await agent.commit(put(f"e{number}"), put(f"e{number}", region="task:t"), board=board)
        await agent.commit(put(f"e{number}", "y", whatever(), region="task:t", ttl=lasting(3600)), board=board)
    await agent.commit(increment("n"), board=board)
    await agent.commit(put("gone", region="task:t"), board=board)
    await agent.commit(delete("gone", whatever(), region="task:t"), board=board)
    opened = await agent.sessions.OpenSession(
        session_service_pb2.OpenSessionRequest(board=board, request_id=new_id(), ttl=lasting(60)),
        metadata=agent.metadata,
    )
    stream = agent.locks.AcquireLock(acquire_request(opened.session.id, "locked", board=board), metadata=agent.metadata)
    await stream.read()


async def content(store: BoardStore) -> dict[bytes, bytes]:
    """Give everything that a store holds of boards."""
    return {
        record.key: record.value
        for first in sorted({bytes((byte,)) for byte in range(0x61, 0x7B)})
        for record in await records(store, first)
        if not record.key.startswith(KEPT)
    }


async def test_a_deleted_board_is_there_for_nobody_and_leaves_a_receipt_of_what_it_was(
    start: Started, any_store: BoardStore
) -> None:
    running = await start(any_store)
    op = operator(running)
    for board in ("main-1", "mai", "main-"[:-1]):
        if board != "main":
            await op.create(board)
    await fill(op.agent, "main-1")
    await fill(op.agent, "mai")
    others = await content(any_store)
    await fill(op.agent, "main")
    await op.agent.set_policy(rule("task:*", history_revisions_max=5))
    gone = await op.delete("main", "the project is over")
    assert (gone.state, gone.deleter, gone.delete_reason) == (DELETED, "op", "the project is over")
    for call in (
        op.agent.get("e0"),
        op.agent.commit(put("new")),
        op.agent.list_locks(),
        op.agent.open_session(),
        op.agent.explain(REGION, policy_pb2.VERB_READ),
    ):
        assert (await outcome(call)).reason == "NOT_FOUND"
    assert await op.delete("main", "another reason") == gone  # the same again is nothing
    await running.server._upkeep.sweep()
    purged = await op.get("main")
    assert (purged.state, purged.delete_time) == (PURGED, gone.delete_time)
    receipt = purged.receipt
    # Four entries and a counter live, one is a tombstone; the task's three and the tombstone have two states.
    assert (receipt.entries, receipt.revisions) == (8, 12)
    assert receipt.locks == 4  # a session, a lock, its marker, the region's generation
    left = await content(any_store)
    assert left == others
    with refused("NOT_FOUND"):
        await op.agent.get("e0")
    with refused("NOT_FOUND"):
        await running.agent.commit(put("new"))  # not even where boards are made on first use


async def test_a_purged_boards_id_can_be_used_anew_and_nothing_of_before_is_seen(on_any_store: Running) -> None:
    op = operator(on_any_store)
    await fill(op.agent, "main")
    before = await op.agent.get("e0")
    with refused("BOARD_EXISTS"):
        await op.create("main")
    await op.delete("main")
    with refused("BOARD_EXISTS"):
        await op.create("main")
    await on_any_store.server._upkeep.sweep()
    made = await op.create("main")
    assert (made.state, made.policy_number) == (LIVE, 0)
    assert not made.HasField("receipt")
    request = board_service_pb2.ListEntriesRequest(board="main", region=REGION)
    assert not (await op.agent.board.ListEntries(request, metadata=op.agent.metadata)).entries
    assert not (await op.agent.list_locks()).locks
    request_history = board_service_pb2.ListRevisionsRequest(board="main", key=key("e0"))
    with refused("NOT_FOUND"):
        await op.agent.board.ListRevisions(request_history, metadata=op.agent.metadata)
    again = await op.agent.commit(put("e0"))
    assert again.revision.number > before.revision.number


async def test_deleted_boards_are_shown_to_operators_who_ask_for_them(running: Running) -> None:
    op, member = operator(running), Operator(running.agent)
    await op.create("old")
    await op.create("new")
    await op.delete("old")
    assert await member.list() == await op.list() == ["new"]
    assert await op.list(show_deleted=True) == ["new", "old"]
    with refused("ROLE_REQUIRED", role="operator"):
        await member.list(show_deleted=True)
    with refused("NOT_FOUND"):
        await member.get("old")
    assert (await op.get("old")).state == DELETED
    with refused("NOT_FOUND"):
        await op.delete("never")
    with refused("FIELD_REQUIRED", field="reason"):
        await op.delete("new", "")
    with refused("FIELD_INVALID", field="reason"):
        await op.delete("new", "x" * (limits.REASON_BYTES_MAX + 1))
    assert (await op.delete("new", "x" * limits.REASON_BYTES_MAX)).state == DELETED


async def test_a_server_that_has_not_heard_of_it_writes_nothing_on_a_deleted_board(
    start: Started, any_store: BoardStore
) -> None:
    deaf = Deaf(any_store)
    one, two = await start(deaf), await start(any_store)
    await fill(one.agent, "main")
    others = {record: value for record, value in (await content(any_store)).items() if b"/main/" not in record}
    deaf.hears.clear()
    await operator(two).delete("main")
    await two.server._upkeep.sweep()
    for call in (
        one.agent.commit(put("new")),
        one.agent.commit(increment("n")),
        one.agent.open_session(),
    ):
        assert (await outcome(call)).reason == "NOT_FOUND"
        one = await start(deaf)
    deaf.hears.set()
    assert await content(any_store) == others


async def test_streams_end_when_their_board_is_deleted(start: Started, any_store: BoardStore) -> None:
    one, two = await start(any_store), await start(any_store)
    member, waiter = await one.join(), await one.join("writer-2")
    await member.acquire("a")
    watch = one.agent.watch(now=True)
    await watch.call.read()
    asking = await waiter.queued("a")
    pulse = await one.agent.keep_alive(member.session)
    await operator(two).delete("main")
    assert await end_of(watch.call) == "NOT_FOUND"
    assert await end_of(asking.call) == "NOT_FOUND"
    assert (await outcome(pulse.renew())).reason == "NOT_FOUND"


async def test_a_purge_goes_on_after_whatever_cut_it_short_and_counts_each_record_once(
    start: Started, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every step in turn: the store does not answer, or answers too late."""
    monkeypatch.setattr(purges, "_ENTRIES_AT_ONCE", 2)
    monkeypatch.setattr(purges, "_STEPS_AT_ONCE", 1)
    store = HeldStore(clock)
    running = await start(store)
    op = operator(running)
    await fill(op.agent, "main", entries=4)
    await op.delete("main")
    turns = 0
    while (await op.get("main")).state == DELETED:
        turns += 1
        store.loses_answers = turns % 2 == 0
        await outcome_of(running.server._upkeep._purges.turn())
        store.loses_answers = False
        assert turns < 50
    receipt = (await op.get("main")).receipt
    assert (receipt.entries, receipt.revisions, receipt.locks) == (10, 15, 4)
    assert store.lost > 3
    assert not await content(store)


async def outcome_of(work: Any) -> None:  # noqa: ANN401 - any coroutine
    try:
        await work
    except Exception as refusal:  # noqa: BLE001 - of a store that does not answer
        assert "OUTCOME_UNKNOWN" in str(refusal)


async def test_boards_deleted_together_are_all_purged(start: Started, any_store: BoardStore) -> None:
    one, two = await start(any_store), await start(any_store)
    op = operator(one)
    names = [f"b{number}" for number in range(4)]
    for name in names:
        await op.create(name)
        await fill(op.agent, name, entries=1)
    await asyncio.gather(*[op.delete(name) for name in names])
    await asyncio.gather(*[running.server._upkeep._purges.turn() for running in (one, two)])
    for _ in range(10):
        await one.server._upkeep._purges.turn()
    boards = [await op.get(name) for name in names]
    assert {board.state for board in boards} == {PURGED}
    assert {(board.receipt.entries, board.receipt.revisions, board.receipt.locks) for board in boards} == {(4, 6, 4)}
    assert not await content(any_store)


async def test_what_nobody_deleted_is_not_removed(running: Running) -> None:
    """Whatever record says that a board's content is being removed, while the board is there."""
    await running.agent.commit(put("a"))
    task = Put(keys.purge("dev", "main"), encode_purge(PurgeCount()))
    await running.server._store.commit(ChangeSet((), (task,)), 10.0)
    await running.server._upkeep._purges.turn()
    assert await running.agent.paths() == ["a"]
    assert await records(running.server._store, keys.PURGE) == []
