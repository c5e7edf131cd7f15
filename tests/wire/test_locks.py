"""Locks: who is granted what, in which order, who is told of it, and how much there may be."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from kokuban.v1 import lock_pb2, lock_service_pb2
from kokuban_server.core import keys, limits
from tests.wire.calls import (
    EXCLUSIVE,
    OWNED_WORKS,
    PRIVATE,
    SHARED,
    START_MS,
    Agent,
    HeldStore,
    Member,
    SettableClock,
    acquire_request,
    connected,
    eventually,
    lasting,
    leaf,
    names,
    outcome,
    put,
    records,
    refused,
    tree,
    until,
    waits,
)

if TYPE_CHECKING:
    from kokuban_server.adapters.memory import MemoryStore
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import Asking
    from tests.wire.conftest import Running, Started

HELD, LOST = lock_pb2.LOCK_STATE_HELD, lock_pb2.LOCK_STATE_LOST


# What a grant is.


async def test_a_grant_says_what_was_granted_and_its_fence_goes_with_writes(each: Agent) -> None:
    session = await each.session()
    request = acquire_request(session, "a", tree("b"), purpose="to see", hold_s=60, delay_s=2)
    granted = await each.grant(request)
    lock = granted.lock
    assert (lock.session_id, lock.agent, lock.mode, lock.state) == (session, "writer-1", EXCLUSIVE, HELD)
    assert list(lock.targets) == [leaf("a"), tree("b")]
    assert (lock.purpose, lock.lock_delay) == ("to see", lasting(2))
    assert lock.grant_time.ToMilliseconds() == START_MS
    assert lock.end_time.ToMilliseconds() == START_MS + 60_000
    assert (granted.fence.lock_id, granted.fence.revision) == (lock.id, lock.fence_revision)
    assert not granted.replayed
    assert granted.waited == lasting(0)
    await each.commit(put("a"), put("b/c"), fences=[granted.fence])
    listed = await each.list_locks()
    assert list(listed.locks) == [lock]
    assert not listed.waits
    assert listed.token > granted.token


async def test_defaults_are_a_hold_of_24_hours_and_a_delay_of_1_second(each: Agent) -> None:
    lock = (await each.grant(acquire_request(await each.session(), "a"))).lock
    assert lock.end_time.ToMilliseconds() == START_MS + 24 * 3_600_000
    assert lock.lock_delay == lasting(1)


async def test_the_fence_of_a_later_lock_is_higher(each: Agent) -> None:
    session = await each.session()
    revisions = []
    for _ in range(3):
        fence = await each.acquire(session, "a")
        revisions.append(fence.revision)
        assert await each.release(fence)
    assert revisions == sorted(set(revisions))


async def test_a_lock_remembers_the_trace_it_was_asked_for_in(each: Agent) -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    each.metadata += (("traceparent", trace),)
    assert (await each.grant(acquire_request(await each.session(), "a"))).lock.traceparent == trace
    with refused("LOCKED_BY_OTHER", holder_traceparent=trace):
        await each.acquire(await each.session(), "a")


# Who conflicts with whom.

TARGETS = {
    "entry a": leaf("a"),
    "entry a/b": leaf("a/b"),
    "entry a/b/c": leaf("a/b/c"),
    "entry ab": leaf("ab"),
    "entry a/c": leaf("a/c"),
    "tree a": tree("a"),
    "tree a/b": tree("a/b"),
    "tree ab": tree("ab"),
    "tree a/c": tree("a/c"),
    "all": tree(),
    "other region": tree("", "shared:other"),
}
FREE_TOGETHER = {
    frozenset(pair)
    for pair in [
        ("entry a", "entry a/b"),
        ("entry a", "entry a/b/c"),
        ("entry a", "entry ab"),
        ("entry a", "entry a/c"),
        ("entry a", "tree a/b"),
        ("entry a", "tree ab"),
        ("entry a", "tree a/c"),
        ("entry a/b", "entry a/b/c"),
        ("entry a/b", "entry ab"),
        ("entry a/b", "entry a/c"),
        ("entry a/b", "tree ab"),
        ("entry a/b", "tree a/c"),
        ("entry a/b/c", "entry ab"),
        ("entry a/b/c", "entry a/c"),
        ("entry a/b/c", "tree ab"),
        ("entry a/b/c", "tree a/c"),
        ("entry ab", "entry a/c"),
        ("entry ab", "tree a"),
        ("entry ab", "tree a/b"),
        ("entry ab", "tree a/c"),
        ("entry a/c", "tree a/b"),
        ("entry a/c", "tree ab"),
        ("tree a", "tree ab"),
        ("tree a/b", "tree ab"),
        ("tree a/b", "tree a/c"),
        ("tree ab", "tree a/c"),
        *[(name, "other region") for name in TARGETS if name != "other region"],
    ]
}


async def test_LE_13_a_subtree_conflicts_with_what_is_above_and_below_it_and_siblings_never_do(
    running: Running,
) -> None:
    holder, other = await running.join(), await running.join("writer-2")
    for one, two in itertools.product(TARGETS, repeat=2):
        fence = await holder.acquire(TARGETS[one])
        if frozenset((one, two)) in FREE_TOGETHER:
            assert await other.agent.release(await other.acquire(TARGETS[two])), (one, two)
        else:
            with refused("LOCKED_BY_OTHER", field="targets[0]", lock_id=fence.lock_id, state="HELD"):
                await other.acquire(TARGETS[two])
        assert await holder.agent.release(fence)


@pytest.mark.parametrize("region", ["task:1", "conversation:1", "user:1", PRIVATE])
async def test_regions_of_every_kind_on_a_board_have_locks_of_their_own(each: Agent, region: str) -> None:
    session = await each.session()
    await each.acquire(session, tree("a"))
    await each.acquire(session, tree("a", region))
    with refused("LOCKED_BY_OTHER", region=region, path="a/b"):
        await each.acquire(await each.session(), leaf("a/b", region))


async def test_shared_locks_stand_beside_each_other_and_exclusive_ones_alone(on_any_store: Running) -> None:
    one, two = await on_any_store.join(), await on_any_store.join("writer-2")
    for held, asked in itertools.product((EXCLUSIVE, SHARED), repeat=2):
        fence = await one.acquire(tree("a"), mode=held)
        if held == asked == SHARED:
            assert await two.agent.release(await two.acquire("a/b", mode=asked))
        else:
            with refused("LOCKED_BY_OTHER", mode="EXCLUSIVE" if held == EXCLUSIVE else "SHARED"):
                await two.acquire("a/b", mode=asked)
        assert await one.agent.release(fence)


def overlap(one: lock_pb2.LockTarget, two: lock_pb2.LockTarget) -> bool:
    """Say whether some entry of a small world belongs to both: by trying each."""

    def takes(target: lock_pb2.LockTarget, region: str, path: str) -> bool:
        deep = target.scope == lock_pb2.LOCK_SCOPE_SUBTREE and (not target.path or path.startswith(f"{target.path}/"))
        return target.region == region and (path == target.path or deep)

    return any(takes(one, region, path) and takes(two, region, path) for region in WORLD_REGIONS for path in WORLD)


WORLD_REGIONS = ("shared:plan", "task:1")
WORLD = ["/".join(path) for length in (1, 2, 3) for path in itertools.product("ab", repeat=length)]


@pytest.mark.parametrize("seed", range(4))
async def test_LE_12_a_grant_is_true_exactly_if_nobody_else_holds(running: Running, seed: int) -> None:
    """Against a model that knows nothing of trees: it tries every entry of a small world."""
    chance = random.Random(seed)
    members = [await running.join(f"writer-{number}") for number in range(4)]
    held: list[tuple[Member, lock_service_pb2.LockGranted]] = []
    grants = refusals = 0
    for _ in range(60):
        if held and chance.random() < 0.35:
            owner, granted = held.pop(chance.randrange(len(held)))
            assert await owner.agent.release(granted.fence)
            continue
        member = chance.choice(members)
        mode = chance.choice((EXCLUSIVE, SHARED))
        targets: list[lock_pb2.LockTarget] = []
        for _ in range(chance.randint(1, 3)):
            made = chance.choice((leaf, tree))(chance.choice(WORLD), chance.choice(WORLD_REGIONS))
            if not any(overlap(made, other) for other in targets):
                targets.append(made)
        met = [
            (owner, other.lock)
            for owner, other in held
            if any(overlap(mine, theirs) for mine in targets for theirs in other.lock.targets)
        ]
        answer = await outcome(member.agent.grant(acquire_request(member.session, *targets, mode=mode)))
        if any(owner is member for owner, _ in met):
            assert answer.reason == "LOCK_OVERLAPS_OWN"
        elif any(EXCLUSIVE in (mode, lock.mode) for _, lock in met):
            refusals += 1
            assert answer.reason == "LOCKED_BY_OTHER"
            assert answer.facts["lock_id"] in {lock.id for _, lock in met}
        else:
            grants += 1
            assert isinstance(answer, lock_service_pb2.LockGranted), (answer, targets)
            held.append((member, answer))
    assert grants > 10
    assert refusals > 3


async def test_all_targets_or_none_also_over_regions(on_any_store: Running) -> None:
    one, two = await on_any_store.join(), await on_any_store.join("writer-2")
    fence = await one.acquire(leaf("x", "task:1"))
    wanted = [leaf("a"), leaf("b", "user:1"), leaf("x", "task:1")]
    with refused("LOCKED_BY_OTHER", field="targets[2]", region="task:1", path="x", holder_agent="writer-1"):
        await two.acquire(*wanted)
    assert [lock.id for lock in (await one.agent.list_locks()).locks] == []
    waiting = await two.queued(*wanted)
    with refused("LOCKED_BY_OTHER", state="QUEUED", holder_agent="writer-2"):  # it stands in all of its queues
        await (await on_any_store.join("writer-3")).acquire(leaf("b", "user:1"))
    await one.agent.release(fence)
    granted = await waiting.granted()
    assert list(granted.lock.targets) == wanted
    for target in wanted:
        with refused("LOCKED_BY_OTHER", lock_id=granted.lock.id, state="HELD"):
            await one.acquire(target)


async def test_who_holds_what_and_why_is_told_to_whoever_is_refused(on_any_store: Running) -> None:
    holder, other = await on_any_store.join("planner"), await on_any_store.join("writer-2")
    fence = await holder.acquire(tree("plan"), purpose="restructure the plan")
    for call in (other.acquire("plan/a"), other.agent.commit(put("plan/a"))):
        with refused(
            "LOCKED_BY_OTHER",
            region="shared:plan",
            path="plan/a",
            lock_id=fence.lock_id,
            holder_agent="planner",
            holder_session=holder.session,
            mode="EXCLUSIVE",
            state="HELD",
            purpose="restructure the plan",
            since_ms=str(START_MS),
        ) as found:
            await call
        assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION


# Racing.


@pytest.mark.parametrize(("racers", "rounds"), [(8, 20), (64, 20)])
async def test_LE_01_of_those_who_race_for_a_target_exactly_one_wins(
    on_any_store: Running, racers: int, rounds: int
) -> None:
    members = await asyncio.gather(*[on_any_store.join(f"writer-{number}") for number in range(racers)])
    for _ in range(rounds):
        answers = await asyncio.gather(*[outcome(member.acquire("task")) for member in members])
        fences = [answer for answer in answers if isinstance(answer, lock_pb2.Fence)]
        assert len(fences) == 1
        assert {a.reason for a in answers if not isinstance(a, lock_pb2.Fence)} == {"LOCKED_BY_OTHER"}
        told = {answer.facts["lock_id"] for answer in answers if not isinstance(answer, lock_pb2.Fence)}
        assert told == {fences[0].lock_id}
        assert await members[answers.index(fences[0])].agent.release(fences[0])


async def test_LE_01_on_two_servers_too(start: Started, any_store: BoardStore) -> None:
    servers = [await start(any_store), await start(any_store)]
    members = await asyncio.gather(*[servers[number % 2].join(f"writer-{number}") for number in range(16)])
    for _ in range(20):
        answers = await asyncio.gather(*[outcome(member.acquire("task")) for member in members])
        winners = [place for place, answer in enumerate(answers) if isinstance(answer, lock_pb2.Fence)]
        assert len(winners) == 1
        assert {a.reason for a in answers if not isinstance(a, lock_pb2.Fence)} == {"LOCKED_BY_OTHER"}
        assert await members[winners[0]].agent.release(answers[winners[0]])


async def test_those_who_race_and_wait_all_get_through_one_at_a_time_on_two_servers(
    start: Started, any_store: BoardStore
) -> None:
    servers = [await start(any_store), await start(any_store)]
    members = await asyncio.gather(*[servers[number % 2].join(f"writer-{number}") for number in range(16)])
    inside = 0
    order: list[int] = []

    async def once(member: Member) -> None:
        nonlocal inside
        fence = await member.acquire("task", wait_s=30)
        inside += 1
        assert inside == 1
        await member.agent.commit(put(f"e{len(order)}"), fences=[fence])
        order.append(fence.revision)
        inside -= 1
        assert await member.agent.release(fence)

    async with asyncio.timeout(20):
        await asyncio.gather(*[once(member) for member in members])
    assert order == sorted(order)
    assert len(order) == 16


async def test_the_sessions_own_requests_that_come_together_do_not_wait_for_each_other(
    start: Started, clock: SettableClock
) -> None:
    """They are dealt with in one round: the second is told what it overlaps, and not that it is deadlocked."""
    store = HeldStore(clock)
    running = await start(store)
    member, other = await running.join(), await running.join("writer-2")
    await other.acquire("begin")
    store.hold()
    first = other.ask("z")  # its round is under way while the others gather
    await until(lambda: len(running.server._lock_requests._queues) == 1)
    for mode in (SHARED, EXCLUSIVE):
        asking = [member.ask(tree(f"a{mode}"), mode=mode, wait_s=5) for _ in range(3)]
        queue = next(iter(running.server._lock_requests._queues.values()))
        await until(lambda queue=queue: len(queue._pending) == 3)  # type: ignore[misc]  # bound now
        store.release()
        answers = await asyncio.gather(*[outcome(each.granted()) for each in asking])
        store.hold()
        reasons = sorted(getattr(answer, "reason", "") for answer in answers)
        assert reasons == ["", "LOCK_OVERLAPS_OWN", "LOCK_OVERLAPS_OWN"]
        if mode == SHARED:
            first = other.ask("y")
            await until(lambda: len(running.server._lock_requests._queues) == 1)
    store.release()
    await first.granted()


# The queue.


async def test_the_queue_is_first_come_first_served_and_each_is_told_its_place(on_any_store: Running) -> None:
    holder = await on_any_store.join("holder")
    fence = await holder.acquire("a", purpose="to hold it")
    members = [await on_any_store.join(f"writer-{number}") for number in range(4)]
    waiting: list[Asking] = []
    for place, member in enumerate(members):
        waiting.append(member.ask("a", wait_s=60, purpose=f"turn {place}"))
        queued = await waiting[-1].queued()
        assert queued.ahead == place
        assert [lock.id for lock in queued.held_by] == [fence.lock_id]
        assert queued.held_by[0].purpose == "to hold it"
    listed = await holder.agent.list_locks()
    assert {(wait.agent, wait.purpose) for wait in listed.waits} == {(f"writer-{n}", f"turn {n}") for n in range(4)}
    await holder.agent.release(fence)
    for member, asking in zip(members, waiting, strict=True):
        granted = await asking.granted()
        listed = await holder.agent.list_locks()
        assert [lock.id for lock in listed.locks] == [granted.lock.id]
        assert await member.agent.release(granted.fence)


async def test_a_waiter_is_told_when_it_has_moved_up(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAIT_NEWS_S_MIN", 0.01)
    holder, first, second = [await running.join(f"writer-{number}") for number in range(3)]
    fence = await holder.acquire("a")
    ahead = await first.queued("a")
    behind = second.ask("a", wait_s=60)
    assert (await behind.queued()).ahead == 1
    ahead.cancel()
    queued = await behind.queued()
    while queued.ahead:
        queued = await behind.queued()
    assert [lock.id for lock in queued.held_by] == [fence.lock_id]
    behind.cancel()


async def test_no_reader_overtakes_a_writer_that_waits(on_any_store: Running) -> None:
    reader, writer, late = [await on_any_store.join(f"writer-{number}") for number in range(3)]
    fence = await reader.acquire(tree("a"), mode=SHARED)
    writing = await writer.queued("a/b")
    with refused("LOCKED_BY_OTHER", state="QUEUED", holder_agent="writer-1"):
        await late.acquire("a/b", mode=SHARED)
    reading = await late.queued("a/b", mode=SHARED)
    await late.agent.release(await late.acquire("a/c", mode=SHARED))  # what no writer waits for is free
    await reader.agent.release(fence)
    granted = await writing.granted()
    assert [wait.agent for wait in (await late.agent.list_locks()).waits] == ["writer-2"]
    await writer.agent.release(granted.fence)
    await reading.granted()


async def test_a_later_request_does_not_overtake_an_earlier_one_that_waits_for_more(on_any_store: Running) -> None:
    one, two, three = [await on_any_store.join(f"writer-{number}") for number in range(3)]
    fence = await one.acquire("a")
    waiting = await two.queued("a", "b")
    with refused("LOCKED_BY_OTHER", path="b", state="QUEUED", holder_agent="writer-1"):
        await three.acquire("b")
    behind = await three.queued("b")
    await one.agent.release(fence)
    granted = await waiting.granted()
    await two.agent.release(granted.fence)
    await behind.granted()


async def test_readers_that_wait_get_in_together(on_any_store: Running) -> None:
    writer = await on_any_store.join()
    fence = await writer.acquire(tree("a"))
    readers = [await on_any_store.join(f"reader-{number}") for number in range(5)]
    waiting = [await reader.queued("a/b", mode=SHARED) for reader in readers]
    await writer.agent.release(fence)
    granted = await asyncio.gather(*[asking.granted() for asking in waiting])
    assert len({grant.lock.id for grant in granted}) == 5
    assert len((await writer.agent.list_locks()).locks) == 5


async def test_RB_25_50_waiters_and_500_hand_overs_keep_their_order_and_leave_nothing(
    start: Started, store: MemoryStore
) -> None:
    running = await start()
    members = await asyncio.gather(*[running.join(f"writer-{number}") for number in range(51)])
    leases = {record.lease for record in await records(store, keys.SESSION)}
    holder, *others = members
    fence = await holder.acquire("baton")
    queue = deque([(member, await member.queued("baton")) for member in others])
    async with asyncio.timeout(60):
        for _ in range(500):
            assert await holder.agent.release(fence)
            next_one, asking = queue.popleft()
            fence = (await asking.granted()).fence
            assert await names(store, keys.LOCK) == [fence.lock_id]
            queue.append((holder, await holder.queued("baton")))
            holder = next_one
    assert await holder.agent.release(fence)
    for member, asking in queue:
        assert await member.agent.release((await asking.granted()).fence)
    for kind in (keys.LOCK, keys.MARKER, keys.WAIT):
        assert await records(store, kind) == []
    for member in members:
        await member.agent.close(member.session)
    assert await records(store, keys.SESSION) == []
    await running.server._presence.end()
    assert len(leases) == 51
    assert leases.isdisjoint(store._leases)
    assert len(store._leases) <= OWNED_WORKS


async def test_RB_29_what_overlaps_the_sessions_own_is_refused_and_each_lock_is_released_once(each: Agent) -> None:
    session, other = await each.session(), await each.session()
    for mode, again in itertools.product((EXCLUSIVE, SHARED), repeat=2):
        fence = await each.acquire(session, tree("a"), mode=mode)
        for target in (leaf("a"), leaf("a/b"), tree("a"), tree()):
            for wait_s in (0, 5):
                free = leaf("free", "task:1")
                with refused("LOCK_OVERLAPS_OWN", field="targets[1]", path=target.path, lock_id=fence.lock_id) as found:
                    await each.acquire(session, free, target, mode=again, wait_s=wait_s)
                assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION
        inside = await each.acquire(session, "other", mode=again)
        assert await each.release(fence)
        assert not await each.release(fence)
        assert await each.lock_ids() == [inside.lock_id]  # releasing one twice releases nothing else
        second = await each.acquire(session, tree("a"), mode=again)
        assert not await each.release(fence)  # nor does the fence of the lock before
        assert await each.release(second)
        assert await each.release(inside)
    fence = await each.acquire(other, "a")  # another session of the same agent is somebody else
    with refused("LOCKED_BY_OTHER", holder_agent="writer-1", holder_session=other):
        await each.acquire(session, "a")
    waiting = each.ask(acquire_request(session, "a", wait_s=60))
    await waiting.queued()
    with refused("LOCK_OVERLAPS_OWN", field="targets[0]"):  # what it waits for is its own too
        await each.acquire(session, tree(), wait_s=60)
    await each.release(fence)
    await waiting.granted()


async def test_LE_19_each_act_is_one_call_that_can_be_repeated(each: Agent) -> None:
    session = await each.session()
    request = acquire_request(session, "a")
    first = await each.grant(request)
    for _ in range(2):
        again = await each.grant(request)
        assert again.replayed
        assert (again.lock, again.fence, again.token) == (first.lock, first.fence, first.token)
    for _ in range(2):
        assert (await each.downgrade(first.fence)).mode == SHARED
    assert [await each.release(first.fence) for _ in range(3)] == [True, False, False]
    assert [await each.close(session) for _ in range(2)] == [True, False]


# What may not be read.


async def test_SC_17_locks_that_may_not_be_read_are_told_like_locks_that_are_not_there(on_any_store: Running) -> None:
    """An agent's private region: whoever may not read it learns nothing of what is locked there, nor by what words."""
    owner, other = await on_any_store.join(), await on_any_store.join("writer-2")
    hidden = await owner.agent.grant(acquire_request(owner.session, tree("secret", PRIVATE), purpose="a secret"))
    mixed = await owner.agent.grant(
        acquire_request(owner.session, leaf("a"), leaf("secret2", PRIVATE), purpose="another secret")
    )
    with refused("NOT_FOUND"):
        await other.agent.list_locks(region=PRIVATE)
    with refused("NOT_FOUND"):
        await other.acquire(leaf("x", PRIVATE))
    with refused("NOT_FOUND"):  # all targets are asked about before anything is told
        await other.acquire("a", leaf("x", PRIVATE))
    (seen,) = (await other.agent.list_locks()).locks
    assert (seen.id, seen.agent, seen.purpose) == (mixed.lock.id, "writer-1", "")
    assert list(seen.targets) == [leaf("a")]
    with refused("LOCKED_BY_OTHER", lock_id=mixed.lock.id, path="a", region="shared:plan") as found:
        await other.acquire("a")
    assert "secret" not in str(found[0])
    with refused("LOCKED_BY_OTHER") as found:
        await other.agent.commit(put("a"))
    assert "secret" not in str(found[0])
    waiting = other.ask("a", wait_s=60)
    queued = await waiting.queued()
    assert "secret" not in str(queued)
    assert [lock.id for lock in queued.held_by] == [mixed.lock.id]
    (presence_of_owner,) = [one for one in await other.agent.presence() if one.session.id == owner.session]
    assert [lock.id for lock in presence_of_owner.holds] == [mixed.lock.id]
    assert "secret" not in str(presence_of_owner)
    (own,) = [one for one in await owner.agent.presence() if one.session.id == owner.session]
    assert {lock.id for lock in own.holds} == {hidden.lock.id, mixed.lock.id}
    missing = lock_pb2.Fence(lock_id="0" * 32, revision=hidden.fence.revision, epoch=hidden.fence.epoch)
    for fence in (hidden.fence, missing):
        assert not await other.agent.release(fence)
        with refused("LOCK_LOST", field="fence", lock_id=fence.lock_id):
            await other.agent.downgrade(fence)
        with refused("LOCK_LOST", field="fences[0]", lock_id=fence.lock_id):
            await other.agent.commit(put("free"), fences=[fence])
        with refused("NOT_FOUND") as gone:
            await on_any_store.as_agent("writer-2", "supervisor").break_lock(fence.lock_id)
        assert not gone[0].facts.get("lock_id")
        assert list((await other.agent.check_current(fence)).lost_fences) == [fence]
    assert (await owner.agent.check_current(hidden.fence, mixed.fence)).current
    waiting.cancel()


