"""Agents with sessions and locks over raw stubs, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, NamedTuple, Self

import grpc
from google.protobuf.duration_pb2 import Duration

from kokuban.v1 import (
    board_service_pb2,
    board_service_pb2_grpc,
    entry_pb2,
    lock_pb2,
    lock_service_pb2,
    lock_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
)
from kokuban_server.adapters.etcd import EtcdSettings, EtcdStore
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core import keys
from kokuban_server.core.revision import revision_of
from kokuban_server.ports.board_store import STRONG
from tests.wire.calls import REGION, Refused, append, commit_request, key, new_id, put, refusal_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from kokuban.v1 import commit_pb2
    from kokuban_server.ports.board_store import Record

BOUND_S = 20.0
EXCLUSIVE, SHARED = lock_pb2.LOCK_MODE_EXCLUSIVE, lock_pb2.LOCK_MODE_SHARED
ENTRY, SUBTREE = lock_pb2.LOCK_SCOPE_ENTRY, lock_pb2.LOCK_SCOPE_SUBTREE
RENEWED = session_service_pb2.SESSION_STATE_RENEWED
IN_JEOPARDY = session_service_pb2.SESSION_STATE_IN_JEOPARDY
LOST = session_service_pb2.SESSION_STATE_LOST
RELEASED = lock_service_pb2.RELEASE_OUTCOME_RELEASED
ALREADY_GONE = lock_service_pb2.RELEASE_OUTCOME_ALREADY_GONE

LockRequest = lock_service_pb2.AcquireLockRequest | lock_service_pb2.ClaimEntryRequest
Granted = lock_service_pb2.LockGranted
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)


def lasting(seconds: float) -> Duration:
    """Give a duration in whole milliseconds."""
    made = Duration()
    made.FromMilliseconds(round(seconds * 1000))
    return made


def now_id() -> str:
    """Give a request id that is made now."""
    return new_id(time.time_ns() // 1_000_000)


def lock_target(path: str, *, subtree: bool = True, region: str = REGION) -> lock_pb2.LockTarget:
    return lock_pb2.LockTarget(region=region, path=path, scope=SUBTREE if subtree else ENTRY)


class LockAgent:
    """An agent at one server, with one session at a time."""

    def __init__(self, channel: grpc.aio.Channel, name: str, roles: str = "") -> None:
        self.channel = channel
        self.name = name
        self.metadata: tuple[tuple[str, str], ...] = (("kokuban-agent", name),)
        if roles:
            self.metadata += (("kokuban-roles", roles),)
        self.board = board_service_pb2_grpc.BoardServiceStub(channel)
        self.locks = lock_service_pb2_grpc.LockServiceStub(channel)
        self.sessions = session_service_pb2_grpc.SessionServiceStub(channel)
        self.session_id = ""

    def at(self, channel: grpc.aio.Channel) -> LockAgent:
        """Give the same agent with the same session over another connection."""
        other = LockAgent(channel, self.name)
        other.metadata = self.metadata
        other.session_id = self.session_id
        return other

    async def open(self, ttl_s: float = 30.0, request_id: str = "") -> session_service_pb2.OpenSessionResponse:
        request = session_service_pb2.OpenSessionRequest(
            board="main", request_id=request_id or now_id(), ttl=lasting(ttl_s)
        )
        answer: session_service_pb2.OpenSessionResponse = await self.sessions.OpenSession(
            request, metadata=self.metadata, timeout=BOUND_S, wait_for_ready=True
        )
        self.session_id = answer.session.id
        return answer

    async def close(self) -> bool:
        """End the session; false if it was gone."""
        request = session_service_pb2.CloseSessionRequest(board="main", session_id=self.session_id)
        answer = await self.sessions.CloseSession(request, metadata=self.metadata, timeout=BOUND_S)
        return not answer.already_gone

    def asks(
        self,
        *targets: str | lock_pb2.LockTarget,
        wait_s: float = 0.0,
        mode: lock_pb2.LockMode.ValueType = EXCLUSIVE,
        delay_s: float | None = None,
        hold_s: float | None = None,
        request_id: str = "",
        region: str = REGION,
    ) -> lock_service_pb2.AcquireLockRequest:
        """Give a request of the session's for a lock; a bare path is a subtree."""
        return lock_service_pb2.AcquireLockRequest(
            board="main",
            session_id=self.session_id,
            request_id=request_id or now_id(),
            targets=[lock_target(one, region=region) if isinstance(one, str) else one for one in targets],
            mode=mode,
            purpose=f"the work of {self.name}",
            wait=lasting(wait_s) if wait_s else None,
            lock_delay=None if delay_s is None else lasting(delay_s),
            hold_max=None if hold_s is None else lasting(hold_s),
        )

    async def acquire(self, request: lock_service_pb2.AcquireLockRequest, timeout_s: float = BOUND_S) -> Granted:
        """Ask until the grant; raises the refusal."""
        answer: lock_service_pb2.AcquireLockResponse | None = None
        async for answer in self.locks.AcquireLock(request, metadata=self.metadata, timeout=timeout_s):
            if answer.HasField("granted"):
                granted: Granted = answer.granted
        assert answer is not None
        assert answer.HasField("granted")
        return granted

    def wait(self, request: lock_service_pb2.AcquireLockRequest) -> Waiting:
        """Ask in the background."""
        return Waiting(self, request)

    async def claim(
        self, *paths: str, request_id: str = "", subtree: bool = False
    ) -> lock_service_pb2.ClaimEntryResponse:
        request = lock_service_pb2.ClaimEntryRequest(
            board="main",
            session_id=self.session_id,
            request_id=request_id or now_id(),
            candidates=[key(path) for path in paths],
            scope=SUBTREE if subtree else ENTRY,
            purpose=f"the work of {self.name}",
        )
        answer: lock_service_pb2.ClaimEntryResponse = await self.locks.ClaimEntry(
            request, metadata=self.metadata, timeout=BOUND_S
        )
        return answer

    async def release(self, fence: lock_pb2.Fence) -> lock_service_pb2.ReleaseOutcome.ValueType:
        return (await self._release(fence)).outcome

    async def end(self, fence: lock_pb2.Fence) -> int:
        """Release a lock that is held, and give the revision at which it ended."""
        answer = await self._release(fence)
        assert answer.outcome == RELEASED
        return revision_of(answer.token, fence.epoch, "token")

    async def _release(self, fence: lock_pb2.Fence) -> lock_service_pb2.ReleaseLockResponse:
        request = lock_service_pb2.ReleaseLockRequest(board="main", fence=fence)
        answer: lock_service_pb2.ReleaseLockResponse = await self.locks.ReleaseLock(
            request, metadata=self.metadata, timeout=BOUND_S
        )
        return answer

    async def downgrade(self, fence: lock_pb2.Fence) -> tuple[lock_pb2.Lock, int]:
        """Make a lock shared; give it, and the revision at which it is."""
        request = lock_service_pb2.DowngradeLockRequest(board="main", fence=fence)
        answer = await self.locks.DowngradeLock(request, metadata=self.metadata, timeout=BOUND_S)
        return answer.lock, revision_of(answer.token, fence.epoch, "token")

    async def break_lock(self, lock_id: str, reason: str, *, skip_lock_delay: bool = False) -> None:
        request = lock_service_pb2.BreakLockRequest(
            board="main", lock_id=lock_id, reason=reason, skip_lock_delay=skip_lock_delay
        )
        await self.locks.BreakLock(request, metadata=self.metadata, timeout=BOUND_S)

    async def listed(self, path: str = "", region: str = REGION) -> lock_service_pb2.ListLocksResponse:
        request = lock_service_pb2.ListLocksRequest(board="main", region=region, path=path, page_size=1000)
        answer: lock_service_pb2.ListLocksResponse = await self.locks.ListLocks(
            request, metadata=self.metadata, timeout=BOUND_S
        )
        return answer

    async def present(self) -> list[str]:
        """Give the sessions on the board."""
        request = session_service_pb2.ListSessionsRequest(board="main")
        answer = await self.sessions.ListSessions(request, metadata=self.metadata, timeout=BOUND_S)
        return [one.session.id for one in answer.sessions]

    async def current(self, *fences: lock_pb2.Fence, timeout_s: float = BOUND_S) -> bool:
        """Ask the gate about fences."""
        request = board_service_pb2.CheckCurrentRequest(board="main", fences=fences)
        answer = await self.board.CheckCurrent(request, metadata=self.metadata, timeout=timeout_s)
        return bool(answer.current)

    async def write(
        self,
        path: str,
        *fences: lock_pb2.Fence,
        value: str = "x",
        precondition: entry_pb2.Precondition | None = None,
        request_id: str = "",
        timeout_s: float = BOUND_S,
        region: str = REGION,
    ) -> commit_pb2.CommitResponse:
        """Append to a list under these fences; with a precondition, put a text."""
        change = put(path, value, precondition, region) if precondition else append(path, value, region=region)
        request = commit_request(change, request_id=request_id or now_id())
        request.fences.extend(fences)
        answer: commit_pb2.CommitResponse = await self.board.Commit(request, metadata=self.metadata, timeout=timeout_s)
        return answer

    async def history(self, path: str, region: str = REGION) -> list[entry_pb2.EntryChange]:
        """Give every state of an entry, the newest first."""
        request = board_service_pb2.ListRevisionsRequest(board="main", key=key(path, region), page_size=1000)
        answer = await self.board.ListRevisions(request, metadata=self.metadata, timeout=BOUND_S)
        return list(answer.revisions)

    async def entries(self, path: str, region: str = REGION) -> list[entry_pb2.Entry]:
        """Give every entry at and below a path."""
        found: list[entry_pb2.Entry] = []
        token = ""
        while True:
            request = board_service_pb2.ListEntriesRequest(
                board="main", region=region, path=path, page_size=1000, page_token=token
            )
            page = await self.board.ListEntries(request, metadata=self.metadata, timeout=BOUND_S)
            found += page.entries
            token = page.next_page_token
            if not token:
                return found

    def beats(self) -> Beats:
        """Begin a stream of renewals."""
        return Beats(self)

    @contextlib.asynccontextmanager
    async def kept_alive(self, every_s: float) -> AsyncIterator[Beats]:
        """Renew the session, over this connection, again and again while the block runs."""
        async with self.beats() as beats:
            task = asyncio.create_task(beats.go_on(every_s))
            try:
                yield beats
            finally:
                task.cancel()
                await asyncio.wait([task])


