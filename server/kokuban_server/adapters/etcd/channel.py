"""Speaks to one member of the cluster at a time, and moves to the next when that one does not answer."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, Generic

import grpc
import grpc.aio

from kokuban.etcd.v1 import etcd_pb2 as pb
from kokuban_server.adapters.etcd.errors import EtcdError, Verdict, judge
from kokuban_server.adapters.etcd.methods import AUTHENTICATE, Request, Response

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_server.adapters.etcd.methods import Method
    from kokuban_server.adapters.etcd.settings import EtcdSettings

log = logging.getLogger(__name__)

_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    # A connection of its own: a new channel to a member whose connection hangs must not get the old connection again.
    ("grpc.use_local_subchannel_pool", 1),
    # etcd cuts off who pings more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 2_500),
    ("grpc.keepalive_timeout_ms", 2_500),
    # etcd's answers may be far larger than its limit for requests: pages here are bounded by how they are asked for.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
)
_HAS_LEADER: Final = ("hasleader", "true")
"""A member cut off from its leader then says so at once, instead of keeping a call or stream open in silence."""


class Connection:
    """A channel to one member."""

    def __init__(self, endpoint: str, channel: grpc.aio.Channel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.deadlines_missed = 0
        self.metadata: tuple[tuple[str, str], ...] = (_HAS_LEADER,)
        self.token = ""
        self._callables: dict[str, Any] = {}

    def unary(self, method: Method[Request, Response]) -> grpc.aio.UnaryUnaryMultiCallable[Request, Response]:
        """Give the method's callable, made once."""
        found = self._callables.get(method.path)
        if found is None:
            found = self._callables[method.path] = self.channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return found

    def take_token(self, token: str) -> None:
        """Send this token with each later call."""
        self.token = token
        self.metadata = (_HAS_LEADER, ("token", token))


class Stream(Generic[Request, Response]):
    """A stream of messages in both directions. Writes may come from several tasks."""

    def __init__(self, connection: Connection, call: grpc.aio.StreamStreamCall[Request, Response]) -> None:
        self.connection = connection
        self._call = call
        self._writing = asyncio.Lock()

    async def write(self, message: Request) -> None:
        """Send a message. Raises `EtcdError` when the stream is broken."""
        try:
            async with self._writing:
                await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise _judged(error) from None
        except asyncio.InvalidStateError:  # how grpc.aio says that the call is over
            raise EtcdError(Verdict.UNKNOWN, "the stream is over", elsewhere=True) from None
        except asyncio.CancelledError:
            _pass_on_own_cancellation()
            raise EtcdError(Verdict.UNKNOWN, "the stream was cut", elsewhere=True) from None

    async def read(self) -> Response:
        """Give the next message. Raises `EtcdError` when the stream is broken or at its end."""
        message = await self.read_or_end()
        if message is None:
            raise EtcdError(Verdict.UNKNOWN, "the stream has ended", elsewhere=True)
        return message

    async def read_or_end(self) -> Response | None:
        """Give the next message, or nothing at the stream's end. Raises `EtcdError` when the stream is broken."""
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _judged(error) from None
        except asyncio.CancelledError:
            _pass_on_own_cancellation()
            raise EtcdError(Verdict.UNKNOWN, "the stream was cut", elsewhere=True) from None
        return None if message is grpc.aio.EOF else message  # type: ignore[return-value] # the end is not among its types

    def cancel(self) -> None:
        """End the stream; who reads it gets an `EtcdError`."""
        self._call.cancel()


