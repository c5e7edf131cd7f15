"""Beginning a store on a cluster, or finding the one that is there."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, NamedTuple

from kokuban.etcd.v1 import etcd_pb2 as pb
from kokuban_server.adapters.etcd.errors import EtcdError, Verdict
from kokuban_server.adapters.etcd.layout import SCHEMA, SchemaTooNew, encode_time
from kokuban_server.adapters.etcd.methods import TXN
from kokuban_server.adapters.etcd.pauses import pauses
from kokuban_server.core.refusals import StoreCorrupt, StoreFull, StoreUnavailable
from kokuban_server.core.revision import is_epoch

if TYPE_CHECKING:
    from kokuban_server.adapters.etcd.channel import EtcdChannel
    from kokuban_server.adapters.etcd.layout import Layout


class _Held(NamedTuple):
    """What the store's own keys hold."""

    epoch: bytes
    time: bytes
    schema: bytes


async def begin(channel: EtcdChannel, layout: Layout, attempt_s: float, now_ms: int, deadline_s: float) -> str:
    """Begin a store where there is none; give the epoch. Of servers that come at the same moment, one begins it."""
    epoch = secrets.token_hex(8).encode()
    own = _Held(epoch, encode_time(now_ms), b"%d" % SCHEMA)
    keys = (layout.epoch, layout.time, layout.schema)
    request = pb.TxnRequest()
    for key in keys:
        request.compare.add(target=pb.Compare.VERSION, key=key, version=0)
    for key, value in zip(keys, own, strict=True):
        request.success.add(request_put=pb.PutRequest(key=key, value=value))
        request.failure.add(request_range=pb.RangeRequest(key=key))
    loop = asyncio.get_running_loop()
    until_s = loop.time() + deadline_s
    for pause_s in pauses():
        try:
            response = await channel.call(TXN, request, attempt_s)
            break
        except EtcdError as error:
            # Beginning is guarded by its own writes, so it is safe to try again whatever became of the last attempt.
            again = error.verdict in {Verdict.NOT_DONE, Verdict.UNKNOWN}
            if error.verdict is Verdict.FULL:
                raise StoreFull from None
            if not again or loop.time() + pause_s > until_s:
                raise StoreUnavailable(error.detail) from None
        await asyncio.sleep(pause_s)
    if response.succeeded:
        return epoch.decode()
    found = _Held(*(b"".join(kv.value for kv in op.response_range.kvs) for op in response.responses))
    if not found.schema.isdigit() or not found.time.isdigit() or not is_epoch(found.epoch.decode(errors="replace")):
        raise StoreCorrupt(layout.epoch, "the store's own keys are not as they should be")
    if int(found.schema) > SCHEMA:
        raise SchemaTooNew(f"the cluster holds schema {int(found.schema)}; this server knows up to {SCHEMA}")
    return found.epoch.decode()
