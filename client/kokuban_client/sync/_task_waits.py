# Made by client/unasync.py from the asynchronous module of the same name. Do not edit.
"""Waiting for a part of a task, over as many streams as that takes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import grpc

from kokuban_client import _wire
from kokuban_client._retry import Deadline, delay_s
from kokuban_client._wire import tasks as wire
from kokuban_client.errors import ClientClosed, KokubanError, RequestIdExpired, Unavailable
from kokuban_client.sync import _channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_client.sync._calls import Calls
    from kokuban_client.sync._sessions import Session
    from kokuban_client.types import TaskPart

_WAIT_S_MIN = 1.0


class TaskWait:
    """One wait: for as long as the session lives, and told to all who wait for locks and tasks."""

    def __init__(
        self,
        calls: Calls,
        board: str,
        task: str,
        part: str,
        *,
        wait_s: float,
        timeout_s: float,
        on_change: Callable[[TaskPart], object] | None,
    ) -> None:
        if wait_s < _WAIT_S_MIN:
            raise ValueError("wait_s must be 1 or more")
        self._calls = calls
        self._named = (board, task, part)
        self._wait_s = wait_s
        self._timeout_s = timeout_s
        self._on_change = on_change

    def until_over(self, session: Session) -> TaskPart:
        """Wait, again where a stream breaks, and give how it stands in the end."""
        calls = self._calls
        wait = Deadline.after(self._wait_s, _channel.now_s())
        failures, corrected = 0, False
        while True:
            shown = calls.metadata
            try:
                return self._hear(session, max(wait.left_s(_channel.now_s()), _WAIT_S_MIN), patient=failures > 0)
            except KokubanError as error:
                failures += 1
                pause_s = delay_s(error, failures)
                if calls.closed:
                    raise ClientClosed("the client is closed", code="CANCELLED") from error
                if isinstance(error, Unavailable):
                    session.check()
                if isinstance(error, RequestIdExpired) and not corrected and calls.follow_store(error):
                    corrected = True
                elif pause_s >= wait.left_s(_channel.now_s()) or not calls.may_try_again(error, failures, shown):
                    raise
            _channel.pause(pause_s)

    def _hear(self, session: Session, wait_s: float, *, patient: bool) -> TaskPart:
        """Wait on one stream."""
        request = wire.wait_request(self._named, session.id, self._calls.ids.new(), wait_s)
        call: _channel.Stream | None = None
        try:
            call = self._calls.open_task_wait(
                request, timeout_s=self._timeout_s, left_s=wait_s + self._timeout_s, patient=patient
            )
            with session.waits_on(call):
                return self._read(call)
        except grpc.RpcError as failure:
            raise _wire.error_of(failure) from failure
        except ValueError as failure:
            if not self._calls.closed:
                raise
            raise ClientClosed("the client is closed", code="CANCELLED") from failure
        except _channel.LocallyCancelled:
            if _channel.being_cancelled():
                raise
            raise Unavailable("the wait was ended from here", code="CANCELLED") from None
        finally:
            if call is not None:
                with contextlib.suppress(RuntimeError):  # the event loop is closed already, and the call with it
                    call.cancel()

    def _read(self, call: _channel.Stream) -> TaskPart:
        while True:
            response: wire.WaitForTaskResponse | None = _channel.next_response(call)
            if response is None:
                raise Unavailable("the server ended the wait without an answer", code="UNAVAILABLE")
            part = wire.task_part(response)
            if part.over:
                return part
            if self._on_change is not None:
                self._on_change(part)
