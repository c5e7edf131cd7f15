"""What a server knows of boards: how old it may be, and what it costs to keep it so.

Time is virtual, and passes of itself only where how long something lasts is the rule.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.app.boards import Boards
from kokuban_server.core import keys
from kokuban_server.core.boards import BoardRecord, PolicyVersion
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.core.policy import Policy, RegionRule
from kokuban_server.core.refusals import StoreCorrupt, StoreUnavailable, WatchGap
from kokuban_server.records.board_codec import encode_board
from tests.simulation.simulated_replica import SimulatedClock
from tests.simulation.virtual_time import run, until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence

    from kokuban_server.ports.board_store import Consistency, Cut, WatchBatch

KEY = keys.board("acme", "main")
OTHER_KEY = keys.board("acme", "other")


class Store(MemoryStore):
    """A store that counts who reads a board's record, and whose watches can be silenced or broken."""

    def __init__(self) -> None:
        super().__init__(SimulatedClock(0))
        self.reads = 0
        self.answers = True
        self.hears = True
        self.gap = False

    async def read(self, keys: Sequence[bytes], consistency: Consistency, deadline_s: float) -> Cut:
        self.reads += KEY in keys
        if not self.answers:
            raise StoreUnavailable
        return await super().read(keys, consistency, deadline_s)

    async def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async with contextlib.aclosing(super().watch(prefixes, after_revision)) as batches:
            async for batch in batches:
                if self.gap:
                    self.gap = False
                    raise WatchGap
                if self.hears:
                    yield batch

    async def lay_down(self, number: int, key: bytes = KEY) -> None:
        policy = Policy((RegionRule("shared:plan"),))
        await self.put(key, encode_board(BoardRecord(1, "op", policy, PolicyVersion(number, 1, "op"))))

    async def put(self, key: bytes, value: bytes) -> None:
        await self.commit(ChangeSet((), (Put(key, value),)), 1.0)


def in_virtual_time(story: Callable[[Store, Boards], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        store = Store()
        await store.put(keys.SECRET, b"x")
        await store.lay_down(1)
        boards = Boards(store)
        await boards.read("acme", "main", 1.0)
        await until(lambda: boards.stands)
        await story(store, boards)
        await boards.close()
        await store.close()

    run(whole())


def number_of(boards: Boards) -> int:
    """Give which policy is relied on, or 0 if nothing is."""
    board = boards.trusted("acme", "main")
    return 0 if board is None else board.record.version.number


def test_a_board_that_is_in_use_is_known_all_the_time_and_seldom_read() -> None:
    async def story(store: Store, boards: Boards) -> None:
        read = store.reads
        for _ in range(6_000):
            assert number_of(boards) == 1
            await store.put(b"somebody", b"writes")
            await asyncio.sleep(0.01)
        assert store.reads - read <= 60 / 5

    in_virtual_time(story)


def test_a_board_that_nobody_uses_is_not_read() -> None:
    async def story(store: Store, boards: Boards) -> None:
        read = store.reads
        await asyncio.sleep(3_600)
        assert store.reads == read
        assert number_of(boards) == 0

    in_virtual_time(story)


def test_a_new_policy_is_known_as_soon_as_the_watch_brings_it() -> None:
    async def story(store: Store, boards: Boards) -> None:
        read = store.reads
        told: list[int] = []
        boards.followers[lambda: told.append(number_of(boards))] = None
        await store.lay_down(2)
        await until(lambda: number_of(boards) == 2)
        assert told == [2]
        assert store.reads == read  # nothing but the watch has brought it

    in_virtual_time(story)


def test_where_the_watch_brings_nothing_a_policy_that_is_over_is_relied_on_for_ten_seconds_at_most() -> None:
    async def story(store: Store, boards: Boards) -> None:
        store.hears = False
        for number in range(2, 20):
            await store.lay_down(number)
            begun = asyncio.get_running_loop().time()
            while number_of(boards) < number:
                assert asyncio.get_running_loop().time() - begun < 10
                await asyncio.sleep(0.1)

    in_virtual_time(story)


def test_a_store_that_does_not_answer_is_not_replaced_by_what_is_remembered_of_it() -> None:
    async def story(store: Store, boards: Boards) -> None:
        store.answers = False
        begun = asyncio.get_running_loop().time()
        await until(lambda: number_of(boards) == 0)
        assert 9.9 < asyncio.get_running_loop().time() - begun < 10.1  # it was read just before
        store.answers = True
        await boards.read("acme", "main", 1.0)
        assert number_of(boards) == 1

    in_virtual_time(story)


def test_what_changed_while_the_watch_was_broken_is_read_anew() -> None:
    async def story(store: Store, boards: Boards) -> None:
        store.gap = True
        await store.lay_down(2)
        await until(lambda: number_of(boards) == 0)  # nothing is relied on while the watch is not there
        await until(lambda: number_of(boards) == 2)

    in_virtual_time(story)


def test_one_boards_record_that_cannot_be_read_is_told_to_its_own_and_keeps_no_other_waiting() -> None:
    async def story(store: Store, boards: Boards) -> None:
        await store.lay_down(1, OTHER_KEY)
        await boards.read("acme", "other", 1.0)
        await store.put(OTHER_KEY, b"\xff")
        await until(lambda: boards.at_hand("acme", "other") is None)
        with pytest.raises(StoreCorrupt):
            await boards.read("acme", "other", 1.0)
        read = store.reads
        await store.lay_down(2)
        await until(lambda: number_of(boards) == 2)
        assert store.reads == read  # nothing had to be loaded anew

    in_virtual_time(story)
