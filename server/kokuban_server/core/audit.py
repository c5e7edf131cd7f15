"""What the audit log holds: who did what, when, why, from where; and the chains that hold its records together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from kokuban_server.core.access import Principal

DONE: Final = "done"
"""The outcome of an act that stands in the store together with its record, or whose answer waited for the record."""
BEGUN: Final = "begun"
"""The outcome of an act that is no commit: its record comes first, and does not say whether it was done."""
SUPPRESSED: Final = "SUPPRESSED"
"""The outcome of a record that only says how many refused attempts left none of their own."""

LOCK_BREAK: Final = "lock.break"
BOARD_CREATE: Final = "board.create"
BOARD_DELETE: Final = "board.delete"
POLICY_SET: Final = "policy.set"
REGION_READ: Final = "region.read"
ENTRY_ENDORSE: Final = "entry.endorse"
ENTRY_REVEAL: Final = "entry.reveal"
QUARANTINE_RELEASE: Final = "quarantine.release"
QUARANTINE_REJECT: Final = "quarantine.reject"
QUARANTINE_DROP: Final = "quarantine.drop"
TASK_ARCHIVE: Final = "task.archive"
TASK_RESTORE: Final = "task.restore"
SOURCE_PURGE: Final = "source.purge"
SUBJECT_ERASE: Final = "subject.erase"
HISTORY_COMPACT: Final = "history.compact"
STORE_REPAIR: Final = "store.repair"
ACCESS_REFUSED: Final = "access.refused"

_FOREIGN_CHARACTERS_MAX: Final = 256
"""How much is kept of a text that others make: the peer's address, the credential's name."""


class Origin(NamedTuple):
    """Where an act came from."""

    method: str = ""
    """The API's method; empty for what no call asked for."""
    peer: str = ""
    """The address at the other end of the connection."""
    traceparent: str = ""
    """The W3C trace context, or empty."""


class AuditEntry(NamedTuple):
    """An act that is to be recorded."""

    act: str
    """What is done: a stable name, noun and verb with a dot."""
    principal: Principal
    board: str = ""
    target: str = ""
    """What it is done to: a region, a lock's id, a revision. Never a value."""
    reason: str = ""
    """Why, in the caller's words."""
    outcome: str = DONE
    """`done`, `begun`, or the reason of the refusal."""
    suppressed: int = 0
    """How many refused attempts of this principal left no record since its record before."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An act as it is recorded: what its hash covers."""

    tenant: str
    chain: str
    sequence: int
    """Counts the chain's records from 1 without a gap."""
    previous_hash: bytes
    """The hash of the chain's record before; empty in the first."""
    record_time_ms: int
    """When it was recorded; never falls within a chain."""
    act_time_ms: int
    """When it was done or attempted."""
    act: str
    method: str
    agent: str
    credential: str
    roles: tuple[str, ...]
    peer: str
    board: str
    target: str
    reason: str
    outcome: str
    traceparent: str
    suppressed: int


def record_of(entry: AuditEntry, origin: Origin, act_time_ms: int) -> AuditRecord:
    """Give an act as a record that has no place in a chain yet."""
    principal = entry.principal
    return AuditRecord(
        tenant=principal.tenant,
        chain="",
        sequence=0,
        previous_hash=b"",
        record_time_ms=0,
        act_time_ms=act_time_ms,
        act=entry.act,
        method=origin.method,
        agent=principal.agent,
        credential=principal.credential[:_FOREIGN_CHARACTERS_MAX],
        roles=tuple(sorted(principal.roles)),
        peer=origin.peer[:_FOREIGN_CHARACTERS_MAX],
        board=entry.board,
        target=entry.target,
        reason=entry.reason,
        outcome=entry.outcome,
        traceparent=origin.traceparent,
        suppressed=entry.suppressed,
    )


class ChainHead(NamedTuple):
    """The end of a chain: its newest record. Also of the chain of anchors, whose own name is empty."""

    chain: str
    sequence: int
    record_time_ms: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Anchor:
    """What the ends of some chains of a tenant were at a time: what its hash covers."""

    tenant: str
    sequence: int
    """Counts the tenant's anchors from 1 without a gap."""
    previous_hash: bytes
    """The hash of the anchor before; empty in the first."""
    anchor_time_ms: int
    server_id: str
    """The server that wrote it."""
    heads: tuple[ChainHead, ...]
