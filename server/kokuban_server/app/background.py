"""Work that outlives the call that began it, with an owner all the same."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from kokuban_server.core.refusals import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator


class Background:
    """The tasks of a use case that no call waits for."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Callable[[], Coroutine[None, None, None]], name: str) -> asyncio.Task[None]:
        """Run something in the background."""
        task = asyncio.get_running_loop().create_task(work(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class Turns:
    """The turns of a loop, of which a bad one is not the last: what goes wrong is reported, and the next turn tries again.

    Not reported are a store that does not answer, what is `expected` beside that, and a fault that is still the same.
    """

    def __init__(self, job: str, report: Callable[[str, Exception], None], *expected: type[Exception]) -> None:
        self._job = job
        self._report = report
        self._expected: tuple[type[Exception], ...] = (StoreUnavailable, *expected)
        self._told = ""

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Do one turn's work within this."""
        try:
            yield
        except self._expected:
            pass
        except Exception as fault:  # noqa: BLE001 - a supervisor
            if str(fault) != self._told:  # not every second for as long as a store is full
                self._report(self._job, fault)
            self._told = str(fault)
        else:
            self._told = ""
