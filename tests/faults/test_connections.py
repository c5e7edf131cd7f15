"""The network between agents and server breaks and swallows answers: agents send again, and nothing happens twice."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from kokuban_client.testing import ServerProcess
from tests.fault_proxy import FaultProxy, Mode
from tests.faults.judgement import judge
from tests.faults.traffic import Traffic

if TYPE_CHECKING:
    from pathlib import Path


async def _cut_often(folder: Path, cuts: int, seed: int) -> None:
    draw = random.Random(seed)
    async with (
        ServerProcess(store=f"sqlite:{folder}") as server,
        FaultProxy(int(server.address.rpartition(":")[2]), seed=seed) as proxy,
        Traffic(proxy.endpoint, seed) as traffic,
    ):
        for cut in range(cuts):
            traffic.generation = cut // 10
            await traffic.progress(draw.randint(5, 30))
            if cut % 2:  # what is on its way is carried out, and nobody is told
                proxy.dropped.clear()
                proxy.set(Mode.DROP_ANSWERS)
                async with asyncio.timeout(10):
                    await proxy.dropped.wait()
            proxy.reset()
            proxy.set(Mode.PASS)
        await traffic.progress(20)
        await traffic.finish()
        summary = await judge(traffic)
    print(f"\n{cuts} cut connections: {summary}")  # noqa: T201 - the figures are the point
    assert not summary.faults, summary.faults[:5]
    assert summary.replayed + summary.unknown > cuts // 4, "the cuts hit nothing"


async def test_lost_answers_and_cut_connections_do_nothing_twice(tmp_path: Path) -> None:
    await _cut_often(tmp_path / "store", 30, seed=1)


@pytest.mark.faults
@pytest.mark.timeout(1200)
async def test_RB_08_hundreds_of_lost_answers_do_nothing_twice(tmp_path: Path) -> None:
    await _cut_often(tmp_path / "store", 400, seed=2)
