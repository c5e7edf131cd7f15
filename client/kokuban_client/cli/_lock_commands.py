"""The commands for locks and sessions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kokuban_client.cli._connection import Connection, connected

if TYPE_CHECKING:
    from kokuban_client._identity import Identity
    from kokuban_client.cli._running import Command
    from kokuban_client.errors import LockLost
    from kokuban_client.types import Fence, Queued

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
"""The exit codes of a shell for a command that it cannot start."""


@click.group()
def lock() -> None:
    """Hold, show and break locks."""


@click.group()
def session() -> None:
    """Show who is there."""


class _WithCommand(click.Command):
    """A command whose arguments end at `--`; what follows is a command of the user's, with options of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, dashes, rest = args, [], list[str]()
        if "--" in args:
            place = args.index("--")
            own, dashes, rest = args[:place], args[place : place + 1], args[place + 1 :]
        ctx.meta[__name__] = rest
        left = super().parse_args(ctx, own)
        if (not dashes or not rest) and not ctx.resilient_parsing:
            raise click.UsageError("give the command to run after --", ctx)
        return left

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


@lock.command(cls=_WithCommand)
@click.argument("region")
@click.argument("path", default="")
@click.option("--entry", is_flag=True, help="Lock the entry alone, and not what is below it.")
@click.option("--shared", is_flag=True, help="Keep everybody from writing, also the command; others may share.")
@click.option("--purpose", metavar="WORDS", help="What for: shown to whoever is refused or waits. [the command's name]")
@click.option("--wait", "wait_s", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Wait so long.")
@click.option(
    "--hold-max", "hold_max_s", type=click.FloatRange(min=1), metavar="SECONDS", help="Hold it no longer than this."
)
@click.option(
    "--ttl", "ttl_s", type=click.FloatRange(min=2), default=30.0, metavar="SECONDS", help="The session's time. [30]"
)
@connected
def run(
    connection: Connection,
    *,
    region: str,
    path: str,
    entry: bool,
    shared: bool,
    purpose: str | None,
    wait_s: float,
    hold_max_s: float | None,
    ttl_s: float,
) -> None:
    """Hold a lock while a command runs.

    The command finds the lock's fence in KOKUBAN_FENCE, which `kokuban put` and its kin send by themselves, and the session
    in KOKUBAN_SESSION. It is not run if the lock is not granted. If the lock is lost, the command's process group gets
    SIGTERM, and SIGKILL 5 seconds later; exit code 8. Else the command's exit code is ours.
    """
    from kokuban_client.cli._running import Command  # noqa: PLC0415 - `--help` does not need it

    context = click.get_current_context()
    arguments: list[str] = context.meta[__name__]
    identity = connection.identity()
    with connection.client() as client:
        board = client.board(connection.board_id)
        label = f"kokuban lock run {os.getpid()}"
        with board.session(ttl_s=ttl_s, label=label) as session:
            started: list[Command] = []

            def stop(_: LockLost) -> None:
                for command in started:
                    command.stop()

            held = board.lock(
                region,
                path,
                purpose=purpose or f"running {Path(arguments[0]).name}",
                mode="shared" if shared else "exclusive",
                scope="entry" if entry else "subtree",
                wait_s=wait_s,
                hold_max_s=hold_max_s,
                session=session,
                on_lost=stop,
                on_queued=lambda queued: _tell_queued(queued, as_json=bool(connection.as_json)),
            )
            with held:
                command = Command(arguments, _environment(connection, identity, held.fence, session.id))
                started.append(command)
                held.check()
                code = _code_of(command, arguments[0])
    context.exit(code)


def _code_of(command: Command, name: str) -> int:
    try:
        return command.run()
    except OSError as error:
        click.echo(f"kokuban: {name}: {error.strerror}", err=True)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


def _environment(connection: Connection, identity: Identity, fence: Fence, session_id: str) -> dict[str, str]:
    """Give the command's environment: the fence beside those of locks around this one, and whom it calls as whom."""
    # Somebody else's fence would be refused.
    around = os.environ.get("KOKUBAN_FENCE", "") if identity.is_callers(os.environ) else ""
    inherited = {name: text for name, text in os.environ.items() if name not in identity.VARIABLES}
    told = {"KOKUBAN_FENCE": f"{around} {fence}".strip(), "KOKUBAN_SESSION": session_id}
    if connection.board is not None:
        told["KOKUBAN_BOARD"] = connection.board
    return {**inherited, **identity.variables, **told}


def _tell_queued(queued: Queued, *, as_json: bool) -> None:
    from kokuban_client.cli import _lock_printing as printing  # noqa: PLC0415 - as above

    click.echo(printing.queued_json(queued) if as_json else printing.queued_line(queued), err=True)


@lock.command("ls")
@click.argument("region")
@click.argument("path", default="")
@connected
def list_locks(connection: Connection, *, region: str, path: str) -> None:
    """Show who holds and who waits for what at, above and below a path."""
    from kokuban_client.cli import _lock_printing as printing  # noqa: PLC0415 - `--help` does not need it

    with connection.client() as client:
        listing = client.board(connection.board_id).locks(region, path)
    for one in listing.locks:
        click.echo(printing.lock_json(one) if connection.as_json else printing.lock_line(one))
    for wait in listing.waits:
        click.echo(printing.wait_json(wait) if connection.as_json else printing.wait_line(wait))


@lock.command("break")
@click.argument("lock_id")
@click.option("--reason", required=True, help="Why, for the holder and for the record.")
@click.option("--skip-lock-delay", is_flag=True, help="Open its place at once.")
@connected
def break_lock(connection: Connection, *, lock_id: str, reason: str, skip_lock_delay: bool) -> None:
    """Take a lock from its holder. Needs the role supervisor or operator."""
    from kokuban_client.cli import _lock_printing as printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        broken = client.board(connection.board_id).break_lock(lock_id, reason, skip_lock_delay=skip_lock_delay)
    click.echo(printing.lock_json(broken) if connection.as_json else printing.lock_line(broken))


@session.command("ls")
@connected
def list_sessions(connection: Connection) -> None:
    """Show who is there, how long ago each was heard of, and what each holds and waits for."""
    from kokuban_client.cli import _lock_printing as printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        there = client.board(connection.board_id).sessions()
    for presence in there:
        click.echo(
            printing.presence_json(presence) if connection.as_json else "\n".join(printing.presence_lines(presence))
        )
