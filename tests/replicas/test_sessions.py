"""Sessions live in the store: they outlive the server that opened them, with their locks and their places in the queue."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from typing import TYPE_CHECKING

import grpc
import psutil
import pytest

from kokuban_server.core import keys, limits
from kokuban_server.records.lock_codec import decode_session
from tests.replicas.lock_calls import (
    LOST,
    RELEASED,
    RENEWED,
    Channels,
    LockAgent,
    channels,
    outcome,
    queue_order,
    records,
)
from tests.wire.calls import refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.etcd_server import EtcdServer
    from tests.replicas.lock_calls import Waiting
    from tests.replicas.pair import Pair

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(120)]
PRESENCE_S = 10.0
"""For how long a killed server still counts as living."""


@pytest.fixture
async def connect() -> AsyncIterator[Channels]:
    async with channels() as made:
        yield made


async def test_LE_07_a_session_is_kept_alive_by_one_server_and_then_by_the_other(
    fragile_pair: Pair, connect: Channels
) -> None:
    """The first is killed; renewed at the second for twice its time to live, the session has lost nothing."""
    a, b = await connect(fragile_pair.a.address), await connect(fragile_pair.b.address)
    holder, rival = LockAgent(a, "holder"), await connect.agent(fragile_pair.b.address, "rival")
    ttl_s = (await holder.open(2)).session.ttl.seconds
    await rival.open(60)
    mine = await holder.acquire(holder.asks("kept"))
    loop = asyncio.get_running_loop()
    async with holder.kept_alive(0.5) as beats:
        await beats.until(lambda: beats.count(RENEWED) >= 2)
        fragile_pair.a.kill()
        killed_at = loop.time()
    elsewhere = holder.at(b)
    async with elsewhere.kept_alive(0.5) as beats:
        await beats.until(lambda: loop.time() > killed_at + 2 * ttl_s and beats.count(RENEWED) >= 4)
        assert beats.losses == []
        assert await elsewhere.current(mine.fence)
        with refused("LOCKED_BY_OTHER", holder_session=holder.session_id, state="HELD"):
            await rival.acquire(rival.asks("kept"))
        await elsewhere.write("kept/e", mine.fence)
        assert await elsewhere.release(mine.fence) == RELEASED
    assert await elsewhere.close()


async def test_the_death_of_a_session_is_told_at_the_server_that_renews_it_whoever_ended_it(
    pair: Pair, connect: Channels
) -> None:
    a, b = await connect(pair.a.address), await connect(pair.b.address)
    holder = LockAgent(a, "holder")
    await holder.open(30)
    mine = await holder.acquire(holder.asks("ended"))
    async with holder.beats() as beats:
        await beats.beat()
        await beats.until(lambda: beats.count(RENEWED) == 1)
        assert await holder.at(b).close()
        await beats.until(lambda: beats.count(LOST) == 1)
        with contextlib.suppress(AssertionError):
            await beats.until(lambda: False, within_s=5)
        assert beats.end is not None
        assert beats.end.reason == "SESSION_LOST"
    with refused("LOCK_LOST"):
        await holder.write("ended/e", mine.fence)
    with refused("SESSION_LOST"):
        await holder.acquire(holder.asks("ended"))


async def test_LE_09_RB_03_a_lease_that_the_store_ends_early_is_told_at_once_and_fails_the_next_renewal(
    etcd: EtcdServer, pair: Pair, connect: Channels
) -> None:
    """As an etcd leader may do that slept: the holder has renewed, has hours left, and has lost."""
    holder = await connect.agent(pair.a.address, "holder")
    rival = await connect.agent(pair.b.address, "rival")
    before = {record.key for record in await records(pair.store, keys.SESSION)}
    await holder.open(3600)
    (record,) = (one for one in await records(pair.store, keys.SESSION) if one.key not in before)
    await rival.open(60)
    mine = await holder.acquire(holder.asks("early", delay_s=0))
    waiting = await rival.wait(rival.asks("early", wait_s=60)).is_queued()
    async with holder.beats() as beats:
        await beats.beat()
        await beats.until(lambda: beats.count(RENEWED) == 1)
        lease = decode_session(record.key, record.value).lease
        await asyncio.to_thread(etcd.ctl, "lease", "revoke", f"{lease:x}")
        await beats.until(lambda: beats.count(LOST) == 1, within_s=5)
    theirs = await waiting.grant(5)
    with refused("LOCK_LOST"):
        await holder.write("early/late", mine.fence)
    async with holder.beats() as beats:
        await beats.beat()
        with contextlib.suppress(AssertionError):
            await beats.until(lambda: False)
        assert beats.end is not None
        assert (beats.end.reason, beats.told) == ("SESSION_LOST", [])
    await rival.release(theirs.fence)
    await rival.close()


async def test_RB_05_no_renewal_is_affirmed_once_the_end_of_its_session_is(pair: Pair, connect: Channels) -> None:
    """Renewed at one server while the other ends it: what was sent after that is answered with the loss."""
    a, b = await connect(pair.a.address), await connect(pair.b.address)

    async def race(number: int) -> None:
        agent = LockAgent(a if number % 2 else b, f"raced-{number}")
        await agent.open(30)
        async with agent.beats() as beats:
            await beats.beat()
            await beats.until(lambda: beats.count(RENEWED) == 1)
            closing = asyncio.ensure_future(agent.at(b if number % 2 else a).close())
            before = 1
            with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                while not closing.done():
                    await beats.beat()
                    before += 1
                await beats.beat()
            assert await closing
            with contextlib.suppress(AssertionError):  # it ends, whatever it says before
                await beats.until(lambda: False)
            states = [one.state for one in beats.told]
            assert len(beats.told) - beats.count(LOST) <= before
            if LOST not in states:  # gRPC drops what has arrived when it cannot send any more
                assert beats.end is not None
                assert beats.end.code is grpc.StatusCode.INTERNAL
                states.append(LOST)
            assert states == [*[RENEWED] * (len(states) - 1), LOST]
        async with agent.beats() as beats:
            await beats.beat()
            with contextlib.suppress(AssertionError):
                await beats.until(lambda: False)
            assert beats.told == []
            assert beats.end is not None
            assert beats.end.reason == "SESSION_LOST"

    for begin in range(0, 200, 20):
        await asyncio.gather(*map(race, range(begin, begin + 20)))


async def _crowd(connect: Channels, pair: Pair, count: int) -> tuple[LockAgent, list[LockAgent]]:
    """Give a holder at server b, and agents at servers a and b by turns."""
    holder = await connect.agent(pair.b.address, "holder")
    links = [await connect(pair.a.address), await connect(pair.b.address)]
    agents = [LockAgent(links[number % 2], f"waiter-{number}") for number in range(count)]
    await asyncio.gather(*(agent.open(60) for agent in (holder, *agents)))
    return holder, agents


async def _serve(asked: list[Waiting]) -> list[str]:
    """Let each pass the lock on as soon as it has it; give the order."""
    got: list[str] = []

    async def pass_on(waiting: Waiting) -> None:
        mine = await waiting.grant()
        got.append(mine.lock.id)
        await waiting.agent.release(mine.fence)

    await asyncio.gather(*map(pass_on, asked))
    return got


async def test_waits_keep_their_places_when_their_server_is_killed(fragile_pair: Pair, connect: Channels) -> None:
    holder, agents = await _crowd(connect, fragile_pair, 8)
    mine = await holder.acquire(holder.asks("queue"))
    asked = [await agent.wait(agent.asks("queue", wait_s=60)).is_queued() for agent in agents]
    order = await queue_order(fragile_pair.store)
    fragile_pair.a.kill()
    b = await connect(fragile_pair.b.address)
    for place in reversed(range(0, 8, 2)):  # in any order: what counts is when each began to wait
        asked[place].granted.add_done_callback(lambda task: task.exception())  # its stream broke
        again = await agents[place].at(b).wait(asked[place].request).is_queued()
        assert again.told[0].ahead == place
        asked[place] = again
    assert await queue_order(fragile_pair.store) == order
    await holder.release(mine.fence)
    assert await _serve(asked) == order
    assert await records(fragile_pair.store, keys.WAIT, keys.LOCK, keys.MARKER) == []


async def test_LE_20_a_circle_through_a_wait_whose_server_was_killed_is_seen(
    fragile_pair: Pair, connect: Channels
) -> None:
    a, b = await connect(fragile_pair.a.address), await connect(fragile_pair.b.address)
    older, younger = LockAgent(a, "older"), LockAgent(b, "younger")
    await asyncio.gather(older.open(60), younger.open(60))
    holds = await older.acquire(older.asks("circle/a")), await younger.acquire(younger.asks("circle/b"))
    asked = await older.wait(older.asks("circle/b", wait_s=60)).is_queued()
    fragile_pair.a.kill()
    await asyncio.wait([asked.granted])
    refusal = await younger.wait(younger.asks("circle/a", wait_s=60)).refusal(5)
    assert (refusal.reason, refusal.facts["agents"]) == ("DEADLOCK", "younger, older")
    again = await older.at(b).wait(asked.request).is_queued()
    await younger.release(holds[1].fence)
    mine = await again.grant()
    for fence in (mine.fence, holds[0].fence):
        assert await older.at(b).release(fence) == RELEASED


async def test_what_happened_while_a_server_slept_wakes_those_who_wait_there(
    fragile_pair: Pair, connect: Channels
) -> None:
    holder, (waiter, behind, *_) = await _crowd(connect, fragile_pair, 2)
    for _ in range(3):
        mine = await holder.acquire(holder.asks("slept"))
        first = await waiter.wait(waiter.asks("slept", wait_s=60)).is_queued()
        second = await behind.wait(behind.asks("slept", wait_s=60)).is_queued()
        fragile_pair.a.pause()
        try:
            assert await holder.release(mine.fence) == RELEASED
            assert not second.granted.done()  # its turn is not yet
        finally:
            fragile_pair.a.resume()
        for waiting in (first, second):
            granted = await waiting.grant(5)
            assert await waiting.agent.release(granted.fence) == RELEASED


@pytest.mark.faults
async def test_who_waits_at_a_server_that_slept_for_long_waits_anew(fragile_pair: Pair, connect: Channels) -> None:
    """Others took its waits for those of a dead server: their places are gone, and they are not forgotten."""
    holder, (waiter, behind, *_) = await _crowd(connect, fragile_pair, 2)
    mine = await holder.acquire(holder.asks("slept"))
    first = await waiter.wait(waiter.asks("slept", wait_s=90)).is_queued()
    second = await behind.wait(behind.asks("slept", wait_s=90)).is_queued()
    order = await queue_order(fragile_pair.store)
    fragile_pair.a.pause()
    try:
        async with asyncio.timeout(PRESENCE_S + limits.WAIT_ADOPTED_S_MAX + 5):
            while await queue_order(fragile_pair.store) != order[1:]:  # noqa: ASYNC110 - the store tells only when asked
                await asyncio.sleep(0.1)
    finally:
        fragile_pair.a.resume()
    async with asyncio.timeout(10):
        while await queue_order(fragile_pair.store) != [order[1], order[0]]:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.1)
    await holder.release(mine.fence)
    for waiting in (second, first):
        granted = await waiting.grant(5)
        assert await waiting.agent.release(granted.fence) == RELEASED


async def test_a_cut_wait_is_gone_for_the_other_server_too(pair: Pair, connect: Channels) -> None:
    holder, agents = await _crowd(connect, pair, 4)
    mine = await holder.acquire(holder.asks("cuts"))
    asked = [await agent.wait(agent.asks("cuts", wait_s=60)).is_queued() for agent in agents]
    order = await queue_order(pair.store)
    asked[0].cut()
    asked[2].cut()
    async with asyncio.timeout(10):
        while len(left := await queue_order(pair.store)) > 2:
            pass
    assert left == [order[1], order[3]]
    await holder.release(mine.fence)
    assert await _serve([asked[1], asked[3]]) == left


async def test_RB_31_a_request_that_is_cut_and_asked_again_at_either_server_is_served_once(
    pair: Pair, connect: Channels
) -> None:
    """A withdrawal at one server and the same request at the other meet at any moment: none is forgotten, none stays."""
    draw = random.Random(1)
    holder, agents = await _crowd(connect, pair, 5)
    links = [agents[0].channel, agents[1].channel]
    mine = await holder.acquire(holder.asks("storm"))

    async def storm(agent: LockAgent) -> Waiting:
        request = agent.asks("storm", wait_s=60)
        for turn in range(25):
            waiting = agent.at(links[draw.randrange(2)]).wait(request)
            if turn % 3:
                await waiting.is_queued()
            else:
                await asyncio.sleep(draw.uniform(0, 0.004))  # as far as it gets
            waiting.cut()
            await asyncio.wait([waiting.granted])
        return await agent.at(links[draw.randrange(2)]).wait(request).is_queued()

    asked = await asyncio.gather(*map(storm, agents))
    async with asyncio.timeout(10):
        while len(order := await queue_order(pair.store)) != len(agents):
            pass
    await holder.release(mine.fence)
    assert sorted(await _serve(asked)) == sorted(order)
    async with asyncio.timeout(10):
        while (listed := await holder.listed("storm")).locks or listed.waits:
            pass
    await asyncio.gather(*(agent.close() for agent in (holder, *agents)))


@pytest.mark.faults
async def test_a_wait_whose_server_was_killed_is_removed_when_nobody_comes_back_for_it(
    fragile_pair: Pair, connect: Channels
) -> None:
    """Its session lives on, so only the server's death tells. Not before the time in which it may be asked for again."""
    holder, (orphan, waiter, *_) = await _crowd(connect, fragile_pair, 2)
    mine = await holder.acquire(holder.asks("orphans"))
    left = await orphan.wait(orphan.asks("orphans", wait_s=120)).is_queued()
    behind = await waiter.wait(waiter.asks("orphans", wait_s=120)).is_queued()
    loop = asyncio.get_running_loop()
    fragile_pair.a.kill()
    left.granted.add_done_callback(lambda task: task.exception())
    killed_at = loop.time()
    await holder.release(mine.fence)
    await behind.grant(PRESENCE_S + limits.WAIT_ADOPTED_S_MAX + 5)
    took_s = loop.time() - killed_at
    print(f"\nan orphan stood in the way for {took_s:.1f} s")  # noqa: T201 - the figures are the point
    assert took_s > limits.WAIT_ADOPTED_S_MAX
    late = orphan.at(await connect(fragile_pair.b.address))
    assert (await late.wait(left.request).is_queued()).told[0].ahead == 0  # anew, and behind who has it now


