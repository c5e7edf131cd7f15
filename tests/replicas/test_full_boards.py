"""The limit of a board over two servers of one store: each knows what the other has put when the board has been counted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from kokuban_client import errors
from kokuban_client.testing import ServerProcess
from tests.replicas.conftest import _numbers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kokuban_client import Board
    from tests.etcd_server import EtcdServer
    from tests.replicas.conftest import Connections

pytestmark = pytest.mark.etcd
LIMIT_BYTES = 400_000
VALUE = "x" * 20_000
PROBE = "x" * 1_000
PROBES_MAX = LIMIT_BYTES // (4 * len(PROBE))
COUNTED_S = 0.2
REGION = "task:large"
TAKEOVER_S = 45.0
"""The lease of the work lasts for 15 s, and etcd may give it some more."""


@pytest.fixture
async def limited(etcd: EtcdServer) -> AsyncIterator[tuple[ServerProcess, ServerProcess]]:
    """Two servers of a store whose boards are limited and counted often."""
    store = f"etcd://{etcd.members[0].endpoint}/replicas/{next(_numbers)}"
    settings = {"KOKUBAN_BOARD_BYTES_MAX": str(LIMIT_BYTES), "KOKUBAN_BOARD_CENSUS_INTERVAL_S": str(COUNTED_S)}
    async with AsyncExitStack() as stack:
        a, b = (ServerProcess(store=store, environment=settings) for _ in "ab")
        for server in (a, b):
            await stack.enter_async_context(server)
        yield a, b


async def fill(board: Board, name: str, value: str = VALUE) -> errors.BoardFull:
    """Put until the board is full; give the refusal."""
    for number in range(1_000):
        try:
            await board.put(REGION, f"{name}/{number}", value, must_not_exist=True)
        except errors.BoardFull as full:
            return full
    raise AssertionError("there is room without end")


@contextlib.asynccontextmanager
async def kept_full(board: Board) -> AsyncIterator[None]:
    """Put small things through one server whenever it lets one: a count may tell that there was more room than it thought."""

    async def keep() -> None:
        for number in itertools.count():
            with contextlib.suppress(errors.BoardFull):
                await board.put(REGION, f"small/{number}", "x" * 100, must_not_exist=True)

    keeping = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait((keeping,))


async def becomes_full(board: Board, name: str) -> None:
    """Come back when a server refuses what would put something, long before that server has put as much by itself."""
    async with asyncio.timeout(TAKEOVER_S):
        for number in range(PROBES_MAX):
            try:
                await board.put(REGION, f"{name}/{number}", PROBE, must_not_exist=True)
            except errors.BoardFull:
                return
            await asyncio.sleep(COUNTED_S)
    raise AssertionError("what the other server has put is not known here")


@pytest.mark.timeout(180)
async def test_a_board_that_one_server_has_filled_is_full_at_the_other_and_after_a_restart(
    limited: tuple[ServerProcess, ServerProcess], connect: Connections
) -> None:
    a, b = limited
    at_a, at_b = await connect(a, "writer-a"), await connect(b, "writer-b")
    full = await fill(at_a, "a")
    assert (full.facts["board"], full.facts["limit"]) == ("main", str(LIMIT_BYTES))
    assert 0 < int(full.facts["actual"]) <= LIMIT_BYTES
    assert full.retry_after_s == COUNTED_S
    async with kept_full(at_a):
        await becomes_full(at_b, "probe")
        for number, board in enumerate((at_a, at_b)):
            entry = await board.get(REGION, f"a/{number}")
            await board.delete(REGION, entry.path, at=entry.revision)
        async with at_b.lock(REGION, "a/2", purpose="locks go on") as hold:
            await hold.verify()
        b.kill()
        await asyncio.to_thread(b.start)
        await becomes_full(await connect(b, "writer-b"), "again")


@pytest.mark.timeout(180)
async def test_when_the_server_that_counts_dies_another_goes_on(
    limited: tuple[ServerProcess, ServerProcess], connect: Connections
) -> None:
    a, b = limited
    at_b = await connect(b, "writer-b")
    await (await connect(a, "writer-a")).put(REGION, "first", VALUE, must_not_exist=True)
    a.kill()  # it was started first, so it counts
    await fill(at_b, "b")
    await fill(at_b, "more", VALUE[:500])
    for entry in [entry async for entry in at_b.list(REGION, omit_values=True)]:
        await at_b.delete(REGION, entry.path, at=entry.revision)
    async with asyncio.timeout(TAKEOVER_S):
        while True:  # only a count tells that the deletes have made room
            try:
                await at_b.put(REGION, "large", VALUE, must_not_exist=True)
            except errors.BoardFull:
                continue
            break
