"""`kokuban keys`: what texts are encrypted with."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable


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
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error.name} is missing: install kokuban[server]") from error
    chosen = key_id or time.strftime("%Y-%m-%d", time.gmtime())
    path = file.resolve()  # what a link points to is changed, not the link

    def added(known: bytes) -> bytes:
        content = f"{key_line(chosen)}\n".encode() + known
        parse_keys(content)  # nothing is written that a server would refuse
        return content

    try:
        _change(path, added)
    except FileExistsError as fault:
        raise click.ClickException(f"{file} is being changed, or {fault.filename} is left over from then") from None
    except (OSError, KeysInvalidError) as fault:
        raise click.ClickException(f"{file}: {fault}") from None
    click.echo(f"{chosen} encrypts from now on: the first key in {file}", err=True)


def _change(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace a file in one step, with the owner and mode of the old one. Raises FileExistsError while somebody else does."""
    partial = path.with_name(f".{path.name}.partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            known = b""
            if path.exists():
                before, known = path.stat(), path.read_bytes()
                os.fchown(handle, before.st_uid, before.st_gid)
                os.fchmod(handle, before.st_mode & 0o777)
            file.write(change(known))
            file.flush()
            os.fsync(handle)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
