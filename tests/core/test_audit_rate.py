"""Of refused attempts some are recorded, and none is forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from kokuban_server.core import limits
from kokuban_server.core.access import Principal
from kokuban_server.core.audit_rate import RefusalRate

BURST = limits.AUDIT_REFUSED_BURST_ENTRIES_MAX
INTERVAL_S = limits.AUDIT_REFUSED_INTERVAL_MS / 1000
SERVER_BURST = limits.AUDIT_REFUSED_SERVER_BURST_ENTRIES_MAX
SERVER_INTERVAL_S = limits.AUDIT_REFUSED_SERVER_INTERVAL_MS / 1000


def who(name: object, tenant: str = "acme") -> Principal:
    return Principal(tenant, f"agent-{name}", frozenset())


def test_a_burst_passes_and_one_over_it_does_not() -> None:
    rate = RefusalRate()
    assert [rate.admit(who(1), 0.0) for _ in range(BURST)] == [0] * BURST
    assert rate.admit(who(1), 0.0) is None
    assert rate.admit(who(2), 0.0) == 0


def test_after_a_burst_one_passes_in_each_interval_and_tells_of_those_before() -> None:
    rate = RefusalRate()
    for _ in range(BURST + 5):
        rate.admit(who(1), 0.0)
    assert rate.admit(who(1), INTERVAL_S * 0.99) is None
    assert rate.admit(who(1), INTERVAL_S) == 6
    assert rate.admit(who(1), INTERVAL_S) is None
    assert rate.admit(who(1), INTERVAL_S * 2) == 1


def test_all_principals_together_have_a_burst_and_a_rate() -> None:
    rate = RefusalRate()
    assert [rate.admit(who(number), 0.0) for number in range(SERVER_BURST)] == [0] * SERVER_BURST
    assert rate.admit(who("next"), 0.0) is None
    assert rate.admit(who("next"), SERVER_INTERVAL_S * 1.01) == 1
    assert rate.admit(who("next"), SERVER_INTERVAL_S * 1.01) is None


def test_what_was_suppressed_is_told_once_for_each_as_the_rate_of_all_allows() -> None:
    rate = RefusalRate()
    for number in range(SERVER_BURST + 20):
        rate.admit(who(number), 0.0)
    assert rate.untold(0.0) == []
    told = rate.untold(SERVER_INTERVAL_S * 5.5)
    assert [count for _, count in told] == [1] * 5
    assert len(rate.untold(3600.0)) == 15
    assert rate.untold(7200.0) == []


def test_so_many_principals_are_remembered_and_the_counts_of_others_are_their_tenants() -> None:
    rate = RefusalRate()
    known = limits.AUDIT_PRINCIPALS_ENTRIES_MAX
    for number in range(known):
        rate.suppress(who(number, tenant=f"tenant-{number % 2}"), 3)
    assert len(rate._of) == known
    rate.suppress(who("last"), 3)
    rate.suppress(who("very last"), 3)
    assert len(rate._of) == known
    told = rate.untold(1e6)
    forgotten = [(one.tenant, one.agent, count) for one, count in told if not one.agent]
    assert forgotten == [("tenant-0", "", 3), ("tenant-1", "", 3)]


@given(some.lists(some.tuples(some.integers(0, 5), some.floats(0.0, 20.0)), max_size=300))
def test_every_attempt_is_recorded_or_counted(attempts: list[tuple[int, float]]) -> None:
    rate = RefusalRate()
    now_s, recorded, counted = 0.0, 0, 0
    for name, passed_s in attempts:
        now_s += passed_s
        told = rate.admit(who(name), now_s)
        if told is not None:
            recorded, counted = recorded + 1, counted + told
    counted += sum(count for _, count in rate.untold(now_s + 1e6))
    assert recorded + counted == len(attempts)
    assert recorded <= 6 * BURST + now_s / INTERVAL_S * 6
