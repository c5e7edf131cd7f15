"""What small stories about locks are told with: players at servers, and watches that can be held back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kokuban_server.app.lock_asked import Granted, LockRequest
from kokuban_server.app.sessions import SessionRequest
from kokuban_server.core.access import Principal, Role
from kokuban_server.core.locks import Fence, LockTarget, Mode
from kokuban_server.core.names import parse_region
from tests.simulation.simulated_replica import BOARD, START_MS
from tests.simulation.simulated_store import FaultyStore, Weather

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from kokuban_server.ports.board_store import WatchBatch
    from tests.simulation.simulated_replica import SimulatedReplica
    from tests.simulation.simulated_store import RecordedStore

TASK = parse_region("task:t1")


def deadline() -> float:
    """Give a time of the loop's that is soon."""
    return asyncio.get_running_loop().time() + 5.0


class _HeldBack(FaultyStore):
    """Brings nothing through its watches while the gate is shut."""

    gate: asyncio.Event

    async def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async for batch in super().watch(prefixes, after_revision):
            await self.gate.wait()
            yield batch


class Player:
    """An agent with a session, at one server."""

    def __init__(self, server: SimulatedReplica, name: str) -> None:
        self.server = server
        self.principal = Principal("dev", name, frozenset({Role.MEMBER}), is_development=True)
        self.session_id = ""
        self._ids = 0

    def _sent(self) -> tuple[str, int]:
        self._ids += 1
        return f"{self.principal.agent}-{self._ids}", START_MS + int(asyncio.get_running_loop().time() * 1000)

    async def open(self, ttl_ms: int = 600_000) -> None:
        request_id, now_ms = self._sent()
        request = SessionRequest(BOARD, request_id, now_ms, request_id.encode(), ttl_ms, "")
        self.session_id = (await self.server.sessions.open(self.principal, request, deadline())).session_id

    async def take(self, path: str, wait_ms: int = 30_000, *, subtree: bool = False) -> Granted:
        request_id, now_ms = self._sent()
        target = LockTarget(TASK, path, subtree=subtree)
        request = LockRequest(
            BOARD,
            self.session_id,
            request_id,
            now_ms,
            request_id.encode(),
            (target,),
            Mode.EXCLUSIVE,
            "work",
            wait_ms,
            86_400_000,
            1_000,
            "",
        )
        async for part in self.server.lock_requests.acquire(self.principal, request, deadline()):
            if isinstance(part, Granted):
                return part
        raise AssertionError

    def fence(self, granted: Granted) -> Fence:
        return Fence(granted.lock_id, granted.revision, self.server.store.epoch)

    async def let_go(self, granted: Granted) -> None:
        released, _ = await self.server.held_locks.release(self.principal, BOARD, self.fence(granted), deadline())
        assert released


def held_back(server: SimulatedReplica, store: RecordedStore) -> asyncio.Event:
    """Give the gate of a server's watch of locks."""
    way = _HeldBack(store, server.clock, "seed", Weather())
    way.gate = asyncio.Event()
    way.gate.set()
    server.mirror._store = way
    return way.gate