class EtcdChannel:
    """The way to the cluster.

    Each member has a channel of its own, so that its certificate is checked against its own name, and so that a member
    that was paused is left for good instead of being one of several that a policy may pick.
    """

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._credentials = _credentials(settings)
        self._place = 0
        self._current: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._authenticating: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._on_move: list[Callable[[], None]] = []
        self._closed = False

    def on_move(self, act: Callable[[], None]) -> None:
        """Have `act` called whenever a member is left, so that streams follow."""
        self._on_move.append(act)

    async def call(
        self, method: Method[Request, Response], request: Request, timeout_s: float, *, alone: bool = False
    ) -> Response:
        """Call a method once (twice, if it was for want of a valid token). Raises `EtcdError`.

        `alone` lets a member answer that has lost its leader.
        """
        connection = self._current or await self._connected(timeout_s)
        try:
            answer = await self._attempt(connection, method, request, timeout_s, alone=alone)
        except EtcdError as error:
            if error.verdict is not Verdict.UNAUTHENTICATED or not self._settings.user:
                raise
            await self._renew_token(connection, connection.token)
            return await self._attempt(connection, method, request, timeout_s, alone=alone)
        connection.deadlines_missed = 0
        return answer

    async def stream(self, method: Method[Request, Response], timeout_s: float) -> Stream[Request, Response]:
        """Begin a stream. Raises `EtcdError`."""
        connection = self._current or await self._connected(timeout_s)
        begin = connection.channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        call: Any = begin(metadata=connection.metadata)
        return Stream(connection, call)

    async def download(
        self, method: Method[Request, Response], request: Request, timeout_s: float
    ) -> Stream[Request, Response]:
        """Begin a stream of answers to one request. Raises `EtcdError`."""
        connection = self._current or await self._connected(timeout_s)
        begin = connection.channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        call: Any = begin(request, metadata=connection.metadata, timeout=timeout_s)
        return Stream(connection, call)

    def failed(self, connection: Connection, error: EtcdError, *, whole_attempt: bool = True) -> None:
        """Take note of a failure, and leave the member if it seems to be the member's."""
        if not error.elsewhere:
            return
        if error.late and not whole_attempt:
            connection.deadlines_missed += 1
            if connection.deadlines_missed < 2:  # noqa: PLR2004 - one short deadline says nothing about the member
                return
        self.leave(connection)

    def leave_current(self) -> None:
        """Speak to the next member from now on, whatever became of this one."""
        if self._current is not None:
            self.leave(self._current)

    def leave(self, connection: Connection) -> None:
        """Speak to the next member from now on. What is under way on this one may still end."""
        if self._current is not connection:
            return
        self._current = None
        self._place += 1
        log.info("etcd.member_left endpoint=%s", connection.endpoint)
        self._close_later(connection)
        for act in self._on_move:
            act()

    async def close(self) -> None:
        """Close every channel."""
        self._closed = True
        for task in (self._connecting, self._authenticating):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._current is not None:
            await self._current.channel.close()
            self._current = None
        for closing in self._closing:
            closing.cancel()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _attempt(
        self,
        connection: Connection,
        method: Method[Request, Response],
        request: Request,
        timeout_s: float,
        *,
        alone: bool = False,
    ) -> Response:
        metadata = connection.metadata[1:] if alone else connection.metadata
        call = connection.unary(method)(request, timeout=timeout_s, metadata=metadata)
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            failure = _judged(error)
        except asyncio.CancelledError:
            _pass_on_own_cancellation()
            failure = EtcdError(Verdict.UNKNOWN, "the connection was closed", elsewhere=True)
        self.failed(connection, failure, whole_attempt=timeout_s >= self._settings.attempt_s)
        raise failure

    async def _connected(self, timeout_s: float) -> Connection:
        """Wait until some member is connected; callers that wait together wait for the same attempt."""
        if self._closed:
            raise EtcdError(Verdict.REFUSED, "closed")
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name="etcd-connect")
            self._connecting.add_done_callback(self._connect_done)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._connecting)
        except TimeoutError:
            raise EtcdError(Verdict.NOT_DONE, "no member greeted in time") from None
        except asyncio.CancelledError:
            _pass_on_own_cancellation()
            raise EtcdError(Verdict.REFUSED, "closed") from None

    def _connect_done(self, task: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._current = task.result()

    async def _connect(self) -> Connection:
        reasons = []
        for _ in self._settings.endpoints:
            endpoint = self._settings.endpoints[self._place % len(self._settings.endpoints)]
            connection = Connection(endpoint, self._open(endpoint))
            try:
                async with asyncio.timeout(self._settings.connect_s):
                    await _greeted(connection.channel)
                if self._settings.user:
                    await self._authenticate(connection)
            except (TimeoutError, EtcdError) as error:
                reasons.append(f"{endpoint}: {'no greeting' if isinstance(error, TimeoutError) else error}")
                self._place += 1
                self._close_later(connection, grace_s=0)
            except asyncio.CancelledError:
                self._close_later(connection, grace_s=0)
                raise
            else:
                return connection
        raise EtcdError(Verdict.NOT_DONE, "; ".join(reasons))

    def _open(self, endpoint: str) -> grpc.aio.Channel:
        options: list[tuple[str, Any]] = list(_OPTIONS)
        options.append(("grpc.min_reconnect_backoff_ms", int(self._settings.connect_s * 1000)))
        if self._credentials is None:
            return grpc.aio.insecure_channel(endpoint, options=options)
        if self._settings.server_name:
            options.append(("grpc.ssl_target_name_override", self._settings.server_name))
        return grpc.aio.secure_channel(endpoint, self._credentials, options=options)

    async def _renew_token(self, connection: Connection, stale: str) -> None:
        """Get a new token, unless another caller just has: each one costs the member a slow hash."""
        if connection.token != stale:
            return
        if self._authenticating is None:
            self._authenticating = asyncio.create_task(self._authenticate(connection), name="etcd-authenticate")
            self._authenticating.add_done_callback(self._authenticate_done)
        try:
            await asyncio.shield(self._authenticating)
        except EtcdError as error:
            # Whatever became of asking for a token: the call that needed it has not happened.
            verdict = Verdict.NOT_DONE if error.verdict is Verdict.UNKNOWN else error.verdict
            raise EtcdError(verdict, error.detail) from None

    def _authenticate_done(self, task: asyncio.Task[None]) -> None:
        self._authenticating = None
        if not task.cancelled():
            task.exception()  # whoever waits has seen it; nobody may be waiting any more

    async def _authenticate(self, connection: Connection) -> None:
        request = pb.AuthenticateRequest(name=self._settings.user, password=self._settings.password)
        connection.metadata = (_HAS_LEADER,)
        answer = await self._attempt(connection, AUTHENTICATE, request, self._settings.attempt_s)
        connection.take_token(answer.token)

    def _close_later(self, connection: Connection, grace_s: float | None = None) -> None:
        """Close the channel once what is under way has had its time."""
        grace = self._settings.attempt_s + 1 if grace_s is None else grace_s
        task = asyncio.create_task(connection.channel.close(grace), name="etcd-close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _greeted(channel: grpc.aio.Channel) -> None:
    """Wait until the member has answered the connection's opening; raise `EtcdError` when it cannot be reached.

    A paused process's kernel still accepts connections, so being connected is not enough.
    """
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise EtcdError(Verdict.NOT_DONE, "cannot be reached")
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


def _credentials(settings: EtcdSettings) -> grpc.ChannelCredentials | None:
    if not settings.tls:
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=settings.ca_file.read_bytes() if settings.ca_file else None,
        private_key=settings.key_file.read_bytes() if settings.key_file else None,
        certificate_chain=settings.cert_file.read_bytes() if settings.cert_file else None,
    )


def _judged(error: grpc.aio.AioRpcError) -> EtcdError:
    return judge(error.code(), error.details() or "")


def _pass_on_own_cancellation() -> None:
    """Raise on if it is this task that is cancelled; closing a channel looks the same to its callers."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise  # noqa: PLE0704 - only called while a CancelledError is being handled
