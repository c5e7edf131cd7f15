"""Tasks: what happens in them, and how they stand, which is what their events come to.

A task is its events, numbered from 1 without gaps. How it stands is what `after` makes of them one by one; so it can be made
again from any state of it that was kept and the events behind that. No agent's words are in either, only names, numbers and
choices: words lie in the values of the entries that the events are, under labels of their own.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.subtasks import Subtask, parent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PLACE: Final = ".task"
"""Below this path of a task's region lies what only mutations of tasks write."""
EVENTS_PATH: Final = f"{PLACE}/events"


class EventType(enum.IntEnum):
    """What happened. The numbers are those of the wire and of the store."""

    TASK_CREATED = 1
    STEP_ADDED = 2
    STEP_CLAIMED = 3
    STEP_COMPLETED = 4
    STEP_FAILED = 5
    STEP_DEAD = 6
    STEP_YIELDED = 7
    CHECKPOINT_SAVED = 8
    ACTION_STARTED = 9
    ACTION_DONE = 10
    ACTION_FAILED = 11
    ACTION_SKIPPED = 12
    CONSTRAINT_SET = 13
    CONSTRAINT_WITHDRAWN = 14
    INTERRUPT_OPENED = 15
    INTERRUPT_ANSWERED = 16
    TASK_CANCELLED = 17
    NOTE = 18
    SUBTASK_OPENED = 19
    SUBTASK_CHECKPOINT_SAVED = 20
    SUBTASK_RESULT = 21
    SUBTASK_LESSON = 22
    SUBTASK_COMPLETED = 23
    STEP_REVIVED = 24


class TaskStatus(enum.IntEnum):
    """How a task stands. The numbers are those of the wire and of the store."""

    OPEN = 1
    COMPLETED = 2
    CANCELLED = 3


class StepStatus(enum.IntEnum):
    """How a step stands. The numbers are those of the wire and of the store."""

    PENDING = 1
    RUNNING = 2
    DONE = 3
    DEAD = 4


class DeadReason(enum.IntEnum):
    """Why a step is dead. The numbers are those of the wire and of the store."""

    NONE = 0
    ATTEMPTS_USED = 1
    GIVEN_UP = 2
    WORKER_LOST = 3


class InDoubt(enum.IntEnum):
    """What is to be done about an action that was begun and not ended. The numbers are those of the wire and of the store."""

    NONE = 0
    RETRY = 1
    ASK = 2
    SKIP = 3


class ConfigPolicy(enum.IntEnum):
    """What becomes of claims with another configuration. The numbers are those of the wire and of the store."""

    WARN = 1
    REFUSE = 2


class StepTerms(NamedTuple):
    """On which terms a step is given to workers."""

    depends_on: tuple[str, ...] = ()
    labels: frozenset[str] = frozenset()
    priority: int = 0
    attempts_max: int = limits.STEP_ATTEMPTS_DEFAULT
    back_off_ms: int = 0


class TokenUsage(NamedTuple):
    """What a model was given and gave."""

    input_tokens: int
    output_tokens: int


class TaskEvent(NamedTuple):
    """Something that happens in a task, beside the words in it. Its number, and what follows from the task, are given last."""

    type: EventType
    step: str = ""
    subject: str = ""
    """The action, constraint, interrupt or subtask."""
    number: int = 0
    attempt: int = 0
    lock_id: str = ""
    """Of a claim."""
    in_doubt: InDoubt = InDoubt.NONE
    terms: StepTerms | None = None
    config_policy: ConfigPolicy = ConfigPolicy.WARN
    fingerprint: str = ""
    not_before_ms: int = 0
    dead_reason: DeadReason = DeadReason.NONE
    usage: TokenUsage | None = None
    snapshot: str = ""
    notes_expire_ms: int = 0
    """When the working notes of a subtask end that is completed; as it is asked for, how long after that."""

    def placed(self, number: int, attempt: int) -> TaskEvent:
        """Give it with its number and its step's attempt: in a third of the time that `_replace` takes, for each event."""
        return TaskEvent._make((*self[:3], number, attempt, *self[5:]))


class OpenAction(NamedTuple):
    """An action that was begun and not ended."""

    event: int
    attempt: int
    in_doubt: InDoubt


