"""The client for threads against a real server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from kokuban_client import NOW, SNAPSHOT, EntryChange, SnapshotEntry, errors, sync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kokuban_client.testing import ServerProcess


@pytest.fixture
def threads_client(server: ServerProcess) -> Iterator[sync.Client]:
    with sync.connect(server.address, agent="writer-1") as client:
        yield client


@pytest.fixture
def threads_board(threads_client: sync.Client) -> sync.Board:
    return threads_client.board("main")


def test_what_is_written_is_read(threads_board: sync.Board, region: str) -> None:
    board = threads_board
    written = board.put(region, "a", {"n": 1}, must_not_exist=True)
    assert board.get(region, "a").revision == written.revision
    with board.commit(reason="both") as tx:
        tx.put(region, "a", {"n": 2}, at=written.revision)
        tx.increment(region, "b")
    assert [entry.value for entry in board.list(region)] == [{"n": 2}, 1]
    assert len(board.history(region, "a")) == 2
    assert board.find(region, "c") is None
    with pytest.raises(errors.RevisionMismatch):
        board.put(region, "a", 3, at=written.revision)


def test_one_client_serves_many_threads(threads_board: sync.Board, region: str) -> None:
    def bump(_: int) -> None:
        threads_board.update(region, "n", lambda n: n + 1, create=0)
        threads_board.increment(region, "m")

    before = threading.active_count()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(bump, range(40)))
    assert threads_board.get(region, "n").value == 40
    assert threads_board.get(region, "m").value == 40
    assert threading.active_count() <= before + 4


def test_an_asynchronous_function_is_refused(threads_board: sync.Board, region: str) -> None:
    async def later(state: int) -> int:
        return state

    with pytest.raises(TypeError, match="asynchronous"):
        threads_board.update(region, "n", later, create=0)


def test_a_watch_is_a_plain_iterator(threads_board: sync.Board, region: str) -> None:
    threads_board.put(region, "a", 1, must_not_exist=True)
    for item in threads_board.watch(region, start=SNAPSHOT):
        assert isinstance(item, SnapshotEntry)
        break
    with threads_board.watch(region, start=NOW) as watch:
        threads_board.put(region, "b", 2, must_not_exist=True)
        change = next(watch)
        assert isinstance(change, EntryChange)
        assert change.entry.path == "b"
    with pytest.raises(StopIteration):
        next(watch)


def test_closing_from_another_thread_ends_a_waiting_watch(server: ServerProcess, region: str) -> None:
    with (
        sync.connect(server.address, agent="writer-1") as client,
        client.board("main").watch(region, start=NOW) as watch,
    ):
        closer = threading.Thread(target=client.close)
        closer.start()
        with pytest.raises(errors.ClientClosed):
            next(watch)
        closer.join(10)
        with pytest.raises(errors.ClientClosed):
            client.status()


def test_a_watch_goes_on_after_a_crash(durable_server: ServerProcess) -> None:
    with sync.connect(durable_server.address, agent="writer-1") as client:
        board = client.board("main")
        with board.watch("shared:log", start=NOW) as watch:
            board.put("shared:log", "before", 1, must_not_exist=True)
            durable_server.kill()
            durable_server.start()
            board.put("shared:log", "after", 2, must_not_exist=True)
            seen = [next(watch), next(watch)]
    assert [item.entry.path for item in seen if isinstance(item, EntryChange)] == ["before", "after"]
