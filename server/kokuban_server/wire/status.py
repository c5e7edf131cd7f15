"""Refusals to gRPC statuses: one table, and the only place that builds a status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from kokuban.v1 import lock_pb2
from kokuban_server.core import limits
from kokuban_server.core.refusals import BoardFull, Deadlock, InvalidRequest, PrincipalLimitReached, Unauthenticated

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from kokuban_server.core.refusals import CycleEdge, Refusal

DOMAIN: Final = "kokuban"

CODE_BY_REASON: Final[dict[str, StatusCode]] = {
    "MALFORMED_REQUEST": StatusCode.INVALID_ARGUMENT,
    "FIELD_REQUIRED": StatusCode.INVALID_ARGUMENT,
    "FIELD_INVALID": StatusCode.INVALID_ARGUMENT,
    "REGION_REQUIRED": StatusCode.INVALID_ARGUMENT,
    "REGION_INVALID": StatusCode.INVALID_ARGUMENT,
    "PATH_REQUIRED": StatusCode.INVALID_ARGUMENT,
    "PATH_INVALID": StatusCode.INVALID_ARGUMENT,
    "PATH_TOO_LONG": StatusCode.INVALID_ARGUMENT,
    "PATH_TOO_DEEP": StatusCode.INVALID_ARGUMENT,
    "PRECONDITION_REQUIRED": StatusCode.INVALID_ARGUMENT,
    "PRECONDITION_INVALID": StatusCode.INVALID_ARGUMENT,
    "TOKEN_INVALID": StatusCode.INVALID_ARGUMENT,
    "PAGE_TOKEN_INVALID": StatusCode.INVALID_ARGUMENT,
    "REQUEST_ID_REQUIRED": StatusCode.INVALID_ARGUMENT,
    "REQUEST_ID_INVALID": StatusCode.INVALID_ARGUMENT,
    "VALUE_REQUIRED": StatusCode.INVALID_ARGUMENT,
    "VALUE_TOO_LARGE": StatusCode.INVALID_ARGUMENT,
    "VALUE_NOT_JSON": StatusCode.INVALID_ARGUMENT,
    "JSON_TOO_DEEP": StatusCode.INVALID_ARGUMENT,
    "METADATA_INVALID": StatusCode.INVALID_ARGUMENT,
    "EXPIRY_INVALID": StatusCode.INVALID_ARGUMENT,
    "MASK_INVALID": StatusCode.INVALID_ARGUMENT,
    "TOO_MANY_ITEMS": StatusCode.INVALID_ARGUMENT,
    "COMMIT_TOO_LARGE": StatusCode.INVALID_ARGUMENT,
    "DUPLICATE_KEY": StatusCode.INVALID_ARGUMENT,
    "CREDENTIAL_REQUIRED": StatusCode.UNAUTHENTICATED,
    "CREDENTIAL_INVALID": StatusCode.UNAUTHENTICATED,
    "CREDENTIAL_EXPIRED": StatusCode.UNAUTHENTICATED,
    "ROLE_REQUIRED": StatusCode.PERMISSION_DENIED,
    "WRITE_FORBIDDEN": StatusCode.PERMISSION_DENIED,
    "NOT_ADMINISTRATOR": StatusCode.PERMISSION_DENIED,
    "NOT_FOUND": StatusCode.NOT_FOUND,
    "ALREADY_EXISTS": StatusCode.ALREADY_EXISTS,
    "BOARD_EXISTS": StatusCode.ALREADY_EXISTS,
    "REVISION_MISMATCH": StatusCode.ABORTED,
    "CONTENDED": StatusCode.ABORTED,
    "POLICY_CHANGED": StatusCode.ABORTED,
    "POLICY_LOCKS_OUT": StatusCode.FAILED_PRECONDITION,
    "VALUE_TYPE_MISMATCH": StatusCode.FAILED_PRECONDITION,
    "NUMBER_OUT_OF_RANGE": StatusCode.FAILED_PRECONDITION,
    "VALUE_FULL": StatusCode.FAILED_PRECONDITION,
    "TRUST_TOO_LOW": StatusCode.FAILED_PRECONDITION,
    "READ_SCOPE_REQUIRED": StatusCode.FAILED_PRECONDITION,
    "READ_SCOPE_FULL": StatusCode.FAILED_PRECONDITION,
    "READ_SCOPE_PURGED": StatusCode.FAILED_PRECONDITION,
    "SOURCE_PURGED": StatusCode.FAILED_PRECONDITION,
    "PURGES_FULL": StatusCode.RESOURCE_EXHAUSTED,
    "WITHHELD": StatusCode.FAILED_PRECONDITION,
    "PARENT_NOT_FOUND": StatusCode.FAILED_PRECONDITION,
    "CONTENT_QUARANTINED": StatusCode.FAILED_PRECONDITION,
    "CONTENT_REFUSED": StatusCode.FAILED_PRECONDITION,
    "CONTENT_PENDING": StatusCode.FAILED_PRECONDITION,
    "SCREENING_UNAVAILABLE": StatusCode.UNAVAILABLE,
    "CONTENT_SENSITIVE": StatusCode.FAILED_PRECONDITION,
    "ENCRYPTION_UNAVAILABLE": StatusCode.FAILED_PRECONDITION,
    "REVEAL_FORBIDDEN": StatusCode.PERMISSION_DENIED,
    "CONTENT_UNSEARCHED": StatusCode.FAILED_PRECONDITION,
    "ACTION_RECORDED": StatusCode.FAILED_PRECONDITION,
    "ACTION_IN_DOUBT": StatusCode.FAILED_PRECONDITION,
    "ACTION_NOT_STARTED": StatusCode.FAILED_PRECONDITION,
    "STEP_NOT_HELD": StatusCode.FAILED_PRECONDITION,
    "TASK_OVER": StatusCode.FAILED_PRECONDITION,
    "NO_STEP_READY": StatusCode.FAILED_PRECONDITION,
    "NOT_OPEN": StatusCode.FAILED_PRECONDITION,
    "CONFIG_CHANGED": StatusCode.FAILED_PRECONDITION,
    "TASK_PATH_RESERVED": StatusCode.INVALID_ARGUMENT,
    "TASK_FULL": StatusCode.FAILED_PRECONDITION,
    "SUBTASK_NOT_READY": StatusCode.FAILED_PRECONDITION,
    "STEP_NOT_DEAD": StatusCode.FAILED_PRECONDITION,
    "TASK_ARCHIVED": StatusCode.FAILED_PRECONDITION,
    "TASK_HELD": StatusCode.FAILED_PRECONDITION,
    "ARCHIVE_MISMATCH": StatusCode.FAILED_PRECONDITION,
    "ARCHIVE_INVALID": StatusCode.INVALID_ARGUMENT,
    "ARCHIVE_TOO_LARGE": StatusCode.FAILED_PRECONDITION,
    "REQUEST_ID_REUSED": StatusCode.FAILED_PRECONDITION,
    "REQUEST_ID_EXPIRED": StatusCode.FAILED_PRECONDITION,
    "SESSION_LOST": StatusCode.FAILED_PRECONDITION,
    "LOCKED_BY_OTHER": StatusCode.FAILED_PRECONDITION,
    "LOCK_LOST": StatusCode.FAILED_PRECONDITION,
    "LOCK_REQUIRED": StatusCode.FAILED_PRECONDITION,
    "LOCK_SHARED": StatusCode.FAILED_PRECONDITION,
    "NOT_HOLDER": StatusCode.FAILED_PRECONDITION,
    "LOCK_OVERLAPS_OWN": StatusCode.FAILED_PRECONDITION,
    "DEADLOCK": StatusCode.ABORTED,
    "LOCK_WAIT_EXPIRED": StatusCode.DEADLINE_EXCEEDED,
    "LOCK_WAIT_TAKEN_OVER": StatusCode.ABORTED,
    "NOTHING_TO_CLAIM": StatusCode.FAILED_PRECONDITION,
    "TOO_MANY_LOCKS": StatusCode.RESOURCE_EXHAUSTED,
    "LOCK_TARGETS_INVALID": StatusCode.INVALID_ARGUMENT,
    "DURATION_INVALID": StatusCode.INVALID_ARGUMENT,
    "TOKEN_FROM_ANOTHER_STORE": StatusCode.FAILED_PRECONDITION,
    "HISTORY_COMPACTED": StatusCode.OUT_OF_RANGE,
    "TOKEN_AHEAD_OF_STORE": StatusCode.OUT_OF_RANGE,
    "WATCH_TOO_SLOW": StatusCode.RESOURCE_EXHAUSTED,
    "WATCH_GAP": StatusCode.ABORTED,
    "RESPONSE_TOO_LARGE": StatusCode.RESOURCE_EXHAUSTED,
    "TOO_MANY_REQUESTS": StatusCode.RESOURCE_EXHAUSTED,
    "PRINCIPAL_LIMIT_REACHED": StatusCode.RESOURCE_EXHAUSTED,
    "BOARD_FULL": StatusCode.RESOURCE_EXHAUSTED,
    "STORE_FULL": StatusCode.RESOURCE_EXHAUSTED,
    "STORE_UNAVAILABLE": StatusCode.UNAVAILABLE,
    "OUTCOME_UNKNOWN": StatusCode.UNAVAILABLE,
    "SERVER_DRAINING": StatusCode.UNAVAILABLE,
    "DEADLINE_TOO_SHORT": StatusCode.DEADLINE_EXCEEDED,
    "STORE_CORRUPT": StatusCode.DATA_LOSS,
    "INTERNAL": StatusCode.INTERNAL,
}
"""The status code of every reason in `error_reason.proto`."""

RETRY_AFTER_MS: Final[dict[str, int]] = {
    "CONTENDED": 50,
    "TOO_MANY_REQUESTS": 200,
    "STORE_UNAVAILABLE": 500,
    "OUTCOME_UNKNOWN": 200,
    "SERVER_DRAINING": 100,
    "SCREENING_UNAVAILABLE": 1_000,
}
"""After how long a second try makes sense, where the refusal does not say it itself."""

_DETAIL_CHARACTERS_MAX: Final = 512
_CYCLE_BYTES_MAX: Final = 3_000
"""Trailers above some 16 KB reach a client as a failure of the connection instead of the status."""


def message_of(refusal: Refusal) -> str:
    """Give the words for people. Never a value from the board, and never a fault's own text."""
    if isinstance(refusal, InvalidRequest):
        return f"{refusal.reason}: {refusal.field_path}: {refusal.detail}"[:_DETAIL_CHARACTERS_MAX]
    if isinstance(refusal, Unauthenticated):
        return f"{refusal.reason}: {refusal.detail}"
    summary = (refusal.__doc__ or "").partition("\n")[0]
    return f"{refusal.reason}: {summary}"


