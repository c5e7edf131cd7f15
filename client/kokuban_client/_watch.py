"""A watch that goes on: resumed after every break from where it was, or ended with the reason why it cannot be."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Literal, NoReturn

import grpc
import grpc.aio

from kokuban_client import _channel, _wire
from kokuban_client._retry import delay_s
from kokuban_client._watch_state import WatchState
from kokuban_client.errors import ClientClosed, HistoryLost, KokubanError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from kokuban_client._calls import Calls
    from kokuban_client.types import WatchItem, WatchStart

_NEVER_S = 1e9


class Watch:
    """The changes at and below some paths: every one once, in order. Iterate over it.

    As a context manager it waits, on entering, until the server has begun to watch, and closes on leaving. Without, it
    begins with the first item that is asked for, and closes when it is no longer used. A wait for the next item may be
    cancelled; nothing is lost by that.
    """

    def __init__(
        self,
        calls: Calls,
        board: str,
        targets: Sequence[tuple[str, str]],
        start: WatchStart | str,
        *,
        omit_values: bool,
        bookmarks: bool,
        on_gap: Literal["raise", "relist"],
        give_up_after_s: float | None,
    ) -> None:
        self._call: _channel.Stream | None = None  # first, because __del__ asks for it
        if not targets:
            raise ValueError("name what to watch: one or more (region, path)")
        if on_gap not in ("raise", "relist"):
            raise ValueError(f"on_gap is 'raise' or 'relist', not {on_gap!r}")
        self._calls = calls
        self._board = board
        self._targets = tuple(targets)
        self._omit_values = omit_values
        self._relist_on_gap = on_gap == "relist"
        self._patience_s = _NEVER_S if give_up_after_s is None else give_up_after_s
        self._state = WatchState(start, bookmarks=bookmarks)
        self._request()  # a start of the wrong kind is told here, not when the first item is asked for
        self._items: deque[WatchItem] = deque()
        self._token = start if isinstance(start, str) else ""
        self._shown = calls.metadata
        self._begun = False
        self._ended = False
        self._failures = 0
        self._failing_since_s: float | None = None

    @property
    def token(self) -> str:
        """Where another watch could go on: everything up to it has been taken from this one. Empty until known."""
        return self._token

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchItem:
        """Give the next item, waiting for it however long it takes.

        Raises WatchGap, HistoryCompacted or TokenFromAnotherStore where the watch cannot go on without a gap, Unavailable
        when no server could be reached for too long, ClientClosed when the client was closed. The watch is over then.
        """
        while not self._items:
            if self._ended:
                raise StopAsyncIteration
            await self._advance()
        item = self._items.popleft()
        self._settle_token()
        return item

    async def __aenter__(self) -> Self:
        while not self._begun and not self._ended:
            await self._advance()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the watch. What was not taken yet is dropped; `token` stays."""
        self._ended = True
        self._items.clear()
        self._hang_up()

    def __del__(self) -> None:
        # A loop that breaks out of an `async for` closes nothing, and grpc keeps a call that nobody cancels (grpc #43462).
        self._hang_up()

    def _hang_up(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed already, and the call with it
                call.cancel()

    async def _advance(self) -> None:
        """Take one response, or deal with the end of the stream."""
        try:
            if self._call is None:
                self._shown = self._calls.metadata
                self._call = await self._calls.open_watch(
                    self._request(), timeout_s=self._patience_left_s(), patient=self._begun
                )
            response: _wire.WatchResponse | None = await _channel.next_response(self._call)
        except grpc.RpcError as failure:
            self._hang_up()
            await self._recover(_wire.error_of(failure))
        except KokubanError:
            self._ended = True
            raise
        except _channel.LocallyCancelled:
            # Reading was interrupted, and grpc has ended the call with it. The next item comes from a new one.
            self._hang_up()
            if _channel.being_cancelled() or not (self._ended or self._calls.closed):
                self._take(self._state.resume())
                raise
            if not self._ended:
                self._end_closed()
        else:
            if response is None:
                self._hang_up()
                await self._recover(Unavailable("the server ended the watch", code="UNAVAILABLE"))
                return
            self._begun = True
            self._failures, self._failing_since_s = 0, None
            self._take(self._state.feed(response))

    async def _recover(self, error: KokubanError) -> None:
        """Prepare to go on after a broken stream, or raise if it must not."""
        if self._ended:
            return  # closed from elsewhere while it waited
        if self._calls.closed:
            self._end_closed()
        leaving = self._state.going_away
        self._failures += 1
        if isinstance(error, HistoryLost) and self._relist_on_gap:
            self._take(self._state.relist(error.reason))
        elif leaving or self._calls.may_try_again(error, self._failures, self._shown):
            self._take(self._state.resume())
        else:
            self._ended = True
            raise error
        wait_s = delay_s(error, self._failures)
        if self._patience_left_s() <= wait_s:
            self._ended = True
            raise error
        await _channel.pause(wait_s)

    def _end_closed(self) -> NoReturn:
        self._ended = True
        raise ClientClosed("the client was closed during the watch", code="CANCELLED") from None

    def _patience_left_s(self) -> float:
        now_s = _channel.now_s()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        return self._failing_since_s + self._patience_s - now_s

    def _request(self) -> _wire.WatchRequest:
        return _wire.watch_request(self._board, self._targets, self._state.start, omit_values=self._omit_values)

    def _take(self, items: Sequence[WatchItem]) -> None:
        self._items.extend(items)
        self._settle_token()

    def _settle_token(self) -> None:
        if not self._items:
            self._token = self._state.start if isinstance(self._state.start, str) else ""
