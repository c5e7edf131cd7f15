"""An event loop whose time passes only when every task waits: hours of it in seconds, the same in every run."""

from __future__ import annotations

import asyncio
import gc
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_T = TypeVar("_T")


class Deadlock(RuntimeError):  # noqa: N818 - the name says it
    """Every task waits for another, and no timer runs."""


class Spinning(RuntimeError):  # noqa: N818 - as above
    """Tasks go on and on, and no time passes."""


_TURN_S = 2e-9
"""What a turn of the loop takes, as in life it takes some time too: more than asyncio's clock can tell, or whoever waits for
a moment that is nearer than that would come back too early, for ever."""
_TURNS_WITHOUT_SLEEP_MAX = 20_000


class _VirtualSelector(selectors.SelectSelector):
    """Where an event loop would sleep, moves the time on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock
        self._turns = self._turns + 1 if timeout <= 0 else 0
        if self._turns > _TURNS_WITHOUT_SLEEP_MAX:
            raise Spinning
        self.now_s += max(_TURN_S, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop on virtual time. No sockets, no threads."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in virtual time; give its result. Raises `Deadlock` or `Spinning` if it can never end."""
    gc.collect()
    gc.disable()  # it would end what dead servers left behind, a generator for one, at moments that differ from run to run
    try:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(main)
    finally:
        gc.enable()


async def until(fact: Callable[[], bool]) -> None:
    """Come back when something holds; fail if it does not within a minute of virtual time."""
    async with asyncio.timeout(60):
        while not fact():  # noqa: ASYNC110 - looked at, not told
            await asyncio.sleep(0.01)
