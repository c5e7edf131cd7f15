"""Deadlocks: who would wait for ever is told so at once, and by whom it is held up."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from kokuban.v1 import lock_pb2
from kokuban_server.core import keys
from tests.wire.calls import (
    PROMPTLY_S,
    REGION,
    SHARED,
    Member,
    deadlock,
    eventually,
    leaf,
    names,
    outcome,
    put,
    records,
    tree,
)

if TYPE_CHECKING:
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.conftest import Running, Started


async def joined(running: Running, count: int) -> list[Member]:
    return [await running.join(f"writer-{number}") for number in range(count)]


async def test_LE_20_of_two_that_hold_what_the_other_wants_the_younger_request_is_told_the_circle(
    on_any_store: Running,
) -> None:
    one, two = await joined(on_any_store, 2)
    first, second = await one.acquire("a"), await two.acquire(tree("b"))
    older = await one.queued("b/x", purpose="to get b")
    younger = two.ask("a", wait_s=60, purpose="to get a")
    refusal, cycle = await deadlock(younger)
    assert refusal.facts == {"length": "2", "agents": "writer-1, writer-0"}
    assert cycle.length == 2
    assert [(edge.agent, edge.session_id, edge.purpose) for edge in cycle.edges] == [
        ("writer-1", two.session, "to get a"),
        ("writer-0", one.session, "to get b"),
    ]
    assert [list(edge.waits_for) for edge in cycle.edges] == [[leaf("a")], [leaf("b/x")]]
    assert len((await one.agent.list_locks()).waits) == 1  # the victim's wait is gone, and nothing else
    assert (await two.agent.check_current(second)).current
    await two.agent.release(second)
    granted = await older.granted()
    for fence in (first, granted.fence):
        await one.agent.release(fence)
    await two.acquire("a")


async def test_LE_20_over_two_servers(start: Started, any_store: BoardStore) -> None:
    servers = [await start(any_store), await start(any_store)]
    one, two = await servers[0].join("writer-0"), await servers[1].join("writer-1")
    await one.acquire(leaf("a", "task:1"))
    await two.acquire(leaf("b", "task:2"))
    older = await one.queued(leaf("b", "task:2"))
    refusal, cycle = await deadlock(two.ask(leaf("a", "task:1"), wait_s=60))
    assert refusal.facts["length"] == "2"
    assert [edge.agent for edge in cycle.edges] == ["writer-1", "writer-0"]
    older.cancel()


async def test_LE_20_when_both_begin_at_the_same_moment_one_goes_on(start: Started, any_store: BoardStore) -> None:
    servers = [await start(any_store), await start(any_store)]
    for turn in range(5):
        one, two = await servers[0].join("writer-0"), await servers[turn % 2].join("writer-1")
        first, second = await one.acquire(f"a{turn}"), await two.acquire(f"b{turn}")
        waiting = [
            asyncio.ensure_future(outcome(one.acquire(f"b{turn}", wait_s=60))),
            asyncio.ensure_future(outcome(two.acquire(f"a{turn}", wait_s=60))),
        ]
        (done,), (pending,) = await asyncio.wait(waiting, timeout=PROMPTLY_S, return_when=asyncio.FIRST_COMPLETED)
        assert done.result().reason == "DEADLOCK"
        victim, fence = (one, first) if done is waiting[0] else (two, second)
        await victim.agent.release(fence)
        assert isinstance(await pending, lock_pb2.Fence)


@pytest.mark.parametrize("count", [3, 8])
async def test_LE_21_a_circle_of_many_is_named_too(on_any_store: Running, count: int) -> None:
    members = await joined(on_any_store, count)
    for number, member in enumerate(members):
        await member.acquire(f"l{number}")
    waiting = [await member.queued(f"l{number + 1}") for number, member in enumerate(members[:-1])]
    refusal, cycle = await deadlock(members[-1].ask("l0", wait_s=60))
    assert refusal.facts["length"] == str(count)
    expected = [f"writer-{number}" for number in (count - 1, *range(count - 1))]
    assert [edge.agent for edge in cycle.edges] == expected
    assert refusal.facts["agents"] == ", ".join(expected[:6])
    for asking in waiting:
        asking.cancel()


async def test_a_circle_of_more_than_16_is_named_without_its_middle(running: Running) -> None:
    count = 20
    members = await joined(running, count)
    for number, member in enumerate(members):
        await member.acquire(f"l{number}")
    waiting = [await member.queued(f"l{number + 1}") for number, member in enumerate(members[:-1])]
    refusal, cycle = await deadlock(members[-1].ask("l0", wait_s=60))
    assert (refusal.facts["length"], cycle.length, len(cycle.edges)) == ("20", 20, 16)
    agents = [f"writer-{number}" for number in (count - 1, *range(count - 1))]
    assert [edge.agent for edge in cycle.edges] == agents[:8] + agents[-8:]
    for asking in waiting:
        asking.cancel()


async def test_a_circle_with_long_names_still_reaches_its_victim(running: Running) -> None:
    """What does not fit into a status is left out, and the reason arrives."""
    count = 12
    long = "/".join(["x" * 60] * 16)
    members = await joined(running, count)
    for number, member in enumerate(members):
        await member.acquire(f"{long}{number:03}")
    waiting = [
        await member.queued(f"{long}{number + 1:03}", purpose="é" * 256) for number, member in enumerate(members[:-1])
    ]
    refusal, cycle = await deadlock(members[-1].ask(f"{long}000", wait_s=60, purpose="é" * 256))
    assert (refusal.facts["length"], cycle.length) == ("12", 12)
    assert cycle.edges[0].agent == "writer-11"  # the victim's own request stays
    for asking in waiting:
        asking.cancel()


async def test_LE_21_a_circle_through_the_order_of_a_queue_is_found(on_any_store: Running) -> None:
    """One waits behind a request that waits for what it holds itself: nobody holds what it asks for."""
    one, two, three = await joined(on_any_store, 3)
    await one.acquire("a")
    await three.acquire("b", mode=SHARED)
    middle = await two.queued("a", "b")  # waits for one, and stands before who comes later for b
    refusal, cycle = await deadlock(one.ask("b", wait_s=60, mode=SHARED))
    assert refusal.facts == {"length": "2", "agents": "writer-0, writer-1"}
    assert [list(edge.waits_for) for edge in cycle.edges] == [[leaf("b")], [leaf("a"), leaf("b")]]
    middle.cancel()


async def test_two_readers_that_both_want_to_write_are_deadlocked_and_told(on_any_store: Running) -> None:
    """There is no way up from a shared lock; each would wait for the other's."""
    one, two = await joined(on_any_store, 2)
    fences = [await member.acquire("a", mode=SHARED) for member in (one, two)]
    answer = await outcome(one.acquire("a", wait_s=60))
    assert answer.reason == "LOCK_OVERLAPS_OWN"
    other = Member(one.agent, await one.agent.session())
    await other.acquire("b")
    waiting = await two.queued("b")
    await deadlock(other.ask("a", wait_s=60))
    waiting.cancel()
    for member, fence in zip((one, two), fences, strict=True):
        await member.agent.release(fence)


