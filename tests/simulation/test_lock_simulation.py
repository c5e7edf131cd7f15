"""Holders of locks, servers and one store, in virtual time, with faults from a seed: what locks promise holds in every run.

`KOKUBAN_SIMULATION_SEEDS` and `KOKUBAN_SIMULATION_SEED` work as in test_simulation.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter

import pytest

from kokuban_server.app.lock_asked import Granted, LockRequest
from kokuban_server.app.lock_queue import LockQueue
from kokuban_server.app.sessions import SessionRequest
from kokuban_server.core import limits
from kokuban_server.core.access import Principal, Role
from kokuban_server.core.locks import Fence, LockTarget, Mode
from kokuban_server.core.names import parse_region
from kokuban_server.core.refusals import Contended, LockWaitExpired
from tests.simulation.broken_locks import BROKEN, Broken, UncheckedWaits, WakesNobody
from tests.simulation.lock_invariants import judge_locks
from tests.simulation.lock_journal import LockJournal
from tests.simulation.lock_simulation import STORM, simulate_locks
from tests.simulation.lock_stories import Player, held_back
from tests.simulation.simulated_replica import BOARD, SOUND, START_MS, Parts, SimulatedReplica, Tuning, adopting_task
from tests.simulation.simulated_store import RecordedStore, Weather
from tests.simulation.simulation import SimulationFailed
from tests.simulation.virtual_time import run, until

_SEEDS = 30
_SEEDS_AT_ONCE = 10
_SEEDS_FOR_BROKEN = 40
_HAND_OVERS = 10_000
_RIVALS = 4


def _seeds() -> list[range]:
    """Give the seeds to run, in groups that are a test each."""
    if one := os.environ.get("KOKUBAN_SIMULATION_SEED"):
        return [range(int(one), int(one) + 1)]
    count = int(os.environ.get("KOKUBAN_SIMULATION_SEEDS", _SEEDS))
    return [range(first, min(first + _SEEDS_AT_ONCE, count)) for first in range(0, count, _SEEDS_AT_ONCE)]


@pytest.mark.parametrize("seeds", _seeds(), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_every_promise_of_locks_holds_whatever_fails(seeds: range) -> None:
    for seed in seeds:
        try:
            report = simulate_locks(seed)
        except SimulationFailed as failed:
            pytest.fail(
                f"{failed}\nagain: KOKUBAN_SIMULATION_SEED={seed} make test "
                "TESTS=tests/simulation/test_lock_simulation.py",
                pytrace=False,
            )
        except BaseException:
            print(f"seed {seed}")  # noqa: T201 - how to see it again
            raise
        assert report.counts["grants"] > 10, report
        assert report.counts["writes"] > 5, report


@pytest.mark.parametrize("seed", [4, 11, 23])
def test_a_seed_gives_the_same_run_with_locks_again(seed: int) -> None:
    assert simulate_locks(seed) == simulate_locks(seed)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.what)
def test_locks_that_are_broken_are_found(broken: Broken) -> None:
    for seed in range(1, _SEEDS_FOR_BROKEN):
        try:
            simulate_locks(seed, broken.parts, STORM)
        except SimulationFailed as failed:
            if broken.symptom in str(failed):
                return
    pytest.fail(f"{_SEEDS_FOR_BROKEN} seeds have not found that {broken.what}")


def test_deadlocks_that_nobody_names_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LockQueue, "_check", lambda _queue, _asked: None)
    for seed in range(_SEEDS_FOR_BROKEN):
        with contextlib.suppress(SimulationFailed):
            simulate_locks(seed)
            continue
        break
    else:
        pytest.fail(f"{_SEEDS_FOR_BROKEN} seeds have not missed a deadlock's name")
    with pytest.raises(SimulationFailed, match="is not named"):
        simulate_locks(seed)


def test_the_runs_with_locks_meet_what_they_are_meant_to_meet() -> None:
    """A simulation in which nothing goes wrong proves nothing."""
    wanted = {
        "Deadlock": "circles of waits",
        "LockWaitExpired": "waits that take too long",
        "LockWaitTakenOver": "two streams with one request id",
        "LockedByOther": "tries of what is taken",
        "LockOverlapsOwn": "asking for what one has",
        "LockLost": "repeats after the lock was lost",
        "SessionLost": "requests of a session that is gone",
        "NothingToClaim": "claims in vain",
        "ServerDraining": "servers that are asked to stop",
        "StoreUnavailable": "calls that did not get to the store",
        "OutcomeUnknown": "grants without an answer",
        "write LockedByOther": "writes to what others hold",
        "write LockLost": "writes that come too late",
        "write LockShared": "writes under a shared lock",
        "write LockRequired": "writes without a lock where one is needed",
        "write NotHolder": "writes with somebody else's fence",
        "writes under a lock": "writes that a lock protects",
    }
    counts: Counter[str] = Counter()
    for seed in range(_SEEDS_FOR_BROKEN):
        counts.update(simulate_locks(seed).counts)
        if all(counts[word] > 2 for word in wanted):
            return
    pytest.fail(f"{_SEEDS_FOR_BROKEN} seeds have not met {[what for word, what in wanted.items() if counts[word] < 3]}")


class _Rival:
    """Takes one lock again and again, through one server."""

    def __init__(self, server: SimulatedReplica, name: str) -> None:
        self._server = server
        self._principal = Principal("dev", name, frozenset({Role.MEMBER}), is_development=True)
        self._ids = 0

    def _sent(self) -> tuple[str, int]:
        self._ids += 1
        return f"{self._principal.agent}-{self._ids}", START_MS + int(asyncio.get_running_loop().time() * 1000)

    async def race(self, turns: list[tuple[str, int]], wanted: int) -> None:
        """Take turns until there are enough."""
        loop = asyncio.get_running_loop()
        request_id, now_ms = self._sent()
        opened = await self._server.sessions.open(
            self._principal,
            SessionRequest(BOARD, request_id, now_ms, request_id.encode(), limits.SESSION_TTL_MS_MAX, ""),
            loop.time() + 5,
        )
        target = (LockTarget(parse_region("task:t1"), "a", subtree=True),)
        while len(turns) < wanted:
            request_id, now_ms = self._sent()
            request = LockRequest(
                BOARD,
                opened.session_id,
                request_id,
                now_ms,
                request_id.encode(),
                target,
                Mode.EXCLUSIVE,
                "racing",
                30_000,
                limits.LOCK_HOLD_MS_MAX,
                0,
                "",
            )
            granted = await self._granted(request)
            turns.append((self._principal.agent, granted.revision))
            fence = Fence(granted.lock_id, granted.revision, self._server.store.epoch)
            assert (await self._server.held_locks.release(self._principal, BOARD, fence, loop.time() + 5))[0]

    async def _granted(self, request: LockRequest) -> Granted:
        """Give the grant; the same request is sent again when too much happens at once, as clients do."""
        while True:
            deadline = asyncio.get_running_loop().time() + 5
            with contextlib.suppress(Contended):
                async for part in self._server.lock_requests.acquire(self._principal, request, deadline):
                    if isinstance(part, Granted):
                        return part


def _race(hand_overs: int, parts: Parts = SOUND) -> list[tuple[str, int]]:
    """Have rivals at two servers take one lock so often; give who had it, with which fence."""

    async def main() -> list[tuple[str, int]]:
        asyncio.get_running_loop().set_task_factory(adopting_task)
        store = RecordedStore()
        tuning = Tuning(limits.REQUEST_ID_WINDOW_MS, limits.STORE_HISTORY_MS, 0, 8_192, 5.0)
        servers = [SimulatedReplica(f"server{n}", store, 0, "seed", Weather(), tuning, parts) for n in range(2)]
        rivals = [_Rival(servers[number * 2 // _RIVALS], f"rival{number}") for number in range(_RIVALS)]
        turns: list[tuple[str, int]] = []
        async with asyncio.TaskGroup() as group:
            for number, rival in enumerate(rivals):
                group.create_task(rival.race(turns, hand_overs), name=f"rival{number}")
        for server in servers:
            server.die()
            await server.dead()
        return turns

    return run(main())


def test_of_ten_thousand_hand_overs_none_is_slept_through() -> None:
    """A wake-up that is lost would leave its waiter waiting, and the wait would expire."""
    turns = _race(_HAND_OVERS)
    assert len(turns) >= _HAND_OVERS
    fences = [revision for _, revision in turns]
    assert fences == sorted(set(fences))
    assert min(Counter(agent for agent, _ in turns).values()) > _HAND_OVERS // _RIVALS * 0.9


def test_a_wake_up_that_is_dropped_is_found() -> None:
    """Not in every race: sometimes whoever was not woken looks again for another reason."""
    for seed in range(20):
        random.seed(seed)  # of the pauses between attempts, so that it is the same each time
        try:
            _race(_RIVALS * 4, SOUND._replace(mirror=WakesNobody))
        except ExceptionGroup as raised:
            if raised.subgroup(LockWaitExpired) is not None:
                return
    pytest.fail("no race has found it")


@pytest.mark.parametrize(
    ("parts", "overtakes"),
    [(SOUND, False), (SOUND._replace(mirrored_store=UncheckedWaits), True)],
    ids=["sound", "broken"],
)
def test_a_grant_that_is_not_guarded_on_the_queue_generation_is_found(parts: Parts, overtakes: bool) -> None:  # noqa: FBT001 - a parameter of the test
    async def main() -> list[str]:
        asyncio.get_running_loop().set_task_factory(adopting_task)
        store = RecordedStore()
        tuning = Tuning(limits.REQUEST_ID_WINDOW_MS, limits.STORE_HISTORY_MS, 0, 8_192, 5.0)
        here, there = (SimulatedReplica(f"server{n}", store, 0, "seed", Weather(), tuning, parts) for n in range(2))
        gate = held_back(here, store)
        holder, waiter, late = Player(there, "holder"), Player(there, "waiter"), Player(here, "late")
        for player in (holder, waiter, late):
            await player.open()
        held = await holder.take("a/b")
        await until(lambda: any(board.locks for board in here.mirror.boards))
        gate.clear()  # so that nothing is known here of who waits
        waiting = asyncio.create_task(waiter.take("a", subtree=True))
        await until(lambda: any(len(board.waits) for board in there.mirror.boards))
        asking = asyncio.create_task(late.take("a/d"))
        await asyncio.sleep(0.5)
        gate.set()
        await holder.let_go(held)
        if overtakes:
            await late.let_go(await asking)
            await waiting
        else:
            await waiter.let_go(await waiting)
            await asking
        journal = LockJournal()
        judge_locks(store, journal, 0.0, frozenset())
        for server in (here, there):
            server.die()
            await server.dead()
        return journal.problems

    assert any("overtakes" in problem for problem in run(main())) == overtakes
