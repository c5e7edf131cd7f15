"""The verdict on a text: the rules over every view of it."""

from __future__ import annotations

import re
from collections import Counter
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple
from unicodedata import category

from kokuban_server.core import limits
from kokuban_server.core.screening.rules import RULES, RULES_VERSION, SETS, Severity
from kokuban_server.core.screening.views import PLAIN, canonical
from kokuban_server.core.trust import SourceKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kokuban_server.core.screening.rules import Rule
    from kokuban_server.core.screening.views import Canonical, View
    from kokuban_server.core.trust import Source

_MATCHES_MAX: Final = 16
"""Of one rule in one view: how often it matches is compared, and more is not told."""
_NEAR_CHARACTERS: Final = 300
_SPELT_MIN: Final = 4


class Verdict(Enum):
    """What becomes of a text, as far as rules can say."""

    ADMIT = 1
    """It is what its source is."""
    ADMIT_AS_DATA = 2
    """It is data, and never an instruction."""
    QUARANTINE = 3
    """It is shown to nobody before a reviewer has seen it."""


class Finding(NamedTuple):
    """What was found, by which rule, and where."""

    rule: str
    severity: Severity
    """How sure it is that nobody means this for people to read."""
    view: str
    """The name of the view in which it was found."""
    span: tuple[int, int] | None
    """Where it stands in the original, in characters; None where that is not known."""
    excerpt: str
    """What matched in the view, made safe to look at, cut where it is long."""


NO_VERDICT: Final = Finding("no-verdict", Severity.GRAVE, PLAIN, None, "")
"""Found in a text over which what screens fails, though it judges others: nobody is shown it before a reviewer has seen it."""


class ShownView(NamedTuple):
    """The beginning of a view, made safe to look at."""

    name: str
    text: str
    is_cut: bool


class Screening(NamedTuple):
    """What screening found."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    """The gravest first."""
    views: tuple[ShownView, ...]
    """Those in which something was found, and which differ from the text as it stands."""
    version: str


def _unseen(view: View, spans: list[tuple[int, int]], plain: View, seen: int) -> list[tuple[int, int]]:
    """Give those of a rule's matches in another spelling that are not among the so many in what it spells otherwise."""
    new = [span for span in spans if view.text[slice(*span)] not in plain.text]
    return (new or spans)[: max(0, len(spans) - seen)]


class _Clue(NamedTuple):
    """What a rule found where everybody can see it."""

    start: int
    end: int
    rule: Rule


def screen(text: str, source: Source) -> Screening:
    """Say what a text would do to whoever takes it for instructions. Takes a text of any characters and any length."""
    return judge(canonical(text), source)


def judge(found: Canonical, source: Source) -> Screening:
    """Say the same of a text whose views are made."""
    views, is_cut = found
    plain = views[0]
    findings = list(_signs(plain.text))
    if is_cut:
        findings.append(Finding("structure.bound", Severity.GRAVE, PLAIN, None, ""))
    if source.kind is SourceKind.EXTERNAL and not source.uri:
        findings.append(Finding("structure.source", Severity.SUSPICIOUS, PLAIN, None, ""))
    seen: dict[str, Counter[str]] = {PLAIN: Counter()}
    clues: list[_Clue] = []
    for rule, spans in _matches(plain):
        seen[PLAIN][rule.id] = len(spans)
        findings += [_finding(rule.id, rule.plain, plain, span) for span in spans]
        clues += [_Clue(start, end, rule) for start, end in spans]
    findings += _combined(plain, clues)
    for view in views[1:]:
        findings += _spelt_out(view)
        counted = seen[view.name] = Counter()
        for rule, spans in _matches(view):
            counted[rule.id] = len(spans)
            concealed = _unseen(view, spans, plain, seen[view.base][rule.id]) if view.base else spans
            findings += [_finding(rule.id, rule.concealed, view, span) for span in concealed]
    findings.sort(key=lambda finding: -finding.severity.value)
    del findings[limits.SCREENED_FINDINGS_ENTRIES_MAX :]
    named = {finding.view for finding in findings}
    shown = [_shown(view) for view in views[1:] if view.name in named][: limits.SCREENED_VIEWS_SHOWN_ENTRIES_MAX]
    return Screening(_verdict(findings, source), tuple(findings), tuple(shown), RULES_VERSION)


def worst_of(findings: Iterable[Finding]) -> Severity:
    """Give the severity of the gravest."""
    return Severity(max((finding.severity.value for finding in findings), default=Severity.NOTE.value))


