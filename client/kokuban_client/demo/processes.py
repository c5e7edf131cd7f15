"""The agents as processes: started, waited for, killed, and none left behind. Each is ended by its own process id."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

_LAST_LINES = 12


@dataclass(frozen=True, slots=True)
class Worker:
    """A running agent."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def pause(self) -> None:
        """Freeze it with SIGSTOP, as a long stall would."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after a pause."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, with SIGKILL, as a crash would."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def ended(self) -> int:
        """Wait for its end; give its exit code, or the number of the signal that killed it, negative."""
        return await self.process.wait()

    def last_words(self) -> str:
        """Give the end of what it wrote to standard error."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])


class Workforce:
    """All agents of a run. Leaving it kills those that are still there and waits until they are gone."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        self._folder = tempfile.TemporaryDirectory(prefix="kokuban-demo-")

    async def start(self, name: str, program: str, arguments: Sequence[str]) -> Worker:
        """Start an agent: a module of the demo, as a program."""
        log = Path(self._folder.name) / f"{name}.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"kokuban_client.demo.{program}",
                *arguments,
                stdin=asyncio.subprocess.PIPE,  # its end tells the agent that we are gone
                stdout=asyncio.subprocess.DEVNULL,
                stderr=errors,
                # So that Ctrl-C reaches us alone, and we end the agents in order.
                process_group=0,
            )
        worker = Worker(name, process, log)
        self._workers.append(worker)
        return worker

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            if worker.process.returncode is None:
                worker.kill()
        try:
            for worker in self._workers:
                await worker.ended()
        finally:
            self._folder.cleanup()
