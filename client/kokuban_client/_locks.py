"""Locks: asked for, held while a block runs, watched over, given back."""

from __future__ import annotations

import contextlib
import enum
import logging
import math
import threading
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from kokuban_client import _channel, _tracing, _wire
from kokuban_client._calls import Attempts
from kokuban_client._lease import clock_s
from kokuban_client._retry import Deadline, delay_s
from kokuban_client._wire import locks as lock_wire
from kokuban_client.errors import (
    ClientClosed,
    DeadlineExceeded,
    KokubanError,
    LockLost,
    LockWaitExpired,
    OutcomeUnknown,
    RequestIdExpired,
    RequestIdReused,
    ServerFault,
    Unavailable,
)
from kokuban_client.types import Entry, Fence, Lock, LossCause, Queued, SessionState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

    from kokuban_client._calls import Calls
    from kokuban_client._sessions import Session, Sessions

_LOG = logging.getLogger("kokuban_client")
_CLEANING_S = 10.0
"""How long one attempt to give something back in the background may take, and how long the next request waits for that."""
_AT_ONCE_S = 0.001
_LAST_ANSWER_S = 5.0
"""How long an answer may take when the time to wait is over."""


class _Phase(enum.Enum):
    NEW = "not asked for yet"
    ASKING = "being asked for"
    HELD = "held"
    RELEASING = "being released"
    LOST = "lost"
    RELEASED = "released"


