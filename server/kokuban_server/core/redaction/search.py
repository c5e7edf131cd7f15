"""What of a text is a secret or personal data, and where: in the text as it stands, and in what is encoded or hidden in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.redaction import readings
from kokuban_server.core.redaction.rules import RANKS, hinted
from kokuban_server.core.screening import decoding, folding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kokuban_server.core.redaction.readings import Reading
    from kokuban_server.core.redaction.rules import Hinted, Rule
    from kokuban_server.core.screening.patterns import Pattern
    from kokuban_server.core.sensitive import Kind

_MASK = re.compile(r"\[redacted:[a-z0-9\-]{1,32}:[0-9a-f]{6}\]")
_ROUNDS_MAX: Final = 4
_BACK_BYTES: Final = 32
"""How far before the end of what a check did not take the search goes on: a number may begin within what looked like one."""
_REPEATED_MIN: Final = 8
_NUMBERS: Final = frozenset({"bank-card", "cn-id", "cn-phone", "phone", "ssn", "iban"})
_NOT_OF_NUMBERS = re.compile(r"[^0-9A-Za-z]")


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found."""

    type: str
    """What it is: `github-token`, `email`."""
    kind: Kind
    reading: str
    """How it reads: `plain`, or how that was made of it, the last step last: `base64+unescaped`."""
    start: int
    end: int
    """Where it stands in the text as it was given, in characters. What is encoded stands where the whole of its code does."""
    value: str = field(repr=False)
    """What was found, a number without what parts its digits. It is never shown, stored or logged."""


class Found(NamedTuple):
    """What was found in a text."""

    findings: tuple[Finding, ...]
    """In the order in which they begin. Those of different types may overlap; those of one type do not."""
    is_whole: bool
    """No bound was reached. If one was, there may be more, encoded deeper or more often than is looked for."""


def find(text: str, sealed: Iterable[tuple[int, int]] = (), *, is_json: bool = False, addresses: bool = False) -> Found:
    """Say what is secret or personal in a text of any characters; `addresses` of networks only if asked for.

    What is said to be JSON has been parsed before, and is read with the escapes in its strings undone. Masks are not searched,
    nor what is `sealed`. Raises `NotSearchedError`, after which nothing is known.
    """
    text = folding.whole(text)
    holes = merged([*(match.span() for match in _MASK.finditer(text)), *sealed])
    findings: list[Finding] = []
    is_whole = True
    # What stands beside a mask may be found only now that it does not stand beside what was masked. Searching until nothing is
    # found any more is what makes masking twice the same as masking once.
    for _ in range(_ROUNDS_MAX):
        plain = readings.with_holes(text, holes)
        if is_json:
            plain = readings.json_strings(plain)
        search = _Search(plain, addresses=addresses)
        is_whole &= search.is_whole
        if not search.findings:
            break
        findings += search.findings
        holes = merged([*holes, *((finding.start, finding.end) for finding in search.findings)])
    else:
        is_whole = False
    return Found(tuple(_once(findings)), is_whole)


def is_clean(text: str) -> bool:
    """Say whether `find` finds nothing in a text, in less time for what is ordinary; false also where that takes more.

    Raises `NotSearchedError`.
    """
    hints = hinted(text, addresses=False)
    if not hints.encodings <= _CHEAP:
        return False
    raw, looks = text.encode(), 0
    for rule, pattern in hints.rules:
        for span in _candidates(rule, pattern, raw):
            looks += 1
            if looks > _LOOKS_MAX or span is not None:
                return False
    # Nearly every text has words as long as the shortest code, and nearly none is one.
    return not hints.encodings or not decoding.has_short_base64(text)


_CHEAP: Final = {"base64"}
_LOOKS_MAX: Final = 64
"""What only looks like something is looked at so often; a text that is full of it takes more time than there is."""


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Give spans in their order, those that overlap as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _once(findings: list[Finding]) -> Iterator[Finding]:
    """Give what was found, of those of one type that overlap only the first that was found, standing where all of them do."""
    kept: list[tuple[int, Finding]] = []
    last: dict[str, int] = {}
    for order, finding in sorted(enumerate(findings), key=lambda one: one[1].start):
        place = last.get(finding.type)
        if place is None or kept[place][1].end <= finding.start:
            last[finding.type] = len(kept)
            kept.append((order, finding))
            continue
        other = kept[place][1]
        first, told = min(kept[place], (order, finding), key=lambda one: one[0])
        kept[place] = first, replace(told, start=other.start, end=max(other.end, finding.end))
    return (finding for _, finding in kept)


