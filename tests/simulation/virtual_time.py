"""An event loop whose time passes only when every task waits: hours of it in seconds, the same in every run."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


class Deadlock(RuntimeError):  # noqa: N818 - the name says it
    """Every task waits for another, and no timer runs."""


class _VirtualSelector(selectors.SelectSelector):
    """Where an event loop would sleep, moves the time on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock
        self.now_s += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop on virtual time. No sockets, no threads."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in virtual time; give its result. Raises `Deadlock` if it can never end."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
