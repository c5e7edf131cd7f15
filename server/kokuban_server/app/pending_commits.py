"""Making commits that were kept because nothing was screened: in the order in which they came, as soon as there are verdicts.

One server does it at a time. What is done is guarded on the kept commit, so it is safe when two believe that they do.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from kokuban_server.app.background import Turns
from kokuban_server.app.ownership import Ownership
from kokuban_server.app.quarantine_shelf import OnShelf, commit_of
from kokuban_server.app.screenings import VERDICT_ATTEMPTS
from kokuban_server.app.write_screening import HeldBack
from kokuban_server.core import keys, limits
from kokuban_server.core.audit import QUARANTINE_DROP, AuditEntry
from kokuban_server.core.change_set import AtRevision, ChangeSet, DeleteKey, Put
from kokuban_server.core.quarantine import QuarantineState
from kokuban_server.core.refusals import (
    Contended,
    DeadlineTooShort,
    EncryptionUnavailable,
    OutcomeUnknown,
    PrincipalLimitReached,
    Refusal,
    ScreeningUnavailable,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
    TooManyRequests,
)
from kokuban_server.core.screening.screening import NO_VERDICT
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.quarantine_codec import decode_quarantined, encode_quarantined

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kokuban_server.app.audit import AuditLog
    from kokuban_server.app.commits import CommitRequest, Commits
    from kokuban_server.app.screenings import Screenings
    from kokuban_server.core.access import Principal
    from kokuban_server.core.screening.screening import Finding
    from kokuban_server.ports.board_store import BoardStore

_CALL_S: Final = 10.0
_COMMIT_S: Final = 2 * limits.SCREENING_S_MAX
_LATER: Final = (
    Contended,
    DeadlineTooShort,
    EncryptionUnavailable,
    OutcomeUnknown,
    PrincipalLimitReached,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
    TooManyRequests,
)
"""Says nothing of the commit: it is tried again."""


class PendingCommits:
    """The loop that makes them, while this server owns the work."""

    def __init__(
        self,
        store: BoardStore,
        screenings: Screenings,
        commits: Commits,
        audit: AuditLog,
        decode: Callable[[Principal, bytes, float], Awaitable[CommitRequest]],
        present: Callable[[Principal], Principal],
        server_id: str,
        report: Callable[[str, Exception], None],
        interval_s: float,
    ) -> None:
        """Make them through `commits`; `present` gives an author with the rights of now, or raises `Unauthenticated`."""
        self._store = store
        self._screenings = screenings
        self._commits = commits
        self._audit = audit
        self._decode = decode
        self._present = present
        self._ownership = Ownership(store, "pending", server_id)
        self._report = report
        self._interval_s = interval_s

    async def run(self) -> None:
        """Work until cancelled. What goes wrong is reported and tried again at the next turn."""
        turns = Turns("pending commits", self._report, ScreeningUnavailable, CommitRefused, *_LATER)
        try:
            while True:
                with turns.turn():
                    if await self._ownership.hold():
                        await self.turn()
                await asyncio.sleep(self._interval_s)
        finally:
            await self._ownership.let_go()

    async def turn(self) -> None:
        """Have what waits screened and made. Raises `ScreeningUnavailable` while nothing is screened."""
        after, more = b"", True
        while more:
            page = await self._store.scan(
                keys.PENDING, after, limits.PAGE_ENTRIES_MAX, limits.PAGE_BYTES_MAX, STRONG, _CALL_S
            )
            for marker in page.records:
                after = marker.key
                if not await self._ownership.hold():
                    return
                with contextlib.suppress(CommitRefused, *_LATER):
                    await self._settle(marker.key)
            more = page.more

    async def _settle(self, marker: bytes) -> None:
        """Make one commit, hand it to the reviewers, or drop it; a marker without one goes."""
        key = commit_of(marker)
        record = (await self._store.read([key], STRONG, _CALL_S)).records[0]
        item = None if record is None else decode_quarantined(key, record.value)
        if record is None or item is None or item.author is None or item.state is not QuarantineState.PENDING:
            await self._store.commit(ChangeSet((), (), (DeleteKey(marker),)), _CALL_S)
            return
        shelf = OnShelf(keys.name_on_board(key), key, record.revision, item)
        tenant, _ = keys.parse_board(keys.BOARD + keys.board_of_origin(key))
        author, deadline = item.author.principal(tenant, item.agent), asyncio.get_running_loop().time() + _COMMIT_S
        try:
            request = await self._decode(self._present(author), item.request, deadline)
            if request.holdings is not None and request.holdings.refusal is not None:
                raise request.holdings.refusal
            await self._make(shelf, marker, author, request, deadline)
        except (ScreeningUnavailable, *_LATER):
            raise
        except Refusal as refusal:
            await self._drop(shelf, marker, author, refusal)

    async def _make(
        self, shelf: OnShelf, marker: bytes, author: Principal, request: CommitRequest, deadline: float
    ) -> None:
        """Commit it, or hand it to the reviewers: also where the screener fails over this one alone."""
        for _ in range(VERDICT_ATTEMPTS):
            try:
                await self._commits.make_pending(partial(self._present, author), shelf, request, deadline)
            except HeldBack as held:
                await self._hold_back(shelf, marker, held.field, held.findings, held.rule_set)
            except ScreeningUnavailable:
                if not await self._screenings.is_judging():
                    raise
                continue
            return
        await self._hold_back(shelf, marker, shelf.item.field, (NO_VERDICT,), self._screenings.rule_set)

    async def _hold_back(
        self, shelf: OnShelf, marker: bytes, field: str, findings: tuple[Finding, ...], rule_set: str
    ) -> None:
        """Keep it for a reviewer, as it would have been when it came."""
        item = replace(
            shelf.item,
            state=QuarantineState.WAITING,
            findings=findings,
            rule_set=rule_set,
            field=field,
            author=None,
        )
        change = ChangeSet(
            (AtRevision(shelf.key, shelf.revision),),
            (Put(shelf.key, encode_quarantined(item)),),
            (DeleteKey(marker),),
        )
        await self._store.commit(change, _CALL_S)

    async def _drop(self, shelf: OnShelf, marker: bytes, author: Principal, refusal: Refusal) -> None:
        """Forget it, as what is refused is, and record that: a repeat is judged anew, and told why."""
        reminder = keys.quarantine_due(shelf.item.create_time_ms + limits.QUARANTINE_MS, shelf.key)
        gone = (shelf.key, shelf.item.operation, reminder, marker)
        change = ChangeSet((AtRevision(shelf.key, shelf.revision),), (), tuple(map(DeleteKey, gone)))
        _, board = keys.parse_board(keys.BOARD + keys.board_of_origin(shelf.key))
        target = f"commit {shelf.id} of {author.agent}"
        entry = AuditEntry(QUARANTINE_DROP, author, board, target, outcome=refusal.reason)
        await self._audit.commit_with(entry, change, asyncio.get_running_loop().time() + _CALL_S)
