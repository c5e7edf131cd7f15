"""How far what is written may be believed: levels, where it comes from, and the label that follows from both."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from kokuban_server.core.names import EntryKey
    from kokuban_server.core.sensitive import Kind


class Trust(enum.IntEnum):
    """How far something may be believed. The numbers are those of the wire and of the store."""

    SUSPECT = 1
    EXTERNAL = 2
    AGENT = 3
    USER = 4
    OPERATOR = 5
    SYSTEM = 6


class SourceKind(enum.IntEnum):
    """Where something comes from. The numbers are those of the wire and of the store."""

    UNDECLARED = 0
    AGENT = 1
    USER = 2
    TOOL = 3
    EXTERNAL = 4


class Source(NamedTuple):
    """What a writer says of where something comes from."""

    kind: SourceKind = SourceKind.UNDECLARED
    uri: str = ""
    name: str = ""
    """The user or the tool."""
    content_sha256: bytes = b""
    fetch_time_ms: int = 0


UNDECLARED: Final = Source()


class TaintMode(enum.StrEnum):
    """How read scopes count in a region."""

    OFF = "off"
    TRACK = "track"
    ENFORCE = "enforce"


class ScreeningProfile(enum.StrEnum):
    """What screening looks at in a region."""

    FULL = "full"
    OFF = "off"


class StaleScreening(enum.StrEnum):
    """What becomes, until the rules of now have judged it, of what older ones have let in."""

    RETURN = "return"
    WITHHOLD = "withhold"


class WithoutVerdict(enum.StrEnum):
    """What becomes of a commit whose texts would have to be screened while nothing is."""

    REFUSE = "refuse"
    HOLD = "hold"


class Parent(NamedTuple):
    """A state of an entry that something was made of, or that was given to a read scope."""

    key: EntryKey
    revision: int
    sequence: int
    extends_from: int = 0
    """The sequence of the oldest state of which that state may hold a part, or 0."""


class Label(NamedTuple):
    """How far a state may be believed, and why."""

    trust: Trust = Trust.AGENT
    source: Source = UNDECLARED
    parents: tuple[Parent, ...] = ()
    """What the writer says it was made of."""
    read_scope: str = ""
    """The scope it was written in, where that had been given external text."""
    extends_from: int = 0
    """The sequence of the oldest state of which it may hold a part; 0 where it holds nothing of those before."""
    endorsed_by: str = ""
    screened_by: str = ""
    """The rules by which it was screened before it was written."""
    suspicious: bool = False
    """Screening found something, short of what goes into quarantine."""
    scope_size: int = 0
    """How many states the read scope had been given by then."""
    holds: frozenset[Kind] = frozenset()
    """The kinds of sensitive content that were found in it and are kept."""
    unsearched: bool = False
    """It is encoded deeper than was looked at."""

    def onto(self, before: Label, sequence: int) -> Label:
        """Give the label of what changes a state without replacing all of it: trusted no more than that was."""
        let_in_by = "" if before.endorsed_by else before.screened_by  # a reviewer's word stands
        return self._replace(
            trust=min(self.trust, before.trust),
            extends_from=before.extends_from or sequence,
            screened_by=let_in_by or self.screened_by,
            suspicious=self.suspicious or before.suspicious,
            holds=self.holds | before.holds,
            unsearched=self.unsearched or before.unsearched,
        )

    def screened(self, rule_set: str, *, suspicious: bool) -> Label:
        """Give the label of what was screened and let in: what is suspicious is data, whoever gave it."""
        trust = min(self.trust, Trust.EXTERNAL) if suspicious else self.trust
        return self._replace(trust=trust, screened_by=rule_set, suspicious=suspicious)

    def held_back(self, rule_set: str) -> Label:
        """Give the label of what was let in and turned out to be what is held back: only reviewers are shown it."""
        return self._replace(trust=Trust.SUSPECT, screened_by=rule_set, suspicious=True)

    def holding(self, holds: frozenset[Kind], *, unsearched: bool) -> Label:
        """Give the label of what holds such content."""
        return self._replace(holds=holds, unsearched=unsearched)


OWN_WORD: Final = Label()
"""An agent's own word. What nearly everything has, so it is not stored."""
