"""RB-48: a full cluster takes no puts, and everything else goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kokuban_server.adapters.etcd import EtcdSettings, EtcdStore
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core.change_set import Absent, ChangeSet, DeleteKey, DeleteRange, Put
from kokuban_server.core.refusals import StoreFull
from kokuban_server.ports.board_store import STRONG, CommitRefused
from tests.etcd_server import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.etcd
BOUND_S = 15.0


@pytest.fixture
def small_server() -> Iterator[EtcdServer]:
    server = EtcdServer(flags=[f"--quota-backend-bytes={4 * 1024 * 1024}"])
    yield server
    server.close()


async def test_RB_48_a_full_store_still_deletes_reads_and_renews_and_recovers(small_server: EtcdServer) -> None:
    await small_server.start_all()
    store = await EtcdStore.open(EtcdSettings(small_server.endpoints), SystemClock())
    lease = await store.grant_lease(60_000, BOUND_S)
    await store.commit(ChangeSet((), (Put(b"lock", b"", lease.id), Put(b"small", b"v"), Put(b"other", b""))), BOUND_S)
    assert await _fill(store)
    async with asyncio.timeout(BOUND_S):
        while "NOSPACE" not in await asyncio.to_thread(small_server.ctl, "alarm", "list"):
            pass  # etcd raises it just after its first refusal

    for _ in range(3):  # together in one batch: what only deletes does not share the others' fate
        answers = await asyncio.gather(
            store.commit(ChangeSet((), (Put(b"a", b""),)), BOUND_S),
            store.commit(ChangeSet((), (), (DeleteKey(b"small"),)), BOUND_S),
            store.commit(ChangeSet((), (Put(b"b", b""),), (DeleteKey(b"other"),)), BOUND_S),
            store.commit(ChangeSet((Absent(b"other"),), (), (DeleteKey(b"lock"),)), BOUND_S),
            store.commit(ChangeSet((Absent(b"small"),)), BOUND_S),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers[:4]] == [StoreFull, int, StoreFull, CommitRefused]
    records = (await store.read([b"small", b"other", b"lock"], STRONG, BOUND_S)).records
    assert [record is not None for record in records] == [False, True, True]
    assert await store.renew_lease(lease.id, BOUND_S) == lease.ttl_ms
    with pytest.raises(StoreFull):
        await store.grant_lease(60_000, BOUND_S)
    await store.revoke_lease(lease.id, BOUND_S)  # a lock is released on a full store

    revision = await store.commit(ChangeSet((), (), (DeleteRange(b"big/", b"big0"),)), BOUND_S)
    assert await store.compact(revision, BOUND_S) == revision
    small_server.ctl("defrag")
    small_server.ctl("alarm", "disarm")
    await store.commit(ChangeSet((), (Put(b"small", b"again"),)), BOUND_S)
    await store.close()


async def _fill(store: EtcdStore) -> bool:
    """Put large values until the store has no room; say whether it came to that."""
    for n in range(100):
        try:
            await store.commit(ChangeSet((), (Put(b"big/%03d" % n, b"x" * 400_000),)), BOUND_S)
        except StoreFull:
            return True
    return False
