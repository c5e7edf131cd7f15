"""Forgetting where states came from of which nothing is left: neither kept, nor in what was made of them.

A walk over all that is recorded goes a bounded part at a turn: first over what names states, then over what names them no more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING

from kokuban_server.app.states import states_of
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import AtRevision, ChangeSet, DeleteKey, Put
from kokuban_server.core.entry import EntryState
from kokuban_server.core.provenance import Reach, reach_of
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.codec import decode_entry
from kokuban_server.records.provenance_codec import decode_origins, reach_of_parent, reworded
from kokuban_server.records.trust_codec import decode_read_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.provenance import Origin, StateName
    from kokuban_server.ports.board_store import BoardStore, Record

_CALL_S = 10.0
_WALKED_AT_ONCE = 256
_WALK_PAUSE_MS = 3_600_000


class OriginSweep:
    """Walks over all origins and read scopes once an hour.

    What is found to be superfluous goes at the walk after: a commit that names it may have been on its way.
    """

    def __init__(self, store: BoardStore, time: StoreTime) -> None:
        self._store = store
        self._time = time
        self._next_walk_ms = 0
        self._steps = self._all_steps()
        self._after = b""
        self._named: dict[bytes, list[Reach]] = defaultdict(list)
        self._scopes: set[bytes] = set()
        """In which anything was written that is still known of."""
        self._superfluous: set[StateName | bytes] = set()
        """States, and read scopes by their keys."""
        self._before: set[StateName | bytes] = set()
        """What was superfluous at the walk before."""

    def _all_steps(self) -> list[tuple[bytes, Callable[[Record], Awaitable[None]]]]:
        return [(keys.ORIGIN, self._note), (keys.SCOPE, self._note_or_sweep), (keys.ORIGIN, self._sweep)]

    async def turn(self) -> None:
        """Look at the next page, if it is time."""
        now_ms = self._time.now_ms()
        if now_ms < self._next_walk_ms:
            return
        kind, look = self._steps[0]
        page = await self._store.scan(kind, self._after, _WALKED_AT_ONCE, limits.PAGE_BYTES_MAX, STRONG, _CALL_S)
        for record in page.records:
            await look(record)
        self._after = page.records[-1].key if page.more else b""
        if not page.more:
            self._steps.pop(0)
        if not self._steps:
            self._steps = self._all_steps()
            self._named.clear()
            self._scopes.clear()
            self._before, self._superfluous = self._superfluous, set()
            self._next_walk_ms = now_ms + _WALK_PAUSE_MS

    async def _note(self, record: Record) -> None:
        """Take note of what a record of origins names."""
        for origin in decode_origins(record.key, record.value, record.revision):
            self._scopes.add(origin.scope)
            for reach in origin.parents:
                self._named[reach.head].append(reach)

    async def _note_or_sweep(self, record: Record) -> None:
        """Take note of what a read scope was given; remove one that is over, and in which nothing was written."""
        board = keys.board_of_origin(record.key)
        if record.key not in self._scopes:
            session = keys.on_board(keys.SESSION, board, keys.name_on_board(record.key))
            if (await self._store.read([session], STRONG, _CALL_S)).records[0] is None:
                self._superfluous.add(record.key)
                if record.key in self._before:
                    await self._commit(record, b"")
                return
        for given in decode_read_scope(record.key, record.value).given:
            reach = reach_of_parent(board, given.state)
            self._named[reach.head].append(reach)

    async def _commit(self, record: Record, raw: bytes) -> None:
        """Write a record anew, or remove it, unless somebody else has changed it."""
        guard = AtRevision(record.key, record.revision)
        puts, deletes = ((Put(record.key, raw),), ()) if raw else ((), (DeleteKey(record.key),))
        with contextlib.suppress(CommitRefused):
            await self._store.commit(ChangeSet((guard,), puts, deletes), _CALL_S)

    async def _sweep(self, record: Record) -> None:
        """Take those states out of a record of which nothing is left, and were not at the walk before."""
        gone: set[StateName] = set()
        for origin in decode_origins(record.key, record.value, record.revision):
            if not await self._is_needed(origin):
                self._superfluous.add(origin.name)
                if origin.name in self._before:
                    gone.add(origin.name)
        if gone:
            await self._commit(record, reworded(record.key, record.value, dict.fromkeys(gone)))

    async def _is_needed(self, origin: Origin) -> bool:
        """Say whether a kept state, or anything that was made of one, may hold a part of a state."""
        if any(reach.covers(origin.sequence) for reach in self._named.get(origin.head, ())):
            return True
        deadline = asyncio.get_running_loop().time() + _CALL_S
        async for record in states_of(self._store, origin.head, deadline):
            state = decode_entry(record.key, record.value)
            reach = reach_of(origin.head, state.sequence, state.label)
            if state.state is EntryState.LIVE and reach.covers(origin.sequence):
                return True
        return False
