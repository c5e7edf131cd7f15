"""Locks that end without a release: lapsed, held too long, broken; and on a store without room."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc

from kokuban.v1 import lock_pb2, session_service_pb2
from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.app import lock_upkeep
from kokuban_server.bootstrap import Server
from kokuban_server.core import keys
from kokuban_server.core.refusals import StoreFull
from kokuban_server.settings import Settings
from tests.wire.audit_calls import audit_records
from tests.wire.calls import (
    START_MS,
    Agent,
    HeldStore,
    Kept,
    Member,
    SettableClock,
    acquire_request,
    connected,
    lapse,
    names,
    new_id,
    outcome,
    put,
    records,
    refused,
    until,
    waits,
)
from tests.wire.conftest import DIGEST_KEY

if TYPE_CHECKING:
    import pytest

    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.conftest import Running, Started

HELD, LOST = lock_pb2.LOCK_STATE_HELD, lock_pb2.LOCK_STATE_LOST


# Losses.


async def _is_free(member: Member, path: str) -> bool:
    answer = await outcome(member.acquire(path))
    if isinstance(answer, lock_pb2.Fence):
        return await member.agent.release(answer)
    assert answer.reason == "LOCKED_BY_OTHER"
    assert answer.facts["state"] == "LOST"
    return False


async def test_what_is_lost_stays_closed_to_everybody_for_its_lock_delay(on_any_store: Running) -> None:
    store = on_any_store.server._store
    holder, other = await on_any_store.join(), await on_any_store.join("writer-2")
    granted = await holder.agent.grant(acquire_request(holder.session, "a", delay_s=0.5))
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await lapse(store, holder.session)
    (lost,) = (await other.agent.list_locks()).locks
    assert (lost.id, lost.state) == (granted.lock.id, LOST)
    with refused("LOCKED_BY_OTHER", state="LOST", lock_id=granted.lock.id):
        await other.acquire("a")
    with refused("LOCKED_BY_OTHER", state="LOST", lock_id=granted.lock.id):
        await other.agent.commit(put("a"))
    with refused("LOCK_LOST"):
        await holder.agent.commit(put("a"), fences=[granted.fence])
    waiting = await other.queued("a")
    fence = (await waiting.granted()).fence
    assert loop.time() - begun >= 0.5
    await other.agent.commit(put("a"), fences=[fence])
    assert await names(store, keys.MARKER) == [fence.lock_id]


async def test_a_lock_without_delay_is_free_as_soon_as_it_is_lost(on_any_store: Running) -> None:
    holder, other = await on_any_store.join(), await on_any_store.join("writer-2")
    await holder.acquire("a", delay_s=0)
    waiting = await other.queued("a")
    await lapse(on_any_store.server._store, holder.session)
    await asyncio.wait_for(waiting.granted(), 5)


async def test_LE_04_what_an_agent_that_died_held_is_free_after_its_time_and_the_delay(on_any_store: Running) -> None:
    """With the store's real time: 2 seconds without a renewal."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    holder, other = await on_any_store.join(ttl_s=2), await on_any_store.join("writer-2")
    await holder.acquire("a", delay_s=0.1)
    asked = loop.time()
    granted = await asyncio.wait_for((await other.queued("a")).granted(), 30)
    assert loop.time() - begun >= 1.9
    assert 0 < granted.waited.ToMilliseconds() / 1_000 <= loop.time() - asked + 0.1  # another clock


async def test_no_clock_shortens_a_lock_delay(start: Started, any_store: BoardStore) -> None:
    """A server whose clock is an hour ahead of the one that noted the loss waits as long as any other."""
    ahead = SettableClock()
    ahead.pass_ms(3_600_000)
    settings = Settings(store="memory:", listen="127.0.0.1:0", drain_grace_s=0.0, upkeep_interval_s=60.0)
    one = await start(any_store)
    two = Server(settings, Kept(any_store), ahead, DIGEST_KEY)
    try:
        async with connected(await two.start()) as channel:
            await Agent(channel).list_locks()  # it follows the locks
            holder, other = await one.join(), await one.join("writer-2")
            fence = await holder.acquire("a", delay_s=1)
            loop = asyncio.get_running_loop()
            begun = loop.time()
            await one.as_agent("keeper", "operator").break_lock(fence.lock_id)
            await (await other.queued("a")).granted()
            assert loop.time() - begun >= 1
    finally:
        await two.stop()


async def test_LE_09_a_lock_of_3_hours_is_held_as_long_as_its_session_lives(
    on_any_store: Running, clock: SettableClock
) -> None:
    holder, other = await on_any_store.join(), await on_any_store.join("writer-2")
    fence = await holder.acquire("a", hold_s=3 * 3_600)
    pulse = await holder.agent.keep_alive(holder.session)
    for minute in range(0, 180, 20):
        with refused("LOCKED_BY_OTHER", state="HELD"):
            await other.acquire("a", request_id=new_id(clock.ms))
        await holder.agent.commit(put(f"e{minute}"), fences=[fence], request_id=new_id(clock.ms))
        await on_any_store.server._upkeep.sweep()
        await pulse.renew()
        clock.pass_ms(20 * 60_000 - 60_000 * (minute == 160))
    assert clock.ms == START_MS + 179 * 60_000
    assert (await holder.agent.check_current(fence)).current
    assert await holder.agent.release(fence)
    pulse.cancel()


