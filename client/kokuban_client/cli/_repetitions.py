"""Why actions of a task were done again: what was written of each, whether that was read, and whether it was used.

An action that was recorded is never begun again under its id in its step. So what was done twice was either not recorded, or
was another action to Kokuban: of another id, or of another step.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kokuban_client.cli._printing import dump, escaped
from kokuban_client.types import Binary, EventType, InDoubt, Json, Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kokuban_client.types import TaskEvent

_RESULTS = frozenset({EventType.ACTION_DONE, EventType.ACTION_FAILED, EventType.ACTION_SKIPPED})
_ENDS = {
    EventType.STEP_COMPLETED: "its step was completed",
    EventType.STEP_FAILED: "its attempt failed",
    EventType.STEP_DEAD: "its step was given up",
    EventType.STEP_YIELDED: "its step was given back",
}


@dataclass(frozen=True, slots=True)
class Beginning:
    """A time that an action was begun."""

    event: TaskEvent
    claim: TaskEvent | None
    """By which its worker had got the step, with everything that was recorded until then."""
    result: TaskEvent | None
    """What was recorded of it before it was begun again."""
    end: TaskEvent | None
    """How its attempt ended, if there is no result; nothing for a worker that was lost, or goes on."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """An action that was begun more than once, or several that look like one."""

    beginnings: tuple[Beginning, ...]

    @property
    def is_of_one(self) -> bool:
        """Whether it is one and the same action to Kokuban."""
        return len({(one.event.step, one.event.id) for one in self.beginnings}) == 1

    @property
    def is_over_attempts(self) -> bool:
        """Whether it was begun in more than one attempt: within one, the same data is mostly meant to be used twice."""
        return len({(one.event.step, one.event.attempt) for one in self.beginnings}) > 1

    def is_about(self, action: str) -> bool:
        """Say whether an action is among them."""
        return not action or any(one.event.id == action for one in self.beginnings)


def repetitions(events: Sequence[TaskEvent], action: str = "") -> list[Repetition]:
    """Find what was begun more than once in a task, or only an action of this id, in the order of the second beginnings."""
    begun = _begun(events)
    same: dict[tuple[str, str], list[Beginning]] = defaultdict(list)
    alike: dict[str, list[Beginning]] = defaultdict(list)
    for one in begun:
        same[one.event.step, one.event.id].append(one)
        digest = data_digest(one.event)
        if digest:
            alike[digest].append(one)
    found = [Repetition(tuple(group)) for group in same.values() if len(group) > 1]
    for group in alike.values():
        repetition = Repetition(tuple(group))
        if not repetition.is_of_one and repetition.is_over_attempts:
            found.append(repetition)
    found = [one for one in found if one.is_about(action)]
    return sorted(found, key=lambda one: (one.beginnings[1].event.number, not one.is_of_one))


def _begun(events: Sequence[TaskEvent]) -> list[Beginning]:
    """Give every beginning of an action, with what was known when, and what became of it."""
    found: list[Beginning] = []
    claims: dict[str, TaskEvent] = {}
    is_open: dict[tuple[str, str], int] = {}
    for event in events:
        action = event.step, event.id
        if event.type is EventType.STEP_CLAIMED:
            claims[event.step] = event
        elif event.type is EventType.ACTION_STARTED:
            is_open[action] = len(found)
            found.append(Beginning(event, claims.get(event.step), None, None))
        elif event.type in _RESULTS and action in is_open:
            place = is_open.pop(action)
            found[place] = replace(found[place], result=event, end=None)
        elif event.type in _ENDS:
            for (step, _), place in is_open.items():
                one = found[place]
                if step == event.step and one.event.attempt == event.attempt and one.end is None:
                    found[place] = replace(one, end=event)
    return found


def data_digest(event: TaskEvent) -> str:
    """Give what tells whether two actions were begun with the same data; empty where there is none that may be seen."""
    content = event.entry.content
    match content:
        case Text():
            data = content.text.encode()
        case Json():
            data = content.raw.encode()
        case Binary():
            data = content.data
        case _:
            data = b""
    return hashlib.sha256(data).hexdigest() if data else ""


def repetition_lines(task: str, found: Sequence[Repetition], action: str) -> Iterator[str]:
    """Say in plain words what was done again, and why that could be."""
    if not found:
        what = f"{escaped(action)} was not begun" if action else "no action was begun"
        yield f"{what} more than once in {escaped(task)}, and none with the same data looks like it"
    for one in found:
        first, *others = one.beginnings
        if one.is_of_one:
            yield f"{escaped(first.event.id)} in {escaped(first.event.step)} was begun {len(one.beginnings)} times"
        else:
            yield f"these may be one action: all were begun with the same data (sha256 {data_digest(first.event)[:12]})"
        yield f"  {_began(first)}"
        before = first
        for again in others:
            yield f"  {_began(again)}"
            yield f"    written: {_written(before)}"
            yield f"    read: {_read(before, again)}"
            yield f"    used: {_used(before, again)}"
            before = again


def _began(one: Beginning) -> str:
    event = one.event
    who = escaped(event.entry.author) or "somebody"
    return f"event {event.number}: {escaped(event.id)} in {escaped(event.step)}, attempt {event.attempt}, by {who}"


def _written(before: Beginning) -> str:
    intent = f"that it begins (event {before.event.number})"
    if before.result is None:
        return f"{intent}; no result"
    who = escaped(before.result.entry.author) or "somebody"
    return f"{intent}, and {before.result.type.value} (event {before.result.number}, attempt {before.result.attempt}, by {who})"


def _read(before: Beginning, again: Beginning) -> str:
    newest = before.event if before.result is None else before.result
    if again.claim is None:
        return "its worker's claim is not among the events, so that is not known"
    claim = f"the claim (event {again.claim.number})"
    if again.claim.number > newest.number:
        told = f"{claim} gave it to its worker, with all that was written until then"
    elif again.claim.number > before.event.number:
        told = f"{claim} told its worker that it had begun, and not how it ended, which was written later"
    else:
        told = f"{claim} is older than that: the same attempt had it begun twice"
    snapshot = again.event.snapshot
    return f"{told}; its last read was at {escaped(snapshot)}" if snapshot else told


def _used(before: Beginning, again: Beginning) -> str:
    return _WORDS[why(before, again)].format(end=_ended(before), id=escaped(before.event.id))


_WORDS = {
    "other_step": "no: it is another action, as it was begun in another step",
    "other_id": "no: it is another action, as it has another id. Make ids of what the action is for, not of a model's call",
    "not_done": "yes: it was recorded that it has not happened, so it was begun again",
    "retry": "yes: {end} before a result was recorded, and `retry` was declared for that",
    "unknown": "it was begun again without a result; what was declared for that is not among the events",
}


def _ended(before: Beginning) -> str:
    if before.end is None:
        return "its worker was lost, or went on,"
    return f"{_ENDS[before.end.type]} (event {before.end.number})"


def why(before: Beginning, again: Beginning) -> str:
    """Say by a stable name why an action could be begun after another beginning."""
    if before.event.step != again.event.step:
        return "other_step"
    if before.event.id != again.event.id:
        return "other_id"
    if before.result is not None and before.result.type is EventType.ACTION_FAILED:
        return "not_done"
    if before.result is None and before.event.if_in_doubt is InDoubt.RETRY:
        return "retry"
    return "unknown"


def repetition_json(one: Repetition) -> str:
    """Give the same as one line of JSON."""
    befores: list[Beginning | None] = [None, *one.beginnings]
    begun = [_beginning(before, again) for before, again in zip(befores, one.beginnings, strict=False)]
    first = one.beginnings[0].event
    named = {"step": first.step, "action": first.id} if one.is_of_one else {"data_sha256": data_digest(first)}
    return dump({**named, "is_one_action": one.is_of_one, "begun": begun})


def _beginning(before: Beginning | None, one: Beginning) -> dict[str, Any]:
    event = one.event
    return {
        "event": event.number,
        "step": event.step,
        "action": event.id,
        "attempt": event.attempt,
        "author": event.entry.author,
        "snapshot": event.snapshot,
        "if_in_doubt": None if event.if_in_doubt is None else event.if_in_doubt.value,
        "claim_event": None if one.claim is None else one.claim.number,
        "result": None if one.result is None else {"event": one.result.number, "type": one.result.type.value},
        "attempt_ended_by": None if one.end is None else {"event": one.end.number, "type": one.end.type.value},
        "why": None if before is None else why(before, one),
    }
