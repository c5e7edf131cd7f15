"""A server on etcd, while etcd is frozen, killed and started again, and the server too: the same promises as anywhere."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from kokuban_client.testing import ServerProcess
from tests.etcd_server import EtcdServer
from tests.faults.judgement import judge
from tests.faults.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.etcd_server import Member

pytestmark = pytest.mark.etcd

_FAULTS_LONG = 20


@asynccontextmanager
async def _etcd(size: int) -> AsyncIterator[EtcdServer]:
    """Start an etcd that writes through to the disk, as in earnest."""
    server = EtcdServer(size, durable=True)
    try:
        await server.start_all()
        yield server
    finally:
        server.close()


def _store(etcd: EtcdServer) -> str:
    return f"etcd://{','.join(etcd.endpoints)}/faults"


async def _freeze(member: Member, traffic: Traffic, draw: random.Random) -> None:
    """Stop the member for a while, in which nothing is answered if it is the only one."""
    member.pause()
    try:
        await asyncio.sleep(draw.uniform(0.1, 1.0))  # as long as this, the fault lasts
    finally:
        member.resume()
    await traffic.progress(10)


async def _crash(etcd: EtcdServer, member: Member, traffic: Traffic, draw: random.Random) -> None:
    """Kill the member and start it again on what it stored."""
    member.kill()
    await asyncio.sleep(draw.uniform(0.0, 0.5))  # as above
    etcd.start(member)
    await etcd.answers(member)
    await traffic.progress(10)


async def _fail_often(size: int, faults: int, seed: int) -> None:
    draw = random.Random(seed)
    kinds = ["freeze", "crash", "server", "crash"] if size == 1 else ["leader", "freeze leader", "crash", "server"]
    async with (
        _etcd(size) as etcd,
        ServerProcess(store=_store(etcd)) as server,
        Traffic(server.address, seed) as traffic,
    ):
        for number in range(faults):
            traffic.generation = number // 4
            await traffic.progress(draw.randint(5, 40))
            kind = kinds[number % len(kinds)]
            member = etcd.leader() if "leader" in kind else draw.choice(etcd.members)
            if "freeze" in kind:
                await _freeze(member, traffic, draw)
            elif kind == "server":
                server.kill()
                await asyncio.to_thread(server.start)
            else:
                await _crash(etcd, member, traffic, draw)
        await traffic.progress(20)
        await traffic.finish()
        summary = await judge(traffic)
    print(f"\n{faults} faults on etcd with {size} members: {summary}")  # noqa: T201 - the figures are the point
    assert not summary.faults, summary.faults[:5]
    assert summary.acknowledged > 10 * faults
    assert summary.slowest_s > 0.04, "the faults hit nothing"  # most are hidden by the server, which tries again


async def test_a_killed_and_frozen_etcd_loses_nothing_and_does_nothing_twice() -> None:
    await _fail_often(1, 2, seed=1)


@pytest.mark.faults
@pytest.mark.timeout(1200)
async def test_RB_17_faults_of_one_etcd_lose_nothing() -> None:
    await _fail_often(1, _FAULTS_LONG, seed=2)


@pytest.mark.faults
@pytest.mark.timeout(1200)
async def test_RB_15_faults_of_a_cluster_lose_nothing_and_show_nothing_old() -> None:
    await _fail_often(3, _FAULTS_LONG, seed=3)
