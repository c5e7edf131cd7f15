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
    from collections.abc import Sequence
    from pathlib import Path

    from kokuban_server.adapters.etcd.channel import Stream
    from kokuban_server.adapters.etcd.settings import EtcdSettings

_SNAPSHOT_S_MAX: Final = 3_600.0
_DIGEST_BYTES: Final = 32
_PAGE_KEYS: Final = 1_000
_REMOVED_TOGETHER: Final = 64
"""Below etcd's `--max-txn-ops`, which is 128 unless it was set."""


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

    Whatever the former life hung on leases is removed, and the leases are ended: no session and no lock outlives a restore.
    Servers that are running refuse everything from then on until they are started again; what one that is started
    meanwhile hangs on leases stays. May be repeated, and must be if it fails: the new life may have begun, but not all of
    the former one be removed. Raises `StoreUnavailable`; `StoreCorrupt` when there is no store below the prefix.
    """
    layout = Layout.below(settings.prefix)
    epoch = secrets.token_hex(8)
    channel = EtcdChannel(settings)
    try:
        request = pb.TxnRequest()
        request.compare.add(result=pb.Compare.GREATER, target=pb.Compare.VERSION, key=layout.epoch, version=0)
        request.compare.add(target=pb.Compare.VALUE, key=layout.schema, value=b"%d" % SCHEMA)
        request.success.add(request_put=pb.PutRequest(key=layout.epoch, value=epoch.encode()))
        begun = await channel.call(TXN, request, settings.attempt_s)
        if not begun.succeeded:
            raise StoreCorrupt(layout.epoch, "below this prefix is no store of this version")
        await _end_leases(channel, layout, begun.header.revision, settings.attempt_s)
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


async def _end_leases(channel: EtcdChannel, layout: Layout, begun: int, timeout_s: float) -> None:
    """End every lease that a key of the store hung on before the new life began, and remove those keys."""
    ended: set[int] = set()
    start, end = layout.range(b"")
    while True:
        request = pb.RangeRequest(key=start, range_end=end, limit=_PAGE_KEYS, keys_only=True)
        answer = await channel.call(RANGE, request, timeout_s)
        attached = [kv for kv in answer.kvs if kv.lease and kv.mod_revision <= begun]
        for lease in {kv.lease for kv in attached} - ended:
            try:
                await channel.call(REVOKE, pb.LeaseRevokeRequest(id=lease), timeout_s)
            except EtcdError as error:
                if error.verdict is not Verdict.LEASE_GONE:
                    raise
            ended.add(lease)
        await _remove(channel, attached, timeout_s)
        if not answer.more:
            return
        start = answer.kvs[-1].key + b"\0"


async def _remove(channel: EtcdChannel, attached: Sequence[pb.KeyValue], timeout_s: float) -> None:
    """Remove keys that are still as they were seen.

    The end of their lease should have done it. But a key may name a lease that is not there, or that does not know of it:
    etcd only logs that when it comes up on its data, and such a key would stay for ever.
    """
    for place in range(0, len(attached), _REMOVED_TOGETHER):
        request = pb.TxnRequest()
        for kv in attached[place : place + _REMOVED_TOGETHER]:
            nested = request.success.add().request_txn
            nested.compare.add(target=pb.Compare.MOD, key=kv.key, mod_revision=kv.mod_revision)
            nested.success.add().request_delete_range.key = kv.key
        await channel.call(TXN, request, timeout_s)
