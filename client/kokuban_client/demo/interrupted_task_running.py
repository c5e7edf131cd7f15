"""Runs the fourth part: a server, a task, couriers as processes, of which two are killed. Nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import rich.console

import kokuban_client
from kokuban_client.demo import interrupted_task_report
from kokuban_client.demo.command_line import kokuban
from kokuban_client.demo.interrupted_task import USER, Told, work_with_interruptions
from kokuban_client.demo.interrupted_task_proof import prove
from kokuban_client.demo.interrupted_task_report import InterruptedTaskOutcome
from kokuban_client.demo.layout import BOARD
from kokuban_client.demo.supervisor import DemoFailedError
from kokuban_client.testing import ServerFailed, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

_RUN_S_MAX = 120


def run() -> InterruptedTaskOutcome:
    """Run the fourth part; raises DemoFailedError if it cannot be finished."""
    begun_s = time.monotonic()
    console = rich.console.Console(stderr=True)  # the report alone goes to standard output

    def tell(text: str) -> None:
        console.print(f"{time.monotonic() - begun_s:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True)

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kokuban-demo-")))
        server = ServerProcess(store=f"sqlite:{folder / 'store'}", arguments=["--boards", BOARD])
        try:
            stack.enter_context(server)
        except ServerFailed as error:
            raise DemoFailedError(str(error)) from error
        stack.callback(server.stop)
        caller = {"KOKUBAN_ADDRESS": server.address, "KOKUBAN_AGENT": USER, "KOKUBAN_BOARD": BOARD}

        def as_user(arguments: Sequence[str]) -> str:
            return kokuban(arguments, caller)

        told = asyncio.run(_within(work_with_interruptions(server.address, folder, as_user, tell)))
    return InterruptedTaskOutcome(time.monotonic() - begun_s, told, prove(told))


async def _within(work: Coroutine[object, object, Told]) -> Told:
    try:
        async with asyncio.timeout(_RUN_S_MAX):
            return await work
    except kokuban_client.KokubanError as error:
        raise DemoFailedError(f"the board answered {error}") from error
    except TimeoutError as error:
        raise DemoFailedError(f"the fourth part was not done in {_RUN_S_MAX} s") from error


def print_report(outcome: InterruptedTaskOutcome, stream: TextIO) -> None:
    """Print the report for people."""
    interrupted_task_report.show(outcome, rich.console.Console(file=stream, highlight=False, markup=False))
