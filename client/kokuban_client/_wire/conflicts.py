"""Conflicts as they travel: requests are built here, and answers turned into plain types."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kokuban.v1 import conflict_pb2, conflict_service_pb2, conflict_service_pb2_grpc, error_reason_pb2
from kokuban_client import types
from kokuban_client._wire import instant, revision, time

if TYPE_CHECKING:
    from datetime import datetime

ConflictServiceStub = conflict_service_pb2_grpc.ConflictServiceStub
ConflictFilter: TypeAlias = conflict_pb2.ConflictFilter
WatchConflictsRequest: TypeAlias = conflict_service_pb2.WatchConflictsRequest
WatchConflictsResponse: TypeAlias = conflict_service_pb2.WatchConflictsResponse

_KINDS = {
    conflict_pb2.CONFLICT_KIND_COMMIT: types.ConflictKind.COMMIT,
    conflict_pb2.CONFLICT_KIND_LOCK: types.ConflictKind.LOCK,
}
_OUTCOMES = {
    conflict_pb2.CONFLICT_OUTCOME_OPEN: types.ConflictOutcome.OPEN,
    conflict_pb2.CONFLICT_OUTCOME_WON: types.ConflictOutcome.WON,
    conflict_pb2.CONFLICT_OUTCOME_MERGED: types.ConflictOutcome.MERGED,
    conflict_pb2.CONFLICT_OUTCOME_LOST_AGAIN: types.ConflictOutcome.LOST_AGAIN,
    conflict_pb2.CONFLICT_OUTCOME_GAVE_UP: types.ConflictOutcome.GAVE_UP,
}
_PREFIX = "ERROR_REASON_"


def filter_message(
    *,
    region: str,
    path: str,
    agent: str,
    reason: str,
    begin: datetime | None = None,
    end: datetime | None = None,
) -> conflict_pb2.ConflictFilter:
    """Give what conflicts are asked for; raises ValueError for a time without a zone, and for what is no reason."""
    try:
        number = (
            error_reason_pb2.ErrorReason.Value(_PREFIX + reason)
            if reason
            else error_reason_pb2.ERROR_REASON_UNSPECIFIED
        )
    except ValueError:
        raise ValueError(f"{reason!r} is not the reason of any error") from None
    return conflict_pb2.ConflictFilter(
        region=region, path=path, agent=agent, reason=number, begin_time=instant(begin), end_time=instant(end)
    )


def list_request(
    board: str, wanted: ConflictFilter, *, page_size: int, page_token: str
) -> conflict_service_pb2.ListConflictsRequest:
    """Give a question for a page of conflicts."""
    return conflict_service_pb2.ListConflictsRequest(
        board=board, filter=wanted, page_size=page_size, page_token=page_token
    )


def watch_request(board: str, wanted: ConflictFilter, *, after: str) -> WatchConflictsRequest:
    """Give a request to be told of conflicts."""
    return WatchConflictsRequest(board=board, filter=wanted, after=after)


def summarize_request(
    board: str, wanted: ConflictFilter, *, top: int
) -> conflict_service_pb2.SummarizeConflictsRequest:
    """Give a question for an overview."""
    return conflict_service_pb2.SummarizeConflictsRequest(board=board, filter=wanted, top=top)


def conflict(message: conflict_pb2.Conflict) -> types.ConflictRecord:
    """Give a conflict."""
    return types.ConflictRecord(
        id=message.id,
        conflict_time=time(message.conflict_time),
        kind=_KINDS.get(message.kind, types.ConflictKind.UNKNOWN),
        reason=_reason(message.reason),
        region=message.key.region,
        path=message.key.path,
        expected=revision(message.expected) if message.HasField("expected") else None,
        actual=revision(message.actual) if message.HasField("actual") else None,
        loser=_party(message.loser),
        winner=_party(message.winner) if message.HasField("winner") else None,
        lock_id=message.lock_id,
        retry_of=message.retry_of,
        lost_bytes=message.lost_bytes,
        waited_s=message.waited.ToMilliseconds() / 1000,
        outcome=_OUTCOMES.get(message.outcome, types.ConflictOutcome.UNKNOWN),
        outcome_time=time(message.outcome_time) if message.HasField("outcome_time") else None,
        outcome_request_id=message.outcome_request_id,
    )


def summary(message: conflict_service_pb2.SummarizeConflictsResponse) -> types.ConflictSummary:
    """Give an overview."""
    return types.ConflictSummary(
        count=message.count,
        oldest_time=time(message.oldest_time) if message.HasField("oldest_time") else None,
        newest_time=time(message.newest_time) if message.HasField("newest_time") else None,
        per_hour=message.per_hour,
        paths=tuple((types.EntryKey(one.region, one.path), one.count) for one in message.paths),
        pairs=tuple((one.loser, one.winner, one.count) for one in message.pairs),
        reasons=tuple((_reason(one.reason), one.count) for one in message.reasons),
        outcomes=tuple(
            (_OUTCOMES.get(one.outcome, types.ConflictOutcome.UNKNOWN), one.count) for one in message.outcomes
        ),
        lost_bytes=message.lost_bytes,
        waited_s=message.waited.ToMilliseconds() / 1000,
        token=message.token,
    )


def _reason(number: error_reason_pb2.ErrorReason.ValueType) -> str:
    try:
        return error_reason_pb2.ErrorReason.Name(number).removeprefix(_PREFIX)
    except ValueError:  # of a newer server
        return str(number)


def _party(message: conflict_pb2.ConflictParty) -> types.ConflictParty:
    return types.ConflictParty(
        agent=message.agent,
        session_id=message.session_id,
        request_id=message.request_id,
        traceparent=message.traceparent,
        act_time=time(message.act_time) if message.HasField("act_time") else None,
        purpose=message.purpose,
    )
