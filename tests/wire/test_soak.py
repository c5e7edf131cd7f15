"""What comes and goes leaves nothing behind, and a server that is told to stop does so in time and keeps what it promised."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING

import grpc
import psutil
import pytest

from kokuban.v1 import commit_pb2
from tests.wire.calls import Agent, connected, new_id, put, refusal_of, until, whatever

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.wire.conftest import Running, ServerProcess

GRACE_S = 5.0


def now_id() -> str:
    return new_id(time.time_ns() // 1_000_000)


async def open_and_cancel(agent: Agent, watches: int, at_once: int) -> None:
    """Open watches that stand, and cancel them."""
    for _ in range(watches // at_once):
        opened = [agent.watch(f"e{each}", now=True) for each in range(at_once)]
        await asyncio.gather(*(watch.begun() for watch in opened))
        for watch in opened:
            watch.cancel()


async def come_and_go(port: int, clients: int) -> None:
    """Connect, write, watch, and leave without a word."""
    for each in range(clients):
        async with connected(port) as channel:
            agent = Agent(channel, f"client-{each}")
            await agent.commit(
                put(f"c/{each % 50}", "x", whatever(), region=f"agent:client-{each}"), request_id=now_id()
            )
            await agent.watch(now=True).begun()


async def settled(process: psutil.Process, fds: int) -> None:
    async with asyncio.timeout(20):
        while process.num_fds() > fds + 3:  # noqa: ASYNC110 - another process sets no event
            await asyncio.sleep(0.02)


async def soak(server: ServerProcess, watches: int, clients: int, slack_bytes: int) -> None:
    """Do everything twice: what the first half made the server keep for good, the second must not make it keep again."""
    port = server.port()
    process = psutil.Process(server.process.pid)
    async with connected(port) as channel:
        agent = Agent(channel)
        await open_and_cancel(agent, max(100, watches // 2), 50)
        await come_and_go(port, max(20, clients // 2))
        fds, threads, memory = process.num_fds(), process.num_threads(), process.memory_info().rss
        await open_and_cancel(agent, watches, 50)
        await come_and_go(port, clients)
        await settled(process, fds)
        grown = process.memory_info().rss - memory
        assert process.num_threads() <= threads + 2
        assert grown < slack_bytes, f"{grown} bytes for {watches} watches and {clients} clients"
        await agent.commit(put("after"), request_id=now_id())
    log = server.log.read_text(encoding="utf-8")
    assert "rpc.fault" not in log
    assert "Traceback" not in log


async def test_RB_44_RB_23_watches_and_clients_that_come_and_go_leave_nothing(
    processes: Callable[..., ServerProcess],
) -> None:
    await soak(processes(), 1_000, 100, 6 * 1024 * 1024)


@pytest.mark.faults
@pytest.mark.timeout(900)
async def test_RB_44_RB_23_ten_thousand_watches_and_a_thousand_clients_leave_nothing(
    processes: Callable[..., ServerProcess],
) -> None:
    await soak(processes(), 10_000, 1_000, 16 * 1024 * 1024)


async def test_RB_44_no_task_and_no_subscriber_outlives_its_watch(running: Running) -> None:
    await open_and_cancel(running.agent, 50, 50)
    feed = running.server._watches.feed

    async def quiet() -> int:
        await until(lambda: not feed.subscribers and running.server._wire._calls._streams_left == 10_000)
        gc.collect()
        return len(asyncio.all_tasks())

    before = await quiet()
    await open_and_cancel(running.agent, 300, 50)
    async with asyncio.timeout(10):  # grpc's own tasks end a little later than the calls they served
        while await quiet() > before + 2:  # noqa: ASYNC110 - as in the comment above
            await asyncio.sleep(0)
    assert not feed._by_prefix


async def test_RB_45_a_server_that_is_told_to_stop_ends_in_time_and_keeps_every_answered_write(
    processes: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    store = f"sqlite:{tmp_path / 'store'}"
    server = processes(store=store, KOKUBAN_DRAIN_GRACE_S=str(GRACE_S))
    answered: list[str] = []
    unsure: set[str] = set()
    async with connected(server.port()) as channel:
        agents = [Agent(channel, f"writer-{each}") for each in range(20)]
        watches = [await agents[0].watch(f"w{each % 5}", now=True).begun() for each in range(30)]
        streams = [agents[0].board.CommitStream(metadata=agents[0].metadata) for _ in range(20)]
        for stream in streams:
            request = commit_pb2.CommitStreamRequest()
            request.commit.board, request.commit.request_id = "main", now_id()
            request.commit.mutations.add().increment.key.CopyFrom(put("n").put.key)
            request.commit.mutations[0].increment.by = 1
            await stream.write(request)
            answer = await stream.read()
            assert isinstance(answer, commit_pb2.CommitStreamResponse)
            assert answer.WhichOneof("result") == "committed"

        async def write(agent: Agent) -> str:
            each = 0
            while True:
                path = f"e/{agent.name}/{each}"
                each += 1
                try:
                    await agent.commit(put(path), request_id=now_id())
                except grpc.aio.AioRpcError as error:
                    refusal = refusal_of(error)
                    if refusal.reason != "SERVER_DRAINING":
                        unsure.add(path)
                    return refusal.reason or f"{refusal.code.name}: {refusal.message}"
                answered.append(path)

        writing = [asyncio.ensure_future(write(agent)) for agent in agents]
        await until(lambda: len(answered) >= 100, within_s=20)
        status = asyncio.ensure_future(asyncio.to_thread(server.terminate, GRACE_S + 1))
        for watch in watches:
            kinds: list[str | None] = []
            while kinds[-1:] != ["going_away"]:
                kinds.append((await watch.next()).WhichOneof("content"))
            assert watch.token
        for stream in streams:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stream.read()
            assert refusal_of(raised.value).reason == "SERVER_DRAINING"
        ends = await asyncio.gather(*writing)
        assert await status == 0
        assert set(ends) == {"SERVER_DRAINING"}
    again = processes(store=store)
    async with connected(again.port()) as channel:
        kept = set(await Agent(channel).paths("e"))
    assert set(answered) <= kept
    assert kept - set(answered) <= unsure
