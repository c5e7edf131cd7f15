"""An agent's process ends with the supervisor's, however that one ends."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine

EXIT_SUPERVISOR_GONE = 3


class SupervisorGoneError(Exception):
    """The process that started this one has ended."""


def run(work: Coroutine[object, object, None]) -> int:
    """Work until it is done or the supervisor is gone; give the exit code."""
    code = 0
    try:
        asyncio.run(_work(work))
    except* SupervisorGoneError:
        code = EXIT_SUPERVISOR_GONE
    return code


async def _work(work: Coroutine[object, object, None]) -> None:
    async with asyncio.TaskGroup() as group:
        leaving = group.create_task(_leave_with_supervisor())
        await work
        leaving.cancel()


async def _leave_with_supervisor() -> None:
    """Raise once our standard input ends: it is held open by the supervisor, so no agent outlives it, however it ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    raise SupervisorGoneError
