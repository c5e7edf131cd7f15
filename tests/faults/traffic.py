"""Agents that use a real server while it, its connections and its store fail, and note what they were told.

Raw stubs, so that nothing but the API stands between: an unanswered commit is sent again with the same request id, or given
up with its outcome unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from kokuban.v1 import board_service_pb2, board_service_pb2_grpc, commit_pb2, entry_pb2
from kokuban_client._ids import RequestIds
from tests.linearizability.checker import NOTHING, Act, Add, Create, Overwrite, Read, Remove, Replace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import Self

BOARD = "main"
REGION = "task:faults"
PUBLISHED = tuple(f"published/{number}" for number in range(4))
_CALL_S = 10.0
_PATIENCE_S = 60.0
_OPTIONS = [
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]
_DEFINITE = {"ALREADY_EXISTS", "REVISION_MISMATCH", "NOT_FOUND"}
"""Refusals after a judgement: nothing was written."""
_NOTHING_DONE = {"STORE_UNAVAILABLE", "SERVER_DRAINING", "CONTENDED", "TOO_MANY_REQUESTS", "DEADLINE_TOO_SHORT"}
"""Refusals of one try, which leave open what became of an earlier one."""


@dataclass(slots=True)
class Write:
    """One commit, however often it was sent."""

    request_id: str
    acts: dict[str, Act]
    """What it asks for, by path."""
    start: float
    end: float = 0.0
    revision: int = 0
    """Above 0 if it was acknowledged."""
    answers: dict[str, int] = field(default_factory=dict)
    """Numbers that it was answered, by path."""
    refused: str = ""
    """Why it was not done, if that is certain."""
    tries: int = 0


@dataclass(slots=True)
class Look:
    """One strong read."""

    path: str
    start: float
    end: float
    value: str | int | None
    revision: int


@dataclass(slots=True)
class Records:
    """What all agents noted."""

    writes: list[Write] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    changes: list[entry_pb2.EntryChange] = field(default_factory=list)
    """What the watcher was told."""
    faults: list[str] = field(default_factory=list)
    """What was seen to be wrong on the way."""


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Give the reason in an error's details, or its code's name if there is none."""
    for name, raw in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin" and isinstance(raw, bytes):
            for detail in status_pb2.Status.FromString(raw).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return str(info.reason)
    return str(error.code().name)


