"""Requests for locks that are sent again, cut, or left behind, and servers that stop meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from kokuban.v1 import lock_pb2, lock_service_pb2, session_service_pb2
from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.adapters.sqlite import SqliteStore
from kokuban_server.app import lock_upkeep, presence
from kokuban_server.core import keys, limits
from kokuban_server.core.refusals import OutcomeUnknown, StoreUnavailable
from kokuban_server.ports.board_store import CommitRefused
from kokuban_server.records.lock_codec import decode_lock
from tests.wire.calls import (
    SHARED,
    START_MS,
    Agent,
    HeldStore,
    Kept,
    Member,
    SettableClock,
    acquire_request,
    connected,
    eventually,
    lapse,
    leaf,
    names,
    new_id,
    outcome,
    put,
    records,
    refused,
    tree,
    until,
    waits,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.conftest import Running, Started

HELD, LOST = lock_pb2.LOCK_STATE_HELD, lock_pb2.LOCK_STATE_LOST


# Requests that are sent again.


async def test_RB_31_the_same_request_gives_the_same_grant_by_any_server(start: Started, any_store: BoardStore) -> None:
    one, two = (await start(any_store)).agent, (await start(any_store)).agent
    session = await one.session()
    request = acquire_request(session, "a", "b", wait_s=5)
    first = await one.grant(request)
    for agent in (two, one, two):
        again = await agent.grant(request)
        assert again.replayed
        assert (again.lock, again.fence) == (first.lock, first.fence)
    assert len(await names(any_store, keys.LOCK)) == 1
    assert len(await names(any_store, keys.MARKER)) == 1


class SilentStore(MemoryStore):
    """A memory store that can keep to itself what became of commits."""

    is_silent = False

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        if not self.is_silent:
            return await super().commit(change, deadline_s)
        with contextlib.suppress(CommitRefused):
            await super().commit(change, deadline_s)
        raise OutcomeUnknown


async def test_RB_30_a_grant_whose_answer_was_lost_is_found_by_the_same_request(
    start: Started, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SilentStore(clock)
    running = await start(store)
    member = await running.join()
    monkeypatch.setattr(limits, "DEADLINE_S_DEFAULT", 0.2)
    request = acquire_request(member.session, "a")
    store.is_silent = True
    with refused("OUTCOME_UNKNOWN", request_id=request.request_id) as found:
        await member.agent.grant(request)
    assert found[0].code is grpc.StatusCode.UNAVAILABLE
    store.is_silent = False
    monkeypatch.undo()
    granted = await member.agent.grant(request)
    assert granted.replayed
    await member.agent.commit(put("a"), fences=[granted.fence])
    assert await names(store, keys.LOCK) == [granted.lock.id]


async def test_RB_30_a_lost_answer_is_looked_for_by_the_server_itself(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    member = await running.join()
    store.loses_answers = True
    asking = asyncio.ensure_future(member.acquire("a"))
    await until(lambda: store.lost > 0)
    store.loses_answers = False
    fence = await asking
    await member.agent.commit(put("a"), fences=[fence])
    assert await names(store, keys.LOCK) == [fence.lock_id]


async def test_a_repeat_after_the_lock_is_gone_is_told_so_however_it_went(on_any_store: Running) -> None:
    running = on_any_store
    keeper = running.as_agent("keeper", "supervisor")

    async def let_lapse(member: Member, granted: lock_service_pb2.LockGranted) -> None:
        await lapse(running.server._store, member.session)

    async def give_back(member: Member, granted: lock_service_pb2.LockGranted) -> None:
        assert await member.agent.release(granted.fence)

    async def have_it_broken(member: Member, granted: lock_service_pb2.LockGranted) -> None:
        await keeper.break_lock(granted.lock.id)

    async def close(member: Member, granted: lock_service_pb2.LockGranted) -> None:
        assert await member.agent.close(member.session)

    for place, end in enumerate((let_lapse, give_back, have_it_broken, close)):
        member = await running.join()
        request = acquire_request(member.session, str(place))
        granted = await member.agent.grant(request)
        await end(member, granted)
        for _ in range(2):
            with refused("LOCK_LOST", lock_id=granted.lock.id) as found:
                await member.agent.grant(request)
            assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION
    assert await names(running.server._store, keys.LOCK) == []


async def test_the_same_id_with_other_arguments_is_refused_and_takes_nothing_over(on_any_store: Running) -> None:
    holder, member = await on_any_store.join("holder"), await on_any_store.join("writer-2")
    fence = await holder.acquire("a")
    await member.agent.commit(put("e"))
    request = acquire_request(member.session, "a", wait_s=60)
    waiting = member.agent.ask(request)
    await waiting.queued()
    used = request.request_id
    for other in (
        acquire_request(member.session, "b", wait_s=60, request_id=used),
        acquire_request(member.session, "a", wait_s=60, request_id=used, mode=SHARED),
        acquire_request(member.session, "a", wait_s=60, request_id=used, purpose="another"),
        acquire_request(member.session, "a", wait_s=60, request_id=used, hold_s=10),
        acquire_request(member.session, "a", wait_s=60, request_id=used, delay_s=10),
        acquire_request(await member.agent.session(), "a", wait_s=60, request_id=used),
    ):
        with refused("REQUEST_ID_REUSED", request_id=used):
            await member.agent.grant(other)
    with refused("REQUEST_ID_REUSED", request_id=used):
        await member.agent.claim(member.session, "e", request_id=used)
    assert [wait.agent for wait in (await holder.agent.list_locks()).waits] == ["writer-2"]
    await holder.agent.release(fence)
    granted = await waiting.granted()  # the stream that waited has lost nothing
    with refused("REQUEST_ID_REUSED", request_id=used):
        await member.agent.commit(put("f"), request_id=used)
    await member.agent.release(granted.fence)


async def test_one_id_is_for_one_act_of_whatever_kind(each: Agent) -> None:
    session = await each.session()
    used = new_id()
    await each.commit(put("e"), request_id=used)
    with refused("REQUEST_ID_REUSED", request_id=used):
        await each.acquire(session, "a", request_id=used)
    with refused("REQUEST_ID_REUSED", request_id=used):
        await each.claim(session, "e", request_id=used)
    with refused("REQUEST_ID_REUSED", request_id=used):
        await each.open_session(request_id=used)
    assert await each.lock_ids() == []


@pytest.mark.parametrize(
    ("offset_ms", "fits"), [(-3_600_000, False), (-3_599_999, True), (300_000, True), (300_001, False)]
)
async def test_an_id_outside_the_window_is_refused(each: Agent, offset_ms: int, fits: bool) -> None:  # noqa: FBT001 - a parameter of the test
    session = await each.session()
    request = acquire_request(session, "a", request_id=new_id(START_MS + offset_ms))
    if fits:
        await each.grant(request)
        return
    with refused("REQUEST_ID_EXPIRED", request_id=request.request_id, window_s="3600"):
        await each.grant(request)
    assert await each.lock_ids() == []


async def test_a_second_stream_with_the_same_id_takes_the_place_of_the_first(
    start: Started, any_store: BoardStore
) -> None:
    """On the same server and on another; its place in the queue stays."""
    one, two = await start(any_store), await start(any_store)
    holder, late = await one.join("holder"), await one.join("late")
    fence = await holder.acquire("a")
    member = await one.join("writer-2")
    request = acquire_request(member.session, "a", wait_s=60)
    elsewhere = two.as_agent("writer-2")
    streams = [member.agent.ask(request)]
    await streams[0].queued()
    behind = await late.queued("a")
    for agent in (member.agent, elsewhere, elsewhere, member.agent):
        streams.append(agent.ask(request))
        assert (await streams[-1].queued()).ahead == 0
        with refused("LOCK_WAIT_TAKEN_OVER") as found:
            await streams[-2].ended()
        assert found[0].code is grpc.StatusCode.ABORTED
    assert len((await two.agent.list_locks()).waits) == 2
    await holder.agent.release(fence)
    granted = await streams[-1].granted()
    await member.agent.release(granted.fence)
    await behind.granted()


async def test_a_repeat_may_wait_for_another_time_or_no_more(start: Started, any_store: BoardStore) -> None:
    """Longer, and it keeps its place; not at all, and it has left the queue, unless it was granted in that moment."""
    one, two = await start(any_store), await start(any_store)
    holder, member = await one.join("holder"), await one.join("writer-2")
    for again in (one, two):
        fence = await holder.acquire("a")
        used = new_id()
        short = await member.queued("a", wait_s=20, request_id=used)
        agent = again.as_agent("writer-2")
        longer = agent.ask(acquire_request(member.session, "a", wait_s=60, request_id=used))
        assert (await longer.queued()).ahead == 0
        with refused("LOCK_WAIT_TAKEN_OVER"):
            await short.ended()
        with refused("LOCKED_BY_OTHER", lock_id=fence.lock_id):
            await agent.grant(acquire_request(member.session, "a", request_id=used))
        with refused("LOCK_WAIT_TAKEN_OVER"):
            await longer.ended()
        await eventually(lambda: waits(holder.agent, 0), 5)
        waiting = await member.queued("a", request_id=used)
        await holder.agent.release(fence)
        granted = await waiting.granted()
        asked = await agent.grant(acquire_request(member.session, "a", request_id=used))
        assert (asked.fence, asked.replayed) == (granted.fence, True)
        await agent.release(asked.fence)


# Leaving the queue.


async def test_a_stream_that_is_cut_withdraws_its_request(on_any_store: Running) -> None:
    holder, first, second = [await on_any_store.join(f"writer-{number}") for number in range(3)]
    fence = await holder.acquire("a")
    cut = await first.queued("a")
    waiting = await second.queued("a")
    cut.cancel()
    await eventually(lambda: waits(holder.agent, 1))
    await holder.agent.release(fence)
    assert (await waiting.granted()).lock.agent == "writer-2"


async def test_a_connection_that_dies_withdraws_its_requests(on_any_store: Running) -> None:
    holder = await on_any_store.join("holder")
    fence = await holder.acquire("a")
    async with connected(on_any_store.port) as channel:
        agent = Agent(channel, "writer-2")
        member = Member(agent, await agent.session())
        await member.queued("a")
        assert await waits(holder.agent, 1)
    await eventually(lambda: waits(holder.agent, 0))
    await holder.agent.release(fence)
    await holder.acquire("a")


async def test_a_wait_that_is_cut_while_it_begins_leaves_nothing(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    holder, member = await running.join("holder"), await running.join("writer-2")
    await holder.acquire("a")
    warm = await member.queued("a")  # from here on the server has said that it lives
    warm.cancel()
    await eventually(lambda: waits(holder.agent, 0))
    store.hold()
    asking = member.ask("a", wait_s=60)
    queues = running.server._lock_requests._queues
    await until(lambda: any(asked.in_round for queue in queues.values() for asked in queue._in_hand.values()))
    asking.cancel()
    await until(lambda: not any(queue._in_hand for queue in queues.values()))
    store.release()
    await until(lambda: not running.server._lock_requests._background._tasks)
    assert await records(store, keys.WAIT) == []


async def test_a_wait_that_began_unseen_does_not_block_the_queue_for_long(
    start: Started, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store did not say whether the wait began, and the client does not ask again: nobody waits for it."""
    monkeypatch.setattr(limits, "WAIT_ADOPTED_S_MAX", 0.3)
    store = SilentStore(clock)
    running = await start(store)
    holder, member, late = [await running.join(f"writer-{number}") for number in range(3)]
    fence = await holder.acquire("a")
    warm = await member.queued("a")
    warm.cancel()
    await eventually(lambda: waits(holder.agent, 0))
    monkeypatch.setattr(limits, "DEADLINE_S_DEFAULT", 0.05)
    store.is_silent = True
    with refused("OUTCOME_UNKNOWN"):
        await member.acquire("a", wait_s=60)
    store.is_silent = False
    monkeypatch.setattr(limits, "DEADLINE_S_DEFAULT", 30.0)
    assert await waits(holder.agent, 1)
    asking = await late.queued("a")
    await holder.agent.release(fence)
    assert (await asyncio.wait_for(asking.granted(), 5)).lock.agent == "writer-2"


