"""Workers of tasks that die, servers and one store, in virtual time, with faults from a seed: what tasks promise holds.

`KOKUBAN_SIMULATION_SEEDS` and `KOKUBAN_SIMULATION_SEED` work as in test_simulation.py.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.broken_tasks import BROKEN, Broken
from tests.simulation.simulation import SimulationFailed
from tests.simulation.task_simulation import simulate_tasks

_SEEDS = 4
_SEEDS_LONG = 400
_SEEDS_FOR_BROKEN = 40
_FOUND_SOON = ("recorded actions are forgotten", "steps are given whose lock is held")
"""These are looked for in every run of the tests, the others in the long ones."""


def _seeds(first: int, end: int) -> range:
    """Give the seeds to run."""
    if one := os.environ.get("KOKUBAN_SIMULATION_SEED"):
        return range(int(one), int(one) + 1)
    return range(first, int(os.environ.get("KOKUBAN_SIMULATION_SEEDS", end)))


def _run(seeds: range) -> None:
    totals: Counter[str] = Counter()
    for seed in seeds:
        try:
            report = simulate_tasks(seed)
        except SimulationFailed as failed:
            pytest.fail(
                f"{failed}\nagain: KOKUBAN_SIMULATION_SEED={seed} make test "
                "TESTS=tests/simulation/test_task_simulation.py",
                pytrace=False,
            )
        except BaseException:
            print(f"seed {seed}")  # noqa: T201 - how to see it again
            raise
        assert report.counts["claims"] > 10, report
        assert report.counts["effects"] > 30, report
        totals.update(report.counts)
    print(f"\n{len(seeds)} seeds: {dict(totals)}")  # noqa: T201 - the figures are the point


def test_LE_05_every_promise_of_tasks_holds_whatever_fails() -> None:
    _run(_seeds(0, _SEEDS))


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_LE_05_every_promise_of_tasks_holds_over_hundreds_of_seeds() -> None:
    _run(_seeds(_SEEDS, _SEEDS_LONG))


def test_a_seed_gives_the_same_run_with_tasks_again() -> None:
    assert simulate_tasks(2) == simulate_tasks(2)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(broken, id=broken.what, marks=[pytest.mark.faults] * (broken.what not in _FOUND_SOON))
        for broken in BROKEN
    ],
)
def test_tasks_that_are_broken_are_found(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken.patch is not None:
        monkeypatch.setattr(*broken.patch)
    for seed in range(1, _SEEDS_FOR_BROKEN):
        try:
            simulate_tasks(seed, broken.parts)
        except SimulationFailed as failed:
            if broken.symptom in str(failed):
                return
    pytest.fail(f"{_SEEDS_FOR_BROKEN} seeds have not found that {broken.what}")


@pytest.mark.faults
def test_the_runs_with_tasks_meet_what_they_are_meant_to_meet() -> None:
    """A simulation in which nothing goes wrong proves nothing."""
    wanted = {"ActionRecorded", "ActionInDoubt", "NoStepReady", "LockLost", "SessionLost", "OutcomeUnknown"}
    counts: Counter[str] = Counter()
    for seed in range(_SEEDS_FOR_BROKEN):
        report = simulate_tasks(seed)
        wanted -= report.refused
        counts.update(report.counts, crashes=report.crashes)
        if not wanted and counts["crashes"] and counts["deaths"]:
            return
    pytest.fail(f"{_SEEDS_FOR_BROKEN} seeds have not met {wanted}; {counts}")
