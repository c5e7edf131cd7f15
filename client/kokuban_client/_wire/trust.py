"""Texts that are screened as they travel: requests are built here, and answers turned into plain types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban.v1 import entry_pb2, error_reason_pb2, trust_service_pb2_grpc
from kokuban.v1 import trust_service_pb2 as pb
from kokuban_client import types
from kokuban_client._wire import Trusting, entry, entry_key, external_content, fence_message, revision, time
from kokuban_client._wire.labels import REDACTION_KIND_OF, source, source_message, trust_number

if TYPE_CHECKING:
    from collections.abc import Iterable

TrustServiceStub = trust_service_pb2_grpc.TrustServiceStub

_VERDICT_OF = {
    pb.SCREENING_VERDICT_ADMIT: types.ScreeningVerdict.ADMIT,
    pb.SCREENING_VERDICT_ADMIT_AS_DATA: types.ScreeningVerdict.ADMIT_AS_DATA,
    pb.SCREENING_VERDICT_QUARANTINE: types.ScreeningVerdict.QUARANTINE,
}
_SEVERITY_OF = {
    pb.FINDING_SEVERITY_NOTE: types.FindingSeverity.NOTE,
    pb.FINDING_SEVERITY_SUSPICIOUS: types.FindingSeverity.SUSPICIOUS,
    pb.FINDING_SEVERITY_GRAVE: types.FindingSeverity.GRAVE,
}


def screen_request(
    board: str, text: str, kind: types.SourceKind | None, uri: str, *, show_views: bool
) -> pb.ScreenTextRequest:
    """Give a question about a text; raises ValueError for a URI without a kind of source."""
    if kind is None:
        if uri:
            raise ValueError("a source with a URI has a kind: say which")
        return pb.ScreenTextRequest(board=board, text=text, show_views=show_views)
    declared = source_message(types.Source(kind, uri))
    return pb.ScreenTextRequest(board=board, text=text, source=declared, show_views=show_views)


def endorse_request(
    board: str,
    request_id: str,
    region: str,
    path: str,
    *,
    at: types.Revision,
    trust: types.Trust,
    reason: str,
    fences: Iterable[types.Fence],
) -> pb.EndorseRequest:
    """Give a request for more trust in an entry."""
    return pb.EndorseRequest(
        board=board,
        request_id=request_id,
        key=entry_key(region, path),
        at=entry_pb2.Revision(number=at.number, epoch=at.epoch),
        trust=trust_number(trust),
        reason=reason,
        fences=map(fence_message, fences),
    )


def quarantine_request(
    board: str,
    *,
    state: types.QuarantineState,
    agent: str,
    uri: str,
    show_texts: bool,
    page_token: str,
) -> pb.ListQuarantineRequest:
    """Give a question for what is in quarantine."""
    return pb.ListQuarantineRequest(
        board=board,
        state=_STATES[types.QuarantineState(state)],
        sent_by=agent,
        uri=uri,
        show_texts=show_texts,
        page_token=page_token,
    )


_STATES = {
    types.QuarantineState.WAITING: pb.QUARANTINE_STATE_WAITING,
    types.QuarantineState.RELEASED: pb.QUARANTINE_STATE_RELEASED,
    types.QuarantineState.REJECTED: pb.QUARANTINE_STATE_REJECTED,
    types.QuarantineState.PENDING: pb.QUARANTINE_STATE_PENDING,
}
_STATE_OF = {message: state for state, message in _STATES.items()}


def review_request(board: str, ids: Iterable[str], *, release: bool, reason: str) -> pb.ReviewQuarantineRequest:
    """Give a decision about commits in quarantine."""
    decision = pb.QUARANTINE_DECISION_RELEASE if release else pb.QUARANTINE_DECISION_REJECT
    return pb.ReviewQuarantineRequest(board=board, ids=ids, decision=decision, reason=reason)


def quarantined(message: pb.QuarantinedCommit) -> types.QuarantinedCommit:
    """Give a commit in quarantine."""
    return types.QuarantinedCommit(
        id=message.id,
        agent=message.agent,
        create_time=time(message.create_time),
        expire_time=time(message.expire_time),
        keys=tuple(types.EntryKey(key.region, key.path) for key in message.keys),
        source=source(message.source) if message.HasField("source") else None,
        findings=tuple(map(_finding, message.findings)),
        rule_set=message.rule_set,
        state=_STATE_OF.get(message.state, types.QuarantineState.UNKNOWN),
        reviewer=message.reviewer,
        review_reason=message.review_reason,
        texts=tuple(external_content(text) for text in message.texts),
    )


def review(message: pb.ReviewResult) -> types.Review:
    """Give what became of a commit that was reviewed."""
    refusal = (
        error_reason_pb2.ErrorReason.Name(message.refusal).removeprefix("ERROR_REASON_") if message.refusal else ""
    )
    return types.Review(
        message.id,
        _STATE_OF.get(message.state, types.QuarantineState.UNKNOWN),
        refusal,
        revision(message.revision) if message.HasField("revision") else None,
    )


def screening(message: pb.ScreenTextResponse) -> types.Screening:
    """Give what was found."""
    return types.Screening(
        verdict=_VERDICT_OF.get(message.verdict, types.ScreeningVerdict.UNKNOWN),
        findings=tuple(map(_finding, message.findings)),
        views=tuple(types.TextView(view.name, view.text, view.truncated) for view in message.views),
        rule_set=message.rule_set,
        token=message.token,
    )


def _finding(message: pb.ScreeningFinding) -> types.ScreeningFinding:
    return types.ScreeningFinding(
        rule=message.rule,
        severity=_SEVERITY_OF.get(message.severity, types.FindingSeverity.UNKNOWN),
        view=message.view,
        span=(message.span.start, message.span.end) if message.HasField("span") else None,
        excerpt=message.excerpt,
    )


def redact_request(board: str, text: str, *, is_json: bool, network_addresses: bool) -> pb.RedactTextRequest:
    """Give a question about what is secret or personal in a text."""
    return pb.RedactTextRequest(board=board, text=text, json=is_json, network_addresses=network_addresses)


def reveal_request(
    board: str, region: str, path: str, at: types.Revision | None, trusting: Trusting
) -> pb.RevealEntryRequest:
    """Give a request for an entry, opened."""
    state = None if at is None else entry_pb2.Revision(number=at.number, epoch=at.epoch)
    key = entry_key(region, path)
    return pb.RevealEntryRequest(board=board, key=key, at=state, floor=trusting.level, session=trusting.session)


def revealed(message: pb.RevealEntryResponse) -> types.Revealed:
    """Give an entry, opened."""
    texts = (types.RevealedText(one.field, one.opened, one.unknown_keys, one.unopened) for one in message.texts)
    return types.Revealed(entry(message.entry, message.token), tuple(texts))


def redaction(message: pb.RedactTextResponse) -> types.Redaction:
    """Give what was found, and the text without it."""
    return types.Redaction(
        text=message.redacted_text,
        findings=tuple(
            types.RedactionFinding(
                type=finding.type,
                kind=REDACTION_KIND_OF.get(finding.kind, types.RedactionKind.UNKNOWN),
                view=finding.view,
                span=(finding.span.start, finding.span.end),
            )
            for finding in message.findings
        ),
        finding_count=message.finding_count,
        incomplete=message.incomplete,
        rule_set=message.rule_set,
        token=message.token,
    )
