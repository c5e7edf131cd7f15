"""Provenance, purges and erasures as they travel: requests are built here, and answers turned into plain types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban.v1 import entry_pb2
from kokuban.v1 import trust_service_pb2 as pb
from kokuban_client import types
from kokuban_client._wire import entry_key, instant, revision, time
from kokuban_client._wire.labels import source, trust_level

if TYPE_CHECKING:
    from datetime import datetime

    from google.protobuf import timestamp_pb2

    from kokuban.v1.entry_pb2 import EntryKey

_DIRECTIONS = {
    types.ProvenanceDirection.ANCESTORS: pb.PROVENANCE_DIRECTION_ANCESTORS,
    types.ProvenanceDirection.DESCENDANTS: pb.PROVENANCE_DIRECTION_DESCENDANTS,
}
_LINK_OF = {
    pb.PROVENANCE_LINK_ASKED: types.ProvenanceLink.ASKED,
    pb.PROVENANCE_LINK_DECLARED: types.ProvenanceLink.DECLARED,
    pb.PROVENANCE_LINK_READ_SCOPE: types.ProvenanceLink.READ_SCOPE,
    pb.PROVENANCE_LINK_EXTENDS: types.ProvenanceLink.EXTENDS,
}
_STATE_OF = {
    pb.REMOVAL_STATE_PLANNED: types.RemovalState.PLANNED,
    pb.REMOVAL_STATE_RUNNING: types.RemovalState.RUNNING,
    pb.REMOVAL_STATE_DONE: types.RemovalState.DONE,
}
_STATUS_OF = {
    pb.ERASURE_STATUS_ERASED: types.ErasureStatus.ERASED,
    pb.ERASURE_STATUS_KEPT: types.ErasureStatus.KEPT,
    pb.ERASURE_STATUS_PENDING_COMPACTION: types.ErasureStatus.PENDING_COMPACTION,
    pb.ERASURE_STATUS_UNSUPPORTED: types.ErasureStatus.UNSUPPORTED,
}
_FATE_OF = {
    pb.REMOVAL_FATE_REMOVED: types.RemovalFate.REMOVED,
    pb.REMOVAL_FATE_ATTESTED: types.RemovalFate.ATTESTED,
    pb.REMOVAL_FATE_UNDECIDED: types.RemovalFate.UNDECIDED,
}


def trace_request(
    board: str,
    region: str,
    path: str,
    *,
    at: types.Revision | None,
    direction: types.ProvenanceDirection,
    max_depth: int,
    max_states: int,
) -> pb.TraceProvenanceRequest:
    """Give a question for where a state comes from, or what became of it."""
    return pb.TraceProvenanceRequest(
        board=board,
        key=entry_key(region, path),
        at=None if at is None else entry_pb2.Revision(number=at.number, epoch=at.epoch),
        direction=_DIRECTIONS[direction],
        max_depth=max_depth,
        max_states=max_states,
    )


def trace(message: pb.TraceProvenanceResponse) -> types.ProvenanceTrace:
    """Give what was met."""
    return types.ProvenanceTrace(tuple(map(_met, message.states)), message.truncated, message.token)


def _met(message: pb.ProvenanceState) -> types.ProvenanceState:
    return types.ProvenanceState(
        key=_key(message.key),
        revision=revision(message.revision) if message.HasField("revision") else None,
        link=_LINK_OF.get(message.link, types.ProvenanceLink.UNKNOWN),
        met_from=getattr(message, "from"),  # a word of Python's own
        depth=message.depth,
        trust=trust_level(message.trust),
        source=source(message.source) if message.HasField("source") else None,
        agent=message.agent,
        kept=message.kept,
        present=message.present,
    )


def purge_plan_request(
    board: str, selector: types.SourceSelector, *, reason: str, allows_reingest: bool
) -> pb.PurgeSourceRequest:
    """Give a question for what a purge would remove; raises ValueError for a selector of nothing, or a time without a zone."""
    if selector == types.SourceSelector():
        raise ValueError("a selector of nothing would select everything: give at least one thing that must hold")
    return pb.PurgeSourceRequest(
        board=board,
        selector=pb.SourceSelector(
            uri=selector.uri,
            uri_pattern=selector.uri_pattern,
            content_sha256=selector.content_sha256,
            agent=selector.agent,
            session=selector.session,
            from_time=instant(selector.begin),
            before_time=instant(selector.end),
        ),
        reason=reason,
        allows_reingest=allows_reingest,
    )


def purge_request(board: str, plan: str) -> pb.PurgeSourceRequest:
    """Give a request to begin a purge that was planned."""
    return pb.PurgeSourceRequest(board=board, plan=plan)


def erasure_plan_request(board: str, user: str, *, reason: str, allows_reingest: bool) -> pb.EraseSubjectRequest:
    """Give a question for what an erasure would remove."""
    return pb.EraseSubjectRequest(board=board, user=user, reason=reason, allows_reingest=allows_reingest)


def erasure_request(board: str, plan: str) -> pb.EraseSubjectRequest:
    """Give a request to begin an erasure that was planned."""
    return pb.EraseSubjectRequest(board=board, plan=plan)


def plan(message: pb.PurgeSourceResponse | pb.EraseSubjectResponse) -> types.RemovalPlan:
    """Give what would be removed."""
    told = message.plan
    return types.RemovalPlan(
        removal=removal(message.removal),
        findings=tuple(
            types.RemovalFinding(
                key=_key(finding.key),
                revision=revision(finding.revision),
                fate=_FATE_OF.get(finding.fate, types.RemovalFate.UNKNOWN),
                present=finding.present,
            )
            for finding in told.findings
        ),
        removed_count=told.removed_count,
        deleted_count=told.deleted_count,
        attested_count=told.attested_count,
        undecided_count=told.undecided_count,
        quarantined_count=told.quarantined_count,
        session_count=told.session_count,
        other_boards=tuple(told.other_boards),
    )


def get_request(board: str, identity: str) -> pb.GetRemovalRequest:
    """Give a question for how far a removal has come."""
    return pb.GetRemovalRequest(board=board, id=identity)


def list_request(board: str, *, page_token: str) -> pb.ListRemovalsRequest:
    """Give a question for a page of a board's removals."""
    return pb.ListRemovalsRequest(board=board, page_token=page_token)


