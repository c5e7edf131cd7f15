"""Locks: taking and giving back, handing over, and writing under and beside them; and what etcd alone does."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration

from kokuban.etcd.v1 import etcd_pb2
from kokuban.v1 import commit_pb2, lock_pb2, lock_service_pb2, session_service_pb2

from .measurement import Measurement, closed_loop, measured
from .messages import BOARD, COMMIT, METADATA, REGION, Puts, new_request_id

if TYPE_CHECKING:
    import grpc

_LONG = Duration(seconds=3_600)


class Holder:
    """A session, and the locks it takes."""

    def __init__(self, channel: grpc.aio.Channel, region: str, path: str) -> None:
        self._open: Any = channel.unary_unary("/kokuban.v1.SessionService/OpenSession")
        self._acquire: Any = channel.unary_stream("/kokuban.v1.LockService/AcquireLock")
        self._release: Any = channel.unary_unary("/kokuban.v1.LockService/ReleaseLock")
        target = lock_pb2.LockTarget(region=region, path=path, scope=lock_pb2.LOCK_SCOPE_SUBTREE)
        self._request = lock_service_pb2.AcquireLockRequest(
            board=BOARD, targets=[target], mode=lock_pb2.LOCK_MODE_EXCLUSIVE, purpose="to be measured"
        )
        self.fence = lock_pb2.Fence()

    async def open(self) -> None:
        """Open the session."""
        request = session_service_pb2.OpenSessionRequest(board=BOARD, request_id=new_request_id(), ttl=_LONG)
        raw = await self._open(request.SerializeToString(), metadata=METADATA)
        self._request.session_id = session_service_pb2.OpenSessionResponse.FromString(raw).session.id

    async def acquire(self, wait_s: int = 0) -> None:
        """Take the lock."""
        self._request.request_id = new_request_id()
        self._request.wait.seconds = wait_s
        call = self._acquire(self._request.SerializeToString(), metadata=METADATA)
        while True:
            answer = lock_service_pb2.AcquireLockResponse.FromString(await call.read())
            if answer.HasField("granted"):  # the last message
                self.fence = answer.granted.fence
                return

    async def release(self) -> None:
        """Give the lock back."""
        request = lock_service_pb2.ReleaseLockRequest(board=BOARD, fence=self.fence)
        raw = await self._release(request.SerializeToString(), metadata=METADATA)
        outcome = lock_service_pb2.ReleaseLockResponse.FromString(raw).outcome
        if outcome != lock_service_pb2.RELEASE_OUTCOME_RELEASED:
            raise RuntimeError("the lock was lost")

    async def cycle(self) -> None:
        """Take the lock and give it back."""
        await self.acquire()
        await self.release()


class LockCycles:
    """Sessions that each take and give back a lock in a region of its own."""

    def __init__(self, channel: grpc.aio.Channel, sessions: int = 64) -> None:
        self._holders = [Holder(channel, f"shared:cycle-{number}", "held") for number in range(sessions)]

    async def prepare(self) -> None:
        """Open the sessions."""
        for holder in self._holders:
            await holder.open()

    async def run(self, operations: int) -> Measurement:
        """Lock and release."""
        return await closed_loop([holder.cycle for holder in self._holders], operations)


class RawLockCycles:
    """Keys that are each created on a lease if absent, and deleted again, by single transactions."""

    def __init__(self, channel: grpc.aio.Channel, sessions: int = 64) -> None:
        self._grant: Any = channel.unary_unary("/etcdserverpb.Lease/LeaseGrant")
        self._transact: Any = channel.unary_unary(
            "/etcdserverpb.KV/Txn",
            request_serializer=etcd_pb2.TxnRequest.SerializeToString,
            response_deserializer=etcd_pb2.TxnResponse.FromString,
        )
        self._leases = [0] * sessions

    async def prepare(self) -> None:
        """Begin the leases."""
        for number in range(len(self._leases)):
            raw = await self._grant(etcd_pb2.LeaseGrantRequest(ttl=3_600).SerializeToString())
            self._leases[number] = etcd_pb2.LeaseGrantResponse.FromString(raw).id

    async def run(self, operations: int) -> Measurement:
        """Create and delete."""
        return await closed_loop([partial(self._cycle, number) for number in range(len(self._leases))], operations)

    async def _cycle(self, number: int) -> None:
        key = f"raw/lock_{number}".encode()
        absent = etcd_pb2.Compare(
            result=etcd_pb2.Compare.EQUAL, target=etcd_pb2.Compare.CREATE, key=key, create_revision=0
        )
        put = etcd_pb2.PutRequest(key=key, value=b"held", lease=self._leases[number])
        answer = await self._transact(
            etcd_pb2.TxnRequest(compare=[absent], success=[etcd_pb2.RequestOp(request_put=put)])
        )
        if not answer.succeeded:
            raise RuntimeError("nobody else creates this key, and yet it is there")
        revision = answer.header.revision
        mine = etcd_pb2.Compare(
            result=etcd_pb2.Compare.EQUAL, target=etcd_pb2.Compare.CREATE, key=key, create_revision=revision
        )
        removal = etcd_pb2.RequestOp(request_delete_range=etcd_pb2.DeleteRangeRequest(key=key))
        answer = await self._transact(etcd_pb2.TxnRequest(compare=[mine], success=[removal]))
        if not answer.succeeded:
            raise RuntimeError("nobody else deletes this key, and yet it is gone")


class HandOvers:
    """One lock that goes from session to session, 50 of which wait. A hand-over is from the release to the next grant."""

    def __init__(self, channel: grpc.aio.Channel, waiters: int = 50) -> None:
        self._holders = [Holder(channel, REGION, "handed-over") for _ in range(waiters + 1)]
        self._granted: asyncio.Queue[tuple[Holder, float]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def prepare(self) -> None:
        """Have one session hold the lock and the others wait for it."""
        for holder in self._holders:
            await holder.open()
            self._ask(holder)

    def _ask(self, holder: Holder) -> None:
        task = asyncio.create_task(self._take(holder))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, holder: Holder) -> None:
        await holder.acquire(3_600)
        self._granted.put_nowait((holder, time.perf_counter()))

    async def run(self, operations: int) -> Measurement:
        """Hand over."""
        latencies = []
        begun = time.perf_counter()
        holder, _ = await self._granted.get()
        for _ in range(operations):
            released = time.perf_counter()
            await holder.release()
            following, granted = await self._granted.get()
            latencies.append(granted - released)
            self._ask(holder)
            holder = following
        self._granted.put_nowait((holder, 0.0))
        return measured(operations, time.perf_counter() - begun, latencies)


class RawPutToEvent:
    """One key that is put, and one watch that sees it. What is timed is from the put to its event."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._put: Any = channel.unary_unary("/etcdserverpb.KV/Put")
        self._watch: Any = channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=etcd_pb2.WatchRequest.SerializeToString,
            response_deserializer=etcd_pb2.WatchResponse.FromString,
        )()

    async def prepare(self) -> None:
        """Begin the watch."""
        create = etcd_pb2.WatchCreateRequest(key=b"raw/watched")
        await self._watch.write(etcd_pb2.WatchRequest(create_request=create))
        if not (await self._watch.read()).created:
            raise RuntimeError("the watch was not created")

    async def run(self, operations: int) -> Measurement:
        """Put, one after the other."""
        return await closed_loop([self._put_and_see], operations)

    async def _put_and_see(self) -> None:
        putting = asyncio.ensure_future(
            self._put(etcd_pb2.PutRequest(key=b"raw/watched", value=b"x").SerializeToString())
        )
        if not (await self._watch.read()).events:
            raise RuntimeError("no event")
        await putting


