"""What judges texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kokuban_server.core.screening.screening import Screening
    from kokuban_server.core.trust import Source


class Screener(Protocol):
    """Judges one text at a time, and never holds up the loop."""

    async def screen(self, text: str, source: Source) -> Screening:
        """Judge a text, of whatever characters. Raises `ScreenerError` where there is no verdict: nothing is known then."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


class ScreenerError(Exception):
    """No verdict: what judges broke down or took too long."""
