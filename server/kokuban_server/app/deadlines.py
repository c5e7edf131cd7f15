"""Deadlines: instants of the event loop's clock by which a call is to be answered."""

from __future__ import annotations

import asyncio

from kokuban_server.core import limits


def left_s(deadline: float) -> float:
    """Give how long it is until the deadline, in seconds; 0 once it has passed."""
    return max(0.0, deadline - asyncio.get_running_loop().time())


def of_one_act(deadline: float) -> float:
    """Give the deadline of one act of a stream, which itself may last as long as it likes."""
    return min(deadline, asyncio.get_running_loop().time() + limits.DEADLINE_S_DEFAULT)


def halfway(deadline: float) -> float:
    """Give the instant at which half of the time that is left has passed."""
    return deadline - left_s(deadline) / 2
