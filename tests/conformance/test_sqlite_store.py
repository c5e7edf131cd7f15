"""The embedded store keeps the port's contract, and what is said of it alone."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import stat
import subprocess
import sys
import textwrap
from contextlib import aclosing, closing, suppress
from typing import TYPE_CHECKING

import pytest
from board_store_suite import (
    BOUND_S,
    DEADLINE_S,
    BoardStoreSuite,
    TurnedClock,
    commit,
    events_between,
    eventually,
    first_batch,
    follow,
    listing,
    present,
    read,
    values,
)

from kokuban_server.adapters.sqlite import CopyRefused, FolderRefused, SqliteStore, StoreInUse, backup, restore, writer
from kokuban_server.core.change_set import Absent, DeleteKey, DeleteRange, Put
from kokuban_server.core.refusals import OutcomeUnknown, StoreCorrupt, StoreFull, StoreUnavailable
from kokuban_server.ports.board_store import STRONG, LeaseLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


class SqliteHarness:
    """A store in a folder of its own, whose lease time is turned by hand."""

    def __init__(self, folder: Path) -> None:
        self.clock = TurnedClock()
        self.folder = folder
        self._lease_time_s = 0.0
        self._store: SqliteStore | None = None

    async def open(self, *, size_bytes_max: int = 0) -> SqliteStore:
        self._store = await SqliteStore.open(
            self.folder, self.clock, monotonic=lambda: self._lease_time_s, size_bytes_max=size_bytes_max
        )
        return self._store

    async def reopen(self) -> SqliteStore:
        await self.close()
        return await self.open()

    async def pass_lease_time(self, duration_ms: int) -> None:
        self._lease_time_s += duration_ms / 1000

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


@pytest.fixture
def harness(tmp_path: Path) -> SqliteHarness:
    return SqliteHarness(tmp_path / "store")


@pytest.fixture
async def store(harness: SqliteHarness) -> AsyncIterator[SqliteStore]:
    yield await harness.open()
    await harness.close()


class TestSqliteStore(BoardStoreSuite):
    """The suite on the embedded store."""


# Whose the folder is.

_CHILD = """
import asyncio, resource, sys
from kokuban_server.adapters.sqlite import SqliteStore
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.core.refusals import Refusal

async def main(folder):
    store = await SqliteStore.open(folder, SystemClock())
    print("ready", flush=True)
{body}

asyncio.run(main(sys.argv[1]))
"""

_HOLD = """
    await asyncio.Event().wait()
"""

_WRITE = """
    async def write(worker):
        n = 0
        while True:
            puts = tuple(Put(b"%d/%06d/%d" % (worker, n, part), b"v" * 300) for part in range(3))
            await store.commit(ChangeSet((), puts), 10.0)
            print(worker, n, flush=True)
            n += 1
    await asyncio.gather(*(write(worker) for worker in range(4)))
