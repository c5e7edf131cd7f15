"""Removing a bad source over two servers of one etcd: whoever is asked, while both write, and though one is killed."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import RemovalState, Source, SourceKind, SourceSelector, Trust, errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kokuban_client import Board, Entry
    from tests.replicas.pair import Pair

pytestmark = pytest.mark.etcd
BAD = "https://bad.example/page"
BOUND_S = 90.0
ENOUGH = 10
LIE = "the bridge is closed on Mondays"


class Boards:
    """One board as its operator and a writer see it, through either server."""

    def __init__(self, stack: AsyncExitStack, pair: Pair) -> None:
        self._stack = stack
        self._pair = pair

    async def __call__(self, *, through_b: bool = False, agent: str = "op") -> Board:
        server = self._pair.b if through_b else self._pair.a
        roles = ["member", "operator"]
        client = kokuban_client.connect(server.address, agent=agent, roles=roles, wait_for_ready=True)
        return (await self._stack.enter_async_context(client)).board("main")


@pytest.fixture
async def boards(fragile_pair: Pair) -> AsyncIterator[Boards]:
    async with AsyncExitStack() as stack:
        yield Boards(stack, fragile_pair)


async def derive(board: Board, stopped: asyncio.Event, name: str) -> int:
    """Go on making entries of whatever is still to be found below the region, until told to stop; say how many."""
    made = 0
    for number in itertools.count():
        if stopped.is_set():
            return made
        found: list[Entry] = [entry async for entry in board.list("shared:facts", floor=Trust.EXTERNAL)]
        for entry in found[-2:]:
            try:
                await board.put(
                    "shared:facts", f"{name}/{number}-{made}", LIE, must_not_exist=True, derived_from=[entry]
                )
            except (errors.ParentNotFound, errors.ReadScopePurged):
                continue
            made += 1
        await asyncio.sleep(0.01)
    raise AssertionError


@pytest.mark.parametrize("killed", ["nobody", "the server that was asked", "the other one"])
async def test_ER_01_nothing_that_came_of_it_is_left_at_either_server(
    boards: Boards, fragile_pair: Pair, killed: str
) -> None:
    at_a, at_b = await boards(), await boards(through_b=True)
    await at_a.put("shared:facts", "page", LIE, must_not_exist=True, source=Source(SourceKind.EXTERNAL, BAD))
    stopped = asyncio.Event()
    writers = [
        asyncio.ensure_future(derive(await boards(agent="writer-a"), stopped, "a")),
        asyncio.ensure_future(derive(await boards(through_b=True, agent="writer-b"), stopped, "b")),
    ]
    survivor = at_b if killed == "the server that was asked" else at_a
    async with asyncio.timeout(BOUND_S):
        while len([entry async for entry in at_b.list("shared:facts", floor=Trust.EXTERNAL)]) < ENOUGH:
            pass
        plan = await at_a.purge_source(SourceSelector(uri=BAD), reason="it lies")
        await at_a.purge(plan.removal.id)
        if killed == "the server that was asked":
            fragile_pair.a.kill()
        elif killed == "the other one":
            fragile_pair.b.kill()
        done = await survivor.wait_for_removal(plan.removal.id, timeout_s=BOUND_S)
        assert done.state is RemovalState.DONE
        stopped.set()
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        for board in [survivor] if killed != "nobody" else [at_a, at_b]:
            assert [entry async for entry in board.list("shared:facts", floor=Trust.EXTERNAL)] == []
            with pytest.raises(errors.SourcePurged):
                await board.put(
                    "shared:facts", "again", LIE, must_not_exist=True, source=Source(SourceKind.EXTERNAL, BAD)
                )
        again = await survivor.purge_source(SourceSelector(uri=BAD), reason="it lies")
        assert again.removed_count == 0
