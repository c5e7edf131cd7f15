"""What must be true of every simulated run with tasks: the store's log against what workers asked for, were told and caused.

What a step's holder may do is said here a second time and in the plainest way; only how a task stands is compared with what
`core.tasks.after` makes of its events, which is the promise itself.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from kokuban_server.core import keys
from kokuban_server.core.names import Region, parse_region
from kokuban_server.core.task_planning import folded
from kokuban_server.core.tasks import EVENTS_PATH, DeadReason, EventType, InDoubt, StepTerms
from kokuban_server.records.codec import decode_entry
from kokuban_server.records.task_codec import decode_log, decode_task
from tests.simulation.lock_model import LockState
from tests.simulation.simulated_workers import COUNT
from tests.simulation.task_journal import Fate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kokuban_server.core.entry import Act
    from kokuban_server.core.tasks import TaskEvent, TaskState
    from tests.simulation.lock_model import Held
    from tests.simulation.simulated_store import Applied, RecordedStore
    from tests.simulation.task_journal import Effect, Recording, TaskJournal

_ACTION_ENDS = {EventType.ACTION_DONE, EventType.ACTION_FAILED, EventType.ACTION_SKIPPED}
_RECORDED = {EventType.ACTION_DONE, EventType.ACTION_SKIPPED}
_STEP_ENDS = {EventType.STEP_COMPLETED, EventType.STEP_FAILED, EventType.STEP_DEAD, EventType.STEP_YIELDED}


@dataclass(slots=True)
class _Step:
    """How a step stands, in the plainest way."""

    terms: StepTerms
    attempts: int = 0
    lock: str = ""
    is_done: bool = False
    is_dead: bool = False
    begun: dict[str, InDoubt] = field(default_factory=dict)
    recorded: dict[str, int] = field(default_factory=dict)
    """Actions, and the revisions at which they were recorded."""
    starts: dict[str, int] = field(default_factory=lambda: defaultdict(int))


@dataclass(slots=True)
class _Task:
    events: list[TaskEvent] = field(default_factory=list)
    steps: dict[str, _Step] = field(default_factory=dict)
    state: TaskState | None = None
    completed: int = 0


def judge_tasks(store: RecordedStore, journal: TaskJournal, problems: list[str]) -> LockState:
    """Add to the problems whatever does not hold; give what is left of locks."""
    replay = _Replay(store, journal, problems)
    replay.run()
    replay.judge_told()
    replay.judge_effects()
    return replay.locks


class _Replay:
    """The store's log, replayed: every event of every task, beside the locks."""

    def __init__(self, store: RecordedStore, journal: TaskJournal, problems: list[str]) -> None:
        self._store = store
        self._journal = journal
        self._problems = problems
        self.locks = LockState()
        self._tasks: dict[Region, _Task] = defaultdict(_Task)
        self._made: dict[str, list[int]] = defaultdict(list)
        """For each request, the revisions of the events that it made."""

    def _wrong(self, revision: int, what: str) -> None:
        self._problems.append(f"at {revision}: {what}")

    def run(self) -> None:
        """Go through the log, revision by revision."""
        for revision, group in groupby(self._store.log, key=lambda applied: applied.event.revision):
            batch = list(group)
            before = dict(self.locks.locks)
            for applied in batch:
                if applied.event.key.startswith(keys.LOCKING):
                    self.locks.take(applied.event)
            self._judge_events(revision, batch, before)
            for applied in batch:
                self._judge_standing(revision, applied)

    def _judge_events(self, revision: int, batch: Sequence[Applied], before: dict[str, Held]) -> None:
        happened = []
        for applied in batch:
            if not applied.event.key.startswith(keys.HEAD):
                continue
            entry = keys.parse_head(applied.event.key)[2]
            if not entry.path.startswith(f"{EVENTS_PATH}/"):
                continue
            if applied.event.value is None or applied.event.create_revision != revision:
                self._wrong(revision, f"{entry} is written twice")
                continue
            record = decode_entry(applied.event.key, applied.event.value)
            assert record.event is not None
            happened.append((entry.path, entry.region, record.event, record.acts[0]))
        for path, region, event, act in sorted(happened):
            self._made[act.request_id].append(revision)
            task = self._tasks[region]
            task.events.append(event)
            if event.number != len(task.events) or not path.endswith(f"/{event.number:012d}"):
                self._wrong(revision, f"{path} of {region} holds {event}, the {len(task.events)}th")
            task.state = folded(task.state, (event,))
            if event.type is EventType.STEP_ADDED:
                task.steps[event.step] = _Step(event.terms or StepTerms())
            elif event.step:
                self._judge_in_step(revision, task, event, act, before)

    def _judge_in_step(self, revision: int, task: _Task, event: TaskEvent, act: Act, before: dict[str, Held]) -> None:
        step = task.steps[event.step]
        if step.is_done or step.is_dead:
            self._wrong(revision, f"{event} in a step that is over")
        if event.type is EventType.STEP_CLAIMED:
            self._judge_claim(revision, task, step, event, before)
            return
        if event.type is EventType.STEP_DEAD and event.dead_reason is DeadReason.WORKER_LOST:
            if step.lock in before or step.attempts != step.terms.attempts_max:
                self._wrong(revision, f"{event} is dead in spite of {step}")
            step.is_dead = True
            return
        lock = before.get(step.lock)
        if lock is None or lock.record.agent != act.agent:
            self._wrong(revision, f"{event} is recorded by {act.agent}, who does not hold the step: {lock}")
        if event.attempt != step.attempts:
            self._wrong(revision, f"{event} is of another attempt than {step}")
        if event.subject:
            self._judge_action(revision, step, event)
        elif event.type in _STEP_ENDS:
            self._end(revision, task, step, event)

    def _judge_claim(self, revision: int, task: _Task, step: _Step, event: TaskEvent, before: dict[str, Held]) -> None:
        if step.lock in before:
            self._wrong(revision, f"{event} has two winners: {before[step.lock]} holds the step")
        granted = self.locks.locks.get(event.lock_id)
        if granted is None or granted.created != revision:
            self._wrong(revision, f"{event} comes without its lock: {granted}")
        step.attempts += 1
        if event.attempt != step.attempts or step.attempts > step.terms.attempts_max:
            self._wrong(revision, f"{event} is counted wrong: {step}")
        if not all(task.steps[name].is_done for name in step.terms.depends_on):
            self._wrong(revision, f"{event} is before its time")
        step.lock = event.lock_id

    def _judge_action(self, revision: int, step: _Step, event: TaskEvent) -> None:
        action = event.subject
        if action in step.recorded:
            self._wrong(revision, f"{event} repeats what was recorded at {step.recorded[action]}")
        if event.type is EventType.ACTION_STARTED:
            if step.begun.get(action, InDoubt.RETRY) is not InDoubt.RETRY:
                self._wrong(revision, f"{event} is begun again in doubt")
            step.begun[action] = event.in_doubt
            step.starts[action] += 1
        elif event.type in _ACTION_ENDS:
            if step.begun.pop(action, None) is None:
                self._wrong(revision, f"{event} ends what was not begun")
            if event.type in _RECORDED:
                step.recorded[action] = revision

    def _end(self, revision: int, task: _Task, step: _Step, event: TaskEvent) -> None:
        if step.lock in self.locks.locks:
            self._wrong(revision, f"{event} leaves its lock behind")
        step.lock = ""
        step.attempts -= event.type is EventType.STEP_YIELDED
        step.is_done = event.type is EventType.STEP_COMPLETED
        step.is_dead = event.type is EventType.STEP_DEAD
        task.completed += step.is_done
        if step.is_done and step.begun:
            self._wrong(revision, f"{event} is done with open actions: {step}")
        if step.is_dead and step.attempts != step.terms.attempts_max:
            self._wrong(revision, f"{event} is dead before its last attempt: {step}")

    def _judge_standing(self, revision: int, applied: Applied) -> None:
        """Judge what is kept beside the events: the end of the log, how the task stands, and what a commit wrote with them."""
        key, value = applied.event.key, applied.event.value
        if value is None:
            return
        if key.startswith(keys.TASK_LOG):
            task = self._tasks[parse_region(keys.split(key[len(keys.TASK_LOG) :])[-1].decode())]
            if decode_log(key, value) != len(task.events):
                self._wrong(revision, f"the log ends with {decode_log(key, value)}, not {len(task.events)}")
        elif key.startswith(keys.TASK):
            task = self._tasks[keys.parse_task(key)]
            if decode_task(key, value) != task.state:
                self._wrong(revision, f"the task stands as {decode_task(key, value)}, its events come to {task.state}")
        elif key.startswith(keys.HEAD) and keys.parse_head(key)[2].path == COUNT:
            task, counted = self._tasks[keys.parse_head(key)[2].region], decode_entry(key, value).value
            if counted is None or json.loads(str(counted.data)) != task.completed:
                self._wrong(revision, f"{counted} was counted, and {task.completed} steps are done")

    # What was told, and what was caused.

    def judge_told(self) -> None:
        """Judge what writers, workers and the user were told."""
        for name, recording in self._journal.recordings.items():
            self._problems += [f"{name} {fault}" for fault in self._faults_of_recording(name, recording)]
        for name, claim in self._journal.claims.items():
            made, told = self._made.get(name, []), {answer.granted.revision for answer in claim.answers}
            if not told <= set(made) or len(told) > 1:
                self._problems.append(f"{name} was told to be granted at {told}, not in {made}")
        for task_id, wanted in self._journal.wanted.items():
            state = self._tasks[parse_region(f"task:{task_id}")].state
            if state is None or wanted - state.constraints.keys():
                self._problems.append(f"of {wanted} in {task_id} something is lost: {state}")

    def _faults_of_recording(self, name: str, recording: Recording) -> Iterator[str]:
        """Each commit was applied wholly and once or not at all, as its writer was told."""
        made = self._made.get(name, [])
        events = sum(key.path == EVENTS_PATH for key, _, _ in recording.request.mutations)
        if made and (len(made) != events or len(set(made)) != 1):
            yield f"was applied in part or more than once, at {made}"
        if recording.fate is Fate.ACKNOWLEDGED and not made:
            yield "was acknowledged and is lost"
        if recording.fate is Fate.REFUSED and made:
            yield f"was told to be refused and was applied at {made}"

    def judge_effects(self) -> None:
        """Judge that what was recorded was done once, and what was not, as had been declared.

        What a worker does whose step was taken from it a moment before is not judged: nothing within the board prevents it.
        """
        of: dict[tuple[str, str, str], list[Effect]] = defaultdict(list)
        for effect in self._journal.effects:
            of[effect[:3]].append(effect)
        for (task, name, action), effects in of.items():
            step = self._tasks[parse_region(f"task:{task}")].steps[name]
            under_lock = [effect for effect in effects if effect.is_held]
            recorded = step.recorded.get(action)
            if recorded is not None and any(effect.revision >= recorded for effect in under_lock):
                self._problems.append(f"{task} {name} {action} is repeated after {recorded}: {under_lock}")
            if len(effects) > step.starts[action]:
                self._problems.append(f"{task} {name} {action} is done more often than begun: {effects}")
            if effects[0].in_doubt is not InDoubt.RETRY and len(under_lock) > 1:
                self._problems.append(f"{task} {name} {action} is done more than once: {under_lock}")
