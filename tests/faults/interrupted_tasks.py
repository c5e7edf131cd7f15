"""Tasks whose workers and servers are killed at boundaries of what is written, and what must be so afterwards."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kokuban_client import NewStep, TaskStatus
from kokuban_client.errors import KokubanError, NotFound, TaskOver
from tests.boundaries import KINDS, Effects, Strike
from tests.faults.task_worker import POLICIES, STEPS, Errand
from tests.task_judgement import Declared, faults_of, outcome_of

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import AsyncIterator, Sequence

    from kokuban_client import Board
    from kokuban_client.testing import ServerProcess
    from tests.task_judgement import Outcome

_ROOT = Path(__file__).parents[2]
_TURNS_MAX = len(POLICIES)
"""A worker that struck no later than so many actions away leaves something to do for the next."""
_ATTEMPTS_MAX = 100
_LATE_S_MAX = 0.01
"""In this time a worker has begun what comes next, and often ended it."""


class User:
    """Says what it wants of a task, while others work on it."""

    def __init__(self, board: Board, task: str) -> None:
        self._board = board
        self._task = task
        self._said = 0
        self.wanted: set[str] = set()
        """What was acknowledged and is in force."""
        self.unwanted: set[str] = set()
        """What was withdrawn, and that acknowledged."""

    async def speak(self) -> None:
        """Want something more; every third time, want something no more that was wanted before."""
        self._said += 1
        name = f"wish-{self._said}"
        try:
            async with self._board.commit() as commit:
                commit.constrain(self._task, name, f"please see to {name}")
            self.wanted.add(name)
            if self._said % 3 == 0:
                old = min(self.wanted)
                self.wanted.remove(old)
                async with self._board.commit() as commit:
                    commit.withdraw(self._task, old)
                self.unwanted.add(old)
        except TaskOver:
            return
        except KokubanError:  # its server was killed: whether that stands nobody has said
            return


class InterruptedTask:
    """One task, whose workers are killed one after the other."""

    def __init__(
        self, servers: Sequence[ServerProcess], board: Board, task: str, effects: Path, struck: Counter[str]
    ) -> None:
        self._servers = servers
        self._board = board
        self._task = task
        self._path = effects
        self._user = User(board, task)
        self._workers = 0
        self.struck = struck
        """Which boundaries the kills came at, of this task and those before it."""
        self._kills = 0

    async def run(self, draw: random.Random | None, kills: int) -> Outcome:
        """Have it worked on, with up to so many kills, and give what came of it."""
        steps = [
            NewStep(name, f"{name} it", STEPS[:place][-1:], attempts_max=_ATTEMPTS_MAX)
            for place, name in enumerate(STEPS)
        ]
        await self._board.create_task(self._task, "send three messages in each step", steps)
        while (await self._board.task(self._task)).status is TaskStatus.OPEN:
            assert self._workers < 3 * kills + 5, "it does not come to an end"
            server = self._servers[self._workers % len(self._servers)]
            left = kills - self._kills
            await self._worker(server, self._drawn(draw, server) if draw is not None and left > 0 else Strike())
            await self._user.speak()
            await self._free()
        return await self._outcome()

    def _drawn(self, draw: random.Random, server: ServerProcess) -> Strike:
        """Draw where to strike: at one of the boundaries that were struck least often."""
        fewest = min(self.struck[kind] for kind in KINDS)
        what = draw.choice([kind for kind in KINDS if self.struck[kind] == fewest])
        late_s = draw.uniform(0, _LATE_S_MAX) if draw.random() < 0.4 else 0.0
        return Strike(what, draw.randint(1, _TURNS_MAX), late_s, server.pid if draw.random() < 0.2 else 0)

    async def _worker(self, server: ServerProcess, strike: Strike) -> None:
        """Run one worker to its end, whatever that is; a server that it killed is started again."""
        self._workers += 1
        errand = Errand(server.address, self._task, str(self._path), strike)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.faults.task_worker", json.dumps(errand)),
            cwd=_ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        struck = ""
        user = self._user
        wanted, unwanted = set(user.wanted), set(user.unwanted)
        async with asyncio.TaskGroup() as group:  # the user speaks while the work goes on, and may wait for the server
            async for line in _lines(process):
                if "claimed" in line:
                    assert wanted & user.wanted <= set(line["constraints"]), (wanted, line)
                    assert not unwanted & set(line["constraints"]), (unwanted, line)
                    group.create_task(user.speak())
                else:
                    struck = line["struck"]
                    self.struck[f"server {struck}" if strike.pid else struck] += 1
                    self._kills += 1
                    if strike.pid:
                        await asyncio.to_thread(server.kill)
                        await asyncio.to_thread(server.start)
        assert process.stderr is not None
        errors = (await process.stderr.read()).decode()
        code = await process.wait()
        if struck and not strike.pid:
            assert code == -signal.SIGKILL, errors
        elif not struck:
            assert code == 0, errors

    async def _free(self) -> None:
        """Take the locks of killed workers at once, instead of waiting for their leases."""
        for lock in (await self._board.locks(f"task:{self._task}")).locks:
            with suppress(NotFound):  # its lease has ended meanwhile
                await self._board.break_lock(lock.id, "its worker was killed", skip_lock_delay=True)

    async def _outcome(self) -> Outcome:
        found = await self._board.task(self._task)
        events = await self._board.task_events(self._task)
        assert self._user.wanted <= found.constraints.keys()
        assert not self._user.unwanted & found.constraints.keys()
        effects = [line.split() for line in Effects(self._path).lines]
        actions = {
            (step, message): Declared(
                policy, [int(attempt) for subject, attempt in effects if subject == f"{step}/{message}"]
            )
            for step in STEPS
            for message, policy in POLICIES.items()
        }
        assert list(faults_of(found, events, actions)) == []
        return await outcome_of(self._board, found, events)


async def _lines(process: asyncio.subprocess.Process) -> AsyncIterator[dict[str, Any]]:
    assert process.stdout is not None
    async for raw in process.stdout:
        yield json.loads(raw)
