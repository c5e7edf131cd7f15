"""Raising trust: the only way up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.commits import CommitRequest
from kokuban_server.core.access import Role
from kokuban_server.core.audit import ENTRY_ENDORSE, AuditEntry
from kokuban_server.core.commit import Endorse
from kokuban_server.core.refusals import RevisionMismatch, TokenFromAnotherStore, TrustTooLow
from kokuban_server.core.trust import Trust

if TYPE_CHECKING:
    from kokuban_server.app.access import Access
    from kokuban_server.app.commits import Commits, Committed
    from kokuban_server.app.lock_guards import FenceGiven
    from kokuban_server.core.access import Principal
    from kokuban_server.core.commit import At
    from kokuban_server.core.names import EntryKey

_MOST = {Role.SUPERVISOR: Trust.USER, Role.OPERATOR: Trust.OPERATOR, Role.SYSTEM: Trust.SYSTEM}
"""How far a role may raise trust."""


class EndorseRequest(NamedTuple):
    """An endorsement as the wire has parsed it."""

    board: str
    request_id: str
    id_time_ms: int
    digest: bytes
    key: EntryKey
    at: At
    trust: Trust
    reason: str
    traceparent: str
    fences: tuple[FenceGiven, ...]


class Endorsements:
    """Answers requests for more trust."""

    def __init__(self, commits: Commits, access: Access) -> None:
        self._commits = commits
        self._access = access

    async def endorse(self, principal: Principal, request: EndorseRequest, deadline: float) -> Committed:
        """Write an entry's state anew under a higher level, and record that, at one revision.

        Raises `RoleRequired`, `TrustTooLow` for more than the caller may give, and whatever a commit raises.
        """
        self._access.require_one_of(principal, tuple(_MOST), request.board)
        most = min(principal.trust_ceiling, max(_MOST[role] for role in principal.roles & _MOST.keys()))
        key, trust = request.key, request.trust
        region = self._access.named(principal, key.region)
        if trust > most:
            refusal = TrustTooLow("trust", "caller", most.name, trust.name)
            raise self._access.refused(principal, request.board, region, refusal)
        # The path is data; what is recorded for good names the region and the state.
        target = f"{region} at {request.at.number}: {trust.name}"
        audit = AuditEntry(ENTRY_ENDORSE, principal, request.board, target, request.reason)
        commit = CommitRequest(
            request.board,
            request.request_id,
            request.id_time_ms,
            request.digest,
            (),
            ((key, Endorse(request.at, trust), 0),),
            request.reason,
            "",
            request.traceparent,
            request.fences,
            audit=audit,
        )
        try:
            return await self._commits.commit(principal, commit, deadline)
        except (RevisionMismatch, TokenFromAnotherStore) as refusal:
            refusal.field_path = "at"
            raise
