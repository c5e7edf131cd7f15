"""Agents that take turns at one lock and write under it, whatever breaks; and what their writes come to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Self

from tests.faults.fenced_history import ProtectedWrite, faults_of
from tests.replicas.lock_calls import Channels, Granted, LockAgent, outcome
from tests.wire.calls import absent

if TYPE_CHECKING:
    from collections.abc import Sequence

PLACE = "contest"
_CALL_S = 4.0
_WRITES = 3


class Attempt(NamedTuple):
    """A write that was tried, and what its caller was told."""

    path: str
    holder: str
    fence: int
    revision: int
    """0 if it was not acknowledged."""
    reason: str


class Summary(NamedTuple):
    """What a contest came to."""

    holds: int
    losses: int
    """Holds of which the holder learnt in a write that they are over."""
    late: int
    """Writes that were tried after a holder had slept past its lease."""
    acknowledged: int
    unknown_applied: int
    holders: int
    faults: list[str]

    def __str__(self) -> str:
        return (
            f"{self.holds} holds of {self.holders} agents, {self.losses} lost, {self.acknowledged} writes acknowledged, "
            f"{self.unknown_applied} applied without an answer, {self.late} tried late"
        )


class Contest:
    """The agents. The first of them renews nothing, and writes once more when its lease is long over."""

    def __init__(self, connect: Channels, addresses: Sequence[str], *, agents: int = 5, ttl_s: float = 3.0) -> None:
        self.holds = 0
        self.losses = 0
        self.attempts: list[Attempt] = []
        self._connect = connect
        self._addresses = addresses
        self._agents = agents
        self._ttl_s = ttl_s
        self._stopping = False
        self._moved = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._late = 0

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._take_part(number)) for number in range(self._agents)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def progress(self, holds: int, within_s: float = 40.0) -> None:
        """Come back when so many more holds have come to their end."""
        goal = self.holds + holds
        async with asyncio.timeout(within_s):
            while self.holds < goal:
                self._moved.clear()
                await self._moved.wait()
                for task in self._tasks:
                    if task.done():
                        task.result()

    async def finish(self, within_s: float = 60.0) -> Summary:
        """Let everybody come to an end, and judge."""
        self._stopping = True
        done, pending = await asyncio.wait(self._tasks, timeout=within_s)
        assert not pending
        for task in done:
            task.result()
        reader = await self._connect.agent(self._addresses[-1], "reader")
        entries = {entry.key.path: entry for entry in await reader.entries(PLACE)}
        tried = {attempt.path: attempt for attempt in self.attempts}
        faults: list[str] = []
        writes = []
        unknown_applied = 0
        for path, entry in entries.items():
            attempt = tried.get(path)
            if (
                attempt is None
                or entry.sequence != 1
                or (attempt.revision or entry.revision.number) != entry.revision.number
            ):
                faults.append(f"{path} is {entry}, it was told {attempt}")
                continue
            if attempt.reason in {"LOCK_LOST", "LOCKED_BY_OTHER", "NOT_HOLDER"}:
                faults.append(f"refused and applied: {attempt}")
            unknown_applied += not attempt.revision
            writes.append(ProtectedWrite(attempt.fence, entry.revision.number, attempt.holder))
        faults += [
            f"acknowledged and not there: {one}" for one in self.attempts if one.revision and one.path not in entries
        ]
        faults += faults_of(writes)
        return Summary(
            self.holds,
            self.losses,
            self._late,
            sum(one.revision > 0 for one in self.attempts),
            unknown_applied,
            len({one.holder for one in self.attempts if one.revision}),
            faults,
        )

    async def _take_part(self, number: int) -> None:
        name = f"contestant-{number}"
        turn = 0
        while not self._stopping:
            address = self._addresses[(number + turn) % len(self._addresses)]
            turn += 1
            agent = await self._connect.agent(address, name)
            opened = await outcome(agent.open(self._ttl_s))
            if opened.reason:
                await asyncio.sleep(0.1)  # a client's pause before it tries again
                continue
            renewing = asyncio.create_task(self._renew(agent)) if number else None
            try:
                await self._hold_on(agent, sleeps=not number)
            finally:
                if renewing is not None:
                    renewing.cancel()
                    await asyncio.wait([renewing])
                await outcome(agent.close())
                await agent.channel.close()

    async def _renew(self, agent: LockAgent) -> None:
        while True:
            async with agent.beats() as beats:
                await beats.go_on(self._ttl_s / 5)
            await asyncio.sleep(0.05)  # a client's pause before it tries again

    async def _hold_on(self, agent: LockAgent, *, sleeps: bool) -> None:
        """Take the lock as often as the session lets it; a few times over one connection."""
        for _ in range(1 if sleeps else 5):
            if self._stopping:
                return
            granted = await self._granted(agent)
            if granted is None:
                return
            for _ in range(_WRITES):
                if not await self._write(agent, granted):
                    break
            if sleeps:
                await asyncio.sleep(2.5 * self._ttl_s)  # as long as this, it sleeps
                self._late += 1
                await self._write(agent, granted)
            await outcome(agent.release(granted.fence))
            self.holds += 1
            self._moved.set()

    async def _granted(self, agent: LockAgent) -> Granted | None:
        """Ask for the lock; once more with the same request id when the answer did not come."""
        request = agent.asks(PLACE, wait_s=20, delay_s=0)
        for _ in range(3):
            answer, reason, _ = await outcome(agent.acquire(request, 25))
            if isinstance(answer, Granted):
                return answer
            if reason in {"SESSION_LOST", "LOCK_LOST", "LOCK_WAIT_EXPIRED"}:
                return None
            await asyncio.sleep(0.1)  # a client's pause before it tries again
        return None

    async def _write(self, agent: LockAgent, granted: Granted) -> bool:
        """Write one entry under the fence, and note what became of it; false if the lock is lost."""
        path = f"{PLACE}/{len(self.attempts):05}"
        self.attempts.append(Attempt(path, agent.name, granted.fence.revision, 0, "UNKNOWN"))
        place = len(self.attempts) - 1
        answer, reason, _ = await outcome(agent.write(path, granted.fence, precondition=absent(), timeout_s=_CALL_S))
        revision = answer.revision.number if answer is not None else 0  # type: ignore[attr-defined] # a commit's answer
        self.attempts[place] = self.attempts[place]._replace(revision=revision, reason=reason)
        self.losses += reason == "LOCK_LOST"
        return reason != "LOCK_LOST"
