"""Stores that are wrong in one way each: what the simulation must be able to find."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kokuban_server.core import keys
from kokuban_server.core.change_set import ChangeSet
from kokuban_server.ports.board_store import Cut, Snapshot, Strong, WatchBatch
from tests.simulation.simulated_store import RecordedStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from kokuban_server.ports.board_store import Consistency
    from kokuban_server.ports.group_commit import Answer


class ChecksThenActs(RecordedStore):
    """Judges the guards, does something else, then applies."""

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        refusal = self._refusal(change)
        if refusal is not None:
            raise refusal
        await asyncio.sleep(0.002)
        return await super().commit(ChangeSet((), change.puts, change.deletes), deadline_s)


class ForgetsOperations(RecordedStore):
    """Does not keep the records that make a request happen once."""

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        puts = tuple(put for put in change.puts if not put.key.startswith(keys.OPERATION))
        return await super().commit(ChangeSet(change.guards, puts, change.deletes), deadline_s)


class LosesEvents(RecordedStore):
    """Leaves every thirtieth change out of its watches."""

    async def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async for batch in super().watch(prefixes, after_revision):
            yield WatchBatch(batch.revision, tuple(event for event in batch.events if event.revision % 30))


class TurnsTimeBack(RecordedStore):
    """Takes the writing server's clock for store time, also when that is behind."""

    async def _send(self, batch: Sequence[ChangeSet]) -> Sequence[Answer]:
        answers = await super()._send(batch)
        if any(change.puts for change in batch):
            self._store_time_ms = self.writers_clock.now_ms()
        return answers


class ReadsLate(RecordedStore):
    """Answers a strong read with a state that is a little old."""

    async def read(self, keys: Sequence[bytes], consistency: Consistency, deadline_s: float) -> Cut:
        if isinstance(consistency, Strong):
            consistency = Snapshot(max(self.floor, self.present - 2))
        return await super().read(keys, consistency, deadline_s)


class AcknowledgesInVain(RecordedStore):
    """Says that a commit holds, and now and then does not write it."""

    _commits = 0

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        self._commits += 1
        if change.puts and self._commits % 40 == 0 and self._refusal(change) is None:
            return self.present + 1
        return await super().commit(change, deadline_s)


class TearsCommits(RecordedStore):
    """Applies a large commit at two revisions."""

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        first = await super().commit(ChangeSet(change.guards, change.puts[:2], change.deletes), deadline_s)
        if change.puts[2:]:
            await super().commit(ChangeSet((), change.puts[2:]), deadline_s)
        return first


class RevivesDead(RecordedStore):
    """Never finds that an instant has passed, so what has expired can still be written to."""

    def _refusal(self, change: ChangeSet) -> Exception | None:  # type: ignore[override]  # of the same exceptions
        guards = tuple(guard for guard in change.guards if type(guard).__name__ != "TimeBefore")
        return super()._refusal(ChangeSet(guards, change.puts, change.deletes))
