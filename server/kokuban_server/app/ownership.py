"""Which server does a piece of background work: one at a time, by a record on a lease.

It only spares work: what is done by whoever owns it must be safe when two servers believe that they do.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kokuban_server.core import keys
from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.ports.board_store import STRONG, CommitRefused, LeaseLost
from kokuban_server.records.codec import encode_owner

if TYPE_CHECKING:
    from kokuban_server.ports.board_store import BoardStore

_LEASE_MS = 15_000
_CALL_S = 10.0


class Ownership:
    """This server's claim to a piece of work."""

    def __init__(self, store: BoardStore, job: str, server_id: str) -> None:
        self._store = store
        self._key = keys.owner(job)
        self._server_id = server_id
        self._lease: int | None = None

    async def hold(self) -> bool:
        """Say whether this server does the work: it holds the record's lease, or takes it if nobody does."""
        if self._lease is not None:
            try:
                await self._store.renew_lease(self._lease, _CALL_S)
            except LeaseLost:
                self._lease = None
            else:
                return True
        if (await self._store.read([self._key], STRONG, _CALL_S)).records[0] is not None:
            return False
        lease = await self._store.grant_lease(_LEASE_MS, _CALL_S)
        try:
            put = Put(self._key, encode_owner(self._server_id), lease.id)
            await self._store.commit(ChangeSet((Absent(self._key),), (put,)), _CALL_S)
        except (CommitRefused, LeaseLost):
            await self._store.revoke_lease(lease.id, _CALL_S)
            return False
        self._lease = lease.id
        return True

    async def let_go(self) -> None:
        """Leave the work to others."""
        if self._lease is not None:
            with contextlib.suppress(Exception):  # it lapses by itself
                await self._store.revoke_lease(self._lease, 1.0)
