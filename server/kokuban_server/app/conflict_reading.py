"""Reading the log of conflicts: listed, followed, summed up; each reader sees what it may read."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.deadlines import left_s, of_one_act
from kokuban_server.app.following import until_drained
from kokuban_server.app.page_tokens import page_token, read_page_token
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Verb
from kokuban_server.core.conflict_summary import Summary
from kokuban_server.core.names import parse_region
from kokuban_server.core.refusals import TokenAheadOfStore
from kokuban_server.core.revision import revision_of
from kokuban_server.ports.board_store import STRONG, Snapshot
from kokuban_server.records.conflict_codec import decode_conflict

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from kokuban_server.app.access import Access, OpenRegion
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import Principal
    from kokuban_server.core.conflicts import Conflict, ConflictFilter
    from kokuban_server.ports.board_store import BoardStore, Event

_READ_AT_ONCE = 256


class ConflictPage(NamedTuple):
    """One page of conflicts."""

    conflicts: list[Conflict]
    next_page_token: str
    revision: int


class ConflictNews(NamedTuple):
    """What a watch sends: conflicts that are new, or of which more is known, up to a revision."""

    conflicts: list[Conflict]
    revision: int


class ConflictReading:
    """Answers what is asked of a board's conflicts."""

    def __init__(self, store: BoardStore, access: Access, time: StoreTime, bookmark_s: float = 10.0) -> None:
        self._store = store
        self._access = access
        self._time = time
        self._bookmark_s = bookmark_s

    def now_ms(self) -> int:
        """Give the time at which outcomes are told."""
        return self._time.now_ms()

    async def list_conflicts(
        self, principal: Principal, board: str, wanted: ConflictFilter, page_size: int, token: str, deadline: float
    ) -> ConflictPage:
        """Give a page of conflicts, the newest first. Raises `NotFound` for a region that the caller may not read."""
        sight = await self._enter(principal, board, wanted, deadline)
        prefix = keys.board_prefix(principal.tenant, board)
        below = keys.conflicts(prefix)
        listing = b"\x00".join((below, *(str(part).encode() for part in wanted)))
        after = read_page_token(token, listing, below)
        found: list[Conflict] = []
        next_token = ""
        # Nothing bounds this but the log, which is bounded itself: a page that ended early would tell of what is hidden.
        log = _Log(self._store, prefix, wanted, deadline, after)
        async with contextlib.aclosing(log.below()) as conflicts:
            async for conflict in conflicts:
                seen = conflict.seen(sight.names)
                if seen is None or not wanted.takes(seen):
                    continue
                if len(found) == page_size:
                    last = found[-1]
                    next_token = page_token(keys.conflict(prefix, last.time_ms, last.id), listing, below)
                    break
                found.append(seen)
        await sight.account(found, deadline)
        return ConflictPage(found, next_token, log.revision)

    async def summarize(
        self, principal: Principal, board: str, wanted: ConflictFilter, deadline: float
    ) -> tuple[Summary, int]:
        """Count the conflicts that the caller may see, and give the state they were read at. Raises as `list_conflicts`."""
        sight = await self._enter(principal, board, wanted, deadline)
        log = _Log(self._store, keys.board_prefix(principal.tenant, board), wanted, deadline)
        summary = Summary()
        now_ms = self.now_ms()
        met: list[Conflict] = []
        async with contextlib.aclosing(log.below()) as conflicts:
            async for conflict in conflicts:
                seen = conflict.seen(sight.names)
                if seen is not None and wanted.takes(seen):
                    summary.add(seen, now_ms)
                    met.append(seen)
        await sight.account(met, deadline)
        return summary, log.revision

    async def follow(
        self,
        principal: Principal,
        board: str,
        wanted: ConflictFilter,
        after: str,
        draining: asyncio.Event,
        deadline: float,
    ) -> AsyncGenerator[ConflictNews, None]:
        """Give conflicts as they are written, and again when more is known of them, until closed.

        Begins behind the token `after`, or now. Raises what the board, the region, the token and the store say, at any time.
        """
        deadline = of_one_act(deadline)
        await self._enter(principal, board, wanted, deadline)
        cut = await self._store.read([keys.SECRET], STRONG, left_s(deadline))
        revision = cut.revision
        if after:
            revision = revision_of(after, self._store.epoch, "after")
            if revision > cut.revision:
                raise TokenAheadOfStore("after")
        yield ConflictNews([], revision)
        below = keys.conflicts(keys.board_prefix(principal.tenant, board))
        loop = asyncio.get_running_loop()
        next_bookmark = loop.time() + self._bookmark_s
        async with (
            contextlib.aclosing(self._store.watch([below], revision)) as batches,
            contextlib.aclosing(until_drained(batches, draining, self._bookmark_s)) as changes,
        ):
            async for batch in changes:
                sight = await self._enter(principal, board, wanted, of_one_act(math.inf))
                told = []
                if batch is not None:
                    revision = batch.revision
                    told = sight.shown(batch.events, wanted)
                if told or loop.time() >= next_bookmark:
                    await sight.account(told, of_one_act(math.inf))
                    next_bookmark = loop.time() + self._bookmark_s
                    yield ConflictNews(told, revision)

    async def _enter(self, principal: Principal, board: str, wanted: ConflictFilter, deadline: float) -> _Reader:
        await self._access.enter(principal, board, deadline)
        if wanted.region:
            self._access.open(principal, board, parse_region(wanted.region), Verb.READ)
        return _Reader(self._access, principal, board)


