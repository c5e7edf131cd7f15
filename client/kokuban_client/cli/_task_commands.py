"""The commands for tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kokuban_client.cli._connection import Connection, connected

if TYPE_CHECKING:
    from kokuban_client.archives import TaskArchive
    from kokuban_client.sync import Board


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


@task.command("why-repeated")
@click.argument("task_id", metavar="TASK")
@click.argument("action", default="")
@connected
def why_repeated(connection: Connection, *, task_id: str, action: str) -> None:
    """Say why an action was done again: what was written of it, whether it was read, and whether it was used.

    Without ACTION, of all that were begun more than once or look alike.
    """
    from kokuban_client.cli import _repetitions  # noqa: PLC0415 - as above

    with connection.client() as client:
        happened = client.board(connection.board_id).task_events(task_id)
    found = _repetitions.repetitions(happened, action)
    if connection.as_json:
        for one in found:
            click.echo(_repetitions.repetition_json(one))
    else:
        click.echo("\n".join(_repetitions.repetition_lines(task_id, found, action)))


_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@task.command("export")
@click.argument("task_id", metavar="TASK")
@_FILE
@connected
def export(connection: Connection, *, task_id: str, file: Path) -> None:
    """Write a task down in a file, which must not be there yet."""
    if file.exists():
        raise click.UsageError(f"{file} is there already")
    with connection.client() as client:
        archive = _exported(client.board(connection.board_id), task_id, file)
    _tell(archive, f"{task_id} is in {file}", as_json=connection.as_json)


@task.command("archive")
@click.argument("task_id", metavar="TASK")
@_FILE
@connected
def archive_task(connection: Connection, *, task_id: str, file: Path) -> None:
    """Write a task down in a file, and remove it from the board. Its id is not used again; `restore` brings it back.

    If the file is there already it must be an archive of the task as it stands, for instance of a try whose answer was lost.
    """
    from kokuban_client.archives import TaskArchive  # noqa: PLC0415 - as above

    with connection.client() as client:
        board = client.board(connection.board_id)
        archive = TaskArchive(file) if file.exists() else _exported(board, task_id, file)
        if (archive.board, archive.task) != (board.id, task_id):
            raise click.UsageError(f"{file} is an archive of {archive.task} on {archive.board}")
        board.archive_task(task_id, archive.digest)
    _tell(archive, f"{task_id} is in {file}, and removed from the board", as_json=connection.as_json)


@task.command()
@_FILE
@connected
def restore(connection: Connection, *, file: Path) -> None:
    """Bring a task back that was archived. Goes on where a try before was interrupted."""
    from kokuban_client.archives import TaskArchive  # noqa: PLC0415 - as above

    if not file.exists():
        raise click.UsageError(f"{file} is not there")
    archive = TaskArchive(file)
    with connection.client() as client:
        left_out = client.board(connection.board_id).restore_task(archive)
    rest = f"; {left_out} left out, as they were removed from the board since" if left_out else ""
    _tell(archive, f"{archive.task} is back{rest}", as_json=connection.as_json, left_out=left_out)


def _exported(board: Board, task_id: str, file: Path) -> TaskArchive:
    from kokuban_client.archives import NewArchive, TaskArchive  # noqa: PLC0415 - as above

    with NewArchive(file) as made:
        board.export_task(task_id, made.write)
    return TaskArchive(file)


def _tell(archive: TaskArchive, words: str, *, as_json: bool | None, **more: int) -> None:
    from kokuban_client.cli._printing import dump, escaped  # noqa: PLC0415 - as above

    if as_json:
        click.echo(dump({**archive.manifest, **more}))
    else:
        counts = f"{archive.manifest['events']} events, {archive.manifest['entries']} entries"
        click.echo(f"{escaped(words)} ({counts}, digest {archive.digest[:12]})")


def _answer(text: str) -> tuple[str, str]:
    name, equals, answer = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--answer wants ID=TEXT, and not {text!r}")
    return name, answer