async def test_RB_45_a_server_that_is_told_to_stop_lets_streams_go_and_their_sessions_live_on(
    fragile_pair: Pair, connect: Channels
) -> None:
    """20 requests that wait and 20 streams of renewals: it ends in time, and all go on at the other server, in order."""
    a, b = await connect(fragile_pair.a.address), await connect(fragile_pair.b.address)
    agents = [LockAgent(a, f"agent-{number}") for number in range(20)]
    holder = LockAgent(b, "holder")
    await asyncio.gather(*(agent.open(20) for agent in (holder, *agents)))
    mine = await holder.acquire(holder.asks("drained"))
    kept = await asyncio.gather(*(agent.acquire(agent.asks(f"own/{agent.name}")) for agent in agents))
    asked = [agent.wait(agent.asks("drained", wait_s=60)) for agent in agents]
    await asyncio.gather(*(waiting.is_queued() for waiting in asked))
    order = await queue_order(fragile_pair.store)
    async with contextlib.AsyncExitStack() as stack:
        beats = [await stack.enter_async_context(agent.kept_alive(0.5)) for agent in agents]
        await asyncio.gather(*(one.until(lambda one=one: one.count(RENEWED) > 1) for one in beats))  # type: ignore[misc] # the loop's own
        process = psutil.Process(fragile_pair.a.pid)
        process.send_signal(signal.SIGTERM)
        refusals = await asyncio.gather(*(waiting.refusal(5) for waiting in asked))
        assert {refusal.reason for refusal in refusals} == {"SERVER_DRAINING"}
        began = asyncio.get_running_loop().time()
        await asyncio.to_thread(fragile_pair.a.stop)
        took_s = asyncio.get_running_loop().time() - began
        assert took_s < 5
        assert {one.end.reason if one.end else "" for one in beats} == {"SERVER_DRAINING"}
        assert not any(one.losses for one in beats)
    elsewhere = [agent.at(b) for agent in agents]
    again = [agent.wait(waiting.request) for agent, waiting in zip(elsewhere, asked, strict=True)]
    await asyncio.gather(*(waiting.is_queued() for waiting in again))
    assert await queue_order(fragile_pair.store) == order
    assert all(await asyncio.gather(*(agent.current(one.fence) for agent, one in zip(elsewhere, kept, strict=True))))
    await holder.release(mine.fence)
    assert await _serve(again) == order
    done = await asyncio.gather(*(outcome(agent.close()) for agent in elsewhere))
    assert all(one.answer for one in done)
