# Made by client/unasync.py from the asynchronous module of the same name. Do not edit.
"""One client's calls: who makes them, over which channels, and how often they are tried."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import grpc

from kokuban_client import _wire
from kokuban_client._ids import RequestIds
from kokuban_client._retry import Deadline, delay_s, leaves_doubt, may_repeat
from kokuban_client._session import SessionTokens
from kokuban_client.errors import (
    ClientClosed,
    KokubanError,
    OutcomeUnknown,
    RequestIdExpired,
    ServerFault,
    Unavailable,
    Unreachable,
)
from kokuban_client.sync import _channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_client._identity import Identity

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


_CLOSED = "the client is closed"


class Link:
    """A channel with the stubs that use it."""

    def __init__(self, address: str) -> None:
        self.channel = _channel.open_channel(address)
        self.board = _wire.BoardServiceStub(self.channel)
        self.admin = _wire.AdminServiceStub(self.channel)
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

    def call(
        self,
        method: Callable[[Link], grpc.UnaryUnaryMultiCallable[_Request, _Response]],
        request: _Request,
        *,
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> _Response:
        """Make a call, again where that is safe, until it is answered or its time is over.

        A request id says that the call writes: then the same request is sent again even after an attempt whose outcome is
        not known, and OutcomeUnknown is raised if it stays unknown.
        """
        deadline = Deadline.after(self.timeout_s if timeout_s is None else timeout_s, _channel.now_s())
        failures, doubt = 0, False
        while True:
            link = self._link(long=False)
            try:
                self._reach(link, deadline, patient=self._wait_for_ready)
                left_s = max(deadline.left_s(_channel.now_s()), 0.001)
                return method(link)(request, timeout=left_s, metadata=self._identity.metadata)
            except grpc.RpcError as failure:
                error = _wire.error_of(failure)
                link.reached = bool(error.reason)  # without one of our reasons it may be the connection that failed
                doubt = doubt or (bool(request_id) and leaves_doubt(error))
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
            if may_repeat(error, failures) and not self.closed and wait_s < deadline.left_s(_channel.now_s()):
                _channel.pause(wait_s)
                continue
            if self.closed and not isinstance(error, ClientClosed):
                error = ClientClosed(_CLOSED, code="CANCELLED")
            raise _verdict(error, request_id, doubt=doubt)

    def open_watch(self, request: _wire.WatchRequest, *, timeout_s: float, patient: bool) -> _channel.Stream:
        """Open a stream of changes; raises Unavailable if no server is reached in time."""
        link = self._link(long=True)
        self._reach(link, Deadline.after(timeout_s, _channel.now_s()), patient=patient or self._wait_for_ready)
        # A stream ends without a reason of ours when its connection does: look anew before the next one.
        link.reached = False
        return link.board.Watch(request, metadata=self._identity.metadata)

    def _link(self, *, long: bool) -> Link:
        """Give the channel for streams or for short calls, which do not share one."""
        with self._mutex:
            if self.closed:
                raise ClientClosed(_CLOSED, code="CANCELLED")
            if long:
                link = self._long = self._long or Link(self._identity.address)
            else:
                link = self._short = self._short or Link(self._identity.address)
            return link

    def _reach(self, link: Link, deadline: Deadline, *, patient: bool) -> None:
        # A call is only sent over a connection that stands. So a failure to connect is known to have written nothing,
        # and grpc's own way of waiting, which cannot tell the two apart at its deadline, is not needed.
        if not link.reached:
            link.reached = _channel.reach(link.channel, deadline.left_s(_channel.now_s()), patient=patient)
        if not link.reached:
            raise Unreachable(f"no server answers at {self._identity.address}", code="UNAVAILABLE")
        if self.closed:
            raise ClientClosed(_CLOSED, code="CANCELLED")

    def close(self) -> None:
        """Close the channels; calls in flight end with ClientClosed. Closing twice is the same as once."""
        with self._mutex:
            self.closed = True
            links = (self._short, self._long)
            self._short = self._long = None
        for link in links:
            if link is not None:
                _channel.close_channel(link.channel)


def _verdict(error: KokubanError, request_id: str, *, doubt: bool) -> KokubanError:
    """Give what to raise: an answer that does not settle an earlier attempt's fate leaves the outcome unknown."""
    error.sent_request_id = request_id
    if not doubt or not isinstance(error, (Unavailable, OutcomeUnknown, ServerFault, RequestIdExpired)):
        return error
    unknown = OutcomeUnknown(
        f"no answer says whether the commit holds; last heard: {error.message}",
        code=error.code,
        facts={**error.facts, "request_id": request_id},
        retry_after_s=error.retry_after_s,
    )
    unknown.__cause__ = error
    return unknown
