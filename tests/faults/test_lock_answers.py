"""RB-30, RB-31: the server dies between what it did to a lock and its answer; whoever asks again is told what is true."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from kokuban_client.testing import ServerProcess
from tests.fault_proxy import FaultProxy, Mode
from tests.replicas.lock_calls import ALREADY_GONE, RELEASED, Channels, LockAgent, Outcome, channels, outcome
from tests.wire.calls import refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)
_KILLS_SHORT = 3
_KILLS_LONG = 40


@pytest.fixture
async def connect() -> AsyncIterator[Channels]:
    async with channels() as made:
        yield made


class _Broken:
    """A server on sqlite behind a proxy that loses its answers, and that can be killed and started again."""

    def __init__(self, server: ServerProcess, proxy: FaultProxy, connect: Channels) -> None:
        self._server = server
        self._proxy = proxy
        self._connect = connect

    async def agent(self, name: str) -> LockAgent:
        return await self._connect.agent(self._server.address, name)

    async def through(self, agent: LockAgent) -> LockAgent:
        """Give the agent over a new connection through the proxy."""
        return agent.at(await self._connect(self._proxy.endpoint))

    async def afresh(self, agent: LockAgent) -> LockAgent:
        """Give the agent over a new connection to the server."""
        return agent.at(await self._connect(self._server.address))

    async def lose_the_answer(self, call: asyncio.Future[Outcome], stands: Callable[[], Awaitable[bool]]) -> None:
        """Kill the server when what was asked stands, and start it again; the caller has heard nothing."""
        async with asyncio.timeout(20):
            while not await stands():
                pass
            await self._proxy.dropped.wait()
        await self.kill(call)

    async def kill(self, call: asyncio.Future[Outcome]) -> None:
        self._server.kill()
        self._proxy.reset()
        self._proxy.set(Mode.PASS)
        await asyncio.wait([call])
        await asyncio.to_thread(self._server.start)

    def drop(self) -> None:
        """Lose what the server answers from now on."""
        self._proxy.set(Mode.DROP_ANSWERS)
        self._proxy.dropped.clear()


@pytest.fixture
async def broken(tmp_path: Path, connect: Channels) -> AsyncIterator[_Broken]:
    async with (
        ServerProcess(store=f"sqlite:{tmp_path / 'store'}") as server,
        FaultProxy(int(server.address.rpartition(":")[2])) as proxy,
    ):
        yield _Broken(server, proxy, connect)


async def test_RB_31_a_grant_whose_answer_was_lost_is_given_to_who_asks_again(broken: _Broken) -> None:
    holder = await broken.agent("holder")
    await holder.open(60)
    behind = await broken.through(holder)
    await behind.listed()  # the connection stands
    request = holder.asks("lost")
    broken.drop()
    call = asyncio.ensure_future(outcome(behind.acquire(request)))

    async def is_held() -> bool:
        return len((await holder.listed("lost")).locks) == 1

    await broken.lose_the_answer(call, is_held)
    assert call.result().answer is None
    again = await broken.afresh(holder)
    (held,) = (await again.listed("lost")).locks
    mine = await again.acquire(request)
    assert mine.replayed
    assert (mine.lock.id, mine.fence.revision) == (held.id, held.fence_revision)
    await again.write("lost/e", mine.fence)
    assert await again.release(mine.fence) == RELEASED
    with refused("LOCK_LOST"):  # never a second grant for one request
        await again.acquire(request)
    assert (await again.listed("lost")).locks == []


async def test_RB_30_a_release_whose_answer_was_lost_is_over_and_the_lock_can_be_had_again(broken: _Broken) -> None:
    holder = await broken.agent("holder")
    await holder.open(60)
    behind = await broken.through(holder)
    mine = await behind.acquire(holder.asks("lost"))
    broken.drop()
    call = asyncio.ensure_future(outcome(behind.release(mine.fence)))

    async def is_free() -> bool:
        return not (await holder.listed("lost")).locks

    await broken.lose_the_answer(call, is_free)
    assert call.result().answer is None
    again = await broken.afresh(holder)
    assert await again.release(mine.fence) == ALREADY_GONE
    with refused("LOCK_LOST"):
        await again.write("lost/e", mine.fence)
    anew = await again.acquire(holder.asks("lost"))
    assert anew.fence.revision > mine.fence.revision
    await again.write("lost/e", anew.fence)


async def _kill_often(broken: _Broken, kills: int, seed: int) -> None:
    """Kill the server at any moment of a request; the same request afterwards gives its grant or a first one, never two."""
    draw = random.Random(seed)
    holder = await broken.agent("holder")
    session = (await holder.open(120)).session.id
    await holder.write("claimed")
    stood = fresh = 0
    for number in range(kills):
        behind = await broken.through(holder)
        await behind.listed()
        claims = number % 3 == 2
        request = holder.asks(f"killed/{number}", wait_s=10 * (number % 2))
        broken.drop()
        asked = behind.claim("claimed", request_id=request.request_id) if claims else behind.acquire(request)
        call = asyncio.ensure_future(outcome(asked))
        await asyncio.sleep(draw.uniform(0, 0.006))  # as far as it gets
        await broken.kill(call)
        holder = await broken.afresh(holder)
        place = "claimed" if claims else f"killed/{number}"
        before = (await holder.listed(place)).locks
        if claims:
            answer = await holder.claim("claimed", request_id=request.request_id)
            assert answer.entry.key.path == "claimed"
            mine = answer.granted
        else:
            mine = await holder.acquire(request)
        assert [(lock.id, lock.session_id) for lock in before] == [(mine.lock.id, session)] * mine.replayed
        (held,) = (await holder.listed(place)).locks
        assert held.fence_revision == mine.fence.revision
        stood, fresh = stood + mine.replayed, fresh + (not mine.replayed)
        await holder.write(place if claims else f"{place}/e", mine.fence)
        assert await holder.release(mine.fence) == RELEASED
        assert (await holder.listed(place)).waits == []
    print(f"\nof {kills} killed requests {stood} stood, {fresh} did not")  # noqa: T201 - the figures are the point
    assert kills < 20 or min(stood, fresh) > 0, "the kills hit nothing"
    assert await holder.close()


async def test_RB_30_RB_31_a_server_killed_at_any_moment_of_a_request_never_grants_it_twice(broken: _Broken) -> None:
    await _kill_often(broken, _KILLS_SHORT, seed=1)


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_RB_30_RB_31_many_kills_at_any_moment_of_a_request_never_grant_it_twice(broken: _Broken) -> None:
    await _kill_often(broken, _KILLS_LONG, seed=2)


async def test_RB_31_a_session_whose_answer_was_lost_is_given_to_who_asks_again(broken: _Broken) -> None:
    agent = await broken.agent("opener")
    request_id = agent.asks("x").request_id
    behind = await broken.through(agent)
    await behind.listed()
    broken.drop()
    call = asyncio.ensure_future(outcome(behind.open(60, request_id)))

    async def is_there() -> bool:
        return len(await agent.present()) == 1

    await broken.lose_the_answer(call, is_there)
    assert call.result().answer is None
    again = await broken.afresh(agent)
    (there,) = await again.present()
    first = (await again.open(60, request_id)).session
    assert first.id == there
    assert (await again.open(60, request_id)).session.id == first.id
    mine = await again.acquire(again.asks("opened"))
    assert mine.lock.session_id == first.id
    assert await again.close()
    with refused("SESSION_LOST"):
        await again.open(60, request_id)
