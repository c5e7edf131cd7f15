"""What a review of one file gives: findings, and the counts that are added to the team's totals."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FILES, LINES, FUNCTIONS, FINDINGS = "files", "lines", "functions", "findings"


class Kind(enum.StrEnum):
    """What a finding is about. The value is the name of its total on the board."""

    COMPLEX_FUNCTION = "complex-function"
    LONG_FUNCTION = "long-function"
    BROAD_EXCEPT = "broad-except"
    UNUSED_IMPORT = "unused-import"
    MISSING_DOCSTRING = "missing-docstring"
    UNREADABLE_FILE = "unreadable-file"


TOTALS = (FILES, LINES, FUNCTIONS, FINDINGS, *Kind)
"""The names of all totals, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth a second look. `weight` says how much: 1 is just over a bound."""

    kind: Kind
    line: int
    name: str
    text: str
    weight: float


@dataclass(frozen=True, slots=True)
class Review:
    """What was found in one file. `sha256` says in which state of the file."""

    sha256: str
    lines: int
    functions: int
    findings: tuple[Finding, ...]

    @property
    def totals(self) -> dict[str, int]:
        """What this review adds to the team's totals; what it adds nothing to is left out."""
        counts = {
            FILES: 1,
            LINES: self.lines,
            FUNCTIONS: self.functions,
            FINDINGS: len(self.findings),
            **Counter(finding.kind.value for finding in self.findings),
        }
        return {name: count for name, count in counts.items() if count}


def added_up(many: Iterable[dict[str, int]]) -> dict[str, int]:
    """Give the sum of several totals, every name in it."""
    sums = dict.fromkeys(map(str, TOTALS), 0)
    for totals in many:
        for name, count in totals.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Give the findings with the heaviest first; equal ones in the order of their lines."""
    return sorted(findings, key=lambda finding: (-finding.weight, finding.line, finding.name))