"""

_FAIL = """
    async def answer(n):
        try:
            return await store.commit(ChangeSet((), (Put(b"k/%02d" % n, b"v" * 60_000),)), 10.0)
        except Refusal as refusal:
            return type(refusal).__name__
    print(await answer(0), flush=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    for n in range(1, 8):
        print(await answer(n), flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for n in range(8, 10):
        print(await answer(n), flush=True)
    await store.close()
"""


def start(body: str, folder: Path) -> subprocess.Popen[str]:
    """Run a store in a process of its own, up to where it is open."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_CHILD).format(body=body), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(BOUND_S)
    if process.stdout is not None:
        process.stdout.close()


@pytest.fixture
def holder(harness: SqliteHarness) -> Iterator[subprocess.Popen[str]]:
    process = start(_HOLD, harness.folder)
    yield process
    kill(process)


async def test_LU_08_LE_11_a_second_process_is_refused_until_the_first_is_dead(
    harness: SqliteHarness, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(StoreInUse) as caught:
        await harness.open()
    assert str(harness.folder) in str(caught.value)
    assert f"process {holder.pid}" in str(caught.value)
    kill(holder)
    store = await harness.open()
    await commit(store, Put(b"k", b"v"))
    await harness.close()


async def test_a_second_opener_in_the_same_process_is_refused(store: SqliteStore, harness: SqliteHarness) -> None:
    with pytest.raises(StoreInUse, match=f"process {os.getpid()}"):
        await SqliteStore.open(harness.folder, harness.clock)
    await commit(store, Put(b"k", b"v"))


async def test_only_the_owner_may_read_the_files(store: SqliteStore, harness: SqliteHarness) -> None:
    await commit(store, Put(b"k", b"v"))
    assert stat.S_IMODE(harness.folder.stat().st_mode) == 0o700
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in harness.folder.iterdir()}
    assert {"kokuban.db", "kokuban.db-wal", "lock"} <= modes.keys()
    assert set(modes.values()) == {0o600}


# What is not a store.


async def test_a_database_of_another_program_is_refused_and_left_alone(harness: SqliteHarness) -> None:
    harness.folder.mkdir()
    with closing(sqlite3.connect(harness.folder / "kokuban.db")) as other:
        other.execute("CREATE TABLE theirs (a)")
    before = (harness.folder / "kokuban.db").read_bytes()
    with pytest.raises(FolderRefused, match="another program"):
        await harness.open()
    assert (harness.folder / "kokuban.db").read_bytes() == before


async def test_a_newer_format_is_refused(store: SqliteStore, harness: SqliteHarness) -> None:
    await harness.close()
    with closing(sqlite3.connect(harness.folder / "kokuban.db")) as later:
        later.execute("PRAGMA user_version = 2")
    with pytest.raises(FolderRefused, match="format 2"):
        await harness.open()


async def test_a_log_without_its_database_is_not_an_empty_store(store: SqliteStore, harness: SqliteHarness) -> None:
    await harness.close()
    (harness.folder / "kokuban.db").rename(harness.folder / "kokuban.db-wal")
    with pytest.raises(StoreCorrupt):
        await harness.open()


async def test_an_unfinished_restore_is_not_an_empty_store(harness: SqliteHarness) -> None:
    harness.folder.mkdir()
    (harness.folder / "kokuban.db.restoring").write_bytes(b"half")
    with pytest.raises(FolderRefused, match="restore"):
        await harness.open()


# Damage.


def flip(file: Path, place: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        (byte,) = opened.read(1)
        opened.seek(place)
        opened.write(bytes((byte ^ 0x20,)))


async def test_LU_11_a_damaged_value_is_an_error_and_never_an_answer(
    store: SqliteStore, harness: SqliteHarness
) -> None:
    value = b"a value that is easy to find"
    start_revision = await present(store)
    await commit(store, Put(b"p/damaged", value))
    end = await commit(store, Put(b"p/sound", b"sound"))
    await harness.close()
    database = harness.folder / "kokuban.db"
    content = database.read_bytes()
    assert content.count(value) == 1
    flip(database, content.index(value) + 5)
    store = await harness.open()
    with pytest.raises(StoreCorrupt) as caught:
        await read(store, b"p/damaged")
    assert caught.value.key == b"p/damaged"
    with pytest.raises(StoreCorrupt):
        await listing(store, b"p/")
    with pytest.raises(StoreCorrupt):
        await events_between(store, [b"p/"], start_revision, end)
    assert await values(store, b"p/sound") == [b"sound"]
    await commit(store, Put(b"p/damaged", b"written anew"))
    assert await values(store, b"p/damaged") == [b"written anew"]


async def test_LU_11_a_damaged_key_is_found_at_the_start(store: SqliteStore, harness: SqliteHarness) -> None:
    key = b"k/easy-to-find"
    await commit(store, Put(key, b"v"), *(Put(b"k/%d" % n, b"v") for n in range(20)))
    await harness.close()
    database = harness.folder / "kokuban.db"
    content = database.read_bytes()
    places = [place for place in range(len(content)) if content.startswith(key, place)]
    assert len(places) == 2  # in the table and in its index
    for place in places:
        flip(database, place + 4)
        with pytest.raises(StoreCorrupt):
            await harness.open()
        flip(database, place + 4)
    assert await values(await harness.open(), key) == [b"v"]


@pytest.mark.parametrize("damage", ["cut", "garbage", "own record"])
async def test_LU_11_a_damaged_file_does_not_open(store: SqliteStore, harness: SqliteHarness, damage: str) -> None:
    await commit(store, *(Put(b"k/%d" % n, b"v" * 5000) for n in range(20)))
    await harness.close()
    database = harness.folder / "kokuban.db"
    if damage == "cut":
        os.truncate(database, database.stat().st_size // 2)
    elif damage == "garbage":
        database.write_bytes(random.Random(1).randbytes(20_000))
    else:
        content = database.read_bytes()
        flip(database, content.index(store.epoch.encode()))
    with pytest.raises(StoreCorrupt):
        await harness.open()


async def test_RB_17_a_killed_server_loses_no_acknowledged_commit(harness: SqliteHarness) -> None:
    chooser = random.Random(17)
    acknowledged: dict[int, int] = {}
    for _ in range(5):
        process = start(_WRITE, harness.folder)
        try:
            assert process.stdout is not None
            acknowledged = {}
            for _ in range(chooser.randrange(20, 200)):
                worker, n = map(int, process.stdout.readline().split())
                acknowledged[worker] = n
        finally:
            kill(process)
        store = await harness.open()
        for worker, last in acknowledged.items():
            keys = await listing(store, b"%d/" % worker, limit=100_000)
            there = [key.split(b"/") for key in keys]
            assert {int(n) for _, n, _ in there} >= set(range(last + 1))
            assert [part for _, _, part in there] == [b"0", b"1", b"2"] * (len(keys) // 3)  # none is there in part
            while await listing(store, b"%d/" % worker, limit=1):
                await commit(store, DeleteRange(b"%d/" % worker, b"%d0" % worker))
        await harness.close()


# A disk that is full or fails.


async def test_a_full_store_refuses_puts_takes_deletes_and_recovers(harness: SqliteHarness) -> None:
    store = await harness.open(size_bytes_max=4 * 1024 * 1024)
    written = 0
    with suppress(StoreFull):
        while written < 220:
            await commit(store, Put(b"k/%04d" % written, b"v" * 20_000), Put(b"l/%04d" % written, b""))
            written += 1
    assert 50 < written < 220
    with pytest.raises(StoreFull):
        await commit(store, Put(b"small", b""))
    assert len(await listing(store, b"k/", bytes_max=1 << 30)) == len(await listing(store, b"l/")) == written
    for n in range(written):
        await commit(store, DeleteKey(b"k/%04d" % n))
    last = await commit(store, DeleteRange(b"l/", b"l0"))
    await store.compact(last, DEADLINE_S)

    async def room() -> bool:
        with suppress(StoreFull):
            await commit(store, Put(b"k/again", b"v" * 20_000))
            return True
        return False

    await eventually(room)
    assert (harness.folder / "ballast").stat().st_size > 0
    assert (await store.status(DEADLINE_S)).size_bytes_max == 4 * 1024 * 1024
    await harness.close()


async def test_in_a_batch_that_does_not_fit_the_deletes_stand(harness: SqliteHarness) -> None:
    store = await harness.open(size_bytes_max=4 * 1024 * 1024)
    await commit(store, Put(b"old", b""))
    before = await present(store)
    too_much = [commit(store, Put(b"k/%02d" % n, b"v" * 500_000)) for n in range(12)]
    answers = await asyncio.gather(*too_much, commit(store, DeleteKey(b"old")), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, StoreFull)]
    assert refused
    assert not (harness.folder / "ballast").exists()  # thrown off for the delete
    assert isinstance(answers[-1], int)
    assert answers[-1] > before
    assert await values(store, b"old") == [None]
    assert len(await listing(store, b"k/", bytes_max=1 << 30)) == 12 - len(refused)
    await harness.close()


async def test_a_failing_disk_is_told_as_it_is_and_the_store_goes_on_after_it(harness: SqliteHarness) -> None:
    process = start(_FAIL, harness.folder)
    try:
        out, _ = await asyncio.to_thread(process.communicate, timeout=BOUND_S)
    finally:
        kill(process)
    answers = out.split()
    assert len(answers) == 10
    told = {answer for answer in answers if not answer.isdigit()}
    assert told
    assert told <= {OutcomeUnknown.__name__, StoreUnavailable.__name__, StoreFull.__name__}
    assert answers[0].isdigit()
    assert answers[-1].isdigit()
    store = await harness.open()
    keys = await listing(store, b"k/")
    assert {b"k/%02d" % n for n, answer in enumerate(answers) if answer.isdigit()} <= set(keys)
    await harness.close()


async def test_a_set_that_removes_more_than_a_revision_holds_is_refused(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        await commit(store, *(Put(b"k/%d%02d" % (n, m), b"") for m in range(100)))
    monkeypatch.setattr(writer, "ROWS_PER_REVISION_MAX", 250)
    with pytest.raises(StoreUnavailable) as caught:
        await commit(store, DeleteRange(b"k/", b"k0"), Put(b"l", b""))
    assert "smaller" in caught.value.detail
    assert await values(store, b"l") == [None]
    await commit(store, DeleteRange(b"k/0", b"k/2"))
    assert len(await listing(store, b"k/")) == 100


async def test_a_large_range_is_removed_whole(store: SqliteStore) -> None:
    for n in range(9):
        await commit(store, *(Put(b"k/%d%02d" % (n, m), b"") for m in range(100)))
    revision = await commit(store, DeleteRange(b"k/", b"k0"))
    assert await listing(store, b"k/") == []
    assert len(await events_between(store, [b"k/"], revision - 1, revision)) == 900
    await commit(store, Put(b"k/new", b""), guards=[Absent(b"k/100")])


# Watches.


async def test_readers_that_keep_up_do_not_ask_the_database(store: SqliteStore) -> None:
    revision = await present(store)
    watches = [store.watch([b"k/", b"l/"] if n % 2 else [b"k/"], revision) for n in range(50)]
    for watch in watches:
        await anext(watch)
    asked: list[str] = []
    store._reading.set_trace_callback(asked.append)  # to see what it is asked
    for n in range(20):
        revision = await commit(store, Put(b"k/%d" % n, b"v"))
        for watch in watches:
            (batch,) = await follow(watch, revision)
            assert [event.key for event in batch.events] == [b"k/%d" % n]
    assert asked == []
    for watch in watches:
        await watch.aclose()
    assert not store._watches._channels
    assert not store._watches._by_prefix


async def test_a_slow_reader_takes_no_memory_and_reads_on_from_the_database(store: SqliteStore) -> None:
    revision = await present(store)
    async with aclosing(store.watch([b"k/"], revision)) as watch:
        await anext(watch)
        (channel,) = store._watches._channels.values()
        for n in range(40):
            last = await commit(store, *(Put(b"k/%02d" % m, b"%d" % n) for m in range(100)))
            assert channel._events <= 2_048
        assert channel.floor > revision
        events = [event for batch in await follow(watch, last) for event in batch.events]
    assert len(events) == 4_000
    assert [event.revision for event in events] == sorted(event.revision for event in events)


# Leases.


async def test_a_lease_lapses_though_nobody_touches_the_store(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path, TurnedClock())
    lease = await store.grant_lease(100, DEADLINE_S)
    start = await commit(store, Put(b"k", b"v", lease.id))
    async with aclosing(store.watch([b"k"], start)) as watch, asyncio.timeout(BOUND_S):
        assert (await anext(watch)).events == ()
        (event,) = (await anext(watch)).events
    assert (event.key, event.value) == (b"k", None)
    await store.close()


async def test_a_lease_that_is_being_ended_can_neither_be_renewed_nor_used(store: SqliteStore) -> None:
    lease = await store.grant_lease(60_000, DEADLINE_S)
    await commit(store, Put(b"k", b"v", lease.id))
    ending = asyncio.create_task(store.revoke_lease(lease.id, DEADLINE_S))
    while not store._writer.connection.in_transaction:  # noqa: ASYNC110 - a fact without an event
        await asyncio.sleep(0)
    with pytest.raises(LeaseLost):
        await store.renew_lease(lease.id, DEADLINE_S)
    with pytest.raises(LeaseLost):
        await store.lease_left(lease.id, DEADLINE_S)
    with pytest.raises(LeaseLost):
        await commit(store, Put(b"l", b"v", lease.id))
    await ending


async def test_after_a_restart_a_lease_has_its_whole_time_again(harness: SqliteHarness) -> None:
    store = await harness.open()
    lease = await store.grant_lease(5_000, DEADLINE_S)
    await commit(store, Put(b"k", b"v", lease.id))
    await harness.pass_lease_time(4_000)
    assert await store.lease_left(lease.id, DEADLINE_S) == 1_000
    store = await harness.reopen()
    assert await store.lease_left(lease.id, DEADLINE_S) == 5_000
    await harness.pass_lease_time(4_000)
    assert await values(store, b"k") == [b"v"]
    await harness.pass_lease_time(1_001)

    async def gone() -> bool:
        return await values(store, b"k") == [None]

    await eventually(gone)
    store = await harness.reopen()
    with pytest.raises(LeaseLost):
        await store.renew_lease(lease.id, DEADLINE_S)
    await harness.close()


# Compaction.


def rows(harness: SqliteHarness) -> int:
    with closing(sqlite3.connect(harness.folder / "kokuban.db")) as connection:
        (count,) = connection.execute("SELECT count(*) FROM log").fetchone()
    return int(count)


async def test_compaction_removes_everything_but_the_present(store: SqliteStore, harness: SqliteHarness) -> None:
    for n in range(30):
        await commit(store, *(Put(b"k/%02d" % m, b"%d" % n) for m in range(50)))
    last = await commit(store, DeleteRange(b"k/10", b"k/20"))
    await store.compact(last, DEADLINE_S)
    assert rows(harness) == 40
    last = await commit(store, DeleteRange(b"k/", b"k0"))
    await store.compact(last, DEADLINE_S)
    assert rows(harness) == 0


async def test_an_interrupted_compaction_is_finished_by_the_next(store: SqliteStore, harness: SqliteHarness) -> None:
    for n in range(30):
        last = await commit(store, *(Put(b"k/%02d" % m, b"%d" % n) for m in range(100)))
    await store._writer.in_thread(lambda _, state: state._replace(compacted_revision=last))  # as a crash would leave it
    store = await harness.reopen()
    assert (await store.status(DEADLINE_S)).compacted_revision == last
    assert rows(harness) == 3_000
    assert await store.compact(1, DEADLINE_S) == last
    assert rows(harness) == 100


# Copies.


async def test_a_backup_taken_while_others_write_is_one_state(store: SqliteStore, tmp_path: Path) -> None:
    done = False

    async def write() -> None:
        n = 0
        while not done:
            await commit(store, Put(b"a", b"%d" % n), Put(b"b", b"%d" % n), Put(b"k/%d" % (n % 50), b"v" * 2000))
            n += 1

    writing = asyncio.create_task(write())
    first = await commit(store, Put(b"before", b""))
    revision = await asyncio.to_thread(backup, tmp_path / "store", tmp_path / "copy")
    done = True
    await writing
    assert first <= revision <= await present(store)
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o600
    await asyncio.to_thread(restore, tmp_path / "copy", tmp_path / "other")
    copy = SqliteHarness(tmp_path / "other")
    restored = await copy.open()
    a, b = await values(restored, b"a", b"b")
    assert a == b
    assert await values(restored, b"before") == [b""]
    assert restored.epoch != store.epoch
    assert await commit(restored, Put(b"k", b"v")) > revision
    await copy.close()


async def test_a_restored_store_has_no_leases_and_nothing_that_hung_on_them(store: SqliteStore, tmp_path: Path) -> None:
    lease = await store.grant_lease(60_000, DEADLINE_S)
    other = await store.grant_lease(60_000, DEADLINE_S)
    await commit(store, Put(b"leased", b"", lease.id), Put(b"free", b"1", other.id))
    await commit(store, Put(b"free", b"2"))
    await asyncio.to_thread(backup, tmp_path / "store", tmp_path / "copy")
    await asyncio.to_thread(restore, tmp_path / "copy", tmp_path / "other")
    copy = SqliteHarness(tmp_path / "other")
    restored = await copy.open()
    assert await values(restored, b"leased", b"free") == [None, b"2"]
    with pytest.raises(LeaseLost):
        await restored.renew_lease(lease.id, DEADLINE_S)
    batch = await first_batch(restored, [b"leased"], await present(restored) - 1)
    assert [(event.key, event.value) for event in batch.events] == [(b"leased", None)]
    await copy.close()


async def test_a_store_at_rest_can_be_backed_up(store: SqliteStore, harness: SqliteHarness, tmp_path: Path) -> None:
    revision = await commit(store, Put(b"k", b"v"))
    await harness.close()
    assert await asyncio.to_thread(backup, harness.folder, tmp_path / "copy") == revision
    assert await values(await harness.open(), b"k") == [b"v"]
    await harness.close()


async def test_copies_never_overwrite(store: SqliteStore, harness: SqliteHarness, tmp_path: Path) -> None:
    await commit(store, Put(b"k", b"v"))
    target = tmp_path / "copy"
    target.write_bytes(b"precious")
    with pytest.raises(CopyRefused, match="never overwrites"):
        backup(harness.folder, target)
    assert target.read_bytes() == b"precious"
    backup(harness.folder, tmp_path / "good")
    with pytest.raises(CopyRefused, match="not empty"):
        restore(tmp_path / "good", harness.folder)
    assert (await store.read([b"k"], STRONG, DEADLINE_S)).records[0] is not None
    assert set(os.listdir(tmp_path)) == {"store", "copy", "good"}  # noqa: PTH208 - names are what is compared


@pytest.mark.parametrize("damage", ["value", "cut", "no store"])
async def test_a_damaged_backup_is_not_installed(
    store: SqliteStore, harness: SqliteHarness, tmp_path: Path, damage: str
) -> None:
    await commit(store, Put(b"k", b"easy to find"), *(Put(b"k/%d" % n, b"v" * 5000) for n in range(9)))
    copy = tmp_path / "copy"
    backup(harness.folder, copy)
    if damage == "value":
        flip(copy, copy.read_bytes().index(b"easy to find"))
    elif damage == "cut":
        os.truncate(copy, copy.stat().st_size // 2)
    else:
        copy.write_bytes(b"")
    with pytest.raises(FolderRefused if damage == "no store" else StoreCorrupt):
        restore(copy, tmp_path / "other")
    assert not (tmp_path / "other" / "kokuban.db").exists()
    backup(harness.folder, tmp_path / "good")
    with suppress(FileNotFoundError):
        (tmp_path / "other" / "lock").unlink()
    restore(tmp_path / "good", tmp_path / "other")


async def test_there_is_nothing_to_back_up_in_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(CopyRefused, match="no store"):
        backup(tmp_path, tmp_path / "copy")
    with pytest.raises(CopyRefused, match="not there"):
        restore(tmp_path / "copy", tmp_path / "other")
