"""A simulated server: the use cases over a faulty way to the store, with a clock of its own, that can be killed."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kokuban_server.adapters.screening import ProcessScreener
from kokuban_server.app.access import Access
from kokuban_server.app.audit import AuditLog
from kokuban_server.app.boards import Boards
from kokuban_server.app.commits import Commits
from kokuban_server.app.heads import Heads
from kokuban_server.app.held_locks import HeldLocks
from kokuban_server.app.judged_states import JudgedStates
from kokuban_server.app.lineage import Lineages
from kokuban_server.app.lock_guards import LockGuards
from kokuban_server.app.lock_mirror import LockMirror
from kokuban_server.app.lock_requests import LockRequests
from kokuban_server.app.lock_upkeep import LockUpkeep
from kokuban_server.app.mirrored_store import MirroredStore
from kokuban_server.app.presence import Presence
from kokuban_server.app.quarantine_shelf import QuarantineShelf
from kokuban_server.app.read_scopes import ReadScopes
from kokuban_server.app.reads import Reads
from kokuban_server.app.request_ids import RequestIds
from kokuban_server.app.screenings import Screenings
from kokuban_server.app.sessions import Sessions
from kokuban_server.app.store_time import StoreTime
from kokuban_server.app.task_claims import TaskClaims
from kokuban_server.app.task_reading import TaskReading
from kokuban_server.app.task_writing import TaskWriting
from kokuban_server.app.upkeep import Upkeep
from kokuban_server.app.watches import Watches
from kokuban_server.app.write_screening import WriteScreening
from kokuban_server.core import limits
from tests.simulation.simulated_store import FaultyStore

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

    from tests.simulation.simulated_store import RecordedStore, Weather

_T = TypeVar("_T")
BOARD = "board"
START_MS = 1_800_000_000_000
_DIGEST_KEY = b"the same for every server"
_owner: ContextVar[SimulatedReplica] = ContextVar("replica")


class ConnectionLost(Exception):  # noqa: N818 - what a client sees of a server that died
    """The server is gone; nobody knows what it had done."""


class SimulatedClock:
    """A server's clock: the virtual time, off by a difference that may jump."""

    def __init__(self, off_by_ms: int) -> None:
        self.off_by_ms = off_by_ms

    def now_ms(self) -> int:
        return START_MS + int(asyncio.get_running_loop().time() * 1000) + self.off_by_ms


class Tuning(NamedTuple):
    """What the servers of one run are set to."""

    window_ms: int
    store_history_ms: int
    cache_bytes: int
    watch_events: int
    upkeep_interval_s: float


class Parts(NamedTuple):
    """The parts of a server that a broken one has its own of."""

    boards: type[Boards] = Boards
    mirror: type[LockMirror] = LockMirror
    mirrored_store: type[MirroredStore] = MirroredStore
    lock_guards: type[LockGuards] = LockGuards
    task_writing: type[TaskWriting] = TaskWriting


SOUND = Parts()


