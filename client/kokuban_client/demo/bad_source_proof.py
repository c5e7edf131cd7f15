"""The proof of the third part: pure functions over what was told of both boards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_client import ErasureStatus, ProvenanceLink, RemovalState, Trust
from kokuban_client.demo.bad_source import (
    BRIEF,
    CLERK,
    EDITION,
    HIDDEN_ORDER,
    LIE,
    NOTES,
    PAGES,
    REGISTER_WRITES,
)
from kokuban_client.demo.proof import Check

if TYPE_CHECKING:
    from kokuban_client import ProvenanceState, ProvenanceTrace
    from kokuban_client.demo.bad_source import Told

_LIE, _NOTE, _EDITION = (PAGES, LIE.name), (NOTES, LIE.name), (BRIEF, EDITION)


def prove(told: Told) -> list[Check]:
    """Give every check."""
    return [
        _held_back(told),
        _as_data(told),
        _traced_back(told),
        _traced_on(told),
        _removed(told),
        _unseen(told),
        _refused(told),
        _worked_on(told),
        _equal(told),
    ]


def _held_back(told: Told) -> Check:
    """The order hidden in a page is in quarantine, and nothing else is."""
    held = [commit.source.uri if commit.source is not None else "" for commit in told.held_back]
    rules = sorted({finding.rule for commit in told.held_back for finding in commit.findings})
    return Check(
        "the filter held back the page with a hidden order",
        held == [HIDDEN_ORDER.uri] and bool(rules),
        f"{len(held)} in quarantine, found by {', '.join(rules) or 'nothing'}",
    )


def _as_data(told: Told) -> Check:
    return Check(
        "the page that lies got in, as data",
        told.lie_trust is Trust.EXTERNAL and told.plain_read == "WITHHELD",
        f"trusted as {told.lie_trust.name}; a read that does not ask for external text: {told.plain_read}",
    )


def _traced_back(told: Told) -> Check:
    """From the brief, over what its writer declared and what the note's writer had read, to the page and its URI."""
    page = _met(told.ancestors, _LIE)
    note = _met(told.ancestors, _NOTE)
    return Check(
        "the brief is traced back to the page",
        note is not None
        and note.link is ProvenanceLink.DECLARED
        and page is not None
        and page.link is ProvenanceLink.READ_SCOPE
        and page.source is not None
        and page.source.uri == LIE.uri,
        f"{len(told.ancestors.states) - 1} states: notes as declared, pages as read",
    )


def _traced_on(told: Told) -> Check:
    made = [(state.key.region, state.key.path) for state in told.descendants.states[1:]]
    return Check(
        "the page is traced on to all that was made of it, and to nothing else",
        sorted(made) == sorted([_NOTE, _EDITION]) and not told.descendants.truncated,
        ", ".join("/".join(one) for one in made),
    )


def _met(trace: ProvenanceTrace, key: tuple[str, str]) -> ProvenanceState | None:
    return next((state for state in trace.states if (state.key.region, state.key.path) == key), None)


def _removed(told: Told) -> Check:
    """What was planned is done: the page, its note and the brief; and every store's receipt says so."""
    planned = {(finding.key.region, finding.key.path) for finding in told.plan.findings}
    left = [receipt.store for receipt in told.removal.receipts if receipt.status is ErasureStatus.UNSUPPORTED]
    return Check(
        "source and descendants are purged, and that was checked",
        told.removal.state is RemovalState.DONE
        and planned == {_LIE, _NOTE, _EDITION}
        and told.plan.quarantined_count == len(told.held_back)
        and bool(told.removal.receipts)
        and not left,
        f"{told.plan.removed_count} states, {told.plan.quarantined_count} in quarantine; "
        f"receipts of {len(told.removal.receipts)} stores",
    )


def _unseen(told: Told) -> Check:
    """No sentence of the poisoned pages is left in anything that can be read; and it could be seen while it was there."""
    return Check(
        "nothing that the poisoned pages said is left",
        told.seen_before > 0 and told.seen_after == 0,
        f"in {told.seen_before} texts before, present, past and held back; in {told.seen_after} after",
    )


def _refused(told: Told) -> Check:
    return Check(
        "who had read it writes nothing more, and it does not come back",
        list(told.refused.values()) == ["READ_SCOPE_PURGED", "SOURCE_PURGED"],
        " · ".join(f"{what}: {reason}" for what, reason in told.refused.items()),
    )


def _worked_on(told: Told) -> Check:
    after, meanwhile = told.written_meanwhile
    return Check(
        "others worked on",
        after == REGISTER_WRITES // 2,
        f"{after} commits of the {CLERK}'s after it began, {meanwhile} of them before it was done; none refused",
    )


def _equal(told: Told) -> Check:
    """Values, sources, authors and trust are those of the board that the poison never reached."""
    same = sum(one == other for one, other in zip(told.result, told.expected, strict=False))
    return Check(
        "the board is as one that the poison never reached",
        list(told.result) == list(told.expected) and bool(told.expected),
        f"{same} of {len(told.expected)} entries the same, {len(told.result)} there",
    )
