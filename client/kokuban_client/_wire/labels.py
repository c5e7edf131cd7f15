"""Trust, sources and labels as they travel."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

from kokuban.v1 import entry_pb2, trust_pb2
from kokuban_client import types

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from google.protobuf import timestamp_pb2

_KINDS = {
    types.SourceKind.AGENT: trust_pb2.SOURCE_KIND_AGENT,
    types.SourceKind.USER: trust_pb2.SOURCE_KIND_USER,
    types.SourceKind.TOOL: trust_pb2.SOURCE_KIND_TOOL,
    types.SourceKind.EXTERNAL: trust_pb2.SOURCE_KIND_EXTERNAL,
}
REDACTION_KIND_OF = {
    trust_pb2.REDACTION_KIND_SECRET: types.RedactionKind.SECRET,
    trust_pb2.REDACTION_KIND_PERSONAL: types.RedactionKind.PERSONAL,
}
HANDLINGS = {
    types.RedactionHandling.MASK: trust_pb2.REDACTION_HANDLING_MASK,
    types.RedactionHandling.REFUSE: trust_pb2.REDACTION_HANDLING_REFUSE,
    types.RedactionHandling.KEEP: trust_pb2.REDACTION_HANDLING_KEEP,
    types.RedactionHandling.OFF: trust_pb2.REDACTION_HANDLING_OFF,
    types.RedactionHandling.ENCRYPT: trust_pb2.REDACTION_HANDLING_ENCRYPT,
}
HANDLING_OF = {message: handling for handling, message in HANDLINGS.items()}
_KIND_OF = {message: kind for kind, message in _KINDS.items()}


def trust_number(trust: types.Trust | int) -> trust_pb2.TrustLevel.ValueType:
    """Give a level as it travels; raises ValueError for none that there is."""
    level = types.Trust(trust)
    if level is types.Trust.UNKNOWN:
        raise ValueError("a level of trust is SUSPECT to SYSTEM")
    return trust_pb2.TrustLevel.ValueType(level)


def trust_level(number: int) -> types.Trust:
    """Give a level; one that is not known is `UNKNOWN`."""
    try:
        return types.Trust(number)
    except ValueError:
        return types.Trust.UNKNOWN


def source_message(source: types.Source) -> trust_pb2.DeclaredSource:
    """Give a source as it travels."""
    message = trust_pb2.DeclaredSource(
        kind=_KINDS[types.SourceKind(source.kind)],
        uri=source.uri,
        name=source.name,
        content_sha256=source.content_sha256,
    )
    instant = source.fetch_time
    if instant is not None:
        if instant.tzinfo is None:
            raise ValueError("a time needs a time zone, else nobody knows which instant is meant")
        instant = instant.astimezone(UTC)
        message.fetch_time.FromDatetime(instant.replace(microsecond=instant.microsecond // 1000 * 1000))
    return message


def source(message: trust_pb2.DeclaredSource) -> types.Source:
    """Give a source."""
    kind = _KIND_OF.get(message.kind)
    return types.Source(
        "unknown" if kind is None else kind,
        message.uri,
        message.name,
        message.content_sha256,
        _time(message.fetch_time) if message.HasField("fetch_time") else None,
    )


def provenance(
    source: types.Source | None, derived_from: Iterable[types.Entry | types.Written | tuple[str, str, types.Revision]]
) -> entry_pb2.Provenance | None:
    """Give what a writer says of where something comes from; nothing where it says nothing."""
    parents: Sequence[entry_pb2.EntryAt] = [_entry_at(one) for one in derived_from]
    if source is None and not parents:
        return None
    return entry_pb2.Provenance(source=None if source is None else source_message(source), derived_from=parents)


def _entry_at(state: types.Entry | types.Written | tuple[str, str, types.Revision]) -> entry_pb2.EntryAt:
    region, path, at = state if isinstance(state, tuple) else (state.region, state.path, state.revision)
    return entry_pb2.EntryAt(
        key=entry_pb2.EntryKey(region=region, path=path), at=entry_pb2.Revision(number=at.number, epoch=at.epoch)
    )


def label(message: entry_pb2.Label) -> types.Label:
    """Give a label."""
    return types.Label(
        trust_level(message.trust),
        source(message.source) if message.HasField("source") else None,
        tuple(
            (types.EntryKey(one.key.region, one.key.path), types.Revision(one.at.number, one.at.epoch))
            for one in message.derived_from
        ),
        message.tracked,
        message.extends_previous,
        message.endorsed_by,
        message.screened_by,
        message.suspicious,
        frozenset(map(_redaction_kind, message.holds)),
        message.unsearched,
    )


def redaction(message: trust_pb2.Redaction) -> types.WrittenRedaction:
    """Give what became of something in what was sent."""
    return types.WrittenRedaction(
        message.field,
        message.mutation if message.HasField("mutation") else None,
        message.type,
        _redaction_kind(message.kind),
        HANDLING_OF.get(message.handling, types.RedactionHandling.UNKNOWN),
        message.count,
        tuple((span.start, span.end) for span in message.spans),
    )


def _redaction_kind(kind: trust_pb2.RedactionKind.ValueType) -> types.RedactionKind:
    return REDACTION_KIND_OF.get(kind, types.RedactionKind.UNKNOWN)


def external(message: entry_pb2.ExternalValue, content: types.PlainContent) -> types.External:
    """Give a value that came from outside."""
    origin = source(message.source) if message.HasField("source") else None
    return types.External(content, origin, dict(message.metadata))


def _time(message: timestamp_pb2.Timestamp) -> datetime:
    return message.ToDatetime(UTC)
