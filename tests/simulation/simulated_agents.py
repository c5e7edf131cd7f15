"""Simulated agents: they write, read and watch through whichever server answers, and note what they were told."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from kokuban_server.app.commits import CommitRequest, Committed
from kokuban_server.app.reads import AskAtLeast, AskLocal, AskSnapshot, AskStrong
from kokuban_server.app.watches import StartAfter, StartNow, StartSnapshot
from kokuban_server.core import keys
from kokuban_server.core.access import Principal, Role
from kokuban_server.core.commit import (
    AddToSet,
    AppendToList,
    At,
    Delete,
    ExpireAt,
    Increment,
    MergePatch,
    MetadataChange,
    MustNotExist,
    Never,
    Put,
    TimeToLive,
    Unconditional,
)
from kokuban_server.core.entry import Form, Value
from kokuban_server.core.names import EntryKey, parse_region
from kokuban_server.core.refusals import (
    AlreadyExists,
    Contended,
    HistoryCompacted,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Refusal,
    RequestIdExpired,
    RequestIdReused,
    RevisionMismatch,
    StateUnfit,
    StoreUnavailable,
    WatchTooSlow,
)
from kokuban_server.core.revision import encode_token, revision_of
from tests.simulation.journal import Fate, Observation, Operation, Seen, WatchRun
from tests.simulation.simulated_replica import BOARD, START_MS, ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from kokuban_server.app.reads import Freshness
    from kokuban_server.app.watches import WatchStart
    from kokuban_server.core.commit import Mutation
    from kokuban_server.core.names import Region
    from tests.simulation.journal import Journal
    from tests.simulation.simulated_replica import SimulatedReplica
    from tests.simulation.simulated_store import RecordedStore
    from tests.simulation.simulation import World

TENANT = "dev"
SHARED = parse_region("shared:plan")
TASK = parse_region("task:t1")
ACCOUNTS = tuple(EntryKey(SHARED, f"accounts/a{number}") for number in range(4))
ACCOUNTS_TOTAL = 400
_DEADLINE_S = 4.0
_PATIENCE_S = 3.0
_SENT_AT_MOST = 8


def head_of(key: EntryKey) -> bytes:
    """Give the store's key of an entry."""
    return keys.head(keys.region_prefix(TENANT, BOARD, key.region), key.path)


def _number(value: int) -> Value:
    return Value(Form.JSON, str(value))


class Scene(Protocol):
    """What every simulated agent finds around it."""

    @property
    def seed(self) -> int: ...

    @property
    def store(self) -> RecordedStore: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def replicas(self) -> list[SimulatedReplica]: ...


_S = TypeVar("_S", bound=Scene)


class Caller(Generic[_S]):
    """What every simulated agent has: a name, a seed, and what it remembers."""

    def __init__(self, world: _S, name: str) -> None:
        self.world = world
        self.name = name
        self.random = random.Random(f"{world.seed}/{name}")
        self.principal = Principal(TENANT, name, frozenset({Role.MEMBER}), is_development=True)
        self._calls = 0
        self._trace = world.journal.traces.setdefault(name, [])

    def say(self, what: str) -> None:
        """Note what happened, for comparing runs of one seed."""
        self._trace.append(f"{asyncio.get_running_loop().time():.6f} {what}")

    def problem(self, what: str) -> None:
        """Note that something is wrong."""
        self.say(f"PROBLEM {what}")
        self.world.journal.problems.append(f"{self.name}: {what}")

    def name_call(self) -> str:
        """Give a name of its own to the next call's task."""
        self._calls += 1
        return f"{self.name}.{self._calls}"

    def deadline(self) -> float:
        return asyncio.get_running_loop().time() + _DEADLINE_S

    def _replica(self) -> SimulatedReplica:
        return self.random.choice(self.world.replicas)


