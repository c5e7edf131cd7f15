"""The audit log: what is recorded and what is not, and that whatever is done to it behind the servers' backs is found."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import grpc
import pytest
import structlog

from kokuban.store.v1 import records_pb2
from kokuban.v1 import (
    admin_service_pb2,
    audit_pb2,
    board_service_pb2,
    commit_pb2,
    entry_pb2,
    lock_service_pb2,
    session_service_pb2,
)
from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.adapters.system import SystemClock
from kokuban_server.app.access import Access
from kokuban_server.app.audit import AuditLog
from kokuban_server.app.audit_reading import AuditFilter, AuditReading
from kokuban_server.app.boards import Boards
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Grants, Principal, Role
from kokuban_server.core.audit import AuditEntry
from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.core.refusals import OutcomeUnknown, StoreCorrupt, StoreFull, StoreUnavailable
from kokuban_server.ports.board_store import CommitRefused
from kokuban_server.records.audit_codec import decode_anchor, unseal
from tests.audit_harm import chains_of, content, each_is_found, write
from tests.wire.audit_calls import audit_records, break_a_lock, kinds, make_board, settle, verdict
from tests.wire.calls import (
    REGION,
    HeldStore,
    acquire_request,
    at,
    commit_request,
    key,
    leaf,
    put,
    records,
    refused,
    rule,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kokuban_server.bootstrap import Server
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import Agent, SettableClock
    from tests.wire.conftest import Running, Started

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NO_LOCK = "0" * 32


def deadline() -> float:
    return asyncio.get_running_loop().time() + 10.0


# What is recorded.


async def test_each_act_leaves_one_record_that_says_who_what_when_why_and_from_where(
    on_any_store: Running, clock: SettableClock
) -> None:
    await make_board(on_any_store, "launch", ("traceparent", TRACE))
    clock.pass_ms(1_000)
    lock_id = await break_a_lock(on_any_store, "a", "its holder is gone")
    clock.pass_ms(1_000)
    chief = on_any_store.as_agent("chief", "operator,member")
    token = (await chief.admin.GetStatus(admin_service_pb2.GetStatusRequest(), metadata=chief.metadata)).token
    await chief.admin.Compact(admin_service_pb2.CompactRequest(before=token), metadata=chief.metadata)
    made, broken, compacted = await audit_records(on_any_store)
    assert (made.act, made.method, made.board) == ("board.create", "AdminService.CreateBoard", "launch")
    assert (made.agent, list(made.roles), made.outcome, made.traceparent) == ("chief", ["operator"], "done", TRACE)
    assert (broken.act, broken.method, broken.board) == ("lock.break", "LockService.BreakLock", "main")
    assert (broken.agent, list(broken.roles), broken.outcome) == ("keeper", ["supervisor"], "done")
    assert (broken.target, broken.reason) == (f"lock {lock_id}", "its holder is gone")
    assert (compacted.act, compacted.method, compacted.outcome) == ("history.compact", "AdminService.Compact", "begun")
    assert list(compacted.roles) == ["member", "operator"]
    assert compacted.target.startswith("before revision ")
    for number, record in enumerate((made, broken, compacted)):
        assert record.peer.startswith("ipv4:127.0.0.1:")
        assert record.act_time.ToMilliseconds() == record.record_time.ToMilliseconds()
        assert record.record_time.ToMilliseconds() == clock.now_ms() - 2_000 + number * 1_000
        assert record.sequence == number + 1
        assert record.suppressed == 0


async def test_what_is_done_to_boards_and_policies_is_recorded_and_a_repeat_is_not(on_any_store: Running) -> None:
    chief = on_any_store.as_agent("chief", "operator,member")
    await chief.commit(put("a"))
    for _ in range(2):
        await chief.set_policy(rule("task:*", writers=[]), reason="closed for the night")
    with refused("POLICY_CHANGED"):
        await chief.set_policy(rule("task:*"))
    for _ in range(2):
        request = admin_service_pb2.DeleteBoardRequest(board="main", reason="it is over")
        await chief.admin.DeleteBoard(request, metadata=chief.metadata)
    laid, gone = await audit_records(on_any_store)
    assert (laid.act, laid.method, laid.board) == ("policy.set", "AdminService.SetPolicy", "main")
    assert (laid.agent, laid.target, laid.reason, laid.outcome) == ("chief", "policy 1", "closed for the night", "done")
    assert (gone.act, gone.method, gone.board) == ("board.delete", "AdminService.DeleteBoard", "main")
    assert (gone.agent, gone.reason, gone.outcome) == ("chief", "it is over", "done")
    assert await kinds(on_any_store) == set()


async def test_SC_19_each_read_of_another_agents_private_memory_is_recorded_before_it_is_answered(
    on_any_store: Running,
) -> None:
    private = "agent:writer-1"
    made = await on_any_store.agent.commit(put("a", region=private), put("a"))
    await on_any_store.as_agent("chief", "operator").set_policy(rule("agent:*", readers=["acting", "role:supervisor"]))
    boss = on_any_store.as_agent("boss", "member,supervisor")
    board, named = "main", key("a", private)
    await boss.get("a", private)
    await boss.board.BatchGetEntries(
        board_service_pb2.BatchGetEntriesRequest(board=board, keys=[key("a"), named]), metadata=boss.metadata
    )
    await boss.board.ListEntries(
        board_service_pb2.ListEntriesRequest(board=board, region=private), metadata=boss.metadata
    )
    await boss.board.ListRevisions(
        board_service_pb2.ListRevisionsRequest(board=board, key=named), metadata=boss.metadata
    )
    await boss.board.CheckCurrent(
        board_service_pb2.CheckCurrentRequest(board=board, entries=[entry_pb2.EntryAt(key=named, at=made.revision)]),
        metadata=boss.metadata,
    )
    watch = boss.board.Watch(
        board_service_pb2.WatchRequest(
            board=board, targets=[board_service_pb2.WatchTarget(region=private)], snapshot=True
        ),
        metadata=boss.metadata,
    )
    await watch.read()
    await boss.list_locks(region=private)
    believing = commit_request(put("b"))
    believing.preconditions.add(key=named, precondition=at(made.revision))
    await boss.send(believing)
    await boss.get("a")  # of what is not private nothing is recorded
    await on_any_store.agent.get("a", private)
    methods = [
        "GetEntry",
        "BatchGetEntries",
        "ListEntries",
        "ListRevisions",
        "CheckCurrent",
        "Watch",
        "ListLocks",
        "Commit",
    ]
    found = await audit_records(on_any_store, act="region.read")
    assert [record.method.partition(".")[2] for record in found] == methods
    assert {(record.agent, record.board, record.target, record.outcome) for record in found} == {
        ("boss", "main", private, "done")
    }


async def test_private_memory_of_others_is_not_shown_where_that_cannot_be_recorded(
    start: Started, clock: SettableClock
) -> None:
    store = HeldStore(clock)
    running = await start(store)
    await running.agent.commit(put("a", "thought", region="agent:writer-1"))
    await running.as_agent("chief", "operator").set_policy(rule("agent:*", readers=["acting", "role:supervisor"]))
    boss = running.as_agent("boss", "member,supervisor")
    store.fault_in_commit = StoreFull()
    with refused("STORE_FULL"):
        await boss.get("a", "agent:writer-1")
    assert (await running.agent.get("a", "agent:writer-1")).value.text == "thought"
    store.fault_in_commit = None
    assert (await boss.get("a", "agent:writer-1")).value.text == "thought"


async def test_a_full_store_can_be_compacted_and_the_record_follows_when_there_is_room(
    start: Started, clock: SettableClock
) -> None:
    store = HeldStore(clock)
    running = await start(store)
    chief = running.as_agent("chief", "operator,member")
    made = await chief.commit(put("a"))
    store.fault_in_commit = StoreFull()
    request = admin_service_pb2.CompactRequest(before=made.token)
    await chief.admin.Compact(request, metadata=chief.metadata)
    store.fault_in_commit = None
    (compacted,) = await audit_records(running)
    assert (compacted.act, compacted.agent, compacted.outcome) == ("history.compact", "chief", "begun")


async def test_a_record_can_be_checked_without_the_server(on_any_store: Running) -> None:
    for name in ("one", "two", "three"):
        await make_board(on_any_store, name)
    previous = ""
    for record in await audit_records(on_any_store):
        assert record.hash == hashlib.sha256(record.body).hexdigest()
        body = records_pb2.AuditBody.FromString(record.body)
        assert body.previous_hash.hex() == record.previous_hash == previous
        assert (body.chain, body.sequence, body.act, body.agent) == (
            record.chain,
            record.sequence,
            record.act,
            record.agent,
        )
        assert (body.board, body.peer, body.tenant) == (record.board, record.peer, "dev")
        previous = record.hash


async def test_an_act_that_is_refused_is_not_recorded_as_done(on_any_store: Running) -> None:
    await make_board(on_any_store, "launch")
    with refused("BOARD_EXISTS"):
        await make_board(on_any_store, "launch")
    with refused("NOT_FOUND"):
        await on_any_store.as_agent("keeper", "supervisor").break_lock(NO_LOCK)
    chief = on_any_store.as_agent("chief", "operator")
    with refused("TOKEN_INVALID"):
        await chief.admin.Compact(admin_service_pb2.CompactRequest(before="x"), metadata=chief.metadata)
    assert [record.act for record in await audit_records(on_any_store)] == ["board.create"]
    assert await kinds(on_any_store) == set()


async def test_ordinary_work_leaves_no_record(on_any_store: Running) -> None:
    member = on_any_store.agent
    await member.commit(put("a"))
    await member.get("a")
    with refused("NOT_FOUND"):
        await member.get("not there")
    with refused("NOT_FOUND"):
        await member.get("not there", region="agent:writer-1")
    with refused("ALREADY_EXISTS"):
        await member.commit(put("a"))
    holder = await on_any_store.join()
    await holder.acquire("a")
    await member.list_locks()
    assert await audit_records(on_any_store) == []


async def test_what_others_locks_name_is_no_attempt_of_who_lists_them(on_any_store: Running) -> None:
    holder = await on_any_store.join("writer-2")
    await holder.agent.grant(acquire_request(holder.session, leaf("secret", "agent:writer-2")))
    lister = on_any_store.agent
    listed = await lister.sessions.ListSessions(
        session_service_pb2.ListSessionsRequest(board="main"), metadata=lister.metadata
    )
    assert [len(presence.holds) for presence in listed.sessions] == [0]
    assert await audit_records(on_any_store) == []


def private_attempts(agent: Agent, epoch: str = "0" * 16) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every way to ask for somebody else's private region."""
    private, meta = "agent:writer-2", agent.metadata
    target = board_service_pb2.WatchTarget(region=private)
    watching = board_service_pb2.WatchRequest(board="main", targets=[target], now=True)
    return {
        "BoardService.GetEntry": lambda: agent.get("note", region=private),
        "BoardService.BatchGetEntries": lambda: agent.board.BatchGetEntries(
            board_service_pb2.BatchGetEntriesRequest(board="main", keys=[key("note", private)]), metadata=meta
        ),
        "BoardService.ListEntries": lambda: agent.page(region=private),
        "BoardService.ListRevisions": lambda: agent.history("note", region=private),
        "BoardService.Watch": lambda: agent.board.Watch(watching, metadata=meta).read(),
        "BoardService.Commit": lambda: agent.commit(put("note", region=private)),
        "BoardService.CheckCurrent": lambda: agent.board.CheckCurrent(
            board_service_pb2.CheckCurrentRequest(
                board="main",
                entries=[entry_pb2.EntryAt(key=key("note", private), at=entry_pb2.Revision(number=1, epoch=epoch))],
            ),
            metadata=meta,
        ),
        "LockService.AcquireLock": lambda: agent.locks.AcquireLock(
            acquire_request(NO_LOCK, leaf("note", private)), metadata=meta
        ).read(),
        "LockService.ListLocks": lambda: agent.list_locks(region=private),
    }


