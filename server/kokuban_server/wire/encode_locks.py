"""Sessions and locks to responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration

from kokuban.v1 import lock_pb2
from kokuban.v1 import lock_service_pb2 as lock_service_pb
from kokuban.v1 import session_service_pb2 as session_pb
from kokuban_server.app.lock_asked import ShownLock
from kokuban_server.app.sessions import Pulse
from kokuban_server.core.locks import Mode
from kokuban_server.core.revision import encode_token
from kokuban_server.wire.encode import entry, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.timestamp_pb2 import Timestamp

    from kokuban_server.app.held_locks import LockPage
    from kokuban_server.app.lock_asked import Granted, Queued
    from kokuban_server.app.lock_mirror import Loss
    from kokuban_server.app.lock_views import Sight
    from kokuban_server.app.sessions import News, Opened, Present
    from kokuban_server.core.locks import LockRecord, LockTarget, SessionRecord

_MODES = {Mode.EXCLUSIVE: lock_pb2.LOCK_MODE_EXCLUSIVE, Mode.SHARED: lock_pb2.LOCK_MODE_SHARED}
_STATES = {
    Pulse.RENEWED: session_pb.SESSION_STATE_RENEWED,
    Pulse.IN_JEOPARDY: session_pb.SESSION_STATE_IN_JEOPARDY,
    Pulse.LOST: session_pb.SESSION_STATE_LOST,
    Pulse.UNCHANGED: session_pb.SESSION_STATE_UNCHANGED,
}


def duration(ms: int) -> Duration:
    """Give milliseconds as a duration."""
    message = Duration()
    _set(message, ms)
    return message


def _set(message: Duration | Timestamp, ms: int) -> None:
    message.seconds, rest = divmod(ms, 1000)
    message.nanos = rest * 1_000_000


def _add_targets(message: lock_pb2.Lock | lock_pb2.LockWait, targets: Iterable[LockTarget]) -> None:
    for region, path, is_subtree in targets:
        scope = lock_pb2.LOCK_SCOPE_SUBTREE if is_subtree else lock_pb2.LOCK_SCOPE_ENTRY
        message.targets.add(region=str(region), path=path, scope=scope)


def lock(shown: ShownLock, sight: Sight | None) -> lock_pb2.Lock:
    """Give a lock's message, as far as the caller may read it; without `sight`, as its holder may."""
    message = lock_pb2.Lock()
    _fill(message, shown, sight)
    return message


def _fill(message: lock_pb2.Lock, shown: ShownLock, sight: Sight | None) -> None:
    """Write a lock where its message is to stand: a message that is made apart is copied there, with all that it holds."""
    of = shown.lock
    message.id = shown.lock_id
    message.session_id = of.session_id
    message.agent = of.agent
    message.mode = _MODES[of.mode]
    _add_targets(message, of.targets if sight is None else sight.targets(of))
    message.purpose = of.purpose if sight is None or sight.reads_all(of) else ""
    _set(message.grant_time, of.time_ms)
    _set(message.end_time, of.end_time_ms)
    _set(message.lock_delay, of.lock_delay_ms)
    message.state = lock_pb2.LOCK_STATE_HELD if shown.is_held else lock_pb2.LOCK_STATE_LOST
    message.fence_revision = shown.revision
    message.traceparent = of.traceparent


def wait(lock_id: str, of: LockRecord, sight: Sight) -> lock_pb2.LockWait:
    """Give the message of a request that waits, as far as the caller may read it."""
    message = lock_pb2.LockWait(
        session_id=of.session_id,
        agent=of.agent,
        mode=_MODES[of.mode],
        purpose=of.purpose if sight.reads_all(of) else "",
        start_time=timestamp(of.time_ms),
        lock_id=lock_id,
    )
    _add_targets(message, sight.targets(of))
    return message


def granted(of: Granted, epoch: str) -> lock_service_pb.LockGranted:
    """Give a grant."""
    message = lock_service_pb.LockGranted()
    _fill_granted(message, of, epoch)
    return message


