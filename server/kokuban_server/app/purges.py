"""Removing what deleted boards held: a part at a time, counted, and verified at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kokuban_server.app.archive_work import reminders
from kokuban_server.core import keys, limits
from kokuban_server.core.boards import BoardState, Receipt
from kokuban_server.core.change_set import AtRevision, ChangeSet, DeleteKey, DeleteRange, NoneBelow, Put
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.board_codec import decode_board, decode_purge, encode_board, encode_purge

if TYPE_CHECKING:
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.change_set import Delete
    from kokuban_server.ports.board_store import BoardStore, Record

_CALL_S = 10.0
_STEPS_AT_ONCE = 20
_ENTRIES_AT_ONCE = 90
"""Each with its reminder, in one change set."""


class Purges:
    """Goes on with the oldest purge there is. A step that another server has done meanwhile is refused and done anew."""

    def __init__(self, store: BoardStore, time: StoreTime) -> None:
        self._store = store
        self._time = time

    async def turn(self) -> None:
        """Do some steps."""
        for _ in range(_STEPS_AT_ONCE):
            page = await self._store.scan(keys.PURGE, b"", 1, limits.PAGE_BYTES_MAX, STRONG, _CALL_S)
            if not page.records:
                return
            try:
                await self._step(page.records[0])
            except CommitRefused:
                continue

    async def _step(self, task: Record) -> None:
        """Remove the next part of a board, or write its receipt where nothing is left. A board that is there is left alone."""
        board_key = keys.board(*keys.parse_purge(task.key))
        board = (await self._store.read([board_key], STRONG, _CALL_S)).records[0]
        if board is not None and decode_board(board_key, board.value).state is BoardState.LIVE:
            guards = (AtRevision(task.key, task.revision), AtRevision(board_key, board.revision))
            await self._store.commit(ChangeSet(guards, (), (DeleteKey(task.key),)), _CALL_S)
            return
        below = keys.board_prefix(*keys.parse_purge(task.key))
        count = decode_purge(task.key, task.value)
        for field, kinds in _PARTS:
            for kind in kinds:
                limit = _ENTRIES_AT_ONCE if kind == keys.HEAD else limits.PAGE_ENTRIES_MAX
                page = await self._store.scan(kind + below, b"", limit, limits.PAGE_BYTES_MAX, STRONG, _CALL_S)
                if not page.records:
                    continue
                deletes: list[Delete] = [DeleteRange(page.records[0].key, page.records[-1].key + b"\x00")]
                if kind == keys.HEAD:
                    deletes += reminders(page.records)
                counted = count._replace(**{field: getattr(count, field) + len(page.records)})
                put = Put(task.key, encode_purge(counted))
                guard = AtRevision(task.key, task.revision)
                await self._store.commit(ChangeSet((guard,), (put,), tuple(deletes)), _CALL_S)
                return
        await self._finish(task, below)

    async def _finish(self, task: Record, below: bytes) -> None:
        key = keys.board(*keys.parse_purge(task.key))
        found = (await self._store.read([key], STRONG, _CALL_S)).records[0]
        guards = [AtRevision(task.key, task.revision)]
        guards += [NoneBelow(kind + below) for _, kinds in _PARTS for kind in kinds]  # type: ignore[misc] # guards
        puts = []
        if found is not None:
            receipt = Receipt(decode_purge(task.key, task.value), self._time.now_ms())
            record = replace(decode_board(key, found.value), state=BoardState.PURGED, receipt=receipt)
            guards.append(AtRevision(key, found.revision))
            puts.append(Put(key, encode_board(record)))
        await self._store.commit(ChangeSet(tuple(guards), tuple(puts), (DeleteKey(task.key),)), _CALL_S)


_PARTS = (
    ("entries", (keys.HEAD,)),
    ("revisions", (keys.HISTORY, keys.ORIGIN, keys.REMOVAL, keys.REMOVAL_RUNNING)),
    (
        "locks",
        (
            keys.SESSION,
            keys.WAIT,
            keys.LOCK,
            keys.MARKER,
            keys.LOCK_GENERATION,
            keys.QUEUE_GENERATION,
            keys.SCOPE,
            keys.QUARANTINE,
            keys.PENDING,
            keys.TASK_LOG,
            keys.TASK,
            keys.TASK_ACTION,
            keys.TASK_NOTES,
            keys.TASK_WAIT,
            keys.TASK_ARCHIVE,
            keys.ARCHIVING,
        ),
    ),
    ("conflicts", (keys.CONFLICT, keys.CONFLICT_PLACE)),
)
"""What a board consists of, by where it is counted."""
