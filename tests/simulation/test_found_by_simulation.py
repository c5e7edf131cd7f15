"""What the simulation has found, each again in the smallest case that shows it."""

from __future__ import annotations

import asyncio
import gc
from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from kokuban_server.app.commits import CommitRequest
from kokuban_server.app.heads import Heads
from kokuban_server.app.lock_asked import Asked, Granted, LockRequest
from kokuban_server.app.lock_views import Sight
from kokuban_server.app.reads import AskStrong
from kokuban_server.app.watches import StartNow, StartSnapshot
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Principal, Role
from kokuban_server.core.commit import Increment, MustNotExist, Put, TimeToLive, Unconditional
from kokuban_server.core.entry import EntryState, Form, Value
from kokuban_server.core.locks import Mode
from kokuban_server.core.names import EntryKey, parse_region
from kokuban_server.core.refusals import OutcomeUnknown, StoreUnavailable, WatchGap
from kokuban_server.core.revision import revision_of
from kokuban_server.ports.board_store import STRONG, WatchBatch
from kokuban_server.records.codec import decode_entry
from tests.simulation.broken_stores import LosesEvents, RevivesDead
from tests.simulation.lock_stories import Player, held_back
from tests.simulation.simulated_agents import head_of
from tests.simulation.simulated_replica import BOARD, START_MS, SimulatedReplica, Tuning, adopting_task
from tests.simulation.simulated_store import FaultyStore, RecordedStore, Weather
from tests.simulation.virtual_time import Deadlock, run, until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence

    from kokuban_server.app.commits import Committed
    from kokuban_server.app.watches import WatchPart
    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.board_store import Consistency, Cut
    from tests.simulation.simulated_replica import SimulatedClock

TASK = parse_region("task:t1")
KEY = EntryKey(TASK, "entry")
OTHER = EntryKey(TASK, "other")
WRITER = Principal("dev", "writer", frozenset({Role.MEMBER}), is_development=True)
FAIR = Weather()


def _server(store: RecordedStore, off_by_ms: int = 0, weather: Weather = FAIR) -> SimulatedReplica:
    tuning = Tuning(limits.REQUEST_ID_WINDOW_MS, limits.STORE_HISTORY_MS, 1_000_000, 8_192, 1.0)
    return SimulatedReplica("server", store, off_by_ms, "seed", weather, tuning)


def _deadline() -> float:
    return asyncio.get_running_loop().time() + 5.0


async def _put(server: SimulatedReplica, number: int, put: Put | Increment, key: EntryKey = KEY) -> Committed:
    now_ms = START_MS + int(asyncio.get_running_loop().time() * 1000)
    request = CommitRequest(BOARD, f"request-{number}", now_ms, b"%d" % number, (), ((key, put, 0),), "", "", "")
    return await server.commits.commit(WRITER, request, _deadline())


def _text(text: str, ttl_ms: int = 0) -> Put:
    return Put(Unconditional(), Value(Form.TEXT, text), None, TimeToLive(ttl_ms) if ttl_ms else None)


def _in_virtual_time(main: Callable[[], Coroutine[None, None, None]]) -> None:
    async def prepared() -> None:
        asyncio.get_running_loop().set_task_factory(adopting_task)
        await main()

    run(prepared())


def test_a_loop_in_which_all_wait_for_each_other_is_a_deadlock() -> None:
    async def wait_for_nobody() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        run(wait_for_nobody())


class _FailsAfterLosing(FaultyStore):
    """Loses the answer of the first commit of an entry, and cannot be reached for the next."""

    commits = 0

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        revision = await super().commit(change, deadline_s)
        self.commits += any(put.key == head_of(KEY) for put in change.puts)
        if self.commits:
            self.weather = Weather(not_sent=1.0)
            raise OutcomeUnknown(detail="lost")
        return revision


def test_nothing_was_changed_is_not_said_of_a_commit_that_may_have_happened() -> None:
    async def main() -> None:
        store = RecordedStore()
        server = _server(store)
        server.commits._store = way = _FailsAfterLosing(store, server.clock, "seed", FAIR)
        server.commits._access._store = way
        with pytest.raises(OutcomeUnknown) as unknown:
            await _put(server, 1, _text("one"))
        assert unknown.value.request_id == "request-1"
        with pytest.raises(StoreUnavailable):  # of a commit that nothing is known to have become of, it is
            await _put(server, 2, _text("two"))

    _in_virtual_time(main)


def test_a_read_is_answered_although_the_tick_of_store_time_was_lost() -> None:
    async def main() -> None:
        store = RecordedStore()
        server = _server(store)
        await _put(server, 1, _text("short", ttl_ms=1_000))
        await asyncio.sleep(2)
        server.store.weather = Weather(reply_lost=1.0)
        entries = await server.reads.batch_get(WRITER, BOARD, [KEY], AskStrong(), _deadline())
        assert entries.missing == [KEY]

    _in_virtual_time(main)


