"""Locks against a real server: the block never runs without one, and is stopped when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import (
    Fence,
    LockLost,
    LockMode,
    LockScope,
    LockState,
    LockTarget,
    LossCause,
    errors,
)
from tests.client.waiting import hears, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kokuban_client import Board, HeldLock, Queued
    from kokuban_client.testing import ServerProcess

NEVER_S = 60.0


@pytest.fixture
async def theirs(their_board: Board, region: str) -> AsyncIterator[HeldLock]:
    """Somebody else's lock on `x` and all below it."""
    async with their_board.lock(region, "x", purpose="their work") as lock:
        yield lock


async def is_free(board: Board, region: str, path: str = "") -> bool:
    listing = await board.locks(region, path)
    return not listing.locks and not listing.waits


# Taking


async def test_a_lock_is_held_while_the_block_runs_and_then_free(board: Board, their_board: Board, region: str) -> None:
    async with board.lock(region, "x", purpose="restructure", hold_max_s=60, lock_delay_s=2.5) as lock:
        assert lock.is_held
        lock.check()
        await lock.verify()
        (seen,) = (await their_board.locks(region)).locks
        assert seen == lock.lock
        assert (seen.id, seen.agent, seen.purpose) == (lock.fence.lock_id, "writer-1", "restructure")
        assert seen.targets == (LockTarget(region, "x", LockScope.SUBTREE),)
        assert (seen.mode, seen.state, seen.lock_delay_s) == (LockMode.EXCLUSIVE, LockState.HELD, 2.5)
        assert seen.session_id == lock.session.id
        assert seen.fence_revision == lock.fence.revision
        assert seen.end_time is not None
        assert (seen.end_time - seen.grant_time).total_seconds() == 60
        assert lock.token
    assert not lock.is_held
    assert await is_free(their_board, region)


async def test_RB_26_the_block_never_runs_when_the_lock_is_not_granted(
    board: Board, region: str, theirs: HeldLock
) -> None:
    ran = False
    for wait_s, refusal in ((0.0, errors.LockedByOther), (0.3, errors.LockWaitExpired)):
        with pytest.raises(refusal) as refused:
            async with board.lock(region, "x/deeper", purpose="mine", wait_s=wait_s):
                ran = True
        assert (refused.value.holder_agent, refused.value.purpose) == ("writer-2", "their work")
        assert refused.value.lock_id == theirs.fence.lock_id
        assert (refused.value.mode, refused.value.state) == ("exclusive", "held")
    for path, scope in (("", "entry"), ("/", "entry"), ("a//b", "subtree")):
        with pytest.raises(errors.InvalidRequest):
            async with board.lock(region, path, purpose="mine", scope=scope):  # type: ignore[arg-type] # of the list
                ran = True
    with pytest.raises(errors.LockTargetsInvalid):
        async with board.lock_all([(region, "a", "subtree"), (region, "a/b", "entry")], purpose="mine"):
            ran = True
    with pytest.raises(errors.DurationInvalid):
        async with board.lock(region, "free", purpose="mine", hold_max_s=0.5):
            ran = True
    assert not ran
    assert {lock.id for lock in (await board.locks(region)).locks} == {theirs.fence.lock_id}


async def test_RB_26_nor_when_no_server_answers() -> None:
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{placeholder.getsockname()[1]}"
        async with kokuban_client.connect(nobody, agent="a", timeout_s=0.3) as client:
            with pytest.raises(errors.Unavailable):
                async with client.board("main").lock("shared:plan", "x", purpose="p", wait_s=0.1):
                    pytest.fail("nobody granted this")


async def test_RB_26_nor_when_the_session_is_over(board: Board, region: str) -> None:
    async with board.session(label="short") as session:
        pass
    with pytest.raises(errors.SessionLost):
        async with board.lock(region, "x", purpose="p", session=session):
            pytest.fail("a closed session holds nothing")


