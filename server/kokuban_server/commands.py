"""The server's verbs of the command line: serve, backup, restore."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kokuban_server import credential_commands

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import ModuleType

    from kokuban_server.settings import Settings

Result = TypeVar("Result")


@click.group()
def main() -> None:
    """Run and look after a Kokuban server."""


main.add_command(credential_commands.token)
main.add_command(credential_commands.certs)


@main.command()
@click.option("--store", help="sqlite:FOLDER, etcd://HOST:PORT[,...][/PREFIX] or memory:  [env: KOKUBAN_STORE]")
@click.option("--listen", help="host:port; port 0 takes any that is free  [env: KOKUBAN_LISTEN]")
@click.option("--identity", type=click.Choice(["development", "credentials"]), help="[env: KOKUBAN_IDENTITY]")
@click.option(
    "--principals",
    "principals_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="who has which token or certificate  [env: KOKUBAN_PRINCIPALS_FILE]",
)
@click.option("--quickstart/--no-quickstart", default=None, help="print a token and want it  [env: KOKUBAN_QUICKSTART]")
@click.option("--boards", help="boards made on first use, with commas  [env: KOKUBAN_BOARDS]")
@click.option("--reflection/--no-reflection", default=None, help="gRPC server reflection  [env: KOKUBAN_REFLECTION]")
@click.option("--log-format", type=click.Choice(["auto", "json", "text"]), help="[env: KOKUBAN_LOG_FORMAT]")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[env: KOKUBAN_LOG_LEVEL]")
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), envvar="KOKUBAN_CONFIG", help="a TOML file of settings"
)
@click.option("--port-file", type=click.Path(path_type=Path, dir_okay=False), help="write the port here once listening")
def serve(config: Path | None, port_file: Path | None, **flags: Any) -> None:  # noqa: ANN401 - one for each option
    """Run a server until SIGTERM or Ctrl-C. All settings: deploy/README.md."""
    bootstrap, settings = _settings(flags, config)
    bootstrap.configure_logging(settings)
    _run(bootstrap.serve(settings, port_file))


_STORE = click.option("--store", help="sqlite:FOLDER or etcd://HOST:PORT[,...][/PREFIX]  [env: KOKUBAN_STORE]")
_CONFIG = click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), envvar="KOKUBAN_CONFIG", help="a TOML file of settings"
)


@main.command()
@_STORE
@_CONFIG
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def backup(store: str | None, config: Path | None, file: Path) -> None:
    """Copy the store into FILE, also while a server works on it.

    For etcd, FILE is a snapshot as etcd's own tools make it. An existing file is never overwritten.
    """
    bootstrap, settings = _settings({"store": store}, config)
    _run(bootstrap.backup(settings, file))
    click.echo(f"{settings.store} is copied into {file}")


@main.command()
@_STORE
@_CONFIG
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
def restore(store: str | None, config: Path | None, file: Path | None) -> None:
    """Make a store of the backup in FILE, in a folder that is empty. The store begins a new epoch.

    For etcd, first restore the snapshot with etcd's own tools, then run this without FILE to begin the new epoch, before any
    server is started.
    """
    bootstrap, settings = _settings({"store": store}, config)
    epoch = _run(bootstrap.restore(settings, file))
    click.echo(f"{settings.store} is restored, in epoch {epoch}; tokens and revisions from before are refused")


def _settings(flags: dict[str, Any], config: Path | None) -> tuple[ModuleType, Settings]:
    """Give the room that does the work, and the settings. Imported here, so that other verbs start quickly."""
    try:
        from kokuban_server import bootstrap  # noqa: PLC0415 - see above
        from kokuban_server.settings import SettingsError, load  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error.name} is missing: install kokuban[server]") from error
    try:
        return bootstrap, load(flags, config)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    import uvloop  # noqa: PLC0415 - as above

    from kokuban_server.bootstrap import StartError  # noqa: PLC0415 - as above

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    except StartError as error:
        raise click.ClickException(str(error)) from error
