"""A board that takes as much as it may: what would put more is refused, and everything else goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from kokuban.v1 import commit_pb2, error_reason_pb2
from kokuban_server.core import keys, limits
from tests.wire.calls import (
    Kept,
    append,
    at,
    commit_request,
    delete,
    increment,
    merge,
    new_id,
    put,
    put_json,
    records,
    refused,
    release,
    until,
    whatever,
)

if TYPE_CHECKING:
    from kokuban_server.app.board_census import BoardCensus
    from kokuban_server.ports.board_store import BoardStore, Page
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started

BOARD = keys.board_prefix("dev", "main")
INTERVAL_S = 120.0
NO_LIMIT = 10**12
TEXT = "x" * 1_000


async def taken(store: BoardStore) -> int:
    """Add up what the board's heads and histories take of the store."""
    found = await records(store, keys.HEAD + BOARD) + await records(store, keys.HISTORY + BOARD)
    return sum(len(record.key) + len(record.value) for record in found)


async def started(start: Started, store: BoardStore, board_bytes_max: int) -> Running:
    """Start a server that limits boards; the test has them counted itself."""
    running = await start(store, board_bytes_max=board_bytes_max, board_census_interval_s=INTERVAL_S)
    tasks = {task.get_name(): task for task in running.server._background}
    tasks["board-census"].cancel()
    await until(tasks["board-census"].done)
    return running


def census(running: Running) -> BoardCensus:
    assert running.server._census is not None
    return running.server._census


async def count(running: Running) -> None:
    """Have the boards counted, and the server know."""
    await census(running).take()
    await census(running)._ownership.let_go()
    assert running.server._sizes is not None
    await running.server._sizes.read(1e9)
    assert running.server._sizes.size_bytes(BOARD) == await taken(running.server._store)


@pytest.fixture
async def limited(start: Started, any_store: BoardStore) -> Running:
    """A server whose board is full: its limit is what three entries take."""
    measuring = await started(start, any_store, NO_LIMIT)
    for number in range(3):
        await measuring.agent.commit(put(f"e{number}", TEXT))
    await count(measuring)
    return await started(start, any_store, await taken(any_store))


@pytest.mark.parametrize("over_bytes", [0, 1])
async def test_a_commit_that_reaches_the_limit_is_taken_and_one_byte_more_is_not(
    start: Started, any_store: BoardStore, over_bytes: int
) -> None:
    """One server needs no count for that: it knows what it has put."""
    first = await started(start, any_store, NO_LIMIT)
    await first.agent.commit(put("e1", TEXT))
    await count(first)
    one = await taken(any_store)
    limit = 2 * one - over_bytes
    running = await started(start, any_store, limit)
    if over_bytes:
        with refused("BOARD_FULL", board="main", limit=str(limit), actual=str(one)) as found:
            await running.agent.commit(put("e2", TEXT))
        assert (found[0].code, found[0].retry_ms) == (grpc.StatusCode.RESOURCE_EXHAUSTED, INTERVAL_S * 1000)
        assert await running.agent.paths() == ["e1"]
        return
    await running.agent.commit(put("e2", TEXT))
    assert await taken(any_store) == limit
    with refused("BOARD_FULL", actual=str(limit)):
        await running.agent.commit(put("e3", ""))


async def test_every_way_to_put_something_is_refused_on_a_full_board(limited: Running) -> None:
    agent = limited.agent
    entry = await agent.get("e0")
    for mutations in (
        [put("new")],
        [put("e0", "", at(entry))],
        [increment("n")],
        [append("list", 1)],
        [put_json("j", "{}")],
        [merge("e0", "{}", at(entry))],
        [delete("e1", at(await agent.get("e1"))), put("new")],
    ):
        request = commit_request(*mutations)
        if mutations[0].WhichOneof("kind") == "merge_patch":
            with refused("VALUE_TYPE_MISMATCH"):  # what does not hold is said first
                await agent.send(request)
            continue
        with refused("BOARD_FULL"):
            await agent.send(request)
    with refused("ALREADY_EXISTS"):
        await agent.commit(put("e0"))
    stream = agent.board.CommitStream(metadata=agent.metadata)
    await stream.write(commit_pb2.CommitStreamRequest(commit=commit_request(put("new"))))
    answer: Any = await stream.read()
    assert answer.refused.reason == error_reason_pb2.ERROR_REASON_BOARD_FULL
    assert answer.refused.retry_delay.seconds == INTERVAL_S
    await stream.done_writing()
    assert await agent.paths() == ["e0", "e1", "e2"]


async def test_deletes_releases_locks_and_reads_go_on_on_a_full_board(limited: Running) -> None:
    member = await limited.join()
    fence = await member.acquire("e1")
    await limited.agent.commit(delete("e1", at(await limited.agent.get("e1"))), fences=[fence])
    await limited.agent.commit(release(fence))
    assert await limited.agent.paths() == ["e0", "e2"]
    assert await limited.agent.close(member.session)
    await limited.agent.commit(
        delete("e0", at(await limited.agent.get("e0"))), delete("e2", at(await limited.agent.get("e2")))
    )
    assert await limited.agent.paths() == []