async def test_each_refused_attempt_on_a_private_region_is_recorded_and_the_caller_notices_nothing(
    on_any_store: Running,
) -> None:
    """Also where the answer is no refusal, but one thing missing among many."""
    attempts = private_attempts(on_any_store.agent, on_any_store.server._store.epoch)
    for method, attempt in attempts.items():
        if method in {"BoardService.BatchGetEntries", "BoardService.CheckCurrent"}:
            await attempt()
        else:
            with pytest.raises(grpc.aio.AioRpcError) as told:
                await attempt()
            assert told.value.code() is grpc.StatusCode.NOT_FOUND, method
    found = await audit_records(on_any_store)
    assert [record.method for record in found] == list(attempts)
    for record in found:
        assert (record.act, record.agent, record.board) == ("access.refused", "writer-1", "main")
        assert (record.target, record.outcome) == ("agent:writer-2", "NOT_FOUND")
        assert record.peer.startswith("ipv4:127.0.0.1:")
    assert await kinds(on_any_store) == set()


async def test_a_refused_commit_of_a_stream_and_a_forbidden_write_and_a_missing_role_are_recorded(
    on_any_store: Running,
) -> None:
    auditor = on_any_store.as_agent("reader", "auditor")
    stream = auditor.board.CommitStream(metadata=auditor.metadata)
    await stream.write(commit_pb2.CommitStreamRequest(commit=commit_request(put("a"))))
    answer = await stream.read()
    assert isinstance(answer, commit_pb2.CommitStreamResponse)
    assert answer.refused.reason
    stream.cancel()
    with refused("ROLE_REQUIRED"):
        await on_any_store.agent.break_lock(NO_LOCK)
    with refused("ROLE_REQUIRED"):
        await on_any_store.agent.admin.VerifyAudit(audit_pb2.VerifyAuditRequest(), metadata=on_any_store.agent.metadata)
    assert [
        (record.method, record.agent, record.board, record.target, record.outcome)
        for record in await audit_records(on_any_store, act="access.refused")
    ] == [
        ("BoardService.CommitStream", "reader", "main", REGION, "WRITE_FORBIDDEN"),
        ("LockService.BreakLock", "writer-1", "main", "role supervisor", "ROLE_REQUIRED"),
        ("AdminService.VerifyAudit", "writer-1", "", "role auditor", "ROLE_REQUIRED"),
    ]


