"""What every adapter of the store port keeps: each sentence of `ports.board_store` as a test.

An adapter's test module makes a subclass of `BoardStoreSuite` and gives it a fixture `harness`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kokuban_server.core.change_set import (
    Absent,
    AtRevision,
    ChangeSet,
    CreatedAt,
    DeleteKey,
    DeleteRange,
    Guard,
    GuardFailure,
    NoneBelow,
    Put,
    TimeBefore,
)
from kokuban_server.core.keys import prefix_end
from kokuban_server.core.refusals import HistoryCompacted, StoreUnavailable, TokenAheadOfStore
from kokuban_server.core.revision import is_epoch
from kokuban_server.ports.board_store import (
    LOCAL,
    STRONG,
    AtLeast,
    BoardStore,
    CommitRefused,
    Consistency,
    Event,
    LeaseLost,
    Record,
    Snapshot,
    WatchBatch,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

DEADLINE_S = 10.0
BOUND_S = 20.0
"""How long a test waits for a fact before it fails."""

PAGE_BYTES = 1 << 20


class TurnedClock:
    """A wall clock that only tests move."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now


class Harness(Protocol):
    """What the suite needs to know of an adapter. One harness is one store's data."""

    clock: TurnedClock
    """The wall clock that every store of this harness is given."""

    async def open(self) -> BoardStore:
        """Open the store; the first time it is empty."""
        ...

    async def reopen(self) -> BoardStore:
        """Close the store and open it again on what it stored."""
        ...

    async def pass_lease_time(self, duration_ms: int) -> None:
        """Let lease time pass where it can be turned; nothing where only waiting helps. The suite then waits for facts."""
        ...

    async def close(self) -> None:
        """Close what is open and clean up."""
        ...


async def commit(store: BoardStore, *writes: Put | DeleteKey | DeleteRange, guards: Sequence[Guard] = ()) -> int:
    puts = tuple(write for write in writes if isinstance(write, Put))
    deletes = tuple(write for write in writes if not isinstance(write, Put))
    return await store.commit(ChangeSet(tuple(guards), puts, deletes), DEADLINE_S)


async def refused(
    store: BoardStore, *writes: Put | DeleteKey | DeleteRange, guards: Sequence[Guard]
) -> list[GuardFailure]:
    with pytest.raises(CommitRefused) as caught:
        await commit(store, *writes, guards=guards)
    return list(caught.value.failures)


async def read(store: BoardStore, *keys: bytes, at: Consistency = STRONG) -> list[Record | None]:
    return list((await store.read(keys, at, DEADLINE_S)).records)


async def values(store: BoardStore, *keys: bytes, at: Consistency = STRONG) -> list[bytes | None]:
    return [record and record.value for record in await read(store, *keys, at=at)]


async def present(store: BoardStore) -> int:
    return (await store.read([b"any"], STRONG, DEADLINE_S)).revision


async def store_time(store: BoardStore) -> int:
    return (await store.read([b"any"], STRONG, DEADLINE_S)).store_time_ms


async def listing(
    store: BoardStore,
    prefix: bytes,
    *,
    after: bytes = b"",
    limit: int = 1000,
    bytes_max: int = PAGE_BYTES,
    at: Consistency = STRONG,
) -> list[bytes]:
    page = await store.scan(prefix, after, limit, bytes_max, at, DEADLINE_S)
    return [record.key for record in page.records]


