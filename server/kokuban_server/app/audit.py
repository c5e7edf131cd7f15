"""The audit log: who did what, when, why, from where, in chains that show when a record is missing, edited or moved."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from kokuban_server.app.audit_anchors import AuditAnchors
from kokuban_server.app.audit_chain import AuditChain
from kokuban_server.app.background import Turns
from kokuban_server.app.bars import pseudonym
from kokuban_server.app.deadlines import of_one_act
from kokuban_server.app.origin import ORIGIN
from kokuban_server.core import limits
from kokuban_server.core.audit import ACCESS_REFUSED, SUPPRESSED, AuditEntry, record_of
from kokuban_server.core.audit_rate import RefusalRate
from kokuban_server.core.names import RegionKind
from kokuban_server.core.refusals import Refusal, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_server.app.audit_chain import Commit
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import Principal
    from kokuban_server.core.audit import AuditRecord
    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.core.names import Region
    from kokuban_server.ports.board_store import BoardStore

_FLUSH_S = 1.0
_WRITE_S = 10.0
_LAST_WORDS_S = 3.0


class AuditLog:
    """Records acts. Each tenant has a chain of its own in each server.

    What is recorded says itself where it came from: see `app.origin`.
    """

    def __init__(
        self,
        store: BoardStore,
        time: StoreTime,
        server_id: str,
        report: Callable[[str, Exception], None],
        digest: Callable[[bytes], bytes],
        *,
        anchor_interval_s: float = 60.0,
        mask: Callable[[str], str] = str,
    ) -> None:
        """Record on a store; `mask` takes secrets out of the names that a refused request asked for."""
        self._digest = digest
        self._store = store
        self._time = time
        self._server_id = server_id
        self._report = report
        self._anchor_interval_s = anchor_interval_s
        self._mask = mask
        self._anchors = AuditAnchors(store, time, server_id)
        self._chains: dict[str, AuditChain] = {}
        self._notes: deque[AuditRecord] = deque()
        self._rate = RefusalRate()
        self._flushing = asyncio.Lock()

    def name_of(self, tenant: str, region: Region) -> str:
        """Give what a region is called in the log, which outlives its erasure: a user's by a pseudonym."""
        if region.kind is not RegionKind.USER:
            return str(region)
        return f"{region.kind}:~{pseudonym(self._digest, tenant, region.id).hex()}"

    async def commit_with(
        self, entry: AuditEntry, change: ChangeSet, deadline: float, commit: Commit | None = None
    ) -> int:
        """Apply a change and record it at one revision, which is given. Nothing is recorded of what is not applied.

        One of the change's guards is undone by its own writes, so that it happens once also when an answer was lost.
        `commit` is what applies it, where that is not the store alone. Raises `CommitRefused` with those guards of the
        change that do not hold, and what the store raises.
        """
        return await self._chain(entry.principal.tenant).write(
            [self._record(entry)], of_one_act(deadline), change, commit
        )

    async def append(self, entry: AuditEntry, deadline: float) -> None:
        """Record what is no commit, before it is done or its answer given: the record is durable when this returns.

        Raises what the store says: what cannot be recorded is not to be done.
        """
        await self._chain(entry.principal.tenant).append(self._record(entry), of_one_act(deadline))

    def note(self, entry: AuditEntry) -> None:
        """Record in the background, as far as that is possible. Never waits.

        What finds no room is counted among the principal's suppressed attempts. What waits when the server is killed is
        lost, and after an answer that was lost something may be recorded twice.
        """
        if len(self._notes) >= limits.AUDIT_NOTES_ENTRIES_MAX:
            attempts = entry.suppressed + (entry.outcome != SUPPRESSED)
            self._rate.suppress(entry.principal, attempts)
        else:
            self._notes.append(self._record(entry))

    def refused(self, principal: Principal, board: str, target: str, reason: str) -> None:
        """Note that somebody tried what they may not do. Most of many attempts are only counted."""
        suppressed = self._rate.admit(principal, _now_s())
        if suppressed is not None:
            self.note(AuditEntry(ACCESS_REFUSED, principal, board, target, outcome=reason, suppressed=suppressed))

    async def run(self) -> None:
        """Write what was noted, and anchor, until cancelled. What goes wrong is reported and tried again."""
        turns = Turns("audit", self._report)
        next_anchor_s = _now_s()
        while True:
            with turns.turn():
                if _now_s() >= next_anchor_s:
                    await self.settle(_now_s() + _WRITE_S)
                    next_anchor_s = _now_s() + self._anchor_interval_s
                else:
                    await self._flush(_now_s() + _WRITE_S)
            await asyncio.sleep(min(_FLUSH_S, self._anchor_interval_s))

    async def settle(self, deadline: float) -> None:
        """Write what was noted and what was suppressed, and anchor every chain that moved, also of other servers."""
        for principal, suppressed in self._rate.untold(_now_s()):
            self.note(AuditEntry(ACCESS_REFUSED, principal, outcome=SUPPRESSED, suppressed=suppressed))
        try:
            await self._flush(deadline)
        finally:
            await self._anchors.anchor(deadline)

    async def close(self) -> None:
        """Write and anchor what there is, if the store answers soon. Nothing may be recorded after this."""
        try:
            await self.settle(_now_s() + _LAST_WORDS_S)
        except Exception as fault:  # noqa: BLE001 - the server ends anyway; another one anchors what it has written
            self._report("audit", fault)

    async def _flush(self, deadline: float) -> None:
        """Write what was noted. One tenant's chain that cannot be written keeps no other waiting; it is told of at the end."""
        fault: Refusal | None = None
        async with self._flushing:
            for tenant in dict.fromkeys(note.tenant for note in self._notes):
                try:
                    await self._flush_chain(tenant, deadline)
                except StoreUnavailable:
                    raise
                except Refusal as refusal:
                    fault = refusal
        if fault is not None:
            raise fault

    async def _flush_chain(self, tenant: str, deadline: float) -> None:
        while batch := [note for note in self._notes if note.tenant == tenant][: limits.AUDIT_BATCH_ENTRIES_MAX]:
            await self._chain(tenant).write(batch, deadline)
            written = set(map(id, batch))
            self._notes = deque(note for note in self._notes if id(note) not in written)

    def _record(self, entry: AuditEntry) -> AuditRecord:
        # Names are whatever a request says, also one that is refused because there is nothing of that name.
        entry = entry._replace(board=self._mask(entry.board), target=self._mask(entry.target))
        return record_of(entry, ORIGIN.get()(), self._time.now_ms())

    def _chain(self, tenant: str) -> AuditChain:
        chain = self._chains.get(tenant)
        if chain is None:
            chain = AuditChain(self._store, self._time, tenant, self._server_id)
            self._chains[tenant] = chain
        return chain


def _now_s() -> float:
    return asyncio.get_running_loop().time()
