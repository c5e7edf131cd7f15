"""Writing: unary commits, commits on streams, and increments."""

from __future__ import annotations

import asyncio
import itertools
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from kokuban.v1 import admin_service_pb2, commit_pb2, entry_pb2, policy_pb2, trust_pb2

from .measurement import Measurement, closed_loop, measured
from .messages import BOARD, COMMIT, COMMIT_STREAM, METADATA, REGION, SET_POLICY, Puts, new_request_id, note, page, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import grpc


class UnaryCommits:
    """Writers that each have one unary commit in flight, of `puts` entries of their own. Entries are what is counted."""

    def __init__(
        self, channel: grpc.aio.Channel, writers: int = 64, puts: int = 1, value: Callable[[int], str] = text
    ) -> None:
        self._commit: Any = channel.unary_unary(COMMIT)  # bytes in, bytes out
        self._size = puts
        # One writer's entries come together in the index, another's elsewhere.
        self._writers = [Puts([f"writer_{w}/entry_{e}" for e in range(puts)], value=value) for w in range(writers)]

    async def prepare(self) -> None:
        """Create the entries."""
        for writer in self._writers:
            await self._write(writer)

    async def run(self, operations: int) -> Measurement:
        """Write."""
        steps = [partial(self._write, writer) for writer in self._writers]
        commits = max(operations // self._size, len(steps))
        return (await closed_loop(steps, commits))._replace(operations=commits * self._size)

    async def _write(self, writer: Puts) -> None:
        raw = await self._commit(writer.next().SerializeToString(), metadata=METADATA)
        writer.committed(commit_pb2.CommitResponse.FromString(raw).revision)


class NotedCommits(UnaryCommits):
    """The same with what agents write, on a board that is guarded as it is without a policy, or as little as one can say."""

    def __init__(self, channel: grpc.aio.Channel, *, guarded: bool) -> None:
        super().__init__(channel, value=note)
        self._set_policy: Any = channel.unary_unary(SET_POLICY)
        self._guarded = guarded

    async def prepare(self) -> None:
        """Lay the policy down, if there is to be one, and create the entries."""
        if not self._guarded:
            unguarded = policy_pb2.RegionRule(
                pattern="shared:*", taint_mode=policy_pb2.TAINT_MODE_OFF, screening=trust_pb2.SCREENING_PROFILE_OFF
            )
            off = trust_pb2.REDACTION_HANDLING_OFF
            policy = policy_pb2.Policy(rules=[unguarded], secrets=off, personal_data=off)
            request = admin_service_pb2.SetPolicyRequest(board=BOARD, policy=policy)
            await self._set_policy(request.SerializeToString(), metadata=(*METADATA, ("kokuban-roles", "operator")))
        await super().prepare()


class Pages(UnaryCommits):
    """Four writers of texts of 1 KiB, each new: pages from outside, or the same as agents' own words."""

    def __init__(self, channel: grpc.aio.Channel, *, outside: bool) -> None:
        super().__init__(channel, writers=4, value=page)
        if outside:
            for writer in self._writers:
                for mutation in writer.message.mutations:
                    source = mutation.put.provenance.source
                    source.kind, source.uri = trust_pb2.SOURCE_KIND_EXTERNAL, "https://example.com/page"


class NewEntries:
    """Writers that each have one unary commit in flight, of an entry that did not exist, as every event of a task is one."""

    def __init__(self, channel: grpc.aio.Channel, writers: int = 64) -> None:
        self._commit: Any = channel.unary_unary(COMMIT)
        self._numbers = itertools.count()
        self._writers = writers

    async def prepare(self) -> None:
        """Nothing: each commit makes what it writes."""

    async def run(self, operations: int) -> Measurement:
        """Write."""
        return await closed_loop([partial(self._write, writer) for writer in range(self._writers)], operations)

    async def _write(self, writer: int) -> None:
        message = Puts([f"writer_{writer}/entry_{next(self._numbers):012d}"]).next()
        commit_pb2.CommitResponse.FromString(await self._commit(message.SerializeToString(), metadata=METADATA))


class StreamCommits:
    """Streams that each have several commits in flight, each to an entry of its own."""

    def __init__(self, channel: grpc.aio.Channel, streams: int = 16, in_flight: int = 4) -> None:
        begin: Any = channel.stream_stream(COMMIT_STREAM)
        self._streams = [_Stream(begin(metadata=METADATA), s, in_flight) for s in range(streams)]

    async def prepare(self) -> None:
        """Create the entries."""
        for stream in self._streams:
            await stream.work(iter(range(stream.size)), [])

    async def run(self, operations: int) -> Measurement:
        """Write."""
        turns = iter(range(operations))
        latencies: list[float] = []
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for stream in self._streams:
                group.create_task(stream.work(turns, latencies))
        return measured(operations, time.perf_counter() - begun, latencies)


class _Stream:
    """One stream, worked by one task at a time."""

    def __init__(self, call: Any, number: int, in_flight: int) -> None:  # noqa: ANN401 - as grpc types it
        self.size = in_flight
        self._call = call
        self._idle = [Puts([f"stream_{number}/slot_{slot}"]) for slot in range(in_flight)]

    async def work(self, turns: Iterator[int], latencies: list[float]) -> None:
        """Send a commit for each turn that is left and a slot that is idle, and read answers, until both are done."""
        sent: dict[str, tuple[Puts, float]] = {}
        while True:
            while self._idle and next(turns, None) is not None:
                slot = self._idle.pop(0)
                message = slot.next()
                sent[message.request_id] = slot, time.perf_counter()
                await self._call.write(commit_pb2.CommitStreamRequest(commit=message).SerializeToString())
            if not sent:
                return
            answer = commit_pb2.CommitStreamResponse.FromString(await self._call.read())
            if not answer.HasField("committed"):
                raise RuntimeError(f"refused: {answer.refused}")
            slot, begun = sent.pop(answer.request_id)
            latencies.append(time.perf_counter() - begun)
            slot.committed(answer.committed.revision)
            self._idle.append(slot)


class Increments:
    """Writers that each increment, all one entry or each one of its own."""

    def __init__(self, channel: grpc.aio.Channel, writers: int = 64, entries: int = 1) -> None:
        self._commit: Any = channel.unary_unary(COMMIT)
        self._messages = [_increment(f"counter_{entries}/{w % entries}") for w in range(writers)]

    async def prepare(self) -> None:
        """Create the entries."""
        for message in self._messages:
            await self._increment(message)

    async def run(self, operations: int) -> Measurement:
        """Increment."""
        return await closed_loop([partial(self._increment, message) for message in self._messages], operations)

    async def _increment(self, message: commit_pb2.CommitRequest) -> None:
        message.request_id = new_request_id()
        commit_pb2.CommitResponse.FromString(await self._commit(message.SerializeToString(), metadata=METADATA))


def _increment(path: str) -> commit_pb2.CommitRequest:
    key = entry_pb2.EntryKey(region=REGION, path=path)
    return commit_pb2.CommitRequest(
        board=BOARD, mutations=[commit_pb2.Mutation(increment=commit_pb2.Increment(key=key, by=1))]
    )
