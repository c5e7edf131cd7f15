"""The store port on a real etcd."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest
from board_store_suite import BoardStoreSuite, TurnedClock

from kokuban_server.adapters.etcd.settings import EtcdSettings
from kokuban_server.adapters.etcd.store import EtcdStore
from kokuban_server.core.change_set import ChangeSet, DeleteRange
from tests.etcd_server import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.etcd

_numbers = itertools.count()


class EtcdHarness:
    """A store below a prefix of its own, on an etcd that all tests here share."""

    def __init__(self, server: EtcdServer) -> None:
        self.clock = TurnedClock()
        self.settings = EtcdSettings(server.endpoints, prefix=f"suite/{next(_numbers)}")
        self._store: EtcdStore | None = None

    async def open(self) -> EtcdStore:
        self._store = await EtcdStore.open(self.settings, self.clock)
        return self._store

    async def reopen(self) -> EtcdStore:
        assert self._store is not None
        await self._store.close()
        return await self.open()

    async def pass_lease_time(self, duration_ms: int) -> None:
        """Nothing: etcd's lease time cannot be turned, so the suite's waiting for facts takes as long as it takes."""

    async def close(self) -> None:
        """Close the store, and leave no key whose lease could lapse in the middle of another test."""
        store = await self.reopen()
        await store.commit(ChangeSet((), (), (DeleteRange(b"\x00", b"\xff" * 16),)), 10)
        await store.close()


@pytest.fixture(scope="module")
def server() -> Iterator[EtcdServer]:
    server = EtcdServer()
    try:
        asyncio.run(server.start_all())
        yield server
    finally:
        server.close()


class TestEtcdStore(BoardStoreSuite):
    @pytest.fixture
    def harness(self, server: EtcdServer) -> EtcdHarness:
        return EtcdHarness(server)
