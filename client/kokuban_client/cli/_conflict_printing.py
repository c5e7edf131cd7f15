"""What the commands for conflicts print: short lines for people, JSON for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kokuban_client.cli._printing import dump, escaped, spelled_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from kokuban_client.types import ConflictParty, ConflictRecord, ConflictSummary


def conflict_line(conflict: ConflictRecord) -> str:
    """Give a conflict on one line: when, who lost to whom, where, why, what came of it."""
    winner = conflict.winner
    parts = [
        spelled_time(conflict.conflict_time) or "-",
        f"{escaped(conflict.loser.agent) or '-'} lost to {escaped(winner.agent) if winner is not None else '-'}",
        _where(conflict),
        conflict.reason,
        conflict.outcome.value,
    ]
    return "  ".join([*parts, *_revisions(conflict), *_words(conflict)])


def _where(conflict: ConflictRecord) -> str:
    return "/".join(escaped(part) for part in (conflict.region, conflict.path) if part)


def _revisions(conflict: ConflictRecord) -> list[str]:
    if conflict.actual is None:
        return []
    expected = conflict.expected.number if conflict.expected is not None else "none"
    return [f"expected {expected}, is {conflict.actual.number}"]


def _words(conflict: ConflictRecord) -> list[str]:
    words = conflict.winner.purpose if conflict.winner is not None else ""
    return [f"({escaped(words)})"] if words else []


def conflict_json(conflict: ConflictRecord) -> str:
    """Give a conflict as one line of JSON."""
    return dump(
        {
            "id": conflict.id,
            "conflict_time": spelled_time(conflict.conflict_time),
            "kind": conflict.kind.value,
            "reason": conflict.reason,
            "region": conflict.region,
            "path": conflict.path,
            "expected": None if conflict.expected is None else str(conflict.expected),
            "actual": None if conflict.actual is None else str(conflict.actual),
            "loser": _party(conflict.loser),
            "winner": None if conflict.winner is None else _party(conflict.winner),
            "lock_id": conflict.lock_id,
            "retry_of": conflict.retry_of,
            "lost_bytes": conflict.lost_bytes,
            "waited_s": conflict.waited_s,
            "outcome": conflict.outcome.value,
            "outcome_time": spelled_time(conflict.outcome_time),
            "outcome_request_id": conflict.outcome_request_id,
        }
    )


def _party(party: ConflictParty) -> dict[str, Any]:
    return {
        "agent": party.agent,
        "session_id": party.session_id,
        "request_id": party.request_id,
        "traceparent": party.traceparent,
        "act_time": spelled_time(party.act_time),
        "purpose": party.purpose,
    }


def summary_lines(summary: ConflictSummary) -> list[str]:
    """Give an overview on a few lines."""
    if not summary.count:
        return ["no conflicts"]
    outcomes = ", ".join(f"{count} {outcome.value}" for outcome, count in summary.outcomes)
    reasons = ", ".join(f"{count} {reason}" for reason, count in summary.reasons)
    return [
        f"{summary.count} conflicts, {summary.per_hour:.1f} an hour: {outcomes}",
        f"in vain: {summary.lost_bytes} bytes written, {summary.waited_s:.1f} s waited",
        f"why: {reasons}",
        "where:",
        *[f"{count:>7}  {escaped(key.region)}/{escaped(key.path)}" for key, count in summary.paths],
        "between whom:",
        *[
            f"{count:>7}  {escaped(loser) or '-'} lost to {escaped(winner) or '-'}"
            for loser, winner, count in summary.pairs
        ],
    ]


def summary_json(summary: ConflictSummary) -> str:
    """Give an overview as one line of JSON."""
    return dump(
        {
            "count": summary.count,
            "oldest_time": spelled_time(summary.oldest_time),
            "newest_time": spelled_time(summary.newest_time),
            "per_hour": summary.per_hour,
            "paths": [{"region": key.region, "path": key.path, "count": count} for key, count in summary.paths],
            "pairs": [{"loser": loser, "winner": winner, "count": count} for loser, winner, count in summary.pairs],
            "reasons": dict(summary.reasons),
            "outcomes": {outcome.value: count for outcome, count in summary.outcomes},
            "lost_bytes": summary.lost_bytes,
            "waited_s": summary.waited_s,
            "token": summary.token,
        }
    )


def timeline(conflicts: Iterable[ConflictRecord], *, as_json: bool) -> Iterator[str]:
    """Give every act of some conflicts in the order of time, one on each line."""
    acts: list[tuple[datetime, str, str, ConflictRecord]] = []
    for conflict in conflicts:
        winner = conflict.winner
        if winner is not None and winner.act_time is not None:
            acts.append((winner.act_time, winner.agent, "was there", conflict))
        acts.append((conflict.conflict_time, conflict.loser.agent, f"lost: {conflict.reason}", conflict))
        if conflict.outcome_time is not None:
            acts.append((conflict.outcome_time, conflict.loser.agent, conflict.outcome.value, conflict))
    for time, agent, act, conflict in sorted(acts, key=lambda one: one[0]):
        if as_json:
            yield dump(
                {
                    "time": spelled_time(time),
                    "agent": agent,
                    "act": act,
                    "region": conflict.region,
                    "path": conflict.path,
                    "conflict": conflict.id,
                }
            )
        else:
            yield f"{spelled_time(time)}  {conflict.id[:8]}  {escaped(agent) or '-'}  {act}  {_where(conflict)}"
