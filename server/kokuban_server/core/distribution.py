"""How values are distributed over bounds: what a histogram is made from."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

DURATION_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WAIT_BOUNDS_S: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 3_600.0)
MEMBERS_BOUNDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Exemplar(NamedTuple):
    """One measured thing among many, by its trace."""

    trace_id: str
    value: float


class Distribution:
    """How many values lie between bounds, with the newest of each that was traced."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}

    def add(self, value: float, traceparent: str = "") -> None:
        """Count a value."""
        place = bisect_left(self.bounds, value)
        self.counts[place] += 1
        self.total += value
        if traceparent:
            self.exemplars[place] = Exemplar(traceparent[3:35], value)
