"""What of an archived task must not come back: what was removed from its board since, and what was made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.bars import Written, refuse_barred
from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import records_below
from kokuban_server.app.states import states_at
from kokuban_server.core import keys
from kokuban_server.core.access import Principal
from kokuban_server.core.entry import Act
from kokuban_server.core.refusals import SourcePurged
from kokuban_server.core.removals import RemovalState
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.provenance_codec import decode_removal, reach_of_parent
from kokuban_server.records.trust_codec import decode_read_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kokuban_server.app.access import OpenRegion
    from kokuban_server.core.archives import Archive
    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.provenance import Origin, Selector
    from kokuban_server.core.trust import Label, Parent
    from kokuban_server.ports.board_store import BoardStore

_SLACK_MS = 5 * 60 * 1_000
"""By which the clocks of servers may differ."""


class _Making(NamedTuple):
    """Who wrote a state, when, and what it was made of."""

    act: Act
    time_ms: int
    label: Label


class RemovedSince:
    """Judges the states of one task by what was removed from the board since the task was archived.

    What is derived is judged strictly: while a task is archived its states are in nobody's way when a source is purged, and the
    records that say what was made of what are forgotten. So a state whose parent or read scope is not there to vouch for it any
    more is left out, if anything was removed since.
    """

    def __init__(
        self,
        store: BoardStore,
        opened: OpenRegion,
        selectors: Sequence[Selector] | None,
        digest: Callable[[bytes], bytes],
        deadline: float,
    ) -> None:
        self._store = store
        self._opened = opened
        self._selectors = selectors
        self._digest = digest
        self._deadline = deadline
        self._board = keys.board_prefix(opened.board.tenant, opened.board.id)

    @classmethod
    async def of(
        cls,
        store: BoardStore,
        opened: OpenRegion,
        archive: Archive,
        digest: Callable[[bytes], bytes],
        deadline: float,
    ) -> RemovedSince:
        """Find what was removed since a task was archived."""
        board = opened.board
        if board.record.removals == archive.removals:
            return cls(store, opened, None, digest, deadline)
        selectors = []
        below = keys.REMOVAL + keys.board_prefix(board.tenant, board.id)
        async for record in records_below(store, below, deadline):
            removal = decode_removal(record.key, record.value)
            over = removal.state is RemovalState.DONE and removal.end_time_ms < archive.time_ms - _SLACK_MS
            # The selector of an erasure that is done is empty: the person is told by a bar.
            erased = removal.state is RemovalState.DONE and removal.is_erasure
            if removal.state is not RemovalState.PLANNED and not over and not erased:
                selectors.append(removal.selector)
        return cls(store, opened, selectors, digest, deadline)

    async def has(self, record: EntryRecord, origins: Sequence[Origin]) -> bool:
        """Say whether a state is to be left out."""
        if self._selectors is None:
            return False
        made = [_Making(act, record.update_time_ms, record.label) for act in record.acts]
        made += [_Making(Act(one.agent, "", session=one.session), one.time_ms, one.label) for one in origins]
        if any(self._is_meant(one, self._selectors) for one in made):
            return True
        parents = {parent for one in made for parent in one.label.parents}
        scopes = {one.label.read_scope for one in made if one.label.read_scope}
        return not (await self._are_kept(parents) and await self._are_open(scopes))

    def _is_meant(self, one: _Making, selectors: Sequence[Selector]) -> bool:
        board = self._opened.board
        writer = Principal(board.tenant, one.act.agent, frozenset())
        try:
            refuse_barred(Written(self._opened.region, one.label, writer, ""), board, self._digest)
        except SourcePurged:
            return True
        return any(selector.means(one.label.source, (one.act,), one.time_ms) for selector in selectors)

    async def _are_kept(self, parents: set[Parent]) -> bool:
        """Say whether all of these states are kept. Those of the task itself are not, as long as it is archived."""
        if any(parent.key.region == self._opened.region for parent in parents):
            return False
        reaches = [reach_of_parent(self._board, parent) for parent in parents]
        return None not in await states_at(self._store, [(one.head, one.last) for one in reaches], self._deadline)

    async def _are_open(self, scopes: set[str]) -> bool:
        """Say whether all of these read scopes are known, and were given nothing that was removed."""
        for scope in scopes:
            key = keys.on_board(keys.SCOPE, self._board, scope)
            found = (await self._store.read([key], STRONG, left_s(self._deadline))).records[0]
            if found is None or decode_read_scope(key, found.value).purged_by:
                return False
        return True
