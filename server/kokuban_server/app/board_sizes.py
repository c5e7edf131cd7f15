"""What each board takes of the store, as far as this server knows, and the limit that is held against it.

Known are the last count, which one server makes for all (`app.board_census`), and what this server has put since. Not known
is what other servers have put since, or this one before it was started: the next count brings that.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kokuban_server.app.mirrored_store import records_below
from kokuban_server.core import keys
from kokuban_server.core.change_set import Absent, DeleteKey
from kokuban_server.core.refusals import BoardFull, HistoryCompacted, StoreUnavailable
from kokuban_server.records.codec import decode_board_size

if TYPE_CHECKING:
    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.board_store import BoardStore

_CALL_S = 10.0
_LOOKS = 10
"""How often the counts are read in the time between two of them."""
_ADDED_ENTRIES_MAX = 1_024


def growth_of(change: ChangeSet, board: bytes) -> int | None:
    """Give by how many bytes a set makes a board larger, about, or nothing if it writes none of the board's entries.

    A new entry adds its head and, if it is no event, its history record. An overwritten one adds its history record; its head,
    and the history record that goes for it, are taken to have been as large as what replaces them.
    """
    in_heads, in_history = keys.HEAD + board, keys.HISTORY + board
    heads: dict[bytes, int] = {}
    states: dict[bytes, int] = {}
    for put in change.puts:
        if put.key.startswith(in_history):
            states[keys.head_of_history(put.key)] = len(put.key) + len(put.value)
        elif put.key.startswith(in_heads):
            heads[put.key] = len(put.key) + len(put.value)
    if not heads:
        return None
    growth = sum(states.values())
    growth += sum(heads.get(guard.key, 0) for guard in change.guards if isinstance(guard, Absent))
    gone = [delete.key for delete in change.deletes if isinstance(delete, DeleteKey)]
    return growth - sum(states.get(keys.head_of_history(key), 0) for key in gone if key.startswith(in_history))


class _Board:
    """What is known of one board."""

    __slots__ = ("_added", "_added_bytes", "_counted_bytes", "_revision", "on_the_way_bytes")

    def __init__(self) -> None:
        self._counted_bytes = 0
        self._revision = 0
        self._added: list[tuple[int, int]] = []  # revision and bytes, in order
        self._added_bytes = 0
        self.on_the_way_bytes = 0
        """What commits put whose answer is not there yet."""

    @property
    def size_bytes(self) -> int:
        return self._counted_bytes + self._added_bytes + self.on_the_way_bytes

    def add(self, revision: int, size: int) -> None:
        """Take note of what was put at a revision."""
        if revision <= self._revision:
            return  # the count that came meanwhile has it
        added = self._added
        if len(added) >= _ADDED_ENTRIES_MAX:  # coarser: some of it is then counted twice after the next count
            pairs = zip(added[::2], added[1::2], strict=True)
            added = self._added = [(later[0], earlier[1] + later[1]) for earlier, later in pairs]
        if added and added[-1][0] >= revision:
            revision, before = added.pop()
            added.append((revision, before + size))
        else:
            added.append((revision, size))
        self._added_bytes += size

    def count(self, size: int, revision: int) -> None:
        """Take a count, unless a later one is known."""
        if revision < self._revision:
            return
        self._counted_bytes, self._revision = size, revision
        self._added = [one for one in self._added if one[0] > revision]
        self._added_bytes = sum(size for _, size in self._added)

    def forget_count(self) -> None:
        """There is none any more, as of a board that is gone."""
        self._counted_bytes = self._revision = 0


class BoardSizes:
    """The sizes of all boards, by the boards' prefixes."""

    def __init__(self, store: BoardStore, bytes_max: int, census_interval_s: float) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._interval_s = census_interval_s
        self._boards: dict[bytes, _Board] = {}
        self._is_known = asyncio.Event()

    async def stand(self, deadline: float) -> None:
        """Come back when the last counts are known."""
        if not self._is_known.is_set():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._is_known.wait()
            except TimeoutError:
                raise StoreUnavailable("what boards take could not be read in time") from None

    def size_bytes(self, board: bytes) -> int:
        """Give what a board takes, about."""
        known = self._boards.get(board)
        return 0 if known is None else known.size_bytes

    def admit(self, board: bytes, name: str, change: ChangeSet) -> None:
        """Raise `BoardFull` if a set would take the board over its limit."""
        growth = growth_of(change, board)
        size = self.size_bytes(board)
        if growth is not None and size + growth > self._bytes_max:
            raise BoardFull(name, self._bytes_max, size, round(self._interval_s * 1000))

    def begin(self, board: bytes, change: ChangeSet) -> int:
        """Reserve what a set puts while it is on its way; give how much that is. `end` must follow."""
        growth = growth_of(change, board) or 0
        self._board(board).on_the_way_bytes += growth
        return growth

    def end(self, board: bytes, growth: int, revision: int | None) -> None:
        """Say at which revision the set was applied, or that it was not, as far as is known."""
        known = self._board(board)
        known.on_the_way_bytes -= growth
        if revision is not None and growth:
            known.add(revision, growth)

    def _board(self, board: bytes) -> _Board:
        return self._boards.get(board) or self._boards.setdefault(board, _Board())

    async def follow(self) -> None:
        """Read the counts now and then, until cancelled. A store that does not answer is asked again."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self.read(loop.time() + _CALL_S)
            except (StoreUnavailable, HistoryCompacted):
                await asyncio.sleep(1.0)
            else:
                await asyncio.sleep(self._interval_s / _LOOKS)

    async def read(self, deadline: float) -> None:
        """Take in the counts as they stand in the store."""
        found = set()
        async for record in records_below(self._store, keys.SIZE, deadline):
            board = record.key[len(keys.SIZE) :]
            found.add(board)
            self._board(board).count(*decode_board_size(record.key, record.value))
        for board in self._boards.keys() - found:
            self._boards[board].forget_count()
        self._is_known.set()
