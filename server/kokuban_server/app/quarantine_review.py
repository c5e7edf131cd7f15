"""Reviewing what was held back: listed, released, rejected."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.page_tokens import page_token as make_page_token
from kokuban_server.app.page_tokens import read_page_token
from kokuban_server.app.quarantine_shelf import OnShelf
from kokuban_server.core import keys, limits
from kokuban_server.core.access import REVIEWERS, Verb
from kokuban_server.core.audit import QUARANTINE_REJECT, QUARANTINE_RELEASE, AuditEntry
from kokuban_server.core.change_set import AtRevision, ChangeSet, Put
from kokuban_server.core.quarantine import QuarantineState
from kokuban_server.core.refusals import NotFound, OutcomeUnknown, Refusal, StoreUnavailable
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.quarantine_codec import decode_quarantined, encode_quarantined

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from kokuban_server.app.access import Access
    from kokuban_server.app.audit import AuditLog
    from kokuban_server.app.boards import Board
    from kokuban_server.app.commits import CommitRequest, Commits
    from kokuban_server.app.quarantine_shelf import QuarantineShelf
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import Principal
    from kokuban_server.core.names import EntryKey
    from kokuban_server.ports.board_store import BoardStore


class QuarantineFilter(NamedTuple):
    """Which commits are asked for."""

    state: QuarantineState = QuarantineState.WAITING
    agent: str = ""
    uri: str = ""


class QuarantinePage(NamedTuple):
    """One page of what is in quarantine."""

    found: list[OnShelf]
    next_page_token: str
    revision: int


class Reviewed(NamedTuple):
    """What became of a commit that was reviewed."""

    name: str
    state: QuarantineState | None
    """Nothing where there is none that the reviewer may know of."""
    refusal: str = ""
    """Why it was not released."""
    revision: int = 0


class QuarantineReview:
    """Answers reviewers."""

    def __init__(
        self,
        store: BoardStore,
        access: Access,
        time: StoreTime,
        shelf: QuarantineShelf,
        commits: Commits,
        audit: AuditLog,
        decode: Callable[[Principal, bytes, float], Awaitable[CommitRequest]],
    ) -> None:
        self._store = store
        self._access = access
        self._time = time
        self._shelf = shelf
        self._commits = commits
        self._audit = audit
        self._decode = decode

    async def list_commits(
        self,
        principal: Principal,
        board_id: str,
        wanted: QuarantineFilter,
        page_size: int,
        page_token: str,
        deadline: float,
    ) -> QuarantinePage:
        """Give a page of what is in quarantine, the oldest first. Raises `RoleRequired` and `NotFound`."""
        board = await self._enter(principal, board_id, deadline)
        prefix = keys.QUARANTINE + keys.board_prefix(board.tenant, board.id)
        context = b"\x00".join([prefix, str(wanted.state.value).encode(), wanted.agent.encode(), wanted.uri.encode()])
        after = read_page_token(page_token, context, prefix)
        page = await self._store.scan(
            prefix, after, limits.QUARANTINE_ENTRIES_MAX, limits.PAGE_BYTES_MAX, STRONG, left_s(deadline)
        )
        found: list[OnShelf] = []
        more = page.more
        for index, record in enumerate(page.records):
            after = record.key
            item = decode_quarantined(record.key, record.value)
            matches = item.state is wanted.state and wanted.agent in {"", item.agent}
            if matches and wanted.uri in {"", item.source.uri} and self._may_read(principal, board, item.keys):
                found.append(OnShelf(keys.name_on_board(record.key), record.key, record.revision, item))
                if len(found) == page_size:
                    more = page.more or index + 1 < len(page.records)
                    break
        await self._account(principal, board, found, deadline)
        return QuarantinePage(found, make_page_token(after, context, prefix) if more else "", page.revision)

    async def review(
        self,
        principal: Principal,
        board_id: str,
        names: Sequence[str],
        reason: str,
        deadline: float,
        *,
        release: bool,
    ) -> list[Reviewed]:
        """Release or reject commits, each alone. Raises `RoleRequired`, and `NotFound` for the board."""
        board = await self._enter(principal, board_id, deadline)
        return [await self._reviewed(principal, board, name, reason, deadline, release=release) for name in names]

    async def _reviewed(
        self, principal: Principal, board: Board, name: str, reason: str, deadline: float, *, release: bool
    ) -> Reviewed:
        try:
            shelf = await self._shelf.find(board, name, deadline)
        except NotFound:
            return Reviewed(name, None)
        item = shelf.item
        if not self._may_read(principal, board, item.keys):
            return Reviewed(name, None)
        refusal = ""
        if item.state is QuarantineState.WAITING:
            act = QUARANTINE_RELEASE if release else QUARANTINE_REJECT
            audit = AuditEntry(act, principal, board.id, f"commit {name} of {item.agent}", reason)
            try:
                if release:
                    request = await self._decode(principal, item.request, deadline)
                    await self._commits.release(principal, shelf, request, reason, audit, deadline)
                else:
                    await self._reject(principal, shelf, reason, audit, deadline)
            except (StoreUnavailable, OutcomeUnknown):
                raise
            except CommitRefused:  # somebody else was faster
                pass
            except Refusal as told:
                refusal = told.reason
            shelf = await self._shelf.find(board, name, deadline)
        state = shelf.item.state
        return Reviewed(
            name,
            state,
            refusal if state is QuarantineState.WAITING else "",
            shelf.revision if state is QuarantineState.RELEASED else 0,
        )

    async def _reject(
        self, principal: Principal, shelf: OnShelf, reason: str, audit: AuditEntry, deadline: float
    ) -> None:
        """Take a commit's content away, for good."""
        rejected = replace(
            shelf.item,
            request=b"",
            state=QuarantineState.REJECTED,
            reviewer=principal.agent,
            review_reason=reason,
            review_time_ms=self._time.now_ms(),
        )
        put = Put(shelf.key, encode_quarantined(rejected))
        await self._audit.commit_with(audit, ChangeSet((AtRevision(shelf.key, shelf.revision),), (put,)), deadline)

    async def _enter(self, principal: Principal, board_id: str, deadline: float) -> Board:
        self._access.require_one_of(principal, REVIEWERS, board_id)
        return await self._access.enter(principal, board_id, deadline)

    def _may_read(self, principal: Principal, board: Board, named: Sequence[EntryKey]) -> bool:
        return all(self._access.readable_under(board, principal, key.region) is not None for key in named)

    async def _account(self, principal: Principal, board: Board, found: Sequence[OnShelf], deadline: float) -> None:
        """Record that other agents' private memory is read, where what was held back would go there."""
        regions = dict.fromkeys(key.region for shelf in found for key in shelf.item.keys)
        opened = [self._access.open_under(board, principal, region, Verb.READ) for region in regions]
        await self._access.show(principal, opened, deadline)
