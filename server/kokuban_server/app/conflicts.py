"""The log of conflicts: bounded, best effort, and written behind the calls that lost.

Noting a conflict never waits and never fails: what finds no room is counted. A conflict's id is made from its request, and
its place is written with it, guarded on not being there: so several servers, and several tries, make one record.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.background import Turns
from kokuban_server.app.deadlines import left_s
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, Put
from kokuban_server.core.conflicts import Outcome
from kokuban_server.core.refusals import Contended, OutcomeUnknown, StoreFull, StoreUnavailable
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.conflict_codec import decode_conflict, encode_conflict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kokuban_server.app.boards import Board, Boards
    from kokuban_server.app.request_ids import RequestIds
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.conflicts import Conflict, ConflictKind
    from kokuban_server.core.names import EntryKey
    from kokuban_server.ports.board_store import BoardStore

_WRITE_S = 10.0
_LAST_WORDS_S = 3.0
_BETWEEN_BATCHES_S = 0.25
_LOOK_FOR_S = 3.0
_RECENT_ENTRIES_MAX = 4_096


class Asker(NamedTuple):
    """Whose request it is."""

    tenant: str
    board: str
    agent: str

    @property
    def prefix(self) -> bytes:
        """What the board's keys have in common."""
        return keys.board_prefix(self.tenant, self.board)


class _Lost(NamedTuple):
    """A conflict that waits to be written."""

    asker: Asker
    conflict: Conflict


class _Settled(NamedTuple):
    """News of a conflict that was written, or is about to be: its retry, and on which states that was written."""

    asker: Asker
    conflict_id: str
    outcome: Outcome
    time_ms: int
    request_id: str
    written_over: Mapping[EntryKey, int]
    look_until: float
    """By the loop's time. A retry may be faster than the server at which the request lost is in writing that down."""


class _NotYet(Exception):  # noqa: N818 - an answer, not an error
    """The conflict is not there, and may still come."""