async def test_waits_that_may_not_be_read_are_not_shown_either(on_any_store: Running) -> None:
    owner, other = await on_any_store.join(), await on_any_store.join("writer-2")
    rival = Member(owner.agent, await owner.agent.session())
    fence = await owner.acquire(leaf("x", PRIVATE))
    waiting = await rival.queued(leaf("x", PRIVATE), "a", purpose="a secret")
    (seen,) = (await other.agent.list_locks()).waits
    assert (list(seen.targets), seen.purpose, seen.agent) == ([leaf("a")], "", "writer-1")
    with refused("LOCKED_BY_OTHER", state="QUEUED", path="a") as found:
        await other.acquire("a")
    assert "secret" not in str(found[0])
    hidden = Member(owner.agent, await owner.agent.session())
    behind = await hidden.queued(leaf("x", PRIVATE), purpose="a secret")
    listed = {one.session.id: one for one in await other.agent.presence()}
    assert not listed[hidden.session].waits
    assert len(listed[rival.session].waits) == 1
    await owner.agent.release(fence)
    await rival.agent.release((await waiting.granted()).fence)
    await behind.granted()


async def test_who_may_only_read_a_region_may_not_lock_it(running: Running) -> None:
    reader = await running.join("reader", roles="auditor")
    with refused("WRITE_FORBIDDEN", region="shared:plan") as found:
        await reader.acquire("a")
    assert found[0].code is grpc.StatusCode.PERMISSION_DENIED
    with refused("WRITE_FORBIDDEN", region="shared:plan"):
        await reader.agent.claim(reader.session, "a")
    assert not (await reader.agent.list_locks()).locks


