"""What one measurement gives, and the closed loop that most workloads are measured by."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


class Measurement(NamedTuple):
    """How long a number of operations took together, and each of them."""

    operations: int
    seconds: float
    median_s: float
    """Of one operation, or of one message that carries several; 0 where single ones are not timed."""
    slow_s: float
    """The 99th percentile of the same."""

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.operations / self.seconds


class Workload(Protocol):
    """Work that a load generator does again and again."""

    async def prepare(self) -> None:
        """Make what the work needs: entries, streams. Not measured."""
        ...

    async def run(self, operations: int) -> Measurement:
        """Do about this many operations; the measurement says how many they were."""
        ...


async def closed_loop(steps: Sequence[Callable[[], Awaitable[None]]], operations: int) -> Measurement:
    """Keep every step going, each with one operation in flight, until that many have been begun, and finish them."""
    left = operations
    latencies: list[float] = []

    async def work(step: Callable[[], Awaitable[None]]) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            begun = time.perf_counter()
            await step()
            latencies.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for step in steps:
            group.create_task(work(step))
    return measured(operations, time.perf_counter() - begun, latencies)


def measured(operations: int, seconds: float, latencies: Sequence[float]) -> Measurement:
    """Give the measurement of operations of these latencies."""
    if len(latencies) < 2:  # of fewer there are no percentiles
        return Measurement(operations, seconds, 0.0, 0.0)
    percentiles = statistics.quantiles(latencies, n=100)
    return Measurement(operations, seconds, statistics.median(latencies), percentiles[98])
