"""How things stand, for whoever asks for metrics: looked at when they are asked for, and the store every few seconds."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.app.background import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_server.app.conflicts import ConflictLog
    from kokuban_server.app.judged_states import JudgedStates
    from kokuban_server.app.lock_mirror import BoardLocks, LockMirror
    from kokuban_server.app.measures import Measures
    from kokuban_server.app.screenings import Screenings
    from kokuban_server.app.sessions import Sessions
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.app.watches import Change, Watches
    from kokuban_server.ports.board_store import BoardStore

_STORE_PAUSE_S: Final = 15.0
_STORE_CALL_S: Final = 5.0


class Reading(NamedTuple):
    """Names and values, as they stand now."""

    gauges: dict[str, float]
    counters: dict[str, float]


class Gauges:
    """Looks at the parts of this server."""

    def __init__(
        self,
        store: BoardStore,
        mirror: LockMirror,
        watches: Watches,
        conflicts: ConflictLog,
        sessions: Sessions,
        screenings: Screenings,
        judged: JudgedStates,
        time: StoreTime,
        measures: Measures | None,
        report: Callable[[str, Exception], None],
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._watches = watches
        self._conflicts = conflicts
        self._sessions = sessions
        self._screenings = screenings
        self._judged = judged
        self._time = time
        self._measures = measures
        if measures is not None:
            watches.feed.on_batch = self._measure_feed
        self._turns = Turns("gauges", report)
        self._of_store: dict[str, float] = {}

    async def follow(self) -> None:
        """Ask the store now and then how it is, and how long it takes to say so, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._of_store = {"kokuban_store_up": 0.0}
            with self._turns.turn():
                begun = loop.time()
                status = await self._store.status(_STORE_CALL_S)
                self._of_store = {
                    "kokuban_store_up": 1.0,
                    "kokuban_store_status_seconds": loop.time() - begun,
                    "kokuban_store_size_bytes": float(status.size_bytes),
                    "kokuban_store_size_limit_bytes": float(status.size_bytes_max),
                    "kokuban_store_revision": float(status.revision),
                }
            await asyncio.sleep(_STORE_PAUSE_S)

    def read(self) -> Reading:
        """Give how everything stands now."""
        boards = list(self._mirror.boards)
        subscribers = self._watches.feed.subscribers
        gauges = {
            "kokuban_sessions": float(sum(len(board.sessions) for board in boards)),
            "kokuban_locks_held": float(sum(len(board.locks) for board in boards)),
            "kokuban_lock_waits": float(sum(len(board.waits) for board in boards)),
            "kokuban_lock_queue_length_max": float(max(map(_longest_queue, boards), default=0)),
            "kokuban_leases": float(sum(len(board.sessions) for board in boards) + len(self._mirror.servers)),
            "kokuban_sessions_kept_alive": float(self._sessions.kept_alive_count),
            "kokuban_session_heartbeat_age_seconds": self._sessions.oldest_heartbeat_s(),
            "kokuban_watches": float(len(subscribers)),
            "kokuban_watch_buffered_events": float(sum(len(subscriber.waiting) for subscriber in subscribers)),
            "kokuban_watch_lag_seconds": self._watch_lag_s(),
            "kokuban_store_commits_waiting": float(self._store.batches.waiting_count),
            "kokuban_screenings_waiting": float(self._screenings.waiting_count),
            "kokuban_conflicts_waiting": float(self._conflicts.waiting_count),
            **self._of_store,
        }
        progress = self._judged.ours
        gauges["kokuban_rescreening_waiting"] = float(progress.waiting) if progress is not None else 0.0
        for name in ("kept", "lowered", "withheld"):
            gauges[f"kokuban_rescreening_{name}"] = float(getattr(progress, name, 0))
        counters = {
            "kokuban_conflicts_written": float(self._conflicts.written),
            "kokuban_conflicts_dropped": float(self._conflicts.dropped),
            "kokuban_watch_gaps": float(self._watches.feed.gaps),
        }
        return Reading(gauges, counters)

    def _measure_feed(self, change: Change) -> None:
        """Count how late a change has come to this server's watches."""
        if self._measures is not None:
            self._measures.feed_delay.add(max(0.0, (self._time.now_ms() - change.record.update_time_ms) / 1000))

    def _watch_lag_s(self) -> float:
        """Give the age of the oldest change that waits for its reader."""
        waiting = [one.waiting[0] for one in self._watches.feed.subscribers if one.waiting]
        oldest_ms = min((change.record.update_time_ms for change in waiting), default=0)
        return max(0.0, (self._time.now_ms() - oldest_ms) / 1000) if oldest_ms else 0.0


def _longest_queue(board: BoardLocks) -> int:
    """Give how many requests wait in the region of a board where most do."""
    waits = Counter[str]()
    for name in list(board.waits):
        wait = board.waits.get(name)
        if wait is not None:
            waits.update(map(str, wait.record.regions))
    return max(waits.values(), default=0)
