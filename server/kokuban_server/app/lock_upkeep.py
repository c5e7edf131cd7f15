"""What happens to locks that nobody releases: losses noted, lock delays ended, longest holds cut, orphaned waits removed.

Every server does it for all; everything is guarded, so that of several the first is enough. Times are waited for on this
server's own running clock from the moment at which it learnt of what began them, so that no step of a wall clock shortens
them.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, DeleteKey, Put
from kokuban_server.core.refusals import OutcomeUnknown, StoreFull, StoreUnavailable
from kokuban_server.ports.board_store import CommitRefused
from kokuban_server.records.lock_codec import encode_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_server.app.lock_mirror import BoardLocks, KnownLock, LockMirror
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.ports.board_store import BoardStore

_CALL_S = 5.0
_RETRY_S = 1.0
_AT_ONCE = 64
_DUE_MIN = 1_024
_LOOK_AGAIN_S = 5.0
"""How long a wall clock is trusted: a longest hold is judged by store time, which may go faster than this server's clock."""


class _Due(NamedTuple):
    """Something to look at, at a time of the loop's."""

    at: float
    prefix: bytes
    name: str
    revision: int
    """Of the marker or wait that it concerns; another one has an item of its own."""
    is_wait: bool = False
    may_open: bool = False
    """Its lock delay has been waited out here, because the store had no room to note the loss."""


def _nobody(board: bytes, lock_id: str) -> bool:  # noqa: ARG001 - of a server that has no streams
    """Say that no stream waits."""
    return False


