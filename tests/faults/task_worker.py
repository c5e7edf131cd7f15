"""A worker of a task that ends, or ends its server, at a certain boundary of what it writes. Run as a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import kokuban_client
from kokuban_client import ActionInDoubt, InDoubt, NoStepReady, TaskOver
from tests.boundaries import LOOK_AGAIN_S, Boundaries, Effects, Strike, say

if TYPE_CHECKING:
    from kokuban_client import Board, ClaimedStep

STEPS = ("collect", "send", "report")
POLICIES = {"sent-again": InDoubt.RETRY, "sent-or-not": InDoubt.SKIP, "sent-once": InDoubt.ASK}


class Errand(NamedTuple):
    """What a worker is sent for."""

    address: str
    task: str
    effects: str
    """The file of what was caused."""
    strike: Strike = Strike()


async def work(errand: Errand) -> None:
    """Work on a task until it is over."""
    boundaries, effects = Boundaries(errand.strike), Effects(Path(errand.effects))
    async with kokuban_client.connect(errand.address, agent="worker") as client:
        board = client.board("main")
        while True:
            try:
                async with board.claim_step(errand.task, lock_delay_s=0) as step:
                    say(claimed=step.name, constraints=sorted(step.resume.constraints))
                    boundaries.passed("claimed")
                    boundaries.around(step)
                    await _do(board, step, boundaries, effects)
            except (
                NoStepReady
            ):  # a claim of one who was killed was still on its way, and stands until its lease has ended
                await asyncio.sleep(LOOK_AGAIN_S)
            except TaskOver:
                return


async def _do(board: Board, step: ClaimedStep, boundaries: Boundaries, effects: Effects) -> None:
    for message, policy in POLICIES.items():
        await _sent(step, message, policy, boundaries, effects)
        await step.checkpoint({"after": message})
    boundaries.passed("before complete_step")
    async with step.commit() as commit:
        commit.put(f"task:{step.task}", f"work/{step.name}", f"{step.name} is done", must_not_exist=True)
        commit.note(step, "all sent", name="finding")
        commit.complete(step, "done")
    boundaries.passed("after complete_step")


async def _sent(step: ClaimedStep, message: str, policy: InDoubt, boundaries: Boundaries, effects: Effects) -> None:
    """Send a message once; where that is in doubt, look whether it went out."""
    subject = f"{step.name}/{message}"

    def send() -> dict[str, str]:
        effects.cause(f"{subject} {step.step.attempts}")
        boundaries.passed("effect")
        return {"receipt": subject}

    for _ in range(2):
        try:
            receipt = await step.run(message, send, if_in_doubt=policy)
        except ActionInDoubt as doubt:
            happened = subject in [line.split()[0] for line in effects.lines]
            await step.settle(doubt.action_id, happened=happened, result={"receipt": subject})
        else:
            assert receipt == {"receipt": subject} or (receipt is None and policy is InDoubt.SKIP), receipt
            return


if __name__ == "__main__":
    address, task, effects, strike = json.loads(sys.argv[1])
    asyncio.run(work(Errand(address, task, effects, Strike(*strike))))
