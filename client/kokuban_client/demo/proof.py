"""The proof: what must be true of a finished run, checked against the board's own records and an independent recount.

Pure functions: nothing here reads the board or believes what an agent says of itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from kokuban_client.demo import layout
from kokuban_client.demo.findings import FILES, FINDINGS, LINES, TOTALS, added_up
from kokuban_client.demo.layout import PlanItem, Refusal, Restructuring, State, Summary
from kokuban_client.demo.review import review_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kokuban_client import Revision
    from kokuban_client.demo.evidence import Evidence, Step

_KILLED = -9
_RACERS = 2
_HELD_AND_RELEASED = 2
_TWO_WRITERS = 2


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be true: what, whether it is, and the numbers that say so."""

    name: str
    holds: bool
    numbers: str


def recount(paths: Iterable[Path]) -> dict[str, int]:
    """Review all files again, one after another, in this process and without a board; give the totals."""
    return added_up(review_file(path).totals for path in paths)


def prove(evidence: Evidence, recounted: Mapping[str, int]) -> list[Check]:
    """Give every check, those that hold and those that do not."""
    return [
        _reviewed_once(evidence),
        _as_planned(evidence),
        _equal_recount(evidence, recounted),
        _nothing_lost(evidence),
        _race(evidence),
        _winners(evidence),
        _crash(evidence),
        _locked(evidence),
        _late(evidence),
        _privacy(evidence),
        _watched(evidence),
    ]


def _items(history: Sequence[Step]) -> list[PlanItem]:
    return [PlanItem.from_json(step.value) for step in history]


def _reviewed_once(evidence: Evidence) -> Check:
    """Each history ends in its only `done`, written by whom the state before named; findings came in the same commit."""
    good = 0
    for label in evidence.planned:
        history = evidence.histories.get(label, ())
        told = evidence.told.get(label)
        items = _items(history)
        if told is None or sum(item.state is State.DONE for item in items) != 1 or items[-1].state is not State.DONE:
            continue
        unbroken = all(
            step.previous_revision == (before.revision.number if before else 0)
            for before, step in zip((None, *history), history, strict=False)
        )
        claim, done = items[-2:] if len(items) > 1 else (items[-1], items[-1])
        by_claimer = claim.state is State.CLAIMED and claim.agent == done.agent == history[-1].author == told.author
        good += unbroken and by_claimer and told.states == 1 and told.revision == history[-1].revision
    return Check(
        "every file was reviewed exactly once",
        good == len(evidence.planned) == len(evidence.histories) == len(evidence.told) > 0,
        f"{good} of {len(evidence.planned)} histories end once, with the findings in the same commit",
    )


def _as_planned(evidence: Evidence) -> Check:
    same = sum(label in evidence.told and evidence.told[label].sha256 == it for label, it in evidence.planned.items())
    return Check(
        "every file was reviewed as it was planned",
        same == len(evidence.planned),
        f"{same} of {len(evidence.planned)} digests equal",
    )


def _equal_recount(evidence: Evidence, recounted: Mapping[str, int]) -> Check:
    on_board = added_up([dict(evidence.totals)])
    names = on_board.keys() | recounted.keys()
    wrong = sorted(name for name in names if on_board.get(name, 0) != recounted.get(name, 0))
    shown = wrong or [FILES, LINES, FINDINGS]
    return Check(
        "totals equal an independent recount",
        not wrong,
        " · ".join(f"{name} {on_board.get(name, 0):,} = {recounted.get(name, 0):,}" for name in shown).replace(
            " = ", " ≠ " if wrong else " = "
        ),
    )