class Hold:
    """A lock of one's own: `async with` asks for it, holds it while the block runs, and gives it back.

    The block never runs without the lock. If the lock is lost meanwhile, then in this order: `on_lost` is called, the block
    is stopped if that can be done, and when it has ended, what may be left of the lock is given back and LockLost raised.
    """

    def __init__(
        self,
        sessions: Sessions,
        calls: Calls,
        board: str,
        *,
        session: Session | None,
        hold_max_s: float | None,
        on_lost: Callable[[LockLost], object] | None,
        timeout_s: float | None,
    ) -> None:
        if session is not None and session.board_id != board:
            raise ValueError(f"the session is on the board {session.board_id}, not on {board}")
        self._sessions = sessions
        self._calls = calls
        self._board_id = board
        self._wanted_session = session
        self._hold_max_s = hold_max_s
        self._on_lost = on_lost
        self._timeout_s = calls.timeout_s if timeout_s is None else timeout_s
        self._mutex = threading.Lock()
        self._phase = _Phase.NEW
        self._block: _channel.Block | None = None
        self._session: Session | None = None
        self._request_id = ""
        self._granted_fence: Fence | None = None
        self._granted_lock: Lock | None = None
        self._token = ""
        self._waited_s = 0.0
        self._asked_s = 0.0
        self._ends_s = math.inf
        self._loss: dict[str, str] | None = None
        self._told_meanwhile: dict[str, str] | None = None
        self._fault_in_on_lost: Exception | None = None
        self._perhaps_released = False

    @property
    def fence(self) -> Fence:
        """The proof of the grant; raises RuntimeError before it."""
        if self._granted_fence is None:
            raise RuntimeError(f"the lock is {self._phase.value}: use async with")
        return self._granted_fence

    @property
    def lock(self) -> Lock:
        """The lock as others are told of it; raises RuntimeError before the grant."""
        if self._granted_lock is None:
            raise RuntimeError(f"the lock is {self._phase.value}: use async with")
        return self._granted_lock

    @property
    def session(self) -> Session:
        """The session that holds it; raises RuntimeError before the grant."""
        if self._session is None:
            raise RuntimeError(f"the lock is {self._phase.value}: use async with")
        return self._session

    @property
    def token(self) -> str:
        """The state at the grant: what is read at least this fresh is what the holder before left behind."""
        return self._token

    @property
    def waited_s(self) -> float:
        """How long the request stood in the queue."""
        return self._waited_s

    @property
    def asked_s(self) -> float:
        """When the request was sent that was granted, by the clock that leases are judged by."""
        return self._asked_s

    @property
    def ends_s(self) -> float:
        """When its longest hold is over."""
        return self._ends_s

    @property
    def is_held(self) -> bool:
        """Whether it is held, judged now and from here. Asks the server nothing."""
        if self._phase is _Phase.HELD:
            if clock_s() >= self._ends_s:
                self.lose(LossCause.HELD_TOO_LONG)
            elif self.session.state in (SessionState.LOST, SessionState.CLOSED):
                self.lose(LossCause.SESSION_LOST)
        return self._phase is _Phase.HELD

    @property
    def is_used_here(self) -> bool:
        """Whether the code under it is what runs now."""
        return self._block is not None and self._block.is_running_here

    def check(self) -> None:
        """Raise LockLost if the lock is released, lost, or may be lost. Asks the server nothing.

        For code that cannot be cancelled: call it before each step that relies on the lock.
        """
        if self._granted_fence is None:
            raise RuntimeError(f"the lock is {self._phase.value}: use async with")
        if not self.is_held:
            raise self._lost()

    async def verify(self, *, timeout_s: float | None = None) -> None:
        """Ask the server whether the lock is held, right before an effect that the board's fences cannot guard.

        Raises LockLost if it is not. That narrows the gap between the last look and the effect; nothing can close it.
        """
        self.check()
        request = lock_wire.check_current_request(self._board_id, (), [self.fence])
        answer = await self._calls.call(lambda link: link.board.CheckCurrent, request, timeout_s=timeout_s)
        if not answer.current:
            self.lose(LossCause.UNKNOWN)
        self.check()

    async def downgrade(self, *, timeout_s: float | None = None) -> None:
        """Make it a shared lock without letting go in between. The fence stays the same; there is no way back up."""
        self.check()
        request = lock_wire.downgrade_request(self._board_id, self.fence)
        try:
            answer = await self._calls.call(lambda link: link.locks.DowngradeLock, request, timeout_s=timeout_s)
        except LockLost:
            self.lose(LossCause.REFUSED)
            raise
        self._granted_lock = lock_wire.lock(answer.lock)

    async def release(self, *, timeout_s: float | None = None) -> None:
        """Give it back before the block ends. Nothing happens if that was done before, or if it was lost."""
        await self._release(self.fence, self._timeout_s if timeout_s is None else timeout_s)

    async def _release(self, fence: Fence, timeout_s: float) -> bool:
        """Give it back if it is held, and say whether it was gone before though nobody here had released it."""
        if not self.begin_release():
            return False
        try:
            was_gone = await self._give_back(fence, timeout_s)
        except BaseException:
            self.end_release(released=False)
            raise
        self.end_release(released=True)
        return was_gone and not self._perhaps_released

    def begin_release(self) -> bool:
        """Take note that it is being released, so that nobody takes that for a loss. False if it is not held."""
        with self._mutex:
            held = self._phase is _Phase.HELD
            if held:
                self._phase = _Phase.RELEASING
        return held

    def end_release(self, *, released: bool, perhaps: bool = False) -> None:
        """Take note of what became of its release; `perhaps` if nobody knows."""
        with self._mutex:
            self._phase = _Phase.RELEASED if released else _Phase.HELD
            self._perhaps_released |= perhaps
            meanwhile, self._told_meanwhile = self._told_meanwhile, None
        if released:
            self.session.forget(self)
        elif meanwhile is not None:
            self._lose(meanwhile)

    def lose(self, cause: LossCause, *, broken_by: str = "", words: str = "") -> None:
        """Take note that it is lost: tell the caller, then stop the block. Whoever is first names the cause."""
        facts = {"lock_id": self.fence.lock_id, "cause": str(cause), "broken_by": broken_by, "words": words}
        self._lose({name: fact for name, fact in facts.items() if fact})

    def _lose(self, facts: dict[str, str]) -> None:
        with self._mutex:
            if self._phase is _Phase.RELEASING:
                self._told_meanwhile = facts
            if self._phase is not _Phase.HELD:
                return
            self._phase, self._loss = _Phase.LOST, facts
        if self._on_lost is not None:
            try:
                self._on_lost(self._lost())
            except Exception as fault:  # noqa: BLE001 - whatever it is, the block must be stopped all the same
                self._fault_in_on_lost = fault
        if self._block is not None:
            self._block.interrupt()

    def _lost(self) -> LockLost:
        if self._loss is None:
            return LockLost("the lock was released", code="FAILED_PRECONDITION", facts={"lock_id": self.fence.lock_id})
        cause = self._loss["cause"].replace("_", " ")
        return LockLost(f"the lock is lost: {cause}", code="FAILED_PRECONDITION", facts=self._loss)

    # Taking and leaving

    async def __aenter__(self) -> Self:
        if self._phase is not _Phase.NEW:
            raise RuntimeError("a lock is taken once; ask for another")
        self._phase = _Phase.ASKING
        self._block = block = _channel.Block()
        session = self._wanted_session or await self._sessions.default(self._board_id)
        session.check()
        self._session = session
        await session.cleaned_up(_CLEANING_S)
        self._asked_s = clock_s()
        granted, since_s = await self._obtain(session)
        self._granted_lock = lock_wire.lock(granted.lock)
        self._granted_fence = fence = lock_wire.fence(granted.fence)
        self._token = granted.token
        self._waited_s = lock_wire.waited_s(granted)
        self._ends_s = since_s + self._longest_hold_s(self._granted_lock)
        self._phase = _Phase.HELD
        session.register(self)
        if not self.is_held:
            # Lost before the block could begin, so it must not begin.
            session.forget(self)
            self._give_back_later(fence)
            await block.leave(None)
            raise self._lost()
        return self

    def _longest_hold_s(self, lock: Lock) -> float:
        if lock.end_time is None:
            return math.inf
        return min(self._hold_max_s or math.inf, (lock.end_time - lock.grant_time).total_seconds())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block, fence, stopped = self._block, self.fence, False
        try:
            if block is not None:
                stopped = await block.leave(kind)
            if self.is_held and await self._release(fence, self._timeout_s):
                self._phase = _Phase.HELD  # which it was for us, until now
                self.lose(LossCause.UNKNOWN)
        except KokubanError:
            pass  # what was done under the lock is done all the same
        finally:
            if self._phase is not _Phase.RELEASED:
                self._give_back_later(fence)
            if self._phase is _Phase.HELD:
                self._phase = _Phase.RELEASED
            self.session.forget(self)
        if self._phase is _Phase.LOST and (kind is None or stopped):
            raise self._lost() from (self._fault_in_on_lost or error)

    async def _give_back(self, fence: Fence, timeout_s: float) -> bool:
        """Release it, and say whether it was gone before. Then nobody can say for how long."""
        attempts = Attempts()
        request = lock_wire.release_request(self._board_id, fence)
        answer = await self._calls.call(
            lambda link: link.locks.ReleaseLock, request, timeout_s=timeout_s, attempts=attempts
        )
        return lock_wire.was_gone(answer) and not attempts.in_doubt

    def _give_back_later(self, fence: Fence) -> None:
        async def give_back() -> None:
            await self._give_back(fence, _CLEANING_S)

        self._see_to(give_back)

    def _see_to(self, act: Callable[[], Awaitable[None]]) -> None:
        """Do something in the background, again and again for as long as the session lives, until it has been answered."""
        session = self.session

        async def persist() -> None:
            failures = 0
            while not self._calls.closed:
                try:
                    await act()
                except (Unavailable, OutcomeUnknown, ServerFault) as error:
                    failures += 1
                    if session.state in (SessionState.LOST, SessionState.CLOSED):
                        return  # and the lock with it
                    await _channel.pause(delay_s(error, failures))
                else:
                    return

        session.clean_up(persist)

    # Asking

    async def _obtain(self, session: Session) -> tuple[lock_wire.LockGranted, float]:
        """Get the grant, and a moment at or before which it was not granted yet."""
        raise NotImplementedError  # pragma: no cover - each kind of lock has one

    async def _ask_again(self, request_id: str, timeout_s: float) -> Fence:
        """Ask without waiting under the id of a request whose outcome is not known; give the fence if it is granted."""
        raise NotImplementedError  # pragma: no cover - as above

    def _withdraw_later(self) -> None:
        """Give back what may have been granted to a request that nobody waits for any more."""
        request_id = self._request_id

        async def withdraw() -> None:
            await self._give_back(await self._ask_again(request_id, _CLEANING_S), _CLEANING_S)

        self._see_to(withdraw)


