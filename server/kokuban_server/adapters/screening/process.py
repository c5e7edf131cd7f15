"""A screener whose work is done by a process of its own."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import structlog

from kokuban_server.adapters.screening.frames import (
    LENGTH,
    decode_answer,
    decode_redaction,
    encode_question,
    encode_wish,
)
from kokuban_server.core import limits
from kokuban_server.ports.screener import ScreenerError

if TYPE_CHECKING:
    from pathlib import Path

    from kokuban_server.core.redaction.masking import Redaction, Wish
    from kokuban_server.core.screening.screening import Screening
    from kokuban_server.core.trust import Source

_log = structlog.get_logger()
_ATTEMPTS_MAX = 2
"""A process may have ended before it was asked; one that ends over a text ends over it again."""


class ProcessScreener:
    """Starts its process when it is first asked, and another one where that has ended or takes too long.

    `phrases_file` holds what is looked for besides.
    """

    def __init__(self, phrases_file: Path | None = None) -> None:
        self._more = [] if phrases_file is None else [str(phrases_file)]
        self._turn = asyncio.Lock()
        self._worker: _Worker | None = None

    async def screen(self, text: str, source: Source) -> Screening:
        """Judge a text. Raises `ScreenerError`."""
        answer = await self._ask(encode_question(text, source))
        try:
            return decode_answer(answer)
        except ScreenerError as fault:
            _log.warning("screening.no_verdict", reason=str(fault))
            raise

    async def redact(self, text: str, wish: Wish) -> Redaction:
        """Redact a text. Raises `ScreenerError`."""
        return decode_redaction(await self._ask(encode_wish(text, wish)))

    async def _ask(self, question: bytes) -> bytes:
        async with self._turn:
            for _ in range(_ATTEMPTS_MAX):
                worker = await self._running()
                done = False
                try:
                    async with asyncio.timeout(limits.SCREENING_S_MAX):
                        answer = await _exchange(worker, question)
                    done = True
                except TimeoutError:
                    raise ScreenerError(f"no verdict within {limits.SCREENING_S_MAX:.0f} seconds") from None
                except (OSError, EOFError) as fault:
                    _log.warning("screening.process_ended", fault=type(fault).__name__)
                    continue
                finally:
                    if not done:  # what it would still say belongs to no question
                        await self._end()
                return answer
            raise ScreenerError("the process that screens ended over a text")

    async def close(self) -> None:
        """End the process."""
        await self._end()

    async def _running(self) -> _Worker:
        if self._worker is None:
            ours, theirs = socket.socketpair()
            with theirs:
                # Not by the event loop: uvloop forks, and the handlers that gRPC has for forks can end the child.
                process = subprocess.Popen(  # noqa: ASYNC220, S603 - takes a few milliseconds; our own module
                    [sys.executable, "-m", "kokuban_server.adapters.screening.worker", *self._more],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,  # a traceback could hold what agents wrote, which no log may
                    start_new_session=True,  # an interrupt on a terminal is for the server, which drains first
                )
            self._worker = _Worker(process, *await asyncio.open_connection(sock=ours))
        return self._worker

    async def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.sink.close()
            worker.process.kill()
            await asyncio.to_thread(worker.process.wait)


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    source: asyncio.StreamReader
    sink: asyncio.StreamWriter


async def _exchange(worker: _Worker, question: bytes) -> bytes:
    if worker.sink.is_closing():
        raise EOFError
    worker.sink.write(question)
    await worker.sink.drain()
    (length,) = LENGTH.unpack(await worker.source.readexactly(LENGTH.size))
    return await worker.source.readexactly(length)
