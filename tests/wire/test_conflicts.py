"""Who lost to whom: every request that lost is written down once, behind the call, and shown to whom it may be shown."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import timestamp_pb2

from kokuban.v1 import admin_service_pb2, conflict_pb2, conflict_service_pb2, error_reason_pb2, lock_service_pb2
from kokuban_server.core import keys, limits
from kokuban_server.core.refusals import StoreUnavailable
from tests.wire.audit_calls import audit_records
from tests.wire.calls import (
    START_MS,
    HeldStore,
    at,
    commit_request,
    delete,
    end_of,
    new_id,
    of_source,
    put,
    records,
    refused,
    rule,
    tree,
    until,
)
from tests.wire.conflict_calls import listed, reason, result, settle, summary

if TYPE_CHECKING:
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import Agent, SettableClock
    from tests.wire.conftest import Running, Started

TRACE_A = "00-" + "a" * 32 + "-" + "1" * 16 + "-01"
TRACE_B = "00-" + "b" * 32 + "-" + "2" * 16 + "-01"


async def lose(running: Running, path: str = "e", loser: str = "loser", **more: Any) -> str:  # noqa: ANN401 - of `commit_request`
    """Have an agent lose a race for an entry; give the request's id."""
    request = commit_request(put(path, "late"), **more)
    with refused("ALREADY_EXISTS"):
        await running.as_agent(loser).send(request, ("traceparent", TRACE_B))
    return request.request_id


async def test_a_lost_update_is_one_conflict_with_both_sides(on_any_store: Running) -> None:
    running = on_any_store
    first = await running.as_agent("winner").commit(put("e", "1"))
    won = commit_request(put("e", "2", at(first)))
    second = await running.as_agent("winner").send(won, ("traceparent", TRACE_A))
    lost = commit_request(put("e", "mine", at(first)), reason="to say so", retry_of=new_id())
    with refused("REVISION_MISMATCH"):
        await running.as_agent("loser").send(lost, ("traceparent", TRACE_B))
    (conflict,) = await listed(running)
    assert re.fullmatch("[0-9a-f]{32}", conflict.id)
    assert (reason(conflict), conflict.kind) == ("REVISION_MISMATCH", conflict_pb2.CONFLICT_KIND_COMMIT)
    assert (conflict.key.region, conflict.key.path) == ("shared:plan", "e")
    assert (conflict.expected, conflict.actual) == (first.revision, second.revision)
    assert (conflict.loser.agent, conflict.loser.request_id) == ("loser", lost.request_id)
    assert (conflict.loser.traceparent, conflict.loser.purpose) == (TRACE_B, "to say so")
    assert (conflict.winner.agent, conflict.winner.request_id) == ("winner", won.request_id)
    assert (conflict.winner.traceparent, conflict.winner.purpose) == (TRACE_A, "")
    assert conflict.winner.act_time.ToMilliseconds() == conflict.conflict_time.ToMilliseconds() == START_MS
    assert (conflict.retry_of, conflict.lost_bytes, result(conflict)) == (lost.retry_of, len("mine"), "OPEN")


async def test_words_that_may_come_from_outside_are_not_passed_on(running: Running) -> None:
    """They carry no label there, and nobody has screened them."""
    await running.agent.commit(put("e"))
    page = put("e", "late", provenance=of_source())
    for mutation, more in ((page, {}), (put("e", "late"), {"session": await running.as_agent("loser").session()})):
        with refused("ALREADY_EXISTS"):
            await running.as_agent("loser").commit(mutation, reason="the page says: from now on", **more)
    assert [conflict.loser.purpose for conflict in await listed(running)] == ["", ""]


async def test_a_request_that_is_sent_again_makes_no_second_conflict(start: Started, store: BoardStore) -> None:
    one, other = await start(), await start()
    await one.agent.commit(put("e"))
    request_id = new_id()
    for server in (one, other, one, other):
        await lose(server, request_id=request_id)
        await settle(server)
    assert len(await listed(one)) == 1
    assert len(await records(store, keys.CONFLICT)) == len(await records(store, keys.CONFLICT_PLACE)) == 1


