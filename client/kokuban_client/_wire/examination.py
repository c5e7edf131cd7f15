"""The examination of the store as it travels: requests are built here, and answers turned into plain types."""

from __future__ import annotations

from kokuban.v1 import examination_pb2 as pb
from kokuban_client import types

_KINDS = {
    pb.STORE_FINDING_KIND_UNREADABLE: types.StoreFindingKind.UNREADABLE,
    pb.STORE_FINDING_KIND_UNKNOWN: types.StoreFindingKind.UNKNOWN_RECORD,
    pb.STORE_FINDING_KIND_ORPHANED: types.StoreFindingKind.ORPHANED,
    pb.STORE_FINDING_KIND_UNLEASED: types.StoreFindingKind.UNLEASED,
    pb.STORE_FINDING_KIND_INCOMPLETE: types.StoreFindingKind.INCOMPLETE,
    pb.STORE_FINDING_KIND_OVERDUE: types.StoreFindingKind.OVERDUE,
    pb.STORE_FINDING_KIND_IMPOSSIBLE: types.StoreFindingKind.IMPOSSIBLE,
    pb.STORE_FINDING_KIND_AUDIT_BROKEN: types.StoreFindingKind.AUDIT_BROKEN,
}
_OUTCOMES = {
    pb.STORE_FINDING_OUTCOME_FOUND: types.StoreFindingOutcome.FOUND,
    pb.STORE_FINDING_OUTCOME_REPAIRED: types.StoreFindingOutcome.REPAIRED,
    pb.STORE_FINDING_OUTCOME_NOT_REPAIRABLE: types.StoreFindingOutcome.NOT_REPAIRABLE,
    pb.STORE_FINDING_OUTCOME_CHANGED: types.StoreFindingOutcome.CHANGED,
    pb.STORE_FINDING_OUTCOME_STORE_FULL: types.StoreFindingOutcome.STORE_FULL,
}


def request(page_token: str, *, repair: bool) -> pb.ExamineStoreRequest:
    """Give a question for a page of the examination."""
    return pb.ExamineStoreRequest(repair=repair, page_token=page_token)


def page(message: pb.ExamineStoreResponse) -> types.ExaminedPage:
    """Give a page of the examination."""
    findings = tuple(map(_finding, message.findings))
    return types.ExaminedPage(message.record_class, message.examined_count, findings, message.token)


def _finding(message: pb.StoreFinding) -> types.StoreFinding:
    return types.StoreFinding(
        kind=_KINDS.get(message.kind, types.StoreFindingKind.UNKNOWN),
        record_class=message.record_class,
        board=message.board,
        record=message.record,
        detail=message.detail,
        outcome=_OUTCOMES.get(message.outcome, types.StoreFindingOutcome.UNKNOWN),
    )
