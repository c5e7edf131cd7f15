"""Sessions: who is there, for how long, and what is told to whoever keeps one alive."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from kokuban.v1 import session_service_pb2 as session_pb
from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.app.sessions import Pulse as State
from kokuban_server.app.sessions import SessionRequest
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Principal, Role
from kokuban_server.core.refusals import SessionLost, StoreUnavailable
from tests.wire.calls import (
    OWNED_WORKS,
    PRIVATE,
    START_MS,
    Agent,
    HeldStore,
    Member,
    acquire_request,
    commit_request,
    lapse,
    lasting,
    leaf,
    names,
    new_id,
    outcome,
    put,
    refused,
    tree,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from kokuban_server.ports.board_store import BoardStore, Consistency, Cut
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started

RENEWED, LOST = session_pb.SESSION_STATE_RENEWED, session_pb.SESSION_STATE_LOST
IN_JEOPARDY, UNCHANGED = session_pb.SESSION_STATE_IN_JEOPARDY, session_pb.SESSION_STATE_UNCHANGED


# Beginning.


async def test_a_session_says_whose_it_is_what_for_and_for_how_long(each: Agent) -> None:
    opened = await each.open_session(30, "to test")
    session = opened.session
    assert len(session.id) == 32
    assert set(session.id) <= set("0123456789abcdef")
    assert (session.agent, session.label, session.ttl) == ("writer-1", "to test", lasting(30))
    assert session.open_time.ToMilliseconds() == START_MS
    assert not session.HasField("heartbeat_age")
    made = await each.commit(put("e"))
    assert opened.epoch == made.revision.epoch
    assert opened.token < made.token
    (listed,) = await each.presence()
    assert listed.session.HasField("heartbeat_age")
    listed.session.ClearField("heartbeat_age")
    assert listed.session == session
    assert not listed.holds
    assert not listed.waits


async def test_the_same_request_gives_the_same_session_by_any_server_for_as_long_as_it_lives(
    start: Started, any_store: BoardStore
) -> None:
    one, two = (await start(any_store)).agent, (await start(any_store)).agent
    used = new_id()
    first = await one.open_session(30, "label", used)
    for agent in (two, one, two):
        assert (await agent.open_session(30, "label", used)).session == first.session
    assert await names(any_store, keys.SESSION) == [first.session.id]
    for ttl_s, label in ((31, "label"), (30, "another")):
        with refused("REQUEST_ID_REUSED", request_id=used):
            await one.open_session(ttl_s, label, used)
    other = await Agent(one.channel, "writer-2").open_session(30, "label", used)  # an id is its agent's own
    assert other.session.id != first.session.id
    assert await one.close(first.session.id)
    for agent in (one, two):
        with refused("SESSION_LOST", session_id=first.session.id):
            await agent.open_session(30, "label", used)


async def test_a_session_whose_answer_was_lost_is_the_same_and_leaves_no_second_lease(
    start: Started, clock: SettableClock
) -> None:
    store = HeldStore(clock)
    running = await start(store)
    await running.agent.commit(put("e"))
    before = len(store._leases)
    store.loses_answers = True
    opening = asyncio.ensure_future(running.agent.open_session())
    await until(lambda: store.lost > 0)
    store.loses_answers = False
    opened = await opening
    assert await names(store, keys.SESSION) == [opened.session.id]
    await running.agent.keep_alive(opened.session.id)
    await running.agent.open_session()
    assert len(store._leases) - before <= 2 + OWNED_WORKS


async def test_a_session_that_cannot_begin_leaves_no_lease(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    await running.agent.commit(put("e"))
    await until(lambda: len(store._leases) == OWNED_WORKS)
    store.fault_in_commit = StoreUnavailable("hunter2")
    with refused("STORE_UNAVAILABLE"):
        await running.agent.open_session()
    assert len(store._leases) == OWNED_WORKS


@pytest.mark.parametrize(
    ("offset_ms", "fits"), [(-3_600_000, False), (-3_599_999, True), (300_000, True), (300_001, False)]
)
async def test_an_id_outside_the_window_opens_nothing(each: Agent, offset_ms: int, fits: bool) -> None:  # noqa: FBT001 - a parameter of the test
    used = new_id(START_MS + offset_ms)
    if fits:
        await each.open_session(request_id=used)
        return
    with refused("REQUEST_ID_EXPIRED", request_id=used):
        await each.open_session(request_id=used)
    assert await each.presence() == []


# Living.


async def heartbeat_ms(agent: Agent, session: str) -> int:
    """Give how long ago a session was renewed, as the listing says."""
    (age,) = [one.session.heartbeat_age for one in await agent.presence() if one.session.id == session]
    return age.ToMilliseconds()


async def test_LE_06_the_heartbeat_age_grows_and_falls_back_with_each_renewal(on_any_store: Running) -> None:
    """Of a busy holder too: what it does besides is no heartbeat."""
    holder, other = await on_any_store.join(), on_any_store.as_agent("writer-2")
    fence = await holder.acquire("a")
    pulse = await holder.agent.keep_alive(holder.session)
    for turn in range(3):
        age = await heartbeat_ms(other, holder.session)
        while age < 60:
            await holder.agent.commit(put(f"{turn}-{new_id()}"), fences=[fence])
            later = await heartbeat_ms(other, holder.session)
            assert later >= age
            age = later
        await pulse.renew()
        assert await heartbeat_ms(other, holder.session) < 60
    pulse.cancel()


async def test_LE_07_a_session_lives_by_renewals_of_its_own_agent_and_by_nothing_else(on_any_store: Running) -> None:
    """Neither by the connection that opened it, nor by writes and locks, nor by what others say."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    member, other = await on_any_store.join(ttl_s=2), on_any_store.as_agent("writer-2")
    fence = await member.acquire("a", delay_s=0)
    silent = await member.agent.keep_alive(member.session)  # stays open and says no more
    told = set()
    while await heartbeats(other, member.session):
        assert loop.time() - begun < 30
        told.add((await outcome(other.keep_alive(member.session))).reason)
        await outcome(member.agent.commit(put(new_id()), fences=[fence]))
        await outcome(member.acquire("b", delay_s=0))
    assert loop.time() - begun >= 1.9
    assert told <= {"NOT_HOLDER", "SESSION_LOST"}
    assert "NOT_HOLDER" in told
    silent.cancel()


async def heartbeats(agent: Agent, session: str) -> bool:
    """Say whether a session is listed."""
    return any(one.session.id == session for one in await agent.presence(page_size=100))


async def test_every_renewal_is_answered_and_a_client_that_is_done_ends_the_stream_well(each: Agent) -> None:
    session = await each.session()
    pulse = await each.keep_alive(session)
    for _ in range(20):
        await pulse.send("", "")  # later messages need not name it again
    answers = [await pulse.next() for _ in range(20)]
    assert [(answer.state, answer.session_id, answer.ttl) for answer in answers] == [
        (RENEWED, session, lasting(60))
    ] * 20
    await pulse.call.done_writing()
    assert await pulse.call.read() is grpc.aio.EOF
    assert await pulse.call.code() is grpc.StatusCode.OK
    assert len(await each.presence()) == 1  # the session is not the stream


async def test_news_of_a_lost_lock_is_no_answer_to_a_renewal(start: Started, clock: SettableClock) -> None:
    """Who took it for one would believe its session to live longer than it does."""
    store = HeldStore(clock)
    running = await start(store)
    member = await running.join()
    fences = [await member.acquire(f"l{number}") for number in range(3)]
    pulse = await member.agent.keep_alive(member.session)
    keeper = running.as_agent("keeper", "operator")
    for number, fence in enumerate(fences):
        await keeper.break_lock(fence.lock_id)
        news = await pulse.news()
        assert (news.state, [lost.lock_id for lost in news.lost_locks]) == (UNCHANGED, [fence.lock_id])
        answer = await pulse.renew()
        assert not answer.lost_locks, number
    pulse.cancel()


async def test_several_streams_may_keep_one_session_alive(start: Started, any_store: BoardStore) -> None:
    """A session survives a reconnect, and the server that opened it."""
    one, two = await start(any_store), await start(any_store)
    member = await one.join()
    pulses = [await agent.keep_alive(member.session) for agent in (one.agent, two.agent, two.agent)]
    pulses[0].cancel()
    for pulse in pulses[1:]:
        await pulse.renew()
    await lapse(any_store, member.session)
    for pulse in pulses[1:]:
        assert (await asyncio.wait_for(pulse.news(), 5)).state == LOST
        with refused("SESSION_LOST"):
            await pulse.news()


async def test_a_session_that_is_not_renewed_is_in_jeopardy_before_it_is_lost(agent: Agent) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    session = await agent.session(2)
    pulse = await agent.keep_alive(session)
    assert (await pulse.news()).state == IN_JEOPARDY
    assert loop.time() - begun >= 1.2
    begun = loop.time()
    await pulse.renew()  # and is not any more
    assert (await pulse.news()).state == IN_JEOPARDY
    assert (await pulse.news()).state == LOST
    assert loop.time() - begun >= 1.9
    with refused("SESSION_LOST", session_id=session):
        await pulse.news()


async def test_a_store_that_does_not_answer_puts_a_session_in_jeopardy(start: Started, clock: SettableClock) -> None:
    """Nobody can tell whether it lives; when the store answers again it is renewed."""
    store = HeldStore(clock)
    running = await start(store)
    member = await running.join(ttl_s=3)
    pulse = await member.agent.keep_alive(member.session)
    store.fault = StoreUnavailable("hunter2")
    await pulse.send()
    assert (await pulse.news()).state == IN_JEOPARDY
    store.fault = None
    await pulse.renew()
    pulse.cancel()


class StallingStore(MemoryStore):
    """A memory store that can let calls wait until they give up, as etcd does without a majority. Its time is its own."""

    def __init__(self, clock: SettableClock) -> None:
        self.now_s = 0.0
        super().__init__(clock, lambda: self.now_s)
        self.stalled = ""
        self.stalls = 0

    async def read(self, keys: Sequence[bytes], consistency: Consistency, deadline_s: float) -> Cut:
        self._stall("read", deadline_s)
        return await super().read(keys, consistency, deadline_s)

    async def renew_lease(self, lease: int, deadline_s: float) -> int:
        self._stall("renew_lease", deadline_s)
        return await super().renew_lease(lease, deadline_s)

    def _stall(self, call: str, deadline_s: float) -> None:
        if self.stalled == call:
            self.now_s += deadline_s
            self.stalls += 1
            raise StoreUnavailable("no majority")


@pytest.mark.parametrize(("stalled", "beats"), [("read", 6), ("renew_lease", 2)])
async def test_a_call_that_waits_for_a_store_does_not_cost_the_session_its_next_renewal(
    start: Started, clock: SettableClock, stalled: str, beats: int
) -> None:
    store = StallingStore(clock)
    running = await start(store)
    member = await running.join(ttl_s=30)
    pulse = await member.agent.keep_alive(member.session)
    store.stalled = stalled
    for beat in range(beats):
        await pulse.send()
        await until(lambda beat=beat: store.stalls > beat)  # type: ignore[misc] # a lambda's default
    store.stalled = ""
    assert store.now_s >= 19
    assert (await pulse.renew()).state == RENEWED
    pulse.cancel()


async def test_the_end_of_a_session_is_told_on_its_stream_however_it_ends(on_any_store: Running) -> None:
    for end in ("lapsed", "closed"):
        member = await on_any_store.join()
        pulse = await member.agent.keep_alive(member.session)
        if end == "lapsed":
            await lapse(on_any_store.server._store, member.session)
        else:
            assert await member.agent.close(member.session)
        news = await asyncio.wait_for(pulse.news(), 5)
        assert (news.state, news.session_id) == (LOST, member.session)
        with refused("SESSION_LOST", session_id=member.session) as found:
            await pulse.news()
        assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION
        with refused("SESSION_LOST", session_id=member.session):
            await member.agent.keep_alive(member.session)
        with refused("SESSION_LOST", session_id=member.session):
            await member.acquire("a")


async def test_RB_34_nobody_renews_or_ends_a_session_of_somebody_else(on_any_store: Running) -> None:
    member, other = await on_any_store.join(), on_any_store.as_agent("writer-2", "operator")
    for call in (other.keep_alive(member.session), other.close(member.session), other.acquire(member.session, "a")):
        with refused("NOT_HOLDER", field="session_id", session_id=member.session) as found:
            await call
        assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION
    with refused("SESSION_LOST", session_id="0" * 32):
        await other.keep_alive("0" * 32)
    assert not await other.close("0" * 32)
    assert len(await member.agent.presence()) == 1


