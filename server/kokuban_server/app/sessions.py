"""Sessions: begun, renewed, watched over, closed, and listed."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.deadlines import left_s, of_one_act
from kokuban_server.app.lock_asked import ShownLock
from kokuban_server.app.lock_views import Sight
from kokuban_server.app.mirrored_store import records_below, settle
from kokuban_server.app.page_tokens import page_token, read_page_token
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, DeleteKey, Put, TimeBefore
from kokuban_server.core.entry import OperationAnswer
from kokuban_server.core.locks import SessionRecord
from kokuban_server.core.refusals import (
    Contended,
    NotFound,
    NotHolder,
    OutcomeUnknown,
    Refusal,
    RequestIdReused,
    ServerDraining,
    SessionLost,
    StoreUnavailable,
    TooManyLocks,
)
from kokuban_server.ports.board_store import STRONG, CommitRefused, LeaseLost
from kokuban_server.records.codec import decode_operation, encode_operation
from kokuban_server.records.lock_codec import decode_lock, decode_session, encode_session

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from kokuban_server.app.access import Access
    from kokuban_server.app.boards import Board
    from kokuban_server.app.lock_mirror import BoardLocks, LockMirror, Loss
    from kokuban_server.app.mirrored_store import MirroredStore
    from kokuban_server.app.request_ids import RequestIds
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import Principal
    from kokuban_server.core.locks import LockRecord
    from kokuban_server.ports.board_store import Record

_CALL_S = 10.0
_JEOPARDY = 2 / 3
"""After this part of its time without renewal a session is in jeopardy."""
_ATTEMPT = 1 / 3
_ATTEMPT_S_MIN = 1.0
"""This part of a session's time, and no less than that, a store has for an answer about it: what waits longer would keep
the next renewal, sent at such a distance, from a store that answers again."""


class SessionRequest(NamedTuple):
    """A session that is asked for, as the wire has parsed it."""

    board: str
    request_id: str
    id_time_ms: int
    digest: bytes
    ttl_ms: int
    label: str


class Opened(NamedTuple):
    """A session, and the state at which it is there."""

    session_id: str
    session: SessionRecord
    revision: int


class Pulse(enum.Enum):
    """How a session is."""

    RENEWED = "renewed"
    IN_JEOPARDY = "in jeopardy"
    LOST = "lost"
    UNCHANGED = "unchanged"


class News(NamedTuple):
    """What a session's holder should know."""

    session_id: str
    pulse: Pulse
    ttl_ms: int
    losses: tuple[Loss, ...]


class Present(NamedTuple):
    """A session as it is listed."""

    session_id: str
    session: SessionRecord
    heartbeat_age_ms: int
    holds: tuple[ShownLock, ...]
    waits: tuple[tuple[str, LockRecord], ...]


