"""The reference store with a complete log, and the faults that stand between it and a simulated server."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.core.refusals import OutcomeUnknown, Refusal, StoreUnavailable
from kokuban_server.ports.board_store import AtLeast, CommitRefused, LeaseLost, Local, Snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.board_store import (
        Consistency,
        Cut,
        Event,
        Lease,
        Page,
        Record,
        StoreStatus,
        WatchBatch,
    )
    from kokuban_server.ports.clock import Clock
    from kokuban_server.ports.group_commit import Answer, BatchCounts

_T = TypeVar("_T")
_FOR_EVER_S = 1e9


class WritersClock:
    """What the store takes for the time: the clock of the server whose commit it applies."""

    def __init__(self) -> None:
        self._under_way: list[int] = []

    def now_ms(self) -> int:
        return max(self._under_way, default=0)

    @contextlib.contextmanager
    def written_at(self, now_ms: int) -> Iterator[None]:
        """Count a server's time while its commit is being applied."""
        self._under_way.append(now_ms)
        try:
            yield
        finally:
            self._under_way.remove(now_ms)


class Applied(NamedTuple):
    """One event of the store's log, the store time that the guards of its commit were judged by, and the virtual time."""

    event: Event
    judged_at_ms: int
    at_s: float


class RecordedStore(MemoryStore):
    """The reference store, which also keeps everything that ever happened, whatever is compacted."""

    def __init__(self) -> None:
        self.writers_clock = WritersClock()
        super().__init__(self.writers_clock)
        self.log: list[Applied] = []
        self.peak_time_ms = 0
        """The latest that store time has ever been."""
        self._logged = 0

    @property
    def present(self) -> int:
        """The revision that a strong read would be answered at now."""
        return self._history.revision

    @property
    def floor(self) -> int:
        """The oldest revision that can still be read."""
        return self._compacted

    def now_at(self, key: bytes) -> Record | None:
        """Give what a key holds now."""
        return self._history.record(key, self.present)

    async def _send(self, batch: Sequence[ChangeSet]) -> Sequence[Answer]:
        judged_at_ms = self._store_time_ms
        answers = await super()._send(batch)
        self._note(judged_at_ms)
        return answers

    def _end_leases(self, leases: Sequence[int]) -> None:
        super()._end_leases(leases)
        self._note(self._store_time_ms)

    def _note(self, judged_at_ms: int) -> None:
        at_s = asyncio.get_running_loop().time()
        fresh = []
        for event in reversed(self._history.events):
            if event.revision <= self._logged:
                break
            fresh.append(Applied(event, judged_at_ms, at_s))
        self.log.extend(reversed(fresh))
        self._logged = self._history.revision
        self.peak_time_ms = max(self.peak_time_ms, self._store_time_ms)

    # What a store's own life does to leases.

    def change_leader(self) -> None:
        """Begin every lease's time anew, as a new leader does that does not know how old they are."""
        self._collect_lapsed()
        now_s = self._now_s()
        self._leases = {lease: (ttl_ms, now_s + ttl_ms / 1000) for lease, (ttl_ms, _) in self._leases.items()}
        self._set_timer()

    def lose_lease(self, lease: int) -> None:
        """End a lease before its time, as a leader does that was deposed without knowing it."""
        self._end_leases([lease])

    def hanging(self) -> set[int]:
        """Give the leases on which something hangs."""
        heads = [self._history.head(key) for key in self._history._keys]
        return {head.lease for head in heads if head.lease is not None}

    @property
    def leases(self) -> frozenset[int]:
        """Every lease that lives."""
        return frozenset(self._leases)


@dataclass(frozen=True, slots=True)
class Weather:
    """How often which fault comes; probabilities, each for one call."""

    not_sent: float = 0.0
    """The call fails before it reaches the store."""
    reply_lost: float = 0.0
    """A commit is judged and perhaps applied, but the answer does not come back."""
    slow: float = 0.0
    """A message takes seconds instead of milliseconds, so that it may arrive after its sender gave up."""
    watch_cut: float = 0.0
    """A watch breaks off before or after a batch."""
    old_answers: float = 0.0
    """A read that need not be of the newest state is answered with an older one."""

    def calm(self) -> Weather:
        """The same without faults."""
        return replace(self, not_sent=0.0, reply_lost=0.0, slow=0.0, watch_cut=0.0)