class Waiting:
    """A request that may wait, in the background. Its stream is cut by `cut`."""

    def __init__(self, agent: LockAgent, request: lock_service_pb2.AcquireLockRequest) -> None:
        self.agent = agent
        self.request = request
        self.told: list[lock_service_pb2.LockQueued] = []
        self.queued = asyncio.Event()
        """It was said that it waits."""
        self._call = agent.locks.AcquireLock(request, metadata=agent.metadata, timeout=request.wait.seconds + BOUND_S)
        self.granted: asyncio.Task[Granted] = asyncio.create_task(self._follow())
        self.granted.add_done_callback(lambda _: self.queued.set())

    async def _follow(self) -> Granted:
        async for answer in self._call:
            if answer.HasField("queued"):
                self.told.append(answer.queued)
                self.queued.set()
            else:
                granted: Granted = answer.granted
        return granted

    async def is_queued(self) -> Waiting:
        """Come back when it waits; fail if it was granted or refused instead."""
        async with asyncio.timeout(BOUND_S):
            await self.queued.wait()
        assert self.told, self.granted
        return self

    async def refusal(self, within_s: float = BOUND_S) -> Refused:
        """Give why it was refused; fail if it was granted, or nothing happens in time."""
        done, _ = await asyncio.wait([self.granted], timeout=within_s)
        assert done, "it still waits"
        error = self.granted.exception()
        assert isinstance(error, grpc.aio.AioRpcError), self.granted
        return refusal_of(error)

    async def grant(self, within_s: float = BOUND_S) -> Granted:
        async with asyncio.timeout(within_s):
            return await asyncio.shield(self.granted)

    def cut(self) -> None:
        self._call.cancel()


