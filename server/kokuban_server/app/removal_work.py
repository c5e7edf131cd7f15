"""Doing removals: step by step, counted with each step, until nothing is found any more while nobody can have added to it.

Everything is found anew at each turn and guarded, so that a server may be killed at any step, and two may work at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.background import Turns
from kokuban_server.app.commits import origin_put, puts_of
from kokuban_server.app.mirrored_store import records_below
from kokuban_server.app.origin_sweep import OriginSweep
from kokuban_server.app.ownership import Ownership
from kokuban_server.app.removal_survey import survey
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, DeleteKey, DeleteRange, Put
from kokuban_server.core.commit import Moment, plan_attested, plan_removal
from kokuban_server.core.entry import Act, EntryState
from kokuban_server.core.names import EntryKey, Region, RegionKind
from kokuban_server.core.provenance import Selector, has_origin
from kokuban_server.core.refusals import Contended
from kokuban_server.core.removals import ErasureStatus, RemovalState, StoreReceipt
from kokuban_server.ports.board_store import STRONG, CommitRefused
from kokuban_server.records.board_codec import encode_board
from kokuban_server.records.codec import decode_entry
from kokuban_server.records.provenance_codec import decode_removal, encode_removal, reworded
from kokuban_server.records.trust_codec import decode_read_scope, encode_read_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kokuban_server.app.boards import Board, Boards
    from kokuban_server.app.removal_survey import EntrySurvey, Survey
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.change_set import Delete, Guard
    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.provenance import StateName
    from kokuban_server.core.read_scopes import Given
    from kokuban_server.core.removals import Removal
    from kokuban_server.core.trust import Label
    from kokuban_server.ports.board_store import BoardStore, Record

_CALL_S = 10.0
_SURVEY_S = 300.0
_ROUNDS_AT_ONCE = 20
_STATES_AT_ONCE = 30
"""Each may have a record of its origin changed with it."""
_ACT = Act("kokuban", "")
_ERASED = EntryKey(Region(RegionKind.USER, "erased"), "erased")
"""What stands for a person's entry where a record must keep its place."""


