"""`kokuban token` and `kokuban certs`: who may call a server, and certificates to try mutual TLS with."""

from __future__ import annotations

import importlib
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from kokuban_server.adapters.credentials import Entry
    from kokuban_server.adapters.credentials.scope import Scope
    from kokuban_server.core.access import Grants

_DURATION = re.compile(r"([1-9][0-9]{0,4})([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PRINCIPALS = click.option(
    "--principals",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="KOKUBAN_PRINCIPALS_FILE",
    show_envvar=True,
    required=True,
    help="the file of principals, as the server's setting principals_file",
)


@click.group()
def token() -> None:
    """Say who may call: tokens, and the names that certificates have.

    Servers take up a change within seconds; a call or stream of a credential that is gone is ended.
    """


@token.command()
@_PRINCIPALS
@click.option("--agent", required=True, help="the agent's id")
@click.option("--tenant", required=True, help="the tenant it belongs to")
@click.option("--name", help="what to call the credential, for `revoke` and logs; the agent's id unless given")
@click.option("--role", "roles", multiple=True, default=("member",), show_default=True, help="may be repeated")
@click.option(
    "--board", "boards", multiple=True, default=("main",), show_default=True, help="may be repeated; '*' for all"
)
@click.option("--user", "users", multiple=True, help="an end user that it may act for; may be repeated; '*' for all")
@click.option("--conversation", "conversations", multiple=True, help="a conversation that it serves; as --user")
@click.option("--task", "tasks", multiple=True, help="a task that it works on; as --user")
@click.option(
    "--trust-ceiling", help="the most that what it writes may be trusted: external, agent, user, operator or system"
)
@click.option("--browses", is_flag=True, help="what it writes without naming a source counts as coming from outside")
@click.option("--expires", help="when it ends: 12h, 90d, or a time as 2030-01-31T12:00:00Z; never unless given")
@click.option("--san-uri", help="make no token: the agent has a certificate with this URI as subject alternative name")
def create(
    principals: Path,
    agent: str,
    tenant: str,
    name: str | None,
    roles: tuple[str, ...],
    boards: tuple[str, ...],
    users: tuple[str, ...],
    conversations: tuple[str, ...],
    tasks: tuple[str, ...],
    trust_ceiling: str | None,
    browses: bool,  # noqa: FBT001 - click passes options by name
    expires: str | None,
    san_uri: str | None,
) -> None:
    """Let an agent call, and print its token: once, never again.

    The token alone goes to standard output. The file of principals is made if there is none; it holds a hash of the token,
    not the token.
    """
    credentials = _credentials()
    fields: dict[str, object] = {
        "name": name or agent,
        "agent": agent,
        "tenant": tenant,
        "roles": list(roles),
        "boards": _all_or(boards),
        "users": _all_or(users),
        "conversations": _all_or(conversations),
        "tasks": _all_or(tasks),
    }
    made = "" if san_uri is not None else credentials.new_token()
    if san_uri is not None:
        fields["san_uri"] = san_uri
    else:
        fields["token_sha256"] = credentials.token_sha256(made)
    if trust_ceiling is not None:
        fields["trust_ceiling"] = trust_ceiling
    if browses:
        fields["browses"] = True
    if expires is not None:
        fields["expires"] = _when(expires)
    try:
        entry = credentials.parse_entry(fields)
        credentials.edit(principals, lambda entries: [*entries, entry], may_make=True)
    except credentials.RegistryRefused as refused:
        raise click.ClickException(str(refused)) from None
    if made:
        click.echo(f"{entry.name} stands in {principals}; this is its token, which is shown only now:", err=True)
        click.echo(made)
    else:
        click.echo(f"{entry.name} stands in {principals}; it calls with a certificate for {san_uri}", err=True)


@token.command()
@_PRINCIPALS
@click.argument("name")
def revoke(principals: Path, name: str) -> None:
    """Take away the credential called NAME, as `kokuban token ls` shows it."""
    credentials = _credentials()

    def without(entries: tuple[Entry, ...]) -> list[Entry]:
        left = [entry for entry in entries if entry.name != name]
        if len(left) == len(entries):
            raise credentials.RegistryRefused(f"there is no credential {name!r}")
        return left

    try:
        credentials.edit(principals, without)
    except credentials.RegistryRefused as refused:
        raise click.ClickException(str(refused)) from None
    click.echo(f"{name} is revoked", err=True)


