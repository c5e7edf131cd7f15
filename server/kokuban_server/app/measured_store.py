"""The store, with how long each of its answers took and what they were."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from kokuban_server.core.refusals import Refusal
from kokuban_server.ports.board_store import CommitRefused, LeaseLost

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Sequence

    from kokuban_server.app.measures import Measures
    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.board_store import (
        BoardStore,
        Consistency,
        Cut,
        Lease,
        Page,
        StoreStatus,
        WatchBatch,
    )
    from kokuban_server.ports.group_commit import BatchCounts

_Answer = TypeVar("_Answer")


class MeasuredStore:
    """A store that is the same in everything. It is there only where somebody asks for metrics."""

    def __init__(self, store: BoardStore, measures: Measures) -> None:
        self._store = store
        self._measures = measures

    @property
    def epoch(self) -> str:
        """See the port."""
        return self._store.epoch

    @property
    def batches(self) -> BatchCounts:
        """See the port."""
        return self._store.batches

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        """See the port."""
        return await self._timed("commit", self._store.commit(change, deadline_s))

    async def read(self, keys: Sequence[bytes], consistency: Consistency, deadline_s: float) -> Cut:
        """See the port."""
        return await self._timed("read", self._store.read(keys, consistency, deadline_s))

    async def scan(
        self, prefix: bytes, after: bytes, limit: int, bytes_max: int, consistency: Consistency, deadline_s: float
    ) -> Page:
        """See the port."""
        return await self._timed("scan", self._store.scan(prefix, after, limit, bytes_max, consistency, deadline_s))

    def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """See the port. How long a watch takes says nothing."""
        return self._store.watch(prefixes, after_revision)

    async def grant_lease(self, ttl_ms: int, deadline_s: float) -> Lease:
        """See the port."""
        return await self._timed("grant_lease", self._store.grant_lease(ttl_ms, deadline_s))

    async def renew_lease(self, lease: int, deadline_s: float) -> int:
        """See the port."""
        return await self._timed("renew_lease", self._store.renew_lease(lease, deadline_s))

    async def lease_left(self, lease: int, deadline_s: float) -> int:
        """See the port."""
        return await self._timed("lease_left", self._store.lease_left(lease, deadline_s))

    async def revoke_lease(self, lease: int, deadline_s: float) -> None:
        """See the port."""
        await self._timed("revoke_lease", self._store.revoke_lease(lease, deadline_s))

    async def compact(self, before_revision: int, deadline_s: float) -> int:
        """See the port."""
        return await self._timed("compact", self._store.compact(before_revision, deadline_s))

    async def status(self, deadline_s: float) -> StoreStatus:
        """See the port."""
        return await self._timed("status", self._store.status(deadline_s))

    async def close(self) -> None:
        """See the port."""
        await self._store.close()

    async def _timed(self, operation: str, answer: Awaitable[_Answer]) -> _Answer:
        begun = time.perf_counter()
        outcome = "fault"
        try:
            found = await answer
            outcome = "ok"
        except CommitRefused:
            outcome = "guard_failed"
            raise
        except LeaseLost:
            outcome = "lease_lost"
            raise
        except Refusal as refusal:
            outcome = refusal.reason
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._measures.store_operation(operation, outcome, time.perf_counter() - begun)
        return found