def _nothing_lost(evidence: Evidence) -> Check:
    """What the agents added up together, by commuting increments, is what stands in the single reviews."""
    on_board = added_up([dict(evidence.totals)])
    reviews = added_up(told.totals for told in evidence.told.values())
    lost = sum(abs(on_board[name] - reviews[name]) for name in TOTALS)
    for counter in (FILES, FINDINGS):
        lost += abs(on_board[counter] - sum(counts.get(counter, 0) for counts in evidence.work.values()))
    return Check(
        "no increment was lost or counted twice",
        lost == 0,
        f"{lost} off between {len(evidence.told)} reviews, {len(TOTALS)} totals and {len(evidence.work)} agents' own",
    )


def _race(evidence: Evidence) -> Check:
    """Both had read the same revision; one wrote, the other was told so, read again, and wrote after it."""
    name = "a race for one entry had one winner"
    steps = evidence.race
    read = {one["read"] for one in evidence.barrier}
    racers = {one["agent"] for one in evidence.barrier}
    if len(steps) != _RACERS + 1 or len(racers) != _RACERS or len(read) != 1:
        return Check(
            name, holds=False, numbers=f"{len(steps)} states, {len(racers)} racers, {len(read)} revisions read"
        )
    begun, first, second = steps
    refused = [one for one in evidence.conflicts if one.path == layout.RACE]
    holds = (
        str(begun.revision) in read
        and first.previous_revision == begun.revision.number
        and second.previous_revision == first.revision.number
        and {first.author, second.author} == racers
        and second.value["signed"] == [first.author, second.author]
        and len(refused) == 1
        and (refused[0].loser, refused[0].winner) == (second.author, first.author)
        and (refused[0].expected, refused[0].actual) == (begun.revision, first.revision)
    )
    return Check(
        name,
        holds,
        f"both read {begun.revision.number}; {first.author} wrote {first.revision.number}, "
        f"{second.author} was refused and wrote {second.revision.number}",
    )


def _winners(evidence: Evidence) -> Check:
    """Whom a loser was told to have been faster really wrote the revision that it was told of."""
    wrote = {(layout.plan_path(label), step.revision): step for label, h in evidence.histories.items() for step in h}
    wrote |= {(layout.RACE, step.revision): step for step in evidence.race}
    true = 0
    for one in evidence.conflicts:
        step = wrote.get((one.path, one.actual)) if one.actual else None
        true += step is not None and step.author == one.winner and _later(one.actual, one.expected)
    return Check(
        "every conflict named the true winner",
        true == len(evidence.conflicts) > 0,
        f"{true} of {len(evidence.conflicts)} conflicts, by the entries' histories",
    )


def _later(one: Revision | None, other: Revision | None) -> bool:
    return one is not None and (other is None or one.number > other.number)


def _crash(evidence: Evidence) -> Check:
    """The killed agent's claim was given back by the supervisor and finished by somebody else."""
    crash = evidence.crash
    name = "a killed agent's work was finished by another"
    history = evidence.histories.get(crash.label, ())
    items = _items(history)
    held = [place for place, item in enumerate(items) if (item.agent, item.state) == (crash.agent, State.CLAIMED)]
    if not held or held[-1] + 1 >= len(items):
        return Check(name, holds=False, numbers=f"{crash.agent} held nothing that was taken over")
    opened = history[held[-1] + 1]
    by = history[-1].author
    holds = (
        crash.exit_code == _KILLED
        and items[held[-1] + 1].state is State.OPEN
        and opened.author == layout.SUPERVISOR
        and opened.previous_revision == history[held[-1]].revision.number
        and items[-1].state is State.DONE
        and by not in {crash.agent, layout.SUPERVISOR}
    )
    end = f"signal {-crash.exit_code}" if crash.exit_code < 0 else f"exit {crash.exit_code}"
    return Check(
        name, holds, f"{crash.agent} ({end}) held {crash.label}; {by} finished it at attempt {items[-1].attempt}"
    )


