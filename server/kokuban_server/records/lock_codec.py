"""Sessions, locks and what belongs to them, to stored messages and back."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from kokuban.store.v1 import records_pb2 as pb
from kokuban_server.core.locks import LockRecord, LockTarget, Mode, SessionRecord
from kokuban_server.core.names import parse_region
from kokuban_server.core.refusals import InvalidRequest, StoreCorrupt


def encode_session(session: SessionRecord) -> bytes:
    """Give the stored form of a session."""
    return pb.SessionRecord(
        agent=session.agent,
        label=session.label,
        open_time_ms=session.open_time_ms,
        ttl_ms=session.ttl_ms,
        lease=session.lease,
    ).SerializeToString()


def decode_session(key: bytes, raw: bytes) -> SessionRecord:
    """Read a session."""
    try:
        message = pb.SessionRecord.FromString(raw)
    except DecodeError as error:
        raise StoreCorrupt(key, f"not a session record: {error}") from error
    return SessionRecord(message.agent, message.label, message.open_time_ms, message.ttl_ms, message.lease)


def encode_lock(lock: LockRecord) -> bytes:
    """Give the stored form of a lock, a marker or a wait."""
    message = pb.LockRecord(
        session_id=lock.session_id,
        agent=lock.agent,
        request_id=lock.request_id,
        shared=lock.mode is Mode.SHARED,
        purpose=lock.purpose,
        time_ms=lock.time_ms,
        end_time_ms=lock.end_time_ms,
        lock_delay_ms=lock.lock_delay_ms,
        traceparent=lock.traceparent,
        lease=lock.lease,
        server_id=lock.server_id,
        lost_time_ms=lock.lost_time_ms,
        broken_by=lock.broken_by,
        broken_reason=lock.broken_reason,
        broken_traceparent=lock.broken_traceparent,
    )
    for region, path, is_subtree in lock.targets:
        message.targets.add(region=str(region), path=path, subtree=is_subtree)
    return message.SerializeToString()


def decode_lock(key: bytes, raw: bytes) -> LockRecord:
    """Read a lock, a marker or a wait."""
    try:
        message = pb.LockRecord.FromString(raw)
        targets = tuple(
            LockTarget(parse_region(target.region), target.path, target.subtree) for target in message.targets
        )
    except (DecodeError, InvalidRequest) as error:
        raise StoreCorrupt(key, f"not a lock record: {error}") from error
    if not targets:
        raise StoreCorrupt(key, "a lock record without targets")
    return LockRecord(
        message.session_id,
        message.agent,
        message.request_id,
        Mode.SHARED if message.shared else Mode.EXCLUSIVE,
        targets,
        message.purpose,
        message.time_ms,
        message.end_time_ms,
        message.lock_delay_ms,
        message.traceparent,
        message.lease,
        message.server_id,
        message.lost_time_ms,
        message.broken_by,
        message.broken_reason,
        message.broken_traceparent,
    )


def encode_generation(lock_id: str) -> bytes:
    """Give the stored form of a generation that a lock has moved."""
    return pb.LockGeneration(lock_id=lock_id).SerializeToString()


def decode_generation(key: bytes, raw: bytes) -> str:
    """Read which lock has moved a generation."""
    try:
        return pb.LockGeneration.FromString(raw).lock_id
    except DecodeError as error:
        raise StoreCorrupt(key, f"not a lock generation: {error}") from error


def encode_server(begin_time_ms: int) -> bytes:
    """Give the stored form of a server's record."""
    return pb.ServerRecord(begin_time_ms=begin_time_ms).SerializeToString()
