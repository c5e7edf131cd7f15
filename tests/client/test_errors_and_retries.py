from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from kokuban.v1 import lock_pb2
from kokuban_client import LockScope, LockTarget, LossCause, Revision, WaitEdge, _wire, errors
from kokuban_client._calls import _verdict
from kokuban_client._retry import Backoff, Deadline, delay_s, leaves_doubt, may_repeat


class FailedCall(grpc.RpcError):
    """A failed call as gRPC gives one, with the trailing metadata under the test's hand."""

    def __init__(self, code: grpc.StatusCode, details: bytes | None) -> None:
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "for people"

    def trailing_metadata(self) -> Any:  # noqa: ANN401 - the published hints fit neither kind of call
        return None if self._details is None else (("other", b""), ("grpc-status-details-bin", self._details))


def packed(reason: str, domain: str = "kokuban", delay_ms: int | None = None, **facts: str) -> bytes:
    details = [any_pb2.Any(), any_pb2.Any()]
    details[0].Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=facts))
    if delay_ms is not None:
        details[1].Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=delay_ms * 1_000_000)))
    whole: bytes = status_pb2.Status(code=1, message="m", details=details).SerializeToString()
    return whole


def test_every_documented_reason_has_a_class_of_its_own() -> None:
    assert set(errors.BY_REASON) == set(_wire.REASONS)
    assert len(set(errors.BY_REASON.values())) == len(_wire.REASONS)


def test_every_status_code_has_a_class() -> None:
    assert set(errors.BY_CODE) == {code.name for code in grpc.StatusCode} - {"OK"}


@pytest.mark.parametrize("reason", _wire.REASONS)
def test_a_reason_becomes_its_class_with_its_facts(reason: str) -> None:
    error = _wire.error_of(FailedCall(grpc.StatusCode.ABORTED, packed(reason, field="a.b", delay_ms=20)))
    assert type(error) is errors.BY_REASON[reason]
    assert (error.code, error.reason, error.field, error.retry_after_s) == ("ABORTED", reason, "a.b", 0.02)


def test_an_unknown_reason_goes_by_the_code_and_is_told() -> None:
    error = _wire.error_of(FailedCall(grpc.StatusCode.FAILED_PRECONDITION, packed("OF_TOMORROW", a="b")))
    assert type(error) is errors.Refused
    assert (error.reason, error.facts) == ("OF_TOMORROW", {"a": "b"})


@pytest.mark.parametrize("details", [None, b"\xff\xff broken", packed("NOT_FOUND", domain="elsewhere.example")])
def test_details_that_are_not_ours_leave_the_code(details: bytes | None) -> None:
    error = _wire.error_of(FailedCall(grpc.StatusCode.UNAVAILABLE, details))
    assert type(error) is errors.Unavailable
    assert error.reason == ""


def test_LU_07_a_conflict_tells_who_won() -> None:
    facts = {
        "region": "shared:plan",
        "path": "a",
        "expected_revision": "37",
        "actual_revision": "41",
        "epoch": "00c0ffee00c0ffee",
        "exists": "false",
        "winner_agent": "writer-2",
        "winner_time_ms": "1700000000123",
    }
    error = errors.error_for("ABORTED", "m", reason="REVISION_MISMATCH", facts=facts)
    assert isinstance(error, errors.Conflict)
    assert error.expected == Revision(37, "00c0ffee00c0ffee")
    assert error.actual == Revision(41, "00c0ffee00c0ffee")
    assert error.exists is False
    assert error.winner_agent == "writer-2"
    assert error.winner_time == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    assert errors.Conflict("m").actual is None


def test_a_refusal_for_a_lock_tells_who_holds_it_and_why() -> None:
    facts = {
        "region": "shared:plan",
        "path": "task_1",
        "lock_id": "ab" * 16,
        "holder_agent": "planner",
        "holder_session": "cd" * 16,
        "holder_traceparent": "00-t",
        "mode": "EXCLUSIVE",
        "purpose": "restructure the plan",
        "since_ms": "1700000000123",
        "state": "QUEUED",
        "waited_ms": "5000",
    }
    for reason in ("LOCKED_BY_OTHER", "LOCK_WAIT_EXPIRED"):
        error = errors.error_for("FAILED_PRECONDITION", "m", reason=reason, facts=facts)
        assert isinstance(error, errors.LockConflict)
        assert (error.region, error.path, error.lock_id) == ("shared:plan", "task_1", "ab" * 16)
        assert (error.holder_agent, error.holder_session, error.holder_traceparent) == ("planner", "cd" * 16, "00-t")
        assert (error.mode, error.purpose, error.state) == ("exclusive", "restructure the plan", "queued")
        assert error.since == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    assert isinstance(error, errors.LockWaitExpired)
    assert error.waited_s == 5.0
    nothing = errors.NothingToClaim("m", facts={"missing": "1", "locked": "3"})
    assert (nothing.missing, nothing.locked) == (1, 3)
    unknown = errors.LockedByOther("m")
    assert (unknown.holder_agent, unknown.since, unknown.state) == ("", None, "")
    assert errors.LockLost("m", facts={"cause": "broken"}).cause is LossCause.BROKEN
    assert errors.LockLost("m", facts={"cause": "of tomorrow"}).cause is LossCause.UNKNOWN


