"""A board with many entries: filled once, then written at random."""

from __future__ import annotations

import asyncio
import random
from array import array
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kokuban.v1 import commit_pb2, entry_pb2

from .measurement import Measurement, closed_loop
from .messages import BOARD, COMMIT, METADATA, REGION, Puts, new_request_id, text

if TYPE_CHECKING:
    import grpc

_COMMIT_ENTRIES_MAX = 32


def _path(number: int) -> str:
    return f"task_{number // 1000}/entry_{number % 1000}"


class Filling:
    """Makes an empty board into one of many entries, in commits of 32, and writes down their revisions."""

    def __init__(self, channel: grpc.aio.Channel, revisions: str, entries: int, writers: int = 8) -> None:
        self._commit: Any = channel.unary_unary(COMMIT)
        self._file = Path(revisions)
        self._revisions = array("q", bytes(8 * entries))
        self._writers = writers

    async def prepare(self) -> None:
        """Nothing: filling is the work."""

    async def run(self, operations: int) -> Measurement:
        """Fill the board."""
        starts = iter(range(0, len(self._revisions), _COMMIT_ENTRIES_MAX))
        epoch = ""

        async def one() -> None:
            nonlocal epoch
            numbers = range(start := next(starts), min(start + _COMMIT_ENTRIES_MAX, len(self._revisions)))
            message = Puts([_path(number) for number in numbers]).next()
            answer = commit_pb2.CommitResponse.FromString(
                await self._commit(message.SerializeToString(), metadata=METADATA)
            )
            epoch = answer.revision.epoch
            for number in numbers:
                self._revisions[number] = answer.revision.number

        commits = -(-len(self._revisions) // _COMMIT_ENTRIES_MAX)
        measurement = await closed_loop([one] * self._writers, commits)
        await asyncio.to_thread(self._file.write_bytes, epoch.encode() + self._revisions.tobytes())
        return measurement._replace(operations=len(self._revisions))


class RandomCommits:
    """Writers that each have one commit in flight, of one entry chosen at random among all, on its last revision."""

    def __init__(self, channel: grpc.aio.Channel, revisions: str, writers: int = 8) -> None:
        self._commit: Any = channel.unary_unary(COMMIT)
        raw = Path(revisions).read_bytes()
        self._epoch = raw[:16].decode()
        self._revisions = array("q", raw[16:])
        self._writers = writers
        self._chance = random.Random(0)
        self._count = 0

    async def prepare(self) -> None:
        """Nothing: the board is full."""

    async def run(self, operations: int) -> Measurement:
        """Write."""
        return await closed_loop([partial(self._write, writer) for writer in range(self._writers)], operations)

    async def _write(self, writer: int) -> None:
        """Write one of the writer's share of the entries, so that no two writers meet."""
        number = self._chance.randrange(writer, len(self._revisions), self._writers)
        self._count += 1
        at = entry_pb2.Revision(number=self._revisions[number], epoch=self._epoch)
        put = commit_pb2.Put(
            key=entry_pb2.EntryKey(region=REGION, path=_path(number)),
            precondition=entry_pb2.Precondition(at=at),
            value=entry_pb2.Value(text=text(self._count)),
        )
        message = commit_pb2.CommitRequest(
            board=BOARD, request_id=new_request_id(), mutations=[commit_pb2.Mutation(put=put)]
        )
        raw = await self._commit(message.SerializeToString(), metadata=METADATA)
        self._revisions[number] = commit_pb2.CommitResponse.FromString(raw).revision.number
