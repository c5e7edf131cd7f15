"""Reading entries."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kokuban.v1 import board_service_pb2, commit_pb2, entry_pb2

from .measurement import Measurement, closed_loop
from .messages import BOARD, COMMIT, GET_ENTRY, METADATA, REGION, VALUE_BYTES, Puts

if TYPE_CHECKING:
    import grpc


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
