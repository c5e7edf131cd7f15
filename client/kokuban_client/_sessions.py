"""Sessions: opened, renewed in the background, judged, closed. What is held and asked for hangs on them."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from typing import TYPE_CHECKING, Protocol

import grpc
import grpc.aio

from kokuban_client import _channel, _wire
from kokuban_client._calls import Attempts
from kokuban_client._lease import Lease, clock_s
from kokuban_client._retry import Backoff, delay_s
from kokuban_client._wire import locks as lock_wire
from kokuban_client.errors import KokubanError, NotHolder, ServerFault, SessionLost, Unavailable
from kokuban_client.types import Fence, LossCause, LostLock, SessionInfo, SessionState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import TracebackType
    from typing import Self

    from kokuban_client._calls import Calls

TTL_S_DEFAULT = 30.0

_LOG = logging.getLogger("kokuban_client")
_WAKE = (None, None)
_AFTER_A_BREAK = Backoff(first_s=0.05, most_s=1.0)
_CLOSING_S_MAX = 2.0
_FENCES_ASKED_MAX = 16
_NEWS_S = 0.2
"""How long the news of a loss, which says why, may take longer than the answer that there is one."""
_LOST_LOCKS_KEPT = 1024


class Holding(Protocol):
    """A lock as its session sees it."""

    @property
    def fence(self) -> Fence:
        """The proof of its grant."""

    @property
    def asked_s(self) -> float:
        """When the request was sent that was granted, by the clock that leases are judged by."""

    @property
    def ends_s(self) -> float:
        """When its longest hold is over."""

    @property
    def is_used_here(self) -> bool:
        """Whether the code under it is what runs now."""

    def lose(self, cause: LossCause, *, broken_by: str = "", words: str = "") -> None:
        """Tell it that it is gone."""

    def begin_release(self) -> bool:
        """Tell it that it is being released; false if it is not held."""

    def end_release(self, *, released: bool, perhaps: bool = False) -> None:
        """Tell it what became of that; `perhaps` if nobody knows."""


class Session:
    """A connected agent's lease on a board. Made by `Board.session`; opened and closed by `async with`.

    It is renewed in the background every third of its time to live, over any server that can be reached. Whether it lives is
    judged by a monotonic clock, from the moment at which the renewal that was answered had been sent. When it is lost it
    never comes back, and every lock that it held is lost with it.
    """

    def __init__(
        self,
        sessions: Sessions,
        calls: Calls,
        board: str,
        *,
        ttl_s: float,
        label: str,
        on_state: Callable[[SessionState], object] | None = None,
    ) -> None:
        self._sessions = sessions
        self._calls = calls
        self._board = board
        self._ttl_s = ttl_s
        self._label = label
        self._on_state = on_state
        self._mutex = threading.Lock()
        self._inbox = _channel.Inbox()
        self._info: SessionInfo | None = None
        self._lease: Lease | None = None
        self._keeper: _channel.Background | None = None
        self._told = SessionState.LIVE
        self._closed = False
        self._holds: dict[str, Holding] = {}
        self._lost_locks: dict[str, LostLock] = {}
        self._waiting: set[_channel.Stream] = set()
        self._cleaning: set[_channel.Background] = set()
        self._hears_since_s = math.inf  # from then on every loss is told, by the stream that is open
        self._breaks = 0
        self._due_s = 0.0
        self._sent_s: float | None = None  # of the one renewal that is not answered yet

    @property
    def info(self) -> SessionInfo:
        """What the server says of it; raises RuntimeError before it is opened."""
        if self._info is None:
            raise RuntimeError("the session has not been opened: async with board.session(...)")
        return self._info

    @property
    def id(self) -> str:
        """Its id; raises RuntimeError before it is opened."""
        return self.info.id

    @property
    def board_id(self) -> str:
        """The board that it is on."""
        return self._board

    @property
    def ttl_s(self) -> float:
        """How long it lives without renewal: what the server made of what was asked for."""
        return self._ttl_s if self._lease is None else self._lease.ttl_s

    @property
    def state(self) -> SessionState:
        """How it is, judged now and from here. Asks the server nothing."""
        if self._closed or self._lease is None:
            return SessionState.CLOSED
        return self._lease.state(clock_s())

    def check(self) -> None:
        """Raise SessionLost if it is closed, lost, or may be lost. Asks the server nothing."""
        state = self.state
        if state in (SessionState.LOST, SessionState.CLOSED):
            facts = {"session_id": self._info.id} if self._info else {}
            raise SessionLost(f"the session is {state}", code="FAILED_PRECONDITION", facts=facts)

    async def begin(self) -> None:
        """Open it; raises what the server refuses it for, and RuntimeError the second time."""
        with self._mutex:
            if self._info is not None or self._closed:
                raise RuntimeError("a session is opened once; make another")
        attempts = Attempts()
        answer, _ = await self._calls.write(
            lambda link: link.sessions.OpenSession,
            lambda request_id: lock_wire.open_session_request(
                self._board, request_id, ttl_s=self._ttl_s, label=self._label
            ),
            attempts=attempts,
        )
        self._info = lock_wire.session_info(answer.session)
        now_s = clock_s()
        self._lease = Lease(self._info.ttl_s, now_s if attempts.first_sent_s is None else attempts.first_sent_s)
        self._sessions.add(self)
        self._keeper = _channel.Background(self._keep)

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Release what it holds and end it. Locks that are in use are lost. A server that does not answer is not waited for.

        Then the session ends by itself when its time is over.
        """
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        self._lose_holds(LossCause.SESSION_CLOSED, here=False)
        self._inbox.put(_WAKE)
        if self._info is not None and self._keeper is not None:
            await self._keeper.join()
            with contextlib.suppress(KokubanError):
                await self._calls.call(
                    lambda link: link.sessions.CloseSession,
                    lock_wire.close_session_request(self._board, self._info.id),
                    timeout_s=min(self._calls.timeout_s, _CLOSING_S_MAX),
                )
        # The block that closes its own session is stopped last: a task that is cancelled could not have closed it.
        self._lose_holds(LossCause.SESSION_CLOSED, here=True)
        self._sessions.discard(self)

    # What hangs on it

    def register(self, hold: Holding) -> None:
        """Tell this lock when it is lost; at once if that is known already."""
        with self._mutex:
            lost = self._lost_locks.pop(hold.fence.lock_id, None)
            if lost is None:
                self._holds[hold.fence.lock_id] = hold
        if lost is not None:
            hold.lose(lost.cause, broken_by=lost.broken_by, words=lost.words)
        elif self.state in (SessionState.LOST, SessionState.CLOSED):
            hold.lose(LossCause.SESSION_LOST)
        else:
            self._inbox.put(_WAKE)  # it may end sooner than whatever is waited for
            if hold.asked_s < self._hears_since_s < math.inf:
                self._ask_about([hold.fence])

    def forget(self, hold: Holding) -> None:
        """Tell this lock nothing any more."""
        with self._mutex:
            self._holds.pop(hold.fence.lock_id, None)

    def hold(self, lock_id: str) -> Holding | None:
        """Give the lock of that id, if the session holds it."""
        with self._mutex:
            return self._holds.get(lock_id)

    def clean_up(self, work: Callable[[], Awaitable[None]]) -> None:
        """Give something back in the background. What is asked for next waits for it, lest it meet what is left."""
        job = self._sessions.in_background(work)
        with self._mutex:
            self._cleaning = {job, *(other for other in self._cleaning if not other.is_over)}

    async def cleaned_up(self, timeout_s: float) -> None:
        """Wait until everything is given back, or for that long."""
        with self._mutex:
            jobs = [*self._cleaning]
        until_s = _channel.now_s() + timeout_s
        for job in jobs:
            await job.join(max(until_s - _channel.now_s(), 0.0))

    @contextlib.contextmanager
    def waits_on(self, call: _channel.Stream) -> Iterator[None]:
        """Cancel a stream when the session is lost while the block runs."""
        with self._mutex:
            self._waiting.add(call)
        try:
            self.check()
            yield
        finally:
            with self._mutex:
                self._waiting.discard(call)

    def _lose_holds(self, cause: LossCause, *, here: bool) -> None:
        with self._mutex:
            holds, waiting = [*self._holds.values()], [*self._waiting]
        for hold in holds:
            if here or not hold.is_used_here:
                hold.lose(cause)
        for call in waiting:
            call.cancel()

    # The keeper, which runs in the background

    async def _keep(self) -> None:
        try:
            await self._renew_until_over()
        except Exception:  # noqa: BLE001 - see the next line
            # Nobody may go on believing in a session that nobody renews.
            _LOG.exception("the renewal of a session has failed")
            self._end()

    async def _renew_until_over(self) -> None:
        lease = self._leased()
        while self._look() > 0:
            try:
                await self._renew_over_a_stream()
            except (SessionLost, NotHolder):
                self._end()
                return
            except KokubanError:
                pass  # whatever it is, another stream may have more luck, for as long as the session may live
            self._breaks += 1
            rested_s = clock_s() + min(_AFTER_A_BREAK.delay_s(self._breaks), lease.renew_every_s)
            while (left_s := min(rested_s - clock_s(), self._look())) > 0:
                await self._inbox.get(left_s)

    async def _renew_over_a_stream(self) -> None:
        """Renew until the stream breaks, and raise why; or until the session is over."""
        lease = self._leased()
        renewals = await self._calls.open_renewals(self._inbox, timeout_s=lease.renew_every_s, patience=self._look)
        try:
            await self._renew_over(renewals.stream)
        finally:
            await renewals.close()

    async def _renew_over(self, stream: _channel.Duplex) -> None:
        lease = self._leased()
        request = lock_wire.keep_alive_request(self._board, self.id)
        self._due_s, self._sent_s, self._hears_since_s = clock_s(), None, math.inf
        while (left_s := self._look()) > 0:
            now_s = clock_s()
            if self._sent_s is None and now_s >= self._due_s:
                self._sent_s = now_s
                await stream.send(request, lease.renew_every_s)
            until_s = self._due_s if self._sent_s is None else self._sent_s + lease.renew_every_s
            if self._sent_s is not None and now_s >= until_s:
                raise Unavailable("no answer to a renewal", code="UNAVAILABLE")
            item = await self._inbox.get(min(left_s, until_s - clock_s()))
            if item is None or item[0] is not stream:
                continue
            if item[1] is None:
                raise Unavailable("the server ended the renewals", code="UNAVAILABLE")
            if isinstance(item[1], grpc.RpcError):
                raise _wire.error_of(item[1])
            self._hear(item[1])

    def _hear(self, response: lock_wire.KeepAliveResponse) -> None:
        """Take what a server says; raises SessionLost if it says that."""
        lease = self._leased()
        for lost in lock_wire.lost_locks(response):
            self._lose_one(lost)
        match lock_wire.told_state(response):
            case SessionState.LIVE if self._sent_s is not None:
                self._look()  # first: what is lost by now is not brought back by an answer
                lease.renewed(self._sent_s, lock_wire.told_ttl_s(response))
                self._due_s, self._sent_s = self._sent_s + lease.renew_every_s, None
                self._breaks = 0
                self._hear_all()
            case SessionState.IN_JEOPARDY:
                lease.endanger()
                self._due_s = clock_s()
            case SessionState.LOST:
                raise SessionLost("the server says so", code="FAILED_PRECONDITION", facts={"session_id": self.id})
            case _:
                pass

    def _leased(self) -> Lease:
        if self._lease is None:
            raise RuntimeError("the session has not been opened")
        return self._lease

    def _look(self) -> float:
        """Judge the session and its locks now, tell what has changed, and give the time until the next look.

        0 if it is over.
        """
        lease, now_s = self._leased(), clock_s()
        if self._closed:
            return 0.0
        self._tell(lease.state(now_s))
        if self._told is SessionState.LOST:
            return 0.0
        until_s = lease.changes_at_s(now_s)
        with self._mutex:
            holds = [*self._holds.values()]
        for hold in holds:
            if now_s >= hold.ends_s:
                hold.lose(LossCause.HELD_TOO_LONG)
            else:
                until_s = min(until_s, hold.ends_s)
        return max(until_s - now_s, 0.001)

    def _end(self) -> None:
        self._leased().end()
        self._tell(SessionState.LOST)

    def _tell(self, state: SessionState) -> None:
        if state is self._told:
            return
        self._told = state
        if self._on_state is not None:
            try:
                self._on_state(state)
            except Exception:  # noqa: BLE001 - a caller's fault must not end the renewals
                _LOG.exception("on_state has failed")
        if state is SessionState.LOST:
            self._lose_holds(LossCause.SESSION_LOST, here=True)

    def _lose_one(self, lost: LostLock) -> None:
        with self._mutex:
            hold = self._holds.get(lost.lock_id)
            if hold is None:
                # Perhaps its grant is still on the way.
                self._lost_locks[lost.lock_id] = lost
                while len(self._lost_locks) > _LOST_LOCKS_KEPT:
                    del self._lost_locks[next(iter(self._lost_locks))]
        if hold is not None:
            hold.lose(lost.cause, broken_by=lost.broken_by, words=lost.words)

    def _hear_all(self) -> None:
        """Take note that from now on every loss is told. What was lost while no stream was open must be asked for."""
        with self._mutex:
            if self._hears_since_s < math.inf:
                return
            self._hears_since_s = clock_s()
            fences = [hold.fence for hold in self._holds.values()]
        self._ask_about(fences)

    def _ask_about(self, fences: list[Fence]) -> None:
        if fences:
            self._sessions.in_background(lambda: self._check_holds(fences))

    async def _check_holds(self, fences: list[Fence]) -> None:
        lease, failures = self._leased(), 0
        while fences and self.state in (SessionState.LIVE, SessionState.IN_JEOPARDY) and not self._calls.closed:
            request = lock_wire.check_current_request(self._board, (), fences[:_FENCES_ASKED_MAX])
            try:
                answer = await self._calls.call(
                    lambda link: link.board.CheckCurrent, request, timeout_s=lease.renew_every_s
                )
            except (Unavailable, ServerFault) as error:
                failures += 1
                await _channel.pause(delay_s(error, failures))
                continue
            lost = lock_wire.currency(answer).lost_fences
            if lost:
                await _channel.pause(_NEWS_S)
            for fence in lost:
                hold = self.hold(fence.lock_id)
                if hold is not None:
                    hold.lose(LossCause.UNKNOWN)
            fences = fences[_FENCES_ASKED_MAX:]


