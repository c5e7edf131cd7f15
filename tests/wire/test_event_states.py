"""States of events of tasks: mostly each has but one, which the store holds once; they are read as any entry's are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kokuban.v1 import board_service_pb2, commit_pb2, entry_pb2, trust_pb2
from kokuban_server.core import keys
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.core.names import parse_region
from kokuban_server.core.tasks import event_path
from kokuban_server.records.codec import decode_entry
from tests.wire.calls import key, new_id, of_source, put, records, refused
from tests.wire.screening_calls import PHRASES, ZEBRA
from tests.wire.task_calls import NOTE, Tasks, happened
from tests.wire.test_removals import BAD, purged
from tests.wire.test_rescreening import judged_again, successor

if TYPE_CHECKING:
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.conftest import Running, Started
    from tests.wire.screening_calls import Rules

TASK = "task:t1"
REGION = keys.region_prefix("dev", "main", parse_region(TASK))
EXTERNAL, SUSPECT = trust_pb2.TRUST_LEVEL_EXTERNAL, trust_pb2.TRUST_LEVEL_SUSPECT


class Log:
    """A task whose step somebody works on."""

    def __init__(self, tasks: Tasks, fence: Any) -> None:  # noqa: ANN401 - of a lock
        self.tasks = tasks
        self.fence = fence

    @classmethod
    async def begun(cls, running: Running) -> Log:
        tasks = Tasks.of(await running.join())
        await tasks.create("t1", "a")
        return cls(tasks, (await tasks.claim("t1")).granted.fence)

    async def note(self, words: str, **more: Any) -> str:  # noqa: ANN401 - of an event
        """Append an event, and give its path."""
        [number] = await self.tasks.record(self.fence, happened("t1", NOTE, step="a", data=words, **more))
        return event_path(number)


async def in_history(store: BoardStore, path: str) -> list[int]:
    """Give the sequences of an event's states that stand in its history."""
    found = await records(store, keys.history(keys.head(REGION, path)))
    return [decode_entry(record.key, record.value).sequence for record in found]


async def as_before(store: BoardStore) -> None:
    """Have the store hold events as it did at first: in their histories too, at the same revision."""
    heads = [one for one in await records(store, keys.HEAD + REGION) if keys.is_of_event(one.key)]
    twice = [
        Put(place, one.value)
        for one in heads
        for place in (one.key, keys.history_record(one.key, decode_entry(one.key, one.value).sequence))
    ]
    await store.commit(ChangeSet((), tuple(twice)), 10.0)


def made_of_event(path: str, state: entry_pb2.Revision) -> entry_pb2.Provenance:
    return entry_pb2.Provenance(derived_from=[entry_pb2.EntryAt(key=key(path, TASK), at=state)])


async def test_what_an_agent_notes_is_stored_once_and_listed_as_any_state(
    on_any_store: Running, any_store: BoardStore
) -> None:
    log = await Log.begun(on_any_store)
    path = await log.note("seen")
    agent = on_any_store.agent
    assert await in_history(any_store, path) == []
    event = await agent.get(path, TASK)
    [change] = await agent.history(path, TASK, page_size=1)
    assert change.entry == event
    await agent.commit(put("made-of-it", provenance=made_of_event(path, event.revision)))
    earlier = entry_pb2.Revision(number=event.revision.number - 1, epoch=event.revision.epoch)
    with refused("PARENT_NOT_FOUND"):
        await agent.commit(put("made-of-nothing", provenance=made_of_event(path, earlier)))


async def test_what_an_event_says_of_others_is_stored_as_any_entry(
    on_any_store: Running, any_store: BoardStore
) -> None:
    """It may be judged again, and what was made of it has to be found."""
    log = await Log.begun(on_any_store)
    path = await log.note("a page", provenance=of_source())
    assert await in_history(any_store, path) == [1]


