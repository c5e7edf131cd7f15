"""What etcd's failures are taken to mean: a write that may stand is never called undone."""

from __future__ import annotations

import pytest
from grpc import StatusCode

from kokuban_server.adapters.etcd.errors import Verdict, judge

CASES = [
    (StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: ...", Verdict.NOT_DONE),
    (StatusCode.UNAVAILABLE, "etcdserver: no leader", Verdict.NOT_DONE),
    (StatusCode.UNAVAILABLE, "etcdserver: request timed out", Verdict.UNKNOWN),
    (StatusCode.UNAVAILABLE, "etcdserver: request timed out, possibly due to previous leader failure", Verdict.UNKNOWN),
    (StatusCode.UNAVAILABLE, "etcdserver: leader changed", Verdict.UNKNOWN),
    (StatusCode.UNAVAILABLE, "etcdserver: server stopped", Verdict.UNKNOWN),
    (StatusCode.UNAVAILABLE, "Socket closed", Verdict.UNKNOWN),
    (StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer", Verdict.UNKNOWN),
    (StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", Verdict.UNKNOWN),
    (StatusCode.CANCELLED, "", Verdict.UNKNOWN),
    (StatusCode.UNKNOWN, "", Verdict.UNKNOWN),
    (StatusCode.INTERNAL, "Received RST_STREAM with error code 2", Verdict.UNKNOWN),
    (StatusCode.ABORTED, "", Verdict.UNKNOWN),
    (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Verdict.FULL),
    (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Verdict.NOT_DONE),
    (StatusCode.RESOURCE_EXHAUSTED, "something new", Verdict.UNKNOWN),
    (StatusCode.RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (3 vs. 2)", Verdict.TOO_LARGE),
    (StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", Verdict.TOO_LARGE),
    (StatusCode.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", Verdict.REFUSED),
    (StatusCode.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Verdict.UNAUTHENTICATED),
    (StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", Verdict.UNAUTHENTICATED),
    (StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", Verdict.UNAUTHENTICATED),
    (StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", Verdict.REFUSED),
    (StatusCode.NOT_FOUND, "etcdserver: requested lease not found", Verdict.LEASE_GONE),
    (StatusCode.FAILED_PRECONDITION, "etcdserver: lease already exists", Verdict.LEASE_EXISTS),
    (StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Verdict.COMPACTED),
    (StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", Verdict.AHEAD),
    (StatusCode.DATA_LOSS, "etcdserver: corrupt cluster", Verdict.CORRUPT),
]


@pytest.mark.parametrize(("code", "detail", "verdict"), CASES)
def test_each_failure_means_what_is_known_of_it(code: StatusCode, detail: str, verdict: Verdict) -> None:
    assert judge(code, detail).verdict is verdict


@pytest.mark.parametrize("code", [StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED])
def test_a_member_that_cannot_is_left(code: StatusCode) -> None:
    assert judge(code, "whatever").elsewhere


def test_a_refusal_is_no_reason_to_leave_a_member() -> None:
    assert not judge(StatusCode.INVALID_ARGUMENT, "etcdserver: key is not provided").elsewhere
