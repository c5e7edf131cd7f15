"""What the simulated agents did and saw, for the invariants to judge."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kokuban_server.app.commits import CommitRequest, Committed
    from kokuban_server.app.reads import Freshness
    from kokuban_server.core.entry import EntryRecord


class Fate(enum.Enum):
    """What an agent knows of its commit in the end."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    """Judged and not applied."""
    NOT_DONE = "not done"
    """Every try was answered with "nothing was changed"."""
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Operation:
    """One commit, however often it was sent."""

    agent: str
    request: CommitRequest
    floor: int
    """The store's revision when it was first sent."""
    fate: Fate = Fate.UNKNOWN
    answers: list[tuple[Committed, int]] = field(default_factory=list)
    """Each with the store's revision when it arrived."""


class Seen(NamedTuple):
    """One entry as a read or a watch told it."""

    revision: int
    record: EntryRecord


@dataclass(slots=True)
class Observation:
    """One read, of single entries or of everything below a prefix."""

    agent: str
    freshness: Freshness
    floor: int
    """The store's revision when the read was asked for."""
    time_floor_ms: int
    """Store time then, the latest it had ever been."""
    found: dict[bytes, Seen]
    asked: frozenset[bytes]
    """Heads; empty for a listing."""
    prefix: bytes
    """What a listing was of."""
    revision: int = 0
    ceiling: int = 0
    time_ceiling_ms: int = 0


@dataclass(slots=True)
class WatchRun:
    """What one watcher was told from one beginning on, over any number of interruptions."""

    watcher: str
    prefixes: tuple[bytes, ...]
    start: int
    """The revision after which it began."""
    snapshot: dict[bytes, Seen] | None
    snapshot_ceiling_ms: int = 0
    """Store time when the snapshot was complete."""
    changes: list[tuple[bytes, Seen]] = field(default_factory=list)
    reached: int = 0
    """Everything up to this revision was told, as the watch itself says."""


@dataclass(slots=True)
class Journal:
    """Everything of one run."""

    operations: dict[str, Operation] = field(default_factory=dict)
    observations: list[Observation] = field(default_factory=list)
    watch_runs: list[WatchRun] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What was seen to be wrong on the way."""
    traces: dict[str, list[str]] = field(default_factory=dict)
    """For each agent what it did, line by line; equal for equal seeds."""
