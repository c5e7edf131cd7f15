"""Watches against a real server, also one that is killed and started again."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import grpc.aio
import pytest

import kokuban_client
from kokuban_client import (
    NOW,
    SNAPSHOT,
    Bookmark,
    ChangeType,
    EntryChange,
    Reset,
    SnapshotComplete,
    SnapshotEntry,
    errors,
)

if TYPE_CHECKING:
    from kokuban_client import Board, Client, Watch
    from kokuban_client.testing import ServerProcess
    from kokuban_client.types import WatchItem


async def next_change(watch: Watch) -> EntryChange:
    item = await asyncio.wait_for(anext(watch), 30)
    assert isinstance(item, EntryChange), item
    return item


async def test_a_watch_tells_every_change_with_who_and_why(board: Board, region: str) -> None:
    async with board.watch((region, "task_1"), start=NOW) as watch:
        first = await board.put(region, "task_1/a", 1, must_not_exist=True, reason="begin")
        await board.put(region, "task_10", "beside", must_not_exist=True)
        await board.delete(region, "task_1/a", at=first.revision)
        created, deleted = await next_change(watch), await next_change(watch)
    assert (created.type, created.entry.value, created.previous_revision) == (ChangeType.PUT, 1, 0)
    assert (created.acts[0].agent, created.acts[0].reason) == ("writer-1", "begin")
    assert (deleted.type, deleted.previous_revision) == (ChangeType.DELETED, first.revision.number)


async def test_a_watch_begins_with_what_is_there_when_asked(board: Board, region: str) -> None:
    await board.put(region, "a", 1, must_not_exist=True)
    async with board.watch(region, start=SNAPSHOT) as watch:
        items: list[WatchItem] = [await anext(watch), await anext(watch)]
        assert isinstance(items[0], SnapshotEntry)
        assert items[0].entry.value == 1
        assert isinstance(items[1], SnapshotComplete)
        assert watch.token == items[1].token
        await board.put(region, "b", 2, must_not_exist=True)
        assert (await next_change(watch)).entry.path == "b"


async def test_another_watch_goes_on_where_one_ended(board: Board, region: str) -> None:
    async with board.watch(region, start=NOW, bookmarks=True) as watch:
        assert isinstance(await anext(watch), Bookmark)
        await board.put(region, "a", 1, must_not_exist=True)
        assert (await next_change(watch)).entry.path == "a"
        token = watch.token
    await board.put(region, "b", 2, must_not_exist=True)
    async with board.watch(region, start=token) as later:
        assert (await next_change(later)).entry.path == "b"
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_a_listing_is_continued_by_a_watch_from_its_token(board: Board, region: str) -> None:
    await board.put(region, "a", 1, must_not_exist=True)
    listing = board.list(region)
    assert [entry.path async for entry in listing] == ["a"]
    await board.put(region, "b", 2, must_not_exist=True)
    async with board.watch(region, start=listing.token) as watch:
        assert (await next_change(watch)).entry.path == "b"


async def test_an_interrupted_wait_loses_nothing(board: Board, region: str) -> None:
    async with board.watch(region, start=NOW) as watch:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watch), 0.05)
        await board.put(region, "a", 1, must_not_exist=True)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await board.put(region, "b", 2, must_not_exist=True)
        assert [(await next_change(watch)).entry.path for _ in range(2)] == ["a", "b"]


async def test_what_is_wrong_with_a_watch_is_raised(board: Board, region: str) -> None:
    with pytest.raises(ValueError, match="what to watch"):
        board.watch(start=NOW)
    with pytest.raises(TypeError, match="starts at"):
        board.watch(region, start=3)  # type: ignore[arg-type] # wrong on purpose
    with pytest.raises(errors.TokenInvalid):
        async with board.watch(region, start="made up"):
            pass
    watch = board.watch("shared", start=NOW)
    with pytest.raises(errors.RegionInvalid):
        await anext(watch)
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_history_that_is_gone_is_raised_or_listed_anew(durable_server: ServerProcess) -> None:
    async with kokuban_client.connect(durable_server.address, agent="op", roles=["operator"]) as operator:
        board = operator.board("main")
        first = await board.put("shared:plan", "a", 1, must_not_exist=True)
        second = await board.put("shared:plan", "a", 2, at=first.revision)
        third = await board.put("shared:plan", "a", 3, at=second.revision)
        await operator.compact(third.token)
        # A running server may still have in memory what the store has forgotten.
        await asyncio.to_thread(durable_server.stop)
        await asyncio.to_thread(durable_server.start)
        watch = board.watch("shared:plan", start=first.token)
        with pytest.raises(errors.HistoryCompacted):
            await anext(watch)
        async with board.watch("shared:plan", start=first.token, on_gap="relist") as relisted:
            items = [await asyncio.wait_for(anext(relisted), 10) for _ in range(3)]
    assert items[0] == Reset("HISTORY_COMPACTED")
    assert isinstance(items[1], SnapshotEntry)
    assert items[1].entry.value == 3
    assert isinstance(items[2], SnapshotComplete)


def open_calls(client: Client) -> int:
    """White box: how many streams gRPC still holds for the client."""
    link = client._calls._long
    assert link is not None
    channel = link.channel
    assert isinstance(channel, grpc.aio.Channel)
    active: list[grpc.aio.Call] = list(channel._active_calls)  # type: ignore[attr-defined] # gRPC's own book
    return sum(not call.done() for call in active)


async def test_breaking_out_of_a_watch_ends_its_call(client: Client, board: Board, region: str) -> None:
    await board.put(region, "a", 1, must_not_exist=True)
    async for item in board.watch(region, start=SNAPSHOT):
        assert isinstance(item, SnapshotEntry)
        break
    del item
    gc.collect()
    assert open_calls(client) == 0


async def test_closing_the_client_ends_its_watches_and_says_so(server: ServerProcess, region: str) -> None:
    client = kokuban_client.connect(server.address, agent="writer-1")
    watch = client.board("main").watch(region, start=NOW)
    async with watch:
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(errors.ClientClosed):
            await asyncio.wait_for(waiting, 10)
    with pytest.raises(errors.ClientClosed):
        await client.status()


async def test_closing_a_watch_from_elsewhere_ends_it_quietly(board: Board, region: str) -> None:
    async with board.watch(region, start=NOW) as watch:
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        await watch.aclose()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(waiting, 10)


async def test_WA_01_a_killed_server_costs_a_watch_neither_gap_nor_repeat(durable_server: ServerProcess) -> None:
    server, writes = durable_server, 120
    async with (
        kokuban_client.connect(server.address, agent="writer") as writer,
        kokuban_client.connect(server.address, agent="watcher") as watcher,
    ):
        board = writer.board("main")
        halfway = asyncio.Event()

        async def write() -> None:
            for number in range(writes):
                async with board.commit() as tx:
                    tx.put("shared:log", f"first/{number}", number, must_not_exist=True)
                    tx.put("shared:log", f"second/{number}", number, must_not_exist=True)
                if number % 40 == 20:
                    halfway.set()

        async def crash() -> None:
            for _ in range(3):
                await halfway.wait()
                halfway.clear()
                server.kill()
                await asyncio.to_thread(server.start)

        seen: list[tuple[str, int]] = []
        async with watcher.board("main").watch("shared:log", start=NOW) as watch, asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            tasks.create_task(crash())
            while len(seen) < 2 * writes:
                change = await next_change(watch)
                seen.append((change.entry.path, change.entry.revision.number))
        expected = [f"{half}/{number}" for number in range(writes) for half in ("first", "second")]
        assert sorted(path for path, _ in seen) == sorted(expected)
        assert [revision for _, revision in seen] == sorted(revision for _, revision in seen)
        entries = [entry async for entry in board.list("shared:log")]
        assert {entry.path: entry.revision.number for entry in entries} == dict(seen)
        assert all(entry.sequence == 1 for entry in entries)


async def test_a_watch_outlives_a_server_that_leaves_in_order(durable_server: ServerProcess) -> None:
    async with kokuban_client.connect(durable_server.address, agent="writer-1") as client:
        board = client.board("main")
        async with board.watch("shared:log", start=NOW) as watch:
            await board.put("shared:log", "before", 1, must_not_exist=True)
            assert (await next_change(watch)).entry.path == "before"
            waiting = asyncio.ensure_future(next_change(watch))
            await asyncio.to_thread(durable_server.stop)
            await asyncio.to_thread(durable_server.start)
            await board.put("shared:log", "after", 2, must_not_exist=True)
            assert (await waiting).entry.path == "after"
