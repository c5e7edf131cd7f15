"""The API's ConflictService."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban.v1 import conflict_pb2, conflict_service_pb2, entry_pb2, error_reason_pb2
from kokuban_server.core import limits
from kokuban_server.core.conflicts import REASONS, ConflictFilter, ConflictKind, Outcome
from kokuban_server.core.names import parse_board, parse_path, parse_region
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.revision import encode_token
from kokuban_server.wire.encode import timestamp
from kokuban_server.wire.encode_locks import duration
from kokuban_server.wire.fields import page_size, page_token, parse_message, time_ms, words
from kokuban_server.wire.rpc import Call, Method, ServerStreamMethod, UnaryMethod

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from kokuban_server.app.conflict_reading import ConflictReading
    from kokuban_server.core.conflict_summary import Summary
    from kokuban_server.core.conflicts import Conflict, Party

_KINDS = {
    ConflictKind.COMMIT: conflict_pb2.CONFLICT_KIND_COMMIT,
    ConflictKind.LOCK: conflict_pb2.CONFLICT_KIND_LOCK,
}
_OUTCOMES = {
    Outcome.OPEN: conflict_pb2.CONFLICT_OUTCOME_OPEN,
    Outcome.WON: conflict_pb2.CONFLICT_OUTCOME_WON,
    Outcome.MERGED: conflict_pb2.CONFLICT_OUTCOME_MERGED,
    Outcome.LOST_AGAIN: conflict_pb2.CONFLICT_OUTCOME_LOST_AGAIN,
    Outcome.GAVE_UP: conflict_pb2.CONFLICT_OUTCOME_GAVE_UP,
}
_REASONS = {reason: error_reason_pb2.ErrorReason.Value(f"ERROR_REASON_{reason}") for reason in REASONS}
_REASON_NAMES = {value: reason for reason, value in _REASONS.items()}


class ConflictService:
    """kokuban.v1.ConflictService."""

    def __init__(self, reading: ConflictReading, epoch: str) -> None:
        self._reading = reading
        self._epoch = epoch

    @property
    def methods(self) -> dict[str, Method]:
        """Every method of the service by its name in the proto."""
        return {
            "ListConflicts": UnaryMethod(self.list_conflicts),
            "WatchConflicts": ServerStreamMethod(self.watch_conflicts),
            "SummarizeConflicts": UnaryMethod(self.summarize_conflicts),
        }

    async def list_conflicts(self, raw: bytes, call: Call) -> bytes:
        """Read one page of conflicts."""
        message = parse_message(conflict_service_pb2.ListConflictsRequest, raw)
        board, wanted = parse_board(message.board), _filter(message.filter)
        size, token = page_size(message.page_size), page_token(message.page_token)
        page = await self._reading.list_conflicts(call.principal, board, wanted, size, token, call.deadline)
        now_ms = self._reading.now_ms()
        return conflict_service_pb2.ListConflictsResponse(
            conflicts=[_conflict(conflict, now_ms) for conflict in page.conflicts],
            next_page_token=page.next_page_token,
            token=encode_token(self._epoch, page.revision),
        ).SerializeToString()

    async def watch_conflicts(self, raw: bytes, call: Call) -> AsyncGenerator[bytes, None]:
        """Send conflicts until the client has enough."""
        message = parse_message(conflict_service_pb2.WatchConflictsRequest, raw)
        board, wanted = parse_board(message.board), _filter(message.filter)
        parts = self._reading.follow(call.principal, board, wanted, message.after, call.draining, call.deadline)
        try:
            async for news in parts:
                now_ms = self._reading.now_ms()
                yield conflict_service_pb2.WatchConflictsResponse(
                    conflicts=[_conflict(conflict, now_ms) for conflict in news.conflicts],
                    token=encode_token(self._epoch, news.revision),
                ).SerializeToString()
        finally:
            await parts.aclose()

    async def summarize_conflicts(self, raw: bytes, call: Call) -> bytes:
        """Count conflicts."""
        message = parse_message(conflict_service_pb2.SummarizeConflictsRequest, raw)
        board, wanted = parse_board(message.board), _filter(message.filter)
        most = limits.CONFLICT_SUMMARY_ENTRIES_MAX
        if not 0 <= message.top <= most:
            raise InvalidRequest("FIELD_INVALID", "top", f"0 to {most}")
        top = message.top or limits.CONFLICT_SUMMARY_ENTRIES_DEFAULT
        summary, revision = await self._reading.summarize(call.principal, board, wanted, call.deadline)
        answer = _summary(summary, top)
        answer.per_hour = summary.per_hour(wanted.begin_ms, wanted.end_ms, self._reading.now_ms())
        answer.token = encode_token(self._epoch, revision)
        return answer.SerializeToString()


def _filter(message: conflict_pb2.ConflictFilter) -> ConflictFilter:
    if message.path and not message.region:
        raise InvalidRequest("REGION_REQUIRED", "filter.region", "a path needs its region")
    if message.reason and message.reason not in _REASON_NAMES:
        raise InvalidRequest("FIELD_INVALID", "filter.reason", "a conflict has one of " + ", ".join(REASONS))
    return ConflictFilter(
        str(parse_region(message.region, "filter.region")) if message.region else "",
        parse_path(message.path, "filter.path") if message.path else "",
        words(message.agent, "filter.agent", limits.AGENT_ID_BYTES_MAX, required=False),
        _REASON_NAMES.get(message.reason, ""),
        time_ms(message.begin_time, "filter.begin_time"),
        time_ms(message.end_time, "filter.end_time"),
    )


def _conflict(conflict: Conflict, now_ms: int) -> conflict_pb2.Conflict:
    message = conflict_pb2.Conflict(
        id=conflict.id,
        conflict_time=timestamp(conflict.time_ms),
        kind=_KINDS[conflict.kind],
        reason=_REASONS[conflict.reason],
        key=entry_pb2.EntryKey(region=conflict.region, path=conflict.path),
        expected=_revision(conflict.expected_revision, conflict.epoch),
        actual=_revision(conflict.actual_revision, conflict.epoch),
        loser=_party(conflict.loser),
        winner=_party(conflict.winner) if conflict.winner is not None else None,
        lock_id=conflict.lock_id,
        retry_of=conflict.retry_of,
        lost_bytes=conflict.lost_bytes,
        waited=duration(conflict.waited_ms) if conflict.waited_ms else None,
        outcome=_OUTCOMES[conflict.outcome_at(now_ms)],
        outcome_request_id=conflict.outcome_request_id,
    )
    if conflict.outcome_time_ms:
        message.outcome_time.CopyFrom(timestamp(conflict.outcome_time_ms))
    return message


def _revision(number: int, epoch: str) -> entry_pb2.Revision | None:
    return entry_pb2.Revision(number=number, epoch=epoch) if number else None


def _party(party: Party) -> conflict_pb2.ConflictParty:
    return conflict_pb2.ConflictParty(
        agent=party.agent,
        session_id=party.session_id,
        request_id=party.request_id,
        traceparent=party.traceparent,
        act_time=timestamp(party.time_ms) if party.time_ms else None,
        purpose=party.purpose,
    )


def _summary(summary: Summary, top: int) -> conflict_service_pb2.SummarizeConflictsResponse:
    answer = conflict_service_pb2.SummarizeConflictsResponse(
        count=summary.count,
        paths=[
            conflict_service_pb2.ConflictPathCount(region=place.region, path=place.path, count=count)
            for place, count in summary.paths.most_common(top)
        ],
        pairs=[
            conflict_service_pb2.ConflictPairCount(loser=pair.loser, winner=pair.winner, count=count)
            for pair, count in summary.pairs.most_common(top)
        ],
        reasons=[
            conflict_service_pb2.ConflictReasonCount(reason=_REASONS[reason], count=count)
            for reason, count in summary.reasons.most_common()
        ],
        outcomes=[
            conflict_service_pb2.ConflictOutcomeCount(outcome=_OUTCOMES[outcome], count=count)
            for outcome, count in summary.outcomes.most_common()
        ],
        lost_bytes=summary.lost_bytes,
        waited=duration(summary.waited_ms),
    )
    if summary.count:
        answer.oldest_time.CopyFrom(timestamp(summary.oldest_ms))
        answer.newest_time.CopyFrom(timestamp(summary.newest_ms))
    return answer
