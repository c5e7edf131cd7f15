"""What a commit's labels follow from: the states it is said to be made of, and its read scope."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.kept_states import kept_state
from kokuban_server.core import keys
from kokuban_server.core.access import Verb
from kokuban_server.core.entry import EntryState
from kokuban_server.core.labels import label_of
from kokuban_server.core.refusals import (
    NotFound,
    ParentNotFound,
    ReadScopePurged,
    ReadScopeRequired,
    TokenFromAnotherStore,
)
from kokuban_server.core.trust import OWN_WORD, UNDECLARED, Label, Parent, TaintMode, Trust
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.codec import decode_entry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kokuban_server.app.access import Access, OpenRegion
    from kokuban_server.app.boards import Board
    from kokuban_server.app.heads import Heads
    from kokuban_server.app.read_scopes import KnownScope, ReadScopes
    from kokuban_server.core.access import Principal
    from kokuban_server.core.commit import Provenance
    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.names import EntryKey
    from kokuban_server.ports.board_store import BoardStore, Record


_StateName: TypeAlias = "tuple[EntryKey, int]"
"""An entry and the revision of its state."""


class Origins(NamedTuple):
    """What a commit says of where its mutations come from."""

    provenance: Mapping[int, Provenance] = {}
    """By the mutation's place; of most there is none."""
    session_id: str = ""
    """Whose read scope the commit is written in, or nothing."""


class Lineage(NamedTuple):
    """What was found out about a commit's origins. What was found of a state does not change any more."""

    origins: Origins = Origins()
    parents: Mapping[_StateName, tuple[Parent, Trust]] = {}
    scope: KnownScope | None = None

    def label(self, principal: Principal, board: Board, region: OpenRegion, place: int, *, writes: bool) -> Label:
        """Give the label of what a mutation writes. Raises `ReadScopeRequired`, though not for what only deletes."""
        rules = region.rules
        scope = self.scope
        if writes and scope is None and rules.taint_mode is TaintMode.ENFORCE:
            raise ReadScopeRequired(str(region.region))
        claimed = self.origins.provenance.get(place)
        source, named = (UNDECLARED, ()) if claimed is None else claimed
        found = [self.parents[key, at.number] for key, at in named]
        trusts = [trust for _, trust in found]
        tracked, size = "", 0
        if scope is not None and scope.watermark < Trust.AGENT and rules.taint_mode is not TaintMode.OFF:
            if writes and scope.is_purged:
                raise ReadScopePurged(scope.session_id)
            trusts.append(scope.watermark)
            tracked, size = scope.session_id, scope.size
        parents = tuple([parent for parent, _ in found])
        return label_of(source, parents, trusts, principal, board.policy.tools, tracked, size)


NO_ORIGINS = Origins()
NO_LINEAGE = Lineage()


class Lineages:
    """Looks up what commits say of where they come from."""

    def __init__(self, store: BoardStore, access: Access, heads: Heads, scopes: ReadScopes) -> None:
        self._store = store
        self._access = access
        self._heads = heads
        self._scopes = scopes

    async def of(self, principal: Principal, board: Board, origins: Origins, deadline: float) -> Lineage:
        """Give the lineage of a commit. Raises `ParentNotFound`, `SessionLost`, `NotHolder`."""
        scope = None
        if origins.session_id:
            scope = await self._scopes.known(principal, board.id, origins.session_id, deadline)
        parents = await self._parents(principal, board, origins, deadline) if origins.provenance else {}
        return Lineage(origins, parents, scope)

    def newest(self, scope: KnownScope, record: Record | None) -> KnownScope:
        """Give a scope after its record was read; itself if that is as it was."""
        newest = self._scopes.learn(scope.key, scope.session_id, record)
        return scope if newest.revision == scope.revision else newest

    async def _parents(
        self, principal: Principal, board: Board, origins: Origins, deadline: float
    ) -> dict[_StateName, tuple[Parent, Trust]]:
        """Find every state that is named."""
        places = self._named(origins)
        if not places:
            return {}
        heads = await self._heads_of(principal, board, list(places), deadline)
        states = await self._states(board, heads, deadline)
        found: dict[_StateName, tuple[Parent, Trust]] = {}
        for name, field in places.items():
            state = states[name]
            if state is None or state.state is not EntryState.LIVE:
                raise ParentNotFound(field)
            found[name] = Parent(*name, state.sequence, state.label.extends_from), state.label.trust
        return found

    def _named(self, origins: Origins) -> dict[_StateName, str]:
        """Give the states that are named, and where."""
        places: dict[_StateName, str] = {}
        for place, claimed in origins.provenance.items():
            for index, (key, at) in enumerate(claimed.derived_from):
                field = f"mutations[{place}].provenance.derived_from[{index}]"
                if at.epoch != self._store.epoch:
                    raise TokenFromAnotherStore(f"{field}.at")
                places.setdefault((key, at.number), field)
        return places

    async def _heads_of(
        self, principal: Principal, board: Board, names: Sequence[_StateName], deadline: float
    ) -> dict[_StateName, bytes]:
        """Give where the entries lie. One that may not be read is looked for like one that is not there."""
        heads: dict[_StateName, bytes] = {}
        opened: list[OpenRegion] = []
        for name in names:
            key, _ = name
            try:
                region = self._access.open_under(board, principal, key.region, Verb.READ)
            except NotFound:
                heads[name] = keys.NOWHERE
            else:
                opened.append(region)
                heads[name] = keys.head(region.prefix, key.path)
        await self._access.account(principal, opened, deadline)
        return heads

    async def _states(
        self, board: Board, heads: dict[_StateName, bytes], deadline: float
    ) -> dict[_StateName, EntryRecord | None]:
        """Give what the states are: no state of a revision is ever another, so what is remembered will do.

        But not of what a removal may have taken away since.
        """
        doubtful = board.revision if board.record.removals else 0
        states: dict[_StateName, EntryRecord | None] = {}
        unknown = []
        for name, head in heads.items():
            known = self._heads.get(head)
            if known is not None and known.revision == name[1] > doubtful:
                states[name] = known.record
            else:
                unknown.append(name)
        if unknown:
            cut = await self._store.read([heads[name] for name in unknown], STRONG, left_s(deadline))
            for name, record in zip(unknown, cut.records, strict=True):
                head = heads[name]
                if record is not None and record.revision == name[1]:
                    states[name] = decode_entry(head, record.value)
                else:
                    kept = await kept_state(self._store, head, name[1], deadline)
                    states[name] = decode_entry(kept.key, kept.value) if kept is not None else None
        return states


def is_plain(principal: Principal, origins: Origins) -> bool:
    """Say whether a commit is an agent's own word in no scope, as most are: then there is nothing to look up."""
    return (
        not origins.session_id
        and not origins.provenance
        and not principal.browses
        and (principal.trust_ceiling >= OWN_WORD.trust)
    )
