"""Where a run's entries lie on the board, and what stands in them.

Everything carries the run's id, so that earlier runs on the same store are never in the way.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any

from kokuban_client.types import Fence, Revision

BOARD = "demo"
SUPERVISOR, SLEEPER = "supervisor", "sleeper"

PLAN, TOTALS, WORK, CONFLICTS = "plan", "totals", "work", "conflicts"
RACE, BARRIER = "race/charter", "race/barrier"
RESTRUCTURING, SUMMARY, REFUSALS = "restructuring", "summary", "refusals"
FINISHED = "finished"

COMMIT_MAX = 32
"""How many files of the plan are written in one commit at most."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run, and the regions that it uses."""

    id: str

    @property
    def region(self) -> str:
        """Plan, totals, race, conflicts and what locks are for: what the whole team watches."""
        return f"shared:demo-{self.id}"

    @property
    def findings(self) -> str:
        """One entry of findings for each file."""
        return f"shared:demo-{self.id}-findings"

    @property
    def prefix(self) -> str:
        """What the paths of all notes of this run begin with: an agent's own region outlives a run."""
        return f"demo-{self.id}"

    def note(self, label: str) -> str:
        """Where an agent keeps its notes on a file, in its own region."""
        return f"{self.prefix}/notes/{label}"

    @property
    def began(self) -> str:
        """Where an agent notes that it began, in its own region."""
        return f"{self.prefix}/began"


def private(agent: str) -> str:
    """Give an agent's own region: what lies there is NOT_FOUND for everybody else."""
    return f"agent:{agent}"


def plan_path(label: str) -> str:
    """Give where a file stands in the plan."""
    return f"{PLAN}/{label}"


def label_of(path: str) -> str | None:
    """Give the file that a path of the plan is about, or nothing for any other path."""
    head, _, label = path.partition("/")
    return label if head == PLAN and label else None


class State(enum.StrEnum):
    """How far a file is."""

    OPEN = "open"
    CLAIMED = "claimed"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class PlanItem:
    """What the plan says about a file.

    `attempt` counts the claims; `reviewed` says that only telling is left to do; the highest `priority` comes first.
    """

    file: str
    sha256: str
    state: State = State.OPEN
    agent: str = ""
    attempt: int = 0
    kept_for: str = ""
    reviewed: bool = False
    size_bytes: int = 0
    priority: int = 0

    def to_json(self) -> dict[str, Any]:
        """Give what is written on the board."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PlanItem:
        """Read what stands on the board."""
        return cls(**{**value, "state": State(value["state"])})


@dataclass(frozen=True, slots=True)
class Conflict:
    """A write that lost, as its loser noted it: what it believed, what was there, and who had been faster."""

    path: str
    loser: str
    winner: str
    expected: Revision | None
    actual: Revision | None

    def to_json(self) -> dict[str, Any]:
        """Give what is written on the board. Who lost is told by the entry's author."""
        return {
            "path": self.path,
            "winner": self.winner,
            "expected": str(self.expected or ""),
            "actual": str(self.actual or ""),
        }

    @classmethod
    def from_json(cls, value: dict[str, str], loser: str) -> Conflict:
        """Read what stands on the board."""
        expected, actual = (Revision.parse(text) if text else None for text in (value["expected"], value["actual"]))
        return cls(value["path"], loser, value["winner"], expected, actual)


@dataclass(frozen=True, slots=True)
class Restructuring:
    """A part of the plan that is locked while it is put in order, as its holder tells the team. It is free once it is done."""

    place: str
    purpose: str
    fence: Fence
    done: bool = False

    def takes(self, path: str) -> bool:
        """Say whether a path lies in that part."""
        return path == self.place or path.startswith(f"{self.place}/")

    def to_json(self) -> dict[str, Any]:
        """Give what is written on the board."""
        return {"place": self.place, "purpose": self.purpose, "fence": str(self.fence), "done": self.done}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Restructuring:
        """Read what stands on the board."""
        return cls(**{**value, "fence": Fence.parse(value["fence"])})


@dataclass(frozen=True, slots=True)
class Summary:
    """What stands in the summary, and the fence of the lock under which its author wrote it."""

    text: str
    fence: Fence

    def to_json(self) -> dict[str, str]:
        """Give what is written on the board."""
        return {"text": self.text, "fence": str(self.fence)}

    @classmethod
    def from_json(cls, value: dict[str, str]) -> Summary:
        """Read what stands on the board."""
        return cls(value["text"], Fence.parse(value["fence"]))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A write that was refused because of a lock, as its writer noted it: what it tried, why not, and whose lock it was."""

    path: str
    reason: str
    holder: str
    purpose: str
    lock_id: str
    fence_revision: int
    tried: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Give what is written on the board. Who was refused is told by the entry's author."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Refusal:
        """Read what stands on the board."""
        return cls(**value)
