"""The fourth part: a task whose workers are killed and whose user speaks in the middle; another worker goes on with it.

The same task is also done by one worker that nobody disturbs. What is collected here is judged in `interrupted_task_proof`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import kokuban_client
from kokuban_client.demo.courier import (
    DAY,
    LEASE_S,
    LEAVE_OUT,
    MAIL,
    QUESTION,
    STEPS,
    STOPS,
    Outbox,
    Stop,
)
from kokuban_client.demo.layout import BOARD
from kokuban_client.demo.processes import Workforce
from kokuban_client.demo.supervisor import DemoFailedError
from kokuban_client.demo.waiting import entry_that

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kokuban_client import Board, Task, TaskEvent
    from kokuban_client.demo.courier import Sent
    from kokuban_client.demo.processes import Worker

CALM, KILLED = "announce-undisturbed", "announce"
"""The tasks."""
USER = "user"
COURIERS = ("courier-1", "courier-2", "courier-3")
"""Those of the task that is disturbed, in the order in which they are started."""
LEFT_OUT = "cedar"
ANSWER = "Friday"
EXPLAIN = ("task", "resume", KILLED, "--explain")
RESUME = ("task", "resume", KILLED, "--answer", f"{DAY}={ANSWER}")

_GOAL = "announce the release"


@dataclass(frozen=True, slots=True)
class Ended:
    """A task as it ended, and what it has left behind on the board and outside."""

    task: Task
    events: Sequence[TaskEvent]
    work: Mapping[str, Any]
    outbox: Sequence[Sent]


@dataclass(frozen=True, slots=True)
class Told:
    """Everything that the proof of the fourth part rests on."""

    expected: Ended
    """The task that nobody disturbed."""
    ended: Ended
    """The task that was disturbed."""
    exit_codes: Mapping[str, int]
    """Of the couriers that were killed."""
    spoken: Task
    """The disturbed task as it stood when the user had spoken to the courier that was alive in its calls."""
    broken: Task
    """The same when that courier was dead."""
    explained: Sequence[str]
    """That, as the command line explains it."""


async def work_with_interruptions(
    address: str, outboxes: Path, kokuban: Callable[[Sequence[str]], str], tell: Callable[[str], None]
) -> Told:
    """Have the task done twice, once undisturbed. `kokuban` runs a command of the command line as the user."""
    async with kokuban_client.connect(address, agent=USER, roles=[]) as client, Workforce() as workforce:
        board = client.board(BOARD)
        expected = await _Attempt(address, board, CALM, outboxes, workforce).undisturbed()
        tell(f"a courier that nobody disturbs: {len(STEPS)} steps, {len(expected.outbox)} effects outside the board")
        return await _Attempt(address, board, KILLED, outboxes, workforce).disturbed(expected, kokuban, tell)


class _Attempt:
    """One task, from its beginning to its end."""

    def __init__(self, address: str, board: Board, task: str, outboxes: Path, workforce: Workforce) -> None:
        self._address = address
        self._board = board
        self._task = task
        self._outbox = outboxes / task
        self._workforce = workforce

    async def undisturbed(self) -> Ended:
        """Let one courier work, with a user who has said everything before, and answers when asked."""
        await self._begin()
        await self._leave_one_out()
        courier = await self._start("courier-0", Stop.NOWHERE)
        await self._until_told(courier, f"task:{self._task}", ".task/events", QUESTION)
        await self._board.resume_task(self._task, {DAY: ANSWER})
        await self._finished(courier)
        return await self._ended()

    async def disturbed(
        self, expected: Ended, kokuban: Callable[[Sequence[str]], str], tell: Callable[[str], None]
    ) -> Told:
        """Kill one courier between two steps, speak to one in its calls and kill it too, and let a third one go on."""
        await self._begin()
        first, second, third = COURIERS
        codes = {first: await _killed(await self._hanging(first, Stop.BETWEEN_STEPS))}
        tell(f"{first} killed (SIGKILL) between two steps")
        courier = await self._hanging(second, Stop.IN_CALLS)
        await self._leave_one_out()
        spoken = await self._board.task(self._task)
        calls = sum(len(step.open_actions) for step in spoken.steps)
        tell(f"the user, while {second} is in the middle of {calls} calls in step {MAIL}: leave out {LEFT_OUT}")
        codes[second] = await _killed(courier)
        broken = await self._board.task(self._task)
        tell(f"{second} killed (SIGKILL) in the middle of them")
        explained = await asyncio.to_thread(kokuban, EXPLAIN)
        await asyncio.to_thread(kokuban, RESUME)
        tell(f"the user, to the dead one's question: {ANSWER}")
        await self._finished(await self._start(third, Stop.NOWHERE))
        tell(f"{third} had the step when the dead one's lease of {LEASE_S:g} s was over, and finished the task")
        return Told(expected, await self._ended(), codes, spoken, broken, explained.splitlines())

    async def _begin(self) -> None:
        await self._board.create_task(self._task, _GOAL, STEPS)

    async def _leave_one_out(self) -> None:
        async with self._board.commit() as commit:
            commit.constrain(self._task, LEAVE_OUT, LEFT_OUT)

    async def _start(self, name: str, stop: Stop) -> Worker:
        arguments = ["--address", self._address, "--task", self._task, "--name", name, "--outbox", str(self._outbox)]
        return await self._workforce.start(name, "courier", [*arguments, "--stop", stop.value])

    async def _hanging(self, name: str, stop: Stop) -> Worker:
        """Start a courier and wait until it hangs; it is alive, and holds what it holds."""
        courier = await self._start(name, stop)
        await self._until_told(courier, STOPS, name, stop.value)
        return courier

    async def _until_told(self, courier: Worker, region: str, path: str, value: str) -> None:
        """Wait until this stands on the board; raises DemoFailedError if the courier ends before that."""
        told = asyncio.create_task(entry_that(self._board, region, path, lambda entry: bool(entry.value == value)))
        ended = asyncio.create_task(courier.ended())
        try:
            await asyncio.wait((told, ended), return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                raise _by_itself(courier, await ended)
            told.result()
        finally:
            told.cancel()
            ended.cancel()

    async def _finished(self, courier: Worker) -> None:
        code = await courier.ended()
        if code:
            raise _by_itself(courier, code)

    async def _ended(self) -> Ended:
        return Ended(
            await self._board.task(self._task),
            await self._board.task_events(self._task),
            {entry.path: entry.value async for entry in self._board.list(f"task:{self._task}", "work")},
            Outbox(self._outbox).read(),
        )


async def _killed(courier: Worker) -> int:
    """Kill a courier where it hangs; give its exit code."""
    courier.kill()
    return await courier.ended()


def _by_itself(courier: Worker, code: int) -> DemoFailedError:
    return DemoFailedError(f"{courier.name} ended by itself ({code}):\n{courier.last_words()}")
