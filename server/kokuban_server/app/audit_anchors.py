"""Anchors: what the ends of chains were at a time, in one chain for each tenant, to which every server appends."""

from __future__ import annotations

import contextlib
from itertools import groupby
from typing import TYPE_CHECKING

import structlog

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import commit_surely, records_below
from kokuban_server.core import keys, limits
from kokuban_server.core.audit import Anchor, ChainHead
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, DeleteKey, Put
from kokuban_server.core.refusals import Contended, Refusal, StoreUnavailable
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.audit_codec import decode_head, encode_head, seal_anchor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.change_set import Guard
    from kokuban_server.ports.board_store import BoardStore, Record

_log = structlog.get_logger()


class AuditAnchors:
    """Anchors what moved. Every server does so, for the chains of all: a server that was killed cannot anchor its own."""

    def __init__(self, store: BoardStore, time: StoreTime, server_id: str) -> None:
        self._store = store
        self._time = time
        self._server_id = server_id

    async def anchor(self, deadline: float) -> None:
        """Anchor every chain that moved since it was anchored. A tenant whose log is broken keeps no other waiting.

        Raises what keeps a tenant's chains from being anchored, when all others are.
        """
        fault: Refusal | None = None
        moved = [record.key async for record in records_below(self._store, keys.AUDIT_MOVED, deadline)]
        for tenant, of_tenant in groupby(moved, key=lambda key: keys.parse_audit_chain(key)[0]):
            left = list(of_tenant)
            try:
                while left:
                    await self._anchor(tenant, left[: limits.AUDIT_ANCHOR_CHAINS_ENTRIES_MAX], deadline)
                    del left[: limits.AUDIT_ANCHOR_CHAINS_ENTRIES_MAX]
            except StoreUnavailable:
                raise
            except Refusal as refusal:
                fault = refusal
        if fault is not None:
            raise fault

    async def _anchor(self, tenant: str, moved: Sequence[bytes], deadline: float) -> None:
        newest_key = keys.audit_newest(tenant)
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            cut = await self._store.read([newest_key, *moved], STRONG, left_s(deadline))
            there = [record for record in cut.records[1:] if record is not None]
            if not there:  # another server was faster
                return
            anchor, is_newest = self._next(tenant, newest_key, cut.records[0], there)
            sealed = seal_anchor(anchor)
            key = keys.audit_anchor(tenant, anchor.sequence)
            newest = ChainHead("", anchor.sequence, anchor.anchor_time_ms, sealed.hash)
            puts = (Put(key, sealed.encode()), Put(newest_key, encode_head(newest)))
            try:
                await commit_surely(self._store, ChangeSet((is_newest, Absent(key)), puts), deadline)
            except CommitRefused:
                found = (await self._store.read([key], STRONG, left_s(deadline))).records[0]
                if found is None or found.value != puts[0].value:
                    continue
            _log.info(
                "audit.anchored",
                tenant=tenant,
                sequence=anchor.sequence,
                hash=sealed.hash.hex(),
                chains=len(anchor.heads),
            )
            await self._settle(there, deadline)
            return
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    def _next(
        self, tenant: str, newest_key: bytes, found: Record | None, moved: Sequence[Record]
    ) -> tuple[Anchor, Guard]:
        """Give the anchor that follows the newest, and the guard that it still is the newest."""
        is_newest: Guard = Absent(newest_key)
        sequence, previous, time_ms = 0, b"", 0
        if found is not None:
            is_newest = AtRevision(newest_key, found.revision)
            _, sequence, time_ms, previous = decode_head(found.key, found.value)
        heads = tuple(decode_head(record.key, record.value) for record in moved)
        now_ms = max(time_ms, self._time.now_ms())
        return Anchor(tenant, sequence + 1, previous, now_ms, self._server_id, heads), is_newest

    async def _settle(self, anchored: Sequence[Record], deadline: float) -> None:
        """Take chains off the list of those that moved, unless they have moved on."""
        for record in anchored:
            change = ChangeSet((AtRevision(record.key, record.revision),), (), (DeleteKey(record.key),))
            with contextlib.suppress(CommitRefused):
                await commit_surely(self._store, change, deadline)
