"""What every call has in common: identity, deadline, limits, and refusals as statuses.

Handlers get bytes and give bytes, so that a broken message is refused like any other bad input, and no fault's text reaches
a client. There are no interceptors: this is the one layer that every method passes.
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, TypeVar

import grpc
import structlog

from kokuban_server.app.origin import ORIGIN
from kokuban_server.app.stages import NEXT_STAGE
from kokuban_server.core import limits
from kokuban_server.core.audit import Origin
from kokuban_server.core.rates import Bucket, Rate
from kokuban_server.core.refusals import (
    DeadlineTooShort,
    Refusal,
    ServerDraining,
    StoreCorrupt,
    TooManyRequests,
    Unauthenticated,
)
from kokuban_server.ports.tracing import TRACED
from kokuban_server.wire.gathering import Gathering
from kokuban_server.wire.status import CODE_BY_REASON, message_of, status_of
from kokuban_server.wire.usage import Usages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable

    from kokuban_server.app.measures import Measures
    from kokuban_server.core.access import Principal
    from kokuban_server.ports.tracing import Tracer
    from kokuban_server.wire.identity import Identity
    from kokuban_server.wire.usage import PrincipalLimits, Usage

_log = structlog.get_logger()
_MOMENT_S = 0.05
_LINGER_S = 1.0
_Last = TypeVar("_Last")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


Send: TypeAlias = "Callable[[bytes], Awaitable[None]]"
"""Sends a message of a stream."""


class Call(NamedTuple):
    """What is known of a call beside its request."""

    principal: Principal
    deadline: float
    """The loop's time by which to answer."""
    traceparent: str
    """The W3C trace context it came with, if it is well-formed; else empty."""
    draining: asyncio.Event
    """Set when the server is about to stop."""
    gathering: Gathering
    """Where commits of a stream join those that arrive at the same time."""
    usage: Usage
    """What the principal's agent has in hand."""
    tracer: Tracer | None = None
    """Makes spans, if calls are traced: then `traceparent` is that of the call's own."""


class UnaryMethod(NamedTuple):
    """A method that takes one message and gives one."""

    handler: Callable[[bytes, Call], Awaitable[bytes]]
    writes: bool = False
    """It is one of the writes of which an agent may make only so many a second."""


class ServerStreamMethod(NamedTuple):
    """A method that takes one message and gives many."""

    handler: Callable[[bytes, Call], AsyncGenerator[bytes, None]]
    writes: bool = False
    """As of a unary method."""


class ProgressMethod(NamedTuple):
    """A method that takes one message and gives many, the last of which is what its handler returns."""

    handler: Callable[[bytes, Call, Send], Awaitable[bytes]]
    writes: bool = False
    """As of a unary method."""


class StreamMethod(NamedTuple):
    """A method that takes many messages and gives many."""

    handler: Callable[[AsyncIterator[bytes], Call], AsyncGenerator[bytes, None]]
    keeps_alive: bool = False
    """It is counted apart from an agent's other streams."""


Method = UnaryMethod | ServerStreamMethod | ProgressMethod | StreamMethod


class InternalFault(Refusal):
    """A fault of the server; its log has the details under the incident id."""

    reason = "INTERNAL"

    def __init__(self, incident: str) -> None:
        super().__init__()
        self.incident = incident

    @property
    def facts(self) -> dict[str, str]:
        """The incident's id."""
        return {"incident": self.incident}


class _OpenStream:
    """A stream that is being answered."""

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        assert task is not None  # noqa: S101 - handlers run in tasks
        self.task = task
        self.ended: Refusal | None = None
        """Why it is being ended by the server."""


