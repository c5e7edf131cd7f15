"""Which states of the past may still be shown: what was taken away or withheld stays in the store's history for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.states import states_at, states_of
from kokuban_server.core import keys
from kokuban_server.core.names import WITHOUT_ID
from kokuban_server.records.codec import decode_entry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kokuban_server.app.access import OpenRegion
    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.names import EntryKey
    from kokuban_server.ports.board_store import BoardStore, Record


def has_removals(region: OpenRegion) -> bool:
    """Say whether anything of a region may have been removed: of one beyond boards that is not known."""
    return region.board.record.removals > 0 or region.region.kind in WITHOUT_ID


class PastState(NamedTuple):
    """A state that was read as it was at some time."""

    region: OpenRegion
    key: EntryKey
    record: EntryRecord
    revision: int

    @property
    def head(self) -> bytes:
        """The key of the entry's present state."""
        return keys.head(self.region.prefix, self.key.path)

    @property
    def is_doubtful(self) -> bool:
        """Whether a removal may have taken it away since."""
        if self.record.value is None or not has_removals(self.region):
            return False
        return self.region.region.kind in WITHOUT_ID or self.revision < self.region.board.revision


async def gone(store: BoardStore, states: Iterable[PastState], deadline: float) -> frozenset[tuple[EntryKey, int]]:
    """Give those of the states, by key and revision, that are not kept any more, or trusted less than they were."""
    doubtful = [state for state in states if state.is_doubtful]
    found = await states_at(store, [(one.head, one.record.sequence) for one in doubtful], deadline)
    return frozenset(
        [(one.key, one.revision) for one, kept in zip(doubtful, found, strict=True) if not _stands(one.record, kept)]
    )


async def kept_state(store: BoardStore, head: bytes, revision: int, deadline: float) -> Record | None:
    """Find a state among those that are kept of an entry, newest first, or nothing."""
    async for record in states_of(store, head, deadline):
        if record.revision <= revision:
            return record if record.revision == revision else None
    return None


def _stands(read: EntryRecord, kept: Record | None) -> bool:
    return kept is not None and decode_entry(kept.key, kept.value).label.trust >= read.label.trust
