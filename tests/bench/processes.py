"""The processes that a measurement takes: servers, stores and load generators, each ended by its process id."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import psutil

from .measurement import Measurement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
_START_S = 60.0
_WORK_S = 600.0
_STOP_S = 30.0
_LOOK_AGAIN_S = 0.02
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class ProcessFailed(RuntimeError):  # noqa: N818 - said of a process, not of a call
    """A process ended early, or did not answer in time; the text has the last lines of its log."""


class Running(NamedTuple):
    """Something that listens."""

    role: str
    address: str
    process: asyncio.subprocess.Process


class Load:
    """A load generator that is ready."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    async def run(self, operations: int) -> Measurement:
        """Have it do about this many operations."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{operations}\n".encode())
        answer = await self.answer(_WORK_S)
        return Measurement(int(answer["operations"]), answer["seconds"], answer["median_s"], answer["slow_s"])

    async def answer(self, timeout_s: float) -> dict[str, float]:
        """Give the next line that it says."""
        assert self.process.stdout is not None
        async with asyncio.timeout(timeout_s):
            line = await self.process.stdout.readline()
        if not line:
            raise ProcessFailed(f"the load generator has ended:\n{_last_words(self._log)}")
        answer: dict[str, float] = json.loads(line)
        return answer


class Workplace:
    """A folder for what is measured, and every process that was started for it; leaving it ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[asyncio.subprocess.Process] = []
        self._count = 0

    async def __aenter__(self) -> Self:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def kokuban(
        self,
        store: str,
        *,
        python: Sequence[str] = ("-m", "kokuban_server"),
        settings: Mapping[str, str] = _NO_SETTINGS,
    ) -> Running:
        """Start a server on this store, with settings by their variables; `sqlite:` alone is a new folder."""
        name = self._name("kokuban")
        if store == "sqlite:":
            store += str(self.folder / f"{name}.data")
        port_file = self.folder / f"{name}.port"
        serve = ["serve", "--store", store, "--listen", "127.0.0.1:0", "--port-file", str(port_file)]
        process = await self._start(
            name, [sys.executable, *python, *serve, "--log-level", "warning"], settings=settings
        )
        async with asyncio.timeout(_START_S):
            while not port_file.exists():
                self._see_that_it_lives(name, process)
                await asyncio.sleep(_LOOK_AGAIN_S)
        return Running("server", f"127.0.0.1:{port_file.read_text().strip()}", process)

    async def echo(self, *certificates: Path) -> Running:
        """Start the bare echo; with a folder of certificates it wants mutual TLS."""
        name = self._name("echo")
        command = [sys.executable, "-m", "bench.echo", *map(str, certificates)]
        process = await self._start(name, command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        async with asyncio.timeout(_START_S):
            port = (await process.stdout.readline()).decode().strip()
        self._see_that_it_lives(name, process)
        return Running("echo", f"127.0.0.1:{port}", process)

    async def collector(self) -> Running:
        """Start a collector of spans that forgets them."""
        name = self._name("collector")
        process = await self._start(name, [sys.executable, "-m", "bench.collector"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        async with asyncio.timeout(_START_S):
            port = (await process.stdout.readline()).decode().strip()
        self._see_that_it_lives(name, process)
        return Running("collector", f"127.0.0.1:{port}", process)

    async def etcd(self) -> Running:
        """Start one etcd member as it comes, with its data on this disk and every write made durable."""
        name = self._name("etcd")
        ports = _free_ports(2)
        client, peer = (f"http://127.0.0.1:{port}" for port in ports)
        process = await self._start(
            name,
            [
                "etcd",
                f"--name={name}",
                f"--data-dir={self.folder / name}.data",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster={name}={peer}",
            ],
        )
        async with asyncio.timeout(_START_S):
            while not await asyncio.to_thread(_is_healthy, client):
                self._see_that_it_lives(name, process)
                await asyncio.sleep(_LOOK_AGAIN_S)
        return Running("etcd", client.removeprefix("http://"), process)

    async def load(self, workload: str, address: str, **parameters: object) -> Load:
        """Start a load generator, and wait until it has prepared its work."""
        name = self._name("load")
        command = [sys.executable, "-m", "bench.load", workload, address, json.dumps(parameters)]
        process = await self._start(name, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        load = Load(process, self._log(name))
        await load.answer(_START_S)
        return load

    async def stop(self, process: asyncio.subprocess.Process) -> None:
        """End a process in good order, and wait for it."""
        process.terminate()
        async with asyncio.timeout(_STOP_S):
            await process.wait()

    async def _start(
        self,
        name: str,
        command: list[str],
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        settings: Mapping[str, str] = _NO_SETTINGS,
    ) -> asyncio.subprocess.Process:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("KOKUBAN_")}
        environment.update(settings)
        with self._log(name).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=stdin, stdout=stdout or log, stderr=log, cwd=TESTS, env=environment
            )
        self._processes.append(process)
        return process

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{self._count}"

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _see_that_it_lives(self, name: str, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            raise ProcessFailed(f"{name} ended while it started:\n{_last_words(self._log(name))}")


def cpu_seconds(process: asyncio.subprocess.Process) -> float:
    """Give how long a running process has computed so far, on all its threads."""
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


def _last_words(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _is_healthy(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=1) as answer:  # noqa: S310 - our own etcd
        return b'"true"' in answer.read()
    return False


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
