"""What of a task comes before something else of it: steps and subtasks, by their names, of which no two are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_server.core.subtasks import is_within
from kokuban_server.core.tasks import StepStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kokuban_server.core.tasks import TaskState


def is_past(state: TaskState, name: str) -> bool:
    """Say whether what depends on a step or a subtask may begin: the step is done, or the subtask completed."""
    step = state.steps.get(name)
    return bool(state.subtasks[name].completed) if step is None else step.status is StepStatus.DONE


def parts_of(state: TaskState, subtask: str) -> list[str]:
    """Give the steps and subtasks below a subtask: it is not completed before they are over."""
    return [name for name in (*state.steps, *state.subtasks) if name != subtask and is_within(name, subtask)]


def needed_for(state: TaskState, names: Iterable[str]) -> set[str]:
    """Give those of some steps and subtasks that are not past, and all that these wait for, of which nothing is past."""
    found: set[str] = set()
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name not in found and not is_past(state, name):
            found.add(name)
            step = state.steps.get(name)
            wanted += parts_of(state, name) if step is None else step.terms.depends_on
    return found
