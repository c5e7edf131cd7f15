"""Subtasks: opened, counted, gone on with, completed; and what becomes of their working notes. Dead steps that are revived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kokuban.v1 import commit_pb2, entry_pb2, task_pb2
from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.core.names import parse_region
from kokuban_server.records.task_codec import encode_notes
from tests.wire.calls import START_MS, Kept, lasting, of_source, put, records, refused, rule, whatever
from tests.wire.task_calls import (
    LESSON,
    NOTE,
    RESULT,
    Tasks,
    add_step,
    checkpoint,
    complete,
    complete_subtask,
    happened,
    new_step,
    open_subtask,
    revive,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import Agent, SettableClock
    from tests.wire.conftest import Running, Started

DAY_MS = 24 * 3_600 * 1_000


async def worker(running: Running, name: str = "writer-1") -> Tasks:
    return Tasks.of(await running.join(name))


async def subtask(tasks: Tasks, name: str, task: str = "t1") -> task_pb2.Subtask:
    return next(one for one in (await tasks.get(task)).subtasks if one.subtask == name)


def counted(of: task_pb2.StepCounts) -> tuple[int, int, int, int]:
    return of.pending, of.running, of.done, of.dead


async def test_a_subtask_goes_from_its_opening_to_its_summary(on_any_store: Running) -> None:
    tasks = await worker(on_any_store)
    await tasks.create("t1", "plan")
    plan = await tasks.claim("t1")
    await tasks.record(
        plan.granted.fence,
        open_subtask("t1", "sub_02", step="plan", goal="find flights"),
        add_step("t1", "sub_02/search"),
        add_step("t1", new_step("sub_02/book", "sub_02/search", "plan")),
        checkpoint("t1", "", "two airlines left", "v2", subtask="sub_02"),
        complete("t1", "plan"),
    )
    task = await tasks.get("t1")
    opened = task.subtasks[0]
    assert (opened.subtask, opened.parent, opened.status, opened.step) == (
        "sub_02",
        "",
        task_pb2.SUBTASK_STATUS_OPEN,
        "plan",
    )
    assert (opened.opened_event, opened.checkpoint_event, opened.config_fingerprint) == (4, 7, "v2")
    assert (counted(opened.own_steps), counted(task.own_steps), counted(task.all_steps)) == (
        (2, 0, 0, 0),
        (0, 0, 1, 0),
        (2, 0, 1, 0),
    )

    search = await tasks.claim("t1")
    assert search.step.step == "sub_02/search"
    assert search.resume.subtask.entry.value.text == "find flights"
    assert search.resume.subtask_checkpoint.entry.value.text == "two airlines left"
    assert (search.resume.subtask.id, search.resume.subtask.step) == ("sub_02", "plan")
    with refused("SUBTASK_NOT_READY", field="mutations[0].complete_subtask.subtask", steps="2", subtasks="0"):
        await tasks.record(None, complete_subtask("t1", "sub_02"))
    await tasks.record(search.granted.fence, complete("t1", "sub_02/search"))
    book = await tasks.claim("t1")
    with refused("SUBTASK_NOT_READY", steps="1", first="sub_02/book"):
        await tasks.record(book.granted.fence, complete_subtask("t1", "sub_02"))
    # The last step, what came of it all, and the end of the subtask are one commit.
    numbers = await tasks.record(
        book.granted.fence,
        add_step("t1", "pay"),
        complete("t1", "sub_02/book"),
        happened("t1", RESULT, data="flight 17", subtask="sub_02", name="flight"),
        happened("t1", LESSON, data="ask for the baggage first", subtask="sub_02"),
        complete_subtask("t1", "sub_02", "booked flight 17"),
    )
    task = await tasks.get("t1")
    ended = task.subtasks[0]
    assert ended.status == task_pb2.SUBTASK_STATUS_COMPLETED
    assert [*ended.result_events, *ended.lesson_events, ended.completed_event] == numbers[2:]
    assert ended.notes_expire_time.ToMilliseconds() == START_MS + 7 * DAY_MS
    assert (counted(ended.all_steps), counted(task.own_steps)) == ((0, 0, 2, 0), (1, 0, 1, 0))
    events = {event.number: event for event in await tasks.events("t1")}
    said = [(events[number].id, events[number].entry.value.text) for number in numbers[2:]]
    assert said == [
        ("sub_02", "flight 17"),
        ("sub_02", "ask for the baggage first"),
        ("sub_02", "booked flight 17"),
    ]
    assert events[numbers[2]].entry.metadata["name"] == "flight"
    assert task.status == task_pb2.TASK_STATUS_OPEN
    pay = await tasks.claim("t1")
    assert not pay.resume.HasField("subtask")
    await tasks.record(pay.granted.fence, complete("t1", "pay"))
    assert (await tasks.get("t1")).status == task_pb2.TASK_STATUS_COMPLETED
    page = await tasks.page()
    assert counted(page.tasks[0].all_steps) == (0, 0, 4, 0)


async def test_a_subtask_has_its_parts_and_its_parent_their_progress(on_any_store: Running) -> None:
    tasks = await worker(on_any_store)
    await tasks.create("t1", "a/b/x", "a/y", "z")
    await tasks.record(None, open_subtask("t1", "a"), open_subtask("t1", "a/b/c"), add_step("t1", "a/b/c/w"))
    task = await tasks.get("t1")
    assert [(one.subtask, one.parent, counted(one.own_steps), counted(one.all_steps)) for one in task.subtasks] == [
        ("a", "", (2, 0, 0, 0), (3, 0, 0, 0)),
        ("a/b/c", "a", (1, 0, 0, 0), (1, 0, 0, 0)),
    ]
    assert (counted(task.own_steps), counted(task.all_steps)) == ((1, 0, 0, 0), (4, 0, 0, 0))
    for _ in range(4):
        claimed = await tasks.claim("t1")
        if claimed.step.step == "a/y":
            await tasks.record(claimed.granted.fence, complete("t1", "a/y", "GIVEN_UP"))
        else:
            await tasks.record(claimed.granted.fence, complete("t1", claimed.step.step))
    with refused("SUBTASK_NOT_READY", steps="0", subtasks="1", first="a/b/c"):
        await tasks.record(None, complete_subtask("t1", "a"))
    assert (await tasks.get("t1")).status == task_pb2.TASK_STATUS_OPEN
    # The dead step does not stand in the way: who completes what it is a part of takes note of it.
    await tasks.record(None, complete_subtask("t1", "a/b/c"), complete_subtask("t1", "a"))
    task = await tasks.get("t1")
    assert (task.status, counted(task.all_steps)) == (task_pb2.TASK_STATUS_COMPLETED, (0, 0, 3, 1))
    with refused("TASK_OVER"):
        await tasks.record(None, revive("t1", "a/y"))


async def test_a_step_that_depends_on_a_subtask_is_claimed_once_that_is_completed(on_any_store: Running) -> None:
    """Not when its steps are done, nor when one of them is dead: until somebody says what came of it."""
    tasks = await worker(on_any_store)
    await tasks.create("t1", "lead")
    lead = (await tasks.claim("t1")).granted.fence
    await tasks.record(
        lead,
        open_subtask("t1", "s", step="lead"),
        add_step("t1", "s/a"),
        add_step("t1", new_step("s/b", "s/a")),
        add_step("t1", new_step("after", "s", "lead", priority=9)),
        complete("t1", "lead"),
    )
    assert list((await tasks.step("t1", "after")).terms.depends_on) == ["s", "lead"]
    first = await tasks.claim("t1")
    assert first.step.step == "s/a"
    await tasks.record(first.granted.fence, complete("t1", "s/a"))
    second = await tasks.claim("t1")
    assert second.step.step == "s/b"
    await tasks.record(second.granted.fence, complete("t1", "s/b", "GIVEN_UP"))
    with refused("NO_STEP_READY", waiting="1", dead="1"):
        await tasks.claim("t1")
    await tasks.record(None, complete_subtask("t1", "s"))
    last = await tasks.claim("t1")
    assert last.step.step == "after"
    await tasks.record(last.granted.fence, complete("t1", "after"))
    assert (await tasks.get("t1")).status == task_pb2.TASK_STATUS_COMPLETED


async def test_a_step_that_would_wait_for_itself_is_refused(running: Running) -> None:
    tasks = await worker(running)
    await tasks.create("t1", "a")
    await tasks.record(None, open_subtask("t1", "s"), add_step("t1", new_step("b", "s")))
    field = "mutations[0].add_step.step.terms.depends_on"
    for other in ("s", "b", "none", "s/x"):
        with refused("FIELD_INVALID", field=field):
            await tasks.record(None, add_step("t1", new_step("s/x", "a", other)))
    await tasks.record(None, add_step("t1", new_step("s/x", "a")))


async def test_nothing_more_is_added_to_what_is_completed(running: Running) -> None:
    tasks = await worker(running)
    await tasks.create("t1", "a")
    await tasks.record(None, open_subtask("t1", "s"), complete_subtask("t1", "s"))
    for mutation, field in (
        (add_step("t1", "s/x"), "mutations[0].add_step.step.step"),
        (open_subtask("t1", "s/t"), "mutations[0].open_subtask.subtask"),
        (complete_subtask("t1", "s"), "mutations[0].complete_subtask.subtask"),
        (happened("t1", LESSON, data="x", subtask="s"), "mutations[0].append_event.subtask"),
        (checkpoint("t1", "", "x", subtask="s"), "mutations[0].save_checkpoint.subtask"),
    ):
        with refused("NOT_OPEN", what="subtask", id="s", field=field):
            await tasks.record(None, mutation)
    with refused("NOT_OPEN", what="subtask", id="none"):
        await tasks.record(None, complete_subtask("t1", "none"))


async def test_while_somebody_works_on_its_step_a_subtask_is_theirs_to_settle(on_any_store: Running) -> None:
    holder, other = await worker(on_any_store), await worker(on_any_store, "writer-2")
    await holder.create("t1", "a", "b")
    with refused("STEP_NOT_HELD", field="mutations[0].open_subtask.step", step="a", status="PENDING"):
        await holder.record(None, open_subtask("t1", "s", step="a"))
    fence = (await holder.claim("t1")).granted.fence
    theirs = (await other.claim("t1")).granted.fence
    with refused("STEP_NOT_HELD", step="a", status="RUNNING"):
        await other.record(theirs, open_subtask("t1", "s", step="a"))
    await holder.record(fence, open_subtask("t1", "s", step="a"))
    for fences in (None, theirs):
        with refused("STEP_NOT_HELD", field="mutations[0].complete_subtask.subtask", step="a"):
            await other.record(fences, complete_subtask("t1", "s"))
        with refused("STEP_NOT_HELD", field="mutations[0].save_checkpoint.subtask", step="a"):
            await other.record(fences, checkpoint("t1", "", "x", subtask="s"))
    # What was learnt is told by whoever may write.
    await other.record(None, happened("t1", LESSON, data="x", subtask="s"))
    await holder.record(fence, checkpoint("t1", "", "x", subtask="s"))
    await holder.record(fence, complete("t1", "a", "YIELDED"))
    await other.record(None, complete_subtask("t1", "s"))
    assert (await subtask(other, "s")).status == task_pb2.SUBTASK_STATUS_COMPLETED


async def test_whoever_may_not_write_the_task_settles_nothing_in_it(running: Running) -> None:
    tasks = await worker(running)
    operator = running.as_agent("ops-1", "member,operator")
    await operator.set_policy(
        rule("task:*", readers=["role:member"], writers=["agent:writer-1"], lockers=["role:member"])
    )
    await tasks.create("t1", "a")
    other = await worker(running, "writer-2")
    for mutation in (open_subtask("t1", "s"), complete_subtask("t1", "s"), revive("t1", "a")):
        with refused("WRITE_FORBIDDEN"):
            await other.record(None, mutation)


@pytest.mark.parametrize(
    ("mutation", "reason", "field"),
    [
        (open_subtask("t1", ""), "PATH_REQUIRED", "open_subtask.subtask"),
        (open_subtask("t1", "s" * 129), "FIELD_INVALID", "open_subtask.subtask"),
        (open_subtask("t1", ".task/s"), "FIELD_INVALID", "open_subtask.subtask"),
        (open_subtask("t1", "a"), "FIELD_INVALID", "open_subtask.subtask"),
        (open_subtask("t1", "a/b"), "FIELD_INVALID", "open_subtask.subtask"),
        (
            commit_pb2.Mutation(open_subtask=task_pb2.OpenSubtask(task="t1", subtask="s")),
            "FIELD_REQUIRED",
            "open_subtask.goal",
        ),
        (
            commit_pb2.Mutation(complete_subtask=task_pb2.CompleteSubtask(task="t1", subtask="s")),
            "FIELD_REQUIRED",
            "complete_subtask.summary",
        ),
        (complete_subtask("t1", "s", notes_s=0.5), "DURATION_INVALID", "complete_subtask.notes_ttl"),
        (complete_subtask("t1", "s", notes_s=3_650 * 86_400 + 1), "DURATION_INVALID", "complete_subtask.notes_ttl"),
        (revive("t1", "a", 101), "FIELD_INVALID", "revive_step.attempts"),
        (revive("t1", "a", -1), "FIELD_INVALID", "revive_step.attempts"),
        (revive("t1", "a", reason=""), "FIELD_REQUIRED", "revive_step.reason"),
        (revive("t1", "a", reason="x" * 1025), "FIELD_INVALID", "revive_step.reason"),
        (revive("t1", "a"), "STEP_NOT_DEAD", "revive_step.step"),
        (revive("t1", "none"), "STEP_NOT_DEAD", "revive_step.step"),
        (happened("t1", LESSON), "PATH_REQUIRED", "append_event.subtask"),
        (happened("t1", LESSON, "id", subtask="s"), "FIELD_INVALID", "append_event.id"),
        (happened("t1", RESULT, step="a", subtask="s"), "FIELD_INVALID", "append_event.step"),
        (happened("t1", NOTE, subtask="s"), "FIELD_INVALID", "append_event.subtask"),
        (checkpoint("t1", "a", "x", subtask="s"), "FIELD_INVALID", "save_checkpoint.subtask"),
        (checkpoint("t1", "", "x"), "PATH_REQUIRED", "save_checkpoint.step"),
    ],
)
async def test_what_is_wrong_is_named(running: Running, mutation: commit_pb2.Mutation, reason: str, field: str) -> None:
    tasks = await worker(running)
    await tasks.create("t1", "a")
    with refused(reason, field=f"mutations[0].{field}"):
        await tasks.record(None, mutation)


async def test_a_task_has_at_most_64_subtasks(running: Running) -> None:
    tasks = await worker(running)
    await tasks.create("t1", "a")
    for begin in (0, 32):
        await tasks.record(None, *[open_subtask("t1", f"s{n}") for n in range(begin, begin + 32)])
    with refused("TASK_FULL", what="subtasks", limit="64", field="mutations[0].open_subtask.subtask"):
        await tasks.record(None, open_subtask("t1", "more"))
    assert len((await tasks.get("t1")).subtasks) == limits.TASK_SUBTASKS_ENTRIES_MAX


@pytest.mark.parametrize(("kind", "what"), [(RESULT, "results"), (LESSON, "lessons")])
async def test_a_subtask_has_at_most_16_results_and_lessons(
    running: Running, kind: task_pb2.EventType.ValueType, what: str
) -> None:
    tasks = await worker(running)
    await tasks.create("t1", "a")
    said = [happened("t1", kind, data="x", subtask="s") for _ in range(16)]
    # A subtask and all that it may come to fit into one commit.
    await tasks.record(None, open_subtask("t1", "s"), *said)
    with refused("TASK_FULL", what=what, limit="16", field="mutations[0].append_event.subtask"):
        await tasks.record(None, said[0])


async def test_the_summary_of_what_came_from_outside_is_marked_and_withheld(running: Running) -> None:
    tasks = await worker(running)
    await tasks.create("t1", "a")
    lesson = happened("t1", LESSON, data="they say so", subtask="s", provenance=of_source())
    ended = complete_subtask("t1", "s", "they say so")
    ended.complete_subtask.provenance.CopyFrom(of_source())
    opened = open_subtask("t1", "s", goal="what the page says")
    opened.open_subtask.provenance.CopyFrom(of_source())
    numbers = await tasks.record(None, opened, lesson, ended)
    events = {event.number: event for event in await tasks.events("t1")}
    assert all(events[number].entry.withheld for number in numbers)
    assert (await subtask(tasks, "s")).completed_event == numbers[-1]


# Working notes.


async def test_the_working_notes_of_a_completed_subtask_end_and_nothing_else_does(
    on_any_store: Running, clock: SettableClock
) -> None:
    tasks, region = await worker(on_any_store), "task:t1"
    await tasks.create("t1", "a")
    await tasks.record(
        None,
        open_subtask("t1", "s"),
        *[put(path, "x", region=region) for path in ("s/notes", "s/notes/a/b", "s/notebook", "s/found", "notes/a")],
        put("s/notes/short", "x", region=region, ttl=lasting(5)),
        put("s/notes/long", "x", region=region, ttl=lasting(500)),
        put("s/notes/from outside", "x", region=region, provenance=of_source()),
    )
    await tasks.record(None, complete_subtask("t1", "s", notes_s=60))
    await on_any_store.server._upkeep.sweep()
    ends = {
        path: (await tasks.agent.get(path, region)).expire_time.ToMilliseconds() - START_MS
        for path in ("s/notes", "s/notes/a/b", "s/notes/short", "s/notes/long", "s/notebook", "s/found", "notes/a")
    }
    assert ends == {
        "s/notes": 60_000,
        "s/notes/a/b": 60_000,
        "s/notes/short": 5_000,
        "s/notes/long": 60_000,
        "s/notebook": -START_MS,
        "s/found": -START_MS,
        "notes/a": -START_MS,
    }
    change = (await tasks.agent.history("s/notes", region))[0]
    assert (change.entry.author, change.entry.value.text) == ("kokuban", "x")
    assert not await records(on_any_store.server._store, keys.TASK_NOTES)
    await tasks.agent.commit(put("s/notes/late", "x", region=region))
    clock.pass_ms(60_000)
    await on_any_store.server._upkeep.sweep()
    assert [path for path in await tasks.agent.paths(region=region) if "note" in path] == [
        "notes/a",
        "s/notebook",
        "s/notes/late",
    ]
    found = await tasks.agent.history("s/notes/from outside", region)
    assert [change.type for change in found] == [
        entry_pb2.CHANGE_TYPE_EXPIRED,
        entry_pb2.CHANGE_TYPE_PUT,
        entry_pb2.CHANGE_TYPE_PUT,
    ]


async def test_many_notes_end_though_the_server_that_began_with_them_is_gone(
    start: Started, any_store: BoardStore
) -> None:
    first = await start(Kept(any_store))
    tasks, region = await worker(first), "task:t1"
    await tasks.create("t1", "a")
    for begin in range(0, 150, 30):
        await tasks.agent.commit(*[put(f"s/notes/{n:03}", "x", region=region) for n in range(begin, begin + 30)])
    await tasks.record(None, open_subtask("t1", "s"), complete_subtask("t1", "s"))

    async def left(agent: Agent) -> int:
        ends = [(await agent.get(f"s/notes/{n:03}", region)).HasField("expire_time") for n in range(150)]
        return ends.count(False)

    await first.server._upkeep._notes.turn()
    assert 0 < await left(tasks.agent) < 150
    await first.server.stop()
    second = await start(any_store)
    for _ in range(5):
        await second.server._upkeep._notes.turn()
    assert await left(second.as_agent("writer-1")) == 0
    assert not await records(any_store, keys.TASK_NOTES)


async def test_a_note_that_somebody_writes_meanwhile_ends_as_well(start: Started, clock: SettableClock) -> None:
    store = WrittenMeanwhile(clock)
    running = await start(store)
    tasks, region = await worker(running), "task:t1"
    await tasks.create("t1", "a")
    for name in ("a", "b", "c"):
        await tasks.agent.commit(put(f"s/notes/{name}", "x", region=region))
    await tasks.record(None, open_subtask("t1", "s"), complete_subtask("t1", "s"))
    store.meanwhile = lambda: tasks.agent.commit(put("s/notes/b", "newer", whatever(), region=region))
    for _ in range(3):
        await running.server._upkeep._notes.turn()
    for name, words in (("a", "x"), ("b", "newer"), ("c", "x")):
        note = await tasks.agent.get(f"s/notes/{name}", region)
        assert (note.value.text, note.HasField("expire_time")) == (words, True)
    assert not await records(store, keys.TASK_NOTES)


class WrittenMeanwhile(MemoryStore):
    """A store in which somebody writes a note just before it is given an expiry, once."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        is_of_note = any(b"notes/b/" in put.key for put in change.puts)
        if is_of_note and self.meanwhile is not None:
            write, self.meanwhile = self.meanwhile, None
            await write()
        return await super().commit(change, deadline_s)


