"""Who is calling, what it wants to do in a region, and what may come of it. What decides is `core.policy`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.locks import LockPolicy
from kokuban_server.core.sensitive import STANDARD, Terms
from kokuban_server.core.trust import ScreeningProfile, StaleScreening, TaintMode, Trust, WithoutVerdict


class Role(enum.StrEnum):
    """What a principal may do beyond using the board."""

    MEMBER = "member"
    SUPERVISOR = "supervisor"
    OPERATOR = "operator"
    AUDITOR = "auditor"
    SYSTEM = "system"


REVIEWERS: Final = (Role.SUPERVISOR, Role.OPERATOR, Role.SYSTEM)
"""Who is shown what was held back."""


class Verb(enum.Enum):
    """What a caller wants to do in a region."""

    READ = "read"
    WRITE = "write"
    LOCK = "lock"
    """Keep others from writing."""
    REVEAL = "reveal"
    """See what is encrypted there."""


class Grants(NamedTuple):
    """For which of a kind a principal may act: for those named, or for all."""

    ids: frozenset[str] = frozenset()
    is_all: bool = False

    def includes(self, name: str) -> bool:
        """Say whether it may act for this one."""
        return self.is_all or name in self.ids


NOBODY = Grants()
EVERYBODY = Grants(is_all=True)


@dataclass(frozen=True, slots=True, eq=False)
class Principal:
    """Who is calling, as the credential says; nothing of it comes from a request.

    Compared by identity: the wire keeps one object for each credential, and decisions are remembered by it.
    """

    tenant: str
    agent: str
    roles: frozenset[Role]
    is_development: bool = False
    """May act for everybody; boards on the server's list are made when it first uses them."""
    boards: Grants = EVERYBODY
    """The tenant's boards that there are for it."""
    users: Grants = NOBODY
    """The end users that it may act for."""
    conversations: Grants = NOBODY
    """The conversations that it serves."""
    tasks: Grants = NOBODY
    """The tasks that it works on."""
    expires_ms: int = 0
    """When its credential ends, in milliseconds of Unix time; 0 for never."""
    credential: str = ""
    """Names the credential; never holds its secret."""
    trust_ceiling: Trust = Trust.SYSTEM
    """The most that what it writes, or endorses, may be trusted."""
    browses: bool = False
    """It looks at what is outside: what it does not say the source of comes from there."""


class Decision(enum.Enum):
    """What the rules say."""

    ALLOWED = "allowed"
    HIDDEN = "hidden"
    """Not readable: told exactly like what is not there."""
    FORBIDDEN = "forbidden"
    """Readable, but not for this verb."""


@dataclass(frozen=True, slots=True)
class RegionRules:
    """What holds in a region."""

    needs_precondition: bool
    """Unconditional writes are refused."""
    history_revisions_max: int = limits.HISTORY_REVISIONS_MAX
    history_age_ms_max: int = limits.HISTORY_AGE_MS_MAX
    tombstone_ms: int = limits.TOMBSTONE_MS
    default_ttl_ms: int = 0
    """How long an entry lives whose writer says nothing; 0 for ever."""
    lock_policy: LockPolicy = LockPolicy.IF_LOCKED
    read_floor: Trust = Trust.AGENT
    """The least trusted that readers are shown who do not ask for less."""
    taint_mode: TaintMode = TaintMode.TRACK
    allows_lowering: bool = False
    """An entry may be written over by what is trusted less than it is."""
    screening: ScreeningProfile = ScreeningProfile.FULL
    stale_screening: StaleScreening = StaleScreening.RETURN
    without_verdict: WithoutVerdict = WithoutVerdict.REFUSE
    redaction: Terms = STANDARD
    """What becomes of secrets and personal data that are written there."""

    def of_events(self) -> RegionRules:
        """Give what holds for the events of a task, whose region this is.

        They live as long as their task, and who may record them is told by the step's own lock: locks on their paths say
        nothing.
        """
        return replace(self, default_ttl_ms=0, lock_policy=LockPolicy.OFF)
