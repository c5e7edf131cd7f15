"""What one round does for the requests of a board: who is granted, who begins to wait, and what that is guarded on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, CreatedAt, DeleteKey, Put, TimeBefore
from kokuban_server.core.entry import OperationAnswer
from kokuban_server.core.locks import Claims, Known, LockRecord
from kokuban_server.core.refusals import (
    LockedByOther,
    LockOverlapsOwn,
    NothingToClaim,
    NotHolder,
    RequestIdReused,
    SessionLost,
    TooManyLocks,
)
from kokuban_server.records.codec import decode_entry, encode_operation
from kokuban_server.records.lock_codec import encode_generation, encode_lock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kokuban_server.app.lock_asked import Asked, LockRequest
    from kokuban_server.app.lock_mirror import BoardLocks, KnownLock
    from kokuban_server.app.mirrored_store import MirroredStore
    from kokuban_server.app.presence import Presence
    from kokuban_server.app.request_ids import RequestIds
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.change_set import Guard
    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.locks import Fence, LockTarget
    from kokuban_server.core.names import EntryKey, Region
    from kokuban_server.ports.board_store import Record


class Unsure(Exception):  # noqa: N818 - not an error: the store must be asked before the request can be dealt with
    """What is known does not suffice to grant or to refuse."""


class Ground:
    """What rounds of one board stand on."""

    def __init__(
        self,
        tenant: str,
        board_id: str,
        store: MirroredStore,
        time: StoreTime,
        request_ids: RequestIds,
        presence: Presence,
    ) -> None:
        self.prefix = keys.board_prefix(tenant, board_id)
        self.store = store
        self.time = time
        self.request_ids = request_ids
        self.presence = presence
        self._tenant = tenant
        self._board_id = board_id

    @property
    def board(self) -> BoardLocks:
        """The board as it is known now."""
        return self.store.mirror.picture(self.prefix)

    def generations(self, region: Region) -> tuple[bytes, bytes]:
        """Give the keys of a region's lock generation and queue generation."""
        prefix = keys.region_prefix(self._tenant, self._board_id, region)
        return keys.LOCK_GENERATION + prefix, keys.QUEUE_GENERATION + prefix

    def key(self, kind: bytes, name: str) -> bytes:
        """Give the key of one of the board's sessions, locks, markers or waits."""
        return keys.on_board(kind, self.prefix, name)

    def doubts(self, asked: Asked) -> list[bytes]:
        """Give the keys on which a request's plan rests, beside its operation record and its candidates."""
        request = asked.request
        doubts = {self.key(keys.SESSION, request.session_id): None, self.key(keys.WAIT, asked.lock_id): None}
        for region in dict.fromkeys(target.region for target in request.targets):
            doubts |= dict.fromkeys(self.generations(region))
        own = None if asked.is_claim else own_overlap(self.board, asked)
        if own is not None:
            doubts[self.key(own[1], own[2])] = None
        for target in request.targets:
            blocking = in_the_way(self.board, asked, target)
            if blocking is not None:
                doubts[self.key(blocking[0], blocking[1])] = None
        return list(doubts)


def in_the_way(
    board: BoardLocks, asked: Asked, target: LockTarget, released: str = ""
) -> tuple[bytes, str, KnownLock] | None:
    """Give the first claim, else the first wait of somebody who came before, that conflicts with a request's target.

    With the kind of its key: a claim is known by its marker. A lock that is about to be released is not in the way.
    """
    mode = asked.request.mode
    for name, claim in board.claims.conflicting(mode, (target,)):
        if name not in {asked.lock_id, released}:
            return keys.MARKER, name, claim
    own = board.waits.get(asked.lock_id)
    for name, wait in board.waits.conflicting(mode, (target,)):
        before = own is None or (wait.create_revision, name) < (own.create_revision, asked.lock_id)
        if name != asked.lock_id and before:
            return keys.WAIT, name, wait
    return None