class FaultyStore:
    """One server's way to the store, with delays and faults drawn from a seed. Implements the store port.

    A call's fate depends on the seed, the name of the task that makes it, and how many that name has made: what one task
    does leaves another's fate as it was.
    """

    def __init__(self, store: RecordedStore, clock: Clock, seed: str, weather: Weather) -> None:
        self._store = store
        self._clock = clock
        self._seed = seed
        self._calls: Counter[str] = Counter()
        self._on_the_way: set[asyncio.Task[Answer]] = set()
        self.weather = weather
        self.is_severed = False
        """The server is dead: whatever its last tasks still try does not leave it."""

    @property
    def epoch(self) -> str:
        return self._store.epoch

    @property
    def batches(self) -> BatchCounts:
        return self._store.batches

    def _fate(self) -> random.Random:
        if self.is_severed:
            raise StoreUnavailable("severed")
        task = asyncio.current_task()
        name = task.get_name() if task is not None else ""
        self._calls[name] += 1
        return random.Random(f"{self._seed}/{name}/{self._calls[name]}")

    def _travel_s(self, fate: random.Random) -> float:
        return fate.uniform(0.5, 8.0) if fate.random() < self.weather.slow else fate.uniform(0.0005, 0.02)

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        fate = self._fate()
        if fate.random() < self.weather.not_sent:
            await asyncio.sleep(fate.uniform(0, min(deadline_s, 0.2)))
            raise StoreUnavailable("not sent")
        waited_s = fate.uniform(0, 0.01)  # behind the batch before
        if waited_s >= deadline_s:
            await asyncio.sleep(deadline_s)
            raise StoreUnavailable("not sent in time")
        await asyncio.sleep(waited_s)
        serve = self._serve(change, self._clock.now_ms(), self._travel_s(fate))
        # What is on its way to the store arrives even if this server dies: the task belongs to nobody here.
        answer_task = asyncio.get_running_loop().create_task(serve, name="store", context=contextvars.Context())
        self._on_the_way.add(answer_task)
        answer_task.add_done_callback(self._on_the_way.discard)
        back_s = self._travel_s(fate)
        lost = fate.random() < self.weather.reply_lost
        try:
            async with asyncio.timeout(deadline_s - waited_s):
                answer = await asyncio.shield(answer_task)
                await asyncio.sleep(back_s)
        except TimeoutError:
            raise OutcomeUnknown(detail="no answer in time") from None
        if lost:
            raise OutcomeUnknown(detail="the answer was lost")
        if isinstance(answer, int):
            return answer
        raise answer

    async def _serve(self, change: ChangeSet, sent_at_ms: int, travel_s: float) -> Answer:
        await asyncio.sleep(travel_s)
        with self._store.writers_clock.written_at(sent_at_ms):
            try:
                return await self._store.commit(change, _FOR_EVER_S)
            except (Refusal, CommitRefused, LeaseLost) as error:
                return error

    async def settled(self) -> None:
        """Come back when nothing is on its way to the store any more."""
        while self._on_the_way:
            await asyncio.wait(self._on_the_way)

    async def read(self, keys: Sequence[bytes], consistency: Consistency, deadline_s: float) -> Cut:
        fate = self._fate()
        return await self._ask(
            fate, deadline_s, lambda: self._store.read(keys, self._aged(consistency, fate), _FOR_EVER_S)
        )

    async def scan(
        self, prefix: bytes, after: bytes, limit: int, bytes_max: int, consistency: Consistency, deadline_s: float
    ) -> Page:
        fate = self._fate()
        return await self._ask(
            fate,
            deadline_s,
            lambda: self._store.scan(prefix, after, limit, bytes_max, self._aged(consistency, fate), _FOR_EVER_S),
        )

    def _aged(self, consistency: Consistency, fate: random.Random) -> Consistency:
        """Give the oldest state's consistency that the one asked for allows, now and then."""
        if isinstance(consistency, Local):
            oldest = self._store.present - 20
        elif isinstance(consistency, AtLeast) and consistency.revision <= self._store.present:
            oldest = consistency.revision
        else:
            return consistency
        if fate.random() >= self.weather.old_answers:
            return consistency
        return Snapshot(fate.randint(max(oldest, self._store.floor), self._store.present))

    async def _ask(self, fate: random.Random, deadline_s: float, ask: Callable[[], Awaitable[_T]]) -> _T:
        there_s, back_s = self._travel_s(fate), self._travel_s(fate)
        if fate.random() < self.weather.not_sent or there_s + back_s >= deadline_s:
            await asyncio.sleep(min(deadline_s, there_s))
            raise StoreUnavailable("no answer")
        await asyncio.sleep(there_s)
        answer = await ask()
        await asyncio.sleep(back_s)
        return answer

    async def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        fate = self._fate()
        await asyncio.sleep(self._travel_s(fate))
        async with contextlib.aclosing(self._store.watch(prefixes, after_revision)) as batches:
            async for batch in batches:
                await asyncio.sleep(self._travel_s(fate))
                if fate.random() < self.weather.watch_cut:
                    raise StoreUnavailable("the watch broke off")
                yield batch
                if fate.random() < self.weather.watch_cut:
                    raise StoreUnavailable("the watch broke off")

    async def grant_lease(self, ttl_ms: int, deadline_s: float) -> Lease:
        return await self._ask(self._fate(), deadline_s, lambda: self._store.grant_lease(ttl_ms, _FOR_EVER_S))

    async def renew_lease(self, lease: int, deadline_s: float) -> int:
        return await self._ask(self._fate(), deadline_s, lambda: self._store.renew_lease(lease, _FOR_EVER_S))

    async def lease_left(self, lease: int, deadline_s: float) -> int:
        return await self._ask(self._fate(), deadline_s, lambda: self._store.lease_left(lease, _FOR_EVER_S))

    async def revoke_lease(self, lease: int, deadline_s: float) -> None:
        await self._ask(self._fate(), deadline_s, lambda: self._store.revoke_lease(lease, _FOR_EVER_S))

    async def compact(self, before_revision: int, deadline_s: float) -> int:
        return await self._ask(self._fate(), deadline_s, lambda: self._store.compact(before_revision, _FOR_EVER_S))

    async def status(self, deadline_s: float) -> StoreStatus:
        return await self._ask(self._fate(), deadline_s, lambda: self._store.status(_FOR_EVER_S))

    async def close(self) -> None:
        """Let go of the way; the store is not this server's."""
