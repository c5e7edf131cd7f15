"""Labels and read scopes to stored messages and back."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from kokuban.store.v1 import records_pb2 as pb
from kokuban_server.core.names import EntryKey, parse_region
from kokuban_server.core.read_scopes import Given, ReadScope
from kokuban_server.core.refusals import InvalidRequest, StoreCorrupt
from kokuban_server.core.sensitive import Kind
from kokuban_server.core.trust import UNDECLARED, Label, Parent, Source, SourceKind, Trust


def encode_label(label: Label) -> pb.LabelRecord:
    """Give the stored form of a label."""
    message = pb.LabelRecord(
        trust=label.trust,
        parents=map(_encode_parent, label.parents),
        read_scope=label.read_scope,
        extends_from=label.extends_from,
        endorsed_by=label.endorsed_by,
        screened_by=label.screened_by,
        suspicious=label.suspicious,
        scope_size=label.scope_size,
        holds=sorted(kind.value for kind in label.holds),
        unsearched=label.unsearched,
    )
    if label.source is not UNDECLARED:
        message.source.CopyFrom(encode_source(label.source))
    return message


def encode_source(source: Source) -> pb.SourceRecord:
    """Give the stored form of a source."""
    kind, uri, name, content_sha256, fetch_time_ms = source
    return pb.SourceRecord(kind=kind, uri=uri, name=name, content_sha256=content_sha256, fetch_time_ms=fetch_time_ms)


def read_source(message: pb.SourceRecord) -> Source:
    """Give a source. Raises `ValueError`."""
    return Source(SourceKind(message.kind), message.uri, message.name, message.content_sha256, message.fetch_time_ms)


def read_label(message: pb.LabelRecord) -> Label:
    """Give a label. Raises `ValueError`."""
    return Label(
        Trust(message.trust),
        read_source(message.source) if message.HasField("source") else UNDECLARED,
        tuple([_parent(parent) for parent in message.parents]),
        message.read_scope,
        message.extends_from,
        message.endorsed_by,
        message.screened_by,
        message.suspicious,
        message.scope_size,
        frozenset(map(Kind, message.holds)),
        message.unsearched,
    )


def _encode_parent(parent: Parent) -> pb.ParentRecord:
    key, revision, sequence, extends_from = parent
    return pb.ParentRecord(
        region=str(key.region), path=key.path, revision=revision, sequence=sequence, extends_from=extends_from
    )


def _parent(message: pb.ParentRecord) -> Parent:
    try:
        region = parse_region(message.region)
    except InvalidRequest as error:
        raise ValueError(f"not a region: {error}") from error
    return Parent(EntryKey(region, message.path), message.revision, message.sequence, message.extends_from)


def encode_read_scope(scope: ReadScope) -> bytes:
    """Give the stored form of what a read scope was given."""
    members = (pb.ScopeMemberRecord(parent=_encode_parent(parent), trust=trust) for parent, trust in scope.given)
    return pb.ReadScopeRecord(agent=scope.agent, members=members, purged_by=scope.purged_by).SerializeToString()


def decode_read_scope(key: bytes, raw: bytes) -> ReadScope:
    """Read what a read scope was given."""
    try:
        message = pb.ReadScopeRecord.FromString(raw)
        given = tuple(Given(_parent(member.parent), Trust(member.trust)) for member in message.members)
    except (DecodeError, ValueError) as error:
        raise StoreCorrupt(key, f"not a read scope: {error}") from error
    return ReadScope(message.agent, given, message.purged_by)
