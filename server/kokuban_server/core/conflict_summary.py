"""What many conflicts have in common: where they are, between whom, how often, and what they cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from kokuban_server.core.conflicts import Conflict, Outcome

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000


class Pair(NamedTuple):
    """Who lost to whom. A winner that is not known, or not for the reader, is empty."""

    loser: str
    winner: str


class HotPath(NamedTuple):
    """Where conflicts are."""

    region: str
    path: str


@dataclass(slots=True)
class Summary:
    """Conflicts, counted."""

    count: int = 0
    oldest_ms: int = 0
    newest_ms: int = 0
    paths: Counter[HotPath] = field(default_factory=Counter)
    pairs: Counter[Pair] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    lost_bytes: int = 0
    waited_ms: int = 0

    def add(self, seen: Conflict, now_ms: int) -> None:
        """Count a conflict, as its reader sees it."""
        self.count += 1
        self.oldest_ms = min(self.oldest_ms or seen.time_ms, seen.time_ms)
        self.newest_ms = max(self.newest_ms, seen.time_ms)
        self.paths[HotPath(seen.region, seen.path)] += 1
        self.pairs[Pair(seen.loser.agent, seen.winner.agent if seen.winner is not None else "")] += 1
        self.reasons[seen.reason] += 1
        self.outcomes[seen.outcome_at(now_ms)] += 1
        self.lost_bytes += seen.lost_bytes
        self.waited_ms += seen.waited_ms

    def per_hour(self, begin_ms: int, end_ms: int, now_ms: int) -> float:
        """Give how many there are in an hour from `begin_ms` or the oldest to `end_ms` or now, at least a minute."""
        begin = begin_ms or self.oldest_ms
        end = min(end_ms or now_ms, now_ms)
        return self.count / (max(end - begin, _MINUTE_MS) / _HOUR_MS)
