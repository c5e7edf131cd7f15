"""Giving steps to workers: the step, its lock, its attempt and the event that says so, all at one revision."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.archived import refuse_archived
from kokuban_server.app.commits import puts_of
from kokuban_server.app.deadlines import left_s, of_one_act
from kokuban_server.app.lock_asked import Granted
from kokuban_server.app.mirrored_store import settle
from kokuban_server.app.task_writing import at_its_place
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Verb
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, CreatedAt, Put, TimeBefore
from kokuban_server.core.commit import Moment, RecordEvent, Step, plan
from kokuban_server.core.entry import NOTHING, Act, Form, OperationAnswer, Value
from kokuban_server.core.locks import LockRecord, LockTarget, Mode
from kokuban_server.core.names import EntryKey
from kokuban_server.core.refusals import (
    Contended,
    LockLost,
    NotFound,
    NotHolder,
    OutcomeUnknown,
    RequestIdReused,
    SessionLost,
    TooManyLocks,
)
from kokuban_server.core.task_planning import Worker, folded, pick
from kokuban_server.core.tasks import EVENTS_PATH, StepStatus
from kokuban_server.ports.board_store import STRONG, CommitRefused, LeaseLost
from kokuban_server.records.codec import decode_operation, encode_operation
from kokuban_server.records.lock_codec import decode_lock, encode_generation, encode_lock
from kokuban_server.records.task_codec import decode_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.app.access import Access, OpenRegion
    from kokuban_server.app.board_sizes import BoardSizes
    from kokuban_server.app.boards import Board
    from kokuban_server.app.lock_mirror import BoardLocks
    from kokuban_server.app.mirrored_store import MirroredStore
    from kokuban_server.app.request_ids import RequestIds
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.app.task_reading import Resuming, TaskReading
    from kokuban_server.app.task_writing import KnownTask, TaskWriting
    from kokuban_server.core.access import Principal
    from kokuban_server.core.change_set import Guard
    from kokuban_server.core.names import Region
    from kokuban_server.core.task_planning import Picked
    from kokuban_server.core.tasks import TaskEvent, TaskState
    from kokuban_server.ports.board_store import Record


class ClaimRequest(NamedTuple):
    """A claim as the wire has parsed it."""

    board: str
    session_id: str
    request_id: str
    id_time_ms: int
    digest: bytes
    region: Region
    labels: frozenset[str]
    purpose: str
    hold_ms: int
    lock_delay_ms: int
    fingerprint: str
    traceparent: str


class Claimed(NamedTuple):
    """A step that was given to a worker."""

    step: str
    state: TaskState
    granted: Granted
    resuming: Resuming
    config_changed: bool


class _Asking(NamedTuple):
    """A claim in hand."""

    principal: Principal
    request: ClaimRequest
    board: Board
    opened: OpenRegion
    operation: bytes
    lock_id: str
    deadline: float

    @property
    def board_prefix(self) -> bytes:
        return keys.board_prefix(self.principal.tenant, self.request.board)

    @property
    def generations(self) -> tuple[bytes, bytes]:
        """The keys of the region's lock generation and queue generation."""
        return self.opened.generation, keys.QUEUE_GENERATION + self.opened.prefix


class _Given(NamedTuple):
    """What was given, and by which revision."""

    step: str
    granted: Granted
    config_changed: bool


