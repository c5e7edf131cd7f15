"""Commits and requests for locks, with a note in the log of conflicts when one loses, and when a retry of one stands.

This is the outermost layer of these use cases: what is noted here is what the caller is answered, once, whatever was tried
in between.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.conflicts import Asker
from kokuban_server.app.lineage import is_plain
from kokuban_server.app.lock_asked import Granted, Queued
from kokuban_server.core import keys, limits
from kokuban_server.core.commit import At, Delete, MergePatch, Put
from kokuban_server.core.conflicts import Conflict, ConflictKind, Party
from kokuban_server.core.locks import LockTarget
from kokuban_server.core.refusals import (
    AlreadyExists,
    Deadlock,
    LockedByOther,
    LockLost,
    LockWaitExpired,
    Refusal,
    RevisionMismatch,
)
from kokuban_server.ports.tracing import TRACED

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from kokuban_server.app.commits import CommitRequest, Commits, Committed
    from kokuban_server.app.conflicts import ConflictLog
    from kokuban_server.app.lock_asked import LockRequest
    from kokuban_server.app.lock_mirror import BoardLocks, LockMirror
    from kokuban_server.app.lock_requests import LockRequests
    from kokuban_server.app.measures import Measures
    from kokuban_server.app.task_waits import TaskWaits
    from kokuban_server.core.access import Principal
    from kokuban_server.core.locks import LockRecord
    from kokuban_server.core.refusals import Holder, Winner
    from kokuban_server.core.task_progress import PartStanding


class _Place(NamedTuple):
    """Where a request lost, and to whom."""

    region: str
    path: str
    winner: Party | None
    expected: int = 0
    actual: int = 0
    lock_id: str = ""
    waited_ms: int = 0


class RecordedCommits:
    """`Commits`, recorded."""

    def __init__(
        self, commits: Commits, log: ConflictLog, mirror: LockMirror, measures: Measures | None = None
    ) -> None:
        self._measures = measures
        self._commits = commits
        self._log = log
        self._mirror = mirror

    async def commit(self, principal: Principal, request: CommitRequest, deadline: float) -> Committed:
        """Apply a commit, as `Commits.commit` does."""
        asker = Asker(principal.tenant, request.board, principal.agent)
        try:
            committed = await self._commits.commit(principal, request, deadline)
        except (RevisionMismatch, AlreadyExists, LockedByOther, LockLost) as refusal:
            picture = self._mirror.board(asker.prefix)
            place = _where_a_commit_lost(picture, request, refusal)
            if place is not None:
                # What may be made of something external is no agent's word, and nobody has screened it: it is not passed on.
                reason = request.reason if is_plain(principal, request.origins) else ""
                conflict = self._conflict(asker, picture, request, refusal, place, reason)
                self._log.lost(asker, _told(conflict, self._measures))
            self.count(request, refusal.reason)
            raise
        except Refusal as refusal:
            self.count(request, refusal.reason)
            raise
        self.count(request, "replayed" if committed.replayed else "committed")
        written_over = {
            key: mutation.precondition.number
            for key, mutation, _ in (request.mutations if request.retry_of else ())
            if isinstance(mutation, Put | Delete | MergePatch) and isinstance(mutation.precondition, At)
        }
        self._log.won(ConflictKind.COMMIT, asker, request.request_id, request.retry_of, written_over)
        return committed

    def count(self, request: CommitRequest, result: str) -> None:
        """Count what became of a commit."""
        if self._measures is not None:
            self._measures.commits[result] += 1
            self._measures.retries += bool(request.retry_of)

    def _conflict(
        self,
        asker: Asker,
        picture: BoardLocks | None,
        request: CommitRequest,
        refusal: Refusal,
        place: _Place,
        reason: str,
    ) -> Conflict:
        named = [key for key, _, _ in request.mutations] + [key for key, _ in request.beliefs]
        own = (picture.locks.get(given.fence.lock_id) for given in request.fences) if picture is not None else ()
        sessions = [lock.record.session_id for lock in own if lock is not None and lock.record.agent == asker.agent]
        now_ms = self._log.now_ms()
        loser = Party(
            asker.agent,
            sessions[0] if sessions else "",
            request.request_id,
            request.traceparent,
            now_ms,
            reason,
            tuple(dict.fromkeys(str(key.region) for key in named)),
        )
        return Conflict(
            id=self._log.id_of(ConflictKind.COMMIT, asker, request.request_id),
            time_ms=now_ms,
            kind=ConflictKind.COMMIT,
            reason=refusal.reason,
            region=place.region,
            path=place.path,
            epoch=self._log.epoch,
            expected_revision=place.expected,
            actual_revision=place.actual,
            loser=loser,
            winner=place.winner,
            lock_id=place.lock_id,
            retry_of=request.retry_of,
            lost_bytes=_size_bytes(request, place.region),
        )


class RecordedLocks:
    """`LockRequests`, recorded."""

    def __init__(
        self, requests: LockRequests, log: ConflictLog, mirror: LockMirror, measures: Measures | None = None
    ) -> None:
        self._measures = measures
        self._requests = requests
        self._log = log
        self._mirror = mirror
        self._held: dict[tuple[bytes, str], float] = {}
        """The loop's time of the grant of each lock that was granted here and is held, where holds are measured."""
        if measures is not None:
            mirror.on_lock_ended = self._measure_hold

    async def acquire(
        self, principal: Principal, request: LockRequest, tell: Callable[[Queued], Awaitable[None]], deadline: float
    ) -> Granted:
        """Give the grant, as `LockRequests.acquire` does; `tell` is told where the request stands until then."""
        parts = self._requests.acquire(principal, request, deadline)
        wait: _Wait | None = None
        end = "cancelled"
        try:
            async for part in parts:
                if isinstance(part, Granted):
                    end = "granted"
                    self._begin_hold(principal, request, part)
                    self._won(principal, request)
                    return part
                if wait is None:
                    wait = _Wait(part)
                await tell(part)
        except Refusal as refusal:
            end = refusal.reason
            if isinstance(refusal, LockedByOther | Deadlock | LockWaitExpired):
                self.lost(principal, request, refusal)
            raise
        finally:
            if wait is not None:
                wait.end(end, self._measures)
            await parts.aclose()
        raise AssertionError("the last part is the grant")  # pragma: no cover - for the type checker

    async def claim(self, principal: Principal, request: LockRequest, deadline: float) -> Granted:
        """Lock the first candidate that exists and is free, as `LockRequests.claim` does."""
        try:
            granted = await self._requests.claim(principal, request, deadline)
        except LockedByOther as refusal:
            self.lost(principal, request, refusal)
            raise
        self._begin_hold(principal, request, granted)
        self._won(principal, request)
        return granted

    def _begin_hold(self, principal: Principal, request: LockRequest, granted: Granted) -> None:
        if self._measures is None or granted.replayed or len(self._held) >= limits.LOCKS_MEASURED_ENTRIES_MAX:
            return
        prefix = keys.board_prefix(principal.tenant, request.board)
        board = self._mirror.board(prefix)
        if board is not None and granted.lock_id in board.locks:  # else it has ended already
            self._held[prefix, granted.lock_id] = asyncio.get_running_loop().time()

    def _measure_hold(self, board: BoardLocks, lock_id: str) -> None:
        begun = self._held.pop((board.prefix, lock_id), None)
        if begun is not None and self._measures is not None:
            self._measures.lock_holds.add(asyncio.get_running_loop().time() - begun)

    def _won(self, principal: Principal, request: LockRequest) -> None:
        asker = Asker(principal.tenant, request.board, principal.agent)
        self._log.won(ConflictKind.LOCK, asker, request.request_id, request.retry_of, {})

    def lost(
        self, principal: Principal, request: LockRequest, refusal: LockedByOther | Deadlock | LockWaitExpired
    ) -> None:
        """Note that a request lost."""
        asker = Asker(principal.tenant, request.board, principal.agent)
        place = _where_a_lock_lost(self._mirror.board(asker.prefix), request, refusal)
        now_ms = self._log.now_ms()
        loser = Party(
            asker.agent,
            request.session_id,
            request.request_id,
            request.traceparent,
            now_ms,
            request.purpose,
            tuple(dict.fromkeys(str(target.region) for target in request.targets)),
        )
        self._log.lost(
            asker,
            _told(
                Conflict(
                    id=self._log.id_of(ConflictKind.LOCK, asker, request.request_id),
                    time_ms=now_ms,
                    kind=ConflictKind.LOCK,
                    reason=refusal.reason,
                    region=place.region,
                    path=place.path,
                    epoch=self._log.epoch,
                    expected_revision=0,
                    actual_revision=0,
                    loser=loser,
                    winner=place.winner,
                    lock_id=place.lock_id,
                    retry_of=request.retry_of,
                    waited_ms=place.waited_ms,
                ),
                self._measures,
            ),
        )