def test_a_deadlock_names_its_circle_also_between_processes() -> None:
    target = lock_pb2.LockTarget(region="shared:plan", path="a", scope=lock_pb2.LOCK_SCOPE_ENTRY)
    edges = [
        lock_pb2.WaitEdge(agent="one", session_id="s1", waits_for=[target], purpose="why"),
        lock_pb2.WaitEdge(),  # of which the caller may know nothing
    ]
    cycle = any_pb2.Any()
    cycle.Pack(lock_pb2.DeadlockCycle(edges=edges, length=2))
    status = status_pb2.Status.FromString(packed("DEADLOCK", length="2", agents="one"))
    status.details.append(cycle)
    error = _wire.error_of(FailedCall(grpc.StatusCode.ABORTED, status.SerializeToString()))
    assert isinstance(error, errors.Deadlock)
    for one in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own bytes
        assert one.cycle == (
            WaitEdge("one", "s1", (LockTarget("shared:plan", "a", LockScope.ENTRY),), "why"),
            WaitEdge("", "", (), ""),
        )
        assert one.length == 2
    assert errors.Deadlock("m").length == 0


def test_an_error_survives_the_way_between_processes() -> None:
    error = errors.RevisionMismatch("m", code="ABORTED", facts={"a": "b"}, retry_after_s=1.0)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is errors.RevisionMismatch
    assert (str(again), again.retry_after_s) == (str(error), 1.0)


REPEATED = {
    "TOO_MANY_REQUESTS",
    "PRINCIPAL_LIMIT_REACHED",
    "SCREENING_UNAVAILABLE",
    "STORE_UNAVAILABLE",
    "SERVER_DRAINING",
    "OUTCOME_UNKNOWN",
    "CONTENDED",
    "WATCH_TOO_SLOW",
}


@pytest.mark.parametrize("reason", _wire.REASONS)
def test_a_request_is_repeated_only_where_that_is_safe(reason: str) -> None:
    assert may_repeat(errors.error_for("UNKNOWN", "m", reason=reason), 1) is (reason in REPEATED)


def test_a_fault_without_a_reason_is_repeated_a_few_times() -> None:
    fault = errors.error_for("INTERNAL", "stream cut")
    assert [may_repeat(fault, failures) for failures in (1, 2, 3)] == [True, True, False]


def test_only_an_answer_with_a_reason_settles_what_became_of_a_commit() -> None:
    assert leaves_doubt(errors.error_for("UNAVAILABLE", "connection reset"))
    assert leaves_doubt(errors.error_for("DEADLINE_EXCEEDED", "no answer"))
    assert leaves_doubt(errors.error_for("UNAVAILABLE", "m", reason="OUTCOME_UNKNOWN"))
    assert not leaves_doubt(errors.error_for("UNAVAILABLE", "m", reason="STORE_UNAVAILABLE"))
    assert not leaves_doubt(errors.error_for("INVALID_ARGUMENT", "m"))
    assert not leaves_doubt(errors.Unreachable("nothing was sent", code="UNAVAILABLE"))


def test_doubt_is_told_unless_a_later_answer_settles_it() -> None:
    draining = errors.error_for("UNAVAILABLE", "m", reason="SERVER_DRAINING")
    assert type(_verdict(draining, "id-1", doubt=False)) is errors.ServerDraining
    unknown = _verdict(draining, "id-1", doubt=True)
    assert type(unknown) is errors.OutcomeUnknown
    assert unknown.request_id == "id-1"
    assert unknown.__cause__ is draining
    conflict = errors.error_for("ABORTED", "m", reason="REVISION_MISMATCH")
    assert _verdict(conflict, "id-1", doubt=True) is conflict
    assert conflict.request_id == "id-1"


def test_waits_double_up_to_a_bound_and_differ_by_chance() -> None:
    backoff = Backoff(first_s=1.0, most_s=8.0)
    assert [backoff.delay_s(failures, lambda: 1.0) for failures in (1, 2, 3, 4, 5, 10_000)] == [1, 2, 4, 8, 8, 8]
    assert backoff.delay_s(3, lambda: 0.0) == 0


def test_what_the_server_asks_to_wait_is_waited() -> None:
    assert delay_s(errors.Contended("m", retry_after_s=0.5), 1, lambda: 0.0) == 0.5


def test_time_that_was_not_ours_is_given_back() -> None:
    deadline = Deadline.after(5.0, now_s=100.0)
    assert deadline.left_s(101.0) == 4.0
    assert deadline.later_by(60.0).left_s(161.0) == 4.0
    with pytest.raises(ValueError, match="above 0"):
        Deadline.after(0.0, now_s=0.0)
