"""Looking after the server: its state, and how far back its history reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.deadlines import left_s
from kokuban_server.core.access import Role
from kokuban_server.core.audit import BEGUN, HISTORY_COMPACT, AuditEntry
from kokuban_server.core.refusals import StoreFull, TokenAheadOfStore
from kokuban_server.core.revision import revision_of

if TYPE_CHECKING:
    from kokuban_server.app.access import Access
    from kokuban_server.app.audit import AuditLog
    from kokuban_server.app.judged_states import JudgedStates
    from kokuban_server.core.access import Principal
    from kokuban_server.core.rescreening import Progress
    from kokuban_server.ports.board_store import BoardStore, StoreStatus


class ServerStatus(NamedTuple):
    """How the server and its store are."""

    server_version: str
    epoch: str
    store: StoreStatus
    rescreening: Progress | None
    """Told to operators, as it is of all tenants."""


class Administration:
    """What operators ask for."""

    def __init__(
        self, store: BoardStore, access: Access, server_version: str, audit: AuditLog, judged: JudgedStates
    ) -> None:
        self._judged = judged
        self._audit = audit
        self._store = store
        self._access = access
        self._server_version = server_version

    @property
    def epoch(self) -> str:
        """The store's epoch."""
        return self._store.epoch

    async def status(self, principal: Principal, deadline: float) -> ServerStatus:
        """Say how things are. Any principal may know."""
        store = await self._store.status(left_s(deadline))
        progress = self._judged.ours if Role.OPERATOR in principal.roles else None
        return ServerStatus(self._server_version, self._store.epoch, store, progress)

    async def compact(self, principal: Principal, before_token: str, deadline: float) -> tuple[int, int]:
        """Forget the store's history before a state; give up to where it is forgotten, and the present revision."""
        self._access.require_role(principal, Role.OPERATOR)
        before = revision_of(before_token, self._store.epoch, "before")
        status = await self._store.status(left_s(deadline))
        if before > status.revision:
            raise TokenAheadOfStore("before")
        entry = AuditEntry(HISTORY_COMPACT, principal, target=f"before revision {before}", outcome=BEGUN)
        try:
            await self._audit.append(entry, deadline)
        except StoreFull:  # what makes room must not need any: the record follows when there is some
            self._audit.note(entry)
        return await self._store.compact(before, left_s(deadline)), status.revision
