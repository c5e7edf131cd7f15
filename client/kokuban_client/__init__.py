"""Kokuban's client: the shared memory of a team of agents, from Python.

`connect` gives an asynchronous client; `kokuban_client.sync.connect` the same for threads.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kokuban_client._board import Board, Client, Listing, Transaction, connect
    from kokuban_client._watch import Watch
    from kokuban_client.errors import (
        AlreadyExists,
        Conflict,
        HistoryLost,
        KokubanError,
        NotFound,
        OutcomeUnknown,
        Refused,
        RevisionMismatch,
        Unavailable,
    )
    from kokuban_client.types import (
        KEEP,
        NOW,
        SNAPSHOT,
        AtLeast,
        Binary,
        Bookmark,
        ChangeType,
        CommitResult,
        Entry,
        EntryChange,
        EntryKey,
        Freshness,
        Json,
        Reset,
        Revision,
        Snapshot,
        SnapshotComplete,
        SnapshotEntry,
        Status,
        Text,
        Written,
    )

__all__ = [
    "KEEP",
    "NOW",
    "SNAPSHOT",
    "AlreadyExists",
    "AtLeast",
    "Binary",
    "Board",
    "Bookmark",
    "ChangeType",
    "Client",
    "CommitResult",
    "Conflict",
    "Entry",
    "EntryChange",
    "EntryKey",
    "Freshness",
    "HistoryLost",
    "Json",
    "KokubanError",
    "Listing",
    "NotFound",
    "OutcomeUnknown",
    "Refused",
    "Reset",
    "Revision",
    "RevisionMismatch",
    "Snapshot",
    "SnapshotComplete",
    "SnapshotEntry",
    "Status",
    "Text",
    "Transaction",
    "Unavailable",
    "Watch",
    "Written",
    "connect",
]

# Names are loaded when they are first asked for: `kokuban --help` should not pay for gRPC.
_ROOMS = ("types", "errors", "_watch", "_board")


def __getattr__(name: str) -> object:
    if name in __all__:
        for room in _ROOMS:
            module = importlib.import_module(f"{__name__}.{room}")
            if name in vars(module):
                found: object = vars(module)[name]
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