class Sessions:
    """The sessions of one client, and its work in the background. Nothing here is shared with another client."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._mutex = threading.Lock()
        self._opening = _channel.Mutex()
        self._open: set[Session] = set()
        self._defaults: dict[str, Session] = {}
        self._scopes: dict[str, str] = {}
        self._jobs: set[_channel.Background] = set()

    async def default(self, board: str) -> Session:
        """Give the board's session for locks that name none: opened when it is first needed, and anew when it was lost."""
        async with self._opening:
            session = self._defaults.get(board)
            if session is not None and session.state in (SessionState.LIVE, SessionState.IN_JEOPARDY):
                return session
            self._defaults[board] = session = Session(self, self._calls, board, ttl_s=TTL_S_DEFAULT, label="")
            await session.begin()
            return session

    def read_scope(self, board: str) -> str:
        """Give the session in whose read scope the client works, or an empty text while it has asked for nothing external."""
        with self._mutex:
            return self._scopes.get(board, "")

    async def begin_read_scope(self, board: str) -> str:
        """Give that session, and from now on always: the scope is the client's, and outlives the session's end."""
        known = self.read_scope(board)
        if known:
            return known
        session = await self.default(board)
        with self._mutex:
            return self._scopes.setdefault(board, session.id)

    def add(self, session: Session) -> None:
        """Close this one with the client."""
        with self._mutex:
            self._open.add(session)

    def discard(self, session: Session) -> None:
        """Take note that it is closed."""
        with self._mutex:
            self._open.discard(session)

    def hold(self, lock_id: str) -> Holding | None:
        """Give the lock of that id, if one of the sessions holds it."""
        with self._mutex:
            sessions = [*self._open]
        return next((hold for session in sessions if (hold := session.hold(lock_id)) is not None), None)

    def in_background(self, work: Callable[[], Awaitable[None]]) -> _channel.Background:
        """Do something that nobody waits for. It must have a bound, and ends with the client at the latest."""

        async def carefully() -> None:
            try:
                await work()
            except KokubanError:
                pass  # it was worth a try
            except Exception:  # noqa: BLE001 - nobody waits to whom it could be told
                _LOG.exception("work in the background has failed")

        job = _channel.Background(carefully)
        with self._mutex:
            self._jobs = {job, *(other for other in self._jobs if not other.is_over)}
        return job

    async def aclose(self) -> None:
        """Close every session."""
        with self._mutex:
            sessions = [*self._open]
        for session in sessions:
            await session.aclose()

    async def join(self) -> None:
        """Wait for the work in the background, which the end of the connections has ended."""
        with self._mutex:
            jobs = [*self._jobs]
        for job in jobs:
            await job.join()
