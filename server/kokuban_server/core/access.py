"""Who may see or change which region: the rules that hold unless a board's policy says otherwise."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


@dataclass(frozen=True, slots=True, eq=False)
class Principal:
    """Who is calling, as the credential says; nothing of it comes from a request.

    Compared by identity: the wire keeps one object for each credential, and decisions are remembered by it.
    """

    tenant: str
    agent: str
    roles: frozenset[Role]
    is_development: bool = False
    """The development identity may act for every user and in every conversation and task, and boards on the server's list
    are made when it first uses them."""


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
    and users are open to those whose credential names them: so far only the development identity, which names all.
    """
    kind = region.kind
    if kind is RegionKind.AGENT:
        if region.id != principal.agent:
            return Decision.HIDDEN
    elif kind in _NAMED_BY_CREDENTIAL and not principal.is_development:
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


_NAMED_BY_CREDENTIAL = frozenset({RegionKind.TASK, RegionKind.CONVERSATION, RegionKind.USER})
_READERS = frozenset({Role.AUDITOR})
