"""Texts of one writer looked at together: an order may come in parts, of which none says enough by itself."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.screening.rules import Severity

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from kokuban_server.core.screening.screening import Finding

_COMBINED: Final = "combined"
_CLASSIFIER: Final = "classifier."


class Part(NamedTuple):
    """What a writer has written before."""

    end: str
    is_stale: bool = False
    """Other rules have let it in than those that judge now."""

    @classmethod
    def of(cls, text: str, *, is_stale: bool = False) -> Part:
        """Give as much of a text as is looked at with the next."""
        return cls(text[-limits.SCREENED_TOGETHER_CHARACTERS_MAX :], is_stale)


class LastParts:
    """What writers have written last: of so many writers so many texts."""

    def __init__(self) -> None:
        self._of: OrderedDict[Hashable, deque[Part]] = OrderedDict()

    def of(self, writer: Hashable) -> deque[Part]:
        """Give a writer's, the oldest first, to be added to; whoever was asked about longest ago is forgotten for it."""
        parts = self._of.setdefault(writer, deque(maxlen=limits.SCREENED_TOGETHER_TEXTS_ENTRIES_MAX))
        self._of.move_to_end(writer)
        if len(self._of) > limits.SCREENED_TOGETHER_AGENTS_ENTRIES_MAX:
            self._of.popitem(last=False)
        return parts


def joined(earlier: Iterable[Part], text: str = "") -> str:
    """Give what is judged: the parts before and the beginning of the text that comes now."""
    return "\n".join([*(part.end for part in earlier), text[: limits.SCREENED_TOGETHER_CHARACTERS_MAX]])


def grave_together(whole: Iterable[Finding], *, is_suspicious_alone: bool) -> list[Finding]:
    """Give what of the findings in a whole counts against the part that completes it.

    Only what is grave does, and not that two harmless things stand side by side. A classifier's score is a matter of degree, so
    it counts only where the new part is suspicious by itself: else a harmless one would be held back for what came before it.
    """
    return [
        finding._replace(span=None)
        for finding in whole
        if finding.severity is Severity.GRAVE
        and finding.rule != _COMBINED
        and (is_suspicious_alone or not finding.rule.startswith(_CLASSIFIER))
    ]
