"""RB-48: on an etcd without room nobody gets a lock, and everybody can keep, lose and give back what they have."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client.testing import ServerProcess
from tests.etcd_server import EtcdServer
from tests.replicas.lock_calls import (
    ALREADY_GONE,
    LOST,
    RELEASED,
    RENEWED,
    Channels,
    at_once,
    channels,
)
from tests.replicas.test_full_store import QUOTA_BYTES, _fill

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.replicas.lock_calls import LockAgent

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(120)]
BOUND_S = 30.0


@pytest.fixture
def small_etcd() -> Iterator[EtcdServer]:
    server = EtcdServer(flags=[f"--quota-backend-bytes={QUOTA_BYTES}"])
    yield server
    server.close()


@pytest.fixture
async def connect() -> AsyncIterator[Channels]:
    async with channels() as made:
        yield made


async def _recover(etcd: EtcdServer, address: str) -> None:
    """Make room as an operator would."""
    async with kokuban_client.connect(address, agent="keeper", roles=["operator"]) as keeper:
        full_bytes = (await keeper.status()).size_bytes
        await keeper.compact((await keeper.status()).token)
        async with asyncio.timeout(BOUND_S):
            while (await keeper.status()).size_bytes > 0.8 * full_bytes:
                await asyncio.to_thread(etcd.ctl, "defrag")  # etcd forgets what was compacted a little after it says so
    await asyncio.to_thread(etcd.ctl, "alarm", "disarm")


async def _paths(agent: LockAgent) -> tuple[list[str], list[str]]:
    """Give what is held or closed, and what is waited for."""
    listed = await agent.listed()
    held = sorted(lock.targets[0].path for lock in listed.locks)
    return held, sorted(wait.targets[0].path for wait in listed.waits)


async def test_RB_48_on_a_full_store_locks_are_kept_lost_and_given_back_and_none_is_granted(
    small_etcd: EtcdServer, connect: Channels
) -> None:
    await small_etcd.start_all()
    endpoint = small_etcd.members[0].endpoint
    async with ServerProcess(store=f"etcd://{endpoint}/full") as server:
        holder, leaver, dead, waiter, chief = [
            await connect.agent(server.address, name, "supervisor")
            for name in ("holder", "leaver", "dead", "waiter", "chief")
        ]
        await asyncio.gather(holder.open(6), leaver.open(120), waiter.open(120), chief.open(120))
        await holder.write("claimable")
        given = await holder.acquire(holder.asks("given"))
        kept = await holder.acquire(holder.asks("kept"))
        await leaver.acquire(leaver.asks("left"))
        behind = await waiter.wait(waiter.asks("given", wait_s=100)).is_queued()
        cut = await waiter.wait(waiter.asks("kept", wait_s=100)).is_queued()
        async with holder.kept_alive(1) as beats:
            await _fill(endpoint)
            async with asyncio.timeout(BOUND_S):
                while "NOSPACE" not in await asyncio.to_thread(small_etcd.ctl, "alarm", "list"):
                    pass  # etcd raises it just after its first refusal

            done = await at_once(
                [
                    chief.acquire(chief.asks("new")),
                    chief.acquire(chief.asks("kept", wait_s=5)),
                    chief.claim("claimable"),
                    dead.open(2),
                    holder.write("kept/e", kept.fence),
                    holder.downgrade(kept.fence),
                    chief.break_lock(kept.lock.id, "no room"),
                ]
            )
            assert [one.reason for one in done] == ["STORE_FULL"] * 7
            told = beats.count(RENEWED)
            await beats.until(lambda: beats.count(RENEWED) > told + 1)
            assert await holder.current(kept.fence, given.fence)

            assert await holder.release(given.fence) == RELEASED
            assert await holder.release(given.fence) == ALREADY_GONE
            assert await leaver.close()
            cut.cut()
            async with asyncio.timeout(BOUND_S):
                while await _paths(chief) != (["kept"], ["given"]):
                    pass  # what was cut is withdrawn a little later
            assert not behind.granted.done()  # it waits for room now

            await _recover(small_etcd, server.address)
            theirs = await behind.grant()
            await waiter.write("given/e", theirs.fence)
            await holder.write("kept/e", kept.fence)
            assert await holder.release(kept.fence) == RELEASED
            assert beats.count(LOST) == 0
        assert await waiter.release(theirs.fence) == RELEASED
        await chief.acquire(chief.asks("new"))


@pytest.mark.faults
async def test_RB_48_what_a_dead_holder_held_is_free_on_a_full_store_after_its_lock_delay(
    small_etcd: EtcdServer, connect: Channels
) -> None:
    """The loss cannot be noted there, so the lock delay is waited out by the server itself."""
    await small_etcd.start_all()
    endpoint = small_etcd.members[0].endpoint
    async with ServerProcess(store=f"etcd://{endpoint}/full") as server:
        dead, alive = await connect.agent(server.address, "dead"), await connect.agent(server.address, "alive")
        await asyncio.gather(dead.open(2), alive.open(120))
        async with dead.kept_alive(0.5):
            mine = await dead.acquire(dead.asks("dead", delay_s=1))
            await _fill(endpoint)
        assert not await alive.current(mine.fence)  # somebody else's
        async with asyncio.timeout(BOUND_S):
            while await _paths(alive) != ([], []):
                pass  # its time, and its lock delay
        await _recover(small_etcd, server.address)
        await alive.acquire(alive.asks("dead"))