async def test_a_circle_that_is_open_is_no_deadlock(on_any_store: Running) -> None:
    one, two, three = await joined(on_any_store, 3)
    fences = [await member.acquire(path) for member, path in ((one, "a"), (two, "b"), (three, "c"))]
    first, second = await one.queued("b"), await two.queued("c")
    await three.agent.release(fences[2])
    granted = await asyncio.wait_for(second.granted(), 5)
    for fence in (fences[1], granted.fence):
        await two.agent.release(fence)
    await asyncio.wait_for(first.granted(), 5)


async def test_a_circle_that_somebody_leaves_in_time_lets_the_others_through(on_any_store: Running) -> None:
    one, two = await joined(on_any_store, 2)
    first, second = await one.acquire("a"), await two.acquire("b")
    older = await one.queued("b")
    older.cancel()
    await eventually(lambda: _nobody_waits(one))
    younger = await two.queued("a")
    await one.agent.release(first)
    await younger.granted()
    await two.agent.release(second)


async def _nobody_waits(member: Member) -> bool:
    return not (await member.agent.list_locks()).waits


async def test_what_the_victim_may_not_read_is_left_out_of_the_circle(on_any_store: Running) -> None:
    """That there is a circle, and how long it is, it must know; who and for what only where it may read."""
    private = "agent:writer-1"
    victim, keeper = await joined(on_any_store, 2)
    helper = Member(keeper.agent, await keeper.agent.session())
    await victim.acquire("a")
    await helper.acquire("b", "c")
    await keeper.acquire(leaf("secret-path", private), purpose="secret words")
    hidden = await helper.queued(leaf("secret-path", private), purpose="secret words")  # not to be read by the victim
    mixed = await keeper.queued("a", leaf("other-secret", private), purpose="secret words")
    refusal, cycle = await deadlock(victim.ask("b", wait_s=60, purpose="to get b"))
    assert "secret" not in str(refusal)
    assert "secret" not in str(cycle)
    assert refusal.facts == {"length": "3", "agents": "writer-0, writer-1"}
    first, second, third = cycle.edges
    assert (first.agent, list(first.waits_for), first.purpose) == ("writer-0", [leaf("b")], "to get b")
    assert (second.agent, second.session_id, list(second.waits_for), second.purpose) == ("", "", [], "")
    assert (third.agent, list(third.waits_for), third.purpose) == ("writer-1", [leaf("a")], "")
    for asking in (hidden, mixed):
        asking.cancel()


