"""What may happen next in a task: events judged against how it stands, and which step is given to whom."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.dependencies import is_past, needed_for
from kokuban_server.core.refusals import (
    ActionInDoubt,
    ActionNotStarted,
    ActionRecorded,
    ConfigChanged,
    InvalidRequest,
    NoStepReady,
    NotFound,
    NotOpen,
    StepNotDead,
    StepNotHeld,
    SubtaskNotReady,
    TaskFull,
    TaskOver,
)
from kokuban_server.core.subtasks import enclosing, is_within
from kokuban_server.core.tasks import (
    ConfigPolicy,
    DeadReason,
    EventType,
    InDoubt,
    StepStatus,
    TaskEvent,
    TaskState,
    TaskStatus,
    after,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from kokuban_server.core.subtasks import Subtask
    from kokuban_server.core.tasks import RecordedAction, TaskStep

_ACTIONS: Final = frozenset(
    {EventType.ACTION_STARTED, EventType.ACTION_DONE, EventType.ACTION_FAILED, EventType.ACTION_SKIPPED}
)
_ENDS: Final = frozenset({EventType.STEP_COMPLETED, EventType.STEP_FAILED, EventType.STEP_DEAD, EventType.STEP_YIELDED})
_OF_SUBTASKS: Final = frozenset(
    {
        EventType.SUBTASK_OPENED,
        EventType.SUBTASK_CHECKPOINT_SAVED,
        EventType.SUBTASK_RESULT,
        EventType.SUBTASK_LESSON,
        EventType.SUBTASK_COMPLETED,
    }
)


class Ground(NamedTuple):
    """What an event is judged on, beside how the task stands."""

    task: str
    fences: frozenset[str]
    """The locks whose fences the commit carries."""
    recorded: Mapping[tuple[str, str], RecordedAction]
    """Those of the actions in question that were recorded, by step and id."""
    now_ms: int


def judged(state: TaskState | None, event: TaskEvent, number: int, field: str, ground: Ground) -> TaskEvent:
    """Give an event as it happens, with its number; or raise the refusal of what may not happen as the task stands.

    Creating is not judged here: what there must not be before is the log. `field` is where the event stands in its request.
    """
    event = event.placed(number, event.attempt)
    if state is None:
        if event.type is not EventType.TASK_CREATED:
            raise NotFound
        return event
    if state.status is not TaskStatus.OPEN:
        raise TaskOver(f"{field}.task", ground.task, state.status.name)
    judge = _JUDGES.get(event.type)
    if judge is not None:
        return judge(state, event, field, ground)
    if event.step:
        return _judged_in_step(state, event, field, ground)
    if event.type is EventType.INTERRUPT_OPENED:
        _judge_opening(state, event, field, ground)
    return event


def _judged_new_step(state: TaskState, event: TaskEvent, field: str, ground: Ground) -> TaskEvent:
    if len(state.steps) >= limits.TASK_STEPS_ENTRIES_MAX:
        raise TaskFull(f"{field}.step", ground.task, "steps", limits.TASK_STEPS_ENTRIES_MAX)
    for other in state.steps:
        if other == event.step or other.startswith(f"{event.step}/") or event.step.startswith(f"{other}/"):
            raise InvalidRequest(
                "FIELD_INVALID", f"{field}.step.step", "is there already, or lies above or below another"
            )
    if any(is_within(name, event.step) for name in state.subtasks):
        raise InvalidRequest("FIELD_INVALID", f"{field}.step.step", "is a subtask, or lies above one")
    _require_open_around(state, event.step, f"{field}.step.step", ground)
    if event.terms is not None:
        _judge_dependencies(state, event.step, event.terms.depends_on, f"{field}.step.terms.depends_on")
    return event


def _judge_dependencies(state: TaskState, step: str, depends_on: Iterable[str], field: str) -> None:
    """Raise `InvalidRequest` for what a new step cannot wait for.

    Only a new step can close a circle: it may wait for a subtask that, with the step in it, would wait for the step. A new
    subtask waits for no more than those around it do already, and nothing waits for it yet.
    """
    if not state.steps.keys() | state.subtasks.keys() >= set(depends_on):
        raise InvalidRequest("FIELD_INVALID", field, "names a step or subtask that was not there before this step")
    around = set(enclosing(state.subtasks, step))
    if around and not around.isdisjoint(needed_for(state, depends_on)):
        raise InvalidRequest("FIELD_INVALID", field, "is, or waits for, a subtask that would wait for this step")


def _revival(state: TaskState, event: TaskEvent, field: str, ground: Ground) -> TaskEvent:
    """Give what gives a dead step further attempts: it says how many there are now with those that were used."""
    step = state.steps.get(event.step)
    if step is None or step.status is not StepStatus.DEAD:
        raise StepNotDead(f"{field}.step", ground.task, event.step, "" if step is None else step.status.name)
    _require_open_around(state, event.step, f"{field}.step", ground)
    further = event.terms.attempts_max if event.terms is not None else limits.STEP_ATTEMPTS_DEFAULT
    return event._replace(terms=step.terms._replace(attempts_max=step.attempts + further), attempt=step.attempts)


def _require_open_around(state: TaskState, path: str, field: str, ground: Ground) -> None:
    """Raise `NotOpen` for what would be added to a subtask that is completed."""
    for name in enclosing(state.subtasks, path):
        if state.subtasks[name].completed:
            raise NotOpen(field, ground.task, "subtask", name)


def _judged_in_subtask(state: TaskState, event: TaskEvent, field: str, ground: Ground) -> TaskEvent:
    """Judge what is said of a subtask. What settles how it goes on is said by who holds its step, while somebody does."""
    if event.type is EventType.SUBTASK_OPENED:
        _judge_new_subtask(state, event, field, ground)
        return _judged_in_step(state, event, field, ground) if event.step else event
    subtask = state.subtasks.get(event.subject)
    if subtask is None or subtask.completed:
        raise NotOpen(f"{field}.subtask", ground.task, "subtask", event.subject)
    if event.type in {EventType.SUBTASK_RESULT, EventType.SUBTASK_LESSON}:
        is_result = event.type is EventType.SUBTASK_RESULT
        if len(subtask.results if is_result else subtask.lessons) >= limits.SUBTASK_FINDINGS_ENTRIES_MAX:
            what = "results" if is_result else "lessons"
            raise TaskFull(f"{field}.subtask", ground.task, what, limits.SUBTASK_FINDINGS_ENTRIES_MAX)
        return event
    _require_its_holder(state, subtask, field, ground)
    if event.type is EventType.SUBTASK_COMPLETED:
        _judge_completion(state, event.subject, field, ground)
        event = event._replace(notes_expire_ms=ground.now_ms + event.notes_expire_ms)
    return event


def _judge_new_subtask(state: TaskState, event: TaskEvent, field: str, ground: Ground) -> None:
    name = event.subject
    if len(state.subtasks) >= limits.TASK_SUBTASKS_ENTRIES_MAX:
        raise TaskFull(f"{field}.subtask", ground.task, "subtasks", limits.TASK_SUBTASKS_ENTRIES_MAX)
    if name in state.subtasks or any(is_within(name, step) for step in state.steps):
        raise InvalidRequest("FIELD_INVALID", f"{field}.subtask", "is there already, or is a step, or lies below one")
    _require_open_around(state, name, f"{field}.subtask", ground)


def _require_its_holder(state: TaskState, subtask: Subtask, field: str, ground: Ground) -> None:
    step = state.steps.get(subtask.step)
    if step is not None and step.status is StepStatus.RUNNING and step.lock_id not in ground.fences:
        raise StepNotHeld(f"{field}.subtask", ground.task, subtask.step, step.status.name)


def _judge_completion(state: TaskState, subtask: str, field: str, ground: Ground) -> None:
    unfinished = {StepStatus.PENDING, StepStatus.RUNNING}
    steps = [name for name, one in state.steps.items() if one.status in unfinished and is_within(name, subtask)]
    is_open = [name for name, one in state.subtasks.items() if not one.completed and is_within(name, subtask)]
    is_open.remove(subtask)
    if steps or is_open:
        raise SubtaskNotReady(f"{field}.subtask", ground.task, subtask, len(steps), len(is_open), (*steps, *is_open)[0])


def _judged_in_step(state: TaskState, event: TaskEvent, field: str, ground: Ground) -> TaskEvent:
    """Judge what only the holder of a step may say of it."""
    step = state.steps.get(event.step)
    if step is None or step.status is not StepStatus.RUNNING or step.lock_id not in ground.fences:
        status = "" if step is None else step.status.name
        raise StepNotHeld(f"{field}.step", ground.task, event.step, status)
    if event.type in _ACTIONS:
        _judge_action(step, event, field, ground)
    elif event.type is EventType.INTERRUPT_OPENED:
        _judge_opening(state, event, field, ground)
    elif event.type is EventType.STEP_COMPLETED and step.actions:
        raise _in_doubt(step, next(iter(step.actions)), event.step, f"{field}.outcome", ground)
    elif event.type is EventType.STEP_FAILED:
        event = _failure(step, event, ground.now_ms)
    return event.placed(event.number, step.attempts)


def _failure(step: TaskStep, event: TaskEvent, now_ms: int) -> TaskEvent:
    """Give what a failed attempt comes to: a rest before the next one, or the step's end."""
    if step.attempts >= step.terms.attempts_max:
        return event._replace(type=EventType.STEP_DEAD, dead_reason=DeadReason.ATTEMPTS_USED)
    rest_ms = min(step.terms.back_off_ms << min(step.attempts - 1, 32), limits.STEP_BACK_OFF_MS_MAX)
    return event._replace(not_before_ms=now_ms + rest_ms if rest_ms else 0)


