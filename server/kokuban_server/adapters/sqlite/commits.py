"""Change sets judged and written, a batch in one transaction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from kokuban_server.adapters.sqlite import queries
from kokuban_server.adapters.sqlite.rows import revision_of
from kokuban_server.core.change_set import AtRevision, CreatedAt, DeleteKey, GuardFailure, NoneBelow, TimeBefore
from kokuban_server.core.keys import prefix_end
from kokuban_server.core.refusals import StoreFull, StoreUnavailable
from kokuban_server.ports.board_store import CommitRefused, LeaseLost

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from kokuban_server.adapters.sqlite.writer import Draft, Writer
    from kokuban_server.core.change_set import ChangeSet, DeleteRange
    from kokuban_server.ports.clock import Clock
    from kokuban_server.ports.group_commit import Answer

Head = tuple[int, int]
_ABSENT: Final[Head] = (0, 0)

_RANGE_SLICE: Final = 256
"""How many keys of a range are looked at before others get their turn on the event loop."""


class Commits:
    """Sends batches of independent change sets."""

    def __init__(self, writer: Writer, clock: Clock, lease_lives: Callable[[int], bool]) -> None:
        self._writer = writer
        self._clock = clock
        self._lease_lives = lease_lives

    async def send(self, batch: Sequence[ChangeSet]) -> Sequence[Answer]:
        """Try the change sets together; give one answer for each."""
        try:
            return await self._try(batch, puts=self._writer.has_room())
        except StoreFull:
            # The sets without puts may still find room, and are what makes some.
            await self._writer.make_room()
            return await self._try(batch, puts=False)

    async def _try(self, batch: Sequence[ChangeSet], *, puts: bool) -> Sequence[Answer]:
        answers: list[Answer] = []
        async with self._writer.transaction() as draft:
            before = draft.revision
            revision = draft.next_revision()
            view = _View(self._writer.connection, draft.state.store_time_ms)
            written = 0
            any_put = False
            for change in batch:
                if change.puts and not puts:
                    answers.append(StoreFull())
                    continue
                for guard in change.guards:
                    if isinstance(guard, NoneBelow):
                        await view.look_below(guard.prefix)
                refusal = self._refusal(change, view)
                if refusal is not None:
                    answers.append(refusal)
                    continue
                if change.deletes and (too_much := await _delete(change.deletes, view, draft)):
                    answers.append(too_much)
                    continue
                for put in change.puts:
                    draft.put(put[0], put[1], put[2], view.head(put[0]))
                    any_put = True
                answers.append(before if len(draft.rows) == written else revision)
                written = len(draft.rows)
            if any_put:
                now_ms = self._clock.now_ms()
                if now_ms > draft.state.store_time_ms:
                    draft.state = draft.state._replace(store_time_ms=now_ms)
        return answers

    def _refusal(self, change: ChangeSet, view: _View) -> CommitRefused | LeaseLost | None:
        if failures := view.failures(change):
            return CommitRefused(tuple(failures))
        for put in change.puts:
            if put[2] is not None and not self._lease_lives(put[2]):
                return LeaseLost()
        return None


class _View:
    """The state before the batch. Its members are independent, so none of them sees what another writes."""

    def __init__(self, connection: sqlite3.Connection, store_time_ms: int) -> None:
        self._connection = connection
        self._store_time_ms = store_time_ms
        self._heads: dict[bytes, Head] = {}
        self._below: dict[bytes, Head] = {}

    def head(self, key: bytes) -> Head:
        """Give a key's latest row and create revision."""
        found = self._heads.get(key)
        if found is None:
            found = self._heads[key] = queries.head(self._connection, key)
        return found

    async def look_below(self, prefix: bytes) -> None:
        """Find out whether there is a key below the prefix, for `failures`."""
        heads = await self.live_between(prefix, prefix_end(prefix), 1)
        self._below[prefix] = heads[0][1] if heads else _ABSENT

    async def live_between(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, Head]]:
        """Give the first keys in a range that hold something. What else is on the event loop gets its turn in between."""
        found: list[tuple[bytes, Head]] = []
        while True:
            heads = queries.heads_between(self._connection, start, end, _RANGE_SLICE)
            found += [(key, (row_id, created)) for key, row_id, created in heads if created]
            if len(heads) < _RANGE_SLICE or len(found) >= limit:
                return found
            start = heads[-1][0] + b"\0"
            await asyncio.sleep(0)

    def failures(self, change: ChangeSet) -> list[GuardFailure]:
        """Give what stands against the change set."""
        failures: list[GuardFailure] = []
        for place, guard in enumerate(change.guards):
            if isinstance(guard, TimeBefore):
                if self._store_time_ms >= guard.instant_ms:
                    failures.append(GuardFailure(place, self._store_time_ms, 0))
                continue
            row_id, created = self._below[guard.prefix] if isinstance(guard, NoneBelow) else self.head(guard.key)
            if isinstance(guard, AtRevision):
                holds = bool(created) and revision_of(row_id) == guard.revision
            elif isinstance(guard, CreatedAt):
                holds = bool(created) and created == guard.revision
            else:
                holds = not created
            if not holds:
                failures.append(GuardFailure(place, revision_of(row_id) if created else 0, created))
        return failures


async def _delete(deletes: Sequence[DeleteKey | DeleteRange], view: _View, draft: Draft) -> StoreUnavailable | None:
    """Remove what is there, each key once. Gives a refusal, and removes nothing, if it is more than a revision can take."""
    heads: dict[bytes, int] = {}
    for delete in deletes:
        if isinstance(delete, DeleteKey):
            row_id, created = view.head(delete.key)
            if created:
                heads[delete.key] = row_id
        else:
            found = await view.live_between(delete.start, delete.end, limit=1 << 62)
            heads.update((key, row_id) for key, (row_id, _) in found)
    if not draft.room_for(len(heads)):
        return StoreUnavailable("a revision cannot remove so many keys; remove a smaller range")
    for key, row_id in heads.items():
        draft.delete(key, row_id)
    return None
