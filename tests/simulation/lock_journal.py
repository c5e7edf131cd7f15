"""What the simulated holders of locks asked for and were told, for the invariants to judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.journal import Journal

if TYPE_CHECKING:
    from kokuban_server.app.commits import CommitRequest, Committed
    from kokuban_server.app.lock_asked import Granted, LockRequest
    from kokuban_server.core.locks import Fence
    from kokuban_server.core.refusals import Refusal


class Span(NamedTuple):
    """The store's revisions between which an answer was made: when it was asked for, and when it came."""

    floor: int
    ceiling: int


class Told(NamedTuple):
    """A refusal, and what could have been seen when it was made."""

    refusal: Refusal
    span: Span
    at_s: float


@dataclass(slots=True)
class Asking:
    """One request for a lock, however often it was sent."""

    agent: str
    request: LockRequest
    answers: list[tuple[Granted, Span]] = field(default_factory=list)
    refusals: list[Told] = field(default_factory=list)


@dataclass(slots=True)
class Writing:
    """One commit of somebody who may hold locks, however often it was sent."""

    agent: str
    request: CommitRequest
    answers: list[tuple[Committed, Span]] = field(default_factory=list)
    refusals: list[Told] = field(default_factory=list)


class Release(NamedTuple):
    """What a holder was told of its release."""

    agent: str
    fence: Fence
    released: bool
    revision: int
    span: Span


class Beat(NamedTuple):
    """That a session was told to live, or to be lost."""

    session_id: str
    is_alive: bool
    span: Span


@dataclass(slots=True)
class LockJournal(Journal):
    """Everything of one run with locks."""

    askings: dict[str, Asking] = field(default_factory=dict)
    writings: dict[str, Writing] = field(default_factory=dict)
    releases: list[Release] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    sessions: dict[str, set[str]] = field(default_factory=dict)
    """For each request for a session, the ids that it was answered with."""
