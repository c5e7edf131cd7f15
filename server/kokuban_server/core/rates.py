"""How often something may be done: a bucket of tokens, as arithmetic on times that are given."""

from __future__ import annotations

import math
from typing import NamedTuple

_ROUNDING_S = 1e-6
"""Who comes back after the time that was told is not sent away again for a rounding."""


class Rate(NamedTuple):
    """How often something may be done: as often as its size at once, and then once in each interval."""

    interval_s: float
    size: int


class Bucket:
    """Holds as many tokens as its rate's size at first, and gets one each interval while it is not full.

    All that it needs to remember is when it is full again: each token that is taken moves that by an interval.
    """

    __slots__ = ("_full_at_s", "_rate")

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._full_at_s = -math.inf

    def wait_s(self, now_s: float) -> float:
        """Give how long it is until there is a token; 0 if there is one."""
        interval_s, size = self._rate
        wait_s = self._full_at_s - (size - 1) * interval_s - now_s
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def take(self, now_s: float) -> None:
        """Take a token, which `wait_s` has said to be there."""
        self._full_at_s = max(self._full_at_s, now_s) + self._rate.interval_s

    def is_full(self, now_s: float) -> bool:
        """Say whether a new one would be the same."""
        return self._full_at_s <= now_s
