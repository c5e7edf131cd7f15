"""Purging sources and erasing persons: planned, begun, told of. What is done is done by `RemovalUpkeep`."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.bars import pseudonym
from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import records_below
from kokuban_server.app.page_tokens import page_token as make_page_token
from kokuban_server.app.page_tokens import read_page_token
from kokuban_server.app.removal_survey import survey
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Role
from kokuban_server.core.audit import SOURCE_PURGE, SUBJECT_ERASE, AuditEntry
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, DeleteKey, Put
from kokuban_server.core.provenance import Bar, Selector
from kokuban_server.core.refusals import Contended, NotAdministrator, NotFound, PurgesFull
from kokuban_server.core.removals import ErasureStatus, Fate, Removal, RemovalState
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.board_codec import encode_board
from kokuban_server.records.provenance_codec import decode_removal, encode_removal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kokuban_server.app.access import Access, OpenRegion
    from kokuban_server.app.audit import AuditLog
    from kokuban_server.app.boards import Board
    from kokuban_server.app.removal_survey import KeptState, Survey
    from kokuban_server.app.removal_work import RemovalUpkeep
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import Principal
    from kokuban_server.core.names import EntryKey, Region
    from kokuban_server.ports.board_store import BoardStore


class KnownRemoval(NamedTuple):
    """A removal as it was read."""

    id: str
    revision: int
    removal: Removal


class RemovalPage(NamedTuple):
    """One page of removals."""

    found: list[KnownRemoval]
    next_page_token: str
    revision: int


class Finding(NamedTuple):
    """What would become of one state."""

    key: EntryKey
    revision: int
    fate: Fate
    is_present: bool


class RemovalPlan(NamedTuple):
    """What would be removed."""

    findings: list[Finding]
    """In regions that the caller may read, at most 1,000."""
    removed: int
    deleted: int
    attested: int
    undecided: int
    quarantined: int
    sessions: int
    other_boards: list[str]


class Removals:
    """Answers operators."""

    def __init__(
        self,
        store: BoardStore,
        access: Access,
        time: StoreTime,
        audit: AuditLog,
        digest: Callable[[bytes], bytes],
        upkeep: RemovalUpkeep,
    ) -> None:
        self._upkeep = upkeep
        self._store = store
        self._access = access
        self._time = time
        self._audit = audit
        self._digest = digest

    async def plan(
        self,
        principal: Principal,
        board_id: str,
        selector: Selector,
        reason: str,
        deadline: float,
        *,
        allows_reingest: bool,
    ) -> tuple[KnownRemoval, RemovalPlan]:
        """Say what a removal would be about, and keep the plan. Raises `RoleRequired`, `NotAdministrator`, `PurgesFull`."""
        board = await self._enter(principal, board_id, deadline)
        seen = await survey(self._store, board.tenant, board.id, selector, deadline)
        now_ms = self._time.now_ms()
        removal_id = keys.new_removal(now_ms, secrets.token_hex(8))
        removal = Removal(selector, reason, principal.agent, now_ms, allows_reingest, is_erasure=bool(selector.user))
        prefix = keys.board_prefix(board.tenant, board.id)
        stale = await self._stale(prefix, deadline)
        key = keys.on_board(keys.REMOVAL, prefix, removal_id)
        change = ChangeSet((Absent(key), board.guard), (Put(key, encode_removal(removal)),), tuple(stale))
        try:
            revision = await self._store.commit(change, left_s(deadline))
        except CommitRefused:
            raise Contended(1) from None
        return KnownRemoval(removal_id, revision, removal), await self._planned(principal, board, seen, deadline)

    async def _stale(self, prefix: bytes, deadline: float) -> list[DeleteKey]:
        """Give what removes plans that nobody has begun in time. Raises `PurgesFull` if there is no room for another one."""
        end_ms = self._time.now_ms() - limits.REMOVAL_PLAN_MS
        count = 0
        stale = []
        async for record in records_below(self._store, keys.REMOVAL + prefix, deadline):
            removal = decode_removal(record.key, record.value)
            if removal.state is RemovalState.PLANNED and removal.create_time_ms <= end_ms:
                stale.append(DeleteKey(record.key))
            else:
                count += 1
        if count >= limits.REMOVALS_ENTRIES_MAX:
            raise PurgesFull(limits.REMOVALS_ENTRIES_MAX)
        return stale[: limits.STORE_OPERATIONS_MAX // 2]

    async def _planned(self, principal: Principal, board: Board, seen: Survey, deadline: float) -> RemovalPlan:
        """Say what would be removed; that others' private memory is named is recorded, as where it is read."""
        findings: list[Finding] = []
        opened: dict[Region, OpenRegion | None] = {}
        for head, state, fate, is_present in _fates(seen):
            _, _, key = keys.parse_head(head)
            if key.region not in opened:
                opened[key.region] = self._access.readable_under(board, principal, key.region)
            if opened[key.region] is not None and len(findings) < limits.REMOVAL_FINDINGS_ENTRIES_MAX:
                findings.append(Finding(key, state.revision, fate, is_present))
        await self._access.show(principal, [region for region in opened.values() if region is not None], deadline)
        return RemovalPlan(
            findings,
            removed=sum(len(entry.removed) for entry in seen.entries),
            deleted=sum(entry.ends for entry in seen.entries),
            attested=sum(any(map(entry.is_present, entry.attested)) for entry in seen.entries),
            undecided=len(seen.undecided),
            quarantined=len(seen.quarantined),
            sessions=len(seen.scopes),
            other_boards=sorted(name for name in seen.other_boards if principal.boards.includes(name)),
        )

    async def begin(
        self, principal: Principal, board_id: str, plan_id: str, deadline: float, *, is_erasure: bool
    ) -> KnownRemoval:
        """Begin what was planned: from now on its source is refused. What has begun is given as it is.

        Raises `RoleRequired`, `NotAdministrator`, `PurgesFull`, and `NotFound` for a plan that there is not, or not any more.
        """
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            board = await self._enter(principal, board_id, deadline, anew=True)
            known = await self._find(board, plan_id, deadline)
            removal = known.removal
            if removal.is_erasure != is_erasure:
                raise NotFound
            if removal.state is not RemovalState.PLANNED:
                return known
            now_ms = self._time.now_ms()
            if removal.create_time_ms <= now_ms - limits.REMOVAL_PLAN_MS:
                raise NotFound
            record = board.record
            bars = record.bars + self._bars(board.tenant, known)
            if len(bars) > limits.BARS_ENTRIES_MAX:
                raise PurgesFull(limits.BARS_ENTRIES_MAX)
            begun = replace(removal, state=RemovalState.RUNNING, started_by=principal.agent, start_time_ms=now_ms)
            prefix = keys.board_prefix(board.tenant, board.id)
            key = keys.on_board(keys.REMOVAL, prefix, plan_id)
            change = ChangeSet(
                (board.guard, AtRevision(key, known.revision)),
                (
                    Put(board.key, encode_board(replace(record, bars=bars, removals=record.removals + 1))),
                    Put(key, encode_removal(begun)),
                    Put(keys.on_board(keys.REMOVAL_RUNNING, prefix, plan_id), b""),
                ),
            )
            act = SUBJECT_ERASE if removal.is_erasure else SOURCE_PURGE
            entry = AuditEntry(act, principal, board.id, f"removal {plan_id}", removal.reason)
            try:
                revision = await self._audit.commit_with(entry, change, deadline)
            except CommitRefused:
                continue
            self._upkeep.ask()
            return KnownRemoval(plan_id, revision, begun)
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    def _bars(self, tenant: str, known: KnownRemoval) -> tuple[Bar, ...]:
        """Give what is refused from now on."""
        selector = known.removal.selector
        if known.removal.allows_reingest:
            return ()
        if selector.user:
            return (Bar(known.id, None, pseudonym(self._digest, tenant, selector.user)),)
        if not selector.needs_source or selector.session or selector.from_ms or selector.before_ms:
            return ()
        return (Bar(known.id, selector),)

    async def get(self, principal: Principal, board_id: str, removal_id: str, deadline: float) -> KnownRemoval:
        """Tell how far a removal has come. Raises `RoleRequired` and `NotFound`."""
        self._access.require_role(principal, Role.OPERATOR, board_id)
        board = await self._access.enter(principal, board_id, deadline)
        known = await self._find(board, removal_id, deadline)
        return _as_of(known, (await self._store.status(left_s(deadline))).compacted_revision)

    async def list_removals(
        self, principal: Principal, board_id: str, page_size: int, page_token: str, deadline: float
    ) -> RemovalPage:
        """Give a page of a board's removals, the newest first. Raises `RoleRequired` and `NotFound`."""
        self._access.require_role(principal, Role.OPERATOR, board_id)
        board = await self._access.enter(principal, board_id, deadline)
        prefix = keys.REMOVAL + keys.board_prefix(board.tenant, board.id)
        after = read_page_token(page_token, prefix, prefix)
        page = await self._store.scan(prefix, after, page_size, limits.PAGE_BYTES_MAX, STRONG, left_s(deadline))
        compacted = (await self._store.status(left_s(deadline))).compacted_revision
        found = [
            _as_of(
                KnownRemoval(keys.name_on_board(record.key), record.revision, decode_removal(record.key, record.value)),
                compacted,
            )
            for record in page.records
        ]
        token = make_page_token(page.records[-1].key, prefix, prefix) if page.more else ""
        return RemovalPage(found, token, page.revision)

    async def _find(self, board: Board, removal_id: str, deadline: float) -> KnownRemoval:
        key = keys.on_board(keys.REMOVAL, keys.board_prefix(board.tenant, board.id), removal_id)
        record = (await self._store.read([key], STRONG, left_s(deadline))).records[0]
        if record is None:
            raise NotFound
        return KnownRemoval(removal_id, record.revision, decode_removal(key, record.value))

    async def _enter(self, principal: Principal, board_id: str, deadline: float, *, anew: bool = False) -> Board:
        self._access.require_role(principal, Role.OPERATOR, board_id)
        look = self._access.live if anew else self._access.enter
        board = await look(principal, board_id, deadline)
        if not board.policy.may_administer(principal):
            raise self._access.refused(principal, board.id, "removal", NotAdministrator(board.id))
        return board


def _as_of(known: KnownRemoval, compacted_revision: int) -> KnownRemoval:
    """Give a removal as its receipts stand where the store's history begins at a revision."""
    removal = known.removal
    receipts = tuple(
        receipt._replace(status=ErasureStatus.ERASED, note="")
        if receipt.status is ErasureStatus.PENDING_COMPACTION and receipt.revision <= compacted_revision
        else receipt
        for receipt in removal.receipts
    )
    return known._replace(removal=replace(removal, receipts=receipts))


def _fates(seen: Survey) -> Iterator[tuple[bytes, KeptState, Fate, bool]]:
    for entry in seen.entries:
        for state in entry.removed:
            yield entry.head, state, Fate.REMOVED, entry.is_present(state)
        for state in entry.attested:
            yield entry.head, state, Fate.ATTESTED, entry.is_present(state)
    for head, state in seen.undecided:
        yield head, state, Fate.UNDECIDED, False
