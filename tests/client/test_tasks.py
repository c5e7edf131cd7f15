"""Steps of tasks by the library: claimed, interrupted, gone on with; and nothing that was recorded done twice."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import kokuban_client
from kokuban_client import (
    ActionInDoubt,
    EventType,
    InDoubt,
    LockLost,
    NewStep,
    NoStepReady,
    NotDone,
    NotOpen,
    StepStatus,
    TaskOver,
    TaskStatus,
    errors,
    sync,
)
from kokuban_client.cli import main

if TYPE_CHECKING:
    from kokuban_client import Board
    from kokuban_client.testing import ServerProcess


@pytest.fixture
def task(request: pytest.FixtureRequest) -> str:
    return "".join(character if character.isalnum() else "-" for character in request.node.name)


class Sender:
    """Something outside the board that counts."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(self, message: str = "hello") -> dict[str, int]:
        self.sent.append(message)
        return {"receipt": len(self.sent)}


async def test_a_step_is_claimed_worked_on_and_completed(board: Board, task: str) -> None:
    await board.create_task(task, "get it done", [NewStep("read", {"url": "x"}), NewStep("write", "w", ("read",))])
    async with board.claim_step(task) as step:
        assert (step.task, step.name, step.input, step.state, step.step.attempts) == (
            task,
            "read",
            {"url": "x"},
            None,
            1,
        )
        async with step.commit(reason="found") as commit:
            commit.put(f"task:{task}", "read/notes", {"n": 1}, must_not_exist=True)
            commit.note(step, "it is there", name="finding")
            commit.checkpoint(step, {"page": 3})
            commit.add_step(task, NewStep("check", "c", ("write",)))
            commit.complete(step, "read it all")
        assert not step.is_held
    with pytest.raises(errors.StepNotHeld):
        async with board.commit() as commit:
            commit.note(step, "too late")
    found = await board.task(task)
    assert [(one.name, one.status) for one in found.steps] == [
        ("read", StepStatus.DONE),
        ("write", StepStatus.PENDING),
        ("check", StepStatus.PENDING),
    ]
    for name in ("write", "check"):
        async with board.claim_step(task) as step:
            assert step.name == name
            await step.complete()
    assert (await board.task(task)).status is TaskStatus.COMPLETED
    assert task in [one.id for one in await board.tasks()]
    with pytest.raises(TaskOver):
        async with board.claim_step(task):
            pass


async def test_a_block_that_says_nothing_gives_the_step_back_and_one_that_raises_has_failed(
    board: Board, task: str
) -> None:
    await board.create_task(task, "g", [NewStep("a", "a", attempts_max=1)])
    async with board.claim_step(task):
        with pytest.raises(NoStepReady) as refused:
            async with board.claim_step(task):
                pass
        assert (refused.value.running, refused.value.waiting) == (1, 0)
    async with board.claim_step(task) as step:
        assert step.step.attempts == 1
    with pytest.raises(ZeroDivisionError):
        async with board.claim_step(task):
            _ = 1 / 0
    found = (await board.task(task)).steps[0]
    assert (found.status, found.dead_reason) == (StepStatus.DEAD, kokuban_client.DeadReason.ATTEMPTS_USED)
    last = (await board.task_events(task))[-1]
    assert (last.type, last.entry.metadata["error"]) == (
        EventType.STEP_DEAD,
        "ZeroDivisionError: division by zero",
    )


async def test_an_action_that_was_recorded_is_not_done_again_and_gives_its_result(board: Board, task: str) -> None:
    await board.create_task(task, "g", ["a"])
    sender = Sender()
    for _ in range(3):
        async with board.claim_step(task) as step:
            assert await step.run("send", sender.send, action_id="mail:1") == {"receipt": 1}
            assert await step.run("add", lambda: (1, "x")) == [1, "x"]  # in any run as it is read back
            await step.give_back()
    assert sender.sent == ["hello"]
    kinds = [event.type for event in await board.task_events(task) if event.id]
    assert kinds == [EventType.ACTION_STARTED, EventType.ACTION_DONE] * 2


async def test_each_call_of_a_decorated_function_is_an_action_by_what_it_is_called_with(
    board: Board, task: str
) -> None:
    await board.create_task(task, "g", ["a"])
    sender = Sender()
    for _ in range(2):
        async with board.claim_step(task) as step:

            @step.action("mail", action_id=lambda order, *, to: f"mail:{order}:{to}")
            async def mail(order: int, *, to: str) -> dict[str, int]:
                """Mail it."""
                return await sender.send(f"{order} to {to}")

            @step.action("add")
            def add() -> int:
                sender.sent.append("added")
                return 2

            assert mail.__doc__ == "Mail it."
            assert await mail(17, to="ann") == {"receipt": 1}
            assert await mail(17, to="bo") == {"receipt": 2}
            assert await mail(17, to="ann") == {"receipt": 1}
            assert await add() == 2
            await step.give_back()
    assert sender.sent == ["17 to ann", "17 to bo", "added"]