async def test_LE_09_a_loss_is_pushed_and_the_next_renewal_fails(on_any_store: Running) -> None:
    store = on_any_store.server._store
    holder = await on_any_store.join()
    await holder.acquire("a")
    pulse = await holder.agent.keep_alive(holder.session)
    await lapse(store, holder.session)
    news = await asyncio.wait_for(pulse.news(), 5)
    assert news.state == session_service_pb2.SESSION_STATE_LOST
    with refused("SESSION_LOST", session_id=holder.session):
        await pulse.news()
    with refused("SESSION_LOST", session_id=holder.session):
        await holder.agent.keep_alive(holder.session)


async def test_LE_14_a_longest_hold_denies_the_holder_and_then_lets_others_in(
    on_any_store: Running, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewed or not. There is no moment at which two can write."""
    monkeypatch.setattr(lock_upkeep, "_LOOK_AGAIN_S", 0.05)
    holder, other = await on_any_store.join(), await on_any_store.join("writer-2")
    fence = await holder.acquire("a", hold_s=1, delay_s=0.3)
    pulse = await holder.agent.keep_alive(holder.session)
    waiting = await other.queued("a")
    clock.pass_ms(999)
    await holder.agent.commit(put("a"), fences=[fence])
    clock.pass_ms(1)
    assert not (await holder.agent.check_current(fence)).current
    news = await asyncio.wait_for(pulse.news(), 5)
    assert news.state == session_service_pb2.SESSION_STATE_UNCHANGED  # this is no answer to a renewal
    (lost,) = news.lost_locks
    assert (lost.lock_id, lost.reason) == (fence.lock_id, session_service_pb2.LOCK_LOSS_REASON_HELD_TOO_LONG)
    with refused("LOCK_LOST", lock_id=fence.lock_id, field="fences[0]"):
        await holder.agent.commit(put("b"), fences=[fence])
    with refused("LOCKED_BY_OTHER", state="LOST"):
        await holder.acquire("a")
    granted = await asyncio.wait_for(waiting.granted(), 5)
    assert granted.lock.agent == "writer-2"
    await pulse.renew()  # the session lives on
    pulse.cancel()


async def test_a_hold_that_is_over_by_store_time_protects_no_write_even_before_anybody_notices(
    on_any_store: Running, clock: SettableClock
) -> None:
    holder, other = await on_any_store.join(), await on_any_store.join("writer-2")
    fence = await holder.acquire("a", hold_s=3_000)
    clock.pass_ms(3_000_000)
    await other.agent.commit(put("b"), request_id=new_id(clock.ms))  # store time is there now
    with refused("LOCK_LOST", lock_id=fence.lock_id):
        await holder.agent.commit(put("a"), fences=[fence], request_id=new_id(clock.ms))


# Breaking.


async def test_only_a_supervisor_or_an_operator_breaks_a_lock_and_it_is_recorded(on_any_store: Running) -> None:
    holder, other = await on_any_store.join(), await on_any_store.join("writer-2")
    pulse = await holder.agent.keep_alive(holder.session)
    for roles in ("member", "auditor", "system", "member,auditor"):
        fence = await holder.acquire("a")
        with refused("ROLE_REQUIRED", role="supervisor") as denied:
            await on_any_store.as_agent("keeper", roles).break_lock(fence.lock_id)
        assert denied[0].code is grpc.StatusCode.PERMISSION_DENIED
        assert await holder.agent.release(fence)
    for number, role in enumerate(("supervisor", "operator")):
        granted = await holder.agent.grant(acquire_request(holder.session, f"a{number}", delay_s=60))
        broken = await on_any_store.as_agent("keeper", role).break_lock(granted.lock.id, f"reason {number}")
        assert (broken.id, broken.agent, broken.purpose) == (granted.lock.id, "writer-1", "to test")
        news = await asyncio.wait_for(pulse.news(), 5)
        (lost,) = news.lost_locks
        assert lost.reason == session_service_pb2.LOCK_LOSS_REASON_BROKEN
        assert (lost.lock_id, lost.broken_by, lost.words) == (granted.lock.id, "keeper", f"reason {number}")
        with refused("LOCK_LOST"):
            await holder.agent.commit(put(f"a{number}"), fences=[granted.fence])
        with refused("LOCKED_BY_OTHER", state="LOST"):
            await other.acquire(f"a{number}")
        with refused("NOT_FOUND"):
            await on_any_store.as_agent("keeper", role).break_lock(granted.lock.id)
    kept = [record for record in await audit_records(on_any_store) if record.act == "lock.break"]
    assert [(record.outcome, record.reason) for record in kept] == [("done", "reason 0"), ("done", "reason 1")]
    pulse.cancel()


async def test_a_break_that_skips_the_delay_lets_the_next_one_in_at_once(on_any_store: Running) -> None:
    holder, other = await on_any_store.join(), await on_any_store.join("writer-2")
    fence = await holder.acquire("a", delay_s=60)
    waiting = await other.queued("a")
    await on_any_store.as_agent("keeper", "supervisor").break_lock(fence.lock_id, skip_lock_delay=True)
    assert (await asyncio.wait_for(waiting.granted(), 5)).lock.agent == "writer-2"


async def test_a_break_whose_answer_was_lost_is_answered_all_the_same(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    holder = await running.join()
    fence = await holder.acquire("a", delay_s=60)
    store.loses_answers = True
    breaking = asyncio.ensure_future(running.as_agent("keeper", "supervisor").break_lock(fence.lock_id))
    await until(lambda: store.lost > 0)
    store.loses_answers = False
    assert (await breaking).id == fence.lock_id
    assert len(await records(store, keys.AUDIT_RECORD)) == 1


async def test_what_is_not_there_is_not_broken_and_not_released(each: Agent) -> None:
    operator = Agent(each.channel, "keeper", "operator")
    with refused("NOT_FOUND"):
        await operator.break_lock("0" * 32)
    epoch = (await each.open_session()).epoch
    assert not await each.release(lock_pb2.Fence(lock_id="0" * 32, revision=7, epoch=epoch))
    with refused("LOCK_LOST", field="fence", lock_id="0" * 32):
        await each.downgrade(lock_pb2.Fence(lock_id="0" * 32, revision=7, epoch=epoch))


async def test_RB_34_nobody_does_anything_with_somebody_elses_lock_or_session(on_any_store: Running) -> None:
    holder, other = await on_any_store.join(), await on_any_store.join("writer-2")
    fence = await holder.acquire("a")
    for call in (other.agent.release(fence), other.agent.downgrade(fence)):
        with refused("NOT_HOLDER", field="fence", lock_id=fence.lock_id) as found:
            await call
        assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION
    with refused("NOT_HOLDER", field="fences[0]", lock_id=fence.lock_id):
        await other.agent.commit(put("a"), fences=[fence])
    with refused("NOT_HOLDER", field="session_id", session_id=holder.session):
        await other.agent.acquire(holder.session, "b")
    assert (await other.agent.check_current(fence)).lost_fences == [fence]
    assert (await holder.agent.check_current(fence)).current


# A full store.


class FullStore(MemoryStore):
    """A memory store that can run out of room: then only what deletes works."""

    is_full = False

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        if self.is_full and change.puts:
            raise StoreFull
        return await super().commit(change, deadline_s)


async def test_RB_48_on_a_full_store_locks_are_released_and_sessions_closed_and_none_is_granted(
    start: Started, clock: SettableClock
) -> None:
    store = FullStore(clock)
    running = await start(store)
    holder, member, late = [await running.join(f"writer-{number}") for number in range(3)]
    fence, broken = await holder.acquire("a"), await holder.acquire("b", delay_s=0)
    pulse = await holder.agent.keep_alive(holder.session)
    waiting = await member.queued("a")
    store.is_full = True
    for call in (late.acquire("free"), late.acquire("a", wait_s=60), running.join()):
        with refused("STORE_FULL") as found:
            await call
        assert found[0].code is grpc.StatusCode.RESOURCE_EXHAUSTED
    with refused("STORE_FULL"):
        await holder.agent.downgrade(fence)
    await pulse.renew()
    assert await holder.agent.release(fence)
    assert not await holder.agent.release(fence)
    assert await waits(holder.agent, 1)  # it goes on waiting: there will be room again
    store.is_full = False
    granted = await asyncio.wait_for(waiting.granted(), 10)
    store.is_full = True
    assert await member.agent.close(member.session)
    assert granted.lock.id not in await names(store, keys.LOCK)
    await lapse(store, holder.session)
    pulse.cancel()
    await until(lambda: broken.lock_id not in running.server._mirror.picture(keys.board_prefix("dev", "main")).claims)
    assert await records(store, keys.MARKER) == []


async def test_RB_48_a_loss_on_a_full_store_still_keeps_the_targets_closed_for_the_delay(
    start: Started, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_upkeep, "_LOOK_AGAIN_S", 0.05)
    store = FullStore(clock)
    running = await start(store)
    holder = await running.join()
    fence = await holder.acquire("a", delay_s=0.3)
    capped = await holder.acquire("b", delay_s=0.3, hold_s=1)
    pulse = await holder.agent.keep_alive(holder.session)
    loop = asyncio.get_running_loop()
    store.is_full = True
    clock.pass_ms(1_000)
    news = await asyncio.wait_for(pulse.news(), 5)  # told also where there is no room to note why
    assert [lost.lock_id for lost in news.lost_locks] == [capped.lock_id]
    begun = loop.time()
    await lapse(store, holder.session)
    picture = running.server._mirror.picture(keys.board_prefix("dev", "main"))
    assert fence.lock_id in picture.claims
    await until(lambda: not len(picture.claims))
    assert loop.time() - begun >= 0.3
    pulse.cancel()
