"""A real server for tests: started on a free port, waited for, ended by its process id.

    with ServerProcess() as server, kokuban_client.sync.connect(server.address, agent="tester") as client:
        ...

Needs the server parts: `pip install 'kokuban[server]'`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kokuban_client import sync
from kokuban_client.errors import KokubanError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

_LOOK_AGAIN_S = 0.02


class ServerFailed(RuntimeError):  # noqa: N818 - said of a server, not of a call
    """The server ended, or did not become ready in time. The message holds the last lines of its log."""


class ServerProcess:
    """A server process of its own. A context manager, with and without `async`; can be killed and started again.

    `store` is what `kokuban serve --store` takes, for instance `memory:` or `sqlite:/some/folder`. A store in memory is
    empty after `start`; the address stays the same from the first start on. `arguments` and `environment` are the server's
    further settings. `caller` is what `connect` takes for a server that needs a credential or TLS, so that it can be asked
    whether it is ready: for instance `{"ca_file": …, "token_file": …}`.
    """

    def __init__(
        self,
        *,
        store: str = "memory:",
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        caller: Mapping[str, Any] | None = None,
        start_timeout_s: float = 20.0,
        stop_timeout_s: float = 10.0,
    ) -> None:
        self._store = store
        self._arguments = tuple(arguments)
        self._environment = dict(environment or {})
        self._caller = dict(caller or {"agent": "kokuban-testing", "roles": []})
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """Where the server listens; raises RuntimeError before the first start."""
        if not self._port:
            raise RuntimeError("the server has not been started")
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The running server's process id; raises RuntimeError if none is running."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server has written to its log, from its first start on."""
        return self._path("log").read_text(errors="replace") if self._folder else ""

    def start(self) -> None:
        """Start the server and wait until it answers; raises ServerFailed if it does not."""
        if self._process is not None:
            raise RuntimeError("the server is running")
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="kokuban-")
        port_file = self._path("port")
        port_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "kokuban_server", "serve", "--store", self._store]
        command += ["--listen", f"127.0.0.1:{self._port}", "--port-file", str(port_file), *self._arguments]
        with self._path("log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own server
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
            )
        first = not self._port
        until_s = time.monotonic() + self._start_timeout_s
        try:
            self._wait_for_port(port_file, until_s)
            self._wait_for_answer(until_s)
        except BaseException:
            if first:
                self._port = 0
                self._leave()
            self.kill()
            raise

    def _path(self, name: str) -> Path:
        if self._folder is None:
            raise RuntimeError("the server has not been started")
        return Path(self._folder.name) / name

    def _wait_for_port(self, port_file: Path, until_s: float) -> None:
        look_again = threading.Event()
        while True:
            # A port without the end of its line may be half of a port.
            text = port_file.read_text() if port_file.exists() else ""
            if text.endswith("\n") and text.strip().isdecimal():
                self._port = int(text)
                return
            if self._process is None or self._process.poll() is not None:
                raise ServerFailed(f"the server ended while it started:\n{self._last_words()}")
            if time.monotonic() > until_s:
                raise ServerFailed(f"the server named no port in {self._start_timeout_s} s:\n{self._last_words()}")
            look_again.wait(_LOOK_AGAIN_S)

    def _wait_for_answer(self, until_s: float) -> None:
        left_s = max(until_s - time.monotonic(), 0.1)
        with sync.connect(self.address, timeout_s=left_s, **self._caller) as client:
            try:
                client.status()
            except KokubanError as error:
                raise ServerFailed(f"the server does not answer: {error}\n{self._last_words()}") from error

    def _last_words(self) -> str:
        return "\n".join(self.log.splitlines()[-20:])

    def stop(self) -> None:
        """Ask the server to end and wait for it; kill it if it does not end in time. Nothing happens if it is not running."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self._stop_timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """End the server at once, as a crash would. Nothing happens if it is not running."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Freeze the server, as a long stall would; `resume` lets it go on."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server go on."""
        os.kill(self.pid, signal.SIGCONT)

    def _leave(self) -> None:
        self.kill()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._leave)
