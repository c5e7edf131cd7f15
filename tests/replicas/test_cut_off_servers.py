"""RB-39: a server that cannot reach a majority of its store confirms nothing, and what happened meanwhile holds for it too."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kokuban_client.testing import ServerProcess
from tests.etcd_server import EtcdServer
from tests.fault_proxy import FaultProxy
from tests.replicas.lock_calls import (
    IN_JEOPARDY,
    LOST,
    RELEASED,
    RENEWED,
    Channels,
    LockAgent,
    at_once,
    channels,
    outcome,
)
from tests.wire.calls import refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.replicas.lock_calls import Granted
    from tests.replicas.pair import Pair

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(120)]
TTL_S = 3.0
ASKED_S = 1.5
"""How long a caller waits for an answer that must not come."""


@pytest.fixture
async def connect() -> AsyncIterator[Channels]:
    async with channels() as made:
        yield made


class Apart:
    """Two servers on one cluster: `a` knows only the first member, `b` the two others."""

    def __init__(self) -> None:
        self.etcd = EtcdServer(3)
        first, *others = self.etcd.endpoints
        self.a = ServerProcess(store=f"etcd://{first}/apart")
        self.b = ServerProcess(store=f"etcd://{','.join(others)}/apart")

    def start(self) -> None:
        asyncio.run(self.etcd.start_all())
        self.a.start()
        self.b.start()

    def close(self) -> None:
        self.a._leave()
        self.b._leave()
        self.etcd.close()


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    made = Apart()
    try:
        made.start()
        yield made
    finally:
        made.close()


async def _confirms_nothing(agent: LockAgent, mine: Granted, repeat: object, name: str) -> None:
    """Ask a server for everything that would say that the agent holds something; nothing may be affirmed."""
    request = agent.asks(f"{name}/new")
    done = await at_once(
        [
            agent.current(mine.fence, timeout_s=ASKED_S),
            agent.acquire(repeat, ASKED_S),  # type: ignore[arg-type] # as it was given to the caller
            agent.acquire(request, ASKED_S),
            agent.write(f"{name}/held/late", mine.fence, timeout_s=ASKED_S),
        ]
    )
    assert [one.answer for one in done] == [None] * 4
    assert {one.reason for one in done} <= {
        "DEADLINE_EXCEEDED",
        "DEADLINE_TOO_SHORT",
        "STORE_UNAVAILABLE",
        "OUTCOME_UNKNOWN",
    }


@pytest.mark.parametrize("leader", [0, 1])
async def test_RB_39_a_server_with_a_minority_confirms_no_ownership(
    apart: Apart, connect: Channels, leader: int
) -> None:
    """Its member still answers what needs no majority, from what it last knew: none of that is said to be so."""
    holder = await connect.agent(apart.a.address, "holder")
    await holder.open(TTL_S)
    request = holder.asks("minority/held")
    mine = await holder.acquire(request)
    others = apart.etcd.members[1:]
    await asyncio.to_thread(apart.etcd.have_lead, apart.etcd.members[leader])
    async with holder.beats() as beats:
        await beats.beat()
        await beats.until(lambda: beats.count(RENEWED) == 1)
        for member in others:
            member.pause()
        heart = asyncio.create_task(beats.go_on(TTL_S / 3))
        try:
            await _confirms_nothing(holder, mine, request, "minority")
            await beats.until(lambda: beats.count(IN_JEOPARDY) == 1, TTL_S)
            assert [one.state for one in beats.told] == [RENEWED, IN_JEOPARDY]
        finally:
            for member in others:
                member.resume()
        await beats.until(lambda: beats.count(RENEWED) == 2)
        heart.cancel()
        assert await holder.current(mine.fence)  # a cluster without a leader ends no lease
        await holder.write("minority/held/e", mine.fence)
        assert beats.count(LOST) == 0
    assert await holder.release(mine.fence) == RELEASED
    assert await holder.close()


async def test_RB_39_a_server_that_lost_its_store_confirms_nothing_while_another_goes_on(
    apart: Apart, connect: Channels
) -> None:
    holder = await connect.agent(apart.a.address, "holder")
    rival = await connect.agent(apart.b.address, "rival", "supervisor")
    await holder.open(30)
    await rival.open(60)
    request = holder.asks("lost/held")
    mine = await holder.acquire(request)
    async with holder.beats() as beats:
        await beats.beat()
        await beats.until(lambda: beats.count(RENEWED) == 1)
        apart.etcd.members[0].pause()
        try:
            async with asyncio.timeout(20):  # the others may have to find a leader first
                while (await outcome(rival.break_lock(mine.lock.id, "out of reach", skip_lock_delay=True))).reason:
                    pass
                theirs = await rival.wait(rival.asks("lost/held", wait_s=20)).grant()
            await rival.write("lost/held/e", theirs.fence)
            await beats.beat()
            await _confirms_nothing(holder, mine, request, "lost")
            assert beats.count(RENEWED) == 1
        finally:
            apart.etcd.members[0].resume()
        await beats.until(lambda: len(beats.losses) == 1)
        assert beats.losses[0].words == "out of reach"
        with refused("LOCK_LOST"):
            await holder.write("lost/held/late", mine.fence)
        with refused("LOCK_LOST"):
            await holder.acquire(request)
        assert not await holder.current(mine.fence)
        with refused("LOCKED_BY_OTHER", holder_agent="rival"):
            await holder.write("lost/held/late")
    assert await rival.release(theirs.fence) == RELEASED
    assert await holder.close()
    assert await rival.close()


async def test_a_server_that_missed_what_its_store_has_forgotten_tells_what_is_lost(
    etcd: EtcdServer, connect: Channels
) -> None:
    """Cut off while locks come and go and etcd is compacted, it begins anew with what is there; fences hold all the time."""
    endpoint = etcd.members[0].endpoint
    async with (
        FaultProxy(etcd.members[0].client_port) as proxy,
        ServerProcess(store=f"etcd://{proxy.endpoint}/missed") as a,
        ServerProcess(store=f"etcd://{endpoint}/missed") as b,
    ):
        holder, rival = await connect.agent(a.address, "holder"), await connect.agent(b.address, "rival", "supervisor")
        await asyncio.gather(holder.open(60), rival.open(60))
        broken, kept = await holder.acquire(holder.asks("broken")), await holder.acquire(holder.asks("kept"))
        async with holder.beats() as beats:
            await beats.beat()
            await beats.until(lambda: beats.count(RENEWED) == 1)
            proxy.refuse = True
            proxy.reset()
            await rival.break_lock(broken.lock.id, "unseen", skip_lock_delay=True)
            theirs = await rival.wait(rival.asks("broken", wait_s=20)).grant()
            assert await rival.release(theirs.fence) == RELEASED
            new = await rival.acquire(rival.asks("new"))
            written = await rival.write("new/e", new.fence)
            await asyncio.to_thread(etcd.ctl, "compact", str(written.revision.number))
            proxy.refuse = False
            await beats.until(lambda: bool(beats.losses))
            assert [loss.lock_id for loss in beats.losses] == [broken.lock.id]
            with refused("LOCK_LOST", lock_id=broken.lock.id):
                await holder.write("broken/e", broken.fence)
            with refused("LOCKED_BY_OTHER", lock_id=new.lock.id, holder_agent="rival"):
                await holder.write("new/e")
            await holder.write("kept/e", kept.fence)
            again = await holder.acquire(holder.asks("broken"))
            for fence in (again.fence, kept.fence):
                assert await holder.release(fence) == RELEASED
            await beats.beat()
            await beats.until(lambda: beats.count(RENEWED) >= 2)
            assert len(beats.losses) == 1


async def test_LE_17_RB_39_a_server_that_slept_past_a_lease_affirms_nothing_that_it_was_asked_meanwhile(
    fragile_pair: Pair, connect: Channels
) -> None:
    """The calls lie in its sockets while the session ends and another server gives the lock to somebody else."""
    holder = await connect.agent(fragile_pair.a.address, "holder")
    rival = await connect.agent(fragile_pair.b.address, "rival")
    await holder.open(2)
    await rival.open(60)
    request = holder.asks("slept")
    mine = await holder.acquire(request)
    async with holder.beats() as beats:
        await beats.beat()
        await beats.until(lambda: beats.count(RENEWED) == 1)
        fragile_pair.a.pause()
        try:
            await beats.beat()
            calls = asyncio.ensure_future(
                at_once(
                    [
                        holder.write("slept/late", mine.fence),
                        holder.acquire(request),
                        holder.current(mine.fence),
                        holder.release(mine.fence),
                    ]
                )
            )
            theirs = await rival.wait(rival.asks("slept", wait_s=20)).grant()
            await rival.write("slept/e", theirs.fence)
        finally:
            fragile_pair.a.resume()
        write, repeat, current, release = await calls
        assert (write.reason, repeat.reason) == ("LOCK_LOST", "LOCK_LOST")
        assert current.answer is False
        assert release.answer != RELEASED
        await beats.until(lambda: beats.count(LOST) == 1)
        assert beats.count(RENEWED) == 1
    assert await rival.current(theirs.fence)
    with refused("LOCKED_BY_OTHER", holder_agent="rival"):
        await holder.write("slept/late")
    assert await rival.close()