class RecordedTaskWaits:
    """`TaskWaits`, recorded."""

    def __init__(self, waits: TaskWaits, locks: RecordedLocks) -> None:
        self._waits = waits
        self._locks = locks

    async def wait(
        self, principal: Principal, request: LockRequest, draining: asyncio.Event, deadline: float
    ) -> AsyncGenerator[tuple[PartStanding, int], None]:
        """Give how what is waited for stands, as `TaskWaits.wait` does."""
        try:
            async with contextlib.aclosing(self._waits.wait(principal, request, draining, deadline)) as standings:
                async for standing in standings:
                    yield standing
        except (Deadlock, LockWaitExpired) as refusal:
            self._locks.lost(principal, request, refusal)
            raise


class _Wait:
    """A request that waits for a lock, in its call's trace and among the measures."""

    def __init__(self, first: Queued) -> None:
        span = TRACED.get()
        self._span = None
        if span is not None:
            self._span = span.begin_wait(first.held_by[0].lock.traceparent if first.held_by else "")
        self._begun = asyncio.get_running_loop().time()

    def end(self, end: str, measures: Measures | None) -> None:
        """Take note that it waits no more."""
        traceparent = ""
        if self._span is not None:
            traceparent = self._span.traceparent
            self._span.end()
        if measures is not None:
            measures.lock_wait(end, asyncio.get_running_loop().time() - self._begun, traceparent)


