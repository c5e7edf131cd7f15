"""Request ids: UUIDs of version 7 that grow, and that follow the store's clock when ours is wrong."""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_FALL_BACK_MS_MAX = 60_000
_RANDOM_BITS = 74


class RequestIds:
    """Makes request ids, each greater than the one before. Safe to use from several threads.

    `now_ms` is the wall clock and `random_bits` the source of randomness.
    """

    def __init__(
        self, now_ms: Callable[[], int] | None = None, random_bits: Callable[[int], int] = secrets.randbits
    ) -> None:
        self._now_ms = now_ms or _wall_clock_ms
        self._random_bits = random_bits
        self._mutex = threading.Lock()
        self._offset_ms = 0
        self._last_ms = -_FALL_BACK_MS_MAX - 1
        self._tail = 0

    def new(self) -> str:
        """Give a new id in its canonical lower-case spelling."""
        with self._mutex:
            now_ms = self._now_ms() + self._offset_ms
            # A small step back of the clock keeps the order. After a large one ids must follow the clock: servers refuse
            # those that are minutes ahead of theirs.
            if now_ms > self._last_ms or now_ms < self._last_ms - _FALL_BACK_MS_MAX:
                self._last_ms, self._tail = now_ms, self._random_bits(_RANDOM_BITS - 1)
            else:
                self._tail += 1 + self._random_bits(32)
                if self._tail >> _RANDOM_BITS:
                    self._last_ms, self._tail = self._last_ms + 1, self._random_bits(_RANDOM_BITS - 1)
            return _spell(self._last_ms, self._tail)

    def follow(self, store_time_ms: int) -> None:
        """From now on count from the store's time, because it refused an id as too old or too far ahead."""
        with self._mutex:
            self._offset_ms = store_time_ms - self._now_ms()
            self._last_ms = -_FALL_BACK_MS_MAX - 1


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _spell(ms: int, tail: int) -> str:
    high, low = tail >> 62, tail & ((1 << 62) - 1)
    digits = f"{(ms << 80) | (0x7 << 76) | (high << 64) | (0b10 << 62) | low:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
