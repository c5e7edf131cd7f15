"""Spans, with OpenTelemetry's SDK.

Whether a span is recorded is decided here, once, before anything of the SDK is made: what came with a sampled trace context
is, what came with another is not, and of the rest a share. So a call that is not recorded pays for a small object. Spans
leave in a thread of the SDK's, from a queue that is bounded: a collector that is dead, slow or refuses loses spans and
nothing else.
"""

from __future__ import annotations

import asyncio
import enum
import random
import re
import threading
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.util.types import AttributeValue

    from kokuban_server.core.conflicts import Conflict
    from kokuban_server.ports.tracing import Span

CLOSE_S: Final = 3.0
"""How long a server that ends waits for a collector."""
_BATCH_LINKS_MAX: Final = 128
_FAULTS: Final = {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
"""The codes that are a server's errors, by the conventions for RPCs. That somebody lost is never one."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class Places(enum.StrEnum):
    """How a span names regions and paths."""

    HASHED = "hashed"
    """By a keyed digest: the same place is seen to be the same, and its name is not told."""
    PLAIN = "plain"
    NONE = "none"


class OtelTracer:
    """Makes spans and hands them to a processor."""

    def __init__(
        self,
        processor: SpanProcessor,
        *,
        server_id: str,
        version: str,
        sample_ratio: float,
        always_conflicts: bool,
        places: Places,
        place_key: bytes,
    ) -> None:
        resource = Resource.create(
            {"service.name": "kokuban", "service.version": version, "service.instance.id": server_id}
        )
        # No handler at the interpreter's end: the server closes what it has opened, and waits no longer than it says.
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("kokuban_server", version)
        self._sample_ratio = sample_ratio
        self.always_conflicts = always_conflicts
        self._places = places
        self._place_key = place_key

    def begin_rpc(self, method: str, parent: str) -> _Span:
        """Begin the span of a call."""
        context = _context_of(parent)
        if context is not None:
            is_sampled = bool(context.trace_flags & TraceFlags.SAMPLED)
        else:
            is_sampled = random.random() < self._sample_ratio  # noqa: S311 - nothing secret
        service, _, name = method.rpartition(".")
        attributes: dict[str, AttributeValue] = {"rpc.system.name": "grpc", "rpc.method": f"{service}/{name}"}
        span = _Span(self, f"{service}/{name}", SpanKind.SERVER, context, attributes)
        if is_sampled:
            span.record()
        return span

    def start(
        self,
        name: str,
        kind: SpanKind,
        parent: SpanContext | None,
        attributes: dict[str, AttributeValue],
        links: Sequence[Link],
        begin_ns: int,
    ) -> OtelSpan:
        """Begin a span that is recorded."""
        context: Context | None = None
        if parent is not None:
            context = set_span_in_context(NonRecordingSpan(parent))
        return self._tracer.start_span(
            name, context=context, kind=kind, attributes=attributes, links=links, start_time=begin_ns
        )

    def place(self, region: str, path: str) -> dict[str, AttributeValue]:
        """Give what a span says of a place. A region's kind is always told: it is one of seven words."""
        told: dict[str, AttributeValue] = {"kokuban.region.kind": region.partition(":")[0]}
        if self._places is Places.PLAIN:
            told |= {"kokuban.region": region, "kokuban.path": path}
        elif self._places is Places.HASHED:
            told |= {"kokuban.region": self._hashed(region), "kokuban.path": self._hashed(f"{region}/{path}")}
        return told

    def _hashed(self, name: str) -> str:
        return blake2b(name.encode(), digest_size=8, key=self._place_key).hexdigest()

    async def close(self) -> None:
        """Give away what is recorded, for as long as a server that ends can wait."""
        # A thread that may be left behind: the SDK waits for its exporter, and that for a collector.
        closing = threading.Thread(target=self._provider.shutdown, name="tracer-shutdown", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_S)


class _Span:
    """A span, recorded or not."""

    __slots__ = ("_attributes", "_begin_ns", "_has_lost", "_kind", "_name", "_parent", "_recorded", "_tracer")

    def __init__(
        self,
        tracer: OtelTracer,
        name: str,
        kind: SpanKind,
        parent: SpanContext | None,
        attributes: dict[str, AttributeValue],
    ) -> None:
        self._tracer = tracer
        self._name = name
        self._kind = kind
        self._parent = parent
        self._attributes = attributes
        self._begin_ns = time.time_ns()
        self._recorded: OtelSpan | None = None
        self._has_lost = False

    def record(self, links: Sequence[Link] = ()) -> None:
        """Begin to record, from its beginning."""
        self._recorded = self._tracer.start(
            self._name, self._kind, self._parent, self._attributes, links, self._begin_ns
        )

    @property
    def context(self) -> SpanContext | None:
        """Its context, while it is recorded."""
        return None if self._recorded is None else self._recorded.get_span_context()

    @property
    def traceparent(self) -> str:
        """Its context as others are told of it."""
        context = self.context
        return "" if context is None else f"00-{context.trace_id:032x}-{context.span_id:016x}-01"

    def note_conflict(self, conflict: Conflict) -> None:
        """Add the event, its attributes, and the link to the winner."""
        self._has_lost = True
        if self._recorded is None:
            if not self._tracer.always_conflicts:
                return
            self.record()
        span, winner = self._recorded, conflict.winner
        if span is None:  # pragma: no cover - for the type checker: it is recorded by now
            return
        facts: dict[str, AttributeValue] = {
            "kokuban.conflict.id": conflict.id,
            "kokuban.conflict.reason": conflict.reason,
            "kokuban.conflict.kind": conflict.kind.name.lower(),
            **self._tracer.place(conflict.region, conflict.path),
        }
        if conflict.actual_revision:
            facts["kokuban.conflict.expected_revision"] = conflict.expected_revision
            facts["kokuban.conflict.actual_revision"] = conflict.actual_revision
        if winner is not None:
            facts["kokuban.conflict.winner.agent"] = winner.agent
            context = _context_of(winner.traceparent)
            if context is not None:
                facts["kokuban.conflict.winner.trace_id"] = f"{context.trace_id:032x}"
                facts["kokuban.conflict.winner.span_id"] = f"{context.span_id:016x}"
                span.add_link(context, {"kokuban.link": "conflicts_with"})
        span.set_attributes(facts)
        span.add_event("kokuban.conflict", facts)

    def begin_wait(self, holder: str) -> _Span:
        """Begin to wait for a lock."""
        context = _context_of(holder)
        links = [] if context is None else [Link(context, {"kokuban.link": "waits_for"})]
        return self._begin_part("kokuban.lock.wait", SpanKind.INTERNAL, self.context, {}, links)

    def begin_screening(self, asked: str) -> _Span:
        """Begin to judge a text."""
        return self._begin_part(
            "kokuban.screening", SpanKind.INTERNAL, self.context, {"kokuban.screening.asked": asked}, []
        )

    def note_verdict(self, verdict: str) -> None:
        """Say what came of it."""
        if self._recorded is not None:
            self._recorded.set_attribute("kokuban.screening.verdict", verdict)

    def begin_batch(self, members: Sequence[Span | None]) -> _Span:
        """Begin a batch, which belongs to none of its members' traces alone."""
        contexts = [member.context for member in members if isinstance(member, _Span)]
        links = [Link(context, {"kokuban.link": "member"}) for context in contexts if context is not None]
        attributes: dict[str, AttributeValue] = {"kokuban.batch.members": len(members)}
        return self._begin_part("kokuban.store.batch", SpanKind.CLIENT, None, attributes, links[:_BATCH_LINKS_MAX])

    def _begin_part(
        self,
        name: str,
        kind: SpanKind,
        parent: SpanContext | None,
        attributes: dict[str, AttributeValue],
        links: Sequence[Link],
    ) -> _Span:
        part = _Span(self._tracer, name, kind, parent, attributes)
        if self._recorded is not None:
            part.record(links)
        return part

    def end(self, code: str = "OK") -> None:
        """End it; only faults make it an error."""
        span = self._recorded
        if span is None:
            return
        if self._kind is SpanKind.SERVER:
            span.set_attribute("rpc.response.status_code", code)
        if code in _FAULTS and not self._has_lost:
            span.set_attribute("error.type", code)
            span.set_status(StatusCode.ERROR)
        span.end()


def _context_of(traceparent: str) -> SpanContext | None:
    """Give what a W3C trace context names; nothing if it is none, or names nothing."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    context = SpanContext(
        int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=TraceFlags(int(found[3], 16))
    )
    return context if context.is_valid else None
