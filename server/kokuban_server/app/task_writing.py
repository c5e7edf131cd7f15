"""Events of tasks as parts of commits: where they come to lie, what they are guarded on, and how their tasks stand behind them.

Every event of a task moves the end of the task's log, and is guarded on it; so events have numbers without gaps, whoever
writes them. Commits of one task that arrive at one server go one after another, each planned on what the one before it left
behind, and so do not fail each other; those of other servers do, and are planned again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core import keys
from kokuban_server.core.change_set import Absent, AtRevision, DeleteKey, Put
from kokuban_server.core.commit import RecordEvent, Step, Target
from kokuban_server.core.names import EntryKey
from kokuban_server.core.refusals import AlreadyExists, StoreUnavailable, Winner
from kokuban_server.core.subtasks import notes_path
from kokuban_server.core.task_planning import Ground, judged
from kokuban_server.core.tasks import RECORDED, EventType, RecordedAction, after, event_path
from kokuban_server.records.task_codec import (
    decode_action,
    decode_log,
    decode_task,
    encode_action,
    encode_log,
    encode_notes,
    encode_task,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from kokuban_server.core.change_set import Guard
    from kokuban_server.core.commit import Moment, Plan
    from kokuban_server.core.tasks import TaskEvent, TaskState
    from kokuban_server.ports.board_store import Record

_ACTIONS = frozenset(
    {EventType.ACTION_STARTED, EventType.ACTION_DONE, EventType.ACTION_FAILED, EventType.ACTION_SKIPPED}
)
_ENDS = frozenset({EventType.STEP_COMPLETED, EventType.STEP_FAILED, EventType.STEP_DEAD, EventType.STEP_YIELDED})
_KNOWN_ENTRIES_MAX = 4_096
"""Tasks that one server remembers; it reads what it has forgotten again."""


class KnownTask(NamedTuple):
    """How a task stands, and when that was written."""

    last_event: int = 0
    log_revision: int = 0
    """0 if there is no such task."""
    state: TaskState | None = None
    state_revision: int = 0

    def guards(self, prefix: bytes) -> list[Guard]:
        """Give what ties a plan to the end of the log, which moves whenever anything of the task does."""
        log = keys.TASK_LOG + prefix
        return [AtRevision(log, self.log_revision) if self.log_revision else Absent(log)]

    def puts(self, prefix: bytes, last_event: int, state: TaskState | None) -> list[Put]:
        """Give what says how the task stands after further events."""
        puts = [Put(keys.TASK_LOG + prefix, encode_log(last_event))]
        if state is not None and state is not self.state:
            puts.append(Put(keys.TASK + prefix, encode_task(state)))
        return puts

    def written(self, last_event: int, state: TaskState | None, revision: int) -> KnownTask:
        """Give how the task stands once that has been written."""
        same = state is self.state
        return KnownTask(last_event, revision, state, self.state_revision if same else revision)


class Looked(NamedTuple):
    """What was found, or is remembered, of the tasks that a commit is about."""

    tasks: Mapping[bytes, KnownTask]
    """By the prefix of their regions."""
    actions: Mapping[bytes, RecordedAction]
    """Those of the actions in question that were recorded, by their keys."""


class Happening(NamedTuple):
    """What a commit's events come to."""

    steps: list[Step]
    guards: list[Guard]
    puts: list[Put]
    deletes: list[DeleteKey]
    numbers: tuple[int, ...]
    tasks: Mapping[bytes, tuple[KnownTask, int, TaskState | None]]
    """For each task how it stood, its last event now, and how it stands now."""

    @property
    def heads(self) -> list[bytes]:
        """Where the events come to lie."""
        return [step.target.head for step in self.steps if isinstance(step.mutation, RecordEvent)]

    @property
    def tied(self) -> list[bytes]:
        """The prefixes of the tasks to the ends of whose logs it is tied, as there are some already."""
        return [prefix for prefix, (known, _, _) in self.tasks.items() if known.log_revision]

    def add_to(self, planned: Plan) -> None:
        """Have a plan do all of it."""
        planned.guards += self.guards
        planned.more += self.puts
        planned.clean_ups += self.deletes  # behind those that a plan may leave out
        planned.event_numbers = self.numbers


def is_event(step: Step) -> bool:
    """Say whether a step appends an event to a task's log."""
    return isinstance(step.mutation, RecordEvent)


