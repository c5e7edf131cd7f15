"""The command that looks through the store."""

from __future__ import annotations

import click

from kokuban_client.cli._connection import EXIT_CODES, Connection, connected


@click.command()
@click.option("--repair", is_flag=True, help="Put right what can be. What lives is never touched.")
@connected
def doctor(connection: Connection, *, repair: bool) -> None:
    """Look through the server's store for records with which something is wrong. For operators.

    Shows each record, what is wrong with it, and what became of it; exit code 13 if anything is left that is wrong. The
    server that has the store does the work, while agents work: for a folder without a server, start `kokuban serve` on it.
    """
    from kokuban_client import types  # noqa: PLC0415 - `--help` does not need it
    from kokuban_client.cli import _doctor_printing as printing  # noqa: PLC0415 - as above

    examined: dict[str, int] = {}
    found: list[types.StoreFinding] = []
    with connection.client() as client:
        for page in client.examine_store(repair=repair):
            examined[page.record_class] = examined.get(page.record_class, 0) + page.examined_count
            for finding in page.findings:
                found.append(finding)
                click.echo(printing.finding_json(finding) if connection.as_json else printing.finding_line(finding))
    click.echo(printing.summary_json(examined, found) if connection.as_json else printing.summary_line(examined, found))
    if any(finding.outcome is not types.StoreFindingOutcome.REPAIRED for finding in found):
        click.get_current_context().exit(EXIT_CODES["store has findings"])
