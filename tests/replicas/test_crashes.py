"""Servers that are killed while others of the same store go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import NOW, ChangeType, EntryChange, errors
from kokuban_client._ids import RequestIds
from tests.fault_proxy import FaultProxy, Mode
from tests.replicas.pair import Pair

if TYPE_CHECKING:
    from kokuban_client import Watch
    from tests.etcd_server import EtcdServer
    from tests.replicas.conftest import Connections

pytestmark = pytest.mark.etcd
REGION = "shared:plan"
BOUND_S = 20.0
TAKEOVER_S = 45.0
"""The upkeep's lease lasts for 15 s, and etcd may give it some more after a restart."""


async def next_change(watch: Watch) -> EntryChange:
    item = await asyncio.wait_for(anext(watch), BOUND_S)
    assert isinstance(item, EntryChange), item
    return item


async def test_ID_02_a_commit_whose_answer_was_lost_is_answered_by_the_other_server(
    fragile_pair: Pair, connect: Connections
) -> None:
    """And again after both servers were killed; the same id with other arguments is refused by either."""
    a, b = fragile_pair.a, fragile_pair.b
    request_id = RequestIds().new()
    other = await connect(b)
    await other.increment(REGION, "n", 40)
    async with (
        FaultProxy(int(a.address.rpartition(":")[2])) as proxy,
        other.watch(REGION, start=NOW) as watch,
        asyncio.timeout(BOUND_S),
    ):
        behind = await connect(proxy.endpoint, wait=False)
        await behind.get(REGION, "n")  # the connection stands
        proxy.set(Mode.DROP_ANSWERS)
        lost = asyncio.ensure_future(behind.increment(REGION, "n", 2, request_id=request_id))
        change = await next_change(watch)  # it holds
        await proxy.dropped.wait()
        proxy.refuse = True
        proxy.reset()
        with pytest.raises(errors.OutcomeUnknown) as unknown:
            await lost
        assert unknown.value.request_id == request_id
    assert [act.request_id for act in change.acts] == [request_id]

    async def repeat_at_both() -> None:
        for server in (b, a):
            board = await connect(server)
            told = await board.increment(REGION, "n", 2, request_id=request_id)
            assert told.replayed
            assert (told.revision, told.sequence, told.value) == (change.entry.revision, change.entry.sequence, 42)
            with pytest.raises(errors.RequestIdReused):
                await board.increment(REGION, "n", 3, request_id=request_id)
            assert (await board.get(REGION, "n")).value == 42

    await repeat_at_both()
    fragile_pair.kill()
    await asyncio.to_thread(fragile_pair.start)
    await repeat_at_both()


async def test_ID_07_ids_and_revisions_never_collide_over_servers_and_restarts(
    fragile_pair: Pair, connect: Connections
) -> None:
    """Agents of one name at both servers, before and after a kill of both, share nothing that is counted from one again."""
    ids: list[str] = []
    revisions: list[int] = []
    for life in range(2):
        boards = [await connect(server) for server in (fragile_pair.a, fragile_pair.b) for _ in range(2)]
        done = await asyncio.gather(
            *(
                board.put(REGION, f"{life}/{place}/{number}", number, must_not_exist=True)
                for place, board in enumerate(boards)
                for number in range(10)
            )
        )
        assert not any(written.replayed for written in done)
        assert min(written.revision.number for written in done) > max(revisions, default=0)
        ids += [written.request_id for written in done]
        revisions += [written.revision.number for written in done]
        assert len({written.revision.epoch for written in done}) == 1
        if life == 0:
            fragile_pair.kill()
            await asyncio.to_thread(fragile_pair.start)
    assert len(set(ids)) == len(ids) == 80
    board = await connect(fragile_pair.b)
    assert len([entry async for entry in board.list(REGION)]) == 80


async def test_LU_24_a_publish_of_several_is_whole_or_not_there_however_its_server_dies(
    fragile_pair: Pair, connect: Connections
) -> None:
    paths = [f"part/{number}" for number in range(6)]
    reader = await connect(fragile_pair.b)
    looks = 0

    async def look() -> int:
        """Give the number of the publish that the board holds; fail if it holds parts of two."""
        nonlocal looks
        looks += 1
        entries = (await reader.get_many([(REGION, path) for path in paths])).entries
        assert len(entries) in {0, len(paths)}
        assert len({(entry.value, entry.revision) for entry in entries}) <= 1
        return int(entries[0].value) if entries else 0

    async def publish() -> None:
        board = await connect(fragile_pair.a)
        while True:
            number = await look() + 1
            at = [(await reader.get(REGION, path)).revision for path in paths] if number > 1 else [None] * len(paths)
            with contextlib.suppress(errors.Conflict):  # what a killed server had under way may still come in between
                async with board.commit() as commit:
                    for path, revision in zip(paths, at, strict=True):
                        commit.put(REGION, path, number, at=revision, must_not_exist=revision is None)

    for _ in range(3):
        async with asyncio.timeout(BOUND_S):
            before = await look()
            publishing = asyncio.ensure_future(publish())
            while await look() < before + 5:
                assert not publishing.done(), publishing.exception()
            fragile_pair.a.kill()
            publishing.cancel()
            await asyncio.wait([publishing])
            await look()
            await asyncio.to_thread(fragile_pair.a.start)
            await look()
    assert await look() >= 15
    assert looks > 30


