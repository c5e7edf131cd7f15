"""Texts that are screened as they travel: requests are built here, and answers turned into plain types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban.v1 import entry_pb2, trust_service_pb2_grpc
from kokuban.v1 import trust_service_pb2 as pb
from kokuban_client import types
from kokuban_client._wire import entry_key, fence_message
from kokuban_client._wire.labels import source_message, trust_number

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
_REDACTED_OF = {
    pb.REDACTION_KIND_SECRET: types.RedactionKind.SECRET,
    pb.REDACTION_KIND_PERSONAL: types.RedactionKind.PERSONAL,
}


def screen_request(
    board: str, text: str, source: types.SourceKind | None, uri: str, *, show_views: bool
) -> pb.ScreenTextRequest:
    """Give a question about a text; raises ValueError for a URI without a kind of source."""
    if source is None:
        if uri:
            raise ValueError("a source with a URI has a kind: say which")
        return pb.ScreenTextRequest(board=board, text=text, show_views=show_views)
    declared = source_message(types.Source(source, uri))
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


def redaction(message: pb.RedactTextResponse) -> types.Redaction:
    """Give what was found, and the text without it."""
    return types.Redaction(
        text=message.redacted_text,
        findings=tuple(
            types.RedactionFinding(
                type=finding.type,
                kind=_REDACTED_OF.get(finding.kind, types.RedactionKind.UNKNOWN),
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