class SimulatedReplica:
    """One life of a server."""

    def __init__(
        self,
        name: str,
        store: RecordedStore,
        off_by_ms: int,
        seed: str,
        weather: Weather,
        tuning: Tuning,
        parts: Parts = SOUND,
    ) -> None:
        self.name = name
        self.is_dead = False
        self.complaints: list[str] = []
        self._adopted = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in order: a set's differs from run to run
        self.clock = SimulatedClock(off_by_ms)
        self.store = way = FaultyStore(store, self.clock, f"{seed}/{name}", weather)
        self.time = StoreTime(way, self.clock)
        boards = parts.boards(way)
        access = Access(way, boards, self.clock, frozenset({BOARD}))
        self.request_ids = request_ids = RequestIds(self.time, _DIGEST_KEY, tuning.window_ms)
        self.mirror = mirror = parts.mirror(way)
        self.presence = Presence(way, self.time, name)
        mirrored = parts.mirrored_store(way, mirror)
        self.lock_requests = LockRequests(mirrored, access, self.time, request_ids, self.presence)
        audit = AuditLog(way, self.time, name, self._complain, bytes)
        self.held_locks = HeldLocks(mirrored, access, self.time, self.lock_requests, audit)
        self.sessions = Sessions(mirrored, access, self.time, request_ids)
        self.lock_upkeep = LockUpkeep(way, self.time, mirror, self._complain, name, self.lock_requests.keeps)
        guards = parts.lock_guards(mirror, access, self.time)
        heads = Heads(tuning.cache_bytes)
        scopes = ReadScopes(mirrored, access)
        lineages = Lineages(way, access, heads, scopes)
        # Nobody here writes what comes from outside, so nothing is asked of the process that screens.
        screenings, shelf = Screenings(access, ProcessScreener()), QuarantineShelf(way)
        screening, judged = WriteScreening(screenings), JudgedStates(screenings, way.epoch)
        tasks = parts.task_writing()
        self.commits = Commits(
            way, access, heads, self.time, request_ids, guards, mirror, lineages, audit, screening, shelf, tasks
        )
        self.reads = Reads(way, access, self.time, scopes, judged)
        self.task_claims = TaskClaims(
            mirrored, access, self.time, request_ids, tasks, TaskReading(way, access, self.reads)
        )
        self.watches = Watches(way, access, self.time, judged, 5.0, tuning.watch_events, limits.WATCH_BUFFER_BYTES_MAX)
        boards.followers |= dict.fromkeys((self.watches.stir, self.lock_requests.stir))
        self.upkeep = Upkeep(
            way,
            boards,
            self.time,
            name,
            self._complain,
            interval_s=tuning.upkeep_interval_s,
            request_id_window_ms=tuning.window_ms,
            store_history_ms=tuning.store_history_ms,
        )

    def _complain(self, job: str, fault: Exception) -> None:
        self.complaints.append(f"{job}: {fault!r}")

    def start(self) -> None:
        self.spawn(self.upkeep.run(), f"{self.name}/upkeep")
        self.spawn(self.lock_upkeep.run(), f"{self.name}/lock-upkeep")

    def drain(self) -> None:
        """Have the streams end, as a server does that was asked to stop."""
        self.watches.drain()
        self.sessions.draining.set()
        self.lock_requests.drain()

    def spawn(self, work: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """Run something as a part of this server: it, and every task it starts, dies with it."""
        context = copy_context()
        context.run(_owner.set, self)
        return asyncio.get_running_loop().create_task(work, name=name, context=context)

    async def call(self, work: Coroutine[Any, Any, _T], name: str, patience_s: float) -> _T:
        """Have the server do something. Raises `ConnectionLost` if it dies, or the caller hangs up before it answers."""
        if self.is_dead:
            work.close()
            raise ConnectionLost
        task = self.spawn(work, name)
        try:
            await asyncio.wait({task}, timeout=patience_s)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if task.cancelled():
            raise ConnectionLost
        return task.result()

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._adopted += 1
        task.set_name(
            f"{self.name}~{self._adopted}"
        )  # for those that are given none; asyncio's own names go on from run to run
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        if self.is_dead:  # what its dying tasks still begin
            task.cancel()

    def die(self) -> None:
        """End every task of the server, wherever it waits."""
        self.is_dead = True
        self.store.is_severed = True
        for task in self._tasks:
            task.cancel()

    async def dead(self) -> None:
        """Wait until the server's last task is gone."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def adopting_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
    context: Any = None,  # noqa: ANN401 - contextvars.Context, as asyncio gives it
) -> asyncio.Task[_T]:
    """Make a task, as a loop's task factory, and give it to the server in whose name it was started."""
    task: asyncio.Task[_T] = asyncio.Task(work, loop=loop, context=context)
    owner = context.get(_owner) if context is not None else _owner.get(None)
    if owner is not None:
        owner.adopt(task)
    return task
