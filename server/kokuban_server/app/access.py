"""The one authorisation point: every call and every internal path gets to a region through here or not at all."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from kokuban_server.app.deadlines import left_s
from kokuban_server.core import keys
from kokuban_server.core.access import Decision, RegionRules, Role, Verb
from kokuban_server.core.audit import REGION_READ, AuditEntry
from kokuban_server.core.boards import BoardRecord
from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.core.commit import Target
from kokuban_server.core.names import RegionKind
from kokuban_server.core.refusals import NotFound, RevealForbidden, RoleRequired, StoreUnavailable, WriteForbidden
from kokuban_server.ports.board_store import CommitRefused
from kokuban_server.records.board_codec import encode_board

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kokuban_server.app.audit import AuditLog
    from kokuban_server.app.boards import Board, Boards
    from kokuban_server.core.access import Principal
    from kokuban_server.core.names import EntryKey, Region
    from kokuban_server.core.refusals import Refusal
    from kokuban_server.ports.board_store import BoardStore, Record
    from kokuban_server.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class OpenRegion:
    """A region that `Access.open` opened. What reads or writes entries takes one of these, so it cannot forget to ask."""

    board: Board
    """Under whose policy it was opened."""
    region: Region
    prefix: bytes
    rules: RegionRules
    generation: bytes
    """The key of the region's lock generation."""
    is_foreign: bool
    """It is another agent's private memory."""
    rules_of_events: RegionRules

    def target(self, key: EntryKey) -> Target:
        """Give an entry of the region as a commit's target."""
        return Target(key, keys.head(self.prefix, key.path), self.rules, self.generation)

    def target_of_events(self, key: EntryKey) -> Target:
        """Give what stands for all events of a task, whose region this is."""
        return Target(key, keys.head(self.prefix, key.path), self.rules_of_events, self.generation)


_Refusal = TypeVar("_Refusal", bound="Refusal")
_Opened: TypeAlias = "dict[tuple[Principal, Board, Region], OpenRegion]"


