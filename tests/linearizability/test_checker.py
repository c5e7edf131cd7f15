"""The checker accepts what it must, refuses what it must, and says so when it cannot tell."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest

from tests.linearizability import histories
from tests.linearizability.checker import (
    NOTHING,
    REFUSED,
    UNKNOWN,
    Add,
    Call,
    Create,
    Overwrite,
    Read,
    Remove,
    Replace,
    Undecided,
    _apply,
    check,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

_SEEDS = range(30)
BadRegister = [
    histories.with_stale_read,
    histories.with_lost_update,
    histories.with_value_from_nowhere,
    histories.with_reads_going_back,
    histories.with_revived_entry,
]


@pytest.mark.parametrize("unknown", [0.0, 0.05])
def test_good_histories_are_accepted(unknown: float) -> None:
    for seed in _SEEDS:
        assert check(histories.register_history(seed, 200, 8, unknown))
        assert check(histories.counter_history(seed, 200, 8, unknown))


@pytest.mark.parametrize("unknown", [0.0, 0.03])
@pytest.mark.parametrize("worsen", BadRegister)
def test_bad_histories_of_registers_are_refused(
    worsen: Callable[[list[Call], random.Random], list[Call]], unknown: float
) -> None:
    for seed in _SEEDS:
        verdict = check(worsen(histories.register_history(seed, 60, 5, unknown), random.Random(seed)))
        assert not verdict
        assert verdict.key == "register"
        assert verdict.stuck


@pytest.mark.parametrize("worsen", [histories.with_double_increment, histories.with_forgotten_increment])
def test_bad_histories_of_counters_are_refused(worsen: Callable[[list[Call], random.Random], list[Call]]) -> None:
    for seed in _SEEDS:
        assert not check(worsen(histories.counter_history(seed, 100, 5), random.Random(seed)))


def test_an_unknown_addition_happens_at_most_once() -> None:
    unknown = Call("n", 0, 0, Add(5), UNKNOWN)

    def reads(*totals: int | None) -> list[Call]:
        return [Call("n", 2 * place + 1, 2 * place + 2, Read(), total) for place, total in enumerate(totals)]

    assert check([unknown, *reads(None, None)])
    assert check([unknown, *reads(None, 5)])
    assert check([unknown, *reads(5, 5)])
    assert not check([unknown, *reads(5, 10)])
    assert not check([unknown, *reads(5, None)])


def test_an_unknown_write_does_not_happen_before_it_began() -> None:
    assert not check([Call("k", 5, 6, Overwrite("a"), UNKNOWN), Call("k", 1, 2, Read(), "a")])


def test_entries_are_judged_apart_and_the_wrong_one_is_named() -> None:
    good = histories.register_history(1, 50, 4)
    bad = [call._replace(key="bad") for call in histories.with_lost_update(good, random.Random(1))]
    assert check(good + [call._replace(key="other") for call in good])
    assert check(good + bad).key == "bad"


def test_what_is_too_hard_is_undecided_and_not_accepted() -> None:
    clueless = [Call("k", 0, 100, Add(1 << place), UNKNOWN) for place in range(20)]
    with pytest.raises(Undecided):
        check([*clueless, Call("k", 101, 102, Read(), -1)], steps_max=20_000)


def test_the_verdict_is_that_of_trying_every_order() -> None:
    """Small histories with arbitrary answers, judged by brute force as well."""
    verdicts = {True: 0, False: 0}
    for seed in range(1_500):
        history = _arbitrary(random.Random(seed))
        expected = _has_an_order(history)
        verdicts[expected] += 1
        assert bool(check(history)) == expected, history
    assert min(verdicts.values()) > 200, verdicts


def _arbitrary(draw: random.Random) -> list[Call]:
    if draw.random() < 0.3:
        acts: list[tuple[object, list[Hashable]]] = [
            (Read(), [None, 1, 2, 3]),
            (Add(1), [1, 2, 3, None, UNKNOWN]),
            (Add(2), [2, 3, 4, UNKNOWN]),
        ]
    else:
        acts = [
            (Read(), [NOTHING, "a", "b"]),
            (Create("a"), [None, REFUSED, UNKNOWN]),
            (Replace("a", "b"), [None, REFUSED, UNKNOWN]),
            (Overwrite("a"), [None, UNKNOWN]),
            (Remove("b"), [None, REFUSED, UNKNOWN]),
        ]
    calls = []
    for _ in range(draw.randint(2, 5)):
        act, answers = draw.choice(acts)
        start = draw.randint(0, 8)
        calls.append(Call("k", start, start + draw.randint(1, 4), act, draw.choice(answers)))  # type: ignore[arg-type]  # acts of one kind each
    return calls


def _has_an_order(history: Sequence[Call]) -> bool:
    known = [call for call in history if call.answer is not UNKNOWN]
    unknown = [call for call in history if call.answer is UNKNOWN]
    for count in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, count):
            if any(_is_order(order) for order in itertools.permutations([*known, *chosen])):
                return True
    return False


def _is_order(order: Sequence[Call]) -> bool:
    state: Hashable = NOTHING
    for place, call in enumerate(order):
        if any(later.answer is not UNKNOWN and later.end < call.start for later in order[place + 1 :]):
            return False
        possible, state = _apply(call.act, state, call.answer)
        if not possible:
            return False
    return True
