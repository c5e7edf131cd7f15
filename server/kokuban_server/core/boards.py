"""A board's own record: that it is there, its policy, or how it was removed."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core.policy import NO_POLICY, Policy

if TYPE_CHECKING:
    from kokuban_server.core.provenance import Bar


class BoardState(enum.Enum):
    """Whether a board is there."""

    LIVE = "live"
    DELETED = "deleted"
    """There for nobody any more; what it held is being removed."""
    PURGED = "purged"
    """Nothing is left of it but this record."""


class PolicyVersion(NamedTuple):
    """Which policy of a board it is, and who laid it down."""

    number: int = 0
    """Counts the board's policies; 0 while there was none."""
    time_ms: int = 0
    author: str = ""
    reason: str = ""


NO_VERSION = PolicyVersion()


class PurgeCount(NamedTuple):
    """What a purge has removed, counted with the removal."""

    entries: int = 0
    """Records of entries' present states, tombstones among them."""
    revisions: int = 0
    """Records of entries' histories, of what their states were made of, and of what was removed of them."""
    locks: int = 0
    """Records of sessions, their read scopes, locks and waits."""
    conflicts: int = 0
    """Records of conflicts, two of each."""


class Receipt(NamedTuple):
    """What a finished purge removed."""

    removed: PurgeCount
    time_ms: int
    """When it was verified that nothing is left."""


@dataclass(frozen=True, slots=True)
class BoardRecord:
    """A board as it is stored."""

    create_time_ms: int
    creator: str
    policy: Policy = NO_POLICY
    version: PolicyVersion = NO_VERSION
    state: BoardState = BoardState.LIVE
    delete_time_ms: int = 0
    deleted_by: str = ""
    delete_reason: str = ""
    receipt: Receipt | None = None
    """Of a board that is purged."""
    bars: tuple[Bar, ...] = ()
    """What it refuses since it was removed."""
    removals: int = 0
    """How often everybody had to look again because something was being removed: 0 where nothing ever was."""
