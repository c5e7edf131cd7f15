"""What must be true of every simulated run with locks: the store's log against what holders asked for and were told."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core import keys
from kokuban_server.core.locks import Mode
from kokuban_server.core.refusals import (
    Deadlock,
    LockedByOther,
    LockLost,
    LockOverlapsOwn,
    LockShared,
    Refusal,
    SessionLost,
)
from kokuban_server.records.codec import decode_entry
from tests.simulation.lock_model import Held, LockState, clash, takes
from tests.simulation.simulated_holders import LOOSE, STRICT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kokuban_server.app.lock_asked import Granted
    from kokuban_server.core.names import EntryKey
    from tests.simulation.lock_journal import Asking, LockJournal, Span, Told, Writing
    from tests.simulation.simulated_store import Applied, RecordedStore

_NAMED_WITHIN_S = 1.0
"""A deadlock, in calm weather."""
_GRANTED_WITHIN_S = 1.0
"""A request whose turn it is, in calm weather, if its server lives."""
_REMOVED_WITHIN_S = 25.0
"""A request whose server is gone: its server's lease and the time to ask again."""


class Lives(NamedTuple):
    """From which revision to which something was there; the end is not in it."""

    begin: int
    end: int

    def meets(self, span: Span) -> bool:
        """Say whether it was there at some revision of the span."""
        return self.begin <= span.ceiling and span.floor < self.end

    def fills(self, span: Span) -> bool:
        """Say whether it was there at all revisions of the span."""
        return self.begin <= span.floor and span.ceiling < self.end


_OPEN = 1 << 60


def judge_locks(store: RecordedStore, journal: LockJournal, calm_s: float, alive: frozenset[str]) -> LockState:
    """Add to the journal's problems whatever does not hold; give the last state.

    From `calm_s` on the weather is calm and these servers live.
    """
    replay = _Replay(store, journal, calm_s, alive)
    replay.run()
    for asking in journal.askings.values():
        replay.judge_asking(asking)
    for writing in journal.writings.values():
        replay.judge_writing(writing)
    replay.judge_releases()
    replay.judge_beats()
    return replay.state


