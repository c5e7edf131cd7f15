"""Background work: what has expired is buried, what is dead or deleted removed, history bounded. One server does it at a time.

Everything done here is guarded, so it is safe when two servers believe they own the work.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kokuban_server.app.archive_work import ArchiveWork
from kokuban_server.app.background import Turns
from kokuban_server.app.commits import puts_of
from kokuban_server.app.conflict_trim import ConflictTrim
from kokuban_server.app.note_expiry import NoteExpiry
from kokuban_server.app.ownership import Ownership
from kokuban_server.app.purges import Purges
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, DeleteKey, DeleteRange, Put
from kokuban_server.core.commit import Moment, plan_expiry
from kokuban_server.core.entry import Act, Current, EntryState
from kokuban_server.core.policy import NO_POLICY
from kokuban_server.core.refusals import StoreFull
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.codec import decode_entry, decode_mark, encode_mark

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_server.app.boards import Boards
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import RegionRules
    from kokuban_server.ports.board_store import BoardStore, Record

_CALL_S = 10.0
_SWEPT_AT_ONCE = 64
_WALKED_AT_ONCE = 256
_WALK_PAUSE_MS = 3_600_000
OPERATIONS_SLACK_MS = 5 * 60 * 1_000
"""Operation records outlive their window by this, so that a commit judged at the window's very end still finds its own."""
_SYSTEM = Act("kokuban", "")


