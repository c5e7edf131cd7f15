"""The effect gate: whether what a caller believes still holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.deadlines import left_s
from kokuban_server.core import keys
from kokuban_server.core.access import Verb
from kokuban_server.core.refusals import NotFound, TokenFromAnotherStore
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.codec import decode_entry
from kokuban_server.records.lock_codec import decode_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.app.access import Access, OpenRegion
    from kokuban_server.app.lock_guards import FenceGiven
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import Principal
    from kokuban_server.core.commit import At
    from kokuban_server.core.locks import Fence
    from kokuban_server.core.names import EntryKey
    from kokuban_server.ports.board_store import BoardStore, Record


class Verdict(NamedTuple):
    """What does not hold any more, and the state that says so."""

    stale: list[EntryKey]
    lost: list[Fence]
    revision: int


class Gate:
    """Answers `CheckCurrent`: one strong read of everything that is asked about."""

    def __init__(self, store: BoardStore, access: Access, time: StoreTime) -> None:
        self._store = store
        self._access = access
        self._time = time

    async def check(
        self,
        principal: Principal,
        board: str,
        entries: Sequence[tuple[EntryKey, At]],
        fences: Sequence[FenceGiven],
        deadline: float,
    ) -> Verdict:
        """Say which entries are not in the state given any more, and which fences are not alive or not the caller's."""
        await self._access.enter(principal, board, deadline)
        epoch = self._store.epoch
        for index, (_, at) in enumerate(entries):
            if at.epoch != epoch:
                raise TokenFromAnotherStore(f"entries[{index}].at")
        for given in fences:
            if given.fence.epoch != epoch:
                raise TokenFromAnotherStore(f"{given.field}.epoch")
        prefix = keys.board_prefix(principal.tenant, board)
        opened: list[OpenRegion] = []
        named = [self._head(principal, board, entry, opened) for entry, _ in entries]
        named += [keys.on_board(keys.LOCK, prefix, given.fence.lock_id) for given in fences]
        cut = await self._store.read(named, STRONG, left_s(deadline))
        self._time.saw(cut.store_time_ms)
        await self._access.show(principal, opened, deadline)
        now_ms = self._time.now_ms()
        stale = [
            entry
            for (entry, at), record in zip(entries, cut.records, strict=False)
            if not _is_at(record, at.number, now_ms)
        ]
        lost = [
            given.fence
            for given, record in zip(fences, cut.records[len(entries) :], strict=True)
            if not _is_alive(record, given.fence, principal, now_ms)
        ]
        return Verdict(stale, lost, cut.revision)

    def _head(self, principal: Principal, board: str, entry: EntryKey, opened: list[OpenRegion]) -> bytes:
        """Give an entry's key, or one that never holds anything where the caller may not read; add the region to `opened`."""
        try:
            region = self._access.open(principal, board, entry.region, Verb.READ)
        except NotFound:
            return keys.HEAD
        opened.append(region)
        return keys.head(region.prefix, entry.path)


def _is_at(record: Record | None, revision: int, now_ms: int) -> bool:
    return record is not None and record.revision == revision and decode_entry(record.key, record.value).is_live(now_ms)


def _is_alive(record: Record | None, fence: Fence, principal: Principal, now_ms: int) -> bool:
    if record is None or record.create_revision != fence.revision:
        return False
    lock = decode_lock(record.key, record.value)
    return lock.agent == principal.agent and now_ms < lock.end_time_ms
