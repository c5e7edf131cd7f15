"""A worker on a task's steps, as a process of its own: it announces a release, and may be killed at any moment of that.

It keeps nothing in mind that another could not take up: what is done stands in the task, and what it causes outside the board
stands in the outbox, a file that is only appended to and stands for mails that were sent and pages that were published.
"""

from __future__ import annotations

import argparse
import asyncio
import enum
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kokuban_client
from kokuban_client import ActionInDoubt, InDoubt, NewStep
from kokuban_client.demo import layout, lifeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_client import Board, ClaimedStep

DRAFT, MAIL, INVITE = "draft", "mail", "invite"
STEPS = (NewStep(DRAFT, "say what is new"), NewStep(MAIL, "tell it", (DRAFT,)), NewStep(INVITE, "show it", (MAIL,)))
CUSTOMERS = ("acme", "birch", "cedar")
LEAVE_OUT, DAY = "leave-out", "day"
"""A constraint that the user may set, and what the courier asks."""
QUESTION = "on which day is it shown?"
STOPS = "shared:stops"
"""The region in which a courier says that it hangs."""
LEASE_S = 2.0

_LOOK_AGAIN_S = 0.1


class Effect(enum.StrEnum):
    """What is caused outside the board. Mails and invitations are named by their customers instead."""

    WRITE = "write"
    LOOK_UP = "look-up"
    """No action of the task: costly, and harmless. Its result is in the checkpoint."""
    PUBLISH = "publish"
    CHAT = "chat"


def mail(customer: str) -> str:
    """Give the id of the action that mails a customer."""
    return f"mail:{customer}"


def invitation(customer: str) -> str:
    """Give the id of the action that invites a customer."""
    return f"invite:{customer}"


@dataclass(frozen=True, slots=True)
class Call:
    """An action that is under way together with others."""

    action_id: str
    if_in_doubt: InDoubt
    breaks_before_effect: bool = False
    """Where it hangs in a courier that is to be killed: before its effect or after it."""


CALLS = (
    Call(mail("birch"), InDoubt.ASK),
    Call(mail("cedar"), InDoubt.ASK, breaks_before_effect=True),
    Call(Effect.PUBLISH, InDoubt.RETRY),
    Call(Effect.CHAT, InDoubt.SKIP),
)


@dataclass(frozen=True, slots=True)
class Sent:
    """A line of the outbox."""

    courier: str
    effect: str
    text: str


class Outbox:
    """What was caused outside the board, in order, with who caused it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def add(self, sent: Sent) -> None:
        """Cause an effect that cannot be taken back."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(asdict(sent))}\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[Sent]:
        """Give every effect."""
        if not self._file.exists():
            return []
        return [Sent(**json.loads(line)) for line in self._file.read_text(encoding="utf-8").splitlines()]


class Stop(enum.StrEnum):
    """Where a courier hangs, like one whose calls never return, so that it can be killed there."""

    NOWHERE = "nowhere"
    BETWEEN_STEPS = "between-steps"
    """After the first step, before the next is claimed."""
    IN_CALLS = "in-calls"
    """In the calls that are under way together, some after their effect and one before it."""