class ConflictLog:
    """Takes conflicts and what became of them, and writes them."""

    def __init__(
        self,
        store: BoardStore,
        boards: Boards,
        time: StoreTime,
        request_ids: RequestIds,
        report: Callable[[str, Exception], None],
    ) -> None:
        self._store = store
        self._boards = boards
        self._time = time
        self._request_ids = request_ids
        self._turns = Turns("conflicts", report)
        self._waiting: OrderedDict[object, _Lost | _Settled] = OrderedDict()
        self._of_agent: Counter[tuple[str, str]] = Counter()
        self._recent: OrderedDict[str, None] = OrderedDict()
        """Ids of conflicts noted here, whose requests may be sent again as they were."""
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()
        self.written = 0
        """How many this server has written."""
        self.dropped = 0
        """How many found no room: here, or in the store."""

    @property
    def waiting_count(self) -> int:
        """How much waits to be written."""
        return len(self._waiting)

    @property
    def epoch(self) -> str:
        """The store's epoch, to which the revisions of new conflicts belong."""
        return self._store.epoch

    def now_ms(self) -> int:
        """Give the time that a conflict is stamped with."""
        return self._time.now_ms()

    def id_of(self, kind: ConflictKind, asker: Asker, request_id: str) -> str:
        """Give the id of the conflict that a request lost, if it did."""
        name = keys.join(kind.name.encode(), *(part.encode() for part in (*asker, request_id)))
        return self._request_ids.digest(b"conflict\x00" + name).hex()

    def lost(self, asker: Asker, conflict: Conflict) -> None:
        """Take note of a conflict. One that the request lost before is the same conflict."""
        self._recent[conflict.id] = None
        if len(self._recent) > _RECENT_ENTRIES_MAX:
            self._recent.popitem(last=False)
        self._put(conflict.id, _Lost(asker, conflict))
        if conflict.retry_of:
            before = self.id_of(conflict.kind, asker, conflict.retry_of)
            self._settled(asker, before, Outcome.LOST_AGAIN, conflict.loser.request_id, {})

    def won(
        self,
        kind: ConflictKind,
        asker: Asker,
        request_id: str,
        retry_of: str,
        written_over: Mapping[EntryKey, int],
    ) -> None:
        """Take note that a request stands, if it is a retry. `written_over` are the states that it says it has seen."""
        retried = [self.id_of(kind, asker, retry_of)] if retry_of else []
        if self._recent:
            same = self.id_of(kind, asker, request_id)
            if same in self._recent:
                del self._recent[same]
                retried.append(same)
        for conflict_id in retried:
            self._settled(asker, conflict_id, Outcome.WON, request_id, written_over)

    def _settled(
        self,
        asker: Asker,
        conflict_id: str,
        outcome: Outcome,
        request_id: str,
        written_over: Mapping[EntryKey, int],
    ) -> None:
        look_until = asyncio.get_running_loop().time() + _LOOK_FOR_S
        news = _Settled(asker, conflict_id, outcome, self.now_ms(), request_id, written_over, look_until)
        self._put((conflict_id, request_id), news)

    def _put(self, name: object, item: _Lost | _Settled) -> None:
        if name in self._waiting:
            return
        of_agent = (item.asker.tenant, item.asker.agent)
        if (
            len(self._waiting) >= limits.CONFLICTS_WAITING_ENTRIES_MAX
            or self._of_agent[of_agent] >= limits.CONFLICTS_OF_PRINCIPAL_ENTRIES_MAX
        ):
            self.dropped += 1
            return
        self._waiting[name] = item
        self._of_agent[of_agent] += 1
        self._news.set()

    async def run(self) -> None:
        """Write what is noted until cancelled. While the store does not answer it waits, and new ones are dropped in time."""
        while True:
            await self._news.wait()
            with self._turns.turn():
                await self._write_some(asyncio.get_running_loop().time() + _WRITE_S, is_patient=True)
            await asyncio.sleep(_BETWEEN_BATCHES_S)

    async def settle(self, deadline: float) -> None:
        """Write everything that was noted."""
        while self._waiting:
            await self._write_some(deadline)

    async def close(self) -> None:
        """Write what there is, if the store answers soon."""
        with self._turns.turn():
            await self.settle(asyncio.get_running_loop().time() + _LAST_WORDS_S)

    async def _write_some(self, deadline: float, *, is_patient: bool = False) -> None:
        """Write the oldest that wait, all at once; those whose fate is not known, or for which there is no store, wait on."""
        async with self._writing:
            oldest = list(islice(self._waiting.items(), limits.CONFLICT_BATCH_ENTRIES_MAX))
            # First what lost, then what became of it: its record may be in the same batch.
            for kind in (_Lost, _Settled):
                batch = [(name, item) for name, item in oldest if isinstance(item, kind)]
                answers = await asyncio.gather(
                    *[self._write(item, deadline) for _, item in batch], return_exceptions=True
                )
                fault: BaseException | None = None
                for (name, _), answer in zip(batch, answers, strict=True):
                    if isinstance(answer, _NotYet) and is_patient:
                        self._waiting.move_to_end(name)
                        continue
                    if isinstance(answer, StoreUnavailable | OutcomeUnknown | asyncio.CancelledError):
                        fault = answer
                        continue
                    self._take_out(name)
                    if isinstance(answer, BaseException) and not isinstance(answer, _NotYet):
                        self.dropped += 1
                        fault = fault if isinstance(answer, StoreFull) else answer
                if fault is not None:
                    raise fault
            if not self._waiting:
                self._news.clear()

    def _take_out(self, name: object) -> None:
        asker = self._waiting.pop(name).asker
        of_agent = (asker.tenant, asker.agent)
        self._of_agent[of_agent] -= 1
        if not self._of_agent[of_agent]:
            del self._of_agent[of_agent]

    async def _write(self, item: _Lost | _Settled, deadline: float) -> None:
        board = self._boards.trusted(item.asker.tenant, item.asker.board)
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            if board is None:
                board = await self._boards.read(item.asker.tenant, item.asker.board, left_s(deadline))
            if board is None or not board.is_live:
                return
            try:
                if isinstance(item, _Lost):
                    await self._write_lost(item, board, deadline)
                else:
                    await self._write_settled(item, board, deadline)
            except CommitRefused as refused:
                # That the conflict was written before is as good. Else somebody has written the same one, or the board.
                if isinstance(item, _Lost) and refused.failures[0].place == 0:
                    return
                board = None
            else:
                return
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    async def _write_lost(self, item: _Lost, board: Board, deadline: float) -> None:
        conflict, prefix = item.conflict, item.asker.prefix
        place = keys.conflict_place(prefix, conflict.id)
        record = keys.conflict(prefix, conflict.time_ms, conflict.id)
        puts = (Put(place, record), Put(record, encode_conflict(conflict)))
        # The board's guard keeps a conflict from being written to a board that is being removed.
        await self._store.commit(ChangeSet((Absent(place), board.guard), puts), left_s(deadline))
        self.written += 1

    async def _write_settled(self, item: _Settled, board: Board, deadline: float) -> None:
        """Say in a conflict's record what became of it, if there is one that does not say that it was won.

        Raises `_NotYet` while there is none but may be.
        """
        place = keys.conflict_place(item.asker.prefix, item.conflict_id)
        where = (await self._store.read([place], STRONG, left_s(deadline))).records[0]
        if where is None:
            if asyncio.get_running_loop().time() < item.look_until:
                raise _NotYet
            return
        found = (await self._store.read([where.value], STRONG, left_s(deadline))).records[0]
        if found is None:  # trimmed meanwhile
            return
        conflict = decode_conflict(found.key, found.value)
        if conflict.outcome in {Outcome.WON, Outcome.MERGED}:
            return
        over = next(
            (
                revision
                for key, revision in item.written_over.items()
                if (str(key.region), key.path) == (conflict.region, conflict.path)
            ),
            0,
        )
        is_merged = item.outcome is Outcome.WON and 0 < conflict.actual_revision <= over
        settled = replace(
            conflict,
            outcome=Outcome.MERGED if is_merged else item.outcome,
            outcome_time_ms=item.time_ms,
            outcome_request_id=item.request_id,
        )
        change = ChangeSet(
            (AtRevision(found.key, found.revision), board.guard), (Put(found.key, encode_conflict(settled)),)
        )
        await self._store.commit(change, left_s(deadline))
