"""The screener, with how long each text took and what came of it: in its call's trace, and among the measures."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from kokuban_server.ports.tracing import TRACED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kokuban_server.app.measures import Measures
    from kokuban_server.core.redaction.masking import Redaction, Wish
    from kokuban_server.core.screening.screening import Screening
    from kokuban_server.core.trust import Source
    from kokuban_server.ports.screener import Screener

_Judged = TypeVar("_Judged")


class ObservedScreener:
    """A screener that is the same in everything."""

    def __init__(self, screener: Screener, measures: Measures | None) -> None:
        self._screener = screener
        self._measures = measures

    async def screen(self, text: str, source: Source) -> Screening:
        """See the port."""
        return await self._observed("screen", self._screener.screen(text, source), lambda one: one.verdict.name)

    async def redact(self, text: str, wish: Wish) -> Redaction:
        """See the port."""
        return await self._observed(
            "redact", self._screener.redact(text, wish), lambda one: "FOUND" if one.total else "CLEAN"
        )

    async def close(self) -> None:
        """See the port."""
        await self._screener.close()

    async def _observed(self, asked: str, judged: Awaitable[_Judged], outcome_of: Callable[[_Judged], str]) -> _Judged:
        """Give what is judged. That a text is not judged is told as `NO_VERDICT`, whatever the reason."""
        span = TRACED.get()
        part = None if span is None else span.begin_screening(asked)
        begun = time.perf_counter()
        outcome = "NO_VERDICT"
        try:
            found = await judged
            outcome = outcome_of(found)
        finally:
            traceparent = ""
            if part is not None:
                traceparent = part.traceparent
                part.note_verdict(outcome)
                part.end()
            if self._measures is not None:
                self._measures.screening(asked, outcome, time.perf_counter() - begun, traceparent)
        return found
