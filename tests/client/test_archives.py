"""Tasks archived into files and brought back, by the library and on the command line; and killed servers in between."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import EventType, InDoubt, StepStatus, errors
from kokuban_client.archives import NewArchive, TaskArchive
from kokuban_client.cli import main
from kokuban_client.testing import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from kokuban_client import Board


@pytest.fixture
def task(request: pytest.FixtureRequest) -> str:
    """A task of the test's own."""
    return "".join(character if character.isalnum() else "-" for character in request.node.name)


@pytest.fixture
def run(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Awaitable[tuple[int, str, str]]]:
    """Run a command for tasks; give its exit code and what it printed."""
    monkeypatch.setenv("KOKUBAN_ADDRESS", server.address)
    monkeypatch.setenv("KOKUBAN_AGENT", "writer-1")

    async def run(*arguments: object) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, ["task", *map(str, arguments)])
        out, err = capfd.readouterr()
        return code, out, err

    return run


async def lived(board: Board, task: str) -> None:
    await board.create_task(task, "send three messages", ["send"])
    async with board.claim_step(task) as step:
        await step.run("send", lambda: "sent as 4711", action_id="mail:17")
        await step.checkpoint({"sent": 1})
        await step.board.put(f"task:{task}", "send/notes", "one\nof „three“\u2028", must_not_exist=True)


async def test_a_task_goes_into_a_file_and_comes_back_the_same(
    board: Board, task: str, tmp_path: Path, run: Callable[..., Awaitable[tuple[int, str, str]]]
) -> None:
    await lived(board, task)
    file, again = tmp_path / "task.jsonl", tmp_path / "again.jsonl"
    code, told, _ = await run("archive", task, file)
    assert code == 0
    assert told.startswith(f"{task} is in {file}, and removed from the board (7 events, 1 entries, digest ")
    assert (await run("show", task))[0] == 5
    assert names_in(tmp_path) == ["task.jsonl"]
    code, told, _ = await run("restore", file, "--json")
    assert (code, json.loads(told)["task"], json.loads(told)["left_out"]) == (0, task, 0)
    assert (await run("export", task, again))[0] == 0
    lines, lines_again = file.read_bytes().splitlines(), again.read_bytes().splitlines()
    assert lines_again[:-1] == lines[:-1]
    assert json.loads(lines_again[-1]) | {"token": ""} == json.loads(lines[-1]) | {"token": ""}
    async with board.claim_step(task) as step:
        assert step.state == {"sent": 1}
        assert await step.run("send", lambda: pytest.fail("sent twice"), action_id="mail:17") == "sent as 4711"
        await step.complete()


async def test_an_archive_whose_answer_was_lost_is_gone_on_with(
    board: Board, task: str, tmp_path: Path, run: Callable[..., Awaitable[tuple[int, str, str]]]
) -> None:
    await lived(board, task)
    file = tmp_path / "task.jsonl"
    assert (await run("export", task, file))[0] == 0
    assert (await run("export", task, file))[0] == 2
    assert (await run("archive", "another", file))[0] == 2
    assert (await run("archive", task, file))[0] == 0
    assert (await run("archive", task, file))[0] == 0
    assert (await run("restore", file))[0] == 0
    assert (await run("restore", file))[0] != 0
    await board.put(f"task:{task}", "more", "x", must_not_exist=True)
    code, _, err = await run("archive", task, file)
    assert code == 5
    assert "ARCHIVE_MISMATCH" in err
    assert (await board.task(task)).steps[0].status is StepStatus.PENDING


@pytest.mark.parametrize(
    ("harm", "line"),
    [
        (lambda lines: [*lines[:3], lines[3] + b" ", *lines[4:]], 4),
        (lambda lines: [*lines[:3], *lines[4:]], 4),
        (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], 4),
        (lambda lines: [*lines[:4], lines[3], *lines[4:]], 5),
        (lambda lines: lines[:-1], 10),
        (lambda lines: [*lines[:-2], lines[-1]], 9),
        (lambda lines: [*lines[:3], b"{", *lines[4:]], 4),
        (lambda lines: [b"[" * 100_000], 1),
        (lambda _lines: [], 0),
    ],
    ids=["changed", "left out", "moved", "repeated", "cut", "last left out", "not JSON", "deep", "empty"],
)
async def test_a_file_that_is_not_whole_is_refused_by_the_line(
    board: Board,
    task: str,
    tmp_path: Path,
    harm: Callable[[list[bytes]], list[bytes]],
    line: int,
    run: Callable[..., Awaitable[tuple[int, str, str]]],
) -> None:
    await lived(board, task)
    file = tmp_path / "task.jsonl"
    with NewArchive(file) as made:
        await board.export_task(task, made.write)
    lines = file.read_bytes().splitlines()
    assert len(lines) == 11
    file.write_bytes(b"\n".join(harm(lines)))
    with pytest.raises(errors.ArchiveInvalid) as refused:
        TaskArchive(file)
    assert refused.value.line == line
    code, _, err = await run("restore", file)
    assert code == 5
    assert f"line={line}" in err


def test_a_file_is_there_when_all_of_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        _cut_short(tmp_path / "task.jsonl")
    assert names_in(tmp_path) == []


def _cut_short(file: Path) -> None:
    with NewArchive(file) as made:
        made.write("{}")
        raise ZeroDivisionError


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.timeout(120)
async def test_a_server_that_is_killed_while_it_archives_or_restores_loses_nothing(tmp_path: Path) -> None:
    await _killed(tmp_path, rounds=1)


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_servers_killed_again_and_again_while_they_archive_and_restore_lose_nothing(tmp_path: Path) -> None:
    await _killed(tmp_path, rounds=12)


