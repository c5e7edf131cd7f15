"""The requests of one board that this server has in hand: their rounds, and the streams that wait.

Requests of one region are planned together on the mirror, in rounds, one round at a time, and each round is one change set:
grants and waits that arrive together cost one commit. What makes a round safe is what it is guarded on: both generations of
every region it touches, so that no grant and no wait there went unseen; each session; and each request's operation record.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.deadlocks import WaitGraph, deadlock_of, find_circle, oldest_held_up
from kokuban_server.app.lock_asked import Granted, Queued, ShownLock
from kokuban_server.app.lock_rounds import Round, Unsure, in_the_way, last_in_the_way, live_entry
from kokuban_server.app.mirrored_store import settle
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import AtRevision, ChangeSet, DeleteKey
from kokuban_server.core.locks import Mode
from kokuban_server.core.refusals import (
    Contended,
    LockLost,
    LockWaitExpired,
    LockWaitTakenOver,
    OutcomeUnknown,
    Refusal,
    RequestIdReused,
    ServerDraining,
    StoreFull,
    StoreUnavailable,
)
from kokuban_server.ports.board_store import STRONG, CommitRefused, LeaseLost
from kokuban_server.records.codec import decode_operation
from kokuban_server.records.lock_codec import decode_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_server.app.background import Background
    from kokuban_server.app.lock_asked import Asked
    from kokuban_server.app.lock_mirror import BoardLocks, KnownLock, Loss
    from kokuban_server.app.lock_rounds import Ground
    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.locks import Fence, LockRecord
    from kokuban_server.core.names import EntryKey, Region
    from kokuban_server.core.refusals import Holder
    from kokuban_server.ports.board_store import Record

_DEADLOCK_CHECK_S = 0.5
_RETRY_S = 0.5
_CALL_S = 10.0


class LockQueue:
    """One board's requests. `on_rest` is called when nothing is in hand any more."""

    def __init__(
        self, ground: Ground, background: Background, draining: asyncio.Event, on_rest: Callable[[], object]
    ) -> None:
        self._ground = ground
        self._store = ground.store
        self._background = background
        self._draining = draining
        self._on_rest = on_rest
        self._pending: deque[Asked] = deque()
        self._in_hand: dict[str, Asked] = {}
        self._busy: set[Region] = set()
        """Regions with a round under way."""
        self._is_beginning = False
        self._checker: asyncio.TimerHandle | None = None
        self._teller: asyncio.TimerHandle | None = None
        self._is_following = False
        self._is_looking = False
        self._held_up: dict[str, tuple[int, str]] = {}
        """For each session the oldest wait that it holds up, at the board's version of `_held_up_at`."""
        self._held_up_at = -1

    # A request's way through.

    def submit(self, asked: Asked) -> None:
        """Have the next round deal with the request. An earlier stream with the same request id gives up its place."""
        before = self._in_hand.get(asked.lock_id)
        if before is not None:
            if before.request.digest != asked.request.digest:
                raise RequestIdReused(asked.request.request_id)
            before.is_queued = False
            before.refuse(LockWaitTakenOver(asked.lock_id))
        if not self._is_following:
            self._is_following = True
            self._store.mirror.followed(self._ground.prefix).followers[self._on_change] = None
        self._in_hand[asked.lock_id] = asked
        self._put(asked)

    def has_in_hand(self, lock_id: str) -> bool:
        """Say whether a request is in hand."""
        return lock_id in self._in_hand

    async def progress(self, asked: Asked) -> Queued | Granted:
        """Give where a request stands, once that is other than what was given last; or its grant.

        Raises what ends its wait, among that `NotFound` and `WriteForbidden` when a policy no longer admits it.
        """
        loop = asyncio.get_running_loop()
        end = asked.begun + asked.request.wait_ms / 1000
        while not asked.outcome.done():
            asked.changed.clear()
            asked.sight.require_locking(asked.regions)
            if not asked.is_queued:
                await asked.changed.wait()
            elif self._draining.is_set():
                raise ServerDraining
            elif loop.time() >= end:
                await self._expire(asked)
            elif asked.has_news:
                asked.has_news = False
                queued = self._standing(asked)
                if queued != asked.told:
                    asked.told = queued
                    return queued
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(end - loop.time()):
                        await asked.changed.wait()
        return asked.outcome.result()

    def wake(self) -> None:
        """Have every stream that waits look whether it should go on."""
        for asked in self._in_hand.values():
            asked.changed.set()

    def leave(self, asked: Asked) -> None:
        """Take note that nobody waits for the request any more. One that waits is withdrawn, unless its server drains."""
        asked.is_abandoned = True
        if self._in_hand.get(asked.lock_id) is asked:
            del self._in_hand[asked.lock_id]
        if asked.outcome.done() and not asked.outcome.cancelled():
            asked.outcome.exception()  # looked at, so that no one else complains
        # A wait may also be refused while it stands: its request id was too old when its turn came.
        if not asked.is_granted and not self._draining.is_set() and (asked.in_round or asked.is_queued):
            self._background.spawn(lambda: self._withdraw_for_sure(asked), "lock-withdrawal")
        self._rest()

    def _rest(self) -> None:
        """Let go of the board if nothing is in hand."""
        if self._in_hand or self._busy or self._is_beginning or not self._is_following:
            return
        self._is_following = False
        self._ground.board.followers.pop(self._on_change, None)
        for timer in (self._checker, self._teller):
            if timer is not None:
                timer.cancel()
        self._checker = self._teller = None
        self._on_rest()

    # Leaving the queue.

    async def _expire(self, asked: Asked) -> None:
        """End a wait whose time is over, unless it was granted in the last moment."""
        holder = self._blocker(asked)
        waited_ms = round((asyncio.get_running_loop().time() - asked.begun) * 1000)
        if await self._withdraw(asked):
            asked.refuse(LockWaitExpired(waited_ms, holder))

    async def _withdraw(self, asked: Asked) -> bool:
        """Remove a wait from the store; false if the request is dealt with already."""
        while asked.in_round or asked.is_pending:
            asked.changed.clear()
            await asked.changed.wait()
        asked.is_ending = True  # that the wait is gone must not make it begin anew
        wait = self._ground.board.waits.get(asked.lock_id)
        if wait is not None and wait.record.server_id == self._ground.presence.server_id and not asked.is_granted:
            key = self._ground.key(keys.WAIT, asked.lock_id)
            change = ChangeSet((AtRevision(key, wait.revision),), (), (DeleteKey(key),))
            with contextlib.suppress(CommitRefused):  # somebody else has taken it over, or its session is gone
                await self._store.apply(change, asyncio.get_running_loop().time() + _CALL_S)
        asked.is_queued = False
        return not asked.outcome.done()

    async def _withdraw_for_sure(self, asked: Asked) -> None:
        """Remove a wait that nobody waits for, however long the store does not answer."""
        pause_s = 0.05
        while asked.lock_id not in self._in_hand:  # else somebody asks for the same again
            try:
                await self._withdraw(asked)
            except Refusal:
                await asyncio.sleep(pause_s)
                pause_s = min(5.0, pause_s * 2)
            else:
                return

    # Handing over.

    async def hand_over(self, fence: Fence, deadline: float) -> int | None:
        """Release a lock and grant what waits for it here, in one act; give its revision.

        Nothing if nobody here waits for just this lock, or it could not be done this way: then nothing has happened, or
        what has is found by a release.
        """
        if not len(self._ground.board.waits):
            return None
        following = [
            asked
            for asked in self._in_hand.values()
            if asked.blocker == fence.lock_id
            and asked.is_queued
            and not (asked.in_round or asked.is_pending or asked.is_ending or asked.outcome.done())
        ]
        if not following or not _fits(following):
            return None
        if not self._busy.isdisjoint(frozenset().union(*[asked.regions for asked in following])):
            return None
        made = Round(self._ground, self._ground.board)
        made.release(fence)
        for asked in following:
            with contextlib.suppress(Unsure, Refusal):  # what stands against it is found in a round of its own
                made.plan(asked)
        if not made.granted:
            return None
        members = made.members
        self._close(members)
        revision = None
        try:
            with contextlib.suppress(CommitRefused, LeaseLost, StoreUnavailable, StoreFull, OutcomeUnknown):
                revision = await self._apply(made, made.change, deadline)
                self._done(made, revision)
        finally:
            for asked in members:
                asked.again = asked.in_doubt = not asked.outcome.done()
            self._open(members)
        return revision

    # What changes.

    def _on_change(self, losses: list[Loss]) -> None:  # noqa: ARG002 - for those who hold
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_soon(self._look_around)

    def _look_around(self) -> None:
        """After a change: let those try whose turn it is, and end those whose wait has no point any more."""
        self._is_looking = False
        board = self._ground.board
        for asked in list(self._in_hand.values()):
            if not asked.is_queued or asked.outcome.done() or asked.in_round or asked.is_pending or asked.is_ending:
                continue
            wait = board.waits.get(asked.lock_id)
            if wait is None:  # its session is gone; or it was removed though its stream lives, and begins anew
                asked.is_queued = False
                asked.in_doubt = True
                self._put(asked)
            elif wait.record.server_id != self._ground.presence.server_id:
                asked.is_queued = False
                asked.refuse(LockWaitTakenOver(asked.lock_id))
            else:
                self._try_its_turn(board, asked)
        self._tell_later()
        self._rest()

    def _try_its_turn(self, board: BoardLocks, asked: Asked) -> None:
        """Have a request that waits try, unless what was last found in its way still is.

        What is remembered is the wait that came last before it, where there is one: so of a queue one at a time is woken.
        """
        mode = asked.request.mode
        claim = board.claims.get(asked.blocker)
        if claim is not None and (mode is Mode.EXCLUSIVE or claim.mode is Mode.EXCLUSIVE):
            return
        if asked.blocker in board.waits:
            return
        asked.blocker = last_in_the_way(board, asked)
        if not asked.blocker:
            self._put(asked)

    def _tell_later(self) -> None:
        if self._teller is None and any(asked.is_queued for asked in self._in_hand.values()):
            self._teller = asyncio.get_running_loop().call_later(limits.WAIT_NEWS_S_MIN, self._tell)

    def _tell(self) -> None:
        """Have every stream that waits say where it stands."""
        self._teller = None
        for asked in self._in_hand.values():
            asked.has_news = True
            asked.changed.set()

    # Deadlocks.

    def _check_later(self) -> None:
        if self._checker is None:
            self._checker = asyncio.get_running_loop().call_later(_DEADLOCK_CHECK_S, self._check_all)

    def _check_all(self) -> None:
        self._checker = None
        queued = [asked for asked in self._in_hand.values() if asked.is_queued]
        for asked in queued:
            self._check(asked)
        if queued:
            self._check_later()

    def _check(self, asked: Asked) -> None:
        """End a wait that closes a circle of waits, of which it is the youngest."""
        board = self._ground.board
        wait = board.waits.get(asked.lock_id)
        if wait is None or asked.is_ending or asked.outcome.done():
            return
        if self._holds_up_older(board, wait, asked.lock_id) and WaitGraph(board).circle(asked.lock_id) is not None:
            asked.is_ending = True
            self._background.spawn(lambda: self._end_for_deadlock(asked), "deadlock")

    def _holds_up_older(self, board: BoardLocks, wait: KnownLock, lock_id: str) -> bool:
        """Say whether an older wait is for something of this one's session: else this one cannot close a circle.

        Cheap, where following who waits for whom is not: hundreds may wait for one target.
        """
        if self._held_up_at != board.version:
            self._held_up_at = board.version
            self._held_up.clear()
        session_id = wait.record.session_id
        if session_id not in self._held_up:
            self._held_up[session_id] = oldest_held_up(board, session_id)
        return self._held_up[session_id] < (wait.create_revision, lock_id)

    async def _end_for_deadlock(self, asked: Asked) -> None:
        """End a wait for a circle, if the store says that all of it is so at one moment."""
        deadline = asyncio.get_running_loop().time() + _CALL_S
        with contextlib.suppress(Refusal):  # it goes on waiting, and the timer has it looked at again
            circle = await find_circle(self._store, self._ground.prefix, asked.lock_id, deadline)
            if circle is not None:
                if await self._withdraw(asked):
                    asked.refuse(deadlock_of(circle, asked.sight))
                return
        asked.is_ending = False
        self._on_change([])

    # Rounds.

    def _put(self, asked: Asked) -> None:
        """Have a coming round deal with a request."""
        if asked.is_pending or asked.in_round or asked.outcome.done() or asked.is_abandoned:
            return
        if asked.is_queued:  # the time it was asked with is for what came before the wait
            asked.deadline = max(asked.deadline, asyncio.get_running_loop().time() + _CALL_S)
        asked.is_pending = True
        self._pending.append(asked)
        self._begin_soon()

    def _begin_soon(self) -> None:
        """Begin rounds when what arrives in this turn of the loop has arrived."""
        if self._pending and not self._is_beginning:
            self._is_beginning = True
            asyncio.get_running_loop().call_soon(self._begin_rounds)

    def _begin_rounds(self) -> None:
        """Begin rounds for the regions that have requests and no round under way; in order within each region."""
        self._is_beginning = False
        round_of: dict[Region, list[Asked]] = {}
        closed = set(self._busy)
        waiting: deque[Asked] = deque()
        for asked in self._pending:
            if asked.outcome.done() or (asked.is_abandoned and not asked.is_queued):
                asked.is_pending = False
                asked.changed.set()
                continue
            met = {id(found): found for region in asked.regions if (found := round_of.get(region)) is not None}
            joined = [*itertools.chain.from_iterable(met.values()), asked]
            if closed.isdisjoint(asked.regions) and _fits(joined):
                for region in frozenset().union(*[member.regions for member in joined]):
                    round_of[region] = joined
            else:  # nor may anybody who comes later go first there
                closed |= asked.regions
                waiting.append(asked)
        rounds: list[list[Asked]] = []
        taken = 0
        for members in {id(members): members for members in round_of.values()}.values():
            more = _operations(members)
            if rounds and taken + more <= limits.STORE_OPERATIONS_MAX:  # one change set costs less than two
                rounds[-1] += members
                taken += more
            else:
                rounds.append(list(members))
                taken = more
        self._pending = waiting
        for members in rounds:
            self._close(members)
            self._background.spawn(partial(self._run, members), "lock-round")
        self._rest()

    def _close(self, members: list[Asked]) -> None:
        """Keep other rounds out of the regions of these requests."""
        for asked in members:
            asked.is_pending = False
            asked.in_round = True
            self._busy |= asked.regions

    def _open(self, members: list[Asked]) -> None:
        """Let other rounds in, and have those that were not dealt with in a coming one."""
        for asked in members:
            asked.in_round = False
            self._busy -= asked.regions
            if asked.again:
                asked.again = False
                self._put(asked)
            asked.changed.set()
        self._begin_soon()
        self._rest()

    async def _run(self, members: list[Asked]) -> None:
        try:
            await self._round(members)
        except Exception as fault:  # noqa: BLE001 - each caller hears of it
            for asked in members:
                asked.refuse(fault)
        finally:
            self._open(members)

    async def _round(self, members: list[Asked]) -> None:
        doubtful = [asked for asked in members if asked.in_doubt]
        tries = max([asked.looks for asked in doubtful], default=0)
        if (
            tries > 1
        ):  # the first look is often owed to a picture that is a little old; then another server is really faster
            await asyncio.sleep(random.uniform(0, 0.002 * (1 << min(tries, 6))))  # noqa: S311 - jitter
        if doubtful:
            await asyncio.gather(*[self._look(asked) for asked in doubtful])
        made = Round(self._ground, self._ground.board)
        for asked in members:
            if asked.outcome.done() or asked.again:
                continue
            try:
                made.plan(asked)
            except Unsure:
                asked.in_doubt = asked.again = True
            except Refusal as refusal:
                if asked.looks:
                    asked.refuse(refusal)
                else:
                    asked.in_doubt = asked.again = True
        if made.members:
            await self._send(made)

    async def _look(self, asked: Asked) -> None:
        """Ask the store for everything that a request rests on; end it if it was dealt with before, or cannot be."""
        asked.looks += 1
        try:
            if not asked.is_queued and asyncio.get_running_loop().time() >= asked.deadline:
                raise Contended(asked.looks)
            await self._ask_the_store(asked)
        except (StoreUnavailable, OutcomeUnknown) as refusal:
            self._not_now([asked], refusal)
        except Refusal as refusal:
            asked.refuse(refusal)

    async def _ask_the_store(self, asked: Asked) -> None:
        request, ground = asked.request, self._ground
        news = True
        while news:
            doubts = self._ground.doubts(asked)
            named = [asked.operation, *asked.heads, *doubts]
            cut = await self._store.port.read(named, STRONG, left_s(asked.deadline))
            ground.time.saw(cut.store_time_ms)
            operation = cut.records[0]
            if operation is not None:
                await self._replay(asked, operation)
                return
            ground.request_ids.check_at(request.request_id, request.id_time_ms, cut.store_time_ms)
            found = cut.records[1 + len(asked.heads) :]
            news = await settle(self._store.mirror, doubts, found, cut.revision, asked.deadline)
        asked.states = dict(zip(asked.heads, cut.records[1:], strict=False))
        asked.verified = frozenset(keys.parse_locking(key)[2] for key in doubts)
        asked.in_doubt = False

    async def _replay(self, asked: Asked, operation: Record) -> None:
        """Answer a request that was granted before: with the same grant, if its fence lives."""
        if decode_operation(asked.operation, operation.value).digest != asked.request.digest:
            raise RequestIdReused(asked.request.request_id)
        key = self._ground.key(keys.LOCK, asked.lock_id)
        cut = await self._store.port.read([key, *asked.heads], STRONG, left_s(asked.deadline))
        found = cut.records[0]
        await settle(self._store.mirror, [key], [found], cut.revision, asked.deadline)
        if found is None or found.create_revision != operation.revision:
            raise LockLost(asked.lock_id)
        lock = decode_lock(key, found.value)
        heads = dict(zip(asked.heads, cut.records[1:], strict=True))
        entry = self._claimed(asked, lock, heads, cut.store_time_ms)
        asked.grant(_granted(asked, lock, found.create_revision, entry, replayed=True))

    def _claimed(
        self, asked: Asked, lock: LockRecord, heads: dict[bytes, Record | None], store_time_ms: int
    ) -> tuple[EntryKey, EntryRecord, int] | None:
        """Give the entry that a claim took, as its head says."""
        if not asked.is_claim:
            return None
        place = asked.request.targets.index(lock.targets[0])
        head = asked.heads[place]
        return live_entry(asked.request.candidates[place], head, heads[head], store_time_ms)

    async def _apply(self, made: Round, change: ChangeSet, deadline: float) -> int:
        """Have the store do what a round has planned."""
        expected = self._store.mirror.expected  # the watch is often faster than the answer
        expected |= made.written
        try:
            return await self._store.apply(change, deadline)
        finally:
            for raw in made.written:
                expected.pop(raw, None)

    async def _send(self, made: Round) -> None:
        change, members = made.change, made.members
        # One that is nearly out of time must not take the others' time; its stream is cut when it is over.
        deadline = max(asked.deadline for asked in members)
        try:
            if made.queued:
                await self._ground.presence.begin(left_s(deadline))
            revision = await self._apply(made, change, deadline)
        except CommitRefused as refused:
            failed = made.whose(change.guards[failure.place] for failure in refused.failures)
            for asked in members:
                asked.again = True
                asked.in_doubt = asked.in_doubt or id(asked) in failed
        except LeaseLost:  # of some session
            for asked in members:
                asked.again = asked.in_doubt = True
        except (StoreUnavailable, StoreFull, OutcomeUnknown) as refusal:
            self._not_now(members, refusal)
        else:
            self._done(made, revision)

    def _done(self, made: Round, revision: int) -> None:
        for asked, lock in made.granted:
            asked.grant(_granted(asked, lock, revision, self._claimed(asked, lock, asked.states, 0), replayed=False))
        for asked in made.queued:
            asked.is_queued = asked.has_news = True
            self._check(asked)
        if made.queued:
            self._check_later()
            self._on_change([])  # what was in the way may be gone by now

    def _not_now(self, members: list[Asked], refusal: Refusal) -> None:
        """Those that wait go on waiting, and try again; the others hear why it cannot be done now."""
        for asked in members:
            asked.in_doubt = True
            if asked.is_queued:
                asyncio.get_running_loop().call_later(_RETRY_S, self._put, asked)
            elif isinstance(refusal, OutcomeUnknown):
                asked.refuse(OutcomeUnknown(asked.request.request_id, refusal.detail))
            else:
                asked.refuse(refusal)

    # Telling.

    def _standing(self, asked: Asked) -> Queued:
        board = self._ground.board
        wait = board.waits.get(asked.lock_id)
        if wait is None:
            return Queued(0, ())
        held = []
        for name, claim in board.claims.conflicting(wait.mode, wait.targets):
            held.append(ShownLock(name, claim.record, name in board.locks, claim.create_revision))
            if len(held) == limits.LOCKS_SHOWN_ENTRIES_MAX:
                break
        order = (wait.create_revision, asked.lock_id)
        others = board.waits.conflicting(wait.mode, wait.targets)
        return Queued(sum((other.create_revision, name) < order for name, other in others), tuple(held))

    def _blocker(self, asked: Asked) -> Holder | None:
        board = self._ground.board
        for target in asked.request.targets:
            blocking = in_the_way(board, asked, target)
            if blocking is not None:
                return asked.sight.holder(board, blocking[1], blocking[2].record, target)
        return None


def _operations(members: list[Asked]) -> int:
    """Give how many operations requests take in a change set, at most."""
    # A wait that ends, lock, marker, operation record; a generation for each region.
    return sum([4 + len(asked.regions) for asked in members])


def _fits(members: list[Asked]) -> bool:
    """Say whether requests fit into one change set."""
    return len(members) == 1 or _operations(members) <= limits.STORE_OPERATIONS_MAX


def _granted(
    asked: Asked, lock: LockRecord, revision: int, entry: tuple[EntryKey, EntryRecord, int] | None, *, replayed: bool
) -> Granted:
    waited_ms = round((asyncio.get_running_loop().time() - asked.begun) * 1000) if asked.is_queued else 0
    return Granted(asked.lock_id, lock, revision, replayed, waited_ms, entry)
