"""Spans on their way out of real server processes: to a collector that takes them, and to collectors that do not."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import kokuban_client
from kokuban_client import ConflictRecord, errors
from kokuban_client.testing import ServerProcess
from tests.etcd_server import EtcdServer
from tests.replicas.pair import Pair
from tests.telemetry.collector import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BOUND_S = 30.0


def tracing(endpoint: str, ratio: str = "1") -> dict[str, str]:
    return {
        "KOKUBAN_TRACING__ENDPOINT": endpoint,
        "KOKUBAN_TRACING__SAMPLE_RATIO": ratio,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


async def race(one: str, other: str) -> list[ConflictRecord]:
    """Have two agents race for one entry through two servers; give the conflicts that the board then has."""
    async with (
        kokuban_client.connect(one, agent="red", timeout_s=BOUND_S) as red,
        kokuban_client.connect(other, agent="blue", timeout_s=BOUND_S) as blue,
    ):
        boards = [red.board("main"), blue.board("main")]
        before = (await boards[0].conflict_summary()).token
        answers = await asyncio.gather(
            *[
                board.put("shared:plan", "e", name, must_not_exist=True)
                for name, board in zip("ab", boards, strict=True)
            ],
            return_exceptions=True,
        )
        assert sum(isinstance(answer, errors.AlreadyExists) for answer in answers) == 1
        async with asyncio.timeout(BOUND_S), boards[0].watch_conflicts(after=before) as watch:
            await anext(watch)
        return [conflict async for conflict in boards[0].conflicts()]


def is_linked(collector: Collector, conflict: ConflictRecord) -> bool:
    """Say whether the loser's span is linked to the winner's, once the collector has both."""
    assert conflict.winner is not None
    loser, winner = (bytes.fromhex(one.traceparent.split("-")[2]) for one in (conflict.loser, conflict.winner))
    spans = collector.wait_for(loser, winner)
    assert spans[loser].trace_id.hex() == conflict.loser.trace_id
    assert spans[winner].trace_id.hex() == conflict.winner.trace_id
    return [(link.span_id, link.trace_id) for link in spans[loser].links] == [(winner, spans[winner].trace_id)]


@pytest.mark.etcd
async def test_two_agents_on_two_replicas_race_and_the_losers_exported_span_is_linked_to_the_winners(
    collector: Collector,
) -> None:
    etcd = EtcdServer()
    await etcd.start_all()
    pair = Pair(f"etcd://{etcd.members[0].endpoint}/traced", **tracing(collector.endpoint))
    try:
        await asyncio.to_thread(pair.start)
        (conflict,) = await race(pair.a.address, pair.b.address)
        assert await asyncio.to_thread(is_linked, collector, conflict)
    finally:
        await asyncio.to_thread(pair.close)
        etcd.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_on_the_other_stores_it_is_the_same(kind: str, collector: Collector, tmp_path: Path) -> None:
    store = "memory:" if kind == "memory" else f"sqlite:{tmp_path / 'store'}"
    with ServerProcess(store=store, environment=tracing(collector.endpoint)) as server:
        (conflict,) = await race(server.address, server.address)
        assert await asyncio.to_thread(is_linked, collector, conflict)


async def commits(server: ServerProcess, count: int) -> None:
    async with kokuban_client.connect(server.address, agent="writer", timeout_s=BOUND_S) as client:
        board = client.board("main")
        for number in range(count):
            await board.put("shared:plan", f"e{number}", "x", must_not_exist=True)
            with pytest.raises(errors.AlreadyExists):
                await board.put("shared:plan", f"e{number}", "y", must_not_exist=True)
        assert len([entry async for entry in board.list("shared:plan")]) == count


async def test_a_refusing_collector_changes_no_result(collector: Collector) -> None:
    collector.status = 400
    with ServerProcess(store="memory:", environment=tracing(collector.endpoint)) as server:
        await commits(server, 50)
        await asyncio.to_thread(_asked, collector)
    assert collector.spans == []


async def test_a_collector_that_is_not_there_changes_no_result() -> None:
    with Collector() as gone:
        endpoint = gone.endpoint
    with ServerProcess(store="memory:", environment=tracing(endpoint)) as server:
        await commits(server, 50)


async def test_a_collector_that_never_answers_changes_no_result_and_delays_no_end(collector: Collector) -> None:
    collector.answers.clear()
    with ServerProcess(store="memory:", environment=tracing(collector.endpoint)) as server:
        await commits(server, 50)
        await asyncio.to_thread(_asked, collector)
        await asyncio.to_thread(server.stop)  # fails if the server has to be killed
    collector.answers.set()


def _asked(collector: Collector) -> None:
    end = time.monotonic() + BOUND_S
    while not collector.requests:
        assert time.monotonic() < end


async def test_what_the_library_does_in_a_trace_belongs_to_it_up_to_the_servers_span(collector: Collector) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with ServerProcess(store="memory:", environment=tracing(collector.endpoint, ratio="0")) as server:
        async with kokuban_client.connect(server.address, agent="writer") as client:
            with provider.get_tracer("test").start_as_current_span("work") as work:
                written = await client.board("main").put("shared:plan", "e", "x", must_not_exist=True)
            (change,) = await client.board("main").history("shared:plan", "e")
        context = work.get_span_context()
        assert written.path == "e"
        trace_id, span_id = change.acts[0].traceparent.split("-")[1:3]
        assert trace_id == f"{context.trace_id:032x}"
        spans = await asyncio.to_thread(collector.wait_for, bytes.fromhex(span_id))
        assert spans[bytes.fromhex(span_id)].trace_id.hex() == trace_id
        assert spans[bytes.fromhex(span_id)].name == "kokuban.v1.BoardService/Commit"