class Upkeep:
    """The loop that keeps the store in shape, while this server owns the work."""

    def __init__(
        self,
        store: BoardStore,
        boards: Boards,
        time: StoreTime,
        server_id: str,
        report: Callable[[str, Exception], None],
        *,
        interval_s: float = 1.0,
        request_id_window_ms: int = limits.REQUEST_ID_WINDOW_MS,
        store_history_ms: int = limits.STORE_HISTORY_MS,
        conflicts_max: int = limits.CONFLICTS_ENTRIES_MAX,
    ) -> None:
        self._store = store
        self._boards = boards
        self._time = time
        self._ownership = Ownership(store, "upkeep", server_id)
        self._report = report
        self._interval_s = interval_s
        self._window_ms = request_id_window_ms
        self._store_history_ms = store_history_ms
        self._purges = Purges(store, time)
        self._archives = ArchiveWork(store)
        self._conflicts = ConflictTrim(store, time, conflicts_max)
        self._notes = NoteExpiry(store, boards, time)
        self._next_mark_ms = 0
        self._history_after = b""
        self._newer = (b"", 0)
        self._newest = 0  # the sequence of that entry's newest state
        self._next_history_ms = 0

    async def run(self) -> None:
        """Work until cancelled. What goes wrong is reported and tried again at the next turn."""
        turns = Turns("upkeep", self._report)
        try:
            while True:
                with turns.turn():
                    if await self._ownership.hold():
                        await self.sweep()
                await asyncio.sleep(self._interval_s)
        finally:
            await self._ownership.let_go()

    async def sweep(self) -> None:
        """Do one turn of everything that is due.

        What needs room does not keep what makes room from being done: a `StoreFull` is raised when all has been tried.
        """
        full: StoreFull | None = None
        for work in (
            self._purges.turn,
            self._archives.turn,
            self._sweep_operations,
            self._sweep_history,
            self._conflicts.turn,
            self._notes.turn,
            self._sweep_due,
            self._sweep_quarantine,
            self._mark_and_compact,
        ):
            try:
                await work()
            except StoreFull as refusal:
                full = refusal
        if full is not None:
            raise full

    async def _sweep_due(self) -> None:
        """Bury what has expired and remove what has been dead long enough."""
        while True:
            page = await self._store.scan(keys.DUE, b"", _SWEPT_AT_ONCE, limits.PAGE_BYTES_MAX, STRONG, _CALL_S)
            self._time.saw(page.store_time_ms)
            now_ms = self._time.now_ms()
            due = [record for record in page.records if keys.parse_due(record.key)[0] <= now_ms]
            if not due:
                return
            if page.store_time_ms < now_ms:
                await self._time.tick(_CALL_S)
            settled = await self._settle(due)
            if settled < len(page.records) or not page.more:
                return

    async def _settle(self, reminders: list[Record]) -> int:
        """Do what the reminders ask for, as far as store time has come; give how many that were."""
        heads = [keys.parse_due(reminder.key)[1] for reminder in reminders]
        distinct = list(dict.fromkeys(heads))
        cut = await self._store.read(distinct, STRONG, _CALL_S)
        self._time.saw(cut.store_time_ms)
        found = dict(zip(distinct, cut.records, strict=True))
        moment = Moment(self._time.now_ms(), cut.store_time_ms, self._store.epoch)
        changes = [
            self._settled(reminder.key, head, found[head], await self._rules(head), moment)
            for reminder, head in zip(reminders, heads, strict=True)
            if keys.parse_due(reminder.key)[0] <= cut.store_time_ms  # the clock that made it due may be back by now
        ]
        answers = await asyncio.gather(
            *[self._store.commit(change, _CALL_S) for change in changes], return_exceptions=True
        )
        for (
            answer
        ) in answers:  # refused means that somebody wrote the entry meanwhile: its next state has its own reminder
            if isinstance(answer, BaseException) and not isinstance(answer, CommitRefused):
                raise answer
        return len(changes)

    async def _rules(self, head: bytes) -> RegionRules:
        """Give what holds in the region of an entry."""
        tenant, board_id, key = keys.parse_head(head)
        board = None
        if board_id:  # else the region lies beyond boards
            board = self._boards.trusted(tenant, board_id) or await self._boards.read(tenant, board_id, _CALL_S)
        policy = board.policy if board is not None else NO_POLICY
        return policy.terms(key.region).rules

    def _settled(
        self, reminder: bytes, head: bytes, record: Record | None, rules: RegionRules, moment: Moment
    ) -> ChangeSet:
        """Give what a reminder asks for: a burial, a removal, or, if the entry has changed since, nothing but its own end."""
        due_ms, _ = keys.parse_due(reminder)
        if record is None:
            return ChangeSet((Absent(head),), (), (DeleteKey(reminder),))
        current = Current(decode_entry(head, record.value), record.revision)
        state = current.record
        unchanged = AtRevision(head, record.revision)
        if state is not None and state.state is EntryState.LIVE and state.expire_time_ms == due_ms:
            planned = plan_expiry(head, rules, current, _SYSTEM, moment)
            return ChangeSet(tuple(planned.guards), tuple(puts_of(planned)), tuple(planned.clean_ups))
        if state is not None and state.state is not EntryState.LIVE and state.sweep_time_ms == due_ms:
            history = keys.history(head)
            removed = (DeleteKey(head), DeleteRange(history, keys.prefix_end(history)), DeleteKey(reminder))
            return ChangeSet((unchanged,), (), removed)
        return ChangeSet((unchanged,), (), (DeleteKey(reminder),))

    async def _sweep_operations(self) -> None:
        """Remove operation records that are past their window."""
        end = keys.operations_before(self._time.now_ms() - self._window_ms - OPERATIONS_SLACK_MS)
        limit = 1  # mostly the oldest record is young enough, and more need not be read
        while True:
            page = await self._store.scan(keys.OPERATION, b"", limit, limits.PAGE_BYTES_MAX, STRONG, _CALL_S)
            old = [record.key for record in page.records if record.key < end]
            if not old:
                return
            await self._store.commit(ChangeSet((), (), (DeleteRange(old[0], old[-1] + b"\x00"),)), _CALL_S)
            if len(old) < len(page.records) or not page.more:
                return
            limit = limits.PAGE_ENTRIES_MAX

    async def _sweep_quarantine(self) -> None:
        """Remove commits that have lain in quarantine long enough, whatever became of them."""
        end = keys.quarantine_due_before(self._time.now_ms() + 1)
        page = await self._store.scan(
            keys.QUARANTINE_DUE, b"", limits.PAGE_ENTRIES_MAX, limits.PAGE_BYTES_MAX, STRONG, _CALL_S
        )
        for record in page.records:
            if record.key >= end:
                return
            deletes = (DeleteKey(keys.parse_quarantine_due(record.key)), DeleteKey(record.key))
            await self._store.commit(ChangeSet((), (), deletes), _CALL_S)

    async def _mark_and_compact(self) -> None:
        """Once a minute note which revision is current; forget history before the newest note that is old enough."""
        now_ms = self._time.now_ms()
        if now_ms < self._next_mark_ms:
            return
        self._next_mark_ms = now_ms + min(60_000, max(1_000, self._store_history_ms // 4))
        page = await self._store.scan(keys.MARK, b"", limits.PAGE_ENTRIES_MAX, limits.PAGE_BYTES_MAX, STRONG, _CALL_S)
        marks = [decode_mark(record.key, record.value) for record in page.records]
        old = [mark for mark in marks if mark[0] <= now_ms - self._store_history_ms]
        key = keys.mark(now_ms)
        deletes = (DeleteRange(keys.MARK, keys.mark(old[-1][0])),) if len(old) > 1 else ()
        if old:  # first, as it makes room
            await self._store.compact(old[-1][1], _CALL_S)
        await self._store.commit(ChangeSet((), (Put(key, encode_mark(now_ms, page.revision)),), deletes), _CALL_S)

    async def _sweep_history(self) -> None:
        """Walk over all history records, a page at a turn; remove superseded ones that are older than their bound or too many.

        Commits remove what is too many themselves, unless they have no room for it.
        """
        now_ms = self._time.now_ms()
        if not self._history_after and now_ms < self._next_history_ms:
            return
        page = await self._store.scan(
            keys.HISTORY, self._history_after, _WALKED_AT_ONCE, limits.PAGE_BYTES_MAX, STRONG, _CALL_S
        )
        deletes = []
        for record in page.records:
            head = keys.head_of_history(record.key)
            state = decode_entry(record.key, record.value)
            rules = await self._rules(head)
            if head != self._newer[0]:
                self._newest = state.sequence
            newer = self._newer  # an entry's states come newest first, so this one ended when the one before began
            self._newer = (head, state.update_time_ms)
            too_many = self._newest - state.sequence >= rules.history_revisions_max
            if too_many or (newer[0] == head and newer[1] < now_ms - rules.history_age_ms_max):
                deletes.append(DeleteKey(record.key))
        if deletes:
            await self._store.commit(ChangeSet((), (), tuple(deletes)), _CALL_S)
        self._history_after = page.records[-1].key if page.more else b""
        if not page.more:
            self._next_history_ms = now_ms + _WALK_PAUSE_MS
            self._newer = (b"", 0)
