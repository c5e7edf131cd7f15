"""One client's calls: who makes them, over which channels, and how often they are tried."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from kokuban_client import _channel, _tracing, _wire
from kokuban_client._ids import RequestIds
from kokuban_client._lease import clock_s
from kokuban_client._retry import Deadline, delay_s, leaves_doubt, may_repeat
from kokuban_client._session import SessionTokens
from kokuban_client._wire import conflicts as conflict_wire
from kokuban_client._wire import locks as lock_wire
from kokuban_client._wire import tasks as task_wire
from kokuban_client._wire import trust as trust_wire
from kokuban_client.errors import (
    ClientClosed,
    CredentialExpired,
    CredentialInvalid,
    KokubanError,
    OutcomeUnknown,
    RequestIdExpired,
    ServerFault,
    Unavailable,
    Unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from kokuban_client._credentials import Metadata
    from kokuban_client._identity import Identity

_Request = TypeVar("_Request", bound="Message")
_Response = TypeVar("_Response")


_CLOSED = "the client is closed"
_LOOK_UP_EVERY_S = 0.5


class Attempts:
    """What became of a call's attempts, for who must know more than its answer."""

    def __init__(self) -> None:
        self.first_sent_s: float | None = None
        """When the first that may have been carried out was sent, by the clock that leases are judged by."""
        self.in_doubt = 0
        """How many ended so that they may have been carried out all the same."""

    def begin(self) -> None:
        """Take note that one is sent now."""
        if self.first_sent_s is None:
            self.first_sent_s = clock_s()

    def failed(self, error: KokubanError) -> None:
        """Take note how the last one ended."""
        self.in_doubt += leaves_doubt(error)
        if not self.in_doubt:
            self.first_sent_s = None


class Link:
    """A channel with the stubs that use it."""

    def __init__(self, identity: Identity) -> None:
        self.channel = _channel.open_channel(identity.address, identity.tls)
        self.board = _wire.BoardServiceStub(self.channel)
        self.admin = _wire.AdminServiceStub(self.channel)
        self.locks = lock_wire.LockServiceStub(self.channel)
        self.sessions = lock_wire.SessionServiceStub(self.channel)
        self.conflicts = conflict_wire.ConflictServiceStub(self.channel)
        self.trust = trust_wire.TrustServiceStub(self.channel)
        self.tasks = task_wire.TaskServiceStub(self.channel)
        self.reached = False


