"""`kokuban keys`: what texts are encrypted with."""

from __future__ import annotations

import time
from pathlib import Path

import click


@click.group()
def keys() -> None:
    """Say what texts are encrypted with where a board's policy says ENCRYPT."""


@keys.command()
@click.option(
    "--keys",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="KOKUBAN_ENCRYPTION_KEYS_FILE",
    show_envvar=True,
    required=True,
    help="the file of keys, as the server's setting encryption_keys_file",
)
@click.option("--id", "key_id", help="what to call the key: stands in what it encrypts; today's date unless given")
def add(file: Path, key_id: str | None) -> None:
    """Make a key, which encrypts from now on; those that are in the file still open what they encrypted.

    The file is made if there is none, for its owner alone. Every server of the store needs it. Keep a copy apart from the
    store's backups: what is encrypted with a key that is lost is lost.
    """
    try:
        from kokuban_server.adapters.encryption import KeysInvalidError, key_line, parse_keys  # noqa: PLC0415 - other verbs start quickly
        from kokuban_server.adapters.files import edit_file  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error.name} is missing: install kokuban[server]") from error
    chosen = key_id or time.strftime("%Y-%m-%d", time.gmtime())

    def added(known: bytes | None) -> bytes:
        content = f"{key_line(chosen)}\n".encode() + (known or b"")
        parse_keys(content)  # nothing is written that a server would refuse
        return content

    try:
        edit_file(file, added)
    except (OSError, KeysInvalidError) as fault:
        raise click.ClickException(f"{file}: {fault}") from None
    click.echo(f"{chosen} encrypts from now on: the first key in {file}", err=True)