async def test_LE_23_requests_for_many_targets_in_any_order_never_deadlock_and_all_get_through(
    on_any_store: Running,
) -> None:
    """All or none: who holds nothing while it waits cannot close a circle."""
    chance = random.Random(23)
    members = await joined(on_any_store, 12)
    paths = [leaf(f"p{number}", region) for number in range(4) for region in (REGION, "task:1")]
    held: set[str] = set()

    async def work(member: Member, orders: list[list[lock_pb2.LockTarget]]) -> int:
        done = 0
        for targets in orders:
            fence = await member.acquire(*targets, wait_s=60)
            taken = {f"{target.region}/{target.path}" for target in targets}
            assert held.isdisjoint(taken)
            held.update(taken)
            await asyncio.sleep(0)
            held.difference_update(taken)
            assert await member.agent.release(fence)
            done += 1
        return done

    async with asyncio.timeout(30):
        finished = await asyncio.gather(
            *[work(member, [chance.sample(paths, chance.randint(1, 5)) for _ in range(8)]) for member in members]
        )
    assert finished == [8] * 12
    store = on_any_store.server._store
    for kind in (keys.LOCK, keys.MARKER, keys.WAIT):
        assert await records(store, kind) == []


async def test_those_who_take_one_after_another_in_any_order_all_get_through_if_victims_let_go(
    on_any_store: Running,
) -> None:
    """Nobody waits for ever: each that would is told, releases, and tries again."""
    chance = random.Random(20)
    members = await joined(on_any_store, 5)
    victims = 0

    async def work(member: Member) -> None:
        nonlocal victims
        for _ in range(3):
            while True:
                order = chance.sample(["a", "b", "c"], 2)
                fences = []
                answer = None
                for path in order:
                    answer = await outcome(member.acquire(path, wait_s=60))
                    if isinstance(answer, lock_pb2.Fence):
                        fences.append(answer)
                        continue
                    break
                for fence in fences:
                    assert await member.agent.release(fence)
                if isinstance(answer, lock_pb2.Fence):
                    break
                assert answer is not None
                assert answer.reason == "DEADLOCK"
                victims += 1

    async with asyncio.timeout(30):
        await asyncio.gather(*[work(member) for member in members])
    assert victims > 0
    assert await names(on_any_store.server._store, keys.LOCK) == []
    await members[0].agent.commit(put("a"), put("b"), put("c"))


async def test_many_that_wait_for_one_target_and_hold_others_do_not_hold_up_the_server(running: Running) -> None:
    """Looking for circles must not cost more than waiting does."""
    count = 120
    holder = await running.join("holder")
    fence = await holder.acquire("baton")
    members = await asyncio.gather(*[running.join(f"writer-{number}") for number in range(count)])
    await asyncio.gather(*[member.acquire(f"own-{number}") for number, member in enumerate(members)])
    waiting = [member.ask("baton", wait_s=60) for member in members]
    await asyncio.gather(*[asking.queued() for asking in waiting])
    loop = asyncio.get_running_loop()
    slowest = 0.0
    begun = loop.time()
    while loop.time() - begun < 1.2:  # over two checks of the timer
        before = loop.time()
        await asyncio.sleep(0)
        slowest = max(slowest, loop.time() - before)
    assert slowest < 0.4
    await holder.agent.release(fence)
    for asking in waiting:
        asking.cancel()
