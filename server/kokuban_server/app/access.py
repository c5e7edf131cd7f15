"""The one authorisation point: every call and every internal path gets to a region through here or not at all."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from kokuban_server.app.deadlines import left_s
from kokuban_server.core import keys
from kokuban_server.core.access import Decision, LockPolicies, RegionRules, Role, Verb, decide, rules_of
from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.core.commit import Target
from kokuban_server.core.refusals import NotFound, RoleRequired, WriteForbidden
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.codec import encode_board

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.core.access import Principal
    from kokuban_server.core.names import EntryKey, Region
    from kokuban_server.ports.board_store import BoardStore
    from kokuban_server.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class OpenRegion:
    """A region that `Access.open` opened. What reads or writes entries takes one of these, so it cannot forget to ask."""

    region: Region
    prefix: bytes
    rules: RegionRules
    generation: bytes
    """The key of the region's lock generation."""

    def target(self, key: EntryKey) -> Target:
        """Give an entry of the region as a commit's target."""
        return Target(key, keys.head(self.prefix, key.path), self.rules, self.generation)


class Refused(Protocol):
    """Takes note of an attempt that was refused, which its caller cannot notice."""

    def __call__(self, principal: Principal, board: str, target: str, reason: str) -> None:
        """Take note of what was tried: where, at what, and the reason of the refusal."""
        ...


class Access:
    """Decides, for a principal the wire has identified, what may be opened.

    Every refusal of access is made here, and `refused` is told of it: also where it is answered like something that is not
    there, or as one thing missing among many.
    """

    def __init__(
        self,
        store: BoardStore,
        clock: Clock,
        development_boards: frozenset[str],
        lock_policies: LockPolicies = LockPolicies(),  # noqa: B008 - immutable
        refused: Refused = lambda *_: None,
    ) -> None:
        self._refused = refused
        self._store = store
        self._clock = clock
        self._development_boards = development_boards
        self._lock_policies = lock_policies
        self._known_boards: set[tuple[str, str]] = set()
        self._readable: dict[tuple[Principal, str, Region], OpenRegion] = {}
        self._writable: dict[tuple[Principal, str, Region], OpenRegion] = {}

    def require_role(self, principal: Principal, role: Role, board: str = "") -> None:
        """Raise `RoleRequired` unless the principal has the role."""
        self.require_one_of(principal, (role,), board)

    def require_one_of(self, principal: Principal, roles: Sequence[Role], board: str = "") -> None:
        """Raise `RoleRequired`, which names the first, unless the principal has one of the roles."""
        if principal.roles.isdisjoint(roles):
            refusal = RoleRequired(roles[0].value)
            self._refused(principal, board, f"role {refusal.role}", refusal.reason)
            raise refusal

    def require_named(self, principal: Principal, board: str) -> None:
        """Raise `NotFound` for a board that the principal's credential does not name."""
        if not principal.boards.includes(board):
            self._refused(principal, board, "", NotFound.reason)
            raise NotFound

    async def enter(self, principal: Principal, board: str, deadline: float) -> None:
        """Raise `NotFound` unless there is such a board for the principal.

        A development identity's first use of a board on the server's list makes it. A board that the credential does not
        name is looked for like one that is not there.
        """
        name = (principal.tenant, board)
        is_named = principal.boards.includes(board)
        if name in self._known_boards and is_named:
            return
        deadline_s = left_s(deadline)
        key = keys.board(*name)
        cut = await self._store.read([key], STRONG, deadline_s)
        self.require_named(principal, board)
        if cut.records[0] is None:
            if not principal.is_development or board not in self._development_boards:
                raise NotFound
            record = encode_board(self._clock.now_ms(), principal.agent)
            with contextlib.suppress(CommitRefused):  # somebody else made it meanwhile, which is as good
                await self._store.commit(ChangeSet((Absent(key),), (Put(key, record),)), deadline_s)
        self._known_boards.add(name)

    def open(self, principal: Principal, board: str, region: Region, verb: Verb, *, noted: bool = True) -> OpenRegion:
        """Give the region for reading, writing or locking.

        Raises `NotFound` if the principal may not read it, whether or not there is anything in it, and `WriteForbidden` if
        it may be read but not written. The board must have been entered. Not `noted` is a refusal of what the caller did not
        ask for: for instance a region that somebody else's lock names.
        """
        opened_before = self._readable if verb is Verb.READ else self._writable  # who may write may lock
        known = opened_before.get((principal, board, region))
        if known is not None:
            return known
        decision = decide(principal, region, verb)
        if decision is Decision.HIDDEN:
            if noted:
                self._refused(principal, board, str(region), NotFound.reason)
            raise NotFound
        if decision is Decision.FORBIDDEN:
            if noted:
                self._refused(principal, board, str(region), WriteForbidden.reason)
            raise WriteForbidden(str(region))
        prefix = keys.region_prefix(principal.tenant, board, region)
        rules = replace(rules_of(region), lock_policy=self._lock_policies.of(region))
        opened = OpenRegion(region, prefix, rules, keys.LOCK_GENERATION + prefix)
        if len(opened_before) >= _OPENED_MAX:
            opened_before.clear()
        opened_before[principal, board, region] = opened
        return opened


_OPENED_MAX = 4096
"""Decisions remembered. The rules are fixed so far; with policies the memory is keyed by the policy's revision."""
