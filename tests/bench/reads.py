"""Reading entries."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc

from kokuban.v1 import board_service_pb2, commit_pb2, entry_pb2

from .measurement import Measurement, closed_loop
from .messages import BOARD, COMMIT, GET_ENTRY, METADATA, REGION, VALUE_BYTES, Puts


class StrongGets:
    """Readers that each have one strong `GetEntry` in flight, of an entry of their own."""

    def __init__(self, channel: grpc.aio.Channel, readers: int = 64) -> None:
        self._commit: Any = channel.unary_unary(COMMIT)
        self._get: Any = channel.unary_unary(GET_ENTRY)
        self._paths = [f"reader_{r}" for r in range(readers)]

    async def prepare(self) -> None:
        """Create the entries."""
        for path in self._paths:
            raw = await self._commit(Puts([path]).next().SerializeToString(), metadata=METADATA)
            commit_pb2.CommitResponse.FromString(raw)

    async def run(self, operations: int) -> Measurement:
        """Read."""
        return await closed_loop([partial(self._read, path) for path in self._paths], operations)

    async def _read(self, path: str) -> None:
        request = board_service_pb2.GetEntryRequest(board=BOARD, key=entry_pb2.EntryKey(region=REGION, path=path))
        raw = await self._get(request.SerializeToString(), metadata=METADATA)
        if len(board_service_pb2.GetEntryResponse.FromString(raw).entry.value.text) != VALUE_BYTES:
            raise RuntimeError(f"a wrong answer for {path}")


class VainGets:
    """One reader that asks for an entry which it is told is not there: its own, or one that another agent keeps to itself."""

    def __init__(self, channel: grpc.aio.Channel, *, hidden: bool) -> None:
        self._commit: Any = channel.unary_unary(COMMIT)
        self._get: Any = channel.unary_unary(GET_ENTRY)
        self._hidden = hidden
        key = entry_pb2.EntryKey(region="agent:owner" if hidden else "agent:bench", path="kept/entry")
        self._key = key
        self._request = board_service_pb2.GetEntryRequest(board=BOARD, key=key).SerializeToString()

    async def prepare(self) -> None:
        """Have the other agent write what the reader may not see."""
        if self._hidden:
            await self._commit(
                Puts([self._key.path], self._key.region).next().SerializeToString(),
                metadata=(("kokuban-agent", "owner"),),
            )

    async def run(self, operations: int) -> Measurement:
        """Ask."""
        return await closed_loop([self._ask], operations)

    async def _ask(self) -> None:
        try:
            await self._get(self._request, metadata=METADATA)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
        else:
            raise RuntimeError("what the reader may not see was shown")
