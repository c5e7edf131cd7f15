"""The commands that read and write a board."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kokuban_client.cli._connection import Connection, connected
from kokuban_client.cli._options import (
    consistency_of,
    consistency_options,
    fence_option,
    fences_of,
    floor_option,
    revision_of,
    source_of,
    source_options,
    states_of,
    trust_of,
)


def _one_belief(**beliefs: object) -> None:
    given = sum(1 for belief in beliefs.values() if belief)
    if given != 1:
        names = ", ".join(f"--{name}" for name in beliefs)
        raise click.UsageError(f"say what you believe about the entry: exactly one of {names}")


@click.command()
@click.argument("region")
@click.argument("path")
@click.option("--raw", is_flag=True, help="Write the value's exact bytes, for files and pipes.")
@floor_option
@consistency_options
@connected
def get(
    connection: Connection,
    *,
    region: str,
    path: str,
    raw: bool,
    floor: str | None,
    at_least: str | None,
    snapshot: str | None,
    local: bool,
) -> None:
    """Show an entry's value."""
    from kokuban_client.cli import _printing  # noqa: PLC0415 - as above

    consistency = consistency_of(at_least, snapshot, local=local)
    with connection.client() as client:
        board = client.board(connection.board_id)
        entry = board.get(region, path, floor=trust_of(floor), consistency=consistency)
    if connection.as_json:
        click.echo(_printing.entry_json(entry))
    elif raw:
        click.echo(_printing.raw_bytes(entry.content), nl=False)
    else:
        click.echo(_printing.value_text(entry.content))


