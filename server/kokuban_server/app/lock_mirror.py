"""This server's picture of all sessions and locks, kept in step by one watch; what commits and grants are planned on.

It may be behind. That is safe, because whatever makes a plan on it wrong moves something that the plan is guarded on: every
grant and every downgrade moves the lock generation of its regions, every wait their queue generation. Commits are guarded on
the first, so that waits do not disturb them; grants, downgrades and waits on both. Releases and losses move nothing, so the
picture may hold a lock that is gone: therefore nobody is refused for what stands here before the store has said that it is
still so.

What this server's own change sets did is taken in at once. That is sound because each of them that moves a generation was
guarded on both of those that stood here: nothing of that region can have happened in between.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.following import Following
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import DeleteKey
from kokuban_server.core.locks import Claims, Known, KnownSession, LockRecord
from kokuban_server.core.refusals import StoreUnavailable, WatchGap
from kokuban_server.ports.board_store import STRONG, Snapshot
from kokuban_server.records.lock_codec import decode_generation, decode_lock, decode_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.board_store import BoardStore, Consistency, Event, Record, WatchBatch

KnownLock = Known[LockRecord]


class Loss(NamedTuple):
    """A lock that ended without being released, as its marker says."""

    lock_id: str
    lock: LockRecord
    marker: LockRecord


class BoardLocks:
    """The sessions, locks and waits of one board."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.sessions: dict[str, KnownSession] = {}
        self.locks: dict[str, KnownLock] = {}
        self.claims: Claims[KnownLock] = Claims()
        """Everything that was granted and not released: by its marker, so also what is lost and not yet open again."""
        self.waits: Claims[KnownLock] = Claims()
        self.task_waits: Claims[KnownLock] = Claims()
        """Of those who wait for a part of a task: no request for a lock is held up by them."""
        self.broken: dict[str, LockRecord] = {}
        """The newest markers of broken locks that are gone from the store, oldest first: whoever still writes under one of them
        is told who broke it, as far as it is remembered."""
        self.of_session: dict[str, set[str]] = {}
        """The locks and waits of each session."""
        self.version = 0
        """How often anything here has changed."""
        self.followers: dict[Callable[[list[Loss]], None], None] = {}
        """Called after each change, in the order in which they came, with the locks that were lost in it."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known here and nobody follows it."""
        known = self.sessions or self.locks or len(self.claims) or len(self.waits) or len(self.task_waits)
        return not (known or self.followers)

    def claims_of(self, kind: bytes) -> Mapping[str, KnownLock] | Claims[KnownLock]:
        """Give where records of a kind are kept."""
        if kind == keys.TASK_WAIT:
            return self.task_waits
        return self.locks if kind == keys.LOCK else self.claims if kind == keys.MARKER else self.waits

    def broken_marker(self, lock_id: str) -> LockRecord | None:
        """Give what is known of a lock that somebody broke."""
        claim = self.claims.get(lock_id)
        marker = self.broken.get(lock_id) if claim is None else claim.record
        return marker if marker is not None and marker.broken_by else None

    def remember_broken(self, lock_id: str, marker: LockRecord) -> None:
        """Keep what the marker of a broken lock said, for a while."""
        self.broken[lock_id] = marker
        if len(self.broken) > limits.LOCKS_BROKEN_ENTRIES_MAX:
            del self.broken[next(iter(self.broken))]

    def names(self, session_id: str) -> frozenset[str]:
        """Give the locks and waits of a session, those for tasks too."""
        return frozenset(self.of_session.get(session_id, ()))

    def disown(self, session_id: str, name: str) -> None:
        """Take note that a session has a lock or wait no more, unless the wait has become a lock in one act."""
        if name in self.locks or name in self.waits or name in self.task_waits:
            return
        names = self.of_session.get(session_id)
        if names is not None:
            names.discard(name)
            if not names:
                del self.of_session[session_id]