class Calls:
    """What all boards of one client share. Nothing here is shared with another client."""

    def __init__(self, identity: Identity, *, timeout_s: float, wait_for_ready: bool) -> None:
        self.ids = RequestIds()
        self.tokens = SessionTokens()
        self.timeout_s = timeout_s
        self.closed = False
        self._identity = identity
        self._wait_for_ready = wait_for_ready
        self._mutex = threading.Lock()  # two threads that make the first call together share one channel
        # Made at first use: a channel belongs to the event loop that runs when it is made.
        self._short: Link | None = None
        self._long: Link | None = None

    @property
    def metadata(self) -> Metadata:
        """The headers to call with now."""
        return self._identity.metadata

    def may_try_again(self, error: KokubanError, failures: int, shown: Metadata) -> bool:
        """Say whether the same request may be sent again after so many failures in a row, of which this is the last.

        As `may_repeat`; and where the headers that were shown were refused and there are others by now: a rotated token's.
        """
        is_refused = isinstance(error, (CredentialExpired, CredentialInvalid))
        return may_repeat(error, failures) or (is_refused and self.metadata is not shown)

    async def call(
        self,
        method: Callable[[Link], grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]],
        request: _Request,
        *,
        timeout_s: float | None = None,
        request_id: str = "",
        attempts: Attempts | None = None,
    ) -> _Response:
        """Make a call, again where that is safe, until it is answered or its time is over.

        A request id says that the call writes: then the same request is sent again even after an attempt whose outcome is
        not known, and OutcomeUnknown is raised if it stays unknown.
        """
        deadline = Deadline.after(self.timeout_s if timeout_s is None else timeout_s, _channel.now_s())
        failures, doubt = 0, False
        attempts = attempts or Attempts()
        shown: Metadata = ()
        while True:
            link = self._link(long=False)
            try:
                await self._reach(link, deadline, patient=self._wait_for_ready)
                attempts.begin()
                left_s = max(deadline.left_s(_channel.now_s()), 0.001)
                shown = self.metadata
                with _tracing.attempt(request, shown) as headers:
                    return await method(link)(request, timeout=left_s, metadata=headers)
            except grpc.RpcError as failure:
                error = _wire.error_of(failure)
                link.reached = bool(error.reason)  # without one of our reasons it may be the connection that failed
                attempts.failed(error)
                doubt = bool(request_id) and attempts.in_doubt > 0
            except KokubanError as unreached:
                error = unreached
            except ValueError:
                # A blocking channel that another thread closes just now answers so, before anything is sent.
                if not self.closed:
                    raise
                error = ClientClosed(_CLOSED, code="CANCELLED")
            except _channel.LocallyCancelled:
                if not self.closed or _channel.being_cancelled():
                    raise
                # Another task has closed the client, which grpc tells as a cancellation of ours.
                error, doubt = ClientClosed(_CLOSED, code="CANCELLED"), bool(request_id)
            failures += 1
            wait_s = delay_s(error, failures)
            again = self.may_try_again(error, failures, shown)
            if again and not self.closed and wait_s < deadline.left_s(_channel.now_s()):
                await _channel.pause(wait_s)
                continue
            if self.closed and not isinstance(error, ClientClosed):
                error = ClientClosed(_CLOSED, code="CANCELLED")
            raise _verdict(error, request_id, doubt=doubt)

    async def write(
        self,
        method: Callable[[Link], grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]],
        request: Callable[[str], _Request],
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
        attempts: Attempts | None = None,
    ) -> tuple[_Response, str]:
        """Make a call that happens once, and give its answer and its request id.

        The request is made from its id. An id that is given is used as it is; one that is made here is made anew, once, if
        the server says that our clock is wrong.
        """
        identity = request_id or self.ids.new()
        corrected = request_id is not None
        while True:
            try:
                answer = await self.call(
                    method, request(identity), timeout_s=timeout_s, request_id=identity, attempts=attempts
                )
            except RequestIdExpired as refused:
                if corrected or not self.follow_store(refused):
                    raise
                identity, corrected = self.ids.new(), True
                continue
            return answer, identity

    def follow_store(self, refused: RequestIdExpired) -> bool:
        """Make ids by the store's clock from now on, and say whether it was told.

        For an id that was made just now: then it is our clock that is wrong, and nothing was written under it.
        """
        store_time_ms = refused.facts.get("store_time_ms", "")
        if not store_time_ms.isdecimal():
            return False
        self.ids.follow(int(store_time_ms))
        return True

    async def open_watch(self, request: _wire.WatchRequest, *, timeout_s: float, patient: bool) -> _channel.Stream:
        """Open a stream of changes; raises Unavailable if no server is reached in time."""
        link = await self._reached(timeout_s, patient=patient)
        return _tracing.stream(request, self.metadata, lambda headers: link.board.Watch(request, metadata=headers))

    async def open_conflicts(
        self, request: conflict_wire.WatchConflictsRequest, *, timeout_s: float, patient: bool
    ) -> _channel.Stream:
        """Open a stream of conflicts; raises Unavailable if no server is reached in time."""
        link = await self._reached(timeout_s, patient=patient)
        return _tracing.stream(
            request, self.metadata, lambda headers: link.conflicts.WatchConflicts(request, metadata=headers)
        )

    async def open_acquisition(
        self, request: lock_wire.AcquireLockRequest, *, timeout_s: float, left_s: float, patient: bool
    ) -> _channel.Stream:
        """Open a stream that tells how a request for a lock stands; raises Unavailable if no server is reached in time.

        `left_s` is the most that the whole stream may take, `timeout_s` the time to reach a server.
        """
        link = await self._reached(timeout_s, patient=patient)
        return _tracing.stream(
            request, self.metadata, lambda headers: link.locks.AcquireLock(request, timeout=left_s, metadata=headers)
        )

    async def open_task_wait(
        self, request: task_wire.WaitForTaskRequest, *, timeout_s: float, left_s: float, patient: bool
    ) -> _channel.Stream:
        """Open a stream that tells how a part of a task stands; as `open_acquisition`."""
        link = await self._reached(timeout_s, patient=patient)
        return _tracing.stream(
            request, self.metadata, lambda headers: link.tasks.WaitForTask(request, timeout=left_s, metadata=headers)
        )

    async def _reached(self, timeout_s: float, *, patient: bool) -> Link:
        link = self._link(long=True)
        await self._reach(link, Deadline.after(timeout_s, _channel.now_s()), patient=patient or self._wait_for_ready)
        # A stream ends without a reason of ours when its connection does: look anew before the next one.
        link.reached = False
        return link

    async def open_renewals(
        self, inbox: _channel.Inbox, *, timeout_s: float, patience: Callable[[], float]
    ) -> Renewals:
        """Open a stream of renewals over a connection of its own; raises Unavailable if no server is reached in time.

        Of its own: a connection that does not move must not be what a session dies of while other servers are there.
        `patience` is asked again and again how many seconds more to try; 0 ends it.
        """
        if self.closed:
            raise ClientClosed(_CLOSED, code="CANCELLED")
        deadline = Deadline.after(timeout_s, _channel.now_s())
        link = Link(self._identity)
        try:
            while (
                not link.reached
                and (slice_s := min(patience(), deadline.left_s(_channel.now_s()), _LOOK_UP_EVERY_S)) > 0
            ):
                link.reached = await _channel.reach(link.channel, slice_s, patient=True)
            self._expect_reached(link)
            return Renewals(link, _channel.Duplex(link.sessions.KeepAlive, self.metadata, inbox))
        except BaseException:
            await _channel.close_channel(link.channel)
            raise

    def _link(self, *, long: bool) -> Link:
        """Give the channel for streams or for short calls, which do not share one."""
        with self._mutex:
            if self.closed:
                raise ClientClosed(_CLOSED, code="CANCELLED")
            if long:
                link = self._long = self._long or Link(self._identity)
            else:
                link = self._short = self._short or Link(self._identity)
            return link

    async def _reach(self, link: Link, deadline: Deadline, *, patient: bool) -> None:
        # A call is only sent over a connection that stands. So a failure to connect is known to have written nothing,
        # and grpc's own way of waiting, which cannot tell the two apart at its deadline, is not needed.
        if not link.reached:
            link.reached = await _channel.reach(link.channel, deadline.left_s(_channel.now_s()), patient=patient)
        self._expect_reached(link)

    def _expect_reached(self, link: Link) -> None:
        if not link.reached:
            # Why not is not told: grpc gives no reason for a connection that never stood.
            over = "" if self._identity.tls is None else " over TLS with a certificate that ca_file vouches for"
            raise Unreachable(f"no server answers at {self._identity.address}{over}", code="UNAVAILABLE")
        if self.closed:
            raise ClientClosed(_CLOSED, code="CANCELLED")

    async def close(self) -> None:
        """Close the channels; calls in flight end with ClientClosed. Closing twice is the same as once."""
        with self._mutex:
            self.closed = True
            links = (self._short, self._long)
            self._short = self._long = None
        for link in links:
            if link is not None:
                await _channel.close_channel(link.channel)


class Renewals:
    """A stream of renewals and its connection."""

    def __init__(self, link: Link, stream: _channel.Duplex) -> None:
        self.stream = stream
        self._link = link

    async def close(self) -> None:
        """End both; nothing more is put into the inbox."""
        await self.stream.close()
        await _channel.close_channel(self._link.channel)


def _verdict(error: KokubanError, request_id: str, *, doubt: bool) -> KokubanError:
    """Give what to raise: an answer that does not settle an earlier attempt's fate leaves the outcome unknown."""
    error.sent_request_id = request_id
    if not doubt or not isinstance(error, (Unavailable, OutcomeUnknown, ServerFault, RequestIdExpired)):
        return error
    unknown = OutcomeUnknown(
        f"no answer says whether it was done; last heard: {error.message}",
        code=error.code,
        facts={**error.facts, "request_id": request_id},
        retry_after_s=error.retry_after_s,
    )
    unknown.__cause__ = error
    return unknown
