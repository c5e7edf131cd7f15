"""Agents, two servers and one store, in virtual time, with faults from a seed: the promises hold in every run.

KOKUBAN_SIMULATION_SEEDS=2000   runs so many seeds instead of the usual
KOKUBAN_SIMULATION_SEED=17      runs exactly this one, as it ran when it failed
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.simulation import broken_stores
from tests.simulation.simulation import SimulationFailed, simulate

if TYPE_CHECKING:
    from tests.simulation.simulated_store import RecordedStore

_SEEDS = 70
_SEEDS_AT_ONCE = 10
_SEEDS_FOR_BROKEN = 40


def _seeds() -> list[range]:
    """Give the seeds to run, in groups that are a test each."""
    if one := os.environ.get("KOKUBAN_SIMULATION_SEED"):
        return [range(int(one), int(one) + 1)]
    count = int(os.environ.get("KOKUBAN_SIMULATION_SEEDS", _SEEDS))
    return [range(first, min(first + _SEEDS_AT_ONCE, count)) for first in range(0, count, _SEEDS_AT_ONCE)]


@pytest.mark.parametrize("seeds", _seeds(), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_every_promise_holds_whatever_fails(seeds: range) -> None:
    for seed in seeds:
        try:
            report = simulate(seed)
        except SimulationFailed as failed:
            pytest.fail(
                f"{failed}\nagain: KOKUBAN_SIMULATION_SEED={seed} make test TESTS=tests/simulation", pytrace=False
            )
        except BaseException:
            print(f"seed {seed}")  # noqa: T201 - how to see it again
            raise
        assert report.acknowledged > report.operations // 4, report
        assert report.reads > 20, report
        assert report.told > 50, report


@pytest.mark.parametrize("seed", [3, 18, 57])
def test_a_seed_gives_the_same_run_again(seed: int) -> None:
    assert simulate(seed) == simulate(seed)


def test_seeds_differ() -> None:
    assert simulate(1).trace != simulate(2).trace


@pytest.mark.parametrize(
    ("broken", "symptom"),
    [
        (broken_stores.ChecksThenActs, "holds"),
        (broken_stores.ForgetsOperations, "more than once"),
        (broken_stores.LosesEvents, "missed"),
        (broken_stores.TurnsTimeBack, "expired"),
        (broken_stores.ReadsLate, "not in"),
        (broken_stores.AcknowledgesInVain, "acknowledged and is lost"),
        (broken_stores.TearsCommits, "accounts hold"),
    ],
)
def test_a_broken_store_is_found(broken: type[RecordedStore], symptom: str) -> None:
    for seed in range(1, _SEEDS_FOR_BROKEN):
        try:
            simulate(seed, broken)
        except SimulationFailed as failed:
            if symptom in str(failed):
                return
    pytest.fail(f"{_SEEDS_FOR_BROKEN} seeds have not found {broken.__doc__}")


def test_the_runs_meet_what_they_are_meant_to_meet() -> None:
    """A simulation in which nothing goes wrong proves nothing."""
    wanted = {
        "lost": "calls that died with their server",
        "STORE_UNAVAILABLE": "calls that did not get to the store",
        "OUTCOME_UNKNOWN": "commits without an answer",
        "REVISION_MISMATCH": "conflicts",
        "ALREADY_EXISTS": "conflicts of creation",
        "REQUEST_ID_EXPIRED": "requests after their window",
        "HISTORY_COMPACTED": "reads of what is no longer kept",
        "watch compacted": "watches that come back too late",
        "WatchTooSlow": "readers that do not keep up",
    }
    for seed in range(_SEEDS):
        lines = simulate(seed).lines
        wanted = {word: what for word, what in wanted.items() if not any(word in line for line in lines)}
        if not wanted:
            return
    pytest.fail(f"{_SEEDS} seeds have not met {list(wanted.values())}")