def _judge_action(step: TaskStep, event: TaskEvent, field: str, ground: Ground) -> None:
    recorded = ground.recorded.get((event.step, event.subject))
    if recorded is not None:
        place = f"{field}.id"
        raise ActionRecorded(place, ground.task, event.step, event.subject, recorded.event, recorded.type.name)
    begun = step.actions.get(event.subject)
    if event.type is not EventType.ACTION_STARTED:
        if begun is None:
            raise ActionNotStarted(f"{field}.id", ground.task, event.step, event.subject)
    elif begun is not None:
        if begun.in_doubt is not InDoubt.RETRY:
            raise _in_doubt(step, event.subject, event.step, f"{field}.id", ground)
    elif len(step.actions) >= limits.STEP_ACTIONS_ENTRIES_MAX:
        raise TaskFull(f"{field}.id", ground.task, "actions", limits.STEP_ACTIONS_ENTRIES_MAX)


def _in_doubt(step: TaskStep, action: str, name: str, field: str, ground: Ground) -> ActionInDoubt:
    begun = step.actions[action]
    return ActionInDoubt(field, ground.task, name, action, begun.event, begun.attempt, begun.in_doubt.name)


def _judged_answer(state: TaskState, event: TaskEvent, field: str, ground: Ground) -> TaskEvent:
    asked = state.interrupts.get(event.subject)
    if asked is None or asked.answered:
        raise NotOpen(f"{field}.id", ground.task, "interrupt", event.subject)
    return event._replace(step=asked.step)


