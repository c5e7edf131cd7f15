"""Waiting for a part of a task: a step, a subtask, or the task itself.

A wait is a record beside the locks, on the lease of the server where it waits, so that every server sees who waits for whom. It
holds nobody up, and is no request for a lock. Each server looks whether its own waits close a circle.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.archived import refuse_archived
from kokuban_server.app.background import Background
from kokuban_server.app.deadlines import left_s, of_one_act
from kokuban_server.app.deadlocks import deadlock_of, find_circle, oldest_held_up
from kokuban_server.app.following import until_drained
from kokuban_server.app.lock_views import Sight
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Verb
from kokuban_server.core.change_set import Absent, ChangeSet, CreatedAt, DeleteKey, Put
from kokuban_server.core.locks import LockRecord
from kokuban_server.core.refusals import (
    Contended,
    LockWaitExpired,
    NotFound,
    NotHolder,
    OutcomeUnknown,
    Refusal,
    SessionLost,
    StoreUnavailable,
    TooManyLocks,
)
from kokuban_server.core.task_progress import standing_of
from kokuban_server.ports.board_store import STRONG, CommitRefused, LeaseLost
from kokuban_server.records.lock_codec import encode_lock
from kokuban_server.records.task_codec import decode_task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from kokuban_server.app.access import Access, OpenRegion
    from kokuban_server.app.lock_asked import LockRequest
    from kokuban_server.app.mirrored_store import MirroredStore
    from kokuban_server.app.presence import Presence
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import Principal
    from kokuban_server.core.task_progress import PartStanding

_CALL_S = 10.0
_CHECK_S = 0.5
"""How often a wait looks whether it closes a circle, and whether its session lives."""

_NOT_PRESENT = "it is not said at the moment that this server lives"


class _Waiting(NamedTuple):
    """A wait in hand."""

    principal: Principal
    request: LockRequest
    """As if it were for a lock: its one target is what is waited for."""
    region: bytes
    """What the task's keys have in common, behind their first segment."""
    name: str
    prefix: bytes
    """Of the board."""

    @property
    def task(self) -> bytes:
        """The key of how the task stands."""
        return keys.TASK + self.region

    @property
    def archive(self) -> bytes:
        """The key of what would stand for the task, were it archived."""
        return keys.TASK_ARCHIVE + self.region

    @property
    def key(self) -> bytes:
        """Where it is said that somebody waits."""
        return keys.on_board(keys.TASK_WAIT, self.prefix, self.name)

    @property
    def session(self) -> bytes:
        """The key of the session that waits."""
        return keys.on_board(keys.SESSION, self.prefix, self.request.session_id)