@token.command()
@_PRINCIPALS
def ls(principals: Path) -> None:
    """List who may call. No secret is shown; none is there."""
    credentials = _credentials()
    try:
        entries: tuple[Entry, ...] = credentials.read_entries(principals)
    except credentials.RegistryRefused as refused:
        raise click.ClickException(str(refused)) from None
    rows = [("NAME", "TENANT", "AGENT", "ROLES", "BOARDS", "ACTS FOR", "TRUSTED", "CALLS WITH", "EXPIRES")]
    now_ms = int(time.time() * 1000)
    for entry in entries:
        scope = entry.scope
        kinds = (("user", scope.users), ("conversation", scope.conversations), ("task", scope.tasks))
        ends = credentials.time_text(entry.expires_ms) if entry.expires_ms else "never"
        rows.append(
            (
                entry.name,
                scope.tenant,
                entry.agent,
                ",".join(sorted(scope.roles)),
                ",".join(_named(scope.boards)),
                ",".join(f"{kind}:{one}" for kind, grants in kinds for one in _named(grants)) or "-",
                _trusted(scope),
                " and ".join(filter(None, ("token" if entry.token_sha256 else "", entry.san_uri))),
                f"{ends} (expired)" if 0 < entry.expires_ms <= now_ms else ends,
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@click.group()
def certs() -> None:
    """Make certificates."""


@certs.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--agent", "agents", multiple=True, default=("agent-1",), show_default=True, help="a client; may be repeated"
)
@click.option("--tenant", default="dev", show_default=True, help="the tenant that the agents belong to")
def dev(folder: Path, agents: tuple[str, ...], tenant: str) -> None:
    """Make a local authority, and certificates for a server on this machine and for each agent.

    For trying mutual TLS, not for production: the authority's key lies in DIR. Nothing is overwritten.
    """
    credentials = _credentials()
    authority = _part("development_authority")
    principals = folder / "principals.json"
    try:
        # Read before a file is made: the next commands must be ones that work.
        for agent in agents:
            uri = authority.san_uri(tenant, agent)
            fields = {"name": agent, "agent": agent, "tenant": tenant, "roles": ["member"], "boards": ["main"]}
            credentials.parse_entry({**fields, "san_uri": uri})
        authority.make_certificates(folder, tenant, agents)
    except (credentials.RegistryRefused, authority.CertificatesRefused) as refused:
        raise click.ClickException(str(refused)) from None
    click.echo(
        f"{folder} holds an authority, a server's certificate and {len(agents)} for agents; they end in 90 days."
    )
    click.echo("\nSay who the agents are:\n")
    for agent in agents:
        uri = authority.san_uri(tenant, agent)
        _show(
            ["kokuban", "token", "create", "--principals", principals],
            ["--agent", agent, "--tenant", tenant, "--san-uri", uri],
        )
    click.echo("\nRun a server:\n")
    _show(
        ["env", f"KOKUBAN_TLS__CERT_FILE={folder / 'server.pem'}", f"KOKUBAN_TLS__KEY_FILE={folder / 'server.key'}"],
        [f"KOKUBAN_TLS__CLIENT_CA_FILE={folder / 'ca.pem'}"],
        ["kokuban", "serve", "--identity", "credentials", "--principals", principals],
    )
    click.echo("\nCall it as an agent:\n")
    _show(
        ["kokuban", "status", "--ca-file", folder / "ca.pem"],
        ["--cert-file", folder / f"{agents[0]}.pem", "--key-file", folder / f"{agents[0]}.key"],
    )


def _show(*lines: list[str | Path]) -> None:
    click.echo("  " + " \\\n      ".join(shlex.join(map(str, line)) for line in lines))


def _trusted(scope: Scope) -> str:
    """Say what of its credential limits how far the agent's writes are trusted."""
    ceiling = "" if scope.trust_ceiling.name == "SYSTEM" else f"up to {scope.trust_ceiling.name.lower()}"
    return ", ".join(filter(None, (ceiling, "browses" if scope.browses else ""))) or "-"


def _all_or(names: tuple[str, ...]) -> str | list[str]:
    return "*" if names == ("*",) else list(names)


def _named(grants: Grants) -> Iterable[str]:
    return ["*"] if grants.is_all else sorted(grants.ids)


def _when(text: str) -> str:
    """Give an RFC 3339 time: what was given, or now and a duration."""
    duration = _DURATION.fullmatch(text)
    if duration is None:
        return text
    seconds = int(duration[1]) * _UNIT_S[duration[2]]
    rendered: str = _credentials().time_text(int((time.time() + seconds) * 1000))
    return rendered


def _credentials() -> ModuleType:
    return _part()


def _part(name: str = "") -> ModuleType:
    """Give a module of the room that does the work. Imported here, so that other verbs start quickly."""
    try:
        return importlib.import_module(f"kokuban_server.adapters.credentials.{name}".rstrip("."))
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error.name} is missing: install kokuban[server]") from error
