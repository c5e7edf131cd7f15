"""Writers at two servers of one store: what one server acknowledges binds the other at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from itertools import cycle, islice
from typing import TYPE_CHECKING

import pytest

from kokuban_client import (
    NOW,
    SNAPSHOT,
    AtLeast,
    ChangeType,
    EntryChange,
    Freshness,
    SnapshotComplete,
    SnapshotEntry,
    Written,
    errors,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from kokuban_client import Board, Revision, Watch

pytestmark = pytest.mark.etcd
BOUND_S = 20.0


async def test_LU_01_of_writers_at_both_servers_one_wins_and_all_get_through_when_they_read_again(
    a: Board, b: Board, region: str
) -> None:
    base = await a.put(region, "notes", [], must_not_exist=True)
    boards = list(islice(cycle((a, b)), 20))

    async def write(number: int, board: Board) -> Written:
        return await board.put(region, "notes", [number], at=base.revision)

    outcomes = await asyncio.gather(*map(write, range(20), boards), return_exceptions=True)
    assert Counter(map(type, outcomes)) == {Written: 1, errors.RevisionMismatch: 19}
    (winner,) = (outcome for outcome in outcomes if isinstance(outcome, Written))
    for lost in outcomes:
        if isinstance(lost, errors.RevisionMismatch):
            assert (lost.actual, lost.winner_request_id) == (winner.revision, winner.request_id)

    async def add(number: int, board: Board) -> None:
        await board.update(region, "notes", lambda notes: [*notes, number])

    await asyncio.gather(*map(add, range(100, 120), boards))
    for board in (a, b):
        assert sorted((await board.get(region, "notes")).value[1:]) == list(range(100, 120))


async def test_LU_03_what_is_written_while_a_consolidation_thinks_survives_it(a: Board, b: Board, region: str) -> None:
    """It reads everything, takes long, and replaces what it read: refused if a part has changed, and then made anew."""
    for number in range(4):
        await a.put(region, f"notes/{number}", f"note {number}", must_not_exist=True)

    async def consolidate(meanwhile: Callable[[], Awaitable[object]]) -> None:
        notes = [entry async for entry in a.list(region, "notes")]
        summary = sorted(entry.value for entry in notes)
        await meanwhile()  # the model's time
        async with a.commit() as commit:
            commit.append(region, "summary", *summary)
            for entry in notes:
                commit.delete(region, entry.path, at=entry.revision)

    async def write() -> None:
        await b.update(region, "notes/2", lambda note: f"{note}, corrected")
        await b.put(region, "notes/4", "note 4", must_not_exist=True)

    with pytest.raises(errors.RevisionMismatch) as refused:
        await consolidate(write)
    assert refused.value.path == "notes/2"
    assert await b.find(region, "summary") is None
    notes = [entry.value async for entry in b.list(region, "notes")]
    assert notes == ["note 0", "note 1", "note 2, corrected", "note 3", "note 4"]

    await consolidate(lambda: b.put(region, "notes/5", "note 5", must_not_exist=True))
    assert (await b.get(region, "summary")).value == notes
    assert [entry.value async for entry in b.list(region, "notes")] == ["note 5"]


async def test_LU_06_of_two_corrections_of_one_claim_one_stands_with_one_successor(
    a: Board, b: Board, region: str
) -> None:
    """Check and update are one act: the loser leaves no second successor behind."""
    first = await a.put(region, "claims/sky/active", "v1", must_not_exist=True)

    async def correct(board: Board, value: str) -> None:
        async with board.commit() as commit:
            commit.put(region, f"claims/sky/versions/{value}", value, must_not_exist=True)
            commit.put(region, "claims/sky/active", value, at=first.revision)

    outcomes = await asyncio.gather(correct(a, "by a"), correct(b, "by b"), return_exceptions=True)
    assert Counter(map(type, outcomes)) == {type(None): 1, errors.RevisionMismatch: 1}
    active = (await b.get(region, "claims/sky/active")).value
    assert [entry.value async for entry in a.list(region, "claims/sky/versions")] == [active]


async def test_LU_08_two_servers_making_twenty_entities_each_make_forty(a: Board, b: Board, region: str) -> None:
    """The entities stand both as entries and in one document that all of them change."""

    async def make(board: Board, name: str) -> None:
        await board.put(region, f"entities/{name}", {"name": name}, must_not_exist=True)
        await board.update(region, "graph", lambda graph: {**graph, name: len(graph)}, create={})

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(make(a, f"a{number}"))
            group.create_task(make(b, f"b{number}"))
    names = {f"{side}{number}" for side in "ab" for number in range(20)}
    for board in (a, b):
        assert {entry.value["name"] async for entry in board.list(region, "entities")} == names
        graph = (await board.get(region, "graph")).value
        assert graph.keys() == names
        assert sorted(graph.values()) == list(range(40))


async def test_LU_09_fifty_parallel_writes_at_both_servers_are_fifty_entries(a: Board, b: Board, region: str) -> None:
    """Counted in each way of reading: there is no index beside the entries that could lose some of them."""
    await asyncio.gather(
        *(
            board.put(region, f"{number:02}", number, must_not_exist=True)
            for number, board in zip(range(50), cycle((a, b)))
        )
    )
    for board in (a, b):
        assert [entry.value async for entry in board.list(region, page_size=7)] == list(range(50))
        assert len((await board.get_many([(region, f"{number:02}") for number in range(50)])).entries) == 50
        async with board.watch(region, start=SNAPSHOT) as watch:
            told = [await asyncio.wait_for(anext(watch), BOUND_S) for _ in range(51)]
        assert Counter(map(type, told)) == {SnapshotEntry: 50, SnapshotComplete: 1}


async def test_LU_14_a_server_with_an_old_head_appends_nothing_and_steps_have_no_gap(
    a: Board, b: Board, region: str
) -> None:
    base = await a.put(region, "head", 0, must_not_exist=True)
    assert (await b.get(region, "head")).revision == base.revision  # both servers have it in hand now

    async def append(board: Board, number: int, at: Revision, author: str) -> Revision:
        async with board.commit() as commit:
            commit.put(region, f"steps/{number:03}", author, must_not_exist=True)
            commit.put(region, "head", number, at=at)
        return commit.result.revision

    await append(a, 1, base.revision, "a")
    for number in (1, 2):  # its own number or the next one: the head that it goes by is old
        with pytest.raises(errors.Conflict) as refused:
            await append(b, number, base.revision, "late")
        assert refused.value.path in {"head", "steps/001"}
    assert await b.find(region, "steps/002") is None

    async def work(board: Board, author: str) -> None:
        done = 0
        while done < 15:
            head = await board.get(region, "head")
            try:
                await append(board, head.value + 1, head.revision, author)
            except errors.Conflict:
                continue
            done += 1

    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as group:
        for author in ("first", "second"):
            group.create_task(work(a, f"a-{author}"))
            group.create_task(work(b, f"b-{author}"))
    steps = [entry async for entry in b.list(region, "steps")]
    assert [entry.path for entry in steps] == [f"steps/{number:03}" for number in range(1, 62)]
    assert all(entry.sequence == 1 for entry in steps)
    assert Counter(entry.value for entry in steps[1:]) == dict.fromkeys(
        ("a-first", "a-second", "b-first", "b-second"), 15
    )
    assert [entry.revision.number for entry in steps] == sorted({entry.revision.number for entry in steps})
    assert (await a.get(region, "head")).value == 61


@pytest.mark.timeout(180)
async def test_LU_20_two_hundred_writers_of_one_key_all_finish(a: Board, b: Board, region: str) -> None:
    await a.put(region, "hot", 0, must_not_exist=True)
    tries: list[int] = []

    async def bump(board: Board) -> None:
        mine = 0

        def more(value: int) -> int:
            nonlocal mine
            mine += 1
            return value + 1

        await board.update(region, "hot", more, timeout_s=120)
        tries.append(mine)

    started_s = time.monotonic()
    await asyncio.gather(*(bump(board) for _ in range(100) for board in (a, b)))
    took_s = time.monotonic() - started_s
    entry = await b.get(region, "hot")
    assert (entry.value, entry.sequence) == (200, 201)
    assert len(tries) == 200
    assert max(tries) <= 100  # what `update` allows itself
    print(f"\n200 writers in {took_s:.1f} s, {sum(tries) / 200:.1f} tries each, at most {max(tries)}")  # noqa: T201 - the figures are the point


async def test_LU_20_a_counter_that_commutes_takes_two_hundred_writers_at_once(a: Board, b: Board, region: str) -> None:
    done = await asyncio.gather(*(board.increment(region, "n") for _ in range(100) for board in (a, b)))
    # Increments that one server folds into one write are told the same sum.
    sums = {written.sequence: written.value for written in done}
    assert {(written.sequence, written.value) for written in done} == set(sums.items())
    assert sorted(sums.values()) == [sums[sequence] for sequence in sorted(sums)]
    assert (await b.get(region, "n")).value == 200


async def test_LU_23_a_revision_from_a_former_life_fits_at_no_server(a: Board, b: Board, region: str) -> None:
    old = await a.put(region, "e", "first life", must_not_exist=True)
    await b.delete(region, "e", at=(await b.get(region, "e")).revision)
    again = await b.put(region, "e", "second life", must_not_exist=True)
    assert again.revision.number > old.revision.number
    for board in (a, b):
        with pytest.raises(errors.RevisionMismatch) as refused:
            await board.put(region, "e", "stale", at=old.revision)
        assert refused.value.actual == again.revision


async def test_LU_23_TT_01_an_expiry_is_seen_alike_at_both_servers(a: Board, b: Board, region: str) -> None:
    """Whichever server finds it over first, the other does too; no read brings it back, and no old revision fits."""
    async with b.watch(region, start=NOW) as watch:
        old = await a.put(region, "e", "first life", must_not_exist=True, ttl=1)
        async with asyncio.timeout(BOUND_S):
            while await a.find(region, "e") is not None:  # noqa: ASYNC110 - the end of an entry is only found by asking
                await asyncio.sleep(0)
        assert await b.find(region, "e") is None
        assert [entry async for entry in b.list(region)] == []
        for board in (b, a):
            with pytest.raises(errors.RevisionMismatch) as gone:
                await board.put(region, "e", "touched", at=old.revision)
            assert gone.value.exists is False
        told = [change.type async for change in _first(watch, 2)]
        assert told == [ChangeType.PUT, ChangeType.EXPIRED]
    again = await b.put(region, "e", "second life", must_not_exist=True)
    with pytest.raises(errors.RevisionMismatch) as stale:
        await a.put(region, "e", "stale", at=old.revision)
    assert stale.value.actual == again.revision


async def test_ID_03_ID_08_first_writes_of_one_key_at_both_servers_make_one_entry(
    a: Board, b: Board, region: str
) -> None:
    outcomes = await asyncio.gather(
        *(board.put(region, f"e{each % 4}", each, must_not_exist=True) for each in range(20) for board in (a, b)),
        return_exceptions=True,
    )
    assert Counter(map(type, outcomes)) == {Written: 4, errors.AlreadyExists: 36}
    for board in (a, b):
        entries = [entry async for entry in board.list(region)]
        assert [(entry.path, entry.sequence) for entry in entries] == [(f"e{each}", 1) for each in range(4)]
        for entry in entries:
            assert len(await board.history(region, entry.path)) == 1


async def test_LU_02_RE_06_first_writes_of_a_conversation_at_both_servers_all_stand(
    a: Board, b: Board, region: str
) -> None:
    items = {f"{side}{each}": board for each in range(25) for side, board in (("a", a), ("b", b))}
    done = await asyncio.gather(*(board.append(region, "turns", item) for item, board in items.items()))
    entry = await b.get(region, "turns")
    assert sorted(entry.value) == sorted(items)
    assert all(item in one.value for item, one in zip(items, done, strict=True))
    first = min(done, key=lambda one: one.sequence)
    assert (first.sequence, entry.create_revision) == (1, first.revision.number)


async def test_RE_06_items_popped_at_both_servers_are_popped_once(a: Board, b: Board, region: str) -> None:
    await a.put(region, "queue", list(range(32)), must_not_exist=True)

    async def pop(board: Board) -> list[int]:
        popped = []
        for _ in range(2):
            while True:
                queue = await board.get(region, "queue")
                try:
                    await board.put(region, "queue", queue.value[1:], at=queue.revision)
                except errors.Conflict:
                    continue
                popped.append(queue.value[0])
                break
        return popped

    async with asyncio.timeout(BOUND_S):
        popped = await asyncio.gather(*(pop(board) for _ in range(8) for board in (a, b)))
    assert sorted(item for some in popped for item in some) == list(range(32))


async def test_RB_42_a_read_at_the_other_server_is_as_fresh_as_the_token_of_a_write(
    a: Board, b: Board, region: str
) -> None:
    """Also by whoever has just read an older state there, and alone or in a list."""
    written = await a.put(region, "e", 0, must_not_exist=True)
    seen = 0
    for number in range(1, 40):
        await b.get(region, "e", consistency=Freshness.LOCAL)
        written = await a.put(region, "e", number, at=written.revision)
        token = AtLeast(written.token)
        assert (await b.get(region, "e", consistency=token)).value == number
        assert [entry.value async for entry in b.list(region, consistency=token)] == [number]
        local = await b.get(region, "e", consistency=Freshness.LOCAL)
        assert seen <= local.value <= number
        seen = local.value


async def test_LU_05_LU_17_a_stale_write_at_one_server_is_a_conflict_that_names_the_winner_at_the_other(
    a: Board, b: Board, region: str
) -> None:
    base = await a.put(region, "e", "1", must_not_exist=True)
    winner = await a.put(region, "e", "2", at=base.revision)
    with pytest.raises(errors.RevisionMismatch) as refused:
        await b.put(region, "e", "3", at=base.revision)
    assert (refused.value.winner_agent, refused.value.winner_request_id) == ("writer-a", winner.request_id)


async def _first(watch: Watch, count: int) -> AsyncIterator[EntryChange]:
    for _ in range(count):
        item = await asyncio.wait_for(anext(watch), BOUND_S)
        assert isinstance(item, EntryChange), item
        yield item
