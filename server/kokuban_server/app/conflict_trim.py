"""Keeping the log of conflicts within its bounds: of each board so many, and none that is too old."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import ChangeSet, DeleteKey
from kokuban_server.ports.board_store import STRONG

if TYPE_CHECKING:
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.ports.board_store import BoardStore

_CALL_S = 10.0
_WALKED_AT_ONCE = 256
_WALK_PAUSE_MS = 60_000
_REMOVED_AT_ONCE = limits.STORE_OPERATIONS_MAX // 2
"""Each with what says where it stands."""


class ConflictTrim:
    """Walks over all conflicts, a page at a turn, and removes what is too much. Removing what is gone is nothing."""

    def __init__(self, store: BoardStore, time: StoreTime, entries_max: int) -> None:
        self._store = store
        self._time = time
        self._entries_max = entries_max
        self._next_walk_ms = 0
        self._after = b""
        self._board = b""
        self._met = 0

    async def turn(self) -> None:
        """Look at the next page, if it is time. A board's conflicts come newest first, so what is too much comes last."""
        now_ms = self._time.now_ms()
        if not self._after and now_ms < self._next_walk_ms:
            return
        page = await self._store.scan(
            keys.CONFLICT, self._after, _WALKED_AT_ONCE, limits.PAGE_BYTES_MAX, STRONG, _CALL_S
        )
        removed = []
        for record in page.records:
            board, time_ms, conflict_id = keys.parse_conflict(record.key)
            if board != self._board:
                self._board, self._met = board, 0
            self._met += 1
            if self._met > self._entries_max or time_ms <= now_ms - limits.CONFLICT_AGE_MS_MAX:
                removed.append((DeleteKey(record.key), DeleteKey(keys.conflict_place(board, conflict_id))))
        for begin in range(0, len(removed), _REMOVED_AT_ONCE):
            deletes = tuple(delete for pair in removed[begin : begin + _REMOVED_AT_ONCE] for delete in pair)
            await self._store.commit(ChangeSet((), (), deletes), _CALL_S)
        self._after = page.records[-1].key if page.more else b""
        if not page.more:
            self._board, self._met = b"", 0
            self._next_walk_ms = now_ms + _WALK_PAUSE_MS
