"""Leases: beginning, renewing and ending them."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final

from kokuban.etcd.v1 import etcd_pb2 as pb
from kokuban_server.adapters.etcd.errors import EtcdError, Verdict
from kokuban_server.adapters.etcd.methods import GRANT, KEEP_ALIVE, REVOKE, TIME_TO_LIVE
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

    async def left(self, lease: int, timeout_s: float) -> int:
        """Give how long the lease still lives, at least; raises `LeaseLost`.

        The leader answers, from what it has applied. It cuts off parts of a second, so a lease in its last second is told
        as lost already; and before it has begun to count, it tells a time without end, where the lease's length is right.
        """
        try:
            answer = await self._channel.call(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(id=lease), timeout_s)
        except EtcdError as error:
            if error.verdict is not Verdict.LEASE_GONE:
                raise
            raise LeaseLost from None
        if answer.ttl <= 0:
            raise LeaseLost
        return min(answer.ttl, answer.granted_ttl) * 1000

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


class _Line:
    """One stream of renewals: etcd answers each with the lease's number, and those of one lease in order."""

    def __init__(self, stream: Stream[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse]) -> None:
        self.stream = stream
        self._waiting: defaultdict[int, deque[asyncio.Future[int]]] = defaultdict(deque)

    async def renew(self, lease: int) -> int:
        """Ask, and give the answer: the lease's time in seconds."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        # It stays even if nobody waits for it any more: its answer comes all the same, and is not that of the next one.
        self._waiting[lease].append(answer)
        await self.stream.write(pb.LeaseKeepAliveRequest(id=lease))
        return await answer

    def answered(self, lease: int, ttl_s: int) -> None:
        """Take an answer."""
        waiting = self._waiting.get(lease)
        if waiting:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(ttl_s)
            if not waiting:
                del self._waiting[lease]

    def failed(self, error: EtcdError) -> None:
        """Tell everybody who waits that there will be no answer."""
        for waiting in self._waiting.values():
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_exception(error)
                    waiter.exception()  # looked at, though its caller may be gone
        self._waiting.clear()


class _Renewals:
    """All renewals of a store, on one stream at a time."""

    def __init__(self, channel: EtcdChannel) -> None:
        self._channel = channel
        self._line: _Line | None = None
        self._opening = asyncio.Lock()
        self._readers: set[asyncio.Task[None]] = set()
        channel.on_move(self._cut)

    async def renew(self, lease: int, timeout_s: float) -> int:
        try:
            async with asyncio.timeout(timeout_s):
                async with self._opening:
                    line = self._line
                    if line is None:
                        line = self._line = _Line(await self._channel.stream(KEEP_ALIVE, timeout_s))
                        reader = asyncio.create_task(self._read(line), name="etcd-renewals")
                        self._readers.add(reader)
                        reader.add_done_callback(self._readers.discard)
                return await line.renew(lease)
        except TimeoutError:
            # Without its quorum a cluster gives no answer at all: only our own deadline ends the wait. The connection may
            # be at fault, so the next one goes over another stream.
            self._cut()
            raise EtcdError(Verdict.UNKNOWN, "no answer to the renewal", elsewhere=True, late=True) from None

    async def close(self) -> None:
        self._cut()
        if self._readers:
            await asyncio.wait(set(self._readers))

    def _cut(self) -> None:
        if self._line is not None:
            self._line.stream.cancel()
            self._line = None

    async def _read(self, line: _Line) -> None:
        try:
            while True:
                answer = await line.stream.read()
                line.answered(answer.id, answer.ttl)
        except EtcdError as error:
            if self._line is line:
                self._line = None
                self._channel.failed(line.stream.connection, error)
            line.failed(error)
        finally:
            line.stream.cancel()
