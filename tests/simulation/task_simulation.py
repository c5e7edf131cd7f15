"""One simulated run with tasks: servers over one store, workers that die, faults, and the judgement; all from one seed."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kokuban_server.core import keys
from kokuban_server.core.names import parse_region
from kokuban_server.core.tasks import DeadReason, StepStatus, TaskStatus
from kokuban_server.records.task_codec import decode_task
from tests.simulation.lock_simulation import OVER_S, LockWorld
from tests.simulation.simulated_agents import TENANT
from tests.simulation.simulated_replica import BOARD, SOUND
from tests.simulation.simulated_workers import DOOMED, DOOMED_ATTEMPTS_MAX, TASKS, User, Worker
from tests.simulation.simulation import SimulationFailed, ended
from tests.simulation.task_invariants import judge_tasks
from tests.simulation.task_journal import Fate, TaskJournal
from tests.simulation.virtual_time import run

if TYPE_CHECKING:
    from kokuban_server.core.tasks import TaskState
    from tests.simulation.simulated_replica import Parts

_WORKERS = 4
_TROUBLED_S = 40.0
_DONE_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What one run was."""

    seed: int
    trace: str
    """A digest of everything that everybody saw, and when."""
    virtual_s: float
    crashes: int
    counts: dict[str, int]
    refused: frozenset[str]
    lines: tuple[str, ...] = field(repr=False)


class TaskWorld(LockWorld):
    """What one run consists of."""

    def __init__(self, seed: int, parts: Parts) -> None:
        super().__init__(seed, parts)
        self.tasks = TaskJournal()
        self.mortality = 0.0 if self.is_calm else self.random.choice((0.02, 0.05, 0.12))

    def standing(self, task: str) -> TaskState | None:
        """Give how a task stands, as the store says."""
        key = keys.TASK + keys.region_prefix(TENANT, BOARD, parse_region(f"task:{task}"))
        record = self.store.now_at(key)
        return None if record is None else decode_task(key, record.value)

    def left(self) -> list[str]:
        """Give the tasks in which there is something to do."""
        found = []
        for task in TASKS:
            state = self.standing(task)
            if state is None or (
                state.status is TaskStatus.OPEN
                and all(step.status is not StepStatus.DEAD for step in state.steps.values())
            ):
                found.append(task)
        return found

    async def live(self) -> float:
        """Run until every task is over, or its next step dead; give the virtual seconds that passed."""
        loop = asyncio.get_running_loop()
        background = await self.begin()
        user = User(self, "user")
        await user.begin()
        people = [user.speak(), *[Worker(self, f"worker{number}").work() for number in range(_WORKERS)]]
        working = [loop.create_task(one, name=f"person{number}") for number, one in enumerate(people)]
        await asyncio.wait(working, timeout=_TROUBLED_S)
        await ended(background)
        await self.calm_down()
        self.mortality = 0.0
        _, late = await asyncio.wait(working, timeout=_DONE_WITHIN_S)
        if late:
            self.journal.problems.append(
                f"after {_DONE_WITHIN_S} s of calm there is still something to do in {self.left()}"
            )
            await ended(list(late))
        for one in working:
            if one not in late:
                one.result()
        await asyncio.sleep(OVER_S)
        state = judge_tasks(self.store, self.tasks, self.journal.problems)
        self._judge_tasks_end()
        await self.end(state)
        return loop.time()

    def _judge_tasks_end(self) -> None:
        """See to it that every task has come to its end: done, or, if it kills its workers, given up."""
        for task in TASKS:
            state = self.standing(task)
            if state is None or (task != DOOMED and state.status is not TaskStatus.COMPLETED):
                self.journal.problems.append(f"{task} is not completed: {state}")
            elif task == DOOMED:
                step = state.steps["a"]
                if (step.status, step.attempts, step.dead_reason) != (
                    StepStatus.DEAD,
                    DOOMED_ATTEMPTS_MAX,
                    DeadReason.WORKER_LOST,
                ):
                    self.journal.problems.append(f"what kills its workers is not given up: {step}")


def simulate_tasks(seed: int, parts: Parts = SOUND) -> TaskReport:
    """Run one seed. Raises `SimulationFailed` if an invariant does not hold."""
    random.seed(seed)  # the use cases' jitter draws from the module's own generator
    world = TaskWorld(seed, parts)
    virtual_s = run(world.live())
    journal = world.journal
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(journal.traces):
        digest.update("\n".join([name, *journal.traces[name]]).encode())
    if journal.problems:
        shown = "\n  ".join(journal.problems[:20])
        raise SimulationFailed(f"seed {seed}: {len(journal.problems)} problems\n  {shown}")
    fates = Counter(recording.fate for recording in world.tasks.recordings.values())
    counts = {
        "claims": sum(bool(claim.answers) for claim in world.tasks.claims.values()),
        "recorded": fates[Fate.ACKNOWLEDGED],
        "unknown": fates[Fate.UNKNOWN],
        "effects": len(world.tasks.effects),
        "late effects": sum(not effect.is_held for effect in world.tasks.effects),
        "deaths": world.tasks.deaths,
    }
    return TaskReport(
        seed,
        digest.hexdigest(),
        virtual_s,
        world.crashes,
        counts,
        frozenset(world.tasks.refused),
        tuple(line for trace in journal.traces.values() for line in trace),
    )
