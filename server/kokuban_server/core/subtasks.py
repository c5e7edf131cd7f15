"""Subtasks: parts of a task that are paths of its region. What lies below such a path is the subtask's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

NOTES: Final = "notes"
"""Below this path of a subtask lie its working notes, which end some time after it."""


class Subtask(NamedTuple):
    """How a subtask stands. Where it names events, 0 is none."""

    opened: int
    step: str = ""
    """The step for which it was opened: while somebody works on that, it is theirs."""
    checkpoint: int = 0
    fingerprint: str = ""
    """Of the last checkpoint."""
    completed: int = 0
    results: tuple[int, ...] = ()
    lessons: tuple[int, ...] = ()
    notes_expire_ms: int = 0
    """When its working notes end; once it is completed."""


def notes_path(subtask: str) -> str:
    """Give the path below which a subtask's working notes lie."""
    return f"{subtask}/{NOTES}"


def is_within(path: str, above: str) -> bool:
    """Say whether a path is another one, or lies below it."""
    return path == above or path.startswith(f"{above}/")


def enclosing(subtasks: Container[str], path: str) -> Iterator[str]:
    """Give the subtasks that a path lies in, the nearest first; one is not in itself."""
    above = path.rpartition("/")[0]
    while above:
        if above in subtasks:
            yield above
        above = above.rpartition("/")[0]


def parent(subtasks: Container[str], path: str) -> str:
    """Give the subtask that a step or subtask is a part of; empty for the task itself."""
    return next(enclosing(subtasks, path), "")