class Beats:
    """A stream of renewals, and what it was told."""

    def __init__(self, agent: LockAgent) -> None:
        self.agent = agent
        self.told: list[session_service_pb2.KeepAliveResponse] = []
        self.end: Refused | None = None
        """How the stream ended, if it was refused."""
        self._news = asyncio.Event()
        self._call = agent.sessions.KeepAlive(metadata=agent.metadata)
        self._reader = asyncio.create_task(self._read())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()
        self._reader.cancel()
        await asyncio.wait([self._reader])

    async def beat(self) -> None:
        """Send one renewal."""
        request = session_service_pb2.KeepAliveRequest(board="main", session_id=self.agent.session_id)
        await self._call.write(request)

    async def go_on(self, every_s: float) -> None:
        """Send renewals until the stream ends."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self.beat()
                await asyncio.sleep(every_s)  # a heart's pace

    def count(self, state: session_service_pb2.SessionState.ValueType) -> int:
        """Give how often it was told so."""
        return sum(one.state == state for one in self.told)

    @property
    def losses(self) -> list[session_service_pb2.LostLock]:
        return [loss for one in self.told for loss in one.lost_locks]

    @property
    def is_over(self) -> bool:
        return self._reader.done()

    async def until(self, holds: Callable[[], bool], within_s: float = BOUND_S) -> None:
        """Come back when something holds of what was told; fail if it does not in time, or the stream ends before."""
        try:
            async with asyncio.timeout(within_s):
                while not holds():
                    assert not self.is_over, (self.end, self.told)
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"not told in {within_s} s: {self.told}") from None

    async def _read(self) -> None:
        try:
            async for answer in self._call:
                self.told.append(answer)
                self._news.set()
        except grpc.aio.AioRpcError as error:
            self.end = refusal_of(error)
        finally:
            self._news.set()


class Outcome(NamedTuple):
    """What became of a call."""

    answer: object
    """Nothing if it was refused."""
    reason: str
    """Empty if it was not refused; the status where the refusal names none."""
    facts: dict[str, str]


async def outcome(call: Awaitable[object]) -> Outcome:
    """Await a call, and give what became of it."""
    try:
        return Outcome(await call, "", {})
    except grpc.aio.AioRpcError as error:
        refusal = refusal_of(error)
        return Outcome(None, refusal.reason or refusal.code.name, refusal.facts)


class Channels:
    """Connections to servers, each of its own."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack

    async def __call__(self, address: str) -> grpc.aio.Channel:
        return await self._stack.enter_async_context(grpc.aio.insecure_channel(address, options=_OPTIONS))

    async def agent(self, address: str, name: str, roles: str = "") -> LockAgent:
        return LockAgent(await self(address), name, roles)


@contextlib.asynccontextmanager
async def channels() -> AsyncIterator[Channels]:
    async with contextlib.AsyncExitStack() as stack:
        yield Channels(stack)


async def records(store: str, *kinds: bytes) -> list[Record]:
    """Give what an etcd store holds of these kinds. `store` is as servers take it."""
    endpoints, _, prefix = store.removeprefix("etcd://").partition("/")
    opened = await EtcdStore.open(EtcdSettings(tuple(endpoints.split(",")), prefix=prefix), SystemClock())
    try:
        found: list[Record] = []
        for kind in kinds:
            page = await opened.scan(kind, b"", 1000, 3_000_000, STRONG, BOUND_S)
            assert not page.more
            found += page.records
        return found
    finally:
        await opened.close()


async def queue_order(store: str) -> list[str]:
    """Give the ids of what the waiting requests will be, in the order in which they began to wait."""
    waits = sorted(await records(store, keys.WAIT), key=lambda record: (record.create_revision, record.key))
    return [keys.parse_locking(record.key)[2] for record in waits]


async def at_once(calls: Sequence[Awaitable[object]]) -> list[Outcome]:
    """Await calls together."""
    return list(await asyncio.gather(*map(outcome, calls)))