class Courier:
    """One courier at work on one task."""

    def __init__(self, board: Board, task: str, name: str, outbox: Outbox, stop: Stop) -> None:
        self._board = board
        self._task = task
        self._region = f"task:{task}"
        self._name = name
        self._outbox = outbox
        self._stop = stop
        self._hanging = 0

    async def work(self) -> None:
        """Take whatever step is next, until the task is over."""
        steps = {DRAFT: self._draft, MAIL: self._mail, INVITE: self._invite}
        async with self._board.session(ttl_s=LEASE_S, label=self._name) as session:
            while True:
                try:
                    async with self._board.claim_step(self._task, session=session, lock_delay_s=0) as step:
                        await steps[step.name](step)
                except kokuban_client.NoStepReady:
                    await asyncio.sleep(
                        _LOOK_AGAIN_S
                    )  # a step waits for an answer, or for a lost courier's lease to end
                except kokuban_client.TaskOver:
                    return
                else:
                    if self._stop is Stop.BETWEEN_STEPS:
                        await self._hang()

    async def _draft(self, step: ClaimedStep) -> None:
        """Write the text once; it and the step's end are one commit."""
        text = await step.run(Effect.WRITE, lambda: self._cause(Effect.WRITE, "it is faster"))
        async with step.commit() as commit:
            commit.put(self._region, "work/text", text, must_not_exist=True)
            commit.complete(step)

    async def _mail(self, step: ClaimedStep) -> None:
        """Tell the customers and the world, and find out on which day to show it."""
        customers = step.state
        if customers is None:
            self._cause(Effect.LOOK_UP, "who are the customers?")
            customers = list(CUSTOMERS)
            await step.checkpoint(customers)
        text = (await self._board.get(self._region, "work/text")).value
        await step.run("mail", lambda: self._cause(mail(customers[0]), text), action_id=mail(customers[0]))
        asked = {one.id: one for one in step.resume.interrupts}
        if DAY not in asked:
            await step.ask(DAY, QUESTION)
        async with asyncio.TaskGroup() as calls:
            for call in CALLS:
                calls.create_task(self._call(step, call, text))
        if DAY not in asked or not asked[DAY].answered_event:
            await step.give_back()
            return
        async with step.commit() as commit:
            commit.put(self._region, "work/customers", customers, must_not_exist=True)
            commit.put(self._region, "work/day", await self._said(asked[DAY].answered_event), must_not_exist=True)
            commit.complete(step)

    async def _call(self, step: ClaimedStep, call: Call, text: str) -> None:
        """Do it unless it is done. Where it is in doubt and nobody may guess, look into the outbox."""

        async def act() -> str:
            if call.breaks_before_effect:
                await self._hang_in_calls()
            receipt = self._cause(call.action_id, text)
            await self._hang_in_calls()
            return receipt

        async def run() -> None:
            await step.run("send", act, action_id=call.action_id, if_in_doubt=call.if_in_doubt)

        try:
            await run()
        except ActionInDoubt as doubt:
            found = [sent.text for sent in self._outbox.read() if sent.effect == doubt.action_id]
            await step.settle(doubt.action_id, happened=bool(found), result=found[0] if found else None)
            await run()

    async def _invite(self, step: ClaimedStep) -> None:
        """Invite the customers whom the user has not said to leave out."""
        customers = (await self._board.get(self._region, "work/customers")).value
        day = (await self._board.get(self._region, "work/day")).value
        wish = step.resume.constraints.get(LEAVE_OUT)
        left_out = await self._said(wish) if wish else None
        invited = [customer for customer in customers if customer != left_out]

        @step.action("invite", action_id=invitation)
        def invite(customer: str) -> str:
            return self._cause(invitation(customer), day)

        for customer in invited:
            await invite(customer)
        async with step.commit() as commit:
            commit.put(self._region, "work/invited", invited, must_not_exist=True)
            commit.complete(step)

    def _cause(self, effect: str, text: str) -> str:
        self._outbox.add(Sent(self._name, effect, text))
        return text

    async def _said(self, event: int) -> Any:  # noqa: ANN401 - whatever the user said
        (found,) = await self._board.task_events(self._task, after=event - 1, count=1)
        return found.entry.value

    async def _hang_in_calls(self) -> None:
        if self._stop is Stop.IN_CALLS:
            self._hanging += 1
            if self._hanging == len(CALLS):
                await self._hang()
            await asyncio.Event().wait()

    async def _hang(self) -> None:
        """Tell on the board where we are, so that we are killed there for certain and not by timing, and go no further."""
        await self._board.put(STOPS, self._name, self._stop.value, must_not_exist=True)
        await asyncio.Event().wait()


async def _work(address: str, task: str, name: str, outbox: Path, stop: Stop) -> None:
    async with kokuban_client.connect(address, agent=name, roles=[]) as client:
        await Courier(client.board(layout.BOARD), task, name, Outbox(outbox), stop).work()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a courier until the task is over."""
    parser = argparse.ArgumentParser(prog="python -m kokuban_client.demo.courier", description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--outbox", type=Path, required=True)
    parser.add_argument("--stop", type=Stop, default=Stop.NOWHERE)
    told = parser.parse_args(arguments)
    return lifeline.run(_work(told.address, told.task, told.name, told.outbox, told.stop))


if __name__ == "__main__":
    sys.exit(main())
