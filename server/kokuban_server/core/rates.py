"""How often something may be done: a bucket of tokens, as arithmetic on times that are given."""

from __future__ import annotations

from typing import NamedTuple

_ROUNDING_S = 1e-6
"""Who comes back after the time that was told is not sent away again for a rounding."""


class Rate(NamedTuple):
    """A bucket that gets a token each interval, up to its size, and gives one for each act.

    All that it needs to remember is when it is full again: each token that was taken moves that by an interval.
    """

    interval_s: float
    size: int

    def wait_s(self, full_at_s: float, now_s: float) -> float:
        """Give how long it is until there is a token; 0 if there is one."""
        wait_s = full_at_s - (self.size - 1) * self.interval_s - now_s
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def taken(self, full_at_s: float, now_s: float) -> float:
        """Give when the bucket is full again after a token has been taken."""
        return max(full_at_s, now_s) + self.interval_s
