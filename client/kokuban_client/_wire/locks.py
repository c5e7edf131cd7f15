"""Sessions and locks as they travel: requests are built here, and answers turned into plain types."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kokuban.v1 import (
    board_service_pb2,
    entry_pb2,
    lock_pb2,
    lock_service_pb2,
    lock_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
)
from kokuban_client import types
from kokuban_client._wire import duration, entry_key, fence_message, time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf import duration_pb2

AcquireLockRequest: TypeAlias = lock_service_pb2.AcquireLockRequest
AcquireLockResponse: TypeAlias = lock_service_pb2.AcquireLockResponse
ClaimEntryRequest: TypeAlias = lock_service_pb2.ClaimEntryRequest
LockGranted: TypeAlias = lock_service_pb2.LockGranted
KeepAliveResponse: TypeAlias = session_service_pb2.KeepAliveResponse

LockServiceStub = lock_service_pb2_grpc.LockServiceStub
SessionServiceStub = session_service_pb2_grpc.SessionServiceStub

_MODES = {
    types.LockMode.EXCLUSIVE: lock_pb2.LOCK_MODE_EXCLUSIVE,
    types.LockMode.SHARED: lock_pb2.LOCK_MODE_SHARED,
}
_SCOPES = {
    types.LockScope.ENTRY: lock_pb2.LOCK_SCOPE_ENTRY,
    types.LockScope.SUBTREE: lock_pb2.LOCK_SCOPE_SUBTREE,
}
_MODE_OF = {number: mode for mode, number in _MODES.items()}
_SCOPE_OF = {number: scope for scope, number in _SCOPES.items()}
_STATE_OF = {
    lock_pb2.LOCK_STATE_HELD: types.LockState.HELD,
    lock_pb2.LOCK_STATE_LOST: types.LockState.LOST,
}
_CAUSE_OF = {
    session_service_pb2.LOCK_LOSS_REASON_HELD_TOO_LONG: types.LossCause.HELD_TOO_LONG,
    session_service_pb2.LOCK_LOSS_REASON_BROKEN: types.LossCause.BROKEN,
}


# Requests


def open_session_request(
    board: str, request_id: str, *, ttl_s: float, label: str
) -> session_service_pb2.OpenSessionRequest:
    """Give a wish for a session."""
    return session_service_pb2.OpenSessionRequest(
        board=board, request_id=request_id, ttl=duration(ttl_s, "ttl_s"), label=label
    )


def keep_alive_request(board: str, session_id: str) -> session_service_pb2.KeepAliveRequest:
    """Give a renewal."""
    return session_service_pb2.KeepAliveRequest(board=board, session_id=session_id)


def close_session_request(board: str, session_id: str) -> session_service_pb2.CloseSessionRequest:
    """Give the end of a session."""
    return session_service_pb2.CloseSessionRequest(board=board, session_id=session_id)


def list_sessions_request(board: str, *, page_token: str) -> session_service_pb2.ListSessionsRequest:
    """Give a question for one page of who is there."""
    return session_service_pb2.ListSessionsRequest(board=board, page_token=page_token)


def acquire_request(
    board: str,
    *,
    targets: Iterable[types.LockTarget],
    mode: types.LockMode,
    purpose: str,
    wait_s: float,
    hold_max_s: float | None,
    lock_delay_s: float | None,
    retry_of: str = "",
) -> AcquireLockRequest:
    """Give a request for a lock, to be completed with session and request id.

    Raises ValueError for what the wire could not say.
    """
    if mode not in _MODES:
        raise ValueError("mode is 'exclusive' or 'shared'")
    return lock_service_pb2.AcquireLockRequest(
        board=board,
        targets=[_target_message(target) for target in targets],
        mode=_MODES[mode],
        purpose=purpose,
        wait=duration(wait_s, "wait_s"),
        hold_max=_optional(hold_max_s, "hold_max_s"),
        lock_delay=_optional(lock_delay_s, "lock_delay_s"),
        retry_of=retry_of,
    )


def without_waiting(request: AcquireLockRequest) -> AcquireLockRequest:
    """Give the same request, but for that it does not wait."""
    at_once = lock_service_pb2.AcquireLockRequest()
    at_once.CopyFrom(request)
    at_once.ClearField("wait")
    return at_once


def claim_request(
    board: str,
    *,
    candidates: Iterable[tuple[str, str]],
    scope: types.LockScope,
    purpose: str,
    hold_max_s: float | None,
    lock_delay_s: float | None,
    retry_of: str = "",
) -> ClaimEntryRequest:
    """Give a claim, to be completed with session and request id."""
    return lock_service_pb2.ClaimEntryRequest(
        board=board,
        candidates=[entry_key(region, path) for region, path in candidates],
        scope=_scope_number(scope),
        purpose=purpose,
        hold_max=_optional(hold_max_s, "hold_max_s"),
        lock_delay=_optional(lock_delay_s, "lock_delay_s"),
        retry_of=retry_of,
    )


def _optional(seconds: float | None, name: str) -> duration_pb2.Duration | None:
    return None if seconds is None else duration(seconds, name)


def _target_message(target: types.LockTarget) -> lock_pb2.LockTarget:
    return lock_pb2.LockTarget(region=target.region, path=target.path, scope=_scope_number(target.scope))


def _scope_number(scope: types.LockScope) -> lock_pb2.LockScope.ValueType:
    if scope not in _SCOPES:
        raise ValueError("scope is 'entry' or 'subtree'")
    return _SCOPES[scope]


def release_request(board: str, fence: types.Fence) -> lock_service_pb2.ReleaseLockRequest:
    """Give a lock's release."""
    return lock_service_pb2.ReleaseLockRequest(board=board, fence=fence_message(fence))