class _Reader:
    """What one caller may read of conflicts, asked once for each region."""

    def __init__(self, access: Access, principal: Principal, board: str) -> None:
        self._access = access
        self._principal = principal
        self._board = board
        self._known: dict[str, bool] = {}

    def names(self, region: str) -> bool:
        """Say whether the caller may read a region."""
        known = self._known.get(region)
        if known is None:
            known = self._known[region] = self._open(region) is not None
        return known

    def shown(self, events: Iterable[Event], wanted: ConflictFilter) -> list[Conflict]:
        """Give the conflicts among changes that were written, are for the caller, and are wanted."""
        written = (decode_conflict(event.key, event.value) for event in events if event.value is not None)
        seen = (conflict.seen(self.names) for conflict in written)
        return [conflict for conflict in seen if conflict is not None and wanted.takes(conflict)]

    async def account(self, shown: list[Conflict], deadline: float) -> None:
        """Come back when what is shown of other agents' private memory is recorded."""
        regions = {
            region
            for conflict in shown
            for party in (conflict.loser, conflict.winner)
            for region in (conflict.region, *(party.regions if party is not None else ()))
            if self.names(region)
        }
        opened = [one for one in map(self._open, sorted(regions)) if one is not None]
        await self._access.account(self._principal, opened, deadline)

    def _open(self, region: str) -> OpenRegion | None:
        return self._access.readable(self._principal, self._board, parse_region(region))


class _Log:
    """The conflicts of a board at one state, the newest first, from the filter's end to its beginning."""

    def __init__(
        self, store: BoardStore, prefix: bytes, wanted: ConflictFilter, deadline: float, after: bytes = b""
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._wanted = wanted
        self._deadline = deadline
        self._after = after
        self.revision = 0

    async def below(self) -> AsyncGenerator[Conflict, None]:
        end_ms = self._wanted.end_ms
        after = self._after or (keys.conflicts_from(self._prefix, end_ms - 1) if end_ms else b"")
        at: Snapshot | None = None
        more = True
        while more:
            page = await self._store.scan(
                keys.conflicts(self._prefix),
                after,
                _READ_AT_ONCE,
                limits.PAGE_BYTES_MAX,
                at or STRONG,
                left_s(self._deadline),
            )
            self.revision = page.revision
            at = Snapshot(page.revision)
            for record in page.records:
                conflict = decode_conflict(record.key, record.value)
                if conflict.time_ms < self._wanted.begin_ms:
                    return
                after = record.key
                yield conflict
            more = page.more
            await asyncio.sleep(0)  # a long log does not keep others waiting