class RecordedAction(NamedTuple):
    """An action that was recorded: it is not begun again."""

    event: int
    type: EventType


class Interrupt(NamedTuple):
    """A question."""

    step: str
    opened: int
    answered: int = 0


@dataclass(frozen=True, slots=True)
class TaskStep:
    """How a step stands. Where it names events, 0 is none."""

    terms: StepTerms
    added: int
    status: StepStatus = StepStatus.PENDING
    attempts: int = 0
    lock_id: str = ""
    not_before_ms: int = 0
    claimed: int = 0
    checkpoint: int = 0
    fingerprint: str = ""
    """Of the last checkpoint."""
    ended: int = 0
    dead_reason: DeadReason = DeadReason.NONE
    actions: Mapping[str, OpenAction] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskState:
    """How a task stands. Steps, interrupts and subtasks are in the order of their events."""

    status: TaskStatus = TaskStatus.OPEN
    config_policy: ConfigPolicy = ConfigPolicy.WARN
    steps: Mapping[str, TaskStep] = field(default_factory=dict)
    constraints: Mapping[str, int] = field(default_factory=dict)
    interrupts: Mapping[str, Interrupt] = field(default_factory=dict)
    subtasks: Mapping[str, Subtask] = field(default_factory=dict)

    def awaits_answer(self, step: str) -> bool:
        """Say whether somebody has to answer a question before the step can go on."""
        return any(one.step == step and not one.answered for one in self.interrupts.values())


def event_path(number: int) -> str:
    """Give the path of an event's entry."""
    return f"{EVENTS_PATH}/{number:012d}"


def is_reserved(path: str) -> bool:
    """Say whether a path of a task's region is for what mutations of tasks write."""
    return path == PLACE or path.startswith(f"{PLACE}/")


_ENDS: Final = {
    EventType.STEP_COMPLETED: StepStatus.DONE,
    EventType.STEP_FAILED: StepStatus.PENDING,
    EventType.STEP_DEAD: StepStatus.DEAD,
    EventType.STEP_YIELDED: StepStatus.PENDING,
}
_ACTION_ENDS: Final = frozenset({EventType.ACTION_DONE, EventType.ACTION_FAILED, EventType.ACTION_SKIPPED})
RECORDED: Final = frozenset({EventType.ACTION_DONE, EventType.ACTION_SKIPPED})
"""After these an action is not begun again."""


def after(state: TaskState | None, event: TaskEvent) -> TaskState:
    """Give how a task stands after an event. `None` is a task before its first event, which creates it.

    The state that is given back is the same object if the event changes nothing of it.
    """
    if state is None:
        return TaskState(config_policy=event.config_policy)
    if event.type in _IN_STEPS:
        return _with_step(state, event)
    change = _CHANGES.get(event.type)
    return state if change is None else change(state, event)


def _cancelled(state: TaskState, event: TaskEvent) -> TaskState:  # noqa: ARG001 - as the others
    return replace(state, status=TaskStatus.CANCELLED)


def _wanted(state: TaskState, event: TaskEvent) -> TaskState:
    return replace(state, constraints={**state.constraints, event.subject: event.number})


def _unwanted(state: TaskState, event: TaskEvent) -> TaskState:
    left = {name: number for name, number in state.constraints.items() if name != event.subject}
    return replace(state, constraints=left)


def _asked(state: TaskState, event: TaskEvent) -> TaskState:
    opened = Interrupt(event.step, event.number)
    return replace(state, interrupts={**state.interrupts, event.subject: opened})


def _answered(state: TaskState, event: TaskEvent) -> TaskState:
    answered = state.interrupts[event.subject]._replace(answered=event.number)
    return replace(state, interrupts=_remembered({**state.interrupts, event.subject: answered}))


def _opened(state: TaskState, event: TaskEvent) -> TaskState:
    return _with_subtask(state, event.subject, Subtask(event.number, event.step))


def _kept(state: TaskState, event: TaskEvent) -> TaskState:
    subtask = state.subtasks[event.subject]
    kept = subtask._replace(checkpoint=event.number, fingerprint=event.fingerprint)
    return _with_subtask(state, event.subject, kept)


def _resulted(state: TaskState, event: TaskEvent) -> TaskState:
    subtask = state.subtasks[event.subject]
    return _with_subtask(state, event.subject, subtask._replace(results=(*subtask.results, event.number)))


