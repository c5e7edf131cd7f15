"""What works on texts where the loop would wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kokuban_server.core.redaction.masking import Redaction, Wish
    from kokuban_server.core.screening.screening import Screening
    from kokuban_server.core.trust import Source


class Screener(Protocol):
    """Works on one text at a time, and never holds up the loop."""

    async def screen(self, text: str, source: Source) -> Screening:
        """Judge a text, of whatever characters. Raises `ScreenerError` where there is no verdict: nothing is known then."""
        ...

    async def redact(self, text: str, wish: Wish) -> Redaction:
        """Find and mask what is secret or personal in a text. Raises `ScreenerError`: nothing is known then, nor masked."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


class ScreenerError(Exception):
    """No verdict: what judges broke down or took too long."""
