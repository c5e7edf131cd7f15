"""The store port on an etcd cluster."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING, Final, TypeVar

from kokuban.etcd.v1 import etcd_pb2 as pb
from kokuban_server.adapters.etcd import reads
from kokuban_server.adapters.etcd.channel import EtcdChannel
from kokuban_server.adapters.etcd.errors import EtcdError, Verdict
from kokuban_server.adapters.etcd.layout import Layout
from kokuban_server.adapters.etcd.leases import Leases, new_lease_id
from kokuban_server.adapters.etcd.methods import COMPACT, RANGE, STATUS, TXN, WATCH
from kokuban_server.adapters.etcd.opening import begin
from kokuban_server.adapters.etcd.pauses import pauses
from kokuban_server.adapters.etcd.reads import Found, Reads, Span
from kokuban_server.adapters.etcd.settings import EtcdSettings
from kokuban_server.adapters.etcd.transactions import EpochChanged, Transactions, split
from kokuban_server.adapters.etcd.watches import Watches
from kokuban_server.core.refusals import (
    HistoryCompacted,
    InvalidRequest,
    OutcomeUnknown,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
    TokenAheadOfStore,
)
from kokuban_server.ports.board_store import (
    AtLeast,
    Cut,
    Lease,
    LeaseLost,
    Local,
    Page,
    Record,
    Snapshot,
    StoreStatus,
)
from kokuban_server.ports.group_commit import BatchCounts, GroupCommit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.board_store import Consistency, WatchBatch
    from kokuban_server.ports.clock import Clock
    from kokuban_server.ports.group_commit import Answer

log = logging.getLogger(__name__)

T = TypeVar("T")

_MEMBERS_MAX: Final = 96
_BATCH_BYTES_MAX: Final = 1_200_000
_CLOSE_S: Final = 10.0
_OPEN_DEADLINE_S: Final = 15.0
_SNAPSHOT_READS_MAX: Final = 16
_SCAN_KEYS_FIRST: Final = 64
_SCAN_KEYS_MAX: Final = 1_000
_SCAN_GROWTH: Final = 4
_RECORD_BYTES_MIN: Final = 64


class _NotDone(Exception):  # noqa: N818 - between the batch and its members only
    """The change set definitely does not stand; it may be sent again."""


_FOR_ALL_ALIKE: Final[dict[Verdict, Callable[[str], Exception]]] = {
    Verdict.UNKNOWN: lambda detail: OutcomeUnknown(detail=detail),
    Verdict.NOT_DONE: _NotDone,
    Verdict.UNAUTHENTICATED: _NotDone,
    Verdict.CORRUPT: lambda detail: StoreCorrupt(b"", detail),
}
"""What a transaction's failure means to each change set in it, where it means the same to all."""


