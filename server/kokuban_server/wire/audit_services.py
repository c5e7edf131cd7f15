"""The methods of the API's AdminService that read the audit log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kokuban.v1 import audit_pb2 as audit_pb
from kokuban_server.app.audit_reading import AuditFilter
from kokuban_server.core import limits
from kokuban_server.core.audit_judgement import FaultKind
from kokuban_server.core.names import parse_board
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.revision import encode_token
from kokuban_server.wire.encode import timestamp
from kokuban_server.wire.fields import page_size, page_token, parse_message, time_ms, words
from kokuban_server.wire.rpc import Call, Method, UnaryMethod

if TYPE_CHECKING:
    from kokuban_server.app.audit_reading import AuditPage, AuditReading, AuditVerdict
    from kokuban_server.core.audit import AuditRecord
    from kokuban_server.core.audit_judgement import OpenedAnchor
    from kokuban_server.records.audit_codec import Sealed

_HASH = re.compile(r"[0-9a-f]{64}")
_KINDS = {
    FaultKind.MISSING: audit_pb.AUDIT_FAULT_KIND_MISSING,
    FaultKind.EDITED: audit_pb.AUDIT_FAULT_KIND_EDITED,
    FaultKind.REORDERED: audit_pb.AUDIT_FAULT_KIND_REORDERED,
    FaultKind.CUT: audit_pb.AUDIT_FAULT_KIND_CUT,
    FaultKind.ADDED: audit_pb.AUDIT_FAULT_KIND_ADDED,
    FaultKind.ANCHOR_BROKEN: audit_pb.AUDIT_FAULT_KIND_ANCHOR_BROKEN,
}


class AuditMethods:
    """Those methods of kokuban.v1.AdminService that read the audit log."""

    def __init__(self, reading: AuditReading) -> None:
        self._reading = reading

    @property
    def methods(self) -> dict[str, Method]:
        """These methods by their names in the proto."""
        return {
            "ListAuditRecords": UnaryMethod(self.list_records),
            "VerifyAudit": UnaryMethod(self.verify),
        }

    async def list_records(self, raw: bytes, call: Call) -> bytes:
        """Read one page of records."""
        message = parse_message(audit_pb.ListAuditRecordsRequest, raw)
        wanted = _filter(message.filter)
        size, token = page_size(message.page_size), page_token(message.page_token)
        page = await self._reading.list_records(call.principal, wanted, size, token, call.deadline)
        return _page(page, self._reading.epoch).SerializeToString()

    async def verify(self, raw: bytes, call: Call) -> bytes:
        """Judge the whole log."""
        kept = parse_message(audit_pb.VerifyAuditRequest, raw).anchor_hash
        if kept and not _HASH.fullmatch(kept):
            raise InvalidRequest("FIELD_INVALID", "anchor_hash", "64 lower-case hexadecimal digits")
        verdict = await self._reading.verify(call.principal, bytes.fromhex(kept), call.deadline)
        return _verdict(verdict, self._reading.epoch).SerializeToString()


def _filter(message: audit_pb.AuditFilter) -> AuditFilter:
    return AuditFilter(
        parse_board(message.board, "filter.board") if message.board else "",
        words(message.agent, "filter.agent", limits.AGENT_ID_BYTES_MAX, required=False),
        words(message.act, "filter.act", limits.AGENT_ID_BYTES_MAX, required=False),
        time_ms(message.begin_time, "filter.begin_time"),
        time_ms(message.end_time, "filter.end_time"),
    )


def _page(page: AuditPage, epoch: str) -> audit_pb.ListAuditRecordsResponse:
    return audit_pb.ListAuditRecordsResponse(
        records=[_record(record, sealed) for record, sealed in page.found],
        next_page_token=page.next_page_token,
        token=encode_token(epoch, page.revision),
    )


def _record(record: AuditRecord, sealed: Sealed) -> audit_pb.AuditRecord:
    return audit_pb.AuditRecord(
        chain=record.chain,
        sequence=record.sequence,
        record_time=timestamp(record.record_time_ms),
        act_time=timestamp(record.act_time_ms),
        act=record.act,
        method=record.method,
        agent=record.agent,
        credential=record.credential,
        roles=record.roles,
        peer=record.peer,
        board=record.board,
        target=record.target,
        reason=record.reason,
        outcome=record.outcome,
        traceparent=record.traceparent,
        suppressed=record.suppressed,
        previous_hash=record.previous_hash.hex(),
        hash=sealed.hash.hex(),
        body=sealed.body,
    )


def _verdict(verdict: AuditVerdict, epoch: str) -> audit_pb.VerifyAuditResponse:
    return audit_pb.VerifyAuditResponse(
        record_count=verdict.records,
        anchor_count=verdict.anchors,
        chain_count=verdict.chain_count,
        chains=[
            audit_pb.AuditChain(
                id=chain.chain,
                newest_sequence=chain.newest_sequence,
                newest_time=timestamp(chain.newest_time_ms) if chain.newest_time_ms else None,
                newest_hash=chain.newest_hash.hex(),
                anchored_sequence=chain.anchored,
            )
            for chain in verdict.chains
        ],
        newest_anchor=_anchor(verdict.newest_anchor) if verdict.newest_anchor is not None else None,
        fault_count=verdict.fault_count,
        faults=[
            audit_pb.AuditFault(kind=_KINDS[fault.kind], chain=fault.chain, sequence=fault.sequence, count=fault.extent)
            for fault in verdict.faults
        ],
        token=encode_token(epoch, verdict.revision),
    )


def _anchor(opened: OpenedAnchor) -> audit_pb.AuditAnchor:
    anchor = opened.anchor
    return audit_pb.AuditAnchor(
        sequence=anchor.sequence, anchor_time=timestamp(anchor.anchor_time_ms), hash=opened.hash.hex()
    )
