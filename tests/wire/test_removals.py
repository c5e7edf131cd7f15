"""Purges of sources and erasures of persons: planned, done while others work, everywhere, over kills; and what was derived."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from kokuban.v1 import admin_service_pb2, audit_pb2, entry_pb2, trust_service_pb2
from kokuban_server.core import keys, limits
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.provenance_codec import decode_origins
from tests.core.obfuscations import ORDERS_EN, hidden
from tests.wire.audit_calls import audit_records
from tests.wire.calls import (
    REGION,
    Agent,
    HeldStore,
    Kept,
    append,
    at,
    eventually,
    key,
    made_of,
    of_source,
    put,
    records,
    refused,
    rule,
    until,
)
from tests.wire.task_calls import DONE as ACTION_DONE
from tests.wire.task_calls import NOTE, STARTED, Tasks, happened
from tests.wire.test_credentials import Book, bearer
from tests.wire.test_write_redaction import TOKEN

if TYPE_CHECKING:
    from pathlib import Path

    from kokuban.v1 import commit_pb2
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started

BAD, GOOD = "https://bad.example/page", "https://good.example/page"
POISON = "zanzibar-poison"
PLANNED, RUNNING = trust_service_pb2.REMOVAL_STATE_PLANNED, trust_service_pb2.REMOVAL_STATE_RUNNING
DONE = trust_service_pb2.REMOVAL_STATE_DONE
REMOVED, ATTESTED = trust_service_pb2.REMOVAL_FATE_REMOVED, trust_service_pb2.REMOVAL_FATE_ATTESTED
UNDECIDED = trust_service_pb2.REMOVAL_FATE_UNDECIDED
ERASED, KEPT = trust_service_pb2.ERASURE_STATUS_ERASED, trust_service_pb2.ERASURE_STATUS_KEPT
PENDING = trust_service_pb2.ERASURE_STATUS_PENDING_COMPACTION


def ops(running: Running) -> Agent:
    return running.as_agent("ops-1", "member,operator,supervisor")


async def page(agent: Agent, path: str = "page", uri: str = BAD, text: str = POISON) -> commit_pb2.CommitResponse:
    return await agent.commit(put(path, text, provenance=of_source(uri=uri)))


async def derived(agent: Agent, path: str, *states: tuple[str, Any], text: str = POISON) -> commit_pb2.CommitResponse:
    return await agent.commit(put(path, text, provenance=made_of(*states)))


async def done(running: Running, plan: str, *, erasure: bool = False) -> dict[str, trust_service_pb2.StoreReceipt]:
    """Begin what was planned, have it done, and give its receipts by store."""
    operator = ops(running)
    begun = await (operator.erase(plan) if erasure else operator.purge(plan))
    assert begun.state == RUNNING
    await running.server._removal_upkeep.turn()
    removal = await operator.removal(plan)
    assert removal.state == DONE
    return {receipt.store: receipt for receipt in removal.receipts}


async def purged(running: Running, **selector: Any) -> dict[str, trust_service_pb2.StoreReceipt]:  # noqa: ANN401 - of it
    planned = await ops(running).plan_purge(**selector or {"uri": BAD})
    return await done(running, planned.removal.id)


async def holds(store: BoardStore, text: str) -> list[bytes]:
    """Give the keys of all records that hold a text, in key or value."""
    wanted = text.encode()
    everything = [record for first in range(256) for record in await records(store, bytes((first,)))]
    return [record.key for record in everything if wanted in record.key or wanted in record.value]


# What is removed.


async def test_ER_01_what_was_derived_from_it_goes_with_it_over_generations_declared_and_tracked(
    on_any_store: Running, any_store: BoardStore
) -> None:
    agent, reader = on_any_store.agent, await on_any_store.join("reader-1")
    source = await page(agent)
    summary = await derived(agent, "summary", ("page", source))
    await derived(agent, "report", ("summary", summary))
    await reader.agent.asked("report", session=reader.session)
    await reader.agent.commit(put("notes", POISON), session=reader.session)
    await agent.commit(put("own", "untouched"))
    await page(agent, "other", GOOD, "fine")
    planned = await ops(on_any_store).plan_purge(uri=BAD)
    assert planned.removal.state == PLANNED
    assert {finding.key.path: finding.fate for finding in planned.plan.findings} == dict.fromkeys(
        ("page", "summary", "report", "notes"), REMOVED
    )
    assert (planned.plan.removed_count, planned.plan.deleted_count, planned.plan.session_count) == (4, 4, 1)
    assert await agent.paths() == ["notes", "other", "own", "page", "report", "summary"]  # nothing is gone yet
    receipts = await done(on_any_store, planned.removal.id)
    assert await agent.paths() == ["other", "own"]
    assert (receipts["entries"].status, receipts["entries"].count) == (ERASED, 4)
    assert (receipts["history"].status, receipts["history"].count) == (ERASED, 4)
    assert await holds(any_store, POISON) == []
    [change] = await agent.history("page")
    assert (change.type, change.acts[0].agent) == (entry_pb2.CHANGE_TYPE_DELETED, "kokuban")


async def test_what_a_session_wrote_before_it_was_given_any_of_it_stays(running: Running) -> None:
    reader = await running.join("reader-1")
    await page(running.agent, "fine", GOOD, "fine")
    await page(running.agent)
    await reader.agent.asked("fine", session=reader.session)
    await reader.agent.commit(put("before", "from the good page"), session=reader.session)
    await reader.agent.asked("page", session=reader.session)
    await reader.agent.commit(put("after", "from both"), session=reader.session)
    await purged(running)
    assert await running.agent.paths() == ["before", "fine"]


async def test_earlier_states_that_did_not_come_of_it_stay_in_the_history(running: Running) -> None:
    first = await page(running.agent, "note", GOOD, "fine")
    second = await running.agent.commit(put("note", POISON, at(first), provenance=of_source(uri=BAD)))
    await running.agent.commit(put("note", "fine again", at(second), provenance=of_source(uri=GOOD)))
    receipts = await purged(running)
    assert (receipts["entries"].count, receipts["history"].count) == (0, 1)
    assert (await running.agent.asked("note")).value.external.text == "fine again"
    assert [change.entry.revision for change in await running.agent.history("note")][-1] == first.revision


async def test_what_keeps_a_part_of_it_goes_too(each: Agent, on_any_store: Running) -> None:
    """However the state between is forgotten: a list that was appended to, an entry that was endorsed."""
    await ops(on_any_store).set_policy(rule(REGION, history_revisions_max=2))
    poisoned = append("list", POISON)
    poisoned.append_to_list.provenance.CopyFrom(of_source(uri=BAD))
    await each.commit(poisoned, put("word", "fine"))
    source = await page(each)
    endorsed = await ops(on_any_store).endorse("page", source, "AGENT")
    latest = await each.commit(put("page", None, at(endorsed.revision), metadata={"n": "0"}))
    for number in range(4):
        await each.commit(append("list", "fine"))
        latest = await each.commit(put("page", None, at(latest), metadata={"n": f"{number}"}))
    child = await derived(each, "child", ("page", latest))
    await derived(each, "grandchild", ("child", child))
    assert len(await each.history("page")) == len(await each.history("list")) == 2
    await purged(on_any_store)
    assert await each.paths() == ["word"]


async def test_a_source_is_told_by_pattern_digest_agent_session_and_time(
    running: Running, clock: SettableClock
) -> None:
    member = await running.join("writer-2")
    provenance = of_source(uri="https://bad.example/a/1")
    provenance.source.content_sha256 = "ab" * 32
    await running.agent.commit(put("a", provenance=provenance))
    await page(member.agent, "b", "https://bad.example/b/1")
    clock.pass_ms(60_000)
    await member.agent.commit(put("c", "my own word"), session=member.session)
    operator = ops(running)

    async def found(**selector: Any) -> list[str]:  # noqa: ANN401 - of it
        planned = await operator.plan_purge(**selector)
        return sorted(finding.key.path for finding in planned.plan.findings)

    assert await found(uri_pattern="https://bad.example/*") == ["a", "b"]
    assert await found(uri_pattern="https://bad.example/a/*") == ["a"]
    assert await found(uri_pattern="https://bad.example/*", agent="writer-2") == ["b"]
    assert await found(content_sha256="ab" * 32) == ["a"]
    assert await found(agent="writer-2") == ["b", "c"]
    assert await found(session=member.session) == ["c"]
    assert await found(uri="https://bad.example") == []
    later = clock.now_ms() - 1_000
    stamp = Timestamp(seconds=later // 1000)
    assert await found(from_time=stamp) == ["c"]
    assert await found(before_time=stamp) == ["a", "b"]


async def test_an_independent_source_of_the_same_keeps_it_and_what_was_made_of_it(running: Running) -> None:
    good = await page(running.agent, "fact", GOOD, "water boils at 100 degrees")
    bad = await running.agent.commit(put("fact", "water boils at 100 degrees", at(good), provenance=of_source(uri=BAD)))
    await derived(running.agent, "report", ("fact", bad), text="tea needs 100 degrees")
    planned = await ops(running).plan_purge(uri=BAD)
    assert [(one.key.path, one.fate, one.present) for one in planned.plan.findings] == [("fact", ATTESTED, True)]
    assert (planned.plan.deleted_count, planned.plan.attested_count) == (0, 1)
    await done(running, planned.removal.id)
    shown = await running.agent.asked("fact")
    assert shown.value.external.text == "water boils at 100 degrees"
    assert shown.value.external.source.uri == GOOD
    assert await running.agent.paths() == ["fact", "report"]
    assert await holds(running.server._store, BAD) == [
        record.key for record in await records(running.server._store, keys.BOARD)
    ] + [record.key for record in await records(running.server._store, keys.REMOVAL)]
    await purged(running, uri=GOOD)  # the other one too: then nothing holds it any more
    assert await running.agent.paths() == []


async def test_what_cannot_be_decided_is_told(running: Running) -> None:
    """Who wrote what is not kept any more, of which a later state still holds a part."""
    await ops(running).set_policy(rule(REGION, history_revisions_max=2))
    await running.as_agent("writer-9").commit(append("list", "a"))
    for text in "bcd":
        await running.agent.commit(append("list", text))
    planned = await ops(running).plan_purge(agent="writer-9")
    assert {finding.fate for finding in planned.plan.findings} == {UNDECIDED}
    assert (planned.plan.removed_count, planned.plan.undecided_count) == (0, 2)


# What is refused from then on.


async def test_ER_06_what_was_purged_is_not_written_again(running: Running, start: Started) -> None:
    reader = await running.join("reader-1")
    source = await page(running.agent)
    await reader.agent.asked("page", session=reader.session)
    await purged(running)
    other = await start(Kept(running.server._store))  # a server that has not heard of it
    for agent in (running.agent, other.agent):
        with refused("SOURCE_PURGED", field="mutations[0].put.provenance.source"):
            await page(agent, "again")
        with refused("PARENT_NOT_FOUND"):
            await derived(agent, "again", ("page", source))
    with refused("READ_SCOPE_PURGED", session_id=reader.session):
        await reader.agent.commit(put("again", "what the page said"), session=reader.session)
    await reader.agent.commit(put("again", "not of this session"))
    await page(running.agent, "fine", GOOD, "fine")


async def test_a_purge_may_let_the_source_come_back(running: Running) -> None:
    await page(running.agent)
    planned = await ops(running).plan_purge(uri=BAD, again=True)
    await done(running, planned.removal.id)
    await page(running.agent, "again")
    assert await running.agent.paths() == ["again"]


async def test_a_purge_of_an_agent_or_of_a_time_refuses_nobody(running: Running) -> None:
    await running.agent.commit(put("a"))
    await purged(running, agent="writer-1")
    await running.agent.commit(put("a", "back"))
    assert await running.agent.paths() == ["a"]


async def test_a_commit_that_was_on_its_way_is_judged_anew(start: Started, clock: SettableClock) -> None:
    """One that has read its parents before the purge began and arrives in the middle of it or after."""
    store = HeldStore(clock)
    running = await start(store)
    source = await page(running.agent)
    other = await start(Kept(store))
    await derived(other.agent, "first", ("page", source))  # this server remembers the page from here on
    planned = await ops(running).plan_purge(uri=BAD)
    store.hold()
    late = asyncio.ensure_future(derived(other.agent, "late", ("page", source)))
    await asyncio.sleep(0.05)
    store.release()
    await done(running, planned.removal.id)
    with contextlib.suppress(grpc.aio.AioRpcError):
        await late
    await running.server._removal_upkeep.turn()
    assert await running.agent.paths() in ([], ["late"])
    again = await ops(running).plan_purge(uri=BAD)
    assert again.plan.removed_count == 0


# Where it is removed.


async def test_ER_02_ER_03_nothing_is_left_in_any_record_or_on_any_path(
    on_any_store: Running, any_store: BoardStore
) -> None:
    """Entries, histories, the past, a watch that is behind, and quarantine."""
    agent = on_any_store.agent
    before = await agent.commit(put("before"))
    source = await page(agent)
    await agent.commit(put("page", f"{POISON} 2", at(source), provenance=of_source(uri=BAD)))
    order = hidden("en", ORDERS_EN[0], "HTML comment")
    with refused("CONTENT_QUARANTINED"):
        await agent.commit(put("held", f"{POISON} {order}", provenance=of_source(uri=BAD)))
    assert await holds(any_store, POISON)
    snapshot = (await agent.page()).token
    receipts = await purged(on_any_store)
    assert await holds(any_store, POISON) == []
    assert receipts["quarantine"].count == 1
    assert receipts["store_history"].status == PENDING
    past = await agent.page(consistency=entry_pb2.ReadConsistency(snapshot=snapshot), floor=2)
    assert {entry.key.path: entry.withheld for entry in past.entries} == {"before": False, "page": True}
    assert POISON.encode() not in past.SerializeToString()
    watched = await agent.watch(after=before.token).changes(3)
    assert [(change.entry.key.path, change.entry.withheld) for change in watched] == [
        ("page", True),
        ("page", True),
        ("page", False),
    ]
    assert all(POISON.encode() not in change.SerializeToString() for change in watched)


async def test_ER_04_the_receipt_says_when_the_bytes_are_gone(on_any_store: Running) -> None:
    await page(on_any_store.agent)
    operator = ops(on_any_store)
    planned = await operator.plan_purge(uri=BAD)
    receipts = await done(on_any_store, planned.removal.id)
    assert receipts["store_history"].status == PENDING
    assert receipts["conflicts"].status == KEPT
    last = await on_any_store.agent.commit(put("later"))
    await operator.admin.Compact(admin_service_pb2.CompactRequest(before=last.token), metadata=operator.metadata)
    removal = await operator.removal(planned.removal.id)
    assert {receipt.store: receipt.status for receipt in removal.receipts}["store_history"] == ERASED


async def test_ER_08_no_record_of_origins_is_left_of_what_is_gone(running: Running) -> None:
    source = await page(running.agent)
    await derived(running.agent, "summary", ("page", source))
    await page(running.agent, "other", GOOD, "fine")
    await purged(running)
    left = [
        origin
        for record in await records(running.server._store, keys.ORIGIN)
        for origin in decode_origins(record.key, record.value, record.revision)
    ]
    assert [origin.label.source.uri for origin in left] == [GOOD]
    assert await records(running.server._store, keys.REMOVAL_RUNNING) == []


# Over kills, and while others work.


class KilledError(Exception):
    """The server is gone."""


async def test_it_may_be_killed_at_every_step(start: Started, clock: SettableClock) -> None:
    """Every commit of the work is the last one of some server; the next one goes on, and what is counted is counted once."""

    class Killing(HeldStore):
        left = -1

        async def commit(self, change: ChangeSet, deadline_s: float) -> int:
            if self.left == 0 and any(put.key.startswith((keys.REMOVAL, keys.BOARD)) for put in change.puts):
                raise KilledError
            self.left -= self.left > 0
            return await super().commit(change, deadline_s)

    for steps in itertools.count():
        store = Killing(clock)
        running = await start(store)
        reader = await running.join("reader-1")
        source = await page(running.agent)
        await derived(running.agent, "summary", ("page", source))
        await reader.agent.asked("page", session=reader.session)
        await reader.agent.commit(put("notes", POISON), session=reader.session)
        operator = ops(running)
        plan = (await operator.plan_purge(uri=BAD)).removal.id
        await operator.purge(plan)
        store.left = steps
        try:
            await running.server._removal_upkeep.turn()
        except KilledError:
            killed = True
        else:
            killed = False
        store.left = -1
        other = await start(Kept(store))
        await other.server._removal_upkeep.turn()
        removal = await ops(other).removal(plan)
        assert removal.state == DONE
        counts = {receipt.store: receipt.count for receipt in removal.receipts}
        assert (counts["entries"], counts["history"], counts["read_scopes"]) == (3, 3, 1)
        assert await other.agent.paths() == []
        if not killed:
            assert steps > 4
            return


async def test_100_percent_of_descendants_go_while_writers_derive_more(on_any_store: Running) -> None:
    """Three generations, with writers that go on deriving from whatever they find until the source is gone."""
    agent, operator = on_any_store.agent, ops(on_any_store)
    source = await page(agent)
    stopped = asyncio.Event()
    written: list[str] = []

    async def work(number: int) -> None:
        writer = on_any_store.as_agent(f"writer-{number}")
        generation: list[tuple[str, Any]] = [("page", source)]
        for step in itertools.count():
            path = f"w{number}/{step}"
            try:
                answer = await derived(writer, path, generation[-1])
            except grpc.aio.AioRpcError:
                generation = generation[:-1] or [("page", source)]
            else:
                written.append(path)
                generation = [*generation, (path, answer)][-3:]
            if stopped.is_set():
                return
            await asyncio.sleep(0)

    workers = [asyncio.ensure_future(work(number)) for number in range(4)]
    await until(lambda: len(written) >= 40)
    plan = (await operator.plan_purge(uri=BAD)).removal.id
    await operator.purge(plan)
    for _ in range(100):
        await on_any_store.server._removal_upkeep.turn()
        if (await operator.removal(plan)).state == DONE:
            break
    assert (await operator.removal(plan)).state == DONE
    await asyncio.sleep(0.05)
    stopped.set()
    await asyncio.gather(*workers)
    assert await agent.paths() == []
    assert await holds(on_any_store.server._store, POISON) == []


async def test_it_gets_through_however_fast_others_write_what_it_removes(start: Started, clock: SettableClock) -> None:
    """Each look of the work at the entry meets another state than the one that it finds when it comes to remove it."""

    class Busy(HeldStore):
        writes: int = 0

        async def commit(self, change: ChangeSet, deadline_s: float) -> int:
            counts = any(put.key.startswith(keys.REMOVAL) for put in change.puts) and change.deletes
            if counts and self.writes:
                self.writes -= 1
                await running.agent.commit(append("list", "more"))
            return await super().commit(change, deadline_s)

    store = Busy(clock)
    running = await start(store)
    poisoned = append("list", POISON)
    poisoned.append_to_list.provenance.CopyFrom(of_source(uri=BAD))
    await running.agent.commit(poisoned)
    plan = (await ops(running).plan_purge(uri=BAD)).removal.id
    await ops(running).purge(plan)
    store.writes = 8
    await running.server._removal_upkeep.turn()
    assert store.writes == 0
    assert (await ops(running).removal(plan)).state == DONE
    assert await holds(store, POISON) == []


async def test_two_servers_may_do_it_at_once(running: Running, start: Started) -> None:
    other = await start(Kept(running.server._store))
    for number in range(10):
        await page(running.agent, f"page/{number}")
    plan = (await ops(running).plan_purge(uri=BAD)).removal.id
    await ops(running).purge(plan)
    await asyncio.gather(running.server._removal_upkeep.turn(), other.server._removal_upkeep.turn())
    removal = await ops(running).removal(plan)
    assert {receipt.store: receipt.count for receipt in removal.receipts}["entries"] == 10
    assert await running.agent.paths() == []


async def test_a_mark_that_something_is_being_removed_goes_when_it_is_not(running: Running) -> None:
    await page(running.agent)
    planned = await ops(running).plan_purge(uri=BAD)
    await done(running, planned.removal.id)
    never = await ops(running).plan_purge(uri=GOOD)
    for plan in (planned.removal.id, never.removal.id, f"{'0' * 15}-{'0' * 16}"):
        mark = Put(keys.on_board(keys.REMOVAL_RUNNING, keys.board_prefix("dev", "main"), plan), b"")
        await running.server._store.commit(ChangeSet((), (mark,)), 10.0)
    await running.server._removal_upkeep.turn()
    assert await records(running.server._store, keys.REMOVAL_RUNNING) == []
    assert (await ops(running).removal(never.removal.id)).state == PLANNED


async def test_the_server_does_it_by_itself(start: Started) -> None:
    running = await start(upkeep_interval_s=0.1)
    await page(running.agent)
    operator = ops(running)
    plan = (await operator.plan_purge(uri=BAD)).removal.id
    await operator.purge(plan)

    async def is_done() -> bool:
        return (await operator.removal(plan)).state == DONE

    await eventually(is_done)
    assert await running.agent.paths() == []


# Persons.


async def test_of_a_person_nothing_is_kept_and_nothing_comes_back(on_any_store: Running, any_store: BoardStore) -> None:
    agent = on_any_store.agent
    told = await agent.commit(put("likes", "jasmine tea", region="user:u-anna"))
    said = await agent.commit(put("wish", "jasmine tea", provenance=of_source("USER", "", "u-anna")))
    both = entry_pb2.Provenance(
        derived_from=[
            entry_pb2.EntryAt(key=key("likes", "user:u-anna"), at=told.revision),
            entry_pb2.EntryAt(key=key("wish"), at=said.revision),
        ]
    )
    await agent.commit(put("plan", "buy jasmine tea", provenance=both))
    with refused("ALREADY_EXISTS"):  # a conflict that names the region
        await agent.commit(put("likes", "coffee", region="user:u-anna"))
    await agent.commit(put("likes", "coffee", region="user:u-otto"))
    await on_any_store.server._conflicts.settle(asyncio.get_running_loop().time() + 10.0)
    assert await records(any_store, keys.CONFLICT)
    planned = await ops(on_any_store).plan_erasure("u-anna")
    assert sorted(finding.key.path for finding in planned.plan.findings) == ["likes", "plan", "wish"]
    receipts = await done(on_any_store, planned.removal.id, erasure=True)
    assert (receipts["entries"].count, receipts["conflicts"].count) == (3, 1)
    assert await holds(any_store, "jasmine") == []
    assert await holds(any_store, "u-anna") == []
    assert await agent.paths(region="user:u-otto") == ["likes"]
    assert not (await ops(on_any_store).removal(planned.removal.id)).user
    with refused("SOURCE_PURGED", field="mutations[0].put.key.region"):
        await agent.commit(put("likes", "jasmine tea", region="user:u-anna"))
    with refused("SOURCE_PURGED", field="mutations[0].put.provenance.source"):
        await agent.commit(put("wish", "jasmine tea", provenance=of_source("USER", "", "u-anna")))


# Who may.


async def test_only_administrators_may_and_what_they_may_not_read_is_not_named(running: Running) -> None:
    source = await page(running.agent)
    with refused("ROLE_REQUIRED"):
        await running.agent.plan_purge(uri=BAD)
    secret = entry_pb2.Provenance(derived_from=[entry_pb2.EntryAt(key=key("page"), at=source.revision)])
    await running.agent.commit(put("secret", POISON, region="agent:writer-1", provenance=secret))
    planned = await ops(running).plan_purge(uri=BAD)
    assert [finding.key.path for finding in planned.plan.findings] == ["page"]
    assert planned.plan.removed_count == 2
    await done(running, planned.removal.id)
    assert await running.agent.paths(region="agent:writer-1") == []
    [record] = await audit_records(running, act="source.purge")
    assert (record.agent, record.reason, record.target) == ("ops-1", "it lies", f"removal {planned.removal.id}")


async def test_a_plan_is_begun_once_and_not_after_a_day(running: Running, clock: SettableClock) -> None:
    await page(running.agent)
    operator = ops(running)
    plan = (await operator.plan_purge(uri=BAD)).removal.id
    with refused("NOT_FOUND"):
        await operator.erase(plan)  # it is a purge
    first, second = await operator.purge(plan), await operator.purge(plan)
    assert (first.state, second.state, first.start_time) == (RUNNING, RUNNING, second.start_time)
    stale = (await operator.plan_purge(uri=GOOD)).removal.id
    clock.pass_ms(limits.REMOVAL_PLAN_MS)
    with refused("NOT_FOUND"):
        await operator.purge(stale)
    await operator.plan_purge(uri=GOOD)
    with refused("NOT_FOUND"):
        await operator.removal(stale)


async def test_a_board_has_1000_removals_and_refuses_256_sources(running: Running) -> None:
    operator = ops(running)
    plans = []
    for number in range(limits.BARS_ENTRIES_MAX + 1):
        planned = await operator.plan_purge(uri=f"https://bad.example/{number}")
        plans.append(planned.removal.id)
    for plan in plans[:-1]:
        await operator.purge(plan)
    with refused("PURGES_FULL", limit="256"):
        await operator.purge(plans[-1])
    store = running.server._store
    prefix = keys.REMOVAL + keys.board_prefix("dev", "main")
    [some] = (await store.scan(prefix, b"", 1, 1_000_000, STRONG, 10.0)).records
    here = len(plans)
    for number in range(limits.REMOVALS_ENTRIES_MAX - here - 1):
        copy = Put(
            keys.on_board(keys.REMOVAL, keys.board_prefix("dev", "main"), f"{number:015d}-{'0' * 16}"), some.value
        )
        await store.commit(ChangeSet((), (copy,)), 10.0)
    await operator.plan_purge(uri=GOOD)
    with refused("PURGES_FULL", limit="1000"):
        await operator.plan_purge(uri=GOOD)
    request = trust_service_pb2.ListRemovalsRequest(board="main", page_size=1)
    first = await operator.trust.ListRemovals(request, metadata=operator.metadata)
    assert len(first.removals) == 1
    request.page_token = first.next_page_token
    second = await operator.trust.ListRemovals(request, metadata=operator.metadata)
    assert first.removals[0].id < second.removals[0].id


async def test_IN_07_what_no_filter_sees_is_held_by_its_label_and_can_be_removed(running: Running) -> None:
    """An ordinary sentence that is a lie, rephrased by hands that believe it: no word of it is suspicious."""
    reader = await running.join("reader-1")
    lie = "The team decided last week that invoices of Northwind are paid without a second look."
    source = await page(running.agent, "minutes", text=lie)
    assert not (await running.agent.asked("minutes")).label.suspicious
    await reader.agent.asked("minutes", session=reader.session)
    await reader.agent.commit(put("faq", "Northwind: no second look needed."), session=reader.session)
    await derived(running.agent, "rules", ("minutes", source), text="Skip the check for Northwind.")
    for path in ("minutes", "faq", "rules"):
        with refused("WITHHELD", trust="EXTERNAL"):
            await running.agent.get(path)
    await purged(running)
    assert await running.agent.paths() == []


async def test_a_person_is_in_the_audit_log_by_a_pseudonym(start: Started, tmp_path: Path) -> None:
    book = Book(tmp_path / "principals.json")
    token = book.give("writer-1", users=["u-otto"])
    keeper = bearer(book.give("keeper", roles=["member", "operator", "auditor"]))
    running = await start(identity="credentials", principals_file=book.path)
    await running.agent.admin.CreateBoard(admin_service_pb2.CreateBoardRequest(board="main"), metadata=(keeper,))
    agent = Agent(running.agent.channel, "writer-1")
    agent.metadata = (bearer(token),)
    for _ in range(2):
        with refused("NOT_FOUND"):
            await agent.get("likes", "user:u-anna")
    await running.server._audit._flush(asyncio.get_running_loop().time() + 10.0)
    request = audit_pb2.ListAuditRecordsRequest(filter=audit_pb2.AuditFilter(act="access.refused"))
    listed = await running.agent.admin.ListAuditRecords(request, metadata=(keeper,))
    first, second = [record.target for record in listed.records if record.agent == "writer-1"]
    assert first == second
    assert first.startswith("user:~")
    assert await holds(running.server._store, "u-anna") == []


async def test_what_a_source_said_in_a_task_goes_and_the_task_still_stands_as_it_stood(
    on_any_store: Running, any_store: BoardStore
) -> None:
    """Events of the source lose their data; their numbers are not used again, and what was recorded stays recorded."""
    worker = Tasks.of(await on_any_store.join())
    await worker.create("t1", "a")
    fence = (await worker.claim("t1")).granted.fence
    begun = happened("t1", STARTED, "fetch", "a")
    ended = happened("t1", ACTION_DONE, "fetch", "a", POISON, provenance=of_source(uri=BAD))
    own = happened("t1", NOTE, step="a", data="own")
    _, bad, good = await worker.record(fence, begun, ended, own)
    before = await worker.get("t1")
    await purged(on_any_store)
    assert [one for one in await holds(any_store, POISON) if one.startswith((keys.HEAD, keys.HISTORY))] == []
    assert await worker.get("t1") == before
    shown = [event.number for event in await worker.events("t1")]
    assert shown == [number for number in range(1, good + 1) if number != bad]
    with refused("ACTION_RECORDED", event=str(bad)):
        await worker.record(fence, happened("t1", STARTED, "fetch", "a"))
    assert await worker.record(fence, happened("t1", NOTE, step="a", data="next")) == [good + 1]


async def test_a_source_with_a_secret_in_its_address_is_found_by_that_address(running: Running) -> None:
    """What is stored of it is masked, and what is asked for is masked in the same way."""
    address = f"https://bad.example/page?access_token={TOKEN}"
    await page(running.agent, uri=address)
    assert await holds(running.server._store, TOKEN) == []
    planned = await ops(running).plan_purge(uri=address)
    assert planned.plan.removed_count == 1
    await done(running, planned.removal.id)
    with refused("SOURCE_PURGED"):
        await page(running.agent, uri=address)
    assert await holds(running.server._store, TOKEN) == []
