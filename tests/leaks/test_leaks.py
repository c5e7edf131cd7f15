"""Nobody is shown, or can find out, what is not for them: thousands of calls through every method, on every store."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.leaks.cast import Cast
from tests.leaks.probes import METHODS, ROWS
from tests.leaks.run import LeakRun
from tests.leaks.serving import STORES, serving

if TYPE_CHECKING:
    from pathlib import Path

_CALLS = 2_500
_CALLS_LONG = 100_000


def _find_nothing(kind: str, folder: Path, seed: int, calls: int) -> None:
    print(f"KOKUBAN_LEAKS_SEED={seed}")  # noqa: T201 - how a failure is seen again
    cast = Cast(seed)
    cast.write_principals(folder / "principals.json")
    with serving(kind, folder, folder / "principals.json", cast.principals[0].token) as server:
        run = LeakRun(server.address, seed, calls, cast)
        asyncio.run(run.run())
    print(dict(run.counts))  # noqa: T201 - what was done
    assert not run.faults, "\n".join(run.faults)
    # There must have been something to find, and a chance to find it.
    assert run.counts["calls"] >= calls
    kinds = ["allowed", "refused", "twins", "marks seen", "malformed", "locks", "writes that stand"]
    kinds += ["messages of long watches", *METHODS]
    kinds += [f"hidden {what}" for what in ("board", "region", "lock", "session")]
    assert {kind: run.counts[kind] for kind in kinds if run.counts[kind] < calls / 400} == {}
    # What is said of tasks must land in them.
    taken = ["taken in a step", *(f"taken {method}" for method in METHODS if method.startswith("TaskService."))]
    assert {kind: run.counts[kind] for kind in taken if not run.counts[kind]} == {}


def test_every_method_of_the_api_is_asked_about_what_is_hidden() -> None:
    assert set(ROWS) == set(METHODS)


@pytest.mark.parametrize("kind", STORES)
def test_SC_01_SC_03_SC_04_SC_17_nobody_sees_or_finds_out_what_is_not_for_them(kind: str, tmp_path: Path) -> None:
    _find_nothing(kind, tmp_path, int(os.environ.get("KOKUBAN_LEAKS_SEED", "1")), _CALLS)


@pytest.mark.faults
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", STORES)
def test_SC_01_SC_03_SC_04_SC_17_a_hundred_thousand_calls_find_nothing(kind: str, tmp_path: Path) -> None:
    seed = os.environ.get("KOKUBAN_LEAKS_SEED") or random.SystemRandom().randrange(1 << 32)
    _find_nothing(kind, tmp_path, int(seed), _CALLS_LONG)
