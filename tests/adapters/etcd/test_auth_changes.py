"""RB-46: who may do what is changed at the cluster while a store works on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kokuban_server.adapters.etcd import EtcdSettings, EtcdStore
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.core.refusals import OutcomeUnknown, StoreUnavailable
from kokuban_server.ports.board_store import STRONG

if TYPE_CHECKING:
    from tests.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd
BOUND_S = 20.0
PASSWORD = "correct horse"  # noqa: S105 - of a throw-away cluster
ROOT = ("--user", f"root:{PASSWORD}")


async def test_RB_46_users_and_authentication_change_under_load_and_no_acknowledged_write_is_lost(
    cluster: EtcdServer,
) -> None:
    """Members must agree afterwards too; those of an etcd that lets them come apart would be found here."""
    await cluster.start_all()
    cluster.ctl("user", "add", f"root:{PASSWORD}")
    cluster.ctl("user", "grant-role", "root", "root")
    cluster.ctl("auth", "enable")
    settings = EtcdSettings(cluster.endpoints, user="root", password=PASSWORD, attempt_s=2.0, connect_s=0.5)
    store = await EtcdStore.open(settings, SystemClock())
    acknowledged: set[bytes] = set()
    stopping = False

    async def write(name: int) -> None:
        number = 0
        while not stopping:
            number += 1
            key = b"k/%d/%d" % (name, number)
            try:
                await store.commit(ChangeSet((), (Put(key, b"v"),)), BOUND_S)
            except (OutcomeUnknown, StoreUnavailable):
                continue
            acknowledged.add(key)

    async def progress() -> None:
        aim = len(acknowledged) + 50
        while len(acknowledged) < aim:  # noqa: ASYNC110 - the writers set no event
            await asyncio.sleep(0)

    async with asyncio.timeout(2 * BOUND_S), asyncio.TaskGroup() as group:
        for name in range(4):
            group.create_task(write(name))
        for change in (
            (*ROOT, "user", "add", f"other:{PASSWORD}"),
            (*ROOT, "role", "add", "reader"),
            (*ROOT, "user", "grant-role", "other", "reader"),
            (*ROOT, "auth", "disable"),
            ("auth", "enable"),
            (*ROOT, "user", "delete", "other"),
        ):
            await progress()
            await asyncio.to_thread(cluster.ctl, *change)
        await progress()
        stopping = True
    assert acknowledged <= await _keys(store)
    await store.close()
    cluster.ctl(*ROOT, "auth", "disable")
    async with asyncio.timeout(BOUND_S):
        while len({_hash(cluster, place) for place in range(3)}) > 1:  # noqa: ASYNC110 - a member may still be behind
            await asyncio.sleep(0)


async def _keys(store: EtcdStore) -> set[bytes]:
    found: set[bytes] = set()
    after = b""
    while True:
        page = await store.scan(b"k/", after, 1_000, 1_000_000, STRONG, BOUND_S)
        found |= {record.key for record in page.records}
        if not page.more:
            return found
        after = page.records[-1].key


def _hash(cluster: EtcdServer, place: int) -> str:
    return cluster.ctl("endpoint", "hashkv", member=cluster.members[place]).split(", ")[1]
