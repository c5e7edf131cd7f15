"""What a classifier is given to read of a text, and what its scores come to.

How it comes to a score is not told here: that takes a model, which is no part of the core.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.screening import concealed
from kokuban_server.core.screening.rules import Severity
from kokuban_server.core.screening.screening import Finding, with_findings
from kokuban_server.core.screening.views import PLAIN
from kokuban_server.core.trust import SourceKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kokuban_server.core.screening.screening import Screening
    from kokuban_server.core.screening.views import Canonical
    from kokuban_server.core.trust import Source

_CJK = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
_LATIN = re.compile("[A-Za-z]")
_LATIN_PER_CJK: Final = 3
"""One of these characters says about as much as so many Latin letters."""
_REMAINDER_LETTERS_MIN: Final = 16
"""Fewer letters than that between Chinese lines are names and numbers."""
_OF_A_KIND_MAX: Final = 4
"""So many findings of a kind say as much as more of them."""


class Reading(NamedTuple):
    """What there is to read in a text, in its plainest spelling, by what reads it. Either may be empty."""

    en: str
    zh: str
    """Lines that are mostly Chinese, or Japanese or Korean."""


def reading(found: Canonical) -> Reading:
    """Give what there is to read in a text: what everybody sees, followed by what was hidden or encoded."""
    views = {view.name: view for view in found.views}
    seen = next(views[name] for name in ("unescaped", "folded", PLAIN) if name in views)
    hidden = [
        view.text
        for view in found.views[1:]
        if not view.base and view.name.rpartition("+")[2] not in concealed.IN_PLACE
    ]
    return _by_language("\n".join((seen.text, *hidden)))


def _by_language(text: str) -> Reading:
    if not _CJK.search(text):
        return Reading(text, "")
    lines: dict[bool, list[str]] = {False: [], True: []}
    for line in text.splitlines():
        cjk = len(_CJK.findall(line))
        lines[cjk > 0 and cjk * _LATIN_PER_CJK >= len(_LATIN.findall(line))].append(line)
    en, zh = "\n".join(lines[False]), "\n".join(lines[True])
    if zh and len(_LATIN.findall(en)) < _REMAINDER_LETTERS_MIN:
        return Reading("", zh)
    return Reading(en, zh)


class Score(NamedTuple):
    """What a classifier makes of a text in one language."""

    language: str
    value: float
    suspicious: float
    """From here on five harmless texts in a hundred lie."""
    grave: float
    """From here on one in a hundred."""

    @property
    def severity(self) -> Severity | None:
        """What a text with this score is taken for; None for one that nothing speaks against."""
        if self.value >= self.grave:
            return Severity.GRAVE
        return Severity.SUSPICIOUS if self.value >= self.suspicious else None


def is_classified(source: Source) -> bool:
    """Say whether a text from there is classified: if it comes from outside. What agents and users write is not."""
    if source.kind is SourceKind.UNDECLARED:
        return bool(source.uri)
    return source.kind in {SourceKind.TOOL, SourceKind.EXTERNAL}


def segments(text: str) -> list[str]:
    """Give the parts that are judged one by one, so that a long text does not hide a short order."""
    size, step = limits.CLASSIFIED_SEGMENT_CHARACTERS_MAX, limits.CLASSIFIED_STEP_CHARACTERS_MAX
    return [text[start : start + size] for start in range(0, max(1, len(text) - size + step), step)]


def signs(screening: Screening, rules: Sequence[str]) -> list[float]:
    """Give what the rules found in numbers: how much in plain sight and not, by severity; then whether each rule did."""
    by_kind = Counter((finding.view == PLAIN, finding.severity) for finding in screening.findings)
    found = {finding.rule for finding in screening.findings}
    kinds = [float(min(by_kind[is_plain, each], _OF_A_KIND_MAX)) for is_plain in (True, False) for each in Severity]
    return kinds + [float(rule in found) for rule in rules]


def classified(screening: Screening, scores: Iterable[Score], source: Source, version: str) -> Screening:
    """Give what was found and what the scores come to, judged together."""
    findings = [
        Finding(f"classifier.{score.language}", score.severity, PLAIN, None, "") for score in scores if score.severity
    ]
    return with_findings(screening, findings, source)._replace(version=f"{screening.version}+{version}")
