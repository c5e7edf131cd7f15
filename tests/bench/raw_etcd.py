"""What a Python program without Kokuban would do: etcd's own calls, over the same kind of channel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kokuban.etcd.v1 import etcd_pb2

from .measurement import Measurement, closed_loop
from .messages import VALUE_BYTES, text

if TYPE_CHECKING:
    import grpc


class RawSwaps:
    """Writers that each have one transaction in flight: if my key is as I left it, put 512 bytes."""

    def __init__(self, channel: grpc.aio.Channel, writers: int = 64) -> None:
        transact: Any = channel.unary_unary(
            "/etcdserverpb.KV/Txn",
            request_serializer=etcd_pb2.TxnRequest.SerializeToString,
            response_deserializer=etcd_pb2.TxnResponse.FromString,
        )
        self._writers = [_Swapper(transact, f"raw/writer_{w}".encode()) for w in range(writers)]

    async def prepare(self) -> None:
        """Create the keys."""
        for writer in self._writers:
            await writer.swap()

    async def run(self, operations: int) -> Measurement:
        """Write."""
        return await closed_loop([writer.swap for writer in self._writers], operations)


class _Swapper:
    """One writer and its key."""

    def __init__(self, transact: Any, key: bytes) -> None:  # noqa: ANN401 - as grpc types it
        self._transact = transact
        self._key = key
        self._count = 0
        self._revision = 0

    async def swap(self) -> None:
        """Write once."""
        self._count += 1
        unchanged = etcd_pb2.Compare(
            result=etcd_pb2.Compare.EQUAL,
            target=etcd_pb2.Compare.MOD,
            key=self._key,
            mod_revision=self._revision,
        )
        put = etcd_pb2.PutRequest(key=self._key, value=text(self._count).encode())
        answer = await self._transact(
            etcd_pb2.TxnRequest(compare=[unchanged], success=[etcd_pb2.RequestOp(request_put=put)])
        )
        if not answer.succeeded:
            raise RuntimeError("nobody else writes this key, and yet it has changed")
        self._revision = answer.header.revision


class RawGets:
    """Readers that each have one linearizable range of one key in flight."""

    def __init__(self, channel: grpc.aio.Channel, readers: int = 64) -> None:
        self._put: Any = channel.unary_unary("/etcdserverpb.KV/Put")
        self._range: Any = channel.unary_unary("/etcdserverpb.KV/Range")
        self._keys = [f"raw/reader_{r}".encode() for r in range(readers)]

    async def prepare(self) -> None:
        """Create the keys."""
        for key in self._keys:
            await self._put(etcd_pb2.PutRequest(key=key, value=text(1).encode()).SerializeToString())

    async def run(self, operations: int) -> Measurement:
        """Read."""
        return await closed_loop([partial(self._read, key) for key in self._keys], operations)

    async def _read(self, key: bytes) -> None:
        raw = await self._range(etcd_pb2.RangeRequest(key=key).SerializeToString())
        if len(etcd_pb2.RangeResponse.FromString(raw).kvs[0].value) != VALUE_BYTES:
            raise RuntimeError("a wrong answer")