class RemovalUpkeep:
    """The loop that goes on with the removals that have begun, while this server owns the work or was asked itself."""

    def __init__(
        self,
        store: BoardStore,
        boards: Boards,
        time: StoreTime,
        server_id: str,
        report: Callable[[str, Exception], None],
        interval_s: float,
    ) -> None:
        self._store = store
        self._boards = boards
        self._time = time
        self._ownership = Ownership(store, "removals", server_id)
        self._report = report
        self._interval_s = interval_s
        self._origins = OriginSweep(store, time)
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Have this server begin at once, whoever owns the work: that one may be gone, and its lease not over yet."""
        self._asked.set()

    async def run(self) -> None:
        """Work until cancelled. What goes wrong is reported and tried again at the next turn."""
        turns = Turns("removals", self._report)
        try:
            while True:
                with turns.turn():
                    if self._asked.is_set():
                        self._asked.clear()
                        await self.turn()
                    if await self._ownership.hold():
                        await self.turn()
                        await self._origins.turn()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._asked.wait()
        finally:
            await self._ownership.let_go()

    async def turn(self) -> None:
        """Do what there is to do of every removal that has begun, a bounded part of it."""
        page = await self._store.scan(
            keys.REMOVAL_RUNNING, b"", limits.PAGE_ENTRIES_MAX, limits.PAGE_BYTES_MAX, STRONG, _CALL_S
        )
        for record in page.records:
            board, removal_id = keys.parse_running(record.key)
            await self._go_on(record.key, board, removal_id)

    async def _go_on(self, marker: bytes, board: bytes, removal_id: str) -> None:
        """Take away what is found; look again when everybody has been told, and finish if nothing is found then."""
        tenant, board_id = keys.parse_board(keys.BOARD + board)
        key = keys.on_board(keys.REMOVAL, board, removal_id)
        is_told = False
        for _ in range(_ROUNDS_AT_ONCE):
            found = (await self._store.read([key], STRONG, _CALL_S)).records[0]
            home = await self._boards.read(tenant, board_id, _CALL_S)
            is_over = found is None or decode_removal(key, found.value).state is not RemovalState.RUNNING
            if found is None or is_over or home is None or not home.is_live:  # a board that is deleted goes as a whole
                await self._store.commit(ChangeSet((), (), (DeleteKey(marker),)), _CALL_S)
                return
            step = _Step(self._store, self._time, home, marker, key, found)
            try:
                seen = await survey(self._store, tenant, board_id, step.removal.selector, _later(_SURVEY_S))
                if not seen.is_clean:
                    is_told = False
                    await step.take_away(seen)
                elif not is_told:
                    await step.tell()
                    is_told = True
                else:
                    await step.finish(seen)
                    return
            except (CommitRefused, Contended):
                continue  # somebody writes what was looked at, or does the same work


class _Step:
    """One round of one removal."""

    def __init__(
        self, store: BoardStore, time: StoreTime, board: Board, marker: bytes, key: bytes, record: Record
    ) -> None:
        self._store = store
        self._time = time
        self._board = board
        self._prefix = keys.board_prefix(board.tenant, board.id)
        self._marker = marker
        self._key = key
        self._id = keys.name_on_board(key)
        self._revision = record.revision
        self.removal = decode_removal(key, record.value)

    async def _commit(
        self, guards: Sequence[Guard], puts: Sequence[Put], deletes: Sequence[Delete], after: Removal
    ) -> None:
        """Apply a step together with the count of it."""
        change = ChangeSet(
            (AtRevision(self._key, self._revision), *guards),
            (Put(self._key, encode_removal(after)), *puts),
            tuple(deletes),
        )
        self._revision = await self._store.commit(change, _CALL_S)
        self.removal = after

    async def take_away(self, seen: Survey) -> None:
        """Close the scopes that were given any of it, and remove what was found."""
        for stored, scope in seen.scopes:
            closed = Put(stored.key, encode_read_scope(scope._replace(purged_by=self._id)))
            after = self.removal.removed(read_scopes=1)
            await self._commit([AtRevision(*stored)], [closed], [], after)
        for stored in seen.quarantined:
            made_ms = int(keys.name_on_board(stored.key)[:15])
            reminder = keys.quarantine_due(made_ms + limits.QUARANTINE_MS, stored.key)
            deletes = [DeleteKey(stored.key), DeleteKey(reminder)]
            await self._commit([AtRevision(*stored)], [], deletes, self.removal.removed(quarantine=1))
        for stored in seen.conflicts:
            _, _, conflict_id = keys.parse_conflict(stored.key)
            deletes = [DeleteKey(stored.key), DeleteKey(keys.conflict_place(self._prefix, conflict_id))]
            await self._commit([AtRevision(*stored)], [], deletes, self.removal.removed(conflicts=1))
        for entry in seen.entries:
            await self._take_surely(entry, seen)

    async def _take_surely(self, entry: EntrySurvey, seen: Survey) -> None:
        """Remove an entry's states, however fast others write it.

        Raises `CommitRefused` if somebody else does the same work, and `Contended`.
        """
        for _ in range(limits.PLAN_ATTEMPTS_MAX):
            try:
                await self._take_entry(entry, seen)
            except CommitRefused as refused:
                if any(failure.place == 0 for failure in refused.failures):
                    raise
                entry = await seen.again(entry.head)
                if entry.is_touched:
                    continue
            return
        raise Contended(limits.PLAN_ATTEMPTS_MAX)

    async def _take_entry(self, entry: EntrySurvey, seen: Survey) -> None:
        """Remove an entry's states, a bounded part at once; what another of its states says too, its present one still says."""
        head, current = entry.head, entry.current
        _, _, key = keys.parse_head(head)
        rules = self._board.policy.terms(key.region).rules
        moment = Moment(self._time.now_ms(), self._time.seen_ms, self._store.epoch)
        states = (entry.removed + entry.attested)[:_STATES_AT_ONCE]
        guards: list[Guard] = [AtRevision(head, current.revision) if current.revision else Absent(head)]
        puts: list[Put] = []
        deletes: list[Delete] = [DeleteKey(keys.history_record(head, state.record.sequence)) for state in states]
        present = next((state for state in states if entry.is_present(state)), None)
        if present is not None:
            witness = entry.witnesses.get(present.record.sequence)
            if witness is None:
                planned = plan_removal(head, rules, current, _ACT, moment)
            else:
                planned = plan_attested(head, rules, current, witness, _ACT, moment)
                if has_origin(witness.label):
                    puts.append(self._origin(key, planned.states[0][1]))
            guards = planned.guards
            puts += puts_of(planned)
            deletes += planned.clean_ups
        names = {(head, state.record.sequence): entry.witnesses.get(state.record.sequence) for state in states}
        words = {name: witness.label for name, witness in names.items() if witness is not None}
        for changed in await self._reworded(seen, words):
            guards.append(changed.guard)
            puts += changed.puts
            deletes += changed.deletes
        after = self.removal.removed(entries=int(present is not None), history=len(states))
        await self._commit(guards, puts, list(dict.fromkeys(deletes)), after)

    def _origin(self, key: EntryKey, record: EntryRecord) -> Put:
        """Give the record of what a state was made of that stands for another."""
        states = [(key, record.sequence, record.label)]
        return origin_put(self._prefix, f"{self._id} {key}".encode(), record.acts[0], record.update_time_ms, states)

    async def _reworded(self, seen: Survey, labels: Mapping[StateName, Label | None]) -> list[_Reworded]:
        """Give what has the records of origins say something else of some states, or nothing of those without a label."""
        if not labels:
            return []
        named = sorted(
            {origin.key for origin in seen.origins if origin.name in labels and origin.board == self._prefix}
        )
        says = {name: label if label is None or has_origin(label) else None for name, label in labels.items()}
        changed = []
        for begin in range(0, len(named), limits.BATCH_KEYS_MAX):
            part = named[begin : begin + limits.BATCH_KEYS_MAX]
            for record in (await self._store.read(part, STRONG, _CALL_S)).records:
                if record is not None:
                    raw = reworded(record.key, record.value, says)
                    puts, deletes = ([Put(record.key, raw)], []) if raw else ([], [DeleteKey(record.key)])
                    changed.append(_Reworded(AtRevision(record.key, record.revision), puts, deletes))
        return changed

    async def tell(self) -> None:
        """Have every commit judged anew that is on its way: from here on none is written that relies on what is gone."""
        record = self._board.record
        put = Put(self._board.key, encode_board(replace(record, removals=record.removals + 1)))
        await self._commit([self._board.guard], [put], [], self.removal)

    async def finish(self, seen: Survey) -> None:
        """Remove what is recorded of the origins of what is gone, unless other boards need it; and write the receipt."""
        needed = bool(seen.beyond or seen.other_boards)
        if not needed:
            gone = {(head, sequence): None for head, found in seen.descent.states.items() for sequence in found}
            for changed in await self._reworded(seen, gone):
                after = self.removal.removed(provenance=1)
                await self._commit([changed.guard], changed.puts, changed.deletes, after)
        selector = self.removal.selector
        kept_name = False
        if selector.user:
            region = Region(RegionKind.USER, selector.user)
            await self._rename(str(region))
            kept_name = await self._forget(keys.region_prefix(self._board.tenant, self._board.id, region))
            selector = Selector()
        after = replace(
            self.removal,
            state=RemovalState.DONE,
            selector=selector,
            end_time_ms=self._time.now_ms(),
            receipts=tuple(self._receipts(seen, needed=needed, kept_name=kept_name)),
        )
        await self._commit([], [], [DeleteKey(self._marker)], after)

    async def _rename(self, region: str) -> None:
        """Take a person's region out of what read scopes were given; each keeps its place."""
        async for record in records_below(self._store, keys.SCOPE + self._prefix, _later(_SURVEY_S)):
            scope = decode_read_scope(record.key, record.value)
            if any(str(given.state.key.region) == region for given in scope.given):
                given = tuple(_renamed(one) if str(one.state.key.region) == region else one for one in scope.given)
                put = Put(record.key, encode_read_scope(scope._replace(given=given)))
                await self._commit([AtRevision(record.key, record.revision)], [put], [], self.removal)

    async def _forget(self, region: bytes) -> bool:
        """Remove the tombstones of a person's region, which name it; say whether a record of its locks still does."""
        async for record in records_below(self._store, keys.HEAD + region, _later(_SURVEY_S)):
            state = decode_entry(record.key, record.value)
            if state.state is not EntryState.LIVE:
                history = keys.history(record.key)
                gone: list[Delete] = [DeleteKey(record.key), DeleteRange(history, keys.prefix_end(history))]
                gone.append(DeleteKey(keys.due(state.sweep_time_ms, record.key)))
                await self._commit([AtRevision(record.key, record.revision)], [], gone, self.removal)
        generations = [keys.LOCK_GENERATION + region, keys.QUEUE_GENERATION + region]
        return any((await self._store.read(generations, STRONG, _CALL_S)).records)

    def _receipts(self, seen: Survey, *, needed: bool, kept_name: bool) -> Iterator[StoreReceipt]:
        """Say what became of it, store by store. What was removed was looked for again, and is not there."""
        count_of = self.removal.count_of
        for store in ("entries", "history", "quarantine", "read_scopes"):
            yield StoreReceipt(store, ErasureStatus.ERASED, count_of(store))
        if self.removal.is_erasure:
            yield StoreReceipt("conflicts", ErasureStatus.ERASED, count_of("conflicts"))
        else:
            yield StoreReceipt("conflicts", ErasureStatus.KEPT, note="they name entries and agents, and hold no values")
        if needed:
            note = "what was derived from it elsewhere could not be found without it"
            yield StoreReceipt("provenance", ErasureStatus.KEPT, note=note)
        else:
            yield StoreReceipt("provenance", ErasureStatus.ERASED, count_of("provenance"))
        if any(count_of(store) for store in ("entries", "history", "quarantine", "conflicts")):
            note = "the bytes go when the store forgets its history, and with copies that were made of the store"
            yield StoreReceipt("store_history", ErasureStatus.PENDING_COMPACTION, revision=self._revision, note=note)
        if kept_name:
            note = "the region's name stands in the record that orders its locks; it holds nothing else"
            yield StoreReceipt("locks", ErasureStatus.KEPT, 1, note=note)
        if seen.beyond:
            note = "the region global is not a board's to change"
            yield StoreReceipt("regions_beyond_the_board", ErasureStatus.UNSUPPORTED, seen.beyond, note=note)
        if seen.other_boards:
            note = "a removal there reaches it"
            yield StoreReceipt("other_boards", ErasureStatus.UNSUPPORTED, len(seen.other_boards), note=note)


class _Reworded(NamedTuple):
    """A change of one record of origins."""

    guard: AtRevision
    puts: list[Put]
    deletes: list[DeleteKey]


def _renamed(given: Given) -> Given:
    return given._replace(state=given.state._replace(key=_ERASED))


def _later(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds
