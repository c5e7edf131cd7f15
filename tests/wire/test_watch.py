"""A watch tells every change once, in order, without gaps; where it cannot, it ends and says so."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest

from kokuban.v1 import admin_service_pb2, board_service_pb2, commit_pb2, entry_pb2
from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.app.watches import Feed, _Subscriber
from kokuban_server.core import limits
from kokuban_server.core.revision import BoardToken
from tests.wire.calls import REGION, at, delete, increment, merge, new_id, put, put_json, refusal_of, refused, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.board_store import BoardStore, Consistency, Cut
    from tests.wire.calls import Agent, SettableClock, Watched
    from tests.wire.conftest import Running, Started

CHANGE = {
    "put": entry_pb2.CHANGE_TYPE_PUT,
    "delete": entry_pb2.CHANGE_TYPE_DELETED,
    "expire": entry_pb2.CHANGE_TYPE_EXPIRED,
}


def number(token: str) -> int:
    return BoardToken.decode(token, "").revision


def shrink(running: Running, events: int) -> Feed:
    """Have the feed keep only so many changes, so that others must be read from the store."""
    feed = running.server._watches.feed
    feed._events_max = events
    return feed


class Session(NamedTuple):
    """What one watch was asked for and what it sent, until it was cut."""

    prefixes: tuple[str, ...]
    after: int
    responses: Sequence[board_service_pb2.WatchResponse]


def below(path: str, prefixes: Sequence[str]) -> bool:
    return any(not prefix or path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)


def facts(change: entry_pb2.EntryChange) -> bytes:
    """Give a change as it must be told whenever it is told: what expires loses its value with time."""
    kept = entry_pb2.EntryChange()
    kept.CopyFrom(change)
    if kept.entry.HasField("expire_time"):
        kept.entry.ClearField("value")
    return kept.SerializeToString(deterministic=True)


def check_session(session: Session, truth: Sequence[entry_pb2.EntryChange]) -> None:
    """Hold one watch against what happened: the nine rules of etcd's robustness suite, by name."""
    sent = [(place, change) for place, each in enumerate(session.responses) for change in each.events.changes]
    changes = [change for _, change in sent]
    revisions = [change.entry.revision.number for change in changes]
    tokens = [(place, number(each.token)) for place, each in enumerate(session.responses) if each.token]
    # Filter: nothing but what was asked for.
    assert all(below(change.entry.key.path, session.prefixes) for change in changes)
    assert all(revision > session.after for revision in revisions)
    # Ordered.
    assert revisions == sorted(revisions)
    assert [token for _, token in tokens] == sorted(token for _, token in tokens)
    # Unique: no state of an entry twice.
    names = [(change.entry.key.path, change.entry.sequence, change.entry.create_revision) for change in changes]
    assert len(set(names)) == len(names)
    # Bookmarkable: nothing at or below a token comes after it.
    for place, token in tokens:
        assert all(change.entry.revision.number > token for later, change in sent if later > place)
    last = tokens[-1][1] if tokens else session.after
    expected = [
        change
        for change in truth
        if session.after < change.entry.revision.number <= last and below(change.entry.key.path, session.prefixes)
    ]
    told = [change for change in changes if change.entry.revision.number <= last]
    # Atomic: a token stands only where its revision is complete. Reliable and resumable: everything, from where it began.
    assert sorted(map(facts, told)) == sorted(map(facts, expected))
    # Is-create and previous value: each state names the one before, and a first life begins at itself.
    seen: dict[str, int] = {}
    for change in changes:
        path = change.entry.key.path
        if path in seen:
            assert change.previous_revision == seen[path]
        seen[path] = change.entry.revision.number
        if change.previous_revision == 0:
            assert change.entry.create_revision == change.entry.revision.number
            assert change.entry.sequence == 1