async def test_a_wait_that_is_over_is_withdrawn_and_told_who_was_in_the_way(on_any_store: Running) -> None:
    holder, member = await on_any_store.join("planner"), await on_any_store.join("writer-2")
    fence = await holder.acquire(tree("a"), purpose="to plan")
    waiting = await member.queued("a/b", wait_s=0.2)
    with refused(
        "LOCK_WAIT_EXPIRED",
        lock_id=fence.lock_id,
        holder_agent="planner",
        purpose="to plan",
        region="shared:plan",
        path="a/b",
    ) as found:
        await waiting.ended()
    assert found[0].code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 200 <= int(found[0].facts["waited_ms"]) < 30_000
    assert await waits(holder.agent, 0)
    await holder.agent.release(fence)
    await holder.acquire("a/b")


async def test_a_wait_that_outlives_its_request_id_is_refused_and_withdrawn(
    on_any_store: Running, clock: SettableClock
) -> None:
    """What is granted then could not be told from a repeat."""
    holder, member, late = [await on_any_store.join(f"writer-{number}") for number in range(3)]
    fence = await holder.acquire("a")
    waiting = await member.queued("a", wait_s=3_600)
    clock.pass_ms(3_600_000)
    behind = await late.queued("a", request_id=new_id(clock.ms))
    await holder.agent.release(fence)
    with refused("REQUEST_ID_EXPIRED"):
        await waiting.ended()
    assert (await behind.granted()).lock.agent == "writer-2"
    assert await waits(holder.agent, 0)


