"""Holders that are frozen, killed or cut off lose their locks, learn it, and write nothing afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban.v1 import lock_pb2
from kokuban_client import errors
from kokuban_client.testing import ServerProcess
from tests.etcd_server import EtcdServer
from tests.fault_proxy import FaultProxy, Mode
from tests.faults.fenced_history import ProtectedWrite, faults_of
from tests.faults.holders import Holder
from tests.replicas.lock_calls import RENEWED, Channels, channels
from tests.wire.calls import refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.replicas.lock_calls import LockAgent

pytestmark = pytest.mark.timeout(120)
TTL_S = 2.0
LATE_S = 3.0
"""How much later than promised a lock may be free: stores look for what has lapsed a few times a second, and etcd counts in
seconds."""


@pytest.fixture
async def connect() -> AsyncIterator[Channels]:
    async with channels() as made:
        yield made


def _on(short: str) -> pytest.MarkDecorator:
    """Run a test on one kind of store always, and on the others as part of the long tests."""
    return pytest.mark.parametrize(
        "server",
        [
            pytest.param(
                kind,
                marks=[pytest.mark.etcd] * (kind == "etcd") + [pytest.mark.faults] * (kind != short),
            )
            for kind in ("memory", "sqlite", "etcd")
        ],
        indirect=True,
    )


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server on each kind of store."""
    if request.param != "etcd":
        store = "memory:" if request.param == "memory" else f"sqlite:{tmp_path / 'store'}"
        with ServerProcess(store=store) as made:
            yield made
        return
    etcd = EtcdServer()
    try:
        asyncio.run(etcd.start_all())
        with ServerProcess(store=f"etcd://{etcd.members[0].endpoint}/holders") as made:
            yield made
    finally:
        etcd.close()


async def _rival(connect: Channels, server: ServerProcess) -> LockAgent:
    rival = await connect.agent(server.address, "rival")
    await rival.open(120)
    return rival


@_on("etcd")
async def test_RB_02_LE_17_a_holder_that_slept_past_its_lease_writes_nothing_when_it_wakes(
    server: ServerProcess, connect: Channels
) -> None:
    rival = await _rival(connect, server)
    async with Holder(server.address, "sleeper", "slept", TTL_S) as sleeper:
        sleeper.tell("write")
        assert (await sleeper.said("wrote"))["wrote"] == ""
        own = (await rival.history("slept/late"))[0].entry.revision.number
        waiting = await rival.wait(rival.asks("slept", wait_s=60)).is_queued()
        sleeper.pause()
        sleeper.tell("write")  # what it will do as soon as it wakes
        theirs = await waiting.grant(sleeper.ttl_s + 1.0 + LATE_S)
        assert theirs.fence.revision > max(sleeper.fence, own)
        written = await rival.write("slept/e", theirs.fence)
        sleeper.resume()
        assert (await sleeper.said("wrote"))["wrote"] == "LOCK_LOST"
        sleeper.tell("ask")
        assert (await sleeper.said("current"))["current"] is False
        await sleeper.until_told("LOST")
        assert await rival.current(theirs.fence)
        assert len(await rival.history("slept/late")) == 1
    writes = [
        ProtectedWrite(sleeper.fence, own, "sleeper"),
        ProtectedWrite(theirs.fence.revision, written.revision.number),
    ]
    assert faults_of(writes) == []
    await rival.close()


@_on("sqlite")
async def test_LE_04_what_a_killed_holder_held_is_free_after_its_time_and_its_lock_delay(
    server: ServerProcess, connect: Channels
) -> None:
    """Not before, since nobody can know; and whoever looks sees why it is closed."""
    rival = await _rival(connect, server)
    delay_s = 1.5
    loop = asyncio.get_running_loop()
    async with Holder(server.address, "victim", "killed", TTL_S, delay_s=delay_s) as victim:
        waiting = await rival.wait(rival.asks("killed", wait_s=60)).is_queued()
        victim.kill()
        killed_at = loop.time()
        states = set()
        async with asyncio.timeout(victim.ttl_s + LATE_S):
            while lock_pb2.LOCK_STATE_LOST not in states:
                for lock in (await rival.listed("killed")).locks:
                    assert lock.id == victim.lock_id
                    states.add(lock.state)
        lost_s = loop.time() - killed_at
        with refused("LOCKED_BY_OTHER", lock_id=victim.lock_id, state="LOST"):
            await rival.write("killed/e")  # closed to everybody
        theirs = await waiting.grant(delay_s + LATE_S)
        free_s = loop.time() - killed_at
        await rival.write("killed/e", theirs.fence)
    print(f"\nlost after {lost_s:.2f} s of {victim.ttl_s:.0f}, free after {free_s:.2f} s")  # noqa: T201 - the figures are the point
    assert lost_s > victim.ttl_s * 0.7 - 0.2  # its last renewal may be a quarter of its time old
    assert free_s - lost_s > delay_s - 0.3
    await rival.close()


