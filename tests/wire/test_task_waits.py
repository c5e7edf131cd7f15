"""Waiting for a part of a task; and circles of waits for locks and for tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from kokuban.v1 import task_pb2
from kokuban_server.app.deadlocks import WaitGraph, find_circle
from kokuban_server.core import keys
from tests.wire.archive_calls import archived
from tests.wire.calls import (
    Kept,
    Member,
    Pulse,
    deadlock,
    eventually,
    lapse,
    leaf,
    records,
    refused,
    rule,
    tree,
)
from tests.wire.conflict_calls import listed, reason
from tests.wire.task_calls import Tasks, add_step, complete, complete_subtask, new_step, open_subtask, revive

if TYPE_CHECKING:
    from kokuban_server.app.lock_mirror import KnownLock
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started

PENDING, RUNNING = task_pb2.STEP_STATUS_PENDING, task_pb2.STEP_STATUS_RUNNING


async def workers(running: Running, count: int = 2) -> list[Tasks]:
    return [Tasks.of(await running.join(f"writer-{number}")) for number in range(count)]


async def nobody_waits(running: Running) -> None:
    store = running.server._store
    await eventually(lambda: _none(store))


async def _none(store: BoardStore) -> bool:
    return not await records(store, keys.TASK_WAIT)


def member(tasks: Tasks) -> Member:
    return Member(tasks.agent, tasks.session)


async def test_a_wait_for_a_step_says_how_it_stands_until_it_is_done(on_any_store: Running) -> None:
    one, two = await workers(on_any_store)
    await one.create("t1", "a", "b")
    waiting = one.wait_for("t1", "a")
    first = await waiting.next()
    assert (first.over, first.task_status, first.step_status) == (False, task_pb2.TASK_STATUS_OPEN, PENDING)
    assert len(await records(on_any_store.server._store, keys.TASK_WAIT)) == 1
    fence = (await two.claim("t1")).granted.fence
    assert (await waiting.next()).step_status == RUNNING
    (number,) = await two.record(fence, complete("t1", "a"))
    last = await waiting.over()
    assert (last.step_status, last.ended_event) == (task_pb2.STEP_STATUS_DONE, number)
    await nobody_waits(on_any_store)
    again = await one.wait_for("t1", "a").next()
    assert (again.over, again.ended_event) == (True, number)


async def test_a_wait_for_a_task_that_is_archived_is_told_so(on_any_store: Running) -> None:
    one, two = await workers(on_any_store)
    await one.create("t1", "a")
    waiting = await one.waits_for("t1", "a")
    await archived(two, "t1")
    for wait in (waiting, one.wait_for("t1", "a")):
        with refused("TASK_ARCHIVED"):
            await wait.next()
    await nobody_waits(on_any_store)


async def test_a_wait_for_a_subtask_and_for_a_task_ends_with_it(on_any_store: Running) -> None:
    one, two = await workers(on_any_store)
    await one.create("t1", "s/a")
    await one.record(None, open_subtask("t1", "s"))
    part, whole = await one.waits_for("t1", "s"), await one.waits_for("t1")
    step = await one.waits_for("t1", "s/a")
    fence = (await two.claim("t1")).granted.fence
    await two.record(fence, complete("t1", "s/a", "GIVEN_UP"))
    assert (await step.over()).step_status == task_pb2.STEP_STATUS_DEAD
    await two.record(None, revive("t1", "s/a"))
    again = await one.waits_for("t1", "s/a")
    fence = (await two.claim("t1")).granted.fence
    await two.record(fence, complete("t1", "s/a"))
    assert (await again.over()).step_status == task_pb2.STEP_STATUS_DONE
    (number,) = await two.record(None, complete_subtask("t1", "s"))
    last = await part.over()
    assert (last.subtask_status, last.ended_event) == (task_pb2.SUBTASK_STATUS_COMPLETED, number)
    last = await whole.over()
    assert (last.task_status, last.ended_event) == (task_pb2.TASK_STATUS_COMPLETED, 0)


async def test_a_wait_ends_when_the_task_is_cancelled(running: Running) -> None:
    one, two = await workers(running)
    await one.create("t1", "a")
    waiting = await one.waits_for("t1", "a")
    await two.cancel("t1")
    last = await waiting.over()
    assert (last.task_status, last.step_status) == (task_pb2.TASK_STATUS_CANCELLED, PENDING)


async def test_a_stream_that_is_cut_ends_the_wait(on_any_store: Running) -> None:
    (one,) = await workers(on_any_store, 1)
    await one.create("t1", "a")
    waiting = await one.waits_for("t1", "a")
    assert await records(on_any_store.server._store, keys.TASK_WAIT)
    waiting.cancel()
    await nobody_waits(on_any_store)


async def test_a_wait_goes_with_the_server_where_it_waits(start: Started, store: BoardStore) -> None:
    """On that one's lease: nobody is held up by a wait whose stream is gone, however that came."""
    first, second = await start(Kept(store)), await start(Kept(store))
    (one,) = await workers(first, 1)
    await one.create("t1", "a")
    waiting = await one.waits_for("t1", "a")
    (record,) = await records(store, keys.TASK_WAIT)
    (server,) = await records(store, keys.SERVER)
    assert record.lease == server.lease
    assert record.lease is not None
    await store.revoke_lease(record.lease, 5.0)
    await nobody_waits(second)
    # The server lives all the same: it says so again, and that somebody waits.
    await eventually(lambda: _some(store))
    fence = (await one.claim("t1")).granted.fence
    await one.record(fence, complete("t1", "a"))
    await waiting.over()


