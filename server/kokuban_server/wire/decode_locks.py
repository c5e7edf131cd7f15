"""Requests about sessions and locks to domain values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban.v1 import lock_pb2
from kokuban_server.app.lock_asked import LockRequest
from kokuban_server.app.sessions import SessionRequest
from kokuban_server.core import limits
from kokuban_server.core.locks import LockTarget, Mode
from kokuban_server.core.names import WITHOUT_ID, EntryKey, Region, parse_board, parse_path, parse_region
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.wire.fields import (
    duration_ms,
    entry_key,
    fence_given,
    lock_name,
    page_size,
    page_token,
    request_id,
    retry_given,
    too_many,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.message import Message

    from kokuban.v1 import lock_service_pb2 as lock_service_pb
    from kokuban.v1 import session_service_pb2 as session_pb
    from kokuban_server.core.locks import Fence

_MODES = {lock_pb2.LOCK_MODE_EXCLUSIVE: Mode.EXCLUSIVE, lock_pb2.LOCK_MODE_SHARED: Mode.SHARED}
_IS_SUBTREE = {lock_pb2.LOCK_SCOPE_ENTRY: False, lock_pb2.LOCK_SCOPE_SUBTREE: True}


def _digest(kind: bytes, message: Message, digest: Callable[[bytes], bytes]) -> bytes:
    """Give the digest of a request's arguments, another for each method."""
    return digest(kind + b"\x00" + message.SerializeToString(deterministic=True))


def open_session(message: session_pb.OpenSessionRequest, digest: Callable[[bytes], bytes]) -> SessionRequest:
    """Give the session that is asked for."""
    board = parse_board(message.board)
    id_time_ms = request_id(message.request_id)
    if not message.HasField("ttl"):
        raise InvalidRequest("FIELD_REQUIRED", "ttl", "how long the session is to live without renewal")
    ttl_ms = duration_ms(message.ttl, "ttl", limits.SESSION_TTL_MS_MIN, limits.SESSION_TTL_MS_MAX)
    return SessionRequest(
        board,
        message.request_id,
        id_time_ms,
        _digest(b"OpenSession", message, digest),
        ttl_ms,
        label(message.label),
    )


def label(text: str) -> str:
    """Give a session's label, within its bound."""
    return words(text, "label", limits.SESSION_LABEL_BYTES_MAX, required=False)


def purpose(text: str) -> str:
    """Give a lock's purpose, within its bound."""
    return words(text, "purpose", limits.LOCK_PURPOSE_BYTES_MAX)


def keep_alive(message: session_pb.KeepAliveRequest) -> tuple[str, str]:
    """Give board and session of a stream's first message."""
    return parse_board(message.board), lock_name(message.session_id, "session_id")


def keep_alive_again(message: session_pb.KeepAliveRequest, board: str, session_id: str) -> None:
    """Refuse a later message that is about another session."""
    if message.board not in {"", board}:
        raise InvalidRequest("FIELD_INVALID", "board", "one stream is for one session")
    if message.session_id not in {"", session_id}:
        raise InvalidRequest("FIELD_INVALID", "session_id", "one stream is for one session")


def close_session(message: session_pb.CloseSessionRequest) -> tuple[str, str]:
    """Give board and session."""
    return parse_board(message.board), lock_name(message.session_id, "session_id")


def list_sessions(message: session_pb.ListSessionsRequest) -> tuple[str, int, str]:
    """Give board, page size and page token."""
    board = parse_board(message.board)
    return board, page_size(message.page_size, limits.SESSION_PAGE_ENTRIES_MAX), page_token(message.page_token)


def acquire_lock(
    message: lock_service_pb.AcquireLockRequest, digest: Callable[[bytes], bytes], traceparent: str
) -> LockRequest:
    """Give the lock that is asked for."""
    board = parse_board(message.board)
    session_id = lock_name(message.session_id, "session_id")
    id_time_ms = request_id(message.request_id)
    targets = _targets(message.targets)
    mode = _MODES.get(message.mode)
    if mode is None:
        raise InvalidRequest("FIELD_REQUIRED", "mode", "LOCK_MODE_EXCLUSIVE or LOCK_MODE_SHARED")
    wait_ms = duration_ms(message.wait, "wait", 0, limits.LOCK_WAIT_MS_MAX)
    hold_ms, delay_ms = _times(message)
    message.ClearField("wait")  # who asks again may wait longer, or no more
    return LockRequest(
        board,
        session_id,
        message.request_id,
        id_time_ms,
        _digest(b"AcquireLock", message, digest),
        targets,
        mode,
        purpose(message.purpose),
        wait_ms,
        hold_ms,
        delay_ms,
        traceparent,
        retry_of=retry_given(message.retry_of),
    )