class Access:
    """Decides, for a principal the wire has identified, what may be opened.

    Every refusal of access is made here, and the audit log is told of it: also where it is answered like something that is not
    there, or as one thing missing among many.
    """

    def __init__(
        self,
        store: BoardStore,
        boards: Boards,
        clock: Clock,
        development_boards: frozenset[str],
        audit: AuditLog | None = None,
    ) -> None:
        self._audit = audit
        self._store = store
        self._boards = boards
        self._clock = clock
        self._development_boards = development_boards
        # Each decision belongs to one state of its board's record, so a new policy is decided by anew.
        self._opened: dict[Verb, _Opened] = {verb: {} for verb in Verb}

    def refused(self, principal: Principal, board_id: str, target: str, refusal: _Refusal) -> _Refusal:
        """Note an attempt that is refused, which its caller cannot notice; give the refusal."""
        if self._audit is not None:
            self._audit.refused(principal, board_id, target, refusal.reason)
        return refusal

    def named(self, principal: Principal, region: Region) -> str:
        """Give what a region is called where it is recorded for good."""
        return str(region) if self._audit is None else self._audit.name_of(principal.tenant, region)

    def require_role(self, principal: Principal, role: Role, board_id: str = "") -> None:
        """Raise `RoleRequired` unless the principal has the role."""
        self.require_one_of(principal, (role,), board_id)

    def require_one_of(self, principal: Principal, roles: Sequence[Role], board_id: str = "") -> None:
        """Raise `RoleRequired`, which names the first, unless the principal has one of the roles."""
        if principal.roles.isdisjoint(roles):
            raise self.refused(principal, board_id, f"role {roles[0]}", RoleRequired(roles[0].value))

    async def enter(self, principal: Principal, board_id: str, deadline: float) -> Board:
        """Give the board as this server knows it. Raises `NotFound` unless there is such a board for the principal.

        A development identity's first use of a board on the server's list makes it. A board that the credential does not
        name is looked for like one that is not there.
        """
        board = self._boards.trusted(principal.tenant, board_id)
        if board is not None and board.is_live and principal.boards.includes(board_id):
            return board
        return await self.live(principal, board_id, deadline)

    async def live(self, principal: Principal, board_id: str, deadline: float) -> Board:
        """Give the board as the store has it now; as `enter`."""
        board = await self.find(principal, board_id, deadline)
        if board is None or not board.is_live:
            raise NotFound
        return board

    async def find(self, principal: Principal, board_id: str, deadline: float) -> Board | None:
        """Give the board as the store has it now, be it live or deleted, if there is one for the principal; as `enter`."""
        board = await self._boards.read(principal.tenant, board_id, left_s(deadline))
        if not principal.boards.includes(board_id):
            self.refused(principal, board_id, "", NotFound())
            return None
        if board is None and principal.is_development and board_id in self._development_boards:
            return await self._made(principal, board_id, deadline)
        return board

    async def look(self, principal: Principal, board_id: str, deadline: float) -> Board | None:
        """Give a board for what its policy says, if there is one for the principal. Nothing is made, refused or noted."""
        if not principal.boards.includes(board_id):
            return None
        board = self._boards.trusted(principal.tenant, board_id)
        return board or await self._boards.read(principal.tenant, board_id, left_s(deadline))

    async def _made(self, principal: Principal, board_id: str, deadline: float) -> Board | None:
        key = keys.board(principal.tenant, board_id)
        raw = encode_board(BoardRecord(self._clock.now_ms(), principal.agent))
        with contextlib.suppress(CommitRefused):  # somebody else makes it meanwhile, which is as good
            await self._store.commit(ChangeSet((Absent(key),), (Put(key, raw),)), left_s(deadline))
        return await self._boards.read(principal.tenant, board_id, left_s(deadline))

    def learn(self, record: Record) -> Board:
        """Take in a board's record that was read; give the newest that is known."""
        return self._boards.learn(record.key, record.value, record.revision)

    def open(self, principal: Principal, board_id: str, region: Region, verb: Verb) -> OpenRegion:
        """Give the region for reading, writing, locking or revealing.

        Raises `NotFound` if the principal may not read it, whether or not there is anything in it, and `WriteForbidden` or
        `RevealForbidden` if it may be read but not that. The board must have been entered.
        """
        return self.open_under(self._entered(principal, board_id), principal, region, verb)

    def open_under(
        self, board: Board, principal: Principal, region: Region, verb: Verb, *, noted: bool = True
    ) -> OpenRegion:
        """Give the region under the policy of a board that was entered; as `open`.

        Not `noted` is a refusal of what the caller did not ask for: for instance a region that somebody else's lock names.
        """
        opened_before = self._opened[verb]
        known = opened_before.get((principal, board, region))
        if known is not None:
            return known
        if not board.is_live:
            raise NotFound
        decision = board.policy.rule(principal, region, verb).decision
        if decision is not Decision.ALLOWED:
            forbidden = RevealForbidden() if verb is Verb.REVEAL else WriteForbidden(str(region))
            refusal = NotFound() if decision is Decision.HIDDEN else forbidden
            raise self.refused(principal, board.id, self.named(principal, region), refusal) if noted else refusal
        prefix = keys.region_prefix(principal.tenant, board.id, region)
        rules = board.policy.terms(region).rules
        is_foreign = region.kind is RegionKind.AGENT and region.id != principal.agent
        generation = keys.LOCK_GENERATION + prefix
        opened = OpenRegion(board, region, prefix, rules, generation, is_foreign, rules.of_events())
        if len(opened_before) >= _OPENED_MAX:
            opened_before.clear()
        opened_before[principal, board, region] = opened
        return opened

    def readable(self, principal: Principal, board_id: str, region: Region) -> OpenRegion | None:
        """Give a region that the principal did not ask for itself, for reading; nothing if it may not read it.

        The board must have been entered.
        """
        return self.readable_under(self._entered(principal, board_id), principal, region)

    def readable_under(self, board: Board, principal: Principal, region: Region) -> OpenRegion | None:
        """Give the region under the policy of a board that was entered; as `readable`."""
        try:
            return self.open_under(board, principal, region, Verb.READ, noted=False)
        except NotFound:
            return None

    def _entered(self, principal: Principal, board_id: str) -> Board:
        board = self._boards.at_hand(principal.tenant, board_id)
        if board is None:
            raise StoreUnavailable("the board has to be looked up again")
        return board

    async def show(self, principal: Principal, opened: Sequence[OpenRegion], deadline: float) -> None:
        """Come back when what was read of the regions may be shown: asked for again, and accounted for. Raises `NotFound`."""
        self.recheck(principal, opened)
        await self.account(principal, opened, deadline)

    async def account(self, principal: Principal, opened: Sequence[OpenRegion], deadline: float) -> None:
        """Record that other agents' private memory is read. What cannot be recorded is not shown."""
        for one in opened:
            if one.is_foreign and self._audit is not None:
                await self._audit.append(AuditEntry(REGION_READ, principal, one.board.id, str(one.region)), deadline)

    def recheck(self, principal: Principal, opened: Iterable[OpenRegion]) -> None:
        """Raise `NotFound` if one of the regions may not be read any more: asked again before anything of it is shown."""
        for one in opened:
            self._boards.trusted(principal.tenant, one.board.id)  # has what is old read again, for the next time
            if self._boards.at_hand(principal.tenant, one.board.id) is not one.board:
                self.open(principal, one.board.id, one.region, Verb.READ)


_OPENED_MAX = 4096
"""Decisions remembered for each verb."""