class _Match(NamedTuple):
    start: int
    end: int
    rule: Rule
    rank: int


class _Search:
    """Looks through a text, and through what is encoded in it, to a depth."""

    def __init__(self, plain: Reading, *, addresses: bool) -> None:
        self.findings: list[Finding] = []
        self.is_whole = True
        self._addresses = addresses
        self._left = limits.REDACTED_CHARACTERS_MIN + limits.REDACTED_TIMES_MAX * len(plain.text)
        self._seen: set[readings.Seen] = set()
        self._told: dict[str, Rule] = {}
        self._look_through(plain, "", 0)
        self._find_again(plain)

    def _look_through(self, reading: Reading, prefix: str, depth: int) -> None:
        if depth > limits.REDACTED_DEPTH_MAX:
            self.is_whole = False
            return
        hints = self._search(reading)
        if hints is None:
            return
        if "folds" in hints.encodings:
            for taken in readings.concealed_in(reading, prefix):
                self._look_through(taken, f"{taken.name}+", depth + 1)
            reading = readings.folded(reading, f"{prefix}folded")
            hints = self._search(reading)
            if hints is None:
                return
        for taken in readings.decoded(reading, prefix, hints.encodings, self._seen):
            self._look_through(taken, f"{taken.name}+", depth + 1)
        if "escapes" in hints.encodings:
            unescaped = readings.unescaped(reading, f"{prefix}unescaped")
            if unescaped is not None:
                self._look_through(unescaped, f"{unescaped.name}+", depth + 1)

    def _search(self, reading: Reading) -> Hinted | None:
        """Search one reading; give what else it hints at, or nothing where there is no room for it."""
        if len(reading.text) > self._left:
            self.is_whole = False
            return None
        self._left -= len(reading.text)
        hints = hinted(reading.text, addresses=self._addresses)
        if hints.rules:
            raw = reading.text.encode()
            matches = [
                _Match(start, end, rule, RANKS[rule.type])
                for rule, pattern in hints.rules
                for start, end in _spans(rule, pattern, raw)
            ]
            for match in _in_characters(reading.text, raw, _best(matches)):
                self._add(reading, match.rule, match.start, match.end)
        return hints

    def _add(self, reading: Reading, rule: Rule, start: int, end: int) -> None:
        value = reading.text[start:end]
        # `postgres` is a password of some, and a word.
        is_telling = rule.is_told and len(value) >= _REPEATED_MIN and not value.isalpha()
        if is_telling and len(self._told) < limits.REDACTED_REPEATED_ENTRIES_MAX:
            self._told.setdefault(value, rule)
        if rule.type in _NUMBERS:
            value = _NOT_OF_NUMBERS.sub("", value).upper()
        self.findings.append(Finding(rule.type, rule.kind, reading.name, *reading.origin(start, end), value))

    def _find_again(self, plain: Reading) -> None:
        """Find what words have told to be secret where no words tell it."""
        for value, rule in self._told.items():
            at = plain.text.find(value)
            while at >= 0:
                self._add(plain, rule, at, at + len(value))
                at = plain.text.find(value, at + len(value))


def _candidates(rule: Rule, pattern: Pattern, raw: bytes) -> Iterator[tuple[int, int] | None]:
    """Give, for each place that looks like what a rule finds, where that stands; nothing where its check does not take it."""
    at = 0
    while (part := pattern.next_part(raw, at)) is not None:
        start, end = part
        span = rule.check(raw, start, end)
        yield span
        at = max(start + 1, end - _BACK_BYTES if span is None else span[1])


def _spans(rule: Rule, pattern: Pattern, raw: bytes) -> Iterator[tuple[int, int]]:
    return (span for span in _candidates(rule, pattern, raw) if span is not None)


def _best(matches: list[_Match]) -> Iterator[_Match]:
    """Give, of matches that overlap, the one of the first rule, standing where all of them do."""
    matches.sort(key=lambda match: (match.start, match.rank))
    best: _Match | None = None
    for match in matches:
        if best is None or match.start >= best.end:
            if best is not None:
                yield best
            best = match
            continue
        first = best if best.rank <= match.rank else match
        best = first._replace(start=best.start, end=max(best.end, match.end))
    if best is not None:
        yield best


def _in_characters(text: str, raw: bytes, matches: Iterable[_Match]) -> Iterator[_Match]:
    if len(text) == len(raw):
        yield from matches
        return
    at = characters = 0
    for match in matches:
        start = characters + len(raw[at : match.start].decode())
        end = start + len(raw[match.start : match.end].decode())
        at, characters = match.end, end
        yield match._replace(start=start, end=end)