def downgrade_request(board: str, fence: types.Fence) -> lock_service_pb2.DowngradeLockRequest:
    """Give the change of a lock to a shared one."""
    return lock_service_pb2.DowngradeLockRequest(board=board, fence=fence_message(fence))


def list_locks_request(board: str, region: str, path: str, *, page_token: str) -> lock_service_pb2.ListLocksRequest:
    """Give a question for one page of who holds what."""
    return lock_service_pb2.ListLocksRequest(board=board, region=region, path=path, page_token=page_token)


def break_request(board: str, lock_id: str, reason: str, *, skip_lock_delay: bool) -> lock_service_pb2.BreakLockRequest:
    """Give the breaking of somebody's lock."""
    return lock_service_pb2.BreakLockRequest(
        board=board, lock_id=lock_id, reason=reason, skip_lock_delay=skip_lock_delay
    )


def check_current_request(
    board: str, entries: Iterable[tuple[str, str, types.Revision]], fences: Sequence[types.Fence]
) -> board_service_pb2.CheckCurrentRequest:
    """Give the question whether entries and fences are still current."""
    return board_service_pb2.CheckCurrentRequest(
        board=board,
        entries=[
            entry_pb2.EntryAt(key=entry_key(region, path), at=entry_pb2.Revision(number=at.number, epoch=at.epoch))
            for region, path, at in entries
        ],
        fences=map(fence_message, fences),
    )


# Answers


def _seconds(message: duration_pb2.Duration) -> float:
    return message.seconds + message.nanos / 1e9


def fence(message: lock_pb2.Fence) -> types.Fence:
    """Give the proof of a grant."""
    return types.Fence(message.lock_id, message.revision, message.epoch)