# Listing.


async def test_a_listing_has_what_is_at_above_and_below_a_path_in_pages(each: Agent) -> None:
    session = await each.session()
    fences = {}
    for target in (leaf("a/b"), leaf("a/c"), tree("d"), leaf("d2"), leaf("x", "task:1")):
        fences[target.path] = (await each.acquire(session, target)).lock_id
    waits = {}
    for path in ("a/b", "d/e"):
        other = await each.session()
        asking = each.ask(acquire_request(other, path, wait_s=60))
        await asking.queued()
        waits[path] = asking

    async def shown(path: str, **more: Any) -> tuple[set[str], set[str]]:  # noqa: ANN401 - any field of the request
        locks: set[str] = set()
        waiting: set[str] = set()
        token = ""
        while True:
            page = await each.list_locks(path, page_token=token, **more)
            assert len(page.locks) + len(page.waits) <= more.get("page_size", 100)
            for lock in page.locks:
                assert lock.id not in locks
                locks.add(next(path for path, lock_id in fences.items() if lock_id == lock.id))
            waiting |= {wait.targets[0].path for wait in page.waits}
            token = page.next_page_token
            if not token:
                return locks, waiting

    for size in (1, 2, 3, 1000):
        assert await shown("", page_size=size) == ({"a/b", "a/c", "d", "d2"}, {"a/b", "d/e"})
        assert await shown("a", page_size=size) == ({"a/b", "a/c"}, {"a/b"})
        assert await shown("a/b", page_size=size) == ({"a/b"}, {"a/b"})
        assert await shown("d/e/f", page_size=size) == ({"d"}, set())
        assert await shown("", page_size=size, region="task:1") == ({"x"}, set())
    page = await each.list_locks(page_size=1)
    for path, region in (("a", "shared:plan"), ("", "task:1")):
        with refused("PAGE_TOKEN_INVALID", field="page_token"):
            await each.list_locks(path, region, page_token=page.next_page_token)
    for asking in waits.values():
        asking.cancel()


