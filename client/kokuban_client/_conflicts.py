"""Who lost to whom: read page by page, or followed as it happens."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from kokuban_client import _channel, _wire
from kokuban_client._retry import delay_s
from kokuban_client._wire import conflicts as conflict_wire
from kokuban_client.errors import ClientClosed, KokubanError, Unavailable

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from kokuban_client._calls import Calls
    from kokuban_client.types import ConflictRecord


class Conflicts:
    """A board's conflicts, the newest first, read page by page while they are iterated over. Iterate once."""

    def __init__(
        self,
        calls: Calls,
        board: str,
        wanted: conflict_wire.ConflictFilter,
        *,
        page_size: int,
        timeout_s: float | None,
    ) -> None:
        self._calls = calls
        self._board = board
        self._wanted = wanted
        self._page_size = page_size
        self._timeout_s = timeout_s
        self._conflicts: deque[ConflictRecord] = deque()
        self._page_token = ""
        self._read_all = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConflictRecord:
        while not self._conflicts:
            if self._read_all:
                raise StopAsyncIteration
            await self._next_page()
        return self._conflicts.popleft()

    async def _next_page(self) -> None:
        request = conflict_wire.list_request(
            self._board, self._wanted, page_size=self._page_size, page_token=self._page_token
        )
        answer = await self._calls.call(lambda link: link.conflicts.ListConflicts, request, timeout_s=self._timeout_s)
        self._conflicts.extend(map(conflict_wire.conflict, answer.conflicts))
        self._page_token = answer.next_page_token
        self._read_all = not self._page_token


class ConflictWatch:
    """Conflicts as they are written, and each again when more is known of it. Iterate over it.

    As a context manager it waits, on entering, until the server has begun to watch, and closes on leaving. A conflict that
    was given may be given again after a broken stream: its id and outcome say so.
    """

    def __init__(
        self,
        calls: Calls,
        board: str,
        wanted: conflict_wire.ConflictFilter,
        *,
        after: str,
        give_up_after_s: float,
    ) -> None:
        self._call: _channel.Stream | None = None  # first, because __del__ asks for it
        self._calls = calls
        self._board = board
        self._wanted = wanted
        self._patience_s = give_up_after_s
        self._token = after
        self._conflicts: deque[ConflictRecord] = deque()
        self._shown = calls.metadata
        self._begun = False
        self._ended = False
        self._failures = 0
        self._failing_since_s: float | None = None

    @property
    def token(self) -> str:
        """Where another watch could go on, once everything that was received is taken. Empty until known."""
        return self._token

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConflictRecord:
        """Give the next conflict, waiting for it however long it takes."""
        while not self._conflicts:
            if self._ended:
                raise StopAsyncIteration
            await self._advance()
        return self._conflicts.popleft()

    async def __aenter__(self) -> Self:
        while not self._begun and not self._ended:
            await self._advance()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the watch. What was not taken yet is dropped."""
        self._ended = True
        self._conflicts.clear()
        self._hang_up()

    def __del__(self) -> None:
        self._hang_up()  # grpc keeps a call that nobody cancels

    def _hang_up(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed already, and the call with it
                call.cancel()

    async def _advance(self) -> None:
        """Take one message, or deal with the end of the stream."""
        try:
            if self._call is None:
                self._shown = self._calls.metadata
                request = conflict_wire.watch_request(self._board, self._wanted, after=self._token)
                self._call = await self._calls.open_conflicts(
                    request, timeout_s=self._patience_left_s(), patient=self._begun
                )
            message: conflict_wire.WatchConflictsResponse | None = await _channel.next_response(self._call)
        except grpc.RpcError as failure:
            self._hang_up()
            await self._recover(_wire.error_of(failure))
        except KokubanError:
            self._ended = True
            raise
        except _channel.LocallyCancelled:
            # Reading was interrupted, and grpc has ended the call with it: the next conflict comes from a new one.
            self._hang_up()
            if _channel.being_cancelled() or not (self._ended or self._calls.closed):
                raise
            if not self._ended:
                self._end_closed()
        else:
            if message is None:
                self._hang_up()
                await self._recover(Unavailable("the server ended the watch", code="UNAVAILABLE"))
                return
            self._begun = True
            self._failures, self._failing_since_s = 0, None
            self._conflicts.extend(map(conflict_wire.conflict, message.conflicts))
            self._token = message.token

    async def _recover(self, error: KokubanError) -> None:
        """Prepare to go on after a broken stream, or raise if it must not."""
        if self._ended:
            return  # closed from elsewhere while it waited
        if self._calls.closed:
            self._end_closed()
        self._failures += 1
        wait_s = delay_s(error, self._failures)
        if not self._calls.may_try_again(error, self._failures, self._shown) or self._patience_left_s() <= wait_s:
            self._ended = True
            raise error
        await _channel.pause(wait_s)

    def _end_closed(self) -> None:
        self._ended = True
        raise ClientClosed("the client was closed during the watch", code="CANCELLED") from None

    def _patience_left_s(self) -> float:
        now_s = _channel.now_s()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        return self._failing_since_s + self._patience_s - now_s
