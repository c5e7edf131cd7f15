"""Asking for locks: from the request to the grant, and out of the queue again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kokuban_server.app.background import Background
from kokuban_server.app.deadlines import left_s, of_one_act
from kokuban_server.app.lock_asked import Asked, Granted
from kokuban_server.app.lock_queue import LockQueue
from kokuban_server.app.lock_rounds import Ground
from kokuban_server.app.lock_views import Sight
from kokuban_server.core import keys
from kokuban_server.core.access import Verb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from kokuban_server.app.access import Access
    from kokuban_server.app.lock_asked import LockRequest, Queued
    from kokuban_server.app.mirrored_store import MirroredStore
    from kokuban_server.app.presence import Presence
    from kokuban_server.app.request_ids import RequestIds
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import Principal
    from kokuban_server.core.locks import Fence


class LockRequests:
    """Answers requests for locks."""

    def __init__(
        self,
        store: MirroredStore,
        access: Access,
        time: StoreTime,
        request_ids: RequestIds,
        presence: Presence,
    ) -> None:
        self._store = store
        self._time = time
        self._request_ids = request_ids
        self._presence = presence
        self._draining = asyncio.Event()
        self._access = access
        self._queues: dict[bytes, LockQueue] = {}
        self._background = Background()

    def drain(self) -> None:
        """End the streams that wait, and leave their places in the queue to whoever asks again elsewhere."""
        self._draining.set()
        self.stir()

    def stir(self) -> None:
        """Have every stream that waits look whether it should go on."""
        for queue in self._queues.values():
            queue.wake()

    async def close(self) -> None:
        """Give up what is under way in the background."""
        await self._background.close()

    def keeps(self, board: bytes, lock_id: str) -> bool:
        """Say whether a stream of this server waits for a lock of a board, or leaves its wait to whoever asks again."""
        queue = self._queues.get(board)
        return self._draining.is_set() or (queue is not None and queue.has_in_hand(lock_id))

    async def acquire(
        self, principal: Principal, request: LockRequest, deadline: float
    ) -> AsyncGenerator[Queued | Granted, None]:
        """Give where the request stands, as often as that changes, and then its grant.

        Closing the generator withdraws a request that waits. Raises the refusal, or `OutcomeUnknown` if the store did not
        say whether the lock was granted: the same request finds out.
        """
        asked = await self._ask(principal, request, deadline)
        queue = self._queue(principal.tenant, request.board)
        try:
            queue.submit(asked)
            progress: Queued | Granted | None = None
            while not isinstance(progress, Granted):
                progress = await queue.progress(asked)
                yield progress
        finally:
            queue.leave(asked)

    async def claim(self, principal: Principal, request: LockRequest, deadline: float) -> Granted:
        """Lock the first of the request's candidates that exists and is free, and give it as it was then."""
        asked = await self._ask(principal, request, deadline)
        queue = self._queue(principal.tenant, request.board)
        try:
            queue.submit(asked)
            return await asked.outcome
        finally:
            queue.leave(asked)

    async def hand_over(self, tenant: str, board: str, fence: Fence, deadline: float) -> int | None:
        """Release a lock and grant it to who waits for it here, in one act; see `LockQueue.hand_over`."""
        queue = self._queues.get(keys.board_prefix(tenant, board))
        return None if queue is None else await queue.hand_over(fence, deadline)

    async def _ask(self, principal: Principal, request: LockRequest, deadline: float) -> Asked:
        loop = asyncio.get_running_loop()
        deadline = of_one_act(deadline)
        await self._access.enter(principal, request.board, deadline)
        heads = []
        for target in request.targets:
            region = self._access.open(principal, request.board, target.region, Verb.LOCK)
            if request.candidates:
                heads.append(keys.head(region.prefix, target.path))
        self._request_ids.check(request.request_id, request.id_time_ms)
        await self._store.mirror.stand(left_s(deadline))
        operation = keys.operation(
            request.id_time_ms, principal.tenant, request.board, principal.agent, request.request_id
        )
        asked = Asked(
            principal,
            request,
            self._request_ids.digest(b"lock\x00" + operation).hex(),
            operation,
            deadline,
            Sight(self._access, principal, request.board),
            loop.time(),
            loop.create_future(),
            frozenset(target.region for target in request.targets),
            tuple(heads),
        )
        board = self._store.mirror.board(keys.board_prefix(principal.tenant, request.board))
        asked.in_doubt = asked.is_claim or board is None or request.session_id not in board.sessions
        return asked

    def _queue(self, tenant: str, board: str) -> LockQueue:
        prefix = keys.board_prefix(tenant, board)
        found = self._queues.get(prefix)
        if found is None:
            ground = Ground(tenant, board, self._store, self._time, self._request_ids, self._presence)
            found = LockQueue(ground, self._background, self._draining, lambda: self._queues.pop(prefix, None))
            self._queues[prefix] = found
        return found
