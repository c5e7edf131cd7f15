"""The store as the lock use cases see it: what was read or written is taken into the mirror at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kokuban_server.app.deadlines import left_s
from kokuban_server.core import keys, limits
from kokuban_server.core.refusals import OutcomeUnknown
from kokuban_server.ports.board_store import STRONG, Snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from kokuban_server.app.lock_mirror import LockMirror
    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.board_store import BoardStore, Consistency, Cut, Record


class MirroredStore:
    """A store and this server's picture of its locks."""

    def __init__(self, store: BoardStore, mirror: LockMirror) -> None:
        self.port = store
        self.mirror = mirror

    async def read(self, named: Sequence[bytes], deadline: float) -> Cut:
        """Give what the store has under keys of locks and sessions, and bring the mirror up to it."""
        cut = await self.port.read(named, STRONG, left_s(deadline))
        await settle(self.mirror, named, cut.records, cut.revision, deadline)
        return cut

    async def apply(self, change: ChangeSet, deadline: float) -> int:
        """Have the store judge and apply a set, as `commit_surely` does, and take in what it did."""
        revision = await commit_surely(self.port, change, deadline)
        self.mirror.learn(change, revision)
        return revision


def _no_matter() -> None:
    """Do nothing."""


async def commit_surely(
    store: BoardStore, change: ChangeSet, deadline: float, on_doubt: Callable[[], None] = _no_matter
) -> int:
    """Have the store judge and apply a set; the same again after a lost answer, of which `on_doubt` is told.

    One of the set's guards is undone by its own writes, so it happens once; but then the answer to the second try may be
    that it does not hold.
    """
    pause_s = 0.01
    while True:
        try:
            return await store.commit(change, left_s(deadline))
        except OutcomeUnknown:
            on_doubt()
            if left_s(deadline) <= pause_s:
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(1.0, pause_s * 2)


async def settle(
    mirror: LockMirror, doubts: Sequence[bytes], records: Sequence[Record | None], revision: int, deadline: float
) -> bool:
    """Bring the mirror up to what a strong read found. False if it was all known."""
    news = False
    for key, record in zip(doubts, records, strict=True):
        known = mirror.revision_of(key)
        if record is None:
            if known:
                mirror.forget(key, revision)
                if key.startswith(keys.MARKER):  # the lock goes before its marker, or with it
                    mirror.forget(keys.LOCK + key[len(keys.MARKER) :], revision)
                news = True
        elif record.revision > known:
            await mirror.reach(record.revision, left_s(deadline))
            news = True
    return news


async def records_below(
    store: BoardStore, prefix: bytes, deadline: float, after: bytes = b"", consistency: Consistency = STRONG
) -> AsyncGenerator[Record, None]:
    """Give every record of a prefix behind a key, all of one state, which is that of a strong read unless told otherwise."""
    more = True
    while more:
        page = await store.scan(
            prefix, after, limits.PAGE_ENTRIES_MAX, limits.PAGE_BYTES_MAX, consistency, left_s(deadline)
        )
        consistency = Snapshot(page.revision)
        for record in page.records:
            after = record.key
            yield record
        more = page.more
