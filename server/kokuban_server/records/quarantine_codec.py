"""Commits in quarantine to stored messages and back."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from kokuban.store.v1 import records_pb2 as pb
from kokuban_server.core.access import Role
from kokuban_server.core.names import EntryKey, parse_region
from kokuban_server.core.quarantine import HeldAuthor, Quarantined, QuarantineState
from kokuban_server.core.refusals import InvalidRequest, StoreCorrupt
from kokuban_server.core.screening.rules import Severity
from kokuban_server.core.screening.screening import Finding
from kokuban_server.records.trust_codec import encode_label, encode_source, read_label, read_source


def encode_quarantined(item: Quarantined) -> bytes:
    """Give the stored form of a commit in quarantine."""
    return pb.QuarantineRecord(
        request=item.request,
        agent=item.agent,
        create_time_ms=item.create_time_ms,
        labels=[pb.QuarantinedLabel(place=place, label=encode_label(label)) for place, label in item.labels],
        findings=map(_encode_finding, item.findings),
        rule_set=item.rule_set,
        field=item.field,
        source=encode_source(item.source),
        state=item.state,
        reviewer=item.reviewer,
        review_reason=item.review_reason,
        sequences=item.sequences,
        review_time_ms=item.review_time_ms,
        keys=[pb.ParentRecord(region=str(key.region), path=key.path) for key in item.keys],
        operation=item.operation,
        author=None if item.author is None else _encode_author(item.author),
    ).SerializeToString()


def _encode_author(author: HeldAuthor) -> pb.HeldAuthorRecord:
    return pb.HeldAuthorRecord(
        roles=sorted(author.roles),
        is_development=author.is_development,
        acting=map(str, author.acting),
        expires_ms=author.expires_ms,
        credential=author.credential,
    )


def _encode_finding(finding: Finding) -> pb.FindingRecord:
    start, end = finding.span or (-1, -1)
    return pb.FindingRecord(
        rule=finding.rule,
        severity=finding.severity.value,
        view=finding.view,
        start=start,
        end=end,
        excerpt=finding.excerpt,
    )


def decode_quarantined(key: bytes, raw: bytes) -> Quarantined:
    """Read a commit in quarantine."""
    try:
        message = pb.QuarantineRecord.FromString(raw)
        return Quarantined(
            message.request,
            message.agent,
            message.create_time_ms,
            tuple(EntryKey(parse_region(one.region), one.path) for one in message.keys),
            tuple((one.place, read_label(one.label)) for one in message.labels),
            tuple(map(_finding, message.findings)),
            message.rule_set,
            message.field,
            read_source(message.source),
            message.operation,
            QuarantineState(message.state),
            message.reviewer,
            message.review_reason,
            message.review_time_ms,
            tuple(message.sequences),
            _author(message.author) if message.HasField("author") else None,
        )
    except (DecodeError, ValueError, InvalidRequest) as error:
        raise StoreCorrupt(key, f"not a commit in quarantine: {error}") from error


def _author(message: pb.HeldAuthorRecord) -> HeldAuthor:
    roles = frozenset(map(Role, message.roles))
    acting = tuple(map(parse_region, message.acting))
    return HeldAuthor(roles, message.is_development, acting, message.expires_ms, message.credential)


def _finding(message: pb.FindingRecord) -> Finding:
    span = None if message.start < 0 else (message.start, message.end)
    return Finding(message.rule, Severity(message.severity), message.view, span, message.excerpt)