class _Replay:
    """The store's log, replayed: every lock, marker, wait and session, and every write."""

    def __init__(self, store: RecordedStore, journal: LockJournal, calm_s: float, alive: frozenset[str]) -> None:
        self._store = store
        self._journal = journal
        self._calm_s = calm_s
        self._alive = alive
        self.state = LockState()
        self._grants: dict[str, list[Held]] = defaultdict(list)
        self._lives: dict[bytes, list[Lives]] = defaultdict(list)
        """For each key below `k/`, when it held something."""
        self._written: dict[bytes, list[int]] = defaultdict(list)
        """For each head, the revisions that wrote it."""
        self._made: dict[str, set[int]] = defaultdict(set)
        """For each request of a commit, the revisions it wrote at."""
        self._free_since: dict[str, float] = {}
        self._victim_since: dict[str, float] = {}
        self._victims_ever: set[str] = set()
        """The requests that were the youngest of a circle at some revision."""

    def _wrong(self, revision: int, what: str) -> None:
        self._journal.problems.append(f"at {revision}: {what}")

    def run(self) -> None:
        """Go through the log, revision by revision."""
        for revision, group in groupby(self._store.log, key=lambda applied: applied.event.revision):
            batch = list(group)
            self._judge_waits(batch[0].at_s)
            for applied in batch:
                if applied.event.key.startswith(keys.HEAD):
                    self._judge_write(applied)
            locking = [applied for applied in batch if applied.event.key.startswith(keys.LOCKING)]
            if locking:
                self._go_on(revision, locking)
        self._judge_waits(_OPEN)

    # Locks.

    def _go_on(self, revision: int, batch: Sequence[Applied]) -> None:
        state = self.state
        locks, waits = dict(state.locks), dict(state.waits)
        for applied in batch:
            self._note_life(applied)
            state.take(applied.event)
        for name, lock in state.locks.items():
            if name not in locks or locks[name].created != lock.created:
                self._judge_grant(revision, name, lock, waits)
            if lock.revision == revision:
                self._judge_neighbours(revision, name, lock)
            if lock.record.session_id not in state.sessions:
                self._wrong(revision, f"the lock {name} outlives its session")
        for name, wait in state.waits.items():
            if wait.record.session_id not in state.sessions:
                self._wrong(revision, f"the wait {name} outlives its session")
        self._note_waits(batch[0].at_s)

    def _note_life(self, applied: Applied) -> None:
        event = applied.event
        lives = self._lives[event.key]
        if event.value is None:
            lives[-1] = Lives(lives[-1].begin, event.revision)
        elif event.create_revision == event.revision:
            lives.append(Lives(event.revision, _OPEN))

    def _judge_grant(self, revision: int, name: str, lock: Held, waits: dict[str, Held]) -> None:
        """Judge a new lock: granted once, in its turn, with a later fence than whoever had it before."""
        if self._grants[name]:
            self._wrong(revision, f"the lock {name} is granted a second time")
        marker = self.state.markers.get(name)
        if marker is None or marker.created != revision:
            self._wrong(revision, f"the lock {name} has no marker of its own")
        mine = waits.get(name)
        order = mine.created if mine is not None else _OPEN
        for other, wait in waits.items():
            if other != name and other in self.state.waits and wait.created < order and clash(wait.record, lock.record):
                self._wrong(revision, f"the grant of {name} ({order}) overtakes the wait {other} ({wait.created})")
        for other, held in self._grants.items():
            if any(clash(before.record, lock.record) and before.created >= lock.created for before in held):
                self._wrong(revision, f"the fence of {name} is not above that of {other}")
        self._grants[name].append(lock)

    def _judge_neighbours(self, revision: int, name: str, lock: Held) -> None:
        for group in (self.state.locks, self.state.markers):
            for other, held in group.items():
                if other != name and clash(held.record, lock.record):
                    self._wrong(revision, f"the lock {name} {lock.record} stands beside {other} {held.record}")

    # Waits: who should have been granted, and who is in a deadlock.

    def _note_waits(self, at_s: float) -> None:
        state = self.state
        free = {name for name in state.waits if state.is_free(name)}
        self._free_since = {name: self._free_since.get(name, at_s) for name in free}
        victims = state.victims()
        self._victims_ever |= {state.waits[name].record.request_id for name in victims}
        self._victim_since = {name: self._victim_since.get(name, at_s) for name in victims}

    def _judge_waits(self, until_s: float) -> None:
        """Judge how long waits have stood still until a time."""
        for name, since_s in list(self._free_since.items()):
            wait = self.state.waits[name]
            bound_s = _GRANTED_WITHIN_S if self._is_attended(wait) else _REMOVED_WITHIN_S
            if until_s > max(since_s, self._calm_s) + bound_s:
                self._wrong(wait.created, f"the wait {name} {wait.record} is free since {since_s} and is not granted")
                del self._free_since[name]
        for name, since_s in list(self._victim_since.items()):
            if until_s > max(since_s, self._calm_s) + _NAMED_WITHIN_S:
                self._wrong(self.state.waits[name].created, f"the deadlock of {name} is not named since {since_s}")
                del self._victim_since[name]

    def _is_attended(self, wait: Held) -> bool:
        return wait.record.server_id in self._alive

    # Writes.

    def _judge_write(self, applied: Applied) -> None:
        """Judge a write against the locks that stood right before it."""
        event = applied.event
        self._written[event.key].append(event.revision)
        if event.value is None:
            return
        entry = keys.parse_head(event.key)[2]
        for act in decode_entry(event.key, event.value).acts:
            writing = self._journal.writings.get(act.request_id)
            if writing is None or writing.agent != act.agent:
                self._wrong(event.revision, f"{entry} was written by {act}, which nobody asked for")
                continue
            self._made[act.request_id].add(event.revision)
            if entry.region != LOOSE:
                self._judge_act(event.revision, entry, writing)
            self._judge_fences(event.revision, writing, applied.judged_at_ms)

    def _judge_act(self, revision: int, entry: EntryKey, writing: Writing) -> None:
        state = self.state
        fences = {given.fence.lock_id: given.fence for given in writing.request.fences}
        covering = {
            name: marker
            for name, marker in (*state.markers.items(), *state.locks.items())
            if any(takes(target, entry.region, entry.path) for target in marker.record.targets)
        }
        for name, marker in covering.items():
            lock = state.locks.get(name)
            if marker.record.mode is Mode.SHARED:
                self._wrong(revision, f"{entry} was written by {writing.request.request_id} under the shared {name}")
            elif name not in fences or lock is None or lock.created != fences[name].revision:
                self._wrong(
                    revision, f"{entry} was written by {writing.request.request_id} in spite of {name} {marker}"
                )
        if entry.region == STRICT and not covering:
            self._wrong(revision, f"{entry} was written by {writing.request.request_id} without a lock")

    def _judge_fences(self, revision: int, writing: Writing, time_ms: int) -> None:
        """Judge every fence that a commit carried, whatever it was for."""
        for given in writing.request.fences:
            lock = self.state.locks.get(given.fence.lock_id)
            if lock is None or lock.created != given.fence.revision:
                self._wrong(revision, f"{writing.request.request_id} was applied with the dead fence {given.fence}")
            elif lock.record.agent != writing.agent:
                self._wrong(revision, f"{writing.request.request_id} was applied with a stolen fence {given.fence}")
            elif lock.record.end_time_ms and lock.record.end_time_ms <= time_ms:
                self._wrong(revision, f"{writing.request.request_id} was applied after the longest hold {given.fence}")

    # What was told.

    def _key(self, kind: bytes, name: str) -> bytes:
        return keys.on_board(kind, self._prefix, name)

    @property
    def _prefix(self) -> bytes:
        return keys.board_prefix("dev", "board")

    def _was_there(self, kind: bytes, name: str, span: Span) -> bool:
        return any(lives.meets(span) for lives in self._lives.get(self._key(kind, name), ()))

    def _was_always_there(self, kind: bytes, name: str, span: Span) -> bool:
        return any(lives.fills(span) for lives in self._lives.get(self._key(kind, name), ()))

    def judge_asking(self, asking: Asking) -> None:
        """Judge what a request for a lock was told."""
        name = asking.request.request_id
        problems = self._journal.problems
        for granted, span in asking.answers:
            problems.extend(f"{name}: {fault}" for fault in self._faults_of_grant(asking, granted, span))
        if sum(not granted.replayed for granted, _ in asking.answers) > 1:
            problems.append(f"{name} was told to be granted as new more than once")
        for told in asking.refusals:
            problems.extend(f"{name}: {fault}" for fault in self._faults_of_refusal(asking, told))

    def _faults_of_grant(self, asking: Asking, granted: Granted, span: Span) -> Iterator[str]:
        grants = self._grants.get(granted.lock_id, [])
        if [lock.created for lock in grants] != [granted.revision]:
            yield f"was told {granted.revision}, the log has {grants}"
            return
        record = grants[0].record
        request = asking.request
        if (record.agent, record.session_id, record.request_id) != (
            asking.agent,
            request.session_id,
            request.request_id,
        ):
            yield f"was given the lock of {record}"
        if granted.revision > span.ceiling or (not granted.replayed and granted.revision <= span.floor):
            yield f"was told a grant at {granted.revision}, outside {span}"
        if not self._was_there(keys.LOCK, granted.lock_id, span):
            yield f"was told of a grant that was not alive between {span}"
        if request.candidates:
            if len(record.targets) != 1 or record.targets[0] not in request.targets:
                yield f"claimed {record.targets}"
            elif not granted.replayed:
                yield from self._faults_of_claim(granted)
        elif record.targets != request.targets:
            yield f"was granted {record.targets}"

    def _faults_of_claim(self, granted: Granted) -> Iterator[str]:
        if granted.entry is None:
            yield "claimed nothing"
            return
        entry, _, revision = granted.entry
        head = keys.head(keys.region_prefix("dev", "board", entry.region), entry.path)
        written = self._written.get(head, [])
        place = bisect_right(written, granted.revision)
        if not place or written[place - 1] != revision:
            yield f"claimed {entry} at {revision}, it was written at {written}"

    def _faults_of_refusal(self, asking: Asking, told: Told) -> Iterator[str]:
        refusal, span = told.refusal, told.span
        request = asking.request
        if isinstance(refusal, LockedByOther):
            holder = refusal.holder
            kind = keys.WAIT if holder.state == "QUEUED" else keys.MARKER
            if not self._was_there(kind, holder.lock_id, span):
                yield f"was refused for {holder}, which was not there between {span}"
        elif isinstance(refusal, LockOverlapsOwn):
            if not any(self._was_there(kind, refusal.lock_id, span) for kind in (keys.MARKER, keys.WAIT)):
                yield f"was refused for its own {refusal.lock_id}, which was not there between {span}"
        elif isinstance(refusal, SessionLost):
            if self._was_always_there(keys.SESSION, request.session_id, span):
                yield f"was told that its session is lost, which lived through {span}"
        elif isinstance(refusal, LockLost):
            if not self._grants.get(refusal.lock_id) or self._was_always_there(keys.LOCK, refusal.lock_id, span):
                yield f"was told that {refusal.lock_id} is lost between {span}"
        elif isinstance(refusal, Deadlock) and request.request_id not in self._victims_ever:
            yield "was told of a deadlock of which it never was the youngest"

    def judge_writing(self, writing: Writing) -> None:
        """Judge what a commit was told."""
        name = writing.request.request_id
        made = self._made.get(name, set())
        problems = self._journal.problems
        if len(made) > 1:
            problems.append(f"{name} was applied at {made}")
        for answer, _ in writing.answers:
            if made != {answer.revision}:
                problems.append(f"{name} was told {answer.revision}, and was applied at {made}")
            problems.extend(
                f"{name} was told that it released {lock_id}, which is there"
                for _, lock_id in writing.request.releases
                if any(
                    lives.begin <= answer.revision < lives.end
                    for kind in (keys.LOCK, keys.MARKER)
                    for lives in self._lives.get(self._key(kind, lock_id), ())
                )
            )
        if writing.refusals and made:
            problems.append(f"{name} was told {writing.refusals} and was applied at {made}")
        for told in writing.refusals:
            problems.extend(f"{name}: {fault}" for fault in self._faults_of_refused_write(told.refusal, told.span))

    def _faults_of_refused_write(self, refusal: Refusal, span: Span) -> Iterator[str]:
        if isinstance(refusal, LockedByOther) and not self._was_there(keys.MARKER, refusal.holder.lock_id, span):
            yield f"was refused for {refusal.holder}, which was not there between {span}"
        if isinstance(refusal, LockShared) and not self._was_there(keys.MARKER, refusal.lock_id, span):
            yield f"was refused for the shared {refusal.lock_id}, which was not there between {span}"
        if isinstance(refusal, LockLost) and self._was_always_there(keys.LOCK, refusal.lock_id, span):
            ends = [lock.record.end_time_ms for lock in self._grants[refusal.lock_id]]
            if not any(end <= self._store.peak_time_ms for end in ends):
                yield f"was told that {refusal.lock_id} is lost, which lived through {span}"

    def judge_releases(self) -> None:
        """Judge what releases were told."""
        for release in self._journal.releases:
            lives = self._lives.get(self._key(keys.LOCK, release.fence.lock_id), [])
            ended = [life.end for life in lives if life.begin == release.fence.revision]
            if release.released and ended != [release.revision]:
                self._wrong(release.revision, f"{release} was told, the lock ended at {ended}")
            if not release.released and not (ended and ended[0] <= release.revision):
                self._wrong(release.revision, f"{release} was told, the lock ended at {ended}")

    def judge_beats(self) -> None:
        """Judge what sessions were told of themselves."""
        for beat in self._journal.beats:
            if beat.is_alive and not self._was_there(keys.SESSION, beat.session_id, beat.span):
                self._journal.problems.append(f"{beat} was told of a session that was gone")
            if not beat.is_alive and self._was_always_there(keys.SESSION, beat.session_id, beat.span):
                self._journal.problems.append(f"{beat} was told of a session that lived")
        for request_id, ids in self._journal.sessions.items():
            if len(ids) > 1:
                self._journal.problems.append(f"{request_id} was answered with the sessions {ids}")