@_on("sqlite")
async def test_RB_01_a_request_whose_session_ends_while_it_waits_is_refused(
    server: ServerProcess, connect: Channels
) -> None:
    rival = await _rival(connect, server)
    waiter = await connect.agent(server.address, "waiter")
    theirs = await rival.acquire(rival.asks("waited"))
    await waiter.open(TTL_S)
    request = waiter.asks("waited", wait_s=60)
    waiting = await waiter.wait(request).is_queued()
    assert (await waiting.refusal(TTL_S + 1 + LATE_S)).reason == "SESSION_LOST"
    assert (await rival.listed("waited")).waits == []
    await rival.release(theirs.fence)
    with refused("SESSION_LOST"):
        await waiter.acquire(request)
    assert (await rival.listed("waited")).locks == []


@_on("sqlite")
async def test_LE_18_a_client_cut_off_for_twice_its_time_to_live_says_that_its_lock_is_lost(
    server: ServerProcess, connect: Channels
) -> None:
    """Before anybody else can have it; no connection is closed, nothing is said: only time passes."""
    rival = await _rival(connect, server)
    loop = asyncio.get_running_loop()
    async with (
        FaultProxy(int(server.address.rpartition(":")[2])) as proxy,
        kokuban_client.connect(proxy.endpoint, agent="lonely") as client,
    ):
        board = client.board("main")
        async with board.session(ttl_s=TTL_S) as session:
            lock = board.lock("shared:plan", "cut", purpose="test", lock_delay_s=0, session=session)
            granted = asyncio.Event()
            lost_at = 0.0

            async def work() -> None:
                nonlocal lost_at
                try:
                    async with lock:
                        granted.set()
                        await asyncio.Event().wait()
                except errors.LockLost:
                    lost_at = loop.time()
                    raise

            working = asyncio.create_task(work())
            await asyncio.wait_for(granted.wait(), 20)
            waiting = await rival.wait(rival.asks("cut", wait_s=60)).is_queued()
            proxy.set(Mode.STALL)
            cut_at = loop.time()
            theirs = await waiting.grant(2 * session.ttl_s + LATE_S)
            held_then, free_at = lock.is_held, loop.time()
            with pytest.raises(errors.LockLost):
                await asyncio.wait_for(working, 5)
            assert not held_then
            assert cut_at < lost_at
            await asyncio.sleep(cut_at + 2 * session.ttl_s - loop.time())  # as long as this, the fault lasts
            proxy.set(Mode.PASS)
            proxy.reset()
            with pytest.raises(errors.LockLost):
                await board.put("shared:plan", "cut/late", 1, must_not_exist=True, fences=[lock.fence])
            with pytest.raises(errors.LockLost):
                lock.check()
    print(f"\nit knew after {lost_at - cut_at:.2f} s, somebody else had it after {free_at - cut_at:.2f} s")  # noqa: T201 - the figures are the point
    await rival.release(theirs.fence)
    await rival.close()


@_on("")
async def test_LE_18_renewals_go_on_over_a_new_connection_when_the_old_one_breaks(
    server: ServerProcess, connect: Channels
) -> None:
    """Broken again and again, for three times its time to live: the session is kept as long as renewals come through."""
    loop = asyncio.get_running_loop()
    async with FaultProxy(int(server.address.rpartition(":")[2])) as proxy:
        holder = await connect.agent(proxy.endpoint, "holder")
        ttl_s = (await holder.open(TTL_S)).session.ttl.ToMilliseconds() / 1000
        mine = await holder.acquire(holder.asks("shaky"))
        until, cuts = loop.time() + 2 * ttl_s, 0
        while loop.time() < until:
            async with asyncio.timeout(ttl_s):
                while True:
                    async with holder.beats() as beats:
                        try:
                            await beats.beat()
                            await beats.until(lambda beats=beats: beats.count(RENEWED) == 1)  # type: ignore[misc] # the loop's own
                        except Exception:  # noqa: BLE001, S112 - the connection broke: the next one
                            continue
                        break
            proxy.reset()
            cuts += 1
            await asyncio.sleep(ttl_s / 5)  # a heart's pace
        direct = holder.at(await connect(server.address))
        assert await direct.current(mine.fence)
        await direct.write("shaky/e", mine.fence)
        assert cuts > 5
        await direct.close()