class Sessions:
    """Answers what concerns sessions."""

    def __init__(self, store: MirroredStore, access: Access, time: StoreTime, request_ids: RequestIds) -> None:
        self._mirrored = store
        self._store = store.port
        self._mirror = store.mirror
        self._apply = store.apply
        self._access = access
        self._time = time
        self._request_ids = request_ids
        self._renewed_at: dict[_Vigil, float] = {}
        """Of each session that is kept alive through this server: the loop's time of its last renewal, or of its beginning."""
        self.draining = asyncio.Event()

    async def open(self, principal: Principal, request: SessionRequest, deadline: float) -> Opened:
        """Begin a session; or give the one that this request has begun, if it lives: else `SessionLost`."""
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            board = await self._enter(principal, request.board, deadline)
            opened = await self._open(principal, request, board, deadline)
            if opened is not None:
                return opened
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    async def _open(
        self, principal: Principal, request: SessionRequest, board: Board, deadline: float
    ) -> Opened | None:
        """Begin the session under the board as it is known; nothing if its record has changed since."""
        self._request_ids.check(request.request_id, request.id_time_ms)
        operation = keys.operation(
            request.id_time_ms, principal.tenant, request.board, principal.agent, request.request_id
        )
        session_id = self._request_ids.digest(b"session\x00" + operation).hex()
        prefix = keys.board_prefix(principal.tenant, request.board)
        key = keys.on_board(keys.SESSION, prefix, session_id)
        picture = self._mirror.board(prefix)
        others = () if picture is None or session_id in picture.sessions else picture.sessions  # a repeat adds none
        if len(others) >= limits.SESSIONS_ENTRIES_MAX:
            raise TooManyLocks("sessions", limits.SESSIONS_ENTRIES_MAX)
        lease = await self._store.grant_lease(request.ttl_ms, left_s(deadline))
        now_ms = self._time.now_ms()
        session = SessionRecord(principal.agent, request.label, now_ms, lease.ttl_ms, lease.id)
        answer = encode_operation(OperationAnswer(request.digest, now_ms, ()))
        guards = (Absent(operation), TimeBefore(self._request_ids.end_ms(request.id_time_ms)), board.guard)
        change = ChangeSet(guards, (Put(key, encode_session(session), lease.id), Put(operation, answer)))
        try:
            revision = await self._begun(change, request, deadline)
        except BaseException:
            await asyncio.shield(self._let_go(lease.id))
            raise
        if revision is not None:
            return Opened(session_id, session, revision)
        opened = await self._opened_before(request, board, operation, key, session_id, deadline)
        if opened is None or opened.session.lease != lease.id:  # else an earlier try of this very call stood
            await self._let_go(lease.id)
        return opened

    async def _begun(self, change: ChangeSet, request: SessionRequest, deadline: float) -> int | None:
        """Commit the session; give its revision, or nothing if the request was dealt with before."""
        try:
            return await self._apply(change, deadline)
        except CommitRefused:
            return None
        except LeaseLost:
            raise StoreUnavailable("the session's time was over before it began") from None
        except OutcomeUnknown as unknown:
            raise OutcomeUnknown(request.request_id, unknown.detail) from unknown

    async def _opened_before(
        self, request: SessionRequest, board: Board, operation: bytes, key: bytes, session_id: str, deadline: float
    ) -> Opened | None:
        """Give the session that the same request has begun earlier; nothing if what stood against it was the board's record."""
        cut = await self._store.read([operation, key, board.key], STRONG, left_s(deadline))
        self._time.saw(cut.store_time_ms)
        done, found, now = cut.records
        self._request_ids.check_at(request.request_id, request.id_time_ms, cut.store_time_ms)
        if done is not None and decode_operation(operation, done.value).digest != request.digest:
            raise RequestIdReused(request.request_id)
        if done is None and now is not None and now.revision > board.revision:
            self._access.learn(now)
            return None
        if done is None or found is None:
            raise SessionLost(session_id)
        await settle(self._mirror, [key], [found], cut.revision, deadline)
        return Opened(session_id, decode_session(key, found.value), cut.revision)

    async def _let_go(self, lease: int) -> None:
        """End a lease on which nothing hangs; it would lapse by itself."""
        with contextlib.suppress(Exception):
            await self._store.revoke_lease(lease, _CALL_S)

    async def close(self, principal: Principal, board: str, session_id: str, deadline: float) -> bool:
        """End a session, its locks released and its waits withdrawn; false if it was gone. Raises `NotHolder`."""
        await self._enter(principal, board, deadline)
        prefix = keys.board_prefix(principal.tenant, board)
        key = keys.on_board(keys.SESSION, prefix, session_id)
        found = await self._read(key, deadline)
        if found is None:
            return False
        session = _own(principal, session_id, key, found)
        # Released first: what only lapsed would stay closed for its lock delay. What is granted in between is lost, no more.
        owned = [
            record.key
            for kind in (keys.WAIT, keys.LOCK)
            async for record in records_below(self._store, kind + prefix, deadline)
            if decode_lock(record.key, record.value).session_id == session_id
        ]
        for begin in range(0, len(owned), _RELEASED_AT_ONCE):
            deletes = [DeleteKey(name) for name in owned[begin : begin + _RELEASED_AT_ONCE]]
            deletes += [
                DeleteKey(keys.MARKER + delete.key[len(keys.LOCK) :])
                for delete in deletes
                if delete.key.startswith(keys.LOCK)
            ]
            change = ChangeSet((AtRevision(key, found.revision),), (), tuple(deletes))
            with contextlib.suppress(CommitRefused):
                await self._apply(change, deadline)
        await self._store.revoke_lease(session.lease, left_s(deadline))
        return True

    async def keep_alive(
        self, principal: Principal, board: str, session_id: str, renewals: AsyncIterator[None], deadline: float
    ) -> AsyncGenerator[News, None]:
        """Renew a session for each item of `renewals`, the first among them, and give what its holder should know.

        Ends when there are no more renewals. Raises `SessionLost` after it has said so, `NotHolder` at the beginning, and
        `ServerDraining`: the session lives on, and can be kept alive through another server.
        """
        deadline = of_one_act(deadline)
        await self._enter(principal, board, deadline)
        prefix = keys.board_prefix(principal.tenant, board)
        key = keys.on_board(keys.SESSION, prefix, session_id)
        found = await self._read(key, deadline)
        if found is None:
            raise SessionLost(session_id)
        session = _own(principal, session_id, key, found)
        watch = _Vigil(self._mirror, prefix, session_id, session, self.draining)
        self._renewed_at[watch] = asyncio.get_running_loop().time()
        still_there = partial(self._access.enter, principal, board)
        reader = asyncio.create_task(self._renew(key, session, renewals, watch, still_there), name="renewals")
        try:
            async for news in watch.news():
                yield news
            await reader  # what is wrong with a message is told when what came before it is answered
        finally:
            reader.cancel()
            watch.end()
            self._renewed_at.pop(watch, None)

    async def _renew(
        self,
        key: bytes,
        session: SessionRecord,
        renewals: AsyncIterator[None],
        vigil: _Vigil,
        still_there: Callable[[float], Awaitable[object]],
    ) -> None:
        """Renew for each message. What the store does not answer is told by the time that passes.

        Raises `NotFound` when the board is not there for the principal any more, of which `still_there` tells.
        """
        attempt_s = max(session.ttl_ms / 1000 * _ATTEMPT, _ATTEMPT_S_MIN)
        try:
            async for _ in renewals:
                begun = asyncio.get_running_loop().time()
                ttl_ms = 0
                try:
                    await still_there(begun + attempt_s)
                    with contextlib.suppress(LeaseLost):
                        ttl_ms = await self._store.renew_lease(session.lease, attempt_s)
                    # Only the record says whether the session lives: a lease may be renewed while it is being ended, and
                    # a store that lags behind may not know of one that was begun elsewhere.
                    alive = (await self._store.read([key], STRONG, attempt_s)).records[0] is not None
                except NotFound:
                    raise
                except Refusal:
                    continue
                if not alive:
                    vigil.lost()
                    return
                if ttl_ms:
                    self._renewed_at[vigil] = begun
                    vigil.renewed(begun, ttl_ms)
        finally:
            vigil.over()

    async def list_sessions(
        self, principal: Principal, board: str, page_size: int, token: str, deadline: float
    ) -> tuple[list[Present], str, int]:
        """Give a page of who is on the board, with what of it the caller may read; and the state that was read."""
        await self._enter(principal, board, deadline)
        prefix = keys.SESSION + keys.board_prefix(principal.tenant, board)
        after = read_page_token(token, prefix, prefix)
        page = await self._store.scan(prefix, after, page_size, limits.PAGE_BYTES_MAX, STRONG, left_s(deadline))
        sight = self.sight(principal, board)
        picture = self._mirror.picture(keys.board_prefix(principal.tenant, board))
        present = await asyncio.gather(*[self._present(record, picture, sight, deadline) for record in page.records])
        next_token = page_token(page.records[-1].key, prefix, prefix) if page.more else ""
        return [one for one in present if one is not None], next_token, page.revision

    async def _present(self, record: Record, picture: BoardLocks, sight: Sight, deadline: float) -> Present | None:
        session = decode_session(record.key, record.value)
        try:
            left_ms = await self._store.lease_left(session.lease, left_s(deadline))
        except LeaseLost:  # or in its last moment
            return None
        _, _, session_id = keys.parse_locking(record.key)
        holds, waits = [], []
        for name in sorted(picture.names(session_id)):
            lock, wait = picture.locks.get(name), picture.waits.get(name)
            if lock is not None and sight.targets(lock.record):
                holds.append(ShownLock(name, lock.record, True, lock.create_revision))
            elif wait is not None and sight.targets(wait.record):
                waits.append((name, wait.record))
        return Present(session_id, session, max(0, session.ttl_ms - left_ms), tuple(holds), tuple(waits))

    @property
    def kept_alive_count(self) -> int:
        """How many sessions are renewed through this server."""
        return len(self._renewed_at)

    def oldest_heartbeat_s(self) -> float:
        """Give how long ago that of them was renewed that has not been for the longest."""
        oldest = min(self._renewed_at.values(), default=None)
        return 0.0 if oldest is None else max(0.0, asyncio.get_running_loop().time() - oldest)

    def sight(self, principal: Principal, board: str) -> Sight:
        """Give what a caller may see of others."""
        return Sight(self._access, principal, board)

    async def _enter(self, principal: Principal, board: str, deadline: float) -> Board:
        entered = await self._access.enter(principal, board, deadline)
        await self._mirror.stand(left_s(deadline))
        return entered

    async def _read(self, key: bytes, deadline: float) -> Record | None:
        return (await self._mirrored.read([key], deadline)).records[0]


