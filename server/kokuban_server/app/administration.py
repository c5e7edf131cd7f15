"""Looking after the server: its state, and how far back its history reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import records_below
from kokuban_server.app.page_tokens import page_token, read_page_token
from kokuban_server.core import keys
from kokuban_server.core.access import Role
from kokuban_server.core.audit import BEGUN, BOARD_CREATE, HISTORY_COMPACT, AuditEntry
from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.core.refusals import BoardExists, TokenAheadOfStore
from kokuban_server.core.revision import revision_of
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.codec import decode_board, encode_board

if TYPE_CHECKING:
    from kokuban_server.app.access import Access
    from kokuban_server.app.audit import AuditLog
    from kokuban_server.core.access import Principal
    from kokuban_server.ports.board_store import BoardStore, StoreStatus
    from kokuban_server.ports.clock import Clock


class ServerStatus(NamedTuple):
    """How the server and its store are."""

    server_version: str
    epoch: str
    store: StoreStatus


class BoardInfo(NamedTuple):
    """A board as it is administered."""

    board: str
    create_time_ms: int
    creator: str


class Administration:
    """What operators ask for."""

    def __init__(self, store: BoardStore, access: Access, clock: Clock, server_version: str, audit: AuditLog) -> None:
        self._audit = audit
        self._store = store
        self._clock = clock
        self._access = access
        self._server_version = server_version

    @property
    def epoch(self) -> str:
        """The store's epoch."""
        return self._store.epoch

    async def status(self, deadline: float) -> ServerStatus:
        """Say how things are. Any principal may know."""
        store = await self._store.status(left_s(deadline))
        return ServerStatus(self._server_version, self._store.epoch, store)

    async def create_board(self, principal: Principal, board: str, deadline: float) -> tuple[BoardInfo, int]:
        """Make a board of the principal's tenant. Raises `RoleRequired`, and `BoardExists`."""
        self._access.require_role(principal, Role.OPERATOR, board)
        self._access.require_named(principal, board)
        info = BoardInfo(board, self._clock.now_ms(), principal.agent)
        key = keys.board(principal.tenant, board)
        put = Put(key, encode_board(info.create_time_ms, info.creator))
        try:
            entry = AuditEntry(BOARD_CREATE, principal, board)
            revision = await self._audit.commit_with(entry, ChangeSet((Absent(key),), (put,)), deadline)
        except CommitRefused:
            raise BoardExists(board) from None
        return info, revision

    async def list_boards(
        self, principal: Principal, page_size: int, token: str, deadline: float
    ) -> tuple[list[BoardInfo], str, int]:
        """Give a page of the tenant's boards that there are for the principal, and the state that was read."""
        prefix = keys.boards(principal.tenant)
        after = read_page_token(token, prefix, prefix)
        revision = (await self._store.read([keys.SECRET], STRONG, left_s(deadline))).revision
        found: list[BoardInfo] = []
        async for record in records_below(self._store, prefix, deadline, after):
            board = keys.parse_board(record.key)
            if not principal.boards.includes(board):
                continue
            if len(found) == page_size:  # the token names only what is shown
                return found, page_token(keys.board(principal.tenant, found[-1].board), prefix, prefix), revision
            found.append(BoardInfo(board, *decode_board(record.key, record.value)))
        return found, "", revision

    async def compact(self, principal: Principal, before_token: str, deadline: float) -> tuple[int, int]:
        """Forget the store's history before a state; give up to where it is forgotten, and the present revision."""
        self._access.require_role(principal, Role.OPERATOR)
        before = revision_of(before_token, self._store.epoch, "before")
        status = await self._store.status(left_s(deadline))
        if before > status.revision:
            raise TokenAheadOfStore("before")
        target = f"before revision {before}"
        await self._audit.append(AuditEntry(HISTORY_COMPACT, principal, target=target, outcome=BEGUN), deadline)
        return await self._store.compact(before, left_s(deadline)), status.revision
