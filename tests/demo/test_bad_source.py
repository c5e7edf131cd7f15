"""The third part's proof holds of a good run, and of no run in which anything of the poison was missed or too much was lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kokuban_client import (
    EntryKey,
    ErasureStatus,
    FindingSeverity,
    ProvenanceLink,
    ProvenanceState,
    ProvenanceTrace,
    QuarantinedCommit,
    QuarantineState,
    Removal,
    RemovalFate,
    RemovalFinding,
    RemovalPlan,
    RemovalState,
    Revision,
    ScreeningFinding,
    Source,
    SourceKind,
    SourceSelector,
    StoreReceipt,
    Trust,
)
from kokuban_client.demo.bad_source import (
    BAD_URIS,
    BRIEF,
    EDITION,
    GOOD_PAGES,
    HIDDEN_ORDER,
    LIE,
    NOTES,
    PAGES,
    REGISTER_WRITES,
    Content,
    Page,
    Told,
    summary,
)
from kokuban_client.demo.bad_source_proof import prove

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
AT = Revision(7, "0" * 16)


def met(region: str, path: str, link: ProvenanceLink, depth: int, uri: str = "") -> ProvenanceState:
    source = Source(SourceKind.EXTERNAL, uri) if uri else None
    met_from = max(depth - 1, 0)
    return ProvenanceState(
        EntryKey(region, path), AT, link, met_from, depth, Trust.EXTERNAL, source, "reader", kept=True, present=True
    )


def trace(*states: ProvenanceState, truncated: bool = False) -> ProvenanceTrace:
    return ProvenanceTrace(states, truncated, "t")


BRIEF_ASKED = met(BRIEF, EDITION, ProvenanceLink.ASKED, 0)
NOTE_ABOVE = met(NOTES, LIE.name, ProvenanceLink.DECLARED, 1)
PAGE_ABOVE = met(PAGES, LIE.name, ProvenanceLink.READ_SCOPE, 2, LIE.uri)
PAGE_ASKED = met(PAGES, LIE.name, ProvenanceLink.ASKED, 0, LIE.uri)
NOTE_BELOW = met(NOTES, LIE.name, ProvenanceLink.READ_SCOPE, 1)
BRIEF_BELOW = met(BRIEF, EDITION, ProvenanceLink.DECLARED, 2)
HELD = QuarantinedCommit(
    "1",
    "reader",
    NOON,
    NOON,
    (EntryKey(PAGES, HIDDEN_ORDER.name),),
    Source(SourceKind.EXTERNAL, HIDDEN_ORDER.uri),
    (ScreeningFinding("override.en", FindingSeverity.GRAVE, "html-comment", None, ""),),
    "1",
    QuarantineState.WAITING,
    "",
    "",
)
REMOVAL = Removal(
    "1",
    RemovalState.DONE,
    SourceSelector(uri_pattern=BAD_URIS),
    "",
    "it lies",
    allows_reingest=False,
    author="operator",
    create_time=NOON,
    starter="operator",
    start_time=NOON,
    end_time=NOON,
    receipts=(StoreReceipt("entries", ErasureStatus.ERASED, 3, None, ""),),
)
PLAN = RemovalPlan(
    REMOVAL,
    tuple(
        RemovalFinding(EntryKey(region, path), AT, RemovalFate.REMOVED, present=True)
        for region, path in ((PAGES, LIE.name), (NOTES, LIE.name), (BRIEF, EDITION))
    ),
    removed_count=3,
    deleted_count=3,
    attested_count=0,
    undecided_count=0,
    quarantined_count=1,
    session_count=1,
    other_boards=(),
)
CONTENT = [
    Content(PAGES, "three-copies", "…", "u:1", "reader", "EXTERNAL"),
    Content(BRIEF, EDITION, "…", "", "editor", "EXTERNAL"),
]
GOOD = Told(
    held_back=[HELD],
    lie_trust=Trust.EXTERNAL,
    plain_read="WITHHELD",
    ancestors=trace(BRIEF_ASKED, NOTE_ABOVE, PAGE_ABOVE),
    descendants=trace(PAGE_ASKED, NOTE_BELOW, BRIEF_BELOW),
    tree=[],
    plan=PLAN,
    removal=REMOVAL,
    seen_before=4,
    seen_after=0,
    refused={"its reader writes on": "READ_SCOPE_PURGED", "another fetches it again": "SOURCE_PURGED"},
    written_meanwhile=(REGISTER_WRITES // 2, 3),
    result=CONTENT,
    expected=CONTENT,
)
HELD_BACK, AS_DATA, TRACED_BACK, TRACED_ON, REMOVED, UNSEEN, REFUSED, WORKED_ON, EQUAL = range(9)


def _broken(told: Told) -> list[int]:
    return [number for number, check in enumerate(prove(told)) if not check.holds]


def test_a_good_run_is_proved() -> None:
    assert _broken(GOOD) == []


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({"held_back": []}, [HELD_BACK, REMOVED]),
        ({"held_back": [replace(HELD, source=Source(SourceKind.EXTERNAL, LIE.uri))]}, [HELD_BACK]),
        ({"lie_trust": Trust.AGENT}, [AS_DATA]),
        ({"plain_read": "done"}, [AS_DATA]),
        ({"ancestors": trace(BRIEF_ASKED, NOTE_ABOVE)}, [TRACED_BACK]),
        ({"ancestors": trace(BRIEF_ASKED, PAGE_ABOVE)}, [TRACED_BACK]),
        ({"ancestors": trace(BRIEF_ASKED, NOTE_ABOVE, replace(PAGE_ABOVE, source=None))}, [TRACED_BACK]),
        ({"descendants": trace(PAGE_ASKED, NOTE_BELOW)}, [TRACED_ON]),
        ({"descendants": trace(PAGE_ASKED, NOTE_BELOW, BRIEF_BELOW, NOTE_BELOW)}, [TRACED_ON]),
        ({"descendants": trace(PAGE_ASKED, NOTE_BELOW, BRIEF_BELOW, truncated=True)}, [TRACED_ON]),
        ({"plan": replace(PLAN, findings=PLAN.findings[:2])}, [REMOVED]),
        ({"plan": replace(PLAN, quarantined_count=0)}, [REMOVED]),
        ({"removal": replace(REMOVAL, state=RemovalState.RUNNING)}, [REMOVED]),
        ({"removal": replace(REMOVAL, receipts=())}, [REMOVED]),
        (
            {"removal": replace(REMOVAL, receipts=(StoreReceipt("history", ErasureStatus.UNSUPPORTED, 1, None, ""),))},
            [REMOVED],
        ),
        ({"seen_before": 0}, [UNSEEN]),
        ({"seen_after": 1}, [UNSEEN]),
        ({"refused": {**GOOD.refused, "its reader writes on": "done"}}, [REFUSED]),
        ({"written_meanwhile": (REGISTER_WRITES // 2 - 1, 3)}, [WORKED_ON]),
        ({"result": CONTENT[:1]}, [EQUAL]),
        ({"result": [CONTENT[0], replace(CONTENT[1], value="?")]}, [EQUAL]),
        ({"result": [CONTENT[0], replace(CONTENT[1], trust="AGENT")]}, [EQUAL]),
        ({"result": [], "expected": []}, [EQUAL]),
    ],
)
def test_what_is_not_so_is_noticed(changed: dict[str, Any], broken: list[int]) -> None:
    assert _broken(replace(GOOD, **changed)) == broken


def test_a_summary_is_the_first_sentence_of_each_paragraph() -> None:
    page = "<h1>Title</h1>\n<p>One\nand a half. Two.</p><!-- hidden. --><p>三。四。</p>\n<p>version 1.5 is here</p>"
    assert summary(page) == "One and a half.\n三。\nversion 1.5 is here"


@pytest.mark.parametrize("page", [*GOOD_PAGES, HIDDEN_ORDER, LIE], ids=lambda page: page.name)
def test_each_page_says_something_of_its_own(page: Page) -> None:
    """Else a sentence of a poisoned page could be seen on the board though the page is gone."""
    others = [one.text() for one in (*GOOD_PAGES, HIDDEN_ORDER, LIE) if one != page]
    sentences = summary(page.text()).splitlines()
    assert len(sentences) > 1
    assert not [line for line in sentences if any(line in " ".join(text.split()) for text in others)]
