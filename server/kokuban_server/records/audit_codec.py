"""Audit records, anchors and the ends of chains, to stored messages and back.

A record is stored as the bytes of its body and their SHA-256. The body holds the hash of the record before, so that a
chain stands or falls as a whole; and as the very bytes are kept, nobody needs to know how to make them again.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from google.protobuf.message import DecodeError

from kokuban.store.v1 import records_pb2 as pb
from kokuban_server.core.audit import Anchor, AuditRecord, ChainHead
from kokuban_server.core.refusals import StoreCorrupt


class Sealed(NamedTuple):
    """What was sealed: its body's bytes, and their hash as it was stored or made."""

    body: bytes
    hash: bytes

    @property
    def is_intact(self) -> bool:
        """The hash is that of the body."""
        return hashlib.sha256(self.body).digest() == self.hash

    def encode(self) -> bytes:
        """Give the stored form."""
        return pb.SealedRecord(body=self.body, hash=self.hash).SerializeToString()


def seal_record(record: AuditRecord) -> Sealed:
    """Give a record with its hash."""
    return _seal(
        pb.AuditBody(
            tenant=record.tenant,
            chain=record.chain,
            sequence=record.sequence,
            previous_hash=record.previous_hash,
            record_time_ms=record.record_time_ms,
            act_time_ms=record.act_time_ms,
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
        ).SerializeToString()
    )


def seal_anchor(anchor: Anchor) -> Sealed:
    """Give an anchor with its hash."""
    return _seal(
        pb.AnchorBody(
            tenant=anchor.tenant,
            sequence=anchor.sequence,
            previous_hash=anchor.previous_hash,
            anchor_time_ms=anchor.anchor_time_ms,
            server_id=anchor.server_id,
            heads=map(_head, anchor.heads),
        ).SerializeToString()
    )


def _seal(body: bytes) -> Sealed:
    return Sealed(body, hashlib.sha256(body).digest())


def unseal(key: bytes, raw: bytes) -> Sealed:
    """Read what was sealed, without looking into it."""
    try:
        message = pb.SealedRecord.FromString(raw)
    except DecodeError as error:
        raise StoreCorrupt(key, f"not a sealed record: {error}") from error
    sealed = Sealed(message.body, message.hash)
    if sealed.encode() != raw:
        raise StoreCorrupt(key, "more than a sealed record")
    return sealed


def decode_record(key: bytes, sealed: Sealed) -> AuditRecord:
    """Read an audit record's body."""
    try:
        body = pb.AuditBody.FromString(sealed.body)
    except DecodeError as error:
        raise StoreCorrupt(key, f"not an audit record: {error}") from error
    return AuditRecord(
        tenant=body.tenant,
        chain=body.chain,
        sequence=body.sequence,
        previous_hash=body.previous_hash,
        record_time_ms=body.record_time_ms,
        act_time_ms=body.act_time_ms,
        act=body.act,
        method=body.method,
        agent=body.agent,
        credential=body.credential,
        roles=tuple(body.roles),
        peer=body.peer,
        board=body.board,
        target=body.target,
        reason=body.reason,
        outcome=body.outcome,
        traceparent=body.traceparent,
        suppressed=body.suppressed,
    )


def decode_anchor(key: bytes, sealed: Sealed) -> Anchor:
    """Read an anchor's body."""
    try:
        body = pb.AnchorBody.FromString(sealed.body)
    except DecodeError as error:
        raise StoreCorrupt(key, f"not an audit anchor: {error}") from error
    heads = tuple(map(_read_head, body.heads))
    return Anchor(body.tenant, body.sequence, body.previous_hash, body.anchor_time_ms, body.server_id, heads)


def encode_head(head: ChainHead) -> bytes:
    """Give the stored form of a chain's end."""
    return _head(head).SerializeToString()


def decode_head(key: bytes, raw: bytes) -> ChainHead:
    """Read a chain's end."""
    try:
        return _read_head(pb.AuditHead.FromString(raw))
    except DecodeError as error:
        raise StoreCorrupt(key, f"not the end of an audit chain: {error}") from error


def _head(head: ChainHead) -> pb.AuditHead:
    return pb.AuditHead(chain=head.chain, sequence=head.sequence, record_time_ms=head.record_time_ms, hash=head.hash)


def _read_head(message: pb.AuditHead) -> ChainHead:
    return ChainHead(message.chain, message.sequence, message.record_time_ms, message.hash)