@pytest.mark.parametrize("before", [False, True], ids=["stored once", "stored twice"])
async def test_an_event_that_is_endorsed_keeps_the_state_before(
    on_any_store: Running, any_store: BoardStore, *, before: bool
) -> None:
    """With its revision, so that what was made of it then can still say so."""
    log = await Log.begun(on_any_store)
    path = await log.note("we agreed on blue")
    if before:
        await as_before(any_store)
    agent, chief = on_any_store.agent, on_any_store.as_agent("chief-1", "member,supervisor")
    first = await agent.get(path, TASK)
    await chief.endorse(path, first, "USER", region=TASK)
    assert await in_history(any_store, path) == [2, 1]
    second = await agent.get(path, TASK)
    assert second.label.trust == trust_pb2.TRUST_LEVEL_USER
    assert second.value == first.value
    changes = await agent.history(path, TASK)
    assert [change.entry for change in changes] == [second, first]
    request = board_service_pb2.ListRevisionsRequest(board="main", key=key(path, TASK), page_size=1)
    paged: list[entry_pb2.EntryChange] = []
    while not paged or request.page_token:
        page = await agent.board.ListRevisions(request, metadata=agent.metadata)
        paged += page.revisions
        request.page_token = page.next_page_token
    assert paged == changes
    for state in (first, second):
        await agent.commit(put(f"at-{state.revision.number}", provenance=made_of_event(path, state.revision)))
    [event] = [one for one in await log.tasks.events("t1") if one.entry.key.path == path]
    assert event.entry == second


@pytest.mark.parametrize("before", [False, True], ids=["stored once", "stored twice"])
async def test_an_agents_events_are_purged_with_all_it_wrote(
    on_any_store: Running, any_store: BoardStore, *, before: bool
) -> None:
    """One of them endorsed: what was moved into the history goes too."""
    log = await Log.begun(on_any_store)
    agent, chief = on_any_store.agent, on_any_store.as_agent("chief-1", "member,supervisor")
    paths = [await log.note(f"the moon is cheese {number}") for number in range(2)]
    if before:
        await as_before(any_store)
    await chief.endorse(paths[1], await agent.get(paths[1], TASK), "USER", region=TASK)
    state = (await agent.get(paths[0], TASK)).revision
    other = on_any_store.as_agent("writer-2")
    await other.commit(put("made-of-it", "cheese, then", provenance=made_of_event(paths[0], state)))
    traced = await other.trace("made-of-it")
    assert [(one.key.path, one.kept, one.revision) for one in traced.states[1:2]] == [(paths[0], True, state)]
    receipts = await purged(on_any_store, agent=agent.name)
    assert receipts["entries"].count == receipts["history"].count - 1
    for path in paths:
        with refused("NOT_FOUND"):
            await agent.get(path, TASK)
        assert [change.entry.HasField("value") for change in await agent.history(path, TASK)] == [False]
    left = await records(any_store, keys.HEAD) + await records(any_store, keys.HISTORY)
    assert [one.key for one in left if b"cheese" in one.value] == []
    assert (await purged(on_any_store, agent=agent.name))["entries"].count == 0


async def test_an_event_from_outside_is_judged_again_and_purged(
    start: Started, any_store: BoardStore, rules: Rules
) -> None:
    first = await start(any_store)
    log = await Log.begun(first)
    path = await log.note(ZEBRA, provenance=of_source(uri=BAD))
    rules.phrases = PHRASES
    running = await successor(start, first, any_store)
    assert (await judged_again(running)).withheld == 1
    chief = running.as_agent("chief-1", "member,supervisor")
    history = await running.agent.history(path, TASK, floor=EXTERNAL)
    assert [change.entry.withheld for change in history] == [True, True]
    shown = await chief.history(path, TASK, floor=SUSPECT)
    assert [change.entry.value.external.text for change in shown] == [ZEBRA, ZEBRA]
    await purged(running)
    assert [one for one in await records(any_store, keys.HEAD + REGION) if ZEBRA.encode() in one.value] == []
    assert [one for one in await records(any_store, keys.HISTORY + REGION) if ZEBRA.encode() in one.value] == []


async def test_a_repeated_commit_is_answered_from_a_state_that_is_stored_once(on_any_store: Running) -> None:
    """Also when it was written over since."""
    log = await Log.begun(on_any_store)
    agent = on_any_store.agent
    note = happened("t1", NOTE, step="a", data="once")
    request = commit_pb2.CommitRequest(board="main", request_id=new_id(), mutations=[note], fences=[log.fence])
    answer = await agent.board.Commit(request, metadata=agent.metadata)
    again = await agent.board.Commit(request, metadata=agent.metadata)
    assert again.replayed
    assert again.results == answer.results
    path = event_path(answer.results[0].event_number)
    chief = on_any_store.as_agent("chief-1", "member,supervisor")
    await chief.endorse(path, await agent.get(path, TASK), "USER", region=TASK)
    assert (await agent.board.Commit(request, metadata=agent.metadata)).results == answer.results
