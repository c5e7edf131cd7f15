"""Servers that are away, stall or crash, and clients that come and go."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

import kokuban_client
from kokuban_client import errors, sync
from kokuban_client.testing import ServerFailed, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nobody listens: bound, so that nobody else takes it meanwhile."""
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{placeholder.getsockname()[1]}"


async def test_a_server_that_is_not_there_is_told_and_nothing_was_sent(nobody: str) -> None:
    async with kokuban_client.connect(nobody, agent="a", timeout_s=0.2) as client:
        with pytest.raises(errors.Unreachable, match="no server answers"):
            await client.board("main").put("shared:plan", "a", 1, must_not_exist=True)
    async with kokuban_client.connect(nobody, agent="a", timeout_s=60, wait_for_ready=False) as client:
        with pytest.raises(errors.Unreachable):
            await asyncio.wait_for(client.status(), 10)
        with pytest.raises(errors.Unreachable):
            await asyncio.wait_for(anext(client.board("main").watch("shared:plan", start=kokuban_client.NOW)), 10)


def test_a_server_that_is_not_there_is_told_to_threads_too(nobody: str) -> None:
    with sync.connect(nobody, agent="a", timeout_s=0.2) as client, pytest.raises(errors.Unreachable):
        client.board("main").put("shared:plan", "a", 1, must_not_exist=True)
    with sync.connect(nobody, agent="a", wait_for_ready=False) as client, pytest.raises(errors.Unreachable):
        client.status()


async def test_a_stalled_server_leaves_a_commit_unknown_and_its_id_settles_it() -> None:
    async with ServerProcess() as server, kokuban_client.connect(server.address, agent="a") as client:
        board = client.board("main")
        await board.put("shared:plan", "a", 1, must_not_exist=True)
        server.pause()
        with pytest.raises(errors.OutcomeUnknown) as unknown:
            await board.increment("shared:plan", "a", 5, timeout_s=0.3)
        with pytest.raises(errors.DeadlineExceeded):
            await board.get("shared:plan", "a", timeout_s=0.3)
        server.resume()
        settled = await board.increment("shared:plan", "a", 5, request_id=unknown.value.request_id)
        assert settled.sequence == 2
        assert (await board.get("shared:plan", "a")).value == 6


async def test_a_commit_waits_for_a_crashed_server_and_happens_once(durable_server: ServerProcess) -> None:
    async with kokuban_client.connect(durable_server.address, agent="a") as client:
        board = client.board("main")
        await board.increment("shared:plan", "n")
        durable_server.kill()
        waiting = asyncio.ensure_future(board.increment("shared:plan", "n"))
        await asyncio.to_thread(durable_server.start)
        assert (await waiting).value == 2


async def test_closing_a_client_in_the_middle_of_a_write_leaves_it_unknown() -> None:
    async with ServerProcess() as server:
        client = kokuban_client.connect(server.address, agent="a")
        board = client.board("main")
        await board.increment("shared:plan", "n")
        server.pause()
        writing = asyncio.ensure_future(board.increment("shared:plan", "n"))
        reading = asyncio.ensure_future(board.get("shared:plan", "n"))
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(errors.OutcomeUnknown):
            await asyncio.wait_for(writing, 10)
        with pytest.raises(errors.ClientClosed):
            await asyncio.wait_for(reading, 10)


async def test_RB_23_a_thousand_clients_leave_nothing_behind(server: ServerProcess) -> None:
    async def come_and_go() -> None:
        async with kokuban_client.connect(server.address, agent="guest") as client:
            await client.status()

    async def visit(count: int) -> None:
        for _ in range(count // 20):
            await asyncio.gather(*(come_and_go() for _ in range(20)))

    process = psutil.Process()
    await visit(100)  # what is made once for all clients is made now
    tasks, threads, files, memory = len(asyncio.all_tasks()), *footprint(process)
    await visit(1000)
    assert len(asyncio.all_tasks()) == tasks
    later_threads, later_files, later_memory = footprint(process)
    assert later_threads <= threads + 20  # gRPC's own pool breathes; one for each client would be a thousand
    assert later_files <= files + 20
    assert later_memory - memory < 24 * 1024 * 1024


def test_RB_23_clients_of_threads_leave_no_thread_behind(server: ServerProcess) -> None:
    def come_and_go() -> None:
        with sync.connect(server.address, agent="guest") as client:
            client.status()

    come_and_go()
    before = threading.active_count()
    for _ in range(40):
        come_and_go()
    assert threading.active_count() <= before + 1


def footprint(process: psutil.Process) -> tuple[int, int, int]:
    return process.num_threads(), process.num_fds(), process.memory_info().rss


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(ServerFailed, match="ended while it started"):
        ServerProcess(store="no-such-store:").start()


def test_a_server_process_is_gone_after_its_block() -> None:
    with ServerProcess() as server:
        pid = server.pid
        assert psutil.pid_exists(pid)
        assert "listening" in server.log
        with pytest.raises(RuntimeError):
            server.start()
    assert not psutil.pid_exists(pid)
    with pytest.raises(RuntimeError):
        _ = server.pid
