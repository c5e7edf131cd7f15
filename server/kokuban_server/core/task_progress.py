"""How far a task has come, and each of its subtasks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core.subtasks import enclosing

if TYPE_CHECKING:
    from kokuban_server.core.tasks import StepStatus, TaskState


class Progress(NamedTuple):
    """How many steps stand how: of a subtask, or of a task."""

    own: Counter[StepStatus]
    """Those that lie in no subtask of it."""
    total: Counter[StepStatus]
    """All below it."""


def progress(state: TaskState) -> dict[str, Progress]:
    """Give how many steps stand how, for each subtask, and under an empty name for the whole task."""
    of = {name: Progress(Counter(), Counter()) for name in ("", *state.subtasks)}
    for name, step in state.steps.items():
        above = [*enclosing(state.subtasks, name), ""]
        of[above[0]].own[step.status] += 1
        for subtask in above:
            of[subtask].total[step.status] += 1
    return of
