"""What the commands for provenance and removals print: a tree that can be read, and nothing that steers a terminal."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kokuban_client import (
    EntryKey,
    ErasureStatus,
    ProvenanceLink,
    ProvenanceState,
    ProvenanceTrace,
    Removal,
    RemovalFate,
    RemovalFinding,
    RemovalPlan,
    RemovalState,
    Revision,
    Source,
    SourceKind,
    SourceSelector,
    StoreReceipt,
    Trust,
)
from kokuban_client.cli import _removal_printing as printing

EPOCH = "00c0ffee00c0ffee"
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOSTILE = "https://blog.example/\x1b[2J\u202egnp"


def met(
    path: str, number: int, *, link: ProvenanceLink = ProvenanceLink.ASKED, met_from: int = 0, depth: int = 0
) -> ProvenanceState:
    return ProvenanceState(
        EntryKey("shared:facts", path),
        Revision(number, EPOCH),
        link,
        met_from,
        depth,
        Trust.EXTERNAL,
        None,
        "reader",
        kept=True,
        present=True,
    )


PAGE = replace(met("page", 3), source=Source(SourceKind.EXTERNAL, HOSTILE), agent="browser")
NOTE = met("note", 5, link=ProvenanceLink.READ_SCOPE, depth=1)
OTHER = replace(met("other", 6, link=ProvenanceLink.DECLARED, depth=1), present=False)
BRIEF = met("brief", 8, link=ProvenanceLink.DECLARED, met_from=1, depth=2)
GONE = replace(
    met("brief", 9, link=ProvenanceLink.EXTENDS, met_from=3, depth=3),
    revision=None,
    agent="",
    trust=Trust.UNKNOWN,
    kept=False,
    present=False,
)
PLANNED = Removal(
    "plan-1",
    RemovalState.PLANNED,
    SourceSelector(uri=HOSTILE, end=NOON),
    "",
    "poison",
    allows_reingest=False,
    author="op",
    create_time=NOON,
    starter="",
    start_time=None,
    end_time=None,
    receipts=(),
)
PLAN = RemovalPlan(
    PLANNED,
    (
        RemovalFinding(EntryKey("shared:facts", "page"), Revision(3, EPOCH), RemovalFate.REMOVED, present=True),
        RemovalFinding(EntryKey("shared:facts", "twice"), Revision(4, EPOCH), RemovalFate.ATTESTED, present=False),
    ),
    removed_count=3,
    deleted_count=1,
    attested_count=1,
    undecided_count=2,
    quarantined_count=1,
    session_count=4,
    other_boards=("annex",),
)
DONE = replace(
    PLANNED,
    state=RemovalState.DONE,
    starter="op",
    start_time=NOON,
    end_time=NOON,
    receipts=(
        StoreReceipt("entries", ErasureStatus.ERASED, 2, None, ""),
        StoreReceipt("store_history", ErasureStatus.PENDING_COMPACTION, 5, Revision(11, EPOCH), "until then\x07"),
    ),
)


def trace(*states: ProvenanceState, truncated: bool = False) -> ProvenanceTrace:
    return ProvenanceTrace(states, truncated, "t")


def test_a_trace_is_a_tree_in_which_each_state_stands_below_what_it_was_met_from() -> None:
    shown = printing.trace_lines(trace(PAGE, NOTE, OTHER, BRIEF, GONE, truncated=True))
    assert shown == [
        f"shared:facts/page@3@{EPOCH}  external  by browser  from external https://blog.example/\\x1b[2J\\u202egnp",
        f"├─ read scope: shared:facts/note@5@{EPOCH}  external  by reader",
        f"│  └─ declared: shared:facts/brief@8@{EPOCH}  external  by reader",
        "│     └─ extends: shared:facts/brief  (not kept any more)",
        f"└─ declared: shared:facts/other@6@{EPOCH}  external  by reader  (an earlier state)",
        "(there is more, further away or beyond --states)",
    ]


def test_a_plan_says_what_goes_what_stays_and_what_nobody_knows() -> None:
    shown = printing.plan_lines(PLAN, begun=False)
    assert shown == [
        (
            "purge of uri https://blog.example/\\x1b[2J\\u202egnp, until 2026-11-30T12:00:00Z would be: 3 states removed, "
            "1 entry deleted; 1 kept on another source's word; 2 undecided; 1 commit in quarantine; "
            "4 sessions stopped from writing"
        ),
        f"  removed  shared:facts/page@3@{EPOCH}",
        f"  attested  shared:facts/twice@4@{EPOCH}  (an earlier state)",
        "  and 2 more removed that are not shown",
        "  also derived from it, and left as it is: something on annex",
        "nothing is removed yet. Within 24 hours, this begins it: kokuban trust purge --plan plan-1",
    ]
    assert printing.plan_lines(PLAN, begun=True) == shown[:-1]


def test_an_erasure_is_begun_by_its_own_command() -> None:
    erasure = replace(PLAN, removal=replace(PLANNED, selector=None, user="ann"), other_boards=())
    *_, last = printing.plan_lines(erasure, begun=False)
    assert last.endswith("kokuban trust erase --plan plan-1")
    assert printing.plan_lines(erasure, begun=False)[0].startswith("erase of user ann would be: ")


def test_a_removal_is_shown_with_its_receipts() -> None:
    assert printing.removal_lines(DONE) == [
        (
            "plan-1  done  purge of uri https://blog.example/\\x1b[2J\\u202egnp, until 2026-11-30T12:00:00Z  by op  "
            "(poison)  begun by op 2026-11-30T12:00:00Z  done 2026-11-30T12:00:00Z"
        ),
        "  entries  2 erased",
        f"  store_history  5 pending compaction  until compacted to 11@{EPOCH}  (until then\\x07)",
    ]


@pytest.mark.parametrize(
    "line",
    [
        printing.trace_json(trace(PAGE, GONE)),
        printing.plan_json(PLAN),
        printing.removal_json(DONE),
    ],
)
def test_json_is_one_line_of_ascii_that_keeps_every_character(line: str) -> None:
    assert line.isascii()
    assert "\n" not in line
    assert "\x1b" not in line
    assert json.dumps(HOSTILE) in line
