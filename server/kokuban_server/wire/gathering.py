"""Calls that arrive together are begun together."""

from __future__ import annotations

import asyncio
from typing import Final

_QUIET_TURNS_MIN: Final = 16
_QUIET_TURNS_MAX: Final = 512
"""About a millisecond."""
_QUIET_TURNS_OF_EACH: Final = 64
_GATHERED_MAX: Final = 64


class Gathering:
    """Holds calls that have just arrived until the event loop has brought no further one for some turns.

    gRPC hands over one call at a time, some turns of the loop apart, with its own work between. Begun as they come, each
    finds the processor's caches full of something else, and each batch of the store begins with the first alone. Begun in a
    row, they share both. How long the next call is waited for follows from how many came together the last time: where gRPC's
    threads have to be woken on another processor, calls come a hundred turns apart. No clock is involved: an idle loop turns
    at once, so calls that come one by one wait for microseconds, and one that is alone in the server does not wait at all.
    """

    def __init__(self) -> None:
        self._in_hand = 0
        self._arrived: list[asyncio.Future[None]] = []
        self._seen = 0
        self._quiet_turns = 0
        self._patience_turns = _QUIET_TURNS_MIN

    async def begin(self) -> None:
        """Come back when the calls that are arriving now have arrived. `end` must follow, even after a cancellation."""
        self._in_hand += 1
        if self._in_hand == 1:
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._arrived.append(turn)
        if len(self._arrived) == 1:
            self._seen = self._quiet_turns = 0
            loop.call_soon(self._look, loop)
        await turn

    def end(self) -> None:
        """Say that a call is no longer in hand."""
        self._in_hand -= 1

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin those that have arrived if nobody else came for long enough; else look again at the loop's next turn."""
        count = len(self._arrived)
        self._quiet_turns = self._quiet_turns + 1 if count == self._seen else 0
        self._seen = count
        if self._quiet_turns < self._patience_turns and count < _GATHERED_MAX:
            loop.call_soon(self._look, loop)
            return
        self._patience_turns = max(_QUIET_TURNS_MIN, min(_QUIET_TURNS_OF_EACH * count, _QUIET_TURNS_MAX))
        begun, self._arrived = self._arrived, []
        for turn in begun:
            if not turn.done():
                turn.set_result(None)
