"""Watching: one writer and many watchers, and what bare streams carry."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from kokuban.v1 import board_service_pb2, commit_pb2

from .measurement import Measurement, closed_loop, measured
from .messages import BOARD, COMMIT, METADATA, REGION, WATCH, Puts

if TYPE_CHECKING:
    import grpc

ECHO_STREAM = "/bench.Echo/Stream"
"""The echo's own method: for each message, a number, it sends that many messages of the size of a watch's event."""


class FanOut:
    """One writer, and many streams that watch what it writes. Events that arrive are what is counted.

    The writer has `in_flight` commits on their way, each to an entry of its own, and is at most `ahead_max` events ahead of
    the slowest watcher: a watch whose reader stays behind for long is ended by the server, rightly.
    """

    def __init__(
        self, channel: grpc.aio.Channel, watchers: int = 200, in_flight: int = 1, ahead_max: int = 256
    ) -> None:
        self._commit: Any = channel.unary_unary(COMMIT)
        self._watch: Any = channel.unary_stream(WATCH)
        self._watchers = watchers
        self._ahead_max = ahead_max
        self._entries = [Puts([f"watched/entry_{place}"]) for place in range(in_flight)]
        self._written = 0
        self._slowest = 0
        """How many events every watcher has."""
        self._arrivals: dict[int, int] = {}
        """How many watchers have the event of this number, above the slowest's."""
        self._moved = asyncio.Event()
        self._fault: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        """Open the watches, and wait until each has begun."""
        for _ in range(self._watchers):
            request = board_service_pb2.WatchRequest(
                board=BOARD, targets=[board_service_pb2.WatchTarget(region=REGION, path="watched")], now=True
            )
            call = self._watch(request.SerializeToString(), metadata=METADATA)
            first = board_service_pb2.WatchResponse.FromString(await call.read())
            if not first.HasField("bookmark"):
                raise RuntimeError(f"a watch begins with a bookmark, not with {first}")
            self._tasks.append(asyncio.create_task(self._follow(call)))

    async def run(self, operations: int) -> Measurement:
        """Write, and wait until everybody has seen everything."""
        writes = max(1, operations // self._watchers)
        events = self._written + writes
        begun = time.perf_counter()
        await closed_loop([partial(self._write, entry) for entry in self._entries], writes)
        await self._caught_up(events)
        return measured(writes * self._watchers, time.perf_counter() - begun, [])

    async def _write(self, entry: Puts) -> None:
        await self._caught_up(self._written + 1 - self._ahead_max)
        self._written += 1
        raw = await self._commit(entry.next().SerializeToString(), metadata=METADATA)
        entry.committed(commit_pb2.CommitResponse.FromString(raw).revision)

    async def _caught_up(self, events: int) -> None:
        """Wait until the slowest watcher has received so many events. Raises if a watch has ended."""
        while self._slowest < events:
            self._moved.clear()
            await self._moved.wait()
            if self._fault is not None:
                raise RuntimeError("a watch has ended") from self._fault

    async def _follow(self, call: Any) -> None:  # noqa: ANN401 - as grpc types it
        received = 0
        try:
            while True:
                message = board_service_pb2.WatchResponse.FromString(await call.read())
                for _ in message.events.changes:
                    received += 1
                    self._arrivals[received] = self._arrivals.get(received, 0) + 1
                while self._arrivals.get(self._slowest + 1) == self._watchers:
                    self._slowest += 1
                    del self._arrivals[self._slowest]
                    self._moved.set()
        except Exception as fault:  # noqa: BLE001 - told by who writes
            self._fault = fault
            self._moved.set()


class BareStreams:
    """Streams of a server that does nothing but send: 200 at once, each as fast as it can."""

    def __init__(self, channel: grpc.aio.Channel, streams: int = 200) -> None:
        begin: Any = channel.stream_stream(ECHO_STREAM)
        self._calls = [begin() for _ in range(streams)]

    async def prepare(self) -> None:
        """Open the streams."""
        await self.run(len(self._calls))

    async def run(self, operations: int) -> Measurement:
        """Have every stream send, all at once, and read it all."""
        messages = max(1, operations // len(self._calls))
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for call in self._calls:
                group.create_task(self._receive(call, messages))
        return measured(messages * len(self._calls), time.perf_counter() - begun, [])

    async def _receive(self, call: Any, messages: int) -> None:  # noqa: ANN401 - as grpc types it
        await call.write(messages.to_bytes(8, "big"))
        for _ in range(messages):
            if len(board_service_pb2.WatchResponse.FromString(await call.read()).events.changes) != 1:
                raise RuntimeError("each message is one event")
