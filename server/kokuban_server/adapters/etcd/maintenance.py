"""What an operator does to a store as a whole: copy it, and begin a new life after a copy was put back."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from typing import TYPE_CHECKING, BinaryIO, Final

from kokuban.etcd.v1 import etcd_pb2 as pb
from kokuban_server.adapters.etcd.channel import EtcdChannel
from kokuban_server.adapters.etcd.errors import EtcdError, Verdict
from kokuban_server.adapters.etcd.layout import SCHEMA, Layout
from kokuban_server.adapters.etcd.methods import RANGE, REVOKE, SNAPSHOT, TXN
from kokuban_server.core.refusals import StoreCorrupt, StoreUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from kokuban_server.adapters.etcd.channel import Stream
    from kokuban_server.adapters.etcd.settings import EtcdSettings

_SNAPSHOT_S_MAX: Final = 3_600.0
_DIGEST_BYTES: Final = 32
_PAGE_KEYS: Final = 1_000


async def snapshot(settings: EtcdSettings, target: Path) -> int:
    """Copy the whole cluster's data, whoever else uses it, into a file that `etcdctl snapshot restore` takes; give its size.

    The file appears whole or not at all, and is synced to its disk. Raises `StoreUnavailable`.
    """
    channel = EtcdChannel(settings)
    part = target.with_name(target.name + ".part")
    try:
        stream = await channel.download(SNAPSHOT, pb.SnapshotRequest(), _SNAPSHOT_S_MAX)
        file = await asyncio.to_thread(part.open, "wb")
        try:
            size = await _download(stream, file)
            await asyncio.to_thread(_sync, file)
        finally:
            stream.cancel()
            await asyncio.to_thread(file.close)
        await asyncio.to_thread(part.replace, target)
    except EtcdError as error:
        raise StoreUnavailable(error.detail) from None
    finally:
        await asyncio.to_thread(part.unlink, missing_ok=True)
        await channel.close()
    return size


async def new_epoch(settings: EtcdSettings) -> str:
    """Begin a new life of the store after a restore: tokens and fences of the former one no longer count. Give its epoch.

    Leases that keys of the store hang on are ended, and so are the sessions and locks that lived on them. Servers that
    are running refuse everything from then on until they are started again. May be repeated.
    Raises `StoreUnavailable`; `StoreCorrupt` when there is no store below the prefix.
    """
    layout = Layout.below(settings.prefix)
    epoch = secrets.token_hex(8)
    channel = EtcdChannel(settings)
    try:
        request = pb.TxnRequest()
        request.compare.add(result=pb.Compare.GREATER, target=pb.Compare.VERSION, key=layout.epoch, version=0)
        request.compare.add(target=pb.Compare.VALUE, key=layout.schema, value=b"%d" % SCHEMA)
        request.success.add(request_put=pb.PutRequest(key=layout.epoch, value=epoch.encode()))
        if not (await channel.call(TXN, request, settings.attempt_s)).succeeded:
            raise StoreCorrupt(layout.epoch, "below this prefix is no store of this version")
        for lease in await _leases(channel, layout, settings.attempt_s):
            try:
                await channel.call(REVOKE, pb.LeaseRevokeRequest(id=lease), settings.attempt_s)
            except EtcdError as error:
                if error.verdict is not Verdict.LEASE_GONE:
                    raise
    except EtcdError as error:
        raise StoreUnavailable(error.detail) from None
    finally:
        await channel.close()
    return epoch


async def _download(stream: Stream[pb.SnapshotRequest, pb.SnapshotResponse], file: BinaryIO) -> int:
    """Write what comes; check it against the digest that follows it, which belongs into the file too."""
    digest = hashlib.sha256()
    held = b""
    size = 0
    while (piece := await stream.read_or_end()) is not None:
        held += piece.blob
        body, held = held[:-_DIGEST_BYTES], held[-_DIGEST_BYTES:]
        digest.update(body)
        size += len(body)
        await asyncio.to_thread(file.write, body)
    if held != digest.digest():
        raise EtcdError(Verdict.UNKNOWN, "the copy did not come whole")
    await asyncio.to_thread(file.write, held)
    return size + len(held)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


async def _leases(channel: EtcdChannel, layout: Layout, timeout_s: float) -> set[int]:
    """Find every lease that a key of the store hangs on."""
    found: set[int] = set()
    start, end = layout.range(b"")
    while True:
        request = pb.RangeRequest(key=start, range_end=end, limit=_PAGE_KEYS, keys_only=True)
        answer = await channel.call(RANGE, request, timeout_s)
        found.update(kv.lease for kv in answer.kvs if kv.lease)
        if not answer.more:
            return found
        start = answer.kvs[-1].key + b"\0"
