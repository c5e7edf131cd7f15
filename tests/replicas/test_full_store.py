"""RB-48 through the server: an etcd without room refuses what it has no room for, says so, and everything else goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import SNAPSHOT, SnapshotEntry, errors
from kokuban_client.testing import ServerProcess
from kokuban_server.adapters.etcd import EtcdSettings, EtcdStore
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.core.refusals import StoreFull
from tests.etcd_server import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.replicas.conftest import Connections

pytestmark = pytest.mark.etcd
REGION = "task:large"
BOUND_S = 30.0
QUOTA_BYTES = 8 * 1024 * 1024
VALUE_BYTES = 400_000


@pytest.fixture
def small_etcd() -> Iterator[EtcdServer]:
    server = EtcdServer(flags=[f"--quota-backend-bytes={QUOTA_BYTES}"])
    yield server
    server.close()


async def _fill(endpoint: str) -> None:
    """Overwrite one key beside the board's store until etcd has no room: all but its last state can be compacted."""
    store = await EtcdStore.open(EtcdSettings((endpoint,), prefix="beside"), SystemClock())
    try:
        for number in range(100):
            put = Put(b"large", b"%d" % (number % 10) * VALUE_BYTES)
            await store.commit(ChangeSet((), (put,)), BOUND_S)
    except StoreFull:
        return
    finally:
        await store.close()
    raise AssertionError("there is room without end")


async def test_RB_48_a_full_store_refuses_writes_answers_reads_and_recovers(
    small_etcd: EtcdServer, connect: Connections
) -> None:
    await small_etcd.start_all()
    async with (
        ServerProcess(store=f"etcd://{small_etcd.members[0].endpoint}/full") as server,
        kokuban_client.connect(server.address, agent="keeper", roles=["operator"]) as keeper,
    ):
        board = await connect(server)
        small = await board.put(REGION, "small", "v", must_not_exist=True)
        last = (await board.put(REGION, "large", "0" * VALUE_BYTES, must_not_exist=True)).revision
        await _fill(small_etcd.members[0].endpoint)
        async with asyncio.timeout(BOUND_S):
            while "NOSPACE" not in await asyncio.to_thread(small_etcd.ctl, "alarm", "list"):
                pass  # etcd raises it just after its first refusal

        writes = [
            board.put(REGION, "other", "x", must_not_exist=True),
            board.put(REGION, "small", "w", at=small.revision),
            board.increment(REGION, "n"),
            board.delete(REGION, "small", at=small.revision),  # leaves a tombstone and its history: it needs room too
        ]
        answers = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(answer) for answer in answers] == [errors.StoreFull] * 4
        with pytest.raises(errors.RevisionMismatch):  # what does not hold is said first
            await board.put(REGION, "large", "x", at=small.revision)

        assert (await board.get(REGION, "large")).revision == last
        assert [entry.path async for entry in board.list(REGION, omit_values=True)] == ["large", "small"]
        assert [change.entry.revision for change in await board.history(REGION, "small")] == [small.revision]
        again = await board.put(REGION, "small", "v", must_not_exist=True, request_id=small.request_id)
        assert (again.replayed, again.revision) == (True, small.revision)
        async with board.watch((REGION, "small"), start=SNAPSHOT) as watch:
            assert isinstance(await asyncio.wait_for(anext(watch), BOUND_S), SnapshotEntry)
        full_bytes = (await keeper.status()).size_bytes

        await keeper.compact((await keeper.status()).token)
        async with asyncio.timeout(BOUND_S):
            while (await keeper.status()).size_bytes > 0.8 * full_bytes:
                small_etcd.ctl("defrag")  # etcd forgets what was compacted a little after it says so
        small_etcd.ctl("alarm", "disarm")
        await board.put(REGION, "small", "w", at=small.revision)
        await board.put(REGION, "other", "x", must_not_exist=True)
