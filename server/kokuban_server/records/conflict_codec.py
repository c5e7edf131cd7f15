"""Conflicts, to stored messages and back."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from kokuban.store.v1 import records_pb2 as pb
from kokuban_server.core import keys
from kokuban_server.core.conflicts import Conflict, ConflictKind, Outcome, Party
from kokuban_server.core.refusals import StoreCorrupt


def encode_conflict(conflict: Conflict) -> bytes:
    """Give the stored form. Id and time are in the key."""
    return pb.ConflictRecord(
        kind=conflict.kind,
        reason=conflict.reason,
        region=conflict.region,
        path=conflict.path,
        epoch=conflict.epoch,
        expected_revision=conflict.expected_revision,
        actual_revision=conflict.actual_revision,
        loser=_party(conflict.loser),
        winner=_party(conflict.winner) if conflict.winner is not None else None,
        lock_id=conflict.lock_id,
        retry_of=conflict.retry_of,
        lost_bytes=conflict.lost_bytes,
        waited_ms=conflict.waited_ms,
        outcome=conflict.outcome,
        outcome_time_ms=conflict.outcome_time_ms,
        outcome_request_id=conflict.outcome_request_id,
    ).SerializeToString()


def decode_conflict(key: bytes, raw: bytes) -> Conflict:
    """Read a conflict."""
    try:
        _, time_ms, conflict_id = keys.parse_conflict(key)
        record = pb.ConflictRecord.FromString(raw)
        kind, outcome = ConflictKind(record.kind), Outcome(record.outcome)
    except (DecodeError, ValueError) as error:
        raise StoreCorrupt(key, f"not a conflict: {error}") from error
    return Conflict(
        id=conflict_id,
        time_ms=time_ms,
        kind=kind,
        reason=record.reason,
        region=record.region,
        path=record.path,
        epoch=record.epoch,
        expected_revision=record.expected_revision,
        actual_revision=record.actual_revision,
        loser=_read_party(record.loser),
        winner=_read_party(record.winner) if record.HasField("winner") else None,
        lock_id=record.lock_id,
        retry_of=record.retry_of,
        lost_bytes=record.lost_bytes,
        waited_ms=record.waited_ms,
        outcome=outcome,
        outcome_time_ms=record.outcome_time_ms,
        outcome_request_id=record.outcome_request_id,
    )


def _party(party: Party) -> pb.ConflictPartyRecord:
    return pb.ConflictPartyRecord(
        agent=party.agent,
        session_id=party.session_id,
        request_id=party.request_id,
        traceparent=party.traceparent,
        time_ms=party.time_ms,
        purpose=party.purpose,
        regions=party.regions,
    )


def _read_party(message: pb.ConflictPartyRecord) -> Party:
    return Party(
        message.agent,
        message.session_id,
        message.request_id,
        message.traceparent,
        message.time_ms,
        message.purpose,
        tuple(message.regions),
    )
