"""A request for a lock while the server has it in hand, and what it is answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kokuban_server.app.lock_views import Sight
    from kokuban_server.core.access import Principal
    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.locks import LockRecord, LockTarget, Mode
    from kokuban_server.core.names import EntryKey, Region
    from kokuban_server.ports.board_store import Record


class LockRequest(NamedTuple):
    """A lock that is asked for, as the wire has parsed it."""

    board: str
    session_id: str
    request_id: str
    id_time_ms: int
    digest: bytes
    """Of everything that was asked."""
    targets: tuple[LockTarget, ...]
    mode: Mode
    purpose: str
    wait_ms: int
    """0: be refused instead."""
    hold_ms: int
    lock_delay_ms: int
    traceparent: str
    candidates: tuple[EntryKey, ...] = ()
    """Of a claim: the entries of which it wants the first that exists and is free; the targets are then one for each."""
    retry_of: str = ""
    """The request that lost, and that this one replaces."""


class ShownLock(NamedTuple):
    """A lock as a caller is told of it."""

    lock_id: str
    lock: LockRecord
    is_held: bool
    """False for one that was lost and whose lock delay is not over."""
    revision: int
    """Of its grant."""


class Queued(NamedTuple):
    """Where a request stands."""

    ahead: int
    held_by: tuple[ShownLock, ...]


class Granted(NamedTuple):
    """A lock that was granted."""

    lock_id: str
    lock: LockRecord
    revision: int
    replayed: bool
    waited_ms: int
    entry: tuple[EntryKey, EntryRecord, int] | None = None
    """Of a claim: what was claimed, as it was then."""


@dataclass(eq=False, slots=True)
class Asked:
    """A request in hand."""

    principal: Principal
    request: LockRequest
    lock_id: str
    operation: bytes
    deadline: float
    """The loop's time by which a round must have dealt with it."""
    sight: Sight
    begun: float
    outcome: asyncio.Future[Granted]
    regions: frozenset[Region]
    heads: tuple[bytes, ...]
    """Of a claim: its candidates' heads."""
    states: dict[bytes, Record | None] = field(default_factory=dict)
    """What the heads held when they were last looked at."""
    looks: int = 0
    """How often the store was asked."""
    in_doubt: bool = False
    """The store must be asked before the request is planned."""
    verified: frozenset[str] = frozenset()
    """What was known here and the store has said is so."""
    is_pending: bool = False
    in_round: bool = False
    again: bool = False
    """The round did not deal with it."""
    is_queued: bool = False
    """Its wait stands in the store, as far as is known."""
    is_ending: bool = False
    """It is about to be withdrawn."""
    is_abandoned: bool = False
    """Nobody waits for it any more."""
    has_news: bool = False
    """Its stream should say where it stands."""
    told: Queued | None = None
    """Where it stood when its stream last said so."""
    blocker: str = ""
    """What was last found in the way of its wait."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_claim(self) -> bool:
        """Whether it wants one of several entries."""
        return bool(self.request.candidates)

    @property
    def is_granted(self) -> bool:
        """Whether it has ended with its grant."""
        return self.outcome.done() and not self.outcome.cancelled() and self.outcome.exception() is None

    def refuse(self, refusal: Exception) -> None:
        """End it with a refusal."""
        if not self.outcome.done():
            self.outcome.set_exception(refusal)
            self.outcome.exception()  # looked at: whoever asked may have left
        self.changed.set()

    def grant(self, granted: Granted) -> None:
        """End it with its grant."""
        self.is_queued = False
        if not self.outcome.done():
            self.outcome.set_result(granted)
        self.changed.set()
