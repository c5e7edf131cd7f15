"""Boards made, described and removed, and their policies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import records_below
from kokuban_server.app.page_tokens import page_token, read_page_token
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Decision, Role
from kokuban_server.core.audit import BOARD_CREATE, BOARD_DELETE, POLICY_SET, AuditEntry
from kokuban_server.core.boards import BoardRecord, BoardState, PolicyVersion, PurgeCount
from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.core.policy import check
from kokuban_server.core.refusals import (
    BoardExists,
    Contended,
    EncryptionUnavailable,
    NotAdministrator,
    NotFound,
    PolicyChanged,
    PolicyLocksOut,
)
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.board_codec import encode_board, encode_purge

if TYPE_CHECKING:
    from kokuban_server.app.access import Access
    from kokuban_server.app.audit import AuditLog
    from kokuban_server.app.boards import Board, Boards
    from kokuban_server.app.sealing import Sealing
    from kokuban_server.core.access import Principal, Verb
    from kokuban_server.core.change_set import AtRevision
    from kokuban_server.core.names import Region
    from kokuban_server.core.policy import Policy, Ruling
    from kokuban_server.ports.board_store import BoardStore
    from kokuban_server.ports.clock import Clock

_OVERSEERS = (Role.OPERATOR, Role.SUPERVISOR, Role.AUDITOR)
"""Who may read a policy."""


class BoardPage(NamedTuple):
    """One page of boards."""

    boards: list[Board]
    next_page_token: str
    revision: int


class BoardAdministration:
    """What operators ask for of boards."""

    def __init__(
        self, store: BoardStore, access: Access, boards: Boards, clock: Clock, audit: AuditLog, sealing: Sealing
    ) -> None:
        self._audit = audit
        self._store = store
        self._access = access
        self._boards = boards
        self._clock = clock
        self._sealing = sealing

    @property
    def epoch(self) -> str:
        """The store's epoch."""
        return self._store.epoch

    async def create(self, principal: Principal, board_id: str, deadline: float) -> Board:
        """Make a board of the principal's tenant. Raises `RoleRequired`, and `BoardExists`."""
        self._access.require_role(principal, Role.OPERATOR, board_id)
        before = await self._boards.read(principal.tenant, board_id, left_s(deadline))
        if not principal.boards.includes(board_id):
            raise self._access.refused(principal, board_id, "", NotFound())
        if before is not None and before.record.state is not BoardState.PURGED:
            raise BoardExists(board_id)
        key = keys.board(principal.tenant, board_id)
        guard = before.guard if before is not None else Absent(key)
        try:
            record = BoardRecord(self._clock.now_ms(), principal.agent)
            return await self._write(AuditEntry(BOARD_CREATE, principal, board_id), guard, key, record, deadline)
        except CommitRefused:
            raise BoardExists(board_id) from None

    async def get(self, principal: Principal, board_id: str, deadline: float) -> Board:
        """Describe a board. Raises `NotFound`, also for one that was deleted, unless the principal is an operator."""
        board = await self._access.find(principal, board_id, deadline)
        if board is None or not (board.is_live or Role.OPERATOR in principal.roles):
            raise NotFound
        return board

    async def list(
        self, principal: Principal, page_size: int, token: str, deadline: float, *, show_deleted: bool
    ) -> BoardPage:
        """Give a page of the tenant's boards that there are for the principal."""
        if show_deleted:
            self._access.require_role(principal, Role.OPERATOR)
        prefix = keys.boards(principal.tenant)
        after = read_page_token(token, prefix, prefix)
        revision = (await self._store.read([keys.SECRET], STRONG, left_s(deadline))).revision
        found: list[Board] = []
        async for record in records_below(self._store, prefix, deadline, after):
            board = self._boards.learn(record.key, record.value, record.revision)
            if not principal.boards.includes(board.id) or not (board.is_live or show_deleted):
                continue
            if len(found) == page_size:  # the token names only what is shown
                return BoardPage(found, page_token(found[-1].key, prefix, prefix), revision)
            found.append(board)
        return BoardPage(found, "", revision)

    async def delete(self, principal: Principal, board_id: str, reason: str, deadline: float) -> Board:
        """Take a board away from everybody, and have what it held removed. Deleting one that is deleted is nothing.

        Raises `RoleRequired`, `NotAdministrator`, and `NotFound`.
        """
        self._access.require_role(principal, Role.OPERATOR, board_id)
        entry = AuditEntry(BOARD_DELETE, principal, board_id, reason=reason)
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            board = await self._access.find(principal, board_id, deadline)
            if board is None:
                raise NotFound
            if not board.is_live:
                return board
            self._require_administrator(principal, board)
            record = replace(
                board.record,
                state=BoardState.DELETED,
                delete_time_ms=self._clock.now_ms(),
                deleted_by=principal.agent,
                delete_reason=reason,
            )
            task = Put(keys.purge(principal.tenant, board_id), encode_purge(PurgeCount()))
            try:
                return await self._write(entry, board.guard, board.key, record, deadline, task)
            except CommitRefused:
                continue
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    async def policy(self, principal: Principal, board_id: str, deadline: float) -> Board:
        """Give a board with its policy as it is now. Raises `RoleRequired` and `NotFound`."""
        self._access.require_one_of(principal, _OVERSEERS, board_id)
        return await self._access.live(principal, board_id, deadline)

    async def set_policy(
        self, principal: Principal, board_id: str, policy: Policy, replaces: int, reason: str, deadline: float
    ) -> Board:
        """Lay down a board's policy in place of the one with the number `replaces`. The same again is nothing.

        Raises `RoleRequired`, `NotAdministrator`, `NotFound`, `InvalidRequest`, `PolicyLocksOut`, `PolicyChanged`, and
        `EncryptionUnavailable` for what this server has no keys for.
        """
        self._access.require_role(principal, Role.OPERATOR, board_id)
        check(policy, "policy")
        encrypting = policy.first_encrypting("policy")
        if encrypting and not self._sealing.has_keys:
            raise EncryptionUnavailable(encrypting)
        if not policy.may_administer(principal):
            raise PolicyLocksOut(board_id)
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            board = await self._access.live(principal, board_id, deadline)
            self._require_administrator(principal, board)
            record = board.record
            number, _, author, _ = record.version
            if number == replaces + 1 and author == principal.agent and policy.says_the_same_as(record.policy):
                return board  # the answer to an earlier try was lost
            if number != replaces:
                raise PolicyChanged(board_id, replaces, number, author)
            version = PolicyVersion(number + 1, self._clock.now_ms(), principal.agent, reason)
            try:
                entry = AuditEntry(POLICY_SET, principal, board_id, f"policy {version.number}", reason)
                after = replace(record, policy=policy, version=version)
                return await self._write(entry, board.guard, board.key, after, deadline)
            except CommitRefused:
                continue
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    async def explain(
        self, principal: Principal, board_id: str, region: Region, verb: Verb, deadline: float
    ) -> tuple[Board, Ruling]:
        """Say what would become of the principal's own request under the policy of now, and by which rule.

        Of a region that is not readable the rule is told only to those who may read the policy: to others it might tell
        that the region is there. Raises `NotFound` for a board.
        """
        board = await self._access.live(principal, board_id, deadline)
        ruling = board.policy.rule(principal, region, verb)
        if ruling.decision is Decision.HIDDEN and principal.roles.isdisjoint(_OVERSEERS):
            ruling = ruling._replace(rule="")
        return board, ruling

    def _require_administrator(self, principal: Principal, board: Board) -> None:
        if not board.policy.may_administer(principal):
            raise self._access.refused(principal, board.id, "policy", NotAdministrator(board.id))

    async def _write(
        self,
        entry: AuditEntry,
        guard: Absent | AtRevision,
        key: bytes,
        record: BoardRecord,
        deadline: float,
        *more: Put,
    ) -> Board:
        """Write a board's record, and give the board as it is now. Raises `CommitRefused` if it has changed meanwhile."""
        raw = encode_board(record)
        revision = await self._audit.commit_with(entry, ChangeSet((guard,), (Put(key, raw), *more)), deadline)
        return self._boards.learn(key, raw, revision)
