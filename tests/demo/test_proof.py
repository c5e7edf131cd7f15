"""The proof must fail when a run went wrong: here the records of a good run are spoilt, one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kokuban_client import Fence, Revision
from kokuban_client.demo.evidence import Crash, Evidence, Handover, Peek, Step, Told
from kokuban_client.demo.findings import added_up
from kokuban_client.demo.layout import (
    RACE,
    SLEEPER,
    SUMMARY,
    SUPERVISOR,
    Conflict,
    PlanItem,
    Refusal,
    Restructuring,
    State,
    Summary,
)
from kokuban_client.demo.proof import prove, recount
from kokuban_client.demo.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

A, B, C, D = "reviewer-1", "reviewer-2", "reviewer-3", "reviewer-4"
NOT_FOUND = "NOT_FOUND: There is no such thing."

ONCE = "every file was reviewed exactly once"
PLANNED = "every file was reviewed as it was planned"
RECOUNT = "totals equal an independent recount"
LOST = "no increment was lost or counted twice"
RACED = "a race for one entry had one winner"
WINNERS = "every conflict named the true winner"
CRASHED = "a killed agent's work was finished by another"
LOCKED = "a locked part of the plan was its holder's alone"
LATE = "a holder paused past its lease wrote nothing"
PRIVATE = "private notes are private"
WATCHED = "the watch told every change once"


def at(number: int) -> Revision:
    return Revision(number, "00c0ffee00c0ffee")


def steps(*states: tuple[int, str, object]) -> list[Step]:
    before = 0
    made = []
    for number, author, value in states:
        made.append(Step(at(number), before, author, value))
        before = number
    return made


def item(state: State, agent: str = "", attempt: int = 0) -> dict[str, object]:
    return PlanItem("/code", "d", state, agent, attempt).to_json()


def totals(lines: int) -> dict[str, int]:
    return {"files": 1, "lines": lines, "functions": 1, "findings": 1, "broad-except": 1}


def told(number: int, author: str, lines: int) -> Told:
    return Told(at(number), 1, author, "d", totals(lines), ())


def fence(number: int, lock_id: str) -> Fence:
    return Fence(lock_id * 32, number, "00c0ffee00c0ffee")


def summary(text: str, under: Fence) -> dict[str, str]:
    return Summary(text, under).to_json()


ORDER = Restructuring("plan/one.py", "put it in order", fence(20, "a"))
HELD, TAKEN_OVER = fence(15, "b"), fence(17, "c")
TRIED = summary("late", HELD)
TO_CLAIM = Refusal("plan/one.py", "LOCKED_BY_OTHER", D, ORDER.purpose, "a" * 32, 20, {})
TO_WRITE_LATE = Refusal(SUMMARY, "LOCK_LOST", SLEEPER, "sum up", "b" * 32, 15, {**TRIED})
RECOUNTED = added_up([totals(10), totals(20)])
GOOD = Evidence(
    planned={"one.py": "d", "two.py": "d"},
    histories={
        "one.py": steps(
            (2, SUPERVISOR, item(State.OPEN)),
            (21, D, item(State.OPEN)),
            (26, A, item(State.CLAIMED, A, 1)),
            (29, A, item(State.DONE, A, 1)),
        ),
        "two.py": steps(
            (2, SUPERVISOR, item(State.OPEN)),
            (5, B, item(State.CLAIMED, B, 1)),
            (7, B, item(State.CLAIMED, B, 1)),
            (11, SUPERVISOR, item(State.OPEN, "", 1)),
            (12, C, item(State.CLAIMED, C, 2)),
            (14, C, item(State.DONE, C, 2)),
        ),
    },
    told={"one.py": told(29, A, 10), "two.py": told(14, C, 20)},
    totals=RECOUNTED,
    work={A: {"files": 1, "findings": 1}, B: {}, C: {"files": 1, "findings": 1}},
    race=steps((1, SUPERVISOR, {"signed": []}), (3, A, {"signed": [A]}), (4, C, {"signed": [A, C]})),
    barrier=[{"agent": A, "read": str(at(1))}, {"agent": C, "read": str(at(1))}],
    conflicts=[Conflict(RACE, C, A, at(1), at(3)), Conflict("plan/two.py", A, C, at(11), at(12))],
    restructuring=steps((22, D, ORDER.to_json()), (24, D, replace(ORDER, done=True).to_json())),
    summary=steps((16, SLEEPER, summary("first", HELD)), (18, SUPERVISOR, summary("second", TAKEN_OVER))),
    refusals=steps((23, A, TO_CLAIM.to_json()), (19, SLEEPER, TO_WRITE_LATE.to_json())),
    handover=Handover(SLEEPER, "sum up", "b" * 32, 15, SUPERVISOR, 2.0),
    crash=Crash(B, "two.py", -9),
    peeks=[Peek(one, other, 1, NOT_FOUND, NOT_FOUND) for one in (A, B, C) for other in (A, B, C) if one != other],
    changes_watched=10,
)


def history(label: str, *states: tuple[int, str, object]) -> Evidence:
    return replace(GOOD, histories={**GOOD.histories, label: steps(*states)})


def two(**other: object) -> Evidence:
    return replace(GOOD, told={**GOOD.told, "two.py": replace(GOOD.told["two.py"], **other)})  # type: ignore[arg-type] # any field


def spoilt_race(place: int, **other: object) -> Evidence:
    race = list(GOOD.race)
    race[place] = replace(race[place], **other)  # type: ignore[arg-type] # as above
    return replace(GOOD, race=race)


def refused(step: Step, refusal: Refusal, number: int = 0, author: str = "", **other: object) -> Evidence:
    """Give the good run with one of its refusals noted otherwise."""
    noted = replace(refusal, **other).to_json()  # type: ignore[arg-type] # as above
    changed = replace(step, revision=at(number) if number else step.revision, author=author or step.author, value=noted)
    return replace(GOOD, refusals=[changed if one is step else one for one in GOOD.refusals])


def claimed_under_lock(number: int = 0, author: str = "", **other: object) -> Evidence:
    return refused(GOOD.refusals[0], TO_CLAIM, number, author, **other)


def written_late(number: int = 0, author: str = "", **other: object) -> Evidence:
    return refused(GOOD.refusals[1], TO_WRITE_LATE, number, author, **other)


def restructuring(*states: tuple[int, str, Restructuring]) -> Evidence:
    return replace(GOOD, restructuring=steps(*((number, author, told.to_json()) for number, author, told in states)))


def summaries(*states: tuple[int, str, object]) -> Evidence:
    return replace(GOOD, summary=steps(*states))


def failing(evidence: Evidence, recounted: dict[str, int] | None = None) -> set[str]:
    return {check.name for check in prove(evidence, recounted or RECOUNTED) if not check.holds}


def test_a_good_run_is_proved() -> None:
    checks = prove(GOOD, RECOUNTED)
    assert [check.name for check in checks] == [
        ONCE,
        PLANNED,
        RECOUNT,
        LOST,
        RACED,
        WINNERS,
        CRASHED,
        LOCKED,
        LATE,
        PRIVATE,
        WATCHED,
    ]
    assert failing(GOOD) == set()
    assert Outcome("r", "memory", 1.0, (A, B, C), GOOD, RECOUNTED, checks).is_proved


OPEN = (2, SUPERVISOR, item(State.OPEN))
RANKED = (21, D, item(State.OPEN))
CLAIM = (26, A, item(State.CLAIMED, A, 1))
DONE = (29, A, item(State.DONE, A, 1))

SPOILT: dict[str, tuple[Callable[[], Evidence], set[str]]] = {
    "a file was never finished": (lambda: history("one.py", OPEN, RANKED, CLAIM), {ONCE, WATCHED}),
    "a file was finished twice": (
        lambda: history("one.py", OPEN, RANKED, CLAIM, (28, A, item(State.DONE, A, 1)), DONE),
        {ONCE, WATCHED},
    ),
    "a file was finished by one who had not claimed it": (
        lambda: history("one.py", OPEN, RANKED, CLAIM, (29, C, item(State.DONE, C, 1))),
        {ONCE},
    ),
    "an agent wrote in another's name": (
        lambda: history("one.py", OPEN, RANKED, CLAIM, (29, C, item(State.DONE, A, 1))),
        {ONCE},
    ),
    "a file was finished without a claim": (lambda: history("one.py", OPEN, RANKED, DONE), {ONCE, WATCHED}),
    "a state is missing from a history": (
        lambda: replace(
            GOOD, histories={**GOOD.histories, "one.py": [*GOOD.histories["one.py"][:2], *GOOD.histories["one.py"][3:]]}
        ),
        {ONCE, WATCHED},
    ),
    "a history is missing": (
        lambda: replace(GOOD, histories={"two.py": GOOD.histories["two.py"]}, changes_watched=6),
        {ONCE, LOCKED},
    ),
    "findings were written twice": (lambda: two(states=2), {ONCE}),
    "findings were told in another commit": (lambda: two(revision=at(13)), {ONCE}),
    "findings are missing": (
        lambda: replace(GOOD, told={"one.py": GOOD.told["one.py"]}),
        {ONCE, PLANNED, LOST},
    ),
    "a file was changed before it was reviewed": (lambda: two(sha256="e"), {PLANNED}),
    "an increment was lost": (
        lambda: replace(GOOD, totals={**GOOD.totals, "lines": 29}),
        {RECOUNT, LOST},
    ),
    "an increment was counted twice": (
        lambda: replace(GOOD, totals={**GOOD.totals, "broad-except": 3}),
        {RECOUNT, LOST},
    ),
    "an agent's own count is off": (lambda: replace(GOOD, work={**GOOD.work, B: {"files": 1}}), {LOST}),
    "both racers won": (lambda: spoilt_race(2, previous_revision=1), {RACED}),
    "the first racer's write is gone": (lambda: spoilt_race(2, value={"signed": [C]}), {RACED}),
    "one racer wrote twice": (lambda: spoilt_race(2, author=A), {RACED}),
    "the loser was not refused": (lambda: replace(GOOD, conflicts=GOOD.conflicts[1:]), {RACED}),
    "the racers had not read the same": (
        lambda: replace(GOOD, barrier=[*GOOD.barrier[:1], {"agent": C, "read": str(at(3))}]),
        {RACED},
    ),
    "only one raced": (lambda: replace(GOOD, barrier=GOOD.barrier[:1]), {RACED}),
    "a conflict named the wrong winner": (
        lambda: replace(GOOD, conflicts=[GOOD.conflicts[0], replace(GOOD.conflicts[1], winner=B)]),
        {WINNERS},
    ),
    "a conflict named a revision that nobody wrote": (
        lambda: replace(GOOD, conflicts=[GOOD.conflicts[0], replace(GOOD.conflicts[1], actual=at(13))]),
        {WINNERS},
    ),
    "no conflict happened": (lambda: replace(GOOD, conflicts=[]), {RACED, WINNERS}),
    "the killed agent ended by itself": (lambda: replace(GOOD, crash=Crash(B, "two.py", 0)), {CRASHED}),
    "the killed agent held nothing": (lambda: replace(GOOD, crash=Crash(B, "one.py", -9)), {CRASHED}),
    "the killed agent finished after its death": (
        lambda: history(
            "two.py",
            OPEN,
            (5, B, item(State.CLAIMED, B, 1)),
            (11, SUPERVISOR, item(State.OPEN, "", 1)),
            (12, B, item(State.CLAIMED, B, 2)),
            (14, B, item(State.DONE, B, 2)),
        ),
        {ONCE, CRASHED, WATCHED, WINNERS},
    ),
    "the claim was taken without being given back": (
        lambda: history(
            "two.py",
            OPEN,
            (5, B, item(State.CLAIMED, B, 1)),
            (12, C, item(State.CLAIMED, C, 2)),
            (14, C, item(State.DONE, C, 2)),
        ),
        {CRASHED, WATCHED},
    ),
    "another wrote in the locked part": (
        lambda: history("one.py", OPEN, RANKED, (23, A, item(State.CLAIMED, A, 1)), DONE),
        {LOCKED},
    ),
    "another wrote in the locked part in the holder's place": (
        lambda: history("one.py", OPEN, (21, C, item(State.OPEN)), CLAIM, DONE),
        {LOCKED},
    ),
    "the holder wrote before the grant": (
        lambda: history("one.py", OPEN, (19, D, item(State.OPEN)), CLAIM, DONE),
        {LOCKED},
    ),
    "the holder wrote after the release": (
        lambda: history("one.py", OPEN, (25, D, item(State.OPEN)), CLAIM, DONE),
        {LOCKED},
    ),
    "the holder left a file out": (lambda: history("one.py", OPEN, CLAIM, DONE), {LOCKED, WATCHED}),
    "nothing was locked": (lambda: replace(GOOD, restructuring=[]), {LOCKED}),
    "the lock was not released": (lambda: replace(GOOD, restructuring=GOOD.restructuring[:1]), {LOCKED}),
    "another told of the release": (
        lambda: restructuring((22, D, ORDER), (24, C, replace(ORDER, done=True))),
        {LOCKED},
    ),
    "another lock was released": (
        lambda: restructuring((22, D, ORDER), (24, D, replace(ORDER, done=True, fence=fence(23, "d")))),
        {LOCKED},
    ),
    "the lock was told of before its grant": (
        lambda: restructuring((19, D, ORDER), (24, D, replace(ORDER, done=True))),
        {LOCKED},
    ),
    "nobody was refused in the locked part": (lambda: replace(GOOD, refusals=GOOD.refusals[1:]), {LOCKED}),
    "a claim was refused before the lock": (lambda: claimed_under_lock(20), {LOCKED}),
    "a claim was refused after the release": (lambda: claimed_under_lock(25), {LOCKED}),
    "the holder was refused under its own lock": (lambda: claimed_under_lock(author=D), {LOCKED}),
    "a claim was refused elsewhere": (lambda: claimed_under_lock(path="plan/two.py"), {LOCKED}),
    "a refusal named the wrong holder": (lambda: claimed_under_lock(holder=C), {LOCKED}),
    "a refusal named another purpose": (lambda: claimed_under_lock(purpose="something else"), {LOCKED}),
    "a refusal named another lock": (lambda: claimed_under_lock(lock_id="d" * 32), {LOCKED}),
    "a refusal's lock has another fence": (lambda: claimed_under_lock(fence_revision=19), {LOCKED}),
    "a claim was refused for another reason": (lambda: claimed_under_lock(reason="REVISION_MISMATCH"), {LOCKED}),
    "the late write was accepted": (
        lambda: replace(
            summaries(
                (16, SLEEPER, summary("first", HELD)),
                (18, SUPERVISOR, summary("second", TAKEN_OVER)),
                (19, SLEEPER, TRIED),
            ),
            refusals=GOOD.refusals[:1],
        ),
        {LATE},
    ),
    "the late write was refused and stands all the same": (
        lambda: summaries(
            (16, SLEEPER, summary("first", HELD)), (18, SUPERVISOR, summary("second", TAKEN_OVER)), (19, SLEEPER, TRIED)
        ),
        {LATE},
    ),
    "the late value stands in the place of the first": (
        lambda: summaries((16, SLEEPER, TRIED), (18, SUPERVISOR, summary("second", TAKEN_OVER))),
        {LATE},
    ),
    "the heir had the older fence": (
        lambda: summaries((16, SLEEPER, summary("first", HELD)), (18, SUPERVISOR, summary("second", fence(14, "c")))),
        {LATE},
    ),
    "the heir had the lock before the first wrote": (
        lambda: summaries((17, SLEEPER, summary("first", HELD)), (18, SUPERVISOR, summary("second", fence(16, "c")))),
        {LATE},
    ),
    "the holder took over from itself": (
        lambda: summaries((16, SLEEPER, summary("first", HELD)), (18, SLEEPER, summary("second", TAKEN_OVER))),
        {LATE},
    ),
    "a state of the summary is missing": (
        lambda: replace(GOOD, summary=[GOOD.summary[0], replace(GOOD.summary[1], previous_revision=17)]),
        {LATE},
    ),
    "nobody took over": (lambda: replace(GOOD, summary=GOOD.summary[:1]), {LATE}),
    "the late write was not refused": (lambda: replace(GOOD, refusals=GOOD.refusals[:1]), {LATE}),
    "the late write came before the heir's": (lambda: written_late(17), {LATE}),
    "another's write was refused": (lambda: written_late(author=C), {LATE}),
    "a late write was refused elsewhere": (lambda: written_late(path=RACE), {LATE}),
    "a late write was refused for another lock": (lambda: written_late(lock_id="c" * 32), {LATE}),
    "a late write had another fence": (lambda: written_late(fence_revision=17), {LATE}),
    "the late write was refused for the heir's lock": (lambda: written_late(reason="LOCKED_BY_OTHER"), {LOCKED, LATE}),
    "another was paused": (lambda: replace(GOOD, handover=replace(GOOD.handover, holder=C)), {LATE}),
    "the one that waited did not take over": (
        lambda: replace(GOOD, handover=replace(GOOD.handover, heir=C)),
        {LATE},
    ),
    "what was waited for was another lock": (
        lambda: replace(GOOD, handover=replace(GOOD.handover, lock_id="c" * 32)),
        {LATE},
    ),
    "what was waited for was another grant": (
        lambda: replace(GOOD, handover=replace(GOOD.handover, fence_revision=14)),
        {LATE},
    ),
    "a private note was read by another": (
        lambda: replace(GOOD, peeks=[replace(GOOD.peeks[0], answer="the note"), *GOOD.peeks[1:]]),
        {PRIVATE},
    ),
    "a refusal gave away that there is a note": (
        lambda: replace(GOOD, peeks=[replace(GOOD.peeks[0], answer="NOT_FOUND: hidden from you"), *GOOD.peeks[1:]]),
        {PRIVATE},
    ),
    "an agent's notes are gone": (
        lambda: replace(GOOD, peeks=[replace(GOOD.peeks[0], own_notes=0), *GOOD.peeks[1:]]),
        {PRIVATE},
    ),
    "nobody looked": (lambda: replace(GOOD, peeks=[]), {PRIVATE}),
    "the watch missed a change": (lambda: replace(GOOD, changes_watched=9), {WATCHED}),
    "the watch told a change twice": (lambda: replace(GOOD, changes_watched=11), {WATCHED}),
    "nothing was planned": (
        lambda: replace(GOOD, planned={}, histories={}, told={}, changes_watched=0),
        {ONCE, LOST, WINNERS, CRASHED, LOCKED, WATCHED},
    ),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_run_is_not_proved(what: str) -> None:
    make, expected = SPOILT[what]
    evidence = make()
    assert failing(evidence) == expected
    assert not Outcome("r", "memory", 1.0, (A, B, C), evidence, RECOUNTED, prove(evidence, RECOUNTED)).is_proved


def test_a_recount_that_differs_is_told_with_its_numbers() -> None:
    wrong = {**RECOUNTED, "lines": 31}
    assert failing(GOOD, wrong) == {RECOUNT}
    (check,) = [one for one in prove(GOOD, wrong) if not one.holds]
    assert check.numbers == "lines 30 ≠ 31"


def test_the_recount_reads_the_files_themselves(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("import os\nx = 1\n")
    sums = recount([tmp_path / "a.py", tmp_path / "b.py"])
    assert (sums["files"], sums["lines"], sums["unused-import"], sums["missing-docstring"]) == (2, 4, 2, 2)
