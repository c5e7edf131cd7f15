"""Runs the demo once: a server, the supervisor, a display, the recount, the report. Whatever happens, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
import time
from typing import TYPE_CHECKING, TextIO

import rich.console

import kokuban_client
from kokuban_client.demo import display, report
from kokuban_client.demo.layout import BOARD, SLEEPER, SUPERVISOR, Run
from kokuban_client.demo.progress import AgentLine, Progress
from kokuban_client.demo.proof import prove, recount
from kokuban_client.demo.report import Outcome
from kokuban_client.demo.supervisor import Assignment, DemoFailedError, Supervisor, agent_names
from kokuban_client.testing import ServerFailed, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kokuban_client.demo.sources import SourceFile

_RUN_S_MAX = 3_600


def run(files: Sequence[SourceFile], *, store: str | None, agents: int, pace_s: float) -> Outcome:
    """Run the demo on these files; raises DemoFailedError if it cannot be finished."""
    # Sorts by time, and two runs in one second do not meet.
    run_id = f"{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    assignment = Assignment(Run(run_id), tuple(files), tuple(agent_names(agents)), pace_s)
    progress = Progress(run_id, len(files), {name: AgentLine(name) for name in (*assignment.agents, SLEEPER)})
    with _server(store) as server:
        try:
            return asyncio.run(_supervised(server.address, assignment, progress))
        except BaseExceptionGroup as group:
            raise _reason(group) from group
        except kokuban_client.KokubanError as error:
            raise DemoFailedError(f"the board answered {error}") from error


@contextlib.contextmanager
def _server(store: str | None) -> Iterator[ServerProcess]:
    with contextlib.ExitStack() as stack:
        if store is None:
            store = f"sqlite:{stack.enter_context(tempfile.TemporaryDirectory(prefix='kokuban-demo-'))}"
        server = ServerProcess(store=store, arguments=["--boards", BOARD])
        try:
            stack.enter_context(server)
        except ServerFailed as error:
            raise DemoFailedError(str(error)) from error
        try:
            yield server
        finally:
            server.stop()


async def _supervised(address: str, assignment: Assignment, progress: Progress) -> Outcome:
    console = rich.console.Console(stderr=True)  # the report alone goes to standard output
    showing = asyncio.create_task(display.show(progress, console))
    try:
        async with (
            asyncio.timeout(_RUN_S_MAX),
            kokuban_client.connect(address, agent=SUPERVISOR, roles=[]) as client,
        ):
            status = await client.status()
            progress.store = f"{status.store_kind} {status.store_version}".strip()
            evidence = await Supervisor(client, assignment, progress).run()
            progress.stage = "recounting without the board"
            recounted = await asyncio.to_thread(recount, [file.path for file in assignment.files])
    finally:
        showing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await showing
    checks = prove(evidence, recounted)
    return Outcome(
        assignment.run.id, progress.store, progress.elapsed_s, assignment.agents, evidence, recounted, checks
    )


def print_report(outcome: Outcome, stream: TextIO, *, kept_in: str | None) -> None:
    """Print the report for people, and where to look further if the store was one to keep."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")  # a terminal without ✓ still gets its report
    console = rich.console.Console(file=stream, highlight=False, markup=False)
    report.show(outcome, console)
    if kept_in is not None and not kept_in.startswith("memory:"):
        region = Run(outcome.run).region
        look = f"kokuban serve --store {kept_in}    and then    kokuban ls --board {BOARD} --agent me {region}"
        console.print(f"\nThe board is kept: {look}", soft_wrap=True)


def print_conflicts(outcome: Outcome, stream: TextIO) -> None:
    """Print who lost to whom."""
    report.show_conflicts(outcome, rich.console.Console(file=stream, highlight=False, markup=False))


def _reason(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Give the one error that says why a run broke off: ours if there is one."""
    leaves: list[BaseException] = []
    waiting: list[BaseException] = [group]
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        else:
            leaves.append(error)
    for error in leaves:
        if isinstance(error, DemoFailedError):
            return error
    for error in leaves:
        if isinstance(error, kokuban_client.KokubanError):
            return DemoFailedError(f"the board answered {error}")
    return leaves[0]
