"""The command `kokuban demo`."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEEDED = ("kokuban_server", "rich")


@click.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--store", help="Where the demo's own server keeps the board, as for `serve`. [a folder that is removed]")
@click.option("--agents", type=click.IntRange(4, 16), default=4, show_default=True, help="How many sub-agents.")
@click.option(
    "--pace",
    "pace_s",
    type=click.FloatRange(0, 60),
    default=0.3,
    show_default=True,
    metavar="SECONDS",
    help="How long an agent takes for a file at least, in the place of a model's time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def demo(
    context: click.Context, *, paths: tuple[Path, ...], store: str | None, agents: int, pace_s: float, as_json: bool
) -> None:
    """Let a team of agents review Python code on one board.

    PATH is a file or folder of Python code; without it, packages of Python's own library are reviewed. A server of the
    demo's own is started, and agents as processes. They share a plan and totals, two race for one entry, one locks a part of
    the plan, one is paused past its lease, one is killed in the middle of its work. In the end all of it is proved.

    In a second part, on a server with credentials, two agents with tokens for two users work on one board, and try
    everything on each other's regions. In a third part agents read pages of which two are poisoned: one is held back, and what
    came of the other is traced and purged. In a fourth part a task's workers are killed between its steps and in the middle of
    calls, its user speaks meanwhile, and another worker goes on. Last comes who lost to whom in the first part. Exit code 0
    only if the whole proof of all parts holds.
    """
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            raise click.ClickException(f"the demo needs {package}, and it is not here: pip install 'kokuban[server]'")
    from kokuban_client.demo import (  # noqa: PLC0415 - gRPC and rich, which `--help` does not need
        bad_source_running,
        interrupted_task_running,
        running,
        two_users_running,
    )
    from kokuban_client.demo.sources import NothingToReviewError, choose  # noqa: PLC0415 - as above
    from kokuban_client.demo.supervisor import DemoFailedError  # noqa: PLC0415 - as above

    as_json = as_json or bool(context.find_root().params.get("as_json"))
    try:
        with _ended_politely():
            outcome = running.run(choose(paths), store=store, agents=agents, pace_s=pace_s)
            if not as_json:
                running.print_report(outcome, sys.stdout, kept_in=store)
                sys.stdout.flush()
            two_users = two_users_running.run()
            if not as_json:
                two_users_running.print_report(two_users, sys.stdout)
                sys.stdout.flush()
            bad_source = bad_source_running.run()
            if not as_json:
                bad_source_running.print_report(bad_source, sys.stdout)
                sys.stdout.flush()
            interrupted_task = interrupted_task_running.run()
    except NothingToReviewError as error:
        raise click.UsageError(str(error)) from error
    except DemoFailedError as error:
        raise click.ClickException(str(error)) from error
    is_proved = outcome.is_proved and two_users.is_proved and bad_source.is_proved and interrupted_task.is_proved
    if as_json:
        told = {
            **outcome.to_json(),
            "two_users": two_users.to_json(),
            "bad_source": bad_source.to_json(),
            "interrupted_task": interrupted_task.to_json(),
        }
        click.echo(json.dumps({**told, "proved": is_proved}, indent=2))
    else:
        interrupted_task_running.print_report(interrupted_task, sys.stdout)
        running.print_conflicts(outcome, sys.stdout)
    context.exit(0 if is_proved else 1)


@contextlib.contextmanager
def _ended_politely() -> Iterator[None]:
    """Make SIGTERM like Ctrl-C: the agents and the server are ended before we are."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