def metadata_of(refusal: Refusal) -> dict[str, str]:
    """Give the facts, none longer than a path may be, so that the status fits into trailers."""
    return {
        name: value
        if len(value) <= limits.STATUS_METADATA_VALUE_BYTES_MAX
        else value[: limits.STATUS_METADATA_VALUE_BYTES_MAX]
        for name, value in refusal.facts.items()
    }


def retry_delay_of(refusal: Refusal) -> Duration | None:
    """Give after how long a second try makes sense, or nothing where waiting does not help."""
    if isinstance(refusal, PrincipalLimitReached | BoardFull):
        delay_ms = refusal.retry_ms
    elif refusal.reason in RETRY_AFTER_MS:
        delay_ms = RETRY_AFTER_MS[refusal.reason]
    else:
        return None
    delay = Duration()
    delay.FromMilliseconds(delay_ms)
    return delay


def status_of(refusal: Refusal) -> status_pb2.Status:
    """Give the rich status: `ErrorInfo` always, `BadRequest` for fields, `RetryInfo` where waiting helps."""
    reason = refusal.reason
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata_of(refusal)),
    ]
    if isinstance(refusal, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=refusal.field_path, description=refusal.detail[:_DETAIL_CHARACTERS_MAX], reason=reason
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(refusal, Deadlock):
        details.append(_cycle(refusal))
    delay = retry_delay_of(refusal)
    if delay is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = []
    for detail in details:
        item = Any()
        item.Pack(detail)
        packed.append(item)
    code: int = CODE_BY_REASON[reason].value[0]
    return status_pb2.Status(code=code, message=message_of(refusal), details=packed)


def _cycle(refusal: Deadlock) -> lock_pb2.DeadlockCycle:
    """Give the circle; what would not fit into the trailers of a status goes, purposes first, then edges of its middle."""
    edges = list(refusal.edges)
    cycle = lock_pb2.DeadlockCycle(edges=map(_edge, edges), length=refusal.length)
    if cycle.ByteSize() > _CYCLE_BYTES_MAX:
        for edge in cycle.edges:
            edge.purpose = ""
    while cycle.ByteSize() > _CYCLE_BYTES_MAX and len(cycle.edges) > 1:
        del cycle.edges[len(cycle.edges) // 2]
    return cycle


def _edge(edge: CycleEdge) -> lock_pb2.WaitEdge:
    return lock_pb2.WaitEdge(
        agent=edge.agent,
        session_id=edge.session_id,
        waits_for=[
            lock_pb2.LockTarget(
                region=region, path=path, scope=lock_pb2.LOCK_SCOPE_SUBTREE if subtree else lock_pb2.LOCK_SCOPE_ENTRY
            )
            for region, path, subtree in edge.targets
        ],
        purpose=edge.purpose,
    )
