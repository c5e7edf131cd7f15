"""One simulated run: servers over one store, agents, faults, and the judgement at the end; all from one seed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kokuban_server.core import keys, limits
from kokuban_server.core.commit import MustNotExist, Put
from kokuban_server.core.entry import EntryState, Form, Value
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.codec import decode_entry
from tests.simulation.invariants import judge
from tests.simulation.journal import Fate, Journal, Seen
from tests.simulation.simulated_agents import ACCOUNTS, ACCOUNTS_TOTAL, SHARED, TASK, Agent, Watcher
from tests.simulation.simulated_replica import START_MS, SimulatedReplica, Tuning, adopting_task
from tests.simulation.simulated_store import RecordedStore, Weather
from tests.simulation.virtual_time import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_server.ports.board_store import Record

_AGENTS = 6
_TURNS = 40
_CATCH_UP_S = 3_000.0
_LONG_MS = 8 * 24 * 3_600_000


class SimulationFailed(AssertionError):  # noqa: N818 - the name says it
    """Invariants do not hold; the message names the seed and each of them."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one run was."""

    seed: int
    trace: str
    """A digest of everything that every agent saw, and when."""
    virtual_s: float
    operations: int
    acknowledged: int
    unknown: int
    reads: int
    told: int
    """Changes that watchers were told of."""
    crashes: int
    lines: tuple[str, ...] = field(repr=False)
    """What every agent noted."""