def _told(conflict: Conflict, measures: Measures | None) -> Conflict:
    """Count a conflict, and say in the call's span that it lost; give it with that span as its loser's, if it is recorded."""
    span = TRACED.get()
    traceparent = ""
    if span is not None:
        span.note_conflict(conflict)
        traceparent = span.traceparent
    if measures is not None:
        measures.conflict(conflict.reason, conflict.region, traceparent)
    if not traceparent:
        return conflict
    return replace(conflict, loser=replace(conflict.loser, traceparent=traceparent))


def _where_a_commit_lost(
    picture: BoardLocks | None,
    request: CommitRequest,
    refusal: RevisionMismatch | AlreadyExists | LockedByOther | LockLost,
) -> _Place | None:
    """Give where a commit lost; nothing if there was nothing to lose."""
    if isinstance(refusal, LockedByOther):
        return _held(picture, refusal.holder)
    if isinstance(refusal, LockLost):
        if not request.mutations:
            return None
        region, path = request.mutations[0][0]
        lost = {given.fence.lock_id for given in request.fences}
        lock_id, winner = _breaker(picture, lost) or _heir(picture, request, lost) or ("", None)
        return _Place(str(region), path, winner, lock_id=lock_id)
    expected = refusal.expected_revision if isinstance(refusal, RevisionMismatch) else 0
    winner = _writer(refusal.winner, refusal.region) if refusal.winner is not None else None
    return _Place(refusal.region, refusal.path, winner, expected, refusal.actual_revision)


