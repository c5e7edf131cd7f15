"""A client that is told that its agent is over a limit comes back when the server says, for as long as it has time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import NOW, errors
from kokuban_client.testing import ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PER_S = 10
REGION = "task:limits"


@pytest.fixture
async def slow() -> AsyncIterator[ServerProcess]:
    """A server on which an agent may make one write each tenth of a second."""
    limits = {"PRINCIPAL_WRITES_PER_S_MAX": str(PER_S), "PRINCIPAL_WRITES_BURST_MAX": "1", "PRINCIPAL_STREAMS_MAX": "1"}
    environment = {f"KOKUBAN_{name}": value for name, value in limits.items()}
    async with ServerProcess(environment=environment) as server:
        yield server


async def test_writes_that_come_too_fast_are_made_at_the_pace_that_the_server_allows(slow: ServerProcess) -> None:
    async with kokuban_client.connect(slow.address, agent="writer-1") as client:
        board = client.board("main")
        begun_s = time.monotonic()
        await asyncio.gather(*(board.increment(REGION, "n") for _ in range(10)))
        assert time.monotonic() - begun_s >= 9 / PER_S - 0.01
        assert (await board.get(REGION, "n")).value == 10
        async with board.lock(REGION, "n", purpose="to test"):
            pass


async def test_who_has_less_time_than_the_server_asks_to_wait_is_told_at_once(slow: ServerProcess) -> None:
    async with kokuban_client.connect(slow.address, agent="writer-1") as client:
        board = client.board("main")
        await board.increment(REGION, "n")
        with pytest.raises(errors.PrincipalLimitReached) as refused:
            await asyncio.gather(*(board.increment(REGION, "n", timeout_s=0.5 / PER_S) for _ in range(10)))
        assert refused.value.facts == {"what": "writes", "limit": str(PER_S)}
        assert refused.value.retry_after_s is not None
        assert 0 < refused.value.retry_after_s <= 1 / PER_S


async def test_a_watch_that_an_agent_has_no_room_for_begins_when_another_ends(slow: ServerProcess) -> None:
    async with kokuban_client.connect(slow.address, agent="writer-1") as client:
        board = client.board("main")
        async with board.watch(REGION, start=NOW, give_up_after_s=60.0):
            with pytest.raises(errors.PrincipalLimitReached):
                async with board.watch(REGION, start=NOW, give_up_after_s=0.1):
                    pass
            waiting = asyncio.ensure_future(board.watch(REGION, start=NOW, give_up_after_s=60.0).__aenter__())
        watch = await waiting
        await watch.aclose()
