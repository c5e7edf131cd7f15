"""Kokuban's client: the shared memory of a team of agents, from Python.

`connect` gives an asynchronous client; `kokuban_client.sync.connect` the same for threads.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kokuban_client._audit import AuditRecords
    from kokuban_client._board import Board, Claim, Client, HeldLock, Listing, Transaction, connect
    from kokuban_client._sessions import Session
    from kokuban_client._watch import Watch
    from kokuban_client.errors import (
        AlreadyExists,
        Conflict,
        Deadlock,
        HistoryLost,
        KokubanError,
        LockConflict,
        LockedByOther,
        LockLost,
        NotFound,
        OutcomeUnknown,
        PolicyChanged,
        Refused,
        RevisionMismatch,
        SessionLost,
        Unavailable,
    )
    from kokuban_client.types import (
        KEEP,
        NOW,
        SNAPSHOT,
        Access,
        AtLeast,
        AuditAnchor,
        AuditChain,
        AuditFault,
        AuditFaultKind,
        AuditRecord,
        AuditVerdict,
        Binary,
        BoardInfo,
        BoardPolicy,
        BoardState,
        Bookmark,
        ChangeType,
        CommitResult,
        Currency,
        Decision,
        Entry,
        EntryChange,
        EntryKey,
        Fence,
        FindingSeverity,
        Freshness,
        Json,
        Lock,
        LockListing,
        LockMode,
        LockRequirement,
        LockScope,
        LockState,
        LockTarget,
        LockWait,
        LossCause,
        Policy,
        PolicyVersion,
        Presence,
        PurgeReceipt,
        Queued,
        Redaction,
        RedactionFinding,
        RedactionKind,
        RegionRule,
        Reset,
        Revision,
        Screening,
        ScreeningFinding,
        ScreeningVerdict,
        SessionInfo,
        SessionState,
        Snapshot,
        SnapshotComplete,
        SnapshotEntry,
        SourceKind,
        Status,
        Text,
        TextView,
        Verb,
        WaitEdge,
        Written,
    )

__all__ = [
    "KEEP",
    "NOW",
    "SNAPSHOT",
    "Access",
    "AlreadyExists",
    "AtLeast",
    "AuditAnchor",
    "AuditChain",
    "AuditFault",
    "AuditFaultKind",
    "AuditRecord",
    "AuditRecords",
    "AuditVerdict",
    "Binary",
    "Board",
    "BoardInfo",
    "BoardPolicy",
    "BoardState",
    "Bookmark",
    "ChangeType",
    "Claim",
    "Client",
    "CommitResult",
    "Conflict",
    "Currency",
    "Deadlock",
    "Decision",
    "Entry",
    "EntryChange",
    "EntryKey",
    "Fence",
    "FindingSeverity",
    "Freshness",
    "HeldLock",
    "HistoryLost",
    "Json",
    "KokubanError",
    "Listing",
    "Lock",
    "LockConflict",
    "LockListing",
    "LockLost",
    "LockMode",
    "LockRequirement",
    "LockScope",
    "LockState",
    "LockTarget",
    "LockWait",
    "LockedByOther",
    "LossCause",
    "NotFound",
    "OutcomeUnknown",
    "Policy",
    "PolicyChanged",
    "PolicyVersion",
    "Presence",
    "PurgeReceipt",
    "Queued",
    "Redaction",
    "RedactionFinding",
    "RedactionKind",
    "Refused",
    "RegionRule",
    "Reset",
    "Revision",
    "RevisionMismatch",
    "Screening",
    "ScreeningFinding",
    "ScreeningVerdict",
    "Session",
    "SessionInfo",
    "SessionLost",
    "SessionState",
    "Snapshot",
    "SnapshotComplete",
    "SnapshotEntry",
    "SourceKind",
    "Status",
    "Text",
    "TextView",
    "Transaction",
    "Unavailable",
    "Verb",
    "WaitEdge",
    "Watch",
    "Written",
    "connect",
]

# Names are loaded when they are first asked for: `kokuban --help` should not pay for gRPC.
_ROOMS = ("types", "errors", "_watch", "_sessions", "_audit", "_board")


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