def _own(principal: Principal, session_id: str, key: bytes, found: Record) -> SessionRecord:
    session = decode_session(key, found.value)
    if session.agent != principal.agent:
        raise NotHolder("session_id", session_id=session_id)
    return session


_RELEASED_AT_ONCE = 32


class _Vigil:
    """Watches over one session for one stream."""

    def __init__(
        self, mirror: LockMirror, prefix: bytes, session_id: str, session: SessionRecord, draining: asyncio.Event
    ) -> None:
        self._board = mirror.followed(prefix)
        self._session_id = session_id
        self._ttl_ms = session.ttl_ms
        self._draining = draining
        self._renewed_at: float | None = None
        self._answers = 0
        self._losses: list[Loss] = []
        self._is_lost = False
        self._is_over = False
        self._jeopardy_at = asyncio.get_running_loop().time() + session.ttl_ms / 1000 * _JEOPARDY
        self._changed = asyncio.Event()
        self._board.followers[self._on_change] = None

    def end(self) -> None:
        """Watch no more."""
        self._board.followers.pop(self._on_change, None)

    def renewed(self, begun: float, ttl_ms: int) -> None:
        """Take note of a renewal that began at a time of the loop's."""
        self._ttl_ms = ttl_ms
        self._answers += 1
        self._jeopardy_at = begun + ttl_ms / 1000 * _JEOPARDY
        self._changed.set()

    def lost(self) -> None:
        """Take note that the session is gone."""
        self._is_lost = True
        self._changed.set()

    def over(self) -> None:
        """Take note that there are no more renewals."""
        self._is_over = True
        self._changed.set()

    def _on_change(self, losses: list[Loss]) -> None:
        own = [loss for loss in losses if loss.lock.session_id == self._session_id]
        self._losses += own
        if self._session_id not in self._board.sessions:
            self._is_lost = True
        if own or self._is_lost:
            self._changed.set()

    async def news(self) -> AsyncGenerator[News, None]:
        """Give what the holder should know, as it happens."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            losses, self._losses = tuple(self._losses), []
            if self._is_lost:
                yield News(self._session_id, Pulse.LOST, self._ttl_ms, losses)
                raise SessionLost(self._session_id)
            if self._answers:
                self._answers -= 1
                yield News(self._session_id, Pulse.RENEWED, self._ttl_ms, losses)
                self._changed.set()
                continue
            in_jeopardy = loop.time() >= self._jeopardy_at
            if in_jeopardy or losses:
                if in_jeopardy:
                    self._jeopardy_at = float("inf")  # told once, until the next renewal
                pulse = Pulse.IN_JEOPARDY if in_jeopardy else Pulse.UNCHANGED
                yield News(self._session_id, pulse, self._ttl_ms, losses)
                continue
            if self._draining.is_set():
                raise ServerDraining
            if self._is_over:
                return
            await self._wait(self._jeopardy_at - loop.time())

    async def _wait(self, bound_s: float) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._changed, self._draining)]
        timeout = None if bound_s == float("inf") else max(0.0, bound_s)
        try:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
