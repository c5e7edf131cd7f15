"""The commands for how far texts may be believed."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kokuban_client.cli import _removal_commands
from kokuban_client.cli._connection import EXIT_CODES, Connection, connected
from kokuban_client.cli._options import (
    LEVELS,
    SOURCE_KINDS,
    fence_option,
    fences_of,
    floor_option,
    revision_of,
    trust_of,
)


@click.group()
def trust() -> None:
    """Say how far an entry is trusted, trace and remove what came of a source, see what is in a text."""


for _command in (
    _removal_commands.trace,
    _removal_commands.purge,
    _removal_commands.erase,
    _removal_commands.removals,
):
    trust.add_command(_command)


@trust.command()
@click.argument("region")
@click.argument("path")
@click.option(
    "--at", required=True, metavar="REVISION", help="The state that you have judged, as `get --json` shows it."
)
@click.option("--level", required=True, type=click.Choice(LEVELS[1:]), help="How far from now on.")
@click.option("--reason", required=True, help="Why, for those who answer for it.")
@fence_option
@connected
def endorse(
    connection: Connection, *, region: str, path: str, at: str, level: str, reason: str, fences: tuple[str, ...]
) -> None:
    """Trust an entry more than its origin would. For supervisors and operators; audited. Prints the new revision."""
    from kokuban_client.cli._printing import dump  # noqa: PLC0415 - `--help` does not need it
    from kokuban_client.types import Trust  # noqa: PLC0415 - as above

    state, under = revision_of(at), fences_of(fences)
    with connection.client() as client:
        board = client.board(connection.board_id)
        made = board.endorse(region, path, at=state, trust=Trust[level.upper()], reason=reason, fences=under)
    click.echo(dump({"revision": str(made)}) if connection.as_json else str(made))


@trust.group()
def quarantine() -> None:
    """Review what screening held back. For supervisors and operators."""


@quarantine.command("ls")
@click.option("--state", type=click.Choice(("waiting", "released", "rejected")), default="waiting", show_default=True)
@click.option("--by", default="", metavar="AGENT", help="Only those that this agent sent.")
@click.option("--uri", default="", help="Only those whose source has this URI.")
@click.option("--texts", is_flag=True, help="Also what they would write. For people to look at.")
@connected
def quarantine_ls(connection: Connection, *, state: str, by: str, uri: str, texts: bool) -> None:
    """List commits in quarantine, the oldest first."""
    from kokuban_client.cli import _trust_printing as printing  # noqa: PLC0415 - `--help` does not need it

    with connection.client() as client:
        board = client.board(connection.board_id)
        for one in board.quarantine(state=state, agent=by, uri=uri, show_texts=texts):
            lines = [printing.quarantined_json(one)] if connection.as_json else printing.quarantined_lines(one)
            click.echo("\n".join(lines))


@quarantine.command()
@click.argument("ids", nargs=-1, required=True)
@click.option("--reason", required=True, help="Why, for those who answer for it.")
@connected
def release(connection: Connection, *, ids: tuple[str, ...], reason: str) -> None:
    """Commit what was held back, as data. Exit code 1 if one of them could not be."""
    _review(connection, ids, reason, release=True)


@quarantine.command()
@click.argument("ids", nargs=-1, required=True)
@click.option("--reason", required=True, help="Why, for those who answer for it.")
@connected
def reject(connection: Connection, *, ids: tuple[str, ...], reason: str) -> None:
    """Remove the content of what was held back. Exit code 1 if one of them could not be."""
    _review(connection, ids, reason, release=False)


def _review(connection: Connection, ids: tuple[str, ...], reason: str, *, release: bool) -> None:
    from kokuban_client.cli import _trust_printing as printing  # noqa: PLC0415 - as above
    from kokuban_client.types import QuarantineState  # noqa: PLC0415 - as above

    wanted = QuarantineState.RELEASED if release else QuarantineState.REJECTED
    with connection.client() as client:
        results = client.board(connection.board_id).review_quarantine(ids, release=release, reason=reason)
    for one in results:
        click.echo(printing.review_json(one) if connection.as_json else printing.review_line(one))
    if any(one.state is not wanted for one in results):
        click.get_current_context().exit(1)


@trust.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--source", type=click.Choice(SOURCE_KINDS), help="Where the text comes from.")
@click.option("--uri", default="", help="What names its source. Goes with --source.")
@click.option("--views", is_flag=True, help="Also how else it reads, where something was found in that.")
@connected
def screen(connection: Connection, *, file: Path, source: str | None, uri: str, views: bool) -> None:
    """Say what screening finds in FILE, or in what is piped in for -. Nothing is kept.

    Exit code 0: it would be admitted as what its source is; 10: as data and nothing else; 11: a reviewer should see it first.
    That nothing is found does not mean that nothing is there.
    """
    from kokuban_client.cli import _trust_printing as printing  # noqa: PLC0415 - `--help` does not need it
    from kokuban_client.types import ScreeningVerdict, SourceKind  # noqa: PLC0415 - as above

    if uri and source is None:
        raise click.UsageError("--uri goes with --source")
    text = _read(file)
    kind = None if source is None else SourceKind(source)
    with connection.client() as client:
        board = client.board(connection.board_id)
        found = board.screen_text(text, source=kind, uri=uri, show_views=views)
    click.echo(printing.screening_json(found) if connection.as_json else "\n".join(printing.screening_lines(found)))
    if found.verdict is not ScreeningVerdict.ADMIT:
        is_data = found.verdict is ScreeningVerdict.ADMIT_AS_DATA
        click.get_current_context().exit(EXIT_CODES["text is data" if is_data else "text for quarantine"])


@trust.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--json-text", is_flag=True, help="It is JSON, and stays so.")
@click.option("--addresses", is_flag=True, help="Addresses of networks are personal data too.")
@connected
def redact(connection: Connection, *, file: Path, json_text: bool, addresses: bool) -> None:
    """Say what secrets and personal data FILE holds, or what is piped in for -, and show it without them. Nothing is kept.

    Exit code 0: nothing was found; 12: something was. That nothing is found does not mean that nothing is there.
    """
    from kokuban_client.cli import _trust_printing as printing  # noqa: PLC0415 - `--help` does not need it

    text = _read(file)
    with connection.client() as client:
        board = client.board(connection.board_id)
        found = board.redact_text(text, is_json=json_text, network_addresses=addresses)
    click.echo(printing.redaction_json(found) if connection.as_json else "\n".join(printing.redaction_lines(found)))
    if found.finding_count:
        click.get_current_context().exit(EXIT_CODES["text has secrets"])


@trust.command()
@click.argument("region")
@click.argument("path")
@click.option("--at", metavar="REVISION", help="The state of it at this revision, as `history --json` shows it.")
@click.option("--raw", is_flag=True, help="Write the value's exact bytes, for files and pipes.")
@floor_option
@connected
def reveal(connection: Connection, *, region: str, path: str, at: str | None, raw: bool, floor: str | None) -> None:
    """Show an entry's value with what is encrypted in it opened. For the region's revealers; audited.

    What could not be opened is told on standard error.
    """
    from kokuban_client.cli import _printing  # noqa: PLC0415 - `--help` does not need it
    from kokuban_client.cli import _trust_printing as printing  # noqa: PLC0415 - as above

    state = None if at is None else revision_of(at)
    with connection.client() as client:
        board = client.board(connection.board_id)
        found = board.reveal(region, path, at=state, floor=trust_of(floor))
    if connection.as_json:
        click.echo(printing.revealed_json(found))
    elif raw:
        click.echo(_printing.raw_bytes(found.entry.content), nl=False)
    else:
        click.echo(_printing.value_text(found.entry.content))
    for line in printing.unopened_lines(found):
        click.echo(line, err=True)


def _read(file: Path) -> str:
    raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise click.UsageError("what is looked at is text in UTF-8, and this is not") from None
