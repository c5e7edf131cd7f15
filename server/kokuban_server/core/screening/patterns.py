"""Patterns that are matched in linear time, whatever the text: RE2 cannot backtrack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import re2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PATTERN_BYTES_MAX = 8 * 1024 * 1024
_SET_BYTES_MAX = 64 * 1024 * 1024
"""Of one automaton. When its states take more it forgets them and goes on, slower."""


class NotSearchedError(Exception):
    """A text could not be searched: nothing is known of it."""


def _options(bytes_max: int) -> Any:  # noqa: ANN401 - re2 ships no types
    options = re2.Options()
    options.max_mem = bytes_max
    options.log_errors = False
    return options


class Pattern:
    """One pattern."""

    def __init__(self, pattern: str) -> None:
        self._compiled = re2.compile(pattern, _options(_PATTERN_BYTES_MAX))

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Give where it matches, from left to right."""
        for match in self._compiled.finditer(text):
            yield match.span()

    def parts(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Give what the first group that took part in each match matched, and where."""
        for match in self._compiled.finditer(text):
            group = match.lastindex
            if group:
                start, end = match.span(group)
                yield match.group(group), start, end

    def next_part(self, raw: bytes, start: int) -> tuple[int, int] | None:
        """Give where in the bytes of a text, from there on, the first group that takes part in the next match matches."""
        match = self._compiled.search(raw, start)
        if match is None or match.lastindex is None:
            return None
        span: tuple[int, int] = match.span(match.lastindex)
        return span

    def sub(self, replacement: str, text: str) -> str:
        """Give the text with each match replaced."""
        replaced: str = self._compiled.sub(replacement, text)
        return replaced


class PatternSet:
    """Many patterns that are looked for in one pass."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._always = len(patterns)
        self._set = re2.Set.SearchSet(_options(_SET_BYTES_MAX))
        for pattern in (*patterns, r"\A"):  # the last matches every text: re2 tells "nothing" and "not searched" alike
            self._set.Add(pattern)
        self._set.Compile()

    def found(self, text: str | bytes) -> list[int]:
        """Give the indexes of those that match somewhere in a text, or in its UTF-8. Raises `NotSearchedError`."""
        found: list[int] = sorted(self._set.Match(text) or ())
        if not found or found.pop() != self._always:
            raise NotSearchedError
        return found
