"""When a client may believe that its session lives."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from kokuban_client import SessionState
from kokuban_client._lease import Lease, clock_s

if TYPE_CHECKING:
    import pytest

seconds = st.floats(min_value=0, max_value=1e6, allow_nan=False)


def test_a_lease_lives_then_is_in_jeopardy_then_lost() -> None:
    lease = Lease(30.0, sent_s=100.0)
    at = {now_s: lease.state(now_s) for now_s in (100.0, 119.9, 120.0, 129.9, 130.0)}
    assert [*at.values()] == [
        SessionState.LIVE,
        SessionState.LIVE,
        SessionState.IN_JEOPARDY,
        SessionState.IN_JEOPARDY,
        SessionState.LOST,
    ]


def test_time_counts_from_the_sending_of_the_renewal_that_was_answered() -> None:
    lease = Lease(30.0, sent_s=100.0)
    lease.renewed(sent_s=110.0)  # whenever the answer came
    assert lease.state(139.9) is SessionState.IN_JEOPARDY
    assert lease.state(140.0) is SessionState.LOST


def test_an_older_renewal_takes_nothing_back() -> None:
    lease = Lease(30.0, sent_s=100.0)
    lease.renewed(sent_s=110.0)
    lease.renewed(sent_s=105.0)
    assert lease.state(139.0) is SessionState.IN_JEOPARDY


def test_what_was_said_to_be_lost_stays_lost() -> None:
    lease = Lease(30.0, sent_s=100.0)
    assert lease.state(130.0) is SessionState.LOST
    lease.renewed(sent_s=129.0)  # its answer arrived too late
    assert lease.state(130.1) is SessionState.LOST
    told = Lease(30.0, sent_s=100.0)
    told.end()
    told.renewed(sent_s=100.0)
    assert told.state(100.0) is SessionState.LOST


def test_a_server_can_warn_and_the_next_renewal_takes_it_back() -> None:
    lease = Lease(30.0, sent_s=100.0)
    lease.endanger()
    assert lease.state(101.0) is SessionState.IN_JEOPARDY
    assert lease.changes_at_s(101.0) == 130.0
    lease.renewed(sent_s=102.0)
    assert lease.state(103.0) is SessionState.LIVE


def test_RB_37_each_lease_is_judged_by_its_own_time_to_live() -> None:
    short, long = Lease(2.0, sent_s=0.0), Lease(60.0, sent_s=0.0)
    assert (short.state(2.0), long.state(2.0)) == (SessionState.LOST, SessionState.LIVE)
    given_more = Lease(2.0, sent_s=0.0)
    given_more.renewed(sent_s=1.0, ttl_s=10.0)
    assert given_more.state(7.0) is SessionState.LIVE


def test_RB_37_the_wall_clock_is_not_what_leases_are_judged_by(monkeypatch: pytest.MonkeyPatch) -> None:
    before_s = clock_s()
    for step_s in (-86_400.0, 86_400.0):
        monkeypatch.setattr(time, "time", lambda step_s=step_s: step_s)
        monkeypatch.setattr(time, "time_ns", lambda step_s=step_s: int(step_s * 1e9))
        assert 0 <= clock_s() - before_s < 60


@given(ttl_s=st.floats(min_value=2, max_value=3600), sent_s=seconds, later_s=st.floats(min_value=0, max_value=7200))
def test_the_state_changes_exactly_when_it_is_announced(ttl_s: float, sent_s: float, later_s: float) -> None:
    lease, now_s = Lease(ttl_s, sent_s), sent_s + later_s
    before = lease.state(now_s)
    if before is SessionState.LOST:
        return
    changes_s = lease.changes_at_s(now_s)
    assert changes_s > now_s
    between_s = (now_s + changes_s) / 2
    assert between_s >= changes_s or lease.state(between_s) is before
    assert lease.state(changes_s) is not before
