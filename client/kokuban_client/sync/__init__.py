"""The same client for threads: `connect`, `Client`, `Board` and the rest, without `async` and `await`.

It is generated from the asynchronous one and speaks over gRPC's own blocking channels: no event loop runs behind it, and one
client may be used from several threads.
"""

from __future__ import annotations

from kokuban_client.sync._audit import AuditRecords
from kokuban_client.sync._board import Board, Claim, ClaimedStep, Client, HeldLock, Listing, Transaction, connect
from kokuban_client.sync._conflicts import Conflicts, ConflictWatch
from kokuban_client.sync._sessions import Session
from kokuban_client.sync._watch import Watch

__all__ = [
    "AuditRecords",
    "Board",
    "Claim",
    "ClaimedStep",
    "Client",
    "ConflictWatch",
    "Conflicts",
    "HeldLock",
    "Listing",
    "Session",
    "Transaction",
    "Watch",
    "connect",
]