# Limits, each at it and one over.


def wide(count: int) -> list[lock_pb2.LockTarget]:
    return [leaf(f"t{number:02}") for number in range(count)]


async def test_a_lock_at_its_limits_works_and_one_over_does_not(each: Agent) -> None:
    session = await each.session()
    target = leaf("/".join(["é" * 31] * 16))
    full = acquire_request(
        session,
        target,
        *wide(limits.LOCK_TARGETS_MAX - 1),
        purpose="é" * 256,
        wait_s=3_600,
        hold_s=24 * 3_600,
        delay_s=60,
    )
    granted = await each.grant(full)
    assert len(granted.lock.targets) == 16
    assert granted.lock.purpose == "é" * 256
    assert await each.release(granted.fence)
    least = await each.grant(acquire_request(session, "a", wait_s=0, hold_s=1, delay_s=0, purpose="x"))
    assert least.lock.end_time.ToMilliseconds() == START_MS + 1_000
    assert await each.release(least.fence)
    for change, reason, field, facts in (
        ({"targets": wide(17)}, "TOO_MANY_ITEMS", "targets", {"limit": "16", "actual": "17"}),
        ({"purpose": "x" * 513}, "FIELD_INVALID", "purpose", {}),
        ({"purpose": "é" * 256 + "x"}, "FIELD_INVALID", "purpose", {}),
        ({"wait": lasting(3_600.001)}, "DURATION_INVALID", "wait", {"limit": "3600000"}),
        ({"wait": lasting(-0.001)}, "DURATION_INVALID", "wait", {"limit": "3600000"}),
        ({"hold_max": lasting(0.999)}, "DURATION_INVALID", "hold_max", {"limit": "86400000"}),
        ({"hold_max": lasting(24 * 3_600 + 0.001)}, "DURATION_INVALID", "hold_max", {"limit": "86400000"}),
        ({"lock_delay": lasting(-0.001)}, "DURATION_INVALID", "lock_delay", {"limit": "60000"}),
        ({"lock_delay": lasting(60.001)}, "DURATION_INVALID", "lock_delay", {"limit": "60000"}),
    ):
        request = acquire_request(session, "a")
        for name in change:
            request.ClearField(name)  # type: ignore[arg-type]  # one of its fields
        request.MergeFrom(lock_service_pb2.AcquireLockRequest(**change))
        with refused(reason, field=field, **facts):
            await each.grant(request)
    assert await each.lock_ids() == []