async def test_a_request_that_has_become_too_old_takes_no_other_of_its_round_with_it(
    on_any_store: Running, clock: SettableClock
) -> None:
    holder, member, late = [await on_any_store.join(f"writer-{number}") for number in range(3)]
    fence = await holder.acquire(tree("a"))
    old = await member.queued("a/x", wait_s=3_600)
    clock.pass_ms(3_600_000)
    beside = await late.queued("a/y", request_id=new_id(clock.ms))
    await holder.agent.release(fence)  # both may go at once
    with refused("REQUEST_ID_EXPIRED"):
        await old.ended()
    assert (await beside.granted()).lock.agent == "writer-2"
    assert await waits(holder.agent, 0)


async def test_RB_01_a_waiter_whose_session_lapses_is_told_so_and_never_granted(on_any_store: Running) -> None:
    store = on_any_store.server._store
    holder, member, late = [await on_any_store.join(f"writer-{number}") for number in range(3)]
    fence = await holder.acquire("a")
    waiting = await member.queued("a")
    behind = await late.queued("a")
    await lapse(store, member.session)
    with refused("SESSION_LOST", session_id=member.session) as found:
        await waiting.ended()
    assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION
    await holder.agent.release(fence)
    assert (await behind.granted()).lock.agent == "writer-2"
    with refused("SESSION_LOST"):
        await member.acquire("b")


