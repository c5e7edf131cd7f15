"""What an examination of the store can find, and what became of it."""

from __future__ import annotations

import enum
from typing import NamedTuple


class FindingKind(enum.Enum):
    """What is wrong with a record."""

    UNREADABLE = "unreadable"
    """Its key or its content cannot be read. Never repaired: it may be all that is left of something."""
    UNKNOWN = "unknown"
    """It is of no kind that this server knows; a newer one may have written it. Never repaired."""
    ORPHANED = "orphaned"
    """What it belongs to is not there. Repaired by removing it."""
    UNLEASED = "unleased"
    """It should end with a lease, and has none that lives: it would stay for ever. Repaired by removing it."""
    INCOMPLETE = "incomplete"
    """A record that was written with it is missing. Repaired, where that can be made again, by doing so."""
    OVERDUE = "overdue"
    """Background work should have dealt with it long ago."""
    IMPOSSIBLE = "impossible"
    """It is of a time or a state that the store has not reached. Repaired by removing it."""
    AUDIT_BROKEN = "audit_broken"
    """The tenant's audit log is not as it was written. Never repaired: that would be forging it."""


class FindingOutcome(enum.Enum):
    """What became of a finding."""

    FOUND = "found"
    """It was not asked to be repaired."""
    REPAIRED = "repaired"
    NOT_REPAIRABLE = "not_repairable"
    CHANGED = "changed"
    """Somebody wrote the record, or what it was judged by, between look and repair: it was left alone."""
    STORE_FULL = "store_full"
    """The store has no room for what is missing."""


class Finding(NamedTuple):
    """A record with which something is wrong."""

    kind: FindingKind
    record_class: str
    """What kind of record it is, in a word."""
    board: str
    """Empty for what belongs to none."""
    record: str
    """Which it is, without anything that its board's members might not be shown."""
    key: bytes
    """For the log, and never for an answer: it may hold the path of an entry."""
    words: str
    """What that means."""
    outcome: FindingOutcome
