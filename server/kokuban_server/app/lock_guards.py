"""What locks ask of a commit: guards to send with it, or the refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.lock_views import Sight
from kokuban_server.app.mirrored_store import settle
from kokuban_server.core import keys
from kokuban_server.core.change_set import Absent, AtRevision, CreatedAt
from kokuban_server.core.locks import LockPolicy, LockTarget, Mode
from kokuban_server.core.refusals import LockedByOther, LockLost, LockRequired, LockShared, NotHolder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.app.access import Access
    from kokuban_server.app.lock_mirror import BoardLocks, KnownLock, LockMirror
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import Principal
    from kokuban_server.core.change_set import Guard
    from kokuban_server.core.commit import Step, Target
    from kokuban_server.core.locks import Fence
    from kokuban_server.ports.board_store import Record


class FenceGiven(NamedTuple):
    """A fence that a request carries, and the field it stands in."""

    field: str
    fence: Fence


class Held(NamedTuple):
    """What a commit must be guarded on, as far as locks go."""

    guards: list[Guard]
    end_ms: int
    """When the first of its locks ends, whatever happens; 0 for never."""


class LockGuards:
    """Holds commits against the locks of their regions.

    The judgement is made on the mirror, so it may be wrong; but its guards then fail, and before anybody is refused the
    keys of `doubts` are read strongly and given to `settle`.
    """

    def __init__(self, mirror: LockMirror, access: Access, time: StoreTime) -> None:
        self._mirror = mirror
        self._access = access
        self._time = time

    async def stand(self, deadline: float) -> None:
        """Come back when commits can be judged."""
        if not self._mirror.stands:
            await self._mirror.stand(left_s(deadline))

    def judge(self, principal: Principal, board: str, steps: Sequence[Step], fences: Sequence[FenceGiven]) -> Held:
        """Give what the commit must be guarded on. Raises the refusal of the first fence or step that does not hold."""
        guards: list[Guard] = []
        picture = self._mirror.board(keys.board_prefix(principal.tenant, board))
        end_ms = self._judge_fences(principal, board, picture, fences, guards) if fences else 0
        guarded: set[bytes] = set()
        for target, _, index, _ in steps:
            policy = target.rules.lock_policy
            if policy is LockPolicy.OFF:
                continue
            generation = target.generation
            if generation not in guarded:
                guarded.add(generation)
                revision = self._mirror.revision_of(generation)
                guards.append(AtRevision(generation, revision) if revision else Absent(generation))
            if policy is LockPolicy.REQUIRED or (picture is not None and len(picture.claims)):
                self._judge_step(principal, board, picture, target, index, fences)
        return Held(guards, end_ms)

    def _judge_fences(
        self,
        principal: Principal,
        board: str,
        picture: BoardLocks | None,
        fences: Sequence[FenceGiven],
        guards: list[Guard],
    ) -> int:
        end_ms = 0
        for field, fence in fences:
            lock = picture.locks.get(fence.lock_id) if picture is not None else None
            if picture is None or lock is None or lock.create_revision != fence.revision:
                raise LockLost(fence.lock_id, field)
            if lock.record.agent != principal.agent:
                if Sight(self._access, principal, board).targets(lock.record):
                    raise NotHolder(field, lock_id=fence.lock_id)
                raise LockLost(fence.lock_id, field)
            end = lock.record.end_time_ms
            if end:
                if end <= self._time.seen_ms:
                    raise LockLost(fence.lock_id, field)
                end_ms = min(end_ms or end, end)
            guards.append(CreatedAt(keys.on_board(keys.LOCK, picture.prefix, fence.lock_id), fence.revision))
        return end_ms

    def _judge_step(
        self,
        principal: Principal,
        board: str,
        picture: BoardLocks | None,
        target: Target,
        index: int,
        fences: Sequence[FenceGiven],
    ) -> None:
        """Raise what forbids this step. What covers an entry is one exclusive lock or any number of shared ones."""
        region, path = target.key
        blocking = _blocking(picture, target, fences)
        if blocking is not None and picture is not None:
            lock_id, lock = blocking
            place = f"mutations[{index}]"
            if any(given.fence.lock_id == lock_id for given in fences):
                raise LockShared(place, str(region), path, lock_id)
            sight = Sight(self._access, principal, board)
            raise LockedByOther(place, sight.holder(picture, lock_id, lock.record, _meant(target)))
        if target.rules.lock_policy is LockPolicy.REQUIRED and not _is_covered(picture, target, fences):
            raise LockRequired(f"mutations[{index}]", str(region), path)

    def doubts(
        self, principal: Principal, board: str, steps: Sequence[Step], fences: Sequence[FenceGiven]
    ) -> list[bytes]:
        """Give the keys on which the judgement rests. Those that hold nothing here are among them."""
        prefix = keys.board_prefix(principal.tenant, board)
        picture = self._mirror.board(prefix)
        doubts = {step.target.generation: None for step in steps if step.target.rules.lock_policy is not LockPolicy.OFF}
        for given in fences:
            doubts[keys.on_board(keys.LOCK, prefix, given.fence.lock_id)] = None
        for step in steps:
            blocking = _blocking(picture, step.target, fences)
            if blocking is not None:
                doubts[keys.on_board(keys.MARKER, prefix, blocking[0])] = None
        return list(doubts)

    async def settle(
        self, doubts: Sequence[bytes], records: Sequence[Record | None], revision: int, deadline: float
    ) -> bool:
        """Take in what a strong read at this revision found at the keys of `doubts`. False if it was known."""
        return await settle(self._mirror, doubts, records, revision, deadline)


def _meant(target: Target) -> LockTarget:
    return LockTarget(target.key.region, target.key.path, subtree=False)


def _blocking(picture: BoardLocks | None, target: Target, fences: Sequence[FenceGiven]) -> tuple[str, KnownLock] | None:
    """Give the first claim that forbids a write: one whose fence is not given, or a shared one."""
    if picture is None or target.rules.lock_policy is LockPolicy.OFF:
        return None
    for lock_id, lock in picture.claims.overlapping((_meant(target),)):
        if lock.mode is Mode.SHARED or not any(given.fence.lock_id == lock_id for given in fences):
            return lock_id, lock
    return None


def _is_covered(picture: BoardLocks | None, target: Target, fences: Sequence[FenceGiven]) -> bool:
    """Say whether one of the fences is of an exclusive lock that takes the entry."""
    if picture is None:
        return False
    given = {fence.fence.lock_id for fence in fences}
    claims = picture.claims.overlapping((_meant(target),))
    return any(lock_id in given and lock.mode is Mode.EXCLUSIVE for lock_id, lock in claims)
