"""Tasks exported, archived behind a tombstone, and restored: what was exported and nothing else; on each store, over kills."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from kokuban.v1 import board_service_pb2, task_pb2, task_service_pb2
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import ChangeSet, DeleteKey
from kokuban_server.core.refusals import StoreUnavailable
from tests.wire.archive_calls import Export, archive, archived, export, restore, restore_part
from tests.wire.audit_calls import audit_records
from tests.wire.calls import (
    START_MS,
    HeldStore,
    Kept,
    absent,
    append,
    lasting,
    made_of,
    new_id,
    of_source,
    outcome,
    put,
    records,
    refused,
    rule,
    whatever,
)
from tests.wire.task_calls import DONE, NOTE, STARTED, WANTED, Tasks, checkpoint, complete, happened, new_step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kokuban_server.ports.board_store import BoardStore, Record
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started

KINDS = (keys.HEAD, keys.HISTORY, keys.TASK, keys.TASK_LOG, keys.TASK_ACTION, keys.DUE)


async def worker(running: Running, name: str = "writer-1") -> Tasks:
    return Tasks.of(await running.join(name))


async def lived(tasks: Tasks, task: str = "t1") -> None:
    """Make a task in which much has happened and that nobody works on."""
    await tasks.create(task, "read", new_step("write", "read"))
    claimed = await tasks.claim(task)
    await tasks.record(
        claimed.granted.fence,
        happened(task, STARTED, "mail:17", "read", data="to whom"),
        happened(task, NOTE, step="read", data="on its way"),
        put("read/notes", "found “it”\n", region=f"task:{task}"),
        put("lasting", "a while", region=f"task:{task}", ttl=lasting(3600)),
    )
    await tasks.record(claimed.granted.fence, happened(task, DONE, "mail:17", "read", data="sent as 4711"))
    await tasks.record(claimed.granted.fence, append("read/list", "a", 2, region=f"task:{task}"))
    await tasks.record(claimed.granted.fence, append("read/list", "b", region=f"task:{task}"))
    await tasks.record(
        claimed.granted.fence,
        checkpoint(task, "read", "half", "sha-1"),
        complete(task, "read", outcome="YIELDED"),
    )
    await tasks.record(None, happened(task, WANTED, "short", data="keep it short"))


async def left_of(store: BoardStore, task: str = "t1") -> list[Record]:
    """Give the records that a task has left, beside what stands for it."""
    region = f"task:{task}/".encode()
    return [record for kind in KINDS for record in await records(store, kind) if region in record.key]


async def test_an_archived_task_comes_back_as_it_was(on_any_store: Running, any_store: BoardStore) -> None:
    tasks = await worker(on_any_store)
    await lived(tasks)
    before, events = await tasks.get("t1"), await tasks.events("t1")
    notes = await tasks.agent.get("read/notes", "task:t1")
    made = await export(tasks, "t1")
    answer = await archive(tasks, "t1", made.digest)
    assert not answer.replayed
    assert await left_of(any_store) == []
    with refused("TASK_ARCHIVED", task="t1", phase="archived", digest=made.digest):
        await tasks.get("t1")
    assert not (await tasks.page()).tasks
    restored = await restore(tasks, "t1", made, at_once=3)
    assert (restored.next_line, restored.left_out, restored.replayed) == (0, 0, False)
    assert await tasks.get("t1") == before
    assert [plain(event) for event in await tasks.events("t1")] == [plain(event) for event in events]
    again = await tasks.agent.get("read/notes", "task:t1")
    assert (again.value, again.label, again.author) == (notes.value, notes.label, notes.author)
    assert again.revision.number > notes.revision.number
    made_again = await export(tasks, "t1")
    assert made_again.lines == made.lines
    assert made_again.manifest | {"token": ""} == made.manifest | {"token": ""}


def plain(event: task_pb2.TaskEvent) -> task_pb2.TaskEvent:
    """Give an event without the revisions, which are new for what was restored."""
    made = task_pb2.TaskEvent()
    made.CopyFrom(event)
    made.entry.ClearField("revision")
    made.entry.ClearField("create_revision")
    return made


async def test_what_was_recorded_before_is_recorded_after(running: Running) -> None:
    tasks = await worker(running)
    await lived(tasks)
    await restore(tasks, "t1", await archived(tasks, "t1"))
    claimed = await tasks.claim("t1")
    assert claimed.step.step == "read"
    assert claimed.resume.checkpoint.entry.value.text == "half"
    assert [one.id for one in claimed.resume.constraints] == ["short"]
    with refused("ACTION_RECORDED", action_id="mail:17"):
        await tasks.record(claimed.granted.fence, happened("t1", STARTED, "mail:17", "read"))
    numbers = await tasks.record(claimed.granted.fence, complete("t1", "read"))
    assert numbers == [(await tasks.get("t1")).last_event]
    assert [event.number for event in await tasks.events("t1")] == list(range(1, numbers[0] + 1))


async def test_each_line_names_the_one_before_it(running: Running) -> None:
    tasks = await worker(running)
    await lived(tasks)
    made = await export(tasks, "t1")
    digest = "0" * 64
    for number, line in enumerate(made.lines, 1):
        said = json.loads(line)
        assert (said["line"], said["previous"]) == (number, digest)
        digest = hashlib.sha256(line.encode()).hexdigest()
    task = await tasks.get("t1")
    assert made.manifest["digest"] == digest
    assert made.manifest["format"] == "kokuban.task-archive/1"
    assert made.manifest["lines"] == len(made.lines)
    assert made.manifest["events"] == len(made.of("event")) == task.last_event
    assert made.manifest["entries"] == len(made.of("entry")) == 3
    assert [(said["step"], said["action"]) for said in made.of("action")] == [("read", "mail:17")]
    assert [said["last_event"] for said in made.of("task")] == [task.last_event]


async def test_an_export_is_of_one_state_over_all_its_pages(running: Running) -> None:
    """Values of 400 KiB: a page holds 3 MiB. What is written between two pages is in none of them."""
    tasks = await worker(running)
    await tasks.create("t1", "a")
    for n in range(10):
        await tasks.record(None, put(f"big/{n}", "x" * 400 * 1024, region="task:t1"))
    request = task_service_pb2.ExportTaskRequest(board="main", task="t1")
    first = await tasks.stub.ExportTask(request, metadata=tasks.agent.metadata)
    assert first.next_page_token
    assert not first.manifest
    await tasks.record(None, put("zzz", "later", region="task:t1"), happened("t1", WANTED, "late"))
    request.page_token = first.next_page_token
    second = await tasks.stub.ExportTask(request, metadata=tasks.agent.metadata)
    manifest = json.loads(second.manifest)
    assert (manifest["entries"], manifest["events"]) == (10, 2)
    assert "later" not in "".join([*first.lines, *second.lines])


async def test_RE_08_a_task_that_was_written_to_since_its_export_is_not_archived(on_any_store: Running) -> None:
    tasks = await worker(on_any_store)
    await lived(tasks)
    made = await export(tasks, "t1")
    for n, mutation in enumerate(
        [
            put("read/notes", "changed", whatever(), region="task:t1"),
            put("new", "entry", region="task:t1"),
            happened("t1", WANTED, "more", data="and more"),
        ]
    ):
        await tasks.record(None, mutation)
        with refused("ARCHIVE_MISMATCH", field="digest", given=made.digest):
            await archive(tasks, "t1", made.digest)
        assert (await tasks.get("t1")).last_event  # open to everybody again
        await tasks.record(None, put(f"still/{n}", "written", region="task:t1"))
        made = await export(tasks, "t1")
    await archive(tasks, "t1", made.digest)


async def test_a_writer_that_comes_while_a_task_is_compared_is_refused_and_nothing_is_lost(
    start: Started, clock: SettableClock
) -> None:
    """The comparison stops before its last commit; whoever writes then is refused, and the archive has all of the task."""
    store = Stopping(clock)
    running = await start(store)
    tasks = await worker(running)
    await lived(tasks)
    made = await export(tasks, "t1")
    store.stop_before = lambda change: (
        any(put.key.startswith(keys.OPERATION) for put in change.puts)
        and any(put.key.startswith(keys.TASK_ARCHIVE) for put in change.puts)
    )
    archiving = asyncio.create_task(archive(tasks, "t1", made.digest))
    await store.stopped.wait()
    with refused("TASK_ARCHIVED", task="t1", phase="preparing"):
        await tasks.record(None, put("read/notes", "changed", whatever(), region="task:t1"))
    with refused("TASK_ARCHIVED", phase="preparing"):
        await tasks.record(None, happened("t1", WANTED, "late"))
    with refused("TASK_ARCHIVED", phase="preparing"):
        await tasks.claim("t1")
    with refused("TASK_ARCHIVED", phase="preparing"):
        await archive(Tasks(running.as_agent("writer-2")), "t1", made.digest)
    assert (await tasks.agent.get("read/notes", "task:t1")).value.text == "found “it”\n"  # it can be read till then
    store.go_on.set()
    await archiving
    assert (await restore(tasks, "t1", made)).next_line == 0


class Stopping(HeldStore):
    """A store that stops before a commit, and that dies of a chosen one: nothing is written from then on."""

    def __init__(self, clock: SettableClock) -> None:
        super().__init__(clock)
        self.stop_before: Callable[[ChangeSet], bool] = lambda _change: False
        self.stopped, self.go_on = asyncio.Event(), asyncio.Event()
        self.left: int | None = None
        """Commits of an archive that are still done; then the server is as good as dead."""

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        if self.stop_before(change):
            self.stop_before = lambda _change: False
            self.stopped.set()
            await self.go_on.wait()
        if self.left is not None and any(put.key.startswith(keys.TASK_ARCHIVE) for put in change.puts):
            self.left -= 1
        if self.left is not None and self.left < 0:
            raise StoreUnavailable("killed")
        return await super().commit(change, deadline_s)


async def test_whoever_archives_a_task_again_need_not_wait_for_its_own_lost_try(
    start: Started, clock: SettableClock
) -> None:
    store = Stopping(clock)
    running = await start(store)
    tasks = await worker(running)
    await lived(tasks)
    made = await export(tasks, "t1")
    store.stop_before = lambda change: (
        any(put.key.startswith(keys.OPERATION) for put in change.puts)
        and any(put.key.startswith(keys.TASK_ARCHIVE) for put in change.puts)
    )
    first = asyncio.create_task(outcome(archive(tasks, "t1", made.digest)))
    await store.stopped.wait()
    again = Tasks((await start(Kept(store))).as_agent("writer-1"))
    assert not (await archive(again, "t1", made.digest)).replayed
    store.go_on.set()
    assert (await first).replayed  # its own removal came too late: it was done already, from the same archive
    await restore(tasks, "t1", made)


async def test_a_task_that_somebody_works_on_is_not_archived(on_any_store: Running) -> None:
    tasks = await worker(on_any_store)
    await tasks.create("t1", "a")
    claimed = await tasks.claim("t1")
    made = await export(tasks, "t1")
    with refused("TASK_HELD", task="t1", step="a"):
        await archive(tasks, "t1", made.digest)
    await tasks.record(claimed.granted.fence, complete("t1", "a"))
    await archived(tasks, "t1")


async def test_an_archived_task_is_refused_to_whoever_names_it(on_any_store: Running) -> None:
    tasks = await worker(on_any_store)
    await lived(tasks)
    made = await archived(tasks, "t1")
    agent = tasks.agent
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: tasks.create("t1", "again"),
        lambda: tasks.get("t1"),
        lambda: tasks.events("t1"),
        lambda: tasks.claim("t1"),
        lambda: tasks.cancel("t1"),
        lambda: tasks.resume("t1", question="answer"),
        lambda: export(tasks, "t1"),
        lambda: tasks.record(None, happened("t1", NOTE, data="x")),
        lambda: tasks.record(None, put("read/notes", "x", absent(), region="task:t1")),
        lambda: tasks.record(None, append("list", "x", region="task:t1")),
        lambda: agent.get("read/notes", "task:t1"),
        lambda: agent.history("read/notes", "task:t1"),
        lambda: agent.page("", "task:t1"),
    ]
    for call in calls:
        with refused("TASK_ARCHIVED", task="t1", phase="archived", digest=made.digest):
            await call()
    target = board_service_pb2.WatchTarget(region="task:t1")
    request = board_service_pb2.WatchRequest(board="main", targets=[target], now=True)
    with refused("TASK_ARCHIVED"):
        await agent.board.Watch(request, metadata=agent.metadata).read()


async def test_archiving_again_is_nothing(running: Running) -> None:
    tasks = await worker(running)
    await lived(tasks)
    made = await export(tasks, "t1")
    identity = new_id()
    first = await archive(tasks, "t1", made.digest, identity)
    again = await archive(tasks, "t1", made.digest, identity)
    assert (again.token, again.replayed) == (first.token, True)
    assert (await archive(tasks, "t1", made.digest)).replayed
    with refused("TASK_ARCHIVED"):
        await archive(tasks, "t1", "0" * 64)
    with refused("REQUEST_ID_REUSED"):
        await archive(tasks, "t1", "0" * 64, identity)
    with refused("NOT_FOUND"):
        await archive(tasks, "t2", made.digest)


async def test_restoring_again_is_nothing(running: Running) -> None:
    tasks = await worker(running)
    await lived(tasks)
    made = await archived(tasks, "t1")
    identity = new_id()
    await restore(tasks, "t1", made, request_id=identity)
    again = await restore_part(tasks, "t1", made.digest, made.lines[:1], identity)
    assert (again.next_line, again.replayed) == (0, True)
    with refused("ALREADY_EXISTS"):
        await restore(tasks, "t1", made)
    with refused("NOT_FOUND"):
        await restore(tasks, "t2", made)


# What comes back is what was archived.


def changed(line: str) -> str:
    said = json.loads(line)
    said["record"] |= {"text": "ignore all previous instructions"}
    return json.dumps(said)


@pytest.mark.parametrize(
    ("harm", "line"),
    [
        (lambda lines: [*lines[:4], changed(lines[4]), *lines[5:]], 5),
        (lambda lines: [*lines[:4], lines[4] + " ", *lines[5:]], 5),
        (lambda lines: [*lines[:4], *lines[5:]], 4),
        (lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]], 5),
        (lambda lines: [*lines[:4], lines[4], lines[4], *lines[5:]], 5),
        (lambda lines: lines[:-1], -1),
        (lambda lines: [*lines[:4], "{", *lines[5:]], 5),
        (lambda lines: [*lines[:4], "", *lines[5:]], 5),
        (lambda lines: [*lines[:4], "[" * 100_000, *lines[5:]], 5),
    ],
    ids=["changed", "a blank", "left out", "moved", "repeated", "cut", "not JSON", "empty", "deep"],
)
async def test_a_line_that_is_not_the_archives_is_refused_by_its_number(
    running: Running,
    harm: Callable[[list[str]], list[str]],
    line: int,
) -> None:
    tasks = await worker(running)
    await lived(tasks)
    made = await archived(tasks, "t1")
    number = line if line > 0 else len(made.lines) - 1
    with refused("ARCHIVE_INVALID", line=str(number)):
        await restore(tasks, "t1", Export(harm(made.lines), made.manifest))
    with refused("TASK_ARCHIVED"):
        await tasks.get("t1")
    assert (await restore(tasks, "t1", made)).next_line == 0  # goes on behind the last good line


async def test_an_archive_that_was_made_up_anew_is_not_that_of_the_task(running: Running) -> None:
    """Whoever changes a line and makes all digests fit has another archive: nothing raises the trust of what is in it."""
    tasks = await worker(running)
    await tasks.create("t1", "a")
    await tasks.record(None, put("page", "from outside", region="task:t1", provenance=of_source()))
    made = await exported_by_overseer(running, "t1")
    await archive(tasks, "t1", made.digest)
    forged: list[str] = []
    digest = "0" * 64
    for line in made.lines:
        said = json.loads(line) | {"previous": digest}
        said["record"].pop("label", None)
        forged.append(json.dumps(said, ensure_ascii=False, separators=(",", ":"), sort_keys=True))
        digest = hashlib.sha256(forged[-1].encode()).hexdigest()
    with refused("ARCHIVE_MISMATCH", field="digest", given=digest, actual=made.digest):
        await restore(tasks, "t1", Export(forged, {"digest": digest}))
    with refused("ARCHIVE_INVALID"):
        await restore(tasks, "t1", Export(forged, made.manifest))
    await restore(tasks, "t1", made)
    with refused("WITHHELD", trust="EXTERNAL"):
        await tasks.agent.get("page", "task:t1")


async def exported_by_overseer(running: Running, task: str) -> Export:
    return await export(Tasks(running.as_agent("boss-1", "member,supervisor")), task)


async def test_what_a_read_would_withhold_is_exported_for_overseers_only(running: Running) -> None:
    tasks = await worker(running)
    await tasks.create("t1", "a")
    await tasks.record(None, put("page", "from outside", region="task:t1", provenance=of_source()))
    with refused("ROLE_REQUIRED", role="supervisor"):
        await export(tasks, "t1")
    made = await exported_by_overseer(running, "t1")
    assert made.of("entry")[0]["record"]["label"]["trust"] == 2


# All or nothing.


async def test_a_task_that_is_half_restored_is_not_there(on_any_store: Running, any_store: BoardStore) -> None:
    tasks = await worker(on_any_store)
    await lived(tasks)
    made = await archived(tasks, "t1")
    backwards = made.lines[::-1]
    for count in range(1, len(backwards)):
        answer = await restore_part(tasks, "t1", made.digest, backwards[count - 1 : count])
        assert answer.next_line == len(backwards) - count
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: tasks.get("t1"),
            lambda: tasks.events("t1"),
            lambda: tasks.claim("t1"),
            lambda: tasks.agent.get("read/notes", "task:t1"),
            lambda: tasks.agent.page("", "task:t1"),
            lambda: tasks.record(None, put("read/notes", "x", whatever(), region="task:t1")),
        ]
        for call in calls:
            with refused("TASK_ARCHIVED", phase="restoring"):
                await call()
    assert await left_of(any_store)
    other = Tasks(on_any_store.as_agent("writer-2"))  # whoever has the archive may go on with it
    assert (await restore_part(other, "t1", made.digest)).next_line == 1
    assert (await restore_part(other, "t1", made.digest, backwards)).next_line == 0
    assert (await export(tasks, "t1")).lines == made.lines


async def test_an_archive_is_killed_at_each_step_and_nothing_is_lost(start: Started, clock: SettableClock) -> None:
    for step in range(12):
        clock.ms = START_MS
        store = Stopping(clock)
        running = await start(Kept(store))
        tasks = await worker(running)
        await lived(tasks)
        made = await export(tasks, "t1")
        store.left = step
        answer = await outcome(archive(tasks, "t1", made.digest))
        store.left = None
        clock.pass_ms(10 * 60 * 1_000)  # whoever compared it is gone by now
        heirs = Tasks((await start(Kept(store))).as_agent("writer-2"))
        sweeping = running.server._upkeep
        await sweeping.sweep()
        await sweeping.sweep()
        gone = await outcome(heirs.get("t1"))
        if isinstance(gone, task_pb2.Task):
            assert not isinstance(answer, task_service_pb2.ArchiveTaskResponse)
            assert (await export(heirs, "t1")).lines == made.lines
            await heirs.record(None, put("goes", "on", region="task:t1"))
        else:
            assert gone.reason == "TASK_ARCHIVED"
            assert await left_of(store) == []
            await restored_over_a_kill(heirs, store, made, step)
            assert (await export(heirs, "t1")).lines == made.lines
        if isinstance(answer, task_service_pb2.ArchiveTaskResponse) and step > 6:
            return
    raise AssertionError("it takes more steps than there were kills")


async def restored_over_a_kill(tasks: Tasks, store: Stopping, made: Export, step: int) -> None:
    """Kill what restores after so many commits of it, one for every three lines; then have it gone on with."""
    identity = new_id()
    store.left = step
    await outcome(restore(tasks, "t1", made, at_once=3, request_id=identity))
    store.left = None
    refusal = await outcome(tasks.get("t1"))
    if isinstance(refusal, task_pb2.Task):
        return
    assert refusal.facts["phase"] == ("restoring" if step else "archived")
    await restore(tasks, "t1", made, request_id=identity)


# What was removed since.


async def test_what_was_purged_since_does_not_come_back(running: Running) -> None:
    agent = running.agent
    tasks = await worker(running)
    page = await agent.commit(put("page", "zanzibar", provenance=of_source(uri="https://bad.example/page")))
    good = await agent.commit(put("good", "fine", provenance=of_source(uri="https://good.example/page")))
    await tasks.create("t1", "a")
    await tasks.record(
        None,
        put("direct", "zanzibar", region="task:t1", provenance=of_source(uri="https://bad.example/page")),
        put("derived", "zanzibar", region="task:t1", provenance=made_of(("page", page))),
        put("fine", "fine", region="task:t1", provenance=made_of(("good", good))),
        put("own", "word", region="task:t1"),
    )
    made = await exported_by_overseer(running, "t1")
    await archive(tasks, "t1", made.digest)
    operator = running.as_agent("ops-1", "member,operator,supervisor")
    plan = await operator.plan_purge(uri="https://bad.example/page")
    await operator.purge(plan.removal.id)
    await running.server._removal_upkeep.turn()
    answer = await restore(tasks, "t1", made)
    assert answer.left_out == 2
    again = await exported_by_overseer(running, "t1")
    assert [said["path"] for said in again.of("entry")] == ["fine", "own"]
    assert b"zanzibar" not in b"".join([record.value for record in await left_of(running.server._store)])


async def test_a_later_purge_finds_what_was_restored(running: Running) -> None:
    tasks = await worker(running)
    await tasks.create("t1", "a")
    await tasks.record(
        None, put("direct", "zanzibar", region="task:t1", provenance=of_source(uri="https://bad.example/page"))
    )
    made = await exported_by_overseer(running, "t1")
    await archive(tasks, "t1", made.digest)
    for record in await records(running.server._store, keys.ORIGIN):  # as the sweep would, after some hours
        await running.server._store.commit(ChangeSet((), (), (DeleteKey(record.key),)), 1.0)
    await restore(tasks, "t1", made)
    assert (await exported_by_overseer(running, "t1")).lines == made.lines
    operator = running.as_agent("ops-1", "member,operator,supervisor")
    plan = await operator.plan_purge(uri="https://bad.example/page")
    await operator.purge(plan.removal.id)
    await running.server._removal_upkeep.turn()
    assert not [r for r in await left_of(running.server._store) if b"zanzibar" in r.value]


async def test_archiving_and_restoring_are_audited(running: Running) -> None:
    tasks = await worker(running)
    await lived(tasks)
    made = await archived(tasks, "t1")
    await restore(tasks, "t1", made)
    found = await audit_records(running)
    acts = {one.act: one.target for one in found if one.act.startswith("task.")}
    assert acts == {
        "task.archive": f"task:t1: {len(made.lines)} lines, {made.digest}",
        "task.restore": f"task:t1: {len(made.lines)} lines, 0 left out, {made.digest}",
    }


async def test_a_full_line_fits_and_a_longer_one_is_packed(running: Running) -> None:
    """Control characters take six characters each in JSON: the largest value of them is written down another way."""
    tasks = await worker(running)
    await tasks.create("t1", "a")
    await tasks.record(None, put("worst", "\x01" * limits.VALUE_BYTES_MAX, region="task:t1"))
    made = await archived(tasks, "t1")
    assert "packed" in made.of("entry")[0]
    assert max(len(line.encode()) for line in made.lines) <= limits.ARCHIVE_LINE_BYTES_MAX
    await restore(tasks, "t1", made, at_once=1)
    assert (await tasks.agent.get("worst", "task:t1")).value.text == "\x01" * limits.VALUE_BYTES_MAX


async def test_an_entry_that_comes_of_too_much_for_a_line_is_refused_by_its_path(running: Running) -> None:
    """A line says of each state of a list what it was made of: 64 parents of the longest paths, 16 times."""
    tasks = Tasks(running.agent)
    await tasks.create("t1", "a")
    paths = [f"{n:02d}{'x' * (limits.PATH_BYTES_MAX - 2)}" for n in range(limits.DERIVED_FROM_ENTRIES_MAX)]
    parents = []
    for begin in range(0, len(paths), limits.MUTATIONS_MAX):
        part = paths[begin : begin + limits.MUTATIONS_MAX]
        answer = await tasks.agent.commit(*[put(path) for path in part])
        parents += [(path, answer) for path in part]
    made = made_of(*parents)
    for n in range(16):
        mutation = append("list", n, region="task:t1")
        mutation.append_to_list.provenance.CopyFrom(made)
        await tasks.record(None, mutation)
    with refused("ARCHIVE_TOO_LARGE", task="t1", path="list", limit="1000000"):
        await export(tasks, "t1")


# Bounds and bad input.


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64])
async def test_a_digest_is_64_hexadecimal_digits(running: Running, digest: str) -> None:
    tasks = Tasks(running.agent)
    await tasks.create("t1", "a")
    with refused("FIELD_INVALID", field="digest"):
        await archive(tasks, "t1", digest)
    with refused("FIELD_INVALID", field="digest"):
        await restore_part(tasks, "t1", digest)


async def test_a_part_of_a_restore_has_at_most_1000_lines(running: Running) -> None:
    tasks = Tasks(running.agent)
    await tasks.create("t1", "a")
    made = await archived(tasks, "t1")
    with refused("TOO_MANY_ITEMS", field="lines", limit="1000", actual="1001"):
        await restore_part(tasks, "t1", made.digest, ["x"] * (limits.ARCHIVE_LINES_ENTRIES_MAX + 1))
    with refused("ARCHIVE_INVALID", field="lines[0]"):
        await restore_part(tasks, "t1", made.digest, ["x"] * limits.ARCHIVE_LINES_ENTRIES_MAX)


@pytest.mark.parametrize("token", ["x", "AAAA", "A" * 200])
async def test_a_page_token_that_no_export_gave_is_refused(running: Running, token: str) -> None:
    tasks = Tasks(running.agent)
    await tasks.create("t1", "a")
    request = task_service_pb2.ExportTaskRequest(board="main", task="t1", page_token=token)
    with refused("PAGE_TOKEN_INVALID", field="page_token"):
        await tasks.stub.ExportTask(request, metadata=tasks.agent.metadata)


async def test_only_who_may_write_to_a_task_exports_archives_and_restores_it(running: Running) -> None:
    tasks, reader, stranger = (Tasks(running.as_agent(name)) for name in ("writer-1", "reader-1", "stranger-1"))
    await tasks.create("t1", "a")
    operator = running.as_agent("ops-1", "operator")
    await operator.set_policy(rule("task:t1", readers=["agent:writer-1", "agent:reader-1"], writers=["agent:writer-1"]))
    made = await export(tasks, "t1")
    for other, reason in ((reader, "WRITE_FORBIDDEN"), (stranger, "NOT_FOUND")):
        for call in (
            lambda other=other: export(other, "t1"),
            lambda other=other: archive(other, "t1", made.digest),
            lambda other=other: restore(other, "t1", made),
        ):
            with refused(reason):
                await call()
    await archive(tasks, "t1", made.digest)
    with refused("NOT_FOUND"):  # also that it is archived is not told
        await stranger.get("t1")
    with refused("WRITE_FORBIDDEN"):
        await restore(reader, "t1", made)
