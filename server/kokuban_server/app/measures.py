"""What the server counts of its own work, for whoever asks for metrics. Counting is arithmetic in memory, and never fails.

Every label has few values: methods, codes and reasons of the API, kinds of regions. No tenant, board, agent or path is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final, NamedTuple

DURATION_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
WAIT_BOUNDS_S: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 3_600.0)


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


class Measures:
    """Everything that is counted."""

    def __init__(self) -> None:
        self.rpcs: dict[tuple[str, str], Distribution] = {}
        """Durations by method and status code."""
        self.commits: Counter[str] = Counter()
        """By what became of them: `committed`, `replayed`, or the reason of the refusal."""
        self.retries = 0
        """Commits that said that they were one."""
        self.conflicts: Counter[tuple[str, str]] = Counter()
        """By reason and kind of region."""
        self.conflict_exemplars: dict[tuple[str, str], Exemplar] = {}
        self.lock_waits: dict[str, Distribution] = {}
        """By how they ended: `granted`, or the reason of the refusal."""

    def rpc(self, method: str, code: str, duration_s: float, traceparent: str) -> None:
        """Count a call that has ended."""
        found = self.rpcs.get((method, code))
        if found is None:
            found = self.rpcs[method, code] = Distribution(DURATION_BOUNDS_S)
        found.add(duration_s, traceparent)

    def conflict(self, reason: str, region: str, traceparent: str) -> None:
        """Count a request that lost. `traceparent` is that of its own span, or empty if it has none."""
        labels = (reason, region.partition(":")[0])
        self.conflicts[labels] += 1
        if traceparent:
            self.conflict_exemplars[labels] = Exemplar(traceparent[3:35], 1.0)

    def lock_wait(self, end: str, waited_s: float, traceparent: str) -> None:
        """Count a wait for a lock that has ended."""
        found = self.lock_waits.get(end)
        if found is None:
            found = self.lock_waits[end] = Distribution(WAIT_BOUNDS_S)
        found.add(waited_s, traceparent)
