"""Entries with what is encrypted in them opened, for those who may see it: the only way to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.reads import UNSAID, AskStrong
from kokuban_server.core.access import Verb
from kokuban_server.core.audit import ENTRY_REVEAL, AuditEntry

if TYPE_CHECKING:
    from kokuban_server.app.access import Access
    from kokuban_server.app.audit import AuditLog
    from kokuban_server.app.reads import Found, Reads, Trusting
    from kokuban_server.app.sealing import Revealed, Sealing
    from kokuban_server.core.access import Principal
    from kokuban_server.core.commit import At
    from kokuban_server.core.names import EntryKey


class RevealedEntry(NamedTuple):
    """An entry, opened."""

    found: Found
    texts: tuple[Revealed, ...]
    revision: int


class Revealing:
    """Opens entries. What it gives is for its caller alone: it is neither kept nor told to anybody else."""

    def __init__(self, access: Access, reads: Reads, sealing: Sealing, audit: AuditLog) -> None:
        self._access = access
        self._reads = reads
        self._sealing = sealing
        self._audit = audit

    async def reveal(
        self,
        principal: Principal,
        board_id: str,
        key: EntryKey,
        at: At | None,
        deadline: float,
        trusting: Trusting = UNSAID,
    ) -> RevealedEntry:
        """Give an entry, or one of its kept states, as `Reads` does, opened; recorded before it is given.

        Raises as `Reads.get`, and `RevealForbidden`.
        """
        board = await self._access.enter(principal, board_id, deadline)
        if self._access.readable_under(board, principal, key.region) is not None:  # else the read finds nothing
            self._access.open_under(board, principal, key.region, Verb.REVEAL)
        if at is None:
            found, revision = await self._reads.get(principal, board_id, key, AskStrong(), deadline, trusting)
        else:
            found, revision = await self._reads.get_kept(principal, board_id, key, at, deadline, trusting)
        # Asked again, as the policy may be another one by now.
        region = self._access.open(principal, board_id, key.region, Verb.REVEAL)
        record = found.record
        opened = self._sealing.opened(region.board, key.region, record.value, record.metadata)
        count = sum(text.opened for text in opened.texts)
        # The path is data; what is recorded for good names the region and the state.
        target = f"{self._access.named(principal, key.region)} at {found.revision}: {count} opened"
        if opened.key_ids:
            target += f" with {', '.join(opened.key_ids)}"
        await self._audit.append(AuditEntry(ENTRY_REVEAL, principal, board_id, target), deadline)
        shown = replace(record, value=opened.value, metadata=opened.metadata)
        return RevealedEntry(found._replace(record=shown), opened.texts, revision)
