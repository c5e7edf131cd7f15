"""Runs the third part: a server with two boards, and the team on each. Nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import rich.console

import kokuban_client
from kokuban_client.demo import bad_source_report
from kokuban_client.demo.bad_source import BRIEF, CLEAN, EDITION, OPERATOR, POISONED, Told, work_with_a_bad_source
from kokuban_client.demo.bad_source_proof import prove
from kokuban_client.demo.bad_source_report import BadSourceOutcome
from kokuban_client.demo.command_line import kokuban
from kokuban_client.demo.supervisor import DemoFailedError
from kokuban_client.testing import ServerFailed, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Coroutine

_RUN_S_MAX = 120


def run() -> BadSourceOutcome:
    """Run the third part; raises DemoFailedError if it cannot be finished."""
    begun_s = time.monotonic()
    console = rich.console.Console(stderr=True)  # the report alone goes to standard output

    def tell(text: str) -> None:
        console.print(f"{time.monotonic() - begun_s:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True)

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kokuban-demo-"))
        server = ServerProcess(store=f"sqlite:{Path(folder) / 'store'}", arguments=["--boards", f"{CLEAN},{POISONED}"])
        try:
            stack.enter_context(server)
        except ServerFailed as error:
            raise DemoFailedError(str(error)) from error
        stack.callback(server.stop)
        caller = {
            "KOKUBAN_ADDRESS": server.address,
            "KOKUBAN_AGENT": OPERATOR,
            "KOKUBAN_ROLES": "operator",
            "KOKUBAN_BOARD": POISONED,
        }

        def show() -> str:
            return kokuban(["trust", "trace", BRIEF, EDITION], caller)

        told = asyncio.run(_within(work_with_a_bad_source(server.address, show, tell)))
    return BadSourceOutcome(time.monotonic() - begun_s, told, prove(told))


async def _within(work: Coroutine[object, object, Told]) -> Told:
    try:
        async with asyncio.timeout(_RUN_S_MAX):
            return await work
    except kokuban_client.KokubanError as error:
        raise DemoFailedError(f"the board answered {error}") from error
    except TimeoutError as error:
        raise DemoFailedError(f"the third part was not done in {_RUN_S_MAX} s") from error


def print_report(outcome: BadSourceOutcome, stream: TextIO) -> None:
    """Print the report for people."""
    bad_source_report.show(outcome, rich.console.Console(file=stream, highlight=False, markup=False))
