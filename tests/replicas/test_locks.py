"""Locks over two servers on one etcd: one winner, fair queues, circles found, fences that hold wherever they are shown."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import TYPE_CHECKING

import grpc
import pytest

from kokuban.v1 import commit_pb2, lock_service_pb2, session_service_pb2
from kokuban_server.core import keys
from tests.faults.fenced_history import ProtectedWrite, faults_of
from tests.replicas.lock_calls import (
    ALREADY_GONE,
    RELEASED,
    SHARED,
    Channels,
    Granted,
    LockAgent,
    at_once,
    channels,
    outcome,
    queue_order,
    records,
)
from tests.wire.calls import absent, refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tests.etcd_server import EtcdServer
    from tests.replicas.lock_calls import Waiting
    from tests.replicas.pair import Pair

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(180)]
RACERS = 64
ROUNDS = 100
WAITERS = 50
TTL_S = 150.0
IN_FLIGHT_MAX = 100
"""Calls of one holder at once: fewer than a busy server turns away."""
"""Nobody renews in these tests."""


@pytest.fixture
async def connect() -> AsyncIterator[Channels]:
    async with channels() as made:
        yield made


async def _agents(connect: Channels, pair: Pair, count: int, name: str) -> list[LockAgent]:
    """Give agents with a session each, at one server and the other by turns."""
    links = [await connect(pair.a.address), await connect(pair.b.address)]
    agents = [LockAgent(links[number % 2], f"{name}-{number}") for number in range(count)]
    await asyncio.gather(*(agent.open(TTL_S) for agent in agents))
    return agents


async def _leave(agents: Sequence[LockAgent]) -> None:
    assert all(await asyncio.gather(*(agent.close() for agent in agents)))


async def test_LE_01_LE_12_of_64_racers_at_two_servers_exactly_one_wins_each_of_100_rounds(
    pair: Pair, connect: Channels
) -> None:
    agents = await _agents(connect, pair, RACERS, "racer")
    wins: Counter[int] = Counter()
    last = 0
    for _ in range(ROUNDS):
        done = await at_once([agent.acquire(agent.asks("race")) for agent in agents])
        ((winner, granted),) = ((place, one.answer) for place, one in enumerate(done) if one.answer is not None)
        assert isinstance(granted, Granted)
        assert granted.fence.revision > last
        last = granted.fence.revision
        told = {(one.reason, one.facts.get("lock_id"), one.facts.get("state")) for one in done if one.answer is None}
        assert told == {("LOCKED_BY_OTHER", granted.lock.id, "HELD")}
        wins[winner % 2] += 1
        assert await agents[winner].release(granted.fence) == RELEASED
    print(f"\nwon at the servers: {dict(wins)}")  # noqa: T201 - the figures are the point
    await _leave(agents)


async def test_LE_01_of_64_claims_at_two_servers_each_entry_goes_to_exactly_one(pair: Pair, connect: Channels) -> None:
    agents = await _agents(connect, pair, RACERS, "claimer")
    paths = [f"claims/{number:02}" for number in range(20)]
    await asyncio.gather(*(agents[0].write(path, precondition=absent()) for path in paths))
    for number in range(5):
        offered = paths[: 1 if number < 3 else 20]
        done = await at_once([agent.claim(*offered) for agent in agents])
        won = {place: one.answer for place, one in enumerate(done) if one.answer is not None}
        claimed = []
        for answer in won.values():
            assert isinstance(answer, lock_service_pb2.ClaimEntryResponse)
            claimed.append(answer.entry.key.path)
            assert [target.path for target in answer.granted.lock.targets] == [answer.entry.key.path]
        assert sorted(claimed) == offered
        assert Counter(one.reason for one in done) == {"": len(offered), "NOTHING_TO_CLAIM": RACERS - len(offered)}
        released = await asyncio.gather(
            *(agents[place].release(answer.granted.fence) for place, answer in won.items())  # type: ignore[attr-defined] # seen above
        )
        assert set(released) == {RELEASED}
    await _leave(agents)


def _leases(etcd: EtcdServer) -> set[str]:
    return set(etcd.ctl("lease", "list").split()[3:])


async def _hand_over(etcd: EtcdServer, pair: Pair, connect: Channels, rounds: int) -> None:
    """Let waiters at both servers get one lock after the other, `rounds` times each; see who gets it in which order."""
    before = _leases(etcd)
    agents = await _agents(connect, pair, WAITERS + 1, "waiter")
    holder, *waiters = agents
    granted = await holder.acquire(holder.asks("queue"))
    fences = [granted.fence.revision]
    for _ in range(rounds):
        asked = [agent.wait(agent.asks("queue", wait_s=100)) for agent in waiters]
        await asyncio.gather(*(waiting.is_queued() for waiting in asked))
        order = await queue_order(pair.store)
        assert len(order) == WAITERS
        got: list[str] = []

        async def pass_on(waiting: Waiting, got: list[str] = got) -> None:
            mine = await waiting.grant(60)
            got.append(mine.lock.id)
            fences.append(mine.fence.revision)
            if len(got) < WAITERS:
                assert await waiting.agent.release(mine.fence) == RELEASED
            else:  # the next round queues up behind the last of this one
                nonlocal holder, granted
                holder, granted = waiting.agent, mine

        await holder.release(granted.fence)
        await asyncio.gather(*map(pass_on, asked))
        assert got == order
        for waiting in asked:
            ahead = [one.ahead for one in waiting.told]
            assert ahead == sorted(ahead, reverse=True)  # nobody is overtaken
        waiters = [agent for agent in agents if agent is not holder]
    assert await holder.release(granted.fence) == RELEASED
    assert fences == sorted(set(fences))
    assert len(fences) == 1 + rounds * WAITERS
    await _leave(agents)
    assert await records(pair.store, keys.LOCK, keys.MARKER, keys.WAIT, keys.SESSION) == []
    for lease in _leases(etcd) - before:
        assert "k/r/" in etcd.ctl("lease", "timetolive", lease, "--keys")  # a server's own


async def test_RB_25_500_hand_overs_between_50_waiters_at_two_servers_keep_the_order_and_leave_nothing(
    etcd: EtcdServer, fragile_pair: Pair, connect: Channels
) -> None:
    await _hand_over(etcd, fragile_pair, connect, rounds=10)


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_RB_25_5000_hand_overs_keep_the_order_and_leave_nothing(
    etcd: EtcdServer, fragile_pair: Pair, connect: Channels
) -> None:
    await _hand_over(etcd, fragile_pair, connect, rounds=100)


async def test_LE_20_LE_21_a_deadlock_over_two_servers_is_told_to_the_younger_only(
    pair: Pair, connect: Channels
) -> None:
    one, other = await _agents(connect, pair, 2, "crossed")
    loop = asyncio.get_running_loop()
    slowest_s = 0.0
    for _ in range(5):
        holds = await one.acquire(one.asks("cross/a")), await other.acquire(other.asks("cross/b"))
        first = await one.wait(one.asks("cross/b", wait_s=30)).is_queued()
        begun = loop.time()
        second = other.wait(other.asks("cross/a/deep", wait_s=30))
        refusal = await second.refusal(within_s=10)
        slowest_s = max(slowest_s, loop.time() - begun)
        assert (refusal.reason, refusal.code) == ("DEADLOCK", grpc.StatusCode.ABORTED)
        assert refusal.facts == {"length": "2", "agents": "crossed-1, crossed-0"}
        assert not first.granted.done()
        await other.release(holds[1].fence)
        mine = await first.grant()
        for fence in (mine.fence, holds[0].fence):
            await one.release(fence)
    print(f"\nslowest to be told: {slowest_s:.2f} s")  # noqa: T201 - the figures are the point
    assert slowest_s < 3
    await _leave([one, other])


async def test_LE_20_LE_21_of_waits_that_cross_at_the_same_moment_one_gets_through(
    pair: Pair, connect: Channels
) -> None:
    """Three in a circle, at two servers, that begin to wait together: one victim each time, and it is never two."""
    agents = await _agents(connect, pair, 3, "circle")
    for _ in range(5):
        holds = [await agent.acquire(agent.asks(f"circle/{place}")) for place, agent in enumerate(agents)]
        asked = [
            agent.wait(agent.asks(f"circle/{(place + 1) % 3}", wait_s=30, mode=SHARED))
            for place, agent in enumerate(agents)
        ]
        async with asyncio.timeout(10):
            await asyncio.wait([waiting.granted for waiting in asked], return_when=asyncio.FIRST_COMPLETED)
        (victim,) = (place for place, waiting in enumerate(asked) if waiting.granted.done())
        refusal = await asked[victim].refusal()
        assert (refusal.reason, refusal.facts["length"]) == ("DEADLOCK", "3")
        await agents[victim].release(holds[victim].fence)
        for behind in (victim - 1, victim - 2):  # the circle dissolves backwards
            mine = await asked[behind % 3].grant()
            await agents[behind % 3].release(mine.fence)
            await agents[behind % 3].release(holds[behind % 3].fence)
    await _leave(agents)


async def test_LE_24_LE_16_a_fence_granted_at_one_server_is_judged_at_the_other_without_delay(
    pair: Pair, connect: Channels
) -> None:
    """No permit outlives its lock, and none is missing: whatever one server has just done, the other goes by it."""
    links = [await connect(pair.a.address), await connect(pair.b.address)]
    holder, stranger = LockAgent(links[0], "holder"), LockAgent(links[0], "stranger")
    await holder.open(TTL_S)
    for number, (here, there) in enumerate([(0, 1), (1, 0)] * 20):
        path = f"fences/{number}"
        at_here, at_there = holder.at(links[here]), holder.at(links[there])
        mine = await at_here.acquire(holder.asks(path))
        with refused("LOCKED_BY_OTHER", lock_id=mine.lock.id, holder_agent="holder", state="HELD"):
            await stranger.at(links[there]).write(f"{path}/e")
        with refused("LOCKED_BY_OTHER"):  # it has not shown it
            await at_there.write(f"{path}/e")
        with refused("NOT_HOLDER", lock_id=mine.lock.id):
            await stranger.at(links[there]).write(f"{path}/e", mine.fence)
        written = await at_there.write(f"{path}/e", mine.fence)
        assert written.revision.number > mine.fence.revision
        assert await at_there.current(mine.fence)
        assert await at_there.release(mine.fence) == RELEASED
        with refused("LOCK_LOST", lock_id=mine.lock.id):
            await at_here.write(f"{path}/e", mine.fence)
        assert not await at_here.current(mine.fence)
        assert await at_here.release(mine.fence) == ALREADY_GONE
        await stranger.at(links[here]).write(f"{path}/e")
    await _leave([holder])


async def test_LE_17_LE_24_no_write_at_either_server_stands_within_somebody_elses_hold(
    pair: Pair, connect: Channels
) -> None:
    """Strangers write without a pause at both servers; holders come and go, and write on while they are being released at
    the other server. Judged by what the store has in the end."""
    links = [await connect(pair.a.address), await connect(pair.b.address)]
    holders = [LockAgent(links[number % 2], f"holder-{number}") for number in range(3)]
    await asyncio.gather(*(agent.open(TTL_S) for agent in holders))
    done = asyncio.Event()
    fence_of: dict[str, int] = {}
    ends: dict[int, int] = {}
    refusals: Counter[str] = Counter()
    late: Counter[str] = Counter()

    async def intrude(number: int) -> None:
        agent = LockAgent(links[number % 2], f"stranger-{number}")
        for turn in itertools.count():
            if done.is_set():
                return
            refusals[(await outcome(agent.write(f"held/{agent.name}-{turn:05}", precondition=absent()))).reason] += 1

    async def write(agent: LockAgent, mine: Granted, name: str) -> str:
        path = f"held/{agent.name}-{name}"
        fence_of[path] = mine.fence.revision
        return (await outcome(agent.write(path, mine.fence, precondition=absent()))).reason

    async def hold(agent: LockAgent) -> None:
        for turn in range(20):
            mine = await agent.wait(agent.asks("held", wait_s=60)).grant(60)
            here, there = agent.at(links[turn % 2]), agent.at(links[1 - turn % 2])
            assert await write(here, mine, f"{turn:05}") == ""
            writes = []
            for part in range(12):
                writes.append(asyncio.ensure_future(write(here, mine, f"{turn:05}-{part:02}")))
                await asyncio.sleep(0)
                if part == 5:
                    releasing = asyncio.ensure_future(there.end(mine.fence))
            while not releasing.done():
                writes.append(asyncio.ensure_future(write(here, mine, f"{turn:05}-{len(writes):02}")))
                await (writes[-IN_FLIGHT_MAX] if len(writes) > IN_FLIGHT_MAX else asyncio.sleep(0))
            ends[mine.fence.revision] = releasing.result()
            late.update(await asyncio.gather(*writes))
            await asyncio.sleep(0.005)  # for the strangers

    strangers = [asyncio.create_task(intrude(number)) for number in range(2)]
    await asyncio.gather(*map(hold, holders))
    done.set()
    await asyncio.gather(*strangers)
    entries = await holders[0].entries("held")
    writes = [
        ProtectedWrite(fence_of.get(path := entry.key.path, 0), entry.revision.number, path[: len("held/holder-0")])
        for entry in entries
    ]
    print(f"\nstrangers were told {dict(refusals)}, holders on their way out {dict(late)}")  # noqa: T201 - the figures are the point
    assert faults_of(writes, ends) == []
    assert refusals.keys() == {"", "LOCKED_BY_OTHER"}
    assert late.keys() == {"", "LOCK_LOST"}
    assert min(*refusals.values(), *late.values()) > 20
    await _leave(holders)


async def test_LE_24_after_a_downgrade_at_one_server_nobody_writes_at_the_other(pair: Pair, connect: Channels) -> None:
    links = [await connect(pair.a.address), await connect(pair.b.address)]
    holder, reader = LockAgent(links[0], "holder"), LockAgent(links[1], "reader")
    await asyncio.gather(holder.open(TTL_S), reader.open(TTL_S))
    stood, late = [0], 0
    for number in range(20):
        path = f"downgrades/{number}"
        at_here, at_there = holder.at(links[number % 2]), holder.at(links[1 - number % 2])
        mine = await at_here.acquire(holder.asks(path))
        await at_there.write(f"{path}/e", mine.fence)
        writes = [asyncio.ensure_future(at_there.write(f"{path}/{part}", mine.fence)) for part in range(5)]
        await writes[0]
        downgrading = asyncio.ensure_future(at_here.downgrade(mine.fence))
        while not downgrading.done():
            writes.append(asyncio.ensure_future(at_there.write(f"{path}/{len(writes)}", mine.fence)))
            await asyncio.sleep(0)
        lock, shared_since = downgrading.result()
        done = await asyncio.gather(*writes, return_exceptions=True)
        stood += [one.revision.number for one in done if isinstance(one, commit_pb2.CommitResponse)]
        assert max(stood) < shared_since
        late += sum(isinstance(one, grpc.aio.AioRpcError) for one in done)
        assert (lock.mode, lock.fence_revision) == (SHARED, mine.fence.revision)
        with refused("LOCK_SHARED", lock_id=mine.lock.id):
            await at_there.write(f"{path}/e", mine.fence)
        with refused("LOCKED_BY_OTHER"):
            await reader.write(f"{path}/e")
        beside = await reader.at(links[1 - number % 2]).acquire(reader.asks(path, mode=SHARED))
        assert await at_there.current(mine.fence)
        assert await at_here.release(mine.fence) == RELEASED
        assert await reader.release(beside.fence) == RELEASED
    assert min(len(stood), late) > 20
    await _leave([holder, reader])


async def test_a_lock_broken_at_one_server_is_told_to_its_holder_at_the_other(pair: Pair, connect: Channels) -> None:
    holder = await connect.agent(pair.b.address, "holder")
    supervisor = await connect.agent(pair.a.address, "chief", "supervisor")
    rival = await connect.agent(pair.a.address, "rival")
    await asyncio.gather(holder.open(TTL_S), rival.open(TTL_S))
    async with holder.beats() as beats:
        await beats.beat()
        await beats.until(lambda: bool(beats.told))
        kept = await holder.acquire(holder.asks("broken/kept"))
        for number in range(5):
            mine = await holder.acquire(holder.asks("broken/taken"))
            waiting = await rival.wait(rival.asks("broken/taken", wait_s=30)).is_queued()
            await supervisor.break_lock(mine.lock.id, "it takes too long", skip_lock_delay=number % 2 == 0)
            with refused("LOCK_LOST", lock_id=mine.lock.id):
                await holder.write("broken/taken/e", mine.fence)
            await beats.until(lambda number=number: len(beats.losses) > number)  # type: ignore[misc] # the loop's own
            assert beats.losses[number] == session_service_pb2.LostLock(
                lock_id=mine.lock.id,
                reason=session_service_pb2.LOCK_LOSS_REASON_BROKEN,
                broken_by="chief",
                words="it takes too long",
            )
            theirs = await waiting.grant()
            assert theirs.fence.revision > mine.fence.revision
            await rival.release(theirs.fence)
        await holder.write("broken/kept/e", kept.fence)
        assert await holder.release(kept.fence) == RELEASED
        assert len(beats.losses) == 5  # a release is no loss
    await _leave([holder, rival])


async def test_LE_14_a_lock_over_its_longest_hold_is_denied_to_its_holder_before_it_is_given_on(
    pair: Pair, connect: Channels
) -> None:
    """Renewed or not, at whichever server: the holder is told, and its fence is dead when another has the lock."""
    a, b = await connect(pair.a.address), await connect(pair.b.address)
    holder, rival = LockAgent(a, "holder"), LockAgent(b, "rival")
    await asyncio.gather(holder.open(TTL_S), rival.open(TTL_S))
    kept = await holder.acquire(holder.asks("capped/kept"))
    mine = await holder.acquire(holder.asks("capped/taken", hold_s=1, delay_s=0))
    async with holder.at(b).beats() as beats:
        await beats.beat()
        waiting = await rival.wait(rival.asks("capped/taken", wait_s=30)).is_queued()
        await holder.write("capped/taken/e", mine.fence)
        theirs = await waiting.grant(1 + 3)
        with refused("LOCK_LOST", lock_id=mine.lock.id):
            await holder.write("capped/taken/late", mine.fence)
        assert not await holder.current(mine.fence)
        await beats.until(lambda: bool(beats.losses))
        assert beats.losses == [
            session_service_pb2.LostLock(
                lock_id=mine.lock.id, reason=session_service_pb2.LOCK_LOSS_REASON_HELD_TOO_LONG
            )
        ]
    assert theirs.lock.grant_time.ToMilliseconds() >= mine.lock.end_time.ToMilliseconds()
    await holder.write("capped/kept/e", kept.fence)
    await _leave([holder, rival])


async def test_LE_23_all_targets_or_none_whichever_server_is_asked(pair: Pair, connect: Channels) -> None:
    """Requests for several targets in any order, at both servers, all get through: none holds half and waits for the rest."""
    agents = await _agents(connect, pair, 12, "many")
    paths = ["all/a", "all/b", "all/c", "all/d"]
    orders = itertools.cycle(itertools.permutations(paths, 3))
    holders: set[str] = set()
    free = dict.fromkeys(paths, "")

    async def work(agent: LockAgent) -> None:
        for _ in range(4):
            wanted = next(orders)
            mine = await agent.wait(agent.asks(*wanted, wait_s=60)).grant(60)
            assert [free[path] for path in wanted] == ["", "", ""]
            free.update(dict.fromkeys(wanted, agent.name))
            holders.add(agent.name)
            await agent.write(f"{wanted[2]}/e", mine.fence)
            free.update(dict.fromkeys(wanted, ""))
            await agent.release(mine.fence)

    await asyncio.gather(*map(work, agents))
    assert len(holders) == 12
    await _leave(agents)


async def test_RB_31_the_same_request_at_the_other_server_gets_the_same_grant(pair: Pair, connect: Channels) -> None:
    one, other = await _agents(connect, pair, 2, "repeats")
    elsewhere = one.at(other.channel)
    for number in range(10):
        request = one.asks(f"repeat/{number}")
        done = await at_once([one.acquire(request), elsewhere.acquire(request), one.acquire(request)])
        granted = [answer for answer, _, _ in done if isinstance(answer, Granted)]
        # Of streams with one request id at one server the later takes the earlier's place.
        assert {reason for _, reason, _ in done} <= {"", "LOCK_WAIT_TAKEN_OVER"}
        assert len(granted) >= 2
        assert len({grant.fence.revision for grant in granted}) == 1
        assert Counter(grant.replayed for grant in granted)[False] <= 1
        again = await elsewhere.acquire(request)
        assert (again.replayed, again.fence) == (True, granted[0].fence)
        assert len((await other.listed(f"repeat/{number}")).locks) == 1
        await elsewhere.release(again.fence)
        assert (await outcome(one.acquire(request))).reason == "LOCK_LOST"
    await _leave([one, other])