class Follower:
    """Notes what watches tell, each change once, over watches that follow one another."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.token = ""

    async def follow(self, watch: Watch, until: int) -> None:
        """Read on until so many changes were seen."""
        untold: list[tuple[str, int]] = []
        while len(self.seen) < until:
            change = await next_change(watch)
            untold.append((change.entry.path, change.entry.revision.number))
            if watch.token != self.token:  # else what was given since comes again from the token
                self.token = watch.token
                self.seen += untold
                untold.clear()


async def test_WA_01_a_watch_goes_on_at_another_server_where_the_killed_one_left_off(
    fragile_pair: Pair, connect: Connections
) -> None:
    """Commits of two entries each, while servers take turns to die; watch and writer go on at the one that lives."""
    commits, ids = 150, RequestIds()
    a, b = fragile_pair.a, fragile_pair.b
    alive = await connect(b, "writer", wait=False)
    written: dict[str, int] = {}
    follower = Follower()

    async def write() -> None:
        for number in range(commits):
            request_id = ids.new()
            while True:
                try:
                    async with alive.commit(request_id=request_id) as commit:
                        commit.put(REGION, f"first/{number}", number, must_not_exist=True)
                        commit.put(REGION, f"second/{number}", number, must_not_exist=True)
                except (errors.OutcomeUnknown, errors.Unavailable):
                    continue  # to whoever lives now, under the same id
                break
            written.update({f"{half}/{number}": commit.result.revision.number for half in ("first", "second")})

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for turn, (watched, other) in enumerate(((a, b), (b, a), (a, b))):
            async with (
                kokuban_client.connect(watched.address, agent="watcher") as client,
                client.board("main").watch(REGION, start=follower.token or NOW) as watch,
            ):
                if turn == 0:
                    group.create_task(write())
                await follower.follow(watch, 2 * commits * (turn + 1) // 3)
                if turn < 2:
                    alive = await connect(other, "writer", wait=False)
                    watched.kill()
            if turn < 2:
                await asyncio.to_thread(watched.start)
    assert len(follower.seen) == 2 * commits
    assert dict(follower.seen) == written
    assert [revision for _, revision in follower.seen] == sorted(revision for _, revision in follower.seen)


def _owner(etcd: EtcdServer, pair: Pair) -> dict[str, str | int] | None:
    """Give etcd's record of who does the upkeep: its version is 1 as long as nobody else has written it."""
    prefix = pair.store.partition("://")[2].partition("/")[2]
    found = json.loads(etcd.ctl("get", f"{prefix}/d/w/upkeep/", "-w", "json")).get("kvs", [])
    return found[0] if found else None


async def _owned(etcd: EtcdServer, pair: Pair, *, not_by: object = None) -> dict[str, str | int]:
    """Wait until somebody does the upkeep, other than before."""
    async with asyncio.timeout(TAKEOVER_S):
        while (record := await asyncio.to_thread(_owner, etcd, pair)) is None or record["value"] == not_by:  # noqa: ASYNC110 - another process tells of itself only when asked
            await asyncio.sleep(0.1)
    return record


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_upkeep_is_done_by_one_server_at_a_time_and_taken_over_from_one_that_is_gone(
    etcd: EtcdServer, connect: Connections, end: str
) -> None:
    pair = Pair(f"etcd://{etcd.members[0].endpoint}/upkeep/{end}")
    try:
        await asyncio.to_thread(pair.a.start)
        first = await _owned(etcd, pair)
        await asyncio.to_thread(pair.b.start)
        board = await connect(pair.b)
        async with board.watch(REGION, start=NOW) as watch:
            await board.put(REGION, "e", "before", must_not_exist=True, ttl=1)
            assert [(await next_change(watch)).type for _ in range(2)] == [ChangeType.PUT, ChangeType.EXPIRED]
            assert await asyncio.to_thread(_owner, etcd, pair) == first
            await board.put(REGION, "f", "after", must_not_exist=True, ttl=1)
            assert (await next_change(watch)).type is ChangeType.PUT
            if end == "killed":
                pair.a.kill()
            else:
                await asyncio.to_thread(pair.a.stop)
            heir = await _owned(etcd, pair, not_by=first["value"])
            buried = await next_change(watch)
            assert (buried.type, buried.entry.path) == (ChangeType.EXPIRED, "f")
            assert (heir["version"], heir["create_revision"]) == (1, heir["mod_revision"])
            assert await asyncio.to_thread(_owner, etcd, pair) == heir
    finally:
        pair.close()
