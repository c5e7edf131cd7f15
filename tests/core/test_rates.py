"""A rate admits so many at once and so many a second, and tells exactly when the next one may be done."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kokuban_server.core.rates import Bucket, Rate

rates = st.builds(lambda per_s, size: Rate(1 / per_s, size), st.integers(1, 10_000), st.integers(1, 100))
pauses = st.lists(st.floats(0.0, 3.0), max_size=200)


def admitted(rate: Rate, times: list[float]) -> list[float]:
    bucket, passed = Bucket(rate), []
    for now_s in times:
        if not bucket.wait_s(now_s):
            bucket.take(now_s)
            passed.append(now_s)
    return passed


@given(rates, st.floats(0.0, 1e7))
def test_a_full_bucket_admits_its_size_at_once_and_not_one_more(rate: Rate, now_s: float) -> None:
    assert len(admitted(rate, [now_s] * (rate.size + 10))) == rate.size


@given(rates, pauses)
def test_in_any_time_no_more_are_admitted_than_its_size_and_what_was_added_meanwhile(
    rate: Rate, waited: list[float]
) -> None:
    times = [0.0]
    for pause in waited:
        times.append(times[-1] + pause * rate.interval_s)
    passed = admitted(rate, times)
    for first, begin_s in enumerate(passed):
        for last in range(first, len(passed)):
            took_s = passed[last] - begin_s
            assert last - first + 1 <= rate.size + took_s / rate.interval_s + 0.1


@given(rates, st.floats(0.0, 1e7), st.integers(1, 50))
def test_after_the_time_that_is_told_there_is_a_token_and_not_before(rate: Rate, now_s: float, more: int) -> None:
    """Whoever does so again and again gets through each time: one act an interval, for ever."""
    bucket = Bucket(rate)
    assert bucket.is_full(now_s)
    for _ in range(rate.size):
        bucket.take(now_s)
    done = [now_s]
    for _ in range(more):
        wait_s = bucket.wait_s(done[-1])
        assert 0 < wait_s <= rate.interval_s * (1 + 1e-3) + 1e-6
        if wait_s > 1e-4:
            assert bucket.wait_s(done[-1] + wait_s - 1e-5) > 0
        done.append(done[-1] + wait_s)
        assert bucket.wait_s(done[-1]) == 0
        bucket.take(done[-1])
        assert not bucket.is_full(done[-1])
    assert all(earlier < later for earlier, later in pairwise(done))


def test_a_pause_fills_the_bucket_and_no_more_than_that() -> None:
    rate = Rate(0.1, 3)
    assert admitted(rate, [0.0] * 5 + [1_000.0] * 5) == [0.0] * 3 + [1_000.0] * 3
