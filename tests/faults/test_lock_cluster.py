"""Locks while etcd loses leaders and its majority: they last longer, or their holders learn that they are lost."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from kokuban_client.testing import ServerProcess
from tests.etcd_server import EtcdServer
from tests.faults.contest import Contest
from tests.replicas.lock_calls import LOST, RELEASED, RENEWED, Channels, LockAgent, channels, outcome
from tests.wire.calls import refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.etcd_server import Member

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(300)]


@pytest.fixture
async def connect() -> AsyncIterator[Channels]:
    async with channels() as made:
        yield made


class Cluster:
    """Three members, and two servers that know all of them."""

    def __init__(self) -> None:
        self.etcd = EtcdServer(3)
        store = f"etcd://{','.join(self.etcd.endpoints)}/locks"
        self.a, self.b = ServerProcess(store=store), ServerProcess(store=store)

    def start(self) -> None:
        asyncio.run(self.etcd.start_all())
        self.a.start()
        self.b.start()

    def close(self) -> None:
        self.a._leave()
        self.b._leave()
        self.etcd.close()

    @asynccontextmanager
    async def paused(self, *members: Member) -> AsyncIterator[None]:
        for member in members:
            member.pause()
        try:
            yield
        finally:
            for member in members:
                member.resume()
            for member in members:
                await self.etcd.answers(member)

    async def leader(self) -> Member:
        return await asyncio.to_thread(self.etcd.leader)

    async def crash(self, member: Member) -> None:
        """Kill a member and start it again."""
        member.kill()
        self.etcd.start(member)
        await self.etcd.answers(member)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.close()


async def test_RB_35_a_lock_survives_three_seconds_without_a_majority(cluster: Cluster, connect: Channels) -> None:
    holder = await connect.agent(cluster.a.address, "holder")
    ttl_s = (await holder.open(9)).session.ttl.seconds
    assert ttl_s == 10
    mine = await holder.acquire(holder.asks("majority"))
    async with holder.kept_alive(ttl_s / 4) as beats:
        await beats.until(lambda: beats.count(RENEWED) >= 1)
        leader = await cluster.leader()
        other = next(member for member in cluster.etcd.members if member is not leader)
        async with cluster.paused(leader, other):
            await asyncio.sleep(3)  # as long as this, the fault lasts
        told = beats.count(RENEWED)
        await beats.until(lambda: beats.count(RENEWED) > told)
        assert beats.count(LOST) == 0
        assert beats.losses == []
    elsewhere = holder.at(await connect(cluster.b.address))
    assert await elsewhere.current(mine.fence)
    await elsewhere.write("majority/e", mine.fence)
    assert await elsewhere.release(mine.fence) == RELEASED
    assert await elsewhere.close()


async def _hold_through(cluster: Cluster, connect: Channels, holder: LockAgent, fault: object) -> str:
    """Hold a lock, renewed, while something happens; say what became of it. What its holder is told must be true."""
    rival = await connect.agent(cluster.b.address, "rival")
    ttl_s = (await holder.open(3)).session.ttl.seconds
    await rival.open(120)
    mine = await holder.acquire(holder.asks("through", delay_s=0))
    loop = asyncio.get_running_loop()
    waiting = await rival.wait(rival.asks("through", wait_s=90)).is_queued()
    async with holder.kept_alive(ttl_s / 5) as beats:
        await beats.until(lambda: beats.count(RENEWED) >= 1)
        await fault()  # type: ignore[operator] # a function without arguments
        told, began = len(beats.told), loop.time()
        try:
            await beats.until(lambda: RENEWED in [one.state for one in beats.told[told:]] and loop.time() > began + 2)
        except AssertionError:
            assert beats.is_over
            assert beats.count(LOST) == 1
            assert beats.told[-1].state == LOST
        is_lost = beats.is_over
        assert await holder.current(mine.fence) is not is_lost
        if not is_lost:  # then nobody else was given it, and it is as good as ever
            assert not waiting.granted.done()
            await holder.write("through/e", mine.fence)
            assert await holder.release(mine.fence) == RELEASED
        theirs = await waiting.grant(30)
        with refused("LOCK_LOST"):
            await holder.write("through/late", mine.fence)
        await rival.write("through/e", theirs.fence)
        assert await rival.release(theirs.fence) == RELEASED
    await rival.close()
    await outcome(holder.close())
    return "lost" if is_lost else "kept"


@pytest.mark.faults
async def test_RB_03_after_a_leader_that_slept_6_seconds_the_holder_knows_what_is_true(
    cluster: Cluster, connect: Channels
) -> None:
    """An old leader that wakes may end leases that were renewed at the new one: etcd 3.4.23 does."""

    async def sleep() -> None:
        async with cluster.paused(await cluster.leader()):
            await asyncio.sleep(6)  # as long as this, the fault lasts

    results = [
        await _hold_through(cluster, connect, await connect.agent(cluster.a.address, f"holder-{number}"), sleep)
        for number in range(3)
    ]
    print(f"\nlocks through a leader's sleep of 6 s: {results}")  # noqa: T201 - the figures are the point


@pytest.mark.faults
async def test_RB_03_after_a_leader_is_killed_the_holder_knows_what_is_true(
    cluster: Cluster, connect: Channels
) -> None:
    async def kill() -> None:
        await cluster.crash(await cluster.leader())

    results = [
        await _hold_through(cluster, connect, await connect.agent(cluster.a.address, f"holder-{number}"), kill)
        for number in range(4)
    ]
    print(f"\nlocks through a leader's death: {results}")  # noqa: T201 - the figures are the point
    assert results == ["kept"] * 4  # a new leader gives every lease its whole time again


@pytest.mark.faults
async def test_RB_06_a_change_of_leader_lets_a_dead_holder_keep_its_lock_longer_and_waits_have_their_own_bound(
    cluster: Cluster, connect: Channels
) -> None:
    holder = await connect.agent(cluster.a.address, "dead")
    hasty, patient = await connect.agent(cluster.b.address, "hasty"), await connect.agent(cluster.b.address, "patient")
    loop = asyncio.get_running_loop()
    ttl_s = (await holder.open(9)).session.ttl.seconds
    begun = loop.time()
    await asyncio.gather(hasty.open(120), patient.open(120))
    mine = await holder.acquire(holder.asks("reset", delay_s=0))
    short = await hasty.wait(hasty.asks("reset", wait_s=ttl_s + 1)).is_queued()
    asked_s = loop.time()
    waiting = await patient.wait(patient.asks("reset", wait_s=100)).is_queued()
    await asyncio.sleep(begun + ttl_s - 3 - loop.time())  # until then it is as if nothing had happened
    await cluster.crash(await cluster.leader())
    refusal = await short.refusal(ttl_s + 5)
    assert refusal.reason == "LOCK_WAIT_EXPIRED"
    assert abs(loop.time() - asked_s - ttl_s - 1) < 2
    assert await holder.current(mine.fence)  # the record says so, and it is: nobody else has it
    theirs = await waiting.grant(2 * ttl_s + 5)
    lived_s = loop.time() - begun
    print(f"\na lease of {ttl_s} s lived for {lived_s:.1f} s")  # noqa: T201 - the figures are the point
    assert ttl_s < lived_s < 2 * ttl_s + 4
    with refused("LOCK_LOST"):
        await holder.write("reset/late", mine.fence)
    await patient.release(theirs.fence)
    await asyncio.gather(hasty.close(), patient.close())


@pytest.mark.faults
async def test_LE_17_RB_03_writes_under_locks_stay_in_the_order_of_their_fences_through_all_of_it(
    cluster: Cluster, connect: Channels
) -> None:
    """Leaders sleep and die, servers die, one contestant always sleeps past its lease: no two holders' writes mix."""
    async with Contest(connect, (cluster.a.address, cluster.b.address)) as contest:
        for number in range(6):
            await contest.progress(10)
            match number % 3:
                case 0:
                    async with cluster.paused(await cluster.leader()):
                        await asyncio.sleep(4)  # as long as this, the fault lasts
                case 1:
                    await cluster.crash(await cluster.leader())
                case _:
                    server = cluster.a if number == 2 else cluster.b
                    server.kill()
                    await asyncio.sleep(1)  # as above
                    await asyncio.to_thread(server.start)
        await contest.progress(20)
        summary = await contest.finish()
    print(f"\n{summary}")  # noqa: T201 - the figures are the point
    assert summary.faults == []
    assert summary.holders == 5
    assert summary.late > 2
    assert summary.losses > 2
