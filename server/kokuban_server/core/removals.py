"""Purges of sources and erasures of persons: what is removed, how far that has come, and what became of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kokuban_server.core.provenance import Selector


class RemovalState(enum.IntEnum):
    """How far a removal has come. The numbers are those of the wire and of the store."""

    PLANNED = 1
    RUNNING = 2
    DONE = 3


class ErasureStatus(enum.IntEnum):
    """What became of what one store held. The numbers are those of the wire and of the store."""

    ERASED = 1
    KEPT = 2
    PENDING_COMPACTION = 3
    UNSUPPORTED = 4


class StoreReceipt(NamedTuple):
    """What became of what one store held."""

    store: str
    status: ErasureStatus
    records: int = 0
    revision: int = 0
    """What a compaction is waited for."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Removal:
    """A purge or an erasure as it is stored."""

    selector: Selector
    reason: str
    author: str
    create_time_ms: int
    allows_reingest: bool = False
    state: RemovalState = RemovalState.PLANNED
    started_by: str = ""
    start_time_ms: int = 0
    end_time_ms: int = 0
    receipts: tuple[StoreReceipt, ...] = ()
    """While it runs, what was removed so far, counted with the removal."""
    is_erasure: bool = False

    def removed(self, **counts: int) -> Removal:
        """Give the removal with so many more records removed, by the store that held them."""
        before = {receipt.store: receipt.records for receipt in self.receipts}
        for store, count in counts.items():
            before[store] = before.get(store, 0) + count
        receipts = tuple(StoreReceipt(store, ErasureStatus.ERASED, count) for store, count in sorted(before.items()))
        return replace(self, receipts=receipts)

    def count_of(self, store: str) -> int:
        """How many records of a store were removed."""
        return sum(receipt.records for receipt in self.receipts if receipt.store == store)


class Fate(enum.IntEnum):
    """What becomes of a state. The numbers are those of the wire."""

    REMOVED = 1
    ATTESTED = 2
    UNDECIDED = 3
