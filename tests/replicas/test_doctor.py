"""The store is examined and repaired while agents work: what was planted goes, and not one of them notices."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Self

import pytest

import kokuban_client
from kokuban_client import StoreFindingOutcome, errors
from kokuban_client.testing import ServerProcess
from kokuban_server.adapters.system import SystemClock
from kokuban_server.bootstrap.stores import open_store
from kokuban_server.core import keys
from kokuban_server.core.boards import BoardRecord
from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.records.board_codec import encode_board
from kokuban_server.settings import Settings
from tests.replicas.pair import Pair
from tests.store_harm import plant_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kokuban_client import Client, StoreFinding
    from tests.etcd_server import EtcdServer
    from tests.store_harm import Planted

ROUNDS_MIN = 20
"""So many rounds of its work each agent has done, at least, while the store is examined."""
BOUND_S = 60.0
_numbers = itertools.count(1)


async def planted(store: str) -> list[Planted]:
    """Plant everything into a store that no server has yet; give what has to be found."""
    clock = SystemClock()
    opened = await open_store(Settings(store=store), clock)
    board = keys.board("dev", "main")
    record = Put(board, encode_board(BoardRecord(clock.now_ms(), "planter")))
    await opened.commit(ChangeSet((Absent(board),), (record,)), 5.0)
    found = await plant_all(opened, clock.now_ms(), beside_servers=True)
    await opened.close()
    return found


class Work:
    """Agents that write, lock, wait, lose and retry, each with a session; any surprise fails them."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self.rounds: Counter[int] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._agent(number)) for number in range(6)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
                raise ended

    async def further(self) -> None:
        """Come back when each agent has done some more rounds."""
        wanted = {number: self.rounds[number] + ROUNDS_MIN for number in range(len(self._tasks))}
        while any(self.rounds[number] < least for number, least in wanted.items()):
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.01)

    async def _agent(self, number: int) -> None:
        address = self._addresses[number % len(self._addresses)]
        async with kokuban_client.connect(address, agent=f"worker-{number}", timeout_s=BOUND_S) as client:
            board = client.board("main")
            async with board.session(ttl_s=10.0) as session:
                while True:
                    turn, own = self.rounds[number], f"own-{number}-{self.rounds[number]}"
                    async with board.lock(
                        "shared:work", "hot", purpose="to count", wait_s=BOUND_S, session=session
                    ) as lock:
                        await lock.board.increment("shared:work", "hot/count")
                    written = await board.put("shared:work", own, "x", must_not_exist=True, ttl=60.0)
                    await board.delete("shared:work", own, at=written.revision)
                    found = await board.find("shared:work", "contended")
                    belief = {"must_not_exist": True} if found is None else {"at": found.revision}
                    with contextlib.suppress(errors.Conflict):
                        await board.put("shared:work", "contended", str(turn), **belief)
                    self.rounds[number] += 1


@pytest.fixture(params=[pytest.param("etcd", marks=pytest.mark.etcd), "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store is that has no server yet."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'store'}"
    etcd: EtcdServer = request.getfixturevalue("etcd")
    return f"etcd://{etcd.members[0].endpoint}/doctor/{next(_numbers)}"


@contextlib.contextmanager
def serving(store: str) -> Iterator[list[str]]:
    """Have the store served: by two servers where it admits them; give their addresses."""
    if store.startswith("sqlite:"):
        with ServerProcess(store=store) as server:
            yield [server.address]
        return
    pair = Pair(store)
    try:
        pair.start()
        yield [pair.a.address, pair.b.address]
    finally:
        pair.close()


async def examined(chief: Client, *, repair: bool) -> list[StoreFinding]:
    return [finding async for page in chief.examine_store(repair=repair) for finding in page.findings]


async def test_the_store_is_repaired_under_the_feet_of_agents_at_work(store: str) -> None:
    plants = await planted(store)
    with serving(store) as addresses:
        async with (
            asyncio.timeout(4 * BOUND_S),
            kokuban_client.connect(addresses[-1], agent="chief", roles=["operator"], timeout_s=BOUND_S) as chief,
        ):
            async with Work(addresses) as work:
                await work.further()
                repaired = await examined(chief, repair=True)
                await work.further()
                again = await examined(chief, repair=True)
                await work.further()
            told = Counter((one.record_class, one.outcome) for one in repaired)
            outcome = {True: StoreFindingOutcome.REPAIRED, False: StoreFindingOutcome.NOT_REPAIRABLE}
            assert told == Counter((one.record_class, outcome[one.is_repairable]) for one in plants)
            lasting = Counter(one.record_class for one in plants if not one.is_repairable)
            assert Counter(one.record_class for one in again) == lasting
            assert Counter(one.record_class for one in await examined(chief, repair=True)) == lasting
            counted = await chief.board("main").get("shared:work", "hot/count")
            # No count is lost; each agent may have been ended after one that its rounds do not have yet.
            assert 0 <= counted.value - sum(work.rounds.values()) <= len(work.rounds)
