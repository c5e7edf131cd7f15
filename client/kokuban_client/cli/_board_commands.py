"""The commands for boards."""

from __future__ import annotations

import click

from kokuban_client.cli._connection import Connection, connected


@click.group()
def board() -> None:
    """Make and name boards."""


@board.command("create")
@click.argument("name")
@connected
def create_board(connection: Connection, name: str) -> None:
    """Make the board NAME. For operators."""
    from kokuban_client.cli import _printing  # noqa: PLC0415 - other commands start without it

    with connection.client() as client:
        made = client.create_board(name)
    click.echo(_printing.board_json(made) if connection.as_json else _printing.board_line(made))


@board.command("ls")
@connected
def list_boards(connection: Connection) -> None:
    """Name the boards that there are for the caller."""
    from kokuban_client.cli import _printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        found = client.boards()
    for one in found:
        click.echo(_printing.board_json(one) if connection.as_json else _printing.board_line(one))
