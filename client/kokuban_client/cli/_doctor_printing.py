"""What the examination of the store prints: short lines for people, JSON for machines."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kokuban_client.cli._printing import dump, escaped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kokuban_client.types import StoreFinding


def finding_line(finding: StoreFinding) -> str:
    """Give a finding on one line: what became of it, which record it is, what is wrong with it."""
    where = f"{finding.board}/{finding.record}" if finding.board else finding.record
    parts = (finding.outcome.value, finding.record_class, where, finding.kind.value)
    return "  ".join(map(escaped, parts)) + f": {escaped(finding.detail)}"


def finding_json(finding: StoreFinding) -> str:
    """Give a finding as one line of JSON."""
    return dump(
        {
            "kind": finding.kind.value,
            "record_class": finding.record_class,
            "board": finding.board,
            "record": finding.record,
            "detail": finding.detail,
            "outcome": finding.outcome.value,
        }
    )


def summary_line(examined: Mapping[str, int], found: Sequence[StoreFinding]) -> str:
    """Give how much was looked at, and what came of it."""
    outcomes = Counter(finding.outcome.value for finding in found)
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())) or "nothing wrong"
    return f"{sum(examined.values())} records looked at: {told}"


def summary_json(examined: Mapping[str, int], found: Sequence[StoreFinding]) -> str:
    """Give the same as one line of JSON, with how many records of each class there were."""
    outcomes = Counter(finding.outcome.value for finding in found)
    return dump({"examined": dict(examined), "outcomes": dict(sorted(outcomes.items()))})
