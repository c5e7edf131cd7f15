"""A server in the test's own process, on a store and a clock that the test holds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import structlog

sys.path.insert(
    0, str(Path(__file__).parents[2])
)  # tests are not an installed package; its modules are imported by name

from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.adapters.screening import ProcessScreener
from kokuban_server.adapters.sqlite import SqliteStore
from kokuban_server.bootstrap import Server
from kokuban_server.bootstrap.encryption import open_encryption
from kokuban_server.bootstrap.identities import open_callers
from kokuban_server.settings import Settings
from tests.wire.calls import Agent, Member, SettableClock, connected, until
from tests.wire.screening_calls import Rules

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator

    from kokuban_server.ports.board_store import BoardStore

    Started: TypeAlias = Callable[..., Awaitable["Running"]]
    """Starts a server on a store, with settings; gives it with an agent that is connected to it."""

UNARY_MAX = 500
DIGEST_KEY = b"\x07" * 32


class Running:
    """A server and an agent that is connected to it."""

    def __init__(self, server: Server, port: int, agent: Agent) -> None:
        self.server = server
        self.port = port
        self.agent = agent

    def as_agent(self, name: str, roles: str = "") -> Agent:
        return Agent(self.agent.channel, name, roles)

    async def join(self, name: str = "writer-1", ttl_s: float = 60.0, roles: str = "") -> Member:
        """Open a session for an agent."""
        agent = self.as_agent(name, roles)
        return Member(agent, await agent.session(ttl_s))

    async def has_in_hand(self, calls: int) -> None:
        """Come back when the server works on so many unary calls at once."""
        counter = self.server._wire._calls
        await until(lambda: UNARY_MAX - counter._unary_left >= calls)
        await until(lambda: not counter._gathering._arrived)  # all are let in
        for _ in range(10):  # turns of the loop in which they go as far as they can
            await asyncio.sleep(0)


@pytest.fixture(scope="session", autouse=True)
def _plain_log() -> None:
    """Log lines as text, faults without colours and local variables."""
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[structlog.processors.add_log_level, renderer], cache_logger_on_first_use=False)


class ServerProcess:
    """A server in a process of its own."""

    def __init__(self, folder: Path, *flags: str, store: str = "memory:", **environment: str) -> None:
        self._port_file = folder / "port"
        self._port_file.unlink(missing_ok=True)
        self.log = folder / "log"
        command = [sys.executable, "-m", "kokuban_server", "serve", "--store", store, "--listen", "127.0.0.1:0"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port-file", str(self._port_file), *flags],
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )

    def port(self) -> int:
        """Give the port, once the server listens."""
        pause = threading.Event()
        for _ in range(2_000):
            if self._port_file.exists():
                return int(self._port_file.read_text(encoding="utf-8"))
            assert self.process.poll() is None, self.log.read_text(encoding="utf-8")
            pause.wait(0.01)
        raise AssertionError("the server does not listen")

    def lives(self) -> bool:
        return self.process.poll() is None

    def terminate(self, timeout_s: float) -> int:
        """Ask the process to stop; give its exit status, or fail if it takes too long."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        if self.lives():
            self.process.kill()
        self.process.wait()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Start server processes; whatever is left of them is ended afterwards."""
    started: list[ServerProcess] = []

    def start_process(*flags: str, store: str = "memory:", **environment: str) -> ServerProcess:
        started.append(ServerProcess(tmp_path, *flags, store=store, **environment))
        return started[-1]

    yield start_process
    for process in started:
        process.close()


@pytest.fixture(scope="module")
def shared_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server process for all tests of a module."""
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    yield process
    process.close()


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
async def store(clock: SettableClock) -> AsyncIterator[BoardStore]:
    """The store that servers are started on."""
    made = MemoryStore(clock)
    yield made
    await made.close()


@pytest.fixture(params=["memory", "sqlite"])
async def any_store(request: pytest.FixtureRequest, clock: SettableClock, tmp_path: Path) -> AsyncIterator[BoardStore]:
    """Each store that needs no other process, in turn."""
    made: BoardStore
    made = MemoryStore(clock) if request.param == "memory" else await SqliteStore.open(tmp_path / "store", clock)
    yield made
    await made.close()


@pytest.fixture
async def start(
    store: BoardStore, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Started, None]:
    """Start servers on the test's store. Upkeep waits for a minute unless told otherwise: tests call it themselves."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(on: BoardStore | None = None, **settings: Any) -> Running:  # noqa: ANN401 - of any setting's type
            chosen = {
                "store": "memory:",
                "listen": "127.0.0.1:0",
                "drain_grace_s": 0.0,
                "upkeep_interval_s": 60.0,
                "bookmark_interval_s": 0.05,
                "unary_calls_max": UNARY_MAX,
                **settings,
            }
            set_to = Settings(**chosen)
            encryption = open_encryption(set_to.encryption_keys_file)
            callers = await open_callers(set_to, clock)
            server = Server(set_to, on or store, clock, DIGEST_KEY, callers, encryption=encryption)
            if "upkeep_interval_s" not in settings:
                monkeypatch.setattr(server._removal_upkeep, "ask", lambda: None)
            port = await server.start()
            stack.push_async_callback(server.stop)
            channel = await stack.enter_async_context(connected(port))
            return Running(server, port, Agent(channel))

        yield start


@pytest.fixture
async def running(start: Started) -> Running:
    return await start()


@pytest.fixture
async def on_any_store(start: Started, any_store: BoardStore) -> Running:
    return await start(any_store)


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Rules:
    """The rules of the servers that are started, judged in the test's own process."""
    made = Rules()
    monkeypatch.setattr(ProcessScreener, "screen", lambda _, text, source: made.screen(text, source))
    return made


@pytest.fixture
def agent(running: Running) -> Agent:
    return running.agent


@pytest.fixture
def each(on_any_store: Running) -> Agent:
    """An agent of a server on each store in turn."""
    return on_any_store.agent
