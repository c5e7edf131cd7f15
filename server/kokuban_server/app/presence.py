"""That this server lives: said in the store while streams of it wait there, so that the waits of a dead one are noticed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from kokuban_server.app.deadlines import left_s
from kokuban_server.core import keys
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.core.refusals import Refusal, StoreUnavailable
from kokuban_server.ports.board_store import LeaseLost
from kokuban_server.records.lock_codec import encode_server

if TYPE_CHECKING:
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.ports.board_store import BoardStore

_LEASE_MS = 10_000
_RENEW_S = 3.0


class Presence:
    """This server's record on a lease of its own, from the first wait on until the server stops."""

    def __init__(self, store: BoardStore, time: StoreTime, server_id: str) -> None:
        self._store = store
        self._time = time
        self.server_id = server_id
        self._lease: int | None = None
        self._begun: int | None = None
        """The lease on which it was said, perhaps in vain: a late try with another one would move the record to that."""
        self._renewing: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()

    @property
    def lease(self) -> int | None:
        """The lease on which it is said that the server lives; nothing while it is not."""
        return self._lease

    async def begin(self, deadline_s: float) -> None:
        """Say that the server lives, if that is not said yet."""
        if self._lease is not None:
            return
        deadline = asyncio.get_running_loop().time() + deadline_s
        async with self._beginning:
            if self._lease is not None:
                return
            if self._begun is None:
                self._begun = (await self._store.grant_lease(_LEASE_MS, left_s(deadline))).id
            put = Put(keys.server(self.server_id), encode_server(self._time.now_ms()), self._begun)
            try:
                await self._store.commit(ChangeSet((), (put,)), left_s(deadline))
            except LeaseLost:
                self._begun = None
                raise StoreUnavailable("it was too slow to say that this server lives") from None
            self._lease, self._begun = self._begun, None
            if self._renewing is None:
                self._renewing = asyncio.create_task(self._renew(), name="presence")

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            if self._lease is None:
                with contextlib.suppress(Refusal):
                    await self.begin(_RENEW_S)
                continue
            try:
                await self._store.renew_lease(self._lease, _RENEW_S)
            except LeaseLost:  # others may take its waits for orphans: whoever still waits then begins anew
                self._lease = None
            except Refusal:
                pass

    async def end(self) -> None:
        """Say that the server lives no more."""
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        if self._lease is not None:
            with contextlib.suppress(Exception):  # it lapses by itself
                await self._store.revoke_lease(self._lease, 1.0)