def test_a_snapshot_of_a_server_whose_clock_is_fast_leaves_out_nothing_that_others_still_see() -> None:
    async def main() -> None:
        store = RecordedStore()
        server, fast = _server(store), _server(store, off_by_ms=60_000)
        await _put(server, 1, _text("short", ttl_ms=10_000))
        parts = fast.watches.follow(WRITER, BOARD, [(TASK, "")], StartSnapshot(), _deadline())
        shown = (await anext(parts)).entries or ()
        await parts.aclose()
        await fast.watches.close()
        entries = await server.reads.batch_get(WRITER, BOARD, [KEY], AskStrong(), _deadline())
        assert [found.key for found in entries.found] == [key for key, _, _ in shown]

    _in_virtual_time(main)


@pytest.mark.parametrize(("kind", "expected"), [(RecordedStore, "1"), (RevivesDead, "6")], ids=["sound", "broken"])
def test_a_server_whose_clock_is_slow_does_not_add_to_what_has_expired(
    kind: type[RecordedStore], expected: str
) -> None:
    """It remembers the entry and takes it to be alive; the store's time guards the plan, where the store looks at that."""

    async def main() -> None:
        store = kind()
        slow, server = _server(store, off_by_ms=-60_000), _server(store)
        five = Put(Unconditional(), Value(Form.JSON, "5"), None, TimeToLive(10_000))
        await _put(slow, 1, five)
        await _put(server, 2, _text("moves store time"), OTHER)
        added = await _put(slow, 3, Increment(1))
        assert [outcome.value for outcome in added.outcomes] == [Value(Form.JSON, expected)]

    _in_virtual_time(main)


def test_a_clock_that_is_set_back_while_the_sweeper_works_does_not_bury_what_still_lives() -> None:
    async def main() -> None:
        store = RecordedStore()
        server = _server(store)
        await _put(server, 1, _text("short", ttl_ms=10_000))
        server.clock.off_by_ms = 60_000
        sweep = asyncio.create_task(server.upkeep.sweep())
        while server.time._ticking is None:  # noqa: ASYNC110 - looked at, not told
            await asyncio.sleep(0.0001)
        server.clock.off_by_ms = 0
        await sweep
        (record,) = (await store.read([head_of(KEY)], STRONG, 1)).records
        assert record is not None
        assert decode_entry(record.key, record.value).state is EntryState.LIVE
        entries = await server.reads.batch_get(WRITER, BOARD, [KEY], AskStrong(), _deadline())
        assert len(entries.found) == 1

    _in_virtual_time(main)


def test_a_slow_watch_is_not_told_that_it_has_seen_what_was_lost() -> None:
    async def main() -> None:
        store = LosesEvents()
        server = _server(store)
        parts = server.watches.follow(WRITER, BOARD, [(TASK, "")], StartNow(), _deadline())
        await anext(parts)
        reader = asyncio.create_task(anext(parts))
        number = 0
        while store.present % 30 != 28:  # the last change before the one that is lost
            number += 1
            await _put(server, number, _text(str(number)))
        await reader
        for last in range(number + 1, number + 5):
            await _put(server, last, _text(str(last)))
        await asyncio.sleep(5)  # meanwhile the feed finds the gap, and begins anew
        await _put(server, 100, _text("later"))
        await asyncio.sleep(5)
        told: list[int] = []
        reached: list[int] = []
        with pytest.raises(WatchGap) as gap:
            await _listen(parts, told, reached)
        lost = min(applied.event.revision for applied in store.log if applied.event.revision % 30 == 0)
        assert told
        assert max(reached) < lost
        assert revision_of(gap.value.token, store.epoch, "token") < lost
        await parts.aclose()
        await server.watches.close()

    _in_virtual_time(main)


async def _listen(parts: AsyncGenerator[WatchPart, None], told: list[int], reached: list[int]) -> None:
    async for part in parts:
        told += [change.revision for change in part.changes]
        reached.append(part.revision or 0)


def test_a_created_entry_is_free_again_only_by_store_time() -> None:
    async def main() -> None:
        store = RecordedStore()
        slow, fast = _server(store, off_by_ms=-30_000), _server(store, off_by_ms=30_000)
        await _put(fast, 1, _text("short", ttl_ms=2_000))
        await asyncio.sleep(3)
        assert not (await fast.reads.batch_get(WRITER, BOARD, [KEY], AskStrong(), _deadline())).found
        assert not (await slow.reads.batch_get(WRITER, BOARD, [KEY], AskStrong(), _deadline())).found
        again = Put(MustNotExist(), Value(Form.TEXT, "again"), None, None)
        assert (await _put(slow, 2, again)).outcomes[0].sequence == 2

    _in_virtual_time(main)


