"""The commands for the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kokuban_client.cli._connection import EXIT_CODES, Connection, connected
from kokuban_client.cli._times import instant

if TYPE_CHECKING:
    from datetime import datetime


@click.group()
def audit() -> None:
    """Show the audit log, and see whether it is as it was written. For auditors and operators."""


@audit.command("ls")
@click.option("--by", "by", default="", metavar="AGENT", help="Only what this agent did or tried.")
@click.option("--act", default="", metavar="ACT", help="Only this act, for instance lock.break or access.refused.")
@click.option("--since", type=instant, metavar="TIME", help="Recorded then or later: 2026-11-30T08:00:00Z, or 2h ago.")
@click.option("--until", type=instant, metavar="TIME", help="Recorded before.")
@connected
def list_records(connection: Connection, *, by: str, act: str, since: datetime | None, until: datetime | None) -> None:
    """Show who did or tried what, when, why and from where, the oldest first.

    With --board, or KOKUBAN_BOARD, only what concerns that board.
    """
    from kokuban_client.cli import _audit_printing as printing  # noqa: PLC0415 - `--help` does not need it

    with connection.client() as client:
        for record in client.audit_records(
            board=connection.board or "", agent=by, act=act, begin=since, end=until, page_size=1000
        ):
            click.echo(printing.record_json(record) if connection.as_json else printing.record_line(record))


@audit.command()
@click.option(
    "--anchor", "anchor_hash", default="", metavar="HASH", help="The log must hold this anchor, which was kept."
)
@connected
def verify(connection: Connection, *, anchor_hash: str) -> None:
    """Say whether records are missing, were edited or stand elsewhere; exit code 9 if so.

    Reads the whole log: give a long one time with --timeout.
    """
    from kokuban_client.cli import _audit_printing as printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        verdict = client.verify_audit(anchor_hash=anchor_hash)
    click.echo(printing.verdict_json(verdict) if connection.as_json else "\n".join(printing.verdict_lines(verdict)))
    if verdict.fault_count:
        click.get_current_context().exit(EXIT_CODES["audit log broken"])
