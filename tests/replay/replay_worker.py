"""Works on the recorded runs of one customer, all at once, as one would who has only the board. Run as a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import kokuban_client
from kokuban_client import ActionInDoubt, NoStepReady, TaskOver
from tests.boundaries import LOOK_AGAIN_S, Boundaries, Effects, Strike, say
from tests.replay.recorded_runs import read

if TYPE_CHECKING:
    from kokuban_client import Board, ClaimedStep
    from tests.replay.recorded_runs import Call, RecordedRun, Turn


class Errand(NamedTuple):
    """What a worker is sent for."""

    address: str
    data: str
    """Where the runs are."""
    customer: str
    kind: str
    """What the tasks' ids begin with."""
    effects: str
    """The file of what was caused."""
    strike: Strike = Strike()


class Worker:
    """Works on runs."""

    def __init__(self, board: Board, boundaries: Boundaries, effects: Effects) -> None:
        self._board = board
        self._boundaries = boundaries
        self._effects = effects

    async def work(self, task: str, run: RecordedRun) -> None:
        """Work on a task until it is over."""
        while True:
            try:
                async with self._board.claim_step(task, lock_delay_s=0) as step:
                    say(claimed=task, constraints=sorted(step.resume.constraints))
                    self._boundaries.passed("claimed")
                    self._boundaries.around(step)
                    await self._take(step, run.turns[int(step.name.removeprefix("turn-")) - 1])
            except (
                NoStepReady
            ):  # a claim of one who was killed was still on its way, and stands until its lease has ended
                await asyncio.sleep(LOOK_AGAIN_S)
            except TaskOver:
                return

    async def _take(self, step: ClaimedStep, turn: Turn) -> None:
        for done, call in enumerate(turn.calls, 1):
            answer = await self._call(step, call)
            await step.checkpoint({"calls_done": done, "last_answer": "" if call.in_doubt == "skip" else answer})
        self._boundaries.passed("before complete_step")
        async with step.commit() as commit:
            commit.put(f"task:{step.task}", f"answers/{step.name}", turn.answer, must_not_exist=True)
            commit.complete(step, len(turn.calls))
        self._boundaries.passed("after complete_step")

    async def _call(self, step: ClaimedStep, call: Call) -> object:
        """Call a tool once; where that is in doubt, look whether it was called."""
        subject = f"{step.task} {step.name} {call.action}"

        def act() -> str:
            self._effects.cause(f"{subject} {step.step.attempts}")
            self._boundaries.passed("effect")
            return call.answer

        for _ in range(2):
            try:
                return await step.run(call.tool, act, action_id=call.action, if_in_doubt=call.in_doubt)
            except ActionInDoubt:
                happened = any(line.startswith(f"{subject} ") for line in self._effects.lines)
                await step.settle(call.action, happened=happened, result=call.answer)
        raise AssertionError("in doubt after it was settled")


async def work(errand: Errand) -> None:
    """Work on all of a customer's runs at once; say how many boundaries that had."""
    boundaries = Boundaries(errand.strike)
    async with kokuban_client.connect(errand.address, agent="worker") as client:
        worker = Worker(client.board("main"), boundaries, Effects(Path(errand.effects)))
        async with asyncio.TaskGroup() as group:
            for run in read(Path(errand.data)):
                if run.customer == errand.customer and run.turns:
                    group.create_task(worker.work(f"{errand.kind}-{run.name}", run))
    say(passes=boundaries.passes)


if __name__ == "__main__":
    address, data, customer, kind, effects, strike = json.loads(sys.argv[1])
    asyncio.run(work(Errand(address, data, customer, kind, effects, Strike(*strike))))
