"""Spans that the library makes where its program uses OpenTelemetry: of each call, also of streams, and without words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import kokuban_client
from kokuban_client import errors, sync
from kokuban_client.testing import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

WATCH, ACQUIRE = "kokuban.v1.BoardService/Watch", "kokuban.v1.LockService/AcquireLock"
CONFLICTS, COMMIT = "kokuban.v1.ConflictService/WatchConflicts", "kokuban.v1.BoardService/Commit"


class Spans:
    """What the library has recorded, in a tracer of the test's own."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def ends(self, name: str) -> list[tuple[object, StatusCode]]:
        """Give how the spans of a method ended."""
        return [
            ((span.attributes or {}).get("rpc.response.status_code"), span.status.status_code)
            for span in self.named(name)
        ]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    made = Spans()
    monkeypatch.setattr(trace, "get_tracer", made.provider.get_tracer)
    return made


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as process:
        yield process


def parent_of(span: ReadableSpan) -> str:
    assert span.parent is not None
    return f"{span.parent.span_id:016x}"


def id_of(span: ReadableSpan | trace.Span) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"{context.span_id:016x}"


async def test_streams_are_spans_that_end_with_them(server: ServerProcess, spans: Spans) -> None:
    async with kokuban_client.connect(server.address, agent="holder") as client:
        board = client.board("main")
        with spans.provider.get_tracer("test").start_as_current_span("work") as work:
            async with (
                board.watch("shared:spans", start=kokuban_client.NOW) as changes,
                board.watch_conflicts() as conflicts,
            ):
                await board.put("shared:spans", "e", "x", must_not_exist=True)
                await anext(changes)
                with pytest.raises(errors.AlreadyExists):
                    await board.put("shared:spans", "e", "y", must_not_exist=True)
                await anext(conflicts)
                assert spans.named(WATCH) == spans.named(CONFLICTS) == []
            async with board.lock("shared:spans", "locked", purpose="to hold it"):
                [granted] = spans.named(ACQUIRE)
                [lock] = (await board.locks("shared:spans")).locks
        async with kokuban_client.connect(server.address, agent="other") as other:
            with pytest.raises(errors.LockedByOther):
                async with (
                    board.lock("shared:spans", "locked", purpose="to hold it"),
                    other.board("main").lock("shared:spans", "locked", purpose="a secret"),
                ):
                    pass
    # That the program hangs up on a watch is no error; that its request is refused is one of the caller's, by the conventions.
    assert spans.ends(WATCH) == spans.ends(CONFLICTS) == [("CANCELLED", StatusCode.UNSET)]
    assert spans.ends(ACQUIRE) == [
        ("OK", StatusCode.UNSET),
        ("OK", StatusCode.UNSET),
        ("FAILED_PRECONDITION", StatusCode.ERROR),
    ]
    for span in (*spans.named(WATCH), *spans.named(CONFLICTS), granted):
        assert span.kind is SpanKind.CLIENT
        assert parent_of(span) == id_of(work)
    assert lock.traceparent.split("-")[2] == id_of(granted)  # the server has it in the trace of the request
    told = [str((span.attributes, span.events, span.status.description)) for span in spans.named(ACQUIRE)]
    assert "secret" not in str(told)


def test_streams_of_threads_are_spans_too(server: ServerProcess, spans: Spans) -> None:
    with sync.connect(server.address, agent="thread") as client:
        board = client.board("main")
        board.put("shared:threads", "e", "x", must_not_exist=True)
        with board.watch("shared:threads", start=kokuban_client.SNAPSHOT) as changes:
            next(changes)
        with board.lock("shared:threads", "locked", purpose="to hold it"):
            pass
    assert spans.ends(WATCH) == [("CANCELLED", StatusCode.UNSET)]
    assert spans.ends(ACQUIRE) == [("OK", StatusCode.UNSET)]
    assert spans.ends(COMMIT) == [("OK", StatusCode.UNSET)]


async def test_a_stream_that_its_server_ends_says_how(spans: Spans) -> None:
    with ServerProcess() as server:
        async with kokuban_client.connect(server.address, agent="watcher", timeout_s=1.0) as client:
            changes = client.board("main").watch("shared:spans", start=kokuban_client.NOW, give_up_after_s=0.5)
            async with changes:
                server.kill()
                with pytest.raises(errors.Unavailable):
                    await anext(changes)
    assert spans.ends(WATCH)[0] == ("UNAVAILABLE", StatusCode.ERROR)
