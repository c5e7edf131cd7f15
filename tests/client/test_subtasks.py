"""Subtasks and revived steps by the library and on the command line."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import (
    EventType,
    NewStep,
    NotOpen,
    StepCounts,
    StepNotDead,
    StepStatus,
    SubtaskNotReady,
    SubtaskStatus,
    TaskPart,
    TaskStatus,
    errors,
    sync,
)
from kokuban_client.cli import main
from tests.client.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kokuban_client import Board
    from kokuban_client.testing import ServerProcess


@pytest.fixture
def task(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).replace("_", "-")


@pytest.fixture
async def onlooker(server: ServerProcess) -> AsyncIterator[Board]:
    """The board as another agent sees it, with a session of its own."""
    async with kokuban_client.connect(server.address, agent="onlooker") as client:
        yield client.board("main")


async def test_a_subtask_is_the_business_of_the_step_that_opened_it(board: Board, task: str) -> None:
    await board.create_task(task, "a trip", ["plan"])
    async with board.claim_step(task) as plan:
        async with plan.commit() as tx:
            tx.open_subtask(task, "flights", "find one", step=plan)
            tx.add_step(task, NewStep("flights/search", "two airlines"))
            tx.subtask_checkpoint(task, "flights", {"asked": 1}, config_fingerprint="v2")
        with pytest.raises(errors.TaskRefused, match="STEP_NOT_HELD"):
            await board.complete_subtask(task, "flights", "none")
        async with board.claim_step(task) as search:
            goal, last = search.resume.subtask, search.resume.subtask_checkpoint
            assert goal is not None
            assert last is not None
            assert (goal.entry.value, last.entry.value) == ("find one", {"asked": 1})
            with pytest.raises(SubtaskNotReady) as refused:
                await plan.board.complete_subtask(task, "flights", "none")
            assert (refused.value.steps, refused.value.subtasks) == (1, 0)
            await board.put(f"task:{task}", "flights/notes/prices", "17: 200", must_not_exist=True)
            await search.complete("17")
        await plan.board.complete_subtask(
            task, "flights", "flight 17", results=[{"flight": 17}], lessons=["ask early", "ask twice"], notes_ttl_s=60
        )
        await plan.complete()
    found = await board.task(task)
    flights = found.subtasks[0]
    assert (found.status, flights.status, flights.step) == (TaskStatus.COMPLETED, SubtaskStatus.COMPLETED, "plan")
    assert (flights.all_steps, found.own_steps) == (StepCounts(0, 0, 1, 0), StepCounts(0, 0, 1, 0))
    events = {event.number: event for event in await board.task_events(task)}
    numbers = [*flights.result_events, *flights.lesson_events, flights.completed_event]
    assert [events[number].entry.value for number in numbers] == [
        {"flight": 17},
        "ask early",
        "ask twice",
        "flight 17",
    ]
    assert events[flights.completed_event].type is EventType.SUBTASK_COMPLETED

    async def is_to_expire() -> bool:
        return (await board.get(f"task:{task}", "flights/notes/prices")).expire_time is not None

    await until(is_to_expire, 30)


async def test_a_dead_step_is_revived(board: Board, task: str) -> None:
    await board.create_task(task, "g", [NewStep("a", "x", attempts_max=1)])
    with pytest.raises(StepNotDead):
        await board.revive_step(task, "a", "too early")
    async with board.claim_step(task) as step:
        await step.fail("no page")
    await board.revive_step(task, "a", "the page is back", attempts=1)
    async with board.claim_step(task) as step:
        assert (step.step.attempts, step.step.attempts_max) == (2, 2)
        await step.complete()
    assert (await board.task(task)).steps[0].status is StepStatus.DONE


async def test_threads_have_subtasks_too(server: ServerProcess, task: str) -> None:
    def work() -> None:
        with sync.connect(server.address, agent="thread") as client:
            board = client.board("main")
            board.create_task(task, "g")
            board.open_subtask(task, "s", "a part")
            board.complete_subtask(task, "s", "done")
            assert board.task(task).status is TaskStatus.COMPLETED

    await asyncio.to_thread(work)


async def test_the_tree_of_a_task_on_the_command_line(
    server: ServerProcess, board: Board, task: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KOKUBAN_ADDRESS", server.address)
    monkeypatch.setenv("KOKUBAN_AGENT", "onlooker")

    async def run(*arguments: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, ["task", *arguments])
        return code, capfd.readouterr().out

    await board.create_task(task, "g", ["a", "s/b", "s/t/c"])
    await board.open_subtask(task, "s", "a part")
    await board.open_subtask(task, "s/t", "a part of it")
    for _ in range(2):
        async with board.claim_step(task) as step:
            await (step.complete() if step.name == "a" else step.fail("no", for_good=True))
    _, shown = await run("show", task)
    assert [line[: len(line) - len(line.lstrip())] + line.split()[0] for line in shown.splitlines()[1:]] == [
        "  a",
        "  s/",
        "    s/b",
        "    s/t/",
        "      s/t/c",
    ]
    assert f"{task}  open  1 of 3 steps done, 1 dead" in shown
    assert "  s/  open  0 of 2 steps done, 1 dead\n" in shown
    code, _ = await run("revive", task, "s/b", "--reason", "the page is back", "--attempts", "2")
    assert code == 0
    assert (await board.task(task)).steps[1].attempts_max == 3
    assert (await run("revive", task, "s/b", "--reason", "again"))[0] == 5
    assert (await run("revive", task, "s/b"))[0] == 2
    async with board.claim_step(task) as step:
        assert step.name == "s/b"
        async with step.commit() as tx:
            tx.add_step(task, NewStep("after", "x", ("a", "s/b", "s")))
        _, told = await run("resume", task, "--explain")
        assert "\n  waits for: s/b (running), s (open)\n" in f"{told}\n"
        _, as_json = await run("resume", task, "--explain", "--json")
        assert json.loads(as_json)["resumptions"][-1]["waits_for"] == {"s/b": "running", "s": "open"}
        await step.give_back()
    _, as_json = await run("show", task, "--json")
    told = json.loads(as_json)["subtasks"]
    assert [(one["name"], one["parent"], one["all_steps"]["pending"]) for one in told] == [
        ("s", "", 2),
        ("s/t", "s", 1),
    ]
    with pytest.raises(NotOpen):
        await board.complete_subtask(task, "none", "x")


async def test_a_wait_ends_with_what_it_is_for(board: Board, task: str, onlooker: Board) -> None:
    await board.create_task(task, "g", ["a"])
    heard: list[TaskPart] = []
    waiting = asyncio.ensure_future(onlooker.wait_for_task(task, "a", on_change=heard.append))
    async with board.claim_step(task) as step:
        async with asyncio.timeout(30):
            while not any(part.step_status is StepStatus.RUNNING for part in heard):  # noqa: ASYNC110 - of another connection
                await asyncio.sleep(0.01)
        await step.complete()
    part = await waiting
    assert (part.over, part.step_status, part.ended_event) == (True, StepStatus.DONE, 4)
    assert (await onlooker.wait_for_task(task)).task_status is TaskStatus.COMPLETED
    with pytest.raises(errors.NotFound):
        await board.wait_for_task(task, "none")
    with pytest.raises(ValueError, match="wait_s"):
        await board.wait_for_task(task, wait_s=0.5)


async def test_a_wait_that_is_cancelled_is_withdrawn_and_a_circle_is_told(
    board: Board, task: str, onlooker: Board
) -> None:
    other = f"{task}-2"
    for name in (task, other):
        await board.create_task(name, "g", ["a"])
    async with board.claim_step(task), onlooker.claim_step(other):
        begun = asyncio.Event()
        older = asyncio.ensure_future(board.wait_for_task(other, on_change=lambda _: begun.set()))
        await begun.wait()
        with pytest.raises(errors.Deadlock) as refused:
            await onlooker.wait_for_task(task, "a", wait_s=30)
        assert {edge.agent for edge in refused.value.cycle} >= {"onlooker"}
        older.cancel()
        with pytest.raises(errors.LockWaitExpired):
            await onlooker.wait_for_task(task, "a", wait_s=1)


async def test_waiting_on_the_command_line(
    server: ServerProcess, board: Board, task: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KOKUBAN_ADDRESS", server.address)
    monkeypatch.setenv("KOKUBAN_AGENT", "onlooker")
    await board.create_task(task, "g", ["a"])
    async with board.claim_step(task) as step:
        waiting = asyncio.create_task(asyncio.to_thread(main, ["task", "wait", task, "a"]))
        await step.complete()
    assert await waiting == 0
    assert capfd.readouterr().out == "done  event 4\n"
    assert await asyncio.to_thread(main, ["task", "wait", task, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["task_status"] == "completed"
    assert await asyncio.to_thread(main, ["task", "wait", task, "none"]) == 4
