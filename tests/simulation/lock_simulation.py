"""One simulated run with locks: servers over one store, holders, faults, and the judgement at the end; all from one seed."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kokuban_server.core import keys, limits
from kokuban_server.core.boards import BoardRecord, PolicyVersion
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.records.board_codec import encode_board
from tests.simulation.lock_invariants import judge_locks
from tests.simulation.lock_journal import LockJournal
from tests.simulation.simulated_agents import TENANT
from tests.simulation.simulated_holders import POLICY, Holder
from tests.simulation.simulated_replica import BOARD, SOUND, START_MS, SimulatedReplica, Tuning, adopting_task
from tests.simulation.simulated_store import RecordedStore, Weather
from tests.simulation.simulation import SimulationFailed, ended
from tests.simulation.virtual_time import run

if TYPE_CHECKING:
    from kokuban_server.app.lock_asked import Granted
    from tests.simulation.lock_model import LockState
    from tests.simulation.simulated_replica import Parts

_HOLDERS = 5
_TURNS = 25
_CALM_TURNS = 10
_FAIR = Weather()
OVER_S = 45.0
"""After this everything that nobody released is gone: a server's lease, an orphan's time, a lock delay, a session."""


@dataclass(frozen=True, slots=True)
class LockReport:
    """What one run was."""

    seed: int
    trace: str
    """A digest of everything that every holder saw, and when."""
    virtual_s: float
    crashes: int
    counts: dict[str, int]
    lines: tuple[str, ...] = field(repr=False)
    """What every holder noted."""


class LockWorld:
    """What one run consists of."""

    def __init__(self, seed: int, parts: Parts, weather: Weather | None = None) -> None:
        self.seed = seed
        self.store = RecordedStore()
        self.random = random.Random(f"{seed}/world")
        self.journal = LockJournal()
        self.fences: deque[Granted] = deque(maxlen=30)
        """Those that were granted last, to anybody."""
        self.crashes = 0
        self.calm_s = 0.0
        draw = self.random
        self.is_calm = seed % 5 == 0 and weather is None
        self._weather = weather or (
            _FAIR
            if self.is_calm
            else Weather(
                not_sent=draw.choice((0.0, 0.02, 0.08)),
                reply_lost=draw.choice((0.0, 0.05, 0.15)),
                slow=draw.choice((0.0, 0.02, 0.06)),
                watch_cut=draw.choice((0.0, 0.02, 0.1)),
            )
        )
        self._crash_every_s = 0.0 if self.is_calm else draw.choice((0.0, 4.0, 15.0))
        self._skew_ms = 0 if self.is_calm else draw.choice((0, 500, 30_000))
        self._new_leader_every_s = 0.0 if self.is_calm else draw.choice((0.0, 5.0, 20.0))
        self._early_loss_every_s = 0.0 if self.is_calm else draw.choice((0.0, 5.0, 20.0))
        if weather is not None:
            self._crash_every_s, self._early_loss_every_s = 0.0, 1.0
        self._parts = parts
        self._tuning = Tuning(
            window_ms=limits.REQUEST_ID_WINDOW_MS,
            store_history_ms=draw.choice((5_000, limits.STORE_HISTORY_MS, limits.STORE_HISTORY_MS)),
            cache_bytes=1_000_000,
            watch_events=8_192,
            upkeep_interval_s=5.0,
        )
        self._lives = 0
        self.everybody: list[SimulatedReplica] = []
        self.replicas = [self._new_replica() for _ in range(draw.choice((2, 2, 3)))]

    def _new_replica(self) -> SimulatedReplica:
        self._lives += 1
        name = f"server{self._lives}"
        replica = SimulatedReplica(
            name, self.store, self._skew(), str(self.seed), self._weather, self._tuning, self._parts
        )
        self.everybody.append(replica)
        return replica

    def _skew(self) -> int:
        return self.random.randint(-self._skew_ms, self._skew_ms)

    # What goes wrong.

    async def _crash_servers(self) -> None:
        """Kill one server after the other at arbitrary moments, each followed by a new one; some are asked to go first."""
        while self._crash_every_s:
            await asyncio.sleep(self.random.expovariate(1 / self._crash_every_s))
            place = self.random.randrange(len(self.replicas))
            old = self.replicas[place]
            if self.random.random() < 0.3:
                old.drain()
                await asyncio.sleep(0.05)
            old.die()
            self.crashes += 1
            await asyncio.sleep(self.random.uniform(0, 0.5))
            self._replace(place)

    def _replace(self, place: int) -> None:
        self.replicas[place] = self._new_replica()
        self.replicas[place].start()

    async def _turn_clocks(self) -> None:
        while self._skew_ms:
            await asyncio.sleep(self.random.expovariate(1 / 3.0))
            self.random.choice(self.replicas).clock.off_by_ms = self._skew()

    async def _change_leaders(self) -> None:
        while self._new_leader_every_s:
            await asyncio.sleep(self.random.expovariate(1 / self._new_leader_every_s))
            self.store.change_leader()

    async def _lose_leases(self) -> None:
        while self._early_loss_every_s:
            await asyncio.sleep(self.random.expovariate(1 / self._early_loss_every_s))
            leases = sorted(self.store.leases)
            if leases:
                self.store.lose_lease(self.random.choice(leases))

    async def begin(self) -> list[asyncio.Task[None]]:
        """Make the board, start the servers, and let things go wrong in the background until that is ended."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(adopting_task)
        loop.set_exception_handler(lambda _, context: self.journal.problems.append(f"nobody heard of {context}"))
        record = BoardRecord(START_MS, "operator", POLICY, PolicyVersion(1, START_MS, "operator"))
        await self.store.commit(ChangeSet((), (Put(keys.board(TENANT, BOARD), encode_board(record)),)), 1.0)
        for replica in self.replicas:
            replica.start()
        return [
            loop.create_task(work, name=name)
            for name, work in [
                ("crashes", self._crash_servers()),
                ("clocks", self._turn_clocks()),
                ("leaders", self._change_leaders()),
                ("losses", self._lose_leases()),
            ]
        ]

    async def live(self) -> float:
        """Run from the first request to the last check; give the virtual seconds that passed."""
        background = await self.begin()
        holders = [Holder(self, f"holder{number}") for number in range(_HOLDERS)]
        await self._all_work(holders, _TURNS)
        await ended(background)
        await self.calm_down()
        await self._all_work(holders, _CALM_TURNS)
        for holder in holders:
            await holder.abandon()
        await asyncio.sleep(OVER_S)
        state = judge_locks(self.store, self.journal, self.calm_s, frozenset(one.name for one in self.replicas))
        await self.end(state)
        return asyncio.get_running_loop().time()

    async def _all_work(self, holders: list[Holder], turns: int) -> None:
        async with asyncio.TaskGroup() as group:
            for holder in holders:
                group.create_task(holder.work(turns), name=f"{holder.name}/{turns}")

    async def calm_down(self) -> None:
        """Let the faults end, what is on its way arrive, and every server live."""
        loop = asyncio.get_running_loop()
        for place, replica in enumerate(self.replicas):
            if replica.is_dead:
                self._replace(place)
        for replica in self.everybody:
            replica.store.weather = self._weather.calm()
            await replica.store.settled()
        if self.is_calm:
            return
        await asyncio.sleep(20)  # a watch may still be under way in yesterday's weather, and sleep for seconds
        self.calm_s = loop.time()

    # The end.

    async def end(self, state: LockState) -> None:
        """See to it that nothing is left over, in the store and in what the servers believe; and end the servers."""
        self._judge_end(state)
        for replica in self.everybody:
            replica.die()
            await replica.dead()

    def _judge_end(self, state: LockState) -> None:
        problems = self.journal.problems
        for what, left in [
            ("sessions", state.sessions),
            ("locks", state.locks),
            ("markers", state.markers),
            ("waits", state.waits),
        ]:
            if left:
                problems.append(f"{what} are left over: {left}")
        if state.servers > {replica.name for replica in self.replicas}:
            problems.append(f"the store says that {state.servers} live")
        if idle := self.store.leases - self.store.hanging():
            problems.append(f"leases on which nothing hangs: {idle}")
        prefix = keys.board_prefix(TENANT, BOARD)
        for replica in self.replicas:
            board = replica.mirror.board(prefix)
            if board is not None and not board.is_empty:
                problems.append(f"{replica.name} still believes in {vars(board)}")
        for replica in self.everybody:
            faults = [complaint for complaint in replica.complaints if complaint.startswith("lock upkeep")]
            problems.extend(f"{replica.name}: {fault}" for fault in faults)
            if replica.mirror.reloads and self._tuning.store_history_ms == limits.STORE_HISTORY_MS:
                problems.append(f"{replica.name} found a gap where none was: {replica.mirror._fault!r}")


