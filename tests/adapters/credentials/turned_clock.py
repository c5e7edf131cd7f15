"""A clock that tests turn."""

from __future__ import annotations

NOW_MS = 1_900_000_000_000


class TurnedClock:
    """Shows what it was set to."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> int:
        return self.ms