async def _some(store: BoardStore) -> bool:
    return bool(await records(store, keys.TASK_WAIT))


async def test_what_cannot_be_waited_for_is_refused(running: Running) -> None:
    one, two = await workers(running)
    await one.create("t1", "a")
    for task, part in (("t1", "none"), ("t2", ""), ("t1", "a/b")):
        with refused("NOT_FOUND"):
            await one.wait_for(task, part).next()
    with refused("SESSION_LOST"):
        await one.wait_for("t1", "a", session_id="0" * 32).next()
    with refused("NOT_HOLDER", field="session_id"):
        await one.wait_for("t1", "a", session_id=two.session).next()
    for seconds in (0.5, 3_601):
        with refused("DURATION_INVALID", field="wait"):
            await one.wait_for("t1", "a", wait_s=seconds).next()
    operator = running.as_agent("ops-1", "member,operator")
    waiting = await two.waits_for("t1", "a")
    await operator.set_policy(rule("task:*", readers=["agent:writer-0"]))
    with refused("NOT_FOUND"):
        await two.wait_for("t1", "a").next()
    with refused("NOT_FOUND"):
        await waiting.ended()
    await nobody_waits(running)


async def test_LE_05_a_wait_ends_with_its_time_and_with_its_session(running: Running, store: BoardStore) -> None:
    one, two = await workers(running)
    await one.create("t1", "a")
    with refused("LOCK_WAIT_EXPIRED") as found:
        await one.wait_for("t1", "a", wait_s=1).ended()
    assert int(found[0].facts["waited_ms"]) >= 1_000
    assert found[0].code is grpc.StatusCode.DEADLINE_EXCEEDED
    waiting = await two.waits_for("t1", "a")
    await lapse(store, two.session)
    with refused("SESSION_LOST"):
        await waiting.ended()
    await nobody_waits(running)


async def test_LE_05_a_step_whose_lease_lives_never_goes_back_and_a_pending_claim_on_it_does_not_last(
    running: Running, store: BoardStore, clock: SettableClock
) -> None:
    """However much time passes, and whoever waits; and who waited and is gone keeps nobody from the step."""
    holder, other = await workers(running)
    await holder.create("t1", "a")
    claimed = await holder.claim("t1")
    pulse = Pulse(holder.agent, holder.session)
    queued = await member(other).queued(tree("a", "task:t1"))
    for _ in range(60):
        clock.pass_ms(30_000)
        await pulse.send()
        await pulse.next()
        step = await holder.step("t1", "a")
        assert (step.status, step.held, step.attempts) == (RUNNING, True, 1)
    third = (await workers(running, 3))[2]
    with refused("NO_STEP_READY", running="1"):
        await third.claim("t1")
    await holder.record(claimed.granted.fence, complete("t1", "a", "YIELDED"))
    fence = (await queued.granted()).fence
    with refused("NO_STEP_READY", waiting="1"):
        await third.claim("t1")
    waiting = await member(third).queued(tree("a", "task:t1"))
    await other.agent.release(fence)
    await waiting.granted()
    await lapse(store, third.session)
    heir = (await workers(running, 4))[3]
    clock.pass_ms(60_000)
    await eventually(lambda: _claims(heir))
    assert (await heir.step("t1", "a")).attempts == 1


