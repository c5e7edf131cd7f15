"""A screener whose work is done by a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

import structlog

from kokuban_server.adapters.screening.frames import LENGTH, decode_answer, encode_question
from kokuban_server.core import limits
from kokuban_server.ports.screener import ScreenerError

if TYPE_CHECKING:
    from kokuban_server.core.screening.screening import Screening, Source

_log = structlog.get_logger()
_ATTEMPTS_MAX = 2
"""A process may have ended before it was asked; one that ends over a text ends over it again."""


class ProcessScreener:
    """Starts its process when it is first asked, and another one where that has ended or takes too long."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None

    async def screen(self, text: str, source: Source) -> Screening:
        """Judge a text. Raises `ScreenerError`."""
        async with self._turn:
            for _ in range(_ATTEMPTS_MAX):
                process = await self._running()
                done = False
                try:
                    async with asyncio.timeout(limits.SCREENING_S_MAX):
                        answer = await _exchange(process, encode_question(text, source))
                    done = True
                except (OSError, EOFError) as fault:
                    _log.warning("screening.process_ended", fault=type(fault).__name__)
                    continue
                except TimeoutError:
                    raise ScreenerError(f"no verdict within {limits.SCREENING_S_MAX:.0f} seconds") from None
                finally:
                    if not done:  # what it would still say belongs to no question
                        await self._end()
                return decode_answer(answer)
            raise ScreenerError("the process that screens ended over a text")

    async def close(self) -> None:
        """End the process."""
        await self._end()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "kokuban_server.adapters.screening.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,  # a traceback could hold what agents wrote, which no log may
                start_new_session=True,  # an interrupt on a terminal is for the server, which drains first
            )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _exchange(process: asyncio.subprocess.Process, question: bytes) -> bytes:
    sink, source = process.stdin, process.stdout
    assert sink is not None  # noqa: S101 - both were asked for
    assert source is not None  # noqa: S101 - as above
    sink.write(question)
    await sink.drain()
    (length,) = LENGTH.unpack(await source.readexactly(LENGTH.size))
    return await source.readexactly(length)
