"""What a caller may see of somebody else's sessions, locks and waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_server.core.access import Verb
from kokuban_server.core.refusals import Holder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kokuban_server.app.access import Access
    from kokuban_server.app.lock_mirror import BoardLocks
    from kokuban_server.core.access import Principal
    from kokuban_server.core.locks import LockRecord, LockTarget
    from kokuban_server.core.names import Region


class Sight:
    """What one caller may read on one board."""

    def __init__(self, access: Access, principal: Principal, board: str) -> None:
        self._access = access
        self._principal = principal
        self._board = board

    def reads(self, region: Region) -> bool:
        """Say whether the caller may read a region."""
        return self._access.readable(self._principal, self._board, region) is not None

    def require_locking(self, regions: Iterable[Region]) -> None:
        """Raise `NotFound` or `WriteForbidden` if the caller may not lock in one of the regions any more."""
        for region in regions:
            self._access.open(self._principal, self._board, region, Verb.LOCK)

    def targets(self, lock: LockRecord) -> tuple[LockTarget, ...]:
        """Give those of a lock's targets that lie in regions that the caller may read."""
        return tuple(target for target in lock.targets if self.reads(target.region))

    def reads_all(self, lock: LockRecord) -> bool:
        """Say whether the caller may read all of a lock's regions, and so its purpose."""
        return all(self.reads(region) for region in lock.regions)

    def holder(self, board: BoardLocks, lock_id: str, lock: LockRecord, meant: LockTarget) -> Holder:
        """Give who is in the way of something that the caller wants to write or lock."""
        state = "HELD" if lock_id in board.locks else "LOST" if lock_id in board.claims else "QUEUED"
        return Holder(
            str(meant.region),
            meant.path,
            lock_id,
            lock.agent,
            lock.session_id,
            lock.mode.value,
            state,
            lock.purpose if self.reads_all(lock) else "",
            lock.time_ms,
            lock.traceparent,
        )
