"""Phrases of an operator's own: what a team has met itself is looked for beside what the rules know."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from kokuban_server.core import limits
from kokuban_server.core.screening.patterns import Pattern, PatternSet
from kokuban_server.core.screening.rules import Severity
from kokuban_server.core.screening.screening import Finding, excerpt_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kokuban_server.core.screening.views import Canonical

_SEVERITIES: Final = {"grave": Severity.GRAVE, "suspicious": Severity.SUSPICIOUS}


class PhrasesInvalidError(Exception):
    """What should be phrases is not; the text says which line."""


class Phrases:
    """Phrases that are looked for in every reading of a text, whatever separates their words and in capitals or not."""

    def __init__(self, named: Iterable[tuple[Severity, str]]) -> None:
        self._named = tuple(dict.fromkeys(named))
        patterns = [f"(?i){_spaced(phrase)}" for _, phrase in self._named]
        self._set = PatternSet(patterns)
        self._each = [Pattern(pattern) for pattern in patterns]
        told = "\n".join(f"{severity.value} {phrase}" for severity, phrase in self._named)
        self.version = f"own-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
        """Another one for other phrases."""

    def findings(self, found: Canonical) -> Iterator[Finding]:
        """Give where they stand in a text, each at most once in each reading."""
        for view in found.views:
            for index in self._set.found(view.text):
                severity, _ = self._named[index]
                start, end = next(self._each[index].spans(view.text))
                span = view.origin(start, end)
                yield Finding("own-phrase", severity, view.name, span, excerpt_of(view.text[start:end]))


def _spaced(phrase: str) -> str:
    return r"\s+".join(map(re.escape, phrase.split()))


def parse_phrases(text: str) -> Phrases:
    """Read phrases: in each line `grave` or `suspicious` and the phrase; empty lines and those that begin with `#` say nothing.

    Raises `PhrasesInvalidError`.
    """
    named: list[tuple[Severity, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        word, _, phrase = line.strip().partition(" ")
        words = " ".join(phrase.split())
        if word not in _SEVERITIES or not words:
            raise PhrasesInvalidError(f"line {number}: `grave` or `suspicious`, and a phrase")
        if len(words) > limits.PHRASE_CHARACTERS_MAX:
            raise PhrasesInvalidError(f"line {number}: at most {limits.PHRASE_CHARACTERS_MAX} characters")
        if len(named) == limits.PHRASES_ENTRIES_MAX:
            raise PhrasesInvalidError(f"line {number}: at most {limits.PHRASES_ENTRIES_MAX} phrases")
        named.append((_SEVERITIES[word], words))
    if not named:
        raise PhrasesInvalidError("there is no phrase")
    return Phrases(named)
