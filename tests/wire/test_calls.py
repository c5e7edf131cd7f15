"""What every call has in common: who calls, how long, how many, and what is told when the server itself is at fault."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kokuban.v1 import admin_service_pb2, board_service_pb2, commit_pb2, error_reason_pb2
from kokuban_server.adapters.screening import ProcessScreener
from kokuban_server.app.access import Access
from kokuban_server.app.audit import AuditLog
from kokuban_server.app.boards import Boards
from kokuban_server.app.commits import Commits
from kokuban_server.app.conflicts import ConflictLog
from kokuban_server.app.current import Gate
from kokuban_server.app.heads import Heads
from kokuban_server.app.judged_states import JudgedStates
from kokuban_server.app.lineage import Lineages
from kokuban_server.app.lock_guards import LockGuards
from kokuban_server.app.lock_mirror import LockMirror
from kokuban_server.app.mirrored_store import MirroredStore
from kokuban_server.app.quarantine_shelf import QuarantineShelf
from kokuban_server.app.read_scopes import ReadScopes
from kokuban_server.app.reads import Reads
from kokuban_server.app.recorded_calls import RecordedCommits
from kokuban_server.app.redactions import Redactions
from kokuban_server.app.request_ids import RequestIds
from kokuban_server.app.screenings import Screenings
from kokuban_server.app.sealing import Sealing
from kokuban_server.app.store_time import StoreTime
from kokuban_server.app.task_writing import TaskWriting
from kokuban_server.app.watches import Watches
from kokuban_server.app.write_screening import WriteScreening
from kokuban_server.core import limits
from kokuban_server.core.access import Principal, Role
from kokuban_server.core.refusals import OutcomeUnknown, StoreCorrupt, StoreFull, StoreUnavailable
from kokuban_server.ports.board_store import CommitRefused
from kokuban_server.wire import server as wire_server
from kokuban_server.wire.gathering import Gathering
from kokuban_server.wire.redacting import RedactedCommits, Redactor
from kokuban_server.wire.rpc import Call
from kokuban_server.wire.rules import RULES
from kokuban_server.wire.server import UnruledMethodError
from kokuban_server.wire.services import BoardService
from kokuban_server.wire.usage import PrincipalLimits, Usages
from tests.core.obfuscations import ORDERS_EN, hidden
from tests.wire.calls import (
    HeldStore,
    acquire_request,
    commit_request,
    increment,
    of_source,
    put,
    refusal_of,
    refused,
    rule,
    until,
)
from tests.wire.task_calls import Tasks
from tests.wire.test_bad_input import BOARD, FULL, call, check

if TYPE_CHECKING:
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import Agent, SettableClock
    from tests.wire.conftest import Running, Started

# Who calls.

AGENT, ROLES = "kokuban-agent", "kokuban-roles"
CREDENTIALS: list[tuple[tuple[tuple[str, str], ...], str]] = [
    ((), "CREDENTIAL_REQUIRED"),
    (((ROLES, "operator"),), "CREDENTIAL_REQUIRED"),
    (((AGENT, ""),), "CREDENTIAL_INVALID"),
    (((AGENT, "a b"),), "CREDENTIAL_INVALID"),
    (((AGENT, "a" * 129),), "CREDENTIAL_INVALID"),
    (((AGENT, "a"), (AGENT, "b")), "CREDENTIAL_INVALID"),
    (((AGENT, "b"), (AGENT, "a")), "CREDENTIAL_INVALID"),
    (((AGENT, "a"), (AGENT, "a")), "CREDENTIAL_INVALID"),
    (((AGENT, "a"), (ROLES, "member"), (ROLES, "operator")), "CREDENTIAL_INVALID"),
    (((AGENT, "a"), (ROLES, "operator"), (ROLES, "member")), "CREDENTIAL_INVALID"),
    (((AGENT, "a"), (ROLES, "")), "CREDENTIAL_INVALID"),
    (((AGENT, "a"), (ROLES, "root")), "CREDENTIAL_INVALID"),
    (((AGENT, "a"), (ROLES, "member,,operator")), "CREDENTIAL_INVALID"),
]


@pytest.mark.parametrize("method", FULL)
async def test_RB_21_every_method_wants_one_credential_before_it_looks_at_anything_else(
    agent: Agent, method: str
) -> None:
    """Also when the request is nothing but broken bytes: who may not call learns nothing about the request."""
    for metadata, reason in CREDENTIALS:
        for raw in (FULL[method]().SerializeToString(), b"\xff"):
            refusal = await call(agent, method, raw, metadata=metadata)
            assert refusal is not None
            assert (refusal.reason, refusal.code) == (reason, grpc.StatusCode.UNAUTHENTICATED), metadata


async def test_a_method_without_a_rule_or_a_handler_stops_the_server_at_start(
    start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {name: rule for name, rule in RULES.items() if not name.endswith("Compact")}
    monkeypatch.setattr(wire_server, "RULES", rules)
    with pytest.raises(UnruledMethodError, match=r"kokuban\.v1\.AdminService\.Compact"):
        await start()


def at_home(message: Any, epoch: str) -> None:  # noqa: ANN401 - any message, or any field of one
    """Give every revision and fence in a message the epoch of a store that is there."""
    for field, value in message.ListFields():
        if field.name == "epoch":
            message.epoch = epoch
        elif field.type == FieldDescriptor.TYPE_MESSAGE and not field.message_type.GetOptions().map_entry:
            for item in value if field.is_repeated else (value,):
                at_home(item, epoch)


async def test_every_method_that_has_a_rule_about_regions_asks_for_the_region(
    start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Default deny: what `Access.open` does not open, no method gets to."""
    running = await start()
    supervisor = running.as_agent("writer-1", "member,supervisor")
    await supervisor.commit(put("e"))
    await Tasks(supervisor).create("t1")
    opened = await supervisor.open_session()
    lock = (await supervisor.grant(acquire_request(opened.session.id, "locked"))).lock
    order = hidden("en", ORDERS_EN[0], "HTML comment")
    with refused("CONTENT_QUARANTINED") as held:
        await supervisor.commit(put("page", order, provenance=of_source(uri="https://x.example")))
    asked: list[str] = []
    plain = Access.open_under

    def noted(self: Access, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401 - any message, or any field of one
        asked.append(str(arguments[2]))
        return plain(self, *arguments, **more)

    monkeypatch.setattr(Access, "open_under", noted)
    for name, its_rule in RULES.items():
        asked.clear()
        service, _, method = name.rpartition(".")
        message: Any = FULL[f"/{service}/{method}"]()
        if method in {"CheckCurrent", "BreakLock", "ListSessions"}:  # these ask about what they find
            at_home(message, opened.epoch)
        if hasattr(message, "lock_id"):
            message.lock_id = lock.id
        if method in {"ListSessions", "ListQuarantine", "ListTasks"}:
            message.ClearField("page_token")
            message.ClearField("page_size")
        if method == "ReviewQuarantine":
            message.ids[0] = held[0].facts["quarantine_id"]
        refusal = await call(supervisor, f"/{service}/{method}", message.SerializeToString())
        assert bool(asked) == (its_rule.verb is not None or its_rule.finds), (name, refusal)


# Health and reflection.


async def test_health_answers_without_a_credential(running: Running) -> None:
    health = health_pb2_grpc.HealthStub(running.agent.channel)
    for service in ("", "kokuban.v1.BoardService", "kokuban.v1.AdminService", "grpc.health.v1.Health"):
        request = health_pb2.HealthCheckRequest(service=service)
        assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
        watch = health.Watch(request)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await health.Check(health_pb2.HealthCheckRequest(service="other"))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_turns_and_new_calls_are_refused_while_the_server_drains(start: Started) -> None:
    running = await start(drain_grace_s=5.0)
    health = health_pb2_grpc.HealthStub(running.agent.channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(service=""))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    running.server._wire._calls.draining.set()
    with refused("SERVER_DRAINING") as found:
        await running.agent.commit(put("e"))
    assert (found[0].code, found[0].retry_ms) == (grpc.StatusCode.UNAVAILABLE, 100)
    with refused("SERVER_DRAINING"):
        await running.agent.watch(now=True).next()
    stopping = asyncio.ensure_future(running.server.stop())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()
    await stopping


async def _reflected(channel: grpc.aio.Channel) -> list[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    return [service.name async for answer in asked for service in answer.list_services_response.service]


async def test_reflection_is_off_unless_asked_for(start: Started) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await _reflected((await start()).agent.channel)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    names = await _reflected((await start(reflection=True)).agent.channel)
    assert {"kokuban.v1.BoardService", "kokuban.v1.AdminService", "grpc.health.v1.Health"} <= set(names)


async def test_status_is_for_any_principal(running: Running) -> None:
    made = await running.agent.commit(put("e"))
    status = await running.agent.admin.GetStatus(admin_service_pb2.GetStatusRequest(), metadata=running.agent.metadata)
    assert (status.store_kind, status.epoch) == ("memory", made.revision.epoch)
    assert status.revision >= made.revision.number
    assert status.server_version


# How many.


async def test_more_calls_than_the_server_takes_are_refused_and_nothing_is_done(
    start: Started, clock: SettableClock
) -> None:
    store = HeldStore(clock)
    running = await start(store, unary_calls_max=4, streams_max=2)
    running_max = 4
    await running.agent.commit(put("first"))
    store.hold()
    held = [asyncio.ensure_future(running.agent.commit(put(f"e{number}"))) for number in range(4)]
    await until(lambda: not running.server._wire._calls._unary_left)
    with refused("TOO_MANY_REQUESTS") as found:
        await running.agent.commit(put("late"))
    assert (found[0].code, found[0].retry_ms) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 200)
    store.release()
    assert len(await asyncio.gather(*held)) == running_max
    assert "late" not in await running.agent.paths()
    watches = [await running.agent.watch(now=True).begun() for _ in range(2)]
    with refused("TOO_MANY_REQUESTS"):
        await running.agent.watch(now=True).next()
    for watch in watches:
        watch.cancel()


# How long.


async def test_a_stream_of_commits_outlives_the_longest_deadline_of_a_call(
    start: Started, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEADLINE_S_MAX", 0.0)  # as if that time had passed since the stream began
    store = HeldStore(clock)
    running = await start(store)
    stream = running.agent.board.CommitStream(metadata=running.agent.metadata)
    await stream.write(commit_pb2.CommitStreamRequest(commit=commit_request(put("e"))))
    answer = await stream.read()
    assert isinstance(answer, commit_pb2.CommitStreamResponse)
    assert answer.WhichOneof("result") == "committed", answer
    assert store.deadline_s > limits.DEADLINE_S_DEFAULT - 1
    await stream.done_writing()


async def test_a_commit_whose_time_is_over_before_it_began_writes_nothing(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    await running.agent.commit(put("first"))
    store.hold()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await running.agent.board.Commit(commit_request(put("e")), metadata=running.agent.metadata, timeout=0.05)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    store.release()


async def test_a_client_that_goes_away_leaves_a_whole_commit_or_none(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    await running.agent.commit(put("first"))
    request = commit_request(put("a"), put("b"))
    store.hold()
    sent = running.agent.board.Commit(request, metadata=running.agent.metadata)
    await running.has_in_hand(1)
    sent.cancel()
    store.release()
    answer = await running.agent.send(request)  # the same request tells
    assert await running.agent.paths() == ["a", "b", "first"]
    assert {(await running.agent.get(path)).revision.number for path in ("a", "b")} == {answer.revision.number}


# Faults of the server.


@pytest.mark.parametrize("method", FULL)
async def test_a_fault_shows_an_incident_and_nothing_of_itself(
    start: Started, clock: SettableClock, method: str, capfd: pytest.CaptureFixture[str]
) -> None:
    store = HeldStore(clock)
    running = await start(store)
    operator = running.as_agent("writer-1", "operator,member")
    made = await operator.commit(put("e"))
    if method.endswith("RevealEntry"):  # else it is refused before anything can go wrong
        await operator.set_policy(rule("shared:*", revealers=["anyone"]))
    store.fault = RuntimeError("hunter2")
    message: Any = FULL[method]()
    request = message.commit if method.endswith("CommitStream") else message
    if hasattr(request, "mutations"):
        request.CopyFrom(commit_request(put("f")))
    if hasattr(request, "consistency"):
        request.ClearField("consistency")
    if hasattr(request, "page_token"):
        request.ClearField("page_token")
    if hasattr(request, "snapshot"):
        request.snapshot = True
    if hasattr(request, "before"):
        request.before = made.token
    at_home(message, made.revision.epoch)
    refusal = await call(operator, method, message.SerializeToString())
    check(refusal, "INTERNAL", None)
    assert refusal is not None
    assert "hunter2" not in str(refusal)
    incident = refusal.facts["incident"]
    logged = "".join(capfd.readouterr())
    assert incident in logged
    assert "hunter2" in logged
    store.fault = None
    await operator.commit(put("after"))


@pytest.mark.parametrize(
    ("fault", "reason", "code"),
    [
        (StoreFull(), "STORE_FULL", grpc.StatusCode.RESOURCE_EXHAUSTED),
        (StoreUnavailable("no quorum at 10.0.0.1"), "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE),
        (StoreCorrupt(b"h/secret", "bad record of secret"), "STORE_CORRUPT", grpc.StatusCode.DATA_LOSS),
    ],
)
async def test_what_the_store_cannot_do_is_told_without_its_words(
    start: Started, clock: SettableClock, fault: Exception, reason: str, code: grpc.StatusCode
) -> None:
    store = HeldStore(clock)
    running = await start(store)
    await running.agent.commit(put("e"))
    store.fault = fault
    with refused(reason) as found:
        await running.agent.commit(put("f"))
    assert found[0].code is code
    assert not found[0].facts
    for word in ("secret", "quorum at", "10.0.0.1"):
        assert word not in found[0].message
    store.fault = None
    await running.agent.commit(put("f"))


async def test_a_commit_that_others_always_overtake_is_told_to_come_back(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    await running.agent.commit(put("e"))
    store.fault_in_commit = CommitRefused(())
    for mutation in (put("f"), increment("n")):
        with refused("CONTENDED", attempts="16") as found:
            await running.agent.commit(mutation)
        assert (found[0].code, found[0].retry_ms) == (grpc.StatusCode.ABORTED, 50)
    store.fault_in_commit = None
    assert await running.agent.paths() == ["e"]


async def test_a_commit_of_unknown_outcome_names_its_id_and_the_same_request_tells(
    start: Started, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HeldStore(clock)
    running = await start(store)
    await running.agent.commit(put("e"))
    monkeypatch.setattr(limits, "DEADLINE_S_DEFAULT", 0.1)
    store.fault_in_commit = OutcomeUnknown()
    request = commit_request(put("f"))
    with refused("OUTCOME_UNKNOWN", request_id=request.request_id) as found:
        await running.agent.send(request)
    assert (found[0].code, found[0].retry_ms) == (grpc.StatusCode.UNAVAILABLE, 200)
    store.fault_in_commit = None
    monkeypatch.undo()
    assert not (await running.agent.send(request)).replayed
    assert await running.agent.paths() == ["e", "f"]


async def test_an_answer_that_was_lost_once_is_found_again(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    for mutation in (put("e"), increment("n")):
        store.loses_answers = True
        sent = asyncio.ensure_future(running.agent.commit(mutation))
        async with asyncio.timeout(5):
            while store.loses_answers:
                await asyncio.sleep(0)
                store.loses_answers = not store.lost
        await sent
        store.lost = 0
    assert await running.agent.json("n") == "1"
    assert len(await running.agent.history("e")) == 1


async def test_upkeep_and_the_feed_survive_a_fault_of_the_store(start: Started, clock: SettableClock) -> None:
    """A task that dies quietly would leave watchers waiting for ever and entries unswept."""
    store = HeldStore(clock)
    running = await start(store, upkeep_interval_s=0.05)
    watch = await running.agent.watch(now=True).begun()
    await running.agent.commit(put("e"))
    await watch.changes(1)
    store.fault = RuntimeError("hunter2")
    with pytest.raises(RuntimeError):
        await store.commit(None, 1.0)  # type: ignore[arg-type]  # to see that it is broken
    store.fault = None
    # A commit that the feed cannot take: it fails in between.
    store.fault_in_watch = RuntimeError("hunter2")
    await running.agent.commit(put("f"))
    async with asyncio.timeout(5):
        with refused("WATCH_GAP"):
            while True:
                await watch.next()
    store.fault_in_watch = None
    async with asyncio.timeout(5):
        again = await running.agent.watch(now=True).begun()
        await running.agent.commit(put("g"))
        assert [change.entry.key.path for change in await again.changes(1)] == ["g"]
    again.cancel()
    assert running.server._background
    assert not any(task.done() for task in running.server._background)


async def test_an_upkeep_fault_does_not_end_the_upkeep(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    store.fault = RuntimeError("hunter2")
    running = await start(store, upkeep_interval_s=0.05)
    await until(lambda: store.faults > 0)
    store.fault = None
    await running.agent.commit(put("e", ttl={"seconds": 1}))
    clock.pass_ms(1_000)
    async with asyncio.timeout(5):
        while len(await running.agent.history("e")) < 2:  # noqa: ASYNC110 - the sweeper sets no event for tests
            await asyncio.sleep(0)


# Streams of commits.


async def test_a_stream_answers_every_commit_by_its_id_in_any_order(start: Started, clock: SettableClock) -> None:
    running = await start()
    requests = [commit_request(put(f"e{number}")) for number in range(300)]
    refusable = [commit_request(put("e0")), commit_request(put("e1"), board="nowhere"), commit_request()]
    stream = running.agent.board.CommitStream(metadata=running.agent.metadata)

    async def send() -> None:
        for request in requests + refusable:
            await stream.write(commit_pb2.CommitStreamRequest(commit=request))
        await stream.done_writing()

    sending = asyncio.ensure_future(send())
    answers = {answer.request_id: answer async for answer in stream}
    await sending
    assert set(answers) == {request.request_id for request in requests + refusable}
    assert all(answers[request.request_id].WhichOneof("result") == "committed" for request in requests)
    told = [answers[request.request_id].refused for request in refusable]
    reasons = [error_reason_pb2.ErrorReason.Name(each.reason) for each in told]
    assert reasons[1:] == ["ERROR_REASON_NOT_FOUND", "ERROR_REASON_FIELD_REQUIRED"]
    assert reasons[0] == "ERROR_REASON_ALREADY_EXISTS"
    assert told[0].code == grpc.StatusCode.ALREADY_EXISTS.value[0]
    assert told[0].metadata["winner_agent"] == "writer-1"
    assert told[0].message
    assert await stream.code() is grpc.StatusCode.OK


async def test_a_stream_that_is_closed_without_a_commit_ends_well(agent: Agent) -> None:
    stream = agent.board.CommitStream(metadata=agent.metadata)
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


async def test_a_message_that_is_no_commit_ends_the_stream_and_what_was_sent_before_is_answered(agent: Agent) -> None:
    first = commit_pb2.CommitStreamRequest(commit=commit_request(put("e"))).SerializeToString()
    stream: Any = agent.channel.stream_stream(BOARD + "CommitStream")(metadata=agent.metadata)
    await stream.write(first)
    answer = commit_pb2.CommitStreamResponse.FromString(await stream.read())
    assert answer.WhichOneof("result") == "committed"
    await stream.write(b"\xff")
    with refused("MALFORMED_REQUEST"):
        await stream.read()


async def test_a_stream_is_not_read_further_while_256_commits_wait_for_their_answers(
    store: BoardStore, clock: SettableClock
) -> None:
    """A client that sends and never reads must not fill the server's memory with answers."""
    time = StoreTime(store, clock)
    boards = Boards(store)
    access = Access(store, boards, clock, frozenset({"main"}))
    mirror, ids, heads = LockMirror(store), RequestIds(time, b"key"), Heads(2**20)
    scopes = ReadScopes(MirroredStore(store, mirror), access)
    lineages, audit = Lineages(store, access, heads, scopes), AuditLog(store, time, "server-1", lambda *_: None, bytes)
    guards = LockGuards(mirror, access, time)
    screenings, shelf, tasks = Screenings(access, ProcessScreener()), QuarantineShelf(store), TaskWriting()
    screening, judged = WriteScreening(screenings), JudgedStates(screenings, store.epoch)
    commits = Commits(store, access, heads, time, ids, guards, mirror, lineages, audit, screening, shelf, tasks)
    reads, watches = Reads(store, access, time, scopes, judged), Watches(store, access, time, judged)
    gate = Gate(store, access, time)
    recorded = RecordedCommits(commits, ConflictLog(store, boards, time, ids, lambda _job, _fault: None), mirror)
    redactions = Redactions(ProcessScreener(), Sealing(None, ids.digest))
    redacted = RedactedCommits(recorded, access, Redactor(access, redactions, ids.digest))
    service = BoardService(redacted, reads, watches, gate, time, ids, store.epoch)
    taken = 0

    async def endless() -> Any:  # noqa: ANN401 - any message, or any field of one
        nonlocal taken
        while True:
            taken += 1
            yield commit_pb2.CommitStreamRequest(commit=commit_request(increment("n"))).SerializeToString()

    principal = Principal("dev", "writer-1", frozenset({Role.MEMBER}), is_development=True)
    usage = Usages(PrincipalLimits(1_000, 1_000)).of(principal)
    caller = Call(principal, asyncio.get_running_loop().time() + 100, "", asyncio.Event(), Gathering(), usage)
    answers = service.commit_stream(endless(), caller)
    await anext(answers)
    for _ in range(5_000):
        await asyncio.sleep(0)
    assert 256 <= taken <= 258
    for _ in range(100):
        await anext(answers)
    for _ in range(5_000):
        await asyncio.sleep(0)
    assert 356 <= taken <= 358
    await answers.aclose()
    await redactions.close()
    await mirror.close()


async def test_a_stream_is_ended_while_the_server_drains_and_says_so(start: Started) -> None:
    running = await start(drain_grace_s=60.0)
    stream = running.agent.board.CommitStream(metadata=running.agent.metadata)
    await stream.write(commit_pb2.CommitStreamRequest(commit=commit_request(put("e"))))
    answer = await stream.read()
    assert isinstance(answer, commit_pb2.CommitStreamResponse)
    assert answer.WhichOneof("result") == "committed"
    async with asyncio.timeout(10):
        stopping = asyncio.ensure_future(running.server.stop())
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stream.read()
        await stopping
    assert refusal_of(raised.value).reason == "SERVER_DRAINING"


async def test_nothing_of_a_request_is_logged(
    running: Running, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        await running.agent.commit(put("e", "hunter2", metadata={"k": "hunter2"}), reason="hunter2")
        with refused("ALREADY_EXISTS"):
            await running.agent.commit(put("e", "hunter2"))
        request = board_service_pb2.GetEntryRequest(board="hunter2!")
        with refused("FIELD_INVALID"):
            await running.agent.board.GetEntry(request, metadata=running.agent.metadata)
    assert "hunter2" not in caplog.text
    assert "hunter2" not in "".join(capfd.readouterr())
