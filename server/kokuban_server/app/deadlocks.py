"""Who waits for whom on a board, for locks and for parts of tasks, and whether that closes a circle.

A wait for a part of a task is held up by whoever holds the lock of a step that is left to do for it. Which steps these are is
told by how the task stands. While that is not known every lock in the task's region counts: so no circle is overlooked, and one
that is found is looked at again with what the store says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import settle
from kokuban_server.core import keys
from kokuban_server.core.locks import LockTarget, Mode, find_cycle, shortened
from kokuban_server.core.refusals import CycleEdge, Deadlock
from kokuban_server.core.task_progress import left_to_do
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.task_codec import decode_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kokuban_server.app.lock_mirror import BoardLocks, KnownLock
    from kokuban_server.app.lock_views import Sight
    from kokuban_server.app.mirrored_store import MirroredStore
    from kokuban_server.core.locks import LockRecord
    from kokuban_server.core.names import Region
    from kokuban_server.core.tasks import TaskState

_LOOKS_MAX = 4
_LAST = (1 << 63, "")


def oldest_held_up(board: BoardLocks, session_id: str) -> tuple[int, str]:
    """Give the place of the oldest wait that may be for something of a session, a lock or a wait; else the last place."""
    oldest = _LAST
    for name in board.names(session_id):
        lock = board.locks.get(name)
        own = lock or board.waits.get(name)
        if own is None:
            continue
        since = (0, "") if lock is not None else (own.create_revision, name)
        held_up = [*board.waits.conflicting(own.mode, own.targets)]
        if lock is not None and len(board.task_waits):
            held_up += board.task_waits.overlapping(_whole(region) for region in lock.record.regions)
        for waiter, wait in held_up:
            order = (wait.create_revision, waiter)
            if since < order < oldest:
                oldest = order
    return oldest


def _whole(region: Region) -> LockTarget:
    return LockTarget(region, "", subtree=True)


class WaitGraph:
    """Who waits for whom. `states` is how those tasks stand of which that is known."""

    def __init__(self, board: BoardLocks, states: Mapping[Region, TaskState | None] | None = None) -> None:
        self._board = board
        self._states = states or {}

    def circle(self, name: str) -> list[tuple[str, KnownLock]] | None:
        """Give the circle of waits that a wait closes, if it is the youngest of one."""
        start = self._wait(name)
        if start is None:
            return None
        youngest = (start.create_revision, name)
        nodes: dict[str, tuple[str, KnownLock]] = {name: (name, start)}
        blocked: dict[str, set[str]] = {}

        def blocked_by(node: tuple[str, KnownLock]) -> set[str]:
            if node[0] not in blocked:
                blocked[node[0]] = {session_id for _, _, session_id in self._held_up_by(*node)}
            return blocked[node[0]]

        def older_that_block(node: tuple[str, KnownLock]) -> Iterator[tuple[str, KnownLock]]:
            for session_id in sorted(blocked_by(node)):
                for other in sorted(self._board.names(session_id)):
                    wait = self._wait(other)
                    if wait is not None and (wait.create_revision, other) < youngest:
                        yield nodes.setdefault(other, (other, wait))

        return find_cycle(nodes[name], older_that_block, lambda node: node[1].record.session_id, blocked_by)

    def links(self, circle: Sequence[tuple[str, KnownLock]]) -> Iterator[tuple[bytes, str]]:
        """Give what a circle rests on: its waits, and for each something that it waits for of the next one's session."""
        for node, (_, following) in zip(circle, [*circle[1:], circle[0]], strict=True):
            yield keys.TASK_WAIT if node[0] in self._board.task_waits else keys.WAIT, node[0]
            for kind, name, session_id in self._held_up_by(*node):
                if session_id == following.record.session_id:
                    yield kind, name
                    break

    def tasks(self, circle: Sequence[tuple[str, KnownLock]]) -> list[Region]:
        """Give the regions of the tasks that are waited for in a circle."""
        waits = [wait for name, wait in circle if name in self._board.task_waits]
        return list(dict.fromkeys(region for wait in waits for region in wait.record.regions))

    def _wait(self, name: str) -> KnownLock | None:
        return self._board.waits.get(name) or self._board.task_waits.get(name)

    def _held_up_by(self, name: str, wait: KnownLock) -> Iterator[tuple[bytes, str, str]]:
        """Give the locks and waits that a wait waits for: kind of key, name and session."""
        board = self._board
        is_of_task = name in board.task_waits
        mode, targets = (Mode.EXCLUSIVE, self._steps(wait)) if is_of_task else (wait.mode, wait.targets)
        for holder, claim in board.claims.conflicting(mode, targets):
            session_id = claim.record.session_id
            # Whoever waits for a task may work on it in the same session: that is for them to know.
            if holder in board.locks and not (is_of_task and session_id == wait.record.session_id):
                yield keys.LOCK, holder, session_id
        if not is_of_task:
            order = (wait.create_revision, name)
            for waiter, other in board.waits.conflicting(mode, targets):
                if (other.create_revision, waiter) < order:
                    yield keys.WAIT, waiter, other.record.session_id

    def _steps(self, wait: KnownLock) -> tuple[LockTarget, ...]:
        """Give what is left to do for the part of a task that a wait is for."""
        region, part, _ = wait.targets[0]
        if region not in self._states:
            return (_whole(region),)
        state = self._states[region]
        steps = () if state is None else sorted(left_to_do(state, part))
        return tuple(LockTarget(region, step, subtree=True) for step in steps)


async def find_circle(
    store: MirroredStore, board_prefix: bytes, name: str, deadline: float
) -> list[tuple[str, KnownLock]] | None:
    """Give the circle that a wait closes, if the store says that all of it is so at one moment. Raises `StoreUnavailable`."""
    states: dict[Region, TaskState | None] = {}
    for _ in range(_LOOKS_MAX):
        graph = WaitGraph(store.mirror.picture(board_prefix), states)
        circle = graph.circle(name)
        if circle is None:
            return None
        links = {keys.on_board(kind, board_prefix, link): 0 for kind, link in graph.links(circle)}
        links = {key: store.mirror.revision_of(key) for key in links}
        tasks = {region: keys.TASK + board_prefix + keys.join(str(region).encode()) for region in graph.tasks(circle)}
        cut = await store.port.read([*links, *tasks.values()], STRONG, left_s(deadline))
        found = cut.records[: len(links)]
        now = {
            region: None if record is None else decode_task(record.key, record.value)
            for region, record in zip(tasks, cut.records[len(links) :], strict=True)
        }
        is_so = [record.revision if record is not None else 0 for record in found] == list(links.values())
        if is_so and all(region in states and states[region] == state for region, state in now.items()):
            return circle
        states |= now
        await settle(store.mirror, list(links), found, cut.revision, deadline)
    return None


def deadlock_of(circle: Sequence[tuple[str, KnownLock]], sight: Sight) -> Deadlock:
    """Give the refusal of a wait that closes a circle, as far as its caller may read it."""
    return Deadlock(tuple(_edge(sight, wait.record) for _, wait in shortened(circle)), len(circle))


def _edge(sight: Sight, wait: LockRecord) -> CycleEdge:
    """Give one step of a circle, as far as the victim may read it."""
    targets = sight.targets(wait)
    if not targets:
        return CycleEdge("", "", (), "")
    named = tuple((str(target.region), target.path, target.subtree) for target in targets)
    return CycleEdge(wait.agent, wait.session_id, named, wait.purpose if sight.reads_all(wait) else "")
