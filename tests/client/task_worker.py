"""A worker of a task that is killed at a certain boundary of what it writes. Run as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kokuban_client
from kokuban_client import ActionInDoubt, InDoubt

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_client import ClaimedStep

POLICIES = {"sent-again": InDoubt.RETRY, "sent-or-not": InDoubt.SKIP, "sent-once": InDoubt.ASK}


class Boundaries:
    """Counts the moments before and after each write and each effect, and ends the process at one of them."""

    def __init__(self, kill_at: int) -> None:
        self._left = kill_at

    def passed(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, step: ClaimedStep) -> None:
        record = step._record

        async def recorded(*arguments: Any, **more: Any) -> None:  # noqa: ANN401 - those of the original
            self.passed()
            await record(*arguments, **more)
            self.passed()

        step._record = recorded


async def work(address: str, task: str, effects: Path, kill_at: int) -> None:
    boundaries = Boundaries(kill_at)

    def send(message: str) -> dict[str, str]:
        """Do something outside the board that cannot be undone."""
        with effects.open("a", encoding="utf-8") as file:
            file.write(f"{message}\n")
            file.flush()
            os.fsync(file.fileno())
        boundaries.passed()
        return {"receipt": message}

    async with kokuban_client.connect(address, agent="worker") as client:
        board = client.board("main")
        async with board.claim_step(task, lock_delay_s=0) as step:
            boundaries.passed()
            boundaries.around(step)
            for message, policy in POLICIES.items():
                await sent(step, message, policy, send, effects)
                await step.checkpoint({"after": message})
            async with step.commit() as commit:
                commit.put(f"task:{task}", "work/report", "all sent", must_not_exist=True)
                commit.complete(step, "done")
            boundaries.passed()


async def sent(step: ClaimedStep, message: str, policy: InDoubt, send: Callable[[str], object], effects: Path) -> None:
    """Send a message once; where that is in doubt, look whether it went out."""
    for _ in range(2):
        try:
            receipt = await step.run(message, lambda: send(message), if_in_doubt=policy)
        except ActionInDoubt as doubt:
            await step.settle(doubt.action_id, happened=message in lines_of(effects), result={"receipt": message})
        else:
            assert receipt == {"receipt": message} or (receipt is None and policy is InDoubt.SKIP), receipt
            return


def lines_of(effects: Path) -> list[str]:
    return effects.read_text(encoding="utf-8").split() if effects.exists() else []


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
