"""Deadlines: instants of the event loop's clock by which a call is to be answered."""

from __future__ import annotations

import asyncio


def left_s(deadline: float) -> float:
    """Give how long it is until the deadline, in seconds; 0 once it has passed."""
    return max(0.0, deadline - asyncio.get_running_loop().time())
