"""The one connection that writes: one transaction at a time, made durable in a thread."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from kokuban_server.adapters.sqlite.faults import refusal, translated
from kokuban_server.adapters.sqlite.rows import ROWS_PER_REVISION_MAX, Row, first_id, revision_of, sealed
from kokuban_server.core.refusals import OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from kokuban_server.adapters.sqlite.ballast import Ballast
    from kokuban_server.adapters.sqlite.database import State

_INSERT: Final = "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)"
_RESERVED_SHARE: Final = 16
"""What part of a bounded store is kept for deletes, which need room too before compaction gives some back."""
_RESERVED_PAGES_MIN: Final = 64

_Answer = TypeVar("_Answer")


class Draft:
    """What a transaction is about to write."""

    def __init__(self, state: State) -> None:
        self.state = state
        """What the store will know of itself; a change here is a change of the store."""
        self.revision = state.revision
        """The revision that rows are being written at, once `next_revision` was called."""
        self.rows: list[Row] = []
        self.touched = False
        """Something else was written in the transaction, which is to be committed too."""
        self._next_id = 0

    def next_revision(self) -> int:
        """Begin another revision. It is used up only if rows are added."""
        self.revision += 1
        self._next_id = first_id(self.revision)
        return self.revision

    def put(self, key: bytes, value: bytes, lease: int | None, head: tuple[int, int]) -> None:
        """Add a write to a key whose head is given."""
        row_id = self._next_id
        self._next_id = row_id + 1
        before, created = head
        if created:
            self.rows.append(sealed(row_id, key, value, created, before, lease))
        else:
            self.rows.append(sealed(row_id, key, value, self.revision, 0, lease))

    def delete(self, key: bytes, head_id: int) -> None:
        """Add the removal of a key that holds something."""
        self.rows.append(sealed(self._next_id, key, None, 0, head_id, None))
        self._next_id += 1

    def room_for(self, count: int) -> bool:
        """Say whether this revision can take so many rows more."""
        return self._next_id + count < first_id(self.revision) + ROWS_PER_REVISION_MAX


class Writer:
    """Runs transactions.

    Statements run where they are called, on the event loop: each takes microseconds, and handing each to a thread would
    take longer. Only what waits for the disk runs in the thread, and nobody touches the connection meanwhile.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        state: State,
        ballast: Ballast,
        size_bytes_max: int,
        committed: Callable[[Sequence[Row]], None],
    ) -> None:
        self.connection = connection
        self.state = state
        """What is committed."""
        self._committed = committed
        self._ballast = ballast
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        self._pages_max = size_bytes_max // page_bytes
        if self._pages_max:
            connection.execute(f"PRAGMA max_page_count = {self._pages_max}")

    def has_room(self) -> bool:
        """Say whether puts are taken: the last pages of a bounded store, and the last room on the disk, are for deletes."""
        if not self._ballast.recovered():
            return False
        if not self._pages_max:
            return True
        (pages,) = self.connection.execute("PRAGMA page_count").fetchone()
        (free,) = self.connection.execute("PRAGMA freelist_count").fetchone()
        reserved = max(_RESERVED_PAGES_MIN, self._pages_max // _RESERVED_SHARE)
        return bool(pages - free <= self._pages_max - reserved)

    async def make_room(self) -> None:
        """Give deletes the room that was set aside for them, and that of the write-ahead log."""
        async with self._lock:
            self._ballast.throw_off()
            # Where this does not succeed, the transaction that needs the room says so.
            with suppress(sqlite3.Error):
                await self._run(lambda: self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())

    async def give_back_room(self) -> None:
        """Set room aside again if it was used and there is enough, now that compaction has made some."""
        if not self._ballast.held:
            await self.make_room()
            self._ballast.take_in()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Draft]:
        """Give a draft, and commit what was put into it; nothing if that is nothing. Whoever is inside must not be cancelled.

        Raises what the driver's errors mean: `StoreFull`, `StoreUnavailable` and `StoreCorrupt` when nothing was changed,
        `OutcomeUnknown` when the disk failed while it was made durable.
        """
        async with self._lock:
            with translated():
                self.connection.execute("BEGIN IMMEDIATE")
            try:
                draft = Draft(self.state)
                with translated():
                    yield draft
                    if draft.rows:
                        draft.state = draft.state._replace(revision=revision_of(draft.rows[-1][0]))
                        self.connection.executemany(_INSERT, draft.rows)
                    if draft.state is not self.state or draft.touched:
                        draft.state.write(self.connection)
                        await self._make_durable()
                        self.state = draft.state
            finally:
                self._roll_back()
            if draft.rows:
                self._committed(draft.rows)

    async def _make_durable(self) -> None:
        try:
            await self._run(lambda: self.connection.execute("COMMIT"))
        except sqlite3.Error as error:
            # What reached the disk before it failed may be found by a recovery after a crash.
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR:
                raise OutcomeUnknown(detail=str(error)) from error
            raise

    def _roll_back(self) -> None:
        """Undo what was not committed."""
        if self.connection.in_transaction:
            with suppress(sqlite3.Error):  # SQLite may have rolled back by itself, as after some faults of the disk
                self.connection.execute("ROLLBACK")

    async def in_thread(self, work: Callable[[sqlite3.Connection, State], State]) -> None:
        """Run a transaction of a few long statements in the thread; the work gives the state to store with it."""

        def run() -> State:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                state = work(self.connection, self.state)
                state.write(self.connection)
                self.connection.execute("COMMIT")
            finally:
                self._roll_back()
            return state

        async with self._lock:
            try:
                self.state = await self._run(run)
            except sqlite3.Error as error:
                raise refusal(error) from error

    async def _run(self, work: Callable[[], _Answer]) -> _Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Close the connection, which writes everything into the one file."""
        async with self._lock:
            await self._run(self.connection.close)
        self._ballast.throw_off()
        self._thread.shutdown(wait=False)