STORM = Weather(not_sent=0.02, reply_lost=0.05, slow=0.15, watch_cut=0.1)


def simulate_locks(seed: int, parts: Parts = SOUND, weather: Weather | None = None) -> LockReport:
    """Run one seed, in weather of its own or in what is given. Raises `SimulationFailed` if an invariant does not hold."""
    random.seed(seed)  # the use cases' jitter draws from the module's own generator
    world = LockWorld(seed, parts, weather)
    virtual_s = run(world.live())
    journal = world.journal
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(journal.traces):
        digest.update("\n".join([name, *journal.traces[name]]).encode())
    if journal.problems:
        shown = "\n  ".join(journal.problems[:20])
        raise SimulationFailed(f"seed {seed}: {len(journal.problems)} problems\n  {shown}")
    counts: Counter[str] = Counter()
    for asking in journal.askings.values():
        counts["grants"] += bool(asking.answers)
        counts.update({type(told.refusal).__name__ for told in asking.refusals})
    for writing in journal.writings.values():
        counts["writes"] += bool(writing.answers)
        counts["writes under a lock"] += bool(writing.answers and writing.request.fences)
        counts.update({f"write {type(told.refusal).__name__}" for told in writing.refusals})
    counts["releases"] = sum(release.released for release in journal.releases)
    return LockReport(
        seed,
        digest.hexdigest(),
        virtual_s,
        world.crashes,
        dict(counts),
        tuple(line for trace in journal.traces.values() for line in trace),
    )
