"""`kokuban backup` and `kokuban restore`, as an operator runs them: on a store in use, and into a new life of it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

import kokuban_client
from kokuban_client import NOW, AtLeast, Binary, ChangeType, Freshness, errors
from kokuban_client.testing import ServerProcess
from kokuban_server.adapters.etcd import EtcdStore
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.ports.board_store import STRONG, LeaseLost
from tests.etcd_server import EtcdServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from kokuban_client import Board, Entry, EntryChange, Revision

REGION = "shared:plan"
BOUND_S = 30.0
ON_LEASE = (b"test/leased", b"test/taken-off")
"""Records of no kind that a server knows."""
KOKUBAN = [sys.executable, "-c", "import sys; from kokuban_client.cli import main; sys.exit(main())"]


async def kokuban(*arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [*KOKUBAN, *arguments],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


async def refused(*arguments: str, told: str) -> None:
    done = await kokuban(*arguments)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@contextlib.asynccontextmanager
async def board_of(server: ServerProcess) -> AsyncIterator[Board]:
    async with kokuban_client.connect(server.address, agent="writer-1") as client:
        yield client.board("main")


class State(NamedTuple):
    """What a board holds at rest, and what names it."""

    entries: dict[str, tuple[object, dict[str, str], int, str]]
    history: list[tuple[ChangeType, object, int]]
    revision: Revision
    token: str
    page: str


def _plain(entry: Entry) -> tuple[object, dict[str, str], int, str]:
    return entry.value, dict(entry.metadata), entry.sequence, entry.author


def _told(change: EntryChange) -> tuple[ChangeType, object, int]:
    return change.type, change.entry.value, change.entry.sequence


async def write_state(board: Board) -> None:
    """Write entries of every form, some with a past."""
    made = await board.put(REGION, "text", "first", must_not_exist=True, reason="a beginning", metadata={"k": "v"})
    await board.put(REGION, "text", "zweite 日本", at=made.revision)
    await board.put(REGION, "json", {"n": [1, None, 2.5]}, must_not_exist=True)
    await board.put(REGION, "binary", Binary(b"\x00\xff", "image/png"), must_not_exist=True)
    await board.increment(REGION, "n", 41)
    gone = await board.put(REGION, "gone", "x", must_not_exist=True)
    await board.delete(REGION, "gone", at=gone.revision)


async def state_of(board: Board) -> State:
    entries = {entry.path: _plain(entry) async for entry in board.list(REGION)}
    text = await board.get(REGION, "text")
    changes = [*await board.history(REGION, "text"), *await board.history(REGION, "gone")]
    return State(entries, [_told(change) for change in changes], text.revision, text.token, text.path)


async def check_new_life(board: Board, before: State) -> None:
    """The board holds what it held; nothing that was given out in the former life counts; and the new life goes on."""
    after = await state_of(board)
    assert after.entries == before.entries
    assert after.history == before.history
    assert after.revision.number == before.revision.number  # which is why the epoch must differ
    assert after.revision.epoch != before.revision.epoch
    with pytest.raises(errors.TokenFromAnotherStore):
        await board.put(REGION, "text", "stale", at=before.revision)
    with pytest.raises(errors.TokenFromAnotherStore):
        await board.get(REGION, "text", consistency=AtLeast(before.token))
    with pytest.raises(errors.TokenFromAnotherStore):
        async with board.watch(REGION, start=before.token) as watch:
            await asyncio.wait_for(anext(watch), BOUND_S)
    async with board.watch(REGION, start=NOW) as watch:
        written = await board.put(REGION, "text", "new life", at=after.revision)
        item = await asyncio.wait_for(anext(watch), BOUND_S)
        assert isinstance(item, kokuban_client.EntryChange)
        assert item.entry.revision == written.revision
    assert (await board.get(REGION, "text", consistency=Freshness.SESSION)).value == "new life"


async def test_a_backup_of_a_store_in_use_makes_a_store_in_a_new_life(tmp_path: Path) -> None:
    store, copy, other = f"sqlite:{tmp_path / 'store'}", str(tmp_path / "copy"), f"sqlite:{tmp_path / 'other'}"
    acknowledged = 0
    async with ServerProcess(store=store) as server, board_of(server) as board:
        await write_state(board)
        before = await state_of(board)
        working = asyncio.Event()

        async def go_on() -> None:
            nonlocal acknowledged
            for number in range(100_000):
                async with board.commit() as commit:
                    commit.put("task:busy", f"left/{number}", number, must_not_exist=True)
                    commit.put("task:busy", f"right/{number}", number, must_not_exist=True)
                acknowledged += 1
                if number == 20:
                    working.set()

        going_on = asyncio.ensure_future(go_on())
        await working.wait()
        at_start = acknowledged
        done = await kokuban("backup", "--store", store, copy)
        at_end = acknowledged
        assert (done.returncode, done.stderr) == (0, "")
        assert at_end > at_start  # nobody had to wait for the backup
        content = (tmp_path / "copy").read_bytes()
        await refused("backup", "--store", store, copy, told="exists")
        await refused("restore", "--store", store, copy, told="not empty")  # also while a server owns it
        going_on.cancel()
        await asyncio.wait([going_on])
        assert (tmp_path / "copy").read_bytes() == content

    done = await kokuban("restore", "--store", other, copy)
    assert (done.returncode, done.stderr) == (0, "")
    async with ServerProcess(store=other) as server, board_of(server) as board:
        assert f"in epoch {(await board.get(REGION, 'text')).revision.epoch};" in done.stdout
        busy = [entry async for entry in board.list("task:busy")]
        left = sorted(entry.value for entry in busy if entry.path.startswith("left/"))
        assert left == sorted(entry.value for entry in busy if entry.path.startswith("right/"))
        assert left == list(range(len(left)))  # one state: what came before what is there is there too
        assert len(left) >= at_start
        await check_new_life(board, before)
    await refused("restore", "--store", other, copy, told="not empty")
    async with ServerProcess(store=store) as server, board_of(server) as board:  # the first store is as it was
        assert await state_of(board) == before._replace(token=(await board.get(REGION, "text")).token)


async def test_there_is_no_backup_where_there_is_no_store(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    await refused("backup", "--store", f"sqlite:{tmp_path / 'none'}", str(copy), told="holds no store")
    await refused("backup", "--store", "memory:", str(copy), told="memory")
    await refused("restore", "--store", "memory:", str(copy), told="memory")
    await refused("restore", "--store", f"sqlite:{tmp_path / 'none'}", told="name the backup")
    await refused("restore", "--store", f"sqlite:{tmp_path / 'none'}", str(copy), told="is not there")
    copy.write_bytes(b"no backup at all")
    await refused("restore", "--store", f"sqlite:{tmp_path / 'none'}", str(copy), told="not a database")
    assert copy.read_bytes() == b"no backup at all"
    assert not (tmp_path / "none" / "kokuban.db").exists()


@pytest.fixture
def etcds() -> Iterator[tuple[EtcdServer, EtcdServer]]:
    """Two clusters: one to copy, and one to come up on the copy."""
    clusters = (EtcdServer(), EtcdServer())
    yield clusters
    for cluster in clusters:
        cluster.close()


async def hang_on_lease(store: str) -> int:
    """Write two records on a lease that outlasts the test, and take one of them off it; give the lease."""
    beside = await EtcdStore.open(store, SystemClock())
    lease = await beside.grant_lease(600_000, BOUND_S)
    puts = tuple(Put(key, b"leased", lease.id) for key in ON_LEASE)
    await beside.commit(ChangeSet((), puts), BOUND_S)
    await beside.commit(ChangeSet((), (Put(ON_LEASE[1], b"free"),)), BOUND_S)
    await beside.close()
    return lease.id


async def values(store: str) -> list[bytes | None]:
    beside = await EtcdStore.open(store, SystemClock())
    records = (await beside.read(ON_LEASE, STRONG, BOUND_S)).records
    await beside.close()
    return [record and record.value for record in records]


@pytest.mark.etcd
async def test_a_snapshot_of_etcd_makes_a_cluster_whose_store_begins_a_new_life(
    etcds: tuple[EtcdServer, EtcdServer], tmp_path: Path
) -> None:
    one, other = etcds
    store, later = (f"etcd://{cluster.members[0].endpoint}/kokuban" for cluster in etcds)
    snapshot = str(tmp_path / "snapshot")
    await one.start_all()
    async with ServerProcess(store=store) as server, board_of(server) as board:
        await write_state(board)
        before = await state_of(board)
        lease = await hang_on_lease(store)
        done = await kokuban("backup", "--store", store, snapshot)
        assert (done.returncode, done.stderr) == (0, "")
        await refused("backup", "--store", store, snapshot, told="exists")
        await refused("restore", "--store", store, snapshot, told="etcd's own tools")
        await board.put(REGION, "after", "the snapshot", must_not_exist=True)

    member = other.members[0]
    peer = f"http://127.0.0.1:{member.peer_port}"
    cluster = [
        f"--name={member.name}",
        f"--initial-cluster={member.name}={peer}",
        f"--initial-advertise-peer-urls={peer}",
    ]
    one.ctl("snapshot", "restore", snapshot, f"--data-dir={member.folder}", *cluster)
    await other.start_all()
    assert await values(later) == [b"leased", b"free"]  # a copy holds leases too, and what hangs on them
    done = await kokuban("restore", "--store", later)
    assert (done.returncode, done.stderr) == (0, "")
    assert await values(later) == [None, b"free"]
    assert await values(store) == [b"leased", b"free"]
    restored = await EtcdStore.open(later, SystemClock())
    with pytest.raises(LeaseLost):
        await restored.lease_left(lease, BOUND_S)
    await restored.close()
    async with ServerProcess(store=later) as server, board_of(server) as board:
        assert f"in epoch {(await board.get(REGION, 'text')).revision.epoch};" in done.stdout
        await check_new_life(board, before)


@pytest.mark.etcd
async def test_a_server_of_a_former_life_of_an_etcd_store_answers_nothing_until_it_is_started_again(
    etcds: tuple[EtcdServer, EtcdServer],
) -> None:
    etcd = etcds[0]
    store = f"etcd://{etcd.members[0].endpoint}/kokuban"
    await etcd.start_all()
    async with ServerProcess(store=store) as server, board_of(server) as board:
        await write_state(board)
        before = await state_of(board)
        done = await kokuban("restore", "--store", store)
        assert (done.returncode, done.stderr) == (0, "")
        for attempt in (
            board.get(REGION, "text", timeout_s=0.5),
            board.get(REGION, "text", consistency=Freshness.LOCAL, timeout_s=0.5),
            board.put(REGION, "other", "x", must_not_exist=True, timeout_s=0.5),
        ):
            with pytest.raises(errors.Unavailable):
                await attempt
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        await check_new_life(board, before)


async def test_LU_08_LE_11_a_second_server_of_one_folder_is_refused_with_a_clear_text(tmp_path: Path) -> None:
    """As an operator meets it; tests/conformance has the rest."""
    store = f"sqlite:{tmp_path / 'store'}"
    async with ServerProcess(store=store):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "kokuban_server", "serve", "--store", store, "--listen", "127.0.0.1:0"],
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
    assert done.returncode == 1
    assert str(tmp_path / "store") in done.stderr
    assert "Traceback" not in done.stderr
