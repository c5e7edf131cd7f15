"""Judging again, in the background, what older rules have let in.

A walk goes over the present states of all entries, and its place is kept in the store. A state that stays as it was is not
written; one that turns out worse is written anew under a lower label, guarded on what was read. So a server may be killed at
any step, and two may work at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from kokuban_server.app.background import Turns
from kokuban_server.app.commits import puts_of
from kokuban_server.app.mirrored_store import records_below
from kokuban_server.app.ownership import Ownership
from kokuban_server.app.second_verdicts import RulesChangedError, SecondVerdicts
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, Put
from kokuban_server.core.commit import Moment, plan_lowered
from kokuban_server.core.entry import Act, Current, EntryState
from kokuban_server.core.names import RegionKind
from kokuban_server.core.policy import NO_POLICY
from kokuban_server.core.refusals import (
    Contended,
    DeadlineTooShort,
    PrincipalLimitReached,
    StoreCorrupt,
    TooManyRequests,
)
from kokuban_server.core.rescreening import Progress, is_judged_again
from kokuban_server.core.screening.joins import LastParts, Part
from kokuban_server.core.screening.writes import words_of_state
from kokuban_server.core.trust import Trust
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.ports.screener import ScreenerError
from kokuban_server.records.board_codec import encode_board
from kokuban_server.records.codec import decode_entry, decode_progress, encode_entry, encode_progress
from kokuban_server.records.provenance_codec import decode_origins

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from kokuban_server.app.boards import Board, Boards
    from kokuban_server.app.judged_states import JudgedStates
    from kokuban_server.app.screenings import Screenings
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import RegionRules
    from kokuban_server.core.change_set import Guard
    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.provenance import Origin
    from kokuban_server.core.trust import Label
    from kokuban_server.ports.board_store import BoardStore, Record

_log = structlog.get_logger()
_CALL_S: Final = 10.0
_LOWERING_S: Final = 600.0
_WALKED_AT_ONCE: Final = 64
_WALK_PAUSE_MS: Final = 3_600_000
"""Servers with older rules may go on writing for as long as they are replaced one by one."""
_CLAIM_S: Final = 5.0
_ACT: Final = Act("kokuban", "", "screened again by other rules")


class _DisownedError(Exception):
    """Another server does the work now."""


class Rescreening:
    """The loop that goes on with it, while this server owns the work."""

    def __init__(
        self,
        store: BoardStore,
        boards: Boards,
        time: StoreTime,
        screenings: Screenings,
        judged: JudgedStates,
        server_id: str,
        report: Callable[[str, Exception], None],
        interval_s: float,
    ) -> None:
        self._store = store
        self._boards = boards
        self._time = time
        self._screenings = screenings
        self._verdicts = SecondVerdicts(screenings)
        self._judged = judged
        self._ownership = Ownership(store, "rescreening", server_id)
        self._report = report
        self._interval_s = interval_s
        self._claimed_s = 0.0
        self._next_walk_ms = 0
        self._revision = 0
        """Of the record of how far it has come, as it was last read or written; 0 for none."""

    async def run(self) -> None:
        """Work until cancelled. Without a verdict nothing is decided, and the next turn tries again."""
        busy = (Contended, TooManyRequests, PrincipalLimitReached, DeadlineTooShort)
        turns = Turns(
            "rescreening", self._report, ScreenerError, CommitRefused, _DisownedError, RulesChangedError, *busy
        )
        try:
            while True:
                with turns.turn():
                    await self._look()
                    if await self._ownership.hold():
                        await self.turn()
                if self._judged.rule_set:
                    self._judged.asked.clear()
                elif self._judged.asked.is_set():
                    await asyncio.sleep(self._interval_s)  # nothing is screened now
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._judged.asked.wait()
        finally:
            await self._ownership.let_go()

    async def _look(self) -> None:
        """Read how far it has come; learn which rules this server has where anybody has to know that."""
        record = (await self._store.read([keys.RESCREENING], STRONG, _CALL_S)).records[0]
        self._revision = 0 if record is None else record.revision
        self._judged.progress = None if record is None else decode_progress(record.key, record.value)
        if not self._judged.rule_set and (record is not None or self._judged.asked.is_set()):
            await self._screenings.is_judging()

    async def turn(self) -> None:
        """Walk to the end, if it is time.

        Raises `_DisownedError` where another server does the same, `RulesChangedError`, and `ScreenerError` while there are no
        verdicts.
        """
        await self._look()
        now_ms = self._time.now_ms()
        is_known = self._judged.ours is not None or not self._judged.rule_set
        if is_known and now_ms < self._next_walk_ms:
            return
        if self._judged.rule_set or await self._is_anything_screened():  # else no rules need to be loaded
            if not self._judged.rule_set and not await self._screenings.is_judging():
                return
            await self._walk(await self._begun(now_ms))
        self._next_walk_ms = now_ms + _WALK_PAUSE_MS

    async def _begun(self, now_ms: int) -> Progress:
        """Give how far our rules have come with the walk that is under way; begin one if there is none."""
        progress = self._judged.ours
        if progress is None:
            progress = Progress(self._judged.rule_set, self._store.epoch, begin_time_ms=now_ms)
        if progress.walk_revision:
            return progress
        cut = await self._store.read([keys.NOWHERE], STRONG, _CALL_S)
        waiting = await self._count(progress)
        return await self._note(progress._replace(walk_revision=cut.revision, waiting=waiting))

    async def _walk(self, progress: Progress) -> None:
        """Judge what there is to judge, from where the walk is: first together, then each state alone."""
        before, more = progress, True
        if progress.waiting and not progress.after:
            progress = await self._walk_parts(progress)
        while more:
            page = await self._store.scan(
                keys.HEAD, progress.after, _WALKED_AT_ONCE, limits.PAGE_BYTES_MAX, STRONG, _CALL_S
            )
            for record in page.records:
                progress = await self._judge(record, progress)
            more = page.more
            if more:
                progress = await self._note(progress._replace(after=page.records[-1].key))
        await self._note(progress.ended())
        if (progress.kept, progress.lowered, progress.withheld) != (before.kept, before.lowered, before.withheld):
            kept, lowered, withheld = progress.kept, progress.lowered, progress.withheld
            _log.info("rescreening.done", rule_set=progress.rule_set, kept=kept, lowered=lowered, withheld=withheld)

    async def _is_anything_screened(self) -> bool:
        """Say whether there is any present state that rules have let in."""
        async for record in self._heads():
            state = _readable(record)
            if state is not None and state.label.screened_by:
                return True
        return False

    async def _count(self, progress: Progress) -> int:
        """Give how many states there are to judge, about."""
        count = 0
        async for record in self._heads():
            count += _meant(record, progress) is not None
        return count

    async def _heads(self) -> AsyncGenerator[Record, None]:
        """Give the present states of all entries, gently."""
        loop = asyncio.get_running_loop()
        after, more = b"", True
        while more:
            await self._hold()
            begun_s = loop.time()
            page = await self._store.scan(keys.HEAD, after, _WALKED_AT_ONCE, limits.PAGE_BYTES_MAX, STRONG, _CALL_S)
            for record in page.records:
                yield record
            after, more = page.records[-1].key if page.records else b"", page.more
            await asyncio.sleep(loop.time() - begun_s)

    async def _note(self, progress: Progress) -> Progress:
        """Leave in the store how far it has come. Raises `_DisownedError` if another server has, meanwhile."""
        guard: Guard = AtRevision(keys.RESCREENING, self._revision) if self._revision else Absent(keys.RESCREENING)
        put = Put(keys.RESCREENING, encode_progress(progress))
        try:
            self._revision = await self._store.commit(ChangeSet((guard,), (put,)), _CALL_S)
        except CommitRefused:
            raise _DisownedError from None
        self._judged.progress = progress
        return progress

    async def _walk_parts(self, progress: Progress) -> Progress:
        """Judge together what each agent has written from outside on a board, in the order of its writing.

        Who goes on where another stopped reads again, from the board's beginning, what came before, and judges none of it.
        """
        board = keys.board_of_origin(progress.joined_after) if progress.joined_after else b""
        after, more, last = keys.ORIGIN + board, True, LastParts()
        while more:
            await self._hold()
            page = await self._store.scan(keys.ORIGIN, after, _WALKED_AT_ONCE, limits.PAGE_BYTES_MAX, STRONG, _CALL_S)
            for record in sorted(page.records, key=_when):
                if keys.board_of_origin(record.key) != board:
                    board, last = keys.board_of_origin(record.key), LastParts()
                progress = await self._judge_parts(record, last, progress)
            more = page.more
            after = page.records[-1].key if page.records else after
            if after > progress.joined_after:
                progress = await self._note(progress._replace(joined_after=after))
        return progress

    async def _judge_parts(self, record: Record, last: LastParts, progress: Progress) -> Progress:
        """Judge what a commit has written from outside together with what its agent had written before."""
        origins = [origin for origin in _origins(record) if origin.label.screened_by]
        if not origins:
            return progress
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        heads = (await self._store.read([origin.head for origin in origins], STRONG, _CALL_S)).records
        await asyncio.sleep(loop.time() - begun_s)
        for origin, head in zip(origins, heads, strict=True):
            state = None if head is None else _readable(head)
            if head is None or state is None or not _is_shown(state, origin):
                continue
            parts = last.of(origin.agent)
            part = Part.of(words_of_state(state), is_stale=_meant(head, progress) is not None)
            if record.key > progress.joined_after and parts and any(one.is_stale for one in (*parts, part)):
                _, _, key = keys.parse_head(head.key)
                await self._hold()
                if await self._verdicts.completes(parts, state, key.path, progress.rule_set):
                    parts.clear()
                    held_back = state.label.held_back(progress.rule_set)
                    progress = await self._settle(head, state, progress, held_back)
                    continue
            parts.append(part)
        return progress

    async def _judge(self, record: Record, progress: Progress) -> Progress:
        """Judge an entry's present state, if older rules have let it in; give how far it has come with it."""
        state = _meant(record, progress)
        return progress if state is None else await self._settle(record, state, progress)

    async def _settle(
        self, record: Record, state: EntryRecord, progress: Progress, label: Label | None = None
    ) -> Progress:
        """Have a state trusted as the rules of now say, or as a label does that is known already."""
        if _meant(record, progress) is not None:
            progress = progress._replace(waiting=max(0, progress.waiting - 1))
        tenant, board_id, key = keys.parse_head(record.key)
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            board = await self._boards.read(tenant, board_id, _CALL_S) if board_id else None
            policy = NO_POLICY if board is None else board.policy
            rules = policy.terms(key.region).rules
            if (board is not None and not board.is_live) or not is_judged_again(state.label, rules, policy):
                return progress
            await self._hold()
            anew = label or await self._verdicts.label(state, key.path, progress.rule_set)
            if (anew.trust, anew.suspicious) == (state.label.trust, state.label.suspicious):
                return progress._replace(kept=progress.kept + 1)
            try:
                await self._lower(record, state, anew, rules, board)
            except CommitRefused:
                now = (await self._store.read([record.key], STRONG, _CALL_S)).records[0]
                if now is None or now.revision != record.revision:
                    return progress  # what was written since is judged by whoever wrote it, or by the next walk
                continue
            if anew.trust is Trust.SUSPECT:
                return progress._replace(withheld=progress.withheld + 1)
            return progress._replace(lowered=progress.lowered + 1)
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    async def _hold(self) -> None:
        """Keep the claim to the work through a long page. Raises `_DisownedError` if it is lost."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._claimed_s > _CLAIM_S:
            if not await self._ownership.hold():
                raise _DisownedError
            self._claimed_s = now_s

    async def _lower(
        self, record: Record, state: EntryRecord, label: Label, rules: RegionRules, board: Board | None
    ) -> None:
        """Write a state anew under a lower label; what is kept of it, and of those before that older rules let in, gets it too.

        Raises `CommitRefused` if anything was changed meanwhile.
        """
        head, present = record.key, AtRevision(record.key, record.revision)
        tenant, board_id, key = keys.parse_head(head)
        archives: list[Guard] = []
        if key.region.kind is RegionKind.TASK:  # what is being archived stays as it is
            archives = [Absent(keys.TASK_ARCHIVE + keys.region_prefix(tenant, board_id, key.region))]
        deadline = asyncio.get_running_loop().time() + _LOWERING_S
        # First the past: that the present state is as it was says that there is something to do.
        async for one in records_below(self._store, keys.history(head), deadline):
            worse = _lowered(decode_entry(one.key, one.value), label)
            if worse is not None:
                both = (present, AtRevision(one.key, one.revision), *archives)
                await self._store.commit(ChangeSet(both, (Put(one.key, encode_entry(worse)),)), _CALL_S)
        moment = Moment(self._time.now_ms(), self._time.seen_ms, self._store.epoch)
        planned = plan_lowered(head, rules, Current(state, record.revision), label, _ACT, moment)
        guards, puts = [*planned.guards, *archives], puts_of(planned)
        if board is not None:
            guards.append(board.guard)
            if not board.record.removals or board.revision < record.revision:
                # From then on reads of the past ask whether a state is still kept as it was.
                told = replace(board.record, removals=board.record.removals + 1)
                puts.append(Put(board.key, encode_board(told)))
        await self._store.commit(ChangeSet(tuple(guards), tuple(puts), tuple(planned.clean_ups)), _CALL_S)


def _when(record: Record) -> tuple[bytes, int]:
    """Give when a record of origins was written: those of one moment are told apart by their revisions."""
    return record.key.rpartition(b"-")[0], record.revision


def _origins(record: Record) -> list[Origin]:
    """Give the origins that a record tells; none where it cannot be read."""
    try:
        return decode_origins(record.key, record.value, record.revision)
    except StoreCorrupt:
        return []


def _is_shown(state: EntryRecord, origin: Origin) -> bool:
    """Say whether a state is the one of which an origin tells, and readers may be given it."""
    is_there = state.state is EntryState.LIVE and state.label.trust is not Trust.SUSPECT
    return is_there and state.sequence == origin.sequence


def _readable(record: Record) -> EntryRecord | None:
    """Give an entry's state; nothing where it cannot be read, which nobody else can either."""
    try:
        return decode_entry(record.key, record.value)
    except StoreCorrupt:
        return None


def _meant(record: Record, progress: Progress) -> EntryRecord | None:
    """Give a present state if older rules have let it in, and no walk before this one has judged it."""
    if record.revision <= progress.judged_revision:
        return None
    state = _readable(record)
    if state is None or state.state is not EntryState.LIVE or state.label.screened_by in {"", progress.rule_set}:
        return None
    return state


def _lowered(before: EntryRecord, label: Label) -> EntryRecord | None:
    """Give a state of the past as it is trusted now, if older rules have let it in and it was trusted more."""
    mine = before.label
    worse = mine._replace(trust=min(mine.trust, label.trust), suspicious=mine.suspicious or label.suspicious)
    is_older = bool(mine.screened_by) and mine.screened_by != label.screened_by and not mine.endorsed_by
    if not is_older or before.state is not EntryState.LIVE or worse == mine:
        return None
    return replace(before, label=worse)
