"""Giving an expiry to the working notes of subtasks that are completed, a bounded part at a turn.

That it is to be done is recorded with the completion, and forgotten when it is done: so it is done whoever is killed. Each
note is guarded on what it was and on its board, and one that somebody writes meanwhile is looked at again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kokuban_server.app.commits import origin_put, puts_of
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, DeleteKey
from kokuban_server.core.commit import Moment, plan_end
from kokuban_server.core.entry import Act, Current
from kokuban_server.core.provenance import has_origin
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.codec import decode_entry
from kokuban_server.records.task_codec import decode_notes

if TYPE_CHECKING:
    from kokuban_server.app.boards import Board, Boards
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.ports.board_store import BoardStore, Record

_CALL_S = 10.0
_JOBS_AT_ONCE = 16
_NOTES_AT_ONCE = 64
_ACT = Act("kokuban", "", "its subtask is completed")


class NoteExpiry:
    """Does it for one subtask after the other."""

    def __init__(self, store: BoardStore, boards: Boards, time: StoreTime) -> None:
        self._store = store
        self._boards = boards
        self._time = time
        self._after: dict[bytes, bytes] = {}
        """How far those subtasks were gone through whose notes are too many for one turn."""

    async def turn(self) -> None:
        """Go on with some of the subtasks that there are."""
        page = await self._store.scan(keys.TASK_NOTES, b"", _JOBS_AT_ONCE, limits.PAGE_BYTES_MAX, STRONG, _CALL_S)
        self._time.saw(page.store_time_ms)
        self._after = {record.key: self._after.get(record.key, b"") for record in page.records}
        for record in page.records:
            await self._go_on(record)

    async def _go_on(self, job: Record) -> None:
        tenant, board_id, region, path = keys.parse_task_notes(job.key)
        expire_time_ms = decode_notes(job.key, job.value)
        board = self._boards.trusted(tenant, board_id) or await self._boards.read(tenant, board_id, _CALL_S)
        if board is None or not board.is_live:  # what is on it is being removed
            return
        prefix = keys.heads(keys.region_prefix(tenant, board_id, region), path)
        page = await self._store.scan(
            prefix, self._after[job.key], _NOTES_AT_ONCE, limits.PAGE_BYTES_MAX, STRONG, _CALL_S
        )
        moment = Moment(self._time.now_ms(), page.store_time_ms, self._store.epoch)
        for note in page.records:
            change = self._ended(board, note, expire_time_ms, moment)
            if change is not None:
                try:
                    await self._store.commit(change, _CALL_S)
                except CommitRefused:  # somebody has written it, or changed the board: from here on again
                    await self._boards.read(tenant, board_id, _CALL_S)
                    return
            self._after[job.key] = note.key
        if not page.more:
            del self._after[job.key]
            done = ChangeSet((AtRevision(job.key, job.revision),), (), (DeleteKey(job.key),))
            with contextlib.suppress(CommitRefused):  # another server was faster
                await self._store.commit(done, _CALL_S)

    def _ended(self, board: Board, note: Record, expire_time_ms: int, moment: Moment) -> ChangeSet | None:
        """Give what has a note end at a time, if it does not end by then."""
        current = Current(decode_entry(note.key, note.value), note.revision)
        _, _, key = keys.parse_head(note.key)
        planned = plan_end(note.key, board.policy.terms(key.region).rules, current, expire_time_ms, _ACT, moment)
        if planned is None:
            return None
        puts = puts_of(planned)
        record = planned.states[0][1]
        if has_origin(record.label):
            seed = note.key + b"%d" % record.sequence
            states = [(key, record.sequence, record.label)]
            puts.append(origin_put(keys.board_prefix(board.tenant, board.id), seed, _ACT, moment.now_ms, states))
        # A task that is just being archived stays as it was exported.
        stays = Absent(keys.TASK_ARCHIVE + keys.region_prefix(board.tenant, board.id, key.region))
        return ChangeSet((*planned.guards, board.guard, stays), tuple(puts), tuple(planned.clean_ups))