class Agent(Caller["World"]):
    """Writes and reads."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._ids = 0
        self._known: dict[EntryKey, int] = {}  # revisions seen, some of them old by the time they are used
        self._acknowledged: list[Operation] = []

    async def work(self, turns: int) -> None:
        """Do that many things, one after the other, with pauses."""
        acts: list[tuple[int, Callable[[], Coroutine[None, None, None]]]] = [
            (6, self._note),
            (3, self._scribble),
            (5, self._count),
            (3, self._append),
            (2, self._unite),
            (2, self._patch),
            (5, self._presence),
            (4, self._transfer),
            (5, self._read),
            (3, self._list),
            (1, self._history),
            (2, self._repeat),
            (2, self._conditional),
        ]
        weights = [weight for weight, _ in acts]
        for _ in range(turns):
            await self.random.choices(acts, weights)[0][1]()
            pause_s = self.random.uniform(5, 40) if self.random.random() < 0.02 else self.random.expovariate(15)
            await asyncio.sleep(pause_s * self.world.slowness)

    # Writing.

    def _request(
        self, mutations: Sequence[tuple[EntryKey, Mutation]], beliefs: Sequence[tuple[EntryKey, At]]
    ) -> CommitRequest:
        self._ids += 1
        now_ms = START_MS + int(asyncio.get_running_loop().time() * 1000) + self.world.off_by_ms
        request_id = f"{self.name}-{self._ids}"
        digest = self.world.replicas[0].request_ids.digest(repr((mutations, beliefs)).encode())
        placed = tuple((key, mutation, place) for place, (key, mutation) in enumerate(mutations))
        return CommitRequest(BOARD, request_id, now_ms, digest, tuple(beliefs), placed, "", "", "")

    async def commit(
        self, *mutations: tuple[EntryKey, Mutation], beliefs: Sequence[tuple[EntryKey, At]] = ()
    ) -> Operation:
        """Have the mutations committed, sending the same request again until something is known or patience ends."""
        request = self._request(mutations, beliefs)
        operation = Operation(self.name, request, self.world.store.present)
        self.world.journal.operations[request.request_id] = operation
        nothing_done = True
        if self.random.random() < 0.08:  # two copies at once, as a hedging client would send
            await asyncio.gather(self._send(operation, self._replica()), self._send(operation, self._replica()))
            nothing_done = False
        for _ in range(
            self.random.choice((1, 3, _SENT_AT_MOST))
        ):  # some give up early, and keep what they know by then
            if operation.answers:
                break
            answer = await self._send(operation, self._replica())
            if isinstance(answer, (AlreadyExists, RevisionMismatch, NotFound, StateUnfit)):
                operation.fate = Fate.REFUSED
                break
            if isinstance(answer, (RequestIdExpired, InvalidRequest)):
                operation.fate = Fate.NOT_DONE if nothing_done else Fate.UNKNOWN
                break
            if not isinstance(answer, (Committed, StoreUnavailable, Contended)):
                nothing_done = False
            operation.fate = Fate.NOT_DONE if nothing_done else Fate.UNKNOWN
            if not operation.answers:
                await asyncio.sleep(self.random.uniform(0.05, 1.0))
        if operation.answers:
            operation.fate = Fate.ACKNOWLEDGED
            self._acknowledged.append(operation)
            self._known.update({key: operation.answers[0][0].revision for key, _ in mutations})
        self.say(f"commit {request.request_id} {operation.fate.value}")
        return operation

    async def _send(self, operation: Operation, replica: SimulatedReplica) -> Committed | Refusal | None:
        """Send the request once; give the answer, or nothing if there was none."""
        work = replica.commits.commit(self.principal, operation.request, self.deadline())
        try:
            answer = await replica.call(work, self.name_call(), self._patience_s())
        except Refusal as refusal:
            self.say(
                f"{operation.request.request_id} at {replica.name}: {refusal}".replace(self.world.store.epoch, "E")
            )
            return refusal
        except ConnectionLost:
            self.say(f"{operation.request.request_id} at {replica.name}: lost")
            return None
        self.say(f"{operation.request.request_id} at {replica.name}: {answer.revision} {answer.outcomes}")
        operation.answers.append((answer, self.world.store.present))
        return answer

    def _patience_s(self) -> float:
        return self.random.uniform(0.0, 0.1) if self.random.random() < 0.05 else _PATIENCE_S

    def _text(self) -> Value:
        return Value(Form.TEXT, f"{self.name}/{self._ids}")

    def _at(self, revision: int) -> At:
        return At(revision, self.world.store.epoch)

    async def _revision(self, key: EntryKey) -> int | None:
        """Give the entry's revision as far as the agent knows: mostly read afresh, sometimes remembered and old."""
        if key in self._known and self.random.random() < 0.3:
            return self._known[key]
        found = await self._look([key], AskStrong())
        return found[key].revision if found is not None and key in found else None

    async def _note(self) -> None:
        """Create, change or delete an entry that others work on too, with a precondition."""
        key = EntryKey(SHARED, f"notes/n{self.random.randrange(5)}")
        revision = await self._revision(key)
        chance = self.random.random()
        if revision is None or chance < 0.1:
            await self.commit((key, Put(MustNotExist(), self._text(), None, None)))
        elif chance < 0.4:
            await self.commit((key, Delete(self._at(revision))))
        else:
            labels = MetadataChange(replace=False, set={"by": self.name})
            await self.commit((key, Put(self._at(revision), self._text(), labels, None)))

    async def _scribble(self) -> None:
        """Write or delete without saying what is believed, where that is allowed."""
        key = EntryKey(TASK, f"u{self.random.randrange(3)}")
        if self.random.random() < 0.25:
            await self.commit((key, Delete(Unconditional())))
        else:
            await self.commit((key, Put(Unconditional(), self._text(), None, None)))

    async def _count(self) -> None:
        key = EntryKey(SHARED, f"counters/c{self.random.randrange(2)}")
        await asyncio.gather(
            *[self.commit((key, Increment(self.random.randint(1, 5)))) for _ in range(self.random.choice((1, 1, 3)))]
        )

    async def _append(self) -> None:
        key = EntryKey(TASK, f"lists/l{self.random.randrange(2)}")
        await self.commit((key, AppendToList((f"{self.name}/{self._ids}",))))

    async def _unite(self) -> None:
        await self.commit((EntryKey(TASK, "set"), AddToSet((self.random.choice("abcdef"), self.name))))

    async def _patch(self) -> None:
        key = EntryKey(SHARED, "document")
        revision = await self._revision(key)
        if revision is None:
            await self.commit((key, Put(MustNotExist(), Value(Form.JSON, "{}"), None, None)))
        else:
            field = self.random.choice("xyz")
            await self.commit((key, MergePatch(self._at(revision), {field: f"{self.name}/{self._ids}"})))

    async def _presence(self) -> None:
        """Write what expires, refresh it, or keep it for good."""
        key = EntryKey(TASK, f"presence/p{self.random.randrange(4)}")
        revision = await self._revision(key)
        ttl_ms = self.random.choice((1_000, 2_000, 5_000, 20_000))
        chance = self.random.random()
        if chance < 0.1:
            await self.commit((EntryKey(TASK, f"presence/count{self.random.randrange(2)}"), Increment(1)))
        elif revision is None or chance < 0.2:
            await self.commit((key, Put(MustNotExist(), self._text(), None, TimeToLive(ttl_ms))))
        elif chance < 0.7:
            await self.commit((key, Put(self._at(revision), self._text(), None, TimeToLive(ttl_ms))))
        elif chance < 0.8:
            now_ms = START_MS + int(asyncio.get_running_loop().time() * 1000)
            await self.commit((key, Put(self._at(revision), None, None, ExpireAt(now_ms + ttl_ms))))
        elif chance < 0.9:
            await self.commit((key, Delete(self._at(revision))))
        else:
            await self.commit((key, Put(self._at(revision), None, None, Never())))
            await self.commit((key, Put(Unconditional(), self._text(), None, TimeToLive(1_000))))

    async def _transfer(self) -> None:
        """Move an amount from one account to another: two entries, one commit."""
        source, target = self.random.sample(ACCOUNTS, 2)
        found = await self._look([source, target], AskStrong())
        if found is None or source not in found or target not in found:
            return
        amount = self.random.randint(1, 10)
        balances = [int(str(found[key].record.value.data)) for key in (source, target)]  # type: ignore[union-attr]  # an account is never empty
        await self.commit(
            (source, Put(self._at(found[source].revision), _number(balances[0] - amount), None, None)),
            (target, Put(self._at(found[target].revision), _number(balances[1] + amount), None, None)),
        )

    async def _conditional(self) -> None:
        """Write one entry on the belief that another is as it was read."""
        key = self.random.choice(ACCOUNTS)
        revision = await self._revision(key)
        if revision is not None:
            note = EntryKey(TASK, f"u{self.random.randrange(3)}")
            await self.commit(
                (note, Put(Unconditional(), self._text(), None, None)), beliefs=[(key, self._at(revision))]
            )

    async def _repeat(self) -> None:
        """Send an old request again, or its id with other arguments; the invariants compare the answers."""
        if not self._acknowledged:
            return
        operation = self.random.choice(self._acknowledged if self.random.random() < 0.5 else self._acknowledged[-5:])
        if self.random.random() < 0.7:
            await self._send(operation, self._replica())
            return
        replica = self._replica()
        request = operation.request._replace(digest=b"other arguments")
        try:
            await replica.call(
                replica.commits.commit(self.principal, request, self.deadline()), self.name_call(), _PATIENCE_S
            )
        except (RequestIdReused, RequestIdExpired, StoreUnavailable, OutcomeUnknown, ConnectionLost):
            return
        except Refusal as refusal:
            self.problem(f"an id used again with other arguments was refused as {refusal}")
            return
        self.problem("an id used again with other arguments was answered")

    # Reading.

    async def _look(self, named: Sequence[EntryKey], freshness: Freshness) -> dict[EntryKey, Seen] | None:
        replica = self._replica()
        observation = self._observe(freshness, frozenset(map(head_of, named)), b"")
        work = replica.reads.batch_get(self.principal, BOARD, named, freshness, self.deadline())
        try:
            entries = await replica.call(work, self.name_call(), _PATIENCE_S)
        except (Refusal, ConnectionLost) as error:
            self._judge_refused_read(error, freshness)
            return None
        found = {entry.key: Seen(entry.revision, entry.record) for entry in entries.found}
        self._observed(observation, {head_of(key): seen for key, seen in found.items()}, entries.revision)
        self._known.update({key: seen.revision for key, seen in found.items()})
        return found

    def _observe(self, freshness: Freshness, asked: frozenset[bytes], prefix: bytes) -> Observation:
        store = self.world.store
        return Observation(self.name, freshness, store.present, store.peak_time_ms, {}, asked, prefix)

    def _observed(self, observation: Observation, found: dict[bytes, Seen], revision: int) -> None:
        store = self.world.store
        observation.found = found
        observation.revision = revision
        observation.ceiling = store.present
        observation.time_ceiling_ms = store.peak_time_ms
        self.world.journal.observations.append(observation)
        self.world.tokens.append(encode_token(store.epoch, revision))
        self.say(f"read {type(observation.freshness).__name__} {revision} {[seen.revision for seen in found.values()]}")

    def _judge_refused_read(self, error: Exception, freshness: Freshness) -> None:
        self.say(f"read refused {error}".replace(self.world.store.epoch, "E"))
        if isinstance(error, (StoreUnavailable, ConnectionLost)):
            return
        if isinstance(error, HistoryCompacted) and isinstance(freshness, AskSnapshot):
            return
        self.problem(f"a read was refused as {error!r}")

    def _freshness(self) -> Freshness:
        chance = self.random.random()
        tokens = self.world.tokens
        if chance < 0.4 or not tokens:
            return AskStrong()
        if chance < 0.6:
            return AskAtLeast(tokens[-1] if self.random.random() < 0.5 else self.random.choice(tokens))
        if chance < 0.8:
            return AskSnapshot(self.random.choice(tokens[-30:]))
        return AskLocal()

    async def _read(self) -> None:
        pools = [
            list(ACCOUNTS),
            [EntryKey(TASK, f"presence/p{number}") for number in range(4)],
            [EntryKey(SHARED, f"notes/n{number}") for number in range(5)],
            [EntryKey(SHARED, "counters/c0"), EntryKey(TASK, "set"), EntryKey(TASK, "u0")],
        ]
        await self._look(self.random.choice(pools), self._freshness())

    async def _list(self) -> None:
        """List below a path in pages of one cut."""
        region, path = self.random.choice([(SHARED, "accounts"), (SHARED, ""), (TASK, "presence"), (TASK, "")])
        freshness = self._freshness()
        if isinstance(freshness, AskLocal):
            freshness = AskStrong()
        prefix = keys.heads(keys.region_prefix(TENANT, BOARD, region), path)
        observation = self._observe(freshness, frozenset(), prefix)
        found: dict[bytes, Seen] = {}
        page_token = ""
        revision = 0
        size = self.random.choice((2, 3, 100))
        while True:
            replica = self._replica()
            work = replica.reads.list_entries(
                self.principal, BOARD, region, path, size, page_token, freshness, self.deadline()
            )
            try:
                page = await replica.call(work, self.name_call(), _PATIENCE_S)
            except (Refusal, ConnectionLost) as error:
                self._judge_refused_read(error, freshness)
                return
            if revision not in (0, page.revision):
                self.problem(f"a page was read at {page.revision}, the one before at {revision}")
            revision = page.revision
            found.update({head_of(entry.key): Seen(entry.revision, entry.record) for entry in page.found})
            page_token = page.next_page_token
            if not page_token:
                break
            freshness = AskSnapshot(encode_token(self.world.store.epoch, revision))
        self._observed(observation, found, revision)

    async def _history(self) -> None:
        """Read an entry's history and check that nothing is missing in it."""
        key = self.random.choice([EntryKey(SHARED, "notes/n0"), EntryKey(SHARED, "counters/c0"), EntryKey(TASK, "u0")])
        states = await self.history(key)
        for newer, older in pairwise(states):
            if newer.record.sequence != older.record.sequence + 1 or newer.record.previous_revision != older.revision:
                self.problem(f"the history of {key} goes from {older} to {newer}")

    async def history(self, key: EntryKey) -> list[Seen]:
        """Give an entry's kept states, newest first, as far as one server answers."""
        states: list[Seen] = []
        token = ""
        while True:
            replica = self._replica()
            work = replica.reads.list_revisions(self.principal, BOARD, key, 10, token, self.deadline())
            try:
                page = await replica.call(work, self.name_call(), _PATIENCE_S)
            except (StoreUnavailable, NotFound, ConnectionLost):
                return states
            # Between two pages the entry may be written and its oldest state dropped; that is no gap.
            states.extend(Seen(found.revision, found.record) for found in page.found)
            token = page.next_page_token
            if not token:
                return states


