"""Servers whose locks are wrong in one way each: what the simulation must be able to find."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.lock_guards import Held, LockGuards
from kokuban_server.app.lock_mirror import LockMirror
from kokuban_server.app.mirrored_store import MirroredStore
from kokuban_server.core import keys
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, CreatedAt, TimeBefore
from tests.simulation.simulated_replica import SOUND, Parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.app.lock_guards import FenceGiven
    from kokuban_server.app.lock_mirror import BoardLocks, _Step
    from kokuban_server.core.access import Principal
    from kokuban_server.core.change_set import Guard
    from kokuban_server.core.commit import Step

_ALWAYS = TimeBefore(1 << 60)
"""A guard that always holds: those behind it keep their places."""


class _UncheckedFences(LockGuards):
    def judge(self, principal: Principal, board: str, steps: Sequence[Step], fences: Sequence[FenceGiven]) -> Held:
        held = super().judge(principal, board, steps, fences)
        return held._replace(guards=[guard for guard in held.guards if not isinstance(guard, CreatedAt)])


class _UncheckedGenerations(LockGuards):
    def judge(self, principal: Principal, board: str, steps: Sequence[Step], fences: Sequence[FenceGiven]) -> Held:
        held = super().judge(principal, board, steps, fences)
        return held._replace(guards=[guard for guard in held.guards if isinstance(guard, CreatedAt)])


class _RefusesUnasked(LockGuards):
    def doubts(
        self, principal: Principal, board: str, steps: Sequence[Step], fences: Sequence[FenceGiven]
    ) -> list[bytes]:
        return []


class _UncheckedQueue(MirroredStore):
    kinds: tuple[bytes, ...] = (keys.LOCK_GENERATION, keys.QUEUE_GENERATION)

    async def apply(self, change: ChangeSet, deadline: float) -> int:
        guards = tuple(_ALWAYS if self._is_left_out(guard) else guard for guard in change.guards)
        return await super().apply(ChangeSet(guards, change.puts, change.deletes), deadline)

    def _is_left_out(self, guard: Guard) -> bool:
        return isinstance(guard, (Absent, AtRevision)) and guard.key.startswith(self.kinds)


class UncheckedWaits(_UncheckedQueue):
    """Grants without a look at who waits."""

    kinds = (keys.QUEUE_GENERATION,)


class _UncheckedSessions(MirroredStore):
    """Lets what hangs on no lease be written for a session that is gone."""

    async def apply(self, change: ChangeSet, deadline: float) -> int:
        puts = tuple(put._replace(lease=None) if put.key.startswith(keys.LOCK) else put for put in change.puts)
        return await super().apply(ChangeSet(change.guards, puts, change.deletes), deadline)


class WakesNobody(LockMirror):
    """Does not tell of what ends."""

    def _settle(self, step: _Step) -> None:
        told = [(board, dict(board.followers)) for board in step.changed.values() if step.ended]
        for board, _ in told:
            board.followers.clear()
        super()._settle(step)
        for board, followers in told:
            board.followers.update(followers)
            self._boards[board.prefix] = board


class _ForgetsMarkers(LockMirror):
    """Takes a lock that was lost for one that was released."""

    def _settle(self, step: _Step) -> None:
        for prefix, ended in step.ended.items():
            board: BoardLocks | None = self._boards.get(prefix)
            for name, _ in ended:
                if board is not None:
                    board.claims.remove(name)
        super()._settle(step)


class Broken(NamedTuple):
    """A way to be wrong, and a word of what the simulation says of it."""

    what: str
    parts: Parts
    symptom: str


BROKEN = (
    Broken("fences are not compared inside the write", SOUND._replace(lock_guards=_UncheckedFences), "dead fence"),
    Broken(
        "writes are not guarded on the lock generation",
        SOUND._replace(lock_guards=_UncheckedGenerations),
        "in spite of",
    ),
    Broken(
        "writes are refused for what is only remembered", SOUND._replace(lock_guards=_RefusesUnasked), "was refused for"
    ),
    Broken("grants are guarded on no generation", SOUND._replace(mirrored_store=_UncheckedQueue), "stands beside"),
    Broken(
        "locks do not hang on their session", SOUND._replace(mirrored_store=_UncheckedSessions), "outlives its session"
    ),
    Broken("a lost lock is not closed for its lock delay", SOUND._replace(mirror=_ForgetsMarkers), "stands beside"),
)
