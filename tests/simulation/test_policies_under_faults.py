"""Policies that change while agents write, over servers that hear late, lose answers and die: none is outlived by a commit."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby

import pytest

from kokuban_server.app.boards import Board, Boards
from kokuban_server.app.commits import CommitRequest
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Principal, Role
from kokuban_server.core.boards import BoardRecord, BoardState, PolicyVersion
from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.core.commit import Increment, Unconditional
from kokuban_server.core.commit import Put as PutEntry
from kokuban_server.core.entry import Form, Value
from kokuban_server.core.names import EntryKey, parse_region
from kokuban_server.core.policy import Policy, RegionRule, Subjects
from kokuban_server.core.refusals import NotFound, Refusal, WriteForbidden
from kokuban_server.records.board_codec import decode_board, encode_board
from kokuban_server.records.codec import decode_entry
from tests.simulation.simulated_agents import TENANT
from tests.simulation.simulated_replica import (
    BOARD,
    SOUND,
    START_MS,
    ConnectionLost,
    Parts,
    SimulatedReplica,
    Tuning,
    adopting_task,
)
from tests.simulation.simulated_store import RecordedStore, Weather
from tests.simulation.virtual_time import run

_WRITERS = 6
_SEEDS = 12
_RUN_S = 30.0
_REGION = parse_region("task:t1")
_KEY = keys.board(TENANT, BOARD)


@dataclass
class _World:
    """Servers, writers, and somebody who keeps changing who may write, or takes the board away for a while."""

    seed: int
    parts: Parts
    store: RecordedStore = field(default_factory=RecordedStore)
    told: Counter[str] = field(default_factory=Counter)
    lives: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.servers = [self._server() for _ in range(2)]

    def _server(self) -> SimulatedReplica:
        self.lives += 1
        draw = self.random
        weather = Weather(
            not_sent=draw.choice((0.0, 0.05)),
            reply_lost=draw.choice((0.0, 0.1)),
            slow=draw.choice((0.0, 0.05)),
            watch_cut=draw.choice((0.0, 0.1, 0.5)),
        )
        tuning = Tuning(limits.REQUEST_ID_WINDOW_MS, limits.STORE_HISTORY_MS, 100_000, 8_192, 5.0)
        return SimulatedReplica(f"server{self.lives}", self.store, 0, str(self.seed), weather, tuning, self.parts)

    async def live(self) -> None:
        await self._lay_down()
        ending = asyncio.get_running_loop().time() + _RUN_S
        async with asyncio.TaskGroup() as group:
            for number in range(_WRITERS):
                group.create_task(self._write(f"writer{number}", ending), name=f"writer{number}")
            group.create_task(self._rule(ending), name="operator")
            group.create_task(self._kill(ending), name="killer")
        for server in self.servers:
            server.die()
            await server.dead()

    async def _lay_down(self) -> None:
        """Write a policy as an operator's server would, but without one of these."""
        draw = self.random
        some = frozenset(f"writer{number}" for number in range(_WRITERS) if draw.random() < 0.5)
        everybody, those = Subjects(anyone=True), Subjects(agents=some)
        rules = (RegionRule(str(_REGION), readers=draw.choice((everybody, those)), writers=those),)
        record = BoardRecord(START_MS, "op", Policy(rules), PolicyVersion(1, START_MS, "op"))
        if draw.random() < 0.1:
            record = BoardRecord(START_MS, "op", state=BoardState.DELETED, delete_time_ms=START_MS)
        await self.store.commit(ChangeSet((), (Put(_KEY, encode_board(record)),)), 1.0)

    async def _rule(self, ending: float) -> None:
        while asyncio.get_running_loop().time() < ending:
            await asyncio.sleep(self.random.expovariate(2.0))
            await self._lay_down()

    async def _kill(self, ending: float) -> None:
        while asyncio.get_running_loop().time() < ending:
            await asyncio.sleep(self.random.expovariate(0.2))
            place = self.random.randrange(len(self.servers))
            victim, self.servers[place] = self.servers[place], self._server()
            victim.die()
            await victim.dead()

    async def _write(self, agent: str, ending: float) -> None:
        principal = Principal(TENANT, agent, frozenset({Role.MEMBER}), is_development=True)
        loop = asyncio.get_running_loop()
        draw = random.Random(f"{self.seed}/{agent}")
        number = 0
        while loop.time() < ending:
            await asyncio.sleep(draw.expovariate(20.0))
            number += 1
            value = Value(Form.TEXT, f"{agent}-{number}")
            own = PutEntry(Unconditional(), value, None, None)
            path, mutation = draw.choice(((agent, own), ("together", own), ("count", Increment(1))))
            request_id = f"{agent}-{number}"
            mutations = ((EntryKey(_REGION, path), mutation, 0),)
            now_ms = START_MS + int(loop.time() * 1000)
            request = CommitRequest(BOARD, request_id, now_ms, request_id.encode(), (), mutations, "", "", "")
            for _ in range(3):
                server = draw.choice(self.servers)
                work = server.commits.commit(principal, request, loop.time() + 2)
                try:
                    await server.call(work, request_id, 3.0)
                except (Refusal, ConnectionLost) as refusal:
                    self.told[type(refusal).__name__] += 1
                    if isinstance(refusal, WriteForbidden | NotFound):
                        break
                else:
                    self.told["committed"] += 1
                    break

    def problems(self) -> list[str]:
        """Give every state that somebody wrote who might not, by the policy that held before its revision."""
        found = []
        record: BoardRecord | None = None
        for revision, of_revision in groupby(self.store.log, key=lambda applied: applied.event.revision):
            laid_down = record
            for event in (applied.event for applied in of_revision):
                if event.key == _KEY and event.value is not None:
                    laid_down = decode_board(event.key, event.value)
                elif event.key.startswith(keys.HEAD) and event.value is not None:
                    agents = {act.agent for act in decode_entry(event.key, event.value).acts} - {"kokuban"}
                    found += [f"{agent} at {revision}" for agent in agents if not _may_write(record, agent)]
            record = laid_down
        return found


def _may_write(record: BoardRecord | None, agent: str) -> bool:
    if record is None or record.state is not BoardState.LIVE:
        return False
    (rule,) = record.policy.rules
    reads = rule.readers is not None and (rule.readers.anyone or agent in rule.readers.agents)
    return reads and rule.writers is not None and agent in rule.writers.agents


def _lived(seed: int, parts: Parts = SOUND) -> _World:
    async def main() -> _World:
        asyncio.get_running_loop().set_task_factory(adopting_task)
        random.seed(seed)  # of the pauses between attempts, so that a seed gives the same run again
        world = _World(seed, parts)
        await world.live()
        return world

    return run(main())


def test_no_commit_outlives_the_policy_that_it_was_judged_by() -> None:
    told: Counter[str] = Counter()
    for seed in range(_SEEDS):
        world = _lived(seed)
        assert world.problems() == [], seed
        told += world.told
    assert min(told["committed"], told["WriteForbidden"], told["NotFound"], told["ConnectionLost"]) > 50, told


class _Unguarded(Boards):
    """Gives boards on which commits are not guarded."""

    def learn(self, key: bytes, raw: bytes, revision: int) -> Board:
        board = super().learn(key, raw, revision)
        board.guard = Absent(b"nothing")  # type: ignore[assignment] # a guard that always holds
        return board


def test_a_commit_that_is_not_guarded_on_its_policy_is_found() -> None:
    for seed in range(_SEEDS):
        with contextlib.suppress(ExceptionGroup):
            if _lived(seed, SOUND._replace(boards=_Unguarded)).problems():
                return
    pytest.fail("no seed has found it")