async def _claims(tasks: Tasks) -> bool:
    try:
        await tasks.claim("t1")
    except grpc.aio.AioRpcError:
        return False
    return True


# Circles.


async def test_of_a_wait_for_a_step_and_one_for_a_lock_the_younger_is_told_the_circle(on_any_store: Running) -> None:
    one, two = await workers(on_any_store)
    await one.create("t1", "a")
    await member(one).acquire("plan")
    await two.claim("t1")
    older = await one.waits_for("t1", "a")
    refusal, cycle = await deadlock(member(two).ask("plan", wait_s=60, purpose="to change the plan"))
    assert refusal.facts == {"length": "2", "agents": "writer-1, writer-0"}
    assert [(edge.agent, edge.session_id, edge.purpose) for edge in cycle.edges] == [
        ("writer-1", two.session, "to change the plan"),
        ("writer-0", one.session, ""),
    ]
    assert [list(edge.waits_for) for edge in cycle.edges] == [[leaf("plan")], [tree("a", "task:t1")]]
    older.cancel()
    await nobody_waits(on_any_store)
    asking = await member(two).queued("plan")
    refusal, cycle = await deadlock(one.wait_for("t1", "a"))
    assert [edge.agent for edge in cycle.edges] == ["writer-0", "writer-1"]
    await nobody_waits(on_any_store)
    asking.cancel()


async def test_two_that_wait_for_each_others_steps_over_two_servers_are_told(
    start: Started, any_store: BoardStore
) -> None:
    servers = [await start(Kept(any_store)), await start(Kept(any_store))]
    one, two = [Tasks.of(await server.join(f"writer-{number}")) for number, server in enumerate(servers)]
    await one.create("t1", "a")
    await two.create("t2", "b")
    await one.claim("t1")
    await two.claim("t2")
    older = await one.waits_for("t2", "b")
    refusal, cycle = await deadlock(two.wait_for("t1"))
    assert refusal.facts["length"] == "2"
    assert [list(edge.waits_for) for edge in cycle.edges] == [[tree("", "task:t1")], [tree("b", "task:t2")]]
    older.cancel()


async def test_a_circle_of_a_lock_at_one_server_and_a_step_at_the_other_is_found(
    start: Started, any_store: BoardStore
) -> None:
    servers = [await start(Kept(any_store)), await start(Kept(any_store))]
    one, two = [Tasks.of(await server.join(f"writer-{number}")) for number, server in enumerate(servers)]
    await one.create("t1", "a")
    await member(one).acquire("plan")
    await two.claim("t1")
    asking = await member(two).queued("plan")
    refusal, _ = await deadlock(one.wait_for("t1"))
    assert refusal.facts == {"length": "2", "agents": "writer-0, writer-1"}
    asking.cancel()


@pytest.mark.parametrize("part", ["last", "s", ""])
async def test_a_circle_through_what_a_step_depends_on_is_found(on_any_store: Running, part: str) -> None:
    one, two = await workers(on_any_store)
    await one.create("t1", "first", new_step("middle", "first"), new_step("last", "middle"), new_step("s/x", "middle"))
    await one.record(None, open_subtask("t1", "s"))
    await member(one).acquire("plan")
    assert (await two.claim("t1")).step.step == "first"
    asking = await member(two).queued("plan")
    _, cycle = await deadlock(one.wait_for("t1", part))
    assert [list(edge.waits_for) for edge in cycle.edges] == [[tree(part, "task:t1")], [leaf("plan")]]
    asking.cancel()


@pytest.mark.parametrize("holds", ["a step of it", "the step that has to complete it"])
async def test_a_circle_through_a_subtask_that_a_step_depends_on_is_found(running: Running, holds: str) -> None:
    one, two = await workers(running)
    await one.create("t1", "lead")
    fence = (await two.claim("t1")).granted.fence
    made = [open_subtask("t1", "s", step="lead"), add_step("t1", "s/x"), add_step("t1", new_step("after", "s"))]
    await two.record(fence, *made)
    if holds == "a step of it":
        await two.record(fence, complete("t1", "lead"))
        await two.claim("t1")
    await member(one).acquire("plan")
    asking = await member(two).queued("plan")
    _, cycle = await deadlock(one.wait_for("t1", "after"))
    assert [list(edge.waits_for) for edge in cycle.edges] == [[tree("after", "task:t1")], [leaf("plan")]]
    asking.cancel()