async def test_RB_01_also_if_its_session_lapses_in_the_moment_of_its_turn(on_any_store: Running) -> None:
    store = on_any_store.server._store
    for turn in range(20):
        holder, member = await on_any_store.join("holder"), await on_any_store.join("writer-2")
        fence = await holder.acquire(f"a{turn}")
        waiting = await member.queued(f"a{turn}")
        answers = await asyncio.gather(
            outcome(waiting.granted()), holder.agent.release(fence), lapse(store, member.session)
        )
        if isinstance(answers[0], lock_service_pb2.LockGranted):  # then it was granted before the session ended
            with refused("LOCK_LOST"):
                await member.agent.commit(put("x"), fences=[answers[0].fence])
        else:
            assert answers[0].reason == "SESSION_LOST"
    assert await names(store, keys.LOCK) == []
    assert await names(store, keys.WAIT) == []


async def test_LE_05_what_waits_ends_and_what_is_held_does_not(on_any_store: Running) -> None:
    """A pending request never counts as a holder for ever, and a live lock never reverts."""
    store = on_any_store.server._store
    holder, member = await on_any_store.join("holder"), await on_any_store.join("writer-2")
    fence = await holder.acquire("a", delay_s=0)
    pulse = await holder.agent.keep_alive(holder.session)
    states = []
    for end in ("expired", "cut", "lapsed", "closed"):
        waiting = await member.queued("a", wait_s=1 if end == "expired" else 60)
        if end == "cut":
            waiting.cancel()
        if end == "lapsed":
            await lapse(store, member.session)
            member = await on_any_store.join("writer-2")
        if end == "closed":
            await member.agent.close(member.session)
            member = await on_any_store.join("writer-2")
        await eventually(lambda: waits(holder.agent, 0))
        await pulse.renew()
        states.append([(lock.id, lock.state) for lock in (await holder.agent.list_locks()).locks])
        await holder.agent.commit(put(end), fences=[fence])
    assert states == [[(fence.lock_id, HELD)]] * 4
    pulse.cancel()


