"""The commands that trace what came of what, and remove what came of a source or of a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kokuban_client.cli._connection import Connection, connected
from kokuban_client.cli._options import revision_of
from kokuban_client.cli._times import instant

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import Any

    from kokuban_client.sync import Board
    from kokuban_client.types import Removal, RemovalPlan


@click.command()
@click.argument("region")
@click.argument("path")
@click.option("--at", metavar="REVISION", help="The state to begin from. [the present one]")
@click.option(
    "--ancestors/--descendants", default=True, show_default=True, help="What it was made of, or what was made of it."
)
@click.option("--depth", type=click.IntRange(1, 32), default=32, show_default=True, help="So many steps at most.")
@click.option("--states", type=click.IntRange(1, 1000), default=100, show_default=True, help="So many states at most.")
@connected
def trace(
    connection: Connection, *, region: str, path: str, at: str | None, ancestors: bool, depth: int, states: int
) -> None:
    """Show where a state comes from, or what became of it, as a tree: as far as you may read it."""
    from kokuban_client.cli import _removal_printing as printing  # noqa: PLC0415 - `--help` does not need it
    from kokuban_client.types import ProvenanceDirection  # noqa: PLC0415 - as above

    state = None if at is None else revision_of(at)
    with connection.client() as client:
        found = client.board(connection.board_id).trace_provenance(
            region,
            path,
            at=state,
            direction=ProvenanceDirection.ANCESTORS if ancestors else ProvenanceDirection.DESCENDANTS,
            max_depth=depth,
            max_states=states,
        )
    click.echo(printing.trace_json(found) if connection.as_json else "\n".join(printing.trace_lines(found)))


def _planned(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command with the options that a purge and an erasure have in common."""
    for one in (
        click.option("--wait", is_flag=True, help="Wait until it is done, and show the receipts."),
        click.option("--yes", is_flag=True, help="Begin at once, without looking at the plan first."),
        click.option("--plan", metavar="ID", help="Begin what was planned under this id."),
        click.option(
            "--allow-reingest", is_flag=True, help="What comes from there may be written again. [it is refused]"
        ),
        click.option("--reason", default="", help="Why, for those who answer for it."),
    ):
        command = one(command)
    return command


@click.command()
@click.option("--uri", default="", help="What was declared to come from exactly this URI.")
@click.option("--uri-pattern", default="", metavar="PATTERN", help="From such URIs: `*` is any run of characters.")
@click.option("--sha256", default="", metavar="DIGEST", help="What was declared to have this digest.")
@click.option("--by", default="", metavar="AGENT", help="What this agent wrote.")
@click.option("--session", default="", metavar="ID", help="What was written in this session.")
@click.option("--since", type=instant, metavar="TIME", help="Then or later: 2026-11-30T08:00:00Z, or 2h ago.")
@click.option("--until", type=instant, metavar="TIME", help="Before then.")
@_planned
@connected
def purge(
    connection: Connection,
    *,
    uri: str,
    uri_pattern: str,
    sha256: str,
    by: str,
    session: str,
    since: datetime | None,
    until: datetime | None,
    reason: str,
    allow_reingest: bool,
    plan: str | None,
    yes: bool,
    wait: bool,
) -> None:
    """Remove what came from a source, with everything derived from it. All that you say of the source must hold.

    Without --yes nothing is removed: it shows what would be, and the id for --plan that begins it. For operators; audited.
    """
    from kokuban_client.types import SourceSelector  # noqa: PLC0415 - `--help` does not need it

    source = SourceSelector(uri, uri_pattern, sha256, by, session, since, until)
    _check(
        plan,
        what="a source",
        named=source != SourceSelector(),
        reason=reason,
        allow_reingest=allow_reingest,
        begins=yes,
        wait=wait,
    )
    _remove(
        connection,
        plan,
        yes=yes,
        wait=wait,
        ask=lambda board: board.purge_source(source, reason=reason, allows_reingest=allow_reingest),
        begin=lambda board, planned: board.purge(planned),
    )


@click.command()
@click.argument("user", default="")
@_planned
@connected
def erase(
    connection: Connection,
    *,
    user: str,
    reason: str,
    allow_reingest: bool,
    plan: str | None,
    yes: bool,
    wait: bool,
) -> None:
    """Remove what is kept of USER, with everything derived from it: the region user:USER, and what came from that user.

    Without --yes nothing is removed: it shows what would be, and the id for --plan that begins it. What names the user
    elsewhere is not looked for. The reason should not. For operators; audited.
    """
    _check(plan, what="USER", named=bool(user), reason=reason, allow_reingest=allow_reingest, begins=yes, wait=wait)
    _remove(
        connection,
        plan,
        yes=yes,
        wait=wait,
        ask=lambda board: board.erase_subject(user, reason=reason, allows_reingest=allow_reingest),
        begin=lambda board, planned: board.erase(planned),
    )


def _check(
    plan: str | None, *, what: str, named: bool, reason: str, allow_reingest: bool, begins: bool, wait: bool
) -> None:
    if plan is not None:
        if named or reason or allow_reingest:
            raise click.UsageError(
                f"--plan begins what was planned: {what}, --reason and --allow-reingest belong to the plan"
            )
    elif not named:
        raise click.UsageError(f"say {what}, or --plan to begin what was planned")
    elif not reason:
        raise click.UsageError("say --reason: why, for those who answer for it")
    elif wait and not begins:
        raise click.UsageError("--wait goes with --plan or --yes: nothing is begun without one")


def _remove(
    connection: Connection,
    plan: str | None,
    *,
    yes: bool,
    wait: bool,
    ask: Callable[[Board], RemovalPlan],
    begin: Callable[[Board, str], Removal],
) -> None:
    from kokuban_client.cli import _removal_printing as printing  # noqa: PLC0415 - `--help` does not need it

    with connection.client() as client:
        board = client.board(connection.board_id)
        if plan is None:
            asked = ask(board)
            lines = [printing.plan_json(asked)] if connection.as_json else printing.plan_lines(asked, begun=yes)
            click.echo("\n".join(lines))
            if not yes:
                return
            plan = asked.id
        removal = begin(board, plan)
        if wait:
            click.echo(
                f"begun; it goes on without this command, and `kokuban trust removals {plan}` tells how far", err=True
            )
            removal = board.wait_for_removal(removal.id, **_patience(connection))
    click.echo(printing.removal_json(removal) if connection.as_json else "\n".join(printing.removal_lines(removal)))


def _patience(connection: Connection) -> dict[str, float]:
    """Give how long to wait, where it was said."""
    return {} if connection.timeout_s is None else {"timeout_s": connection.timeout_s}


@click.command()
@click.argument("removal", metavar="[ID]", default="")
@connected
def removals(connection: Connection, *, removal: str) -> None:
    """Show the purges and erasures of a board, the newest first, or how far one has come. For operators."""
    from kokuban_client.cli import _removal_printing as printing  # noqa: PLC0415 - `--help` does not need it

    with connection.client() as client:
        board = client.board(connection.board_id)
        found = (board.get_removal(removal),) if removal else board.removals()
    for one in found:
        click.echo(printing.removal_json(one) if connection.as_json else "\n".join(printing.removal_lines(one)))
