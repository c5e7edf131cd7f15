"""What a task has come to, and what must be so of its log whoever was killed on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kokuban_client import EventType, InDoubt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kokuban_client import Board, StepStatus, Task, TaskEvent, TaskStatus

_RECORDED = frozenset({EventType.ACTION_DONE, EventType.ACTION_SKIPPED})
_OF_ACTIONS = frozenset({*_RECORDED, EventType.ACTION_STARTED, EventType.ACTION_FAILED})


class Declared(NamedTuple):
    """An action: what was declared of it, and in which of its step's attempts it took effect outside the board."""

    in_doubt: InDoubt
    attempts: Sequence[int]


class Outcome(NamedTuple):
    """What a task has come to, however it came there."""

    status: TaskStatus
    steps: list[tuple[str, StepStatus]]
    entries: dict[str, Any]
    """Everything in the task's region but its events."""
    recorded: list[tuple[str, str]]
    """The actions that were recorded, with their steps."""
    ends: list[tuple[str, EventType, Any]]
    """Of each step the last checkpoint and the completion, with what they say."""


async def outcome_of(board: Board, found: Task, events: Sequence[TaskEvent]) -> Outcome:
    """Give what a task has come to."""
    entries = {
        entry.path: entry.value async for entry in board.list(f"task:{found.id}") if not entry.path.startswith(".task/")
    }
    recorded = sorted((event.step, event.id) for event in events if event.type in _RECORDED)
    ends = [
        (event.step, event.type, event.entry.value) for step in found.steps for event in _ends_of(events, step.name)
    ]
    return Outcome(found.status, [(step.name, step.status) for step in found.steps], entries, recorded, ends)


def _ends_of(events: Sequence[TaskEvent], step: str) -> list[TaskEvent]:
    of = [event for event in events if event.step == step]
    checkpoints = [event for event in of if event.type is EventType.CHECKPOINT_SAVED]
    return [*checkpoints[-1:], *[event for event in of if event.type is EventType.STEP_COMPLETED]]


def faults_of(found: Task, events: Sequence[TaskEvent], actions: Mapping[tuple[str, str], Declared]) -> Iterator[str]:
    """Say what is not as it must be of a task that is over, whose actions were these, by step and id."""
    if [event.number for event in events] != list(range(1, found.last_event + 1)):
        yield f"{found.id}: the numbers of its events have gaps"
    for step in found.steps:
        yield from _faults_of_attempts([event for event in events if event.step == step.name])
    begun = {(event.step, event.id) for event in events if event.type in _OF_ACTIONS}
    if begun != actions.keys():
        yield f"{found.id}: its actions are {begun}, not {set(actions)}"
    for action, declared in actions.items():
        own = [event for event in events if (event.step, event.id) == action and event.type in _OF_ACTIONS]
        for fault in _faults_of_action(own, declared):
            yield f"{found.id} {action}: {fault}"


def _faults_of_attempts(events: Sequence[TaskEvent]) -> Iterator[str]:
    """Each claim uses the next attempt, and what happens under it is of that attempt."""
    now = 0
    for event in events:
        if event.type is EventType.STEP_CLAIMED:
            now += 1
        if event.type is not EventType.STEP_ADDED and event.attempt != now:
            yield f"attempt {now} is under way, and this is of another: {event}"
        if event.type is EventType.STEP_YIELDED:
            now -= 1


def _faults_of_action(events: Sequence[TaskEvent], declared: Declared) -> Iterator[str]:
    """What was recorded was done once; what was not, as had been declared."""
    is_open = False
    for event in events:
        if event.type is EventType.ACTION_STARTED:
            if is_open and declared.in_doubt is not InDoubt.RETRY:
                yield f"begun again in doubt: {event}"
        elif not is_open:
            yield f"ended, and not begun: {event}"
        is_open = event.type is EventType.ACTION_STARTED
    recorded = [event for event in events if event.type in _RECORDED]
    if not recorded or recorded != list(events[-1:]):
        yield f"not recorded once and last: {recorded}"
        return
    attempts, end = declared.attempts, recorded[0]
    if len(attempts) > sum(event.type is EventType.ACTION_STARTED for event in events):
        yield "done more often than begun"
    if attempts and max(attempts) > end.attempt:
        yield "done again after it was recorded"
    if len(attempts) > 1 and declared.in_doubt is not InDoubt.RETRY:
        yield f"done {len(attempts)} times"
    if not attempts and end.type is EventType.ACTION_DONE:
        yield "recorded as done, and not done"
