"""The memory adapter keeps the store port's contract."""

from __future__ import annotations

import asyncio
import selectors
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from board_store_suite import DEADLINE_S, BoardStoreSuite, TurnedClock, commit, present, values

from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.core.change_set import DeleteKey, Put

if TYPE_CHECKING:
    from collections.abc import Mapping


class MemoryHarness:
    """A store whose lease time is turned by hand."""

    def __init__(self) -> None:
        self.clock = TurnedClock()
        self._lease_time_s = 0.0
        self._store: MemoryStore | None = None

    async def open(self) -> MemoryStore:
        self._store = MemoryStore(self.clock, lambda: self._lease_time_s)
        return self._store

    async def reopen(self) -> MemoryStore:
        await self.close()
        return await self.open()

    async def pass_lease_time(self, duration_ms: int) -> None:
        self._lease_time_s += duration_ms / 1000

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


class TestMemoryStore(BoardStoreSuite):
    """The suite on the reference model. What it is exempt from stands in conftest.py."""

    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()


async def test_compaction_forgets_keys_that_are_gone() -> None:
    store = MemoryStore(TurnedClock())
    await commit(store, Put(b"k", b"v"))
    await store.compact(await commit(store, DeleteKey(b"k")), DEADLINE_S)
    assert not store._history._versions
    assert not store._history._keys


class SleeplessSelector(selectors.DefaultSelector):
    """Waits for nothing: the time it should have waited has passed."""

    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits for somebody"
        self.passed_s += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while nothing can go on."""

    def __init__(self) -> None:
        self._sleepless = SleeplessSelector()
        super().__init__(self._sleepless)

    def time(self) -> float:
        return self._sleepless.passed_s


async def _lease_story() -> tuple[float, Mapping[str, object]]:
    store = MemoryStore(TurnedClock())
    short = await store.grant_lease(60_000, DEADLINE_S)
    long = await store.grant_lease(3_600_000, DEADLINE_S)
    assert await store.lease_left(short.id, DEADLINE_S) == short.ttl_ms
    start = await commit(store, Put(b"short", b"", short.id), Put(b"long", b"", long.id))
    lapsed_at = {}
    async with aclosing(store.watch([b""], start)) as watch:
        async for batch in watch:
            for event in batch.events:
                lapsed_at[event.key.decode()] = asyncio.get_running_loop().time()
                if event.key == b"short":
                    assert await store.lease_left(long.id, DEADLINE_S) == pytest.approx(3_540_000, abs=1)
            if len(lapsed_at) == 2:
                break
    assert await values(store, b"short", b"long") == [None, None]
    assert await present(store) == start + 2
    await store.close()
    return asyncio.get_running_loop().time(), lapsed_at


def test_leases_lapse_in_virtual_time_though_nobody_touches_the_store() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        end, lapsed_at = runner.run(_lease_story())
    assert lapsed_at == {"short": pytest.approx(60), "long": pytest.approx(3600)}
    assert end == pytest.approx(3600)
