"""Sessions against a real server, over connections that stall and break."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc.aio
import pytest

import kokuban_client
from kokuban.v1 import lock_pb2, lock_service_pb2, lock_service_pb2_grpc, session_service_pb2, session_service_pb2_grpc
from kokuban_client import LockLost, LossCause, SessionState, errors
from kokuban_client._lease import clock_s
from tests.client.waiting import until
from tests.fault_proxy import FaultProxy, Mode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kokuban_client import Board, HeldLock, Session
    from kokuban_client.testing import ServerProcess

NEVER_S = 60.0
TTL_S = 2.0
"""The least that a server grants."""


class Told:
    """The states that a session was told to be in, and the moments of it."""

    def __init__(self) -> None:
        self.states: list[SessionState] = []
        self.at_s: dict[SessionState, float] = {}
        self._changed = asyncio.Event()

    def __call__(self, state: SessionState) -> None:
        self.states.append(state)
        self.at_s[state] = clock_s()
        self._changed.set()

    async def until(self, state: SessionState) -> None:
        async with asyncio.timeout(20):
            while state not in self.states:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
async def proxy(server: ServerProcess) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(int(server.address.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.fixture
async def far_board(proxy: FaultProxy) -> AsyncIterator[Board]:
    """The board as seen by writer-1 over the proxy."""
    async with kokuban_client.connect(proxy.endpoint, agent="writer-1", timeout_s=3) as client:
        yield client.board("main")


async def ids_there(board: Board) -> set[str]:
    return {presence.session.id for presence in await board.sessions()}


async def test_a_session_is_there_for_all_to_see_until_it_is_closed(
    board: Board, their_board: Board, region: str
) -> None:
    async with board.session(ttl_s=20, label="refactoring") as session:
        session.check()
        assert (session.state, session.ttl_s, session.board_id) == (SessionState.LIVE, 20, "main")
        async with board.lock(region, "x", purpose="p", session=session) as lock:
            (seen,) = [there for there in await their_board.sessions() if there.session.id == session.id]
            assert (seen.session.agent, seen.session.label, seen.session.ttl_s) == ("writer-1", "refactoring", 20)
            assert seen.session.open_time == session.info.open_time
            assert seen.session.heartbeat_age_s is not None
            assert seen.session.heartbeat_age_s < 20
            assert [held.id for held in seen.holds] == [lock.fence.lock_id]
    assert session.state is SessionState.CLOSED
    assert session.id not in await ids_there(their_board)
    with pytest.raises(errors.SessionLost):
        session.check()
    await session.aclose()
    with pytest.raises(RuntimeError, match="opened once"):
        await session.__aenter__()


def test_a_session_that_is_not_open_says_so(board: Board) -> None:
    session = board.session()
    assert session.state is SessionState.CLOSED
    with pytest.raises(RuntimeError, match="not been opened"):
        _ = session.id
    with pytest.raises(errors.SessionLost):
        session.check()


async def test_bounds_of_a_session_are_the_servers(board: Board) -> None:
    for ttl_s in (1.0, 3601.0):
        with pytest.raises(errors.DurationInvalid):
            await board.session(ttl_s=ttl_s).__aenter__()


async def test_locks_without_a_session_share_one_that_lives_as_long_as_the_client(
    server: ServerProcess, their_board: Board, region: str
) -> None:
    async with kokuban_client.connect(server.address, agent="writer-1") as client:
        board = client.board("main")
        locks = [board.lock(region, name, purpose="p") for name in "abcdef"]
        await asyncio.gather(*(lock.__aenter__() for lock in locks))
        (shared,) = {lock.session for lock in locks}
        async with client.board("main").lock(region, "other object", purpose="p") as lock:
            assert lock.session is shared
        await asyncio.gather(*(lock.__aexit__(None, None, None) for lock in locks))
        assert shared.state is SessionState.LIVE
        await shared.aclose()
        async with board.lock(region, "a", purpose="p") as lock:
            assert lock.session is not shared
            anew = lock.session
    assert anew.state is SessionState.CLOSED
    assert not {shared.id, anew.id} & await ids_there(their_board)


async def test_LE_14_a_session_is_renewed_while_a_long_block_works(
    board: Board, their_board: Board, region: str
) -> None:
    told = Told()
    async with (
        board.session(ttl_s=TTL_S, on_state=told) as session,
        board.lock(region, "x", purpose="long work", session=session) as lock,
    ):
        with pytest.raises(errors.LockWaitExpired):
            async with their_board.lock(region, "x", purpose="to steal it", wait_s=2.5 * TTL_S):
                pytest.fail("it was held all the time")
        assert lock.is_held
        await lock.board.increment(region, "x")
        (seen,) = [there for there in await their_board.sessions() if there.session.id == session.id]
        assert seen.session.heartbeat_age_s is not None
        assert seen.session.heartbeat_age_s <= TTL_S
    assert SessionState.LOST not in told.states


async def test_LE_18_a_client_that_reaches_nobody_says_lost_and_does_not_claim_to_hold(
    proxy: FaultProxy, far_board: Board, their_board: Board, region: str
) -> None:
    told, order = Told(), list[str]()
    async with far_board.session(ttl_s=TTL_S, on_state=told) as session:
        with pytest.raises(LockLost) as lost:  # noqa: PT012 - how the block ends is what is tested
            async with far_board.lock(
                region, "x", purpose="p", session=session, on_lost=lambda _: order.append("on_lost")
            ) as lock:
                await lock.verify()
                stalled_s = clock_s()
                proxy.set(Mode.STALL)
                try:
                    await asyncio.sleep(NEVER_S)
                finally:
                    order.append("stop")
        assert order == ["on_lost", "stop"]
        assert lost.value.cause is LossCause.SESSION_LOST
        assert told.states == [SessionState.IN_JEOPARDY, SessionState.LOST]
        assert told.at_s[SessionState.LOST] <= stalled_s + TTL_S + 1.0
        assert told.at_s[SessionState.LOST] - told.at_s[SessionState.IN_JEOPARDY] <= TTL_S / 3 + 1.0
        # Somebody else gets it in time, and nothing that comes later makes the first one believe in it again.
        async with their_board.lock(region, "x", purpose="the heir", wait_s=NEVER_S) as heir:
            proxy.set(Mode.PASS)
            assert session.state is SessionState.LOST
            assert not lock.is_held
            with pytest.raises(LockLost):
                lock.check()
            with pytest.raises(LockLost):
                await lock.board.increment(region, "x")
            with pytest.raises((LockLost, errors.LockedByOther)):
                await far_board.increment(region, "x", fences=[lock.fence])
            with pytest.raises(errors.SessionLost):
                async with far_board.lock(region, "y", purpose="p", session=session):
                    pytest.fail("the session is lost")
            await heir.verify()


async def test_a_wait_ends_when_its_session_is_lost(
    proxy: FaultProxy, far_board: Board, their_board: Board, region: str
) -> None:
    standing = asyncio.Event()
    async with their_board.lock(region, "x", purpose="theirs"), far_board.session(ttl_s=TTL_S) as session:

        async def wait() -> None:
            on_queued = lambda _: standing.set()  # noqa: E731 - two lines would say no more
            async with far_board.lock(region, "x", purpose="p", wait_s=NEVER_S, session=session, on_queued=on_queued):
                pytest.fail("it was not free")

        waiting = asyncio.create_task(wait())
        await asyncio.wait_for(standing.wait(), 20)
        proxy.set(Mode.STALL)
        with pytest.raises(errors.SessionLost):
            await asyncio.wait_for(waiting, 20)
        proxy.set(Mode.PASS)


async def test_a_session_and_its_locks_outlive_connections_that_are_cut_again_and_again(
    proxy: FaultProxy, far_board: Board, region: str
) -> None:
    told = Told()
    async with (
        far_board.session(ttl_s=TTL_S, on_state=told) as session,
        far_board.lock(region, "x", purpose="p", session=session) as lock,
    ):
        until_s, cuts = clock_s() + 2 * TTL_S, 0
        while clock_s() < until_s:
            await lock.verify()
            proxy.reset()
            cuts += 1
            await asyncio.sleep(0.05)
        assert cuts > 10
        assert lock.is_held
        assert session.state is not SessionState.LOST
    assert SessionState.LOST not in told.states


async def test_a_session_and_its_locks_outlive_a_server(durable_server: ServerProcess) -> None:
    async with kokuban_client.connect(durable_server.address, agent="a") as client:
        board = client.board("main")
        async with (
            board.session(ttl_s=20) as session,
            board.lock("shared:plan", "x", purpose="p", session=session) as lock,
        ):
            await asyncio.to_thread(durable_server.kill)
            await asyncio.to_thread(durable_server.start)
            await lock.verify()
            await lock.board.increment("shared:plan", "x")
            assert session.id in await ids_there(board)
        assert not (await board.locks("shared:plan")).locks


async def test_a_frozen_server_is_a_lost_session(region: str) -> None:
    async with (
        kokuban_client.testing.ServerProcess() as server,
        kokuban_client.connect(server.address, agent="a", timeout_s=1) as client,
    ):
        board, told = client.board("main"), Told()
        async with board.session(ttl_s=TTL_S, on_state=told) as session:
            with pytest.raises(LockLost):  # noqa: PT012 - how the block ends is what is tested
                async with board.lock(region, "x", purpose="p", session=session):
                    server.pause()
                    await asyncio.sleep(NEVER_S)
            assert told.states == [SessionState.IN_JEOPARDY, SessionState.LOST]
            server.resume()


async def test_what_was_lost_while_no_news_came_through_is_asked_for_afterwards(
    proxy: FaultProxy, far_board: Board, supervisors_board: Board, region: str
) -> None:
    causes: list[LossCause] = []
    async with far_board.session(ttl_s=20) as session:
        with pytest.raises(LockLost):  # noqa: PT012 - how the block ends is what is tested
            async with far_board.lock(
                region, "x", purpose="p", session=session, on_lost=lambda lost: causes.append(lost.cause)
            ) as lock:
                proxy.set(Mode.DROP_ANSWERS)
                await supervisors_board.break_lock(lock.fence.lock_id, "while nobody listens")
                await asyncio.wait_for(proxy.dropped.wait(), 20)
                proxy.set(Mode.PASS)
                proxy.reset()
                await asyncio.sleep(NEVER_S)
    assert causes == [LossCause.UNKNOWN]


async def test_a_grant_whose_answer_was_lost_is_given_again(
    proxy: FaultProxy, far_board: Board, their_board: Board, region: str
) -> None:
    async with far_board.session(ttl_s=20) as session, far_board.lock(region, "w", purpose="connect", session=session):
        proxy.set(Mode.DROP_ANSWERS)
        taking = asyncio.create_task(far_board.lock(region, "x", purpose="p", session=session, wait_s=20).__aenter__())
        await until(lambda: is_locked(their_board, region, "x"))
        proxy.set(Mode.PASS)
        proxy.reset()
        lock = await asyncio.wait_for(taking, 20)
        (seen,) = (await their_board.locks(region, "x")).locks
        assert seen.id == lock.fence.lock_id
        await lock.verify()
        await lock.release()


async def test_a_grant_that_arrives_after_it_was_given_up_is_given_back(
    proxy: FaultProxy, far_board: Board, their_board: Board, region: str
) -> None:
    async with far_board.session(ttl_s=20) as session, far_board.lock(region, "w", purpose="connect", session=session):
        proxy.set(Mode.DROP_ANSWERS)
        taking = asyncio.create_task(far_board.lock(region, "x", purpose="p", session=session).__aenter__())
        await until(lambda: is_locked(their_board, region, "x"))
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        proxy.set(Mode.PASS)
        proxy.reset()
        async with their_board.lock(region, "x", purpose="next", wait_s=NEVER_S):
            pass


async def is_locked(board: Board, region: str, path: str) -> bool:
    return bool((await board.locks(region, path)).locks)


async def test_RB_34_nobody_renews_closes_or_releases_what_is_anothers(
    server: ServerProcess, board: Board, their_board: Board, region: str
) -> None:
    mine, thief = (("kokuban-agent", "writer-1"),), (("kokuban-agent", "thief"),)
    async with grpc.aio.insecure_channel(server.address) as channel:
        sessions = session_service_pb2_grpc.SessionServiceStub(channel)
        locks = lock_service_pb2_grpc.LockServiceStub(channel)
        opening = session_service_pb2.OpenSessionRequest(board="main", request_id=board._calls.ids.new())
        opening.ttl.FromSeconds(int(TTL_S))
        opened = await sessions.OpenSession(opening, metadata=mine)  # which nobody renews
        session_id = opened.session.id

        async def refused(call: Callable[[], object]) -> str:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call()  # type: ignore[misc] # whatever the stub gives can be awaited
            return str(refusal.value.details()).partition(":")[0]

        async def renew() -> None:
            renewal = session_service_pb2.KeepAliveRequest(board="main", session_id=session_id)
            stream = sessions.KeepAlive(iter([renewal]), metadata=thief)
            async for answer in stream:
                pytest.fail(f"renewed: {answer}")

        closing = session_service_pb2.CloseSessionRequest(board="main", session_id=session_id)
        assert await refused(renew) == "NOT_HOLDER"
        assert await refused(lambda: sessions.CloseSession(closing, metadata=thief)) == "NOT_HOLDER"

        async def is_gone() -> bool:
            assert await refused(renew) in {"NOT_HOLDER", "SESSION_LOST"}
            return session_id not in await ids_there(their_board)

        begun_s = time.monotonic()
        await until(is_gone, bound_s=TTL_S * 5)  # all that asking has not extended it
        assert time.monotonic() - begun_s < TTL_S * 5

        async with board.lock(region, "x", purpose="p") as lock:
            fence = lock_pb2.Fence(lock_id=lock.fence.lock_id, revision=lock.fence.revision, epoch=lock.fence.epoch)
            release = lock_service_pb2.ReleaseLockRequest(board="main", fence=fence)
            downgrade = lock_service_pb2.DowngradeLockRequest(board="main", fence=fence)
            assert await refused(lambda: locks.ReleaseLock(release, metadata=thief)) == "NOT_HOLDER"
            assert await refused(lambda: locks.DowngradeLock(downgrade, metadata=thief)) == "NOT_HOLDER"
            assert lock.is_held
            await lock.verify()


async def test_RB_37_sessions_of_one_client_are_judged_each_by_its_own_time(
    proxy: FaultProxy, far_board: Board, region: str
) -> None:
    short_told, long_told = Told(), Told()
    async with (
        far_board.session(ttl_s=TTL_S, on_state=short_told) as short,
        far_board.session(ttl_s=30, on_state=long_told) as long,
        far_board.lock(region, "x", purpose="p", session=long) as lock,
    ):
        proxy.set(Mode.STALL)
        await short_told.until(SessionState.LOST)
        assert (short.state, long.state, lock.is_held) == (SessionState.LOST, SessionState.LIVE, True)
        proxy.set(Mode.PASS)
        await lock.verify()
    assert long_told.states == []


async def test_RB_37_steps_of_the_wall_clock_change_nothing(
    board: Board, their_board: Board, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, clock, clock_ns = Told(), time.time, time.time_ns
    async with (
        board.session(ttl_s=TTL_S, on_state=told) as session,
        board.lock(region, "x", purpose="p", session=session) as lock,
    ):
        for step_s in (7200, -7200):
            monkeypatch.setattr(time, "time", lambda step_s=step_s: clock() + step_s)
            monkeypatch.setattr(time, "time_ns", lambda step_s=step_s: clock_ns() + step_s * 10**9)
            assert session.state is SessionState.LIVE
            lock.check()
            # gRPC reckons deadlines from this clock, and would take one that only this process sees go back for passed.
            monkeypatch.setattr(time, "time", clock)
            with pytest.raises(errors.LockWaitExpired):
                async with their_board.lock(region, "x", purpose="to steal it", wait_s=1.25 * TTL_S):
                    pytest.fail("it was held all the time")
            async with board.lock(region, f"y{step_s}", purpose="p", session=session):
                pass
            await lock.board.increment(region, "x")
    assert SessionState.LOST not in told.states


async def test_closing_a_session_stops_what_runs_under_its_locks(board: Board, region: str) -> None:
    async with board.session() as session:
        inside = asyncio.Event()

        async def work() -> None:
            async with board.lock(region, "x", purpose="p", session=session):
                inside.set()
                await asyncio.sleep(NEVER_S)

        working = asyncio.create_task(work())
        await asyncio.wait_for(inside.wait(), 20)
        await session.aclose()
        with pytest.raises(LockLost) as lost:
            await asyncio.wait_for(working, 20)
        assert lost.value.cause is LossCause.SESSION_CLOSED
    assert session.id not in await ids_there(board)


async def close_inside(session: Session, lock: HeldLock) -> None:
    async with lock:
        await session.aclose()
        await asyncio.sleep(NEVER_S)


async def test_a_block_that_closes_its_own_session_is_stopped_when_that_is_done(board: Board, region: str) -> None:
    async with board.session() as session:
        with pytest.raises(LockLost):
            await close_inside(session, board.lock(region, "x", purpose="p", session=session))
    assert session.id not in await ids_there(board)


async def test_a_fault_in_on_state_does_not_end_the_renewals(
    proxy: FaultProxy, far_board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()

    def fail(state: SessionState) -> None:
        told(state)
        raise ZeroDivisionError

    async with far_board.session(ttl_s=TTL_S, on_state=fail) as session:
        proxy.set(Mode.STALL)
        await told.until(SessionState.IN_JEOPARDY)
        proxy.set(Mode.PASS)
        await told.until(SessionState.LIVE)
        assert session.state is SessionState.LIVE
    assert "on_state has failed" in caplog.text


async def test_RB_23_sessions_and_locks_leave_no_task_behind(server: ServerProcess, region: str) -> None:
    async def come_and_go(number: int) -> None:
        async with kokuban_client.connect(server.address, agent="guest") as client:
            board = client.board("main")
            async with board.session(), board.lock(region, f"x{number}", purpose="p"):
                pass

    await come_and_go(0)
    before = len(asyncio.all_tasks())
    await asyncio.gather(*(come_and_go(number) for number in range(1, 30)))

    async def none_is_left() -> bool:
        return len(asyncio.all_tasks()) <= before

    await until(none_is_left)  # gRPC's own end a moment later


async def test_a_client_that_is_closed_inside_a_lock_stops_the_block(server: ServerProcess, region: str) -> None:
    before = asyncio.all_tasks()
    client = kokuban_client.connect(server.address, agent="guest")
    inside = asyncio.Event()

    async def work() -> None:
        async with client.board("main").lock(region, "x", purpose="p"):
            inside.set()
            await asyncio.sleep(NEVER_S)

    working = asyncio.create_task(work())
    await asyncio.wait_for(inside.wait(), 20)
    await client.aclose()
    with pytest.raises(LockLost):
        await asyncio.wait_for(working, 20)
    assert asyncio.all_tasks() == before
