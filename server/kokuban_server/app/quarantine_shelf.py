"""Where commits lie that screening held back, bounded and for a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import commit_surely
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.core.quarantine import QuarantineState
from kokuban_server.core.refusals import NotFound
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.quarantine_codec import decode_quarantined, encode_quarantined

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kokuban_server.app.boards import Board
    from kokuban_server.core.change_set import Guard
    from kokuban_server.core.quarantine import Quarantined
    from kokuban_server.ports.board_store import BoardStore

_FULL_S = 10.0
"""For how long a quarantine that was full is taken to be: to count it is dear."""


class OnShelf(NamedTuple):
    """A commit in quarantine as it was read."""

    id: str
    key: bytes
    revision: int
    item: Quarantined


class QuarantineShelf:
    """Keeps commits that were held back."""

    def __init__(self, store: BoardStore) -> None:
        self._store = store
        self._full: dict[bytes, float] = {}

    async def keep(
        self,
        board: Board,
        item: Quarantined,
        identity: str,
        answer: bytes,
        deadline: float,
        guards: Iterable[Guard] = (),
    ) -> bool:
        """Keep a commit, with the answer that its repeats get, once.

        False if it was answered before, the board has changed, or another guard does not hold. `identity` is of its own; the id
        by which it is found is `name_of` it.
        """
        prefix = keys.board_prefix(board.tenant, board.id)
        key = keys.on_board(keys.QUARANTINE, prefix, name_of(item, identity))
        reminder = keys.quarantine_due(item.create_time_ms + limits.QUARANTINE_MS, key)
        puts = [Put(key, encode_quarantined(item)), Put(item.operation, answer), Put(reminder, b"")]
        if item.state is QuarantineState.PENDING:
            puts.append(Put(marker_of(key), b""))
        change = ChangeSet((Absent(item.operation), board.guard, *guards), tuple(puts))
        try:
            await commit_surely(self._store, change, deadline)
        except CommitRefused:
            return False
        return True

    async def is_full(self, board: Board, deadline: float) -> bool:
        """Say whether a board's quarantine takes no more."""
        prefix = keys.QUARANTINE + keys.board_prefix(board.tenant, board.id)
        now_s = asyncio.get_running_loop().time()
        if self._full.get(prefix, 0.0) > now_s:
            return True
        self._full.pop(prefix, None)
        page = await self._store.scan(
            prefix, b"", limits.QUARANTINE_ENTRIES_MAX, limits.QUARANTINE_BYTES_MAX, STRONG, left_s(deadline)
        )
        if page.more or len(page.records) >= limits.QUARANTINE_ENTRIES_MAX:
            self._full[prefix] = now_s + _FULL_S
            return True
        return False

    async def find(self, board: Board, name: str, deadline: float) -> OnShelf:
        """Give a commit in quarantine. Raises `NotFound`."""
        key = keys.on_board(keys.QUARANTINE, keys.board_prefix(board.tenant, board.id), name)
        found = (await self._store.read([key], STRONG, left_s(deadline))).records[0]
        if found is None:
            raise NotFound
        return OnShelf(name, key, found.revision, decode_quarantined(key, found.value))


def marker_of(key: bytes) -> bytes:
    """Give the key of what says that a commit in quarantine waits for what screens."""
    return keys.PENDING + key[len(keys.QUARANTINE) :]


def commit_of(marker: bytes) -> bytes:
    """Give the key of the commit that a marker is of."""
    return keys.QUARANTINE + marker[len(keys.PENDING) :]


def name_of(item: Quarantined, identity: str) -> str:
    """Give the id of a commit in quarantine: in order of time, and of its own."""
    return f"{item.create_time_ms:015d}-{identity}"
