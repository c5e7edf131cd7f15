"""The proof of the fourth part: pure functions over both tasks' events, what they left on the board, and their outboxes."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

from kokuban_client import EventType, StepStatus, TaskStatus
from kokuban_client.demo.courier import (
    CALLS,
    CUSTOMERS,
    DAY,
    DRAFT,
    LEAVE_OUT,
    MAIL,
    Effect,
    invitation,
    mail,
)
from kokuban_client.demo.interrupted_task import ANSWER, COURIERS, LEFT_OUT, USER
from kokuban_client.demo.proof import Check

if TYPE_CHECKING:
    from kokuban_client import TaskEvent
    from kokuban_client.demo.interrupted_task import Ended, Told

_FIRST, _SECOND, _THIRD = COURIERS
_STARTED, _DONE = EventType.ACTION_STARTED, EventType.ACTION_DONE
_ENDS_OF_A_CLAIM = {EventType.STEP_COMPLETED, EventType.STEP_FAILED, EventType.STEP_DEAD, EventType.STEP_YIELDED}
_AS_DECLARED = {
    # It had gone out, as the outbox said: recorded as done, and not begun again.
    mail("birch"): (1, [(_STARTED, _SECOND), (_DONE, _THIRD)]),
    # It had not, as the outbox said: recorded as not done, and then done.
    mail("cedar"): (
        1,
        [(_STARTED, _SECOND), (EventType.ACTION_FAILED, _THIRD), (_STARTED, _THIRD), (_DONE, _THIRD)],
    ),
    Effect.PUBLISH: (2, [(_STARTED, _SECOND), (_STARTED, _THIRD), (_DONE, _THIRD)]),
    Effect.CHAT: (1, [(_STARTED, _SECOND), (EventType.ACTION_SKIPPED, _THIRD)]),
}
"""For each action that is in doubt, how often it is effective, and its events with who recorded each."""


def prove(told: Told) -> list[Check]:
    """Give every check."""
    return [
        _killed(told),
        _recorded(told),
        _in_doubt(told),
        _checkpoint(told),
        _constraint(told),
        _answer(told),
        _gapless(told),
        _equal(told),
    ]


def effects(ended: Ended) -> Counter[str]:
    """Say how often each effect was caused outside the board."""
    return Counter(sent.effect for sent in ended.outbox)


def history(ended: Ended, subject: str) -> list[tuple[EventType, str]]:
    """Give what was recorded of an action, constraint or interrupt, and by whom."""
    return [(event.type, event.entry.author) for event in ended.events if event.id == subject]


def _killed(told: Told) -> Check:
    """One is dead after a step, the other in all of its calls, with each call's policy on record."""
    steps = {step.name: step for step in told.broken.steps}
    in_doubt = {action.id: action.if_in_doubt for action in steps[MAIL].open_actions}
    codes = [told.exit_codes[name] for name in (_FIRST, _SECOND)]
    return Check(
        "one worker was killed between two steps, one in the middle of calls",
        codes == [-signal.SIGKILL] * 2
        and steps[DRAFT].status is StepStatus.DONE
        and steps[MAIL].status is StepStatus.RUNNING
        and in_doubt == {call.action_id: call.if_in_doubt for call in CALLS},
        f"exit codes {', '.join(map(str, codes))}; {len(in_doubt)} calls begun, none of them recorded as ended",
    )


def _recorded(told: Told) -> Check:
    """What was recorded before the workers died is effective once, and nothing more is recorded of it after that."""
    before = [event.id for event in told.ended.events[: told.broken.last_event] if event.type is _DONE]
    counts = effects(told.ended)
    again = {event.id for event in told.ended.events[told.broken.last_event :]}
    return Check(
        "nothing that was recorded was done again",
        sorted(before) == sorted([Effect.WRITE, mail(CUSTOMERS[0])])
        and all(counts[action] == 1 for action in before)
        and again.isdisjoint(before),
        " · ".join(f"{action}: {counts[action]}" for action in before),
    )


def _in_doubt(told: Told) -> Check:
    counts = effects(told.ended)
    return Check(
        "what was in doubt went as its action had declared",
        all(
            (counts[action], history(told.ended, action)) == as_declared for action, as_declared in _AS_DECLARED.items()
        ),
        " · ".join(f"{call.if_in_doubt.value} {call.action_id}: {counts[call.action_id]}" for call in CALLS),
    )