def with_findings(screening: Screening, more: list[Finding], source: Source) -> Screening:
    """Give the verdict on a text in which more was found than the rules did."""
    findings = sorted([*more, *screening.findings], key=lambda finding: -finding.severity.value)
    del findings[limits.SCREENED_FINDINGS_ENTRIES_MAX :]
    return screening._replace(verdict=_verdict(findings, source), findings=tuple(findings))


def _matches(view: View) -> Iterator[tuple[Rule, list[tuple[int, int]]]]:
    patterns, each = SETS[view.is_spelt]
    for index in patterns.found(view.text):
        spans = []
        for span in each[index].spans(view.text):
            spans.append(span)
            if len(spans) == _MATCHES_MAX:
                break
        yield RULES[index], spans


def _combined(plain: View, clues: list[_Clue]) -> Iterator[Finding]:
    """Two different things side by side in what everybody can see, of which one alone proves nothing."""
    clues.sort(key=lambda clue: clue.start)
    for clue, following in pairwise(clues):
        is_near = following.start - clue.end <= _NEAR_CHARACTERS
        is_suspicious = Severity.SUSPICIOUS in {clue.rule.plain, following.rule.plain}
        if is_near and is_suspicious and clue.rule.family != following.rule.family:
            yield _finding("combined", Severity.GRAVE, plain, (clue.start, max(clue.end, following.end)))
            return


def _spelt_out(view: View) -> Iterator[Finding]:
    """What is written in characters that show nothing is not written for people, whatever it says."""
    last = view.name.rpartition("+")[2]
    if last in _INVISIBLE_WRITING:
        severity = Severity.GRAVE if len(view.text) >= _SPELT_MIN else Severity.SUSPICIOUS
        yield _finding(f"concealed.{last}", severity, view, (0, len(view.text)))


_INVISIBLE_WRITING: Final = frozenset({"tags", "variation-selectors", "zero-width-bits"})
_SIGNS: Final = (
    ("sign.terminal-conceal", Severity.SUSPICIOUS, re.compile(r"\x1b\[(?:[0-9;]{0,32};)?8m")),
    ("sign.direction-override", Severity.SUSPICIOUS, re.compile("[\u202d\u202e]")),
    (
        "sign.zero-width-in-word",
        Severity.SUSPICIOUS,
        re.compile("[A-Za-z\u4e00-\u9fff][\u200b-\u200d\u2060-\u2064\ufeff\u180e]+[A-Za-z\u4e00-\u9fff]"),
    ),
    (
        "sign.mixed-scripts-in-word",
        Severity.NOTE,
        re.compile("[A-Za-z][\u0370-\u03ff\u0400-\u052f]|[\u0370-\u03ff\u0400-\u052f][A-Za-z]"),
    ),
)


def _signs(text: str) -> Iterator[Finding]:
    for rule, severity, pattern in _SIGNS:
        found = pattern.search(text)
        if found:
            yield Finding(rule, severity, PLAIN, found.span(), excerpt_of(found.group()))


def _finding(rule: str, severity: Severity, view: View, span: tuple[int, int]) -> Finding:
    start, end = span
    return Finding(rule, severity, view.name, view.origin(start, end), excerpt_of(view.text[start:end]))


def excerpt_of(text: str) -> str:
    """Give the beginning of what matched, made safe to look at."""
    most = limits.SCREENED_EXCERPT_CHARACTERS_MAX
    return _visible(text[:most])[:most]


def _shown(view: View) -> ShownView:
    most = limits.SCREENED_VIEW_SHOWN_CHARACTERS_MAX
    text = _visible(view.text[:most])
    return ShownView(view.name, text[:most], is_cut=len(view.text) > most or len(text) > most)


_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def _visible(text: str) -> str:
    r"""Give a text of which every character is seen: `\u200b` for a zero-width space, and so on."""
    return "".join(
        character if character in "\n\t" or category(character) not in _UNSEEN else ascii(character)[1:-1]
        for character in text
    )


def _verdict(findings: list[Finding], source: Source) -> Verdict:
    gravest = max((finding.severity.value for finding in findings), default=0)
    if gravest == Severity.GRAVE.value:
        return Verdict.QUARANTINE
    if gravest == Severity.SUSPICIOUS.value or source.kind in {SourceKind.TOOL, SourceKind.EXTERNAL}:
        return Verdict.ADMIT_AS_DATA  # what comes from outside is never more than data, whatever it says
    return Verdict.ADMIT