def _judged_constraint(state: TaskState, event: TaskEvent, field: str, ground: Ground) -> TaskEvent:
    is_known = event.subject in state.constraints
    if event.type is EventType.CONSTRAINT_WITHDRAWN:
        if not is_known:
            raise NotOpen(f"{field}.id", ground.task, "constraint", event.subject)
    elif not is_known and len(state.constraints) >= limits.TASK_CONSTRAINTS_ENTRIES_MAX:
        raise TaskFull(f"{field}.id", ground.task, "constraints", limits.TASK_CONSTRAINTS_ENTRIES_MAX)
    return event


def _judge_opening(state: TaskState, event: TaskEvent, field: str, ground: Ground) -> None:
    if event.subject in state.interrupts:
        raise InvalidRequest("FIELD_INVALID", f"{field}.id", "there is such an interrupt already")
    if sum(not one.answered for one in state.interrupts.values()) >= limits.TASK_INTERRUPTS_ENTRIES_MAX:
        raise TaskFull(f"{field}.id", ground.task, "interrupts", limits.TASK_INTERRUPTS_ENTRIES_MAX)


_JUDGES: Final[dict[EventType, Callable[[TaskState, TaskEvent, str, Ground], TaskEvent]]] = {
    EventType.STEP_ADDED: _judged_new_step,
    EventType.STEP_REVIVED: _revival,
    EventType.CONSTRAINT_SET: _judged_constraint,
    EventType.CONSTRAINT_WITHDRAWN: _judged_constraint,
    EventType.INTERRUPT_ANSWERED: _judged_answer,
    **dict.fromkeys(_OF_SUBTASKS, _judged_in_subtask),
}
"""How those are judged that are not just of their step, or of the task as a whole."""


