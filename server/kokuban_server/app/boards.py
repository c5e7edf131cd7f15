"""The boards' own records as this server knows them: what there is, and under which policy."""

from __future__ import annotations

import asyncio
import contextlib
import math
from itertools import islice
from typing import TYPE_CHECKING

from kokuban_server.app.background import Background
from kokuban_server.app.following import Following
from kokuban_server.core import keys, limits
from kokuban_server.core.boards import BoardState
from kokuban_server.core.change_set import AtRevision
from kokuban_server.core.refusals import Refusal, StoreCorrupt
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.board_codec import decode_board

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_server.core.boards import BoardRecord
    from kokuban_server.ports.board_store import BoardStore, WatchBatch

_TRUSTED_S = 10.0
"""For how long a board's record counts after it was read: what its watch brings comes sooner, but no watch promises when."""
_READ_AGAIN_S = _TRUSTED_S / 2
"""When a record that is in use is read again, so that nobody waits for it."""
_READ_AT_ONCE = 200


class Board:
    """A board's record at one revision. Compared by identity: another object means that something has changed."""

    __slots__ = ("guard", "id", "key", "policy", "read_at", "record", "revision", "tenant")

    def __init__(self, key: bytes, record: BoardRecord, revision: int) -> None:
        self.key = key
        self.tenant, self.id = keys.parse_board(key)
        self.record = record
        self.policy = record.policy
        self.revision = revision
        self.read_at = -math.inf
        """The loop's time at which the store was last asked for it, of those times that it has answered."""
        self.guard = AtRevision(key, revision)
        """What ties a commit to this board's being there, and to its policy."""

    @property
    def is_live(self) -> bool:
        """Whether the board is there."""
        return self.record.state is BoardState.LIVE


class Boards(Following):
    """Remembers boards that were asked for, and follows the store's changes of them.

    May lag behind the store by what a watch takes, and by 10 seconds at most: what was not read for so long is read anew. Who
    writes guards on the record's revision, so no commit is judged by a policy that is over.
    """

    def __init__(self, store: BoardStore) -> None:
        super().__init__(store, keys.BOARD, "boards")
        self._known: dict[tuple[str, str], Board] = {}
        self._background = Background()
        self._reading: set[tuple[str, str]] = set()
        self.followers: dict[Callable[[], None], None] = {}
        """Called when a board has changed."""

    def trusted(self, tenant: str, board_id: str) -> Board | None:
        """Give what is remembered, if it may be relied on."""
        name = (tenant, board_id)
        board = self._known.get(name)
        if board is None or not self.stands:
            return None
        age_s = asyncio.get_running_loop().time() - board.read_at
        if age_s >= _READ_AGAIN_S and name not in self._reading:
            self._reading.add(name)
            self._background.spawn(lambda: self._read_again(name), "board")
        return board if age_s < _TRUSTED_S else None

    async def _read_again(self, name: tuple[str, str]) -> None:
        try:
            with contextlib.suppress(Refusal):
                await self.read(*name, _TRUSTED_S)
        finally:
            self._reading.discard(name)

    def at_hand(self, tenant: str, board_id: str) -> Board | None:
        """Give what was known last."""
        return self._known.get((tenant, board_id))

    async def read(self, tenant: str, board_id: str, deadline_s: float) -> Board | None:
        """Give the board as the store has it now, and remember it."""
        self.begin()
        begun = asyncio.get_running_loop().time()
        key = keys.board(tenant, board_id)
        cut = await self._store.read([key], STRONG, deadline_s)
        record = cut.records[0]
        if record is None:
            return None
        board = self.learn(key, record.value, record.revision)
        board.read_at = max(board.read_at, begun)
        return board

    def learn(self, key: bytes, raw: bytes, revision: int) -> Board:
        """Take in a record; give the newest that is known."""
        name = keys.parse_board(key)
        known = self._known.get(name)
        if known is not None and known.revision >= revision:
            return known
        if known is None and len(self._known) >= limits.BOARDS_KNOWN_ENTRIES_MAX:
            for old in list(islice(self._known, len(self._known) // 8)):
                del self._known[old]
        try:
            board = self._known[name] = Board(key, decode_board(key, raw), revision)
        except StoreCorrupt:
            self._forget(name)
            raise
        if known is not None:
            board.read_at = known.read_at
            self._tell()
        return board

    def _forget(self, name: tuple[str, str]) -> None:
        if self._known.pop(name, None) is not None:
            self._tell()

    def _tell(self) -> None:
        for follower in list(self.followers):
            follower()

    async def close(self) -> None:
        """Stop following the store."""
        await self._background.close()
        await super().close()

    def _take(self, batch: WatchBatch) -> None:
        for event in batch.events:
            name = keys.parse_board(event.key)
            if event.value is None:
                self._forget(name)
            elif name in self._known:
                with contextlib.suppress(StoreCorrupt):  # told to whoever asks for this board, and to no other
                    self.learn(event.key, event.value, event.revision)
        self.revision = batch.revision

    async def _load(self) -> None:
        """Read everything that is remembered again, from one state on."""
        revision = (await self._store.read([keys.SECRET], STRONG, limits.DEADLINE_S_DEFAULT)).revision
        names = list(self._known)
        for begin in range(0, len(names), _READ_AT_ONCE):
            part = [keys.board(*name) for name in names[begin : begin + _READ_AT_ONCE]]
            cut = await self._store.read(part, STRONG, limits.DEADLINE_S_DEFAULT)
            for name, record in zip(names[begin:], cut.records, strict=False):
                if record is None:
                    self._forget(name)
                    continue
                with contextlib.suppress(StoreCorrupt):
                    self.learn(record.key, record.value, record.revision)
        self.revision = revision
        self._stands.set()
