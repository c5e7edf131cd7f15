"""A relay between client and server that cuts every connection again and again, in the middle of whatever goes on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import NOW, EntryChange

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kokuban_client.testing import ServerProcess


class Relay:
    """Passes bytes on, and after each few thousand of them drops all connections with what is under way in them.

    That happens in the middle of requests, of answers and of greetings alike, until it was done often enough.
    """

    def __init__(self, target: str, cuts_wanted: int) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.address = ""
        self.cuts = 0
        self.done = asyncio.Event()
        self._cuts_wanted = cuts_wanted
        self._passed_bytes = 0
        self._cut_at_bytes = 5000

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._join(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        ends = {writer, far_writer}
        self._writers |= ends
        try:
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(4096):
                self._passed_bytes += len(data)
                if self._passed_bytes >= self._cut_at_bytes and not self.done.is_set():
                    self._cut()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    def _cut(self) -> None:
        self.cuts += 1
        self._cut_at_bytes = self._passed_bytes + 3000 + 977 * (self.cuts % 7)
        if self.cuts >= self._cuts_wanted:
            self.done.set()
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def relay(server: ServerProcess) -> AsyncIterator[Relay]:
    relay = Relay(server.address, cuts_wanted=100)
    await relay.open()
    yield relay
    await relay.close()


async def test_WA_01_and_every_write_happens_once_however_often_connections_are_cut(relay: Relay, region: str) -> None:
    writers = 8
    seen: list[tuple[str, int]] = []
    written = replayed = 0

    async with (
        kokuban_client.connect(relay.address, agent="writer", timeout_s=60) as writer,
        kokuban_client.connect(relay.address, agent="watcher", timeout_s=60) as watcher,
        watcher.board("main").watch(region, start=NOW) as watch,
    ):
        board = writer.board("main")

        async def write(name: int) -> None:
            nonlocal written, replayed
            number = 0
            while not relay.done.is_set():
                async with board.commit() as tx:
                    tx.put(region, f"{name}/{number}", number, must_not_exist=True)
                    tx.increment(region, "total")
                number += 1
                written += 1
                replayed += tx.result.replayed

        async def follow() -> None:
            async for item in watch:
                assert isinstance(item, EntryChange)
                seen.append((item.entry.path, item.entry.revision.number))
                if item.entry.path == "last":
                    return

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(follow())
            await asyncio.gather(*(write(name) for name in range(writers)))
            await board.put(region, "last", None, must_not_exist=True)

        entries = {entry.path: entry async for entry in board.list(region)}
    assert relay.cuts == 100
    assert replayed > 0  # else no answer was ever lost, and this test would have shown little
    assert entries["total"].value == written
    puts = {path: entry for path, entry in entries.items() if path not in ("total", "last")}
    assert len(puts) == written
    assert all(entry.sequence == 1 for entry in puts.values())
    assert sorted(seen, key=lambda change: change[1]) == seen
    assert len(set(seen)) == len(seen)
    assert {(path, entry.revision.number) for path, entry in entries.items()} <= set(seen)
    assert {path for path, _ in seen} == set(entries)