class Worker(NamedTuple):
    """Who asks for a step."""

    labels: frozenset[str]
    """What it is able to do."""
    fingerprint: str
    lock_id: str
    """The lock that it would hold."""


class Picked(NamedTuple):
    """What asking for a step comes to."""

    events: tuple[TaskEvent, ...]
    """The ends of steps whose last worker was lost, and then the claim if there is one."""
    step: str
    """The step that is claimed, or nothing."""
    config_changed: bool
    refusal: NoStepReady | ConfigChanged | None
    """Why there is none."""


def pick(state: TaskState, task: str, worker: Worker, closed: Collection[str], last_event: int, now_ms: int) -> Picked:
    """Find the step that a worker is given. `closed` are those whose paths are locked, or were until just now.

    Raises `TaskOver`.
    """
    if state.status is not TaskStatus.OPEN:
        raise TaskOver("task", task, state.status.name)
    of: dict[_Chance, list[str]] = {chance: [] for chance in _Chance}
    for name in state.steps:
        of[_chance(state, name, worker, closed, now_ms)].append(name)
    events: list[TaskEvent] = []
    for name in of[_Chance.LOST]:
        number = last_event + len(events) + 1
        attempts, lost = state.steps[name].attempts, DeadReason.WORKER_LOST
        events.append(TaskEvent(EventType.STEP_DEAD, name, "", number, attempts, dead_reason=lost))
    if not of[_Chance.READY]:
        return Picked(tuple(events), "", False, _nothing_ready(state, task, of, now_ms))
    name = min(of[_Chance.READY], key=lambda name: (-state.steps[name].terms.priority, state.steps[name].added))
    step = state.steps[name]
    given, actual = worker.fingerprint, step.fingerprint
    changed = bool(given and actual and given != actual)
    if changed and state.config_policy is ConfigPolicy.REFUSE:
        return Picked(tuple(events), "", True, ConfigChanged(task, name, given, actual))
    number = last_event + len(events) + 1
    claim = TaskEvent(
        EventType.STEP_CLAIMED, name, "", number, step.attempts + 1, lock_id=worker.lock_id, fingerprint=given
    )
    return Picked((*events, claim), name, changed, None)


class _Chance(enum.Enum):
    """What there is to be said of a step to somebody who asks for one."""

    DONE = enum.auto()
    DEAD = enum.auto()
    LOST = enum.auto()
    """The worker of its last attempt is gone."""
    RUNNING = enum.auto()
    UNABLE = enum.auto()
    WAITING = enum.auto()
    READY = enum.auto()


def _chance(state: TaskState, name: str, worker: Worker, closed: Collection[str], now_ms: int) -> _Chance:
    step = state.steps[name]
    if step.status in {StepStatus.DONE, StepStatus.DEAD}:
        return _Chance.DONE if step.status is StepStatus.DONE else _Chance.DEAD
    if step.status is StepStatus.RUNNING:
        if name in closed:
            return _Chance.RUNNING
        if step.attempts >= step.terms.attempts_max:
            return _Chance.LOST
    if not step.terms.labels <= worker.labels:
        return _Chance.UNABLE
    is_free = name not in closed and step.not_before_ms <= now_ms and not state.awaits_answer(name)
    is_next = all(is_past(state, other) for other in step.terms.depends_on)
    return _Chance.READY if is_free and is_next else _Chance.WAITING


def _nothing_ready(state: TaskState, task: str, of: Mapping[_Chance, list[str]], now_ms: int) -> NoStepReady:
    rests_ms = [state.steps[name].not_before_ms for name in of[_Chance.WAITING]]
    return NoStepReady(
        task,
        len(of[_Chance.RUNNING]),
        len(of[_Chance.WAITING]),
        len(of[_Chance.UNABLE]),
        len(of[_Chance.DEAD]) + len(of[_Chance.LOST]),
        min([rest_ms for rest_ms in rests_ms if rest_ms > now_ms], default=0),
    )


def folded(state: TaskState | None, events: tuple[TaskEvent, ...]) -> TaskState | None:
    """Give how a task stands after several events."""
    for event in events:
        state = after(state, event)
    return state
