"""What etcd's errors mean: whether what was asked may have happened, and what to do next. Nothing else reads their texts."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from grpc import StatusCode


class Verdict(Enum):
    """What an error says about the call."""

    NOT_DONE = auto()
    """Did not happen; the same call may be tried again, best elsewhere."""
    UNKNOWN = auto()
    """May or may not have happened, or may yet happen."""
    UNAUTHENTICATED = auto()
    """Did not happen, for want of a valid token."""
    FULL = auto()
    """Did not happen, for want of room."""
    LEASE_GONE = auto()
    """Did not happen: it names a lease that is not there."""
    LEASE_EXISTS = auto()
    """Did not happen: the lease to begin is there already."""
    TOO_LARGE = auto()
    """Did not happen: the request is over the cluster's limit."""
    COMPACTED = auto()
    """Did not happen: the revision is no longer kept."""
    AHEAD = auto()
    """Did not happen: the revision is not reached."""
    CORRUPT = auto()
    """The cluster no longer trusts its own data."""
    REFUSED = auto()
    """Did not happen, and asking again is of no use."""


class EtcdError(Exception):
    """A call to etcd failed. Never leaves the adapter."""

    def __init__(self, verdict: Verdict, detail: str, *, elsewhere: bool = False, late: bool = False) -> None:
        super().__init__(f"{verdict.name}: {detail}")
        self.verdict = verdict
        self.detail = detail
        self.elsewhere = elsewhere
        """Another member may do better."""
        self.late = late
        """Nothing came within the time given; which says little when that was short."""


class _Row(NamedTuple):
    code: StatusCode
    text: str
    """What the detail holds; empty for anything."""
    verdict: Verdict
    elsewhere: bool = False
    late: bool = False


_TABLE: Final = (
    _Row(StatusCode.UNAVAILABLE, "failed to connect to all addresses", Verdict.NOT_DONE, elsewhere=True),
    _Row(StatusCode.UNAVAILABLE, "Connection refused", Verdict.NOT_DONE, elsewhere=True),
    _Row(StatusCode.UNAVAILABLE, "etcdserver: no leader", Verdict.NOT_DONE, elsewhere=True),
    _Row(StatusCode.UNAVAILABLE, "etcdserver: not capable", Verdict.NOT_DONE, elsewhere=True),
    _Row(StatusCode.UNAVAILABLE, "for learner", Verdict.NOT_DONE, elsewhere=True),
    _Row(StatusCode.FAILED_PRECONDITION, "for learner", Verdict.NOT_DONE, elsewhere=True),
    _Row(StatusCode.RESOURCE_EXHAUSTED, "too many requests", Verdict.NOT_DONE),
    _Row(StatusCode.UNAUTHENTICATED, "", Verdict.UNAUTHENTICATED),
    _Row(StatusCode.INVALID_ARGUMENT, "revision of auth store is old", Verdict.UNAUTHENTICATED),
    _Row(StatusCode.INVALID_ARGUMENT, "user name is empty", Verdict.UNAUTHENTICATED),
    _Row(StatusCode.RESOURCE_EXHAUSTED, "database space exceeded", Verdict.FULL),
    _Row(StatusCode.NOT_FOUND, "requested lease not found", Verdict.LEASE_GONE),
    _Row(StatusCode.FAILED_PRECONDITION, "lease already exists", Verdict.LEASE_EXISTS),
    _Row(StatusCode.INVALID_ARGUMENT, "request is too large", Verdict.TOO_LARGE),
    _Row(StatusCode.RESOURCE_EXHAUSTED, "message larger than max", Verdict.TOO_LARGE),
    _Row(StatusCode.RESOURCE_EXHAUSTED, "trying to send message larger", Verdict.TOO_LARGE),
    _Row(StatusCode.OUT_OF_RANGE, "has been compacted", Verdict.COMPACTED),
    _Row(StatusCode.OUT_OF_RANGE, "future revision", Verdict.AHEAD),
    _Row(StatusCode.DATA_LOSS, "", Verdict.CORRUPT),
    _Row(StatusCode.INVALID_ARGUMENT, "", Verdict.REFUSED),
    _Row(StatusCode.OUT_OF_RANGE, "", Verdict.REFUSED),
    _Row(StatusCode.NOT_FOUND, "", Verdict.REFUSED),
    _Row(StatusCode.ALREADY_EXISTS, "", Verdict.REFUSED),
    _Row(StatusCode.FAILED_PRECONDITION, "", Verdict.REFUSED),
    _Row(StatusCode.PERMISSION_DENIED, "", Verdict.REFUSED),
    _Row(StatusCode.UNIMPLEMENTED, "", Verdict.REFUSED),
    _Row(StatusCode.DEADLINE_EXCEEDED, "", Verdict.UNKNOWN, elsewhere=True, late=True),
)


def judge(code: StatusCode, detail: str) -> EtcdError:
    """Say what a failed call's status means: as the first row that fits.

    What no row calls definite is unknown: a write that is taken for undone although it stands is the worse mistake.
    """
    for row in _TABLE:
        if row.code is code and row.text in detail:
            return EtcdError(row.verdict, detail, elsewhere=row.elsewhere, late=row.late)
    return EtcdError(Verdict.UNKNOWN, detail, elsewhere=True)
