"""What one agent may take of a server: at the limit, one over it, and what gives room again."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from kokuban.v1 import admin_service_pb2, commit_pb2, error_reason_pb2
from kokuban_server.core.access import Principal
from kokuban_server.wire import usage as usage_of_the_wire
from kokuban_server.wire.rules import RULES
from tests.fault_proxy import FaultProxy
from tests.wire.calls import Agent, HeldStore, acquire_request, commit_request, connected, put, refused, until
from tests.wire.test_credentials import Book, Caller, bearer, requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kokuban_server.wire.usage import Usage
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started

CALLS_MAX = 4
STREAMS_MAX = 2
FAR_S = 100.0
LIMITED = {
    "BoardService.Commit",
    "BoardService.CommitStream",
    "SessionService.OpenSession",
    "LockService.AcquireLock",
    "LockService.ClaimEntry",
    "LockService.DowngradeLock",
    "LockService.BreakLock",
    "AdminService.CreateBoard",
    "AdminService.SetPolicy",
    "TaskService.CreateTask",
    "TaskService.ClaimNextStep",
    "TaskService.WaitForTask",
    "TaskService.ResumeTask",
    "TaskService.CancelTask",
    "TaskService.ArchiveTask",
    "TaskService.RestoreTask",
    "TrustService.Endorse",
    "TrustService.EraseSubject",
    "TrustService.PurgeSource",
    "TrustService.ReviewQuarantine",
}
"""What counts as a write. Releases, ends of sessions and renewals do not: they make room, or must not be late."""


def usage(running: Running, agent: str = "writer-1", tenant: str = "dev") -> Usage:
    return running.server._wire._calls._usages.of(Principal(tenant, agent, frozenset()))


def write_ahead(running: Running, agent: str = "writer-1") -> None:
    """Have an agent have written so much that it may write again only after a long time."""
    writes = usage(running, agent)._writes
    assert writes is not None
    writes._full_at_s = asyncio.get_running_loop().time() + FAR_S


@pytest.fixture
def held_store(clock: SettableClock) -> HeldStore:
    return HeldStore(clock)


@pytest.fixture
async def running(start: Started, held_store: HeldStore) -> Running:
    running = await start(held_store, principal_calls_max=CALLS_MAX, principal_streams_max=STREAMS_MAX)
    await running.agent.commit(put("first"))
    return running


@contextlib.asynccontextmanager
async def full(running: Running, held_store: HeldStore) -> AsyncIterator[list[Any]]:
    """Keep as many commits of one agent in hand as it may have."""
    held_store.hold()
    sent = [
        running.agent.board.Commit(commit_request(put(f"e{number}")), metadata=running.agent.metadata)
        for number in range(CALLS_MAX)
    ]
    await until(lambda: usage(running).calls.in_hand == CALLS_MAX)
    try:
        yield sent
    finally:
        held_store.release()
    await until(lambda: usage(running).calls.in_hand == 0)


# Calls in hand.


async def test_one_call_more_than_an_agent_may_have_in_hand_is_refused_and_nothing_is_done(
    running: Running, held_store: HeldStore
) -> None:
    async with full(running, held_store) as sent:
        with refused("PRINCIPAL_LIMIT_REACHED", what="calls", limit=str(CALLS_MAX)) as found:
            await running.agent.commit(put("late"))
        assert (found[0].code, found[0].retry_ms) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 200)
        held_store.release()
        assert len(await asyncio.gather(*sent)) == CALLS_MAX
    assert "late" not in await running.agent.paths()
    await running.agent.commit(put("late"))


async def test_an_agent_that_is_at_its_limit_takes_nothing_from_another(
    running: Running, held_store: HeldStore
) -> None:
    async with full(running, held_store):
        assert (await running.as_agent("writer-2").get("first")).key.path == "first"


async def test_there_is_room_again_after_a_refusal_a_cancellation_and_a_cut_connection(
    running: Running, held_store: HeldStore
) -> None:
    for _ in range(CALLS_MAX + 1):
        with refused("ALREADY_EXISTS"):
            await running.agent.commit(put("first"))
        with refused("FIELD_REQUIRED"):
            await running.agent.commit()
    async with full(running, held_store) as sent:
        for call in sent:
            call.cancel()
        await until(lambda: usage(running).calls.in_hand == 0)
    async with FaultProxy(running.port) as proxy, connected(int(proxy.endpoint.rpartition(":")[2])) as channel:
        cut = Agent(channel)
        held_store.hold()
        waiting = [asyncio.ensure_future(cut.commit(put(f"cut{number}"))) for number in range(CALLS_MAX)]
        await until(lambda: usage(running).calls.in_hand == CALLS_MAX)
        proxy.reset()
        await until(lambda: usage(running).calls.in_hand == 0)
        held_store.release()
        await asyncio.gather(*waiting, return_exceptions=True)
    await running.agent.commit(put("after"))


async def test_commits_of_a_stream_count_as_calls_and_the_stream_lives_on(
    running: Running, held_store: HeldStore
) -> None:
    stream = running.agent.board.CommitStream(metadata=running.agent.metadata)
    held_store.hold()
    requests = [commit_request(put(f"e{number}")) for number in range(CALLS_MAX + 1)]
    for request in requests:
        await stream.write(commit_pb2.CommitStreamRequest(commit=request))
    answer: Any = await stream.read()
    assert answer.request_id == requests[-1].request_id
    assert answer.refused.reason == error_reason_pb2.ERROR_REASON_PRINCIPAL_LIMIT_REACHED
    assert dict(answer.refused.metadata) == {"what": "calls", "limit": str(CALLS_MAX)}
    assert answer.refused.retry_delay.ToMilliseconds() == 200
    held_store.release()
    for _ in range(CALLS_MAX):
        answer = await stream.read()
        assert answer.WhichOneof("result") == "committed", answer
    await stream.write(commit_pb2.CommitStreamRequest(commit=requests[-1]))
    answer = await stream.read()
    assert answer.WhichOneof("result") == "committed", answer
    await stream.done_writing()
    assert usage(running).calls.in_hand == 0


# Streams.


async def test_one_stream_more_than_an_agent_may_have_is_refused_until_one_ends(running: Running) -> None:
    watches = [await running.agent.watch(now=True).begun() for _ in range(STREAMS_MAX)]
    with refused("PRINCIPAL_LIMIT_REACHED", what="streams", limit=str(STREAMS_MAX)) as found:
        await running.agent.watch(now=True).next()
    assert (found[0].code, found[0].retry_ms) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1_000)
    (await running.as_agent("writer-2").watch(now=True).begun()).cancel()
    watches[0].cancel()
    await until(lambda: usage(running).streams.in_hand < STREAMS_MAX)
    watches[0] = await running.agent.watch(now=True).begun()
    for watch in watches:
        watch.cancel()
    await until(lambda: usage(running).streams.in_hand == 0)


async def test_a_stream_that_ends_by_itself_or_is_cut_off_gives_room(running: Running) -> None:
    session = await running.agent.session()
    for number in range(STREAMS_MAX + 1):
        await running.agent.acquire(session, f"lock{number}")
        with refused("LOCK_OVERLAPS_OWN"):
            await running.agent.grant(acquire_request(session, f"lock{number}"))
    async with FaultProxy(running.port) as proxy, connected(int(proxy.endpoint.rpartition(":")[2])) as channel:
        for _ in range(STREAMS_MAX):
            await Agent(channel).watch(now=True).begun()
        assert usage(running).streams.in_hand == STREAMS_MAX
        proxy.reset()
        await until(lambda: usage(running).streams.in_hand == 0)


async def test_what_an_agent_watches_never_keeps_it_from_keeping_its_sessions_alive(running: Running) -> None:
    watches = [await running.agent.watch(now=True).begun() for _ in range(STREAMS_MAX)]
    pulses = [await running.agent.keep_alive(await running.agent.session()) for _ in range(STREAMS_MAX)]
    with refused("PRINCIPAL_LIMIT_REACHED", what="keep_alives", limit=str(STREAMS_MAX)):
        await running.agent.keep_alive(await running.agent.session())
    for watch in watches:
        watch.cancel()
    for pulse in pulses:
        pulse.cancel()
    await until(lambda: usage(running).keep_alives.in_hand == 0)


async def test_two_credentials_of_one_agent_count_together_and_two_tenants_apart(
    start: Started, tmp_path: Path
) -> None:
    book = Book(tmp_path / "principals.json")
    roles = ["member", "operator"]
    tokens = [book.give(f"token-{number}", agent="planner", roles=roles) for number in range(2)]
    other = book.give("other", tenant="other", agent="planner", roles=roles)
    running = await start(identity="credentials", principals_file=book.path, principal_streams_max=STREAMS_MAX)
    channel: Any = running.agent.channel
    caller = Caller(channel)
    create = admin_service_pb2.CreateBoardRequest(board="main")
    assert [await caller.reason("AdminService.CreateBoard", create, bearer(token)) for token in (tokens[0], other)] == [
        "",
        "",
    ]
    watch = requests("main")["BoardService.Watch"]
    begin = channel.unary_stream("/kokuban.v1.BoardService/Watch")
    watches = [begin(watch.SerializeToString(), metadata=[bearer(token)]) for token in tokens]
    for each in watches:
        await each.read()
    for token in tokens:
        assert await caller.reason("BoardService.Watch", watch, bearer(token)) == "PRINCIPAL_LIMIT_REACHED"
    assert await caller.reason("BoardService.Watch", watch, bearer(other)) == ""
    for each in watches:
        each.cancel()


# Writes a second.


@pytest.mark.parametrize("method", sorted(name.removeprefix("kokuban.v1.") for name in RULES))
async def test_what_writes_is_limited_and_what_frees_or_reads_is_not(start: Started, method: str) -> None:
    running = await start(principal_writes_per_s_max=1)
    await running.agent.commit(put("first"))
    write_ahead(running)
    metadata = (("kokuban-agent", "writer-1"), ("kokuban-roles", "member,supervisor,operator"))
    reason = await Caller(running.agent.channel).reason(method, requests("main")[method], *metadata)
    assert (reason == "PRINCIPAL_LIMIT_REACHED") == (method in LIMITED), reason
    if method != "AdminService.DeleteBoard":  # which leaves nothing to write on
        await running.as_agent("writer-2").commit(put("second"))
    assert usage(running).calls.in_hand == 0


async def test_an_agent_that_writes_too_fast_is_told_when_it_may_write_again(start: Started) -> None:
    running = await start(principal_writes_per_s_max=1, principal_writes_burst_max=3)
    for number in range(3):
        await running.agent.commit(put(f"e{number}"))
    with refused("PRINCIPAL_LIMIT_REACHED", what="writes", limit="1") as found:
        await running.agent.commit(put("late"))
    retry_ms = found[0].retry_ms
    assert retry_ms is not None
    assert 0 < retry_ms <= 1_000
    await asyncio.sleep(retry_ms / 1000)
    await running.agent.commit(put("late"))
    assert await running.agent.paths() == ["e0", "e1", "e2", "late"]


async def test_without_a_burst_an_agent_may_make_the_writes_of_a_second_at_once(start: Started) -> None:
    running = await start(principal_writes_per_s_max=5)
    begun_s = asyncio.get_running_loop().time()
    answers = [asyncio.ensure_future(running.agent.commit(put(f"e{number}"))) for number in range(50)]
    await asyncio.wait(answers)
    took_s = asyncio.get_running_loop().time() - begun_s
    done = sum(answer.exception() is None for answer in answers)
    assert 5 <= done <= 5 + 5 * took_s


async def test_a_commit_of_a_stream_that_comes_too_soon_is_refused_and_the_stream_lives_on(start: Started) -> None:
    running = await start(principal_writes_per_s_max=1, principal_writes_burst_max=2)
    stream = running.agent.board.CommitStream(metadata=running.agent.metadata)
    requests = [commit_request(put(f"e{number}")) for number in range(3)]
    answers: dict[str, Any] = {}
    for request in requests:
        await stream.write(commit_pb2.CommitStreamRequest(commit=request))
    for _ in requests:
        answer: Any = await stream.read()
        answers[answer.request_id] = answer
    told = [answers[request.request_id].WhichOneof("result") for request in requests]
    assert told == ["committed", "committed", "refused"]
    refusal = answers[requests[-1].request_id].refused
    assert refusal.reason == error_reason_pb2.ERROR_REASON_PRINCIPAL_LIMIT_REACHED
    assert dict(refusal.metadata) == {"what": "writes", "limit": "1"}
    assert refusal.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    await asyncio.sleep(refusal.retry_delay.ToMilliseconds() / 1000)
    await stream.write(commit_pb2.CommitStreamRequest(commit=requests[-1]))
    answer = await stream.read()
    assert answer.WhichOneof("result") == "committed", answer
    await stream.done_writing()


# What is remembered.


async def test_agents_that_take_nothing_are_forgotten_and_the_others_are_not(
    start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_of_the_wire, "_KNOWN_MIN", 8)
    running = await start(principal_writes_per_s_max=1)
    usages = running.server._wire._calls._usages
    usages._known_max = 8
    watch = await running.as_agent("watcher").watch(now=True).begun()
    write_ahead(running, "writer-1")
    for number in range(50):
        await running.as_agent(f"reader-{number}").page()
        assert len(usages._known) <= 8
    assert usage(running, "watcher").streams.in_hand == 1
    with refused("PRINCIPAL_LIMIT_REACHED"):
        await running.agent.commit(put("e"))
    watch.cancel()
