"""What a commit will change and what it believes, gathered before it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_client import _wire
from kokuban_client._wire import tasks as task_wire
from kokuban_client._wire.labels import provenance
from kokuban_client.types import EventType, Fence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime, timedelta
    from typing import Protocol, TypeAlias

    from kokuban_client.types import Entry, NewStep, Revision, Source, Written

    State: TypeAlias = Entry | Written | tuple[str, str, Revision]
    """An entry in a certain state, or its region, path and revision."""

    class StepHeld(Protocol):
        """A step of a task that is one's own."""

        @property
        def fence(self) -> Fence:
            """The proof that it was given."""

        @property
        def task(self) -> str:
            """The task's id."""

        @property
        def name(self) -> str:
            """The step's id."""

    class Fenced(Protocol):
        """What has a fence: a lock of one's own."""

        @property
        def fence(self) -> Fence:
            """The proof of its grant."""


class Changes:
    """Mutations and beliefs in the order they are given. They reach the server together or not at all."""

    def __init__(self) -> None:
        self._mutations: list[_wire.Mutation] = []
        self._preconditions: list[_wire.EntryPrecondition] = []
        self._released: list[Fence] = []
        self._closed = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing was given."""
        return not self._mutations and not self._preconditions

    def close(self) -> tuple[Sequence[_wire.Mutation], Sequence[_wire.EntryPrecondition]]:
        """Give what was gathered, and take nothing more; raises ValueError if there are only beliefs to check."""
        if not self._mutations:
            raise ValueError("a commit must change something; require alone is not sent")
        self._closed = True
        return self._mutations, self._preconditions

    def put(
        self,
        region: str,
        path: str,
        value: object,
        *,
        at: Revision | None = None,
        must_not_exist: bool = False,
        unconditional: bool = False,
        metadata: Mapping[str, str] | None = None,
        ttl: float | timedelta | None = None,
        expire_time: datetime | None = None,
        mask: Sequence[str] | None = None,
        source: Source | None = None,
        derived_from: Iterable[State] = (),
    ) -> None:
        """Create or change an entry; see `Board.put`."""
        self._add(
            _wire.put(
                region,
                path,
                value,
                at=at,
                must_not_exist=must_not_exist,
                unconditional=unconditional,
                metadata=metadata,
                ttl=ttl,
                expire_time=expire_time,
                mask=mask,
                provenance=provenance(source, derived_from),
            )
        )

    def delete(self, region: str, path: str, *, at: Revision | None = None, unconditional: bool = False) -> None:
        """Delete an entry."""
        self._add(_wire.delete(region, path, at=at, unconditional=unconditional))

    def increment(self, region: str, path: str, by: int = 1) -> None:
        """Add to a whole number."""
        self._add(_wire.increment(region, path, by))

    def append(self, region: str, path: str, *items: object) -> None:
        """Append JSON values to a list."""
        self._add(_wire.append_to_list(region, path, items))

    def add_to_set(self, region: str, path: str, *items: object) -> None:
        """Append those JSON values to a list that it does not hold yet."""
        self._add(_wire.add_to_set(region, path, items))

    def merge_patch(self, region: str, path: str, patch: object, *, at: Revision) -> None:
        """Apply a JSON merge patch."""
        self._add(_wire.merge_patch(region, path, patch, at))

    # Of tasks. What is of a step needs its fence: `step.commit` carries it.

    def add_step(self, task: str, step: NewStep | str) -> None:
        """Add a step to a task; before the completion of the step that it follows from."""
        self._add(task_wire.add_step(task, step))

    def note(self, step: StepHeld, data: object, *, name: str = "") -> None:
        """Record something that happened in a step."""
        self._add(task_wire.event(EventType.NOTE, step.task, step=step.name, data=data, name=name))

    def checkpoint(self, step: StepHeld, state: object, *, config_fingerprint: str = "") -> None:
        """Record a state from which somebody else could go on."""
        self._add(task_wire.checkpoint(step.task, step.name, state, config_fingerprint))

    def complete(self, step: StepHeld, result: object = "") -> None:
        """End a step and release its lock in the same act."""
        self._add(task_wire.complete(step.task, step.name, "DONE", result=result))
        self.release(step.fence)

    def open_subtask(self, task: str, subtask: str, goal: object, *, step: StepHeld | None = None) -> None:
        """Begin a subtask at a path, such as `sub_02`; for a step of one's own, whose it is while one works on it."""
        self._add(task_wire.open_subtask(task, subtask, goal, step="" if step is None else step.name))

    def subtask_checkpoint(self, task: str, subtask: str, state: object, *, config_fingerprint: str = "") -> None:
        """Record a state from which the work on a subtask as a whole could go on."""
        self._add(task_wire.checkpoint(task, "", state, config_fingerprint, subtask=subtask))

    def subtask_result(self, task: str, subtask: str, data: object, *, name: str = "") -> None:
        """Record something that came of a subtask."""
        kind = EventType.SUBTASK_RESULT
        self._add(task_wire.event(kind, task, subtask=subtask, data=data, name=name))

    def subtask_lesson(self, task: str, subtask: str, data: object, *, name: str = "") -> None:
        """Record something that was learnt in a subtask and that others should know."""
        kind = EventType.SUBTASK_LESSON
        self._add(task_wire.event(kind, task, subtask=subtask, data=data, name=name))

    def complete_subtask(self, task: str, subtask: str, summary: object, *, notes_ttl_s: float | None = None) -> None:
        """End a subtask; its working notes, below `notes` there, are kept for `notes_ttl_s` more, else for 7 days."""
        self._add(task_wire.complete_subtask(task, subtask, summary, notes_ttl_s=notes_ttl_s))

    def revive(self, task: str, step: str, reason: str, *, attempts: int = 3) -> None:
        """Give a dead step further attempts."""
        self._add(task_wire.revive(task, step, reason, attempts))

    def constrain(self, task: str, constraint_id: str, wish: object) -> None:
        """Want something of a task from now on, or something else under the same id."""
        self._add(task_wire.event(EventType.CONSTRAINT_SET, task, subject=constraint_id, data=wish))

    def withdraw(self, task: str, constraint_id: str) -> None:
        """Want that no more."""
        self._add(task_wire.event(EventType.CONSTRAINT_WITHDRAWN, task, subject=constraint_id))

    def require(self, region: str, path: str, *, at: Revision | None = None, must_not_exist: bool = False) -> None:
        """Believe something about an entry that the commit need not change."""
        self._refuse_late()
        self._preconditions.append(_wire.requirement(region, path, at=at, must_not_exist=must_not_exist))

    def release(self, lock: Fenced | Fence) -> None:
        """Give a lock back in the same act: the commit holds and the lock is free, or neither."""
        fence = lock if isinstance(lock, Fence) else lock.fence
        self._add(_wire.release_lock(fence))
        self._released.append(fence)

    def _add(self, mutation: _wire.Mutation) -> None:
        self._refuse_late()
        self._mutations.append(mutation)

    def _refuse_late(self) -> None:
        if self._closed:
            raise RuntimeError("this commit has been sent; begin another")
