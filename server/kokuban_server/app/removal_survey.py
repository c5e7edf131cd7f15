"""What a removal is about: every state that came of a source or of a person, and what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.ancestry import read_ancestry
from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import records_below
from kokuban_server.app.states import states_of, states_on
from kokuban_server.core import keys
from kokuban_server.core.entry import Act, Current, EntryState
from kokuban_server.core.names import Region, RegionKind
from kokuban_server.core.provenance import descent, reach_of
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.codec import decode_entry
from kokuban_server.records.conflict_codec import decode_conflict
from kokuban_server.records.provenance_codec import reach_of_parent
from kokuban_server.records.quarantine_codec import decode_quarantined
from kokuban_server.records.trust_codec import decode_read_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.provenance import Ancestry, Descent, Origin, Reach, Selector, StateName
    from kokuban_server.core.quarantine import Quarantined
    from kokuban_server.core.read_scopes import ReadScope
    from kokuban_server.core.trust import Label
    from kokuban_server.ports.board_store import BoardStore


class KeptState(NamedTuple):
    """A state that is still kept of its entry."""

    record: EntryRecord
    revision: int


class EntrySurvey(NamedTuple):
    """What becomes of one entry."""

    head: bytes
    current: Current
    removed: list[KeptState]
    """States that are taken away, newest first."""
    attested: list[KeptState]
    """States of which the content stays, on another's word."""
    witnesses: dict[int, EntryRecord]
    """The states on whose word, by those ones' sequences."""

    def is_present(self, state: KeptState) -> bool:
        """Say whether a state is the present one."""
        return state.revision == self.current.revision

    @property
    def is_touched(self) -> bool:
        """Whether anything becomes of it at all."""
        return bool(self.removed or self.attested)

    @property
    def ends(self) -> bool:
        """Whether the present state is taken away."""
        return any(map(self.is_present, self.removed))


class Stored(NamedTuple):
    """A record that is removed or closed."""

    key: bytes
    revision: int


