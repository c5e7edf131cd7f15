"""A conflict: who lost to whom, on what and why, what became of it, and what a reader may see of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.core import limits

if TYPE_CHECKING:
    from collections.abc import Callable

REASONS: Final = (
    "REVISION_MISMATCH",
    "ALREADY_EXISTS",
    "LOCKED_BY_OTHER",
    "LOCK_LOST",
    "LOCK_WAIT_EXPIRED",
    "DEADLOCK",
)
"""The refusals that mean that somebody else was there: the others are the caller's own affair."""


class ConflictKind(enum.IntEnum):
    """What lost."""

    COMMIT = 1
    LOCK = 2


class Outcome(enum.IntEnum):
    """What became of what the loser wanted."""

    OPEN = 1
    WON = 2
    MERGED = 3
    LOST_AGAIN = 4
    GAVE_UP = 5
    """Never stored: it is what `OPEN` becomes with time."""


@dataclass(frozen=True, slots=True)
class Party:
    """One side of a conflict; what is not known is empty or 0."""

    agent: str
    session_id: str = ""
    request_id: str = ""
    traceparent: str = ""
    time_ms: int = 0
    """When the winner wrote, locked or began to wait; when the loser was refused."""
    purpose: str = ""
    regions: tuple[str, ...] = ()
    """Every region of its commit, lock or request. Its words are for those who may read all of them."""

    def seen(self, reads: Callable[[str], bool]) -> Party | None:
        """Give as much of it as a reader may see: nothing if none of its regions, no words if not all of them."""
        readable = [reads(region) for region in self.regions]
        if readable and not any(readable):
            return None
        return self if all(readable) else replace(self, purpose="")


@dataclass(frozen=True, slots=True)
class Conflict:
    """A request that lost."""

    id: str
    """The same for the same request, however often it is sent."""
    time_ms: int
    kind: ConflictKind
    reason: str
    region: str
    path: str
    epoch: str
    """Of the revisions."""
    expected_revision: int
    """What the loser had read; 0 if it took the entry not to exist, or named no revision."""
    actual_revision: int
    """What stood there; 0 where nothing did, and of locks."""
    loser: Party
    winner: Party | None
    lock_id: str = ""
    """The lock, or the request that waited before it, which was in the way."""
    retry_of: str = ""
    lost_bytes: int = 0
    """What of the refused commit was for this region: the size of its values."""
    waited_ms: int = 0
    outcome: Outcome = Outcome.OPEN
    outcome_time_ms: int = 0
    outcome_request_id: str = ""
    """The retry that won, or lost again."""

    def seen(self, reads: Callable[[str], bool]) -> Conflict | None:
        """Give as much of it as a reader may see; nothing if the place is not for them."""
        if not reads(self.region):
            return None
        loser = self.loser.seen(reads)
        winner = self.winner.seen(reads) if self.winner is not None else None
        if loser is self.loser and winner is self.winner:
            return self
        lock_id = self.lock_id if winner is not None else ""
        return replace(self, loser=loser or Party(""), winner=winner, lock_id=lock_id)

    def outcome_at(self, now_ms: int) -> Outcome:
        """Say what became of it by now."""
        is_over = self.outcome is Outcome.OPEN and self.time_ms + limits.CONFLICT_GIVEN_UP_MS <= now_ms
        return Outcome.GAVE_UP if is_over else self.outcome


class ConflictFilter(NamedTuple):
    """Which conflicts are wanted; what is empty or 0 is not asked."""

    region: str = ""
    path: str = ""
    """It, or what is below it."""
    agent: str = ""
    """Either side."""
    reason: str = ""
    begin_ms: int = 0
    end_ms: int = 0
    """All times are before it."""

    def takes(self, seen: Conflict) -> bool:
        """Say whether a conflict is wanted, as its reader sees it."""
        agents = {seen.loser.agent, seen.winner.agent if seen.winner is not None else ""}
        return (
            self.region in {"", seen.region}
            and (not self.path or seen.path == self.path or seen.path.startswith(f"{self.path}/"))
            and (not self.agent or self.agent in agents)
            and self.reason in {"", seen.reason}
            and self.begin_ms <= seen.time_ms
            and (not self.end_ms or seen.time_ms < self.end_ms)
        )
