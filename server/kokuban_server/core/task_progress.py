"""How far a task has come, and each of its subtasks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core.dependencies import needed_for
from kokuban_server.core.subtasks import enclosing
from kokuban_server.core.tasks import StepStatus, TaskStatus

if TYPE_CHECKING:
    from kokuban_server.core.tasks import TaskState


class Progress(NamedTuple):
    """How many steps stand how: of a subtask, or of a task."""

    own: Counter[StepStatus]
    """Those that lie in no subtask of it."""
    total: Counter[StepStatus]
    """All below it."""


class PartStanding(NamedTuple):
    """How a part of a task stands: a step, a subtask, or the task itself."""

    task: TaskStatus
    step: StepStatus | None
    """Of a step."""
    is_completed: bool | None
    """Of a subtask."""
    is_over: bool
    """Nothing more will happen in it, unless a dead step is revived."""
    ended: int
    """The event that ended it; 0 where it is not over, or the end of the task itself is meant."""


def standing_of(state: TaskState, part: str) -> PartStanding | None:
    """Give how a part stands; nothing if there is none of that name. An empty name is the task."""
    is_task_over = state.status is not TaskStatus.OPEN
    step, subtask = state.steps.get(part), state.subtasks.get(part)
    if step is not None:
        has_ended = step.status in {StepStatus.DONE, StepStatus.DEAD}
        return PartStanding(state.status, step.status, None, has_ended or is_task_over, step.ended if has_ended else 0)
    if subtask is not None:
        is_completed = bool(subtask.completed)
        return PartStanding(state.status, None, is_completed, is_completed or is_task_over, subtask.completed)
    return None if part else PartStanding(state.status, None, None, is_task_over, 0)


def left_to_do(state: TaskState, part: str) -> set[str]:
    """Give the steps that must be worked on before a part of a task is over: its own, and those that these depend on.

    Of each subtask among these also the step whose holder has to complete it. Not dead ones: nobody holds them up.
    """
    if state.status is not TaskStatus.OPEN or standing_of(state, part) is None:
        return set()
    needed = needed_for(state, [part] if part else state.steps)
    found = {name for name in needed & state.steps.keys() if state.steps[name].status is not StepStatus.DEAD}
    opened_for = {state.subtasks[name].step for name in needed & state.subtasks.keys()} & state.steps.keys()
    return found | {name for name in opened_for if state.steps[name].status is StepStatus.RUNNING}


def progress(state: TaskState) -> dict[str, Progress]:
    """Give how many steps stand how, for each subtask, and under an empty name for the whole task."""
    of = {name: Progress(Counter(), Counter()) for name in ("", *state.subtasks)}
    for name, step in state.steps.items():
        above = [*enclosing(state.subtasks, name), ""]
        of[above[0]].own[step.status] += 1
        for subtask in above:
            of[subtask].total[step.status] += 1
    return of