class Survey(NamedTuple):
    """All that a removal is about at present."""

    entries: list[EntrySurvey]
    undecided: list[tuple[bytes, KeptState]]
    """States that keep something of states whose writers are not known any more."""
    quarantined: list[Stored]
    scopes: list[tuple[Stored, ReadScope]]
    """Read scopes that were given some of it and may still be written in."""
    conflicts: list[Stored]
    """Records that name a person."""
    origins: Sequence[Origin]
    """All that are recorded of the tenant."""
    descent: Descent
    beyond: int
    """States of the region `global`, which no board's removal reaches."""
    other_boards: frozenset[str]
    """Boards of the tenant on which there is something that came of it."""

    again: Callable[[bytes], Awaitable[EntrySurvey]]
    """Looks at one entry anew, in the light of what was found."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.entries or self.quarantined or self.scopes or self.conflicts)


async def survey(store: BoardStore, tenant: str, board_id: str, selector: Selector, deadline: float) -> Survey:
    """Find everything that a removal is about, over all that is recorded of the tenant."""
    return await _Surveyor(store, tenant, board_id, selector, deadline).survey()


class _Surveyor:
    def __init__(self, store: BoardStore, tenant: str, board_id: str, selector: Selector, deadline: float) -> None:
        self._store = store
        self._tenant = tenant
        self._board_id = board_id
        self._board = keys.board_prefix(tenant, board_id)
        self._beyond = keys.region_prefix(tenant, board_id, Region(RegionKind.TENANT, ""))
        self._global = keys.region_prefix(tenant, board_id, Region(RegionKind.GLOBAL, ""))
        self._user_prefix = keys.region_prefix(tenant, board_id, Region(RegionKind.USER, selector.user))
        self._selector = selector
        self._deadline = deadline
        self._kept: dict[bytes, list[KeptState]] = {}

    async def survey(self) -> Survey:
        meant, doubtful = await self._meant()
        ancestry = await read_ancestry(self._store, keys.join(self._tenant.encode()), self._deadline)
        meant |= self._meant_by_origin(ancestry)
        found = descent(ancestry, meant)
        spared = await self._attested(found)
        if spared:
            found = descent(ancestry, meant, spared.keys())
        heads = sorted({*found.states, *(head for head, _ in spared)})
        entries = [await self._entry(head, found, spared) for head in heads]
        touched = [entry for entry in entries if entry.is_touched]

        async def again(head: bytes) -> EntrySurvey:
            del self._kept[head]
            return await self._entry(head, found, spared)

        return Survey(
            [entry for entry in touched if self._is_within(entry.head)],
            [(head, state) for head, state in doubtful if not found.reaches(_reach(head, state))],
            await self._quarantined(found),
            await self._scopes(found),
            await self._conflicts(),
            ancestry.origins,
            found,
            sum(len(entry.removed) for entry in touched if entry.head.startswith(keys.HEAD + self._global)),
            frozenset(_board_of(entry.head) for entry in touched if entry.removed) - {"", self._board_id},
            again,
        )

    def _meant_by_origin(self, ancestry: Ancestry) -> set[StateName]:
        """Find the states that are meant by what was recorded of where they come from, be they kept or not."""
        meant = {origin.name for origin in ancestry.origins if origin.board == self._board and self._is_meant(origin)}
        if self._selector.user:
            below = keys.HEAD + self._user_prefix
            named = [reach for origin in ancestry.origins for reach in origin.parents]
            named += [reach for given in ancestry.scopes.values() for reach in given]
            meant |= {(reach.head, reach.last) for reach in named if reach.head.startswith(below)}
        return meant

    def _is_meant(self, origin: Origin) -> bool:
        acts = (Act(origin.agent, "", session=origin.session),)
        return self._selector.means(origin.label.source, acts, origin.time_ms)

    def _is_within(self, head: bytes) -> bool:
        return head.startswith((keys.HEAD + self._board, keys.HEAD + self._beyond))

    async def _meant(self) -> tuple[set[StateName], list[tuple[bytes, KeptState]]]:
        """Find the kept states that are meant by who wrote them, when or where; and those of which it cannot be said.

        What is meant by its source is found by its origin.
        """
        selector = self._selector
        meant: set[StateName] = set()
        doubtful: list[tuple[bytes, KeptState]] = []
        if selector.needs_source:
            return meant, doubtful
        oldest: dict[bytes, int] = {}
        if selector.user:
            kept = records_below(self._store, keys.HISTORY + self._user_prefix, self._deadline)
        else:
            kept = states_on(self._store, self._board, self._deadline)
        async for record in kept:
            head = keys.head_of_history(record.key)
            state = decode_entry(record.key, record.value)
            oldest[head] = min(state.sequence, oldest.get(head, state.sequence))
            if state.state is not EntryState.LIVE:
                continue
            if selector.user or selector.means(state.label.source, state.acts, state.update_time_ms):
                meant.add((head, state.sequence))
            elif state.label.extends_from:
                doubtful.append((head, KeptState(state, record.revision)))
        return meant, [(head, state) for head, state in doubtful if state.record.label.extends_from < oldest[head]]

    async def _live(self, head: bytes) -> list[KeptState]:
        """Give those of an entry's kept states that hold something, newest first."""
        if head not in self._kept:
            states = []
            async for record in states_of(self._store, head, self._deadline):
                state = decode_entry(record.key, record.value)
                if state.state is EntryState.LIVE:
                    states.append(KeptState(state, record.revision))
            self._kept[head] = states
        return self._kept[head]

    async def _attested(self, found: Descent) -> dict[StateName, EntryRecord]:
        """Give the states whose content another state of their entry says too, one that came of something else; and which.

        Both must say all of it themselves: what a state keeps of earlier ones is not its own word.
        """
        attested: dict[StateName, EntryRecord] = {}
        for head in found.states:
            whole = [state.record for state in await self._live(head) if not state.record.label.extends_from]
            clean = [record for record in whole if record.sequence not in found.states[head]]
            for record in whole:
                same = (one for one in clean if (one.value, one.metadata) == (record.value, record.metadata))
                witness = next(same, None)
                if witness is not None and record.sequence in found.states[head]:
                    attested[head, record.sequence] = witness
        return attested

    async def _entry(self, head: bytes, found: Descent, spared: dict[StateName, EntryRecord]) -> EntrySurvey:
        states = await self._live(head)
        record = (await self._store.read([head], STRONG, left_s(self._deadline))).records[0]
        current = Current(None, 0)
        if record is not None:
            current = Current(decode_entry(head, record.value), record.revision)
        attested = [state for state in states if (head, state.record.sequence) in spared]
        removed = [state for state in states if state not in attested and found.reaches(_reach(head, state))]
        witnesses = {state.record.sequence: spared[head, state.record.sequence] for state in attested}
        return EntrySurvey(head, current, removed, attested, witnesses)

    async def _quarantined(self, found: Descent) -> list[Stored]:
        """Give the commits in quarantine that would write some of it, or did."""
        held = []
        async for record in records_below(self._store, keys.QUARANTINE + self._board, self._deadline):
            item = decode_quarantined(record.key, record.value)
            if self._means_quarantined(item) or any(self._came_of(label, found) for _, label in item.labels):
                held.append(Stored(record.key, record.revision))
        return held

    def _means_quarantined(self, item: Quarantined) -> bool:
        user = self._selector.user
        if user and any(key.region == Region(RegionKind.USER, user) for key in item.keys):
            return True
        acts = (Act(item.agent, ""),)
        sources = [item.source, *(label.source for _, label in item.labels)]
        return any(self._selector.means(source, acts, item.create_time_ms) for source in sources)

    def _came_of(self, label: Label, found: Descent) -> bool:
        """Say whether what has a label was made of what was found."""
        if any(found.reaches(reach_of_parent(self._board, parent)) for parent in label.parents):
            return True
        place = found.scopes.get(keys.on_board(keys.SCOPE, self._board, label.read_scope))
        return place is not None and place < label.scope_size

    async def _scopes(self, found: Descent) -> list[tuple[Stored, ReadScope]]:
        named = [scope for scope in found.scopes if scope.startswith(keys.SCOPE + self._board)]
        open_scopes = []
        for key in named:
            record = (await self._store.read([key], STRONG, left_s(self._deadline))).records[0]
            if record is not None:
                scope = decode_read_scope(key, record.value)
                if not scope.purged_by:
                    open_scopes.append((Stored(key, record.revision), scope))
        return open_scopes

    async def _conflicts(self) -> list[Stored]:
        """Give the records of conflicts that name the person's region."""
        if not self._selector.user:
            return []
        region = str(Region(RegionKind.USER, self._selector.user))
        naming = []
        async for record in records_below(self._store, keys.CONFLICT + self._board, self._deadline):
            conflict = decode_conflict(record.key, record.value)
            winner = conflict.winner.regions if conflict.winner is not None else ()
            if region in {conflict.region, *conflict.loser.regions, *winner}:
                naming.append(Stored(record.key, record.revision))
        return naming


def _board_of(head: bytes) -> str:
    """Give the board of an entry; nothing for one beyond boards."""
    return keys.unescape(head[len(keys.HEAD) :].split(b"/", 2)[1]).decode()


def _reach(head: bytes, state: KeptState) -> Reach:
    return reach_of(head, state.record.sequence, state.record.label)
