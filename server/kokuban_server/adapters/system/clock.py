"""The machine's own clock."""

from __future__ import annotations

import time


class SystemClock:
    """The wall clock of this machine."""

    def now_ms(self) -> int:
        """Give the milliseconds of Unix time."""
        return time.time_ns() // 1_000_000
