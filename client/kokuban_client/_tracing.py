"""Calls in the traces of a program that uses OpenTelemetry. Where it does not, this is nothing, and needs nothing.

Each attempt of a call that is answered once has a span of its own; every call carries the W3C trace context that it is made
in, so that the server's spans, and what the board keeps with an entry or a lock, belong to the caller's trace.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import grpc

from kokuban_client import _wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

    from kokuban_client._credentials import Metadata

_OPENTELEMETRY = "opentelemetry.trace"


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
    tracer = trace.get_tracer("kokuban_client")
    attributes = {"rpc.system.name": "grpc", "rpc.method": method}
    with tracer.start_as_current_span(
        method,
        kind=trace.SpanKind.CLIENT,
        attributes=attributes,
        record_exception=False,  # an error's text has no place in a trace
        set_status_on_exception=False,
    ) as span:
        try:
            yield with_context(metadata)
        except grpc.RpcError as error:
            code = error.code().name
            span.set_attribute("rpc.response.status_code", code)
            span.set_attribute("error.type", code)
            span.set_status(trace.StatusCode.ERROR)
            raise
        span.set_attribute("rpc.response.status_code", "OK")
