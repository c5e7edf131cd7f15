"""A server on sqlite is killed again and again under load: what it acknowledged is there, and nothing happened twice."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from kokuban_client.testing import ServerProcess
from tests.faults.judgement import judge
from tests.faults.traffic import Traffic

if TYPE_CHECKING:
    from pathlib import Path

_KILLS_SHORT = 5
_KILLS_LONG = 200


async def _kill_often(folder: Path, kills: int, seed: int) -> None:
    draw = random.Random(seed)
    async with ServerProcess(store=f"sqlite:{folder}") as server, Traffic(server.address, seed) as traffic:
        for kill in range(kills):
            traffic.generation = kill // 8
            await traffic.progress(draw.randint(5, 60))
            await asyncio.sleep(draw.uniform(0, 0.02))  # not always right after an answer
            server.kill()
            await asyncio.to_thread(server.start)
        await traffic.progress(20)
        await traffic.finish()
        summary = await judge(traffic)
    print(f"\n{kills} kills on sqlite: {summary}")  # noqa: T201 - the figures are the point
    assert not summary.faults, summary.faults[:5]
    assert summary.acknowledged > 5 * kills
    assert summary.replayed + summary.unknown > kills // 4, "the kills hit nothing"


async def test_a_killed_server_on_sqlite_loses_nothing_and_does_nothing_twice(tmp_path: Path) -> None:
    await _kill_often(tmp_path / "store", _KILLS_SHORT, seed=1)


@pytest.mark.faults
@pytest.mark.timeout(1800)
async def test_RB_17_200_kills_on_sqlite_lose_nothing(tmp_path: Path) -> None:
    await _kill_often(tmp_path / "store", _KILLS_LONG, seed=2)