class Calls:
    """Wraps methods for grpc, and counts the calls in hand."""

    def __init__(
        self,
        identity: Identity,
        unary_max: int,
        streams_max: int,
        principal_limits: PrincipalLimits,
        tracer: Tracer | None = None,
        measures: Measures | None = None,
    ) -> None:
        self._identity = identity
        self._tracer = tracer
        self._measures = measures
        self._usages = Usages(principal_limits)
        self._unary_left = unary_max
        self._streams_left = streams_max
        self._left_max = unary_max + streams_max
        self._turned_away = 0
        self._strangers = _Strangers()
        self._gathering = Gathering()
        self._open_streams: dict[_OpenStream, Principal] = {}
        self.draining = asyncio.Event()
        """Once set, new calls are refused."""

    def wrap(self, name: str, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        """Give the method as grpc wants it. `name` is for the log."""
        if isinstance(method, UnaryMethod):
            return grpc.unary_unary_rpc_method_handler(self._unary(name, method))
        if isinstance(method, ServerStreamMethod):
            return grpc.unary_stream_rpc_method_handler(self._server_stream(name, method))
        if isinstance(method, ProgressMethod):
            # grpc sends what a handler of this kind returns and the end of the call as one, in a fifth less of its time than
            # a stream's last message and then its end. What came before does not matter to it, nor the kind to the client.
            return grpc.unary_unary_rpc_method_handler(self._progress(name, method))
        return grpc.stream_stream_rpc_method_handler(self._stream(name, method))

    def _unary(self, name: str, method: UnaryMethod) -> Any:  # noqa: ANN401 - as grpc types it
        handler, writes = method

        async def unary(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            if self.draining.is_set() or self._unary_left <= 0:
                await self._turn_away(context)
            self._unary_left -= 1
            code = "CANCELLED"
            begun = time.perf_counter()
            try:
                await self._gathering.begin()
                call = self._call(name, context, limits.DEADLINE_S_DEFAULT, limits.DEADLINE_S_MAX)
                with call.usage.calls:
                    if writes:
                        call.usage.write()
                    response = await handler(request, call)
                    await NEXT_STAGE
                    code = "OK"
                    return response
            except Refusal as refusal:
                answer = refusal
                code = CODE_BY_REASON[answer.reason].name
            except Exception as fault:  # noqa: BLE001 - the outermost layer: no fault's text leaves the server
                answer = internal_fault(name, fault)
                code = "INTERNAL"
            finally:
                self._gathering.end()
                self._unary_left += 1
                self._end(name, code, begun)
            return await self._refuse(context, answer)

        return unary

    def _server_stream(self, name: str, method: ServerStreamMethod) -> Any:  # noqa: ANN401 - as above
        handler, writes = method

        async def server_stream(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            await self._in_stream(
                name, context, lambda call: _send_all(handler(request, call), context.write), writes=writes
            )

        return server_stream

    def _progress(self, name: str, method: ProgressMethod) -> Any:  # noqa: ANN401 - as above
        handler, writes = method

        async def progress(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            async def respond(call: Call) -> bytes:
                last = await handler(request, call, context.write)
                await NEXT_STAGE
                return last

            return await self._in_stream(name, context, respond, writes=writes)

        return progress

    def _stream(self, name: str, method: StreamMethod) -> Any:  # noqa: ANN401 - as above
        handler, keeps_alive = method

        async def stream(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            await self._in_stream(
                name, context, lambda call: _send_all(handler(requests, call), context.write), keeps_alive=keeps_alive
            )

        return stream

    async def _in_stream(
        self,
        name: str,
        context: grpc.aio.ServicerContext[bytes, bytes],
        respond: Callable[[Call], Awaitable[_Last]],
        *,
        writes: bool = False,
        keeps_alive: bool = False,
    ) -> _Last:
        """Have a stream responded to, in this one task only; give what comes last."""
        if self.draining.is_set() or self._streams_left <= 0:
            await self._turn_away(context)
        self._streams_left -= 1
        stream = _OpenStream(asyncio.current_task())
        code = "CANCELLED"
        begun = time.perf_counter()
        try:
            call = self._call(name, context, math.inf, math.inf)  # a stream lives as long as its client wants
            self._open_streams[stream] = call.principal
            usage = call.usage
            with usage.keep_alives if keeps_alive else usage.streams:
                if writes:
                    usage.write()
                last = await respond(call)
                code = "OK"
                return last
        except Refusal as refusal:
            answer = refusal
            code = CODE_BY_REASON[answer.reason].name
        except asyncio.CancelledError:
            if stream.ended is None:
                raise
            stream.task.uncancel()
            answer = stream.ended
            code = CODE_BY_REASON[answer.reason].name
        except Exception as fault:  # noqa: BLE001 - the outermost layer
            answer = internal_fault(name, fault)
            code = "INTERNAL"
        finally:
            self._open_streams.pop(stream, None)
            self._streams_left += 1
            self._end(name, code, begun)
        return await self._refuse(context, answer)

    def _end(self, name: str, code: str, begun: float) -> None:
        """Take note that a call has ended."""
        traceparent = end_span(code) if self._tracer is not None else ""
        if self._measures is not None:
            self._measures.rpc(name, code, time.perf_counter() - begun, traceparent)

    def end_stale_streams(self) -> None:
        """End each stream whose credential would not open it any more."""
        for stream, principal in self._open_streams.items():
            refusal = self._identity.fault(principal)
            if refusal is not None and stream.ended is None:
                stream.ended = refusal
                stream.task.cancel()

    def _call(
        self,
        name: str,
        context: grpc.aio.ServicerContext[bytes, bytes],
        deadline_s_default: float,
        deadline_s_max: float,
    ) -> Call:
        metadata: Any = context.invocation_metadata() or ()  # pairs, whatever the type stubs make of them
        try:
            principal = self._identity(metadata, context.auth_context)
        except Unauthenticated as refusal:
            self._strangers.log(name, context.peer(), refusal.reason)
            raise
        ORIGIN.set(functools.partial(_origin, name, context.peer(), metadata))
        remaining: float | None = context.time_remaining()  # the type stubs do not know that it may be nothing
        left_s = deadline_s_default if remaining is None else min(remaining, deadline_s_max)
        if left_s <= 0:
            raise DeadlineTooShort
        deadline = asyncio.get_running_loop().time() + left_s
        usage = self._usages.of(principal)
        traceparent, tracer = _traceparent(metadata), self._tracer
        if tracer is not None:
            traceparent = begin_span(tracer, name, traceparent)
        return Call(principal, deadline, traceparent, self.draining, self._gathering, usage, tracer)

    async def _turn_away(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self._turned_away += 1
        await self._refuse(context, ServerDraining() if self.draining.is_set() else TooManyRequests())

    async def settle(self, grace_s: float) -> None:
        """Come back when nothing is in hand and nobody has called for a moment, or after the time.

        Calls that reach a grpc server after it was told to stop are cut, and tell their client nothing; until then they are
        refused with a reason. Those who call again and again are not waited for beyond `_LINGER_S`.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        linger_end = min(end, loop.time() + _LINGER_S)
        turned_away = -1
        while (self._unary_left + self._streams_left < self._left_max and loop.time() < end) or (
            self._turned_away != turned_away and loop.time() < linger_end
        ):
            turned_away = self._turned_away
            await asyncio.sleep(_MOMENT_S)

    async def _refuse(self, context: grpc.aio.ServicerContext[bytes, bytes], refusal: Refusal) -> NoReturn:
        if isinstance(refusal, StoreCorrupt):
            _log.error("store.corrupt", key=refusal.key.hex(), detail=refusal.detail)
        elif refusal.__cause__ is not None and not isinstance(refusal.__cause__, Refusal):
            _log.error("rpc.fault", reason=refusal.reason, exc_info=refusal.__cause__)
        status = status_of(refusal)
        await context.abort(
            _CODES[status.code],
            message_of(refusal),
            (("grpc-status-details-bin", status.SerializeToString()),),
        )
        raise AssertionError("abort raises")  # pragma: no cover - for the type checker


async def _send_all(responses: AsyncGenerator[bytes, None], send: Send) -> None:
    """Send what a handler gives, until it ends."""
    try:
        async for response in responses:
            await send(response)
    finally:
        await responses.aclose()


class _Strangers:
    """Logs calls that nobody is believed to have made, some of many: they belong to no tenant, so to no audit log."""

    def __init__(self) -> None:
        self._rate = Bucket(Rate(1.0, 20))
        self._suppressed = 0

    def log(self, method: str, peer: str, reason: str) -> None:
        """Log a call, and how many were not logged before it."""
        now_s = asyncio.get_running_loop().time()
        if self._rate.wait_s(now_s):
            self._suppressed += 1
            return
        self._rate.take(now_s)
        _log.warning("identity.refused", method=method, peer=peer, reason=reason, suppressed=self._suppressed)
        self._suppressed = 0


def _origin(name: str, peer: str, metadata: Iterable[tuple[str, str | bytes]]) -> Origin:
    """Give where a call came from. It may be over by now, and asking grpc about it would end the process."""
    return Origin(name.removeprefix("kokuban.v1."), peer, _traceparent(metadata))


def begin_span(tracer: Tracer, name: str, parent: str) -> str:
    """Begin the span of what this task does; give the trace context that it acts in: the parent's if it is not recorded."""
    span = tracer.begin_rpc(name, parent)
    TRACED.set(span)
    return span.traceparent or parent


def end_span(code: str) -> str:
    """End the span of what this task did, if it has begun; give its trace context, if it was recorded."""
    span = TRACED.get()
    if span is None:
        return ""
    span.end(code)
    return span.traceparent


_CODES = {code.value[0]: code for code in grpc.StatusCode}


def _traceparent(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    for name, value in metadata:
        if name == "traceparent" and isinstance(value, str) and _TRACEPARENT.fullmatch(value):
            return value
    return ""


def internal_fault(name: str, fault: Exception) -> InternalFault:
    """Log a fault under a new incident id, and give the refusal that names the id and nothing else."""
    incident = secrets.token_hex(8)
    _log.error("rpc.fault", method=name, incident=incident, exc_info=fault)
    return InternalFault(incident)
