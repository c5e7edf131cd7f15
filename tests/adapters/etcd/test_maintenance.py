"""Copies, and the new life after one was put back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kokuban.etcd.v1 import etcd_pb2 as pb
from kokuban_server.adapters.etcd import EtcdSettings, EtcdStore, new_epoch, snapshot
from kokuban_server.adapters.etcd.channel import EtcdChannel
from kokuban_server.adapters.etcd.layout import Layout
from kokuban_server.adapters.etcd.maintenance import _end_leases, _remove
from kokuban_server.adapters.etcd.methods import RANGE
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.core.refusals import StoreCorrupt, StoreUnavailable
from kokuban_server.core.revision import is_epoch
from kokuban_server.ports.board_store import LOCAL, STRONG, LeaseLost, Snapshot

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


async def test_nothing_that_hung_on_a_lease_outlives_a_new_epoch_however_much_it_is(
    server: EtcdServer, prefix: str
) -> None:
    settings = EtcdSettings(server.endpoints, prefix)
    store = await EtcdStore.open(settings, CLOCK)
    leases = [await store.grant_lease(60_000, BOUND_S) for _ in range(5)]
    for first in range(0, 1_200, 100):  # more than one page of what the new epoch looks through
        puts = [Put(b"k/%04d" % n, b"", leases[n % 5].id if n % 2 else None) for n in range(first, first + 100)]
        await store.commit(ChangeSet((), tuple(puts)), BOUND_S)
    await store.close()

    first_epoch = await new_epoch(settings)
    again = await EtcdStore.open(settings, CLOCK)
    kept = await scanned(again)
    assert kept == [b"k/%04d" % n for n in range(0, 1_200, 2)]
    for lease in leases:
        with pytest.raises(LeaseLost):
            await again.lease_left(lease.id, BOUND_S)
    await again.close()

    assert await new_epoch(settings) != first_epoch
    again = await EtcdStore.open(settings, CLOCK)
    assert await scanned(again) == kept
    await again.close()


async def scanned(store: EtcdStore) -> list[bytes]:
    keys: list[bytes] = []
    more = True
    while more:
        page = await store.scan(b"k/", keys[-1] if keys else b"", 1_000, 1 << 20, STRONG, BOUND_S)
        keys += [record.key for record in page.records]
        more = page.more
    return keys


async def test_a_new_epoch_spares_what_its_own_servers_hung_on_leases(server: EtcdServer, prefix: str) -> None:
    """A server that is started before the former life is removed whole keeps its sessions."""
    settings = EtcdSettings(server.endpoints, prefix)
    store = await EtcdStore.open(settings, CLOCK)
    old = await store.grant_lease(60_000, BOUND_S)
    begun = await store.commit(ChangeSet((), (Put(b"old", b"", old.id), Put(b"rewritten", b"", old.id))), BOUND_S)
    new = await store.grant_lease(60_000, BOUND_S)
    await store.commit(ChangeSet((), (Put(b"new", b"", new.id), Put(b"rewritten", b"", new.id))), BOUND_S)
    channel = EtcdChannel(settings)
    await _end_leases(channel, Layout.below(prefix), begun, 5.0)
    await channel.close()
    records = (await store.read([b"old", b"new", b"rewritten"], STRONG, BOUND_S)).records
    assert [record and record.lease for record in records] == [None, new.id, new.id]
    assert 0 < await store.lease_left(new.id, BOUND_S) <= new.ttl_ms
    await store.revoke_lease(new.id, BOUND_S)
    await store.close()


async def test_keys_are_removed_though_the_end_of_their_lease_did_not_and_only_as_they_were_seen(
    server: EtcdServer, prefix: str
) -> None:
    settings = EtcdSettings(server.endpoints, prefix)
    layout = Layout.below(prefix)
    store = await EtcdStore.open(settings, CLOCK)
    lease = await store.grant_lease(60_000, BOUND_S)
    await store.commit(ChangeSet((), tuple(Put(b"k/%02d" % n, b"", lease.id) for n in range(70))), BOUND_S)
    channel = EtcdChannel(settings)
    start, end = layout.range(b"")
    seen = (await channel.call(RANGE, pb.RangeRequest(key=start, range_end=end, keys_only=True), 5.0)).kvs
    await store.commit(ChangeSet((), (Put(b"k/42", b"again", lease.id),)), BOUND_S)
    await _remove(channel, seen, 5.0)
    await _remove(channel, seen, 5.0)
    await channel.close()
    assert await scanned(store) == [b"k/42"]
    assert await store.renew_lease(lease.id, BOUND_S) == lease.ttl_ms
    await store.revoke_lease(lease.id, BOUND_S)
    await store.close()


async def test_where_there_is_no_store_there_is_no_new_epoch(server: EtcdServer, prefix: str) -> None:
    with pytest.raises(StoreCorrupt):
        await new_epoch(EtcdSettings(server.endpoints, prefix))