def prefix_of(target: Target) -> bytes:
    """Give the prefix of a target's region."""
    return target.generation[len(keys.LOCK_GENERATION) :]


class Turn:
    """Keeps others out of some tasks while it is entered. Entering raises `StoreUnavailable` if that takes too long."""

    def __init__(self, locks: Sequence[asyncio.Lock], deadline: float) -> None:
        self._locks = locks
        self._deadline = deadline
        self._taken: list[asyncio.Lock] = []

    async def __aenter__(self) -> None:
        try:
            for lock in self._locks:
                if lock.locked():  # else it is had at once, without a timer
                    async with asyncio.timeout_at(self._deadline):
                        await lock.acquire()
                else:
                    await lock.acquire()
                self._taken.append(lock)
        except BaseException as error:
            self._release()
            if isinstance(error, TimeoutError):
                raise StoreUnavailable("other writers of the task are in the way") from None
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        for lock in self._taken:
            lock.release()


class TaskWriting:
    """What this server knows of tasks, and whose turn it is to write to them."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, KnownTask] = OrderedDict()
        self._turns: dict[bytes, asyncio.Lock] = {}

    def turn(self, prefixes: Iterable[bytes], deadline: float) -> Turn:
        """Give what keeps other writers of this server out of some tasks."""
        return Turn([self._turn_of(prefix) for prefix in sorted(set(prefixes))], deadline)

    def _turn_of(self, prefix: bytes) -> asyncio.Lock:
        turn = self._turns.get(prefix)
        if turn is None:
            if len(self._turns) >= _KNOWN_ENTRIES_MAX:
                self._turns = {other: lock for other, lock in self._turns.items() if lock.locked()}
            turn = self._turns[prefix] = asyncio.Lock()
        return turn

    # What is known.

    def keys_of(self, steps: Sequence[Step]) -> list[bytes]:
        """Give the keys that say how the tasks stand that some steps are about."""
        named: dict[bytes, None] = {}
        for step in steps:
            if not isinstance(step.mutation, RecordEvent):
                continue
            prefix = prefix_of(step.target)
            named |= {keys.TASK_LOG + prefix: None, keys.TASK + prefix: None}
            action = _action_key(prefix, step.mutation.event)
            if action:
                named[action] = None
        return list(named)

    def read(self, named: Sequence[bytes], records: Sequence[Record | None]) -> Looked:
        """Give what was found at the keys of `keys_of`, and remember it."""
        found = dict(zip(named, records, strict=True))
        tasks = {}
        actions = {}
        for key, record in found.items():
            if key.startswith(keys.TASK_LOG):
                prefix = key[len(keys.TASK_LOG) :]
                tasks[prefix] = self.learn(prefix, _known(prefix, record, found[keys.TASK + prefix]))
            elif key.startswith(keys.TASK_ACTION) and record is not None:
                actions[key] = decode_action(key, record.value)
        return Looked(tasks, actions)

    def guess(self, steps: Sequence[Step]) -> Looked | None:
        """Give what is remembered of the tasks; nothing if too little is. Actions are assumed not to be recorded."""
        tasks: dict[bytes, KnownTask] = {}
        for step in steps:
            if isinstance(step.mutation, RecordEvent):
                prefix = prefix_of(step.target)
                known = tasks.get(prefix) or self._known.get(prefix)
                if known is None:
                    if step.mutation.event.type is not EventType.TASK_CREATED:
                        return None
                    known = KnownTask()
                tasks[prefix] = known
        return Looked(tasks, {})

    def learn(self, prefix: bytes, task: KnownTask) -> KnownTask:
        """Remember how a task stands, unless something later is known; give it."""
        before = self._known.get(prefix)
        if before is None or before.log_revision <= task.log_revision:
            self._known[prefix] = task
        self._known.move_to_end(prefix)
        if len(self._known) > _KNOWN_ENTRIES_MAX:
            self._known.popitem(last=False)
        return task

    def happened(self, happening: Happening, revision: int) -> None:
        """Remember what was written."""
        for prefix, (before, last_event, state) in happening.tasks.items():
            self.learn(prefix, before.written(last_event, state, revision))

    # Planning.

    def plan(
        self,
        steps: Sequence[Step],
        looked: Looked,
        fences: Collection[str],
        releases: Collection[str],
        board_prefix: bytes,
        moment: Moment,
    ) -> Happening:
        """Give what the events among some steps come to, in their order; or raise the refusal of the first that may not happen.

        `fences` are the locks that the commit is guarded on; `releases` those that it gives back anyway.
        """
        planned: list[Step] = []
        guards: list[Guard] = []
        puts: list[Put] = []
        deletes: list[DeleteKey] = []
        numbers: list[int] = []
        now: dict[bytes, tuple[int, TaskState | None]] = {}
        held = frozenset(fences)
        for step in steps:
            mutation = step.mutation
            if not isinstance(mutation, RecordEvent):
                planned.append(step)
                continue
            prefix = prefix_of(step.target)
            known = looked.tasks[prefix]
            last, state = now.get(prefix, (known.last_event, known.state))
            place = f"mutations[{step.place}].{mutation.kind}"
            asked = mutation.event
            if asked.type is EventType.TASK_CREATED and last:
                raise _exists(step, known, place, moment)
            action = _action_key(prefix, asked)
            recorded = {(asked.step, asked.subject): looked.actions[action]} if action in looked.actions else {}
            ground = Ground(step.target.key.region.id, held, recorded, moment.now_ms)
            event = judged(state, asked, last + 1, place, ground)
            if action and Absent(action) not in guards:
                guards.append(Absent(action))
            if event.type in RECORDED:
                puts.append(Put(action, encode_action(RecordedAction(event.number, event.type))))
            elif event.type is EventType.SUBTASK_COMPLETED:
                notes = keys.task_notes(prefix, notes_path(event.subject))
                puts.append(Put(notes, encode_notes(event.notes_expire_ms)))
            if state is not None and event.type in _ENDS and state.steps[event.step].lock_id not in releases:
                deletes += _lock_of(board_prefix, state.steps[event.step].lock_id)
            now[prefix] = event.number, after(state, event)
            numbers.append(event.number)
            planned.append(at_its_place(step, prefix, event))
        tasks = {prefix: (looked.tasks[prefix], *how) for prefix, how in now.items()}
        for prefix, (known, last, state) in tasks.items():
            guards += known.guards(prefix)
            puts += known.puts(prefix, last, state)
        return Happening(planned, guards, puts, deletes, tuple(numbers), tasks)

    def as_recorded(self, steps: Sequence[Step], numbers: Sequence[int]) -> list[Step]:
        """Give steps with their events at the places that they were given."""
        left = list(numbers)
        return [
            at_its_place(step, prefix_of(step.target), step.mutation.event._replace(number=left.pop(0)))
            if left and isinstance(step.mutation, RecordEvent)
            else step
            for step in steps
        ]


def at_its_place(step: Step, prefix: bytes, event: TaskEvent) -> Step:
    """Give a step that writes an event where its number says; `prefix` is of its task's region."""
    ((region, _), _, rules, generation), mutation, place, label = step
    assert isinstance(mutation, RecordEvent)  # noqa: S101 - for the type checker: callers have looked
    path = event_path(event.number)
    target = Target(EntryKey(region, path), keys.head_once(prefix, path), rules, generation)
    return Step(target, RecordEvent(event, mutation.value, mutation.words, mutation.kind), place, label)


def _known(prefix: bytes, log: Record | None, state: Record | None) -> KnownTask:
    if log is None or state is None:
        return KnownTask()
    return KnownTask(
        decode_log(log.key, log.value), log.revision, decode_task(keys.TASK + prefix, state.value), state.revision
    )


def _action_key(prefix: bytes, event: TaskEvent) -> bytes:
    """Give the key of an event's action; empty if it is of none."""
    return keys.task_action(prefix, event.step, event.subject) if event.type in _ACTIONS else b""


def _lock_of(board_prefix: bytes, lock_id: str) -> list[DeleteKey]:
    return [DeleteKey(keys.on_board(kind, board_prefix, lock_id)) for kind in (keys.LOCK, keys.MARKER)]


def _exists(step: Step, known: KnownTask, place: str, moment: Moment) -> AlreadyExists:
    key = step.target.key
    return AlreadyExists(
        f"{place}.task", str(key.region), event_path(1), known.log_revision, moment.epoch, Winner("", "", 0, "")
    )
