"""What the simulated workers of tasks asked for, were told and caused, for the invariants to judge."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kokuban_server.app.commits import CommitRequest
    from kokuban_server.app.task_claims import Claimed
    from kokuban_server.core.tasks import InDoubt


class Fate(enum.Enum):
    """What is known of a commit in the end."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Recording:
    """One commit of events, however often it was sent."""

    agent: str
    request: CommitRequest
    fate: Fate = Fate.UNKNOWN


@dataclass(slots=True)
class Claim:
    """One claim, however often it was sent."""

    agent: str
    task: str
    answers: list[Claimed] = field(default_factory=list)


class Effect(NamedTuple):
    """Something that a worker caused outside the board."""

    task: str
    step: str
    action: str
    in_doubt: InDoubt
    revision: int
    """Of the store at that moment."""
    is_held: bool
    """Its step was held at that moment. A worker may lose it without knowing, and what it does then nothing can prevent."""


@dataclass(slots=True)
class TaskJournal:
    """Everything of one run with tasks."""

    recordings: dict[str, Recording] = field(default_factory=dict)
    claims: dict[str, Claim] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    wanted: dict[str, set[str]] = field(default_factory=dict)
    """For each task the constraints that were acknowledged and are in force."""
    refused: set[str] = field(default_factory=set)
    """The refusals that anybody met."""
    deaths: int = 0
