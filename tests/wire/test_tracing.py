"""Spans: one for each call, the loser's linked to the winner's, nothing of what agents write in any of them."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from kokuban.v1 import commit_pb2
from kokuban_server.adapters.telemetry import OtelTracer, Places
from kokuban_server.bootstrap import Server
from kokuban_server.bootstrap.identities import open_callers
from kokuban_server.settings import Settings
from tests.wire.calls import Agent, at, commit_request, connected, increment, new_id, put, refused, until
from tests.wire.conflict_calls import listed
from tests.wire.conftest import DIGEST_KEY, Running

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from opentelemetry.sdk.trace import ReadableSpan

    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import SettableClock

SAMPLED = ("traceparent", "00-" + "a" * 32 + "-" + "1" * 16 + "-01")
NOT_SAMPLED = ("traceparent", "00-" + "b" * 32 + "-" + "2" * 16 + "-00")
COMMIT = "kokuban.v1.BoardService/Commit"


class Traced:
    """A server that traces, and what it has recorded."""

    def __init__(self, running: Running, exporter: InMemorySpanExporter) -> None:
        self.running = running
        self._exporter = exporter

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if name in {"", span.name}]


def id_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


def links_of(span: ReadableSpan) -> list[tuple[str, str]]:
    return [
        (
            str((link.attributes or {})["kokuban.link"]),
            f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-01",
        )
        for link in span.links
    ]


@pytest.fixture
async def trace(store: BoardStore, clock: SettableClock) -> AsyncGenerator[Callable[..., Awaitable[Traced]], None]:
    async with AsyncExitStack() as stack:

        async def trace(ratio: float = 1.0, *, always: bool = True, places: Places = Places.HASHED) -> Traced:
            exporter = InMemorySpanExporter()
            tracer = OtelTracer(
                SimpleSpanProcessor(exporter),
                server_id="s",
                version="1",
                sample_ratio=ratio,
                always_conflicts=always,
                places=places,
                place_key=b"key",
            )
            chosen = Settings(store="memory:", listen="127.0.0.1:0", drain_grace_s=0.0, upkeep_interval_s=60.0)
            callers = await open_callers(chosen, clock)
            server = Server(chosen, store, clock, DIGEST_KEY, callers, tracer)
            port = await server.start()
            stack.push_async_callback(server.stop)
            channel = await stack.enter_async_context(connected(port))
            return Traced(Running(server, port, Agent(channel)), exporter)

        yield trace


@pytest.fixture
async def traced(trace: Callable[..., Awaitable[Traced]]) -> Traced:
    return await trace()


async def test_a_call_is_one_span_of_its_callers_trace_with_the_current_conventions(traced: Traced) -> None:
    await traced.running.agent.send(commit_request(put("e")), SAMPLED)
    with refused("NOT_FOUND"):
        await traced.running.agent.get("gone")
    (span,) = traced.spans(COMMIT)
    assert span.kind is SpanKind.SERVER
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == "a" * 32
    assert f"{span.parent.span_id:016x}" == "1" * 16
    assert dict(span.attributes or {}) == {
        "rpc.system.name": "grpc",
        "rpc.method": COMMIT,
        "rpc.response.status_code": "OK",
    }
    (missed,) = traced.spans("kokuban.v1.BoardService/GetEntry")
    assert (missed.attributes or {})["rpc.response.status_code"] == "NOT_FOUND"
    assert missed.status.status_code is StatusCode.UNSET
    assert missed.parent is None


async def test_the_losers_span_names_the_winners_and_is_linked_to_it_long_after(
    trace: Callable[..., Awaitable[Traced]], clock: SettableClock
) -> None:
    one, other = await trace(), await trace()
    first = await one.running.as_agent("winner").commit(put("e", "1"))
    won = await one.running.as_agent("winner").commit(put("e", "2", at(first)))
    winner = one.spans(COMMIT)[1]
    clock.pass_ms(3 * 3_600_000)
    with refused("REVISION_MISMATCH", winner_traceparent=id_of(winner)):
        await other.running.as_agent("loser").send(
            commit_request(put("e", "mine", at(first)), request_id=new_id(clock.ms))
        )
    (loser,) = other.spans(COMMIT)
    assert links_of(loser) == [("conflicts_with", id_of(winner))]
    facts = dict(loser.attributes or {})
    assert facts["kokuban.conflict.reason"] == "REVISION_MISMATCH"
    assert facts["kokuban.conflict.winner.agent"] == "winner"
    assert facts["kokuban.conflict.winner.trace_id"] == id_of(winner).split("-")[1]
    assert facts["kokuban.conflict.winner.span_id"] == id_of(winner).split("-")[2]
    assert facts["kokuban.conflict.expected_revision"] == first.revision.number
    assert facts["kokuban.conflict.actual_revision"] == won.revision.number
    assert [event.name for event in loser.events] == ["kokuban.conflict"]
    assert loser.status.status_code is StatusCode.UNSET
    (conflict,) = await listed(other.running)
    assert (conflict.loser.traceparent, conflict.winner.traceparent) == (id_of(loser), id_of(winner))


async def test_what_is_not_sampled_leaves_no_span_but_the_one_of_a_conflict(
    trace: Callable[..., Awaitable[Traced]],
) -> None:
    traced = await trace(ratio=0.0)
    await traced.running.agent.commit(put("e"))
    await traced.running.agent.send(commit_request(put("f")), NOT_SAMPLED)
    assert traced.spans() == []
    with refused("ALREADY_EXISTS"):
        await traced.running.as_agent("loser").send(commit_request(put("f")), NOT_SAMPLED)
    (span,) = traced.spans()
    assert links_of(span) == [("conflicts_with", NOT_SAMPLED[1][:-2] + "01")]
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == "b" * 32
    (conflict,) = await listed(traced.running)
    assert conflict.winner.traceparent == NOT_SAMPLED[1]
    await traced.running.agent.send(commit_request(put("g")), SAMPLED)
    assert len(traced.spans(COMMIT)) == 2


async def test_a_policy_may_leave_conflicts_to_sampling_and_they_are_recorded_all_the_same(
    trace: Callable[..., Awaitable[Traced]],
) -> None:
    traced = await trace(ratio=0.0, always=False)
    await traced.running.agent.commit(put("e"))
    with refused("ALREADY_EXISTS"):
        await traced.running.agent.send(commit_request(put("e")), NOT_SAMPLED)
    assert traced.spans() == []
    (conflict,) = await listed(traced.running)
    assert conflict.loser.traceparent == NOT_SAMPLED[1]


async def test_a_batch_of_the_store_is_one_span_linked_to_its_members(traced: Traced) -> None:
    await traced.running.agent.commit(put("first"))  # makes the board as well
    await traced.running.agent.commit(put("e"))
    _, commit = traced.spans(COMMIT)
    batches = [span for span in traced.spans("kokuban.store.batch") if ("member", id_of(commit)) in links_of(span)]
    assert len(batches) == 1
    assert batches[0].parent is None
    assert (batches[0].attributes or {})["kokuban.batch.members"] == 1


async def test_a_wait_for_a_lock_is_a_span_linked_to_the_holder(traced: Traced) -> None:
    running = traced.running
    holder, waiter = await running.join("holder"), await running.join("waiter")
    fence = await holder.acquire("e")
    asking = await waiter.queued("e", wait_s=60.0)
    await holder.agent.release(fence)
    await asking.granted()
    await until(lambda: len(traced.spans("kokuban.v1.LockService/AcquireLock")) == 2)
    granted, waited = sorted(traced.spans("kokuban.v1.LockService/AcquireLock"), key=lambda span: span.start_time or 0)
    (wait,) = traced.spans("kokuban.lock.wait")
    assert links_of(wait) == [("waits_for", id_of(granted))]
    assert wait.parent is not None
    assert f"{wait.parent.span_id:016x}" == id_of(waited).split("-")[2]


async def test_every_commit_of_a_stream_has_a_span_of_its_own(traced: Traced) -> None:
    agent = traced.running.agent
    stream: Any = agent.board.CommitStream(metadata=agent.metadata)
    for path in ("a", "b"):
        await stream.write(commit_pb2.CommitStreamRequest(commit=commit_request(put(path))))
        answer = await stream.read()
        assert answer.WhichOneof("result") == "committed"
    await stream.write(commit_pb2.CommitStreamRequest(commit=commit_request(put("a"))))
    assert (await stream.read()).WhichOneof("result") == "refused"
    await stream.done_writing()
    await stream.read()
    await until(lambda: len(traced.spans("kokuban.v1.BoardService/CommitStream")) == 4)
    codes = [
        (span.attributes or {})["rpc.response.status_code"]
        for span in traced.spans("kokuban.v1.BoardService/CommitStream")
    ]
    assert sorted(map(str, codes)) == ["ALREADY_EXISTS", "OK", "OK", "OK"]
    lost = next(span for span in traced.spans() if span.links and (span.attributes or {}).get("kokuban.conflict.id"))
    entry = (await agent.history("a"))[0]
    assert links_of(lost) == [("conflicts_with", entry.acts[0].traceparent)]


async def test_an_increment_that_travels_with_others_names_the_span_of_its_own_call(traced: Traced) -> None:
    await traced.running.agent.commit(increment("n"))
    (commit,) = traced.spans(COMMIT)
    assert (await traced.running.agent.history("n"))[0].acts[0].traceparent == id_of(commit)


@pytest.mark.parametrize("places", Places)
async def test_nothing_that_agents_write_is_in_a_span(trace: Callable[..., Awaitable[Traced]], places: Places) -> None:
    traced = await trace(places=places)
    mark = "mk-4711"
    region = f"task:{mark}"
    running = traced.running
    await running.agent.commit(put(f"{mark}/p", mark, region=region), reason=mark)
    with refused("ALREADY_EXISTS"):
        await running.agent.commit(put(f"{mark}/p", mark, region=region), reason=mark)
    holder = await running.join("holder")
    await holder.acquire("e", purpose=mark)
    with refused("LOCKED_BY_OTHER"):
        await running.agent.commit(put("e", mark), reason=mark)
    told = "".join(span.to_json() for span in traced.spans())
    assert (mark in told) == (places is Places.PLAIN)
    hashed = set(re.findall(r'"kokuban.path": "([0-9a-f]{16})"', told))
    assert len(hashed) == (2 if places is Places.HASHED else 0)
    if places is Places.PLAIN:
        assert told.replace(f"{mark}/p", "").replace(region, "").count(mark) == 0


async def test_a_fault_is_an_error_and_who_may_not_call_has_no_span(
    trace: Callable[..., Awaitable[Traced]], monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = await trace()
    with refused("CREDENTIAL_REQUIRED"):
        await traced.running.agent.board.Commit(commit_request(put("e")))
    assert traced.spans(COMMIT) == []

    async def broken(*_: Any) -> None:  # noqa: ANN401 - whatever it is called with
        raise RuntimeError("hunter2")

    monkeypatch.setattr(traced.running.server._store, "read", broken)
    with refused("INTERNAL"):
        await traced.running.agent.get("e")
    (span,) = traced.spans("kokuban.v1.BoardService/GetEntry")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "INTERNAL"
    assert "hunter2" not in span.to_json()
    monkeypatch.undo()


async def test_a_text_that_is_judged_is_a_part_of_its_call(traced: Traced) -> None:
    await traced.running.agent.commit(put("e"))
    await traced.running.agent.screen("The weather is fine.")
    await traced.running.agent.redact("Write to jane.doe@mail.internal.")
    calls = {span.name: span for span in traced.spans()}
    parts = traced.spans("kokuban.screening")
    assert [dict(part.attributes or {}) for part in parts] == [
        {"kokuban.screening.asked": "screen", "kokuban.screening.verdict": "ADMIT"},
        {"kokuban.screening.asked": "redact", "kokuban.screening.verdict": "FOUND"},
    ]
    for part, method in zip(parts, ("ScreenText", "RedactText"), strict=True):
        context = calls[f"kokuban.v1.TrustService/{method}"].get_span_context()
        assert part.parent is not None
        assert context is not None
        assert part.parent.span_id == context.span_id
