"""One log of conflicts of two servers on one etcd: one request is one conflict, and its retry is known at both."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kokuban_client import ConflictOutcome, ConflictRecord, errors

if TYPE_CHECKING:
    from kokuban_client import Board
    from tests.replicas.conftest import Connections
    from tests.replicas.pair import Pair

pytestmark = pytest.mark.etcd
BOUND_S = 30.0


async def when(board: Board, region: str, *outcomes: ConflictOutcome) -> list[ConflictRecord]:
    """Give a region's conflicts, the newest first, once they have these outcomes."""
    async with asyncio.timeout(BOUND_S), board.watch_conflicts(region=region) as news:
        while True:
            found = [conflict async for conflict in board.conflicts(region=region)]
            if [conflict.outcome for conflict in found] == [*outcomes]:
                return found
            await anext(news)


async def test_a_request_that_loses_at_both_servers_is_one_conflict_and_both_tell_of_it(
    a: Board, b: Board, pair: Pair, connect: Connections, region: str
) -> None:
    await a.put(region, "e", "first", must_not_exist=True)
    loser_a, loser_b = await connect(pair.a, "loser"), await connect(pair.b, "loser")
    with pytest.raises(errors.AlreadyExists) as lost:
        await loser_a.put(region, "e", "late", must_not_exist=True)
    for board in (loser_b, loser_a, loser_b):
        with pytest.raises(errors.AlreadyExists):
            await board.put(region, "e", "late", must_not_exist=True, request_id=lost.value.request_id)
    (at_a,) = await when(a, region, ConflictOutcome.OPEN)
    (at_b,) = await when(b, region, ConflictOutcome.OPEN)
    assert at_a == at_b
    assert at_a.winner is not None
    assert (at_a.loser.agent, at_a.winner.agent) == ("loser", "writer-a")


async def test_a_retry_through_the_other_server_is_known_however_fast_it_comes(
    a: Board, b: Board, pair: Pair, connect: Connections, region: str
) -> None:
    loser_a, loser_b = await connect(pair.a, "loser"), await connect(pair.b, "loser")
    for number in range(5):
        written = await a.put(region, f"e{number}", "first", must_not_exist=True)
        with pytest.raises(errors.AlreadyExists) as lost:
            await loser_a.put(region, f"e{number}", "late", must_not_exist=True)
        await loser_b.put(region, f"e{number}", "both", at=written.revision, retry_of=lost.value.request_id)
    assert await when(b, region, *[ConflictOutcome.MERGED] * 5) == await when(a, region, *[ConflictOutcome.MERGED] * 5)


async def test_a_burst_of_losers_at_both_servers_is_written_once_each(a: Board, b: Board, region: str) -> None:
    await a.put(region, "hot", "first", must_not_exist=True)
    lost = await asyncio.gather(
        *[board.put(region, "hot", "late", must_not_exist=True) for board in (a, b) for _ in range(40)],
        return_exceptions=True,
    )
    requests = {error.request_id for error in lost if isinstance(error, errors.AlreadyExists)}
    assert len(requests) == 80
    found = await when(a, region, *[ConflictOutcome.OPEN] * 80)
    assert {conflict.loser.request_id for conflict in found} == requests
    summary = await b.conflict_summary(region=region)
    assert summary.count == 80
    assert {loser: count for loser, _, count in summary.pairs} == {"writer-a": 40, "writer-b": 40}