class RequestedHold(Hold):
    """A lock over given targets, waited for if need be."""

    def __init__(
        self,
        sessions: Sessions,
        calls: Calls,
        board: str,
        request: lock_wire.AcquireLockRequest,
        *,
        wait_s: float,
        session: Session | None,
        hold_max_s: float | None,
        on_lost: Callable[[LockLost], object] | None,
        on_queued: Callable[[Queued], object] | None,
        timeout_s: float | None,
    ) -> None:
        super().__init__(
            sessions, calls, board, session=session, hold_max_s=hold_max_s, on_lost=on_lost, timeout_s=timeout_s
        )
        if wait_s < 0:
            raise ValueError("wait_s must be 0 or more")
        self._request = request
        self._wait_s = wait_s
        self._on_queued = on_queued
        self._queued: Queued | None = None
        self._queued_since_s: float | None = None

    async def _obtain(self, session: Session) -> tuple[lock_wire.LockGranted, float]:
        self._request.session_id = session.id
        self._request_id = self._calls.ids.new()
        attempts = Attempts()
        try:
            granted, begun_s = await self._ask_until_answered(session, attempts)
        except BaseException as error:
            # A grant may have been made all the same, or be made just now.
            if not isinstance(error, KokubanError) or attempts.in_doubt:
                self._withdraw_later()
            raise
        return granted, self._not_before_s(granted, attempts.first_sent_s or begun_s, begun_s)

    async def _ask_until_answered(self, session: Session, attempts: Attempts) -> tuple[lock_wire.LockGranted, float]:
        """Ask as often as it takes, with the same id, and give the grant and when it was asked for the last time."""
        calls = self._calls
        wait = Deadline(_channel.now_s() + self._wait_s)
        deadline = wait.later_by(self._timeout_s)
        failures, corrected = 0, False
        while True:
            attempts.begin()
            begun_s, self._queued, shown = clock_s(), None, calls.metadata
            # Each attempt is the same request to the last byte, or it would be another; so its wait begins anew, and we end it.
            left_s = deadline.left_s(_channel.now_s())
            if failures:
                left_s = min(left_s, max(wait.left_s(_channel.now_s()), 0.0) + _LAST_ANSWER_S)
            try:
                return await self._ask(session, self._request, left_s, patient=failures > 0), begun_s
            except KokubanError as error:
                attempts.failed(error)
                failures += 1
                pause_s = delay_s(error, failures)
                if calls.closed:
                    raise ClientClosed("the client is closed", code="CANCELLED") from error
                if isinstance(error, Unavailable):
                    session.check()
                if isinstance(error, RequestIdExpired) and not corrected and not attempts.in_doubt:
                    corrected = calls.follow_store(error)
                    if not corrected:
                        raise
                    self._request_id = calls.ids.new()
                elif isinstance(error, DeadlineExceeded) and self._queued is not None:
                    raise self._expired(self._queued) from error
                elif pause_s >= deadline.left_s(_channel.now_s()) or not calls.may_try_again(error, failures, shown):
                    raise
            await _channel.pause(pause_s)

    def _expired(self, queued: Queued) -> LockWaitExpired:
        """Give the end of a wait that was broken off and begun anew, so that no server knows how long it has been."""
        facts = {"waited_ms": str(round(self._wait_s * 1000))}
        if queued.held_by:
            lock = queued.held_by[0]
            facts |= {"lock_id": lock.id, "holder_agent": lock.agent, "holder_session": lock.session_id}
            facts |= {"mode": lock.mode.upper(), "purpose": lock.purpose, "state": lock.state.upper()}
        return LockWaitExpired("the time to wait is over", code="DEADLINE_EXCEEDED", facts=facts)

    def _not_before_s(self, granted: lock_wire.LockGranted, first_s: float, last_s: float) -> float:
        moments = [first_s + lock_wire.waited_s(granted)]
        if not granted.replayed:
            moments.append(last_s)
        if self._queued_since_s is not None:
            moments.append(self._queued_since_s)
        return max(moments)

    async def _ask(
        self, session: Session, request: lock_wire.AcquireLockRequest, left_s: float, *, patient: bool
    ) -> lock_wire.LockGranted:
        """Ask once, and wait for the grant as long as the stream lives."""
        begun_s = clock_s()
        request.request_id = self._request_id
        left_s = max(left_s, _AT_ONCE_S)
        call: _channel.Stream | None = None
        try:
            call = await self._calls.open_acquisition(request, timeout_s=left_s, left_s=left_s, patient=patient)
            with session.waits_on(call):
                return await self._hear(call, begun_s)
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

    async def _hear(self, call: _channel.Stream, begun_s: float) -> lock_wire.LockGranted:
        while True:
            response: lock_wire.AcquireLockResponse | None = await _channel.next_response(call)
            if response is None:
                raise Unavailable("the server ended the wait without an answer", code="UNAVAILABLE")
            if response.HasField("granted"):
                _tracing.finish(call)
                return response.granted
            if response.HasField("queued"):
                self._queued_since_s = begun_s
                self._queued = queued = lock_wire.queued(response.queued)
                if self._on_queued is not None:
                    self._on_queued(queued)

    async def _ask_again(self, request_id: str, timeout_s: float) -> Fence:
        self._request_id, self._on_queued = request_id, None
        try:
            at_once = lock_wire.without_waiting(self._request)
            granted = await self._ask(self.session, at_once, timeout_s, patient=True)
        except RequestIdReused:
            # It has been granted to the request as it was, so there is nothing left to wait for.
            granted = await self._ask(self.session, self._request, timeout_s, patient=True)
        return lock_wire.fence(granted.fence)


