"""The commands for tasks."""

from __future__ import annotations

import click

from kokuban_client.cli._connection import Connection, connected


@click.group()
def task() -> None:
    """Show tasks, what happened in them, and how they go on."""


@task.command("ls")
@connected
def list_tasks(connection: Connection) -> None:
    """Show the tasks that you may read."""
    from kokuban_client.cli import _task_printing as printing  # noqa: PLC0415 - `--help` does not need it

    with connection.client() as client:
        for one in client.board(connection.board_id).tasks():
            click.echo(printing.task_json(one) if connection.as_json else printing.task_line(one))


@task.command()
@click.argument("task_id", metavar="TASK")
@connected
def show(connection: Connection, *, task_id: str) -> None:
    """Show how a task, its steps and its subtasks stand."""
    from kokuban_client.cli import _task_printing as printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        found = client.board(connection.board_id).task(task_id)
    click.echo(printing.task_json(found) if connection.as_json else "\n".join(printing.task_lines(found)))


@task.command()
@click.argument("task_id", metavar="TASK")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="NUMBER", help="Only those after this one.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="At most so many.")
@connected
def events(connection: Connection, *, task_id: str, after: int, count: int | None) -> None:
    """Show what happened in a task, in order. Data from outside is left out."""
    from kokuban_client.cli import _task_printing as printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        for one in client.board(connection.board_id).task_events(task_id, after=after, count=count):
            click.echo(printing.event_json(one) if connection.as_json else printing.event_line(one))


@task.command()
@click.argument("task_id", metavar="TASK")
@click.option(
    "--answer", "answers", multiple=True, metavar="ID=TEXT", help="Answer an open question. As often as needed."
)
@click.option("--explain", is_flag=True, help="Say from where each unfinished step would go on.")
@connected
def resume(connection: Connection, *, task_id: str, answers: tuple[str, ...], explain: bool) -> None:
    """Answer a task's open questions, or say how it would go on."""
    from kokuban_client.cli import _task_printing as printing  # noqa: PLC0415 - as above

    given = dict(_answer(one) for one in answers)
    if not given and not explain:
        raise click.UsageError("give --answer ID=TEXT, or --explain")
    with connection.client() as client:
        board = client.board(connection.board_id)
        found = board.resume_task(task_id, given) if given else board.task(task_id)
        begins = [step.checkpoint_event or step.added_event for step in found.steps]
        behind = board.task_events(task_id, after=min(begins, default=0)) if explain else ()
    if connection.as_json:
        click.echo(printing.resumption_json(found, behind) if explain else printing.task_json(found))
    else:
        click.echo("\n".join(printing.resumption_lines(found, behind) if explain else printing.task_lines(found)))


@task.command()
@click.argument("task_id", metavar="TASK")
@click.argument("part", default="")
@click.option(
    "--for", "wait_s", type=click.FloatRange(1, 3_600), default=3_600.0, metavar="SECONDS", help="How long at most."
)
@connected
def wait(connection: Connection, *, task_id: str, part: str, wait_s: float) -> None:
    """Wait until a task is over, or PART of it: a step or a subtask."""
    from kokuban_client.cli import _task_printing as printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        found = client.board(connection.board_id).wait_for_task(task_id, part, wait_s=wait_s)
    click.echo(printing.part_json(found) if connection.as_json else printing.part_line(found))


@task.command()
@click.argument("task_id", metavar="TASK")
@click.argument("step")
@click.option("--reason", required=True, metavar="TEXT", help="Why another attempt has a point.")
@click.option(
    "--attempts", type=click.IntRange(1, 100), default=3, show_default=True, help="How many further ones it is given."
)
@connected
def revive(connection: Connection, *, task_id: str, step: str, reason: str, attempts: int) -> None:
    """Give a dead step further attempts."""
    from kokuban_client.cli import _task_printing as printing  # noqa: PLC0415 - as above

    with connection.client() as client:
        board = client.board(connection.board_id)
        board.revive_step(task_id, step, reason, attempts=attempts)
        found = board.task(task_id)
    click.echo(printing.task_json(found) if connection.as_json else "\n".join(printing.task_lines(found)))


def _answer(text: str) -> tuple[str, str]:
    name, equals, answer = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--answer wants ID=TEXT, and not {text!r}")
    return name, answer