def test_what_cannot_be_meant_is_told_before_anything_is_sent(board: Board, region: str) -> None:
    with pytest.raises(ValueError, match="mode"):
        board.lock(region, "x", purpose="p", mode=LockMode.UNKNOWN)
    with pytest.raises(ValueError, match="scope"):
        board.lock(region, "x", purpose="p", scope=LockScope.UNKNOWN)
    with pytest.raises(ValueError, match="wait_s"):
        board.lock(region, "x", purpose="p", wait_s=-1)
    with pytest.raises(ValueError, match="wait_s"):
        board.lock(region, "x", purpose="p", wait_s=float("inf"))
    elsewhere = board.session()
    elsewhere._board = "other"
    with pytest.raises(ValueError, match="other"):
        board.lock(region, "x", purpose="p", session=elsewhere)
    for use in ("fence", "lock", "session"):
        with pytest.raises(RuntimeError, match="async with"):
            getattr(board.lock(region, "x", purpose="p"), use)


async def test_RB_29_a_lock_is_not_taken_twice_and_may_be_released_often(
    board: Board, their_board: Board, region: str
) -> None:
    async with board.session() as first, board.session() as second:
        async with board.lock(region, "x", purpose="p", session=first) as lock:
            # The same session, the same agent's other session, another agent; the same object.
            for path in ("x", "x/below", ""):
                with pytest.raises(errors.LockOverlapsOwn):
                    await board.lock(region, path, purpose="p", session=first).__aenter__()
                with pytest.raises(errors.LockedByOther):
                    await board.lock(region, path, purpose="p", session=second).__aenter__()
                with pytest.raises(errors.LockedByOther):
                    await their_board.lock(region, path, purpose="p").__aenter__()
            with pytest.raises(RuntimeError, match="taken once"):
                await lock.__aenter__()
            assert lock.is_held
            async with board.lock(region, "beside", purpose="p", session=first):
                pass
            await lock.verify()
            for _ in range(3):
                await lock.release()
            assert not lock.is_held
            with pytest.raises(LockLost):
                lock.check()
            with pytest.raises(LockLost):
                await lock.board.put(region, "x", 1, must_not_exist=True)
            async with their_board.lock(region, "x", purpose="theirs now") as heir:
                await lock.release()  # once more, and nothing of the heir's is released
                await heir.verify()
        await lock.release()
        with pytest.raises(RuntimeError, match="taken once"):
            await lock.__aenter__()


async def test_several_targets_are_taken_together_or_not_at_all(board: Board, region: str, theirs: HeldLock) -> None:
    with pytest.raises(errors.LockedByOther) as refused:
        async with board.lock_all([(region, "a", "entry"), (region, "x", "entry")], purpose="both"):
            pytest.fail("one of them is not free")
    assert (refused.value.region, refused.value.path) == (region, "x")
    async with board.lock(region, "a", purpose="still free"):
        pass
    targets = [LockTarget(region, "a"), LockTarget(region, "b", LockScope.ENTRY)]
    async with board.lock_all(targets, purpose="both") as lock:
        assert set(lock.lock.targets) == set(targets)
        assert [str(target) for target in targets] == [f"{region}/a/**", f"{region}/b"]


async def test_shared_locks_stand_side_by_side_and_forbid_writes(board: Board, their_board: Board, region: str) -> None:
    async with (
        board.lock(region, "x", purpose="read", mode="shared") as mine,
        their_board.lock(region, "x", purpose="read too", mode=LockMode.SHARED),
    ):
        with pytest.raises(errors.LockShared):
            await mine.board.put(region, "x", 1, must_not_exist=True)
        assert mine.is_held
        async with board.session() as another:
            with pytest.raises(errors.LockedByOther) as refused:
                async with board.lock(region, "x/y", purpose="write", session=another):
                    pytest.fail("it is shared")
        assert refused.value.mode == "shared"


async def test_an_exclusive_lock_becomes_a_shared_one_without_letting_go(
    board: Board, their_board: Board, region: str
) -> None:
    async with board.lock(region, "x", purpose="write, then read") as lock:
        fence = lock.fence
        await lock.board.put(region, "x", 1, must_not_exist=True)
        await lock.downgrade()
        await lock.downgrade()
        assert (lock.lock.mode, lock.fence) == (LockMode.SHARED, fence)
        async with their_board.lock(region, "x", purpose="read", mode="shared"):
            pass
        with pytest.raises(errors.LockShared):
            await lock.board.delete(region, "x", unconditional=True)


# Waiting


