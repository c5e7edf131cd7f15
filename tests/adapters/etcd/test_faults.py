"""One etcd behind a faulty network, and what its lapses do to those who travel together."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING

import pytest

from kokuban_server.adapters.etcd import EtcdSettings, EtcdStore, SchemaTooNew, feeds
from kokuban_server.adapters.system import SystemClock
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, DeleteKey, NoneBelow, Put
from kokuban_server.core.refusals import HistoryCompacted, InvalidRequest, OutcomeUnknown, StoreUnavailable, WatchGap
from kokuban_server.ports.board_store import LOCAL, STRONG, CommitRefused, LeaseLost
from tests.fault_proxy import FaultProxy, Mode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from kokuban.etcd.v1 import etcd_pb2 as pb
    from kokuban_server.ports.board_store import BoardStore, WatchBatch
    from tests.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd
CLOCK = SystemClock()
BOUND_S = 15.0


@pytest.fixture
async def proxy(server: EtcdServer) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(server.members[0].client_port, seed=1) as proxy:
        yield proxy


@pytest.fixture
async def direct(server: EtcdServer, prefix: str) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open(EtcdSettings(server.endpoints, prefix), CLOCK)
    yield store
    await store.close()


@pytest.fixture
async def store(proxy: FaultProxy, prefix: str) -> AsyncIterator[EtcdStore]:
    settings = EtcdSettings((proxy.endpoint,), prefix, attempt_s=1.0, connect_s=0.5)
    store = await EtcdStore.open(settings, CLOCK)
    yield store
    await store.close()


async def value(store: BoardStore, key: bytes) -> bytes | None:
    (record,) = (await store.read([key], STRONG, BOUND_S)).records
    return record and record.value


async def events_until(watch: AsyncGenerator[WatchBatch, None], marker: bytes) -> list[tuple[bytes, int]]:
    seen: list[tuple[bytes, int]] = []
    async with asyncio.timeout(BOUND_S):
        async for batch in watch:
            seen += [(event.key, event.revision) for event in batch.events]
            if seen and seen[-1][0] == marker:
                break
    return seen


@pytest.mark.parametrize("reset", [True, False], ids=["then resets", "then nothing"])
async def test_RB_08_RB_09_a_swallowed_answer_is_an_unknown_outcome_and_the_record_tells(
    store: EtcdStore, direct: EtcdStore, proxy: FaultProxy, *, reset: bool
) -> None:
    before = await store.commit(ChangeSet((), (Put(b"k", b"0"),)), BOUND_S)
    change = ChangeSet((AtRevision(b"k", before), Absent(b"op")), (Put(b"k", b"1"), Put(b"op", b"answer")))
    proxy.set(Mode.DROP_ANSWERS)
    proxy.dropped.clear()
    sent = asyncio.create_task(store.commit(change, BOUND_S))
    async with asyncio.timeout(BOUND_S):
        await proxy.dropped.wait()
    if reset:
        proxy.reset()
    with pytest.raises(OutcomeUnknown):
        await sent
    proxy.set(Mode.PASS)
    proxy.reset()
    with pytest.raises(CommitRefused) as caught:
        await store.commit(change, BOUND_S)
    (record,) = (await store.read([b"op"], STRONG, BOUND_S)).records
    assert record is not None
    assert {failure.place for failure in caught.value.failures} == {0, 1}
    assert caught.value.failures[1].revision == record.revision
    assert await value(direct, b"k") == b"1"


async def test_RB_08_counting_through_resets_loses_and_doubles_nothing(
    store: EtcdStore, direct: EtcdStore, proxy: FaultProxy
) -> None:
    await direct.commit(ChangeSet((), (Put(b"n", b"0"),)), BOUND_S)
    unknown = 0

    async def add_one(name: bytes) -> None:
        nonlocal unknown
        while True:
            counter, done = (await store.read([b"n", b"op/" + name], STRONG, BOUND_S)).records
            if done is not None:
                return
            assert counter is not None
            change = ChangeSet(
                (AtRevision(b"n", counter.revision), Absent(b"op/" + name)),
                (Put(b"n", b"%d" % (int(counter.value) + 1)), Put(b"op/" + name, b"")),
            )
            try:
                await store.commit(change, BOUND_S)
            except (OutcomeUnknown, StoreUnavailable):
                unknown += 1
            except CommitRefused:
                continue

    async def harass() -> None:
        for _ in range(12):
            proxy.set(Mode.DROP_ANSWERS)
            proxy.dropped.clear()
            await proxy.dropped.wait()
            proxy.reset()
            proxy.set(Mode.PASS)
            await store.read([b"n"], STRONG, BOUND_S)

    async with asyncio.timeout(40):
        harassing = asyncio.create_task(harass())
        await asyncio.gather(*(add_one(b"%d" % n) for n in range(12)))
        harassing.cancel()  # what is not over by now waits for answers that nobody asks for any more
        await asyncio.gather(harassing, return_exceptions=True)
    assert unknown > 0
    assert await value(direct, b"n") == b"12"


async def test_RB_10_a_reader_that_falls_behind_a_storm_gets_all_of_it(store: EtcdStore, proxy: FaultProxy) -> None:
    start = await store.commit(ChangeSet((), (Put(b"k/start", b""),)), BOUND_S)
    async with aclosing(store.watch([b"k/"], start)) as watch:
        await anext(watch)
        proxy.delay_s_max = 0.002
        revisions = await asyncio.gather(
            *(store.commit(ChangeSet((), (Put(b"k/%04d" % n, b"x" * 2000),)), BOUND_S) for n in range(1500))
        )
        proxy.delay_s_max = 0
        end = await store.commit(ChangeSet((), (Put(b"k/end", b""),)), BOUND_S)
        seen = await events_until(watch, b"k/end")
    assert sorted(seen) == sorted(
        [*((b"k/%04d" % n, revision) for n, revision in enumerate(revisions)), (b"k/end", end)]
    )
    assert [revision for _, revision in seen] == sorted(revision for _, revision in seen)


async def test_a_watch_goes_on_over_cuts_without_gap_or_repeat(
    store: EtcdStore, direct: EtcdStore, proxy: FaultProxy
) -> None:
    start = (await direct.read([b"k"], STRONG, BOUND_S)).revision
    written = []
    async with aclosing(store.watch([b"k/"], start)) as watch:
        await anext(watch)
        reading = asyncio.create_task(events_until(watch, b"k/end"))
        for n in range(60):
            keys = [b"k/%d/%d" % (n, m) for m in range(3)]
            revision = await direct.commit(ChangeSet((), tuple(Put(key, b"") for key in keys)), BOUND_S)
            written += [(key, revision) for key in keys]
            if n % 20 == 10:
                proxy.reset()
        written.append((b"k/end", await direct.commit(ChangeSet((), (Put(b"k/end", b""),)), BOUND_S)))
        assert sorted(await reading) == sorted(written)


async def test_a_watch_waits_out_an_outage(store: EtcdStore, direct: EtcdStore, proxy: FaultProxy) -> None:
    start = (await direct.read([b"k"], STRONG, BOUND_S)).revision
    async with aclosing(store.watch([b"k"], start)) as watch:
        await anext(watch)
        proxy.refuse = True
        proxy.reset()
        with pytest.raises(StoreUnavailable):
            await store.read([b"k"], STRONG, 0.5)
        end = await direct.commit(ChangeSet((), (Put(b"k", b"1"),)), BOUND_S)
        proxy.refuse = False
        assert await events_until(watch, b"k") == [(b"k", end)]


async def test_a_watch_cut_while_history_is_forgotten_says_so(
    store: EtcdStore, direct: EtcdStore, proxy: FaultProxy
) -> None:
    start = (await direct.read([b"k"], STRONG, BOUND_S)).revision
    async with aclosing(store.watch([b"k"], start)) as watch:
        await anext(watch)
        proxy.refuse = True
        proxy.reset()
        for n in range(5):
            last = await direct.commit(ChangeSet((), (Put(b"k", b"%d" % n),)), BOUND_S)
        await direct.compact(last, BOUND_S)
        proxy.refuse = False
        with pytest.raises(HistoryCompacted) as caught:
            await events_until(watch, b"k")
        assert caught.value.compacted_revision == last


async def test_a_store_that_is_not_there_is_unavailable_and_nothing_happens(
    store: EtcdStore, direct: EtcdStore, proxy: FaultProxy
) -> None:
    await store.commit(ChangeSet((), (Put(b"k", b"1"),)), BOUND_S)
    proxy.refuse = True
    proxy.reset()
    answers = await asyncio.gather(
        *(store.commit(ChangeSet((), (Put(b"k%d" % n, b"2"),)), 1.0) for n in range(5)), return_exceptions=True
    )
    # The first ones may have met the connection before its end was known; whatever is called undone must be undone.
    assert all(isinstance(answer, StoreUnavailable | OutcomeUnknown) for answer in answers)
    for n, answer in enumerate(answers):
        if isinstance(answer, StoreUnavailable):
            assert await value(direct, b"k%d" % n) is None
    with pytest.raises(StoreUnavailable):
        await store.commit(ChangeSet((), (Put(b"k", b"3"),)), 1.0)
    assert await value(direct, b"k") == b"1"
    proxy.refuse = False
    await store.commit(ChangeSet((), (Put(b"k", b"4"),)), BOUND_S)
    assert await value(direct, b"k") == b"4"


async def test_a_member_that_stalls_is_left_for_another(server: EtcdServer, proxy: FaultProxy, prefix: str) -> None:
    async with FaultProxy(server.members[0].client_port) as other:
        settings = EtcdSettings((proxy.endpoint, other.endpoint), prefix, attempt_s=1.0, connect_s=0.5)
        store = await EtcdStore.open(settings, CLOCK)
        await store.commit(ChangeSet((), (Put(b"k", b"1"),)), BOUND_S)
        assert other.connections == 0
        proxy.set(Mode.STALL)
        begun_s = time.monotonic()
        assert await value(store, b"k") == b"1"
        assert time.monotonic() - begun_s < 4
        assert other.connections > 0
        await store.commit(ChangeSet((), (Put(b"k", b"2"),)), BOUND_S)
        await store.close()


async def test_in_a_batch_of_forty_one_is_refused_and_the_others_stand(direct: EtcdStore) -> None:
    await direct.commit(ChangeSet((), (Put(b"taken/x", b""),)), BOUND_S)
    answers = await asyncio.gather(
        *(
            direct.commit(
                ChangeSet((NoneBelow(b"taken/") if n == 17 else Absent(b"k/%d" % n),), (Put(b"k/%d" % n, b""),)),
                BOUND_S,
            )
            for n in range(40)
        ),
        return_exceptions=True,
    )
    assert [n for n, answer in enumerate(answers) if isinstance(answer, CommitRefused)] == [17]
    assert len({answer for answer in answers if isinstance(answer, int)}) <= 2  # the first alone, the others together


async def test_a_lapsed_lease_inside_a_batch_fails_its_own_set_only(direct: EtcdStore) -> None:
    live = await direct.grant_lease(60_000, BOUND_S)
    dead = await direct.grant_lease(60_000, BOUND_S)
    await direct.revoke_lease(dead.id, BOUND_S)
    leases = [None, live.id, dead.id]
    answers = await asyncio.gather(
        *(direct.commit(ChangeSet((), (Put(b"k/%d" % n, b"", leases[n % 3]),)), BOUND_S) for n in range(30)),
        return_exceptions=True,
    )
    assert [isinstance(answer, LeaseLost) for answer in answers] == [n % 3 == 2 for n in range(30)]
    await direct.revoke_lease(live.id, BOUND_S)


async def test_two_replicas_compare_and_swap_one_key(server: EtcdServer, prefix: str) -> None:
    async with AsyncExitStack() as stack:
        stores = []
        for _ in range(2):
            store = await EtcdStore.open(EtcdSettings(server.endpoints, prefix), CLOCK)
            stack.push_async_callback(store.close)
            stores.append(store)
        assert stores[0].epoch == stores[1].epoch
        start = await stores[0].commit(ChangeSet((), (Put(b"n", b"0"),)), BOUND_S)
        assert start

        async def add(store: EtcdStore, times: int) -> None:
            while times:
                (record,) = (await store.read([b"n"], STRONG, BOUND_S)).records
                assert record is not None
                raised = Put(b"n", b"%d" % (int(record.value) + 1))
                try:
                    await store.commit(ChangeSet((AtRevision(b"n", record.revision),), (raised,)), BOUND_S)
                    times -= 1
                except CommitRefused as refused:
                    assert refused.failures[0].revision > record.revision

        await asyncio.gather(*(add(store, 10) for store in stores for _ in range(3)))
        assert await value(stores[1], b"n") == b"60"


async def test_servers_that_open_at_once_begin_one_store(server: EtcdServer, prefix: str) -> None:
    settings = EtcdSettings(server.endpoints, prefix)
    stores = await asyncio.gather(*(EtcdStore.open(settings, CLOCK) for _ in range(5)))
    assert len({store.epoch for store in stores}) == 1
    for store in stores:
        await store.close()


async def test_a_newer_schema_is_left_alone(server: EtcdServer, direct: EtcdStore, prefix: str) -> None:
    server.ctl("put", f"{prefix}/s/schema", "2")
    with pytest.raises(SchemaTooNew):
        await EtcdStore.open(EtcdSettings(server.endpoints, prefix), CLOCK)


async def test_what_is_too_large_for_a_request_is_refused_and_hinders_nobody(direct: EtcdStore) -> None:
    await direct.commit(ChangeSet((), (Put(b"k", b"1"),)), BOUND_S)
    answers = await asyncio.gather(
        direct.commit(ChangeSet((), (Put(b"a", b"x"),)), BOUND_S),
        direct.commit(ChangeSet((), (Put(b"b", b"x" * 1_600_000),)), BOUND_S),
        direct.commit(ChangeSet((), (Put(b"c", b"x"),)), BOUND_S),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [int, InvalidRequest, int]


async def test_RB_12_a_watch_never_says_it_is_further_than_what_it_told(direct: EtcdStore) -> None:
    start = (await direct.read([b"k"], STRONG, BOUND_S)).revision

    async def write() -> int:
        for change in (
            [ChangeSet((), (Put(b"k/%d" % (n % 7), b""), Put(b"o/%d" % n, b""))) for n in range(200)],
            [ChangeSet((), (Put(b"k/end", b""),))],
        ):
            last = max(await asyncio.gather(*(direct.commit(each, BOUND_S) for each in change)))
        return last

    reached = start
    count = 0
    async with aclosing(direct.watch([b"k/"], start)) as watch:
        writing = asyncio.create_task(write())
        async with asyncio.timeout(BOUND_S):
            async for batch in watch:
                assert all(reached < event.revision <= batch.revision for event in batch.events)
                reached = batch.revision
                count += len(batch.events)
                if any(event.key == b"k/end" for event in batch.events):
                    break
        assert reached == await writing
    assert count == 201


class TestTheCheckOfWhatWasDelivered:
    """The store's own comparison, with events taken out of the middle as faulty releases do."""

    async def test_finds_nothing_where_nothing_is_missing(self, direct: EtcdStore) -> None:
        start = (await direct.read([b"k"], STRONG, BOUND_S)).revision
        async with aclosing(direct.watch([b"k/"], start)) as watch:
            await anext(watch)
            for n in range(30):
                deletes = (DeleteKey(b"k/%d" % ((n + 3) % 8)),) if n % 3 else ()
                await direct.commit(ChangeSet((), (Put(b"k/%d" % (n % 8), b""),), deletes), BOUND_S)
                if n % 10 == 0:
                    await direct.watches.check()
            end = await direct.commit(ChangeSet((), (Put(b"k/end", b""),)), BOUND_S)
            await events_until(watch, b"k/end")
            for _ in range(3):
                await direct.watches.check()
            later = await direct.commit(ChangeSet((), (Put(b"elsewhere", b""),)), BOUND_S)
            await direct.watches.check()
            await direct.watches.check()
            async with asyncio.timeout(BOUND_S):
                assert (await anext(watch)) == (later, ())
        assert later > end
        assert direct.watches.gaps_found == 0

    @pytest.mark.parametrize("lost", ["write", "removal", "last write", "last removal"])
    async def test_a_lost_event_ends_the_watch(
        self, direct: EtcdStore, monkeypatch: pytest.MonkeyPatch, lost: str
    ) -> None:
        await direct.commit(ChangeSet((), (Put(b"k/b", b""),)), BOUND_S)
        start = await direct.commit(ChangeSet((), (Put(b"k/a", b""),)), BOUND_S)
        take = feeds.Feed.take

        def take_less(feed: feeds.Feed, response: pb.WatchResponse) -> None:
            kept = [event for event in response.events if event.kv.key.rsplit(b"/", 1)[1] != b"a"]
            del response.events[:]
            response.events.extend(kept)
            take(feed, response)

        monkeypatch.setattr(feeds.Feed, "take", take_less)
        async with aclosing(direct.watch([b"k/"], start)) as watch:
            await anext(watch)
            writes, deletes = ((Put(b"k/a", b"1"),), ()) if "write" in lost else ((), (DeleteKey(b"k/a"),))
            await direct.commit(ChangeSet((), writes, deletes), BOUND_S)
            if "last" not in lost:
                await direct.commit(ChangeSet((), (Put(b"k/b", b""),)), BOUND_S)
                assert [key for key, _ in await events_until(watch, b"k/b")] == [b"k/b"]
            await direct.watches.check()
            await direct.watches.check()  # what is outstanding may be on its way, the first time
            with pytest.raises(WatchGap):
                async with asyncio.timeout(BOUND_S):
                    await anext(watch)
        assert direct.watches.gaps_found == 1


async def test_a_local_read_is_answered_and_says_its_revision(direct: EtcdStore) -> None:
    revision = await direct.commit(ChangeSet((), (Put(b"k", b"1"),)), BOUND_S)
    cut = await direct.read([b"k"], LOCAL, BOUND_S)
    assert cut.revision >= revision  # the only member has everything
