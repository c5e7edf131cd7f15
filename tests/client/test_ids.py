from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from kokuban_client._ids import RequestIds


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    identity = uuid.UUID(RequestIds(now_ms=lambda: 1_700_000_000_123).new())
    assert identity.version == 7
    assert identity.variant == uuid.RFC_4122
    assert identity.int >> 80 == 1_700_000_000_123


@given(st.lists(st.integers(min_value=-1000, max_value=1000), min_size=1, max_size=50), st.integers(0, 2**74 - 1))
def test_ids_grow_while_the_clock_stands_or_steps_back_a_little(steps: list[int], chance: int) -> None:
    clock = 1_700_000_000_000
    times = []
    for step in steps:
        clock += step
        times.append(clock)
    source = iter(times)
    ids = RequestIds(now_ms=lambda: next(source), random_bits=lambda bits: chance & ((1 << bits) - 1))
    made = [ids.new() for _ in times]
    assert made == sorted(set(made))
    assert all(uuid.UUID(one).version == 7 and str(uuid.UUID(one)) == one for one in made)


def test_ids_follow_a_clock_that_was_hours_ahead() -> None:
    source = iter([1_700_000_000_000, 1_600_000_000_000])
    ids = RequestIds(now_ms=lambda: next(source))
    ids.new()
    assert uuid.UUID(ids.new()).int >> 80 == 1_600_000_000_000


def test_ids_follow_the_store_that_refused_one() -> None:
    ids = RequestIds(now_ms=lambda: 1_000)
    ids.new()
    ids.follow(1_700_000_000_000)
    assert uuid.UUID(ids.new()).int >> 80 == 1_700_000_000_000


def test_threads_never_make_the_same_id() -> None:
    ids = RequestIds(now_ms=lambda: 1_700_000_000_000)
    with ThreadPoolExecutor(8) as pool:
        made = [one for some in pool.map(lambda _: [ids.new() for _ in range(500)], range(8)) for one in some]
    assert len(set(made)) == 4000
