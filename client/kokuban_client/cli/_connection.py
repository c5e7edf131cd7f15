"""The options that say which server, as whom, on which board; and how a refusal becomes an exit code."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kokuban_client._identity import Identity
    from kokuban_client.errors import KokubanError
    from kokuban_client.sync import Client

EXIT_CODES = {
    "ok": 0,
    "anything else": 1,
    "usage": 2,
    "conflict": 3,
    "missing": 4,
    "refused": 5,
    "unavailable": 6,
    "outcome unknown": 7,
    "lock lost": 8,
    "audit log broken": 9,
    "text is data": 10,
    "text for quarantine": 11,
    "text has secrets": 12,
    "store has findings": 13,
}


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a command calls, as whom, and how it answers. None means not said."""

    address: str | None = None
    agent: str | None = None
    roles: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    board: str | None = None
    timeout_s: float | None = None
    as_json: bool | None = None

    @property
    def board_id(self) -> str:
        """The board to use."""
        return self.board or "main"

    def over(self, weaker: Connection) -> Connection:
        """Give this with what it does not say taken from a weaker one."""
        said = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}
        return replace(weaker, **said)

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Give a client; a server that cannot be reached is told at once instead of being waited for."""
        from kokuban_client import sync  # noqa: PLC0415 - loads gRPC, which `--help` does not need

        with _usage_told():
            client = sync.connect(
                self.address,
                agent=self.agent,
                roles=self._roles,
                **self._security,
                timeout_s=self.timeout_s or 30.0,
                wait_for_ready=False,
            )
        with client:
            yield client

    def identity(self) -> Identity:
        """Give what the client calls with, for a command that is to call as the same."""
        from kokuban_client._identity import Identity  # noqa: PLC0415 - as above

        with _usage_told():
            return Identity.of(self.address, self.agent, self._roles, **self._security)

    @property
    def _roles(self) -> list[str] | None:
        return None if self.roles is None else self.roles.replace(",", " ").split()

    @property
    def _security(self) -> dict[str, Any]:
        names = ("token_file", "ca_file", "cert_file", "key_file", "server_name")
        return {name: getattr(self, name) for name in names}


@contextlib.contextmanager
def _usage_told() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise click.UsageError(
            f"{error} (--agent, --roles, --token-file, --ca-file, --cert-file, --key-file)"
        ) from error


class _ReadByTheClient(click.Option):
    """An option whose variable the client itself reads, because an option goes before the variables of others."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:  # noqa: ARG002 - click's
        return None


def connection_options(*, hidden: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a decorator that adds the options; hidden ones are those of a command, which also stand before it."""

    def option(*names: str, variable: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # noqa: ANN401 - click's own
        from_environment: dict[str, Any] = {} if hidden else {"envvar": variable, "show_envvar": True}
        return click.option(*names, default=None, hidden=hidden, **from_environment, **more)

    def caller(*names: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # noqa: ANN401 - as above
        return option(*names, cls=_ReadByTheClient, **more)

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(
            (
                caller("--address", variable="KOKUBAN_ADDRESS", help="Where the server is. [127.0.0.1:7420]"),
                caller("--agent", variable="KOKUBAN_AGENT", help="Who calls, by the development identity."),
                caller("--roles", variable="KOKUBAN_ROLES", help="Its roles to call with, by commas."),
                caller(
                    "--token-file",
                    variable="KOKUBAN_TOKEN_FILE",
                    metavar="FILE",
                    help="Holds the token that says who calls. KOKUBAN_TOKEN is the token itself.",
                ),
                caller(
                    "--ca-file",
                    variable="KOKUBAN_CA_FILE",
                    metavar="FILE",
                    help="Call over TLS, and trust servers that this authority's certificates vouch for.",
                ),
                caller(
                    "--cert-file",
                    variable="KOKUBAN_CERT_FILE",
                    metavar="FILE",
                    help="A certificate that says who calls.",
                ),
                caller("--key-file", variable="KOKUBAN_KEY_FILE", metavar="FILE", help="Its key."),
                caller(
                    "--server-name",
                    variable="KOKUBAN_SERVER_NAME",
                    metavar="NAME",
                    help="The name to expect in the server's certificate, if not the address's.",
                ),
                option("--board", variable="KOKUBAN_BOARD", help="The board. [main]"),
                option(
                    "--timeout",
                    "timeout_s",
                    variable="KOKUBAN_TIMEOUT",
                    type=click.FloatRange(min=0, min_open=True),
                    metavar="SECONDS",
                    help="The most that a call may take. [30]",
                ),
                option(
                    "--json/--no-json",
                    "as_json",
                    variable="KOKUBAN_JSON",
                    help="Answer in JSON, lists and watches in one line for each item.",
                ),
            )
        ):
            command = one(command)
        return command

    return add


def connected(command: Callable[..., None]) -> Callable[..., Any]:
    """Give a command that is called with a Connection first, and whose refusals become one line and an exit code."""

    @connection_options(hidden=True)
    @click.pass_context
    @functools.wraps(command)
    def run(context: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - click's own
        own = Connection(**{one.name: options.pop(one.name) for one in fields(Connection)})
        connection = own.over(context.obj) if isinstance(context.obj, Connection) else own
        from kokuban_client.errors import KokubanError  # noqa: PLC0415 - `--help` does not need it

        try:
            command(connection, **options)
        except KokubanError as error:
            context.exit(_tell(error, as_json=bool(connection.as_json)))
        except BrokenPipeError:
            # Whoever reads our output has seen enough. Python would complain once more when it flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            context.exit(0)

    return run


def _tell(error: KokubanError, *, as_json: bool) -> int:
    from kokuban_client.cli import _printing  # noqa: PLC0415 - as above

    click.echo(_printing.error_json(error) if as_json else f"kokuban: {_printing.error_line(error)}", err=True)
    return exit_code(error)


def exit_code(error: KokubanError) -> int:
    """Give the exit code of an error."""
    from kokuban_client import errors  # noqa: PLC0415 - as above

    match error:
        case errors.LockLost() | errors.SessionLost():
            kind = "lock lost"
        case errors.Conflict():
            kind = "conflict"
        case errors.NotFound():
            kind = "missing"
        case errors.Refused():
            kind = "refused"
        case errors.Unavailable():
            kind = "unavailable"
        case errors.OutcomeUnknown():
            kind = "outcome unknown"
        case _:
            kind = "anything else"
    return EXIT_CODES[kind]
