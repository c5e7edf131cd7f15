"""What a server does whose watch of the store is late: it goes by its strong reads and guards, and tells the rest later."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from kokuban.v1 import session_service_pb2
from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.adapters.system import SystemClock
from kokuban_server.bootstrap.process import Server
from kokuban_server.settings import Settings
from tests.replicas.lock_calls import ALREADY_GONE, RELEASED, RENEWED, SHARED, LockAgent, at_once, channels
from tests.wire.calls import refused

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from kokuban_server.ports.board_store import WatchBatch

LATE_S = 0.2
"""How long a caller waits for an answer that has to wait for the watch."""


class _LateStore:
    """One store of which a second server sees changes only while `moving` is set."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.moving = asyncio.Event()
        self.moving.set()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self._store, name)

    async def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async with contextlib.aclosing(self._store.watch(prefixes, after_revision)) as batches:
            async for batch in batches:
                await self.moving.wait()
                yield batch

    async def close(self) -> None:
        """The other server does it."""


class _Pair:
    """Agents at a server and at one whose watch can be held up."""

    def __init__(self, prompt: LockAgent, late: LockAgent, rival: LockAgent, moving: asyncio.Event) -> None:
        self.prompt = prompt
        self.late = late
        """The same agent at the late server."""
        self.rival = rival
        """Another, at the prompt server."""
        self._moving = moving

    async def hold_up(self) -> None:
        """Let the late server see everything up to now, and nothing from now on."""
        last = await self.prompt.acquire(self.prompt.asks("last"))
        await self.late.write("last/e", last.fence)
        await self.prompt.release(last.fence)
        self._moving.clear()

    def let_go(self) -> None:
        self._moving.set()


@pytest.fixture
async def pair() -> AsyncIterator[_Pair]:
    clock = SystemClock()
    store = MemoryStore(clock)
    late = _LateStore(store)
    settings = Settings(store="memory:", listen="127.0.0.1:0", drain_grace_s=0.0)
    servers = [Server(settings, one, clock, b"digest" * 6) for one in (store, late)]
    try:
        ports = [await server.start() for server in servers]
        async with channels() as connect:
            prompt = await connect.agent(f"127.0.0.1:{ports[0]}", "holder", "supervisor")
            rival = await connect.agent(f"127.0.0.1:{ports[0]}", "rival", "supervisor")
            await prompt.open()
            await rival.open()
            await prompt.write("there")
            elsewhere = prompt.at(await connect(f"127.0.0.1:{ports[1]}"))
            yield _Pair(prompt, elsewhere, rival, late.moving)
    finally:
        late.moving.set()
        for server in reversed(servers):
            await server.stop()


async def test_LE_16_a_fence_that_ended_is_refused_before_the_watch_says_so(pair: _Pair) -> None:
    ended, kept = [await pair.prompt.acquire(pair.prompt.asks(path)) for path in ("ended", "kept")]
    await pair.late.write("ended/e", ended.fence)  # what is needed for another write is known now
    await pair.hold_up()
    assert await pair.prompt.release(ended.fence) == RELEASED
    with refused("LOCK_LOST", lock_id=ended.lock.id):
        await pair.late.write("ended/e", ended.fence)
    assert not await pair.late.current(ended.fence)
    assert await pair.late.release(ended.fence) == ALREADY_GONE
    await pair.late.write("ended/e")  # it is free, and known to be
    await pair.late.write("kept/e", kept.fence)
    assert await pair.late.release(kept.fence) == RELEASED


async def test_LE_24_what_was_locked_unseen_is_not_written(pair: _Pair) -> None:
    await pair.late.write("unseen/e")
    await pair.hold_up()
    theirs = await pair.rival.acquire(pair.rival.asks("unseen"))
    (late,) = await at_once([pair.late.write("unseen/e", timeout_s=LATE_S)])
    assert late.reason in {"DEADLINE_EXCEEDED", "DEADLINE_TOO_SHORT", "STORE_UNAVAILABLE"}
    (late,) = await at_once([pair.late.acquire(pair.late.asks("unseen/part"), LATE_S)])
    assert late.answer is None
    pair.let_go()
    with refused("LOCKED_BY_OTHER", lock_id=theirs.lock.id):
        await pair.late.write("unseen/e")
    with refused("LOCKED_BY_OTHER", lock_id=theirs.lock.id):
        await pair.late.acquire(pair.late.asks("unseen/part"))


async def test_LE_24_what_became_shared_unseen_is_not_written(pair: _Pair) -> None:
    mine = await pair.prompt.acquire(pair.prompt.asks("downgraded"))
    await pair.late.write("downgraded/e", mine.fence)
    await pair.hold_up()
    lock, _ = await pair.prompt.downgrade(mine.fence)
    assert lock.mode == SHARED
    (late,) = await at_once([pair.late.write("downgraded/e", mine.fence, timeout_s=LATE_S)])
    assert late.answer is None
    pair.let_go()
    with refused("LOCK_SHARED"):
        await pair.late.write("downgraded/e", mine.fence)


@pytest.mark.parametrize("at_once_open", [False, True])
async def test_how_a_lock_was_lost_is_told_also_to_who_found_out_before(pair: _Pair, *, at_once_open: bool) -> None:
    """A strong read shows that it is gone; what took it comes with the watch, and is not forgotten over that."""
    mine = await pair.prompt.acquire(pair.prompt.asks("broken"))
    async with pair.late.beats() as beats:
        await beats.beat()
        await beats.until(lambda: beats.count(RENEWED) == 1)
        await pair.hold_up()
        await pair.rival.break_lock(mine.lock.id, "needed elsewhere", skip_lock_delay=at_once_open)
        if at_once_open:
            async with asyncio.timeout(10):
                while (await pair.rival.listed("broken")).locks:
                    pass
        with refused("LOCK_LOST"):
            await pair.late.write("broken/e", mine.fence)
        with contextlib.suppress(Exception):
            await pair.late.write("broken/e", timeout_s=LATE_S)
        pair.let_go()
        await beats.until(lambda: bool(beats.losses))
        assert beats.losses == [
            session_service_pb2.LostLock(
                lock_id=mine.lock.id,
                reason=session_service_pb2.LOCK_LOSS_REASON_BROKEN,
                broken_by="rival",
                words="needed elsewhere",
            )
        ]


async def test_a_lock_released_unseen_can_be_had_and_is_told_as_no_loss(pair: _Pair) -> None:
    mine = await pair.prompt.acquire(pair.prompt.asks("released"))
    async with pair.late.beats() as beats:
        await beats.beat()
        await beats.until(lambda: beats.count(RENEWED) == 1)
        await pair.hold_up()
        assert await pair.prompt.release(mine.fence) == RELEASED
        with refused("LOCK_LOST"):
            await pair.late.write("released/e", mine.fence)
        again = await pair.late.acquire(pair.late.asks("released"))
        await pair.late.write("released/e", again.fence)
        pair.let_go()
        assert await pair.late.release(again.fence) == RELEASED
        await beats.beat()
        await beats.until(lambda: beats.count(RENEWED) == 2)
        assert beats.losses == []
