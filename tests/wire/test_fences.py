"""Fences: what a lock forbids to writes, what its fence permits, and for how long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from kokuban.v1 import commit_pb2, entry_pb2, error_reason_pb2, lock_pb2, policy_pb2
from kokuban_server.core import keys, limits
from tests.wire.calls import (
    EXCLUSIVE,
    PRIVATE,
    REGION,
    SHARED,
    Agent,
    Deaf,
    HeldStore,
    Member,
    acquire_request,
    add,
    append,
    at,
    commit_request,
    delete,
    increment,
    key,
    lapse,
    leaf,
    merge,
    names,
    new_id,
    outcome,
    put,
    put_json,
    refused,
    release,
    rule,
    tree,
    until,
)

if TYPE_CHECKING:
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started


# What a lock forbids.


async def test_LE_24_nothing_changes_what_is_locked_without_the_fence(on_any_store: Running) -> None:
    """Whatever the kind of change; nor does the holder itself, if it does not say so."""
    holder, other = await on_any_store.join(), on_any_store.as_agent("writer-2")
    made = await holder.agent.commit(put("t/p"), put_json("t/o", {}), put("t/d"), put("t/q"))
    fence = await holder.acquire(tree("t"), purpose="to hold")
    changes = [
        put("t/new"),
        put("t/p", "y", at(made)),
        put("t", "y"),
        delete("t/d", at(made)),
        increment("t/n"),
        append("t/l", 1),
        add("t/s", "1"),
        merge("t/o", "{}", at(made)),
    ]
    for agent in (holder.agent, other):
        for change in changes:
            path = getattr(change, str(change.WhichOneof("kind"))).key.path
            with refused(
                "LOCKED_BY_OTHER", field="mutations[0]", region=REGION, path=path, lock_id=fence.lock_id
            ) as found:
                await agent.commit(change)
            assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION
    with refused("LOCKED_BY_OTHER", field="mutations[1]"):  # a commit is all or nothing
        await other.commit(put("free"), put("t/new"))
    assert await other.paths() == ["t/d", "t/o", "t/p", "t/q"]
    assert len(await other.history("t/p")) == 1
    await holder.agent.commit(*changes, fences=[fence])
    assert (await other.get("t/p")).value.text == "y"  # reads are never blocked
    assert await other.json("t/n") == "1"
    await other.commit(put("t2"), put("u/t"))  # siblings are free
    await other.commit(put("u"), preconditions=[("t/q", at(made))])  # a belief is no write


async def test_a_lock_on_an_entry_leaves_what_is_below_it_free_and_a_lock_below_leaves_the_entry_free(
    each: Agent,
) -> None:
    session = await each.session()
    await each.acquire(session, "a", tree("b/c"))
    await each.commit(put("a/x"), put("b"), put("b/cc"))
    for path in ("a", "b/c", "b/c/d"):
        with refused("LOCKED_BY_OTHER", path=path):
            await each.commit(put(path))


async def test_LE_16_a_holder_that_lost_its_lock_writes_nothing_however_late_it_comes(on_any_store: Running) -> None:
    """Before anybody else holds it, while somebody does, and after that too."""
    store = on_any_store.server._store
    old, heir = await on_any_store.join(), await on_any_store.join("writer-2")
    stale = await old.acquire("task", delay_s=0)
    await old.agent.commit(put("task", "working"), fences=[stale])
    entry = await old.agent.get("task")
    late = put("task", "done", at(entry))
    await lapse(store, old.session)
    with refused("LOCK_LOST", field="fences[0]", lock_id=stale.lock_id) as found:
        await old.agent.commit(late, fences=[stale])
    assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION
    fence = await heir.acquire("task", wait_s=5)
    assert fence.revision > stale.revision
    with refused("LOCK_LOST", lock_id=stale.lock_id):
        await old.agent.commit(late, fences=[stale])
    with refused("LOCKED_BY_OTHER", holder_agent="writer-2"):
        await old.agent.commit(late)
    await heir.agent.commit(put("task", "taken over", at(entry)), fences=[fence])
    assert await heir.agent.release(fence)
    for change in (late, put("elsewhere")):  # a fence counts whether the write needs it or not
        with refused("LOCK_LOST", lock_id=stale.lock_id):
            await old.agent.commit(change, fences=[stale])
    assert (await heir.agent.get("task")).value.text == "taken over"
    assert await heir.agent.paths() == ["task"]


async def test_LE_16_nor_through_a_server_that_has_not_heard_of_the_loss(start: Started, any_store: BoardStore) -> None:
    """What a server knows may be old. Whether the fence lives, and whether somebody else holds, is judged in the store."""
    deaf = Deaf(any_store)
    one, two = await start(deaf), await start(any_store)
    old, heir = await one.join(), await two.join("writer-2")
    stale = await old.acquire("task", delay_s=0)
    await old.agent.commit(put("x"), fences=[stale])
    mirror, prefix = one.server._mirror, keys.board_prefix("dev", "main")
    await until(lambda: mirror.revision >= stale.revision)
    deaf.hears.clear()
    await lapse(any_store, old.session)
    fence = await heir.acquire("task", wait_s=5)
    later = await heir.acquire("later")
    assert stale.lock_id in mirror.picture(prefix).locks
    assert later.lock_id not in mirror.picture(prefix).locks
    writes = [
        old.agent.commit(put("task", "late"), fences=[stale]),
        one.as_agent("writer-3").commit(put("task", "late")),
        one.as_agent("writer-3").commit(put("later", "late")),
        one.as_agent("writer-3").commit(increment("later")),
    ]
    answers = asyncio.gather(*[outcome(write) for write in writes])
    for _ in range(100):
        await asyncio.sleep(0)
    deaf.hears.set()
    assert [answer.reason for answer in await answers] == ["LOCK_LOST"] + ["LOCKED_BY_OTHER"] * 3
    assert await heir.agent.paths() == ["x"]
    await heir.agent.commit(put("task"), put("later"), fences=[fence, later])


@pytest.mark.parametrize("end", ["lapsed", "released", "broken", "closed"])
async def test_LE_16_nor_where_nothing_else_has_moved_since(start: Started, any_store: BoardStore, end: str) -> None:
    """Nobody has locked anything there meanwhile: the fence alone stands between the late write and the board."""
    deaf = Deaf(any_store)
    one, two = await start(deaf), await start(any_store)
    old = await one.join()
    stale = await old.acquire("task", delay_s=0)
    await old.agent.commit(put("x"), fences=[stale])
    await until(lambda: one.server._mirror.revision >= stale.revision)
    deaf.hears.clear()
    elsewhere = two.as_agent("writer-1", "member,supervisor")
    if end == "lapsed":
        await lapse(any_store, old.session)
    elif end == "released":
        assert await elsewhere.release(stale)
    elif end == "broken":
        await elsewhere.break_lock(stale.lock_id)
    else:
        assert await elsewhere.close(old.session)
    for changes in ([put("task", "late")], [put("free", "late")], [release(stale), put("free", "late")]):
        with refused("LOCK_LOST", lock_id=stale.lock_id):
            await old.agent.commit(*changes, fences=[stale])
    with refused("LOCK_LOST", lock_id=stale.lock_id):
        await old.agent.downgrade(stale)
    assert not await old.agent.release(stale)
    assert await elsewhere.paths() == ["x"]
    deaf.hears.set()


async def test_a_release_that_a_server_has_not_heard_of_stands_in_nobodys_way(
    start: Started, any_store: BoardStore
) -> None:
    deaf = Deaf(any_store)
    one, two = await start(deaf), await start(any_store)
    holder = await two.join()
    fence = await holder.acquire("a")
    writer = await one.join("writer-2")
    with refused("LOCKED_BY_OTHER"):
        await writer.agent.commit(put("a"))
    deaf.hears.clear()
    assert await holder.agent.release(fence)
    await writer.agent.commit(put("a"))
    await writer.acquire("a")
    deaf.hears.set()


# A fence is its holder's.


async def test_a_fence_is_worth_nothing_to_anybody_else_or_anywhere_else(start: Started, any_store: BoardStore) -> None:
    running = await start(any_store, boards=["main", "other"])
    holder, other = await running.join(), running.as_agent("writer-2")
    fence = await holder.acquire(tree("t"))
    with refused("NOT_HOLDER", field="fences[0]", lock_id=fence.lock_id):
        await other.commit(put("t/a"), fences=[fence])
    forged = [
        (lock_pb2.Fence(lock_id="0" * 32, revision=fence.revision, epoch=fence.epoch), "LOCK_LOST", "fences[0]"),
        (
            lock_pb2.Fence(lock_id=fence.lock_id, revision=fence.revision - 1, epoch=fence.epoch),
            "LOCK_LOST",
            "fences[0]",
        ),
        (lock_pb2.Fence(lock_id=fence.lock_id, revision=2**63 - 1, epoch=fence.epoch), "LOCK_LOST", "fences[0]"),
        (
            lock_pb2.Fence(lock_id=fence.lock_id, revision=fence.revision, epoch="0123456789abcdef"),
            "TOKEN_FROM_ANOTHER_STORE",
            "fences[0].epoch",
        ),
    ]
    for wrong, reason, field in forged:
        with refused(reason, field=field):
            await holder.agent.commit(put("t/a"), fences=[wrong])
        with refused(reason, field=field):
            await holder.agent.commit(put("free"), fences=[wrong])
    request = commit_request(put("a"), board="other", fences=[fence])
    with refused("LOCK_LOST", field="fences[0]"):
        await holder.agent.send(request)
    with refused("TOKEN_FROM_ANOTHER_STORE", field="fence.epoch"):
        await holder.agent.release(forged[3][0])
    with refused("TOKEN_FROM_ANOTHER_STORE", field="fence.epoch"):
        await holder.agent.downgrade(forged[3][0])
    with refused("TOKEN_FROM_ANOTHER_STORE", field="fences[0].epoch"):
        await holder.agent.check_current(forged[3][0])
    assert await holder.agent.paths() == []
    await holder.agent.commit(put("t/a"), fences=[fence])


async def test_a_commit_carries_at_most_16_fences_each_once(each: Agent) -> None:
    session = await each.session()
    fences = [await each.acquire(session, f"l{number}") for number in range(17)]
    with refused("TOO_MANY_ITEMS", field="fences", limit="16", actual="17"):
        await each.commit(put("l0"), fences=fences)
    with refused("DUPLICATE_KEY", field="fences[1]"):
        await each.commit(put("l0"), fences=[fences[0], fences[0]])
    other = lock_pb2.Fence(lock_id=fences[0].lock_id, revision=1, epoch=fences[0].epoch)
    with refused("DUPLICATE_KEY", field="fences[1]"):
        await each.commit(put("l0"), fences=[fences[0], other])
    await each.commit(*[put(f"l{number}") for number in range(16)], fences=fences[:16])
    with refused("LOCKED_BY_OTHER", field="mutations[1]", path="l16"):
        await each.commit(put("x"), put("l16"), fences=fences[:16])


async def test_a_full_commit_under_16_locks_with_32_beliefs_works(each: Agent) -> None:
    session = await each.session()
    made = await each.commit(*[put(f"b{number}") for number in range(32)])
    regions = [f"shared:{number}" for number in range(32)]
    fences = [await each.acquire(session, tree("", region)) for region in regions[:16]]
    answer = await each.commit(
        *[put("e", region=region, ttl={"seconds": 60}) for region in regions],
        preconditions=[(f"b{number}", at(made)) for number in range(32)],
        fences=fences,
    )
    assert len(answer.results) == 32


async def test_a_commit_in_32_tasks_has_room_for_one_belief(each: Agent) -> None:
    made = await each.commit(put("b0"), put("b1"))
    puts = [put("e", region=f"task:{number}") for number in range(32)]
    with refused("COMMIT_TOO_LARGE", limit="100", actual="101"):
        await each.commit(*puts, preconditions=[("b0", at(made)), ("b1", at(made))])
    assert len((await each.commit(*puts, preconditions=[("b0", at(made))])).results) == 32


# Shared locks.


async def test_a_shared_lock_forbids_writes_to_everybody_its_holders_too(on_any_store: Running) -> None:
    one, two = await on_any_store.join(), await on_any_store.join("writer-2")
    fences = [await member.acquire(tree("t"), mode=SHARED) for member in (one, two)]
    for member, fence in zip((one, two), fences, strict=True):
        with refused("LOCKED_BY_OTHER", mode="SHARED"):
            await member.agent.commit(put("t/a"))
        answer = await outcome(member.agent.commit(put("t/a"), fences=[fence]))
        assert answer.reason in {"LOCK_SHARED", "LOCKED_BY_OTHER"}  # its own, or that of the other
        await member.agent.commit(put(f"free-{member.agent.name}"), fences=[fence])
    assert await two.agent.release(fences[1])
    with refused("LOCK_SHARED", field="mutations[0]", region=REGION, path="t/a", lock_id=fences[0].lock_id) as found:
        await one.agent.commit(put("t/a"), fences=[fences[0]])
    assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION
    assert await one.agent.release(fences[0])
    await one.agent.commit(put("t/a"))


async def test_a_downgrade_keeps_the_fence_ends_the_right_to_write_and_lets_readers_in(on_any_store: Running) -> None:
    holder, reader, writer = [await on_any_store.join(f"writer-{number}") for number in range(3)]
    fence = await holder.acquire(tree("t"))
    reading = await reader.queued("t/a", mode=SHARED)
    await holder.agent.commit(put("t/a", "made"), fences=[fence])
    lock = await holder.agent.downgrade(fence)
    assert (lock.id, lock.mode, lock.fence_revision) == (fence.lock_id, SHARED, fence.revision)
    granted = await asyncio.wait_for(reading.granted(), 5)
    answer = await outcome(holder.agent.commit(put("t/b"), fences=[fence]))
    assert (answer.reason, answer.facts["lock_id"]) == ("LOCK_SHARED", fence.lock_id)
    with refused("LOCK_SHARED", lock_id=fence.lock_id):
        await holder.agent.commit(put("t/b"), fences=[fence])
    assert (await holder.agent.check_current(fence)).current
    writing = await writer.queued("t/a")
    assert (await holder.agent.downgrade(fence)).mode == SHARED  # it stays one
    for member, mine in ((holder, fence), (reader, granted.fence)):
        assert await member.agent.release(mine)
    done = await writing.granted()
    assert done.lock.mode == EXCLUSIVE
    with refused("LOCK_LOST", field="fence", lock_id=fence.lock_id):
        await holder.agent.downgrade(fence)


async def test_a_downgrade_is_seen_by_a_server_that_has_not_heard_of_it(start: Started, any_store: BoardStore) -> None:
    deaf = Deaf(any_store)
    one, two = await start(deaf), await start(any_store)
    holder = await one.join()
    fence = await holder.acquire("a")
    await holder.agent.commit(put("a"), fences=[fence])
    await until(lambda: one.server._mirror.revision >= fence.revision)
    deaf.hears.clear()
    await two.as_agent("writer-1").downgrade(fence)
    entry = await holder.agent.get("a")
    writing = asyncio.ensure_future(outcome(holder.agent.commit(put("a", "y", at(entry)), fences=[fence])))
    for _ in range(100):
        await asyncio.sleep(0)
    deaf.hears.set()
    assert (await writing).reason == "LOCK_SHARED"
    assert (await holder.agent.get("a")).revision == entry.revision


# What regions ask of writes.


async def test_a_region_may_take_writes_under_a_lock_only(start: Started, any_store: BoardStore) -> None:
    running = await start(any_store)
    required, if_locked = policy_pb2.LOCK_REQUIREMENT_REQUIRED, policy_pb2.LOCK_REQUIREMENT_IF_LOCKED
    await running.as_agent("op", "operator").set_policy(
        rule("shared:ledger", lock_requirement=required),
        rule("task:*", lock_requirement=required),
        rule("task:free", lock_requirement=if_locked),
    )
    member = await running.join()
    for region in ("shared:ledger", "task:1"):
        for change in (put("a", region=region), increment("n", region=region)):
            path = getattr(change, str(change.WhichOneof("kind"))).key.path
            with refused("LOCK_REQUIRED", field="mutations[0]", region=region, path=path) as found:
                await member.agent.commit(change)
            assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION
        fence = await member.acquire(tree("in", region))
        await member.agent.commit(put("in/a", region=region), increment("in/n", region=region), fences=[fence])
        with refused("LOCK_REQUIRED", field="mutations[1]", region=region, path="out"):
            await member.agent.commit(put("in/b", region=region), put("out", region=region), fences=[fence])
        with refused("LOCKED_BY_OTHER", region=region):
            await member.agent.commit(put("in/b", region=region))
        shared = await member.acquire(leaf("out", region), mode=SHARED)
        with refused("LOCK_SHARED", region=region):
            await member.agent.commit(put("out", region=region), fences=[shared])
        elsewhere = await member.acquire(leaf("out", "shared:plan"))
        with refused("LOCK_REQUIRED", path="new", region=region):
            await member.agent.commit(put("new", region=region), fences=[elsewhere])
        await member.agent.release(elsewhere)
        await member.agent.release(fence)
        with refused("LOCK_REQUIRED"):
            await member.agent.commit(put("in/b", region=region))
    await member.agent.commit(put("a", region="task:free"))
    await member.agent.commit(put("a"))


async def test_in_a_region_whose_locks_are_advice_writes_are_not_held_against_them(
    start: Started, any_store: BoardStore
) -> None:
    """The locks stand all the same, and whoever gives a fence is still told that it is dead."""
    running = await start(any_store)
    off = policy_pb2.LOCK_REQUIREMENT_OFF
    await running.as_agent("op", "operator").set_policy(rule("user:*", lock_requirement=off))
    holder, other = await running.join(), await running.join("writer-2")
    fence = await holder.acquire(tree("t", "user:1"))
    with refused("LOCKED_BY_OTHER"):
        await other.acquire(leaf("t/a", "user:1"))
    await other.agent.commit(put("t/a", region="user:1"))
    await holder.agent.commit(put("t/b", region="user:1"), fences=[fence])
    await holder.agent.release(fence)
    with refused("LOCK_LOST", lock_id=fence.lock_id):
        await holder.agent.commit(put("t/c", region="user:1"), fences=[fence])
    shared = await holder.acquire(tree("t", "user:1"), mode=SHARED)
    await holder.agent.commit(put("t/c", region="user:1"), fences=[shared])


async def test_regions_beyond_a_board_have_no_locks(running: Running) -> None:
    operator = await running.join("keeper", roles="operator,system")
    for region in ("tenant", "global"):
        with refused("LOCK_TARGETS_INVALID", field="targets[0].region") as found:
            await operator.acquire(leaf("a", region))
        assert found[0].code is grpc.StatusCode.INVALID_ARGUMENT
        await operator.agent.commit(put("a", region=region))


# Publishing and releasing in one act.


async def test_a_commit_publishes_and_releases_in_one_act(on_any_store: Running) -> None:
    holder, other = await on_any_store.join(), await on_any_store.join("writer-2")
    fence = await holder.acquire(tree("t"))
    waiting = await other.queued("t/a")
    request = commit_request(put("t/a", "made"), release(fence), put("t/b"))
    answer = await holder.agent.send(request)
    assert [result.sequence for result in answer.results] == [1, 0, 1]
    granted = await asyncio.wait_for(waiting.granted(), 5)
    assert granted.fence.revision > answer.revision.number
    assert (await other.agent.get("t/a")).value.text == "made"
    assert not await holder.agent.release(fence)
    again = await holder.agent.send(request)
    assert again.replayed
    assert [result.sequence for result in again.results] == [1, 0, 1]
    with refused("LOCK_LOST", field="mutations[1].release_lock.fence", lock_id=fence.lock_id):
        await holder.agent.commit(put("t/c"), release(fence))
    assert await other.agent.paths() == ["t/a", "t/b"]


async def test_a_commit_that_does_not_hold_releases_nothing(on_any_store: Running) -> None:
    holder, other = await on_any_store.join(), await on_any_store.join("writer-2")
    made = await holder.agent.commit(put("t/a"))
    fence, second = await holder.acquire(tree("t")), await holder.acquire("u")
    for changes, reason in (
        ([put("t/a"), release(fence)], "ALREADY_EXISTS"),
        ([put("t/a", "y", at(made)), release(fence), put("t/b", "y", at(made))], "REVISION_MISMATCH"),
        ([release(fence), put("x", region="task:1"), merge("t/a", "{}", at(made))], "VALUE_TYPE_MISMATCH"),
        ([release(fence), release(second), release(fence)], "DUPLICATE_KEY"),
    ):
        with refused(reason):
            await holder.agent.commit(*changes)
    with refused("NOT_HOLDER", field="mutations[0].release_lock.fence"):
        await other.agent.commit(release(fence), put("v"))
    assert set(await names(on_any_store.server._store, keys.LOCK)) == {fence.lock_id, second.lock_id}
    assert (await holder.agent.check_current(fence, second)).current
    await holder.agent.commit(release(fence), release(second))  # releases alone are a commit too
    assert await names(on_any_store.server._store, keys.MARKER) == []
    await other.agent.commit(put("t/c"))


async def test_a_release_in_a_commit_counts_as_its_fence_also_where_that_is_given_too(each: Agent) -> None:
    session = await each.session()
    fence, kept = await each.acquire(session, "a"), await each.acquire(session, "b")
    await each.commit(put("a"), put("b"), release(fence), fences=[kept, fence])
    with refused("LOCKED_BY_OTHER", path="b"):
        await each.commit(put("b"))
    await each.commit(put("a", "y", at(await each.get("a"))))


async def test_32_locks_are_released_by_one_commit(each: Agent) -> None:
    session = await each.session()
    fences = [await each.acquire(session, f"l{number}") for number in range(32)]
    await each.commit(*[release(fence) for fence in fences])
    assert (await each.list_locks()).locks == []


# Streams and folded writes.


async def test_commits_of_a_stream_carry_fences_too(on_any_store: Running) -> None:
    holder, other = await on_any_store.join(), await on_any_store.join("writer-2")
    fence = await holder.acquire(tree("t"))
    requests = [
        commit_request(put("t/a"), fences=[fence]),
        commit_request(put("t/b")),
        commit_request(put("free")),
        commit_request(put("t/c"), release(lock_pb2.Fence(lock_id="0" * 32, revision=1, epoch=fence.epoch))),
        commit_request(put("t/d"), fences=[fence]),
    ]
    stream: Any = holder.agent.board.CommitStream(metadata=holder.agent.metadata)
    for request in requests:
        await stream.write(commit_pb2.CommitStreamRequest(commit=request))
    await stream.done_writing()
    answers = {answer.request_id: answer async for answer in stream}
    told = [answers[request.request_id] for request in requests]
    assert [answer.WhichOneof("result") for answer in told] == [
        "committed",
        "refused",
        "committed",
        "refused",
        "committed",
    ]
    assert [told[place].refused.reason for place in (1, 3)] == [
        error_reason_pb2.ERROR_REASON_LOCKED_BY_OTHER,
        error_reason_pb2.ERROR_REASON_LOCK_LOST,
    ]
    assert told[1].refused.metadata["lock_id"] == fence.lock_id
    assert told[3].refused.metadata["field"] == "mutations[1].release_lock.fence"
    assert await other.agent.paths() == ["free", "t/a", "t/d"]


async def test_increments_that_are_folded_are_held_against_locks_each(start: Started, clock: SettableClock) -> None:
    """Those without the fence are refused, all of them, and those with it count, all of them."""
    store = HeldStore(clock)
    running = await start(store)
    holder, other = await running.join(), running.as_agent("writer-2")
    await other.commit(increment("n"))
    fence = await holder.acquire("n")
    answers = await asyncio.gather(*[outcome(other.commit(increment("n"))) for _ in range(20)])
    assert {answer.reason for answer in answers} == {"LOCKED_BY_OTHER"}
    mixed = [other.commit(increment("n")) for _ in range(20)]
    mixed += [holder.agent.commit(increment("n"), fences=[fence]) for _ in range(20)]
    told = await asyncio.gather(*[outcome(call) for call in mixed])
    assert {getattr(answer, "reason", "done") for answer in told[:20]} == {"LOCKED_BY_OTHER"}
    assert all(isinstance(answer, commit_pb2.CommitResponse) for answer in told[20:])
    assert await other.json("n") == "21"
    await holder.agent.release(fence)
    await asyncio.gather(*[other.commit(increment("n")) for _ in range(20)])
    assert await other.json("n") == "41"


async def test_a_grant_while_folded_increments_are_under_way_lets_none_through_after_it(each: Agent) -> None:
    session = await each.session()
    for turn in range(5):
        path = f"n{turn}"
        writes = [asyncio.ensure_future(outcome(each.commit(increment(path)))) for _ in range(30)]
        fence = await each.acquire(session, path)
        seen = int(await each.json(path)) if await each.paths(path) else 0
        answers = await asyncio.gather(*writes)
        done = [answer for answer in answers if isinstance(answer, commit_pb2.CommitResponse)]
        assert len(done) == seen
        assert {answer.reason for answer in answers if answer not in done} <= {"LOCKED_BY_OTHER"}
        assert all(answer.revision.number < fence.revision for answer in done)
        await each.release(fence)


async def test_writes_elsewhere_go_on_while_locks_come_and_go(each: Agent) -> None:
    """A grant anywhere in the region makes commits be planned again; nobody is refused for it."""
    session = await each.session()
    is_over = False

    async def lock_and_release() -> None:
        while not is_over:
            await each.release(await each.acquire(session, tree("locked")))

    locking = asyncio.ensure_future(lock_and_release())
    for _ in range(3):
        await asyncio.gather(*[each.commit(put(f"free/{new_id()}")) for _ in range(20)])
    is_over = True
    await locking
    assert len(await each.paths("free")) == 60


# The gate.


async def test_the_gate_says_what_does_not_hold_any_more(on_any_store: Running) -> None:
    member, other = await on_any_store.join(), await on_any_store.join("writer-2")
    made = await member.agent.commit(put("a"), put("b"))
    hidden = await other.agent.commit(put("x", region="agent:writer-2"))
    fence, released = await member.acquire("a"), await member.acquire("b")
    foreign = await other.acquire("c")
    entries = [(key("a"), made.revision), (key("b"), made.revision)]
    answer = await member.agent.check_current(fence, released, entries=entries)
    assert answer.current
    assert not answer.stale_entries
    assert not answer.lost_fences
    assert answer.token
    await member.agent.release(released)
    changed = await member.agent.commit(put("b", "y", at(made)))
    entries += [(key("x", "agent:writer-2"), hidden.revision), (key("never"), made.revision)]
    answer = await member.agent.check_current(fence, released, foreign, entries=entries)
    assert not answer.current
    assert list(answer.stale_entries) == [key("b"), key("x", "agent:writer-2"), key("never")]
    assert list(answer.lost_fences) == [released, foreign]
    assert answer.token >= changed.token
    assert (await member.agent.check_current(entries=[(key("b"), changed.revision)])).current
    assert (await other.agent.check_current(entries=[(key("x", "agent:writer-2"), hidden.revision)])).current


async def test_the_gate_knows_what_has_expired(on_any_store: Running, clock: SettableClock) -> None:
    member = await on_any_store.join()
    made = await member.agent.commit(put("a", ttl={"seconds": 10}))
    fence = await member.acquire("b", hold_s=10)
    entries = [(key("a"), made.revision)]
    clock.pass_ms(9_999)
    assert (await member.agent.check_current(fence, entries=entries)).current
    clock.pass_ms(1)
    answer = await member.agent.check_current(fence, entries=entries)
    assert list(answer.stale_entries) == [key("a")]
    assert list(answer.lost_fences) == [fence]


async def test_the_gate_takes_100_entries_and_16_fences_each_once_and_not_nothing(each: Agent) -> None:
    session = await each.session()
    fences = [await each.acquire(session, f"l{number}") for number in range(17)]
    made = await each.commit(*[put(f"e{number}") for number in range(32)])
    some = entry_pb2.Revision(number=1, epoch=made.revision.epoch)
    entries = [(key(f"e{number}"), made.revision if number < 32 else some) for number in range(101)]
    answer = await each.check_current(*fences[:16], entries=entries[:100])
    assert len(answer.stale_entries) == 68
    assert not answer.lost_fences
    with refused("TOO_MANY_ITEMS", field="entries", limit="100", actual="101"):
        await each.check_current(entries=entries)
    with refused("TOO_MANY_ITEMS", field="fences", limit="16", actual="17"):
        await each.check_current(*fences)
    with refused("DUPLICATE_KEY", field="entries[1].key"):
        await each.check_current(entries=[entries[0]] * 2)
    with refused("DUPLICATE_KEY", field="fences[1]"):
        await each.check_current(fences[0], fences[0])
    with refused("FIELD_REQUIRED", field="entries"):
        await each.check_current()
    foreign = entry_pb2.Revision(number=1, epoch="0123456789abcdef")
    with refused("TOKEN_FROM_ANOTHER_STORE", field="entries[1].at"):
        await each.check_current(entries=[entries[0], (key("x"), foreign)])
    assert limits.FENCES_ENTRIES_MAX == 16


async def test_the_gate_reads_what_is_and_not_what_its_server_knows(start: Started, any_store: BoardStore) -> None:
    deaf = Deaf(any_store)
    one, two = await start(deaf), await start(any_store)
    holder = await one.join()
    granted = await holder.agent.grant(acquire_request(holder.session, "a"))
    made = await holder.agent.commit(put("a"), fences=[granted.fence])
    deaf.hears.clear()
    assert (await holder.agent.check_current(granted.fence, entries=[(key("a"), made.revision)])).current
    await two.as_agent("writer-1").commit(put("a", "y", at(made)), fences=[granted.fence])
    await two.as_agent("keeper", "operator").break_lock(granted.lock.id)
    answer = await holder.agent.check_current(granted.fence, entries=[(key("a"), made.revision)])
    assert list(answer.stale_entries) == [key("a")]
    assert list(answer.lost_fences) == [granted.fence]
    deaf.hears.set()


async def test_a_private_region_is_locked_like_any_other(each: Agent) -> None:
    member = Member(each, await each.session())
    fence = await member.acquire(tree("a", PRIVATE))
    with refused("LOCKED_BY_OTHER", region=PRIVATE):
        await each.commit(put("a/b", region=PRIVATE))
    await each.commit(put("a/b", region=PRIVATE), fences=[fence])