def _learnt(state: TaskState, event: TaskEvent) -> TaskState:
    subtask = state.subtasks[event.subject]
    return _with_subtask(state, event.subject, subtask._replace(lessons=(*subtask.lessons, event.number)))


def _closed(state: TaskState, event: TaskEvent) -> TaskState:
    subtask = state.subtasks[event.subject]
    closed = subtask._replace(completed=event.number, notes_expire_ms=event.notes_expire_ms)
    return _ended_if_over(_with_subtask(state, event.subject, closed))


def _with_subtask(state: TaskState, name: str, subtask: Subtask) -> TaskState:
    return replace(state, subtasks={**state.subtasks, name: subtask})


def _ended_if_over(state: TaskState) -> TaskState:
    """Give a task as completed if everything is: its subtasks, and all steps but those whose death one of them took note of."""
    if any(not one.completed for one in state.subtasks.values()):
        return state
    for name, step in state.steps.items():
        is_settled = step.status is StepStatus.DEAD and parent(state.subtasks, name)
        if step.status is not StepStatus.DONE and not is_settled:
            return state
    return replace(state, status=TaskStatus.COMPLETED)


_CHANGES: Final[dict[EventType, Callable[[TaskState, TaskEvent], TaskState]]] = {
    EventType.TASK_CANCELLED: _cancelled,
    EventType.CONSTRAINT_SET: _wanted,
    EventType.CONSTRAINT_WITHDRAWN: _unwanted,
    EventType.INTERRUPT_OPENED: _asked,
    EventType.INTERRUPT_ANSWERED: _answered,
    EventType.SUBTASK_OPENED: _opened,
    EventType.SUBTASK_CHECKPOINT_SAVED: _kept,
    EventType.SUBTASK_RESULT: _resulted,
    EventType.SUBTASK_LESSON: _learnt,
    EventType.SUBTASK_COMPLETED: _closed,
}


def _remembered(interrupts: dict[str, Interrupt]) -> dict[str, Interrupt]:
    """Give the interrupts without the answered ones beyond those that are kept, which were answered first."""
    answered = sorted((one.answered, name) for name, one in interrupts.items() if one.answered)
    for _, name in answered[: -limits.TASK_INTERRUPTS_ENTRIES_MAX]:
        del interrupts[name]
    return interrupts


def _with_step(state: TaskState, event: TaskEvent) -> TaskState:
    name = event.step
    if event.type is EventType.STEP_ADDED:
        step = TaskStep(event.terms or StepTerms(), event.number)
    else:
        step = _step_after(state.steps[name], event)
    state = replace(state, steps={**state.steps, name: step})
    return _ended_if_over(state) if event.type is EventType.STEP_COMPLETED else state


def _step_after(step: TaskStep, event: TaskEvent) -> TaskStep:
    if event.type is EventType.STEP_CLAIMED:
        return replace(
            step, status=StepStatus.RUNNING, attempts=event.attempt, lock_id=event.lock_id, claimed=event.number
        )
    if event.type is EventType.CHECKPOINT_SAVED:
        return replace(step, checkpoint=event.number, fingerprint=event.fingerprint)
    if event.type is EventType.ACTION_STARTED:
        begun = OpenAction(event.number, event.attempt, event.in_doubt)
        return replace(step, actions={**step.actions, event.subject: begun})
    if event.type in _ACTION_ENDS:
        return replace(step, actions={name: one for name, one in step.actions.items() if name != event.subject})
    if event.type is EventType.STEP_REVIVED:
        terms = event.terms or step.terms
        return replace(step, status=StepStatus.PENDING, terms=terms, not_before_ms=0, dead_reason=DeadReason.NONE)
    return replace(
        step,
        status=_ENDS[event.type],
        attempts=step.attempts - (event.type is EventType.STEP_YIELDED),
        lock_id="",
        not_before_ms=event.not_before_ms,
        ended=event.number,
        dead_reason=event.dead_reason,
    )


_IN_STEPS: Final = frozenset(
    {EventType.STEP_ADDED, EventType.STEP_CLAIMED, EventType.CHECKPOINT_SAVED, EventType.ACTION_STARTED}
    | {EventType.STEP_REVIVED}
    | _ENDS.keys()
    | _ACTION_ENDS
)