class World:
    """What one run consists of."""

    def __init__(self, seed: int, store: RecordedStore) -> None:
        self.seed = seed
        self.store = store
        self.random = random.Random(f"{seed}/world")
        self.journal = Journal()
        self.tokens: list[str] = []
        self.crashes = 0
        self.off_by_ms = 0
        """What agents add to virtual time."""
        draw = self.random
        is_calm = seed % 10 == 0
        self.weather = (
            Weather(old_answers=0.5)
            if is_calm
            else Weather(
                not_sent=draw.choice((0.0, 0.02, 0.1)),
                reply_lost=draw.choice((0.0, 0.05, 0.2)),
                slow=draw.choice((0.0, 0.01, 0.05)),
                watch_cut=draw.choice((0.0, 0.02, 0.1)),
                old_answers=0.5,
            )
        )
        self.slowness = draw.choice((1, 1, 1, 20))
        """How long agents pause: in a slow run windows pass and history is compacted."""
        self._crash_every_s = 0.0 if is_calm else draw.choice((0.0, 2.0, 10.0)) * self.slowness
        self._skew_ms = 0 if is_calm else draw.choice((0, 500, 30_000))
        self._tuning = Tuning(
            window_ms=draw.choice((60_000, 3_600_000)),
            store_history_ms=draw.choice((5_000, 20_000, 3_600_000)),
            cache_bytes=draw.choice((0, 8_000, 1_000_000)),
            watch_events=draw.choice((8, 64, 8_192)),
            upkeep_interval_s=draw.choice((1.0, 5.0)) * self.slowness,
        )
        self._lives = 0
        self.replicas = [self._new_replica(), self._new_replica()]

    def _new_replica(self) -> SimulatedReplica:
        self._lives += 1
        return SimulatedReplica(
            f"server{self._lives}", self.store, self._skew(), str(self.seed), self.weather, self._tuning
        )

    def _skew(self) -> int:
        return self.random.randint(-self._skew_ms, self._skew_ms)

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
            self.replicas[place] = self._new_replica()
            self.replicas[place].start()

    async def _turn_clocks(self) -> None:
        """Set clocks forward and back."""
        while self._skew_ms:
            await asyncio.sleep(self.random.expovariate(1 / 3.0) * self.slowness)
            self.random.choice(self.replicas).clock.off_by_ms = self._skew()

    async def live(self) -> float:
        """Run from the first commit to the last check; give the virtual seconds that passed."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(adopting_task)
        for replica in self.replicas:
            replica.start()
        await self._found_accounts()
        watchers = [
            Watcher(self, "watcher1", [(SHARED, ""), (TASK, "")]),
            Watcher(self, "watcher2", [(SHARED, "accounts")]),
            Watcher(self, "watcher3", [(TASK, "presence"), (SHARED, "counters/c0")]),
        ]
        background = [
            loop.create_task(work, name=name)
            for name, work in [
                *[(watcher.name, watcher.watch()) for watcher in watchers],
                ("crashes", self._crash_servers()),
                ("clocks", self._turn_clocks()),
            ]
        ]
        agents = [Agent(self, f"agent{number}") for number in range(_AGENTS)]
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(agent.work(_TURNS), name=agent.name)
        await ended(background[len(watchers) :])
        await self._calm_down()
        await self._watchers_catch_up(watchers)
        await ended(background[: len(watchers)])
        await self._compare_history(agents[0])
        await self._check_reminders()
        if self.seed % 4 == 0:
            await self._grow_old(agents[0])
        judge(self.store, self.journal)
        for replica in self.replicas:
            replica.die()
            await replica.dead()
        return loop.time()

    async def _found_accounts(self) -> None:
        """Give every account its first balance."""
        founder = Agent(self, "founder")
        value = Value(Form.JSON, str(ACCOUNTS_TOTAL // len(ACCOUNTS)))
        puts = [(account, Put(MustNotExist(), value, None, None)) for account in ACCOUNTS]
        while (await founder.commit(*puts)).fate not in {Fate.ACKNOWLEDGED, Fate.REFUSED}:
            pass

    async def _calm_down(self) -> None:
        """Let the faults end, what is on its way arrive, and every server live."""
        for place, replica in enumerate(self.replicas):
            if replica.is_dead:
                self.replicas[place] = self._new_replica()
                self.replicas[place].start()
        for replica in self.replicas:
            replica.store.weather = self.weather.calm()
        for replica in self.replicas:
            await replica.store.settled()
        await asyncio.sleep(10)

    async def _watchers_catch_up(self, watchers: list[Watcher]) -> None:
        newest = max(
            (applied.event.revision for applied in self.store.log if applied.event.key.startswith(b"e/")), default=0
        )
        loop = asyncio.get_running_loop()
        until = loop.time() + _CATCH_UP_S
        while any(watcher.reached < newest for watcher in watchers):
            if loop.time() > until:
                self.journal.problems.append(
                    f"{newest} was written, but watches stand at {[watcher.reached for watcher in watchers]}"
                )
                return
            await asyncio.sleep(0.5)

    async def _compare_history(self, agent: Agent) -> None:
        """Read every entry's history through a server, and compare it with what the store has seen."""
        for head in sorted(
            {applied.event.key for applied in self.store.log if applied.event.key.startswith(keys.HEAD)}
        ):
            for _ in range(10):  # the sweeper may write in between
                expected = self._kept(head)
                shown = [_gist(seen) for seen in await agent.history(keys.parse_head(head)[2])]
                if shown == expected:
                    break
            else:
                self.journal.problems.append(f"the history of {head.decode()} shows {shown}, not {expected}")

    def _kept(self, head: bytes) -> list[tuple[int, int, EntryState]]:
        """Give what an entry's history must show, newest first."""
        kept: list[tuple[int, int, EntryState]] = []
        for applied in self.store.log:
            event = applied.event
            if event.key == head and event.value is None:
                kept.clear()
            elif event.key == head and event.value is not None:
                kept.insert(0, _gist(Seen(event.revision, decode_entry(head, event.value))))
        return kept[: limits.HISTORY_REVISIONS_MAX]

    async def _check_reminders(self) -> None:
        """Check that the sweeper has a reminder of every entry that ends, and of nothing else."""
        heads = await self._heads()
        due = (await self.store.scan(keys.DUE, b"", 10_000, 1 << 30, STRONG, 1)).records
        reminders = {record.key for record in due}
        for record in heads:
            state = decode_entry(record.key, record.value)
            end_ms = state.expire_time_ms or state.sweep_time_ms
            if end_ms and keys.due(end_ms, record.key) not in reminders:
                self.journal.problems.append(f"nothing reminds of {state}")
        known = {record.key for record in heads}
        for record in due:
            if keys.parse_due(record.key)[1] not in known:
                self.journal.problems.append(f"a reminder of nothing: {record.key.decode()}")

    async def _grow_old(self, agent: Agent) -> None:
        """Let eight days pass, and have all servers sweep at once, whoever owns the work, while an agent writes again."""
        dead = {record.key: record.revision for record in await self._heads() if _is_dead(record)}
        self.off_by_ms = _LONG_MS
        for replica in self.replicas:
            replica.clock.off_by_ms += _LONG_MS
        again = [keys.parse_head(head)[2] for head in dead][::2]
        value = Value(Form.TEXT, "again")
        await asyncio.gather(
            self._sweep_everywhere(), *[agent.commit((key, Put(MustNotExist(), value, None, None))) for key in again]
        )
        await self._sweep_everywhere()  # what had expired is dead only now, and too young to be removed
        await self._check_reminders()
        left = {record.key: record.revision for record in await self._heads()}
        for head, revision in dead.items():
            if left.get(head) == revision:
                self.journal.problems.append(f"dead for eight days and still there: {head.decode()}")
            if head not in left and await agent.history(keys.parse_head(head)[2]):
                self.journal.problems.append(f"the history of {head.decode()} outlives it")
        old = keys.operations_before(START_MS + _LONG_MS // 2)
        for record in (await self.store.scan(keys.OPERATION, b"", 1, 1 << 20, STRONG, 1)).records:
            if record.key < old:
                self.journal.problems.append("operation records outlive their window by days")

    async def _sweep_everywhere(self) -> None:
        sweeps = [replica.call(replica.upkeep.sweep(), f"{replica.name}/sweep", 600.0) for replica in self.replicas]
        await asyncio.gather(*sweeps, return_exceptions=True)

    async def _heads(self) -> tuple[Record, ...]:
        return (await self.store.scan(keys.HEAD, b"", 10_000, 1 << 30, STRONG, 1)).records


def _is_dead(record: Record) -> bool:
    return decode_entry(record.key, record.value).state is not EntryState.LIVE


def _gist(seen: Seen) -> tuple[int, int, EntryState]:
    return seen.revision, seen.record.sequence, seen.record.state


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    """End tasks that go on for ever."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task


def simulate(seed: int, make_store: Callable[[], RecordedStore] = RecordedStore) -> Report:
    """Run one seed. Raises `SimulationFailed` if an invariant does not hold."""
    random.seed(seed)  # the use cases' jitter draws from the module's own generator
    world = World(seed, make_store())
    virtual_s = run(world.live())
    journal = world.journal
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(journal.traces):
        digest.update("\n".join([name, *journal.traces[name]]).encode())
    if journal.problems:
        shown = "\n  ".join(journal.problems[:20])
        raise SimulationFailed(f"seed {seed}: {len(journal.problems)} problems\n  {shown}")
    fates = [operation.fate for operation in journal.operations.values()]
    return Report(
        seed,
        digest.hexdigest(),
        virtual_s,
        len(fates),
        fates.count(Fate.ACKNOWLEDGED),
        fates.count(Fate.UNKNOWN),
        len(journal.observations),
        sum(len(watch_run.changes) for watch_run in journal.watch_runs),
        world.crashes,
        tuple(line for trace in journal.traces.values() for line in trace),
    )
