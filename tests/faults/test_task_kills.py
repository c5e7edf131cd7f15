"""Workers of tasks, and their servers, are killed at the boundaries of what they write; somebody else goes on.

KOKUBAN_KILLS_SEED=17   draws the boundaries of this seed; a run prints which it was
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client.testing import ServerProcess
from tests.boundaries import KINDS
from tests.etcd_server import EtcdServer
from tests.faults.interrupted_tasks import InterruptedTask
from tests.replicas.pair import Pair

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_KILLS_SHORT = 6
_KILLS_LONG = 200
_KILLS_OF_ONE_TASK = 8


async def _kill_often(servers: Sequence[ServerProcess], folder: Path, kills: int, seed: int) -> Counter[str]:
    """Kill so often, in as many tasks as that takes; give at which boundaries."""
    seed = int(os.environ.get("KOKUBAN_KILLS_SEED", seed))
    print(f"\nKOKUBAN_KILLS_SEED={seed}")  # noqa: T201 - how to see it again
    draw = random.Random(seed)
    struck: Counter[str] = Counter()
    async with kokuban_client.connect(
        servers[0].address, agent="boss", roles=["member", "supervisor"], wait_for_ready=True
    ) as client:
        board = client.board("main")
        even = await InterruptedTask(servers, board, "even", folder / "even", struck).run(None, 0)
        while struck.total() < kills:
            task = f"t{struck.total()}"
            interrupted = InterruptedTask(servers, board, task, folder / task, struck)
            assert await interrupted.run(draw, min(_KILLS_OF_ONE_TASK, kills - struck.total())) == even
    print(f"{struck.total()} kills: {dict(sorted(struck.items()))}")  # noqa: T201 - the figures are the point
    return struck


@pytest.mark.timeout(240)
async def test_RE_01_RE_07_a_killed_worker_repeats_nothing_that_was_recorded_and_another_finishes(
    tmp_path: Path,
) -> None:
    with ServerProcess(store=f"sqlite:{tmp_path / 'store'}") as server:
        await _kill_often([server], tmp_path, _KILLS_SHORT, seed=1)


@pytest.mark.faults
@pytest.mark.timeout(3600)
async def test_RE_01_RE_07_200_kills_on_sqlite_repeat_nothing_that_was_recorded(tmp_path: Path) -> None:
    with ServerProcess(store=f"sqlite:{tmp_path / 'store'}") as server:
        struck = await _kill_often([server], tmp_path, _KILLS_LONG, random.randrange(1 << 32))
    assert struck.keys() >= set(KINDS)


@pytest.mark.faults
@pytest.mark.etcd
@pytest.mark.timeout(3600)
async def test_RE_01_RE_07_200_kills_over_two_servers_on_etcd_repeat_nothing_that_was_recorded(tmp_path: Path) -> None:
    etcd = EtcdServer(durable=True)
    try:
        await etcd.start_all()
        pair = Pair(f"etcd://{etcd.members[0].endpoint}/kills")
        try:
            pair.start()
            struck = await _kill_often([pair.a, pair.b], tmp_path, _KILLS_LONG, random.randrange(1 << 32))
        finally:
            pair.close()
    finally:
        etcd.close()
    assert struck.keys() >= set(KINDS)
