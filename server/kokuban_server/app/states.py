"""The kept states of entries, wherever they stand.

An entry's present state stands at its head and in its history, those before it in its history. What an agent says itself in an
event of a task is written once, and stands at the head alone: so an event is no dearer to write than any other entry. Should it
be endorsed after all, it moves into the history. Stores from before this was so have it in both places from the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import records_below
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import Put
from kokuban_server.ports.board_store import STRONG, Snapshot
from kokuban_server.records.codec import decode_entry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.provenance import StateName
    from kokuban_server.ports.board_store import BoardStore, Consistency, Page, Record


def puts_of_state(head: bytes, state: EntryRecord, raw: bytes) -> list[Put]:
    """Give what makes a state an entry's present one. `raw` is the state as it is stored."""
    if state.is_at_head_alone:
        return [Put(head, raw)]
    return [Put(head, raw), Put(keys.history_record(head, state.sequence), raw)]


async def scan_states(
    store: BoardStore,
    head: bytes,
    after: bytes,
    limit: int,
    consistency: Consistency,
    deadline: float,
    bytes_max: int = limits.PAGE_BYTES_MAX,
) -> Page:
    """Give a page of an entry's kept states, newest first, in one consistent cut, as `BoardStore.scan` gives its history.

    A state is given as if it had stood in the history from when it was written.
    """
    page = await store.scan(keys.history(head), after, limit, bytes_max, consistency, left_s(deadline))
    if not keys.is_of_event(head):
        return page
    page = page._replace(records=tuple(map(_as_written, page.records)))
    if after:
        return page
    present = (await store.read([head], Snapshot(page.revision), left_s(deadline))).records[0]
    if present is None:
        return page
    present = _in_history(present)
    if page.records and page.records[0].key <= present.key:
        return page
    records = _first([present, *page.records], limit, bytes_max)
    return page._replace(records=records, more=page.more or len(records) <= len(page.records))


async def states_of(store: BoardStore, head: bytes, deadline: float) -> AsyncGenerator[Record, None]:
    """Give all of an entry's kept states, newest first, in one consistent cut, as `scan_states` does."""
    after, more = b"", True
    cut: Consistency = STRONG
    while more:
        page = await scan_states(store, head, after, limits.PAGE_ENTRIES_MAX, cut, deadline)
        cut, more = Snapshot(page.revision), page.more
        for record in page.records:
            after = record.key
            yield record


async def states_on(store: BoardStore, board_prefix: bytes, deadline: float) -> AsyncGenerator[Record, None]:
    """Give all kept states of a board, as `scan_states` does.

    Of one entry the newest come first; only an event's present one is given after past ones, and again if it is in both places.
    """
    async for record in records_below(store, keys.HISTORY + board_prefix, deadline):
        yield _as_written(record) if keys.is_of_event(keys.head_of_history(record.key)) else record
    async for record in records_below(store, keys.task_heads(board_prefix), deadline):
        if keys.is_of_event(record.key):
            yield _in_history(record)


async def states_at(store: BoardStore, names: Sequence[StateName], deadline: float) -> list[Record | None]:
    """Read states by their entries' heads and their sequences, as `scan_states` does; nothing for those that are not kept."""
    found: list[Record | None] = []
    for begin in range(0, len(names), limits.BATCH_KEYS_MAX):
        part = names[begin : begin + limits.BATCH_KEYS_MAX]
        heads = list(dict.fromkeys([head for head, _ in part if keys.is_of_event(head)]))
        named = [keys.history_record(head, sequence) for head, sequence in part]
        records = (await store.read([*named, *heads], STRONG, left_s(deadline))).records
        present = {one.key: one for one in map(_in_history, filter(None, records[len(named) :]))}
        past = {one.key: _as_written(one) for one in filter(None, records[: len(named)])}
        found += [past.get(key) or present.get(key) for key in named]
    return found


def _as_written(past: Record) -> Record:
    """Give an event's past state with the revision at which it was written."""
    return past._replace(revision=decode_entry(past.key, past.value).written_revision or past.revision)


def _in_history(present: Record) -> Record:
    """Give an entry's present state with the key that it has, or would have, in the history."""
    sequence = decode_entry(present.key, present.value).sequence
    return present._replace(key=keys.history_record(present.key, sequence))


def _first(records: Sequence[Record], limit: int, bytes_max: int) -> tuple[Record, ...]:
    """Give as many records as a page may have, at least one."""
    size = 0
    for count, record in enumerate(records):
        size += len(record.key) + len(record.value)
        if count == limit or (count and size > bytes_max):
            return tuple(records[:count])
    return tuple(records)
