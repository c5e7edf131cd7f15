"""What the commands for texts print: short lines for people, JSON for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_client.cli._printing import dump, entry_json, escaped, spelled_time, value_text

if TYPE_CHECKING:
    from kokuban_client.types import QuarantinedCommit, Redaction, Revealed, Review, Screening, ScreeningFinding


def screening_lines(found: Screening) -> list[str]:
    """Give the verdict, what was found, and the views that were asked for."""
    lines = [f"{found.verdict}  (rule set {escaped(found.rule_set)})", *map(_finding_line, found.findings)]
    for view in found.views:
        lines += [f"--- {escaped(view.name)}", escaped(view.text, keep_lines=True) + ("…" if view.truncated else "")]
    return lines


def _finding_line(finding: ScreeningFinding) -> str:
    where = "-" if finding.span is None else f"{finding.span[0]}..{finding.span[1]}"
    return "  ".join(map(escaped, (finding.severity, finding.rule, finding.view, where, finding.excerpt)))


def quarantined_lines(commit: QuarantinedCommit) -> list[str]:
    """Give a commit in quarantine on a line, what was found in it on more, and what it would write."""
    source = commit.source.uri if commit.source is not None and commit.source.uri else "-"
    first = "  ".join([commit.id, commit.state, f"by {commit.agent}", f"from {source}", *map(str, commit.keys)])
    reviewed = [f"  {commit.state} by {commit.reviewer}: {commit.review_reason}"] if commit.reviewer else []
    lines = [escaped(line) for line in [first, *reviewed]]
    lines += [f"  {_finding_line(finding)}" for finding in commit.findings]
    for text in commit.texts:
        lines += [f"  | {line}" for line in value_text(text).splitlines()]
    return lines


def quarantined_json(commit: QuarantinedCommit) -> str:
    """Give a commit in quarantine as one line of JSON; what it would write as it is shown to people."""
    return dump(
        {
            "id": commit.id,
            "agent": commit.agent,
            "create_time": spelled_time(commit.create_time),
            "expire_time": spelled_time(commit.expire_time),
            "keys": [{"region": key.region, "path": key.path} for key in commit.keys],
            "source_uri": commit.source.uri if commit.source is not None else None,
            "findings": [{"rule": one.rule, "severity": one.severity, "view": one.view} for one in commit.findings],
            "rule_set": commit.rule_set,
            "state": commit.state,
            "reviewer": commit.reviewer,
            "review_reason": commit.review_reason,
            "texts": [value_text(text) for text in commit.texts],
        }
    )


def review_line(review: Review) -> str:
    """Give what became of a reviewed commit on one line."""
    return escaped("  ".join(filter(None, [review.id, review.state, review.refusal, str(review.revision or "")])))


def review_json(review: Review) -> str:
    """Give what became of a reviewed commit as one line of JSON."""
    revision = str(review.revision) if review.revision is not None else None
    return dump({"id": review.id, "state": review.state, "refusal": review.refusal or None, "revision": revision})


def screening_json(found: Screening) -> str:
    """Give what was found as one line of JSON."""
    return dump(
        {
            "verdict": found.verdict,
            "rule_set": found.rule_set,
            "findings": [
                {
                    "rule": finding.rule,
                    "severity": finding.severity,
                    "view": finding.view,
                    "span": list(finding.span) if finding.span is not None else None,
                    "excerpt": finding.excerpt,
                }
                for finding in found.findings
            ],
            "views": [{"name": view.name, "text": view.text, "truncated": view.truncated} for view in found.views],
            "token": found.token,
        }
    )


def revealed_json(found: Revealed) -> str:
    """Give an opened entry as one line of JSON."""
    texts = [
        {"field": one.field, "opened": one.opened, "unknown_keys": one.unknown_keys, "unopened": one.unopened}
        for one in found.texts
    ]
    return f'{{"entry": {entry_json(found.entry)}, "texts": {dump(texts)}}}'


def unopened_lines(found: Revealed) -> list[str]:
    """Say what could not be opened."""
    return [
        f"{escaped(one.field)}: {one.unknown_keys} under keys that the server has not, {one.unopened} that do not open here"
        for one in found.texts
        if one.unknown_keys or one.unopened
    ]


def redaction_lines(found: Redaction) -> list[str]:
    """Give what was found, and the text without it."""
    more = found.finding_count - len(found.findings)
    whole = ", not searched as a whole" if found.incomplete else ""
    return [
        f"{found.finding_count} found{whole}  (rule set {escaped(found.rule_set)})",
        *(
            "  ".join(map(escaped, (one.kind, one.type, one.view, f"{one.span[0]}..{one.span[1]}")))
            for one in found.findings
        ),
        *([f"and {more} more"] if more else []),
        "--- redacted",
        escaped(found.text, keep_lines=True),
    ]


def redaction_json(found: Redaction) -> str:
    """Give what was found, and the text without it, as one line of JSON."""
    return dump(
        {
            "findings": [
                {"type": one.type, "kind": one.kind, "view": one.view, "span": list(one.span)} for one in found.findings
            ],
            "finding_count": found.finding_count,
            "text": found.text,
            "incomplete": found.incomplete,
            "rule_set": found.rule_set,
            "token": found.token,
        }
    )