async def test_who_waits_is_told_where_it_stands_and_gets_the_lock(board: Board, region: str, theirs: HeldLock) -> None:
    told: list[Queued] = []
    standing = asyncio.Event()

    def on_queued(queued: Queued) -> None:
        told.append(queued)
        standing.set()

    async def wait() -> float:
        async with board.lock(region, "x", purpose="next", wait_s=NEVER_S, on_queued=on_queued) as lock:
            assert lock.is_held
            return lock.waited_s

    waiting = asyncio.create_task(wait())
    async with asyncio.timeout(20):
        await standing.wait()
        assert (told[0].ahead, [lock.id for lock in told[0].held_by]) == (0, [theirs.fence.lock_id])
        (wait_seen,) = (await board.locks(region)).waits
        assert (wait_seen.agent, wait_seen.purpose) == ("writer-1", "next")
        await theirs.release()
        assert await waiting >= 0
    assert await is_free(board, region)


async def test_a_cancelled_wait_leaves_neither_request_nor_lock(
    board: Board, their_board: Board, region: str, theirs: HeldLock
) -> None:
    standing = asyncio.Event()

    async def wait() -> None:
        on_queued = lambda _: standing.set()  # noqa: E731 - two lines would say no more
        async with board.lock(region, "x", purpose="given up", wait_s=NEVER_S, on_queued=on_queued):
            pytest.fail("it was cancelled")

    for _ in range(5):
        standing.clear()
        waiting = asyncio.create_task(wait())
        await asyncio.wait_for(standing.wait(), 20)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def nobody_waits() -> bool:
        return not (await their_board.locks(region)).waits

    await until(nobody_waits)
    await theirs.release()
    async with their_board.lock(region, "", purpose="all of it"):
        pass


async def test_a_wait_cancelled_at_whatever_moment_leaves_nothing(
    board: Board, their_board: Board, region: str
) -> None:
    """Some of these are cancelled when the grant is made already, and some just then."""
    for turns in range(0, 120, 3):

        async def take() -> None:
            async with board.lock(region, "x", purpose="p", wait_s=NEVER_S):
                await asyncio.sleep(NEVER_S)

        taking = asyncio.create_task(take())
        for _ in range(turns):
            await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
    await until(lambda: is_free(their_board, region))


async def test_a_fault_in_on_queued_ends_the_wait(board: Board, region: str, theirs: HeldLock) -> None:
    def fail(_: Queued) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with board.lock(region, "x", purpose="p", wait_s=NEVER_S, on_queued=fail):
            pytest.fail("it waited")

    async def nobody_waits() -> bool:
        return not (await board.locks(region)).waits

    await until(nobody_waits)


async def test_who_would_wait_for_ever_is_told_the_circle(board: Board, their_board: Board, region: str) -> None:
    crossed = asyncio.Barrier(2)

    async def cross(on: Board, first: str, second: str) -> None:
        async with on.lock(region, first, purpose=f"{first} first"):
            await crossed.wait()
            async with on.lock(region, second, purpose=f"then {second}", wait_s=NEVER_S):
                pass

    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(cross(board, "a", "b"), cross(their_board, "b", "a"), return_exceptions=True)
    (victim,) = [outcome for outcome in outcomes if outcome is not None]
    assert isinstance(victim, errors.Deadlock)
    assert victim.length == 2
    assert {edge.agent for edge in victim.cycle} == {"writer-1", "writer-2"}
    mine = victim.cycle[0]
    assert mine.purpose in {"then a", "then b"}
    assert mine.waits_for == (LockTarget(region, mine.purpose[-1], LockScope.SUBTREE),)


# Writing


async def test_writes_of_the_locks_board_carry_its_fence_and_others_are_refused(
    board: Board, their_board: Board, region: str
) -> None:
    async with board.lock(region, "x", purpose="restructure") as lock:
        mine = lock.board
        written = await mine.put(region, "x", {"n": 1}, must_not_exist=True)
        await mine.merge_patch(region, "x", {"m": 2}, at=written.revision)
        await mine.increment(region, "x/count")
        await mine.append(region, "x/list", "a")
        await mine.add_to_set(region, "x/set", "a")
        await mine.update(region, "x", lambda x: {**x, "o": 3})
        async with mine.commit() as tx:
            tx.increment(region, "x/count")
            tx.put(region, "x/more", "y", must_not_exist=True)
        await mine.delete(region, "x/more", at=tx.result.revision)
        assert (await their_board.get(region, "x")).value == {"n": 1, "m": 2, "o": 3}  # reads are never blocked
        for writer in (their_board, board):
            with pytest.raises(errors.LockedByOther) as refused:
                await writer.increment(region, "x/count")
            assert (refused.value.holder_agent, refused.value.purpose) == ("writer-1", "restructure")
            assert refused.value.holder_session == lock.session.id
            assert refused.value.since == lock.lock.grant_time
        await their_board.increment(region, "beside")
    assert (await their_board.increment(region, "x/count")).value == 3


