"""Agents that hold locks in processes of their own, to be frozen and killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any, Self


class Holder:
    """One such process. `async with` starts it and waits until it holds its lock; leaving ends it."""

    def __init__(self, address: str, name: str, path: str, ttl_s: float, *, delay_s: float = 1.0) -> None:
        self._arguments = [address, name, path, str(ttl_s), str(delay_s)]
        self._process: asyncio.subprocess.Process | None = None
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.told: list[str] = []
        """What the server told it of its session."""
        self._reader: asyncio.Task[None] | None = None
        self.ttl_s = 0.0
        self.lock_id = ""
        self.fence = 0

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    async def __aenter__(self) -> Self:
        script = Path(__file__).with_name("lock_holder.py")
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), *self._arguments, stdin=pipe, stdout=pipe
        )
        self._reader = asyncio.create_task(self._read())
        begun = await self.said("fence")
        self.ttl_s, self.lock_id, self.fence = begun["ttl_s"], begun["lock"], begun["fence"]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()

    def tell(self, command: str) -> None:
        """Put a command into its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())

    async def said(self, what: str, within_s: float = 20.0) -> dict[str, Any]:
        """Give the next thing that it says about something."""
        async with asyncio.timeout(within_s):
            while True:
                line = await self._said.get()
                if what in line:
                    return line

    async def until_told(self, state: str, within_s: float = 20.0) -> None:
        """Come back when the server has told it so."""
        async with asyncio.timeout(within_s):
            while state not in self.told:
                await self.said("told")

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            line = json.loads(raw)
            if "told" in line:
                self.told.append(line["told"])
            self._said.put_nowait(line)