class TaskWaits:
    """Has callers wait."""

    def __init__(self, store: MirroredStore, access: Access, time: StoreTime, presence: Presence) -> None:
        self._store = store
        self._access = access
        self._time = time
        self._presence = presence
        self._background = Background()

    async def close(self) -> None:
        """Give up what is under way in the background: waits go with the server's lease."""
        await self._background.close()

    async def wait(
        self, principal: Principal, request: LockRequest, draining: asyncio.Event, deadline: float
    ) -> AsyncGenerator[tuple[PartStanding, int], None]:
        """Give how what is waited for stands, and at which revision: when it is known that somebody waits, and at each change.

        Ends when it is over. Closing the generator ends the wait. Raises `Deadlock`, `LockWaitExpired`, `SessionLost`,
        `NotHolder`, `TooManyLocks`, and `TaskArchived`, or `NotFound` for what is not there or may not be read, at any time.
        """
        deadline = of_one_act(deadline)
        await self._access.enter(principal, request.board, deadline)
        await self._store.mirror.stand(left_s(deadline))
        try:
            opened = self._open(principal, request)
        except NotFound:  # takes as long as one that is not there
            await self._store.port.read([keys.NOWHERE] * 2, STRONG, left_s(deadline))
            raise
        prefix = keys.board_prefix(principal.tenant, request.board)
        waiting = _Waiting(principal, request, opened.prefix, secrets.token_hex(16), prefix)
        cut = await self._store.port.read([waiting.task, waiting.archive], STRONG, left_s(deadline))
        record, archive = cut.records
        refuse_archived([archive], writes=False)
        standing = _standing(waiting, None if record is None else record.value)
        if standing.is_over:
            yield standing, cut.revision
            return
        try:
            await self._declare(waiting, deadline)
            yield standing, cut.revision
            async with contextlib.aclosing(self._followed(waiting, cut.revision, draining)) as standings:
                async for latest, at in standings:
                    if latest != standing:
                        standing = latest
                        yield standing, at
                    if standing.is_over:
                        return
        finally:
            self._background.spawn(lambda: self._withdraw(waiting.key), "task-wait")

    def _open(self, principal: Principal, request: LockRequest) -> OpenRegion:
        return self._access.open(principal, request.board, request.targets[0].region, Verb.READ)

    async def _followed(
        self, waiting: _Waiting, revision: int, draining: asyncio.Event
    ) -> AsyncGenerator[tuple[PartStanding, int], None]:
        """Give how it stands, and at which revision, whenever the task has changed; raise what ends the wait otherwise."""
        principal, request = waiting.principal, waiting.request
        loop = asyncio.get_running_loop()
        begun = loop.time()
        wait_s = request.wait_ms / 1000
        next_check = begun
        async with (
            contextlib.aclosing(self._store.port.watch([waiting.task], revision)) as batches,
            contextlib.aclosing(until_drained(batches, draining, min(_CHECK_S, wait_s))) as changes,
        ):
            async for batch in changes:
                await self._access.enter(principal, request.board, of_one_act(math.inf))
                self._open(principal, request)
                if batch is not None and batch.events:
                    last = batch.events[-1]
                    if last.value is None:
                        named = [waiting.archive]
                        refuse_archived((await self._store.port.read(named, STRONG, _CALL_S)).records, writes=False)
                    yield _standing(waiting, last.value), last.revision
                now = loop.time()
                if now - begun >= wait_s:
                    raise LockWaitExpired(round((now - begun) * 1000), None)
                if now >= next_check:
                    next_check = now + _CHECK_S
                    with contextlib.suppress(StoreUnavailable, OutcomeUnknown):  # it goes on, and is looked at again
                        await self._check(waiting)

    async def _check(self, waiting: _Waiting) -> None:
        """See that the wait stands, and that it closes no circle of which it is the youngest."""
        deadline = asyncio.get_running_loop().time() + _CALL_S
        request = waiting.request
        board = self._store.mirror.picture(waiting.prefix)
        wait = board.task_waits.get(waiting.name)
        if wait is None or request.session_id not in board.sessions:
            await self._declare(waiting, deadline)
        elif oldest_held_up(board, request.session_id) < (wait.create_revision, waiting.name):
            circle = await find_circle(self._store, waiting.prefix, waiting.name, deadline)
            if circle is not None:
                raise deadlock_of(circle, Sight(self._access, waiting.principal, request.board))

    async def _declare(self, waiting: _Waiting, deadline: float) -> None:
        """Say that somebody waits, if that is not said."""
        request = waiting.request
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            _, found = (await self._store.read([waiting.session, waiting.key], deadline)).records
            board = self._store.mirror.picture(waiting.prefix)
            session = board.sessions.get(request.session_id)
            if session is None:
                raise SessionLost(request.session_id)
            if session.record.agent != waiting.principal.agent:
                raise NotHolder("session_id", session_id=request.session_id)
            if found is not None:
                return
            if len(board.names(request.session_id)) >= limits.LOCKS_OF_SESSION_ENTRIES_MAX:
                raise TooManyLocks("locks", limits.LOCKS_OF_SESSION_ENTRIES_MAX)
            if len(board.task_waits) >= limits.WAITS_ENTRIES_MAX:
                raise TooManyLocks("waits", limits.WAITS_ENTRIES_MAX)
            await self._presence.begin(left_s(deadline))
            lease = self._presence.lease
            if lease is None:
                raise StoreUnavailable(_NOT_PRESENT)
            raw = encode_lock(self._record(waiting, session.record.lease))
            guards = (CreatedAt(waiting.session, session.revision), Absent(waiting.key))
            try:
                await self._store.apply(ChangeSet(guards, (Put(waiting.key, raw, lease),)), deadline)
            except CommitRefused:  # looked at anew
                continue
            except LeaseLost:
                raise StoreUnavailable(_NOT_PRESENT) from None
            return
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    def _record(self, waiting: _Waiting, lease: int) -> LockRecord:
        request = waiting.request
        return LockRecord(
            request.session_id,
            waiting.principal.agent,
            request.request_id,
            request.mode,
            request.targets,
            request.purpose,
            self._time.now_ms(),
            request.wait_ms,
            0,
            request.traceparent,
            lease,
            self._presence.server_id,
        )

    async def _withdraw(self, key: bytes) -> None:
        """Say that nobody waits any more, however long the store does not answer."""
        pause_s = 0.05
        while True:
            try:
                deadline = asyncio.get_running_loop().time() + _CALL_S
                await self._store.apply(ChangeSet((), (), (DeleteKey(key),)), deadline)
            except Refusal:
                await asyncio.sleep(pause_s)
                pause_s = min(5.0, pause_s * 2)
            else:
                return


def _standing(waiting: _Waiting, raw: bytes | None) -> PartStanding:
    """Give how what is waited for stands. Raises `NotFound`."""
    standing = None
    if raw is not None:
        standing = standing_of(decode_task(waiting.task, raw), waiting.request.targets[0].path)
    if standing is None:
        raise NotFound
    return standing
