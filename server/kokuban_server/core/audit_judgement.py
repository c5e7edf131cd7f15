"""What is wrong with a tenant's audit log: pure judgement over what the store holds, record by record."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kokuban_server.core.audit import Anchor, AuditRecord, ChainHead


class FaultKind(enum.Enum):
    """What is wrong."""

    MISSING = "missing"
    """Records that later ones of their chain follow are not there."""
    EDITED = "edited"
    """A record is not what was written."""
    REORDERED = "reordered"
    """A record stands at another place than it says."""
    CUT = "cut"
    """The end of a chain is not there: its head or an anchor names records behind the last one."""
    ADDED = "added"
    """Something stands there that no server has written: behind the end of a chain, or under no record's key."""
    ANCHOR_BROKEN = "anchor_broken"
    """An anchor is missing, was edited or does not follow the one before it; or the caller's is not among them."""


class Fault(NamedTuple):
    """One thing that is wrong."""

    kind: FaultKind
    chain: str
    """Empty for anchors, and where no chain is known."""
    sequence: int
    """Of the record or anchor; of the first of those that are missing."""
    extent: int = 1
    """How many records it is about."""


class Place(NamedTuple):
    """Where a record stands, as its key says."""

    record_time_ms: int
    chain: str
    sequence: int


class OpenedRecord(NamedTuple):
    """A stored record, read."""

    record: AuditRecord
    hash: bytes
    """As stored."""
    is_intact: bool
    """The stored hash is that of the content."""


class OpenedAnchor(NamedTuple):
    """A stored anchor, read."""

    anchor: Anchor
    hash: bytes
    is_intact: bool


class Findings:
    """The faults that were found: all are counted, the first are kept. Each is told once, however many things show it."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self.faults: list[Fault] = []
        self.count = 0

    def add(self, kind: FaultKind, chain: str, sequence: int, extent: int = 1) -> None:
        """Take note of a fault."""
        fault = Fault(kind, chain, sequence, extent)
        if any(fault[:3] == told[:3] for told in self.faults):
            return
        self.count += 1
        if len(self.faults) < self._entries_max:
            self.faults.append(fault)


class ChainState:
    """A chain as far as it was judged."""

    __slots__ = ("anchored", "has_gaps", "hash", "newest_time_ms", "next")

    def __init__(self) -> None:
        self.next = 1
        self.has_gaps = False
        """Some of its records are not where they should be, which was told."""
        self.hash: bytes | None = b""
        """Of the record before the next one; nothing where that one is not to be trusted."""
        self.newest_time_ms = 0
        self.anchored = 0
        """The newest record that an anchor names."""


class LogJudge:
    """Judges one tenant's log. Takes all records in order of their keys, then all heads, then all anchors, then the end."""

    def __init__(self, tenant: str, findings: Findings) -> None:
        self._tenant = tenant
        self._findings = findings
        self._headed: set[str] = set()
        self.chains: dict[str, ChainState] = {}
        self.records = 0
        self.anchors = 0
        self.newest_anchor: OpenedAnchor | None = None
        self._anchor_hash: bytes | None = b""

    def record(self, place: Place | None, opened: OpenedRecord | None) -> None:
        """Judge a record; nothing for a key or a content that cannot be read."""
        self.records += 1
        if place is None:
            self._findings.add(FaultKind.ADDED, "", 0)
            return
        chain, sequence = place.chain, place.sequence
        state = self.chains.setdefault(chain, ChainState())
        if sequence < state.next:  # its key's time says that it is younger than its successors
            self._findings.add(FaultKind.REORDERED, chain, sequence)
            return
        if sequence > state.next:
            state.has_gaps = True
            self._findings.add(FaultKind.MISSING, chain, state.next, sequence - state.next)
            state.hash = None
        before, state.hash = state.hash, None
        state.next = sequence + 1
        state.newest_time_ms = place.record_time_ms
        if opened is None:
            self._findings.add(FaultKind.EDITED, chain, sequence)
            return
        record = opened.record
        if not opened.is_intact:
            self._findings.add(FaultKind.EDITED, chain, sequence)
        elif (record.tenant, Place(record.record_time_ms, record.chain, record.sequence)) != (self._tenant, place):
            self._findings.add(FaultKind.REORDERED, chain, sequence)
        else:
            if before is not None and record.previous_hash != before:  # the one before was edited, or this one
                self._findings.add(FaultKind.EDITED, chain, max(1, sequence - 1))
            state.hash = opened.hash

    def head(self, chain: str, head: ChainHead | None) -> None:
        """Judge what is kept as the end of a chain; nothing for a content that cannot be read."""
        self._headed.add(chain)
        state = self.chains.setdefault(chain, ChainState())
        last = state.next - 1
        if head is None or head.chain != chain:
            self._findings.add(FaultKind.EDITED, chain, state.next)
        elif head.sequence > last:
            self._findings.add(FaultKind.CUT, chain, state.next, head.sequence - last)
        elif head.sequence < last:
            self._findings.add(FaultKind.ADDED, chain, head.sequence + 1, last - head.sequence)
        elif state.hash not in {None, head.hash}:
            self._findings.add(FaultKind.EDITED, chain, last)

    def anchor(self, sequence: int, opened: OpenedAnchor | None) -> None:
        """Judge an anchor for itself; nothing for a content that cannot be read. Its sequence is 0 under no anchor's key."""
        if not sequence:
            self._findings.add(FaultKind.ANCHOR_BROKEN, "", 0)
            return
        expected = self.anchors + 1
        if sequence != expected:
            self._findings.add(FaultKind.ANCHOR_BROKEN, "", expected, max(1, sequence - expected))
            self._anchor_hash = None
        self.anchors = sequence
        before, self._anchor_hash = self._anchor_hash, None
        if opened is None or not opened.is_intact:
            self._findings.add(FaultKind.ANCHOR_BROKEN, "", sequence)
            return
        anchor = opened.anchor
        follows = before is None or anchor.previous_hash == before
        if (anchor.tenant, anchor.sequence) != (self._tenant, sequence) or not follows:
            self._findings.add(FaultKind.ANCHOR_BROKEN, "", sequence)
        self._anchor_hash = opened.hash
        self.newest_anchor = opened

    def anchored(self, head: ChainHead, stored_hash: bytes | None) -> None:
        """Judge one head that an anchor names, by the hash of the record that stands there, if one does."""
        state = self.chains.setdefault(head.chain, ChainState())
        state.anchored = max(state.anchored, head.sequence)
        if stored_hash is None:
            if head.sequence >= state.next:
                self._findings.add(FaultKind.CUT, head.chain, state.next, head.sequence - state.next + 1)
            elif not state.has_gaps:
                self._findings.add(FaultKind.MISSING, head.chain, head.sequence)
        elif stored_hash != head.hash:
            self._findings.add(FaultKind.EDITED, head.chain, head.sequence)

    def end(self, newest: ChainHead | None, *, is_newest_there: bool) -> None:
        """Judge what is kept as the newest anchor; and chains whose end nobody knows."""
        for chain, state in self.chains.items():
            if chain not in self._headed:
                self._findings.add(FaultKind.CUT, chain, state.next)
        if newest is None:
            if is_newest_there or self.anchors:
                self._findings.add(FaultKind.ANCHOR_BROKEN, "", self.anchors + 1)
        elif newest.sequence != self.anchors:
            self._findings.add(FaultKind.ANCHOR_BROKEN, "", min(newest.sequence, self.anchors) + 1)
        elif self._anchor_hash not in {None, newest.hash}:
            self._findings.add(FaultKind.ANCHOR_BROKEN, "", self.anchors)
