"""Who may see or change which region: the rules that hold unless a board's policy says otherwise."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.locks import LockPolicy
from kokuban_server.core.names import WITHOUT_ID, RegionKind, parse_region
from kokuban_server.core.refusals import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.core.names import Region


class Role(enum.StrEnum):
    """What a principal may do beyond using the board."""

    MEMBER = "member"
    SUPERVISOR = "supervisor"
    OPERATOR = "operator"
    AUDITOR = "auditor"
    SYSTEM = "system"


class Verb(enum.Enum):
    """What a caller wants to do in a region."""

    READ = "read"
    WRITE = "write"
    LOCK = "lock"
    """Keep others from writing; who may write may lock."""


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
    lock_policy: LockPolicy = LockPolicy.IF_LOCKED


_SHARED = RegionRules(needs_precondition=True)
_OTHER = RegionRules(needs_precondition=False)


def rules_of(region: Region) -> RegionRules:
    """Give the default rules of a region."""
    return _SHARED if region.kind is RegionKind.SHARED else _OTHER


@dataclass(frozen=True, slots=True)
class LockPolicies:
    """What regions ask of writes: by region (`shared:plan`), by kind (`task:*`), or else `IF_LOCKED`."""

    by_pattern: tuple[tuple[str, LockPolicy], ...] = ()

    @classmethod
    def parse(cls, texts: Sequence[str]) -> LockPolicies:
        """Read `PATTERN=POLICY`, each pattern once. Raises ValueError."""
        policies: dict[str, LockPolicy] = {}
        for text in texts:
            pattern, _, name = text.rpartition("=")
            kind, colon, rest = pattern.partition(":")
            try:
                policy = LockPolicy(name)
                if not (colon and rest == "*" and kind in _KINDS_WITH_ID):
                    parse_region(pattern)
            except (ValueError, InvalidRequest):
                raise ValueError(
                    f"{text!r} is not REGION=POLICY, or KIND:*=POLICY with {', '.join(LockPolicy)}"
                ) from None
            if pattern in policies:
                raise ValueError(f"{pattern!r} stands there twice")
            policies[pattern] = policy
        return cls(tuple(policies.items()))

    def of(self, region: Region) -> LockPolicy:
        """Give a region's policy. Regions beyond a board have no locks."""
        if region.kind in WITHOUT_ID:
            return LockPolicy.OFF
        named = dict(self.by_pattern)
        return named.get(str(region)) or named.get(f"{region.kind.value}:*") or LockPolicy.IF_LOCKED


_KINDS_WITH_ID = frozenset(kind.value for kind in RegionKind if kind not in WITHOUT_ID)


def decide(principal: Principal, region: Region, verb: Verb) -> Decision:
    """Say whether the principal may do this in the region.

    Roles: `auditor` reads and never writes; `member` and `supervisor` use the board; `operator` also writes the tenant's
    region and `system` the global one. An agent's private region is that agent's alone. Regions of tasks, conversations
    and users are open to those whose credential names them.
    """
    kind = region.kind
    if kind is RegionKind.AGENT:
        if region.id != principal.agent:
            return Decision.HIDDEN
    elif not (principal.is_development or _may_act(principal, region)):
        return Decision.HIDDEN
    if verb is Verb.READ:
        return Decision.ALLOWED
    if kind is RegionKind.TENANT:
        allowed = Role.OPERATOR in principal.roles
    elif kind is RegionKind.GLOBAL:
        allowed = Role.SYSTEM in principal.roles
    else:
        allowed = not principal.roles <= _READERS
    return Decision.ALLOWED if allowed else Decision.FORBIDDEN


def _may_act(principal: Principal, region: Region) -> bool:
    """Say whether the credential names the user, conversation or task of a region; other kinds belong to nobody."""
    if region.kind is RegionKind.USER:
        return principal.users.includes(region.id)
    if region.kind is RegionKind.CONVERSATION:
        return principal.conversations.includes(region.id)
    return region.kind is not RegionKind.TASK or principal.tasks.includes(region.id)


_READERS = frozenset({Role.AUDITOR})