def _locked(evidence: Evidence) -> Check:
    """From grant to release nobody but the holder wrote there, and who tried was told whose lock it is, and what for.

    Judged by revisions alone: a fence has the number of its grant, and the release is the commit that tells of it.
    """
    name = "a locked part of the plan was its holder's alone"
    refusals = _refused(evidence, "LOCKED_BY_OTHER")
    if len(evidence.restructuring) != _HELD_AND_RELEASED or len(refusals) != 1:
        numbers = f"told of {len(evidence.restructuring)} times, {len(refusals)} refused"
        return Check(name, holds=False, numbers=numbers)
    begun, done = evidence.restructuring
    lock, refused = Restructuring.from_json(begun.value), refusals[0]
    refusal = Refusal.from_json(refused.value)
    granted, released = lock.fence.revision, done.revision.number
    written = [
        [step.author for step in history if granted < step.revision.number <= released]
        for label, history in evidence.histories.items()
        if lock.takes(layout.plan_path(label))
    ]
    holds = (
        Restructuring.from_json(done.value) == replace(lock, done=True)
        and begun.author == done.author != refused.author
        and _rising(granted, begun, refused, done)
        and len(written) > 0
        and all(authors == [begun.author] for authors in written)
        and lock.takes(refusal.path)
        and (refusal.holder, refusal.purpose) == (begun.author, lock.purpose)
        and (refusal.lock_id, refusal.fence_revision) == (lock.fence.lock_id, granted)
    )
    return Check(
        name,
        holds,
        f"{begun.author} alone wrote there from {granted} to {released}, {sum(map(len, written))} times; "
        f"{refused.author} was refused",
    )


def _late(evidence: Evidence) -> Check:
    """Writes came in the order of the fences, and what the paused holder wrote late stands nowhere.

    That it was paused as the holder is what the server told the one that waited behind it.
    """
    name = "a holder paused past its lease wrote nothing"
    refusals = _refused(evidence, "LOCK_LOST")
    if len(evidence.summary) != _TWO_WRITERS or len(refusals) != 1:
        return Check(name, holds=False, numbers=f"{len(evidence.summary)} states, {len(refusals)} refused")
    first, second = evidence.summary
    old, new = (Summary.from_json(step.value).fence for step in evidence.summary)
    handover, refused = evidence.handover, refusals[0]
    refusal = Refusal.from_json(refused.value)
    holds = (
        _rising(old.revision, first, new.revision, second, refused)
        and second.previous_revision == first.revision.number
        and handover.holder == first.author == refused.author != second.author == handover.heir
        and (handover.lock_id, handover.fence_revision) == (old.lock_id, old.revision)
        and (refusal.lock_id, refusal.fence_revision) == (old.lock_id, old.revision)
        and refusal.path == layout.SUMMARY
        and refusal.tried not in (first.value, second.value)
    )
    return Check(
        name,
        holds,
        f"{first.author} wrote under fence {old.revision}, {second.author} under {new.revision}; "
        f"{refused.author}'s late write was refused",
    )


def _refused(evidence: Evidence, reason: str) -> list[Step]:
    return [step for step in evidence.refusals if Refusal.from_json(step.value).reason == reason]


def _rising(*places: Step | int) -> bool:
    """Say whether revisions, each given by itself or by what was written at it, follow one another."""
    numbers = [place if isinstance(place, int) else place.revision.number for place in places]
    return all(before < after for before, after in pairwise(numbers))


def _privacy(evidence: Evidence) -> Check:
    hidden = sum(
        peek.answer.startswith("NOT_FOUND") and peek.answer == peek.answer_for_nothing and peek.own_notes > 0
        for peek in evidence.peeks
    )
    notes = sum({peek.owner: peek.own_notes for peek in evidence.peeks}.values())
    return Check(
        "private notes are private",
        hidden == len(evidence.peeks) > 0,
        f"{notes} notes; {hidden} of {len(evidence.peeks)} looks by others answered NOT_FOUND",
    )


def _watched(evidence: Evidence) -> Check:
    states = sum(map(len, evidence.histories.values()))
    return Check(
        "the watch told every change once",
        evidence.changes_watched == states > 0,
        f"{evidence.changes_watched} told, {states} in the histories",
    )