async def test_one_stream_is_for_one_session(each: Agent) -> None:
    session, other = await each.session(), await each.session()
    for board, named, field in (("main", other, "session_id"), ("other", session, "board"), ("\x00", session, "board")):
        pulse = await each.keep_alive(session)
        await pulse.send(board, named)
        with refused("FIELD_INVALID", field=field) as found:
            await pulse.news()
        assert found[0].fields == [field]
    raw: Any = each.channel.stream_stream("/kokuban.v1.SessionService/KeepAlive")(metadata=each.metadata)
    await raw.write(session_pb.KeepAliveRequest(board="main", session_id=session).SerializeToString())
    assert session_pb.KeepAliveResponse.FromString(await raw.read()).state == RENEWED
    await raw.write(b"\xff")
    with refused("MALFORMED_REQUEST"):
        await raw.read()
    empty: Any = each.sessions.KeepAlive(metadata=each.metadata)
    await empty.done_writing()
    with refused("FIELD_REQUIRED", field="session_id"):
        await empty.read()
    assert len(await each.presence()) == 2


async def test_RB_05_no_renewal_is_told_that_was_asked_for_after_the_end(start: Started, store: MemoryStore) -> None:
    """A thousand sessions that end while they are renewed, each at another moment; below the wire, for speed."""
    running = await start()
    chance = random.Random(5)
    answers = [await _race(running, store, chance) for _ in range(1_000)]
    assert all(renewed <= asked for renewed, asked in answers)
    assert {renewed for renewed, _ in answers} >= {0, 1, 2, 3, 4, 5}


async def _race(running: Running, store: MemoryStore, chance: random.Random) -> tuple[int, int]:
    """End a session while it is renewed: give how many renewals were told, and how many were asked for before the end."""
    sessions = running.server._sessions
    principal = Principal("dev", "writer-1", frozenset({Role.MEMBER}), is_development=True)
    deadline = asyncio.get_running_loop().time() + 60
    request = SessionRequest("main", new_id(), START_MS, b"digest", 60_000, "")
    opened = await sessions.open(principal, request, deadline)
    is_over = False
    asked = renewed = 0

    async def renewals() -> AsyncIterator[None]:
        nonlocal asked
        while True:
            asked += not is_over
            yield
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)

    async def end() -> None:
        nonlocal is_over
        for _ in range(chance.randrange(40)):
            await asyncio.sleep(0)
        await store.revoke_lease(opened.session.lease, 1.0)
        is_over = True

    async def listen() -> State:
        nonlocal renewed
        state = State.IN_JEOPARDY
        with contextlib.suppress(SessionLost):
            async for news in sessions.keep_alive(principal, "main", opened.session_id, renewals(), deadline):
                state = news.pulse
                renewed += state is State.RENEWED
        return state

    _, last = await asyncio.gather(end(), listen())
    assert renewed == 0 or last is State.LOST
    return renewed, asked


# Ending.


async def test_closing_a_session_releases_what_it_holds_and_withdraws_what_it_waits_for(on_any_store: Running) -> None:
    store = on_any_store.server._store
    member, other, third = [await on_any_store.join(f"writer-{number}") for number in range(3)]
    fence = await other.acquire("taken")
    for number in range(40):
        await member.acquire(f"l{number}", delay_s=60)
    waiting = await member.queued("taken")
    behind = await third.queued("l7", "taken")
    assert await member.agent.close(member.session)
    with refused("SESSION_LOST"):
        await waiting.ended()
    assert await names(store, keys.MARKER) == [fence.lock_id]  # nothing is left closed for a lock delay
    await other.agent.release(fence)
    await asyncio.wait_for(behind.granted(), 5)
    assert not await member.agent.close(member.session)
    assert set(await names(store, keys.SESSION)) == {other.session, third.session}


async def test_a_keep_alive_stream_on_a_server_that_drains_ends_and_the_session_lives_on(
    start: Started, any_store: BoardStore
) -> None:
    one, two = await start(any_store), await start(any_store)
    member = await one.join(ttl_s=5)
    fence = await member.acquire("a")
    pulse = await member.agent.keep_alive(member.session)
    one.server._drain_streams()
    with refused("SERVER_DRAINING") as found:
        await pulse.news()
    assert (found[0].code, found[0].retry_ms) == (grpc.StatusCode.UNAVAILABLE, 100)
    await two.agent.keep_alive(member.session)
    await two.agent.commit(put("a"), fences=[fence])


# Who is there.


