"""Tasks over two servers on one etcd: each step has one worker, and one log has one order."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from kokuban_client import (
    AlreadyExists,
    Deadlock,
    EventType,
    InDoubt,
    NoStepReady,
    NotFound,
    StepStatus,
    TaskArchived,
    TaskStatus,
)
from kokuban_client.archives import NewArchive, TaskArchive
from kokuban_client.errors import ArchiveMismatch

if TYPE_CHECKING:
    from pathlib import Path

    from kokuban_client import Board
    from tests.replicas.conftest import Connections
    from tests.replicas.pair import Pair

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(180)]
WORKERS = 12
STEPS = 5
ROUNDS = 10


@pytest.fixture
async def workers(pair: Pair, connect: Connections) -> list[Board]:
    """Workers at one server and the other by turns."""
    return [await connect((pair.a, pair.b)[number % 2], f"worker-{number}") for number in range(WORKERS)]


async def test_of_workers_at_two_servers_each_is_given_another_step_or_none(workers: list[Board]) -> None:
    for number in range(ROUNDS):
        task = f"race-{number}"
        await workers[0].create_task(task, "race", [f"s{n}" for n in range(STEPS)])
        asked = [0]
        everybody = asyncio.Event()

        async def race(
            board: Board, task: str = task, asked: list[int] = asked, all_in: asyncio.Event = everybody
        ) -> str:
            """Ask for a step, and hold it until everybody has asked."""
            try:
                async with board.claim_step(task) as step:
                    _count(asked, all_in)
                    await all_in.wait()
                    await step.complete(board.id)
                    return step.name
            except NoStepReady as refused:
                _count(asked, all_in)
                assert refused.running == STEPS
                return ""

        given = await asyncio.gather(*map(race, workers))
        assert sorted(filter(None, given)) == [f"s{n}" for n in range(STEPS)]
        found = await workers[1].task(task)
        assert found.status is TaskStatus.COMPLETED
        assert [step.attempts for step in found.steps] == [1] * STEPS
        events = await workers[1].task_events(task)
        assert [event.number for event in events] == list(range(1, 2 + 3 * STEPS))


def _count(asked: list[int], everybody: asyncio.Event) -> None:
    asked[0] += 1
    if asked[0] == WORKERS:
        everybody.set()


async def test_two_servers_write_one_log_without_gaps_and_doubles(workers: list[Board]) -> None:
    task = "one-log"
    await workers[0].create_task(task, "write", [f"s{n}" for n in range(4)])

    async def write(board: Board) -> None:
        async with board.claim_step(task) as step:
            for n in range(10):
                await step.note(f"{step.name} {n}")
            await step.complete()

    await asyncio.gather(*map(write, workers[:4]))
    events = await workers[1].task_events(task)
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    for name in ("s0", "s1", "s2", "s3"):
        said = [event.entry.value for event in events if event.step == name and event.type is EventType.NOTE]
        assert said == [f"{name} {n}" for n in range(10)]


async def test_a_step_is_gone_on_with_at_the_other_server_when_the_first_is_killed(
    fragile_pair: Pair, connect: Connections
) -> None:
    first, second = await connect(fragile_pair.a, "first"), await connect(fragile_pair.b, "second")
    await first.create_task("moves", "send", ["a"])
    sent: list[str] = []

    async def until_it_is_killed() -> None:
        async with first.claim_step("moves", lock_delay_s=0, session=session, timeout_s=5) as step:
            await step.run("one", lambda: sent.append("one"))
            await step.checkpoint({"sent": 1})
            fragile_pair.a.kill()
            await step.run("two", lambda: sent.append("two"), if_in_doubt=InDoubt.RETRY)

    async with first.session(ttl_s=2.0) as session:
        with pytest.raises(Exception):  # noqa: B017, PT011 - its server is gone, and soon its session: whichever shows first
            await until_it_is_killed()
    async with asyncio.timeout(60):
        while (await second.task("moves")).steps[0].held:  # noqa: ASYNC110 - what is waited for is asked of a server
            await asyncio.sleep(0.1)
        step = second.claim_step("moves")
        async with step:
            assert (step.step.attempts, step.state) == (2, {"sent": 1})
            assert await step.run("one", lambda: sent.append("one")) is None
            await step.run("two", lambda: sent.append("two"), if_in_doubt=InDoubt.RETRY)
            await step.complete()
    assert sent == ["one", "two"]
    found = await second.task("moves")
    assert found.steps[0].status is StepStatus.DONE


async def test_workers_at_two_servers_that_wait_for_each_others_steps_are_told(
    pair: Pair, connect: Connections
) -> None:
    """The older wait goes on, and ends when the victim has let go."""
    first, second = await connect(pair.a, "waits-first"), await connect(pair.b, "waits-second")
    for task in ("circle-1", "circle-2"):
        await first.create_task(task, "wait", ["a"])
    begun = asyncio.Event()
    async with first.claim_step("circle-1"):
        async with second.claim_step("circle-2") as step:
            older = asyncio.ensure_future(
                first.wait_for_task("circle-2", "a", wait_s=60, on_change=lambda _: begun.set())
            )
            await begun.wait()
            with pytest.raises(Deadlock) as refused:
                await second.wait_for_task("circle-1", wait_s=60)
            assert [edge.agent for edge in refused.value.cycle] == ["waits-second", "waits-first"]
            await step.complete()
        assert (await older).step_status is StepStatus.DONE


async def test_a_task_that_is_written_to_at_both_servers_is_archived_with_all_of_it_or_not_at_all(
    workers: list[Board], tmp_path: Path
) -> None:
    """Writers at both servers, who stop after a while, and one who archives what it has just exported until that succeeds.

    Then both restore it at once.
    """
    task, file = "archived", tmp_path / "task.jsonl"
    await workers[0].create_task(task, "write", ["a"])
    acknowledged: list[str] = []
    is_begun = asyncio.Event()

    async def write(board: Board, who: int) -> None:
        for n in range(30):
            try:
                await board.put(f"task:{task}", f"{who}/{n}", "x", must_not_exist=True)
            except TaskArchived as refused:
                if refused.phase == "preparing":
                    continue
                return
            acknowledged.append(f"{who}/{n}")
            if n == 5:
                is_begun.set()

    async def archive(board: Board) -> None:
        await is_begun.wait()
        while True:
            with contextlib.suppress(ArchiveMismatch):
                with NewArchive(file) as made:
                    await board.export_task(task, made.write)
                await board.archive_task(task, TaskArchive(file).digest)
                return

    await asyncio.gather(write(workers[0], 0), write(workers[1], 1), archive(workers[2]))
    restored = await asyncio.gather(
        *[board.restore_task(TaskArchive(file)) for board in workers[:2]], return_exceptions=True
    )
    assert 0 in restored
    assert all(one == 0 or isinstance(one, AlreadyExists | NotFound) for one in restored), restored
    entries = [entry.key.path async for entry in workers[1].list(f"task:{task}") if not entry.key.path.startswith(".")]
    assert sorted(entries) == sorted(acknowledged)
