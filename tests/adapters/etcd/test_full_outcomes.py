"""RB-48: what several servers were told while the cluster ran out of room."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kokuban_server.adapters.etcd import EtcdSettings, EtcdStore
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.core.refusals import OutcomeUnknown, StoreFull
from kokuban_server.ports.board_store import STRONG
from tests.etcd_server import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.etcd
BOUND_S = 15.0


@pytest.fixture
def small_server() -> Iterator[EtcdServer]:
    server = EtcdServer(flags=[f"--quota-backend-bytes={8 * 1024 * 1024}"])
    yield server
    server.close()


async def _fill(store: EtcdStore, name: int, acknowledged: list[bytes], refused: list[bytes]) -> None:
    for number in range(100):
        key = b"large/%d/%d" % (name, number)
        try:
            await store.commit(ChangeSet((Absent(key),), (Put(key, b"x" * 400_000),)), BOUND_S)
        except StoreFull:
            refused.append(key)
            return
        except OutcomeUnknown:
            return
        acknowledged.append(key)


async def test_RB_48_what_was_refused_for_want_of_room_has_not_happened(small_server: EtcdServer) -> None:
    await small_server.start_all()
    settings = EtcdSettings(small_server.endpoints)
    stores = [await EtcdStore.open(settings, SystemClock()) for _ in range(4)]
    acknowledged: list[bytes] = []
    refused: list[bytes] = []
    await asyncio.gather(*(_fill(store, name, acknowledged, refused) for name, store in enumerate(stores)))
    kept = (await stores[0].read(acknowledged, STRONG, BOUND_S)).records
    there = (await stores[0].read(refused, STRONG, BOUND_S)).records
    for store in stores:
        await store.close()
    assert all(record is not None for record in kept)
    assert [record and record.key for record in there] == [None] * len(refused)
