"""Tracing provenance: what a state was made of, and what was made of it, as far as the caller may read."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.ancestry import read_ancestry
from kokuban_server.app.deadlines import left_s
from kokuban_server.app.states import states_of
from kokuban_server.core import keys
from kokuban_server.core.entry import EntryState
from kokuban_server.core.provenance import Link, Links
from kokuban_server.core.refusals import NotFound, TokenFromAnotherStore
from kokuban_server.core.revision import encode_token
from kokuban_server.core.trust import OWN_WORD
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.codec import decode_entry
from kokuban_server.records.trust_codec import decode_read_scope

if TYPE_CHECKING:
    from kokuban_server.app.access import Access, OpenRegion
    from kokuban_server.app.boards import Board
    from kokuban_server.core.access import Principal
    from kokuban_server.core.commit import At
    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.names import EntryKey, Region
    from kokuban_server.core.provenance import Ancestry, Origin, Reach, StateName
    from kokuban_server.core.trust import Label, Parent
    from kokuban_server.ports.board_store import BoardStore


class TraceRequest(NamedTuple):
    """What is asked."""

    board: str
    key: EntryKey
    at: At | None
    """The state; nothing for the present one."""
    descends: bool
    """Whether it is asked for what was made of it, and not what it was made of."""
    max_depth: int
    max_states: int


class TracedState(NamedTuple):
    """A state that was met."""

    key: EntryKey
    revision: int
    """0 where it is not known any more."""
    link: Link
    from_place: int
    depth: int
    label: Label | None
    """Nothing where that is not known any more."""
    agent: str
    is_kept: bool
    is_present: bool


class Trace(NamedTuple):
    """What was met."""

    states: list[TracedState]
    truncated: bool
    revision: int


class ProvenanceTrace:
    """Answers who wants to know where something comes from, or what became of it."""

    def __init__(self, store: BoardStore, access: Access) -> None:
        self._store = store
        self._access = access

    async def trace(self, principal: Principal, request: TraceRequest, deadline: float) -> Trace:
        """Walk from a state, nearest first. Raises `NotFound` for one that is not kept, with the token of what was read."""
        board = await self._access.enter(principal, request.board, deadline)
        walk = _Walk(self._store, self._access, principal, board, request, deadline)
        traced = await walk.walk()
        await self._access.show(principal, list(walk.opened.values()), deadline)
        return traced


class _Known(NamedTuple):
    """A state that is kept."""

    record: EntryRecord
    revision: int


class _Walk:
    def __init__(
        self,
        store: BoardStore,
        access: Access,
        principal: Principal,
        board: Board,
        request: TraceRequest,
        deadline: float,
    ) -> None:
        self._store = store
        self._access = access
        self._principal = principal
        self._board = board
        self._prefix = keys.board_prefix(board.tenant, board.id)
        self._request = request
        self._deadline = deadline
        self.opened: dict[Region, OpenRegion] = {}
        self._kept: dict[bytes, dict[int, _Known]] = {}
        self._present: dict[bytes, int] = {}
        self._origins: dict[StateName, Origin] = {}
        self._sequences: dict[bytes, list[int]] = defaultdict(list)
        self._revisions: dict[StateName, int] = {}

    async def walk(self) -> Trace:
        request = self._request
        revision, first = await self._begin()
        ancestry = await read_ancestry(self._store, self._prefix, self._deadline)
        self._learn(ancestry)
        links = Links(ancestry) if request.descends else None
        places: dict[StateName, int] = {first: 0}
        found = [await self._traced(first, Link.ASKED, 0, 0)]
        waiting = [first]
        truncated = False
        for name in waiting:  # grows while it is walked
            place = places[name]
            depth = found[place].depth + 1
            near = await self._made_of(name, links) if links is not None else await self._makers(name)
            for other, link in near:
                if other in places or not self._may_read(other[0]):
                    continue
                if depth > request.max_depth or len(found) >= request.max_states:
                    truncated = True
                    break
                places[other] = len(found)
                found.append(await self._traced(other, link, place, depth))
                waiting.append(other)
        return Trace(found, truncated, revision)

    async def _begin(self) -> tuple[int, StateName]:
        """Find the state that was asked about; give the revision that was read, too."""
        request = self._request
        head = keys.head_of(self._board.tenant, self._board.id, request.key)
        cut = await self._store.read([head], STRONG, left_s(self._deadline))
        if self._may_read(head):
            if request.at is not None and request.at.epoch != self._store.epoch:
                raise TokenFromAnotherStore("at.epoch")
            record = cut.records[0]
            present = 0 if record is None else record.revision
            wanted = present if request.at is None else request.at.number
            for sequence, known in (await self._states(head)).items():
                if known.revision == wanted and known.record.state is EntryState.LIVE:
                    return cut.revision, (head, sequence)
        raise NotFound(encode_token(self._store.epoch, cut.revision))

    def _learn(self, ancestry: Ancestry) -> None:
        for origin in ancestry.origins:
            self._origins[origin.name] = origin
            self._sequences[origin.head].append(origin.sequence)
            for parent, reach in zip(origin.label.parents, origin.parents, strict=True):
                self._revisions[reach.head, reach.last] = parent.revision

    def _may_read(self, head: bytes) -> bool:
        _, _, key = keys.parse_head(head)
        if key.region not in self.opened:
            opened = self._access.readable_under(self._board, self._principal, key.region)
            if opened is None:
                return False
            self.opened[key.region] = opened
        return True

    async def _states(self, head: bytes) -> dict[int, _Known]:
        """Give an entry's kept states by their sequences."""
        if head not in self._kept:
            kept = {}
            async for record in states_of(self._store, head, self._deadline):
                state = decode_entry(record.key, record.value)
                kept[state.sequence] = _Known(state, record.revision)
            self._kept[head] = kept
            found = (await self._store.read([head], STRONG, left_s(self._deadline))).records[0]
            self._present[head] = 0 if found is None else found.revision
        return self._kept[head]

    async def _traced(self, name: StateName, link: Link, from_place: int, depth: int) -> TracedState:
        head, sequence = name
        _, _, key = keys.parse_head(head)
        known = (await self._states(head)).get(sequence)
        origin = self._origins.get(name)
        label, agent, revision = None, "", self._revisions.get(name, 0)
        if origin is not None:
            label, agent = origin.label, origin.agent
        if known is not None:
            label, agent, revision = known.record.label, known.record.acts[-1].agent, known.revision
        is_present = known is not None and known.revision == self._present[head]
        return TracedState(key, revision, link, from_place, depth, label, agent, known is not None, is_present)

    async def _label(self, name: StateName) -> Label:
        head, sequence = name
        known = (await self._states(head)).get(sequence)
        if known is not None:
            return known.record.label
        origin = self._origins.get(name)
        return OWN_WORD if origin is None else origin.label

    async def _known_sequences(self, head: bytes) -> list[int]:
        """Give the states of an entry of which something is known."""
        return sorted({*self._sequences.get(head, ()), *await self._states(head)})

    async def _makers(self, name: StateName) -> list[tuple[StateName, Link]]:
        """Give the states that one was made of, one step back."""
        head, sequence = name
        label = await self._label(name)
        near = [(self._named(parent), Link.DECLARED) for parent in label.parents]
        if label.read_scope:
            key = keys.on_board(keys.SCOPE, self._prefix, label.read_scope)
            record = (await self._store.read([key], STRONG, left_s(self._deadline))).records[0]
            given = () if record is None else decode_read_scope(key, record.value).given[: label.scope_size]
            near += [(self._named(one.state), Link.READ_SCOPE) for one in given]
        if label.extends_from:
            before = [one for one in await self._known_sequences(head) if label.extends_from <= one < sequence]
            near += [((head, before[-1]), Link.EXTENDS)] if before else []
        return near

    def _named(self, parent: Parent) -> StateName:
        name = keys.head_of(self._board.tenant, self._board.id, parent.key), parent.sequence
        self._revisions[name] = parent.revision
        return name

    async def _made_of(self, name: StateName, links: Links) -> list[tuple[StateName, Link]]:
        """Give the states that were made of one, one step on.

        What names a later state that keeps something of this one is met from that one, where anything of it is known.
        """
        head, sequence = name
        known = await self._known_sequences(head)

        def is_near(reach: Reach) -> bool:
            return reach.last == sequence or (reach.first <= sequence < reach.last and reach.last not in known)

        near = [(child, Link.DECLARED) for reach, child in links.declared[head] if is_near(reach)]
        near += [
            (child, Link.READ_SCOPE)
            for reach, scope, place in links.given[head]
            if is_near(reach)
            for child in links.written_in(scope, place)
        ]
        for later in known:
            if later > sequence:
                label = await self._label((head, later))
                if 0 < label.extends_from <= sequence:
                    near.append(((head, later), Link.EXTENDS))
                break
        return near