async def test_a_full_board_leaves_other_boards_and_what_is_beyond_boards_alone(
    start: Started, any_store: BoardStore
) -> None:
    running = await start(
        any_store, board_bytes_max=2_000, board_census_interval_s=INTERVAL_S, boards=["main", "other"]
    )
    with refused("BOARD_FULL", actual="0"):
        await running.agent.commit(put("large", TEXT))
    operator = running.as_agent("writer-1", "member,operator")
    await operator.commit(put("large", TEXT, whatever(), region="tenant"))
    with refused("BOARD_FULL", board="other"):
        await running.agent.commit(put("large", TEXT), board="other")
    await running.agent.commit(put("small"), board="other")


async def test_a_repeated_commit_gets_its_first_answer_when_the_board_is_full(
    start: Started, any_store: BoardStore
) -> None:
    first = await started(start, any_store, NO_LIMIT)
    request = commit_request(put("e1", TEXT))
    answer = await first.agent.send(request)
    running = await started(start, any_store, 1)
    await count(running)
    again = await running.agent.send(request)
    assert (again.replayed, again.revision) == (True, answer.revision)
    with refused("REQUEST_ID_REUSED"):
        await running.agent.send(commit_request(put("e2"), request_id=request.request_id))


async def test_what_was_deleted_makes_some_room_by_the_next_count_and_the_rest_when_its_tombstone_ends(
    limited: Running, clock: SettableClock
) -> None:
    """At once the value itself goes; its history stays for as long as the tombstone does."""
    agent = limited.agent
    for path in ("e0", "e1"):
        await agent.commit(delete(path, at(await agent.get(path))))
    with refused("BOARD_FULL"):
        await agent.commit(put("small"))
    await count(limited)
    await agent.commit(put("small"))
    with refused("BOARD_FULL"):
        await agent.commit(put("large", TEXT))
    clock.pass_ms(limits.TOMBSTONE_MS)
    await limited.server._upkeep.sweep()
    late = commit_request(put("large", TEXT), request_id=new_id(clock.now_ms()))
    with refused("BOARD_FULL"):
        await agent.send(late)
    await count(limited)
    await agent.send(late)
    assert await agent.paths() == ["e2", "large", "small"]


class SlowCounts(Kept):
    """A store that takes its time to say what boards take."""

    def __init__(self, store: BoardStore) -> None:
        super().__init__(store)
        self.asked, self.free = asyncio.Event(), asyncio.Event()

    async def scan(self, prefix: bytes, *more: Any) -> Page:  # noqa: ANN401 - as it came
        if prefix == keys.SIZE:
            self.asked.set()
            await self.free.wait()
        page: Page = await self._store.scan(prefix, *more)
        return page


async def test_a_server_that_starts_knows_the_last_count_before_it_takes_a_commit(
    limited: Running, start: Started
) -> None:
    store = SlowCounts(limited.server._store)
    assert limited.server._sizes is not None
    again = await start(store, board_bytes_max=limited.server._sizes._bytes_max, board_census_interval_s=INTERVAL_S)
    await store.asked.wait()
    late = commit_request(put("new"))
    with pytest.raises(grpc.aio.AioRpcError) as unanswered:
        await again.agent.board.Commit(late, metadata=again.agent.metadata, timeout=0.2)
    assert unanswered.value.code() in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}
    store.free.set()
    with refused("BOARD_FULL"):
        await again.agent.send(late)
    assert await again.agent.paths() == ["e0", "e1", "e2"]


async def test_boards_are_counted_at_once_and_then_at_the_interval(start: Started, any_store: BoardStore) -> None:
    """What another server has put is known after that, however long this one's own memory."""
    other = await start(any_store)
    for number in range(3):
        await other.agent.commit(put(f"e{number}", TEXT))
    running = await start(any_store, board_bytes_max=NO_LIMIT, board_census_interval_s=0.05)
    sizes = running.server._sizes
    assert sizes is not None
    for path in ("f", "g"):
        size = await taken(any_store)
        await until(lambda size=size: sizes.size_bytes(BOARD) == size)  # type: ignore[misc]  # bound here
        await other.agent.commit(put(path, TEXT))


async def test_without_a_limit_nothing_is_counted(start: Started, any_store: BoardStore) -> None:
    running = await start(any_store)
    await running.agent.commit(put("e"))
    assert running.server._sizes is None
    assert {task.get_name() for task in running.server._background} == {
        "upkeep",
        "removals",
        "rescreening",
        "pending-commits",
        "lock-upkeep",
        "audit",
        "conflicts",
    }
    assert await records(any_store, keys.SIZE) == []
