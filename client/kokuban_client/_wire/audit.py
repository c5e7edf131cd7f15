"""The audit log as it travels: requests are built here, and answers turned into plain types."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kokuban.v1 import audit_pb2
from kokuban_client import types
from kokuban_client._wire import instant, time

if TYPE_CHECKING:
    from datetime import datetime

AuditFilter: TypeAlias = audit_pb2.AuditFilter

_KINDS = {
    audit_pb2.AUDIT_FAULT_KIND_MISSING: types.AuditFaultKind.MISSING,
    audit_pb2.AUDIT_FAULT_KIND_EDITED: types.AuditFaultKind.EDITED,
    audit_pb2.AUDIT_FAULT_KIND_REORDERED: types.AuditFaultKind.REORDERED,
    audit_pb2.AUDIT_FAULT_KIND_CUT: types.AuditFaultKind.CUT,
    audit_pb2.AUDIT_FAULT_KIND_ADDED: types.AuditFaultKind.ADDED,
    audit_pb2.AUDIT_FAULT_KIND_ANCHOR_BROKEN: types.AuditFaultKind.ANCHOR_BROKEN,
}


def filter_message(
    *, board: str, agent: str, act: str, begin: datetime | None, end: datetime | None
) -> audit_pb2.AuditFilter:
    """Give what records are asked for; raises ValueError for a time without a zone."""
    return audit_pb2.AuditFilter(board=board, agent=agent, act=act, begin_time=instant(begin), end_time=instant(end))


def list_request(wanted: AuditFilter, *, page_size: int, page_token: str) -> audit_pb2.ListAuditRecordsRequest:
    """Give a question for a page of records."""
    return audit_pb2.ListAuditRecordsRequest(filter=wanted, page_size=page_size, page_token=page_token)


def verify_request(anchor_hash: str) -> audit_pb2.VerifyAuditRequest:
    """Give a question for the state of the log."""
    return audit_pb2.VerifyAuditRequest(anchor_hash=anchor_hash)


def record(message: audit_pb2.AuditRecord) -> types.AuditRecord:
    """Give a record."""
    return types.AuditRecord(
        chain=message.chain,
        sequence=message.sequence,
        record_time=time(message.record_time),
        act_time=time(message.act_time),
        act=message.act,
        method=message.method,
        agent=message.agent,
        credential=message.credential,
        roles=tuple(message.roles),
        peer=message.peer,
        board=message.board,
        target=message.target,
        reason=message.reason,
        outcome=message.outcome,
        traceparent=message.traceparent,
        suppressed=message.suppressed,
        previous_hash=message.previous_hash,
        hash=message.hash,
        body=message.body,
    )


def verdict(message: audit_pb2.VerifyAuditResponse) -> types.AuditVerdict:
    """Give what was found of the log."""
    anchor = message.newest_anchor
    return types.AuditVerdict(
        record_count=message.record_count,
        anchor_count=message.anchor_count,
        chain_count=message.chain_count,
        chains=tuple(map(_chain, message.chains)),
        newest_anchor=types.AuditAnchor(anchor.sequence, time(anchor.anchor_time), anchor.hash)
        if message.HasField("newest_anchor")
        else None,
        fault_count=message.fault_count,
        faults=tuple(map(_fault, message.faults)),
        token=message.token,
    )


def _chain(message: audit_pb2.AuditChain) -> types.AuditChain:
    return types.AuditChain(
        id=message.id,
        newest_sequence=message.newest_sequence,
        newest_time=time(message.newest_time) if message.HasField("newest_time") else None,
        newest_hash=message.newest_hash,
        anchored_sequence=message.anchored_sequence,
    )


def _fault(message: audit_pb2.AuditFault) -> types.AuditFault:
    kind = _KINDS.get(message.kind, types.AuditFaultKind.UNKNOWN)
    return types.AuditFault(kind, message.chain, message.sequence, message.count)
