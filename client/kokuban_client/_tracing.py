"""Calls in the traces of a program that uses OpenTelemetry. Where it does not, this is nothing, and needs nothing.

Each attempt of a call has a span of its own; that of a stream ends with the stream. Every call carries the W3C trace context
that it is made in, so that the server's spans, and what the board keeps with an entry or a lock, belong to the caller's
trace. Renewals of sessions have none: they go on in the background and belong to nobody's work.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
import grpc.aio

from kokuban_client import _wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.message import Message
    from opentelemetry.trace import Span

    from kokuban_client._credentials import Metadata

_Stream = TypeVar("_Stream")
_OPENTELEMETRY = "opentelemetry.trace"
_SCOPE = "kokuban_client"


def _is_used() -> bool:
    """Say whether this program has loaded OpenTelemetry."""
    return _OPENTELEMETRY in sys.modules


def with_context(metadata: Metadata) -> Metadata:
    """Give headers with the trace context that is current here, if there is one."""
    if not _is_used():
        return metadata
    from opentelemetry import trace  # noqa: PLC0415 - see above

    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return metadata
    header = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    return (*metadata, ("traceparent", header))


@contextlib.contextmanager
def attempt(request: Message, metadata: Metadata) -> Iterator[Metadata]:
    """Give the headers for one attempt of a call, made in a span of its own."""
    if not _is_used():
        yield metadata
        return
    from opentelemetry import trace  # noqa: PLC0415 - see above

    method = _wire.method_of(request)
    with trace.get_tracer(_SCOPE).start_as_current_span(
        method,
        kind=trace.SpanKind.CLIENT,
        attributes=_attributes(method),
        record_exception=False,  # an error's text has no place in a trace
        set_status_on_exception=False,
    ) as span:
        try:
            yield with_context(metadata)
        except grpc.RpcError as error:
            _note_end(span, error.code().name)
            raise
        _note_end(span, "OK")


def stream(request: Message, metadata: Metadata, begin: Callable[[Metadata], _Stream]) -> _Stream:
    """Give the stream that `begin` opens with the headers it is given, in a span of its own that ends with it."""
    if not _is_used():
        return begin(metadata)
    from opentelemetry import trace  # noqa: PLC0415 - see above

    method = _wire.method_of(request)
    span = trace.get_tracer(_SCOPE).start_span(method, kind=trace.SpanKind.CLIENT, attributes=_attributes(method))
    with trace.use_span(span, record_exception=False, set_status_on_exception=False):
        call = begin(with_context(metadata))
    return cast("_Stream", _TracedStream(call, span))


def finish(call: object) -> None:
    """Take note that a stream has brought what it was for; what ends it now is the caller's own hand."""
    if isinstance(call, _TracedStream):
        call.end("OK")


class _TracedStream:
    """A stream of responses, for event loops and for threads, and its span."""

    def __init__(self, call: Any, span: Span) -> None:  # noqa: ANN401 - grpc's, of either kind
        self._call = call
        self._span = span
        self._is_over = False

    def end(self, code: str) -> None:
        """End the span, once. That who asked hangs up is no error."""
        if not self._is_over:
            self._is_over = True
            _note_end(self._span, code, is_error=code not in {"OK", "CANCELLED"})
            self._span.end()

    async def read(self) -> Any:  # noqa: ANN401 - whatever the stream carries
        """Give the next response, or grpc's sign of the end."""
        with self._noted():
            response = await self._call.read()
        if response is grpc.aio.EOF:
            self.end("OK")
        return response

    def __iter__(self) -> _TracedStream:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - whatever the stream carries
        try:
            with self._noted():
                return next(self._call)
        except StopIteration:
            self.end("OK")
            raise

    def cancel(self) -> bool:
        """Hang up."""
        self.end("CANCELLED")
        return bool(self._call.cancel())

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            self.end(error.code().name)
            raise


def _attributes(method: str) -> dict[str, str]:
    return {"rpc.system.name": "grpc", "rpc.method": method}


def _note_end(span: Span, code: str, *, is_error: bool | None = None) -> None:
    span.set_attribute("rpc.response.status_code", code)
    if code != "OK" if is_error is None else is_error:
        from opentelemetry import trace  # noqa: PLC0415 - see above

        span.set_attribute("error.type", code)
        span.set_status(trace.StatusCode.ERROR)