async def eventually(fact: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the fact is so; fail if it does not come within the bound."""
    async with asyncio.timeout(BOUND_S):
        while not await fact():  # noqa: ASYNC110 - a fact of the store, which has no event for it
            await asyncio.sleep(0.002)


async def follow(watch: AsyncGenerator[WatchBatch, None], revision: int) -> list[WatchBatch]:
    """Read batches until nothing up to the revision is outstanding."""
    batches: list[WatchBatch] = []
    async with asyncio.timeout(BOUND_S):
        while not batches or batches[-1].revision < revision:
            batches.append(await anext(watch))
    return batches


async def events_between(store: BoardStore, prefixes: Sequence[bytes], after: int, until: int) -> list[Event]:
    async with aclosing(store.watch(prefixes, after)) as watch:
        return [event for batch in await follow(watch, until) for event in batch.events if event.revision <= until]


async def first_batch(store: BoardStore, prefixes: Sequence[bytes], after: int) -> WatchBatch:
    async with aclosing(store.watch(prefixes, after)) as watch, asyncio.timeout(BOUND_S):
        return await anext(watch)


def in_key_order(events: Sequence[Event]) -> list[Event]:
    """Order events inside their revision, where the port leaves it open."""
    return sorted(events, key=lambda event: (event.revision, event.key))


class Oracle:
    """What a store must answer to change sets one after the other: written apart from every adapter."""

    def __init__(self) -> None:
        self.now: dict[bytes, tuple[bytes, int, int]] = {}
        self.states: list[tuple[int, dict[bytes, tuple[bytes, int, int]]]] = []
        self.events: list[Event] = []

    def failures(self, change: ChangeSet) -> list[GuardFailure]:
        found = []
        for place, guard in enumerate(change.guards):
            if isinstance(guard, NoneBelow):
                below = [held[1:] for key, held in self.now.items() if key.startswith(guard.prefix)]
                if below:
                    found.append(GuardFailure(place, *below[0]))
            elif not isinstance(guard, TimeBefore):
                _, revision, created = self.now.get(guard.key, (b"", 0, 0))
                expected = {Absent: revision, AtRevision: revision, CreatedAt: created}[type(guard)]
                if expected != (0 if isinstance(guard, Absent) else guard.revision):
                    found.append(GuardFailure(place, revision, created))
        return found

    def apply(self, change: ChangeSet, revision: int) -> None:
        for put in change.puts:
            _, before, created = self.now.get(put.key, (b"", 0, revision))
            self.now[put.key] = (put.value, revision, created)
            self.events.append(Event(put.key, put.value, revision, created, before))
        for delete in change.deletes:
            start, end = (delete.key, delete.key + b"\0") if isinstance(delete, DeleteKey) else delete
            for key in [key for key in self.now if start <= key < end]:
                self.events.append(Event(key, None, revision, 0, self.now.pop(key)[1]))
        self.states.append((revision, dict(self.now)))


_NAMES = (b"a", b"a/", b"a/\xff", b"b", b"\xff")
_names = st.sampled_from(_NAMES)
_guards = st.tuples(
    st.sampled_from(["absent", "at", "created", "none below"]), _names, st.sampled_from(["now", "now", "old", "never"])
)
_change_sets = st.tuples(
    st.lists(_guards, max_size=2),
    st.lists(st.tuples(_names, st.binary(max_size=3)), max_size=3, unique_by=lambda put: put[0]),
    st.lists(st.one_of(st.tuples(_names), st.tuples(_names, _names)), max_size=2),
)
_Drawn = tuple[list[tuple[str, bytes, str]], list[tuple[bytes, bytes]], list[tuple[bytes] | tuple[bytes, bytes]]]


_examples = itertools.count()


class Revisions(NamedTuple):
    """Which revisions a drawn guard may name for a key."""

    now: int
    created: int
    old: int


def _change_set(drawn: _Drawn, prefix: bytes, revisions: Callable[[bytes], Revisions]) -> ChangeSet:
    """Turn what Hypothesis drew into a change set that does not clash with itself."""
    guards: list[Guard] = []
    for kind, name, which in drawn[0]:
        key = prefix + name
        now, created, old = revisions(key)
        if kind == "absent":
            guards.append(Absent(key))
        elif kind == "none below":
            guards.append(NoneBelow(key))
        else:
            named = {"now": now if kind == "at" else created, "old": old, "never": 1 << 40}[which]
            guards.append((AtRevision if kind == "at" else CreatedAt)(key, named or 1 << 40))
    deletes: list[DeleteKey | DeleteRange] = []
    for names in drawn[2]:
        if len(names) == 1:
            deletes.append(DeleteKey(prefix + names[0]))
        elif names[0] < names[1]:
            deletes.append(DeleteRange(prefix + names[0], prefix + names[1]))
    spans = [(d.key, d.key + b"\0") if isinstance(d, DeleteKey) else (d.start, d.end) for d in deletes]
    puts = [
        Put(prefix + name, value)
        for name, value in drawn[1]
        if not any(start <= prefix + name < end for start, end in spans)
    ]
    return ChangeSet(tuple(guards), tuple(puts), tuple(deletes))


class BoardStoreSuite:
    """The conformance suite."""

    @pytest.fixture
    async def store(self, harness: Harness) -> AsyncIterator[BoardStore]:
        yield await harness.open()
        await harness.close()

    # Commits.

    async def test_the_epoch_has_its_form(self, store: BoardStore) -> None:
        assert is_epoch(store.epoch)

    async def test_a_commit_writes_at_the_revision_it_gives(self, store: BoardStore) -> None:
        revision = await commit(store, Put(b"k", b"v"))
        assert revision > 0
        assert await read(store, b"k") == [Record(b"k", b"v", revision, revision, None)]

    async def test_revisions_grow_with_every_commit_that_writes(self, store: BoardStore) -> None:
        revisions = [await commit(store, Put(b"k", b"%d" % n)) for n in range(5)]
        revisions.append(await commit(store, DeleteKey(b"k")))
        revisions.append(await commit(store, Put(b"k", b"again")))
        assert revisions == sorted(set(revisions))

    async def test_an_overwrite_keeps_the_create_revision(self, store: BoardStore) -> None:
        created = await commit(store, Put(b"k", b"1"))
        written = await commit(store, Put(b"k", b"2"))
        assert await read(store, b"k") == [Record(b"k", b"2", written, created, None)]

    async def test_a_key_that_comes_back_begins_a_new_life(self, store: BoardStore) -> None:
        created = await commit(store, Put(b"k", b"1"))
        await commit(store, DeleteKey(b"k"))
        again = await commit(store, Put(b"k", b"2"))
        assert again > created
        assert await read(store, b"k") == [Record(b"k", b"2", again, again, None)]

    async def test_an_empty_value_is_a_value(self, store: BoardStore) -> None:
        revision = await commit(store, Put(b"k", b""))
        assert await read(store, b"k") == [Record(b"k", b"", revision, revision, None)]
        assert (await events_between(store, [b"k"], revision - 1, revision))[0].value == b""

    async def test_keys_and_values_are_any_bytes(self, store: BoardStore) -> None:
        everything = bytes(range(256))
        await commit(store, Put(everything, everything), Put(b"\x00", b"\x00"))
        assert await values(store, everything, b"\x00", b"\x00\x00") == [everything, b"\x00", None]

    async def test_a_large_value_comes_back_whole(self, store: BoardStore) -> None:
        large = random.Random(1).randbytes(600 * 1024)
        await commit(store, Put(b"k", large))
        assert await values(store, b"k") == [large]

    async def test_a_commit_of_the_most_operations(self, store: BoardStore) -> None:
        puts = [Put(b"k/%03d" % n, b"v") for n in range(100)]
        guards = [Absent(put.key) for put in puts]
        revision = await commit(store, *puts, guards=guards)
        records = await read(store, *(put.key for put in puts))
        assert {record and record.revision for record in records} == {revision}
        failures = await refused(store, *puts, guards=guards)
        assert failures == [GuardFailure(place, revision, revision) for place in range(100)]

    @pytest.mark.parametrize("state", ["absent", "present", "overwritten", "deleted", "created again"])
    async def test_guards_on_a_key_hold_exactly_when_they_say(self, store: BoardStore, state: str) -> None:
        other = await commit(store, Put(b"other", b"x"))
        revision = created = 0
        if state != "absent":
            created = revision = await commit(store, Put(b"k", b"1"))
        before = revision
        if state == "overwritten":
            revision = await commit(store, Put(b"k", b"2"))
        deleted = 0
        if state in {"deleted", "created again"}:
            deleted = await commit(store, DeleteKey(b"k"))
            revision = created = 0
        if state == "created again":
            revision = created = await commit(store, Put(b"k", b"3"))
        wrong = GuardFailure(0, revision, created)
        checks: list[tuple[Guard, bool]] = [
            (Absent(b"k"), revision == 0),
            (AtRevision(b"k", other), False),
            (AtRevision(b"k", other + 1_000_000), False),
            (CreatedAt(b"k", other), False),
            (NoneBelow(b"k"), revision == 0),
        ]
        if deleted:
            checks += [(AtRevision(b"k", deleted), False), (CreatedAt(b"k", deleted), False)]
        if before:
            checks += [(AtRevision(b"k", before), before == revision), (CreatedAt(b"k", before), before == created)]
        if revision:
            checks += [(AtRevision(b"k", revision), True), (CreatedAt(b"k", created), True)]
        for guard, holds in checks:
            if holds:
                assert await commit(store, guards=[guard]) >= revision
            else:
                assert await refused(store, Put(b"never", b"x"), guards=[guard]) == [wrong]
        assert await values(store, b"never") == [None]

    async def test_a_guard_stands_in_the_commit_that_undoes_it(self, store: BoardStore) -> None:
        revision = await commit(store, Put(b"k", b"1"), guards=[Absent(b"k"), NoneBelow(b"k")])
        second = await commit(store, Put(b"k", b"2"), guards=[AtRevision(b"k", revision)])
        assert await refused(store, Put(b"k", b"3"), guards=[AtRevision(b"k", revision)]) == [
            GuardFailure(0, second, revision)
        ]

    async def test_none_below_tells_of_some_key_below_its_prefix(self, store: BoardStore) -> None:
        revision = await commit(store, Put(b"p/a", b"1"))
        await commit(store, Put(b"p0", b"1"), Put(b"p.", b"1"), Put(b"p", b"1"))
        assert await refused(store, guards=[NoneBelow(b"p/")]) == [GuardFailure(0, revision, revision)]
        await commit(store, DeleteKey(b"p/a"))
        await commit(store, Put(b"here", b"x"), guards=[NoneBelow(b"p/")])

    @pytest.mark.parametrize("prefix", [b"p\xff", b"\xff", b"\xff\xff"])
    async def test_RB_19_none_below_does_not_see_neighbours_of_an_ff_prefix(
        self, store: BoardStore, prefix: bytes
    ) -> None:
        below = prefix[:-1] + b"\xfe\xff"
        await commit(store, Put(below, b"1"), *([Put(end, b"1")] if (end := prefix_end(prefix)) else []))
        await commit(store, guards=[NoneBelow(prefix)])
        revision = await commit(store, Put(prefix + b"\xff", b"1"))
        assert await refused(store, guards=[NoneBelow(prefix)]) == [GuardFailure(0, revision, revision)]

    async def test_every_guard_that_fails_is_told_in_order_and_judged_against_one_state(
        self, store: BoardStore
    ) -> None:
        a = await commit(store, Put(b"a", b"1"))
        b = await commit(store, Put(b"b", b"1"))
        b2 = await commit(store, Put(b"b", b"2"))
        now = await store_time(store)
        failures = await refused(
            store,
            Put(b"a", b"lost"),
            Put(b"new", b"lost"),
            DeleteKey(b"b"),
            guards=[
                Absent(b"c"),
                AtRevision(b"b", b),
                CreatedAt(b"a", a),
                Absent(b"a"),
                CreatedAt(b"c", a),
                TimeBefore(now),
                NoneBelow(b"b"),
            ],
        )
        assert failures == [
            GuardFailure(1, b2, b),
            GuardFailure(3, a, a),
            GuardFailure(4, 0, 0),
            GuardFailure(5, now, failures[3].create_revision),
            GuardFailure(6, b2, b),
        ]
        assert await values(store, b"a", b"b", b"new") == [b"1", b"2", None]

    async def test_a_refused_commit_leaves_no_event(self, store: BoardStore) -> None:
        start = await commit(store, Put(b"k", b"1"))
        await refused(store, Put(b"k", b"2"), Put(b"l", b"2"), guards=[Absent(b"k")])
        end = await commit(store, Put(b"end", b""))
        assert [event.key for event in await events_between(store, [b"k", b"l", b"end"], start, end)] == [b"end"]

    async def test_a_set_without_writes_gives_a_revision_at_which_its_guards_held(self, store: BoardStore) -> None:
        revision = await commit(store, Put(b"k", b"1"))
        judged = await commit(store, guards=[AtRevision(b"k", revision), Absent(b"l")])
        assert revision <= judged <= await present(store)
        assert await values(store, b"k", b"l", at=Snapshot(judged)) == [b"1", None]

    async def test_removing_what_is_not_there_is_nothing(self, store: BoardStore) -> None:
        start = await commit(store, Put(b"k", b"1"))
        assert await commit(store, DeleteKey(b"absent"), DeleteRange(b"m", b"n")) >= start
        end = await commit(store, Put(b"k", b"2"))
        assert [event.key for event in await events_between(store, [b"k", b"a", b"m"], start, end)] == [b"k"]

    async def test_a_range_is_removed_from_its_start_up_to_and_without_its_end(self, store: BoardStore) -> None:
        keys = [b"a", b"b", b"b\x00", b"bb", b"c", b"c\x00", b"d"]
        await commit(store, *(Put(key, b"v") for key in keys))
        revision = await commit(store, DeleteRange(b"b", b"c"))
        assert await values(store, *keys) == [b"v", None, None, None, b"v", b"v", b"v"]
        removed = in_key_order(await events_between(store, [b"a", b"b", b"c", b"d"], revision - 1, revision))
        assert [(event.key, event.value, event.create_revision) for event in removed] == [
            (key, None, 0) for key in keys[1:4]
        ]

    async def test_puts_and_deletes_of_one_commit_stand_together(self, store: BoardStore) -> None:
        first = await commit(store, Put(b"a", b"1"), Put(b"r/1", b"1"), Put(b"r/2", b"1"), Put(b"b", b"1"))
        second = await commit(store, DeleteRange(b"r/", b"r0"), Put(b"s", b"2"), DeleteKey(b"a"), Put(b"b", b"2"))
        keys = [b"a", b"b", b"r/1", b"r/2", b"s"]
        assert await values(store, *keys) == [None, b"2", None, None, b"2"]
        assert await values(store, *keys, at=Snapshot(first)) == [b"1", b"1", b"1", b"1", None]
        assert {e.revision for e in await events_between(store, [b"a", b"b", b"r", b"s"], first, second)} == {second}

    @pytest.mark.parametrize(
        "clashing",
        [
            [Put(b"k", b"1"), Put(b"k", b"2")],
            [Put(b"k", b"1"), DeleteKey(b"k")],
            [Put(b"k", b"1"), DeleteRange(b"a", b"z")],
        ],
        ids=["put twice", "put and deleted", "put in a deleted range"],
    )
    async def test_a_set_that_clashes_with_itself_is_a_fault_of_its_maker(
        self, store: BoardStore, clashing: list[Put | DeleteKey | DeleteRange]
    ) -> None:
        with pytest.raises(ValueError, match="twice"):
            await commit(store, *clashing)
        assert await values(store, b"k") == [None]

    # Commits at once.

    async def test_of_many_that_compare_one_revision_one_wins(self, store: BoardStore) -> None:
        start = await commit(store, Put(b"k", b"start"))
        attempts = [commit(store, Put(b"k", b"%d" % n), guards=[AtRevision(b"k", start)]) for n in range(50)]
        answers = await asyncio.gather(*attempts, return_exceptions=True)
        won = [n for n, answer in enumerate(answers) if isinstance(answer, int)]
        lost = [answer for answer in answers if isinstance(answer, CommitRefused)]
        assert (len(won), len(lost)) == (1, 49)
        assert await read(store, b"k") == [Record(b"k", b"%d" % won[0], answers[won[0]], start)]  # type: ignore[arg-type] # an int, as just sorted
        assert {answer.failures for answer in lost} == {(GuardFailure(0, answers[won[0]], start),)}  # type: ignore[arg-type] # as above

    async def test_of_many_that_create_one_wins(self, store: BoardStore) -> None:
        attempts = [commit(store, Put(b"k", b"%d" % n), guards=[Absent(b"k")]) for n in range(50)]
        answers = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(answer, int) for answer in answers) == 1
        assert sum(isinstance(answer, CommitRefused) for answer in answers) == 49

    async def test_independent_commits_that_wait_together_share_revisions(self, store: BoardStore) -> None:
        answers = await asyncio.gather(*(commit(store, Put(b"k/%02d" % n, b"v")) for n in range(50)))
        assert len(set(answers)) < 50
        records = await read(store, *(b"k/%02d" % n for n in range(50)))
        assert [record and record.revision for record in records] == answers

    async def test_a_refused_neighbour_does_not_hinder_the_others(self, store: BoardStore) -> None:
        await commit(store, Put(b"taken", b""))
        sets = [
            commit(store, Put(b"k/%d" % n, b""), guards=[Absent(b"taken")] if n % 3 == 0 else []) for n in range(20)
        ]
        answers = await asyncio.gather(*sets, return_exceptions=True)
        assert [isinstance(answer, CommitRefused) for answer in answers] == [n % 3 == 0 for n in range(20)]
        assert len(await listing(store, b"k/")) == sum(isinstance(answer, int) for answer in answers)

    async def test_two_that_each_read_what_the_other_writes_do_not_both_win(self, store: BoardStore) -> None:
        for n in range(5):
            x, y = b"x%d" % n, b"y%d" % n
            answers = await asyncio.gather(
                commit(store, Put(y, b""), guards=[Absent(x)]),
                commit(store, Put(x, b""), guards=[Absent(y)]),
                return_exceptions=True,
            )
            assert sum(isinstance(answer, CommitRefused) for answer in answers) == 1

    async def test_two_that_want_a_prefix_empty_do_not_both_win(self, store: BoardStore) -> None:
        for n in range(5):
            prefix = b"p%d/" % n
            answers = await asyncio.gather(
                *(commit(store, Put(prefix + b"%d" % m, b""), guards=[NoneBelow(prefix)]) for m in range(4)),
                return_exceptions=True,
            )
            assert sum(isinstance(answer, int) for answer in answers) == 1

    async def test_a_range_removal_and_a_put_in_it_happen_one_after_the_other(self, store: BoardStore) -> None:
        for n in range(5):
            key = b"r%d/k" % n
            await commit(store, Put(key, b"old"))
            removed, put = await asyncio.gather(
                commit(store, DeleteRange(b"r%d/" % n, b"r%d0" % n)), commit(store, Put(key, b"new"))
            )
            assert removed != put
            assert await values(store, key) == [None if removed > put else b"new"]

    async def test_counting_by_comparison_loses_nothing(self, store: BoardStore) -> None:
        await commit(store, Put(b"n", b"0"))

        async def add_ten() -> None:
            for _ in range(10):
                while True:
                    (record,) = await read(store, b"n")
                    assert record is not None
                    after = b"%d" % (int(record.value) + 1)
                    try:
                        await commit(store, Put(b"n", after), guards=[AtRevision(b"n", record.revision)])
                        break
                    except CommitRefused:
                        continue

        await asyncio.gather(*(add_ten() for _ in range(6)))
        assert await values(store, b"n") == [b"60"]

    async def test_a_cancelled_caller_does_not_take_its_commit_back(self, store: BoardStore) -> None:
        tasks = [
            asyncio.create_task(commit(store, Put(b"k/%02d" % n, b"a"), Put(b"l/%02d" % n, b"b"))) for n in range(30)
        ]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(answer, int) for answer in answers[1::2])

        async def all_there() -> bool:
            return len(await listing(store, b"k/")) == 30

        await eventually(all_there)
        assert len(await listing(store, b"l/")) == 30

    # Store time.

    async def test_time_before_holds_until_store_time_reaches_the_instant(
        self, store: BoardStore, harness: Harness
    ) -> None:
        harness.clock.now += 5_000
        now = harness.clock.now
        await commit(store, Put(b"k", b""))
        assert await store_time(store) == now
        await commit(store, Put(b"k", b"held"), guards=[TimeBefore(now + 1)])
        for instant in (now, now - 1):
            (failure,) = await refused(store, Put(b"k", b"lost"), guards=[TimeBefore(instant)])
            assert (failure.place, failure.revision) == (0, now)
        assert await values(store, b"k") == [b"held"]

    async def test_store_time_never_goes_back(self, store: BoardStore, harness: Harness) -> None:
        await commit(store, Put(b"k", b""))
        before = await store_time(store)
        harness.clock.now -= 3_600_000
        await commit(store, Put(b"k", b""))
        assert await store_time(store) == before
        harness.clock.now += 3_600_000 + 7
        await commit(store, Put(b"k", b""))
        assert await store_time(store) == before + 7

    async def test_only_puts_move_store_time(self, store: BoardStore, harness: Harness) -> None:
        await commit(store, Put(b"k", b""), Put(b"r/1", b""))
        before = await store_time(store)
        harness.clock.now += 1_000
        await commit(store, DeleteKey(b"k"), DeleteRange(b"r/", b"r0"))
        await commit(store, guards=[Absent(b"k")])
        assert await store_time(store) == before
        assert (await store.status(DEADLINE_S)).store_time_ms == before

    async def test_reads_scans_and_status_tell_the_present_store_time(
        self, store: BoardStore, harness: Harness
    ) -> None:
        first = await commit(store, Put(b"k", b""))
        harness.clock.now += 1_000
        await commit(store, Put(b"l", b""))
        now = harness.clock.now
        assert (await store.read([b"k"], Snapshot(first), DEADLINE_S)).store_time_ms == now
        assert (await store.scan(b"k", b"", 1, PAGE_BYTES, STRONG, DEADLINE_S)).store_time_ms == now
        assert (await store.status(DEADLINE_S)).store_time_ms == now

    # Reads.

    async def test_records_come_in_the_order_asked_for(self, store: BoardStore) -> None:
        await commit(store, Put(b"a", b"1"), Put(b"b", b"2"))
        assert await values(store, b"b", b"c", b"a", b"b") == [b"2", None, b"1", b"2"]

    async def test_a_read_takes_256_keys(self, store: BoardStore) -> None:
        await commit(store, *(Put(b"%d" % n, b"%d" % n) for n in range(0, 256, 3)))
        expected = [b"%d" % n if n % 3 == 0 else None for n in range(256)]
        assert await values(store, *(b"%d" % n for n in range(256))) == expected

    async def test_a_strong_read_sees_what_was_acknowledged(self, store: BoardStore) -> None:
        for n in range(10):
            revision = await commit(store, Put(b"k", b"%d" % n))
            cut = await store.read([b"k"], STRONG, DEADLINE_S)
            assert cut.revision >= revision
            assert cut.records[0] is not None
            assert cut.records[0].value == b"%d" % n

    async def test_at_least_sees_the_revision_it_names(self, store: BoardStore) -> None:
        for n in range(10):
            revision = await commit(store, Put(b"k", b"%d" % n))
            cut = await store.read([b"k"], AtLeast(revision), DEADLINE_S)
            assert cut.revision >= revision
            assert cut.records[0] is not None
            assert cut.records[0].revision == revision

    async def test_a_local_read_is_one_cut_at_the_revision_it_tells(self, store: BoardStore) -> None:
        revision = await commit(store, Put(b"a", b"1"), Put(b"b", b"1"))
        cut = await store.read([b"a", b"b"], LOCAL, DEADLINE_S)
        assert cut.revision <= await present(store)
        found = [record is not None for record in cut.records]
        assert found == [cut.revision >= revision] * 2

    async def test_a_snapshot_is_exactly_the_state_at_its_revision(self, store: BoardStore) -> None:
        first = await commit(store, Put(b"k", b"1"))
        second = await commit(store, Put(b"k", b"2"), Put(b"l", b"2"))
        third = await commit(store, DeleteKey(b"k"))
        fourth = await commit(store, Put(b"k", b"4"))
        expected: list[tuple[int, list[Record | None]]] = [
            (first, [Record(b"k", b"1", first, first), None]),
            (second, [Record(b"k", b"2", second, first), Record(b"l", b"2", second, second)]),
            (third, [None, Record(b"l", b"2", second, second)]),
            (fourth, [Record(b"k", b"4", fourth, fourth), Record(b"l", b"2", second, second)]),
        ]
        for revision, records in expected:
            cut = await store.read([b"k", b"l"], Snapshot(revision), DEADLINE_S)
            assert (cut.revision, list(cut.records)) == (revision, records)
            page = await store.scan(b"k", b"", 10, PAGE_BYTES, Snapshot(revision), DEADLINE_S)
            assert (page.revision, list(page.records)) == (revision, [r for r in records[:1] if r])

    @pytest.mark.parametrize("kind", [AtLeast, Snapshot])
    async def test_a_revision_the_store_has_not_reached_is_refused(
        self, store: BoardStore, kind: type[AtLeast | Snapshot]
    ) -> None:
        ahead = kind(await commit(store, Put(b"k", b"")) + 1_000)
        with pytest.raises(TokenAheadOfStore) as caught:
            await store.read([b"k"], ahead, DEADLINE_S)
        assert caught.value.field_path == ""
        with pytest.raises(TokenAheadOfStore):
            await store.scan(b"k", b"", 1, PAGE_BYTES, ahead, DEADLINE_S)

    async def test_a_read_is_one_cut_while_others_write(self, store: BoardStore) -> None:
        await commit(store, Put(b"a", b"0"), Put(b"b", b"0"))
        done = False

        async def write() -> None:
            nonlocal done
            for n in range(1, 60):
                await commit(store, Put(b"a", b"%d" % n), Put(b"b", b"%d" % n))
            done = True

        writer = asyncio.create_task(write())
        seen = 0
        while not done:
            for at in (STRONG, LOCAL):
                cut = await store.read([b"a", b"b"], at, DEADLINE_S)
                first, second = cut.records
                assert first is not None
                assert second is not None
                assert (first.value, first.revision) == (second.value, second.revision)
                assert cut.revision >= first.revision
                seen += 1
            page = await store.scan(b"", b"\x01", 10, PAGE_BYTES, STRONG, DEADLINE_S)
            assert len({record.value for record in page.records if record.key in {b"a", b"b"}}) == 1
            await asyncio.sleep(0)
        await writer
        assert seen > 0

    # Scans.

    async def test_a_scan_gives_the_keys_of_the_prefix_in_byte_order(self, store: BoardStore) -> None:
        keys = [b"p/", b"p/\x00", b"p/a", b"p/a/b", b"p/b", b"p/\xc3\xa9", b"p/\xff"]
        await commit(store, *(Put(key, b"v") for key in [*reversed(keys), b"p", b"p.", b"p0", b"q"]))
        assert await listing(store, b"p/") == keys

    @pytest.mark.parametrize("prefix", [b"p\xff", b"p\xff\xff", b"\xff", b"\xff\xff", "é".encode(), b"p/"])
    async def test_RB_19_a_scan_and_a_watch_do_not_reach_into_neighbours(
        self, store: BoardStore, prefix: bytes
    ) -> None:
        inside = [prefix, prefix + b"\x00", prefix + b"a", prefix + b"\xff", prefix + b"\xff\xff\xff"]
        outside = [prefix[:-1] + bytes((prefix[-1] - 1,)), prefix[:-1] + bytes((prefix[-1] - 1,)) + b"\xff\xff", b"a"]
        if end := prefix_end(prefix):
            outside += [end, end + b"\x00"]
        revision = await commit(store, *(Put(key, b"v") for key in {*inside, *outside}))
        assert await listing(store, prefix) == inside
        events = await events_between(store, [prefix], revision - 1, revision)
        assert sorted(event.key for event in events) == inside

    async def test_pages_follow_each_other_without_loss_or_repeat(self, store: BoardStore) -> None:
        keys = [b"p/%02d" % n for n in range(23)]
        revision = await commit(store, *(Put(key, b"v") for key in keys))
        for limit in (1, 5, 22, 23, 24):
            seen: list[bytes] = []
            more = True
            while more:
                page = await store.scan(
                    b"p/", seen[-1] if seen else b"", limit, PAGE_BYTES, Snapshot(revision), DEADLINE_S
                )
                assert 0 < len(page.records) <= limit
                seen += [record.key for record in page.records]
                more = page.more
                assert more == (len(seen) < 23)
            assert seen == keys

    async def test_after_need_not_be_a_key(self, store: BoardStore) -> None:
        await commit(store, Put(b"p/a", b""), Put(b"p/c", b""))
        assert await listing(store, b"p/", after=b"p/b") == [b"p/c"]
        assert await listing(store, b"p/", after=b"p/c") == []

    async def test_an_empty_page_is_an_answer(self, store: BoardStore) -> None:
        revision = await commit(store, Put(b"q", b""))
        page = await store.scan(b"p", b"", 10, PAGE_BYTES, STRONG, DEADLINE_S)
        assert (page.records, page.more) == ((), False)
        assert page.revision >= revision

    async def test_a_page_ends_before_it_passes_its_bytes_and_holds_at_least_one(self, store: BoardStore) -> None:
        await commit(store, *(Put(b"p/%d" % n, b"x" * 97) for n in range(5)))  # 100 bytes each, with the key
        for bytes_max, count in ((1, 1), (100, 1), (199, 1), (200, 2), (499, 4), (500, 5)):
            page = await store.scan(b"p/", b"", 10, bytes_max, STRONG, DEADLINE_S)
            assert (len(page.records), page.more) == (count, count < 5)

    async def test_deleted_keys_are_not_listed(self, store: BoardStore) -> None:
        await commit(store, *(Put(b"p/%03d" % n, b"") for n in range(100)))
        full = await present(store)
        await commit(store, DeleteRange(b"p/001", b"p/099"))
        page = await store.scan(b"p/", b"", 2, PAGE_BYTES, STRONG, DEADLINE_S)
        assert ([record.key for record in page.records], page.more) == ([b"p/000", b"p/099"], False)
        page = await store.scan(b"p/", b"", 1, PAGE_BYTES, STRONG, DEADLINE_S)
        assert ([record.key for record in page.records], page.more) == ([b"p/000"], True)
        await commit(store, DeleteKey(b"p/099"))
        page = await store.scan(b"p/", b"", 1, PAGE_BYTES, STRONG, DEADLINE_S)
        assert ([record.key for record in page.records], page.more) == ([b"p/000"], False)
        assert len(await listing(store, b"p/", at=Snapshot(full))) == 100

    # Watches.

    async def test_the_first_batch_comes_at_once_also_when_nothing_happened(self, store: BoardStore) -> None:
        revision = await commit(store, Put(b"k", b""))
        batch = await first_batch(store, [b"k"], revision)
        assert batch.events == ()
        assert batch.revision >= revision

    async def test_a_watch_gives_what_happened_after_its_start(self, store: BoardStore) -> None:
        first = await commit(store, Put(b"k", b"1"))
        second = await commit(store, Put(b"k", b"2"))
        third = await commit(store, DeleteKey(b"k"))
        fourth = await commit(store, Put(b"k", b"4"))
        assert await events_between(store, [b"k"], first - 1, fourth) == [
            Event(b"k", b"1", first, first, 0),
            Event(b"k", b"2", second, first, first),
            Event(b"k", None, third, 0, second),
            Event(b"k", b"4", fourth, fourth, 0),
        ]

    async def test_a_watch_tells_what_happens_while_it_stands(self, store: BoardStore) -> None:
        start = await present(store)
        async with aclosing(store.watch([b"k"], start)) as watch:
            await anext(watch)
            for n in range(5):
                waiting = asyncio.create_task(follow(watch, start + 1))
                await asyncio.sleep(0)
                start = await commit(store, Put(b"k", b"%d" % n))
                events = [event for batch in await waiting for event in batch.events]
                if not events:  # the batch that ended the wait only said how far the watch has come
                    events = [event for batch in await follow(watch, start) for event in batch.events]
                assert [(event.value, event.revision) for event in events] == [(b"%d" % n, start)]

    async def test_a_watch_goes_from_the_past_into_the_present_without_a_gap(self, store: BoardStore) -> None:
        start = await present(store)
        revisions = [await commit(store, Put(b"k", b"%d" % n)) for n in range(5)]
        async with aclosing(store.watch([b"k"], start)) as watch:
            batches = await follow(watch, revisions[-1])
            assert batches[-1].revision <= await present(store)
            for n in range(5):
                revisions.append(await commit(store, Put(b"k", b"%d" % n)))
                batches += await follow(watch, revisions[-1])
        self._no_gaps(batches)
        assert [event.revision for batch in batches for event in batch.events] == revisions

    async def test_a_watch_gives_only_its_prefixes_and_each_event_once(self, store: BoardStore) -> None:
        start = await present(store)
        end = await commit(store, *(Put(key, b"") for key in (b"a", b"aa", b"ab", b"b", b"c/1", b"c0", b"d")))
        events = await events_between(store, [b"a", b"aa", b"c/"], start, end)
        assert sorted(event.key for event in events) == [b"a", b"aa", b"ab", b"c/1"]

    async def test_a_watch_has_no_gap_and_no_repeat_under_load(self, store: BoardStore) -> None:
        start = await present(store)
        async with aclosing(store.watch([b"k/"], start)) as watch:
            chooser = random.Random(7)

            async def write(worker: int) -> None:
                for n in range(20):
                    key = b"k/%d" % chooser.randrange(8)
                    other = b"k/w%d" % worker
                    if chooser.random() < 0.25:
                        await commit(store, DeleteKey(key), Put(other, b"%d" % n))
                    else:
                        await commit(store, Put(key, b"%d" % n), Put(other, b"%d" % n))

            reading = asyncio.create_task(self._follow_to_marker(watch, b"k/end"))
            await asyncio.gather(*(write(worker) for worker in range(8)))
            await commit(store, Put(b"k/end", b""))
            batches = await reading
        self._no_gaps(batches)
        state = {e.key: e.value for batch in batches for e in batch.events}
        found = await store.scan(b"k/", b"", 1000, PAGE_BYTES, STRONG, DEADLINE_S)
        assert {key: value for key, value in state.items() if value is not None} == {
            r.key: r.value for r in found.records
        }

    @staticmethod
    async def _follow_to_marker(watch: AsyncGenerator[WatchBatch, None], marker: bytes) -> list[WatchBatch]:
        batches: list[WatchBatch] = []
        async with asyncio.timeout(BOUND_S):
            while not batches or not any(event.key == marker for event in batches[-1].events):
                batches.append(await anext(watch))
        return batches

    @staticmethod
    def _no_gaps(batches: Sequence[WatchBatch]) -> None:
        """Check order, that no revision is spread over batches, and that each event follows its key's last one.

        The keys hold nothing when the watch begins.
        """
        last: dict[bytes, int] = {}
        begun: dict[bytes, int] = {}
        reached = 0
        for batch in batches:
            assert batch.revision >= reached
            for event in batch.events:
                assert reached < event.revision <= batch.revision
                assert event.previous_revision in {last.get(event.key, 0), 0}
                if event.value is None:
                    assert event.create_revision == 0
                    del last[event.key], begun[event.key]
                else:
                    assert event.create_revision == begun.setdefault(event.key, event.revision)
                    last[event.key] = event.revision
            revisions = [event.revision for event in batch.events]
            assert revisions == sorted(revisions)
            assert len({(event.key, event.revision) for event in batch.events}) == len(batch.events)
            reached = batch.revision

    async def test_a_watch_resumes_at_every_revision(self, store: BoardStore) -> None:
        start = await present(store)
        for n in range(12):
            await commit(
                store, Put(b"k/%d" % (n % 3), b"%d" % n), *([DeleteKey(b"k/x")] if n % 2 else [Put(b"k/x", b"")])
            )
        end = await present(store)
        whole = in_key_order(await events_between(store, [b"k/"], start, end))
        for revision in range(start, end + 1):
            resumed = in_key_order(await events_between(store, [b"k/"], revision, end))
            following = [event for event in whole if event.revision > revision]
            assert [event[:4] for event in resumed] == [event[:4] for event in following]
            for event, before in zip(resumed, following, strict=True):
                assert event.previous_revision in {before.previous_revision, 0}

    async def test_a_revision_is_never_spread_over_two_batches(self, store: BoardStore) -> None:
        start = await present(store)
        revisions = [
            await commit(store, *(Put(b"k/%03d" % n, b"x" * 2000) for n in range(100))),
            await commit(store, DeleteRange(b"k/", b"k0")),
        ]
        async with aclosing(store.watch([b"k/"], start)) as watch:
            batches = await follow(watch, revisions[-1])
        for revision in revisions:
            holding = [sum(event.revision == revision for event in batch.events) for batch in batches]
            assert [count for count in holding if count] == [100]

    async def test_a_slow_reader_loses_nothing(self, store: BoardStore) -> None:
        start = await present(store)
        async with aclosing(store.watch([b"k/"], start)) as watch:
            await anext(watch)
            for n in range(120):
                await commit(store, *(Put(b"k/%02d" % m, b"%d" % n) for m in range(90)))
            end = await commit(store, Put(b"k/end", b""))
            batches = await follow(watch, end)
        self._no_gaps(batches)
        assert sum(len(batch.events) for batch in batches) == 120 * 90 + 1

    async def test_many_watches_each_get_everything_of_theirs(self, store: BoardStore) -> None:
        start = await present(store)

        async def gather_keys(prefix: bytes) -> list[bytes]:
            async with aclosing(store.watch([prefix], start)) as watch:
                batches = await self._follow_to_marker(watch, prefix + b"end")
            return [event.key for batch in batches for event in batch.events]

        prefixes = [b"p%02d/" % (n % 20) for n in range(60)]
        watching = [asyncio.create_task(gather_keys(prefix)) for prefix in prefixes]
        for n in range(5):
            await asyncio.gather(*(commit(store, Put(b"p%02d/%d" % (m, n), b"")) for m in range(20)))
        await commit(store, *(Put(b"p%02d/end" % m, b"") for m in range(20)))
        for prefix, keys in zip(prefixes, await asyncio.gather(*watching), strict=True):
            assert keys == [*(prefix + b"%d" % n for n in range(5)), prefix + b"end"]

    async def test_a_watch_of_the_future_is_refused(self, store: BoardStore) -> None:
        revision = await commit(store, Put(b"k", b""))
        with pytest.raises(TokenAheadOfStore):
            await first_batch(store, [b"k"], revision + 1_000)

    async def test_a_watch_that_is_cancelled_leaves_the_store_usable(self, store: BoardStore) -> None:
        start = await present(store)
        async with aclosing(store.watch([b"k"], start)) as watch:
            await anext(watch)
            waiting = asyncio.create_task(anext(watch))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        end = await commit(store, Put(b"k", b"1"))
        assert len(await events_between(store, [b"k"], start, end)) == 1

    # Compaction.

    async def test_the_floor_is_exact(self, store: BoardStore) -> None:
        first = await commit(store, Put(b"k", b"1"), Put(b"gone", b"1"))
        second = await commit(store, Put(b"k", b"2"), DeleteKey(b"gone"))
        third = await commit(store, Put(b"k", b"3"))
        assert await store.compact(second, DEADLINE_S) == second
        assert (await store.status(DEADLINE_S)).compacted_revision == second
        assert await values(store, b"k", b"gone", at=Snapshot(second)) == [b"2", None]
        assert await values(store, b"k", b"gone") == [b"3", None]
        assert await listing(store, b"k", at=Snapshot(second)) == [b"k"]
        below = Snapshot(first)
        with pytest.raises(HistoryCompacted) as caught:
            await store.read([b"k"], below, DEADLINE_S)
        assert caught.value.compacted_revision == second
        with pytest.raises(HistoryCompacted):
            await store.scan(b"k", b"", 1, PAGE_BYTES, below, DEADLINE_S)
        with pytest.raises(HistoryCompacted) as caught:
            await first_batch(store, [b"k"], second - 1)
        assert caught.value.compacted_revision == second
        (event,) = await events_between(store, [b"k"], second, third)
        assert event[:4] == (b"k", b"3", third, first)
        assert event.previous_revision in {second, 0}

    async def test_compaction_never_forgets_the_present(self, store: BoardStore) -> None:
        revision = await commit(store, Put(b"k", b"1"))
        floor = await store.compact(revision + 1_000_000, DEADLINE_S)
        assert revision <= floor <= await present(store)
        assert await read(store, b"k") == [Record(b"k", b"1", revision, revision)]
        await commit(store, Put(b"k", b"2"), guards=[AtRevision(b"k", revision)])

    async def test_compacting_to_less_than_before_is_nothing(self, store: BoardStore) -> None:
        first = await commit(store, Put(b"k", b"1"))
        second = await commit(store, Put(b"k", b"2"))
        assert await store.compact(second, DEADLINE_S) == second
        assert await store.compact(first, DEADLINE_S) == second
        assert await store.compact(second, DEADLINE_S) == second
        assert (await store.status(DEADLINE_S)).compacted_revision == second

    async def test_guards_judge_as_before_after_compaction(self, store: BoardStore) -> None:
        created = await commit(store, Put(b"k", b"1"), Put(b"gone", b""))
        written = await commit(store, Put(b"k", b"2"), DeleteKey(b"gone"))
        await store.compact(written, DEADLINE_S)
        await commit(
            store, guards=[AtRevision(b"k", written), CreatedAt(b"k", created), Absent(b"gone"), NoneBelow(b"g")]
        )
        assert await refused(store, guards=[AtRevision(b"k", created)]) == [GuardFailure(0, written, created)]
        again = await commit(store, Put(b"gone", b"again"), guards=[Absent(b"gone")])
        assert again > written
        assert await read(store, b"gone") == [Record(b"gone", b"again", again, again)]

    async def test_a_revision_is_not_used_again_after_all_keys_are_gone_and_forgotten(self, store: BoardStore) -> None:
        await commit(store, Put(b"k", b"1"))
        gone = await commit(store, DeleteKey(b"k"))
        await store.compact(gone, DEADLINE_S)
        assert await commit(store, Put(b"k", b"2")) > gone

    async def test_a_watch_overtaken_by_compaction_says_so_or_has_everything(self, store: BoardStore) -> None:
        start = await present(store)
        async with aclosing(store.watch([b"k/"], start)) as watch:
            await anext(watch)
            for n in range(100):
                last = await commit(store, *(Put(b"k/%02d" % m, b"%d" % n) for m in range(100)))
            await store.compact(last, DEADLINE_S)
            batches: list[WatchBatch] = []
            try:
                batches = await follow(watch, last)
            except HistoryCompacted as compacted:
                assert compacted.compacted_revision == last
            else:
                assert sum(len(batch.events) for batch in batches) == 100 * 100
        self._no_gaps(batches)

    async def test_a_watch_that_is_up_to_date_survives_compaction(self, store: BoardStore) -> None:
        start = await commit(store, Put(b"k", b"1"))
        async with aclosing(store.watch([b"k"], start)) as watch:
            await anext(watch)
            second = await commit(store, Put(b"k", b"2"))
            await follow(watch, second)
            await store.compact(second, DEADLINE_S)
            third = await commit(store, Put(b"k", b"3"))
            assert [event.value for batch in await follow(watch, third) for event in batch.events] == [b"3"]

    # Leases.

    async def test_a_lease_lives_at_least_as_long_as_asked_for(self, store: BoardStore) -> None:
        lease = await store.grant_lease(2_500, DEADLINE_S)
        assert lease.ttl_ms >= 2_500
        assert lease.id > 0
        assert await store.renew_lease(lease.id, DEADLINE_S) == lease.ttl_ms
        other = await store.grant_lease(2_500, DEADLINE_S)
        assert other.id != lease.id

    async def test_the_keys_of_a_lapsed_lease_vanish_at_one_revision(self, store: BoardStore, harness: Harness) -> None:
        lease = await store.grant_lease(2_000, DEADLINE_S)
        puts = [Put(b"k/%d" % n, b"v", lease.id) for n in range(3)]
        start = await commit(store, *puts, Put(b"k/free", b"v"))
        assert [record and record.lease for record in await read(store, b"k/0", b"k/free")] == [lease.id, None]
        await harness.pass_lease_time(lease.ttl_ms + 1_000)

        async def gone() -> bool:
            return await listing(store, b"k/") == [b"k/free"]

        await eventually(gone)
        end = await present(store)
        events = in_key_order(await events_between(store, [b"k/"], start, end))
        assert [(e.key, e.value, e.create_revision) for e in events] == [(b"k/%d" % n, None, 0) for n in range(3)]
        assert {event.previous_revision for event in events} <= {start, 0}
        assert len({event.revision for event in events}) == 1
        with pytest.raises(LeaseLost):
            await store.renew_lease(lease.id, DEADLINE_S)
        await store.revoke_lease(lease.id, DEADLINE_S)
        assert await present(store) == end

    async def test_a_watch_tells_of_a_lapse(self, store: BoardStore, harness: Harness) -> None:
        lease = await store.grant_lease(1_000, DEADLINE_S)
        start = await commit(store, Put(b"k", b"v", lease.id))
        async with aclosing(store.watch([b"k"], start)) as watch:
            await anext(watch)
            waiting = asyncio.create_task(self._next_event(watch))
            await asyncio.sleep(0)
            await harness.pass_lease_time(lease.ttl_ms + 1_000)

            async def told() -> bool:
                await read(store, b"k")
                return waiting.done()

            await eventually(told)
            event = await waiting
        assert (event.key, event.value) == (b"k", None)
        assert event.previous_revision in {start, 0}

    @staticmethod
    async def _next_event(watch: AsyncGenerator[WatchBatch, None]) -> Event:
        async with asyncio.timeout(BOUND_S):
            async for batch in watch:
                if batch.events:
                    return batch.events[0]
        raise AssertionError("the watch ended")

    async def test_a_renewed_lease_lives_on(self, store: BoardStore, harness: Harness) -> None:
        lease = await store.grant_lease(3_000, DEADLINE_S)
        short = await store.grant_lease(1_000, DEADLINE_S)
        await commit(store, Put(b"k", b"v", lease.id), Put(b"s", b"v", short.id))
        for _ in range(3):
            await harness.pass_lease_time(lease.ttl_ms * 2 // 3)
            assert await store.renew_lease(lease.id, DEADLINE_S) == lease.ttl_ms

        async def short_gone() -> bool:
            await store.renew_lease(lease.id, DEADLINE_S)
            return await values(store, b"s") == [None]

        await eventually(short_gone)
        assert await values(store, b"k") == [b"v"]

    async def test_what_is_left_of_a_lease_shrinks_until_a_renewal(self, store: BoardStore, harness: Harness) -> None:
        lease = await store.grant_lease(5_000, DEADLINE_S)
        assert 0 < await store.lease_left(lease.id, DEADLINE_S) <= lease.ttl_ms
        await harness.pass_lease_time(lease.ttl_ms // 2)
        left = lease.ttl_ms

        async def shrunk() -> bool:
            nonlocal left
            before, left = left, await store.lease_left(lease.id, DEADLINE_S)
            assert 0 < left <= before  # looking is no renewal
            return left <= lease.ttl_ms - 2_000

        async def grown() -> bool:
            assert await store.renew_lease(lease.id, DEADLINE_S) == lease.ttl_ms
            return left < await store.lease_left(lease.id, DEADLINE_S) <= lease.ttl_ms

        await eventually(shrunk)
        await eventually(grown)

    async def test_nothing_is_left_of_a_lapsed_lease(self, store: BoardStore, harness: Harness) -> None:
        lease = await store.grant_lease(1_000, DEADLINE_S)
        await commit(store, Put(b"k", b"v", lease.id))
        await harness.pass_lease_time(lease.ttl_ms + 1_000)

        async def lost() -> bool:
            try:
                assert await store.lease_left(lease.id, DEADLINE_S) > 0
            except LeaseLost:
                return True
            return False

        async def gone() -> bool:
            with pytest.raises(LeaseLost):
                await store.lease_left(lease.id, DEADLINE_S)
            return await values(store, b"k") == [None]

        await eventually(lost)
        await eventually(gone)

    async def test_nothing_is_left_of_a_lease_that_was_ended_or_never_was(self, store: BoardStore) -> None:
        lease = await store.grant_lease(60_000, DEADLINE_S)
        other = await store.grant_lease(60_000, DEADLINE_S)
        await store.revoke_lease(lease.id, DEADLINE_S)
        for lost in (lease.id, 987_654_321):
            with pytest.raises(LeaseLost):
                await store.lease_left(lost, DEADLINE_S)
        assert 0 < await store.lease_left(other.id, DEADLINE_S) <= other.ttl_ms

    async def test_ending_a_lease_removes_its_keys_at_one_revision(self, store: BoardStore) -> None:
        lease = await store.grant_lease(60_000, DEADLINE_S)
        await commit(store, Put(b"k/1", b"v", lease.id))
        start = await commit(store, Put(b"k/2", b"v", lease.id), Put(b"k/3", b"v"))
        await store.revoke_lease(lease.id, DEADLINE_S)
        end = await present(store)
        assert end > start
        events = in_key_order(await events_between(store, [b"k/"], start, end))
        assert [(event.key, event.value) for event in events] == [(b"k/1", None), (b"k/2", None)]
        assert len({event.revision for event in events}) == 1
        assert await listing(store, b"k/") == [b"k/3"]
        assert len(await listing(store, b"k/", at=Snapshot(start))) == 3

    async def test_ending_a_lease_that_is_gone_is_nothing(self, store: BoardStore) -> None:
        lease = await store.grant_lease(60_000, DEADLINE_S)
        await commit(store, Put(b"k", b"v", lease.id))
        await store.revoke_lease(lease.id, DEADLINE_S)
        before = await present(store)
        await store.revoke_lease(lease.id, DEADLINE_S)
        await store.revoke_lease(123_456_789, DEADLINE_S)
        assert await present(store) == before

    async def test_a_put_without_a_lease_detaches_its_key(self, store: BoardStore) -> None:
        lease = await store.grant_lease(60_000, DEADLINE_S)
        await commit(store, Put(b"k", b"1", lease.id), Put(b"l", b"1", lease.id))
        await commit(store, Put(b"k", b"2"))
        await store.revoke_lease(lease.id, DEADLINE_S)
        assert await values(store, b"k", b"l") == [b"2", None]

    async def test_a_put_moves_its_key_to_another_lease(self, store: BoardStore) -> None:
        first = await store.grant_lease(60_000, DEADLINE_S)
        second = await store.grant_lease(60_000, DEADLINE_S)
        await commit(store, Put(b"k", b"1", first.id))
        await commit(store, Put(b"k", b"2", second.id))
        await store.revoke_lease(first.id, DEADLINE_S)
        assert await values(store, b"k") == [b"2"]
        await store.revoke_lease(second.id, DEADLINE_S)
        assert await values(store, b"k") == [None]

    async def test_a_key_deleted_and_created_without_lease_is_free_of_its_old_one(self, store: BoardStore) -> None:
        lease = await store.grant_lease(60_000, DEADLINE_S)
        await commit(store, Put(b"k", b"1", lease.id))
        await commit(store, DeleteKey(b"k"))
        await commit(store, Put(b"k", b"2"))
        await store.revoke_lease(lease.id, DEADLINE_S)
        assert await values(store, b"k") == [b"2"]

    async def test_a_put_on_a_lost_lease_is_refused_whole(self, store: BoardStore, harness: Harness) -> None:
        ended = await store.grant_lease(60_000, DEADLINE_S)
        await store.revoke_lease(ended.id, DEADLINE_S)
        lapsed = await store.grant_lease(1_000, DEADLINE_S)
        await harness.pass_lease_time(lapsed.ttl_ms + 1_000)

        async def lost() -> bool:
            try:
                await store.commit(ChangeSet((), (Put(b"probe", b"", lapsed.id),)), DEADLINE_S)
            except LeaseLost:
                return True
            return False

        await eventually(lost)
        for lease in (ended.id, lapsed.id, 987_654_321):
            with pytest.raises(LeaseLost):
                await commit(store, Put(b"a", b""), Put(b"b", b"", lease))
        assert await values(store, b"a", b"b") == [None, None]

    async def test_a_lost_lease_does_not_hinder_the_neighbours(self, store: BoardStore) -> None:
        sets = [commit(store, Put(b"k/%02d" % n, b"", 987_654_321 if n % 4 == 0 else None)) for n in range(20)]
        answers = await asyncio.gather(*sets, return_exceptions=True)
        assert [isinstance(answer, LeaseLost) for answer in answers] == [n % 4 == 0 for n in range(20)]
        assert len(await listing(store, b"k/")) == 15

    async def test_a_fence_falls_with_its_lease(self, store: BoardStore) -> None:
        lease = await store.grant_lease(60_000, DEADLINE_S)
        granted = await commit(store, Put(b"lock", b"", lease.id), guards=[Absent(b"lock")])
        await commit(store, Put(b"k", b"1"), guards=[CreatedAt(b"lock", granted)])
        await store.revoke_lease(lease.id, DEADLINE_S)
        heir = await store.grant_lease(60_000, DEADLINE_S)
        again = await commit(store, Put(b"lock", b"", heir.id), guards=[Absent(b"lock")])
        assert again > granted
        assert await refused(store, Put(b"k", b"zombie"), guards=[CreatedAt(b"lock", granted)]) == [
            GuardFailure(0, again, again)
        ]

    # Status and closing.

    async def test_status_tells_of_the_store(self, store: BoardStore) -> None:
        revision = await commit(store, Put(b"k", b"v" * 1000))
        status = await store.status(DEADLINE_S)
        assert status.kind
        assert status.version
        assert status.revision >= revision
        assert status.compacted_revision < revision
        assert status.size_bytes > 0
        assert status.size_bytes_max >= 0

    async def test_after_closing_every_method_is_refused(self, store: BoardStore) -> None:
        lease = await store.grant_lease(60_000, DEADLINE_S)
        await commit(store, Put(b"k", b""))
        await store.close()
        await store.close()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: commit(store, Put(b"k", b"")),
            lambda: store.read([b"k"], STRONG, DEADLINE_S),
            lambda: store.scan(b"k", b"", 1, 1, STRONG, DEADLINE_S),
            lambda: store.grant_lease(1_000, DEADLINE_S),
            lambda: store.renew_lease(lease.id, DEADLINE_S),
            lambda: store.lease_left(lease.id, DEADLINE_S),
            lambda: store.revoke_lease(lease.id, DEADLINE_S),
            lambda: store.compact(1, DEADLINE_S),
            lambda: store.status(DEADLINE_S),
            lambda: first_batch(store, [b"k"], 0),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailable):
                await call()

    async def test_closing_finishes_what_is_under_way(self, store: BoardStore) -> None:
        waiting = [asyncio.create_task(commit(store, Put(b"k/%d" % n, b""))) for n in range(20)]
        await asyncio.sleep(0)
        await store.close()
        assert all(isinstance(answer, int) for answer in await asyncio.gather(*waiting))

    async def test_closing_ends_a_watch_that_waits(self, store: BoardStore) -> None:
        async with aclosing(store.watch([b"k"], await present(store))) as watch:
            await anext(watch)
            waiting = asyncio.create_task(self._next_event(watch))
            await asyncio.sleep(0)
            await store.close()
            with pytest.raises(StoreUnavailable):
                await waiting

    # Reopening.

    async def test_what_was_acknowledged_is_there_after_reopening(self, store: BoardStore, harness: Harness) -> None:
        first = await commit(store, Put(b"k", b"1"), Put(b"gone", b""))
        second = await commit(store, Put(b"k", b"2"), DeleteKey(b"gone"))
        store = await harness.reopen()
        assert await read(store, b"k", b"gone") == [Record(b"k", b"2", second, first), None]
        assert await values(store, b"k", b"gone", at=Snapshot(first)) == [b"1", b""]

    async def test_revisions_go_on_after_reopening(self, store: BoardStore, harness: Harness) -> None:
        await commit(store, Put(b"k", b"1"))
        last = await commit(store, DeleteKey(b"k"))
        await store.compact(last, DEADLINE_S)
        store = await harness.reopen()
        assert await present(store) >= last
        assert await commit(store, Put(b"k", b"2")) > last

    async def test_the_epoch_is_the_same_after_reopening(self, store: BoardStore, harness: Harness) -> None:
        before = store.epoch
        assert (await harness.reopen()).epoch == before

    async def test_store_time_does_not_go_back_over_reopening(self, store: BoardStore, harness: Harness) -> None:
        await commit(store, Put(b"k", b""))
        before = await store_time(store)
        harness.clock.now -= 1_000_000
        store = await harness.reopen()
        await commit(store, Put(b"k", b""))
        assert await store_time(store) == before

    async def test_leases_and_their_keys_live_on_after_reopening(self, store: BoardStore, harness: Harness) -> None:
        lease = await store.grant_lease(5_000, DEADLINE_S)
        await commit(store, Put(b"k", b"v", lease.id))
        store = await harness.reopen()
        assert 0 < await store.lease_left(lease.id, DEADLINE_S) <= lease.ttl_ms
        assert await store.renew_lease(lease.id, DEADLINE_S) == lease.ttl_ms
        assert await values(store, b"k") == [b"v"]
        await store.revoke_lease(lease.id, DEADLINE_S)
        assert await values(store, b"k") == [None]

    async def test_compaction_holds_after_reopening(self, store: BoardStore, harness: Harness) -> None:
        first = await commit(store, Put(b"k", b"1"))
        second = await commit(store, Put(b"k", b"2"))
        await store.compact(second, DEADLINE_S)
        store = await harness.reopen()
        with pytest.raises(HistoryCompacted):
            await values(store, b"k", at=Snapshot(first))
        assert await values(store, b"k", at=Snapshot(second)) == [b"2"]

    async def test_a_watch_resumes_over_reopening(self, store: BoardStore, harness: Harness) -> None:
        first = await commit(store, Put(b"k", b"1"))
        second = await commit(store, Put(b"k", b"2"))
        third = await commit(store, DeleteKey(b"k"))
        store = await harness.reopen()
        events = await events_between(store, [b"k"], first, third)
        assert [event[:4] for event in events] == [(b"k", b"2", second, first), (b"k", None, third, 0)]
        assert events[0].previous_revision in {first, 0}
        assert events[1].previous_revision == second

    # Everything together.

    @settings(
        max_examples=40,
        suppress_health_check=[
            HealthCheck.too_slow,  # a busy machine is no fault
            HealthCheck.function_scoped_fixture,  # each example has keys of its own in the one store
            HealthCheck.differing_executors,  # the suite is inherited by one class for each adapter
        ],
    )
    @given(program=st.lists(_change_sets, min_size=1, max_size=10))
    async def test_random_commits_are_answered_as_by_the_oracle(self, store: BoardStore, program: list[_Drawn]) -> None:
        await self._run(store, b"h%d/" % next(_examples), program)

    async def _run(self, store: BoardStore, prefix: bytes, program: list[_Drawn]) -> None:
        oracle = Oracle()
        start = await present(store)

        def revisions(key: bytes) -> Revisions:
            _, now, created = oracle.now.get(key, (b"", 0, 0))
            old = next((event.revision for event in oracle.events if event.key == key), 0)
            return Revisions(now, created, old)

        for drawn in program:
            change = _change_set(drawn, prefix, revisions)
            failures = oracle.failures(change)
            try:
                revision = await store.commit(change, DEADLINE_S)
            except CommitRefused as refusal:
                assert [f.place for f in refusal.failures] == [f.place for f in failures], (prefix, change)
                exact = [f for f in failures if not isinstance(change.guards[f.place], NoneBelow)]
                assert [f for f in refusal.failures if not isinstance(change.guards[f.place], NoneBelow)] == exact
            else:
                assert failures == [], (prefix, change)
                oracle.apply(change, revision)
        end = await present(store)
        for revision, state in oracle.states:
            page = await store.scan(prefix, b"", 100, PAGE_BYTES, Snapshot(revision), DEADLINE_S)
            expected = [Record(key, *held) for key, held in sorted(state.items())]
            assert list(page.records) == expected, (prefix, program)
        events = await events_between(store, [prefix], start, end)
        assert in_key_order(events) == in_key_order(oracle.events), (prefix, program)
