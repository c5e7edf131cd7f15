"""Simulated holders of locks: they take, use, lose, keep too long and give back locks, and note what they were told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from kokuban_server.app.commits import CommitRequest, Committed
from kokuban_server.app.lock_asked import Granted, LockRequest
from kokuban_server.app.lock_guards import FenceGiven
from kokuban_server.core.commit import Increment, Put, Unconditional
from kokuban_server.core.entry import Form, Value
from kokuban_server.core.locks import Fence, LockPolicy, LockTarget, Mode
from kokuban_server.core.names import EntryKey, parse_region
from kokuban_server.core.policy import Policy, RegionRule
from kokuban_server.core.refusals import (
    Contended,
    Deadlock,
    InvalidRequest,
    LockedByOther,
    LockLost,
    LockOverlapsOwn,
    LockRequired,
    LockShared,
    LockWaitExpired,
    LockWaitTakenOver,
    NothingToClaim,
    NotHolder,
    Refusal,
    SessionLost,
    StateUnfit,
)
from tests.simulation.lock_journal import Asking, Release, Span, Told, Writing
from tests.simulation.lock_model import meet, takes
from tests.simulation.simulated_replica import BOARD, ConnectionLost
from tests.simulation.simulated_sessions import UNSETTLED, Session, SessionKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from kokuban_server.core.commit import Mutation
    from tests.simulation.simulated_replica import SimulatedReplica

PLAIN = parse_region("task:t1")
OTHER = parse_region("task:t2")
STRICT = parse_region("conversation:c1")
LOOSE = parse_region("user:u1")
POLICY = Policy(
    (
        RegionRule(str(STRICT), lock_policy=LockPolicy.REQUIRED),
        RegionRule(str(LOOSE), lock_policy=LockPolicy.OFF),
    )
)
_REGIONS = (PLAIN, PLAIN, PLAIN, OTHER, OTHER, STRICT, LOOSE)
_PATHS = ("a", "a/b", "a/b/c", "a/d", "e")
_SENT_AT_MOST = 6
_DAY_MS = 24 * 3_600_000
_T = TypeVar("_T")


class Holder(SessionKeeper):
    """Locks and writes."""

    async def work(self, turns: int) -> None:
        """Do that many things, one after the other, with pauses."""
        acts: list[tuple[int, Callable[[Session], Coroutine[None, None, None]]]] = [
            (10, self._wait_for),
            (4, self._try),
            (8, self._write_under),
            (5, self._write_bare),
            (3, self._write_late),
            (1, self._write_stolen),
            (6, self._release_one),
            (2, self._publish),
            (2, self._downgrade),
            (2, self._claim),
            (2, self._repeat),
            (2, self._wait_and_let_go),
            (1, self._wait_for_two),
            (1, self._pause),
            (1, self._crash),
            (1, self._crash_in_the_queue),
            (1, self._leave),
        ]
        weights = [weight for weight, _ in acts]
        for _ in range(turns):
            session = self.session
            if session is None or session.is_lost:
                await self.abandon()
                session = await self.open()
            if session is not None:
                await self.random.choices(acts, weights)[0][1](session)
            await asyncio.sleep(self.random.expovariate(8))
        await (self.abandon() if self.random.random() < 0.3 else self.close())

    # Asking.

    def _target(self) -> LockTarget:
        region = self.random.choice(_REGIONS)
        if self.random.random() < 0.04:
            return LockTarget(region, "", subtree=True)
        return LockTarget(region, self.random.choice(_PATHS), subtree=self.random.random() < 0.4)

    def _targets(self) -> tuple[LockTarget, ...]:
        wanted = self.random.choice((1, 1, 1, 2, 3))
        targets: list[LockTarget] = []
        for _ in range(wanted):
            target = self._target()
            if not any(meet(target, other) for other in targets):
                targets.append(target)
        return tuple(targets)

    def request(
        self,
        session: Session,
        targets: tuple[LockTarget, ...],
        mode: Mode,
        wait_ms: int,
        candidates: tuple[EntryKey, ...] = (),
    ) -> LockRequest:
        """Give a new request."""
        sent = self.sent()
        arguments = (sent, session.id, targets, mode, wait_ms, candidates)
        request = LockRequest(
            BOARD,
            session.id,
            sent.request_id,
            sent.time_ms,
            self.world.replicas[0].request_ids.digest(repr(arguments).encode()),
            targets,
            mode,
            f"{self.name} works",
            wait_ms,
            self.random.choice((_DAY_MS, _DAY_MS, 3_000, 8_000)),
            self.random.choice((0, 300, 1_000, 3_000)),
            "",
            candidates,
        )
        self.world.journal.askings[sent.request_id] = Asking(self.name, request)
        return request

    def _any_request(self, session: Session, wait_ms: int) -> LockRequest:
        mode = Mode.SHARED if self.random.random() < 0.3 else Mode.EXCLUSIVE
        return self.request(session, self._targets(), mode, wait_ms)

    async def ask(self, session: Session, request: LockRequest, tries: int = _SENT_AT_MOST) -> Granted | None:
        """Ask for a lock, again after a server's death and with a change of mind now and then; give the grant."""
        for _ in range(tries):
            answer = await self._ask_once(request, self._replica())
            if isinstance(answer, Granted):
                session.held[answer.lock_id] = answer
                self.world.fences.append(answer)
                return answer
            if answer is not None and not isinstance(answer, (*UNSETTLED, Contended, LockWaitTakenOver)):
                if isinstance(answer, Deadlock):
                    await self._give_way(session)
                return None
            await asyncio.sleep(self.random.uniform(0.02, 0.5))
        return None

    async def _ask_once(self, request: LockRequest, replica: SimulatedReplica) -> Granted | Refusal | None:
        """Send the request once; give the answer, or nothing if there was none."""
        asking = self.world.journal.askings[request.request_id]
        floor = self.world.store.present
        patience_s = self.random.uniform(0, 0.5) if self.random.random() < 0.1 else request.wait_ms / 1000 + 10
        if request.candidates:
            work = replica.lock_requests.claim(self.principal, request, self.deadline())
            return await self._answer(asking, replica, work, floor, patience_s)
        stream = replica.lock_requests.acquire(self.principal, request, self.deadline())
        try:
            while True:
                part = await self._answer(asking, replica, anext(stream), floor, patience_s)
                if part is None or isinstance(part, (Granted, Refusal)):
                    return part
        finally:
            await self.hang_up(replica, stream)

    async def _answer(
        self, asking: Asking, replica: SimulatedReplica, work: Coroutine[Any, Any, _T], floor: int, patience_s: float
    ) -> _T | Refusal | None:
        request_id = asking.request.request_id
        try:
            part = await replica.call(work, self.name_call(), patience_s)
        except ConnectionLost:
            self.say(f"{request_id} at {replica.name}: lost")
            return None
        except Refusal as refusal:
            self.told(f"{request_id} at {replica.name}: {refusal!r}")
            self._judge_refused(asking, refusal)
            span = Span(floor, self.world.store.present)
            asking.refusals.append(Told(refusal, span, asyncio.get_running_loop().time()))
            return refusal
        if isinstance(part, Granted):
            self.told(f"{request_id} at {replica.name}: granted {part.lock_id} at {part.revision}")
            asking.answers.append((part, Span(floor, self.world.store.present)))
        return part

    def _judge_refused(self, asking: Asking, refusal: Refusal) -> None:
        """Note a refusal that has no business there."""
        expected: tuple[type[Refusal], ...] = (*UNSETTLED, Contended, LockOverlapsOwn, LockLost, SessionLost)
        if asking.request.candidates:
            expected += (NothingToClaim,)
        elif asking.request.wait_ms:
            expected += (Deadlock, LockWaitExpired, LockWaitTakenOver)
        else:
            expected += (LockedByOther, LockWaitTakenOver)
        if not isinstance(refusal, expected):
            self.problem(f"{asking.request} was refused with {refusal!r}")

    async def _give_way(self, session: Session) -> None:
        """After a deadlock: let go of something, or of everything."""
        held = list(session.held.values())
        if held and self.random.random() < 0.3:
            held = [self.random.choice(held)]
        for granted in held:
            await self.release(session, granted)

    async def _wait_for(self, session: Session) -> None:
        request = self._any_request(session, self.random.choice((500, 3_000, 10_000)))
        if self.random.random() < 0.08:  # two streams with one request id
            await asyncio.gather(self.ask(session, request, 2), self.ask(session, request))
        else:
            await self.ask(session, request)

    async def _try(self, session: Session) -> None:
        await self.ask(session, self._any_request(session, 0))

    async def _wait_for_two(self, session: Session) -> None:
        await asyncio.gather(self._wait_for(session), self._wait_for(session))

    async def _wait_and_let_go(self, session: Session) -> None:
        """Release something while something else is waited for."""
        asking = asyncio.get_running_loop().create_task(self._wait_for(session), name=f"{self.name}+{self._ids}")
        await asyncio.sleep(self.random.uniform(0, 1.5))
        await self._release_one(session)
        await asking

    async def _claim(self, session: Session) -> None:
        entries = [EntryKey(PLAIN, path) for path in self.random.sample(_PATHS, 3)]
        targets = tuple(LockTarget(entry.region, entry.path, subtree=False) for entry in entries)
        await self.ask(session, self.request(session, targets, Mode.EXCLUSIVE, 0, tuple(entries)))

    async def _repeat(self, session: Session) -> None:
        """Ask again with an old request: the same grant while it lives, and `LOCK_LOST` afterwards."""
        askings = [asking for asking in self.world.journal.askings.values() if asking.agent == self.name]
        answered = [asking for asking in askings if asking.answers]
        if answered:
            await self._ask_once(self.random.choice(answered[-6:]).request, self._replica())

    # Writing.

    async def write(
        self,
        mutations: Sequence[tuple[EntryKey, Mutation]],
        fences: Sequence[Granted],
        releases: Sequence[Granted] = (),
    ) -> Committed | None:
        """Commit under fences; send the same again until something is known."""
        sent = self.sent()
        placed = tuple((key, mutation, place) for place, (key, mutation) in enumerate(mutations))
        freed = tuple((len(placed) + place, granted.lock_id) for place, granted in enumerate(releases))
        given = tuple(
            FenceGiven(f"fences[{place}]", self.fence(granted)) for place, granted in enumerate((*fences, *releases))
        )
        digest = self.world.replicas[0].request_ids.digest(repr((placed, freed, given)).encode())
        request = CommitRequest(BOARD, sent.request_id, sent.time_ms, digest, (), placed, "", "", "", given, freed)
        writing = self.world.journal.writings[sent.request_id] = Writing(self.name, request)
        for _ in range(_SENT_AT_MOST):
            replica = self._replica()
            floor = self.world.store.present
            try:
                answer = await replica.call(
                    replica.commits.commit(self.principal, request, self.deadline()), self.name_call(), 3.0
                )
            except ConnectionLost:
                self.say(f"{sent.request_id} at {replica.name}: lost")
            except Refusal as refusal:
                self.told(f"{sent.request_id} at {replica.name}: {refusal!r}")
                if not isinstance(refusal, (*UNSETTLED, Contended)):
                    span = Span(floor, self.world.store.present)
                    writing.refusals.append(Told(refusal, span, asyncio.get_running_loop().time()))
                    self._judge_refused_write(request, refusal)
                    return None
            else:
                self.told(f"{sent.request_id} at {replica.name}: {answer.revision}")
                writing.answers.append((answer, Span(floor, self.world.store.present)))
                return answer
            await asyncio.sleep(self.random.uniform(0.02, 0.5))
        return None

    def _judge_refused_write(self, request: CommitRequest, refusal: Refusal) -> None:
        expected = (LockedByOther, LockLost, LockRequired, LockShared, NotHolder, StateUnfit, InvalidRequest)
        if not isinstance(refusal, expected):
            self.problem(f"{request} was refused with {refusal!r}")

    def fence(self, granted: Granted) -> Fence:
        return Fence(granted.lock_id, granted.revision, self.world.store.epoch)

    def _mutation(self) -> tuple[EntryKey, Mutation]:
        """Give a write somewhere; a third of them commute."""
        region = self.random.choice(_REGIONS)
        if self.random.random() < 0.3:
            return EntryKey(region, f"{self.random.choice(_PATHS)}/count"), Increment(1)
        return EntryKey(region, self.random.choice(_PATHS)), self._put()

    def _put(self) -> Put:
        return Put(Unconditional(), Value(Form.TEXT, f"{self.name}/{self._ids}"), None, None)

    def _within(self, granted: Granted) -> list[tuple[EntryKey, Mutation]]:
        """Give a write to something that a lock takes."""
        entries = [
            EntryKey(target.region, path)
            for target in granted.lock.targets
            for path in (*_PATHS, f"{target.path}/new")
            if takes(target, target.region, path) and not path.startswith("/")
        ]
        return [(entry, self._put()) for entry in self.random.sample(entries, min(len(entries), 2))]

    async def _write_under(self, session: Session) -> None:
        if not session.held:
            await self._write_bare(session)
            return
        granted = self.random.choice(list(session.held.values()))
        answer = await self.write(self._within(granted), [granted])
        if answer is None and self.random.random() < 0.5:
            session.held.pop(granted.lock_id, None)

    async def _write_bare(self, session: Session) -> None:
        await self.write([self._mutation()], [])

    async def _write_late(self, session: Session) -> None:
        """Write with the fence of a lock that was held once, and may be held no more."""
        own = [granted for granted in self.world.fences if granted.lock.agent == self.name]
        if own:
            granted = self.random.choice(own)
            await self.write(self._within(granted), [granted])

    async def _write_stolen(self, session: Session) -> None:
        others = [granted for granted in self.world.fences if granted.lock.agent != self.name]
        if others:
            granted = self.random.choice(others)
            await self.write(self._within(granted), [granted])

    async def _publish(self, session: Session) -> None:
        """Write and release in one act."""
        if session.held:
            _, granted = session.held.popitem()
            await self.write(self._within(granted), [], [granted])

    # Letting go.

    async def release(self, session: Session, granted: Granted) -> None:
        """Give a lock back."""
        session.held.pop(granted.lock_id, None)
        for _ in range(_SENT_AT_MOST):
            replica = self._replica()
            floor = self.world.store.present
            work = replica.held_locks.release(self.principal, BOARD, self.fence(granted), self.deadline())
            try:
                released, revision = await replica.call(work, self.name_call(), 3.0)
            except (ConnectionLost, *UNSETTLED):
                await asyncio.sleep(self.random.uniform(0.02, 0.5))
            except Refusal as refusal:
                self.problem(f"releasing {granted.lock_id} was refused with {refusal!r}")
                return
            else:
                self.say(f"released {granted.lock_id} {released} {revision}")
                span = Span(floor, self.world.store.present)
                self.world.journal.releases.append(Release(self.name, self.fence(granted), released, revision, span))
                return

    async def _release_one(self, session: Session) -> None:
        if session.held:
            await self.release(session, self.random.choice(list(session.held.values())))

    async def _downgrade(self, session: Session) -> None:
        if not session.held:
            return
        granted = self.random.choice(list(session.held.values()))
        for _ in range(_SENT_AT_MOST):
            replica = self._replica()
            work = replica.held_locks.downgrade(self.principal, BOARD, self.fence(granted), self.deadline())
            try:
                shown, revision = await replica.call(work, self.name_call(), 3.0)
            except (ConnectionLost, Contended, *UNSETTLED):
                await asyncio.sleep(self.random.uniform(0.02, 0.5))
            except LockLost:
                session.held.pop(granted.lock_id, None)
                return
            except Refusal as refusal:
                self.problem(f"downgrading {granted.lock_id} was refused with {refusal!r}")
                return
            else:
                self.say(f"downgraded {granted.lock_id} {revision}")
                if shown.lock.mode is not Mode.SHARED:
                    self.problem(f"a downgrade gave {shown}")
                return

    async def _pause(self, session: Session) -> None:
        """Stand still for longer than the session lives, and go on as if nothing had been."""
        session.awake.clear()
        await asyncio.sleep(session.ttl_s * self.random.uniform(0.5, 2.5))
        for granted in list(session.held.values())[:2]:
            await self.write(self._within(granted), [granted])
        session.awake.set()

    async def _crash(self, session: Session) -> None:
        await self.abandon()
        await asyncio.sleep(self.random.uniform(0, 2))

    async def _crash_in_the_queue(self, session: Session) -> None:
        request = self._any_request(session, 10_000)
        asking = asyncio.get_running_loop().create_task(self._ask_once(request, self._replica()))
        await asyncio.sleep(self.random.uniform(0, 1))
        asking.cancel()
        await asyncio.wait([asking])
        await self.abandon()

    async def _leave(self, session: Session) -> None:
        await self.close()
