"""The session of a simulated holder: opened, kept alive through whichever server answers, paused, abandoned, closed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from kokuban_server.app.sessions import Opened, Pulse, SessionRequest
from kokuban_server.core.refusals import OutcomeUnknown, Refusal, ServerDraining, SessionLost, StoreUnavailable
from tests.simulation.lock_journal import Beat, Span
from tests.simulation.simulated_agents import Caller, Scene
from tests.simulation.simulated_replica import BOARD, START_MS, ConnectionLost

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import AsyncGenerator

    from kokuban_server.app.lock_asked import Granted
    from tests.simulation.lock_journal import LockJournal
    from tests.simulation.simulated_replica import SimulatedReplica

_SENT_AT_MOST = 6
UNSETTLED = (StoreUnavailable, OutcomeUnknown, ServerDraining)
"""After these the same request is sent again."""
_T = TypeVar("_T")


class LockScene(Scene, Protocol):
    """What a holder finds around it."""

    @property
    def journal(self) -> LockJournal: ...

    @property
    def fences(self) -> deque[Granted]: ...


class Sent(NamedTuple):
    """The id of a new request, and the time that it says it was made at."""

    request_id: str
    time_ms: int


class Session:
    """What a holder knows of its session."""

    def __init__(self, opened: Opened) -> None:
        self.id = opened.session_id
        self.ttl_s = opened.session.ttl_ms / 1000
        self.held: dict[str, Granted] = {}
        self.awake = asyncio.Event()
        """Not set while the holder is paused."""
        self.awake.set()
        self.is_lost = False
        self.heart: asyncio.Task[None] | None = None


class SessionKeeper(Caller[LockScene]):
    """An agent that has a session, one after the other."""

    def __init__(self, world: LockScene, name: str) -> None:
        super().__init__(world, name)
        self._ids = 0
        self.session: Session | None = None

    def sent(self) -> Sent:
        """Give a new request's id."""
        self._ids += 1
        return Sent(f"{self.name}-{self._ids}", START_MS + int(asyncio.get_running_loop().time() * 1000))

    def told(self, what: object) -> None:
        """Note an answer, without what differs from run to run."""
        self.say(str(what).replace(self.world.store.epoch, "E"))

    async def open(self) -> Session | None:
        """Begin a session, and keep it alive in the background."""
        sent = self.sent()
        ttl_ms = self.random.choice((2_000, 3_000, 6_000))
        digest = self.world.replicas[0].request_ids.digest(repr((sent, ttl_ms)).encode())
        request = SessionRequest(BOARD, sent.request_id, sent.time_ms, digest, ttl_ms, self.name)
        ids = self.world.journal.sessions.setdefault(sent.request_id, set())
        for _ in range(_SENT_AT_MOST):
            replica = self._replica()
            try:
                opened = await replica.call(
                    replica.sessions.open(self.principal, request, self.deadline()), self.name_call(), 3.0
                )
            except (ConnectionLost, *UNSETTLED):
                await asyncio.sleep(self.random.uniform(0.05, 0.5))
                continue
            except SessionLost:  # an earlier try stood, and its session has lapsed meanwhile
                return None
            ids.add(opened.session_id)
            self.told(f"session {opened.session_id}")
            session = self.session = Session(opened)
            session.heart = asyncio.get_running_loop().create_task(
                self._beat(session), name=f"{self.name}/{session.id}"
            )
            return session
        return None

    async def _beat(self, session: Session) -> None:
        while not session.is_lost:
            with contextlib.suppress(ConnectionLost, *UNSETTLED):
                await self._keep(session, self._replica())
            await asyncio.sleep(self.random.uniform(0.02, 0.2))

    async def _keep(self, session: Session, replica: SimulatedReplica) -> None:
        """Keep the session alive through one server until the stream ends."""
        floors: list[int] = []
        opened_at = self.world.store.present

        async def renewals() -> AsyncGenerator[None, None]:
            while True:
                await session.awake.wait()
                floors.append(self.world.store.present)
                yield
                await asyncio.sleep(session.ttl_s / 3)

        stream = replica.sessions.keep_alive(self.principal, BOARD, session.id, renewals(), self.deadline())
        try:
            while True:
                news = await replica.call(anext(stream), self.name_call(), 60.0)
                present = self.world.store.present
                for loss in news.losses:
                    session.held.pop(loss.lock_id, None)
                if news.pulse is Pulse.RENEWED and not news.losses:
                    self.world.journal.beats.append(Beat(session.id, True, Span(floors.pop(0), present)))
                elif news.pulse is Pulse.LOST:
                    self.world.journal.beats.append(Beat(session.id, False, Span(opened_at, present)))
        except SessionLost:
            self.say("session lost")
            self.world.journal.beats.append(Beat(session.id, False, Span(opened_at, self.world.store.present)))
            session.is_lost = True
        except StopAsyncIteration:
            self.problem("a keep-alive stream ended without a word")
        finally:
            await self.hang_up(replica, stream)

    async def hang_up(self, replica: SimulatedReplica, stream: AsyncGenerator[_T, None]) -> None:
        """Close a stream, as a server does whose client has gone."""
        if not replica.is_dead:
            with contextlib.suppress(ConnectionLost):
                await replica.call(stream.aclose(), self.name_call(), 60.0)

    async def abandon(self) -> None:
        """Be there no more, without a word."""
        session, self.session = self.session, None
        if session is not None and session.heart is not None:
            session.heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await session.heart

    async def close(self) -> None:
        """End the session as one should."""
        session = self.session
        if session is None:
            return
        for _ in range(_SENT_AT_MOST):
            replica = self._replica()
            work = replica.sessions.close(self.principal, BOARD, session.id, self.deadline())
            try:
                closed = await replica.call(work, self.name_call(), 3.0)
            except (ConnectionLost, *UNSETTLED):
                await asyncio.sleep(self.random.uniform(0.05, 0.5))
            except Refusal as refusal:
                self.problem(f"closing its own session was refused with {refusal!r}")
                break
            else:
                self.say(f"session closed {closed}")
                break
        await self.abandon()