def _checkpoint(told: Told) -> Check:
    """What stands in the checkpoint alone, and is no action, was not found out a second time."""
    saved = [event for event in told.ended.events if event.type is EventType.CHECKPOINT_SAVED]
    claimed = [event.entry.author for event in _claims(told.ended) if event.step == MAIL]
    looked_up = [sent.courier for sent in told.ended.outbox if sent.effect == Effect.LOOK_UP]
    return Check(
        "the next worker went on from the checkpoint",
        looked_up == [_SECOND]
        and [event.entry.author for event in saved] == [_SECOND]
        and claimed == [_SECOND, _THIRD]
        and told.ended.work.get("work/customers") == list(CUSTOMERS),
        f"claims of step {MAIL}: {len(claimed)} · look-ups of its customers: {len(looked_up)}",
    )


def _constraint(told: Told) -> Check:
    """It came in the middle of calls; whom it names was told before it, and is not invited by who goes on."""
    counts = effects(told.ended)
    invited = [customer for customer in CUSTOMERS if counts[invitation(customer)]]
    return Check(
        "the constraint that came in the middle of calls is kept",
        history(told.ended, LEAVE_OUT) == [(EventType.CONSTRAINT_SET, USER)]
        and _came_in_calls(told)
        and invited == [customer for customer in CUSTOMERS if customer != LEFT_OUT]
        and all(counts[mail(customer)] == 1 for customer in CUSTOMERS),
        f"{len(CUSTOMERS)} mailed, {', '.join(invited)} invited",
    )


def _answer(told: Told) -> Check:
    """It was asked once, by one who is dead, and what was answered stands in every invitation."""
    days = {sent.text for sent in told.ended.outbox if sent.effect in map(invitation, CUSTOMERS)}
    asked = history(told.ended, DAY)
    return Check(
        "the dead one's question was answered by its id, and asked once",
        asked == [(EventType.INTERRUPT_OPENED, _SECOND), (EventType.INTERRUPT_ANSWERED, USER)]
        and _came_between(told, EventType.INTERRUPT_ANSWERED)
        and days == {ANSWER},
        f"asked by {_SECOND}, heard by {_THIRD}: {', '.join(sorted(days))}",
    )


def _came_in_calls(told: Told) -> bool:
    """Say whether the user spoke when the courier had begun each of its calls, and was not killed yet."""
    spoken = next(event.number for event in told.ended.events if event.type is EventType.CONSTRAINT_SET)
    step = next(step for step in told.spoken.steps if step.name == MAIL)
    begun = {action.id: action.event for action in step.open_actions}
    return begun.keys() == {call.action_id for call in CALLS} and max(begun.values()) < spoken <= told.spoken.last_event


def _came_between(told: Told, kind: EventType) -> bool:
    """Say whether all such events came after the courier's death in its calls and before the next one's claim."""
    claimed = next((event.number for event in _claims(told.ended) if event.entry.author == _THIRD), 0)
    return all(told.broken.last_event < event.number < claimed for event in told.ended.events if event.type is kind)


def _gapless(told: Told) -> Check:
    """Numbers without a gap; and what was recorded in a step was recorded by whoever had claimed it last."""
    numbers = [event.number for event in told.ended.events]
    return Check(
        "the task's events have no gap, and each step one worker at a time",
        numbers == list(range(1, told.ended.task.last_event + 1)) and not _strangers(told.ended),
        f"{len(numbers)} events, {len(_claims(told.ended))} claims",
    )


def _strangers(ended: Ended) -> list[TaskEvent]:
    """Give the events in a step that are not of the worker that had it then; anybody may add a step and answer a question."""
    holders: dict[str, str] = {}
    found = []
    for event in ended.events:
        if event.type is EventType.STEP_CLAIMED:
            holders[event.step] = event.entry.author
        elif event.step and event.type not in {EventType.STEP_ADDED, EventType.INTERRUPT_ANSWERED}:
            if holders.get(event.step) != event.entry.author:
                found.append(event)
            if event.type in _ENDS_OF_A_CLAIM:
                del holders[event.step]
    return found


def _claims(ended: Ended) -> list[TaskEvent]:
    return [event for event in ended.events if event.type is EventType.STEP_CLAIMED]


def _equal(told: Told) -> Check:
    """The board and the outbox are those of the undisturbed task, but for what declared that it may be done twice."""
    ended, expected = told.ended, told.expected
    more = effects(ended) - effects(expected)
    return Check(
        "the end is that of a task that nobody disturbed",
        all(
            one.task.status is TaskStatus.COMPLETED and all(step.status is StepStatus.DONE for step in one.task.steps)
            for one in (ended, expected)
        )
        and ended.work == expected.work
        and bool(expected.work)
        and {(sent.effect, sent.text) for sent in ended.outbox}
        == {(sent.effect, sent.text) for sent in expected.outbox}
        and set(effects(expected).values()) == {1}
        and more == Counter({Effect.PUBLISH: 1}),
        f"{len(ended.work)} entries, {len(expected.outbox)} effects; more: {', '.join(more) or 'nothing'}",
    )