async def test_a_flood_of_refused_attempts_leaves_few_records_that_say_how_many_there_were(running: Running) -> None:
    member, others = running.agent, running.as_agent("writer-3")
    for _ in range(40):
        await asyncio.gather(*(private_attempts(member)["BoardService.BatchGetEntries"]() for _ in range(50)))
    with refused("NOT_FOUND"):
        await others.get("note", region="agent:writer-2")
    found = await audit_records(running)
    assert [record.agent for record in found] == ["writer-1"] * limits.AUDIT_REFUSED_BURST_ENTRIES_MAX + ["writer-3"]
    await settle(running)
    last = (await audit_records(running))[-1]
    assert (last.act, last.agent, last.outcome) == ("access.refused", "writer-1", "SUPPRESSED")
    assert last.suppressed == 2_000 - limits.AUDIT_REFUSED_BURST_ENTRIES_MAX
    await settle(running)
    assert len(await audit_records(running)) == len(found) + 1
    assert await kinds(running) == set()


async def test_attempts_that_find_no_room_are_counted(running: Running) -> None:
    audit = running.server._audit
    async with audit._flushing:  # nothing is written meanwhile
        principals = [
            Principal("dev", f"writer-{number}", frozenset({Role.MEMBER}))
            for number in range(limits.AUDIT_NOTES_ENTRIES_MAX + 1)
        ]
        for principal in principals:
            audit.note(AuditEntry("access.refused", principal, "main", outcome="NOT_FOUND", suppressed=2))
        assert len(audit._notes) == limits.AUDIT_NOTES_ENTRIES_MAX
    await settle(running)
    assert len(await audit_records(running)) == limits.AUDIT_NOTES_ENTRIES_MAX
    await settle(running)
    (last,) = await audit_records(running, agent=principals[-1].agent)
    assert (last.outcome, last.suppressed) == ("SUPPRESSED", 3)


