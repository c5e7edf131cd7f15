"""The proof must fail when a run went wrong: here the records of a good run are spoilt, one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kokuban_client import Revision
from kokuban_client.demo.evidence import Crash, Evidence, Peek, Step, Told
from kokuban_client.demo.findings import added_up
from kokuban_client.demo.layout import RACE, SUPERVISOR, Conflict, PlanItem, State
from kokuban_client.demo.proof import prove, recount
from kokuban_client.demo.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

A, B, C = "reviewer-1", "reviewer-2", "reviewer-3"
NOT_FOUND = "NOT_FOUND: There is no such thing."

ONCE = "every file was reviewed exactly once"
PLANNED = "every file was reviewed as it was planned"
RECOUNT = "totals equal an independent recount"
LOST = "no increment was lost or counted twice"
RACED = "a race for one entry had one winner"
WINNERS = "every conflict named the true winner"
CRASHED = "a killed agent's work was finished by another"
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


RECOUNTED = added_up([totals(10), totals(20)])
GOOD = Evidence(
    planned={"one.py": "d", "two.py": "d"},
    histories={
        "one.py": steps(
            (2, SUPERVISOR, item(State.OPEN)),
            (6, A, item(State.CLAIMED, A, 1)),
            (9, A, item(State.DONE, A, 1)),
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
    told={"one.py": told(9, A, 10), "two.py": told(14, C, 20)},
    totals=RECOUNTED,
    work={A: {"files": 1, "findings": 1}, B: {}, C: {"files": 1, "findings": 1}},
    race=steps((1, SUPERVISOR, {"signed": []}), (3, A, {"signed": [A]}), (4, C, {"signed": [A, C]})),
    barrier=[{"agent": A, "read": str(at(1))}, {"agent": C, "read": str(at(1))}],
    conflicts=[Conflict(RACE, C, A, at(1), at(3)), Conflict("plan/two.py", A, C, at(11), at(12))],
    crash=Crash(B, "two.py", -9),
    peeks=[Peek(one, other, 1, NOT_FOUND, NOT_FOUND) for one in (A, B, C) for other in (A, B, C) if one != other],
    changes_watched=9,
)


def history(label: str, *states: tuple[int, str, object]) -> Evidence:
    return replace(GOOD, histories={**GOOD.histories, label: steps(*states)})


def two(**other: object) -> Evidence:
    return replace(GOOD, told={**GOOD.told, "two.py": replace(GOOD.told["two.py"], **other)})  # type: ignore[arg-type] # any field


def spoilt_race(place: int, **other: object) -> Evidence:
    race = list(GOOD.race)
    race[place] = replace(race[place], **other)  # type: ignore[arg-type] # as above
    return replace(GOOD, race=race)


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
        PRIVATE,
        WATCHED,
    ]
    assert failing(GOOD) == set()
    assert Outcome("r", "memory", 1.0, (A, B, C), GOOD, RECOUNTED, checks).is_proved


OPEN = (2, SUPERVISOR, item(State.OPEN))
CLAIM = (6, A, item(State.CLAIMED, A, 1))
DONE = (9, A, item(State.DONE, A, 1))

SPOILT: dict[str, tuple[Callable[[], Evidence], set[str]]] = {
    "a file was never finished": (lambda: history("one.py", OPEN, CLAIM), {ONCE, WATCHED}),
    "a file was finished twice": (
        lambda: history("one.py", OPEN, CLAIM, (8, A, item(State.DONE, A, 1)), DONE),
        {ONCE, WATCHED},
    ),
    "a file was finished by one who had not claimed it": (
        lambda: history("one.py", OPEN, CLAIM, (9, C, item(State.DONE, C, 1))),
        {ONCE},
    ),
    "an agent wrote in another's name": (
        lambda: history("one.py", OPEN, CLAIM, (9, C, item(State.DONE, A, 1))),
        {ONCE},
    ),
    "a file was finished without a claim": (lambda: history("one.py", OPEN, DONE), {ONCE, WATCHED}),
    "a state is missing from a history": (
        lambda: replace(
            GOOD, histories={**GOOD.histories, "one.py": [*GOOD.histories["one.py"][:1], *GOOD.histories["one.py"][2:]]}
        ),
        {ONCE, WATCHED},
    ),
    "a history is missing": (
        lambda: replace(GOOD, histories={"two.py": GOOD.histories["two.py"]}, changes_watched=6),
        {ONCE},
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
    "the watch missed a change": (lambda: replace(GOOD, changes_watched=8), {WATCHED}),
    "the watch told a change twice": (lambda: replace(GOOD, changes_watched=10), {WATCHED}),
    "nothing was planned": (
        lambda: replace(GOOD, planned={}, histories={}, told={}, changes_watched=0),
        {ONCE, LOST, WINNERS, CRASHED, WATCHED},
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
