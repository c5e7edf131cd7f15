"""What the server counts of its own work, for whoever asks for metrics. Counting is arithmetic in memory, and never fails.

Every label has few values: methods, codes and reasons of the API, kinds of regions, operations of the store. No tenant, board,
agent or path is one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core.distribution import DURATION_BOUNDS_S, WAIT_BOUNDS_S, Distribution, Exemplar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kokuban_server.ports.group_commit import BatchCounts


class Histogram(NamedTuple):
    """Distributions of one thing by labels."""

    name: str
    """As OpenTelemetry spells it: `kokuban.rpc.duration`."""
    unit: str
    """`s`, or nothing for what is counted in pieces."""
    told: str
    labels: tuple[str, ...]
    found: Mapping[tuple[str, ...], Distribution]


class Measures:
    """Everything that is counted."""

    def __init__(self) -> None:
        self.rpcs: dict[tuple[str, ...], Distribution] = {}
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
        self.lock_holds = Distribution(WAIT_BOUNDS_S)
        """From the grant to the end, whichever that was, of locks that were granted here."""
        self.store_operations: dict[tuple[str, ...], Distribution] = {}
        """Durations by operation and what came of it."""
        self.screenings: dict[tuple[str, ...], Distribution] = {}
        """Durations by what was asked and what came of it."""
        self.feed_delay = Distribution(DURATION_BOUNDS_S)
        """From a commit to its change's arrival at this server's watches, of one change in each batch."""
        self.batches: BatchCounts | None = None
        """What the store counts itself."""

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

    def store_operation(self, operation: str, outcome: str, duration_s: float) -> None:
        """Count a call of the store that has ended."""
        found = self.store_operations.get((operation, outcome))
        if found is None:
            found = self.store_operations[operation, outcome] = Distribution(DURATION_BOUNDS_S)
        found.add(duration_s)

    def screening(self, asked: str, outcome: str, duration_s: float, traceparent: str) -> None:
        """Count a text that was judged."""
        found = self.screenings.get((asked, outcome))
        if found is None:
            found = self.screenings[asked, outcome] = Distribution(DURATION_BOUNDS_S)
        found.add(duration_s, traceparent)

    def histograms(self) -> list[Histogram]:
        """Give every distribution, as things stand now."""
        told = [
            Histogram(
                "kokuban.rpc.duration", "s", "Calls by method and status code.", ("method", "code"), dict(self.rpcs)
            ),
            Histogram(
                "kokuban.lock.wait",
                "s",
                "Waits for locks, by how they ended.",
                ("end",),
                {(end,): waited for end, waited in self.lock_waits.items()},
            ),
            Histogram("kokuban.lock.hold", "s", "How long locks were held.", (), {(): self.lock_holds}),
            Histogram(
                "kokuban.store.operation",
                "s",
                "Calls of the store, by what came of them.",
                ("operation", "outcome"),
                dict(self.store_operations),
            ),
            Histogram(
                "kokuban.screening.duration",
                "s",
                "Texts that were judged, by what came of it.",
                ("asked", "outcome"),
                dict(self.screenings),
            ),
            Histogram(
                "kokuban.watch.feed.delay", "s", "From a commit to its change's arrival.", (), {(): self.feed_delay}
            ),
        ]
        if self.batches is not None:
            told += [
                Histogram(
                    "kokuban.store.batch.members",
                    "",
                    "Commits that travelled together.",
                    (),
                    {(): self.batches.members},
                ),
                Histogram(
                    "kokuban.store.batch.duration",
                    "s",
                    "How long the store took for a batch.",
                    (),
                    {(): self.batches.durations},
                ),
            ]
        return told
