"""Leases: beginning, renewing and ending them."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final

from kokuban.etcd.v1 import etcd_pb2 as pb
from kokuban_server.adapters.etcd.errors import EtcdError, Verdict
from kokuban_server.adapters.etcd.methods import GRANT, KEEP_ALIVE, REVOKE
from kokuban_server.ports.board_store import Lease, LeaseLost

if TYPE_CHECKING:
    from kokuban_server.adapters.etcd.channel import EtcdChannel, Stream

_ROUND_TRIP_MS: Final = 250
"""A lease's time begins in etcd, before the answer is here: asking for this much more keeps the port's promise."""


class Leases:
    """The leases of one store. Every method raises `EtcdError`."""

    def __init__(self, channel: EtcdChannel) -> None:
        self._channel = channel
        self._renewals = _Renewals(channel)

    async def grant(self, lease: int, ttl_ms: int, timeout_s: float) -> Lease:
        """Begin a lease under a number that the caller chose, so that a repeat after a lost answer leaks none."""
        request = pb.LeaseGrantRequest(id=lease, ttl=-(-(ttl_ms + _ROUND_TRIP_MS) // 1000))
        try:
            answer = await self._channel.call(GRANT, request, timeout_s)
        except EtcdError as error:
            if error.verdict is not Verdict.LEASE_EXISTS:
                raise
            return Lease(lease, await self.renew(lease, timeout_s))
        return Lease(answer.id, answer.ttl * 1000)

    async def renew(self, lease: int, timeout_s: float) -> int:
        """Begin the lease's time anew; give its length. Raises `LeaseLost`."""
        ttl = await self._renewals.renew(lease, timeout_s)
        if ttl <= 0:
            raise LeaseLost
        return ttl * 1000

    async def revoke(self, lease: int, timeout_s: float) -> None:
        """End a lease, if it is still there."""
        try:
            await self._channel.call(REVOKE, pb.LeaseRevokeRequest(id=lease), timeout_s)
        except EtcdError as error:
            if error.verdict is not Verdict.LEASE_GONE:
                raise

    async def close(self) -> None:
        """Give up on renewals under way."""
        await self._renewals.close()


def new_lease_id() -> int:
    """Give a number that no other lease has, in all likelihood."""
    return secrets.randbits(62) + 1


class _Renewals:
    """One stream for all renewals: etcd answers each with the lease's number."""

    def __init__(self, channel: EtcdChannel) -> None:
        self._channel = channel
        self._waiting: defaultdict[int, deque[asyncio.Future[int]]] = defaultdict(deque)
        self._stream: Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse] | None = None
        self._opening = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        channel.on_move(self._cut)

    async def renew(self, lease: int, timeout_s: float) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[lease]
        try:
            async with asyncio.timeout(timeout_s):
                async with self._opening:
                    stream = self._stream
                    if stream is None:
                        stream = self._stream = await self._channel.stream(KEEP_ALIVE, timeout_s)
                        self._reader = asyncio.create_task(self._read(stream), name="etcd-renewals")
                waiting.append(answer)
                await stream.write(pb.LeaseKeepAliveRequest(id=lease))
                return await answer
        except TimeoutError:
            # Without its quorum a cluster gives no answer at all: only our own deadline ends the wait. A late answer on
            # this stream would be taken for that of the next renewal, so the stream goes too.
            self._cut()
            raise EtcdError(Verdict.UNKNOWN, "no answer to the renewal", elsewhere=True, late=True) from None
        finally:
            if answer in waiting:
                waiting.remove(answer)
            if not waiting:
                self._waiting.pop(lease, None)

    async def close(self) -> None:
        self._cut()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    def _cut(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    async def _read(self, stream: Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]) -> None:
        try:
            while True:
                answer = await stream.read()
                for waiter in self._waiting.get(answer.id, ()):
                    if not waiter.done():
                        waiter.set_result(answer.ttl)
                        break
        except EtcdError as error:
            if self._stream is stream:
                self._stream = None
                self._channel.failed(stream.connection, error)
            for waiters in self._waiting.values():
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_exception(error)
        finally:
            stream.cancel()