async def test_fences_can_be_given_one_by_one(board: Board, their_board: Board, region: str) -> None:
    async with board.lock(region, "a", purpose="p") as a, board.lock(region, "b", purpose="p") as b:
        async with board.commit(fences=[a, b.fence]) as tx:
            tx.increment(region, "a")
            tx.increment(region, "b")
        await board.increment(region, "a", fences=[Fence.parse(str(a.fence))])
        await board.put(region, "a/new", 1, must_not_exist=True, fences=[a])
        await a.board.increment(region, "b", fences=[b, a])
        with pytest.raises(errors.NotHolder):
            await their_board.increment(region, "elsewhere", fences=[a.fence])
        with pytest.raises(errors.LockedByOther):
            await board.increment(region, "b", fences=[a])
        assert a.is_held
        assert b.is_held


async def test_a_commit_can_release_what_it_was_made_under(board: Board, their_board: Board, region: str) -> None:
    async with board.lock(region, "x", purpose="publish") as lock:
        with pytest.raises(errors.AlreadyExists):
            await twice(lock, region)
        assert lock.is_held
        async with lock.board.commit() as tx:
            tx.put(region, "x/done", 1, must_not_exist=True)
            tx.release(lock)
        assert not lock.is_held
        async with their_board.lock(region, "x", purpose="next"):
            pass
    async with board.lock(region, "x", purpose="by its fence") as lock, board.commit() as tx:
        tx.increment(region, "x/n")
        tx.release(lock.fence)
    with pytest.raises(LockLost):  # noqa: PT012 - how the block ends is what is tested
        async with board.commit() as tx:
            tx.increment(region, "x/n")
            tx.release(lock.fence)


async def twice(lock: HeldLock, region: str) -> None:
    await lock.board.put(region, "x/there", 1, must_not_exist=True)
    async with lock.board.commit() as tx:
        tx.put(region, "x/there", 1, must_not_exist=True)
        tx.release(lock)


async def test_the_effect_gate_tells_what_is_current(board: Board, their_board: Board, region: str) -> None:
    kept = await board.put(region, "kept", 1, must_not_exist=True)
    changed = await board.put(region, "changed", 1, must_not_exist=True)
    async with board.lock(region, "x", purpose="p") as lock:
        assert (await board.check_current(entries=[kept, changed], fences=[lock])).current
        await their_board.increment(region, "changed")
        entry = await board.get(region, "kept")
        told = await board.check_current(entries=[entry, (region, "changed", changed.revision)], fences=[lock.fence])
        assert (told.current, told.stale_entries, told.lost_fences) == (False, (changed_key(region),), ())
        assert told.token
    told = await board.check_current(fences=[lock])
    assert (told.current, told.lost_fences) == (False, (lock.fence,))


def changed_key(region: str) -> kokuban_client.EntryKey:
    return kokuban_client.EntryKey(region, "changed")


# Claiming


async def test_each_entry_is_claimed_by_one(board: Board, their_board: Board, region: str) -> None:
    for name in ("a", "b"):
        await board.put(region, name, {"task": name}, must_not_exist=True)
    names = [(region, "not there"), (region, "a"), (region, "b")]
    async with board.claim(names, purpose="work") as mine, their_board.claim(names, purpose="work") as their_own:
        assert (mine.entry.path, mine.entry.value) == ("a", {"task": "a"})
        assert their_own.entry.path == "b"
        assert mine.lock.targets == (LockTarget(region, "a", LockScope.ENTRY),)
        await mine.board.put(region, "a", {"task": "a", "done": True}, at=mine.entry.revision)
        with pytest.raises(errors.NothingToClaim) as nothing:
            async with board.claim(names, purpose="more"):
                pytest.fail("all are taken")
        assert (nothing.value.missing, nothing.value.locked) == (1, 2)
    async with board.claim([mine.entry], purpose="again", scope="subtree") as again:
        assert again.entry.value == {"task": "a", "done": True}
    with pytest.raises(RuntimeError, match="claimed"):
        _ = board.claim(names, purpose="work").entry