async def test_a_break_reason_of_1024_bytes_works_and_one_more_does_not(on_any_store: Running) -> None:
    keeper = on_any_store.as_agent("keeper", "operator")
    fence = await (await on_any_store.join()).acquire("a")
    with refused("FIELD_INVALID", field="reason"):
        await keeper.break_lock(fence.lock_id, "é" * 512 + "x")
    await keeper.break_lock(fence.lock_id, "é" * 512)


async def test_a_session_has_at_most_1024_locks_and_waits(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.LOCKS_OF_SESSION_ENTRIES_MAX == 1_024
    holder, member = await running.join("holder"), await running.join("writer-2")
    await holder.acquire("taken")
    request = acquire_request(member.session, "l0")
    for start_at in range(0, 1_023, 93):
        await asyncio.gather(*[member.acquire(f"l{number}") for number in range(start_at, start_at + 93)])
    waiting = await member.queued("taken")
    for wait_s in (0, 60):
        with refused("TOO_MANY_LOCKS", what="locks", limit="1024") as found:
            await member.acquire("one more", wait_s=wait_s)
        assert found[0].code is grpc.StatusCode.RESOURCE_EXHAUSTED
    with refused("TOO_MANY_LOCKS", what="locks", limit="1024"):
        await member.agent.claim(member.session, "one more")
    await holder.acquire("one more")  # others are not concerned
    waiting.cancel()
    await eventually(lambda: waits(holder.agent, 0))
    await member.acquire("last")
    with refused("TOO_MANY_LOCKS", what="locks", limit="1024"):
        await member.agent.grant(request)


async def test_a_board_has_at_most_1024_waits(running: Running) -> None:
    assert limits.WAITS_ENTRIES_MAX == 1_024
    holder, late = await running.join("holder"), await running.join("late")
    fence = await holder.acquire(tree())
    async with connected(running.port) as one, connected(running.port) as two:  # each takes 1,000 streams at most
        agents = [Agent(channel, f"writer-{number}") for number, channel in enumerate((one, two))]
        members = [Member(agent, await agent.session()) for agent in agents]
        waiting: list[Asking] = []
        for number in range(0, 1_024, 64):
            batch = [members[number // 64 % 2].ask(f"w{number + place}", wait_s=600) for place in range(64)]
            await asyncio.gather(*[asking.queued() for asking in batch])
            waiting += batch
        with refused("TOO_MANY_LOCKS", what="waits", limit="1024") as found:
            await late.acquire("one more", wait_s=60)
        assert found[0].code is grpc.StatusCode.RESOURCE_EXHAUSTED
        with refused("LOCKED_BY_OTHER"):  # who does not want to wait is told what is in the way
            await late.acquire("one more")
        waiting[0].cancel()
        await until(lambda: len(running.server._mirror.picture(keys.board_prefix("dev", "main")).waits) == 1_023)
        await late.queued("one more")
    assert await holder.agent.release(fence)
