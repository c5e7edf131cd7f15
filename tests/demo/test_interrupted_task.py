"""The fourth part's proof holds of a good run, and of no run in which something was repeated, lost, or not heard."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from kokuban_client import (
    Entry,
    EventType,
    InDoubt,
    OpenAction,
    Revision,
    StepCounts,
    StepStatus,
    Task,
    TaskEvent,
    TaskStatus,
    TaskStep,
)
from kokuban_client.demo.courier import CALLS, CUSTOMERS, DAY, DRAFT, INVITE, LEAVE_OUT, MAIL, STEPS, Sent
from kokuban_client.demo.interrupted_task import ANSWER, COURIERS, LEFT_OUT, USER, Ended, Told
from kokuban_client.demo.interrupted_task_proof import prove

if TYPE_CHECKING:
    from collections.abc import Sequence

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
FIRST, SECOND, THIRD = COURIERS
HAPPENED = [
    (EventType.TASK_CREATED, "", "", USER),
    *((EventType.STEP_ADDED, step.name, "", USER) for step in STEPS),
    (EventType.STEP_CLAIMED, DRAFT, "", FIRST),
    (EventType.ACTION_STARTED, DRAFT, "write", FIRST),
    (EventType.ACTION_DONE, DRAFT, "write", FIRST),
    (EventType.STEP_COMPLETED, DRAFT, "", FIRST),
    (EventType.STEP_CLAIMED, MAIL, "", SECOND),
    (EventType.CHECKPOINT_SAVED, MAIL, "", SECOND),
    (EventType.ACTION_STARTED, MAIL, "mail:acme", SECOND),
    (EventType.ACTION_DONE, MAIL, "mail:acme", SECOND),
    (EventType.INTERRUPT_OPENED, MAIL, DAY, SECOND),
    *((EventType.ACTION_STARTED, MAIL, call.action_id, SECOND) for call in CALLS),
    (EventType.CONSTRAINT_SET, "", LEAVE_OUT, USER),
]
"""Until the second courier is dead."""
DEAD_AT = len(HAPPENED)
SPOKEN_AT = DEAD_AT - 1
"""The place of what the user says while the courier lives."""
HAPPENED += [
    (EventType.INTERRUPT_ANSWERED, MAIL, DAY, USER),
    (EventType.STEP_CLAIMED, MAIL, "", THIRD),
    (EventType.ACTION_DONE, MAIL, "mail:birch", THIRD),
    (EventType.ACTION_FAILED, MAIL, "mail:cedar", THIRD),
    (EventType.ACTION_STARTED, MAIL, "publish", THIRD),
    (EventType.ACTION_DONE, MAIL, "publish", THIRD),
    (EventType.ACTION_SKIPPED, MAIL, "chat", THIRD),
    (EventType.ACTION_STARTED, MAIL, "mail:cedar", THIRD),
    (EventType.ACTION_DONE, MAIL, "mail:cedar", THIRD),
    (EventType.STEP_COMPLETED, MAIL, "", THIRD),
    (EventType.STEP_CLAIMED, INVITE, "", THIRD),
    (EventType.STEP_COMPLETED, INVITE, "", THIRD),
]


def events(*happened: tuple[EventType, str, str, str]) -> list[TaskEvent]:
    def entry(number: int, author: str) -> Entry:
        return Entry(
            "task:announce", f".task/events/{number}", Revision(7, "0" * 16), 7, 1, None, NOON, NOON, None, author
        )

    return [
        TaskEvent(number, kind, step, subject, 1, "", "", 0, 0, entry(number, author))
        for number, (kind, step, subject, author) in enumerate(happened, start=1)
    ]


def step(name: str, status: StepStatus, *open_actions: OpenAction) -> TaskStep:
    return TaskStep(name, status, 1, 3, (), (), 0, False, None, 2, 0, 0, 0, "", None, open_actions)


def task(last_event: int, status: TaskStatus, *steps: TaskStep) -> Task:
    counts = StepCounts(0, 0, len(steps), 0)
    return Task("announce", status, steps, {}, (), last_event, (), counts, counts)


def sent(courier: str, *effects: str) -> list[Sent]:
    return [Sent(courier, effect, ANSWER if effect.startswith("invite:") else "new") for effect in effects]


DONE = tuple(step(one.name, StepStatus.DONE) for one in STEPS)
WORK = {"work/customers": list(CUSTOMERS), "work/day": ANSWER}
IN_DOUBT = [OpenAction(call.action_id, 14, 1, call.if_in_doubt) for call in CALLS]
OUTBOX = [
    *sent(FIRST, "write"),
    *sent(SECOND, "look-up", "mail:acme", "mail:birch", "publish", "chat"),
    *sent(THIRD, "publish", "mail:cedar", "invite:acme", "invite:birch"),
]
ENDED = Ended(task(len(HAPPENED), TaskStatus.COMPLETED, *DONE), events(*HAPPENED), WORK, OUTBOX)
EXPECTED = Ended(
    task(9, TaskStatus.COMPLETED, *DONE), [], WORK, [one for one in OUTBOX if one != Sent(THIRD, "publish", "new")]
)


def in_calls(open_actions: Sequence[OpenAction]) -> Task:
    return task(DEAD_AT, TaskStatus.OPEN, DONE[0], step(MAIL, StepStatus.RUNNING, *open_actions))


BROKEN = in_calls(IN_DOUBT)
GOOD = Told(EXPECTED, ENDED, {FIRST: -9, SECOND: -9}, BROKEN, BROKEN, [])
WAS_KILLED, RECORDED, WENT_AS_DECLARED, CHECKPOINT, CONSTRAINT, ANSWERED, GAPLESS, EQUAL = range(8)


def _broken(told: Told) -> list[int]:
    return [number for number, check in enumerate(prove(told)) if not check.holds]


def test_a_good_run_is_proved() -> None:
    assert _broken(GOOD) == []


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({"exit_codes": {FIRST: -9, SECOND: 0}}, [WAS_KILLED]),
        ({"broken": replace(BROKEN, steps=(DONE[0], DONE[1]))}, [WAS_KILLED]),
        ({"broken": in_calls(IN_DOUBT[:3])}, [WAS_KILLED]),
        ({"broken": in_calls([replace(one, if_in_doubt=InDoubt.ASK) for one in IN_DOUBT])}, [WAS_KILLED]),
        ({"broken": replace(BROKEN, last_event=DEAD_AT + 2)}, [ANSWERED]),
        ({"spoken": in_calls(IN_DOUBT[:3])}, [CONSTRAINT]),
        ({"spoken": in_calls([replace(one, event=DEAD_AT) for one in IN_DOUBT])}, [CONSTRAINT]),
        ({"spoken": replace(BROKEN, last_event=SPOKEN_AT)}, [CONSTRAINT]),
        ({"expected": replace(EXPECTED, work={})}, [EQUAL]),
        ({"expected": replace(EXPECTED, outbox=OUTBOX)}, [EQUAL]),
        ({"expected": replace(EXPECTED, task=task(9, TaskStatus.OPEN, *DONE))}, [EQUAL]),
    ],
)
def test_what_is_not_so_is_noticed(changed: dict[str, Any], broken: list[int]) -> None:
    assert _broken(replace(GOOD, **changed)) == broken


@pytest.mark.parametrize(
    ("outbox", "broken"),
    [
        ([*OUTBOX, *sent(THIRD, "write")], [RECORDED, EQUAL]),
        ([*OUTBOX, *sent(THIRD, "mail:acme")], [RECORDED, CONSTRAINT, EQUAL]),
        ([*OUTBOX, *sent(THIRD, "mail:birch")], [WENT_AS_DECLARED, CONSTRAINT, EQUAL]),
        ([one for one in OUTBOX if one.effect != "mail:cedar"], [WENT_AS_DECLARED, CONSTRAINT, EQUAL]),
        ([*OUTBOX, *sent(THIRD, "chat")], [WENT_AS_DECLARED, EQUAL]),
        ([one for one in OUTBOX if one != Sent(THIRD, "publish", "new")], [WENT_AS_DECLARED, EQUAL]),
        ([*OUTBOX, *sent(THIRD, "look-up")], [CHECKPOINT, EQUAL]),
        ([*OUTBOX, *sent(THIRD, f"invite:{LEFT_OUT}")], [CONSTRAINT, EQUAL]),
        ([*OUTBOX[:-1], replace(OUTBOX[-1], text="some day")], [ANSWERED, EQUAL]),
    ],
)
def test_an_effect_too_many_too_few_or_another_is_noticed(outbox: Sequence[Sent], broken: list[int]) -> None:
    assert _broken(replace(GOOD, ended=replace(ENDED, outbox=outbox))) == broken


def _with(place: int, *happened: tuple[EventType, str, str, str], instead: int = 0) -> Ended:
    """Give the task with something else from a place on."""
    told = [*HAPPENED[:place], *happened, *HAPPENED[place + instead :]]
    return replace(ENDED, events=events(*told), task=replace(ENDED.task, last_event=len(told)))


@pytest.mark.parametrize(
    ("ended", "broken"),
    [
        (replace(ENDED, events=[*ENDED.events[:-2], ENDED.events[-1]]), [GAPLESS]),
        (replace(ENDED, task=replace(ENDED.task, last_event=len(HAPPENED) + 1)), [GAPLESS]),
        (_with(DEAD_AT + 3, (EventType.NOTE, MAIL, "", SECOND)), [GAPLESS]),
        (_with(len(HAPPENED), (EventType.NOTE, INVITE, "", THIRD)), [GAPLESS]),
        (_with(DEAD_AT + 2, (EventType.ACTION_STARTED, MAIL, "mail:acme", THIRD)), [RECORDED]),
        (_with(DEAD_AT + 2, (EventType.ACTION_STARTED, MAIL, "mail:birch", THIRD)), [WENT_AS_DECLARED]),
        (_with(DEAD_AT + 2, (EventType.CHECKPOINT_SAVED, MAIL, "", THIRD)), [CHECKPOINT]),
        (_with(SPOKEN_AT, (EventType.CONSTRAINT_SET, "", LEAVE_OUT, THIRD), instead=1), [CONSTRAINT]),
        (_with(SPOKEN_AT, (EventType.NOTE, "", "", USER), instead=1), [CONSTRAINT]),
        (_with(DEAD_AT + 2, (EventType.INTERRUPT_OPENED, MAIL, DAY, THIRD)), [ANSWERED]),
        (replace(ENDED, work={**WORK, "work/customers": []}), [CHECKPOINT, EQUAL]),
        (replace(ENDED, task=replace(ENDED.task, steps=(*DONE[:2], step(INVITE, StepStatus.DEAD)))), [EQUAL]),
    ],
)
def test_events_that_tell_of_something_else_are_noticed(ended: Ended, broken: list[int]) -> None:
    assert _broken(replace(GOOD, ended=ended)) == broken
