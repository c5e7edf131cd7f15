"""What screening held back: a commit that waits for a reviewer, and what became of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kokuban_server.core.names import EntryKey
    from kokuban_server.core.screening.screening import Finding
    from kokuban_server.core.trust import Label, Source


class QuarantineState(enum.IntEnum):
    """What became of a commit in quarantine. The numbers are those of the wire and of the store."""

    WAITING = 1
    RELEASED = 2
    REJECTED = 3


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A commit in quarantine."""

    request: bytes
    """As it was sent; nothing once it was reviewed."""
    agent: str
    create_time_ms: int
    keys: tuple[EntryKey, ...]
    """The entries that it would write."""
    labels: tuple[tuple[int, Label], ...]
    """By the mutation's place."""
    findings: tuple[Finding, ...]
    """The gravest first; never none."""
    rule_set: str
    field: str
    """Where the gravest was found."""
    source: Source
    """Where that text comes from."""
    operation: bytes
    """The key of its operation record."""
    state: QuarantineState = QuarantineState.WAITING
    reviewer: str = ""
    review_reason: str = ""
    review_time_ms: int = 0
    sequences: tuple[int, ...] = ()
    """Of the written entries, once it was released."""