async def test_what_is_to_be_done_on_a_board_that_is_gone_is_left_alone(running: Running) -> None:
    tasks = await worker(running)
    await tasks.create("t1", "a")
    await tasks.record(None, open_subtask("t1", "s"), complete_subtask("t1", "s"))
    store = running.server._store
    await store.commit(
        ChangeSet((), (Put(keys.task_notes(b"dev/other/task:t1/", "s/notes"), encode_notes(START_MS)),)), 5.0
    )
    await running.server._upkeep._notes.turn()
    left = [keys.parse_task_notes(record.key) for record in await records(store, keys.TASK_NOTES)]
    assert left == [("dev", "other", parse_region("task:t1"), "s/notes")]


# Reviving.


async def test_a_dead_step_is_revived_with_further_attempts_and_goes_on_where_it_was(on_any_store: Running) -> None:
    tasks = await worker(on_any_store)
    await tasks.create("t1", new_step("a", attempts_max=1), new_step("b", "a"))
    first = await tasks.claim("t1")
    await tasks.record(first.granted.fence, checkpoint("t1", "a", "half"), complete("t1", "a", "FAILED"))
    assert (await tasks.step("t1", "a")).dead_reason == task_pb2.DEAD_REASON_ATTEMPTS_USED
    with refused("NO_STEP_READY", dead="1", waiting="1"):
        await tasks.claim("t1")
    await tasks.record(None, revive("t1", "a", 2))
    step = await tasks.step("t1", "a")
    assert (step.status, step.attempts, step.terms.attempts_max) == (task_pb2.STEP_STATUS_PENDING, 1, 3)
    assert step.dead_reason == task_pb2.DEAD_REASON_UNSPECIFIED
    with refused("STEP_NOT_DEAD", field="mutations[0].revive_step.step", status="PENDING"):
        await tasks.record(None, revive("t1", "a"))
    event = (await tasks.events("t1"))[-1]
    assert (event.type, event.step, event.entry.value.text, event.entry.author) == (
        task_pb2.EVENT_TYPE_STEP_REVIVED,
        "a",
        "the page is back",
        "writer-1",
    )
    again = await tasks.claim("t1")
    assert (again.step.step, again.step.attempts, again.resume.checkpoint.entry.value.text) == ("a", 2, "half")
    await tasks.record(again.granted.fence, complete("t1", "a"))
    last = await tasks.claim("t1")
    await tasks.record(last.granted.fence, complete("t1", "b"))
    assert (await tasks.get("t1")).status == task_pb2.TASK_STATUS_COMPLETED


async def test_a_step_of_a_completed_subtask_stays_dead(running: Running) -> None:
    tasks = await worker(running)
    await tasks.create("t1", "a", "s/x")
    for name in ("a", "s/x"):
        claimed = await tasks.claim("t1")
        assert claimed.step.step == name
        await tasks.record(claimed.granted.fence, complete("t1", name, "GIVEN_UP"))
    await tasks.record(None, open_subtask("t1", "s"), complete_subtask("t1", "s"))
    with refused("NOT_OPEN", what="subtask", id="s", field="mutations[0].revive_step.step"):
        await tasks.record(None, revive("t1", "s/x"))
    await tasks.record(None, revive("t1", "a"))
