"""What screening held back: a commit that waits for a reviewer, and what became of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core.access import Grants, Principal
from kokuban_server.core.names import RegionKind
from kokuban_server.core.policy import acts_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kokuban_server.core.access import Role
    from kokuban_server.core.names import EntryKey, Region
    from kokuban_server.core.screening.screening import Finding
    from kokuban_server.core.trust import Label, Source


class QuarantineState(enum.IntEnum):
    """What became of a commit in quarantine. The numbers are those of the wire and of the store."""

    WAITING = 1
    RELEASED = 2
    REJECTED = 3
    PENDING = 4
    """Nothing has screened it yet."""


class HeldAuthor(NamedTuple):
    """By whose right a commit is made later: no more of it than the commit needs.

    Where the server knows the credential, what that grants then counts, and not what is kept here.
    """

    roles: frozenset[Role]
    is_development: bool
    acting: tuple[Region, ...]
    """Those regions of the commit that are the author's own to act for."""
    expires_ms: int
    credential: str = ""
    """Its name."""

    @classmethod
    def of(cls, principal: Principal, regions: Iterable[Region]) -> HeldAuthor:
        """Give what is kept of a principal whose commit names some regions."""
        acting = tuple(region for region in dict.fromkeys(regions) if acts_for(principal, region))
        return cls(principal.roles, principal.is_development, acting, principal.expires_ms, principal.credential)

    def principal(self, tenant: str, agent: str) -> Principal:
        """Give the author as it might act then."""

        def grants(kind: RegionKind) -> Grants:
            return Grants(frozenset(region.id for region in self.acting if region.kind is kind))

        kinds = (RegionKind.USER, RegionKind.CONVERSATION, RegionKind.TASK)
        users, conversations, tasks = map(grants, kinds)
        return Principal(
            tenant,
            agent,
            self.roles,
            self.is_development,
            users=users,
            conversations=conversations,
            tasks=tasks,
            expires_ms=self.expires_ms,
            credential=self.credential,
        )


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
    """The gravest first; none while it is pending."""
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
    author: HeldAuthor | None = None
    """Of one that is pending."""
