"""Copies, and the new life after one was put back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kokuban_server.adapters.etcd import EtcdSettings, EtcdStore, new_epoch, snapshot
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.core.refusals import StoreCorrupt, StoreUnavailable
from kokuban_server.core.revision import is_epoch
from kokuban_server.ports.board_store import LOCAL, STRONG, Snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from kokuban_server.ports.board_store import WatchBatch
    from tests.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd
CLOCK = SystemClock()
BOUND_S = 15.0


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def _drain(watch: AsyncGenerator[WatchBatch, None]) -> None:
    async with asyncio.timeout(BOUND_S):
        async for _ in watch:
            pass


async def test_a_snapshot_is_a_file_that_etcd_takes(server: EtcdServer, prefix: str, tmp_path: Path) -> None:
    settings = EtcdSettings(server.endpoints, prefix)
    store = await EtcdStore.open(settings, CLOCK)
    await store.commit(ChangeSet((), tuple(Put(b"k/%d" % n, b"x" * 20_000) for n in range(40))), BOUND_S)
    await store.close()
    target = tmp_path / "copy.db"
    assert await snapshot(settings, target) == len(target.read_bytes())
    assert names(tmp_path) == ["copy.db"]
    # etcdctl checks the sum at the file's end when it restores.
    server.ctl("snapshot", "restore", str(target), f"--data-dir={tmp_path / 'restored'}")
    assert names(tmp_path / "restored" / "member") == ["snap", "wal"]


async def test_no_file_is_left_when_the_cluster_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await snapshot(EtcdSettings(("127.0.0.1:1",), connect_s=0.5), tmp_path / "copy.db")
    assert names(tmp_path) == []


async def test_a_new_epoch_ends_leases_and_stops_servers_of_the_former_life(server: EtcdServer, prefix: str) -> None:
    settings = EtcdSettings(server.endpoints, prefix)
    store = await EtcdStore.open(settings, CLOCK)
    other = await EtcdStore.open(EtcdSettings(server.endpoints, prefix + ".other"), CLOCK)
    lease = await store.grant_lease(60_000, BOUND_S)
    foreign = await other.grant_lease(60_000, BOUND_S)
    start = await store.commit(ChangeSet((), (Put(b"session", b"", lease.id), Put(b"k", b"1"))), BOUND_S)
    await other.commit(ChangeSet((), (Put(b"session", b"", foreign.id),)), BOUND_S)
    watch = store.watch([b"k"], start)
    await anext(watch)

    epoch = await new_epoch(settings)
    assert is_epoch(epoch)
    assert epoch != store.epoch

    calls = [
        store.commit(ChangeSet((), (Put(b"k", b"2"),)), BOUND_S),
        store.commit(ChangeSet((), (Put(b"l", b"2"),)), BOUND_S),
        store.read([b"k"], STRONG, BOUND_S),
        store.read([b"k"], LOCAL, BOUND_S),
        store.read([b"k"], Snapshot(start), BOUND_S),
        store.grant_lease(1_000, BOUND_S),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers[:5]] == [StoreUnavailable] * 5
    with pytest.raises(StoreUnavailable, match="STORE_UNAVAILABLE"):
        await _drain(watch)
    await store.close()

    again = await EtcdStore.open(settings, CLOCK)
    assert again.epoch == epoch
    records = (await again.read([b"session", b"k", b"l"], STRONG, BOUND_S)).records
    assert [record and record.value for record in records] == [None, b"1", None]
    await again.close()
    assert await other.renew_lease(foreign.id, BOUND_S) == foreign.ttl_ms
    await other.revoke_lease(foreign.id, BOUND_S)
    await other.close()


async def test_where_there_is_no_store_there_is_no_new_epoch(server: EtcdServer, prefix: str) -> None:
    with pytest.raises(StoreCorrupt):
        await new_epoch(EtcdSettings(server.endpoints, prefix))
