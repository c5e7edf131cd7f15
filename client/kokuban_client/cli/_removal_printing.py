"""What the commands for provenance and removals print: short lines for people, JSON for machines."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from kokuban_client.cli._printing import dump, escaped, source_json, spelled_time
from kokuban_client.types import ProvenanceLink, RemovalFate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kokuban_client.types import (
        ProvenanceState,
        ProvenanceTrace,
        Removal,
        RemovalFinding,
        RemovalPlan,
        SourceSelector,
        StoreReceipt,
    )


def trace_lines(trace: ProvenanceTrace) -> list[str]:
    """Give what was met as a tree, whose root is the state that was asked about."""
    below: defaultdict[int, list[int]] = defaultdict(list)
    for place, state in enumerate(trace.states[1:], start=1):
        below[state.met_from].append(place)
    more = ["(there is more, further away or beyond --states)"] if trace.truncated else []
    return [*_branch(trace, below, 0, "", ""), *more]


def _branch(
    trace: ProvenanceTrace, below: Mapping[int, Sequence[int]], place: int, own: str, inner: str
) -> Iterator[str]:
    """Give a state and what is below it; `own` stands before its line, `inner` before those of what is below."""
    yield own + escaped(_state(trace.states[place]))
    children = below.get(place, ())
    for child in children:
        corner, line = ("└─ ", "   ") if child == children[-1] else ("├─ ", "│  ")
        yield from _branch(trace, below, child, inner + corner, inner + line)


def _state(state: ProvenanceState) -> str:
    name = str(state.key) if state.revision is None else f"{state.key}@{state.revision}"
    parts = [name if state.link is ProvenanceLink.ASKED else f"{state.link}: {name}"]
    if state.kept:
        parts += [state.trust.name.lower(), f"by {state.agent or '-'}"]
    if (source := state.source) is not None:
        parts.append(f"from {' '.join(filter(None, [str(source.kind), source.name, source.uri]))}")
    if not state.present:
        parts.append("(an earlier state)" if state.kept else "(not kept any more)")
    return "  ".join(parts)


def trace_json(trace: ProvenanceTrace) -> str:
    """Give what was met as one line of JSON."""
    return dump(
        {
            "states": [
                {
                    "region": state.key.region,
                    "path": state.key.path,
                    "revision": None if state.revision is None else str(state.revision),
                    "link": state.link,
                    "from": state.met_from,
                    "depth": state.depth,
                    "trust": state.trust.name.lower(),
                    "source": source_json(state.source),
                    "agent": state.agent or None,
                    "kept": state.kept,
                    "present": state.present,
                }
                for state in trace.states
            ],
            "truncated": trace.truncated,
            "token": trace.token,
        }
    )


def plan_lines(plan: RemovalPlan, *, begun: bool) -> list[str]:
    """Give what would be removed, and how to begin it if that is left to the reader."""
    verb = "erase" if plan.removal.selector is None else "purge"
    counts = [
        f"{_spelled(plan.removed_count, 'state')} removed, {_spelled(plan.deleted_count, 'entry', 'entries')} deleted",
        *([f"{plan.attested_count} kept on another source's word"] if plan.attested_count else []),
        *([f"{plan.undecided_count} undecided"] if plan.undecided_count else []),
        *([f"{_spelled(plan.quarantined_count, 'commit')} in quarantine"] if plan.quarantined_count else []),
        *([f"{_spelled(plan.session_count, 'session')} stopped from writing"] if plan.session_count else []),
    ]
    lines = [f"{verb} of {_what(plan.removal)} would be: {'; '.join(counts)}", *map(_finding, plan.findings)]
    unseen = plan.removed_count - sum(finding.fate is RemovalFate.REMOVED for finding in plan.findings)
    if unseen > 0:
        lines.append(f"  and {unseen} more removed that are not shown")
    if plan.other_boards:
        lines.append(f"  also derived from it, and left as it is: something on {', '.join(plan.other_boards)}")
    if not begun:
        lines.append(f"nothing is removed yet. Within 24 hours, this begins it: kokuban trust {verb} --plan {plan.id}")
    return [escaped(line) for line in lines]


def _finding(finding: RemovalFinding) -> str:
    earlier = "" if finding.present else "  (an earlier state)"
    return f"  {finding.fate}  {finding.key}@{finding.revision}{earlier}"


def _spelled(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def plan_json(plan: RemovalPlan) -> str:
    """Give what would be removed as one line of JSON."""
    return dump(
        {
            "plan": plan.id,
            "removal": _removal(plan.removal),
            "findings": [
                {
                    "region": finding.key.region,
                    "path": finding.key.path,
                    "revision": str(finding.revision),
                    "fate": finding.fate,
                    "present": finding.present,
                }
                for finding in plan.findings
            ],
            "removed_count": plan.removed_count,
            "deleted_count": plan.deleted_count,
            "attested_count": plan.attested_count,
            "undecided_count": plan.undecided_count,
            "quarantined_count": plan.quarantined_count,
            "session_count": plan.session_count,
            "other_boards": list(plan.other_boards),
        }
    )


def removal_lines(removal: Removal) -> list[str]:
    """Give a purge or an erasure on a line, and its receipts on more."""
    verb = "erase" if removal.selector is None else "purge"
    parts = [removal.id, removal.state, f"{verb} of {_what(removal)}", f"by {removal.author}", f"({removal.reason})"]
    if removal.start_time is not None:
        parts.append(f"begun by {removal.starter} {spelled_time(removal.start_time)}")
    if removal.end_time is not None:
        parts.append(f"done {spelled_time(removal.end_time)}")
    return [escaped(line) for line in ["  ".join(parts), *map(_receipt, removal.receipts)]]


def _receipt(receipt: StoreReceipt) -> str:
    until = [f"until compacted to {receipt.revision}"] if receipt.revision is not None else []
    note = [f"({receipt.note})"] if receipt.note else []
    return "  ".join([f"  {receipt.store}", f"{receipt.count} {receipt.status}", *until, *note])


def _what(removal: Removal) -> str:
    if removal.selector is None:
        return f"user {removal.user}" if removal.user else "a user"
    return ", ".join(f"{name} {value}" for name, value in _selector(removal.selector).items() if value)


def _selector(selector: SourceSelector) -> dict[str, str | None]:
    return {
        "uri": selector.uri,
        "uri_pattern": selector.uri_pattern,
        "sha256": selector.content_sha256,
        "by": selector.agent,
        "session": selector.session,
        "since": spelled_time(selector.begin),
        "until": spelled_time(selector.end),
    }


def removal_json(removal: Removal) -> str:
    """Give a purge or an erasure as one line of JSON."""
    return dump(_removal(removal))


def _removal(removal: Removal) -> dict[str, object]:
    return {
        "id": removal.id,
        "state": removal.state,
        "selector": None if removal.selector is None else _selector(removal.selector),
        "user": removal.user or None,
        "reason": removal.reason,
        "allows_reingest": removal.allows_reingest,
        "author": removal.author,
        "create_time": spelled_time(removal.create_time),
        "starter": removal.starter or None,
        "start_time": spelled_time(removal.start_time),
        "end_time": spelled_time(removal.end_time),
        "receipts": [
            {
                "store": receipt.store,
                "status": receipt.status,
                "count": receipt.count,
                "revision": None if receipt.revision is None else str(receipt.revision),
                "note": receipt.note,
            }
            for receipt in removal.receipts
        ],
    }