def last_in_the_way(board: BoardLocks, asked: Asked) -> str:
    """Give the last of those waits before a request's own that conflict with it, else a claim; nothing if it is free."""
    request = asked.request
    own = board.waits.get(asked.lock_id)
    order = (own.create_revision, asked.lock_id) if own is not None else _LAST
    for name, wait in board.waits.conflicting(request.mode, request.targets, latest_first=True):
        if name != asked.lock_id and (wait.create_revision, name) < order:
            return name
    for name, _ in board.claims.conflicting(request.mode, request.targets):
        if name != asked.lock_id:
            return name
    return ""


_LAST = (1 << 63, "")


def own_overlap(board: BoardLocks, asked: Asked) -> tuple[int, bytes, str] | None:
    """Give which target of a request overlaps something that its session holds or waits for, and what: key kind and name."""
    names = board.names(asked.request.session_id) - {asked.lock_id}
    if names:
        for index, target in enumerate(asked.request.targets):
            for kind, group in ((keys.LOCK, board.claims), (keys.WAIT, board.waits)):
                for name, _ in group.overlapping((target,)):
                    if name in names:
                        return index, kind, name
    return None


def live_entry(
    entry: EntryKey, head: bytes, record: Record | None, store_time_ms: int
) -> tuple[EntryKey, EntryRecord, int] | None:
    """Give an entry as its head says, if it is there."""
    if record is None:
        return None
    state = decode_entry(head, record.value)
    return (entry, state, record.revision) if state.is_live(store_time_ms) else None