def lock(message: lock_pb2.Lock) -> types.Lock:
    """Give a lock."""
    return types.Lock(
        id=message.id,
        session_id=message.session_id,
        agent=message.agent,
        mode=_MODE_OF.get(message.mode, types.LockMode.UNKNOWN),
        targets=_targets(message.targets),
        purpose=message.purpose,
        grant_time=time(message.grant_time),
        end_time=time(message.end_time) if message.HasField("end_time") else None,
        lock_delay_s=_seconds(message.lock_delay),
        state=_STATE_OF.get(message.state, types.LockState.UNKNOWN),
        fence_revision=message.fence_revision,
        traceparent=message.traceparent,
    )


def _targets(messages: Iterable[lock_pb2.LockTarget]) -> tuple[types.LockTarget, ...]:
    return tuple(
        types.LockTarget(one.region, one.path, _SCOPE_OF.get(one.scope, types.LockScope.UNKNOWN)) for one in messages
    )


def lock_wait(message: lock_pb2.LockWait) -> types.LockWait:
    """Give a request that waits."""
    return types.LockWait(
        session_id=message.session_id,
        agent=message.agent,
        mode=_MODE_OF.get(message.mode, types.LockMode.UNKNOWN),
        targets=_targets(message.targets),
        purpose=message.purpose,
        start_time=time(message.start_time),
        lock_id=message.lock_id,
    )


def wait_edge(message: lock_pb2.WaitEdge) -> types.WaitEdge:
    """Give one step of a deadlock."""
    return types.WaitEdge(message.agent, message.session_id, _targets(message.waits_for), message.purpose)


def queued(message: lock_service_pb2.LockQueued) -> types.Queued:
    """Give where a request stands."""
    return types.Queued(message.ahead, tuple(map(lock, message.held_by)))


def waited_s(message: LockGranted) -> float:
    """Give how long a granted request stood in the queue."""
    return _seconds(message.waited)


def session_info(message: lock_pb2.Session) -> types.SessionInfo:
    """Give a session."""
    return types.SessionInfo(
        id=message.id,
        agent=message.agent,
        label=message.label,
        open_time=time(message.open_time),
        ttl_s=_seconds(message.ttl),
        heartbeat_age_s=_seconds(message.heartbeat_age) if message.HasField("heartbeat_age") else None,
    )


def presence(message: session_service_pb2.SessionPresence) -> types.Presence:
    """Give a session and what it has to do with locks."""
    return types.Presence(
        session=session_info(message.session),
        holds=tuple(map(lock, message.holds)),
        waits=tuple(map(lock_wait, message.waits)),
    )


def told_state(message: KeepAliveResponse) -> types.SessionState | None:
    """Give what a server says of a session, or None if it says nothing of it."""
    match message.state:
        case session_service_pb2.SESSION_STATE_RENEWED:
            return types.SessionState.LIVE
        case session_service_pb2.SESSION_STATE_IN_JEOPARDY:
            return types.SessionState.IN_JEOPARDY
        case session_service_pb2.SESSION_STATE_LOST:
            return types.SessionState.LOST
        case _:
            return None


def told_ttl_s(message: KeepAliveResponse) -> float | None:
    """Give how long the session lives from a renewal on, where that is told."""
    return _seconds(message.ttl) if message.HasField("ttl") else None


def lost_locks(message: KeepAliveResponse) -> tuple[types.LostLock, ...]:
    """Give the locks that ended without a release."""
    return tuple(
        types.LostLock(one.lock_id, _CAUSE_OF.get(one.reason, types.LossCause.UNKNOWN), one.broken_by, one.words)
        for one in message.lost_locks
    )


def was_gone(message: lock_service_pb2.ReleaseLockResponse) -> bool:
    """Say whether a release found nothing to release."""
    return message.outcome == lock_service_pb2.RELEASE_OUTCOME_ALREADY_GONE


def currency(message: board_service_pb2.CheckCurrentResponse) -> types.Currency:
    """Give what still holds."""
    return types.Currency(
        current=message.current,
        stale_entries=tuple(types.EntryKey(key.region, key.path) for key in message.stale_entries),
        lost_fences=tuple(map(fence, message.lost_fences)),
        token=message.token,
    )
