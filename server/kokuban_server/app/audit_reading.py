"""Reading the audit log: its records in order of time, and whether all of it is as it was written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.page_tokens import page_token, read_page_token
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Role
from kokuban_server.core.audit_judgement import Fault, FaultKind, Findings, LogJudge, OpenedAnchor, OpenedRecord, Place
from kokuban_server.core.refusals import StoreCorrupt
from kokuban_server.ports.board_store import STRONG, Snapshot
from kokuban_server.records.audit_codec import decode_anchor, decode_head, decode_record, unseal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from kokuban_server.app.access import Access
    from kokuban_server.core.access import Principal
    from kokuban_server.core.audit import AuditRecord, ChainHead
    from kokuban_server.ports.board_store import BoardStore, Record
    from kokuban_server.records.audit_codec import Sealed

_READERS = (Role.AUDITOR, Role.OPERATOR)
_JUDGED_AT_ONCE = 200
"""Between so many records the event loop has its turn; also, the most keys that are read together are 256."""


class AuditFilter(NamedTuple):
    """Which records are wanted; what is empty or 0 is not asked."""

    board: str = ""
    agent: str = ""
    act: str = ""
    begin_ms: int = 0
    """The earliest time of recording."""
    end_ms: int = 0
    """All times of recording are before it."""

    def takes(self, record: AuditRecord) -> bool:
        """Say whether a record is wanted, its time aside."""
        return self.board in {"", record.board} and self.agent in {"", record.agent} and self.act in {"", record.act}


class AuditPage(NamedTuple):
    """One page of records."""

    found: list[tuple[AuditRecord, Sealed]]
    next_page_token: str
    revision: int


class ChainSummary(NamedTuple):
    """A chain, as far as its records are there."""

    chain: str
    newest_sequence: int
    newest_time_ms: int
    newest_hash: bytes
    """Empty where it is not to be trusted."""
    anchored: int
    """The newest record that an anchor names."""


class AuditVerdict(NamedTuple):
    """What was found of a log."""

    records: int
    anchors: int
    chain_count: int
    chains: list[ChainSummary]
    """Those with the newest records."""
    newest_anchor: OpenedAnchor | None
    fault_count: int
    faults: list[Fault]
    revision: int


class AuditReading:
    """Answers what auditors and operators ask of their tenant's log."""

    def __init__(self, store: BoardStore, access: Access) -> None:
        self._store = store
        self._access = access

    @property
    def epoch(self) -> str:
        """The store's epoch."""
        return self._store.epoch

    async def list_records(
        self, principal: Principal, wanted: AuditFilter, page_size: int, token: str, deadline: float
    ) -> AuditPage:
        """Give a page of the tenant's records in order of their recording, but not those of boards beyond the credential.

        Looks at so many records for one page, so that one with few or none may have others behind it. Raises
        `RoleRequired`, and `StoreCorrupt` for a record that cannot be read.
        """
        self._access.require_one_of(principal, _READERS)
        prefix = keys.audit_records(principal.tenant)
        listing = b"\x00".join((prefix, *(str(part).encode() for part in wanted)))
        after = read_page_token(token, listing, prefix)
        after = after or keys.audit_records_before(principal.tenant, wanted.begin_ms)
        end = keys.audit_records_before(principal.tenant, wanted.end_ms) if wanted.end_ms else keys.prefix_end(prefix)
        found: list[tuple[AuditRecord, Sealed]] = []
        budget_bytes = limits.PAGE_BYTES_MAX
        examined = revision = 0
        async for page_revision, records, more in self._pages(prefix, deadline, after):
            revision = page_revision
            for record in records:
                if record.key >= end:
                    return AuditPage(found, "", revision)
                sealed = unseal(record.key, record.value)
                audit = decode_record(record.key, sealed)
                examined += 1
                after = record.key
                if wanted.takes(audit) and (not audit.board or principal.boards.includes(audit.board)):
                    found.append((audit, sealed))
                    budget_bytes -= 3 * len(record.value)  # its body travels twice, once in parts
                if len(found) == page_size or budget_bytes <= 0 or examined == limits.AUDIT_EXAMINED_ENTRIES_MAX:
                    is_last = not more and record is records[-1]
                    return AuditPage(found, "" if is_last else page_token(after, listing, prefix), revision)
        return AuditPage(found, "", revision)

    async def verify(self, principal: Principal, kept_anchor: bytes, deadline: float) -> AuditVerdict:
        """Judge the tenant's whole log at one state. `kept_anchor` is the hash of an anchor that has to be in it, or empty.

        Raises `RoleRequired`.
        """
        self._access.require_one_of(principal, _READERS)
        tenant = principal.tenant
        findings = Findings(limits.AUDIT_FAULTS_ENTRIES_MAX)
        judge = LogJudge(tenant, findings)
        newest_key = keys.audit_newest(tenant)
        cut = await self._store.read([newest_key], STRONG, left_s(deadline))
        at = Snapshot(cut.revision)
        async for _, records, _ in self._pages(keys.audit_records(tenant), deadline, at=at):
            for record in records:
                place = keys.parse_audit_record(record.key)
                judge.record(None if place is None else Place(*place), _opened_record(record))
        async for _, records, _ in self._pages(keys.audit_chains(keys.AUDIT_HEAD, tenant), deadline, at=at):
            for record in records:
                judge.head(keys.parse_audit_chain(record.key)[1], _opened_head(record))
        has_kept = not kept_anchor
        async for _, records, _ in self._pages(keys.audit_anchors(tenant), deadline, at=at):
            for record in records:
                opened = _opened_anchor(record)
                judge.anchor(keys.parse_audit_anchor(record.key), opened)
                if opened is not None and opened.is_intact:
                    has_kept = has_kept or opened.hash == kept_anchor
                    await self._judge_heads(judge, tenant, opened.anchor.heads, at, deadline)
        newest = cut.records[0]
        judge.end(None if newest is None else _opened_head(newest), is_newest_there=newest is not None)
        if not has_kept:
            findings.add(FaultKind.ANCHOR_BROKEN, "", 0)
        chains = [
            ChainSummary(name, state.next - 1, state.newest_time_ms, state.hash or b"", state.anchored)
            for name, state in judge.chains.items()
        ]
        chains.sort(key=lambda chain: (-chain.newest_time_ms, chain.chain))
        return AuditVerdict(
            judge.records,
            judge.anchors,
            len(chains),
            chains[: limits.AUDIT_CHAINS_SHOWN_ENTRIES_MAX],
            judge.newest_anchor,
            findings.count,
            findings.faults,
            cut.revision,
        )

    async def _judge_heads(
        self, judge: LogJudge, tenant: str, heads: Sequence[ChainHead], at: Snapshot, deadline: float
    ) -> None:
        """Compare what an anchor names with what stands there."""
        for begin in range(0, len(heads), _JUDGED_AT_ONCE):
            part = heads[begin : begin + _JUDGED_AT_ONCE]
            named = [keys.audit_record(tenant, head.record_time_ms, head.chain, head.sequence) for head in part]
            cut = await self._store.read(named, at, left_s(deadline))
            for head, record in zip(part, cut.records, strict=True):
                judge.anchored(head, None if record is None else _stored_hash(record))

    async def _pages(
        self, prefix: bytes, deadline: float, after: bytes = b"", at: Snapshot | None = None
    ) -> AsyncGenerator[tuple[int, Sequence[Record], bool], None]:
        """Give all records of a prefix at one state, and with each page whether there are more."""
        more = True
        while more:
            page = await self._store.scan(
                prefix, after, _JUDGED_AT_ONCE, limits.PAGE_BYTES_MAX, at or STRONG, left_s(deadline)
            )
            at = Snapshot(page.revision)
            more = page.more
            yield page.revision, page.records, more
            if page.records:
                after = page.records[-1].key
            await asyncio.sleep(0)  # a long log does not keep others waiting


def _opened_record(record: Record) -> OpenedRecord | None:
    try:
        sealed = unseal(record.key, record.value)
        return OpenedRecord(decode_record(record.key, sealed), sealed.hash, sealed.is_intact)
    except StoreCorrupt:
        return None


def _opened_anchor(record: Record) -> OpenedAnchor | None:
    try:
        sealed = unseal(record.key, record.value)
        return OpenedAnchor(decode_anchor(record.key, sealed), sealed.hash, sealed.is_intact)
    except StoreCorrupt:
        return None


def _opened_head(record: Record) -> ChainHead | None:
    try:
        return decode_head(record.key, record.value)
    except StoreCorrupt:
        return None


def _stored_hash(record: Record) -> bytes:
    try:
        return unseal(record.key, record.value).hash
    except StoreCorrupt:
        return b""
