"""Where an entry's states stand is nobody's concern: they are given in the same way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from kokuban_server.app.states import puts_of_state, scan_states, states_at, states_of, states_on
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import ChangeSet, DeleteKey, Put
from kokuban_server.core.entry import EntryRecord, EntryState, Form, Value
from kokuban_server.core.names import parse_region
from kokuban_server.core.tasks import EventType, TaskEvent, event_path
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.codec import decode_entry, encode_entry

if TYPE_CHECKING:
    from kokuban_server.adapters.memory import MemoryStore
    from kokuban_server.ports.board_store import Record

FAR: Final = 1e12
BOARD: Final = keys.board_prefix("dev", "main")
REGION: Final = keys.region_prefix("dev", "main", parse_region("task:t1"))
EVENT: Final = keys.head(REGION, event_path(7))
ENTRY: Final = keys.head(REGION, "findings/one")


def state(sequence: int, *, is_event: bool, words: str = "x") -> EntryRecord:
    event = TaskEvent(EventType.NOTE, number=7) if is_event else None
    return EntryRecord(EntryState.LIVE, sequence, 0, 0, 5, 5, value=Value(Form.TEXT, words), event=event)


async def write(store: MemoryStore, *puts: Put) -> int:
    return await store.commit(ChangeSet((), puts), 10.0)


async def lay_down(store: MemoryStore, head: bytes, past: int, *, twice: bool, words: str = "x") -> int:
    """Write past states and a present one of an entry, that one in the history too if `twice`; give its revision.

    The past ones were written at 1001, 1002 and so on.
    """
    for sequence in range(1, past + 1):
        moved = replace(state(sequence, is_event=True, words=words), written_revision=1000 + sequence)
        await write(store, Put(keys.history_record(head, sequence), encode_entry(moved)))
    present = state(past + 1, is_event=True, words=words)
    puts = [Put(head, encode_entry(present))]
    if twice:
        puts.append(Put(keys.history_record(head, past + 1), encode_entry(present)))
    return await write(store, *puts)


def sequences(records: list[Record]) -> list[int]:
    for record in records:
        state = decode_entry(record.key, record.value)
        assert record.key == keys.history_record(keys.head_of_history(record.key), state.sequence)
        assert record.revision == (state.written_revision or record.revision)
    return [decode_entry(record.key, record.value).sequence for record in records]


@pytest.mark.parametrize(
    ("head", "is_event", "count"), [(ENTRY, False, 2), (EVENT, True, 1)], ids=["an entry", "an event"]
)
async def test_a_state_is_written_twice_but_an_events_once(
    store: MemoryStore, head: bytes, count: int, *, is_event: bool
) -> None:
    written = state(1, is_event=is_event)
    puts = puts_of_state(head, written, encode_entry(written))
    assert [put.key for put in puts] == [head, keys.history_record(head, 1)][:count]
    await write(store, *puts)
    assert sequences([one async for one in states_of(store, head, FAR)]) == [1]


def test_what_an_event_is_its_key_says_as_its_record_does() -> None:
    assert keys.is_of_event(EVENT)
    odd = keys.region_prefix("te/nant", "bo ard", parse_region("task:a.b"))
    assert keys.is_of_event(keys.head(odd, event_path(1)))
    others = [
        ENTRY,
        keys.head(REGION, ".task/other"),
        keys.head(REGION, "x/" + event_path(1)),
        keys.head(keys.region_prefix("dev", "main", parse_region("shared:task")), event_path(1)),
        keys.history_record(EVENT, 1),
    ]
    assert not any(map(keys.is_of_event, others))


@pytest.mark.parametrize("twice", [False, True], ids=["at the head alone", "in both places"])
@pytest.mark.parametrize("past", [0, 1, 5])
async def test_pages_of_states_go_on_where_the_last_one_ended(store: MemoryStore, past: int, *, twice: bool) -> None:
    revision = await lay_down(store, EVENT, past, twice=twice)
    every = list(range(past + 1, 0, -1))
    assert sequences([one async for one in states_of(store, EVENT, FAR)]) == every
    for limit in range(1, past + 3):
        found: list[Record] = []
        more = True
        while more:
            after = found[-1].key if found else b""
            page = await scan_states(store, EVENT, after, limit, STRONG, FAR)
            assert len(page.records) == min(limit, len(every) - len(found))
            found += page.records
            more = page.more
        assert sequences(found) == every
        assert found[0].revision == revision


async def test_a_page_of_states_has_its_bytes_at_most_but_one_state_at_least(store: MemoryStore) -> None:
    await lay_down(store, EVENT, 3, twice=False, words="x" * 100)
    size = 0
    for count, record in enumerate((await scan_states(store, EVENT, b"", 10, STRONG, FAR)).records, 1):
        size += len(record.key) + len(record.value)
        page = await scan_states(store, EVENT, b"", 10, STRONG, FAR, size)
        assert (len(page.records), page.more) == (count, count < 4)
        page = await scan_states(store, EVENT, b"", 10, STRONG, FAR, size - 1)
        assert (len(page.records), page.more) == (max(1, count - 1), True)


async def test_states_over_several_pages_are_of_one_moment(store: MemoryStore) -> None:
    """A state that is written while they are read is not among them, and one that goes then is."""
    past = limits.PAGE_ENTRIES_MAX + 5
    await lay_down(store, EVENT, past, twice=False)
    found: list[Record] = []
    async for record in states_of(store, EVENT, FAR):
        if not found:
            later = encode_entry(state(past + 2, is_event=True))
            gone = DeleteKey(keys.history_record(EVENT, 1))
            await store.commit(ChangeSet((), (Put(EVENT, later),), (gone,)), 10.0)
        found.append(record)
    assert sequences(found) == list(range(past + 1, 0, -1))


@pytest.mark.parametrize("twice", [False, True], ids=["at the head alone", "in both places"])
async def test_states_are_found_by_their_names(store: MemoryStore, *, twice: bool) -> None:
    revision = await lay_down(store, EVENT, 2, twice=twice)
    names = [(EVENT, sequence) for sequence in range(5)] + [(ENTRY, 1), (keys.head(REGION, event_path(8)), 1)]
    names *= limits.BATCH_KEYS_MAX // len(names) + 1  # more than are read at once
    found = await states_at(store, names, FAR)
    assert len(found) == len(names)
    for (head, sequence), record in zip(names, found, strict=True):
        assert (record is not None) == (head == EVENT and sequence in {1, 2, 3})
        if record is not None:
            assert sequences([record]) == [sequence]
            assert (record.revision == revision) == (sequence == 3)
    assert await states_at(store, [], FAR) == []


async def test_all_states_of_a_board_are_those_of_its_histories_and_of_its_events(store: MemoryStore) -> None:
    await lay_down(store, EVENT, 1, twice=False)
    entry = state(1, is_event=False)
    await write(store, *puts_of_state(ENTRY, entry, encode_entry(entry)))
    other = keys.head(keys.region_prefix("dev", "other", parse_region("task:t1")), event_path(7))
    await lay_down(store, other, 1, twice=False)
    found = [record async for record in states_on(store, BOARD, FAR)]
    assert sorted((keys.head_of_history(one.key), sequences([one])[0]) for one in found) == sorted(
        [(EVENT, 1), (EVENT, 2), (ENTRY, 1)]
    )