@dataclass(slots=True)
class Round:
    """What one change set is to do for several requests."""

    ground: Ground
    board: BoardLocks
    released: str = ""
    """A lock that is released in it, by `release`."""
    claims: Claims[KnownLock] = field(default_factory=Claims)
    """What is granted in it."""
    waits: Claims[KnownLock] = field(default_factory=Claims)
    """What begins to wait in it."""
    granted: list[tuple[Asked, LockRecord]] = field(default_factory=list)
    queued: list[Asked] = field(default_factory=list)
    written: dict[bytes, LockRecord] = field(default_factory=dict)
    """What is put for claims and waits, by its bytes."""
    _of: dict[Guard, list[Asked]] = field(default_factory=dict)
    """The guards, and whose they are; but for those on store time."""
    _timed: list[Asked] = field(default_factory=list)
    """Those that must happen before a time, and the first of their times: it is enough for all."""
    _end_ms: int = 0
    _puts: dict[bytes, Put] = field(default_factory=dict)
    _deletes: list[DeleteKey] = field(default_factory=list)

    @property
    def members(self) -> list[Asked]:
        """The requests it serves."""
        return [asked for asked, _ in self.granted] + self.queued

    @property
    def change(self) -> ChangeSet:
        """What the store is to do."""
        timed = (TimeBefore(self._end_ms),) if self._timed else ()
        return ChangeSet((*self._of, *timed), tuple(self._puts.values()), tuple(self._deletes))

    def whose(self, guards: Iterable[Guard]) -> set[int]:
        """Give the ids of the requests that stand on these guards."""
        return {
            id(asked)
            for guard in guards
            for asked in (self._timed if isinstance(guard, TimeBefore) else self._of[guard])
        }

    def release(self, fence: Fence) -> None:
        """Release a lock in the same act, before anything is granted."""
        self.released = fence.lock_id
        lock = self.ground.key(keys.LOCK, fence.lock_id)
        self._of[CreatedAt(lock, fence.revision)] = []
        self._deletes += [DeleteKey(lock), DeleteKey(self.ground.key(keys.MARKER, fence.lock_id))]

    def plan(self, asked: Asked) -> None:
        """Add what is to become of a request.

        Raises `Unsure` if the store must be asked first, or the refusal, which holds if it has been asked.
        """
        request, board, ground = asked.request, self.board, self.ground
        session = board.sessions.get(request.session_id)
        if session is None:
            raise SessionLost(request.session_id)
        if session.record.agent != asked.principal.agent:
            raise NotHolder("session_id", session_id=request.session_id)
        if asked.lock_id in board.locks:
            raise Unsure  # granted before: the store has the answer
        own = board.waits.get(asked.lock_id)
        if own is not None and not _asks_the_same(own.record, request):
            raise RequestIdReused(request.request_id)
        if own is None:
            self._bound(asked)
        alive = CreatedAt(ground.key(keys.SESSION, request.session_id), session.revision)
        lease = session.record.lease
        if asked.is_claim:
            self._grant(asked, (self._picked(asked),), own, alive, lease)
        elif not self._is_blocked(asked, own):
            self._grant(asked, request.targets, own, alive, lease)
        elif own is None or own.record.server_id != ground.presence.server_id:
            self._enqueue(asked, own, alive, lease)
        else:  # its wait stands; a second stream of the same request has not been told yet
            asked.has_news = asked.has_news or not asked.is_queued
            asked.is_queued = True

    def _bound(self, asked: Asked) -> None:
        """Refuse what overlaps the session's own, and what would be too many."""
        request = asked.request
        if len(self.board.names(request.session_id)) >= limits.LOCKS_OF_SESSION_ENTRIES_MAX:
            raise TooManyLocks("locks", limits.LOCKS_OF_SESSION_ENTRIES_MAX)
        if asked.is_claim:
            return  # what its session holds is not free, no more
        for group in (self.claims, self.waits):
            if any(other.record.session_id == request.session_id for _, other in group.overlapping(request.targets)):
                raise Unsure  # dealt with in this very round, before this request: the next round knows it
        own = own_overlap(self.board, asked)
        if own is not None:
            index, _, name = own
            if name not in asked.verified:
                raise Unsure
            target = request.targets[index]
            raise LockOverlapsOwn(f"targets[{index}]", str(target.region), target.path, name)

    def _is_blocked(self, asked: Asked, own: KnownLock | None) -> bool:
        """Say whether something is in a request's way. Raises `LockedByOther` if it would have to wait and does not want to."""
        request = asked.request
        for index, target in enumerate(request.targets):
            blocking = in_the_way(self.board, asked, target, self.released)
            if blocking is not None:
                _, name, other = blocking
                if request.wait_ms:
                    return True
                if name not in asked.verified:
                    raise Unsure
                asked.is_queued = own is not None  # whoever asks again and waits no more leaves the queue
                raise LockedByOther(f"targets[{index}]", asked.sight.holder(self.board, name, other.record, target))
            if self._is_blocked_within(asked, target, own):
                if request.wait_ms:
                    return True
                raise Unsure  # what is in the way has not happened yet
        return False

    def _is_blocked_within(self, asked: Asked, target: LockTarget, own: KnownLock | None) -> bool:
        """Say whether somebody is in the way who is dealt with in this very round, before this request."""
        mode = asked.request.mode
        granted = next(iter(self.claims.conflicting(mode, (target,))), None)
        queued = None if own is not None else next(iter(self.waits.conflicting(mode, (target,))), None)
        return granted is not None or queued is not None

    def _picked(self, asked: Asked) -> LockTarget:
        """Give the first candidate that exists and is free."""
        missing = locked = 0
        unsure = False
        now_ms = self.ground.time.now_ms()
        for entry, head, target in zip(asked.request.candidates, asked.heads, asked.request.targets, strict=True):
            live = live_entry(entry, head, asked.states.get(head), now_ms)
            blocking = in_the_way(self.board, asked, target)
            if live is None:
                missing += 1
            elif blocking is not None:
                locked += 1
                unsure = unsure or blocking[1] not in asked.verified
            elif self._is_blocked_within(asked, target, None):
                unsure = True
            else:
                self._guard(asked, AtRevision(head, live[2]))
                if live[1].expire_time_ms:
                    self._happens_before(asked, live[1].expire_time_ms)
                return target
        if unsure:
            raise Unsure
        raise NothingToClaim(missing, locked)

    def _enqueue(self, asked: Asked, own: KnownLock | None, alive: CreatedAt, lease: int) -> None:
        """Have a request wait; or take its wait over from another server, at the place that it has."""
        request, ground = asked.request, self.ground
        key = ground.key(keys.WAIT, asked.lock_id)
        since_ms = own.record.time_ms if own is not None else ground.time.now_ms()
        wait = _record(asked, request.targets, since_ms, request.hold_ms, lease, ground.presence.server_id)
        if own is not None:
            self._guard(asked, AtRevision(key, own.revision))
        else:
            if len(self.board.waits) + len(self.waits) >= limits.WAITS_ENTRIES_MAX:
                raise TooManyLocks("waits", limits.WAITS_ENTRIES_MAX)
            self._guard(asked, Absent(key))
            self._guard(asked, Absent(asked.operation))
            self._move(asked, wait, is_grant=False)
            self.waits.put(asked.lock_id, Known(wait, 0, 0))
        self._guard(asked, alive)
        self._puts[key] = Put(key, self._encoded(wait), lease)
        self.queued.append(asked)

    def _grant(
        self,
        asked: Asked,
        targets: tuple[LockTarget, ...],
        own: KnownLock | None,
        alive: CreatedAt,
        lease: int,
    ) -> None:
        ground, request = self.ground, asked.request
        now_ms = ground.time.now_ms()
        record = _record(asked, targets, now_ms, now_ms + request.hold_ms, lease)
        self._guard(asked, alive)
        self._guard(asked, Absent(asked.operation))
        self._happens_before(asked, ground.request_ids.end_ms(request.id_time_ms))
        if own is not None:
            wait = ground.key(keys.WAIT, asked.lock_id)
            self._guard(asked, AtRevision(wait, own.revision))
            self._deletes.append(DeleteKey(wait))
        self._move(asked, record, is_grant=True)
        raw = self._encoded(record)
        lock, marker = ground.key(keys.LOCK, asked.lock_id), ground.key(keys.MARKER, asked.lock_id)
        self._puts[lock] = Put(lock, raw, lease)
        self._puts[marker] = Put(marker, raw)
        answer = encode_operation(OperationAnswer(request.digest, now_ms, ()))
        self._puts[asked.operation] = Put(asked.operation, answer)
        self.claims.put(asked.lock_id, Known(record, 0, 0))
        self.granted.append((asked, record))

    def _move(self, asked: Asked, record: LockRecord, *, is_grant: bool) -> None:
        """Guard on both generations of every region, and move the one that is meant."""
        content = encode_generation(asked.lock_id)
        mirror = self.ground.store.mirror
        for region in record.regions:
            generations = self.ground.generations(region)
            for generation in generations:
                known = mirror.revision_of(generation)
                self._guard(asked, AtRevision(generation, known) if known else Absent(generation))
            moved = generations[0] if is_grant else generations[1]
            self._puts[moved] = Put(moved, content)

    def _guard(self, asked: Asked, guard: Guard) -> None:
        self._of.setdefault(guard, []).append(asked)

    def _happens_before(self, asked: Asked, time_ms: int) -> None:
        self._end_ms = min(self._end_ms, time_ms) if self._timed else time_ms
        self._timed.append(asked)

    def _encoded(self, record: LockRecord) -> bytes:
        raw = encode_lock(record)
        self.written[raw] = record
        return raw


def _asks_the_same(wait: LockRecord, request: LockRequest) -> bool:
    return (wait.mode, wait.targets, wait.purpose, wait.session_id) == (
        request.mode,
        request.targets,
        request.purpose,
        request.session_id,
    )


def _record(
    asked: Asked, targets: tuple[LockTarget, ...], time_ms: int, end_time_ms: int, lease: int, server_id: str = ""
) -> LockRecord:
    request = asked.request
    return LockRecord(
        request.session_id,
        asked.principal.agent,
        request.request_id,
        request.mode,
        targets,
        request.purpose,
        time_ms,
        end_time_ms,
        request.lock_delay_ms,
        request.traceparent,
        lease,
        server_id,
    )