async def test_a_decorated_function_declares_what_becomes_of_it_in_doubt(board: Board, task: str) -> None:
    await board.create_task(task, "g", ["a"])
    called: list[str] = []
    for _ in range(2):
        async with board.claim_step(task) as step:

            @step.action("chat", if_in_doubt="skip")
            def chat() -> None:
                called.append("chat")
                raise TimeoutError

            if called:
                assert await chat() is None
            else:
                with pytest.raises(TimeoutError):
                    await chat()
    assert called == ["chat"]


async def test_a_decorated_function_with_arguments_needs_an_id_made_of_them(board: Board, task: str) -> None:
    await board.create_task(task, "g", ["a"])
    async with board.claim_step(task) as step:
        with pytest.raises(TypeError, match="action_id"):
            step.action("mail")(Sender().send)


async def test_an_action_that_has_certainly_not_happened_is_done_again(board: Board, task: str) -> None:
    await board.create_task(task, "g", ["a"])

    def fails() -> None:
        raise NotDone("no connection")

    async with board.claim_step(task) as step:
        with pytest.raises(NotDone):
            await step.run("send", fails)
        assert await step.run("send", Sender().send) == {"receipt": 1}
        await step.complete()
    failed = next(event for event in await board.task_events(task) if event.type is EventType.ACTION_FAILED)
    assert failed.entry.metadata["error"] == "NotDone: no connection"


async def test_an_action_in_doubt_goes_as_was_declared(board: Board, task: str) -> None:
    await board.create_task(task, "g", ["a"])
    sender = Sender()

    async def breaks(message: str) -> None:
        await sender.send(message)
        raise TimeoutError

    async def begin(policy: InDoubt) -> None:
        async with board.claim_step(task) as step:
            try:
                await step.run(policy.value, lambda: breaks(policy.value), if_in_doubt=policy)
            finally:
                await step.give_back()

    for policy in InDoubt:
        with pytest.raises(TimeoutError):
            await begin(policy)
    sender.sent.clear()
    async with board.claim_step(task) as step:
        assert [one.id for one in step.step.open_actions] == ["ask", "retry", "skip"]
        assert await step.run("retry", sender.send, if_in_doubt="retry") == {"receipt": 1}
        assert await step.run("skip", sender.send, if_in_doubt="skip") is None
        assert await step.run("skip", sender.send) is None
        with pytest.raises(ActionInDoubt) as doubt:
            await step.run("ask", sender.send)
        assert (doubt.value.action_id, doubt.value.if_in_doubt) == ("ask", InDoubt.ASK)
        await step.settle("ask", happened=True, result={"found": "it"})
        assert await step.run("ask", sender.send) == {"found": "it"}
        await step.complete()
    assert sender.sent == ["hello"]


async def test_a_result_from_outside_is_given_again_and_marks_what_follows(board: Board, task: str) -> None:
    await board.create_task(task, "g", ["a"])
    page = kokuban_client.Source("external", "https://example.com/birds")
    for _ in range(2):
        async with board.claim_step(task) as step:
            assert await step.run("fetch", lambda: "a page about birds", source=page) == "a page about birds"
    shown = next(event for event in await board.task_events(task) if event.type is EventType.ACTION_DONE)
    assert shown.entry.withheld


async def test_the_user_speaks_while_the_work_goes_on(board: Board, their_board: Board, task: str) -> None:
    await board.create_task(task, "g", ["a"])
    async with board.claim_step(task) as step:
        await step.checkpoint({"page": 3})
        async with their_board.commit() as commit:
            commit.constrain(task, "cc", "copy ann")
            commit.constrain(task, "old", "x")
        async with their_board.commit() as commit:
            commit.withdraw(task, "old")
        await step.ask("budget", "how much?")
        await step.give_back()
    with pytest.raises(NoStepReady):
        async with board.claim_step(task):
            pass
    with pytest.raises(NotOpen):
        await their_board.resume_task(task, {"budget": 100, "colour": "red"})
    found = await their_board.resume_task(task, {"budget": 100})
    assert [(one.id, bool(one.answered_event)) for one in found.interrupts] == [("budget", True)]
    async with board.claim_step(task) as step:
        assert step.state == {"page": 3}
        assert list(step.resume.constraints) == ["cc"]
        said = {event.number: event.entry.value for event in step.resume.events}
        assert said[step.resume.constraints["cc"]] == "copy ann"
        assert said[step.resume.interrupts[0].answered_event] == 100
        await step.complete()


