"""Background work: counting what each board takes of the store. One server does it at a time, for all.

A count reads every state of every entry, a small page at a time and with pauses as long as the reading took, and leaves one
record for each board. Two servers that count at once do twice the work and no harm: of two counts the later one holds.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.background import Turns
from kokuban_server.app.ownership import Ownership
from kokuban_server.core import keys
from kokuban_server.core.change_set import ChangeSet, DeleteKey, Put
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.codec import encode_board_size

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from kokuban_server.ports.board_store import BoardStore, Page

_CALL_S = 10.0
_PAGE_ENTRIES = 256
_PAGE_BYTES = 1024 * 1024
_TURN_S_MAX = 5.0
_RETRY_S = 30.0


class _Count(NamedTuple):
    """What was counted on a board."""

    size_bytes: int
    revision: int
    """Where the count began."""
    newest: int
    """The newest revision that was met."""


class _Disowned(Exception):  # noqa: N818 - an answer, not an error
    """Another server counts now."""


class BoardCensus:
    """The loop that counts, while this server owns the work."""

    def __init__(
        self, store: BoardStore, server_id: str, report: Callable[[str, Exception], None], interval_s: float
    ) -> None:
        self._store = store
        self._ownership = Ownership(store, "census", server_id)
        self._report = report
        self._interval_s = interval_s
        self._counts: dict[bytes, _Count] = {}
        """What this server has left in the store."""

    async def run(self) -> None:
        """Count at once and then at each interval, until cancelled. What goes wrong is reported and tried again later."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        turns = Turns("census", self._report, _Disowned)
        try:
            while True:
                with turns.turn():
                    if not await self._ownership.hold():
                        next_s = loop.time()  # whoever takes over does not know when was counted last
                        self._counts.clear()
                    elif loop.time() >= next_s:
                        next_s = loop.time() + min(self._interval_s, _RETRY_S)  # if it fails, say on a full store
                        await self.take()
                        next_s = loop.time() + self._interval_s
                await asyncio.sleep(min(self._interval_s, _TURN_S_MAX))
        finally:
            await self._ownership.let_go()

    async def take(self) -> None:
        """Count every board once, and forget the counts of boards that are gone."""
        boards = set()
        async for page in self._pages(keys.BOARD):
            for record in page.records:
                board = record.key[len(keys.BOARD) :]
                boards.add(board)
                await self._note(board, await self._count(board))
        async for page in self._pages(keys.SIZE):
            gone = [record.key for record in page.records if record.key[len(keys.SIZE) :] not in boards]
            if gone:
                await self._store.commit(ChangeSet((), (), tuple(map(DeleteKey, gone))), _CALL_S)

    async def _count(self, board: bytes) -> _Count:
        """Add up a board's heads and histories. Except an event's, a head has the bytes of the newest state in its history."""
        size = revision = newest = 0
        head = b""
        async for page in self._pages(keys.HISTORY + board):
            revision = revision or page.revision
            for record in page.records:
                size += len(record.key) + len(record.value)
                newest = max(newest, record.revision)
                states_of = keys.head_of_history(record.key)
                if states_of != head:
                    head = states_of
                    size += 0 if keys.is_of_event(head) else len(head) + len(record.value)
        async for page in self._pages(keys.task_heads(board)):
            revision = revision or page.revision
            for record in page.records:
                if keys.is_of_event(record.key):
                    size += len(record.key) + len(record.value)
                    newest = max(newest, record.revision)
        return _Count(size, revision, newest)

    async def _note(self, board: bytes, count: _Count) -> None:
        """Leave a count in the store, unless nothing has happened since the last one."""
        last = self._counts.get(board)
        if last is not None and last.size_bytes == count.size_bytes and count.newest <= last.revision:
            return
        put = Put(keys.size(board), encode_board_size(count.size_bytes, count.revision))
        await self._store.commit(ChangeSet((), (put,)), _CALL_S)
        self._counts[board] = count

    async def _pages(self, prefix: bytes) -> AsyncGenerator[Page, None]:
        """Give all records of a prefix, gently. Raises `_Disowned` if the work has gone to another server."""
        loop = asyncio.get_running_loop()
        after, more = b"", True
        while more:
            begun_s = loop.time()
            page = await self._store.scan(prefix, after, _PAGE_ENTRIES, _PAGE_BYTES, STRONG, _CALL_S)
            yield page
            after, more = page.records[-1].key if page.records else b"", page.more
            await asyncio.sleep(loop.time() - begun_s)
            if not await self._ownership.hold():
                raise _Disowned