async def _killed(tmp_path: Path, rounds: int) -> None:
    """SIGKILL at another moment of an archive, and of the restore after it, in each round; the client goes on by itself."""
    file = tmp_path / "task.jsonl"
    with ServerProcess(store=f"sqlite:{tmp_path / 'store'}") as server:
        async with kokuban_client.connect(server.address, agent="writer-1") as client:
            board = client.board("main")
            await board.create_task("t1", "much", ["a"])
            for begin in range(0, 300, 30):
                async with board.commit() as changes:
                    for n in range(begin, begin + 30):
                        changes.put("task:t1", f"notes/{n}", "x" * 1_000, must_not_exist=True)
            with NewArchive(file) as made:
                await board.export_task("t1", made.write)
            archive = TaskArchive(file)
            for number in range(rounds):
                await _over_a_kill(server, board, number, board.archive_task("t1", archive.digest))
                with pytest.raises(errors.TaskArchived):
                    await board.task("t1")
                await _over_a_kill(server, board, number, board.restore_task(archive))
            lines: list[str] = []
            await board.export_task("t1", lines.append)
    assert [line.encode() for line in lines[:-1]] == file.read_bytes().splitlines()[:-1]


async def _over_a_kill(server: ServerProcess, board: Board, number: int, act: Coroutine[None, None, object]) -> None:
    acting = asyncio.create_task(act)
    for _ in range(1 + 3 * number):  # answers of the server: a moment that is another in each round
        await board.locks("shared:other")
    server.kill()
    await asyncio.to_thread(server.start)
    await acting


# Why an action was repeated.


async def test_why_repeated_tells_what_was_written_read_and_used(
    board: Board,
    supervisors_board: Board,
    task: str,
    run: Callable[..., Awaitable[tuple[int, str, str]]],
) -> None:
    await board.create_task(task, "send", ["send", "again"])
    with pytest.raises(ZeroDivisionError):
        async with board.claim_step(task) as step:
            await step.run("mail", lambda: 1 / 0, action_id="mail:17", if_in_doubt=InDoubt.RETRY)
    async with board.claim_step(task) as step:
        assert await step.run("mail", lambda: "sent", action_id="mail:17", if_in_doubt=InDoubt.RETRY) == "sent"
        with pytest.raises(errors.NotDone):
            await step.run("call", _not_done, action_id="call:1")
        assert await step.run("call", lambda: "called", action_id="call:1") == "called"
        await step.complete()
    code, told, _ = await run("why-repeated", task)
    assert code == 0
    assert told.splitlines() == [
        "mail:17 in send was begun 2 times",
        "  event 5: mail:17 in send, attempt 1, by writer-1",
        "  event 8: mail:17 in send, attempt 2, by writer-1",
        "    written: that it begins (event 5); no result",
        "    read: the claim (event 7) gave it to its worker, with all that was written until then",
        "    used: yes: its attempt failed (event 6) before a result was recorded, and `retry` was declared for that",
        "call:1 in send was begun 2 times",
        "  event 10: call:1 in send, attempt 2, by writer-1",
        "  event 12: call:1 in send, attempt 2, by writer-1",
        "    written: that it begins (event 10), and action_failed (event 11, attempt 2, by writer-1)",
        "    read: the claim (event 7) is older than that: the same attempt had it begun twice",
        "    used: yes: it was recorded that it has not happened, so it was begun again",
    ]
    _, told, _ = await run("why-repeated", task, "call:1", "--json")
    (one,) = [json.loads(line) for line in told.splitlines()]
    assert (one["action"], one["is_one_action"]) == ("call:1", True)
    assert [(begun["event"], begun["why"]) for begun in one["begun"]] == [(10, None), (12, "not_done")]
    _, told, _ = await run("why-repeated", task, "none")
    assert told == f"none was not begun more than once in {task}, and none with the same data looks like it\n"


def _not_done() -> None:
    raise errors.NotDone("the line was busy")


async def test_why_repeated_finds_one_act_under_two_ids_and_in_two_steps(
    board: Board, task: str, run: Callable[..., Awaitable[tuple[int, str, str]]]
) -> None:
    """Ids made of a model's tool calls: the second attempt makes another one, and so does all of it again."""
    await board.create_task(task, "send", ["a", "b"])
    for action_id in ("call_x1", "call_y2"):
        async with board.claim_step(task) as step:
            await step.run("mail", lambda: "sent", action_id=action_id)
            await step.fail("the model was cut off") if action_id == "call_x1" else await step.complete()
    async with board.claim_step(task) as step:
        await step.run("mail", lambda: "sent", action_id="call_y2")
        await step.run("other", lambda: "sent", action_id="call_z3")
    _, told, _ = await run("why-repeated", task)
    lines = told.splitlines()
    digest = hashlib.sha256(b"mail").hexdigest()
    assert lines[0] == f"these may be one action: all were begun with the same data (sha256 {digest[:12]})"
    assert lines[1] == "  event 5: call_x1 in a, attempt 1, by writer-1"
    assert lines[2] == "  event 9: call_y2 in a, attempt 2, by writer-1"
    assert lines[3] == "    written: that it begins (event 5), and action_done (event 6, attempt 1, by writer-1)"
    assert lines[4].startswith("    read: the claim (event 8) gave it to its worker")
    assert lines[5].startswith("    used: no: it is another action, as it has another id.")
    assert lines[-1] == "    used: no: it is another action, as it was begun in another step"
    assert "call_z3" not in told
    _, told, _ = await run("why-repeated", task, "--json")
    (one,) = [json.loads(line) for line in told.splitlines()]
    assert [begun["why"] for begun in one["begun"]] == [None, "other_id", "other_step"]
    assert one["data_sha256"] == digest
    assert [begun["result"]["type"] for begun in one["begun"]] == [EventType.ACTION_DONE.value] * 3