# Servers that stop.


async def test_a_wait_on_a_server_that_drains_ends_and_keeps_its_place_on_another(
    start: Started, any_store: BoardStore
) -> None:
    one, two = await start(Kept(any_store), drain_grace_s=10.0), await start(any_store)
    holder, late = await two.join("holder"), await two.join("late")
    fence = await holder.acquire("a")
    session = await one.as_agent("writer-2").session()
    request = acquire_request(session, "a", wait_s=60)
    waiting = one.as_agent("writer-2").ask(request)
    await waiting.queued()
    behind = await late.queued("a")
    stopping = asyncio.ensure_future(one.server.stop())
    with refused("SERVER_DRAINING") as found:
        await waiting.ended()
    assert (found[0].code, found[0].retry_ms) == (grpc.StatusCode.UNAVAILABLE, 100)
    await stopping
    again = two.as_agent("writer-2").ask(request)
    assert (await again.queued()).ahead == 0
    await holder.agent.release(fence)
    granted = await again.granted()
    assert granted.lock.agent == "writer-2"
    await two.as_agent("writer-2").release(granted.fence)
    await behind.granted()


async def test_a_wait_that_a_dead_server_leaves_is_removed_after_the_grace(
    start: Started, any_store: BoardStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WAIT_ADOPTED_S_MAX", 0.3)
    one, two = await start(any_store), await start(any_store)
    holder, late = await two.join("holder"), await two.join("late")
    fence = await holder.acquire("a")
    session = await two.as_agent("writer-2").session()
    await one.as_agent("writer-2").ask(acquire_request(session, "a", wait_s=600)).queued()
    behind = await late.queued("a")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await die(one, any_store)
    assert await waits(holder.agent, 2)
    await eventually(lambda: waits(holder.agent, 1))
    assert loop.time() - begun >= 0.25
    await holder.agent.release(fence)
    await behind.granted()


async def die(running: Running, store: BoardStore) -> None:
    """Have a server end without a word: nothing is withdrawn, and its lease lapses."""
    server = running.server
    server._lock_requests._draining.set()  # else the cut streams would withdraw their requests
    await server._wire._server.stop(0)
    for task in (server._presence._renewing, server._mirror._runner, *server._background):
        assert task is not None
        task.cancel()
    assert server._presence._lease is not None
    await store.revoke_lease(server._presence._lease, 5.0)
    server._presence._lease = None


async def test_a_repeat_within_the_grace_keeps_its_place_after_a_servers_death(
    start: Started, any_store: BoardStore
) -> None:
    one, two = await start(any_store), await start(any_store)
    holder, late = await two.join("holder"), await two.join("late")
    fence = await holder.acquire("a")
    agent = two.as_agent("writer-2")
    request = acquire_request(await agent.session(), "a", wait_s=600)
    await one.as_agent("writer-2").ask(request).queued()
    behind = await late.queued("a")
    await die(one, any_store)
    again = agent.ask(request)
    assert (await again.queued()).ahead == 0
    await holder.agent.release(fence)
    await agent.release((await again.granted()).fence)
    await behind.granted()


async def test_a_server_that_was_too_slow_to_say_that_it_lives_goes_on(
    running: Running, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its waits may be taken for orphans: whoever still waits begins anew."""
    monkeypatch.setattr(presence, "_RENEW_S", 0.02)
    holder, member = await running.join("holder"), await running.join("writer-2")
    fence = await holder.acquire("a")
    waiting = await member.queued("a")
    first = running.server._presence._lease
    assert first is not None
    await store.revoke_lease(first, 1.0)
    for record in await records(store, keys.WAIT):
        decode_lock(record.key, record.value)
    await until(lambda: running.server._presence._lease not in {None, first})
    await holder.agent.release(fence)
    await waiting.granted()


async def test_what_is_begun_anew_from_the_store_is_the_same_picture(start: Started, any_store: BoardStore) -> None:
    """A server that starts on a store with a past: locks that were released since are no gap."""
    one = await start(any_store)
    holder, waiter = await one.join(), await one.join("writer-2")
    for path in ("a", "b"):
        assert await holder.agent.release(await holder.acquire(leaf(path), leaf(path, "task:1")))
    fence = await holder.acquire("c")
    waiting = await waiter.queued("c")
    two = await start(any_store)
    with refused("LOCKED_BY_OTHER", lock_id=fence.lock_id):
        await two.as_agent("writer-3").commit(put("c"))
    await two.as_agent("writer-3").commit(put("a"))
    assert two.server._mirror.reloads == 0
    assert two.server._mirror.stands
    prefix = keys.board_prefix("dev", "main")
    for server in (one.server, two.server):
        picture = server._mirror.picture(prefix)
        assert list(picture.locks) == [fence.lock_id]
        assert len(picture.waits) == 1
        assert set(picture.sessions) == {holder.session, waiter.session}
    waiting.cancel()


async def test_an_embedded_store_that_is_opened_again_has_its_sessions_locks_and_waits(
    start: Started, clock: SettableClock, tmp_path: Path
) -> None:
    """A server that restarts: fences still hold, and whoever waited has its place for the grace."""
    running = await start(await SqliteStore.open(tmp_path / "kept", clock), drain_grace_s=10.0)
    holder, waiter, late = [await running.join(f"writer-{number}") for number in range(3)]
    fence = await holder.acquire("a")
    request = acquire_request(waiter.session, "a", wait_s=60)
    waiting = waiter.agent.ask(request)
    await waiting.queued()
    behind = await late.queued("a")
    stopping = asyncio.ensure_future(running.server.stop())
    for asking in (waiting, behind):
        with refused("SERVER_DRAINING"):
            await asking.ended()
    await stopping
    again = await start(await SqliteStore.open(tmp_path / "kept", clock))
    holder, waiter = [Member(again.as_agent(m.agent.name), m.session) for m in (holder, waiter)]
    with refused("LOCKED_BY_OTHER", lock_id=fence.lock_id):
        await again.agent.commit(put("a"))
    await holder.agent.commit(put("a"), fences=[fence])
    await holder.agent.keep_alive(holder.session)
    waiting = waiter.agent.ask(request)
    assert (await waiting.queued()).ahead == 0
    assert len((await again.agent.list_locks()).waits) == 2
    await holder.agent.release(fence)
    await waiting.granted()


# What goes wrong meanwhile.


async def test_no_wake_up_is_lost_when_a_release_and_a_request_meet(start: Started, any_store: BoardStore) -> None:
    """Of the same server and of two, at every distance from each other."""
    servers = [await start(any_store), await start(any_store)]
    chance = random.Random(1)
    holder = await servers[0].join("holder")
    others = [await server.join("writer-2") for server in servers]
    async with asyncio.timeout(30):
        for turn in range(60):
            fence = await holder.acquire("a", wait_s=10)

            async def after(steps: int, call: Awaitable[Any]) -> Any:  # noqa: ANN401 - what the call gives
                for _ in range(steps):
                    await asyncio.sleep(0)
                return await call

            other = others[turn % 2]
            _, got = await asyncio.gather(
                after(chance.randrange(30), holder.agent.release(fence)),
                after(chance.randrange(30), other.acquire("a", wait_s=20)),
            )
            assert await other.agent.release(got)


async def test_a_wait_outlives_an_outage_of_the_store(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    holder, waiter = await running.join(), await running.join("writer-2")
    fence = await holder.acquire("a", delay_s=0)
    waiting = await waiter.queued("a")
    store.fault_in_commit = StoreUnavailable("hunter2")
    with refused("STORE_UNAVAILABLE"):
        await holder.agent.release(fence)
    assert (await holder.agent.check_current(fence)).current
    await lapse(store, holder.session)
    await until(lambda: store.faults_in_commit > 2)  # its servers try, and try again
    store.fault_in_commit = None
    await asyncio.wait_for(waiting.granted(), 5)


async def test_what_happens_while_a_server_cannot_follow_the_store_is_made_up_for(
    start: Started, clock: SettableClock
) -> None:
    """Its watch fails again and again; when it stands, waiters get their turn, and holders hear what they have lost."""
    store = HeldStore(clock)
    one, two = await start(store), await start(Kept(store))
    holder, waiter, gone = [await one.join(f"writer-{number}") for number in range(3)]
    fence, broken = await holder.acquire("a"), await holder.acquire("b", delay_s=0)
    waiting = await waiter.queued("a")
    pulses = [await member.agent.keep_alive(member.session) for member in (holder, gone)]
    await two.agent.list_locks()
    store.fault_in_watch = RuntimeError("hunter2")
    reloads = one.server._mirror.reloads
    keeper = two.as_agent("keeper", "operator")
    await keeper.break_lock(broken.lock_id, "words", skip_lock_delay=True)
    await two.as_agent("writer-0").release(fence)
    await lapse(store, gone.session)
    await until(lambda: one.server._mirror.reloads > reloads)
    store.fault_in_watch = None
    await asyncio.wait_for(waiting.granted(), 5)
    news = await asyncio.wait_for(pulses[0].news(), 5)
    assert broken.lock_id in {lost.lock_id for lost in news.lost_locks}
    assert (await asyncio.wait_for(pulses[1].news(), 5)).state == session_service_pb2.SESSION_STATE_LOST
    pulses[0].cancel()


async def test_a_client_whose_own_deadline_is_shorter_than_its_wait_leaves_the_queue(on_any_store: Running) -> None:
    holder, waiter = await on_any_store.join(), await on_any_store.join("writer-2")
    await holder.acquire("a")
    asking = waiter.agent.ask(acquire_request(waiter.session, "a", wait_s=60), timeout_s=0.3)
    await asking.queued()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asking.ended()
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: waits(holder.agent, 0))


async def test_a_request_that_is_nearly_out_of_time_does_not_take_that_of_others(
    start: Started, clock: SettableClock
) -> None:
    """They are dealt with in one round, and the store is given the time of the one that has most."""
    store = HeldStore(clock)
    running = await start(store)
    hasty, patient = await running.join(), await running.join("writer-2")
    await patient.acquire("first")
    store.hold()
    begun = patient.ask("second")
    queues = running.server._lock_requests._queues
    await until(lambda: any(queue._busy for queue in queues.values()))
    short = hasty.agent.ask(acquire_request(hasty.session, "a"), timeout_s=0.2)
    long = patient.ask("b")
    await until(lambda: any(len(queue._pending) == 2 for queue in queues.values()))
    store.release()
    await begun.granted()
    await asyncio.gather(outcome(short.granted()), long.granted())
    assert store.deadline_s > 1


async def test_at_most_16_of_those_in_the_way_are_named(running: Running) -> None:
    readers = [await running.join(f"reader-{number}") for number in range(17)]
    for reader in readers:
        await reader.acquire("a", mode=SHARED)
    waiting = (await running.join()).ask("a", wait_s=60)
    queued = await waiting.queued()
    assert len(queued.held_by) == 16
    waiting.cancel()


async def test_what_is_to_be_looked_at_later_does_not_grow_with_the_locks_that_were(
    start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lock has a longest hold of 24 hours, and most are released long before."""
    monkeypatch.setattr(lock_upkeep, "_DUE_MIN", 16)
    running = await start()
    member = await running.join()
    for _ in range(100):
        assert await member.agent.release(await member.acquire("a"))
    assert len(running.server._lock_upkeep._due) <= 32