async def test_a_circle_through_the_step_that_has_to_complete_a_subtask_is_found(running: Running) -> None:
    one, two = await workers(running)
    await one.create("t1", "lead")
    await member(one).acquire("plan")
    fence = (await two.claim("t1")).granted.fence
    await two.record(fence, open_subtask("t1", "s", step="lead"))
    asking = await member(two).queued("plan")
    refusal, _ = await deadlock(one.wait_for("t1", "s"))
    assert refusal.facts["length"] == "2"
    asking.cancel()


async def test_a_circle_that_a_claim_closes_is_found_though_both_wait_already(running: Running) -> None:
    """The second wait is for what nobody holds up then."""
    one, two = await workers(running)
    await one.create("t1", "a")
    await member(one).acquire("plan")
    asking = await member(two).queued("plan")
    younger = await one.waits_for("t1", "a")
    await two.claim("t1")
    await deadlock(younger)
    asking.cancel()


async def test_what_holds_nobody_up_closes_no_circle(running: Running) -> None:
    """Each is one as long as nobody looks how the task stands: every lock in its region would count."""
    one, two = await workers(running)
    await one.create("t1", "done", "dead", new_step("behind", "dead"), "other", "mine")
    for _ in range(2):
        claimed = await two.claim("t1")
        outcome = "DONE" if claimed.step.step == "done" else "GIVEN_UP"
        await two.record(claimed.granted.fence, complete("t1", claimed.step.step, outcome))
    assert (await two.claim("t1")).step.step == "other"
    await member(two).acquire(tree("notes", "task:t1"))
    await member(two).acquire(tree("done", "task:t1"))
    await member(one).acquire("plan")
    assert (await one.claim("t1")).step.step == "mine"
    asking = await member(two).queued("plan")
    for part in ("behind", "mine"):
        waiting = await one.waits_for("t1", part)
        assert await circles(running, one) == (2, None)
        waiting.cancel()
        await nobody_waits(running)
    # The very same is a circle for what the other works on.
    await deadlock(one.wait_for("t1", "other"))
    asking.cancel()


async def circles(running: Running, tasks: Tasks) -> tuple[int, list[tuple[str, KnownLock]] | None]:
    """Give how long the circle of an agent's wait is as long as nobody asks, and what the store makes of it."""
    store = running.server._task_waits._store
    prefix = keys.board_prefix("dev", "main")
    board = store.mirror.picture(prefix)
    (name,) = (name for name in board.names(tasks.session) if name in board.task_waits)
    circle = WaitGraph(board).circle(name)
    return 0 if circle is None else len(circle), await find_circle(store, prefix, name, 1e12)


async def test_what_the_victim_may_not_read_of_a_task_is_left_out_of_the_circle(running: Running) -> None:
    victim, keeper = await workers(running)
    operator = running.as_agent("ops-1", "member,operator")
    private = rule("task:hidden", readers=["agent:writer-1"], writers=["agent:writer-1"], lockers=["agent:writer-1"])
    await operator.set_policy(private)
    helper = Tasks(keeper.agent, await keeper.agent.session())
    await keeper.create("hidden", "secret-step")
    await keeper.claim("hidden")
    await member(victim).acquire("a")
    await member(helper).acquire("b")
    hidden = await helper.waits_for("hidden", "secret-step")
    asking = await member(keeper).queued("a")
    refusal, cycle = await deadlock(member(victim).ask("b", wait_s=60))
    assert refusal.facts == {"length": "3", "agents": "writer-0, writer-1"}
    assert "secret" not in str(cycle) + str(refusal)
    assert (cycle.edges[1].agent, list(cycle.edges[1].waits_for)) == ("", [])
    hidden.cancel()
    asking.cancel()


async def test_a_deadlock_of_a_task_wait_is_noted_among_the_conflicts(running: Running) -> None:
    one, two = await workers(running)
    await one.create("t1", "a")
    await member(one).acquire("plan")
    await two.claim("t1")
    asking = await member(two).queued("plan")
    await deadlock(one.wait_for("t1", "a"))
    (found,) = await listed(running)
    assert (reason(found), found.key.region, found.key.path) == ("DEADLOCK", "task:t1", "a")
    assert (found.loser.agent, found.winner.agent) == ("writer-0", "writer-1")
    asking.cancel()
