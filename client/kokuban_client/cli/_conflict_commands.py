"""The commands for conflicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kokuban_client.cli._connection import Connection, connected
from kokuban_client.cli._times import instant

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime


def _filtered(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command with the options that say which conflicts are wanted."""
    options = (
        click.argument("region", default=""),
        click.argument("path", default=""),
        click.option("--of", "party", default="", metavar="AGENT", help="Only those with this agent on either side."),
        click.option(
            "--reason", default="", metavar="REASON", help="Only for this reason: REVISION_MISMATCH and so on."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _within_times(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command with the options that say of which time."""
    since = click.option(
        "--since", type=instant, metavar="TIME", help="Then or later: 2026-11-30T08:00:00Z, or 2h ago."
    )
    until = click.option("--until", type=instant, metavar="TIME", help="Before then.")
    return since(until(command))


@click.group()
def conflict() -> None:
    """Show who lost to whom."""


@conflict.command("ls")
@_filtered
@_within_times
@connected
def list_conflicts(
    connection: Connection,
    *,
    region: str,
    path: str,
    party: str,
    reason: str,
    since: datetime | None,
    until: datetime | None,
) -> None:
    """Show conflicts, of a region, or at and below a path: the newest first."""
    from kokuban_client.cli import _conflict_printing as printing  # noqa: PLC0415 - `--help` does not need it

    with connection.client() as client:
        board = client.board(connection.board_id)
        for one in board.conflicts(
            region=region, path=path, agent=party, reason=_known(reason), begin=since, end=until, page_size=1000
        ):
            click.echo(printing.conflict_json(one) if connection.as_json else printing.conflict_line(one))


@conflict.command()
@_filtered
@click.option("--after", default="", metavar="TOKEN", help="Go on after this state.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many lines.")
@connected
def follow(
    connection: Connection, *, region: str, path: str, party: str, reason: str, after: str, count: int | None
) -> None:
    """Show conflicts as they happen, and each again when it is known what became of it. Ctrl-C ends it."""
    from kokuban_client.cli import _conflict_printing as printing  # noqa: PLC0415 - as above

    try:
        with (
            connection.client() as client,
            client.board(connection.board_id).watch_conflicts(
                region=region, path=path, agent=party, reason=_known(reason), after=after
            ) as conflicts,
        ):
            for shown, one in enumerate(conflicts, start=1):
                click.echo(printing.conflict_json(one) if connection.as_json else printing.conflict_line(one))
                if shown == count:
                    break
    except KeyboardInterrupt:
        pass  # that is how it is ended


@conflict.command()
@_filtered
@_within_times
@click.option("-n", "--entries", "top", type=click.IntRange(1, 100), default=10, help="So many paths and pairs. [10]")
@connected
def top(
    connection: Connection,
    *,
    region: str,
    path: str,
    party: str,
    reason: str,
    since: datetime | None,
    until: datetime | None,
    top: int,
) -> None:
    """Show where most conflicts are, between whom, how often, and what they cost."""
    from kokuban_client.cli import _conflict_printing as printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        found = client.board(connection.board_id).conflict_summary(
            region=region, path=path, agent=party, reason=_known(reason), begin=since, end=until, top=top
        )
    click.echo(printing.summary_json(found) if connection.as_json else "\n".join(printing.summary_lines(found)))


@conflict.command()
@_filtered
@_within_times
@connected
def timeline(
    connection: Connection,
    *,
    region: str,
    path: str,
    party: str,
    reason: str,
    since: datetime | None,
    until: datetime | None,
) -> None:
    """Show each conflict's acts in their order: who was there, who lost when, and what came of it; the oldest first."""
    from kokuban_client.cli import _conflict_printing as printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        found = list(
            client.board(connection.board_id).conflicts(
                region=region, path=path, agent=party, reason=_known(reason), begin=since, end=until, page_size=1000
            )
        )
    for line in printing.timeline(found, as_json=bool(connection.as_json)):
        click.echo(line)


def _known(reason: str) -> str:
    """Give a reason as the errors spell it; what is no reason of an error is no usage either."""
    from kokuban_client import _wire  # noqa: PLC0415 - `--help` does not need it

    spelled = reason.upper().replace("-", "_")
    if spelled and spelled not in _wire.REASONS:
        raise click.UsageError(f"{reason!r} is not the reason of any error")
    return spelled