def _where_a_lock_lost(
    picture: BoardLocks | None, request: LockRequest, refusal: LockedByOther | Deadlock | LockWaitExpired
) -> _Place:
    """Give where a request for a lock lost: what is in its way, or else the first that it asks for."""
    waited_ms = refusal.waited_ms if isinstance(refusal, LockWaitExpired) else 0
    if not isinstance(refusal, Deadlock) and refusal.holder is not None:
        return _held(picture, refusal.holder)._replace(waited_ms=waited_ms)
    first = request.targets[0]
    winner = _next_in_the_circle(picture, refusal) if isinstance(refusal, Deadlock) else None
    return _Place(str(first.region), first.path, winner, waited_ms=waited_ms)


def _writer(winner: Winner, region: str) -> Party:
    """Give who wrote an entry. Why it did stands in the entry's history, where it is shown to whom it may be shown."""
    return Party(winner.agent, "", winner.request_id, winner.traceparent, winner.time_ms, "", (region,))


def _held(picture: BoardLocks | None, holder: Holder) -> _Place:
    """Give the lock or wait that is in the way; with its words, and who may read them, if it is still known here."""
    known = None
    if picture is not None:
        known = picture.claims.get(holder.lock_id) or picture.waits.get(holder.lock_id)
    party = (
        _locker(known.record)
        if known is not None
        else Party(
            holder.agent,
            holder.session_id,
            traceparent=holder.traceparent,
            time_ms=holder.since_ms,
            regions=(holder.region,),
        )
    )
    return _Place(holder.region, holder.path, party, lock_id=holder.lock_id)


def _locker(lock: LockRecord) -> Party:
    """Give who holds a lock, or waits for one."""
    regions = tuple(map(str, lock.regions))
    return Party(lock.agent, lock.session_id, lock.request_id, lock.traceparent, lock.time_ms, lock.purpose, regions)


def _breaker(picture: BoardLocks | None, lost: set[str]) -> tuple[str, Party] | None:
    """Give who broke one of these locks, if somebody did and it is remembered."""
    for lock_id in sorted(lost) if picture is not None else ():
        marker = picture.broken_marker(lock_id) if picture is not None else None
        if marker is not None:
            regions = tuple(map(str, marker.regions))
            traceparent, time_ms = marker.broken_traceparent, marker.lost_time_ms
            return lock_id, Party(marker.broken_by, "", "", traceparent, time_ms, marker.broken_reason, regions)
    return None


def _heir(picture: BoardLocks | None, request: CommitRequest, lost: set[str]) -> tuple[str, Party] | None:
    """Give who holds now what a commit's first entry belongs to, if somebody does: the lock under which it came is lost."""
    if picture is None:
        return None
    region, path = request.mutations[0][0]
    for lock_id, lock in picture.claims.overlapping((LockTarget(region, path, subtree=False),)):
        if lock_id not in lost:
            return lock_id, _locker(lock.record)
    return None


def _next_in_the_circle(picture: BoardLocks | None, refusal: Deadlock) -> Party | None:
    """Give whom the victim waits for, as far as the victim may read it."""
    edge = refusal.edges[1 % len(refusal.edges)]
    if not edge.session_id:
        return None
    named = {(region, path) for region, path, _ in edge.targets}
    names = picture.names(edge.session_id) if picture is not None else ()
    for name in sorted(names):
        wait = (picture.waits.get(name) or picture.task_waits.get(name)) if picture is not None else None
        if wait is not None and any((str(target.region), target.path) in named for target in wait.targets):
            return _locker(wait.record)
    regions = tuple(dict.fromkeys(region for region, _, _ in edge.targets))
    return Party(edge.agent, edge.session_id, purpose=edge.purpose, regions=regions)


def _size_bytes(request: CommitRequest, region: str) -> int:
    """Give the size of the values that a commit was to write to a region."""
    return sum(
        mutation.value.size_bytes
        for key, mutation, _ in request.mutations
        if isinstance(mutation, Put) and mutation.value is not None and str(key.region) == region
    )
