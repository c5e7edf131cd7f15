"""How long to wait before trying again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def pauses() -> Iterator[float]:
    """Give how long to wait before each next attempt: longer and longer, and not all at the same time."""
    pause_s = 0.02
    while True:
        yield pause_s * random.uniform(0.5, 1.5)  # noqa: S311 - spreads load, guards nothing
        pause_s = min(pause_s * 2, 0.5)