async def test_a_cancelled_claim_leaves_nothing(board: Board, their_board: Board, region: str) -> None:
    entry = await board.put(region, "a", 1, must_not_exist=True)

    async def claim() -> None:
        async with board.claim([(entry.region, entry.path)], purpose="p"):
            await asyncio.sleep(NEVER_S)

    for turns in range(0, 60, 3):
        claiming = asyncio.create_task(claim())
        for _ in range(turns):
            await asyncio.sleep(0)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
    await until(lambda: is_free(their_board, region))


# Losing


async def test_RB_38_the_caller_is_told_then_the_block_is_stopped_then_the_rest_is_released(
    board: Board, supervisors_board: Board, region: str
) -> None:
    order: list[str] = []

    def on_lost(lost: LockLost) -> None:
        order.append(f"on_lost: {lost.cause}, {lost.broken_by}, {lost.words}")
        assert not lock.is_held

    given_back = asyncio.Event()
    with pytest.raises(LockLost) as lost:  # noqa: PT012 - how the block ends is what is tested
        async with board.lock(region, "x", purpose="p", on_lost=on_lost) as lock:
            give_back = lock._give_back

            async def released(fence: Fence, timeout_s: float) -> bool:
                order.append("release")
                given_back.set()
                return await give_back(fence, timeout_s)

            await until(lambda: hears(lock.session))
            lock._give_back = released  # type: ignore[method-assign] # to see when; it does what it does
            try:
                await supervisors_board.break_lock(lock.fence.lock_id, "it stood in the way")
                await asyncio.sleep(NEVER_S)
            finally:
                order.append("stop")
    await asyncio.wait_for(given_back.wait(), 20)
    assert order == ["on_lost: broken, boss, it stood in the way", "stop", "release"]
    assert (lost.value.cause, lost.value.broken_by, lost.value.words) == (
        LossCause.BROKEN,
        "boss",
        "it stood in the way",
    )
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_only_some_may_break_locks_and_only_for_a_reason(
    board: Board, supervisors_board: Board, region: str, theirs: HeldLock
) -> None:
    with pytest.raises(errors.RoleRequired):
        await board.break_lock(theirs.fence.lock_id, "mine is more important")
    with pytest.raises(errors.InvalidRequest):
        await supervisors_board.break_lock(theirs.fence.lock_id, "")
    with pytest.raises(errors.NotFound):
        await supervisors_board.break_lock("0" * 32, "not there")
    await theirs.verify()


async def test_a_lock_that_was_held_too_long_is_lost(board: Board, region: str) -> None:
    told: list[LossCause] = []
    with pytest.raises(LockLost) as lost:
        async with board.lock(region, "x", purpose="p", hold_max_s=1, on_lost=lambda e: told.append(e.cause)) as lock:
            await asyncio.sleep(NEVER_S)
    assert lost.value.cause is LossCause.HELD_TOO_LONG
    assert told == [LossCause.HELD_TOO_LONG]
    await until(lambda: is_free(board, region))  # a holder gives up a little before the store does
    with pytest.raises(LockLost):
        await board.increment(region, "x", fences=[lock.fence])


async def test_a_refused_fence_stops_the_block_also_from_a_task_of_its_own(
    server: ServerProcess, board: Board, region: str
) -> None:
    async with board.session() as session:
        causes: list[LossCause] = []
        on_lost = lambda lost: causes.append(lost.cause)  # noqa: E731 - two lines would say no more
        with pytest.raises(LockLost):  # noqa: PT012 - how the block ends is what is tested
            async with board.lock(region, "x", purpose="p", session=session, on_lost=on_lost) as lock:
                await until(lambda: hears(session))
                await lock.verify()
                await lose_behind_its_back(server, lock)

                async def write() -> None:
                    with contextlib.suppress(LockLost):
                        await lock.board.increment(region, "x")

                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(write())
                    await asyncio.sleep(NEVER_S)
        assert causes == [LossCause.REFUSED]
        with pytest.raises(LockLost, match="LOCK_LOST"):  # noqa: PT012 - how the block ends is what is tested
            async with board.lock(region, "x", purpose="p", session=session) as lock:
                await lose_behind_its_back(server, lock)
                await lock.board.increment(region, "x")
        await asyncio.sleep(0)  # nothing of the interruption is left to arrive later