def _times(message: lock_service_pb.AcquireLockRequest | lock_service_pb.ClaimEntryRequest) -> tuple[int, int]:
    """Give the longest hold and the lock delay, in milliseconds."""
    hold_ms, delay_ms = limits.LOCK_HOLD_MS_MAX, limits.LOCK_DELAY_MS_DEFAULT
    if message.HasField("hold_max"):
        hold_ms = duration_ms(message.hold_max, "hold_max", limits.LOCK_HOLD_MS_MIN, limits.LOCK_HOLD_MS_MAX)
    if message.HasField("lock_delay"):
        delay_ms = duration_ms(message.lock_delay, "lock_delay", 0, limits.LOCK_DELAY_MS_MAX)
    return hold_ms, delay_ms


def _targets(messages: Sequence[lock_pb2.LockTarget]) -> tuple[LockTarget, ...]:
    if not messages:
        raise InvalidRequest("FIELD_REQUIRED", "targets", "at least one path to lock")
    if len(messages) > limits.LOCK_TARGETS_MAX:
        raise too_many("targets", limits.LOCK_TARGETS_MAX, len(messages))
    targets: list[LockTarget] = []
    for index, message in enumerate(messages):
        field = f"targets[{index}]"
        region = _lockable(parse_region(message.region, f"{field}.region"), f"{field}.region")
        is_subtree = _is_subtree(message.scope, f"{field}.scope")
        path = message.path
        if path or not is_subtree:
            path = parse_path(path, f"{field}.path")
        target = LockTarget(region, path, is_subtree)
        if any(target.overlaps(other) for other in targets):
            raise InvalidRequest("LOCK_TARGETS_INVALID", field, "is there already, or is inside another target")
        targets.append(target)
    return tuple(targets)


def _lockable(region: Region, field: str) -> Region:
    if region.kind in WITHOUT_ID:
        raise InvalidRequest("LOCK_TARGETS_INVALID", field, "regions beyond a board have no locks")
    return region


def _is_subtree(scope: lock_pb2.LockScope.ValueType, field: str) -> bool:
    is_subtree = _IS_SUBTREE.get(scope)
    if is_subtree is None:
        raise InvalidRequest("FIELD_REQUIRED", field, "LOCK_SCOPE_ENTRY or LOCK_SCOPE_SUBTREE")
    return is_subtree


def claim_entry(
    message: lock_service_pb.ClaimEntryRequest, digest: Callable[[bytes], bytes], traceparent: str
) -> LockRequest:
    """Give the claim that is asked for."""
    board = parse_board(message.board)
    session_id = lock_name(message.session_id, "session_id")
    id_time_ms = request_id(message.request_id)
    candidates = _candidates(message)
    is_subtree = _is_subtree(message.scope, "scope")
    hold_ms, delay_ms = _times(message)
    return LockRequest(
        board,
        session_id,
        message.request_id,
        id_time_ms,
        _digest(b"ClaimEntry", message, digest),
        tuple(LockTarget(entry.region, entry.path, is_subtree) for entry in candidates),
        Mode.EXCLUSIVE,
        purpose(message.purpose),
        0,
        hold_ms,
        delay_ms,
        traceparent,
        candidates,
        retry_given(message.retry_of),
    )


def _candidates(message: lock_service_pb.ClaimEntryRequest) -> tuple[EntryKey, ...]:
    if not message.candidates:
        raise InvalidRequest("FIELD_REQUIRED", "candidates", "at least one entry to claim")
    if len(message.candidates) > limits.CLAIM_CANDIDATES_ENTRIES_MAX:
        raise too_many("candidates", limits.CLAIM_CANDIDATES_ENTRIES_MAX, len(message.candidates))
    candidates: dict[EntryKey, None] = {}
    first: EntryKey | None = None
    for index, item in enumerate(message.candidates):
        field = f"candidates[{index}]"
        entry = entry_key(item, field)
        _lockable(entry.region, f"{field}.region")
        first = first or entry
        if entry.region != first.region:
            raise InvalidRequest("LOCK_TARGETS_INVALID", f"{field}.region", "all candidates are in one region")
        if entry in candidates:
            raise InvalidRequest("DUPLICATE_KEY", field, "each entry is named at most once")
        candidates[entry] = None
    return tuple(candidates)


def fence_of(message: lock_service_pb.DowngradeLockRequest | lock_service_pb.ReleaseLockRequest) -> tuple[str, Fence]:
    """Give board and fence."""
    board = parse_board(message.board)
    if not message.HasField("fence"):
        raise InvalidRequest("FIELD_REQUIRED", "fence", "the fence that the grant gave")
    return board, fence_given(message.fence, "fence")


def list_locks(message: lock_service_pb.ListLocksRequest) -> tuple[str, Region, str, int, str]:
    """Give board, region, path (empty: all of the region), page size and page token."""
    board = parse_board(message.board)
    region = parse_region(message.region)
    path = parse_path(message.path) if message.path else ""
    return board, region, path, page_size(message.page_size), page_token(message.page_token)


def break_lock(message: lock_service_pb.BreakLockRequest) -> tuple[str, str, str]:
    """Give board, lock and reason."""
    board = parse_board(message.board)
    lock_id = lock_name(message.lock_id, "lock_id")
    return board, lock_id, words(message.reason, "reason", limits.REASON_BYTES_MAX)