class Watcher(Caller["World"]):
    """Watches, and begins again where it was whenever a watch ends."""

    def __init__(self, world: World, name: str, targets: Sequence[tuple[Region, str]]) -> None:
        super().__init__(world, name)
        self._targets = targets
        self._prefixes = tuple(keys.heads(keys.region_prefix(TENANT, BOARD, region), path) for region, path in targets)
        self._is_slow = self.random.random() < 0.3
        self.run: WatchRun | None = None

    @property
    def reached(self) -> int:
        """Up to where it has been told everything."""
        return self.run.reached if self.run is not None else 0

    async def watch(self) -> None:
        """Watch until cancelled."""
        while True:
            replica = self.random.choice(self.world.replicas)
            try:
                await self._follow(replica)
            except (StoreUnavailable, ConnectionLost, WatchTooSlow) as error:
                self.say(f"watch interrupted {type(error).__name__} at {self.reached}")
                if isinstance(error, WatchTooSlow) and self.run is not None:
                    told = revision_of(error.token, self.world.store.epoch, "token")
                    if told > self.run.reached:
                        self.problem(f"WATCH_TOO_SLOW names {told}, but only {self.run.reached} was told")
            except HistoryCompacted:
                self.say(f"watch compacted at {self.reached}")
                self.run = None
            except Refusal as refusal:
                self.problem(f"a watch ended with {refusal!r}")
                self.run = None
            absent_s = self.random.uniform(5, 60) if self.random.random() < 0.1 else self.random.uniform(0.01, 1.0)
            await asyncio.sleep(absent_s * self.world.slowness)

    async def _follow(self, replica: SimulatedReplica) -> None:
        start: WatchStart
        snapshot: dict[bytes, Seen] | None = None
        if self.run is not None:
            start = StartAfter(encode_token(self.world.store.epoch, self.run.reached))
        elif self.random.random() < 0.7:
            start, snapshot = StartSnapshot(), {}
        else:
            start = StartNow()
        parts = replica.watches.follow(self.principal, BOARD, self._targets, start, self.deadline())
        untold: list[tuple[bytes, Seen]] = []
        try:
            while True:
                part = await replica.call(anext(parts), self.name_call(), 60.0)
                for key, record, revision in part.entries or ():
                    assert snapshot is not None
                    snapshot[head_of(key)] = Seen(revision, record)
                untold += [(change.head, Seen(change.revision, change.record)) for change in part.changes]
                if part.revision is not None:
                    self._told(part.revision, snapshot, untold)
                    untold = []
                if part.going_away:
                    return
                if self._is_slow:
                    await asyncio.sleep(self.random.uniform(0, 3.0))
        except StopAsyncIteration:
            self.problem("a watch ended without a word")
        finally:
            if not replica.is_dead:
                await parts.aclose()

    def _told(self, revision: int, snapshot: dict[bytes, Seen] | None, changes: list[tuple[bytes, Seen]]) -> None:
        """Take over what is complete up to a revision. What came after the last such point is told again on resuming."""
        run = self.run
        if run is None:
            run = self.run = WatchRun(self.name, self._prefixes, revision, snapshot)
            run.snapshot_ceiling_ms = self.world.store.peak_time_ms
            self.world.journal.watch_runs.append(run)
        elif revision < run.reached:
            self.problem(f"a watch's token went back from {run.reached} to {revision}")
        run.changes.extend(changes)
        run.reached = revision
        self.say(f"told {revision} {[seen.revision for _, seen in changes]}")