async def test_the_same_request_id_of_another_agent_is_another_conflict(running: Running) -> None:
    await running.agent.commit(put("e"))
    request_id = new_id()
    await lose(running, request_id=request_id)
    await lose(running, request_id=request_id, loser="another")
    assert len({conflict.id for conflict in await listed(running)}) == 2


async def test_a_write_to_a_locked_path_is_a_conflict_with_its_holder(running: Running) -> None:
    holder = await running.join("holder")
    fence = await holder.acquire("e", purpose="to rewrite it")
    with refused("LOCKED_BY_OTHER"):
        await running.as_agent("loser").commit(put("e"))
    (conflict,) = await listed(running)
    assert (reason(conflict), conflict.lock_id) == ("LOCKED_BY_OTHER", fence.lock_id)
    assert (conflict.winner.agent, conflict.winner.session_id) == ("holder", holder.session)
    assert conflict.winner.purpose == "to rewrite it"
    assert not conflict.HasField("expected")
    assert not conflict.HasField("actual")


async def test_a_late_write_under_a_lost_lock_is_a_conflict_with_the_heir(running: Running, store: BoardStore) -> None:
    sleeper, heir = await running.join("sleeper"), await running.join("heir")
    fence = await sleeper.acquire("e", delay_s=0)
    await sleeper.agent.close(sleeper.session)
    await heir.acquire("e", purpose="to go on")
    with refused("LOCK_LOST"):
        await sleeper.agent.commit(put("e"), fences=[fence])
    (conflict,) = await listed(running)
    assert (reason(conflict), conflict.key.path) == ("LOCK_LOST", "e")
    assert (conflict.loser.agent, conflict.winner.agent) == ("sleeper", "heir")
    assert conflict.winner.purpose == "to go on"


@pytest.mark.parametrize("skip_lock_delay", [False, True])
async def test_a_late_write_under_a_broken_lock_is_a_conflict_with_who_broke_it(
    running: Running, *, skip_lock_delay: bool
) -> None:
    holder, keeper = await running.join("holder"), running.as_agent("keeper", "supervisor,member")
    fence = await holder.acquire("e")
    request = lock_service_pb2.BreakLockRequest(
        board="main", lock_id=fence.lock_id, reason="it sleeps", skip_lock_delay=skip_lock_delay
    )
    await keeper.locks.BreakLock(request, metadata=(*keeper.metadata, ("traceparent", TRACE_A)))
    if skip_lock_delay:  # even where somebody else has it by now, and its marker is gone
        await (await running.join("heir")).acquire("e", wait_s=10.0)
    with refused("LOCK_LOST"):
        await holder.agent.commit(put("e"), fences=[fence])
    (conflict,) = await listed(running)
    assert (reason(conflict), conflict.lock_id) == ("LOCK_LOST", fence.lock_id)
    assert (conflict.loser.agent, conflict.winner.agent, conflict.winner.purpose) == ("holder", "keeper", "it sleeps")
    assert conflict.winner.traceparent == TRACE_A
    assert conflict.winner.act_time.ToMilliseconds() == START_MS


async def test_a_lock_that_is_refused_or_waited_for_in_vain_is_a_conflict(running: Running) -> None:
    holder, other = await running.join("holder"), await running.join("other")
    await holder.acquire("e")
    with refused("LOCKED_BY_OTHER"):
        await other.acquire("e", purpose="to look")
    with refused("LOCK_WAIT_EXPIRED"):
        await other.acquire("e", wait_s=0.05)
    tried, expired = sorted(await listed(running), key=reason)
    assert reason(expired) == "LOCK_WAIT_EXPIRED"
    assert (reason(tried), tried.kind) == ("LOCKED_BY_OTHER", conflict_pb2.CONFLICT_KIND_LOCK)
    assert (tried.loser.agent, tried.loser.session_id, tried.loser.purpose) == ("other", other.session, "to look")
    assert expired.waited.ToMilliseconds() >= 50
    assert {conflict.winner.agent for conflict in (expired, tried)} == {"holder"}