async def lose_behind_its_back(server: ServerProcess, lock: HeldLock) -> None:
    """Release it as another process of the same agent could, about which nobody tells this one."""
    async with kokuban_client.connect(server.address, agent="writer-1") as client, client.board("main").commit() as tx:
        tx.increment("agent:writer-1", "n")
        tx.release(lock.fence)


async def test_a_lock_that_was_gone_before_the_end_is_told_at_the_end(
    server: ServerProcess, board: Board, region: str
) -> None:
    with pytest.raises(LockLost):
        async with board.lock(region, "x", purpose="p") as lock:
            await lose_behind_its_back(server, lock)
    with pytest.raises(LockLost):  # noqa: PT012 - how the block ends is what is tested
        async with board.lock(region, "x", purpose="p") as lock:
            await lose_behind_its_back(server, lock)
            await lock.verify()


async def test_the_blocks_own_error_goes_before_the_loss(board: Board, supervisors_board: Board, region: str) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - how the block ends is what is tested
        async with board.lock(region, "x", purpose="p") as lock:
            try:
                await supervisors_board.break_lock(lock.fence.lock_id, "why not")
                await asyncio.sleep(NEVER_S)
            except asyncio.CancelledError:
                raise ZeroDivisionError from None
    await asyncio.sleep(0)


async def test_a_fault_in_on_lost_stops_the_block_all_the_same(
    board: Board, supervisors_board: Board, region: str
) -> None:
    def fail(_: LockLost) -> None:
        raise ZeroDivisionError

    with pytest.raises(LockLost) as lost:  # noqa: PT012 - how the block ends is what is tested
        async with board.lock(region, "x", purpose="p", on_lost=fail) as lock:
            await supervisors_board.break_lock(lock.fence.lock_id, "why not")
            await asyncio.sleep(NEVER_S)
    assert isinstance(lost.value.__cause__, ZeroDivisionError)


async def test_a_cancellation_from_outside_stays_one_and_releases(
    board: Board, their_board: Board, region: str
) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with board.lock(region, "x", purpose="p"):
            inside.set()
            await asyncio.sleep(NEVER_S)

    working = asyncio.create_task(work())
    await asyncio.wait_for(inside.wait(), 20)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    await until(lambda: is_free(their_board, region))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), board.lock(region, "x", purpose="p"):
            await asyncio.sleep(NEVER_S)
    await until(lambda: is_free(their_board, region))


async def test_a_cancellation_from_outside_is_not_swallowed_by_a_loss_at_the_same_time(
    board: Board, region: str
) -> None:
    inside = asyncio.Event()
    locks: list[HeldLock] = []

    async def work() -> None:
        async with board.lock(region, "x", purpose="p") as lock:
            locks.append(lock)
            inside.set()
            await asyncio.sleep(NEVER_S)

    for first, second in (("lose", "cancel"), ("cancel", "lose")):
        inside.clear()
        working = asyncio.create_task(work())
        await asyncio.wait_for(inside.wait(), 20)
        for act in (first, second):
            if act == "cancel":
                working.cancel()
            else:
                locks[-1].lose(LossCause.UNKNOWN)
        with pytest.raises(asyncio.CancelledError):
            await working
        await until(lambda: is_free(board, region))


async def test_a_loss_that_the_block_did_not_live_to_see_interrupts_nothing_later(board: Board, region: str) -> None:
    with pytest.raises(LockLost):
        async with board.lock(region, "x", purpose="p") as lock:
            lock.lose(LossCause.UNKNOWN)  # and the block ends without waiting for anything
    await asyncio.sleep(0)
    await board.increment(region, "y")


async def test_locks_of_one_lost_session_end_with_one_loss_each(board: Board, region: str) -> None:
    ended: list[str] = []
    with pytest.raises(LockLost) as lost:  # noqa: PT012 - how the block ends is what is tested
        async with board.session() as session, board.lock(region, "a", purpose="a", session=session) as outer:
            with contextlib.suppress(ZeroDivisionError):
                async with board.lock(region, "b", purpose="b", session=session) as inner:
                    for lock in (inner, outer):
                        lock.lose(LossCause.SESSION_LOST)
                    try:
                        await asyncio.sleep(NEVER_S)
                    finally:
                        ended.append("inner")
    assert ended == ["inner"]
    assert lost.value.lock_id == outer.fence.lock_id
    await asyncio.sleep(0)
