"""Claims: the first of several entries that is there and free, locked and read in one act."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from kokuban.v1 import lock_pb2, lock_service_pb2
from kokuban_server.core import keys, limits
from tests.wire.calls import (
    REGION,
    START_MS,
    Agent,
    HeldStore,
    Member,
    at,
    delete,
    eventually,
    key,
    lapse,
    lasting,
    leaf,
    names,
    new_id,
    outcome,
    put,
    refused,
    release,
    tree,
    until,
)

if TYPE_CHECKING:
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started

SUBTREE = lock_pb2.LOCK_SCOPE_SUBTREE


async def test_a_claim_locks_the_first_that_is_there_and_gives_it_as_it_was(each: Agent) -> None:
    session = await each.session()
    made = await each.commit(put("b", "text", metadata={"k": "v"}), put("c"))
    answer = await each.claim(session, "a", "b", "c", purpose="to do it")
    entry, granted = answer.entry, answer.granted
    assert entry == await each.get("b")
    assert (entry.key.path, entry.value.text, entry.revision) == ("b", "text", made.revision)
    assert list(granted.lock.targets) == [leaf("b")]
    assert (granted.lock.mode, granted.lock.purpose) == (lock_pb2.LOCK_MODE_EXCLUSIVE, "to do it")
    assert not granted.replayed
    assert granted.lock.end_time.ToMilliseconds() == START_MS + 24 * 3_600_000
    with refused("LOCKED_BY_OTHER", path="b", lock_id=granted.lock.id):
        await each.commit(put("b", "y", at(made)))
    await each.commit(put("b", "y", at(made)), release(granted.fence))
    await each.commit(put("b/below"), put("a"))


async def test_a_claim_may_take_the_subtree(each: Agent) -> None:
    session = await each.session()
    await each.commit(put("a"), put("a/b"), put("c"))
    below = await each.acquire(session, "a/b")
    granted = (await each.claim(await each.session(), "a", "c", scope=SUBTREE)).granted
    assert list(granted.lock.targets) == [tree("c")]  # something below the first is held
    await each.release(below)
    granted = (await each.claim(session, "a", scope=SUBTREE)).granted
    assert list(granted.lock.targets) == [tree("a")]
    with refused("LOCKED_BY_OTHER", path="a/x"):
        await each.commit(put("a/x"))
    await each.commit(put("a/x"), fences=[granted.fence])


async def test_what_is_held_waited_for_missing_deleted_or_expired_is_passed_over(
    on_any_store: Running, clock: SettableClock
) -> None:
    holder, other = await on_any_store.join(), await on_any_store.join("writer-2")
    made = await holder.agent.commit(
        put("deleted"), put("held"), put("shared"), put("above/x"), put("queued"), put("last")
    )
    await holder.agent.commit(put("expired", ttl={"seconds": 5}), delete("deleted", at(made)))
    clock.pass_ms(5_000)
    await holder.acquire("held", tree("above"))
    reading = await holder.acquire("shared", "queued", mode=lock_pb2.LOCK_MODE_SHARED)
    waiting = await (await on_any_store.join("writer-3")).queued("queued")
    named = ["missing", "deleted", "expired", "held", "above/x", "shared", "queued"]
    with refused("NOTHING_TO_CLAIM", missing="3", locked="4") as found:
        await other.agent.claim(other.session, *named)
    assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION
    answer = await other.agent.claim(other.session, *named, "last")
    assert answer.entry.key.path == "last"
    with refused("NOTHING_TO_CLAIM", missing="0", locked="1"):  # its own is not free either
        await other.agent.claim(other.session, "last")
    assert await holder.agent.release(reading)
    waiting.cancel()


async def test_LE_01_workers_that_claim_from_one_list_get_each_item_once(on_any_store: Running) -> None:
    """Many at once, on lists in any order; and whoever comes too late is told that there is nothing."""
    items = [f"task-{number:02}" for number in range(12)]
    workers = await asyncio.gather(*[on_any_store.join(f"writer-{number}") for number in range(16)])
    await workers[0].agent.commit(*[put(item) for item in items])
    answers = await asyncio.gather(*[outcome(worker.agent.claim(worker.session, *items)) for worker in workers])
    claimed = [a for a in answers if isinstance(a, lock_service_pb2.ClaimEntryResponse)]
    assert sorted(answer.entry.key.path for answer in claimed) == items
    assert {a.reason for a in answers if a not in claimed} == {"NOTHING_TO_CLAIM"}
    assert {a.facts["locked"] for a in answers if a not in claimed} == {"12"}


async def test_LE_01_also_on_two_servers(start: Started, any_store: BoardStore) -> None:
    servers = [await start(any_store), await start(any_store)]
    workers = await asyncio.gather(*[servers[number % 2].join(f"writer-{number}") for number in range(8)])
    items = [f"task-{number}" for number in range(5)]
    await workers[0].agent.commit(*[put(item) for item in items])
    for _ in range(5):
        answers = await asyncio.gather(*[outcome(worker.agent.claim(worker.session, *items)) for worker in workers])
        claimed = [a for a in answers if isinstance(a, lock_service_pb2.ClaimEntryResponse)]
        assert sorted(answer.entry.key.path for answer in claimed) == items
        for worker, answer in zip(workers, answers, strict=True):
            if answer in claimed:
                assert await worker.agent.release(answer.granted.fence)
            else:
                assert answer.reason == "NOTHING_TO_CLAIM"


async def test_LE_03_what_is_claimed_is_not_offered_again_while_its_holder_lives(on_any_store: Running) -> None:
    """And is, once it does not."""
    store = on_any_store.server._store
    holder, other = await on_any_store.join(), await on_any_store.join("writer-2")
    await holder.agent.commit(put("task"))
    claimed = await holder.agent.claim(holder.session, "task", lock_delay=lasting(0))
    pulse = await holder.agent.keep_alive(holder.session)
    for _ in range(5):
        with refused("NOTHING_TO_CLAIM", missing="0", locked="1"):
            await other.agent.claim(other.session, "task")
        await pulse.renew()
    await lapse(store, holder.session)
    async with asyncio.timeout(5):
        while not isinstance(answer := await outcome(other.agent.claim(other.session, "task")), type(claimed)):
            assert answer.reason == "NOTHING_TO_CLAIM"
    assert answer.granted.fence.revision > claimed.granted.fence.revision
    with refused("LOCK_LOST"):
        await holder.agent.commit(put("task", "done", at(claimed.entry)), fences=[claimed.granted.fence])


async def test_what_was_done_and_deleted_under_a_claim_is_not_claimed_again(each: Agent) -> None:
    """A claim is guarded on the entry as it gives it: no worker gets what another has just finished."""
    items = [f"task-{number}" for number in range(6)]
    await each.commit(*[put(item) for item in items])
    done: list[str] = []

    async def work() -> None:
        session = await each.session()
        while True:
            answer = await outcome(each.claim(session, *items))
            if not isinstance(answer, lock_service_pb2.ClaimEntryResponse):
                assert answer.reason == "NOTHING_TO_CLAIM"
                if answer.facts["missing"] == "6":
                    return
                continue
            done.append(answer.entry.key.path)
            await each.commit(delete(answer.entry.key.path, at(answer.entry)), release(answer.granted.fence))

    async with asyncio.timeout(20):
        await asyncio.gather(*[work() for _ in range(4)])
    assert sorted(done) == items


async def test_the_same_request_gives_the_same_claim_and_afterwards_lock_lost(
    start: Started, any_store: BoardStore
) -> None:
    one, two = (await start(any_store)).agent, (await start(any_store)).agent
    session = await one.session()
    made = await one.commit(put("a", "1"), put("b"))
    used = new_id()
    first = await one.claim(session, "a", "b", request_id=used)
    for agent in (two, one):
        again = await agent.claim(session, "a", "b", request_id=used)
        assert again.granted.replayed
        assert (again.granted.lock, again.granted.fence) == (first.granted.lock, first.granted.fence)
        assert again.entry == first.entry
    changed = await one.commit(put("a", "2", at(made)), fences=[first.granted.fence])
    assert (await two.claim(session, "a", "b", request_id=used)).entry.value.text == "2"  # as it is now
    await one.commit(delete("a", at(changed)), fences=[first.granted.fence])
    assert not (await one.claim(session, "a", "b", request_id=used)).HasField("entry")
    with refused("REQUEST_ID_REUSED", request_id=used):
        await one.claim(session, "b", "a", request_id=used)
    with refused("REQUEST_ID_REUSED", request_id=used):
        await one.acquire(session, "a", request_id=used)
    await one.release(first.granted.fence)
    for agent in (one, two):
        with refused("LOCK_LOST", lock_id=first.granted.lock.id):
            await agent.claim(session, "a", "b", request_id=used)
    assert await names(any_store, keys.LOCK) == []


async def test_RB_31_a_claim_whose_answer_was_lost_is_found_again(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    session = await running.agent.session()
    await running.agent.commit(put("a"), put("b"))
    store.loses_answers = True
    claiming = asyncio.ensure_future(running.agent.claim(session, "a", "b"))
    await until(lambda: store.lost > 0)
    store.loses_answers = False
    assert (await claiming).entry.key.path == "a"
    assert len(await names(store, keys.LOCK)) == 1


async def test_a_claim_that_is_cut_in_the_middle_stays_with_its_session(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    session = await running.agent.session()
    await running.agent.commit(put("a"), put("b"))
    used = new_id()
    store.hold()
    claiming = asyncio.ensure_future(running.agent.claim(session, "a", "b", request_id=used))
    queues = running.server._lock_requests._queues
    await until(lambda: any(asked.in_round for queue in queues.values() for asked in queue._in_hand.values()))
    claiming.cancel()
    await until(lambda: not any(queue._in_hand for queue in queues.values()))
    store.release()
    await eventually(lambda: _is_granted(store))
    again = await running.agent.claim(session, "a", "b", request_id=used)
    assert (again.entry.key.path, again.granted.replayed) == ("a", True)
    assert len(await names(store, keys.LOCK)) == 1


async def _is_granted(store: BoardStore) -> bool:
    return bool(await names(store, keys.LOCK))


async def test_a_claim_sees_what_was_written_just_before_it_by_any_server(
    start: Started, any_store: BoardStore
) -> None:
    one, two = (await start(any_store)).agent, (await start(any_store)).agent
    session = await two.session()
    for number in range(10):
        made = await one.commit(put(f"e{number}", str(number)))
        answer = await two.claim(session, f"e{number}")
        assert (answer.entry.revision, answer.entry.value.text) == (made.revision, str(number))


async def test_a_claim_does_not_overtake_those_who_wait(on_any_store: Running) -> None:
    holder, waiter, late = [await on_any_store.join(f"writer-{number}") for number in range(3)]
    await holder.agent.commit(put("a"))
    fence = await holder.acquire("a")
    waiting = await waiter.queued("a")
    await holder.agent.release(fence)
    answers = await asyncio.gather(waiting.granted(), outcome(late.agent.claim(late.session, "a")))
    assert answers[1].reason == "NOTHING_TO_CLAIM"


async def test_a_claim_at_its_limits_works_and_one_over_does_not(each: Agent) -> None:
    assert limits.CLAIM_CANDIDATES_ENTRIES_MAX == 64
    session = await each.session()
    await each.commit(put("c63"))
    named = [f"c{number}" for number in range(64)]
    answer = await each.claim(session, *named, purpose="é" * 256, hold_max=lasting(1), lock_delay=lasting(60))
    assert answer.entry.key.path == "c63"
    assert answer.granted.lock.end_time.ToMilliseconds() == START_MS + 1_000
    with refused("NOTHING_TO_CLAIM", missing="63", locked="1"):
        await each.claim(session, *named)
    with refused("TOO_MANY_ITEMS", field="candidates", limit="64", actual="65"):
        await each.claim(session, *named, "c64")
    with refused("FIELD_REQUIRED", field="candidates"):
        await each.claim(session)
    with refused("DUPLICATE_KEY", field="candidates[2]"):
        await each.claim(session, "a", "b", "a")
    bad: list[tuple[dict[str, Any], str]] = [
        ({"hold_max": lasting(0.999)}, "hold_max"),
        ({"hold_max": lasting(86_400.001)}, "hold_max"),
        ({"lock_delay": lasting(60.001)}, "lock_delay"),
    ]
    for more, field in bad:
        with refused("DURATION_INVALID", field=field):
            await each.claim(session, "a", **more)
    with refused("FIELD_INVALID", field="purpose"):
        await each.claim(session, "a", purpose="é" * 256 + "x")


async def test_candidates_are_all_in_one_region_that_may_be_written(running: Running) -> None:
    member = Member(running.agent, await running.agent.session())

    async def claim(*regions: str) -> None:
        request = lock_service_pb2.ClaimEntryRequest(
            board="main",
            session_id=member.session,
            request_id=new_id(),
            candidates=[key(f"a{number}", region) for number, region in enumerate(regions)],
            scope=lock_pb2.LOCK_SCOPE_ENTRY,
            purpose="to test",
        )
        await member.agent.locks.ClaimEntry(request, metadata=member.agent.metadata)

    with refused("LOCK_TARGETS_INVALID", field="candidates[1].region"):
        await claim(REGION, "task:1")
    for region in ("tenant", "global"):
        with refused("LOCK_TARGETS_INVALID", field="candidates[0].region"):
            await claim(region)
    with refused("NOT_FOUND"):
        await claim("agent:writer-2")


async def test_a_session_that_is_gone_or_somebody_elses_claims_nothing(on_any_store: Running) -> None:
    member, other = await on_any_store.join(), await on_any_store.join("writer-2")
    await member.agent.commit(put("a"))
    with refused("NOT_HOLDER", field="session_id", session_id=member.session):
        await other.agent.claim(member.session, "a")
    await lapse(on_any_store.server._store, member.session)
    with refused("SESSION_LOST", session_id=member.session):
        await member.agent.claim(member.session, "a")
    assert await names(on_any_store.server._store, keys.MARKER) == []
