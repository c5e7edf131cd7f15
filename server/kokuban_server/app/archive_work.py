"""Removing tasks that were archived: a part at a time, counted with each part, and verified at the end.

Every step is guarded on how far the one before had come, so that a server may be killed at any, and two may work at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kokuban_server.core import keys, limits
from kokuban_server.core.archives import Archive, ArchivePhase
from kokuban_server.core.change_set import AtRevision, ChangeSet, DeleteKey, DeleteRange, NoneBelow, Put
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.archive_codec import decode_archive, encode_archive
from kokuban_server.records.codec import decode_entry

if TYPE_CHECKING:
    from kokuban_server.core.change_set import Delete, Guard
    from kokuban_server.ports.board_store import BoardStore, Record

_CALL_S = 10.0
_AT_ONCE = 16
_STEPS_AT_ONCE = 20
_ENTRIES_AT_ONCE = 90
"""Each with its reminder, in one change set."""
_PARTS = (keys.HEAD, keys.HISTORY, keys.TASK_ACTION)
"""What is left of a task once how it stands and its log are gone."""


class ArchiveWork:
    """Goes on with what has begun, and lets tasks go that are not being compared any more."""

    def __init__(self, store: BoardStore) -> None:
        self._store = store

    async def turn(self) -> None:
        """Do some steps for each task that there is something to do of."""
        page = await self._store.scan(keys.ARCHIVING, b"", _AT_ONCE, limits.PAGE_BYTES_MAX, STRONG, _CALL_S)
        for record in page.records:
            region = record.key[len(keys.ARCHIVING) :]
            for _ in range(_STEPS_AT_ONCE):
                try:
                    if not await self.step(region):
                        break
                except CommitRefused:
                    break  # somebody else does the same work

    async def step(self, region: bytes) -> bool:
        """Do the next step of a task, by what its region's keys have in common; say whether there may be another.

        Raises `CommitRefused` if somebody else has done one meanwhile.
        """
        key, marker = keys.TASK_ARCHIVE + region, keys.ARCHIVING + region
        cut = await self._store.read([key], STRONG, _CALL_S)
        found = cut.records[0]
        archive = None if found is None else decode_archive(key, found.value)
        if found is None or archive is None or archive.phase in {ArchivePhase.ARCHIVED, ArchivePhase.RESTORING}:
            await self._store.commit(ChangeSet((), (), (DeleteKey(marker),)), _CALL_S)
            return False
        guard = AtRevision(key, found.revision)
        if archive.phase is ArchivePhase.PREPARING:
            if cut.store_time_ms >= archive.until_ms:
                await self._store.commit(ChangeSet((guard,), (), (DeleteKey(key), DeleteKey(marker))), _CALL_S)
            return False
        for part in _PARTS:
            prefix = part + region
            limit = _ENTRIES_AT_ONCE if part == keys.HEAD else limits.PAGE_ENTRIES_MAX
            page = await self._store.scan(prefix, b"", limit, limits.PAGE_BYTES_MAX, STRONG, _CALL_S)
            if page.records:
                await self._remove(guard, archive, page.records, with_reminders=part == keys.HEAD)
                return True
        guards: list[Guard] = [guard, *[NoneBelow(part + region) for part in _PARTS]]
        put = Put(key, encode_archive(replace(archive, phase=ArchivePhase.ARCHIVED)))
        await self._store.commit(ChangeSet(tuple(guards), (put,), (DeleteKey(marker),)), _CALL_S)
        return False

    async def _remove(
        self, guard: AtRevision, archive: Archive, records: tuple[Record, ...], *, with_reminders: bool
    ) -> None:
        deletes: list[Delete] = [DeleteRange(records[0].key, records[-1].key + b"\x00")]
        if with_reminders:
            deletes += reminders(records)
        put = Put(guard.key, encode_archive(replace(archive, removed=archive.removed + len(records))))
        await self._store.commit(ChangeSet((guard,), (put,), tuple(deletes)), _CALL_S)


def reminders(records: tuple[Record, ...]) -> list[Delete]:
    """Give what removes the sweeper's reminders of entries, as they name the entries' paths."""
    deletes: list[Delete] = []
    for record in records:
        state = decode_entry(record.key, record.value)
        due_ms = state.expire_time_ms or state.sweep_time_ms
        if due_ms:
            deletes.append(DeleteKey(keys.due(due_ms, record.key)))
    return deletes
