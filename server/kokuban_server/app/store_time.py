"""What this server knows of store time, and the tick that moves it when a read meets an expiry."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from kokuban_server.core import keys
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.core.refusals import OutcomeUnknown, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from kokuban_server.ports.board_store import BoardStore
    from kokuban_server.ports.clock import Clock


class StoreTime:
    """Store time as last seen, which never goes back."""

    def __init__(self, store: BoardStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._seen_ms = 0
        self._ticking: asyncio.Task[bool] | None = None

    @property
    def seen_ms(self) -> int:
        """The newest store time that a reply has shown."""
        return self._seen_ms

    def now_ms(self) -> int:
        """Give the server's clock, or store time where that is ahead."""
        return max(self._clock.now_ms(), self._seen_ms)

    def saw(self, store_time_ms: int) -> None:
        """Take note of a reply's store time."""
        self._seen_ms = max(self._seen_ms, store_time_ms)

    async def tick(self, deadline_s: float) -> bool:
        """Try to move store time up to the server's clock; those who ask at the same moment share one commit.

        Promises nothing: the clock may have been set back meanwhile, or the store did not answer. Callers read again, and
        that says what store time is now, or why it cannot be said. False if the store is full, so that store time stands
        still and trying again is of no use.
        """
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick(deadline_s), name="store-time-tick")
        return await asyncio.shield(self._ticking)

    async def _tick(self, deadline_s: float) -> bool:
        tick = ChangeSet((), (Put(keys.TICK, b"%d" % self.now_ms()),))
        try:
            with contextlib.suppress(OutcomeUnknown, StoreUnavailable):
                await self._store.commit(tick, deadline_s)
        except StoreFull:
            return False
        return True
