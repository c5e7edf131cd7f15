"""Policies over the wire: laid down, kept to by every commit, and by what is open already."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from kokuban.v1 import admin_service_pb2, board_service_pb2, commit_pb2, policy_pb2
from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.core import keys, limits
from tests.wire.audit_calls import audit_records
from tests.wire.calls import (
    REGION,
    Agent,
    Deaf,
    HeldStore,
    Refused,
    at,
    commit_request,
    delete,
    end_of,
    eventually,
    increment,
    key,
    lasting,
    leaf,
    outcome,
    put,
    records,
    refused,
    rule,
    whatever,
)

if TYPE_CHECKING:
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started

READ, WRITE, LOCK = policy_pb2.VERB_READ, policy_pb2.VERB_WRITE, policy_pb2.VERB_LOCK
NOBODY: list[str] = []
CHIEFS = ["role:supervisor"]


def operator(running: Running, name: str = "op") -> Agent:
    return running.as_agent(name, "operator")


async def policy_of(agent: Agent) -> admin_service_pb2.GetPolicyResponse:
    request = admin_service_pb2.GetPolicyRequest(board="main")
    answer: admin_service_pb2.GetPolicyResponse = await agent.admin.GetPolicy(request, metadata=agent.metadata)
    return answer


# Laying down.


async def test_a_policy_is_laid_down_as_a_whole_and_read_as_it_was(on_any_store: Running) -> None:
    op, supervisor = operator(on_any_store), on_any_store.as_agent("boss", "member,supervisor")
    await op.commit(put("a"))
    before = await policy_of(op)
    assert (before.record.number, before.policy) == (0, policy_pb2.Policy())
    plan = rule(
        REGION,
        readers=["anyone"],
        writers=["agent:a:b", "role:supervisor"],
        lockers=NOBODY,
        revealers=["role:auditor"],
        allows_unconditional=True,
        lock_requirement=policy_pb2.LOCK_REQUIREMENT_REQUIRED,
        history_revisions_max=7,
        history_age_max=lasting(3600),
        default_ttl=lasting(60),
    )
    laid = await op.set_policy(plan, rule("task:*"), administrators=["agent:op"], reason="it is time")
    assert (laid.record.number, laid.record.author, laid.record.reason) == (1, "op", "it is time")
    found = await policy_of(supervisor)
    assert found.policy.rules[0].writers.subjects == ["role:supervisor", "agent:a:b"]
    found.policy.rules[0].writers.subjects[:] = ["agent:a:b", "role:supervisor"]
    assert found.policy == policy_pb2.Policy(
        rules=[plan, rule("task:*")], administrators=policy_pb2.Subjects(subjects=["agent:op"])
    )
    assert found.record == laid.record
    board = await op.admin.GetBoard(admin_service_pb2.GetBoardRequest(board="main"), metadata=op.metadata)
    assert board.board.policy_number == 1


async def test_a_policy_replaces_the_one_it_names_or_none_and_the_same_again_is_nothing(on_any_store: Running) -> None:
    op, other = operator(on_any_store), operator(on_any_store, "op-2")
    await op.commit(put("a"))
    first = await op.set_policy(rule("task:*", readers=["anyone"]))
    again = await op.set_policy(rule("task:*", readers=["anyone"]))
    assert again == first
    with refused("POLICY_CHANGED", board="main", replaces="0", actual="1", author="op") as found:
        await other.set_policy(rule("task:*", readers=["anyone"]))
    assert found[0].code is grpc.StatusCode.ABORTED
    with refused("POLICY_CHANGED", replaces="0", actual="1"):
        await op.set_policy(rule("task:*", readers=NOBODY))
    with refused("POLICY_CHANGED", replaces="2", actual="1"):
        await op.set_policy(replaces=2)
    assert (await other.set_policy(replaces=1)).record.number == 2
    assert (await policy_of(op)).policy == policy_pb2.Policy()


async def test_of_those_who_replace_one_policy_at_once_one_succeeds(on_any_store: Running) -> None:
    ops = [operator(on_any_store, f"op-{number}") for number in range(8)]
    await ops[0].commit(put("a"))
    answers = await asyncio.gather(*[outcome(op.set_policy(rule(f"task:{op.name}"))) for op in ops])
    won = [answer for answer in answers if not isinstance(answer, Refused)]
    assert len(won) == 1
    assert {answer.reason for answer in answers if isinstance(answer, Refused)} == {"POLICY_CHANGED"}
    assert (await policy_of(ops[0])).record == won[0].record


async def test_a_policy_that_locks_its_own_author_out_is_refused(running: Running) -> None:
    op = operator(running)
    await op.commit(put("a"))
    for administrators in (NOBODY, ["agent:other"], ["role:supervisor"]):
        with refused("POLICY_LOCKS_OUT", board="main") as found:
            await op.set_policy(administrators=administrators)
        assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION
    assert (await policy_of(op)).record.number == 0
    await op.set_policy(rule(REGION, readers=NOBODY, writers=NOBODY), administrators=["agent:op"])
    await op.set_policy(administrators=["agent:op"], replaces=1)  # a mistake about regions can be mended


async def test_who_is_not_an_administrator_changes_nothing(running: Running) -> None:
    op, other = operator(running), operator(running, "op-2")
    await op.commit(put("a"))
    await op.set_policy(administrators=["agent:op"])
    with refused("NOT_ADMINISTRATOR", board="main") as found:
        await other.set_policy(administrators=["agent:op", "agent:op-2"], replaces=1)
    assert found[0].code is grpc.StatusCode.PERMISSION_DENIED
    request = admin_service_pb2.DeleteBoardRequest(board="main", reason="to try")
    with refused("NOT_ADMINISTRATOR"):
        await other.admin.DeleteBoard(request, metadata=other.metadata)
    with refused("ROLE_REQUIRED", role="operator"):
        await running.as_agent("op", "member").set_policy(replaces=1)


@pytest.mark.parametrize("role", ["member", "system"])
async def test_a_policy_is_shown_to_those_only_who_oversee(running: Running, role: str) -> None:
    await running.agent.commit(put("a"))
    with refused("ROLE_REQUIRED", role="operator"):
        await policy_of(running.as_agent("writer-1", role))
    for overseer in ("operator", "supervisor", "auditor"):
        assert (await policy_of(running.as_agent("writer-1", overseer))).record.number == 0


async def test_what_is_wrong_with_a_policy_is_told_by_its_field(running: Running) -> None:
    op = operator(running)
    await op.commit(put("a"))
    cases: list[tuple[str, policy_pb2.RegionRule]] = [
        ("rules[1].pattern", rule("tenant")),
        ("rules[1].readers.subjects[0]", rule("task:*", readers=["everyone"])),
        ("rules[1].readers.subjects", rule("user:*", readers=["anyone"])),
        ("rules[1].default_ttl", rule("task:*", default_ttl=lasting(0.001))),
        ("rules[1].history_revisions_max", rule("task:*", history_revisions_max=1_001)),
        ("rules[1].lock_requirement", rule("task:*", lock_requirement=99)),
    ]
    for field, wrong in cases:
        with refused("FIELD_INVALID", field=f"policy.{field}"):
            await op.set_policy(rule("shared:a"), wrong)
    with refused("REGION_INVALID", field="policy.rules[0].pattern"):
        await op.set_policy(rule("plan"))
    for seconds in (59.999, 3_650 * 86_400 + 0.001):
        with refused("DURATION_INVALID", field="policy.rules[0].history_age_max"):
            await op.set_policy(rule("shared:a", history_age_max=lasting(seconds)))
    with refused("FIELD_INVALID", field="replaces"):
        await op.set_policy(replaces=-1)
    with refused("FIELD_REQUIRED", field="policy"):
        await op.admin.SetPolicy(admin_service_pb2.SetPolicyRequest(board="main"), metadata=op.metadata)


async def test_64_rules_and_64_kib_are_taken_and_more_are_not(running: Running) -> None:
    op = operator(running)
    await op.commit(put("a"))
    rules = [rule(f"task:{number}") for number in range(limits.POLICY_RULES_ENTRIES_MAX + 1)]
    await op.set_policy(*rules[:-1])
    with refused("TOO_MANY_ITEMS", field="policy.rules", limit="64", actual="65"):
        await op.set_policy(*rules, replaces=1)

    names = [f"agent:{number:0122d}" for number in range(limits.POLICY_SUBJECTS_ENTRIES_MAX)]
    big = policy_pb2.Policy(rules=[rule(f"task:{number}", readers=names) for number in range(8)])
    last = big.rules[-1]
    while big.ByteSize() > limits.POLICY_BYTES_MAX:
        del last.readers.subjects[-1]
    while big.ByteSize() < limits.POLICY_BYTES_MAX:
        last.pattern += "x"
    assert big.ByteSize() == limits.POLICY_BYTES_MAX
    await op.set_policy(*big.rules, replaces=1)
    last.pattern += "x"
    with refused("FIELD_INVALID", field="policy", limit=str(limits.POLICY_BYTES_MAX)):
        await op.set_policy(*big.rules, replaces=2)


# Deciding.


async def test_who_may_not_read_is_told_that_nothing_is_there_and_who_may_not_write_that_it_may_not(
    on_any_store: Running,
) -> None:
    op, member, boss = operator(on_any_store), on_any_store.agent, on_any_store.as_agent("boss", "member,supervisor")
    session = await on_any_store.join()
    await boss.commit(put("a", region="shared:secret"), put("a", region="shared:news"), put("a", region="task:1"))
    await op.set_policy(
        rule("shared:secret", readers=CHIEFS),
        rule("shared:news", writers=CHIEFS, lockers=["anyone"]),
        rule("task:*", readers=["agent:nobody"]),
    )
    for region in ("shared:secret", "task:1"):
        there, not_there = key("a", region), key("never", region)
        for asked in (there, not_there):
            request = board_service_pb2.GetEntryRequest(board="main", key=asked)
            with refused("NOT_FOUND"):
                await member.board.GetEntry(request, metadata=member.metadata)
        with refused("NOT_FOUND"):
            await member.commit(put("b", region=region))
        with refused("NOT_FOUND"):
            await member.list_locks(region=region)
        with refused("NOT_FOUND"):
            await session.acquire(leaf("a", region))
    await member.get("a", "shared:news")
    with refused("WRITE_FORBIDDEN", region="shared:news") as found:
        await member.commit(put("b", region="shared:news"))
    assert found[0].code is grpc.StatusCode.PERMISSION_DENIED
    await boss.commit(put("b", region="shared:news"), put("b", region="shared:secret"))
    await session.acquire(leaf("c", "shared:news"))
    await op.set_policy(rule("shared:news", lockers=NOBODY), replaces=1)
    await member.commit(put("d", region="shared:news"))
    with refused("WRITE_FORBIDDEN", region="shared:news"):
        await session.acquire(leaf("e", "shared:news"))


async def test_SC_19_a_supervisor_reads_private_memory_where_the_policy_says_so_and_only_reads(
    on_any_store: Running,
) -> None:
    op, boss, child = operator(on_any_store), on_any_store.as_agent("boss", "member,supervisor"), on_any_store.agent
    private = "agent:writer-1"
    await child.commit(put("a", "thought", region=private))
    with refused("NOT_FOUND"):
        await boss.get("a", private)
    await op.set_policy(rule("agent:*", readers=["acting", "role:supervisor"]))
    assert (await boss.get("a", private)).value.text == "thought"
    with refused("WRITE_FORBIDDEN", region=private):
        await boss.commit(put("b", region=private))
    with refused("NOT_FOUND"):
        await on_any_store.as_agent("writer-2").get("a", private)
    assert (await child.get("a", private)).value.text == "thought"
    await op.set_policy(replaces=1)
    with refused("NOT_FOUND"):
        await boss.get("a", private)


async def test_what_becomes_of_a_request_is_explained_as_it_is_decided(on_any_store: Running) -> None:
    op, member, boss = operator(on_any_store), on_any_store.agent, on_any_store.as_agent("boss", "member,supervisor")
    await member.commit(put("a"))
    allowed, forbidden, not_readable = (
        policy_pb2.ACCESS_DECISION_ALLOWED,
        policy_pb2.ACCESS_DECISION_FORBIDDEN,
        policy_pb2.ACCESS_DECISION_NOT_READABLE,
    )

    async def told(agent: Agent, region: str, verb: policy_pb2.Verb.ValueType) -> tuple[int, str, str, int]:
        answer = await agent.explain(region, verb)
        return answer.decision, answer.rule, answer.subject, answer.policy_number

    assert await told(member, REGION, WRITE) == (allowed, "", "anyone", 0)
    assert await told(member, "agent:writer-1", LOCK) == (allowed, "", "acting", 0)
    assert await told(member, "tenant", WRITE) == (forbidden, "", "", 0)
    hidden = rule("shared:secret", readers=CHIEFS)
    await op.set_policy(hidden, rule("shared:*", writers=CHIEFS))
    assert await told(member, REGION, READ) == (allowed, "", "anyone", 1)
    assert await told(member, REGION, WRITE) == (forbidden, "shared:*", "", 1)
    assert await told(boss, REGION, WRITE) == (allowed, "shared:*", "role:supervisor", 1)
    # That there is a rule for it would tell that somebody thought of such a region.
    assert await told(member, "shared:secret", READ) == (not_readable, "", "", 1)
    assert await told(member, "agent:boss", READ) == (not_readable, "", "", 1)
    assert await told(op, "shared:secret", READ) == (not_readable, "shared:secret", "", 1)
    with refused("FIELD_REQUIRED", field="verb"):
        await member.explain(REGION, policy_pb2.VERB_UNSPECIFIED)
    with refused("FIELD_INVALID", field="verb"):
        await member.explain(REGION, 77)  # type: ignore[arg-type] # a value of a newer API


async def test_what_holds_in_a_region_is_what_its_policy_says(
    start: Started, any_store: BoardStore, clock: SettableClock
) -> None:
    running = await start(any_store)
    op, member = operator(running), running.agent
    await member.commit(put("kept"))
    await op.set_policy(
        rule(REGION, allows_unconditional=True, history_revisions_max=2, default_ttl=lasting(60)),
        rule("task:*", allows_unconditional=False),
    )
    await member.commit(put("a", "1"), increment("n"))
    await member.commit(put("own", ttl=lasting(600)))
    for text in "234":
        await member.commit(put("a", text, whatever()))
    with refused("PRECONDITION_REQUIRED"):
        await member.commit(put("a", "1", whatever(), region="task:1"))
    request = board_service_pb2.ListRevisionsRequest(board="main", key=key("a"))
    history = await member.board.ListRevisions(request, metadata=member.metadata)
    assert [revision.entry.value.text for revision in history.revisions] == ["4", "3"]
    clock.pass_ms(61_000)
    for gone in ("a", "n"):
        with refused("NOT_FOUND"):
            await member.get(gone)
    for there in ("kept", "own"):
        await member.get(there)
    await member.commit(put("a", "again"))  # a new life has its own time
    clock.pass_ms(59_000)
    assert (await member.get("a")).value.text == "again"


# Keeping to it.


async def test_no_commit_is_judged_by_a_policy_that_is_over(start: Started, any_store: BoardStore) -> None:
    """Also at a server that has not heard of the new one: the policy is guarded by the commit itself."""
    deaf = Deaf(any_store)
    one, two = await start(deaf), await start(any_store)
    entry = await one.agent.commit(put("a"), increment("n"))
    await one.agent.commit(increment("n"))
    deaf.hears.clear()
    await operator(two).set_policy(rule(REGION, writers=NOBODY))
    changes = [[put("a", "y", at(entry))], [put("new")], [increment("n")], [delete("a", at(entry))], [increment("m")]]
    for mutations in changes:
        with refused("WRITE_FORBIDDEN", region=REGION):
            await one.agent.commit(*mutations)
        one = await start(deaf)  # what the first has learned now, another has not
        await one.agent.get("a")
    await operator(two).set_policy(replaces=1)
    one = await start(deaf)
    await one.agent.commit(put("allowed"))
    await operator(two).set_policy(rule(REGION, readers=NOBODY), replaces=2)
    with refused("NOT_FOUND"):
        await one.agent.commit(put("new"))
    deaf.hears.set()


@pytest.mark.parametrize("allowed", [1, 2])
async def test_increments_that_travel_together_are_each_judged_by_the_policy_of_now(
    start: Started, any_store: BoardStore, allowed: int
) -> None:
    """Whether the first of them may still write, or not."""
    deaf = Deaf(any_store)
    one, two = await start(deaf), await start(any_store)
    agents = [one.as_agent("writer-1"), one.as_agent("writer-2")]
    for agent in agents:
        await agent.commit(increment("n"))
    deaf.hears.clear()
    await operator(two).set_policy(rule(REGION, writers=[f"agent:writer-{allowed}"]))
    answers = await asyncio.gather(*[outcome(agents[turn % 2].commit(increment("n"))) for turn in range(20)])
    deaf.hears.set()
    assert [isinstance(answer, Refused) for answer in answers] == [allowed == 2, allowed == 1] * 10
    assert {answer.reason for answer in answers if isinstance(answer, Refused)} == {"WRITE_FORBIDDEN"}
    assert await agents[0].json("n") == "12"


async def test_an_increment_that_waited_for_others_is_judged_by_the_policy_of_now(
    start: Started, clock: SettableClock
) -> None:
    """Those that wait behind the first were authorised when they came, and are planned together."""
    store = HeldStore(clock)
    deaf = Deaf(store)
    one, two = await start(deaf), await start(store)
    forbidden, allowed = one.as_agent("writer-1"), one.as_agent("writer-2")
    for agent in (forbidden, allowed):
        await agent.commit(increment("n"))
    deaf.hears.clear()
    store.hold()
    answers: list[asyncio.Future[Any]] = []
    for agent, trace in ((allowed, "1" * 32), (forbidden, "2" * 32), (allowed, "3" * 32)):
        traced = (*agent.metadata, ("traceparent", f"00-{trace}-{'1' * 16}-01"))
        answers.append(
            asyncio.ensure_future(outcome(agent.board.Commit(commit_request(increment("n")), metadata=traced)))
        )
        await one.has_in_hand(len(answers))
    plain, store.commit = store.commit, partial(MemoryStore.commit, store)  # type: ignore[method-assign] # not held up
    await operator(two).set_policy(rule(REGION, writers=["agent:writer-2"]))
    store.commit = plain  # type: ignore[method-assign] # as above
    store.release()
    told = await asyncio.gather(*answers)
    deaf.hears.set()
    assert [answer.reason if isinstance(answer, Refused) else "" for answer in told] == ["", "WRITE_FORBIDDEN", ""]
    assert await allowed.json("n") == "4"
    recorded = [record for record in await audit_records(one) if record.agent == "writer-1"]
    assert {record.traceparent[3:35] for record in recorded} == {"2" * 32}  # not of the call that the others waited for


async def test_a_commit_that_a_new_policy_still_admits_goes_through_at_a_server_that_has_not_heard_of_it(
    start: Started, any_store: BoardStore
) -> None:
    deaf = Deaf(any_store)
    one, two = await start(deaf), await start(any_store)
    await one.agent.commit(put("a"))
    deaf.hears.clear()
    await operator(two).set_policy(rule("task:*", writers=NOBODY))
    await one.agent.commit(put("b"))
    opened = await one.agent.open_session()
    assert opened.session.id
    deaf.hears.set()


async def test_a_server_that_hears_nothing_reads_the_policy_anew_after_ten_seconds(
    start: Started, any_store: BoardStore
) -> None:
    deaf = Deaf(any_store)
    one, two = await start(deaf), await start(any_store)
    await one.agent.commit(put("a"))
    deaf.hears.clear()
    await operator(two).set_policy(rule(REGION, readers=NOBODY))
    await one.agent.get("a")  # as it knows no better
    board = one.server._boards.at_hand("dev", "main")
    assert board is not None
    board.read_at -= 10.0
    with refused("NOT_FOUND"):
        await one.agent.get("a")
    deaf.hears.set()


async def test_a_watch_ends_when_its_region_may_not_be_read_any_more(start: Started, any_store: BoardStore) -> None:
    one, two = await start(any_store), await start(any_store, bookmark_interval_s=600.0)
    await one.agent.commit(put("a"))
    watch, other = two.agent.watch(snapshot=True), two.as_agent("boss", "member,supervisor").watch(now=True)
    await watch.call.read()
    await other.call.read()
    await operator(one).set_policy(rule(REGION, readers=CHIEFS))
    assert await end_of(watch.call) == "NOT_FOUND"
    await one.as_agent("boss", "member,supervisor").commit(put("b"))
    async with asyncio.timeout(10):
        while not (await other.next()).events.changes:
            pass


async def test_a_wait_for_a_lock_ends_when_its_region_may_not_be_locked_any_more(
    start: Started, any_store: BoardStore
) -> None:
    running = await start(any_store)
    holder, waiter = await running.join(), await running.join("writer-2")
    fence = await holder.acquire("a")
    asking = await waiter.queued("a")
    await operator(running).set_policy(rule(REGION, lockers=["agent:writer-1"]))
    assert await end_of(asking.call) == "WRITE_FORBIDDEN"
    await eventually(lambda: is_empty(any_store, keys.WAIT))
    assert await holder.agent.release(fence)


async def test_a_stream_of_commits_lives_on_under_a_new_policy(running: Running) -> None:
    await running.agent.commit(put("a"))
    stream: Any = running.agent.board.CommitStream(metadata=running.agent.metadata)

    async def answer(path: str) -> commit_pb2.CommitStreamResponse:
        await stream.write(commit_pb2.CommitStreamRequest(commit=commit_request(put(path))))
        read: commit_pb2.CommitStreamResponse = await stream.read()
        return read

    assert (await answer("b")).WhichOneof("result") == "committed"
    await operator(running).set_policy(rule(REGION, writers=NOBODY))
    assert (await answer("c")).refused.metadata["region"] == REGION
    await operator(running).set_policy(replaces=1)
    assert (await answer("c")).WhichOneof("result") == "committed"


async def is_empty(store: BoardStore, prefix: bytes) -> bool:
    return not await records(store, prefix)
