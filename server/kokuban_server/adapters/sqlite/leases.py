"""Leases: stored, so that they outlive a restart; judged by a clock that does not jump.

After a restart every lease has its whole time again: nobody knows how long the server was away, and its holders could not
renew.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final

from kokuban_server.adapters.sqlite import queries
from kokuban_server.core.refusals import Refusal, StoreFull
from kokuban_server.ports.board_store import Lease, LeaseLost

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Coroutine, Sequence

    from kokuban_server.adapters.sqlite.writer import Draft, Writer

_RETRY_S: Final = 1.0
"""When lapsed leases are tried again after the store could not remove their keys."""
_NEVER: Final = float("inf")


class Leases:
    """The leases of a store. `spawn` runs a coroutine as a task that the store owns."""

    def __init__(
        self,
        writer: Writer,
        monotonic: Callable[[], float],
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
    ) -> None:
        self._writer = writer
        self._monotonic = monotonic
        self._spawn = spawn
        self._ttls_ms: dict[int, int] = dict(writer.connection.execute("SELECT id, ttl_ms FROM lease").fetchall())
        now = monotonic()
        self._lapse_at = {lease: now + ttl_ms / 1000 for lease, ttl_ms in self._ttls_ms.items()}
        self._next = min(self._lapse_at.values(), default=_NEVER)  # not after the first to lapse
        self._timer: asyncio.TimerHandle | None = None
        self._collecting: asyncio.Task[None] | None = None
        self._closed = False
        self._set_timer()

    def lives(self, lease: int) -> bool:
        """Say whether the lease is there and has not lapsed."""
        return self._lapse_at.get(lease, 0.0) > self._monotonic()

    async def grant(self, ttl_ms: int) -> Lease:
        """Begin a lease."""
        lease = secrets.randbits(62) + 1
        async with self._writer.transaction() as draft:
            self._writer.connection.execute("INSERT INTO lease VALUES (?, ?)", (lease, ttl_ms))
            draft.touched = True
        self._ttls_ms[lease] = ttl_ms
        self._begin(lease)
        return Lease(lease, ttl_ms)

    def renew(self, lease: int) -> int:
        """Begin the lease's time anew."""
        if not self.lives(lease):
            raise LeaseLost
        self._begin(lease)
        return self._ttls_ms[lease]

    def left(self, lease: int) -> int:
        """Give how long the lease lives unless it is renewed, in milliseconds."""
        left_s = self._lapse_at.get(lease, 0.0) - self._monotonic()
        if left_s <= 0:
            raise LeaseLost
        return max(1, round(left_s * 1000))

    def _begin(self, lease: int) -> None:
        self._lapse_at[lease] = self._monotonic() + self._ttls_ms[lease] / 1000
        if self._lapse_at[lease] < self._next:
            self._next = self._lapse_at[lease]
            self._set_timer()

    async def end(self, leases: Sequence[int]) -> None:
        """Remove leases that are still there with their keys, each at one revision, all in one transaction."""
        try:
            await self._try_to_end(leases)
        except StoreFull:
            await self._writer.make_room()
            await self._try_to_end(leases)

    async def _try_to_end(self, leases: Sequence[int]) -> None:
        ending: dict[int, float] = {}
        try:
            async with self._writer.transaction() as draft:
                for lease in leases:
                    if lease in self._lapse_at:
                        ending[lease] = self._lapse_at[lease]
                        self._lapse_at[lease] = 0.0  # no renewal and no put while it is under way
                        end_lease(self._writer.connection, draft, lease)
        except BaseException:
            self._lapse_at.update(ending)
            raise
        for lease in ending:
            del self._lapse_at[lease], self._ttls_ms[lease]

    def collect(self) -> None:
        """Begin to remove what has lapsed, if anything has."""
        if self._next > self._monotonic() or self._collecting is not None or self._closed:
            return
        self._collecting = self._spawn(self._collect())

    async def _collect(self) -> None:
        wait_s = 0.0
        try:
            now = self._monotonic()
            lapsed = [lease for lease, lapse_at in self._lapse_at.items() if lapse_at <= now]
            if lapsed:
                await self.end(lapsed)
        except Refusal:
            wait_s = _RETRY_S  # they stay lapsed, so that nobody writes with them
        finally:
            self._collecting = None
            self._next = min(self._lapse_at.values(), default=_NEVER)
            self._set_timer(wait_s)

    def _set_timer(self, wait_s_min: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._next < _NEVER and not self._closed:
            wait_s = max(wait_s_min, self._next - self._monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.collect()
        if self._collecting is None:
            self._set_timer(0.001)  # the loop's clock ran a little ahead

    def close(self) -> None:
        """Let no lease lapse any more."""
        self._closed = True
        self._set_timer()


def end_lease(connection: sqlite3.Connection, draft: Draft, lease: int) -> None:
    """Write into a draft that a lease ends."""
    keys = queries.keys_of_lease(connection, lease)
    if keys:
        draft.next_revision()
        for key, row_id in keys:
            draft.delete(key, row_id)
    connection.execute("DELETE FROM lease WHERE id = ?", (lease,))
    draft.touched = True
