"""The store port in plain Python: the model that the durable adapters are held against."""

from __future__ import annotations

import asyncio
import secrets
from bisect import bisect_right
from typing import TYPE_CHECKING

from kokuban_server.adapters.memory.history import History
from kokuban_server.core.change_set import DeleteKey
from kokuban_server.core.refusals import HistoryCompacted, StoreUnavailable, TokenAheadOfStore
from kokuban_server.ports.board_store import (
    AtLeast,
    CommitRefused,
    Consistency,
    Cut,
    Lease,
    LeaseLost,
    Page,
    Record,
    Snapshot,
    StoreStatus,
    WatchBatch,
)
from kokuban_server.ports.group_commit import BatchCounts, GroupCommit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.clock import Clock
    from kokuban_server.ports.group_commit import Answer

_BATCH_MEMBERS_MAX = 64
_BATCH_BYTES_MAX = 8 * 1024 * 1024
_WATCH_EVENTS_MAX = 1_000
"""Where a batch of a watch ends, at the next revision."""


class MemoryStore:
    """A store that forgets everything when it is closed.

    `monotonic` gives lease time in seconds; by default it is the running event loop's, so that leases lapse in virtual
    time when the loop's time is virtual. No thread is started, and no task outlives the work it was started for.
    """

    def __init__(self, clock: Clock, monotonic: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._epoch = secrets.token_hex(8)
        self._history = History()
        self._store_time_ms = 0
        self._compacted = 0
        self._leases: dict[int, tuple[int, float]] = {}  # its TTL in milliseconds, and when it lapses
        self._last_lease = 0
        self._lapse_timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()  # a new one after each change
        self._closed = False
        self._group = GroupCommit(self._send, members_max=_BATCH_MEMBERS_MAX, bytes_max=_BATCH_BYTES_MAX)

    @property
    def epoch(self) -> str:
        """Name the store's present life."""
        return self._epoch

    @property
    def batches(self) -> BatchCounts:
        """See the port."""
        return self._group.counts

    # Writing.

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        """Apply the change set; see the port."""
        self._touch()
        return await self._group.commit(change, deadline_s)

    async def _send(self, batch: Sequence[ChangeSet]) -> Sequence[Answer]:
        self._collect_lapsed()
        revision = self._history.revision + 1
        answers: list[Answer] = []
        accepted: list[ChangeSet] = []
        for change in batch:
            refusal = self._refusal(change)
            answers.append(refusal or (revision if change.puts or change.deletes else revision - 1))
            if refusal is None:
                accepted.append(change)
        if any(change.puts for change in accepted):
            self._store_time_ms = max(self._store_time_ms, self._clock.now_ms())
        for change in accepted:
            for put in change.puts:
                self._history.put(revision, put.key, put.value, put.lease)
            for delete in change.deletes:
                keys = [delete.key] if isinstance(delete, DeleteKey) else self._history.keys_between(*delete)
                for key in keys:
                    self._history.delete(revision, key)
        self._announce()
        # Nothing but removals of what was not there: the revision was not used, and the state before is the answer.
        present = self._history.revision
        return [min(answer, present) if isinstance(answer, int) else answer for answer in answers]

    def _refusal(self, change: ChangeSet) -> CommitRefused | LeaseLost | None:
        failures = tuple(
            failure
            for place, guard in enumerate(change.guards)
            if (failure := self._history.judge(place, guard, self._store_time_ms)) is not None
        )
        if failures:
            return CommitRefused(failures)
        if any(put.lease is not None and put.lease not in self._leases for put in change.puts):
            return LeaseLost()
        return None

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # Reading.

    async def read(self, keys: Sequence[bytes], consistency: Consistency, deadline_s: float) -> Cut:  # noqa: ARG002 - answers at once
        """Give what the keys hold; see the port."""
        self._touch()
        revision = self._revision_for(consistency)
        records = tuple(self._history.record(key, revision) for key in keys)
        return Cut(revision, self._store_time_ms, records)

    async def scan(
        self,
        prefix: bytes,
        after: bytes,
        limit: int,
        bytes_max: int,
        consistency: Consistency,
        deadline_s: float,  # noqa: ARG002 - answers at once
    ) -> Page:
        """Give a page of the prefix's keys; see the port."""
        self._touch()
        revision = self._revision_for(consistency)
        records: list[Record] = []
        size = 0
        more = False
        for record in self._history.records_below(prefix, after, revision):
            size += len(record.key) + len(record.value)
            if len(records) == limit or (records and size > bytes_max):
                more = True
                break
            records.append(record)
        return Page(revision, self._store_time_ms, tuple(records), more)

    def _revision_for(self, consistency: Consistency) -> int:
        present = self._history.revision
        if isinstance(consistency, AtLeast | Snapshot) and consistency.revision > present:
            raise TokenAheadOfStore("")
        if not isinstance(consistency, Snapshot):
            return present
        if consistency.revision < self._compacted:
            raise HistoryCompacted(self._compacted)
        return consistency.revision

    async def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Give every change to the prefixes' keys; see the port. The log is the buffer: each reader has its own place."""
        self._touch()
        if after_revision > self._history.revision:
            raise TokenAheadOfStore("")
        wanted = tuple(prefixes)
        reached = after_revision
        first = True
        while True:
            if reached < self._compacted:
                raise HistoryCompacted(self._compacted)
            changed = self._changed
            batch = self._batch_after(wanted, reached)
            if first or batch.revision > reached:
                first = False
                reached = batch.revision
                yield batch
            else:
                await changed.wait()
            if self._closed:
                raise StoreUnavailable("closed")

    def _batch_after(self, prefixes: tuple[bytes, ...], reached: int) -> WatchBatch:
        events = self._history.events
        start = bisect_right(events, reached, key=lambda event: event.revision)
        end = start + _WATCH_EVENTS_MAX
        revision = self._history.revision
        if end < len(events):
            revision = events[end].revision
            end = bisect_right(events, revision, key=lambda event: event.revision)
        return WatchBatch(revision, tuple(event for event in events[start:end] if event.key.startswith(prefixes)))

    # Leases.

    async def grant_lease(self, ttl_ms: int, deadline_s: float) -> Lease:  # noqa: ARG002 - answers at once
        """Begin a lease; see the port."""
        self._touch()
        self._last_lease += 1
        self._leases[self._last_lease] = (ttl_ms, self._now_s() + ttl_ms / 1000)
        self._set_timer()
        return Lease(self._last_lease, ttl_ms)

    async def renew_lease(self, lease: int, deadline_s: float) -> int:  # noqa: ARG002 - answers at once
        """Begin the lease's time anew; see the port."""
        self._touch()
        if lease not in self._leases:
            raise LeaseLost
        ttl_ms, _ = self._leases[lease]
        self._leases[lease] = (ttl_ms, self._now_s() + ttl_ms / 1000)
        return ttl_ms

    async def lease_left(self, lease: int, deadline_s: float) -> int:  # noqa: ARG002 - answers at once
        """Give how long the lease lives unless it is renewed; see the port."""
        self._touch()
        if lease not in self._leases:
            raise LeaseLost
        _, lapses_at = self._leases[lease]
        return max(1, round((lapses_at - self._now_s()) * 1000))

    async def revoke_lease(self, lease: int, deadline_s: float) -> None:  # noqa: ARG002 - answers at once
        """End the lease; see the port."""
        self._touch()
        self._end_leases([lease])

    def _end_leases(self, leases: Sequence[int]) -> None:
        for lease in leases:
            if self._leases.pop(lease, None) is not None:
                revision = self._history.revision + 1
                for key in self._history.keys_of_lease(lease):
                    self._history.delete(revision, key)
        self._announce()

    def _collect_lapsed(self) -> None:
        now = self._now_s()
        lapsed = [lease for lease, (_, lapses_at) in self._leases.items() if lapses_at <= now]
        if lapsed:
            self._end_leases(lapsed)

    def _set_timer(self) -> None:
        """See to it that leases lapse when nobody touches the store."""
        if self._lapse_timer is not None:
            self._lapse_timer.cancel()
            self._lapse_timer = None
        if self._leases and not self._closed:
            wait_s = max(0.0, min(lapses_at for _, lapses_at in self._leases.values()) - self._now_s())
            self._lapse_timer = asyncio.get_running_loop().call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._collect_lapsed()
        self._set_timer()

    def _now_s(self) -> float:
        return (self._monotonic or asyncio.get_running_loop().time)()

    # The rest.

    async def compact(self, before_revision: int, deadline_s: float) -> int:  # noqa: ARG002 - answers at once
        """Forget older states; see the port."""
        self._touch()
        floor = min(before_revision, self._history.revision)
        if floor > self._compacted:
            self._compacted = floor
            self._history.compact(floor)
        return self._compacted

    async def status(self, deadline_s: float) -> StoreStatus:  # noqa: ARG002 - answers at once
        """Say how the store is."""
        self._touch()
        return StoreStatus(
            kind="memory",
            version="1",
            revision=self._history.revision,
            compacted_revision=self._compacted,
            store_time_ms=self._store_time_ms,
            size_bytes=self._history.size_bytes,
            size_bytes_max=0,
            leader="",
        )

    async def close(self) -> None:
        """Finish the commits that wait and refuse everything from now on."""
        await self._group.close()
        self._closed = True
        self._set_timer()
        self._announce()

    def _touch(self) -> None:
        """Begin every call: nothing works on a closed store, and nobody sees what hangs on a lapsed lease."""
        if self._closed:
            raise StoreUnavailable("closed")
        self._collect_lapsed()