async def traffic(running: Running, clock: SettableClock, seed: int, commits: int) -> None:
    """Write at random: several entries at once, deletions, new lives, expiries and sweeps, folded increments."""
    agents = [running.as_agent(f"writer-{each}") for each in range(4)]
    chance = random.Random(seed)
    paths = [f"{top}/{leaf}" for top in ("task_1", "task_10", "task_1x") for leaf in "abc"] + ["task_1"]

    async def one(agent: Agent) -> None:
        chosen = chance.sample(paths, chance.randint(1, 4))
        try:
            seen = [await agent.history(path, page_size=1) if chance.random() < 0.8 else [] for path in chosen]
        except grpc.aio.AioRpcError:
            seen = [[] for _ in chosen]
        mutations = []
        for path, states in zip(chosen, seen, strict=True):
            if not states or states[0].type != entry_pb2.CHANGE_TYPE_PUT:
                ttl: dict[str, Any] = {"ttl": {"seconds": 1}} if chance.random() < 0.3 else {}
                mutations.append(put(path, "x" * chance.randint(0, 50), **ttl))
            elif chance.random() < 0.4:
                mutations.append(delete(path, at(states[0].entry)))
            else:
                mutations.append(put(path, "y", at(states[0].entry)))
        try:
            await agent.commit(*mutations, request_id=new_id(clock.ms))
        except grpc.aio.AioRpcError as error:
            assert refusal_of(error).reason in {"REVISION_MISMATCH", "ALREADY_EXISTS", "CONTENDED"}

    for _ in range(commits // 8):
        await asyncio.gather(
            *(one(chance.choice(agents)) for _ in range(5)),
            *(agent.commit(increment("task_1/n"), request_id=new_id(clock.ms)) for agent in agents[:3]),
        )
        clock.pass_ms(chance.choice((0, 1, 400)))
        if chance.random() < 0.2:
            await running.server._upkeep.sweep()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kept", [8_192, 20])
async def test_WA_01_RB_12_the_nine_rules_hold_over_random_traffic_and_cut_watches(
    start: Started, any_store: BoardStore, clock: SettableClock, seed: int, kept: int
) -> None:
    """Watches are cut at random points and resumed from their last token; with 20 changes kept, often from the store."""
    running = await start(any_store)
    shrink(running, kept)
    agent = running.agent
    first = (await agent.commit(put("before"))).token
    whole = agent.watch(after=first)
    chance = random.Random(seed)
    sessions: list[Session] = []
    stopped = asyncio.Event()

    async def follow(*prefixes: str) -> None:
        token = first
        while not (stopped.is_set() and number(token) >= number(last)):
            watch = agent.watch(*prefixes, after=token)
            responses = []
            for _ in range(chance.randint(1, 12)):
                responses.append(await watch.next())
                if stopped.is_set() and watch.token and number(watch.token) >= number(last):
                    break
            watch.cancel()
            sessions.append(Session(prefixes, number(token), responses))
            token = watch.token or token

    followers = [
        asyncio.ensure_future(follow(*prefixes)) for prefixes in (("",), ("task_1",), ("task_10/a", "task_1x"))
    ]
    last = first
    await traffic(running, clock, seed, 160)
    last = (await agent.page()).token
    stopped.set()
    async with asyncio.timeout(30):
        truth = [change for part in await whole.until(last) for change in part.events.changes]
        await asyncio.gather(*followers)
    whole.cancel()
    check_truth(truth)
    assert len(sessions) > 20
    for session in sessions:
        check_session(session, truth)


def check_truth(truth: Sequence[entry_pb2.EntryChange]) -> None:
    """The one watch that was never cut tells each entry's states as a chain without a gap."""
    chains: dict[str, list[entry_pb2.EntryChange]] = defaultdict(list)
    for change in truth:
        chains[change.entry.key.path].append(change)
    for chain in chains.values():
        for before, after in itertools.pairwise(chain):
            assert after.previous_revision == before.entry.revision.number
            assert after.entry.sequence == before.entry.sequence + 1


def test_the_checker_finds_what_it_is_there_for() -> None:
    """Each rule, broken once."""

    def change(path: str, revision: int, sequence: int, previous: int) -> entry_pb2.EntryChange:
        entry = entry_pb2.Entry(
            key=entry_pb2.EntryKey(region=REGION, path=path),
            revision=entry_pb2.Revision(number=revision),
            create_revision=revision if not previous else 1,
            sequence=sequence,
        )
        return entry_pb2.EntryChange(entry=entry, previous_revision=previous)

    def sent(*changes: entry_pb2.EntryChange, token: int = 0) -> board_service_pb2.WatchResponse:
        text = BoardToken("0" * 16, token).encode() if token else ""
        return board_service_pb2.WatchResponse(token=text, events=board_service_pb2.WatchEvents(changes=changes))

    one, two, both = change("a", 1, 1, 0), change("a", 2, 2, 1), change("b", 2, 1, 0)
    truth = [one, two, both]
    check_session(Session(("",), 0, [sent(one, token=1), sent(two, both, token=2)]), truth)
    broken = {
        "filter": Session(("b",), 0, [sent(one, token=1)]),
        "ordered": Session(("",), 0, [sent(two, both, one, token=2)]),
        "unique": Session(("",), 0, [sent(one, one, token=1)]),
        "bookmarkable": Session(("",), 0, [sent(one, token=2), sent(two, both, token=2)]),
        "atomic": Session(("",), 0, [sent(one, two, token=2), sent(both, token=2)]),
        "reliable": Session(("",), 0, [sent(one, token=1), sent(both, token=2)]),
        "resumable": Session(("",), 1, [sent(one, two, both, token=2)]),
        "previous": Session(("",), 0, [sent(one, change("a", 2, 2, 0), both, token=2)]),
    }
    for rule, session in broken.items():
        try:
            check_session(session, truth)
        except AssertionError:
            continue
        pytest.fail(rule)


async def test_WA_01_a_stream_killed_many_times_under_load_loses_and_doubles_nothing(
    start: Started, any_store: BoardStore
) -> None:
    running = await start(any_store)
    shrink(running, 50)
    agent = running.agent
    token = (await agent.commit(put_json("n", 0))).token
    sent = 300

    async def write() -> None:
        for each in range(sent):
            await agent.commit(put(f"e/{each}"))

    writing = asyncio.ensure_future(write())
    seen: list[str] = []
    kills = 0
    async with asyncio.timeout(30):
        while len(seen) < sent:
            watch = agent.watch("e", after=token)
            for _ in range(2):
                response = await watch.next()
                seen += [change.entry.key.path for change in response.events.changes]
                token = response.token or token
            watch.cancel()
            kills += 1
    await writing
    assert seen == [f"e/{each}" for each in range(sent)]
    assert kills > 20


async def test_RB_24_a_revision_is_sent_whole_or_its_token_is_not(start: Started) -> None:
    """A commit of several large values is spread over messages; only the last of them can be resumed from."""
    running = await start()
    agent = running.agent
    first = (await agent.commit(put("before"))).token
    live = await agent.watch(now=True).begun()
    big = "x" * 200_000
    parts = [await agent.commit(*[put(f"e{batch}-{each}", big) for each in range(3)]) for batch in range(8)]
    for _ in range(2):
        shrunk = agent.watch(after=first)
        responses = await shrunk.until(parts[-1].token)
        shrunk.cancel()
        assert len(responses) > 2
        assert all(response.ByteSize() <= limits.WATCH_MESSAGE_BYTES_MAX for response in responses)
        told = [change for response in responses for change in response.events.changes]
        check_session(Session(("",), number(first), responses), told)
        assert len([change for change in told if change.entry.key.path != "n"]) == 24
        complete: dict[int, int] = defaultdict(int)
        for response in responses:
            for change in response.events.changes:
                complete[change.entry.revision.number] += 1
            if response.token and response.events.changes:
                latest = response.events.changes[-1].entry
                assert complete[latest.revision.number] == (1 if latest.key.path == "n" else 3)
        running.server._watches.feed._events_max = 1  # the second time from the store
        await agent.commit(increment("n"))
        await agent.commit(increment("n"))
    assert len(await live.changes(24)) >= 24
    live.cancel()


# How a watch begins.


async def test_a_snapshot_is_followed_by_what_came_after_without_gap_or_double(  # noqa: C901 - one story
    start: Started, any_store: BoardStore
) -> None:
    running = await start(any_store)
    agent = running.agent
    state: dict[str, int] = {}
    made = [await agent.commit(put(f"e/{each}", "x" * 30_000)) for each in range(50)]
    await agent.commit(delete("e/0", at(made[0])))

    async def write() -> None:
        for each in range(1, 50):
            await agent.commit(put(f"e/{each}", "new", at(made[each])), put(f"e/new-{each}"))

    writing = asyncio.ensure_future(write())
    for _ in range(5):
        state.clear()
        watch = agent.watch("e", snapshot=True)
        async with asyncio.timeout(20):
            while True:
                part = await watch.next()
                for entry in part.snapshot.entries:
                    assert entry.key.path not in state
                    state[entry.key.path] = entry.revision.number
                if part.snapshot.complete:
                    break
                assert not part.token
            await asyncio.sleep(0)
            cut = number(watch.token)
            assert all(revision <= cut for revision in state.values())
            last = (await agent.page()).token if writing.done() else watch.token
            for response in await watch.until(last):
                for change in response.events.changes:
                    assert change.previous_revision == state.get(change.entry.key.path, 0)
                    state[change.entry.key.path] = change.entry.revision.number
        watch.cancel()
        await asyncio.sleep(0)
        if not writing.done():
            await writing
    listed: dict[str, int] = {}
    token = ""
    while True:
        page = await agent.page("e", page_token=token)
        listed |= {entry.key.path: entry.revision.number for entry in page.entries}
        token = page.next_page_token
        if not token:
            break
    assert state == listed


async def test_targets_inside_each_other_are_told_once(each: Agent) -> None:
    await each.commit(put("a/b"), put("c"))
    watch = each.watch("a", "", "a/b", "a", snapshot=True)
    entries = []
    while True:
        part = await watch.next()
        entries += [entry.key.path for entry in part.snapshot.entries]
        if part.snapshot.complete:
            break
    assert sorted(entries) == ["a/b", "c"]
    await each.commit(put("a/d"))
    last = await each.commit(put("e"))
    told = [change.entry.key.path for part in await watch.until(last.token) for change in part.events.changes]
    assert told == ["a/d", "e"]
    watch.cancel()


async def test_now_begins_with_a_bookmark_and_shows_nothing_older(each: Agent) -> None:
    await each.commit(put("old"))
    watch = await each.watch(now=True).begun()
    assert number(watch.token) >= 1
    await each.commit(put("new"))
    assert [change.entry.key.path for change in await watch.changes(1)] == ["new"]
    watch.cancel()


async def test_a_watch_may_not_begin_where_the_store_has_not_been(each: Agent) -> None:
    made = await each.commit(put("e"))
    for ahead in (made.revision.number + 10_000, 2**64 - 1):
        with refused("TOKEN_AHEAD_OF_STORE", field="after"):
            await each.watch(after=BoardToken(made.revision.epoch, ahead).encode()).next()


async def test_RB_12_bookmarks_move_on_while_nothing_that_is_watched_changes(each: Agent) -> None:
    watch = await each.watch("quiet", now=True).begun()
    made = await each.commit(put("elsewhere"))
    async with asyncio.timeout(5):
        responses = await watch.until(made.token)
    assert {response.WhichOneof("content") for response in responses} == {"bookmark"}
    watch.cancel()


async def test_SC_01_a_watch_is_by_whole_segments(each: Agent) -> None:
    watch = await each.watch("task_1", now=True).begun()
    for path in ("task_10", "task_1:x", "task_", "task_1", "task_10/a", "task_1/a", "task_1.a"):
        made = await each.commit(put(path))
    told = [change.entry.key.path for part in await watch.until(made.token) for change in part.events.changes]
    assert told == ["task_1", "task_1/a"]
    watch.cancel()


async def test_values_may_be_left_out(each: Agent) -> None:
    await each.commit(put("a", "secret", metadata={"k": "v"}))
    whole, without = await each.watch(now=True).begun(), each.watch(snapshot=True, omit_values=True)
    entry = (await without.next()).snapshot.entries[0]
    assert (entry.HasField("value"), dict(entry.metadata)) == (False, {"k": "v"})
    await without.next()
    await each.commit(put("b", "secret"))
    assert not (await without.changes(1))[0].entry.HasField("value")
    assert (await whole.changes(1))[0].entry.value.text == "secret"
    for watch in (whole, without):
        watch.cancel()


# What is told.


async def test_deletions_and_expiries_are_told_as_what_they_are(on_any_store: Running, clock: SettableClock) -> None:
    agent = on_any_store.agent
    watch = await agent.watch(now=True).begun()
    made = await agent.commit(put("gone"), put("soon", ttl={"seconds": 1}), put_json("m", {}))
    await agent.commit(delete("gone", at(made)), merge("m", '{"a":1}', at(made)), reason="why")
    clock.pass_ms(1_000)
    await on_any_store.server._upkeep.sweep()
    changes = (await watch.changes(6))[3:]
    told = {change.entry.key.path: change for change in changes}
    assert {path: change.type for path, change in told.items()} == {
        "gone": CHANGE["delete"],
        "m": CHANGE["put"],
        "soon": CHANGE["expire"],
    }
    assert told["gone"].acts[0].reason == "why"
    assert not told["gone"].entry.HasField("value")
    assert told["m"].entry.value.json == '{"a":1}'
    assert told["soon"].previous_revision == made.revision.number
    watch.cancel()


async def test_TT_01_the_put_of_what_has_expired_since_is_told_without_its_value(
    each: Agent, clock: SettableClock
) -> None:
    first = await each.commit(put("before"))
    await each.commit(put("e", "secret", ttl={"seconds": 5}, metadata={"k": "secret"}))
    early = each.watch(after=first.token)
    assert (await early.changes(1))[0].entry.value.text == "secret"
    clock.pass_ms(5_000)
    late = each.watch(after=first.token)
    change = (await late.changes(1))[0]
    assert (change.type, change.entry.HasField("value"), dict(change.entry.metadata)) == (CHANGE["put"], False, {})
    listing = each.watch(snapshot=True)
    assert [entry.key.path for entry in (await listing.next()).snapshot.entries] == ["before"]
    for watch in (early, late, listing):
        watch.cancel()


# Where it cannot keep its promise.


async def test_a_watch_from_before_what_is_kept_says_so(on_any_store: Running) -> None:
    agent, operator = on_any_store.agent, on_any_store.as_agent("keeper", "operator")
    old = await agent.commit(put("e", "1"))
    new = await agent.commit(put("e", "2", at(old)))
    new = await agent.commit(put("e", "3", at(new)))
    await operator.admin.Compact(admin_service_pb2.CompactRequest(before=new.token), metadata=operator.metadata)
    with refused("HISTORY_COMPACTED", compacted_revision=str(new.revision.number)):
        await agent.watch(after=old.token).until(new.token)
    watch = agent.watch(after=new.token)
    await agent.commit(put("e", "4", at(new)))
    assert [change.entry.value.text for change in await watch.changes(1)] == ["4"]
    watch.cancel()


class _NotedDeadlines(MemoryStore):
    """Notes how long it was given for its reads and commits."""

    def __init__(self, clock: SettableClock) -> None:
        super().__init__(clock)
        self.given_s: list[float] = []

    async def read(self, keys: Sequence[bytes], consistency: Consistency, deadline_s: float) -> Cut:
        self.given_s.append(deadline_s)
        return await super().read(keys, consistency, deadline_s)

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        self.given_s.append(deadline_s)
        return await super().commit(change, deadline_s)


async def test_a_watch_without_a_deadline_does_not_wait_for_the_store_without_end(
    start: Started, clock: SettableClock
) -> None:
    store = _NotedDeadlines(clock)
    running = await start(store)
    watch = running.agent.watch(now=True)
    made = await running.agent.commit(put("e", "1"))
    await watch.until(made.token)
    watch.cancel()
    assert store.given_s
    assert max(store.given_s) <= limits.DEADLINE_S_DEFAULT


async def test_a_reader_that_does_not_keep_up_is_told_where_to_resume_and_loses_nothing(start: Started) -> None:
    running = await start()
    watches = running.server._watches
    watches._buffer_events_max = 50
    agent = running.agent
    first = await agent.commit(put("before"))
    slow = agent.watch(after=first.token)
    await slow.next()
    big = "x" * 100_000
    for each in range(100):
        last = await agent.commit(put(f"e{each:03}", big))
    seen: list[str] = []
    with refused("WATCH_TOO_SLOW") as found:
        while True:
            part = await slow.next()
            seen += [change.entry.key.path for change in part.events.changes]
    assert found[0].code is grpc.StatusCode.RESOURCE_EXHAUSTED
    resume = found[0].facts["token"]
    assert number(resume) == number(slow.token)
    watches._buffer_events_max = 8_192
    again = agent.watch(after=resume)
    seen += [change.entry.key.path for part in await again.until(last.token) for change in part.events.changes]
    assert seen == [f"e{each:03}" for each in range(100)]
    again.cancel()


async def test_a_change_that_the_store_lost_ends_every_watch_and_the_next_begins_anew(
    start: Started, clock: SettableClock
) -> None:
    class Forgetful(MemoryStore):
        """Loses one change on its way to the watch."""

        lose = False

        def _batch_after(self, prefixes: tuple[bytes, ...], reached: int):  # type: ignore[no-untyped-def]  # noqa: ANN202 - as its parent
            batch = super()._batch_after(prefixes, reached)
            if self.lose and batch.events:
                self.lose = False
                return batch._replace(events=())
            return batch

    store = Forgetful(clock)
    running = await start(store)
    agent = running.agent
    watch = await agent.watch(now=True).begun()
    made = await agent.commit(put("e", "1"))
    await watch.changes(1)
    store.lose = True
    made = await agent.commit(put("e", "2", at(made)))
    made = await agent.commit(put("e", "3", at(made)))
    async with asyncio.timeout(5):
        with refused("WATCH_GAP") as found:
            while True:
                await watch.next()
        assert found[0].code is grpc.StatusCode.ABORTED
        assert found[0].facts["token"]
        again = await agent.watch(now=True).begun()
        await agent.commit(put("e", "4", at(made)))
        assert [change.entry.value.text for change in await again.changes(1)] == ["4"]
    assert running.server._watches.feed.gaps == 1
    again.cancel()


async def test_a_server_that_drains_tells_its_watches_where_to_resume(start: Started, store: BoardStore) -> None:
    running, other = await start(drain_grace_s=10.0), await start()
    agent = running.agent
    watches = [await agent.watch(now=True).begun() for _ in range(5)]
    await agent.commit(put("a"))
    async with asyncio.timeout(5):
        stopping = asyncio.ensure_future(running.server._wire.drain(10.0))
        for watch in watches:
            kinds: list[str | None] = []
            while kinds[-1:] != ["going_away"]:
                kinds.append((await watch.next()).WhichOneof("content"))
            with pytest.raises(StopAsyncIteration):
                await watch.next()
            assert await watch.call.code() is grpc.StatusCode.OK
            assert "events" in kinds
        await stopping
    made = await other.agent.commit(put("b"))
    resumed = other.agent.watch(after=watches[0].token)
    told = [change.entry.key.path for part in await resumed.until(made.token) for change in part.events.changes]
    assert told == ["b"]
    resumed.cancel()


async def test_many_watchers_of_one_change_are_each_told(running: Running) -> None:
    agent = running.agent
    watches: list[Watched] = [await agent.watch(f"e{each % 10}", now=True).begun() for each in range(100)]
    answer: commit_pb2.CommitResponse = await agent.commit(*[put(f"e{each}") for each in range(10)])
    for each, watch in enumerate(watches):
        (change,) = await watch.changes(1)
        assert change.entry.key.path == f"e{each % 10}"
        assert change.entry.revision == answer.revision
        watch.cancel()
    await until(lambda: not running.server._watches.feed.subscribers)


async def test_nobody_joins_a_feed_that_does_not_stand(store: BoardStore) -> None:
    """It begins at a later state, so whoever had joined before would miss what lies between."""
    feed = Feed(store, 10, 10_000)
    subscriber = _Subscriber((b"h/",), 0, 10, 10_000)
    assert not feed.join(subscriber)
    await feed.start()
    assert feed.join(subscriber)
    await feed.close()