class EtcdStore:
    """A store below one prefix of an etcd cluster."""

    def __init__(self, settings: EtcdSettings, clock: Clock, channel: EtcdChannel, layout: Layout, epoch: str) -> None:
        """Made by `open`."""
        self.stale_answers = 0
        """How often a member answered a strong read from a state older than one already seen."""
        self._settings = settings
        self._clock = clock
        self._channel = channel
        self._layout = layout
        self._epoch = epoch
        self._prefix_bytes = len(layout.data)
        self._transactions = Transactions(layout, epoch)
        self._group = GroupCommit(self._send, members_max=_MEMBERS_MAX, bytes_max=_BATCH_BYTES_MAX)
        self._reads = Reads(layout, self._transactions, self._read_together)
        self._leases = Leases(channel)
        self._watches = Watches(
            channel,
            layout,
            present=self._present,
            floor=self._floor,
            timeout_s=settings.attempt_s,
            reconcile_s=settings.reconcile_s,
        )
        self._seen_revision = 0
        """The highest revision that an answer was given at: no later one may be below."""
        self._told_time_ms = 0
        """Where this server last moved store time to."""
        self._record_bytes = 1024.0
        """What a record takes, about: how scans choose their first step."""
        self._ended: StoreUnavailable | None = None

    @classmethod
    async def open(cls, settings: EtcdSettings | str, clock: Clock, deadline_s: float = _OPEN_DEADLINE_S) -> EtcdStore:
        """Connect, and begin a store below the prefix if there is none.

        Raises `StoreUnavailable` when no member answers, `SchemaTooNew`, and `StoreCorrupt`.
        """
        if isinstance(settings, str):
            settings = EtcdSettings.from_url(settings)
        layout = Layout.below(settings.prefix)
        channel = EtcdChannel(settings)
        try:
            epoch = await begin(channel, layout, settings.attempt_s, clock.now_ms(), deadline_s)
        except BaseException:
            await channel.close()
            raise
        return cls(settings, clock, channel, layout, epoch)

    @property
    def epoch(self) -> str:
        """See the port."""
        return self._epoch

    @property
    def batches(self) -> BatchCounts:
        """See the port."""
        return self._group.counts

    @property
    def watches(self) -> Watches:
        """The store's watches, for figures and checks."""
        return self._watches

    async def close(self) -> None:
        """See the port."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._group.close()
        except TimeoutError:
            log.warning("etcd.close_cut_commits")
        if self._ended is None:
            self._ended = StoreUnavailable("closed")
        await self._watches.close(self._ended)
        await self._reads.close()
        await self._leases.close()
        await self._channel.close()

    # Commits.

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        """See the port. What definitely did not happen is tried again inside, until the deadline."""
        self._check_open()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        try:
            return await self._group.commit(change, deadline_s)
        except _NotDone as failure:
            error = failure
        for pause_s in pauses():
            if loop.time() + pause_s >= until_s:
                break
            await asyncio.sleep(pause_s)
            self._check_open()
            try:
                return await self._group.commit(change, until_s - loop.time())
            except _NotDone as again:
                error = again
        raise StoreUnavailable(str(error))

    async def _send(self, batch: Sequence[ChangeSet]) -> Sequence[Answer]:
        parts = split(batch, self._prefix_bytes)
        if len(parts) == 1:
            return await self._send_part(batch)
        return [answer for part in parts for answer in await self._send_part(part)]

    async def _send_part(self, changes: Sequence[ChangeSet]) -> list[Answer]:
        """Send one transaction; sort out what failed as a whole."""
        if self._ended is not None and self._ended.detail != "closed":
            return [StoreUnavailable(self._ended.detail) for _ in changes]
        now_ms = self._clock.now_ms()
        moves_time = now_ms > self._told_time_ms and any(change.puts for change in changes)
        request = self._transactions.encode(changes, now_ms if moves_time else None)
        seen = self._seen_revision
        try:
            response = await self._channel.call(TXN, request, self._settings.attempt_s)
            answers = self._transactions.decode(changes, response)
        except EpochChanged:
            return [self._restored() for _ in changes]
        except EtcdError as error:
            return await self._after_failure(changes, error, seen)
        revision = response.header.revision
        if revision < seen:
            # Stands where it stands, but etcd went back: whoever holds a later revision must not take this for newer.
            self.stale_answers += 1
            return [OutcomeUnknown(detail="etcd went back to an earlier revision") for _ in changes]
        self._seen_revision = max(self._seen_revision, revision)
        if moves_time and response.succeeded:
            self._told_time_ms = max(self._told_time_ms, now_ms)
        return answers

    async def _after_failure(self, changes: Sequence[ChangeSet], error: EtcdError, seen: int) -> list[Answer]:
        verdict = error.verdict
        if verdict in _FOR_ALL_ALIKE:
            return [_FOR_ALL_ALIKE[verdict](error.detail) for _ in changes]
        if verdict is Verdict.FULL:
            return await self._after_full(changes, seen)
        if verdict is Verdict.LEASE_GONE:
            free = [all(put.lease is None for put in change.puts) for change in changes]
            return await self._apart(changes, free)
        if len(changes) > 1:
            return [answer for change in changes for answer in await self._send_part([change])]
        if verdict is Verdict.TOO_LARGE:
            return [InvalidRequest("COMMIT_TOO_LARGE", "mutations", "more than the store takes in one request")]
        return [StoreUnavailable(error.detail)]

    async def _after_full(self, changes: Sequence[ChangeSet], seen: int) -> list[Answer]:
        """Say what became of a transaction that found no room.

        The one that raises etcd's alarm is answered like those after it, but has been applied. So what was put is looked
        for. If nothing is there, the sets that only delete go by themselves: nothing that holds a put goes through, not
        even in a branch that is not taken.
        """
        fates = [await self._fate(change, seen) for change in changes]
        if any(isinstance(fate, int | OutcomeUnknown) for fate in fates):
            return [OutcomeUnknown(detail="the store became full") if fate is None else fate for fate in fates]
        together = [change for change in changes if not change.puts]
        answered = iter(await self._send_part(together) if together else ())
        return [next(answered) if fate is None else fate for fate in fates]

    async def _fate(self, change: ChangeSet, seen: int) -> Answer | None:
        """Find out whether a set's puts stand, written after a revision; nothing for a set without puts."""
        if not change.puts:
            return None
        data = self._layout.data
        try:
            found = await self._reads.read([Span(data + put.key) for put in change.puts])
        except (EtcdError, EpochChanged):
            return OutcomeUnknown(detail="the store became full")
        written: set[int] = set()
        for put, answer in zip(change.puts, found.ranges, strict=True):
            kv = answer.kvs[0] if answer.kvs else None
            if kv is not None and kv.mod_revision > seen:
                written.add(kv.mod_revision if kv.value == put.value else 0)
            else:
                written.add(-1)
        if written == {-1}:
            return StoreFull()
        if len(written) == 1 and max(written) > 0:
            return written.pop()
        return OutcomeUnknown(detail="the store became full")

    async def _apart(self, changes: Sequence[ChangeSet], innocent: Sequence[bool]) -> list[Answer]:
        """Send those together that cannot be what a transaction failed for; of the others, each by itself.

        One that goes alone has lost its lease.
        """
        together = [change for change, free in zip(changes, innocent, strict=True) if free]
        answered = iter(await self._send_part(together) if together else ())
        answers: list[Answer] = []
        for change, free in zip(changes, innocent, strict=True):
            if free:
                answers.append(next(answered))
            elif len(changes) == 1:
                answers.append(LeaseLost())
            else:
                answers += await self._send_part([change])
        return answers

    # Reads.

    async def read(self, keys: Sequence[bytes], consistency: Consistency, deadline_s: float) -> Cut:
        """See the port. `AtLeast` is answered by a strong read."""
        data = self._layout.data
        spans = [Span(data + key) for key in keys]
        found, revision = await self._find(spans, consistency, deadline_s)
        records = tuple(
            _record(key, answer.kvs[0]) if answer.kvs else None for key, answer in zip(keys, found.ranges, strict=True)
        )
        return Cut(revision, found.store_time_ms, records)

    async def scan(
        self, prefix: bytes, after: bytes, limit: int, bytes_max: int, consistency: Consistency, deadline_s: float
    ) -> Page:
        """See the port.

        etcd bounds ranges by keys, not by bytes. So the first step takes as many keys as records of the size lately seen
        would fill the page, at most 64; and each further step, at the first one's revision, at most four times the last.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        start, end = self._layout.range(prefix)
        if after and (behind := self._layout.data + after + b"\0") > start:
            start = behind
        records: list[Record] = []
        left = bytes_max
        step = min(_SCAN_KEYS_FIRST, max(1, int(bytes_max / self._record_bytes) + 1))
        at = consistency
        first: tuple[int, int] | None = None  # revision and store time of the page
        while True:
            asked = min(step, limit - len(records))
            if start >= end:
                asked = 0
            span = Span(start, end, max(asked, 1))
            found, revision = await self._find([span], at, until_s - loop.time())
            first = first or (revision, found.store_time_ms)
            answer = found.ranges[0]
            kvs = answer.kvs if asked else ()
            for kv in kvs:
                record = _record(kv.key[self._prefix_bytes :], kv)
                size = len(record.key) + len(record.value)
                self._record_bytes += (max(size, _RECORD_BYTES_MIN) - self._record_bytes) / 64
                if records and size > left:
                    return Page(*first, tuple(records), more=True)
                left -= size
                records.append(record)
            if not answer.more or not asked:
                return Page(*first, tuple(records), more=False)
            if len(records) >= limit or left <= 0:
                return Page(*first, tuple(records), more=True)
            start = self._layout.data + records[-1].key + b"\0"
            step = min(step * _SCAN_GROWTH, _SCAN_KEYS_MAX, int(left / self._record_bytes) + 1)
            if not isinstance(at, Snapshot):
                at = Snapshot(revision)

    async def _find(self, spans: Sequence[Span], consistency: Consistency, deadline_s: float) -> tuple[Found, int]:
        """Read with the consistency asked for; give what was found and the revision it is the state of."""
        if isinstance(consistency, Local):
            found = await self._until(deadline_s, functools.partial(self._find_local, spans))
            return found, found.revision
        if isinstance(consistency, Snapshot):
            return await self._find_snapshot(spans, consistency.revision, deadline_s)
        found = await self._find_strong(spans, deadline_s)
        if isinstance(consistency, AtLeast) and consistency.revision > found.revision:
            raise TokenAheadOfStore("")
        return found, found.revision

    async def _find_strong(self, spans: Sequence[Span], deadline_s: float) -> Found:
        return await self._until(deadline_s, functools.partial(self._strong_once, spans))

    async def _strong_once(self, spans: Sequence[Span]) -> Found:
        seen = self._seen_revision
        found = await self._reads.read(spans)
        if found.revision < seen:
            # etcd 3.4 does this after a pause. Believing it would show a state without acknowledged writes.
            self.stale_answers += 1
            self._channel.leave_current()
            raise EtcdError(Verdict.NOT_DONE, f"answered at revision {found.revision}, {seen} was seen")
        self._seen_revision = max(self._seen_revision, found.revision)
        return found

    async def _read_together(self, request: pb.TxnRequest) -> pb.TxnResponse:
        return await self._channel.call(TXN, request, self._settings.attempt_s)

    async def _find_local(self, spans: Sequence[Span]) -> Found:
        request = reads.encode(self._transactions, self._layout, [spans], serializable=True)
        response = await self._channel.call(TXN, request, self._settings.attempt_s, alone=True)
        return reads.decode(self._layout, response, [len(spans)])[0]

    async def _find_snapshot(self, spans: Sequence[Span], revision: int, deadline_s: float) -> tuple[Found, int]:
        """Read an older state: by single reads at its revision, never in a transaction.

        Members of a cluster came apart over transactions that read what a compaction took away in the same moment.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        present = await self._find_strong((), deadline_s)
        if revision > present.revision:
            raise TokenAheadOfStore("")
        slots = asyncio.Semaphore(_SNAPSHOT_READS_MAX)

        async def one(span: Span) -> pb.RangeResponse:
            request = pb.RangeRequest(key=span.start, range_end=span.end, limit=span.limit, revision=max(revision, 1))
            async with slots:
                return await self._until(
                    until_s - loop.time(), lambda: self._channel.call(RANGE, request, self._settings.attempt_s)
                )

        tasks = [asyncio.ensure_future(one(span)) for span in spans]
        try:
            ranges = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return Found(present.revision, present.store_time_ms, tuple(ranges)), revision

    # Watches.

    def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """See the port."""
        return self._watches.watch(prefixes, after_revision)

    # Leases.

    async def grant_lease(self, ttl_ms: int, deadline_s: float) -> Lease:
        """See the port."""
        lease = new_lease_id()
        return await self._until(
            deadline_s, lambda: self._leases.grant(lease, ttl_ms, min(deadline_s, self._settings.attempt_s))
        )

    async def renew_lease(self, lease: int, deadline_s: float) -> int:
        """See the port."""
        return await self._until(
            deadline_s, lambda: self._leases.renew(lease, min(deadline_s, self._settings.attempt_s))
        )

    async def lease_left(self, lease: int, deadline_s: float) -> int:
        """See the port. In whole seconds, rounded down."""
        return await self._until(deadline_s, lambda: self._leases.left(lease, self._settings.attempt_s))

    async def revoke_lease(self, lease: int, deadline_s: float) -> None:
        """See the port."""
        await self._until(deadline_s, lambda: self._leases.revoke(lease, self._settings.attempt_s))

    # The store itself.

    async def compact(self, before_revision: int, deadline_s: float) -> int:
        """See the port. The history that is forgotten is the whole cluster's, whoever else uses it."""
        present = (await self._find_strong((), deadline_s)).revision
        before = min(before_revision, present)
        if before > 0:
            request = pb.CompactionRequest(revision=before)
            try:
                await self._until(
                    deadline_s, lambda: self._channel.call(COMPACT, request, self._settings.attempt_s), floor=False
                )
            except HistoryCompacted:
                pass  # forgotten already, further than this
            else:
                return before
        return await self._until(deadline_s, self._floor)

    async def status(self, deadline_s: float) -> StoreStatus:
        """See the port. etcd does not tell its bound on size."""
        present = await self._find_strong((), deadline_s)
        member = await self._until(
            deadline_s, lambda: self._channel.call(STATUS, pb.StatusRequest(), self._settings.attempt_s)
        )
        return StoreStatus(
            kind="etcd",
            version=member.version,
            revision=present.revision,
            compacted_revision=await self._until(deadline_s, self._floor),
            store_time_ms=present.store_time_ms,
            size_bytes=member.db_size,
            size_bytes_max=0,
            leader=f"{member.leader:x}" if member.leader else "",
        )

    async def _present(self) -> int:
        return (await self._find_strong((), self._settings.attempt_s)).revision

    async def _floor(self) -> int:
        """Give the oldest state that is kept, or 0 if nothing was ever forgotten.

        etcd tells it only to a watch that begins below; one that may begin there gets the store's first key instead.
        """
        stream = await self._channel.stream(WATCH, self._settings.attempt_s)
        create = pb.WatchCreateRequest(key=self._layout.epoch, start_revision=1, watch_id=1)
        try:
            async with asyncio.timeout(self._settings.attempt_s):
                await stream.write(pb.WatchRequest(create_request=create))
                while True:
                    response = await stream.read()
                    if response.compact_revision:
                        return response.compact_revision
                    if response.canceled:
                        raise EtcdError(Verdict.UNKNOWN, response.cancel_reason)
                    if response.events:
                        return 0
        except TimeoutError:
            raise EtcdError(Verdict.UNKNOWN, "no answer", elsewhere=True, late=True) from None
        finally:
            stream.cancel()

    async def _until(self, deadline_s: float, act: Callable[[], Awaitable[T]], *, floor: bool = True) -> T:
        """Do what may safely be done twice until it succeeds or the deadline passes; turn etcd's errors into ours."""
        self._check_open()
        detail = "no answer within the deadline"
        try:
            async with asyncio.timeout(deadline_s):
                for pause_s in pauses():
                    try:
                        return await act()
                    except EpochChanged:
                        raise self._restored() from None
                    except EtcdError as error:
                        detail = error.detail
                        await self._refuse(error, floor=floor)
                    self._check_open()
                    await asyncio.sleep(pause_s)
        except TimeoutError:
            pass
        raise StoreUnavailable(detail)

    async def _refuse(self, error: EtcdError, *, floor: bool) -> None:
        """Raise what the error means, unless it means to try again."""
        match error.verdict:
            case Verdict.NOT_DONE | Verdict.UNKNOWN | Verdict.UNAUTHENTICATED:
                return
            case Verdict.COMPACTED:
                raise HistoryCompacted(await self._floor() if floor else 0)
            case Verdict.AHEAD:
                raise TokenAheadOfStore("")
            case Verdict.FULL:
                raise StoreFull
            case Verdict.CORRUPT:
                raise StoreCorrupt(b"", error.detail)
            case _:
                self._check_open()
                raise StoreUnavailable(error.detail)

    def _check_open(self) -> None:
        if self._ended is not None:
            raise StoreUnavailable(self._ended.detail)

    def _restored(self) -> StoreUnavailable:
        """Take no more calls: what this server told is of a life that the store has left. It must be started again."""
        detail = "the store was restored: this server knows its former life and must be started again"
        if self._ended is None:
            log.error("etcd.store_restored epoch=%s", self._epoch)
            self._ended = StoreUnavailable(detail)
            self._watches.end(self._ended)
        return StoreUnavailable(detail)


def _record(key: bytes, kv: pb.KeyValue) -> Record:
    return Record(key, kv.value, kv.mod_revision, kv.create_revision, kv.lease or None)
