"""A TCP proxy that does to connections what networks do: cut, stall, delay them, or lose what the server answers."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from enum import Enum, auto
from typing import Self


class Mode(Enum):
    """What happens to bytes."""

    PASS = auto()
    DROP_ANSWERS = auto()
    """Requests arrive; what the server sends back is lost."""
    STALL = auto()
    """Nothing moves, and no connection is closed."""


class FaultProxy:
    """Stands before one server. Faults apply to connections that are open and to new ones alike."""

    def __init__(self, port: int, *, seed: int = 0) -> None:
        self.mode = Mode.PASS
        self.delay_s_max = 0.0
        """Each piece is held back for up to this long."""
        self.refuse = False
        """New connections are reset at once."""
        self.dropped = asyncio.Event()
        """Some answer was lost since this was last cleared."""
        self.connections = 0
        self._port = port
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._moving = asyncio.Event()
        self._moving.set()

    @property
    def endpoint(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def set(self, mode: Mode) -> None:
        """Do this to every byte from now on."""
        self.mode = mode
        if mode is Mode.STALL:
            self._moving.clear()
        else:
            self._moving.set()

    def reset(self) -> None:
        """Cut every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            if self.refuse:
                writer.transport.abort()
                return
            with suppress(OSError, asyncio.CancelledError):
                upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)
                self._writers |= {writer, upstream_writer}
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self._pump(reader, upstream_writer, answers=False))
                        group.create_task(self._pump(upstream_reader, writer, answers=True))
                finally:
                    self._writers -= {writer, upstream_writer}
                    upstream_writer.transport.abort()
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with suppress(OSError):
            while piece := await reader.read(65536):
                await self._moving.wait()
                if self.delay_s_max:
                    await asyncio.sleep(self._random.uniform(0, self.delay_s_max))
                if answers and self.mode is Mode.DROP_ANSWERS:
                    self.dropped.set()
                    continue
                writer.write(piece)
                await writer.drain()
        writer.transport.abort()
