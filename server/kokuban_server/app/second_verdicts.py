"""What the rules of now say of states that older ones have let in: alone, and together with what their writer wrote before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from kokuban_server.app.screenings import OURSELVES, VERDICT_ATTEMPTS
from kokuban_server.core import limits
from kokuban_server.core.screening.joins import grave_together, joined
from kokuban_server.core.screening.rules import Severity
from kokuban_server.core.screening.screening import NO_VERDICT, worst_of
from kokuban_server.core.screening.writes import text_of_state, words_of_state
from kokuban_server.core.trust import Source, SourceKind
from kokuban_server.ports.screener import ScreenerError

if TYPE_CHECKING:
    from collections.abc import Collection

    from kokuban_server.app.screenings import Screenings
    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.screening.joins import Part
    from kokuban_server.core.screening.screening import Finding
    from kokuban_server.core.trust import Label

_VERDICT_S: Final = 10 * limits.SCREENING_S_MAX
_YIELD_S: Final = 0.05
_YIELDS_MAX: Final = 20


class RulesChangedError(Exception):
    """Other rules judge now than those that began."""


class SecondVerdicts:
    """Has states judged by one rule set, behind whoever writes.

    A text over which the screener fails, though it judges others, counts like one in which an order was found.
    """

    def __init__(self, screenings: Screenings) -> None:
        self._screenings = screenings

    async def label(self, state: EntryRecord, path: str, rule_set: str) -> Label:
        """Give the label that a state has by the rules of now: never more trust than before.

        Raises `ScreenerError` while nothing is judged, and `RulesChangedError`.
        """
        label = state.label
        worst = worst_of(await self._findings(text_of_state(state, path), _source(label), rule_set))
        if worst is Severity.GRAVE:
            return label.held_back(rule_set)
        if worst is Severity.SUSPICIOUS:
            return label.screened(rule_set, suspicious=True)
        return label

    async def completes(self, earlier: Collection[Part], state: EntryRecord, path: str, rule_set: str) -> bool:
        """Say whether what its writer wrote before becomes an order with a state, and is none without. Raises as `label`."""
        source = _source(state.label)
        whole = await self._findings(joined(earlier, words_of_state(state)), source, rule_set)
        if not grave_together(whole, is_suspicious_alone=True):
            return False
        before = await self._findings(joined(earlier), source, rule_set)
        if grave_together(before, is_suspicious_alone=True):
            return False
        is_by_rule = bool(grave_together(whole, is_suspicious_alone=False))
        return is_by_rule or bool(await self._findings(text_of_state(state, path), source, rule_set))

    async def _findings(self, text: str, source: Source, rule_set: str) -> tuple[Finding, ...]:
        findings: tuple[Finding, ...] = (NO_VERDICT,)
        for _ in range(VERDICT_ATTEMPTS):
            try:
                findings = await self._behind_others(text, source)
                break
            except ScreenerError:
                if not await self._screenings.is_judging():
                    raise
        if self._screenings.rule_set != rule_set:
            raise RulesChangedError
        return findings

    async def _behind_others(self, text: str, source: Source) -> tuple[Finding, ...]:
        """Have a text judged behind those of whoever writes, and in no more than half of the screener's time."""
        loop = asyncio.get_running_loop()
        for _ in range(_YIELDS_MAX):
            if not self._screenings.waiting_count:
                break
            await asyncio.sleep(_YIELD_S)
        begun_s = loop.time()
        found = await self._screenings.judge(OURSELVES, text, source, begun_s + _VERDICT_S)
        await asyncio.sleep(loop.time() - begun_s)
        return found.findings


def _source(label: Label) -> Source:
    kind = label.source.kind
    kind = kind if kind in {SourceKind.TOOL, SourceKind.EXTERNAL} else SourceKind.EXTERNAL
    return Source(kind, label.source.uri or "derived")