class ClaimHold(Hold):
    """A lock on the first of several entries that is there and free."""

    def __init__(
        self,
        sessions: Sessions,
        calls: Calls,
        board: str,
        request: lock_wire.ClaimEntryRequest,
        *,
        session: Session | None,
        hold_max_s: float | None,
        on_lost: Callable[[LockLost], object] | None,
        timeout_s: float | None,
    ) -> None:
        super().__init__(
            sessions, calls, board, session=session, hold_max_s=hold_max_s, on_lost=on_lost, timeout_s=timeout_s
        )
        self._request = request
        self._entry: Entry | None = None

    @property
    def entry(self) -> Entry:
        """The claimed entry as it was when it was claimed; raises RuntimeError before that, or if it is gone already."""
        if self._entry is None:
            raise RuntimeError("no entry has been claimed")
        return self._entry

    async def _obtain(self, session: Session) -> tuple[lock_wire.LockGranted, float]:
        self._request.session_id = session.id
        attempts, begun_s = Attempts(), clock_s()
        try:
            answer, _ = await self._calls.write(
                lambda link: link.locks.ClaimEntry, self._under, timeout_s=self._timeout_s, attempts=attempts
            )
        except BaseException as error:
            if not isinstance(error, KokubanError) or attempts.in_doubt:
                self._withdraw_later()
            raise
        if answer.HasField("entry"):
            self._entry = _wire.entry(answer.entry, answer.granted.token)
        return answer.granted, attempts.first_sent_s or begun_s

    def _under(self, request_id: str) -> lock_wire.ClaimEntryRequest:
        self._request_id = self._request.request_id = request_id
        return self._request

    async def _ask_again(self, request_id: str, timeout_s: float) -> Fence:
        answer, _ = await self._calls.write(
            lambda link: link.locks.ClaimEntry, self._under, request_id=request_id, timeout_s=timeout_s
        )
        return lock_wire.fence(answer.granted.fence)