async def test_what_is_recorded_after_the_lock_is_lost_is_refused(
    board: Board, supervisors_board: Board, task: str
) -> None:
    await board.create_task(task, "g", ["a"])

    async def lose() -> None:
        async with board.claim_step(task) as step:
            await supervisors_board.break_lock(step.lock.id, "to test", skip_lock_delay=True)
            await step.note("late")

    with pytest.raises(LockLost):
        await lose()
    async with board.claim_step(task) as step:
        assert step.step.attempts == 2
        await step.complete()


async def test_what_is_no_longer_held_when_the_intent_is_recorded_is_not_done(board: Board, task: str) -> None:
    await board.create_task(task, "g", ["a"])
    sender = Sender()

    async def begin() -> None:
        async with board.claim_step(task) as step:
            record = step._record

            async def late(*arguments: Any, **more: Any) -> None:  # noqa: ANN401 - those of the original
                await record(*arguments, **more)
                step._ends_s = 0.0  # the answer came after the longest hold

            step._record = late
            await step.run("send", sender.send)

    with pytest.raises(LockLost):
        await begin()
    assert sender.sent == []
    assert [one.id for one in (await board.task(task)).steps[0].open_actions] == ["send"]


async def test_a_cancelled_task_refuses_its_worker(board: Board, task: str) -> None:
    await board.create_task(task, "g", ["a"])

    async def finish_late() -> None:
        async with board.claim_step(task) as step:
            await board.cancel_task(task, "no longer wanted")
            await step.complete()

    with pytest.raises(TaskOver) as over:
        await finish_late()
    assert over.value.status == "CANCELLED"


async def test_another_configuration_is_told_or_refused(board: Board, task: str) -> None:
    await board.create_task(task, "g", ["a"], refuses_config=True)
    async with board.claim_step(task, config_fingerprint="v1") as step:
        await step.checkpoint({}, config_fingerprint="v1")
    with pytest.raises(errors.ConfigChanged):
        async with board.claim_step(task, config_fingerprint="v2"):
            pass


def test_a_step_by_threads(server: ServerProcess, task: str) -> None:
    with sync.connect(server.address, agent="writer-1") as client:
        board = client.board("main")
        board.create_task(task, "g", ["a"])
        with board.claim_step(task) as step:
            assert step.run("add", lambda: 1 + 1) == 2

            @step.action("double", action_id="double:{}".format)
            def double(number: int) -> int:
                return 2 * number

            assert (double(2), double(4)) == (4, 8)
            step.complete()
        assert board.task(task).status is TaskStatus.COMPLETED


# The command line.


async def test_tasks_on_the_command_line(
    server: ServerProcess, board: Board, task: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KOKUBAN_ADDRESS", server.address)
    monkeypatch.setenv("KOKUBAN_AGENT", "onlooker")

    async def run(*arguments: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, ["task", *arguments])
        return code, capfd.readouterr().out

    await board.create_task(task, "g", ["a", NewStep("b", "b", ("a",))])
    async with board.claim_step(task) as step:
        await step.checkpoint("half")
        await step.run("send", lambda: "sent\x1b[31m")
        with pytest.raises(ZeroDivisionError):
            await step.run("count", lambda: 1 / 0)
        await step.ask("budget", "how much?")
        code, shown = await run("show", task)
        assert code == 0
        assert f"{task}  open  0 of 2 steps done" in shown
        assert "a  running  attempt 1 of 3  checkpoint 5" in shown
        assert "in doubt: count (event 8, ask)" in shown
        await step.give_back()
    _, told = await run("resume", task, "--explain")
    assert "a would go on from checkpoint 5, with 5 events behind it" in told
    assert "not again: send (event 7)" in told
    assert "somebody has to find out: count (event 8)" in told
    assert "waits for an answer: budget (event 9)" in told
    _, as_json = await run("resume", task, "--explain", "--json")
    assert json.loads(as_json)["resumptions"][0]["recorded_actions"] == [{"id": "send", "event": 7}]
    _, listed = await run("events", task, "--after", "5", "-n", "2")
    first, second = listed.splitlines()
    assert first.startswith("6  ")
    assert "action_done  a  send  sent\\x1b[31m" in second
    code, _ = await run("resume", task, "--answer", "budget=100")
    assert code == 0
    assert (await run("resume", task, "--answer", "budget=100"))[0] == 5
    assert (await run("resume", task))[0] == 2
    assert (await run("show", "none"))[0] == 4
    _, everything = await run("ls", "--json")
    assert task in [json.loads(line)["id"] for line in everything.splitlines()]
