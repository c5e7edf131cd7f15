"""The embedded store: the port's methods on one SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from kokuban_server.adapters.sqlite import compaction, queries
from kokuban_server.adapters.sqlite.ballast import Ballast
from kokuban_server.adapters.sqlite.commits import Commits
from kokuban_server.adapters.sqlite.database import (
    DATABASE_FILE,
    RESTORING_FILE,
    State,
    check,
    open_reader,
    open_writer,
)
from kokuban_server.adapters.sqlite.faults import refusal, translated
from kokuban_server.adapters.sqlite.leases import Leases
from kokuban_server.adapters.sqlite.ownership import FolderRefused, Ownership
from kokuban_server.adapters.sqlite.rows import event, last_id, revision_of
from kokuban_server.adapters.sqlite.watches import Watches
from kokuban_server.adapters.sqlite.writer import Writer
from kokuban_server.core.refusals import (
    HistoryCompacted,
    OutcomeUnknown,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
    TokenAheadOfStore,
)
from kokuban_server.ports.board_store import (
    AtLeast,
    Consistency,
    Cut,
    Lease,
    Page,
    Record,
    Snapshot,
    StoreStatus,
    WatchBatch,
)
from kokuban_server.ports.group_commit import BatchCounts, GroupCommit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence

    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.board_store import Event
    from kokuban_server.ports.clock import Clock

_BATCH_MEMBERS_MAX: Final = 128
_BATCH_BYTES_MAX: Final = 8 * 1024 * 1024

_SCAN_SLICE: Final = 128
"""How many keys a scan looks at before others get their turn on the event loop: about half a millisecond."""
_LOG_SLICE: Final = 256
"""The same for a watch that reads from the database."""
_CATCH_UP_EVENTS: Final = 1_000
_CATCH_UP_BYTES: Final = 1024 * 1024
"""Where a batch of such a watch ends, at the next revision."""
_OUTAGE_RETRY_S: Final = 1.0

_Answer = TypeVar("_Answer")


class SqliteStore:
    """The store in a folder that this process owns. Made by `open`.

    Reads run on the event loop, on a connection of their own, in slices; a thread would have to take turns with the event
    loop for every row. Commits wait for the disk in a thread.
    """

    def __init__(
        self,
        folder: Path,
        ownership: Ownership,
        connections: tuple[sqlite3.Connection, sqlite3.Connection],
        clock: Clock,
        monotonic: Callable[[], float],
        size_bytes_max: int,
    ) -> None:
        writing, self._reading = connections
        self._file = folder / DATABASE_FILE
        self._ownership = ownership
        self._size_bytes_max = size_bytes_max
        self._watches = Watches()
        self._writer = Writer(writing, State.read(writing), Ballast(folder), size_bytes_max, self._watches.publish)
        self._floor = self._writer.state.compacted_revision
        """Below it nobody may ask, from before the first row is removed on."""
        self._tasks: set[asyncio.Task[object]] = set()
        self._leases = Leases(self._writer, monotonic, self._spawn)
        commits = Commits(self._writer, clock, self._leases.lives)
        self._group = GroupCommit(commits.send, members_max=_BATCH_MEMBERS_MAX, bytes_max=_BATCH_BYTES_MAX)
        self._compacting = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        folder: Path | str,
        clock: Clock,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        size_bytes_max: int = 0,
    ) -> SqliteStore:
        """Open the store in a folder, which is made if it is not there. `size_bytes_max` 0 is no limit.

        Raises `StoreInUse` if another process has it, `FolderRefused` if it is not a store that this version reads, and
        `StoreCorrupt` if it is seen to be damaged.
        """

        def prepare() -> tuple[Path, Ownership, tuple[sqlite3.Connection, sqlite3.Connection]]:
            path = Path(folder).resolve()
            ownership = Ownership(path)
            try:
                return path, ownership, _connect(path)
            except BaseException:
                ownership.release()
                raise

        path, ownership, connections = await asyncio.to_thread(prepare)
        try:
            with translated():
                return cls(path, ownership, connections, clock, monotonic, size_bytes_max)
        except BaseException:
            for connection in connections:
                connection.close()
            ownership.release()
            raise

    @property
    def epoch(self) -> str:
        """Name the store's present life."""
        return self._writer.state.epoch

    @property
    def batches(self) -> BatchCounts:
        """See the port."""
        return self._group.counts

    # Writing.

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        """Apply the change set; see the port."""
        self._leases.collect()
        return await self._group.commit(change, deadline_s)

    # Reading.

    async def read(self, keys: Sequence[bytes], consistency: Consistency, deadline_s: float) -> Cut:  # noqa: ARG002 - answers at once
        """Give what the keys hold; see the port."""
        state = self._touch()
        revision = self._revision_for(consistency)
        highest = last_id(revision)
        reading = self._reading
        try:
            records = tuple([queries.record_at(reading, key, highest) for key in keys])
        except sqlite3.Error as error:
            raise refusal(error) from error
        return Cut(revision, state.store_time_ms, records)

    async def scan(
        self,
        prefix: bytes,
        after: bytes,
        limit: int,
        bytes_max: int,
        consistency: Consistency,
        deadline_s: float,
    ) -> Page:
        """Give a page of the prefix's keys; see the port."""
        self._touch()
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    revision = self._revision_for(consistency)
                    try:
                        return await self._page(prefix, after, limit, bytes_max, revision)
                    except HistoryCompacted:
                        # Compaction overtook the scan between two slices: only a snapshot cannot begin again.
                        if isinstance(consistency, Snapshot):
                            raise
        except TimeoutError:
            raise StoreUnavailable("no answer within the deadline") from None

    async def _page(self, prefix: bytes, after: bytes, limit: int, bytes_max: int, revision: int) -> Page:
        records: list[Record] = []
        size = 0
        while True:
            if revision < self._floor:
                raise HistoryCompacted(self._floor)
            visited = 0
            with (
                translated(),
                closing(queries.records_below(self._reading, prefix, after, revision, _SCAN_SLICE)) as found,
            ):
                for key, record in found:
                    after = key  # the next slice begins behind it
                    visited += 1
                    if record is None:
                        continue
                    size += len(record.key) + len(record.value)
                    if len(records) == limit or (records and size > bytes_max):
                        return Page(revision, self._writer.state.store_time_ms, tuple(records), more=True)
                    records.append(record)
            if visited < _SCAN_SLICE:
                return Page(revision, self._writer.state.store_time_ms, tuple(records), more=False)
            await asyncio.sleep(0)
            self._touch()

    def _revision_for(self, consistency: Consistency) -> int:
        present = self._writer.state.revision
        if isinstance(consistency, AtLeast | Snapshot):
            if consistency.revision > present:
                raise TokenAheadOfStore("")
            if isinstance(consistency, Snapshot):
                if consistency.revision < self._floor:
                    raise HistoryCompacted(self._floor)
                return consistency.revision
        return present

    async def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Give every change to the prefixes' keys; see the port."""
        state = self._touch()
        if after_revision > state.revision:
            raise TokenAheadOfStore("")
        if after_revision < self._floor:
            raise HistoryCompacted(self._floor)
        channel = self._watches.join(prefixes, state.revision)
        try:
            reached = after_revision
            told_ticks = -1
            while True:
                changed = channel.changed
                if reached < channel.floor:
                    batch = await self._catch_up(channel.prefixes, reached)
                else:
                    batch = channel.after(reached, self._writer.state.revision)
                if batch.events or channel.ticks != told_ticks or reached < channel.floor:
                    told_ticks = channel.ticks
                    reached = batch.revision
                    yield batch
                else:
                    reached = batch.revision
                    await changed.wait()
                self._touch()
        finally:
            self._watches.leave(channel)

    async def _catch_up(self, prefixes: tuple[bytes, ...], reached: int) -> WatchBatch:
        """Read what came after a revision from the database, up to the present or some whole revisions on."""
        events: list[Event] = []
        size = 0
        last = last_id(reached)
        present = self._writer.state.revision
        while True:
            if reached < self._floor:
                raise HistoryCompacted(self._floor)
            visited = 0
            try:
                with translated(), closing(queries.rows_after(self._reading, last, present)) as rows:
                    for row in rows:
                        full = len(events) >= _CATCH_UP_EVENTS or size >= _CATCH_UP_BYTES
                        if full and revision_of(row[0]) > revision_of(last):
                            return WatchBatch(revision_of(last), tuple(events))
                        last = row[0]
                        if row[1].startswith(prefixes):
                            events.append(event(row))
                            size += len(row[1]) + len(row[6] or b"")
                        visited += 1
                        if visited == _LOG_SLICE:
                            break
            except StoreUnavailable:
                self._touch()
                await asyncio.sleep(_OUTAGE_RETRY_S)
                continue
            if visited < _LOG_SLICE:
                return WatchBatch(present, tuple(events))
            await asyncio.sleep(0)
            self._touch()

    # Leases.

    async def grant_lease(self, ttl_ms: int, deadline_s: float) -> Lease:
        """Begin a lease; see the port."""
        self._touch()
        return await self._owned(self._leases.grant(ttl_ms), deadline_s)

    async def renew_lease(self, lease: int, deadline_s: float) -> int:  # noqa: ARG002 - answers at once
        """Begin the lease's time anew; see the port."""
        self._touch()
        return self._leases.renew(lease)

    async def lease_left(self, lease: int, deadline_s: float) -> int:  # noqa: ARG002 - answers at once
        """Give how long the lease lives unless it is renewed; see the port."""
        self._touch()
        return self._leases.left(lease)

    async def revoke_lease(self, lease: int, deadline_s: float) -> None:
        """End the lease; see the port."""
        self._touch()
        await self._owned(self._leases.end([lease]), deadline_s)

    # The rest.

    async def compact(self, before_revision: int, deadline_s: float) -> int:
        """Forget older states, and remove them from the file; see the port.

        What a deadline or a crash interrupts is removed by the next compaction.
        """
        self._touch()
        return await self._owned(self._compact(before_revision), deadline_s)

    async def _compact(self, before_revision: int) -> int:
        async with self._compacting:
            floor = max(self._floor, min(before_revision, self._writer.state.revision))
            before, self._floor = self._floor, floor
            try:
                await self._writer.in_thread(lambda _, state: state._replace(compacted_revision=floor))
            except BaseException:
                self._floor = before
                raise
            while not compaction.is_done(self._writer.state):
                try:
                    await self._writer.in_thread(compaction.step)
                except StoreFull:
                    await self._writer.make_room()
                    await self._writer.in_thread(compaction.step)
            await self._writer.give_back_room()
            return floor

    async def status(self, deadline_s: float) -> StoreStatus:  # noqa: ARG002 - answers at once
        """Say how the store is."""
        state = self._touch()
        size = 0
        for file in (self._file, self._file.with_name(DATABASE_FILE + "-wal")):
            with suppress(FileNotFoundError):
                size += file.stat().st_size
        return StoreStatus(
            kind="sqlite",
            version=sqlite3.sqlite_version,
            revision=state.revision,
            compacted_revision=state.compacted_revision,
            store_time_ms=state.store_time_ms,
            size_bytes=size,
            size_bytes_max=self._size_bytes_max,
            leader="",
        )

    async def close(self) -> None:
        """Finish what is under way, close the file and give the folder back."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="sqlite-store-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._group.close()
        self._leases.close()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._watches.close()
        self._reading.close()  # before the writer, whose closing takes the log into the file
        await self._writer.close()
        self._ownership.release()

    def _touch(self) -> State:
        """Begin every call: give the state, and have lapsed leases collected."""
        if self._closing is not None:
            raise StoreUnavailable("closed")
        self._leases.collect()
        return self._writer.state

    def _spawn(self, work: Coroutine[object, object, _Answer]) -> asyncio.Task[_Answer]:
        """Run something that its caller's cancellation must not cut in half."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _owned(self, work: Coroutine[object, object, _Answer], deadline_s: float) -> _Answer:
        task = self._spawn(work)
        done, _ = await asyncio.wait([task], timeout=deadline_s)
        if not done:
            task.add_done_callback(_forget)
            raise OutcomeUnknown(detail="no answer within the deadline")
        return task.result()


def _forget(task: asyncio.Task[object]) -> None:
    """Look at the outcome of a task that nobody waits for any more, so that it is not reported as overlooked."""
    if not task.cancelled():
        task.exception()


def _connect(folder: Path) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Open the file with the connection that writes and the one that reads."""
    file = folder / DATABASE_FILE
    if (folder / RESTORING_FILE).exists():
        raise FolderRefused(f"a restore into {folder} was not finished; empty the folder and restore again")
    wal = file.with_name(DATABASE_FILE + "-wal")
    if not file.exists() and wal.exists():
        raise StoreCorrupt(b"", f"{file} is missing, but {wal.name} is there")
    size = file.stat().st_size if file.exists() else 0
    with translated():
        writing = open_writer(file)
        try:
            check(writing, size)
            return writing, open_reader(file)
        except BaseException:
            writing.close()
            raise