@click.command()
@click.argument("region")
@click.argument("path")
@click.argument("value", required=False)
@click.option(
    "--file", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Read the value here."
)
@click.option("--at", metavar="REVISION", help="The entry exists and is at this revision, as `get --json` shows it.")
@click.option("--new", is_flag=True, help="There is no such entry.")
@click.option("--unconditional", is_flag=True, help="Whatever is there. Refused in shared regions, and recorded.")
@click.option("--text", "form", flag_value="text", default="text", help="The value is text. [default]")
@click.option("--json-value", "form", flag_value="json", help="The value is JSON.")
@click.option("--media-type", metavar="TYPE", help="The value is bytes of this media type, for instance image/png.")
@click.option("--ttl", type=float, metavar="SECONDS", help="The entry ceases to exist after this time.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="A label; may be given several times.")
@source_options
@click.option("--reason", default="", help="Why, for those who read the history.")
@fence_option
@connected
def put(
    connection: Connection,
    *,
    region: str,
    path: str,
    value: str | None,
    file: Path | None,
    at: str | None,
    new: bool,
    unconditional: bool,
    form: str,
    media_type: str | None,
    ttl: float | None,
    metadata: tuple[str, ...],
    source: str | None,
    uri: str,
    source_name: str,
    derived_from: tuple[str, ...],
    reason: str,
    fences: tuple[str, ...],
) -> None:
    """Create or change an entry. VALUE may be `-` for standard input. Prints the new revision."""
    from kokuban_client import types  # noqa: PLC0415 - as above
    from kokuban_client.cli import _printing  # noqa: PLC0415 - as above

    _one_belief(at=at, new=new, unconditional=unconditional)
    under, origin, parents = fences_of(fences), source_of(source, uri, source_name), states_of(derived_from)
    data = _value_bytes(value, file)
    if media_type:
        content: types.Content = types.Binary(data, media_type)
    else:
        text = _decoded(data)
        content = types.Json(text) if form == "json" else types.Text(text)
    with connection.client() as client:
        written = client.board(connection.board_id).put(
            region,
            path,
            content,
            at=None if at is None else revision_of(at),
            must_not_exist=new,
            unconditional=unconditional,
            metadata=_labels(metadata),
            ttl=ttl,
            source=origin,
            derived_from=parents,
            reason=reason,
            fences=under,
        )
    click.echo(_printing.written_json(written) if connection.as_json else _printing.written_line(written))


def _value_bytes(value: str | None, file: Path | None) -> bytes:
    if (value is None) == (file is None):
        raise click.UsageError("give the value as VALUE, as --file, or as - for standard input")
    if file is not None:
        return file.read_bytes()
    if value == "-":
        return sys.stdin.buffer.read()
    return (value or "").encode("utf-8", "surrogateescape")


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError("the value is not UTF-8 text; --media-type writes bytes") from error


def _labels(pairs: tuple[str, ...]) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name or name in labels:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE with a key of its own", param_hint="--metadata")
        labels[name] = text
    return labels or None


@click.command()
@click.argument("region")
@click.argument("path")
@click.option("--by", type=int, default=1, metavar="NUMBER", help="What to add; may be below 0. [1]")
@click.option("--reason", default="", help="Why, for those who read the history.")
@fence_option
@connected
def increment(connection: Connection, *, region: str, path: str, by: int, reason: str, fences: tuple[str, ...]) -> None:
    """Add to a whole number, made from 0 if there is none. Prints the sum."""
    from kokuban_client.cli import _printing  # noqa: PLC0415 - as above

    under = fences_of(fences)
    with connection.client() as client:
        written = client.board(connection.board_id).increment(region, path, by, reason=reason, fences=under)
    click.echo(_printing.computed_json(written) if connection.as_json else _printing.value_text(written.content))


@click.command()
@click.argument("region")
@click.argument("path")
@click.option("--at", metavar="REVISION", help="The entry is at this revision.")
@click.option("--unconditional", is_flag=True, help="Whatever is there. Refused in shared regions, and recorded.")
@click.option("--reason", default="", help="Why, for those who read the history.")
@fence_option
@connected
def rm(
    connection: Connection,
    *,
    region: str,
    path: str,
    at: str | None,
    unconditional: bool,
    reason: str,
    fences: tuple[str, ...],
) -> None:
    """Delete an entry. Prints the revision of the deletion."""
    from kokuban_client.cli import _printing  # noqa: PLC0415 - as above

    _one_belief(at=at, unconditional=unconditional)
    under = fences_of(fences)
    with connection.client() as client:
        written = client.board(connection.board_id).delete(
            region,
            path,
            at=None if at is None else revision_of(at),
            unconditional=unconditional,
            reason=reason,
            fences=under,
        )
    click.echo(_printing.written_json(written) if connection.as_json else _printing.written_line(written))


@click.command()
@click.argument("region")
@click.argument("path", default="")
@click.option("--no-values", is_flag=True, help="Leave the values out.")
@click.option("--consistent", is_flag=True, help="Show one state of the board, also over many pages.")
@floor_option
@consistency_options
@connected
def ls(
    connection: Connection,
    *,
    region: str,
    path: str,
    no_values: bool,
    consistent: bool,
    floor: str | None,
    at_least: str | None,
    snapshot: str | None,
    local: bool,
) -> None:
    """List the entries at and below a path.

    Shows revision, path, author and the beginning of the value.
    """
    from kokuban_client.cli import _printing  # noqa: PLC0415 - as above

    consistency = consistency_of(at_least, snapshot, local=local)
    with connection.client() as client:
        board = client.board(connection.board_id)
        for entry in board.list(
            region,
            path,
            floor=trust_of(floor),
            omit_values=no_values,
            consistent=consistent,
            consistency=consistency,
        ):
            click.echo(_printing.entry_json(entry) if connection.as_json else _printing.entry_line(entry))


@click.command()
@click.argument("region")
@click.argument("path")
@click.option("--limit", type=click.IntRange(min=1), help="Show at most this many states.")
@floor_option
@connected
def history(connection: Connection, *, region: str, path: str, limit: int | None, floor: str | None) -> None:
    """Show what became of an entry, newest first."""
    from kokuban_client.cli import _printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        board = client.board(connection.board_id)
        for change in board.history(region, path, floor=trust_of(floor), limit=limit):
            click.echo(_printing.change_json(change) if connection.as_json else _printing.change_line(change))


@click.command()
@click.argument("region")
@click.argument("path", default="")
@click.option("--snapshot", is_flag=True, help="Show what is there first.")
@click.option("--after", metavar="TOKEN", help="Go on after this state, for instance a `resume_token` seen earlier.")
@click.option("--bookmarks", is_flag=True, help="Show also how far the watch is while nothing changes.")
@click.option("--relist", is_flag=True, help="Where history is lost, go on with a new snapshot instead of failing.")
@click.option("--no-values", is_flag=True, help="Leave the values out.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many lines.")
@connected
def watch(
    connection: Connection,
    *,
    region: str,
    path: str,
    snapshot: bool,
    after: str | None,
    bookmarks: bool,
    relist: bool,
    no_values: bool,
    count: int | None,
) -> None:
    """Show the changes at and below a path as they happen.

    Begins now unless told otherwise. Ctrl-C ends it.
    """
    from kokuban_client import types  # noqa: PLC0415 - as above
    from kokuban_client.cli import _printing  # noqa: PLC0415 - as above

    if snapshot and after:
        raise click.UsageError("give at most one of --snapshot, --after")
    start = after or (types.SNAPSHOT if snapshot else types.NOW)
    try:
        with (
            connection.client() as client,
            client.board(connection.board_id).watch(
                (region, path),
                start=start,
                omit_values=no_values,
                bookmarks=bookmarks,
                on_gap="relist" if relist else "raise",
            ) as changes,
        ):
            for shown, item in enumerate(changes, start=1):
                line = _printing.watch_json(item, changes.token) if connection.as_json else _printing.watch_line(item)
                click.echo(line)
                if shown == count:
                    break
    except KeyboardInterrupt:
        pass  # that is how a watch is ended


@click.command()
@connected
def status(connection: Connection) -> None:
    """Say how the server and its store are."""
    from kokuban_client.cli import _printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        state = client.status()
        if connection.as_json:
            click.echo(_printing.status_json(state, client.address))
        else:
            click.echo("\n".join(_printing.status_lines(state, client.address)))