async def test_calls_that_nobody_is_believed_to_have_made_are_logged_and_not_recorded(running: Running) -> None:
    stranger = running.as_agent("not an agent")
    with structlog.testing.capture_logs() as log:
        for _ in range(100):
            with refused("CREDENTIAL_INVALID"):
                await stranger.get("a")
    logged = [line for line in log if line["event"] == "identity.refused"]
    assert 20 <= len(logged) < 40
    assert (logged[0]["method"], logged[0]["reason"]) == ("kokuban.v1.BoardService.GetEntry", "CREDENTIAL_INVALID")
    assert logged[0]["peer"].startswith("ipv4:127.0.0.1:")
    assert await audit_records(running) == []


# Who reads it.


async def test_records_come_in_order_of_time_and_as_they_are_asked_for(
    on_any_store: Running, clock: SettableClock
) -> None:
    times = []
    for number in range(12):
        times.append(clock.now_ms())
        if number % 3:
            await make_board(on_any_store, f"b{number}")
        else:
            await break_a_lock(on_any_store, f"p{number}")
        clock.pass_ms(10)
    found = await audit_records(on_any_store)
    assert [record.record_time.ToMilliseconds() for record in found] == times
    assert [record.agent for record in found] == [["keeper", "chief", "chief"][number % 3] for number in range(12)]

    async def numbers(**wanted: object) -> list[int]:
        asked = await audit_records(on_any_store, "operator", **wanted)
        return [record.sequence - 1 for record in asked]

    def at(time_ms: int) -> dict[str, int]:
        return {"seconds": time_ms // 1000, "nanos": time_ms % 1000 * 1_000_000}

    assert await numbers(act="lock.break") == [0, 3, 6, 9]
    assert await numbers(agent="chief") == [1, 2, 4, 5, 7, 8, 10, 11]
    assert await numbers(board="b4") == [4]
    assert await numbers(board="main", agent="chief") == []
    assert await numbers(begin_time=at(times[4])) == list(range(4, 12))
    assert await numbers(end_time=at(times[4])) == list(range(4))
    assert await numbers(begin_time=at(times[4]), end_time=at(times[7]), agent="chief") == [4, 5]
    assert await numbers(begin_time=at(times[11] + 1)) == []


async def test_a_page_looks_at_10000_records_and_says_that_there_are_more(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two", "three"):
        await make_board(running, name)
    auditor = running.as_agent("bookkeeper", "auditor")

    async def page(token: str) -> audit_pb2.ListAuditRecordsResponse:
        wanted = audit_pb2.AuditFilter(board="three")
        request = audit_pb2.ListAuditRecordsRequest(filter=wanted, page_token=token)
        answer: audit_pb2.ListAuditRecordsResponse = await auditor.admin.ListAuditRecords(
            request, metadata=auditor.metadata
        )
        return answer

    assert not (await page("")).next_page_token
    monkeypatch.setattr(limits, "AUDIT_EXAMINED_ENTRIES_MAX", 2)
    first = await page("")
    assert not first.records
    second = await page(first.next_page_token)
    assert [record.board for record in second.records] == ["three"]
    assert not second.next_page_token
    with refused("PAGE_TOKEN_INVALID"):
        await auditor.admin.ListAuditRecords(
            audit_pb2.ListAuditRecordsRequest(page_token=first.next_page_token), metadata=auditor.metadata
        )


async def test_a_tenants_log_is_its_own(on_any_store: Running) -> None:
    """Another tenant's acts are not in the list, nor in the verdict, nor in an anchor."""
    await make_board(on_any_store, "ours")
    foreign = Principal("dev2", "chief", frozenset({Role.OPERATOR}))
    for tenant in ("de", "dev2", "dev/x"):
        await on_any_store.server._audit.append(AuditEntry("board.create", foreign, "theirs"), deadline())
        foreign = Principal(tenant, "chief", frozenset({Role.OPERATOR}))
    await settle(on_any_store)
    assert [record.board for record in await audit_records(on_any_store)] == ["ours"]
    judged = await verdict(on_any_store)
    assert (judged.record_count, judged.chain_count, judged.anchor_count, judged.fault_count) == (1, 1, 1, 0)
    whole = await content(on_any_store.server._store)
    (anchor,) = (decode_anchor(at, unseal(at, raw)) for at, raw in whole.items() if at == keys.audit_anchor("dev", 1))
    assert anchor.tenant == "dev"
    assert len(anchor.heads) == 1


async def test_an_auditor_of_some_boards_is_not_shown_records_of_others(on_any_store: Running) -> None:
    for name in ("one", "two"):
        await make_board(on_any_store, name)
    store = on_any_store.server._store
    await on_any_store.server._audit.append(
        AuditEntry("test.act", Principal("dev", "chief", frozenset()), target="beyond boards"), deadline()
    )
    reading = AuditReading(store, Access(store, Boards(store), SystemClock(), frozenset()))
    limited = Principal("dev", "reader", frozenset({Role.AUDITOR}), boards=Grants(frozenset({"two"})))
    page = await reading.list_records(limited, AuditFilter(), 100, "", deadline())
    assert [(record.board, record.target) for record, _ in page.found] == [("two", ""), ("", "beyond boards")]
    assert (await reading.verify(limited, b"", deadline())).records == 3


# What is done to it behind the servers' backs.


async def two_servers(start: Started, store: BoardStore) -> tuple[Running, Running]:
    """Two servers of one store, and a log of both: with several anchors, and records behind the last one."""
    one, two = await start(store), await start(store)
    for number, running in enumerate((one, two, one, two, two)):
        await make_board(running, f"a{number}")
        await break_a_lock(running, f"p{number}")
        with refused("NOT_FOUND"):
            await running.agent.get("note", region="agent:writer-2")
        if number in {1, 2, 4}:
            await settle(one)
            await settle(two)
    return one, two


async def test_removing_editing_or_moving_any_record_or_anchor_is_found_over_two_servers(
    start: Started, any_store: BoardStore
) -> None:
    one, two = await two_servers(start, any_store)
    assert await kinds(one) == set()
    judged = await verdict(two)
    assert (judged.record_count, judged.chain_count) == (15, 2)
    assert judged.anchor_count >= 3
    assert [chain.newest_sequence - chain.anchored_sequence for chain in judged.chains] == [0, 0]
    done = await each_is_found(any_store, "dev", lambda: kinds(two))
    assert done["removed"] == done["swapped"] == done["written anew"] == 15
    assert len(done) > 15


async def test_the_newest_record_is_missed_before_it_is_anchored(on_any_store: Running) -> None:
    store = on_any_store.server._store
    for name in ("one", "two", "three"):
        await make_board(on_any_store, name)
    (places,) = chains_of(await content(store), "dev").values()
    for index in range(3):
        before = await content(store)
        await write(store, {places[index]: None})
        assert await kinds(on_any_store) == {"CUT" if index == 2 else "MISSING"}
        await write(store, before)
    assert await kinds(on_any_store) == set()


async def test_a_log_whose_end_was_cut_off_with_everything_that_knew_of_it_is_found_by_a_kept_anchor(
    start: Started, any_store: BoardStore
) -> None:
    running = await start(any_store)
    await make_board(running, "one")
    await settle(running)
    early = await content(any_store)
    kept_early = (await verdict(running)).newest_anchor
    await make_board(running, "two")
    await settle(running)
    kept = (await verdict(running)).newest_anchor
    assert (kept_early.sequence, kept.sequence) == (1, 2)
    assert await kinds(running, kept.hash) == await kinds(running, kept_early.hash) == set()
    late = await content(any_store)
    await write(any_store, {**dict.fromkeys(late), **early})
    assert await kinds(running) == await kinds(running, kept_early.hash) == set()
    assert await kinds(running, kept.hash) == {"ANCHOR_BROKEN"}


async def test_another_tenants_records_do_not_pass_for_ones_own(on_any_store: Running) -> None:
    store = on_any_store.server._store
    await make_board(on_any_store, "ours")
    foreign = Principal("dev2", "chief", frozenset({Role.OPERATOR}))
    for board in ("one", "two"):
        await on_any_store.server._audit.append(AuditEntry("board.create", foreign, board), deadline())
    whole = await content(store)
    theirs = chains_of(whole, "dev2").values()
    (ours,) = chains_of(whole, "dev").values()
    await write(store, {ours[0]: whole[next(iter(theirs))[0]]})
    assert await kinds(on_any_store) == {"REORDERED"}


async def test_all_faults_are_counted_and_100_are_named(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    store, audit = running.server._store, running.server._audit
    chief = Principal("dev", "chief", frozenset({Role.OPERATOR}))
    await asyncio.gather(*(audit.append(AuditEntry("test.act", chief, target=str(n)), deadline()) for n in range(103)))
    whole = await content(store)
    (places,) = chains_of(whole, "dev").values()
    assert len(places) == 103
    await write(store, dict.fromkeys(places[:100], b"\xff"))
    judged = await verdict(running)
    assert (judged.fault_count, len(judged.faults)) == (limits.AUDIT_FAULTS_ENTRIES_MAX,) * 2
    await write(store, dict.fromkeys(places[:101], b"\xff"))
    judged = await verdict(running)
    assert (judged.fault_count, len(judged.faults)) == (101, 100)


# How it is written.


async def test_records_that_arrive_together_share_a_commit(running: Running) -> None:
    store, audit = running.server._store, running.server._audit
    chief = Principal("dev", "chief", frozenset({Role.OPERATOR}))
    entries = [AuditEntry("region.read", chief, "main", f"agent:{number}") for number in range(200)]
    await asyncio.gather(*(audit.append(entry, deadline()) for entry in entries))
    found = await records(store, keys.AUDIT_RECORD)
    assert len(found) == 200
    assert len({record.revision for record in found}) <= 1 + -(-200 // limits.AUDIT_BATCH_ENTRIES_MAX)
    assert [record.target for record in await audit_records(running)] == [entry.target for entry in entries]
    assert await kinds(running) == set()


async def test_an_act_and_its_record_are_of_one_revision(running: Running) -> None:
    store = running.server._store
    await make_board(running, "launch")
    (board,) = [record for record in await records(store, keys.boards("dev")) if b"launch" in record.key]
    (record,) = await records(store, keys.AUDIT_RECORD)
    assert record.revision == board.revision


async def test_an_act_that_loses_a_race_takes_no_number(running: Running) -> None:
    store, audit = running.server._store, running.server._audit
    chief = Principal("dev", "chief", frozenset({Role.OPERATOR}))
    change = ChangeSet((Absent(b"z/race"),), (Put(b"z/race", b""),))
    tries = (audit.commit_with(AuditEntry("test.act", chief), change, deadline()) for _ in range(20))
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    lost = [outcome for outcome in outcomes if isinstance(outcome, CommitRefused)]
    assert len(lost) == 19
    assert all([failure.place for failure in refusal.failures] == [0] for refusal in lost)
    await audit.append(AuditEntry("test.act", chief), deadline())
    assert len(await records(store, keys.AUDIT_RECORD)) == 2
    assert await kinds(running) == set()


class ForgetfulStore(MemoryStore):
    """Loses the first answer to each commit of an audit record."""

    def __init__(self, clock: SettableClock) -> None:
        super().__init__(clock)
        self.lost: set[bytes] = set()

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        revision = await super().commit(change, deadline_s)
        recorded = {one.key for one in change.puts if one.key.startswith(keys.AUDIT_RECORD)}
        if recorded - self.lost:
            self.lost |= recorded
            raise OutcomeUnknown
        return revision


async def test_an_act_whose_answer_was_lost_is_recorded_once_and_answered(start: Started, clock: SettableClock) -> None:
    running = await start(ForgetfulStore(clock))
    await make_board(running, "launch")
    lock_id = await break_a_lock(running, "a")
    await make_board(running, "landing")
    with refused("NOT_FOUND"):
        await running.agent.get("note", region="agent:writer-2")
    found = await audit_records(running)
    assert [record.board for record in found] == ["launch", "main", "landing", "main"]
    assert found[1].target == f"lock {lock_id}"
    assert await kinds(running) == set()


async def test_what_became_of_a_record_is_looked_for_before_the_next_one(start: Started, clock: SettableClock) -> None:
    """Whether the commit with the unknown outcome stands or not, and also if it arrives later than the next one."""
    store = LateStore(clock)
    running = await start(store)
    audit = running.server._audit
    chief = Principal("dev", "chief", frozenset({Role.OPERATOR}))
    await audit.append(AuditEntry("test.act", chief, target="first"), deadline())
    for fate in ("stands", "is lost", "comes late"):
        store.fate = fate
        with pytest.raises(OutcomeUnknown):
            await audit._chain("dev").write(
                [audit._record(AuditEntry("test.act", chief, target=fate))], asyncio.get_running_loop().time() + 0.05
            )
        store.fate = ""
        await audit.append(AuditEntry("test.act", chief, target=f"after {fate}"), deadline())
        for late in store.late:
            with pytest.raises(CommitRefused):
                await store.commit(late, 10.0)
        assert await kinds(running) == set()
    targets = [record.target for record in await audit_records(running)]
    assert targets == ["first", "stands", "after stands", "after is lost", "after comes late"]


class LateStore(MemoryStore):
    """Says of commits that their outcome is unknown."""

    def __init__(self, clock: SettableClock) -> None:
        super().__init__(clock)
        self.fate = ""
        self.late: list[ChangeSet] = []

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        if not self.fate or not change.guards:
            return await super().commit(change, deadline_s)
        if self.fate == "stands":
            await super().commit(change, deadline_s)
        if self.fate == "comes late":
            self.late.append(change)
        await asyncio.sleep(deadline_s)
        raise OutcomeUnknown


async def test_what_cannot_be_recorded_is_not_done(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    chief = running.as_agent("chief", "operator")
    token = (await chief.admin.GetStatus(admin_service_pb2.GetStatusRequest(), metadata=chief.metadata)).token
    await running.agent.commit(put("a"))
    store.fault_in_commit = StoreUnavailable("out of order")
    with refused("STORE_UNAVAILABLE"):
        await chief.admin.Compact(admin_service_pb2.CompactRequest(before=token), metadata=chief.metadata)
    with refused("STORE_UNAVAILABLE"):
        await make_board(running, "launch")
    store.fault_in_commit = None
    assert (await store.status(10.0)).compacted_revision == 0
    assert await audit_records(running) == []
    await make_board(running, "launch")
    assert await kinds(running) == set()


async def test_refused_attempts_wait_until_the_store_answers(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    await running.agent.commit(put("a"))
    store.fault_in_commit = StoreUnavailable("out of order")
    with refused("NOT_FOUND"):
        await running.agent.get("note", region="agent:writer-2")
    with pytest.raises(StoreUnavailable):
        await running.server._audit._flush(deadline())
    store.fault_in_commit = None
    assert [record.target for record in await audit_records(running)] == ["agent:writer-2"]


async def test_a_server_writes_and_anchors_what_it_has_before_it_ends(start: Started, any_store: BoardStore) -> None:
    ending, other = await start(any_store), await start(any_store)
    await make_board(ending, "launch")
    with refused("NOT_FOUND"):
        await ending.agent.get("note", region="agent:writer-2")
    await _end(ending.server)
    judged = await verdict(other)
    assert [(chain.newest_sequence, chain.anchored_sequence) for chain in judged.chains] == [(2, 2)]
    assert judged.fault_count == 0


async def _end(server: Server) -> None:
    for task in server._background:
        task.cancel()
    await server._audit.close()


async def test_servers_that_anchor_at_the_same_moment_leave_one_chain_of_anchors(
    start: Started, any_store: BoardStore
) -> None:
    servers = [await start(any_store) for _ in range(3)]
    for turn in range(5):
        for number, running in enumerate(servers):
            await make_board(running, f"b{turn}{number}")
        await asyncio.gather(*map(settle, servers))
    judged = await verdict(servers[0])
    assert judged.fault_count == 0
    assert [chain.anchored_sequence for chain in judged.chains] == [5, 5, 5]
    assert not await records(any_store, keys.AUDIT_MOVED)


class OvertakenStore(MemoryStore):
    """Lets somebody else be faster, once, when an anchor is about to be written."""

    def __init__(self, clock: SettableClock) -> None:
        super().__init__(clock)
        self.first: Callable[[], Awaitable[None]] | None = None

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        if self.first is not None and any(one.key.startswith(keys.AUDIT_ANCHOR) for one in change.puts):
            first, self.first = self.first, None
            await first()
        return await super().commit(change, deadline_s)


async def test_a_server_that_is_overtaken_while_it_anchors_takes_the_next_number(
    start: Started, clock: SettableClock
) -> None:
    store = OvertakenStore(clock)
    slow, fast = await start(store), await start(store)
    await make_board(slow, "of-slow")

    async def first() -> None:
        await make_board(fast, "of-fast")
        await settle(fast)
        await make_board(slow, "of-slow-again")

    store.first = first
    await settle(slow)
    judged = await verdict(slow)
    assert (judged.anchor_count, judged.fault_count) == (2, 0)
    assert {chain.newest_sequence: chain.anchored_sequence for chain in judged.chains} == {1: 1, 2: 2}


async def test_a_tenants_broken_log_keeps_no_other_from_being_written_and_anchored(running: Running) -> None:
    store, audit = running.server._store, running.server._audit
    ours, theirs = (Principal(tenant, "chief", frozenset({Role.OPERATOR})) for tenant in ("dev", "dev2"))
    await make_board(running, "ours")
    await settle(running)
    chain = audit._chain("dev")
    await write(store, {keys.audit_newest("dev"): b"\xff", chain._head_key: b"\xff"})
    chain._tail = None
    for principal in (ours, theirs):
        audit.note(AuditEntry("test.act", principal))
    await write(store, {chain._moved_key: b"\xff"})
    with pytest.raises(StoreCorrupt):
        await settle(running)
    assert len(await records(store, keys.audit_records("dev2"))) == 1
    assert len(await records(store, keys.audit_anchors("dev2"))) == 1
    assert await kinds(running) == {"EDITED", "ANCHOR_BROKEN"}


async def test_more_chains_than_one_anchor_names_are_named_by_several(running: Running) -> None:
    store = running.server._store
    count = limits.AUDIT_ANCHOR_CHAINS_ENTRIES_MAX + 1
    chief = Principal("dev", "chief", frozenset({Role.OPERATOR}))
    for number in range(count):
        log = AuditLog(store, running.server._audit._time, f"{number:016x}", lambda *_: None, bytes)
        await log.append(AuditEntry("test.act", chief), deadline())
    await settle(running)
    judged = await verdict(running)
    assert (judged.anchor_count, judged.chain_count, judged.fault_count) == (2, count, 0)
    assert {chain.anchored_sequence for chain in judged.chains} == {1}


async def test_a_lock_that_the_breaker_may_not_see_is_told_like_none(on_any_store: Running) -> None:
    holder = await on_any_store.join("writer-2")
    granted = await holder.agent.grant(acquire_request(holder.session, leaf("x", "agent:writer-2")))
    supervisor = on_any_store.as_agent("keeper", "supervisor")
    request = lock_service_pb2.BreakLockRequest(board="main", lock_id=granted.lock.id, reason="why")
    with refused("NOT_FOUND"):
        await supervisor.locks.BreakLock(request, metadata=supervisor.metadata)
    (attempt,) = await audit_records(on_any_store)
    assert (attempt.act, attempt.method, attempt.agent) == ("access.refused", "LockService.BreakLock", "keeper")
    assert (attempt.target, attempt.outcome) == ("agent:writer-2", "NOT_FOUND")