async def test_a_listing_says_who_holds_and_waits_for_what(on_any_store: Running) -> None:
    holder, waiter = await on_any_store.join(), await on_any_store.join("writer-2")
    granted = await holder.agent.grant(acquire_request(holder.session, tree("a"), leaf("b"), purpose="to hold"))
    waiting = await waiter.queued("a/b", purpose="to wait")
    listed = {one.session.id: one for one in await waiter.agent.presence()}
    assert set(listed) == {holder.session, waiter.session}
    assert list(listed[holder.session].holds) == [granted.lock]
    assert not listed[holder.session].waits
    (wait,) = listed[waiter.session].waits
    assert (wait.session_id, wait.agent, wait.purpose) == (waiter.session, "writer-2", "to wait")
    assert list(wait.targets) == [leaf("a/b")]
    assert wait.start_time.ToMilliseconds() == START_MS
    await holder.agent.release(granted.fence)
    lock = (await waiting.granted()).lock
    assert lock.id == wait.lock_id
    listed = {one.session.id: one for one in await holder.agent.presence()}
    assert not listed[holder.session].holds
    assert [held.id for held in listed[waiter.session].holds] == [lock.id]
    assert not listed[waiter.session].waits


async def test_SC_17_what_is_held_in_a_region_that_may_not_be_read_is_left_out(on_any_store: Running) -> None:
    owner, other = await on_any_store.join(), await on_any_store.join("writer-2")
    await owner.acquire(tree("secret", PRIVATE), purpose="a secret")
    plain = Member(owner.agent, await owner.agent.session())
    listed = {one.session.id: one for one in await other.agent.presence()}
    assert set(listed) == {owner.session, plain.session, other.session}
    assert not listed[owner.session].holds
    assert "secret" not in str(listed)
    (own,) = [one for one in await owner.agent.presence() if one.session.id == owner.session]
    assert len(own.holds) == 1


async def test_a_listing_is_in_pages_of_at_most_100(each: Agent) -> None:
    sessions = sorted([await each.session() for _ in range(7)])
    for size in (0, 1, 3, 7, 100):
        found: list[str] = []
        token = ""
        while True:
            request = session_pb.ListSessionsRequest(board="main", page_size=size, page_token=token)
            page = await each.sessions.ListSessions(request, metadata=each.metadata)
            assert len(page.sessions) <= (size or 100)
            assert page.token
            found += [one.session.id for one in page.sessions]
            token = page.next_page_token
            if not token:
                break
        assert found == sessions
    for size in (-1, 101):
        with refused("FIELD_INVALID", field="page_size"):
            await each.presence(page_size=size)


# Limits, each at it and one over.


async def test_a_session_lives_2_seconds_to_1_hour_and_has_256_bytes_of_label(each: Agent) -> None:
    for ttl_s in (2.0, 3_600.0):
        assert (await each.open_session(ttl_s)).session.ttl == lasting(ttl_s)
    for ttl_s in (0.0, 1.999, 3_600.001, -2.0, 2.0**38):
        with refused("DURATION_INVALID", field="ttl", limit="3600000") as found:
            await each.open_session(ttl_s)
        assert found[0].fields == ["ttl"]
    assert (await each.open_session(label="é" * 128)).session.label == "é" * 128
    for label in ("é" * 128 + "x", "x" * 257, "x" * 100_000):
        with refused("FIELD_INVALID", field="label"):
            await each.open_session(label=label)
    assert len(await each.presence()) == 3


async def test_a_board_has_at_most_10000_sessions_and_a_repeat_is_none_more(
    on_any_store: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits.SESSIONS_ENTRIES_MAX == 10_000
    monkeypatch.setattr(limits, "SESSIONS_ENTRIES_MAX", 5)
    agent = on_any_store.agent
    used = new_id()
    first = await agent.open_session(request_id=used)
    for _ in range(4):
        await agent.session()
    with refused("TOO_MANY_LOCKS", what="sessions", limit="5") as found:
        await agent.session()
    assert found[0].code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await agent.open_session(request_id=used)).session == first.session
    await agent.close(first.session.id)
    await agent.session()


async def test_a_session_is_of_one_board(start: Started) -> None:
    agent = (await start(boards=["main", "other"])).agent
    elsewhere = (await agent.open_session(board="other")).session.id
    with refused("SESSION_LOST", session_id=elsewhere):
        await agent.acquire(elsewhere, "a")
    with refused("SESSION_LOST", session_id=elsewhere):
        await agent.keep_alive(elsewhere)
    assert not await agent.close(elsewhere)
    assert await agent.presence() == []
    with refused("NOT_FOUND"):
        await agent.open_session(board="nowhere")
    fence = await agent.grant(acquire_request(elsewhere, "a", board="other"))
    with refused("LOCK_LOST"):
        await agent.commit(put("a"), fences=[fence.fence])
    await agent.commit(put("a"))
    with refused("LOCKED_BY_OTHER"):
        await agent.send(commit_request(put("a"), board="other"))
