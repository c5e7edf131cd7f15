"""The commands for boards and their policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kokuban_client.cli._connection import Connection, connected

if TYPE_CHECKING:
    from typing import TextIO

    from kokuban_client.types import BoardInfo


@click.group()
def board() -> None:
    """Make, name and remove boards."""


@click.group()
def policy() -> None:
    """Show, lay down and explain a board's policy."""


@board.command("create")
@click.argument("name")
@connected
def create_board(connection: Connection, name: str) -> None:
    """Make the board NAME. For operators."""
    with connection.client() as client:
        _print_boards(connection, client.create_board(name))


@board.command("ls")
@click.option("--deleted", is_flag=True, help="Also those that were deleted. For operators.")
@connected
def list_boards(connection: Connection, *, deleted: bool) -> None:
    """Name the boards that there are for the caller."""
    with connection.client() as client:
        _print_boards(connection, *client.boards(show_deleted=deleted))


@board.command("show")
@click.argument("name")
@connected
def show_board(connection: Connection, name: str) -> None:
    """Describe the board NAME; of one that was deleted, what was removed."""
    with connection.client() as client:
        _print_boards(connection, client.get_board(name))


@board.command("rm")
@click.argument("name")
@click.option("--reason", required=True, help="Why, for the record.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def delete_board(connection: Connection, *, name: str, reason: str, yes: bool) -> None:
    """Remove the board NAME with all that it holds. For operators.

    At once it is there for nobody. `kokuban board show NAME` tells when nothing is left in the store.
    """
    if not yes:
        click.confirm(f"Remove the board {name} and everything on it?", abort=True, err=True)
    with connection.client() as client:
        _print_boards(connection, client.delete_board(name, reason))


def _print_boards(connection: Connection, *boards: BoardInfo) -> None:
    from kokuban_client.cli import _printing  # noqa: PLC0415 - other commands start without it

    for one in boards:
        click.echo(_printing.board_json(one) if connection.as_json else _printing.board_line(one))


@policy.command("show")
@connected
def show_policy(connection: Connection) -> None:
    """Print the board's policy as JSON, as `policy set` takes it. For operators, supervisors and auditors."""
    from kokuban_client.cli import _printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        found = client.get_policy(connection.board_id)
    click.echo(_printing.policy_json(found, indent=None if connection.as_json else 2))


@policy.command("set")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option(
    "--replaces",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="The number of the policy that it replaces, 0 for the first. [the number in the file]",
)
@click.option("--reason", default="", help="Why, for the record.")
@connected
def set_policy(connection: Connection, *, file: TextIO, replaces: int | None, reason: str) -> None:
    """Lay down the policy in FILE (- for standard input) as the board's policy. For operators.

    FILE is what `policy show` prints, changed; or a policy alone, as in
    {"rules": [{"pattern": "shared:plan", "writers": {"subjects": ["role:supervisor"]}}]}, with --replaces.
    """
    from kokuban_client._wire.policies import read_policy_json  # noqa: PLC0415 - as above
    from kokuban_client.cli import _printing  # noqa: PLC0415 - as above

    try:
        laid_down, number = read_policy_json(file.read())
    except ValueError as error:
        raise click.UsageError(f"{file.name}: {_printing.escaped(str(error))}") from error
    replaced = number if replaces is None else replaces
    if replaced is None:
        raise click.UsageError("the file does not say which policy it replaces; give --replaces")
    with connection.client() as client:
        version = client.set_policy(connection.board_id, laid_down, replaces=replaced, reason=reason)
    click.echo(_printing.version_json(version) if connection.as_json else _printing.version_line(version))


@policy.command("explain")
@click.argument("region")
@click.argument("verb", type=click.Choice(["read", "write", "lock", "reveal"]))
@connected
def explain_access(connection: Connection, *, region: str, verb: str) -> None:
    """Say what would become of the caller's own request, and which rule decides."""
    from kokuban_client.cli import _printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        access = client.explain_access(connection.board_id, region, verb)
    click.echo(_printing.access_json(access) if connection.as_json else _printing.access_line(access))