def _fill_granted(message: lock_service_pb.LockGranted, of: Granted, epoch: str) -> None:
    _fill(message.lock, ShownLock(of.lock_id, of.lock, True, of.revision), None)
    message.fence.lock_id = of.lock_id
    message.fence.revision = of.revision
    message.fence.epoch = epoch
    message.token = encode_token(epoch, of.revision)
    message.replayed = of.replayed
    _set(message.waited, of.waited_ms)


def queued(of: Queued, sight: Sight) -> lock_service_pb.AcquireLockResponse:
    """Give where a request stands."""
    standing = lock_service_pb.LockQueued(ahead=of.ahead, held_by=[lock(shown, sight) for shown in of.held_by])
    return lock_service_pb.AcquireLockResponse(queued=standing)


def acquired(of: Granted, epoch: str) -> lock_service_pb.AcquireLockResponse:
    """Give the grant that a request has come to."""
    response = lock_service_pb.AcquireLockResponse()
    _fill_granted(response.granted, of, epoch)
    return response


def claimed(of: Granted, epoch: str) -> lock_service_pb.ClaimEntryResponse:
    """Give a claimed entry with its lock."""
    return lock_service_pb.ClaimEntryResponse(
        entry=entry(*of.entry, epoch) if of.entry is not None else None, granted=granted(of, epoch)
    )


def lock_page(page: LockPage, epoch: str, sight: Sight) -> lock_service_pb.ListLocksResponse:
    """Give one page of who holds and who waits."""
    return lock_service_pb.ListLocksResponse(
        locks=[lock(shown, sight) for shown in page.locks],
        waits=[wait(lock_id, of, sight) for lock_id, of in page.waits],
        next_page_token=page.next_page_token,
        token=encode_token(epoch, page.revision),
    )


def session(session_id: str, of: SessionRecord, heartbeat_age_ms: int | None = None) -> lock_pb2.Session:
    """Give a session's message."""
    return lock_pb2.Session(
        id=session_id,
        agent=of.agent,
        label=of.label,
        open_time=timestamp(of.open_time_ms),
        ttl=duration(of.ttl_ms),
        heartbeat_age=duration(heartbeat_age_ms) if heartbeat_age_ms is not None else None,
    )


def opened(of: Opened, epoch: str) -> session_pb.OpenSessionResponse:
    """Give a session that is open."""
    return session_pb.OpenSessionResponse(
        session=session(of.session_id, of.session), token=encode_token(epoch, of.revision), epoch=epoch
    )


def news(of: News) -> session_pb.KeepAliveResponse:
    """Give what a session's holder should know."""
    return session_pb.KeepAliveResponse(
        session_id=of.session_id, state=_STATES[of.pulse], ttl=duration(of.ttl_ms), lost_locks=map(_lost, of.losses)
    )


def _lost(loss: Loss) -> session_pb.LostLock:
    marker = loss.marker
    if marker.broken_by:
        reason = session_pb.LOCK_LOSS_REASON_BROKEN
    elif marker.lost_time_ms >= marker.end_time_ms:
        reason = session_pb.LOCK_LOSS_REASON_HELD_TOO_LONG
    else:
        reason = session_pb.LOCK_LOSS_REASON_UNKNOWN
    return session_pb.LostLock(
        lock_id=loss.lock_id, reason=reason, broken_by=marker.broken_by, words=marker.broken_reason
    )


def presence(
    page: Sequence[Present], next_page_token: str, revision: int, epoch: str, sight: Sight
) -> session_pb.ListSessionsResponse:
    """Give one page of who is there."""
    return session_pb.ListSessionsResponse(
        sessions=[
            session_pb.SessionPresence(
                session=session(one.session_id, one.session, one.heartbeat_age_ms),
                holds=[lock(shown, sight) for shown in one.holds],
                waits=[wait(lock_id, of, sight) for lock_id, of in one.waits],
            )
            for one in page
        ],
        next_page_token=next_page_token,
        token=encode_token(epoch, revision),
    )
