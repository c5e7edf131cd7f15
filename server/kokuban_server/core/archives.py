"""Archives of tasks: the lines that a task is written down as, and what stands for it when it is gone.

Each line names the digest of the line before it. So whoever knows the last one's digest can tell of each line, from the last
to the first, whether it is the one that was written; and a line that was changed, left out, moved or repeated is known.
"""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kokuban_server.core.refusals import ArchiveInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT: Final = "kokuban.task-archive/1"
BEGINNING: Final = "0" * 64
"""Stands for the digest of the line before the first."""


class LineKind(enum.StrEnum):
    """What a line says."""

    TASK = "task"
    ACTION = "action"
    EVENT = "event"
    ENTRY = "entry"


class ArchivePhase(enum.IntEnum):
    """How far an archived task is. The numbers are those of the store."""

    PREPARING = 1
    """It is there, and nobody writes to it: it is being compared with an archive."""
    REMOVING = 2
    ARCHIVED = 3
    RESTORING = 4


@dataclass(frozen=True, slots=True)
class Archive:
    """What stands for a task that was archived."""

    phase: ArchivePhase
    digest: str = ""
    """Of the last line."""
    lines: int = 0
    agent: str = ""
    time_ms: int = 0
    removals: int = 0
    """How often anything had been removed from the board by then."""
    until_ms: int = 0
    """Until when it is being compared; after that whoever did so is gone."""
    removed: int = 0
    """Records that were removed."""
    next_line: int = 0
    """The line that is restored next."""
    next_digest: str = ""
    left_out: int = 0
    """Entries that were not restored, as they were removed since."""

    @property
    def is_hidden(self) -> bool:
        """Whether what lies in the task's region is not to be shown: parts of it may be missing."""
        return self.phase is not ArchivePhase.PREPARING


class Line(NamedTuple):
    """A line as it was read."""

    number: int
    previous: str
    """The digest of the line before it."""
    kind: LineKind
    body: Mapping[str, Any]


def digest_of(line: str) -> str:
    """Give the digest of a line, without its line feed."""
    return hashlib.sha256(line.encode()).hexdigest()


def write_line(number: int, previous: str, kind: LineKind, body: Mapping[str, Any]) -> str:
    """Give a line: the same for the same, whatever the order of what is in it."""
    return spelled({"line": number, "previous": previous, "kind": kind.value, **body})


def spelled(body: Mapping[str, Any]) -> str:
    """Give a JSON object as one line of text."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def read_line(text: str, number: int, digest: str, field: str) -> Line:
    """Read the line of a number, which has a digest. Raises `ArchiveInvalid` for any other; `field` is where it stands."""
    if digest_of(text) != digest:
        told = number_of(text)
        detail = "was changed" if told == number else f"stands where line {number} should"
        raise ArchiveInvalid(field, told or number, detail)
    try:
        body = json.loads(text)
        return Line(body["line"], body["previous"], LineKind(body["kind"]), body)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArchiveInvalid(field, number, "is of no kind that this server knows") from error


def number_of(text: str) -> int:
    """Give the number that a line says it has; 0 for what says none."""
    try:
        number = json.loads(text)["line"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    return number if isinstance(number, int) and 0 < number < 2**53 else 0