class FencedCommits:
    """Writers that each have one unary commit in flight; all under one lock if `locked`, else under none."""

    def __init__(self, channel: grpc.aio.Channel, writers: int = 64, *, locked: bool = True) -> None:
        self._commit: Any = channel.unary_unary(COMMIT)
        root = new_request_id()  # another's entries are its own
        self._holder = Holder(channel, REGION, root) if locked else None
        self._writers = [Puts([f"{root}/writer_{w}"]) for w in range(writers)]

    async def prepare(self) -> None:
        """Take the lock, and create the entries."""
        if self._holder is not None:
            await self._holder.open()
            await self._holder.acquire()
            for writer in self._writers:
                writer.message.fences.append(self._holder.fence)
        for writer in self._writers:
            await self._write(writer)

    async def run(self, operations: int) -> Measurement:
        """Write."""
        return await closed_loop([partial(self._write, writer) for writer in self._writers], operations)

    async def _write(self, writer: Puts) -> None:
        raw = await self._commit(writer.next().SerializeToString(), metadata=METADATA)
        writer.committed(commit_pb2.CommitResponse.FromString(raw).revision)


class WritersBesideLocks:
    """Writers without locks in a region where, if `busy`, somebody else's lock comes and goes once a second."""

    def __init__(self, channel: grpc.aio.Channel, *, busy: bool = True) -> None:
        self._commits = FencedCommits(channel, locked=False)
        self._holder = Holder(channel, REGION, "elsewhere") if busy else None

    async def prepare(self) -> None:
        """Create the entries, and open the session."""
        await self._commits.prepare()
        if self._holder is not None:
            await self._holder.open()

    async def run(self, operations: int) -> Measurement:
        """Write, while the lock comes and goes."""
        if self._holder is None:
            return await self._commits.run(operations)
        coming_and_going = asyncio.create_task(self._come_and_go(self._holder))
        measurement = await self._commits.run(operations)
        coming_and_going.cancel()
        await asyncio.wait([coming_and_going])
        return measurement

    async def _come_and_go(self, holder: Holder) -> None:
        while True:
            cycle = asyncio.ensure_future(holder.cycle())
            await asyncio.shield(cycle)
            await asyncio.sleep(1.0)