# With locks.


def test_a_circle_that_stands_only_in_an_old_picture_is_no_deadlock() -> None:
    async def main() -> None:
        store = RecordedStore()
        here, there = _server(store), _server(store)
        here.presence.server_id, there.presence.server_id = "here", "there"
        gate = held_back(here, store)
        victim, other = Player(here, "victim"), Player(there, "other")
        await victim.open()
        await other.open()
        left = await victim.take("left")
        right = await other.take("right")
        waiting = asyncio.create_task(other.take("left"))
        await until(lambda: bool(here.mirror.picture(keys.board_prefix("dev", BOARD)).waits))
        gate.clear()
        await other.let_go(right)
        asking = asyncio.create_task(victim.take("right"))  # which here is still taken for the other's
        await asyncio.sleep(0.4)
        assert not asking.done()
        gate.set()
        await asking
        await victim.let_go(left)
        await waiting
        for server in (here, there):
            server.die()

    _in_virtual_time(main)


class _OneChangeDuringRead(FaultyStore):
    """Once it is shut, brings nothing through its watches but one change while the answer of a read is on its way."""

    def __init__(self, store: RecordedStore, clock: SimulatedClock) -> None:
        super().__init__(store, clock, "seed", FAIR)
        self.is_shut = False
        self._passes = asyncio.Semaphore(0)

    async def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async for batch in super().watch(prefixes, after_revision):
            for revision, events in groupby(batch.events, key=lambda event: event.revision):
                if self.is_shut:
                    await self._passes.acquire()
                yield WatchBatch(revision, tuple(events))

    async def read(self, keys: Sequence[bytes], consistency: Consistency, deadline_s: float) -> Cut:
        cut = await super().read(keys, consistency, deadline_s)
        if self.is_shut:
            self._passes.release()
            await asyncio.sleep(0.2)
        return cut


def test_nobody_is_refused_for_a_lock_of_which_the_watch_tells_when_it_is_long_released() -> None:
    async def main() -> None:
        store = RecordedStore()
        here, there = _server(store), _server(store)
        here.commits._store = here.mirror._store = way = _OneChangeDuringRead(store, here.clock)
        holder = Player(there, "holder")
        await holder.open()
        await _put(here, 1, _text("one"))
        way.is_shut = True
        await holder.let_go(await holder.take("entry"))
        here.commits._heads = Heads(0)  # so that the store is asked
        assert (await _put(here, 2, _text("two"))).outcomes
        for server in (here, there):
            server.die()

    _in_virtual_time(main)


def test_a_server_still_lives_after_its_first_word_of_it_came_late() -> None:
    class SaysItLate(FaultyStore):
        """Loses the first word that a server lives on the way, and has it arrive later all the same."""

        late: asyncio.Task[int] | None = None

        async def commit(self, change: ChangeSet, deadline_s: float) -> int:
            if self.late is None and any(put.key.startswith(keys.SERVER) for put in change.puts):
                self.late = asyncio.create_task(self._later(change))
                raise OutcomeUnknown(detail="lost")
            return await super().commit(change, deadline_s)

        async def _later(self, change: ChangeSet) -> int:
            await asyncio.sleep(2)
            return await super().commit(change, 10)

    async def main() -> None:
        store = RecordedStore()
        server = _server(store)
        server.presence._store = way = SaysItLate(store, server.clock, "seed", FAIR)
        with pytest.raises(OutcomeUnknown):
            await server.presence.begin(5)
        await server.presence.begin(5)
        assert way.late is not None
        await way.late
        for _ in range(30):
            await asyncio.sleep(1)
            (record,) = (await store.read([keys.server("server")], STRONG, 1)).records
            assert record is not None
        await server.presence.end()
        assert not store.leases

    _in_virtual_time(main)


def test_a_refusal_of_whom_nobody_waits_for_any_more_is_complained_of_by_nobody() -> None:
    async def main() -> None:
        complaints: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        asked: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        abandoned = _asked(asked)
        abandoned.is_abandoned = True
        abandoned.refuse(StoreUnavailable("gone"))
        del abandoned, asked
        gc.collect()
        assert not complaints

    _in_virtual_time(main)


def _asked(outcome: asyncio.Future[Granted]) -> Asked:
    request = LockRequest(BOARD, "", "", 0, b"", (), Mode.SHARED, "", 0, 0, 0, "")
    sight = Sight(_server(RecordedStore()).commits._access, WRITER, BOARD)
    return Asked(WRITER, request, "", b"", 0.0, sight, 0.0, outcome, frozenset(), ())