async def test_the_victim_of_a_deadlock_is_a_conflict_with_whom_it_waits_for(running: Running) -> None:
    one, two = await running.join("one"), await running.join("two")
    await one.acquire("a")
    await two.acquire("b")
    waiting = await one.queued("b", wait_s=60.0, purpose="to have both")
    with refused("DEADLOCK"):
        await two.acquire("a", wait_s=60.0)
    waiting.cancel()
    (conflict,) = await listed(running)
    assert (reason(conflict), conflict.key.path) == ("DEADLOCK", "a")
    assert (conflict.loser.agent, conflict.winner.agent) == ("two", "one")
    assert conflict.winner.purpose == "to have both"


@pytest.mark.parametrize("path", ["gone", "../x"])
async def test_what_is_nobodys_fault_but_the_callers_is_no_conflict(running: Running, path: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await running.agent.commit(put(path, None))
    assert await listed(running) == []


async def test_a_retry_that_stands_says_so_in_the_conflict_it_retries(on_any_store: Running) -> None:
    running = on_any_store
    first = await running.agent.commit(put("e", "1"))
    lost = await lose(running)
    merged = commit_request(put("e", "both", at(first)), retry_of=lost)
    await running.as_agent("loser").send(merged)
    await running.agent.commit(put("f"))
    lost_again = await lose(running, "f")
    await running.agent.commit(delete("f", at(await running.agent.get("f"))))
    won = commit_request(put("f", "mine"), retry_of=lost_again)
    await running.as_agent("loser").send(won)
    by_path = {conflict.key.path: conflict for conflict in await listed(running)}
    assert (result(by_path["e"]), by_path["e"].outcome_request_id) == ("MERGED", merged.request_id)
    assert (result(by_path["f"]), by_path["f"].outcome_request_id) == ("WON", won.request_id)
    assert by_path["f"].outcome_time.ToMilliseconds() == START_MS


async def test_a_retry_that_loses_too_is_a_conflict_of_its_own(running: Running) -> None:
    await running.agent.commit(put("e"))
    first = await lose(running)
    second = await lose(running, retry_of=first)
    outcomes = {conflict.loser.request_id: result(conflict) for conflict in await listed(running)}
    assert outcomes == {first: "LOST_AGAIN", second: "OPEN"}


async def test_a_request_for_a_lock_says_which_refusal_it_answers_to(running: Running) -> None:
    holder, other = await running.join("holder"), await running.join("other")
    fence = await holder.acquire("e")
    first, second, third = (new_id() for _ in range(3))
    with refused("LOCKED_BY_OTHER"):
        await other.acquire("e", request_id=first)
    with refused("LOCKED_BY_OTHER"):
        await other.acquire("e", request_id=second, retry_of=first)
    await holder.agent.release(fence)
    await other.acquire("e", request_id=third, retry_of=second)
    found = {conflict.loser.request_id: conflict for conflict in await listed(running)}
    assert {name: result(conflict) for name, conflict in found.items()} == {first: "LOST_AGAIN", second: "WON"}
    assert (found[second].retry_of, found[second].outcome_request_id) == (first, third)


async def test_the_same_request_sent_again_can_win_and_another_agents_retry_means_nothing(running: Running) -> None:
    holder = await running.join("holder")
    fence = await holder.acquire("e")
    request = commit_request(put("e"))
    with refused("LOCKED_BY_OTHER"):
        await running.as_agent("loser").send(request)
    await running.as_agent("somebody").commit(put("f"), retry_of=request.request_id)
    assert [result(conflict) for conflict in await listed(running)] == ["OPEN"]
    await holder.agent.release(fence)
    await running.as_agent("loser").send(request)
    assert [result(conflict) for conflict in await listed(running)] == ["WON"]


async def test_who_does_not_come_again_has_given_up(running: Running, clock: SettableClock) -> None:
    await running.agent.commit(put("e"))
    await lose(running)
    clock.pass_ms(limits.CONFLICT_GIVEN_UP_MS - 1)
    assert [result(conflict) for conflict in await listed(running)] == ["OPEN"]
    clock.pass_ms(1)
    assert [result(conflict) for conflict in await listed(running)] == ["GAVE_UP"]


async def test_conflicts_are_found_by_place_agent_reason_and_time(running: Running, clock: SettableClock) -> None:
    for path in ("task_1/a", "task_1/b", "task_10/a"):
        await running.as_agent("winner").commit(put(path))
        await lose(running, path, loser=f"loser-{path[-1]}")
        clock.pass_ms(1_000)
    await running.as_agent("other").commit(put("task_1/a", region="shared:facts"))
    with refused("ALREADY_EXISTS"):
        await running.as_agent("loser-a").commit(put("task_1/a", region="shared:facts"))

    async def paths(**wanted: Any) -> list[str]:  # noqa: ANN401 - any field of a filter
        return [f"{one.key.region}/{one.key.path}" for one in await listed(running, page_size=1, **wanted)]

    def moment(ms: int) -> timestamp_pb2.Timestamp:
        made = timestamp_pb2.Timestamp()
        made.FromMilliseconds(START_MS + ms)
        return made

    everything = ["shared:facts/task_1/a", "shared:plan/task_10/a", "shared:plan/task_1/b", "shared:plan/task_1/a"]
    assert await paths() == everything
    assert await paths(region="shared:plan") == everything[1:]
    assert await paths(region="shared:plan", path="task_1") == everything[2:]
    assert await paths(region="shared:plan", path="task_1/b") == everything[2:3]
    assert await paths(agent="other") == everything[:1]
    assert await paths(agent="loser-b") == everything[2:3]
    assert await paths(agent="x" * limits.AGENT_ID_BYTES_MAX) == []
    assert await paths(reason=error_reason_pb2.ERROR_REASON_ALREADY_EXISTS) == everything
    assert await paths(reason=error_reason_pb2.ERROR_REASON_DEADLOCK) == []
    assert await paths(begin_time=moment(1_000), end_time=moment(3_000)) == everything[1:3]
    assert await paths(end_time=moment(1)) == everything[3:]


@pytest.mark.parametrize(
    ("wanted", "code", "field"),
    [
        ({"path": "a"}, "REGION_REQUIRED", "filter.region"),
        ({"region": "plan"}, "REGION_INVALID", "filter.region"),
        ({"region": "shared:plan", "path": "a//b"}, "PATH_INVALID", "filter.path"),
        ({"reason": error_reason_pb2.ERROR_REASON_NOT_FOUND}, "FIELD_INVALID", "filter.reason"),
        ({"agent": "x" * 129}, "FIELD_INVALID", "filter.agent"),
        ({"begin_time": timestamp_pb2.Timestamp(nanos=1)}, "FIELD_INVALID", "filter.begin_time"),
    ],
)
async def test_a_filter_that_cannot_be_meant_is_refused(
    agent: Agent, running: Running, wanted: dict[str, Any], code: str, field: str
) -> None:
    with refused(code, field=field):
        await listed(running, **wanted)
    with refused(code, field=field):
        await summary(running, **wanted)


async def test_the_overview_says_where_between_whom_how_often_and_at_what_cost(
    running: Running, clock: SettableClock
) -> None:
    winner = running.as_agent("winner")
    await winner.commit(put("hot"), put("cold"))
    for _ in range(3):
        await lose(running, "hot")
    await lose(running, "cold", loser="another")
    holder, waiter = await running.join("holder"), await running.join("waiter")
    await holder.acquire("e")
    with refused("LOCK_WAIT_EXPIRED"):
        await waiter.acquire("e", wait_s=0.05)
    clock.pass_ms(3_600_000)
    found = await summary(running)
    assert (found.count, found.lost_bytes) == (5, 4 * len("late"))
    assert found.waited.ToMilliseconds() >= 50
    assert (found.oldest_time.ToMilliseconds(), found.newest_time.ToMilliseconds()) == (START_MS, START_MS)
    assert found.per_hour == 5.0
    assert (found.paths[0].path, found.paths[0].count) == ("hot", 3)
    assert {(pair.loser, pair.winner): pair.count for pair in found.pairs} == {
        ("loser", "winner"): 3,
        ("another", "winner"): 1,
        ("waiter", "holder"): 1,
    }
    assert {one.reason: one.count for one in found.reasons} == {
        error_reason_pb2.ERROR_REASON_ALREADY_EXISTS: 4,
        error_reason_pb2.ERROR_REASON_LOCK_WAIT_EXPIRED: 1,
    }
    assert {one.outcome: one.count for one in found.outcomes} == {conflict_pb2.CONFLICT_OUTCOME_GAVE_UP: 5}
    assert len((await summary(running, top=1)).paths) == 1
    assert len((await summary(running, top=limits.CONFLICT_SUMMARY_ENTRIES_MAX)).paths) == 3
    with refused("FIELD_INVALID", field="top"):
        await summary(running, top=limits.CONFLICT_SUMMARY_ENTRIES_MAX + 1)
    assert (await summary(running, region="shared:facts")).count == 0


async def test_what_lies_in_a_hidden_region_is_not_listed_counted_or_paged(running: Running) -> None:
    private = "agent:owner"
    owner = running.as_agent("owner")
    await owner.commit(put("secret", region=private))
    for _ in range(3):
        with refused("ALREADY_EXISTS"):
            await owner.commit(put("secret", region=private))
    await running.agent.commit(put("e"))
    await lose(running)
    assert len(await listed(running, owner)) == 4
    stranger = running.as_agent("stranger")
    request = conflict_service_pb2.ListConflictsRequest(board="main", page_size=1)
    await settle(running)
    page = await stranger.conflicts.ListConflicts(request, metadata=stranger.metadata)
    assert ([one.key.path for one in page.conflicts], page.next_page_token) == (["e"], "")
    found = await summary(running, stranger)
    assert (found.count, [place.path for place in found.paths]) == (1, ["e"])
    for ask in (listed, summary):
        with refused("NOT_FOUND"):
            await ask(running, stranger, region=private)


async def test_each_side_is_shown_of_the_other_only_what_it_may_read(running: Running) -> None:
    """A lock over a shared and a private place: its words are for who may read both, its holder for who may read one."""
    holder = await running.join("holder")
    await holder.acquire("e", tree("", "agent:holder"), purpose="my private plan")
    with refused("LOCKED_BY_OTHER"):
        await running.as_agent("loser").commit(put("e"), put("f", region="agent:loser"), reason="my own affair")
    (seen_by_loser,) = await listed(running, running.as_agent("loser"))
    assert (seen_by_loser.winner.agent, seen_by_loser.winner.purpose) == ("holder", "")
    assert seen_by_loser.loser.purpose == "my own affair"
    (seen_by_holder,) = await listed(running, holder.agent)
    assert (seen_by_holder.winner.purpose, seen_by_holder.loser.purpose) == ("my private plan", "")
    (seen_by_another,) = await listed(running, running.as_agent("another"))
    assert (seen_by_another.winner.purpose, seen_by_another.loser.purpose) == ("", "")
    assert seen_by_another.lost_bytes == 1


async def test_a_policy_that_hides_a_region_hides_its_conflicts_at_once(running: Running) -> None:
    chief = running.as_agent("chief", "operator")
    await running.agent.commit(put("e"))
    await lose(running)
    assert len(await listed(running)) == 1
    await chief.set_policy(rule("shared:plan", readers=["agent:chief"]))
    assert await listed(running, chief)
    assert await listed(running) == []


async def test_a_supervisor_who_reads_private_conflicts_is_recorded(running: Running) -> None:
    chief = running.as_agent("chief", "operator")
    await chief.set_policy(rule("agent:*", readers=["acting", "role:supervisor"]))
    owner = running.as_agent("owner")
    await owner.commit(put("secret", region="agent:owner"))
    with refused("ALREADY_EXISTS"):
        await owner.commit(put("secret", region="agent:owner"))
    assert len(await listed(running, running.as_agent("keeper", "supervisor"))) == 1
    (read,) = await audit_records(running, act="region.read")
    assert (read.agent, read.target) == ("keeper", "agent:owner")


async def test_a_watch_brings_conflicts_and_what_became_of_them_and_goes_on_from_its_token(
    on_any_store: Running,
) -> None:
    running = on_any_store
    watcher = running.as_agent("watcher")

    def watch(after: str = "") -> Any:  # noqa: ANN401 - as grpc types it
        request = conflict_service_pb2.WatchConflictsRequest(board="main", after=after)
        return watcher.conflicts.WatchConflicts(request, metadata=watcher.metadata)

    async def next_of(call: Any) -> conflict_service_pb2.WatchConflictsResponse:  # noqa: ANN401 - as above
        while True:
            news: conflict_service_pb2.WatchConflictsResponse = await call.read()
            if news.conflicts:
                return news

    call = watch()
    begun = await call.read()
    assert not begun.conflicts
    first = await running.agent.commit(put("e", "1"))
    lost = await lose(running)
    told = await next_of(call)
    assert [(one.loser.request_id, result(one)) for one in told.conflicts] == [(lost, "OPEN")]
    await running.as_agent("loser").commit(put("e", "both", at(first)), retry_of=lost)
    again = await next_of(call)
    assert [(one.loser.request_id, result(one)) for one in again.conflicts] == [(lost, "MERGED")]
    call.cancel()
    resumed = watch(told.token)
    await resumed.read()
    assert [result(one) for one in (await next_of(resumed)).conflicts] == ["MERGED"]
    idle = await resumed.read()  # a bookmark
    assert not idle.conflicts
    resumed.cancel()
    with refused("TOKEN_INVALID", field="after"):
        await watch("nonsense").read()


async def test_a_watch_ends_when_its_server_drains(start: Started) -> None:
    running = await start(drain_grace_s=5.0)
    request = conflict_service_pb2.WatchConflictsRequest(board="main")
    call = running.agent.conflicts.WatchConflicts(request, metadata=running.agent.metadata)
    await call.read()
    ending = asyncio.create_task(end_of(call))
    await running.server._wire.drain(5.0)
    assert await ending == "SERVER_DRAINING"


async def test_a_watch_ends_when_its_board_is_deleted_and_when_a_policy_hides_its_region(running: Running) -> None:
    chief = running.as_agent("chief", "operator")
    await running.agent.commit(put("e"))
    wanted = conflict_pb2.ConflictFilter(region="shared:plan")
    requests = [
        conflict_service_pb2.WatchConflictsRequest(board="main", filter=wanted),
        conflict_service_pb2.WatchConflictsRequest(board="main"),
    ]
    calls = [running.agent.conflicts.WatchConflicts(one, metadata=running.agent.metadata) for one in requests]
    for call in calls:
        await call.read()
    await chief.set_policy(rule("shared:plan", readers=["agent:chief"]))
    assert await end_of(calls[0]) == "NOT_FOUND"
    await chief.admin.DeleteBoard(
        admin_service_pb2.DeleteBoardRequest(board="main", reason="over"), metadata=chief.metadata
    )
    assert await end_of(calls[1]) == "NOT_FOUND"


async def test_a_watch_that_would_begin_before_what_the_store_keeps_is_refused(
    running: Running, store: BoardStore
) -> None:
    await running.agent.commit(put("e"))
    old = (await summary(running)).token
    for _ in range(3):
        await lose(running)
        await settle(running)
    await store.compact((await store.status(10.0)).revision, 10.0)
    request = conflict_service_pb2.WatchConflictsRequest(board="main", after=old)
    assert await end_of(running.agent.conflicts.WatchConflicts(request, metadata=running.agent.metadata)) == (
        "HISTORY_COMPACTED"
    )


async def test_a_store_that_does_not_answer_slows_no_refusal_and_what_waits_is_bounded(
    start: Started, clock: SettableClock
) -> None:
    held = HeldStore(clock)
    running = await start(held)
    await running.agent.commit(put("e"))
    await lose(running, loser="first")
    await until(lambda: running.server._conflicts.written == 1)
    held.hold()
    for number in range(3):
        for _ in range(limits.CONFLICTS_OF_PRINCIPAL_ENTRIES_MAX):
            await lose(running, loser=f"loser-{number}")
    log = running.server._conflicts
    assert (len(log._waiting), log.dropped) == (3 * limits.CONFLICTS_OF_PRINCIPAL_ENTRIES_MAX, 0)
    await lose(running, loser="loser-0")
    assert (len(log._waiting), log.dropped) == (3 * limits.CONFLICTS_OF_PRINCIPAL_ENTRIES_MAX, 1)
    for number in range(3, 9):
        for _ in range(limits.CONFLICTS_OF_PRINCIPAL_ENTRIES_MAX):
            await lose(running, loser=f"loser-{number}")
    assert len(log._waiting) == limits.CONFLICTS_WAITING_ENTRIES_MAX
    assert log.dropped == 1 + limits.CONFLICTS_OF_PRINCIPAL_ENTRIES_MAX
    held.release()
    assert len(await listed(running, page_size=1000)) == 1 + limits.CONFLICTS_WAITING_ENTRIES_MAX
    assert not log._of_agent


async def test_an_outage_loses_no_conflict_and_a_full_store_only_counts_it(
    start: Started, clock: SettableClock
) -> None:
    held = HeldStore(clock)
    running = await start(held)
    await running.agent.commit(put("e"))
    held.fault_in_commit = StoreUnavailable("out")
    await lose(running)
    await until(lambda: held.faults_in_commit > 0)
    held.fault_in_commit = None
    assert len(await listed(running)) == 1
    held.loses_answers = True
    await lose(running)
    await until(lambda: held.lost > 0)
    held.loses_answers = False
    assert len(await listed(running)) == 2


async def test_the_log_keeps_the_newest_and_nothing_that_is_too_old(
    start: Started, store: BoardStore, clock: SettableClock
) -> None:
    running = await start(conflicts_max=3)
    upkeep = running.server._upkeep
    await running.agent.commit(put("e"))
    lost = []
    for _ in range(5):
        lost.append(await lose(running))
        clock.pass_ms(1_000)
    await settle(running)
    clock.pass_ms(60_000)  # between two walks
    await upkeep.sweep()
    assert [one.loser.request_id for one in await listed(running)] == lost[:1:-1]
    assert len(await records(store, keys.CONFLICT_PLACE)) == 3
    clock.pass_ms(limits.CONFLICT_AGE_MS_MAX)
    await upkeep.sweep()
    assert await listed(running) == []
    assert await records(store, keys.CONFLICT_PLACE) == []


async def test_a_deleted_boards_conflicts_go_with_it_and_none_comes_after(start: Started, store: BoardStore) -> None:
    running = await start()
    chief = running.as_agent("chief", "operator")
    await running.agent.commit(put("e"))
    await lose(running)
    await settle(running)
    await lose(running)  # waits to be written
    request = admin_service_pb2.DeleteBoardRequest(board="main", reason="over")
    await chief.admin.DeleteBoard(request, metadata=chief.metadata)
    await settle(running)
    await running.server._upkeep.sweep()
    found = await chief.admin.GetBoard(admin_service_pb2.GetBoardRequest(board="main"), metadata=chief.metadata)
    assert found.board.receipt.conflicts in {2, 4}  # the server may write the second before the board goes
    assert await records(store, keys.CONFLICT) == await records(store, keys.CONFLICT_PLACE) == []


async def test_LU_16_a_conflict_is_recorded_and_is_no_error_in_the_log(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    await running.agent.commit(put("e"))
    await lose(running)
    await listed(running)
    logged = capsys.readouterr()
    assert not re.search("error|Traceback", logged.out + logged.err, re.IGNORECASE)