def removal(message: pb.Removal) -> types.Removal:
    """Give a purge or an erasure."""
    return types.Removal(
        id=message.id,
        state=_STATE_OF.get(message.state, types.RemovalState.UNKNOWN),
        selector=_selector(message.selector) if message.HasField("selector") else None,
        user=message.user,
        reason=message.reason,
        allows_reingest=message.allows_reingest,
        author=message.author,
        create_time=time(message.create_time),
        starter=message.started_by,
        start_time=_time_of(message.start_time, given=message.HasField("start_time")),
        end_time=_time_of(message.end_time, given=message.HasField("end_time")),
        receipts=tuple(
            types.StoreReceipt(
                store=receipt.store,
                status=_STATUS_OF.get(receipt.status, types.ErasureStatus.UNKNOWN),
                count=receipt.count,
                revision=revision(receipt.revision) if receipt.HasField("revision") else None,
                note=receipt.note,
            )
            for receipt in message.receipts
        ),
    )


def _selector(message: pb.SourceSelector) -> types.SourceSelector:
    return types.SourceSelector(
        uri=message.uri,
        uri_pattern=message.uri_pattern,
        content_sha256=message.content_sha256,
        agent=message.agent,
        session=message.session,
        begin=_time_of(message.from_time, given=message.HasField("from_time")),
        end=_time_of(message.before_time, given=message.HasField("before_time")),
    )


def _time_of(message: timestamp_pb2.Timestamp, *, given: bool) -> datetime | None:
    return time(message) if given else None


def _key(message: EntryKey) -> types.EntryKey:
    return types.EntryKey(message.region, message.path)
