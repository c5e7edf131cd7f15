"""The group of all commands: ours, and those that other packages add as entry points of `kokuban.commands`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kokuban_client.cli import (
    _audit_commands,
    _board_commands,
    _commands,
    _conflict_commands,
    _lock_commands,
    _task_commands,
    _trust_commands,
)
from kokuban_client.cli._connection import EXIT_CODES, Connection, connection_options
from kokuban_client.demo.command import demo

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.metadata import EntryPoint

_PLUGINS = "kokuban.commands"
_PLUGIN_HELP = {
    "serve": "Run a server.",
    "certs": "Make certificates for trying mutual TLS.",
    "token": "Say who may call: tokens, and the names that certificates have.",
    "backup": "Copy a store into a file.",
    "restore": "Make a store from a backup.",
}
_EXIT_CODES_HELP = "Exit codes: " + ", ".join(
    f"{code} {kind}" for kind, code in sorted(EXIT_CODES.items(), key=lambda e: e[1])
)


class _Group(click.Group):
    """Our commands, and plugins that are not loaded before they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *sorted(set(_plugins()) - set(self.commands))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        plugin = _plugins().get(cmd_name)
        if plugin is None:
            return None
        if ctx.resilient_parsing:
            return click.Command(cmd_name)
        return _loaded(plugin)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(80)) for name, one in self.commands.items()])
        plugins = sorted(set(_plugins()) - set(self.commands))
        if plugins:
            with formatter.section("Server commands (pip install 'kokuban[server]')"):
                formatter.write_dl([(name, _PLUGIN_HELP.get(name, "")) for name in plugins])


def _plugins() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - costs a third of the start of `kokuban get`

    return {one.name: one for one in entry_points(group=_PLUGINS)}


def _loaded(plugin: EntryPoint) -> click.Command:
    try:
        command = plugin.load()
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"`kokuban {plugin.name}` needs the server parts, and {error.name} is not installed: pip install 'kokuban[server]'"
        ) from error
    if not isinstance(command, click.Command):
        raise click.ClickException(f"`{plugin.value}` is not a command")
    return command


@click.group(
    cls=_Group,
    epilog=f"Options of the board may stand before or after the command. {_EXIT_CODES_HELP}.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@connection_options(hidden=False)
@click.version_option(package_name="kokuban", prog_name="kokuban")
@click.pass_context
def kokuban(context: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - click's own
    """The shared memory of a team of agents."""
    context.obj = Connection(**options)


for _command in (
    _commands.get,
    _commands.put,
    _commands.increment,
    _commands.rm,
    _commands.ls,
    _commands.watch,
    _commands.history,
    _board_commands.board,
    _board_commands.policy,
    _lock_commands.lock,
    _lock_commands.session,
    _task_commands.task,
    _conflict_commands.conflict,
    _audit_commands.audit,
    _trust_commands.trust,
    _commands.status,
    demo,
):
    kokuban.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code."""
    try:
        outcome = kokuban.main(
            args=None if arguments is None else list(arguments), prog_name="kokuban", standalone_mode=False
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    return outcome if isinstance(outcome, int) else 0
