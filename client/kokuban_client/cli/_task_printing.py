"""What the commands for tasks print: short lines for people, JSON for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kokuban_client.cli._printing import dump, escaped, spelled_time
from kokuban_client.types import EventType, External, Json, StepStatus, SubtaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kokuban_client.types import StepCounts, Subtask, Task, TaskEvent, TaskPart, TaskStep

_ENDED = frozenset({EventType.ACTION_DONE, EventType.ACTION_SKIPPED})


def task_line(task: Task) -> str:
    """Give a task on one line: its id, how it stands, and how many of its steps are done."""
    return f"{escaped(task.id)}  {task.status.value}  {_done(task.all_steps)}"


def _done(counts: StepCounts) -> str:
    """Say how many of some steps are done."""
    others = {"running": counts.running, "dead": counts.dead}
    told = [
        f"{counts.done} of {counts.total} steps done",
        *(f"{count} {word}" for word, count in others.items() if count),
    ]
    return ", ".join(told)


def task_lines(task: Task) -> Iterator[str]:
    """Give a task, its steps and subtasks as the tree that they are, and what is open."""
    yield task_line(task)
    yield from _part(task, "", "  ")
    for name, number in task.constraints.items():
        yield f"  constraint: {escaped(name)} (event {number})"
    for one in task.interrupts:
        if not one.answered_event:
            yield f"  waits for an answer: {escaped(one.id)} (event {one.opened_event})"


def _part(task: Task, part: str, indent: str) -> Iterator[str]:
    """Give the steps and subtasks of a subtask, or of the task itself."""
    for step in task.steps:
        if _parent(task, step.name) == part:
            yield f"{indent}{_step(step)}"
            for action in step.open_actions:
                yield f"{indent}  in doubt: {escaped(action.id)} (event {action.event}, {action.if_in_doubt.value})"
    for one in task.subtasks:
        if one.parent == part:
            yield f"{indent}{_subtask(one)}"
            yield from _part(task, one.name, f"{indent}  ")


def _parent(task: Task, step: str) -> str:
    """Give the subtask that a step is a part of: the nearest above it."""
    return max((one.name for one in task.subtasks if step.startswith(f"{one.name}/")), key=len, default="")


def _subtask(subtask: Subtask) -> str:
    parts = [f"{escaped(subtask.name)}/", subtask.status.value, _done(subtask.all_steps)]
    if subtask.step:
        parts.append(f"for {escaped(subtask.step)}")
    if subtask.checkpoint_event:
        parts.append(f"checkpoint {subtask.checkpoint_event}")
    for word, numbers in (("results", subtask.result_events), ("lessons", subtask.lesson_events)):
        if numbers:
            parts.append(f"{word} {', '.join(map(str, numbers))}")
    if subtask.completed_event:
        parts.append(f"summary {subtask.completed_event}")
    return "  ".join(parts)


def _step(step: TaskStep) -> str:
    parts = [escaped(step.name), _standing(step), f"attempt {step.attempts} of {step.attempts_max}"]
    if step.depends_on:
        parts.append(f"after {', '.join(map(escaped, step.depends_on))}")
    if step.retry_time is not None:
        parts.append(f"rests until {spelled_time(step.retry_time)}")
    if step.checkpoint_event:
        parts.append(f"checkpoint {step.checkpoint_event}")
    return "  ".join(parts)


def _standing(step: TaskStep) -> str:
    if step.status is StepStatus.RUNNING and not step.held:
        return "worker lost"
    return f"dead ({step.dead_reason.value})" if step.dead_reason is not None else step.status.value


def task_json(task: Task) -> str:
    """Give a task as one line of JSON."""
    return dump(_task(task))


def _task(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "status": task.status.value,
        "last_event": task.last_event,
        "steps": [
            {
                "name": step.name,
                "status": step.status.value,
                "attempts": step.attempts,
                "attempts_max": step.attempts_max,
                "held": step.held,
                "depends_on": list(step.depends_on),
                "labels": list(step.labels),
                "priority": step.priority,
                "retry_time": spelled_time(step.retry_time),
                "checkpoint_event": step.checkpoint_event,
                "dead_reason": None if step.dead_reason is None else step.dead_reason.value,
                "open_actions": [
                    {"id": one.id, "event": one.event, "attempt": one.attempt, "if_in_doubt": one.if_in_doubt.value}
                    for one in step.open_actions
                ],
            }
            for step in task.steps
        ],
        "own_steps": _counts(task.own_steps),
        "all_steps": _counts(task.all_steps),
        "subtasks": [
            {
                "name": one.name,
                "parent": one.parent,
                "status": one.status.value,
                "step": one.step,
                "opened_event": one.opened_event,
                "checkpoint_event": one.checkpoint_event,
                "completed_event": one.completed_event,
                "result_events": list(one.result_events),
                "lesson_events": list(one.lesson_events),
                "notes_expire_time": spelled_time(one.notes_expire_time),
                "own_steps": _counts(one.own_steps),
                "all_steps": _counts(one.all_steps),
            }
            for one in task.subtasks
        ],
        "constraints": dict(task.constraints),
        "interrupts": [
            {"id": one.id, "step": one.step, "opened_event": one.opened_event, "answered_event": one.answered_event}
            for one in task.interrupts
        ],
    }


def part_line(part: TaskPart) -> str:
    """Say how what was waited for stands."""
    status = part.step_status or part.subtask_status or part.task_status
    return f"{status.value}  event {part.ended_event}" if part.ended_event else status.value


def part_json(part: TaskPart) -> str:
    """Give the same as one line of JSON."""
    return dump(
        {
            "over": part.over,
            "task_status": part.task_status.value,
            "step_status": None if part.step_status is None else part.step_status.value,
            "subtask_status": None if part.subtask_status is None else part.subtask_status.value,
            "ended_event": part.ended_event,
        }
    )


def _counts(of: StepCounts) -> dict[str, int]:
    return {"pending": of.pending, "running": of.running, "done": of.done, "dead": of.dead}


def event_line(event: TaskEvent) -> str:
    """Give an event on one line: number, when, who, what, where, and the first of its data."""
    entry = event.entry
    parts = [
        str(event.number),
        spelled_time(entry.create_time) or "-",
        escaped(entry.author) or "-",
        event.type.value,
        escaped(event.step) or "-",
    ]
    parts += [escaped(word) for word in (event.id, entry.metadata.get("name", "")) if word]
    shown = _shown(event)
    if shown:
        parts.append(escaped(shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}…"))
    if entry.metadata.get("error"):
        parts.append(f"error: {escaped(entry.metadata['error'])}")
    return "  ".join(parts)


_SHOWN_MAX = 80


def _shown(event: TaskEvent) -> str:
    entry = event.entry
    if entry.withheld:
        return "(withheld)"
    content = entry.content
    if content is None or isinstance(content, External):
        return ""
    return content.raw if isinstance(content, Json) else str(entry.value)


def event_json(event: TaskEvent) -> str:
    """Give an event as one line of JSON."""
    entry = event.entry
    return dump(
        {
            "number": event.number,
            "type": event.type.value,
            "step": event.step,
            "id": event.id,
            "attempt": event.attempt,
            "author": entry.author,
            "time": spelled_time(entry.create_time),
            "input_tokens": event.input_tokens,
            "output_tokens": event.output_tokens,
            "snapshot": event.snapshot,
            "withheld": entry.withheld,
            "data": _shown(event),
            "metadata": dict(entry.metadata),
        }
    )


def _begin(step: TaskStep) -> int:
    return step.checkpoint_event or step.added_event


def _unfinished(task: Task) -> list[TaskStep]:
    return [step for step in task.steps if step.status in {StepStatus.PENDING, StepStatus.RUNNING}]


def _recorded(step: TaskStep, events: Sequence[TaskEvent]) -> list[TaskEvent]:
    """Give the actions of a step that were recorded after its last checkpoint."""
    return [
        event for event in events if event.step == step.name and event.number > _begin(step) and event.type in _ENDED
    ]


def _awaited(task: Task, step: TaskStep) -> dict[str, str]:
    """Give how those stand that a step waits for: steps that are not done, and subtasks that are not completed."""
    standing = {one.name: _standing(one) for one in task.steps if one.status is not StepStatus.DONE}
    standing |= {one.name: one.status.value for one in task.subtasks if one.status is not SubtaskStatus.COMPLETED}
    return {name: standing[name] for name in step.depends_on if name in standing}


def resumption_lines(task: Task, events: Sequence[TaskEvent]) -> Iterator[str]:
    """Say of each unfinished step from where it would go on, and what would not be done again."""
    yield from task_lines(task)
    for step in _unfinished(task):
        begin = f"checkpoint {step.checkpoint_event}" if step.checkpoint_event else "its beginning"
        behind = sum(event.number > _begin(step) for event in events)
        yield f"{escaped(step.name)} would go on from {begin}, with {behind} events behind it"
        held_up = [f"{escaped(name)} ({standing})" for name, standing in _awaited(task, step).items()]
        if held_up:
            yield f"  waits for: {', '.join(held_up)}"
        for event in _recorded(step, events):
            yield f"  not again: {escaped(event.id)} (event {event.number})"
        for action in step.open_actions:
            yield f"  {_IN_DOUBT[action.if_in_doubt.value]}: {escaped(action.id)} (event {action.event})"


_IN_DOUBT = {
    "retry": "again, as it was not recorded",
    "ask": "somebody has to find out",
    "skip": "passed over, as it was not recorded",
}


def resumption_json(task: Task, events: Sequence[TaskEvent]) -> str:
    """Give the same as one line of JSON."""
    resumptions = [
        {
            "step": step.name,
            "after_event": _begin(step),
            "has_checkpoint": bool(step.checkpoint_event),
            "events_behind": sum(event.number > _begin(step) for event in events),
            "waits_for": _awaited(task, step),
            "recorded_actions": [{"id": event.id, "event": event.number} for event in _recorded(step, events)],
        }
        for step in _unfinished(task)
    ]
    return dump({**_task(task), "resumptions": resumptions})
