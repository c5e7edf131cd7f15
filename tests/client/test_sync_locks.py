"""Sessions and locks for threads: nobody can stop the block, so it asks, and the end of the block tells."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from kokuban_client import LockLost, LossCause, Queued, SessionState, errors, sync
from kokuban_client.testing import ServerProcess
from tests.client.waiting import hears, until

if TYPE_CHECKING:
    from collections.abc import Iterator

NEVER_S = 60.0
TTL_S = 2.0


@pytest.fixture
def mine(server: ServerProcess) -> Iterator[sync.Board]:
    with sync.connect(server.address, agent="writer-1") as client:
        yield client.board("main")


@pytest.fixture
def theirs(server: ServerProcess) -> Iterator[sync.Board]:
    with sync.connect(server.address, agent="writer-2") as client:
        yield client.board("main")


@pytest.fixture
def supervisors(server: ServerProcess) -> Iterator[sync.Board]:
    with sync.connect(server.address, agent="boss", roles=["member", "supervisor"]) as client:
        yield client.board("main")


def test_a_lock_is_held_while_the_block_runs_and_then_free(mine: sync.Board, theirs: sync.Board, region: str) -> None:
    with mine.lock(region, "x", purpose="p") as lock:
        lock.check()
        lock.verify()
        lock.board.increment(region, "x")
        with lock.board.commit() as tx:
            tx.increment(region, "x/n")
        with pytest.raises(errors.LockedByOther):
            theirs.increment(region, "x")
        assert mine.check_current(fences=[lock]).current
        assert [seen.id for seen in theirs.locks(region).locks] == [lock.fence.lock_id]
        lock.downgrade()
        with pytest.raises(errors.LockShared):
            lock.board.increment(region, "x")
    assert not theirs.locks(region).locks
    with mine.lock(region, "x", purpose="p") as lock, lock.board.commit() as tx:
        tx.increment(region, "x")
        tx.release(lock)
    assert not lock.is_held


def test_RB_26_the_block_never_runs_when_the_lock_is_not_granted(
    mine: sync.Board, theirs: sync.Board, region: str
) -> None:
    with theirs.lock(region, "x", purpose="theirs"):
        for wait_s, refusal in ((0.0, errors.LockedByOther), (0.3, errors.LockWaitExpired)):
            with pytest.raises(refusal), mine.lock(region, "x", purpose="mine", wait_s=wait_s):
                pytest.fail("it was not free")


def test_RB_29_a_lock_is_not_taken_twice_and_may_be_released_often(mine: sync.Board, region: str) -> None:
    with mine.lock(region, "x", purpose="p") as lock:
        with pytest.raises(errors.LockOverlapsOwn), mine.lock(region, "x", purpose="p"):
            pytest.fail("a lock is not taken twice")
        with pytest.raises(RuntimeError, match="taken once"), lock:
            pytest.fail("nor is the object")
        for _ in range(3):
            lock.release()
        with pytest.raises(LockLost):
            lock.check()


def test_who_waits_is_told_and_gets_it(mine: sync.Board, theirs: sync.Board, region: str) -> None:
    standing, told = threading.Event(), list[Queued]()

    def on_queued(queued: Queued) -> None:
        told.append(queued)
        standing.set()

    def wait() -> bool:
        with mine.lock(region, "x", purpose="next", wait_s=NEVER_S, on_queued=on_queued) as lock:
            return lock.is_held

    with ThreadPoolExecutor(1) as pool, theirs.lock(region, "x", purpose="theirs") as held:
        waiting = pool.submit(wait)
        assert standing.wait(20)
        assert [lock.id for lock in told[0].held_by] == [held.fence.lock_id]
        held.release()
        assert waiting.result(20)


def test_RB_38_a_loss_is_told_at_once_by_check_and_at_the_end(
    mine: sync.Board, supervisors: sync.Board, region: str
) -> None:
    told, lost = threading.Event(), list[LockLost]()

    def on_lost(loss: LockLost) -> None:
        lost.append(loss)
        told.set()

    with pytest.raises(LockLost) as at_the_end, mine.lock(region, "x", purpose="p", on_lost=on_lost) as lock:  # noqa: PT012 - how the block ends is what is tested
        asyncio.run(until(lambda: hears(lock.session)))
        supervisors.break_lock(lock.fence.lock_id, "it stood in the way")
        assert told.wait(20)
        with pytest.raises(LockLost):
            lock.check()
        with pytest.raises(LockLost):
            lock.board.increment(region, "x")
    assert [(one.cause, one.words) for one in (*lost, at_the_end.value)] == [
        (LossCause.BROKEN, "it stood in the way")
    ] * 2


def test_a_blocks_own_error_goes_before_the_loss(mine: sync.Board, supervisors: sync.Board, region: str) -> None:
    with pytest.raises(ZeroDivisionError), mine.lock(region, "x", purpose="p") as lock:  # noqa: PT012 - how the block ends is what is tested
        supervisors.break_lock(lock.fence.lock_id, "why not")
        raise ZeroDivisionError


def test_LE_14_a_session_is_renewed_by_a_thread_of_its_own(mine: sync.Board, theirs: sync.Board, region: str) -> None:
    with mine.session(ttl_s=TTL_S) as session, mine.lock(region, "x", purpose="long", session=session) as lock:
        with pytest.raises(errors.LockWaitExpired), theirs.lock(region, "x", purpose="steal", wait_s=2 * TTL_S):
            pytest.fail("it was held all the time")
        lock.check()
        assert session.state is SessionState.LIVE


def test_LE_18_a_client_that_reaches_nobody_says_lost() -> None:
    states, lost = list[SessionState](), threading.Event()
    with ServerProcess() as server, sync.connect(server.address, agent="a", timeout_s=1) as client:
        board = client.board("main")
        with board.session(ttl_s=TTL_S, on_state=states.append) as session:
            with (  # noqa: PT012 - how the block ends is what is tested
                pytest.raises(LockLost),
                board.lock("shared:plan", "x", purpose="p", session=session, on_lost=lambda _: lost.set()) as lock,
            ):
                server.pause()
                assert lost.wait(20)
                assert not lock.is_held
            assert states == [SessionState.IN_JEOPARDY, SessionState.LOST]
            server.resume()
            with pytest.raises(errors.SessionLost):
                session.check()


def test_a_session_and_its_locks_outlive_a_server(durable_server: ServerProcess) -> None:
    with sync.connect(durable_server.address, agent="a") as client:
        board = client.board("main")
        with board.session(ttl_s=20) as session, board.lock("shared:plan", "x", purpose="p", session=session) as lock:
            durable_server.kill()
            durable_server.start()
            lock.verify()
            assert session.id in {there.session.id for there in board.sessions()}


def test_an_entry_is_claimed(mine: sync.Board, theirs: sync.Board, region: str) -> None:
    entry = mine.put(region, "a", 1, must_not_exist=True)
    with mine.claim([(entry.region, entry.path)], purpose="p") as claim:
        assert claim.entry.value == 1
        with pytest.raises(errors.NothingToClaim), theirs.claim([claim.entry], purpose="p"):
            pytest.fail("it is taken")


def test_many_threads_take_turns(mine: sync.Board, region: str) -> None:
    inside = 0

    def take(_: int) -> None:
        nonlocal inside
        with mine.session() as session, mine.lock(region, "x", purpose="p", wait_s=NEVER_S, session=session) as lock:
            inside += 1
            assert inside == 1
            lock.board.update(region, "x", lambda n: n + 1, create=0)
            inside -= 1

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(take, range(12)))
    assert mine.get(region, "x").value == 12


def test_RB_23_sessions_and_locks_leave_no_thread_behind(server: ServerProcess, region: str) -> None:
    def come_and_go() -> None:
        with sync.connect(server.address, agent="guest") as client:
            board = client.board("main")
            with board.session() as session, board.lock(region, "x", purpose="p", session=session):
                pass
            with board.lock(region, "x", purpose="p"):
                pass

    come_and_go()
    before = threading.active_count()
    for _ in range(10):
        come_and_go()
    assert threading.active_count() <= before + 1