class TaskClaims:
    """Answers who asks for a step.

    A claim grants a lock without the queue of locks. It is guarded on both generations of its region, as every grant is, so no
    grant and no wait there goes unseen.
    """

    def __init__(
        self,
        store: MirroredStore,
        access: Access,
        time: StoreTime,
        request_ids: RequestIds,
        tasks: TaskWriting,
        reading: TaskReading,
        sizes: BoardSizes | None = None,
    ) -> None:
        self._store = store
        self._access = access
        self._time = time
        self._request_ids = request_ids
        self._tasks = tasks
        self._reading = reading
        self._sizes = sizes

    async def claim(self, principal: Principal, request: ClaimRequest, deadline: float) -> Claimed:
        """Give the caller's session the step that is next, and from where to go on with it.

        Raises `NoStepReady`, `ConfigChanged`, `TaskOver`, `SessionLost`, `NotHolder`, `LockLost` for a claim that was made and
        lost, or `OutcomeUnknown`: then the same request says what became of it.
        """
        deadline = of_one_act(deadline)
        board = await self._access.enter(principal, request.board, deadline)
        await self._store.mirror.stand(left_s(deadline))
        if self._sizes is not None:
            await self._sizes.stand(deadline)
        self._request_ids.check(request.request_id, request.id_time_ms)
        operation = keys.operation(
            request.id_time_ms, principal.tenant, request.board, principal.agent, request.request_id
        )
        lock_id = self._request_ids.digest(b"lock\x00" + operation).hex()
        opened = self._open(principal, board, request.region)
        asking = _Asking(principal, request, board, opened, operation, lock_id, deadline)
        try:
            async with self._tasks.turn([opened.prefix], deadline):
                given = await self._given(asking)
        except OutcomeUnknown as unknown:
            raise OutcomeUnknown(request.request_id, unknown.detail) from unknown
        resuming = await self._reading.resuming(
            principal, request.board, request.region, given.step, given.granted.revision, request.session_id, deadline
        )
        return Claimed(given.step, resuming.state, given.granted, resuming, given.config_changed)

    def _open(self, principal: Principal, board: Board, region: Region) -> OpenRegion:
        """Open the task's region for all that a worker does there: it reads, records, and locks."""
        for verb in (Verb.READ, Verb.WRITE):
            self._access.open_under(board, principal, region, verb)
        return self._access.open_under(board, principal, region, Verb.LOCK)

    async def _given(self, asking: _Asking) -> _Given:
        for attempts in range(limits.PLAN_ATTEMPTS_MAX):
            if attempts:
                await asyncio.sleep(random.uniform(0, 0.002 * (1 << min(attempts, 6))))  # noqa: S311 - jitter
            asking, records, as_of = await self._look(asking)
            operation, log, task = records
            if operation is not None:
                return await self._replayed(asking, operation, task)
            if log is None or task is None:
                raise NotFound
            named = [keys.TASK_LOG + asking.opened.prefix, keys.TASK + asking.opened.prefix]
            known = self._tasks.read(named, [log, task]).tasks[asking.opened.prefix]
            given = await self._try(asking, known, as_of)
            if given is not None:
                return given
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    async def _look(self, asking: _Asking) -> tuple[_Asking, tuple[Record | None, Record | None, Record | None], int]:
        """Read everything that a claim rests on, and bring the picture of locks up to it.

        Gives the operation record, the end of the log and how the task stands, and the revision at which they were read; and
        the claim, authorised anew if the board's policy has changed.
        """
        request, prefix = asking.request, asking.opened.prefix
        news = True
        while news:
            doubts = self._doubts(asking)
            archive = keys.TASK_ARCHIVE + prefix
            named = [asking.operation, asking.board.key, keys.TASK_LOG + prefix, keys.TASK + prefix, archive]
            cut = await self._store.port.read([*named, *doubts], STRONG, left_s(asking.deadline))
            self._time.saw(cut.store_time_ms)
            operation, board_record, log, task, archived = cut.records[: len(named)]
            if board_record is None:
                raise NotFound
            if board_record.revision > asking.board.revision:
                board = self._access.learn(board_record)
                opened = self._open(asking.principal, board, request.region)
                asking = asking._replace(board=board, opened=opened)
            if operation is None:
                self._request_ids.check_at(request.request_id, request.id_time_ms, cut.store_time_ms)
                refuse_archived([archived], writes=True)
            found = cut.records[len(named) :]
            news = await settle(self._store.mirror, doubts, found, cut.revision, asking.deadline)
        return asking, (operation, log, task), cut.revision

    def _doubts(self, asking: _Asking) -> list[bytes]:
        """Give the keys of everything in the region's locks that may be in a step's way, of its session and generations."""
        prefix = asking.board_prefix
        board = self._store.mirror.picture(prefix)
        everything = (LockTarget(asking.request.region, "", subtree=True),)
        doubts = [keys.on_board(keys.SESSION, prefix, asking.request.session_id), *asking.generations]
        doubts += [keys.on_board(keys.MARKER, prefix, name) for name, _ in board.claims.overlapping(everything)]
        doubts += [keys.on_board(keys.WAIT, prefix, name) for name, _ in board.waits.overlapping(everything)]
        return doubts

    async def _try(self, asking: _Asking, known: KnownTask, as_of: int) -> _Given | None:
        """Give a step on what is known; nothing if that was not so any more.

        The picture of locks may be ahead of how the task was read. Nobody is refused for what the two say together: a step
        that is taken since then may have been followed by one that is ready.
        """
        request, state = asking.request, known.state
        board = self._store.mirror.picture(asking.board_prefix)
        session = board.sessions.get(request.session_id)
        if session is None:
            raise SessionLost(request.session_id)
        if session.record.agent != asking.principal.agent:
            raise NotHolder("session_id", session_id=request.session_id)
        if len(board.names(request.session_id)) >= limits.LOCKS_OF_SESSION_ENTRIES_MAX:
            raise TooManyLocks("locks", limits.LOCKS_OF_SESSION_ENTRIES_MAX)
        if state is None:
            raise NotFound
        now_ms = self._time.now_ms()
        worker = Worker(request.labels, request.fingerprint, asking.lock_id)
        closed = _closed(board, request.region, state)
        picked = pick(state, request.region.id, worker, closed, known.last_event, now_ms)
        if picked.refusal is not None and not picked.events:
            if _has_moved(board, request.region, as_of):
                return None
            raise picked.refusal
        guards, puts = self._events(asking, known, picked.events, now_ms)
        lock: LockRecord | None = None
        if picked.step:
            target = LockTarget(request.region, picked.step, subtree=True)
            lock = _lock(asking, target, session.record.lease, now_ms)
            alive = CreatedAt(keys.on_board(keys.SESSION, asking.board_prefix, request.session_id), session.revision)
            more_guards, more_puts = self._grant(asking, lock, now_ms)
            guards += [alive, *more_guards]
            puts += more_puts
        return await self._apply(asking, known, picked, lock, ChangeSet(tuple(guards), tuple(puts)))

    async def _apply(
        self, asking: _Asking, known: KnownTask, picked: Picked, lock: LockRecord | None, change: ChangeSet
    ) -> _Given | None:
        if self._sizes is not None:
            self._sizes.admit(asking.board_prefix, asking.board.id, change)
        try:
            revision = await self._store.apply(change, asking.deadline)
        except (CommitRefused, LeaseLost):
            return None
        state = folded(known.state, picked.events)
        self._tasks.learn(asking.opened.prefix, known.written(picked.events[-1].number, state, revision))
        if picked.refusal is not None:
            raise picked.refusal
        assert lock is not None  # noqa: S101 - for the type checker: what is not refused was granted
        granted = Granted(asking.lock_id, lock, revision, False, 0)
        return _Given(picked.step, granted, picked.config_changed)

    def _events(
        self, asking: _Asking, known: KnownTask, events: Sequence[TaskEvent], now_ms: int
    ) -> tuple[list[Guard], list[Put]]:
        """Give what records events that are the server's own word, so that they carry no label and say nothing."""
        opened, request = asking.opened, asking.request
        target = opened.target_of_events(EntryKey(request.region, EVENTS_PATH))
        nothing_said = Value(Form.TEXT, "")
        steps = [
            at_its_place(Step(target, RecordEvent(event, nothing_said, {}, "claim"), 0), opened.prefix, event)
            for event in events
        ]
        states = {step.target.head: NOTHING for step in steps}
        moment = Moment(now_ms, self._time.seen_ms, self._store.port.epoch)
        act = Act(asking.principal.agent, request.request_id, "", request.traceparent)
        planned = plan(steps, (), states, act, moment)
        state = folded(known.state, tuple(events))
        guards = [*planned.guards, *known.guards(opened.prefix), asking.board.guard]
        return guards, [*puts_of(planned), *known.puts(opened.prefix, events[-1].number, state)]

    def _grant(self, asking: _Asking, lock: LockRecord, now_ms: int) -> tuple[list[Guard], list[Put]]:
        """Give what grants the lock, and makes the claim happen once."""
        mirror, request = self._store.mirror, asking.request
        guards: list[Guard] = []
        for generation in asking.generations:
            moved = mirror.revision_of(generation)
            guards.append(AtRevision(generation, moved) if moved else Absent(generation))
        guards.append(Absent(asking.operation))
        guards.append(TimeBefore(self._request_ids.end_ms(request.id_time_ms)))
        raw = encode_lock(lock)
        answer = encode_operation(OperationAnswer(request.digest, now_ms, ()))
        return guards, [
            Put(keys.on_board(keys.LOCK, asking.board_prefix, asking.lock_id), raw, lock.lease),
            Put(keys.on_board(keys.MARKER, asking.board_prefix, asking.lock_id), raw),
            Put(asking.generations[0], encode_generation(asking.lock_id)),
            Put(asking.operation, answer),
        ]

    async def _replayed(self, asking: _Asking, operation: Record, task: Record | None) -> _Given:
        """Give the same claim again, if its lock lives."""
        request = asking.request
        if decode_operation(asking.operation, operation.value).digest != request.digest:
            raise RequestIdReused(request.request_id)
        key = keys.on_board(keys.LOCK, asking.board_prefix, asking.lock_id)
        cut = await self._store.read([key], asking.deadline)
        found = cut.records[0]
        if found is None or found.create_revision != operation.revision or task is None:
            raise LockLost(asking.lock_id)
        lock = decode_lock(key, found.value)
        # Not to be remembered: whether the task is being archived was not asked.
        task_key = keys.TASK + asking.opened.prefix
        state = (await self._store.port.read([task_key], STRONG, left_s(asking.deadline))).records[0]
        step = None if state is None else decode_task(task_key, state.value).steps.get(lock.targets[0].path)
        if step is None or step.lock_id != asking.lock_id:
            raise LockLost(asking.lock_id)
        changed = bool(request.fingerprint and step.fingerprint and request.fingerprint != step.fingerprint)
        granted = Granted(asking.lock_id, lock, found.create_revision, True, 0)
        return _Given(lock.targets[0].path, granted, changed)


def _has_moved(board: BoardLocks, region: Region, as_of: int) -> bool:
    """Say whether somebody was granted something in a region, or began to wait for it, since a revision."""
    everything = (LockTarget(region, "", subtree=True),)
    return any(
        known.revision > as_of for group in (board.claims, board.waits) for _, known in group.overlapping(everything)
    )


def _closed(board: BoardLocks, region: Region, state: TaskState) -> set[str]:
    """Give the steps whose paths somebody has locked, or waits for, or held until just now."""
    closed = set()
    for name, step in state.steps.items():
        if step.status in {StepStatus.PENDING, StepStatus.RUNNING}:
            target = (LockTarget(region, name, subtree=True),)
            for group in (board.claims, board.waits):
                if next(iter(group.overlapping(target)), None) is not None:
                    closed.add(name)
    return closed


def _lock(asking: _Asking, target: LockTarget, lease: int, now_ms: int) -> LockRecord:
    request = asking.request
    return LockRecord(
        request.session_id,
        asking.principal.agent,
        request.request_id,
        Mode.EXCLUSIVE,
        (target,),
        request.purpose,
        now_ms,
        now_ms + request.hold_ms,
        request.lock_delay_ms,
        request.traceparent,
        lease,
    )
