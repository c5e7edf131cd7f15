"""One chain of audit records: this server's, of one tenant."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import commit_surely
from kokuban_server.core import keys, limits
from kokuban_server.core.audit import ChainHead
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, Put
from kokuban_server.core.refusals import Contended, OutcomeUnknown, Refusal, StoreUnavailable
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.audit_codec import decode_head, encode_head, seal_record

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from typing import TypeAlias

    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.audit import AuditRecord
    from kokuban_server.core.change_set import Guard
    from kokuban_server.ports.board_store import BoardStore

    Commit: TypeAlias = Callable[[ChangeSet, float], Awaitable[int]]

_NOTHING_ELSE = ChangeSet(())
_WRITE_S = 10.0


class _Tail(NamedTuple):
    """Where the chain ends."""

    sequence: int
    hash: bytes
    record_time_ms: int
    head_revision: int
    """When the head was last written; 0 before the first record."""


class AuditChain:
    """Writes a chain's records, one commit after the other.

    Every commit moves the chain's head and is guarded on where it was. So a commit that arrives late, after its outcome was
    looked for, either stands before the next record or not at all.
    """

    def __init__(self, store: BoardStore, time: StoreTime, tenant: str, name: str) -> None:
        self._store = store
        self._time = time
        self._tenant = tenant
        self._name = name
        self._head_key = keys.audit_chain(keys.AUDIT_HEAD, tenant, name)
        self._moved_key = keys.audit_chain(keys.AUDIT_MOVED, tenant, name)
        self._writing = asyncio.Lock()
        self._tail: _Tail | None = _Tail(0, b"", 0, 0)
        """Nothing where it must be read, because the outcome of a commit is not known."""
        self._waiting: list[tuple[AuditRecord, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def append(self, record: AuditRecord, deadline: float) -> None:
        """Write a record; it is durable when this returns. Those that wait at the same moment share a commit.

        Raises what the store says, and `OutcomeUnknown` when the deadline comes first.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, written))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_waiting(), name="audit-append")
        try:
            async with asyncio.timeout(left_s(deadline)):
                await written
        except TimeoutError:
            raise OutcomeUnknown(detail="the audit record was not written in time") from None

    async def _write_waiting(self) -> None:
        try:
            while self._waiting:
                batch = self._waiting[: limits.AUDIT_BATCH_ENTRIES_MAX]
                del self._waiting[: limits.AUDIT_BATCH_ENTRIES_MAX]
                fault: Exception | None = None
                try:
                    await self.write([record for record, _ in batch], asyncio.get_running_loop().time() + _WRITE_S)
                except Exception as failure:  # noqa: BLE001 - told to each that waits
                    fault = failure
                for _, written in batch:
                    if written.done():  # its caller has given up
                        continue
                    if fault is None:
                        written.set_result(None)
                    else:
                        written.set_exception(fault)
        finally:
            self._writer = None

    async def write(
        self,
        records: Sequence[AuditRecord],
        deadline: float,
        change: ChangeSet = _NOTHING_ELSE,
        commit: Commit | None = None,
    ) -> int:
        """Write records, and what they are about, at one revision; give it. Refused or not, no number is left out.

        Raises `CommitRefused` with those guards of the change that do not hold, and whatever `commit` raises; nothing was
        written then, unless it is `OutcomeUnknown`.
        """
        commit = commit or partial(commit_surely, self._store)
        async with self._turn(deadline):
            for _ in range(limits.PLAN_ATTEMPTS_MAX):
                tail = self._tail or await self._read_tail(deadline)
                self._tail = None
                puts, head = self._link(records, tail)
                is_at = AtRevision(self._head_key, tail.head_revision) if tail.head_revision else Absent(self._head_key)
                guards: tuple[Guard, ...] = (*change.guards, is_at)
                try:
                    revision = await commit(ChangeSet(guards, (*change.puts, *puts), change.deletes), deadline)
                except CommitRefused as refusal:
                    theirs = tuple(failure for failure in refusal.failures if failure.place < len(change.guards))
                    if theirs == refusal.failures:  # the chain is where it was
                        self._tail = tail
                        raise
                    stands_at = await self._stands_at(puts[0], deadline)
                    if stands_at is None and theirs:
                        raise CommitRefused(theirs) from None
                    if stands_at is None:
                        continue
                    revision = stands_at  # an earlier try of the same set, whose answer was lost
                self._tail = _Tail(head.sequence, head.hash, head.record_time_ms, revision)
                return revision
            raise Contended(limits.PLAN_ATTEMPTS_MAX)

    @contextlib.asynccontextmanager
    async def _turn(self, deadline: float) -> AsyncGenerator[None, None]:
        try:
            async with asyncio.timeout(left_s(deadline)):
                await self._writing.acquire()
        except TimeoutError:
            raise StoreUnavailable("the audit log was busy for too long") from None
        try:
            yield
        finally:
            self._writing.release()

    def _link(self, records: Sequence[AuditRecord], tail: _Tail) -> tuple[list[Put], ChainHead]:
        """Give what writes records behind the chain's end, and the end that they make."""
        sequence, previous = tail.sequence, tail.hash
        time_ms = max(self._time.now_ms(), tail.record_time_ms)
        puts = []
        for record in records:
            sequence += 1
            sealed = seal_record(
                replace(record, chain=self._name, sequence=sequence, previous_hash=previous, record_time_ms=time_ms)
            )
            previous = sealed.hash
            puts.append(Put(keys.audit_record(self._tenant, time_ms, self._name, sequence), sealed.encode()))
        head = ChainHead(self._name, sequence, time_ms, previous)
        end = encode_head(head)
        return [*puts, Put(self._head_key, end), Put(self._moved_key, end)], head

    async def _read_tail(self, deadline: float) -> _Tail:
        found = (await self._store.read([self._head_key], STRONG, left_s(deadline))).records[0]
        if found is None:
            return _Tail(0, b"", 0, 0)
        head = decode_head(found.key, found.value)
        return _Tail(head.sequence, head.hash, head.record_time_ms, found.revision)

    async def _stands_at(self, put: Put, deadline: float) -> int | None:
        """Give the revision of a record that may have been written, or nothing if it was not."""
        try:
            found = (await self._store.read([put.key], STRONG, left_s(deadline))).records[0]
        except Refusal as refusal:
            raise OutcomeUnknown(detail="what became of the audit record cannot be read") from refusal
        return found.revision if found is not None and found.value == put.value else None
