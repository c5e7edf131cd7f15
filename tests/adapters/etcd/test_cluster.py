"""Three members, of which some die or hang: nothing acknowledged is lost, nothing goes back, and it goes on within seconds."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from kokuban_server.adapters.etcd import EtcdSettings, EtcdStore
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.core.refusals import OutcomeUnknown, StoreUnavailable
from kokuban_server.ports.board_store import LOCAL, STRONG, CommitRefused, LeaseLost

if TYPE_CHECKING:
    from tests.etcd_server import EtcdServer, Member

pytestmark = pytest.mark.etcd
CLOCK = SystemClock()
BOUND_S = 20.0


async def opened(cluster: EtcdServer, *, first: Member | None = None) -> EtcdStore:
    """Start the cluster and open a store on it, connected to one member before all others."""
    await cluster.start_all()
    endpoints = list(cluster.endpoints)
    if first is not None:
        endpoints.sort(key=lambda endpoint: endpoint != first.endpoint)
    return await EtcdStore.open(EtcdSettings(tuple(endpoints), attempt_s=2.0, connect_s=0.5), CLOCK)


async def through_leader(cluster: EtcdServer, store: EtcdStore) -> tuple[EtcdStore, Member]:
    """Give a store that speaks to the leader, and the leader."""
    leader = cluster.leader()
    await store.close()
    endpoints = sorted(cluster.endpoints, key=lambda endpoint: endpoint != leader.endpoint)
    return await EtcdStore.open(EtcdSettings(tuple(endpoints), attempt_s=2.0, connect_s=0.5), CLOCK), leader


class Writers:
    """Writers that keep at it, and what they were told stands."""

    def __init__(self, store: EtcdStore) -> None:
        self.store = store
        self.acknowledged: dict[bytes, int] = {}
        self.stop = asyncio.Event()
        self._more = asyncio.Condition()
        self.pause_s_longest = 0.0
        self._last_s = time.monotonic()

    async def write(self, worker: int) -> None:
        number = 0
        while not self.stop.is_set():
            key = b"k/%d/%06d" % (worker, number)
            number += 1
            while True:
                try:
                    revision = await self.store.commit(ChangeSet((Absent(key),), (Put(key, b""),)), BOUND_S)
                except OutcomeUnknown:
                    continue
                except CommitRefused as refused:  # the attempt that went unanswered stands
                    revision = refused.failures[0].revision
                break
            self.acknowledged[key] = revision
            async with self._more:
                self._more.notify_all()
            now_s = time.monotonic()
            self.pause_s_longest = max(self.pause_s_longest, now_s - self._last_s)
            self._last_s = now_s

    async def until(self, more: int) -> None:
        """Wait until this many more writes are acknowledged."""
        goal = len(self.acknowledged) + more
        async with asyncio.timeout(BOUND_S):
            async with self._more:
                await self._more.wait_for(lambda: len(self.acknowledged) >= goal)


@pytest.mark.parametrize("fault", ["killed", "paused"])
async def test_a_leader_that_is_lost_costs_seconds_and_no_acknowledged_write(cluster: EtcdServer, fault: str) -> None:
    store, leader = await through_leader(cluster, await opened(cluster))
    start = (await store.read([b"k"], STRONG, BOUND_S)).revision
    seen: dict[bytes, int] = {}

    async def follow() -> None:
        async with aclosing(store.watch([b"k/"], start)) as watch:
            async for batch in watch:
                for event in batch.events:
                    assert event.key not in seen
                    seen[event.key] = event.revision
                if b"k/end" in seen:
                    return

    following = asyncio.create_task(follow())
    writers = Writers(store)
    tasks = [asyncio.create_task(writers.write(n)) for n in range(8)]
    await writers.until(100)
    if fault == "killed":
        leader.kill()
    else:
        leader.pause()
    await writers.until(200)
    writers.stop.set()
    async with asyncio.timeout(BOUND_S):
        await asyncio.gather(*tasks)
    end = await store.commit(ChangeSet((), (Put(b"k/end", b""),)), BOUND_S)
    async with asyncio.timeout(BOUND_S):
        await following
    found: dict[bytes, int] = {}
    after = b""
    more = True
    while more:
        page = await store.scan(b"k/", after, 1000, 1 << 20, STRONG, BOUND_S)
        found |= {record.key: record.revision for record in page.records}
        more = page.more
        after = page.records[-1].key
    await store.close()
    assert found == {**writers.acknowledged, b"k/end": end}
    assert seen == found
    assert writers.pause_s_longest < 8


async def test_RB_15_RB_42_reads_do_not_go_back_when_a_paused_leader_wakes(cluster: EtcdServer) -> None:
    store, leader = await through_leader(cluster, await opened(cluster))
    others = [member for member in cluster.members if member is not leader]
    writer = await EtcdStore.open(EtcdSettings(tuple(m.endpoint for m in others), attempt_s=2.0, connect_s=0.5), CLOCK)
    acknowledged = 0
    highest = 0

    async def read() -> None:
        nonlocal highest
        while not done.is_set():
            floor = max(highest, acknowledged)
            cut = await store.read([b"n"], STRONG, BOUND_S)
            assert cut.revision >= floor
            (record,) = cut.records
            assert acknowledged == 0 or record is not None
            highest = max(highest, cut.revision)

    done = asyncio.Event()
    reading = [asyncio.create_task(read()) for _ in range(4)]
    for round_number in range(3):
        leader.pause()
        for n in range(20):
            try:
                acknowledged = await writer.commit(ChangeSet((), (Put(b"n", b"%d/%d" % (round_number, n)),)), BOUND_S)
            except OutcomeUnknown:
                continue
        leader.resume()
        before = highest
        async with asyncio.timeout(BOUND_S):
            while highest <= before and not any(task.done() for task in reading):
                acknowledged = max(acknowledged, await writer.commit(ChangeSet((), (Put(b"n", b"x"),)), BOUND_S))
    done.set()
    await asyncio.gather(*reading)
    assert (await store.read([b"n"], STRONG, BOUND_S)).revision >= max(highest, acknowledged)
    await store.close()
    await writer.close()


async def test_without_a_quorum_nothing_strong_is_answered_and_it_comes_back(cluster: EtcdServer) -> None:
    store = await opened(cluster, first=cluster.members[0])
    revision = await store.commit(ChangeSet((), (Put(b"k", b"1"),)), BOUND_S)
    lease = await store.grant_lease(60_000, BOUND_S)
    for member in cluster.members[1:]:
        member.kill()
    with pytest.raises(StoreUnavailable):
        await store.read([b"k"], STRONG, 3.0)
    with pytest.raises((StoreUnavailable, OutcomeUnknown)):
        await store.commit(ChangeSet((), (Put(b"k", b"2"),)), 3.0)
    with pytest.raises(StoreUnavailable):
        await store.renew_lease(lease.id, 1.5)
    with pytest.raises(StoreUnavailable):
        await store.lease_left(lease.id, 1.5)
    with pytest.raises(StoreUnavailable):  # guards alone are judged by a quorum too
        await _judged(store)
    cut = await store.read([b"k"], LOCAL, 5.0)
    assert cut.revision >= revision
    for member in cluster.members[1:]:
        cluster.start(member)
    assert (await store.read([b"k"], STRONG, BOUND_S)).revision >= revision
    assert await store.commit(ChangeSet((), (Put(b"k", b"3"),)), BOUND_S) > revision
    assert await store.renew_lease(lease.id, BOUND_S) >= 60_000
    assert 0 < await store.lease_left(lease.id, BOUND_S) <= lease.ttl_ms
    await store.close()


async def test_every_member_tells_what_is_left_of_a_lease(cluster: EtcdServer) -> None:
    """The leader counts; the others ask it."""
    await cluster.start_all()
    stores = [await EtcdStore.open(EtcdSettings((endpoint,)), CLOCK) for endpoint in cluster.endpoints]
    lease = await stores[0].grant_lease(60_000, BOUND_S)
    await stores[0].renew_lease(lease.id, BOUND_S)
    left = [await store.lease_left(lease.id, BOUND_S) for store in stores]
    assert all(lease.ttl_ms - 10_000 < each <= lease.ttl_ms for each in left)
    await stores[0].revoke_lease(lease.id, BOUND_S)
    for store in stores:
        await _is_lost(store, lease.id)
        await store.close()


async def _is_lost(store: EtcdStore, lease: int) -> None:
    """Wait until the leader has applied the lease's end, which another member may have done before it."""
    async with asyncio.timeout(BOUND_S):
        while True:
            try:
                await store.lease_left(lease, BOUND_S)
            except LeaseLost:
                return


async def _judged(store: EtcdStore) -> int:
    try:
        return await store.commit(ChangeSet((Absent(b"nothing"),)), 2.0)
    except OutcomeUnknown:
        raise StoreUnavailable("as good as that: it would have written nothing") from None