class Traffic:
    """Agents on one server's address. Leave the context to end them."""

    def __init__(self, address: str, seed: int, agents: int = 6) -> None:
        self.records = Records()
        self.generation = 0
        """Entries change with it, so that no entry's history outgrows what can be judged."""
        self._ids = RequestIds()
        self._seed = seed
        self._agents = agents
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._stub = board_service_pb2_grpc.BoardServiceStub(self._channel)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._resting = 0
        self._epoch = ""
        self._watch_token = ""
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._watcher = asyncio.create_task(self._watch())
        await self.until(lambda: bool(self._watch_token))
        self._tasks = [asyncio.create_task(self._agent(number)) for number in range(self._agents)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        for task in [*self._tasks, self._watcher]:
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self._channel.close()

    @property
    def acknowledged(self) -> int:
        """How many writes were."""
        return sum(write.revision > 0 for write in self.records.writes)

    async def until(self, holds: Callable[[], bool], bound_s: float = 60.0) -> None:
        """Wait until something is true of what was noted; an agent that failed fails the wait."""
        async with asyncio.timeout(bound_s):
            while not holds():
                for task in [*self._tasks, self._watcher]:
                    if task is not None and task.done():
                        task.result()
                await asyncio.sleep(0.005)

    async def progress(self, writes: int) -> None:
        """Wait until so many more writes are acknowledged."""
        wanted = self.acknowledged + writes
        await self.until(lambda: self.acknowledged >= wanted)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Have every agent end what it has begun and begin nothing, for as long as the context lasts."""
        self._flowing.clear()
        await self.until(lambda: self._resting == len(self._tasks))
        try:
            yield
        finally:
            self._flowing.set()

    async def finish(self) -> None:
        """Let every agent end what it has begun, and the watcher hear of everything."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        self._tasks = []
        newest = max(write.revision for write in self.records.writes)
        await self.until(lambda: any(change.entry.revision.number >= newest for change in self.records.changes))

    async def state(self) -> dict[str, entry_pb2.Entry]:
        """Read everything that is there, in one cut."""
        found: dict[str, entry_pb2.Entry] = {}
        token, consistency = "", entry_pb2.ReadConsistency(strong=True)
        while True:
            request = board_service_pb2.ListEntriesRequest(
                board=BOARD, region=REGION, page_size=1000, page_token=token, consistency=consistency
            )
            page = await self._surely(self._stub.ListEntries, request)
            found.update({entry.key.path: entry for entry in page.entries})
            token, consistency = page.next_page_token, entry_pb2.ReadConsistency(snapshot=page.token)
            if not token:
                return found

    async def history(self, path: str) -> list[entry_pb2.EntryChange]:
        """Read an entry's kept history, newest first."""
        request = board_service_pb2.ListRevisionsRequest(board=BOARD, key=_key(path), page_size=1000)
        return list((await self._surely(self._stub.ListRevisions, request)).revisions)

    async def _surely(self, call: Callable[..., Awaitable[Any]], request: Any) -> Any:  # noqa: ANN401 - any of the read methods
        """Read until there is an answer."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                try:
                    return await call(request, metadata=self._as("judge"), timeout=_CALL_S)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.05)

    def _as(self, agent: str) -> tuple[tuple[str, str], ...]:
        return (("kokuban-agent", agent),)

    # Agents.

    async def _agent(self, number: int) -> None:
        draw = random.Random(f"{self._seed}/{number}")
        name = f"agent-{number}"
        seen: dict[str, tuple[str, int]] = {}  # values and revisions, some of them old by the time they are used
        turn = 0
        while not self._stopping:
            if not self._flowing.is_set():
                self._resting += 1
                await self._flowing.wait()
                self._resting -= 1
            turn += 1
            path = f"notes/{self.generation}/{draw.randrange(4)}"
            value = f"{name}/{turn}"
            chance = draw.random()
            if chance < 0.3:
                await self._look(name, path, seen)
            elif chance < 0.45:
                await self._commit(draw, name, {f"counters/{self.generation}": Add(draw.randint(1, 9))}, seen)
            elif chance < 0.55:
                await self._commit(draw, name, {each: Overwrite(value) for each in PUBLISHED}, seen)
            elif path not in seen:
                first: Act = Create(value) if draw.random() < 0.5 else Overwrite(value)
                await self._commit(draw, name, {path: first}, seen)
                await self._look(name, path, seen)
            else:
                before = seen[path][0]
                acts: list[Act] = [Replace(before, value), Replace(before, value), Remove(before), Create(value)]
                await self._commit(draw, name, {path: draw.choice(acts)}, seen)

    async def _look(self, name: str, path: str, seen: dict[str, tuple[str, int]]) -> None:
        request = board_service_pb2.GetEntryRequest(board=BOARD, key=_key(path))
        start = time.monotonic()
        try:
            answer = await self._stub.GetEntry(request, metadata=self._as(name), timeout=_CALL_S)
        except grpc.aio.AioRpcError as error:
            if reason_of(error) == "NOT_FOUND":
                self.records.looks.append(Look(path, start, time.monotonic(), NOTHING, 0))
                seen.pop(path, None)
            else:
                await asyncio.sleep(0.02)
            return
        entry = answer.entry
        self.records.looks.append(Look(path, start, time.monotonic(), entry.value.text, entry.revision.number))
        seen[path] = (entry.value.text, entry.revision.number)
        self._epoch = entry.revision.epoch

    async def _commit(
        self, draw: random.Random, name: str, acts: dict[str, Act], seen: dict[str, tuple[str, int]]
    ) -> None:
        """Send a commit, and again with the same id until it is known what became of it; sometimes give up."""
        write = Write(self._ids.new(), acts, time.monotonic())
        mutations = [self._mutation(path, act, seen) for path, act in acts.items()]
        request = commit_pb2.CommitRequest(board=BOARD, request_id=write.request_id, mutations=mutations)
        self.records.writes.append(write)
        gives_up_after = 1 if draw.random() < 0.15 else 1_000
        in_doubt = False
        until = time.monotonic() + _PATIENCE_S
        while write.tries < gives_up_after and time.monotonic() < until:
            write.tries += 1
            try:
                answer = await self._stub.Commit(request, metadata=self._as(name), timeout=_CALL_S)
            except grpc.aio.AioRpcError as error:
                reason = reason_of(error)
                write.end = time.monotonic()
                if reason in _DEFINITE or (reason in _NOTHING_DONE and write.tries >= gives_up_after and not in_doubt):
                    write.refused = reason
                    return
                if reason not in _NOTHING_DONE:
                    in_doubt = True
                if reason not in _NOTHING_DONE | {"UNAVAILABLE", "OUTCOME_UNKNOWN", "DEADLINE_EXCEEDED", "CANCELLED"}:
                    self.records.faults.append(f"{write} was refused as {reason}: {error.details()}")
                    return
                await asyncio.sleep(draw.uniform(0.01, 0.05))
                continue
            write.end = time.monotonic()
            write.revision = answer.revision.number
            for (path, act), result in zip(acts.items(), answer.results, strict=True):
                if isinstance(act, Add):
                    write.answers[path] = int(result.value.json)
                elif isinstance(act, Remove):
                    seen.pop(path, None)
                else:
                    seen[path] = (str(act.value), write.revision)  # type: ignore[union-attr]  # a read is no write
            return

    def _mutation(self, path: str, act: Act, seen: dict[str, tuple[str, int]]) -> commit_pb2.Mutation:
        key = _key(path)
        if isinstance(act, Add):
            return commit_pb2.Mutation(increment=commit_pb2.Increment(key=key, by=act.amount))
        if isinstance(act, Create):
            precondition = entry_pb2.Precondition(must_not_exist=True)
        elif isinstance(act, Overwrite):
            precondition = entry_pb2.Precondition(unconditional=True)
        else:
            precondition = entry_pb2.Precondition(at=entry_pb2.Revision(number=seen[path][1], epoch=self._epoch))
        if isinstance(act, Remove):
            return commit_pb2.Mutation(delete=commit_pb2.Delete(key=key, precondition=precondition))
        assert not isinstance(act, Read)
        value = entry_pb2.Value(text=str(act.value))
        return commit_pb2.Mutation(put=commit_pb2.Put(key=key, value=value, precondition=precondition))

    # The watcher.

    async def _watch(self) -> None:
        """Follow everything from before the first write on; resume where it was whenever it breaks off."""
        untold: list[entry_pb2.EntryChange] = []
        while True:
            start: dict[str, Any] = {"after": self._watch_token} if self._watch_token else {"now": True}
            request = board_service_pb2.WatchRequest(
                board=BOARD, targets=[board_service_pb2.WatchTarget(region=REGION)], **start
            )
            call = self._stub.Watch(request, metadata=self._as("watcher"))
            untold.clear()
            try:
                async for response in call:
                    untold += response.events.changes
                    if response.token:
                        self.records.changes += untold
                        untold.clear()
                        self._watch_token = response.token
            except grpc.aio.AioRpcError as error:
                reason = reason_of(error)
                if reason not in {"UNAVAILABLE", "STORE_UNAVAILABLE", "SERVER_DRAINING", "CANCELLED", "WATCH_TOO_SLOW"}:
                    self.records.faults.append(f"the watch ended with {reason}: {error.details()}")
            finally:
                call.cancel()
            await asyncio.sleep(0.02)


def _key(path: str) -> entry_pb2.EntryKey:
    return entry_pb2.EntryKey(region=REGION, path=path)
