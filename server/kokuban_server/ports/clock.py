"""The time, as an argument that tests can turn."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Where the server gets its time from."""

    def now_ms(self) -> int:
        """Give the wall clock in milliseconds of Unix time. It may jump; nothing may rely on it alone."""
        ...