class LockUpkeep:
    """The loop that does it. `keeps` says whether a stream of the server `server_id`, which is this one, waits for a lock."""

    def __init__(
        self,
        store: BoardStore,
        time: StoreTime,
        mirror: LockMirror,
        report: Callable[[str, Exception], None],
        server_id: str = "",
        keeps: Callable[[bytes, str], bool] = _nobody,
    ) -> None:
        self._store = store
        self._time = time
        self._mirror = mirror
        self._server_id = server_id
        self._keeps = keeps
        self._report = report
        self._due: list[_Due] = []
        self._due_max = _DUE_MIN
        self._news = asyncio.Event()
        mirror.on_claim = self._on_claim
        mirror.on_wait = self._on_wait
        mirror.on_server_gone = self._on_server_gone

    # What is to be looked at, and when.

    def _on_claim(self, board: BoardLocks, name: str) -> None:
        claim = board.claims.get(name)
        if claim is None:
            return
        now = asyncio.get_running_loop().time()
        if name in board.locks:
            wait_s = (claim.record.end_time_ms - self._time.now_ms()) / 1000
            self._add(
                _Due(
                    now + min(max(0.0, wait_s), limits.LOCK_HOLD_MS_MAX / 1000),
                    board.prefix,
                    name,
                    claim.revision,
                    False,
                )
            )
        elif claim.record.lost_time_ms:
            # From now, not from the time that was noted: this server's clock may be ahead of the one that noted it.
            self._add(_Due(now + claim.record.lock_delay_ms / 1000, board.prefix, name, claim.revision))
        else:
            self._add(_Due(now, board.prefix, name, claim.revision))

    def _on_wait(self, board: BoardLocks, name: str) -> None:
        wait = board.waits.get(name)
        if wait is not None and (self._is_own(wait) or wait.record.server_id not in self._mirror.servers):
            at = asyncio.get_running_loop().time() + limits.WAIT_ADOPTED_S_MAX
            self._add(_Due(at, board.prefix, name, wait.revision, is_wait=True))

    def _on_server_gone(self) -> None:
        for board in self._mirror.boards:
            for name in list(board.waits):
                self._on_wait(board, name)

    def _is_own(self, wait: KnownLock) -> bool:
        return wait.record.server_id == self._server_id

    def _add(self, due: _Due) -> None:
        if len(self._due) >= self._due_max:  # most are of locks that were released long before their longest hold
            self._due = [due for due in self._due if self._is_of_use(due)]
            heapq.heapify(self._due)
            self._due_max = max(_DUE_MIN, 2 * len(self._due))
        heapq.heappush(self._due, due)
        if self._due[0] is due:
            self._news.set()

    def _is_of_use(self, due: _Due) -> bool:
        board = self._mirror.board(due.prefix)
        found = None if board is None else (board.waits if due.is_wait else board.claims).get(due.name)
        return found is not None and found.revision == due.revision

    # Doing it.

    async def run(self) -> None:
        """Work until cancelled. What cannot be done now is tried again."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            ripe: list[_Due] = []
            while self._due and self._due[0].at <= now and len(ripe) < _AT_ONCE:
                ripe.append(heapq.heappop(self._due))
            if ripe:
                await asyncio.gather(*[self._do_safely(due) for due in ripe])
                continue
            self._news.clear()
            timeout = self._due[0].at - now if self._due else None
            try:
                async with asyncio.timeout(timeout):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _do_safely(self, due: _Due) -> None:
        again = due._replace(at=asyncio.get_running_loop().time() + _RETRY_S)
        try:
            await self._do(due)
        except CommitRefused:  # another server was faster; what it made of it has an item of its own
            pass
        except (StoreUnavailable, StoreFull, OutcomeUnknown):
            self._add(again)
        except Exception as fault:  # noqa: BLE001 - a supervisor: one bad record must not be the last
            self._report("lock upkeep", fault)
            self._add(again._replace(at=again.at + _LOOK_AGAIN_S))

    async def _do(self, due: _Due) -> None:
        board = self._mirror.board(due.prefix)
        if board is None:
            return
        if due.is_wait:
            await self._end_orphan(board, due)
            return
        claim = board.claims.get(due.name)
        if claim is None or claim.revision != due.revision:
            return
        if due.name in board.locks:
            await self._end_long_hold(board, due)
        elif claim.record.lost_time_ms or not claim.record.lock_delay_ms or due.may_open:
            await self._open(board, due)
        else:
            await self._note_loss(board, due)

    async def _end_orphan(self, board: BoardLocks, due: _Due) -> None:
        """Remove a wait whose stream or server is gone, if nobody has taken it over."""
        wait = board.waits.get(due.name)
        if wait is None or wait.revision != due.revision:
            return
        if self._is_own(wait):
            if self._keeps(board.prefix, due.name):
                self._add(due._replace(at=asyncio.get_running_loop().time() + limits.WAIT_ADOPTED_S_MAX))
                return
        elif wait.record.server_id in self._mirror.servers:
            return
        key = keys.on_board(keys.WAIT, board.prefix, due.name)
        await self._commit(ChangeSet((AtRevision(key, wait.revision),), (), (DeleteKey(key),)))

    async def _end_long_hold(self, board: BoardLocks, due: _Due) -> None:
        """End a lock whose longest hold is over: its fence is dead by store time anyway."""
        lock, claim = board.locks[due.name], board.claims.get(due.name)
        left_ms = lock.record.end_time_ms - self._time.now_ms()
        if claim is None:
            return
        if left_ms > 0:
            at = asyncio.get_running_loop().time() + min(left_ms / 1000, _LOOK_AGAIN_S)
            self._add(due._replace(at=at))
            return
        lock_key = keys.on_board(keys.LOCK, board.prefix, due.name)
        marker_key = keys.on_board(keys.MARKER, board.prefix, due.name)
        guards = (AtRevision(lock_key, lock.revision), AtRevision(marker_key, claim.revision))
        lost = lock.record._replace(lost_time_ms=self._time.now_ms())
        try:
            await self._commit(ChangeSet(guards, (Put(marker_key, encode_lock(lost)),), (DeleteKey(lock_key),)))
        except StoreFull:
            await self._commit(ChangeSet(guards, (), (DeleteKey(lock_key),)))

    async def _note_loss(self, board: BoardLocks, due: _Due) -> None:
        """Stamp the marker of a lock that is gone: its lock delay begins now."""
        claim = board.claims.get(due.name)
        if claim is None:
            return
        key = keys.on_board(keys.MARKER, board.prefix, due.name)
        gone = Absent(keys.on_board(keys.LOCK, board.prefix, due.name))
        lost = claim.record._replace(lost_time_ms=self._time.now_ms())
        try:
            await self._commit(ChangeSet((AtRevision(key, claim.revision), gone), (Put(key, encode_lock(lost)),)))
        except StoreFull:
            at = asyncio.get_running_loop().time() + claim.record.lock_delay_ms / 1000
            self._add(due._replace(at=at, may_open=True))

    async def _open(self, board: BoardLocks, due: _Due) -> None:
        """Remove a marker whose lock delay is over."""
        key = keys.on_board(keys.MARKER, board.prefix, due.name)
        gone = Absent(keys.on_board(keys.LOCK, board.prefix, due.name))
        await self._commit(ChangeSet((AtRevision(key, due.revision), gone), (), (DeleteKey(key),)))

    async def _commit(self, change: ChangeSet) -> None:
        self._mirror.learn(change, await self._store.commit(change, _CALL_S))