class _Step:
    """What changes at one revision."""

    __slots__ = ("changed", "claims", "ended", "granted", "markers")

    def __init__(self) -> None:
        self.changed: dict[bytes, BoardLocks] = {}
        self.claims: dict[tuple[bytes, str], None] = {}
        self.ended: dict[bytes, list[tuple[str, LockRecord]]] = {}
        self.granted: list[tuple[bytes, str]] = []
        """Locks that a generation names, which must be there too."""
        self.markers: dict[tuple[bytes, str], LockRecord] = {}
        """What is said of ended locks whose markers are gone from the picture already."""


class LockMirror(Following):
    """Every board's sessions and locks, as this server knows them."""

    def __init__(self, store: BoardStore) -> None:
        super().__init__(store, keys.LOCKING, "lock-mirror")
        self._boards: dict[bytes, BoardLocks] = {}
        self._revisions: dict[bytes, int] = {}
        self._removed: dict[bytes, int] = {}
        """What this server has deleted itself, until the watch has come by."""
        self._untold: dict[tuple[bytes, str], LockRecord] = {}
        """Locks that are known to be gone, until the watch brings how they ended: only then it is told."""
        self._moved = asyncio.Event()
        self._fault: Exception | None = None
        self._last_decoded: tuple[bytes, LockRecord] | None = None
        self.expected: dict[bytes, LockRecord] = {}
        """What this server is writing now, by its bytes: nobody need read it."""
        self.servers: set[str] = set()
        """The servers that say that they live."""
        self.reloads = 0
        """How often the picture was begun anew because a change was missing."""
        self.on_claim: Callable[[BoardLocks, str], None] = _nothing
        """Called for each claim that appeared or changed, and for one whose lock is gone."""
        self.on_lock_ended: Callable[[BoardLocks, str], None] = _nothing
        """Called for each lock that is gone, however it ended."""
        self.on_wait: Callable[[BoardLocks, str], None] = _nothing
        """Called for each wait that appeared or changed."""
        self.on_server_gone: Callable[[], None] = _no_matter
        """Called when a server does not live any more."""

    # Being in step.

    async def stand(self, deadline_s: float) -> None:
        """Come back when there is a picture. Raises what is wrong with the store, or that it does not answer in time."""
        if self.stands:
            return
        self.begin()
        try:
            async with asyncio.timeout(deadline_s):
                await self._stands.wait()
        except TimeoutError:
            raise StoreUnavailable("its locks cannot be read") from self._fault

    async def reach(self, revision: int, deadline_s: float) -> None:
        """Come back when a change that the store is known to have made has come by."""
        try:
            async with asyncio.timeout(deadline_s):
                while self.revision < revision or not self.stands:
                    moved = self._moved
                    await moved.wait()
        except TimeoutError:
            raise StoreUnavailable("its locks cannot be followed") from None

    def _begin_anew(self, fault: Exception) -> None:
        super()._begin_anew(fault)
        self.reloads += 1
        self._fault = fault

    async def _load(self) -> None:
        """Begin anew with what the store holds."""
        records: list[Record] = []
        consistency: Consistency = STRONG
        more = True
        while more:
            page = await self._store.scan(
                keys.LOCKING,
                records[-1].key if records else b"",
                limits.PAGE_ENTRIES_MAX,
                limits.PAGE_BYTES_MAX,
                consistency,
                limits.DEADLINE_S_DEFAULT,
            )
            consistency = Snapshot(page.revision)
            records += page.records
            more = page.more
        step = _Step()
        present = {record.key for record in records}
        for key in [key for key in self._revisions if key not in present]:
            self._drop(key, step)
        # In order of their beginning, so that the places in the queues are too.
        for record in sorted(records, key=lambda record: (record.create_revision, record.key)):
            self._put(record.key, record.value, record.revision, record.create_revision, step)
        self.revision = page.revision
        self._removed.clear()
        for (prefix, name), lock in self._untold.items():
            step.changed[prefix] = self.followed(prefix)
            step.ended.setdefault(prefix, []).append((name, lock))
        self._untold.clear()
        # What ended without a trace may have been released at another server: its holder knows that, and of anything else
        # it must hear.
        step.markers = {(prefix, name): lock for prefix, locks in step.ended.items() for name, lock in locks}
        step.granted.clear()  # in a cut the lock that a generation names may have been released since
        self._stands.set()
        self._settle(step)
        self._tell_moved()

    def _tell_moved(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def _forget_removed(self) -> None:
        if self._removed:
            self._removed = {key: at for key, at in self._removed.items() if at > self.revision}

    # Reading.

    def board(self, prefix: bytes) -> BoardLocks | None:
        """Give what is known of a board, if anything is. `prefix` comes from `keys.board_prefix`."""
        return self._boards.get(prefix)

    def picture(self, prefix: bytes) -> BoardLocks:
        """Give what is known of a board now; an empty picture where nothing is."""
        return self._boards.get(prefix) or BoardLocks(prefix)

    def followed(self, prefix: bytes) -> BoardLocks:
        """Give a board's picture, which is kept for as long as somebody follows it."""
        found = self._boards.get(prefix)
        if found is None:
            found = self._boards[prefix] = BoardLocks(prefix)
        return found

    def revision_of(self, key: bytes) -> int:
        """Give when a key was last written, as far as is known here; 0 if it holds nothing."""
        return self._revisions.get(key, 0)

    @property
    def boards(self) -> Iterable[BoardLocks]:
        """Every board of which something is known."""
        return self._boards.values()

    # Taking in.

    def _take(self, batch: WatchBatch) -> None:
        """Take in what the watch brings, revision by revision."""
        step = _Step()
        at = 0
        for event in batch.events:
            if event.revision != at:
                self._settle(step)
                step, at = _Step(), event.revision
            self._take_one(event, step)
        self._settle(step)
        self.revision = max(self.revision, batch.revision)
        self._forget_removed()
        self._tell_moved()

    def _take_one(self, event: Event, step: _Step) -> None:
        key, known, removed = event.key, self._revisions.get(event.key, 0), self._removed.get(event.key, 0)
        if event.revision <= max(known, removed):  # this server's own doing, taken in already
            if self._untold:
                self._take_late(event, step)
            return
        if event.previous_revision not in {0, known, removed} or not _goes_on(event, known):
            raise WatchGap
        if event.value is None:
            self._drop(key, step)
        else:
            self._put(key, event.value, event.revision, event.create_revision, step)

    def _take_late(self, event: Event, step: _Step) -> None:
        """Take in how a lock ended that was known to be gone before."""
        kind, prefix, name = keys.parse_locking(event.key)
        if (prefix, name) not in self._untold:
            return
        if event.value is not None and kind == keys.MARKER:
            step.markers[prefix, name] = self._decoded(event.key, event.value)
        elif event.value is None and kind == keys.LOCK:
            step.changed[prefix] = self.followed(prefix)
            step.ended.setdefault(prefix, []).append((name, self._untold.pop((prefix, name))))

    def _settle(self, step: _Step) -> None:
        """End a revision: see that nothing is missing of it, and tell who follows."""
        for prefix, lock_id in step.granted:
            board = self._boards.get(prefix)
            known = board is not None and lock_id in board.claims
            # What is known to be released since is not missing.
            if not known and keys.on_board(keys.MARKER, prefix, lock_id) not in self._removed:
                raise WatchGap
        for prefix, lock_id in step.claims:
            self.on_claim(step.changed[prefix], lock_id)
        for prefix, board in step.changed.items():
            board.version += 1
            ended = []
            for lock_id, lock in step.ended.get(prefix, ()):
                claim = board.claims.get(lock_id)
                marker = claim.record if claim is not None else step.markers.get((prefix, lock_id))
                if marker is not None:
                    ended.append(Loss(lock_id, lock, marker))
            for follower in list(board.followers):
                follower(ended)
            if board.is_empty:
                self._boards.pop(prefix, None)

    def learn(self, change: ChangeSet, revision: int) -> None:
        """Take in what a change set of this server's own has done. Each that moves a generation was guarded on it."""
        if revision <= self.revision:
            return  # the watch was faster
        step = _Step()
        for delete in change.deletes:
            if isinstance(delete, DeleteKey) and delete.key.startswith(keys.LOCKING):
                self._removed[delete.key] = revision
                self._drop(delete.key, step)
        for put in change.puts:
            if put.key.startswith(keys.LOCKING) and self._revisions.get(put.key, 0) < revision:
                self._put(put.key, put.value, revision, 0, step)
        self._settle(step)

    def forget(self, key: bytes, revision: int) -> None:
        """Take note that the store holds nothing at a key any more, as a strong read at this revision said."""
        if self._revisions.get(key, 0) > revision:
            return
        if revision > self.revision:
            self._removed[key] = revision
        step = _Step()
        self._drop(key, step)
        if revision > self.revision:
            self._untold |= {(prefix, name): lock for prefix, locks in step.ended.items() for name, lock in locks}
            step.ended.clear()
        self._settle(step)

    def _put(self, key: bytes, value: bytes, revision: int, create_revision: int, step: _Step) -> None:
        kind, prefix, name = keys.parse_locking(key)
        self._revisions[key] = revision
        if kind == keys.LOCK_GENERATION:
            step.granted.append((keys.board_of_generation(key), decode_generation(key, value)))
            return
        if kind == keys.QUEUE_GENERATION:
            return
        if kind == keys.SERVER:
            self.servers.add(name)
            return
        board = step.changed[prefix] = self.followed(prefix)
        if kind == keys.SESSION:
            board.sessions[name] = KnownSession(decode_session(key, value), revision)
            return
        record = self._decoded(key, value)
        before = board.claims_of(kind).get(name)
        begun = create_revision or (before.create_revision if before is not None else revision)
        known = Known(record, revision, begun)
        if kind == keys.LOCK:
            board.locks[name] = known
        elif kind == keys.MARKER:
            board.claims.put(name, known)
            step.claims[prefix, name] = None
            return
        elif kind == keys.TASK_WAIT:
            board.task_waits.put(name, known)
        else:
            board.waits.put(name, known)
            self.on_wait(board, name)
        board.of_session.setdefault(record.session_id, set()).add(name)

    def _decoded(self, key: bytes, value: bytes) -> LockRecord:
        """Read a record; a lock and its marker are the same bytes, and come one after the other."""
        expected = self.expected.get(value)
        if expected is not None:
            return expected
        last = self._last_decoded
        if last is None or last[0] != value:
            last = self._last_decoded = (value, decode_lock(key, value))
        return last[1]

    def _drop(self, key: bytes, step: _Step) -> None:
        if self._revisions.pop(key, None) is None:
            return
        kind, prefix, name = keys.parse_locking(key)
        if kind == keys.SERVER:
            self.servers.discard(name)
            self.on_server_gone()
            return
        board = self._boards.get(prefix)
        if board is None or kind in {keys.LOCK_GENERATION, keys.QUEUE_GENERATION}:
            return
        step.changed[prefix] = board
        if kind == keys.SESSION:
            del board.sessions[name]
        elif kind == keys.LOCK:
            lock = board.locks.pop(name)
            step.ended.setdefault(prefix, []).append((name, lock.record))
            board.disown(lock.record.session_id, name)
            step.claims[prefix, name] = None
            self.on_lock_ended(board, name)
        elif kind == keys.MARKER:
            claim = board.claims.get(name)
            if claim is not None and claim.record.broken_by:
                board.remember_broken(name, claim.record)
            board.claims.remove(name)
        else:
            waits = board.task_waits if kind == keys.TASK_WAIT else board.waits
            wait = waits.get(name)
            waits.remove(name)
            if wait is not None:
                board.disown(wait.record.session_id, name)


def _goes_on(event: Event, known: int) -> bool:
    """Say whether a change can be the next of a key that is known to have been written then: a life begins where none is."""
    if event.value is not None and event.create_revision == event.revision:
        return not known
    return known > 0 and event.create_revision <= known  # of a deletion 0


def _nothing(board: BoardLocks, lock_id: str) -> None:
    """Take no note."""


def _no_matter() -> None:
    """Take no note."""
