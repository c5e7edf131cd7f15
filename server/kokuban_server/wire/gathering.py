"""Calls that arrive together are begun together."""

from __future__ import annotations

import asyncio
from typing import Final

_QUIET_TURNS: Final = 16
_GATHERED_MAX: Final = 64


class Gathering:
    """Holds calls that have just arrived until the event loop has brought no further one for a few turns.

    gRPC hands over one call at a time, a few turns of the loop apart, with its own work between. Begun as they come, each
    finds the processor's caches full of something else, and each batch of the store begins with the first alone. Begun in a
    row, they share both. No clock is involved: an idle loop turns at once, so a single call waits for microseconds, and one
    that is alone in the server does not wait at all.
    """

    def __init__(self) -> None:
        self._in_hand = 0
        self._arrived: list[asyncio.Future[None]] = []
        self._doorkeeper: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Come back when the calls that are arriving now have arrived. `end` must follow, even after a cancellation."""
        self._in_hand += 1
        if self._in_hand == 1:
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._arrived.append(turn)
        if self._doorkeeper is None:
            self._doorkeeper = loop.create_task(self._keep_door(), name="gathering")
        await turn

    def end(self) -> None:
        """Say that a call is no longer in hand."""
        self._in_hand -= 1

    async def _keep_door(self) -> None:
        while self._arrived:
            count = 0
            quiet = 0
            while quiet < _QUIET_TURNS and len(self._arrived) < _GATHERED_MAX:
                quiet = quiet + 1 if len(self._arrived) == count else 0
                count = len(self._arrived)
                await asyncio.sleep(0)
            begun, self._arrived = self._arrived, []
            for turn in begun:
                if not turn.done():
                    turn.set_result(None)
        self._doorkeeper = None
