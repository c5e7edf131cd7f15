"""TraceProvenance: where something comes from and what became of it, over hands, sessions and what is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban.v1 import entry_pb2, trust_pb2, trust_service_pb2
from kokuban_server.core import keys
from kokuban_server.records.provenance_codec import decode_origins
from tests.wire.audit_calls import audit_records
from tests.wire.calls import (
    REGION,
    Agent,
    append,
    at,
    key,
    made_of,
    new_id,
    of_source,
    put,
    records,
    refused,
    rule,
)

if TYPE_CHECKING:
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running

DECLARED = trust_service_pb2.PROVENANCE_LINK_DECLARED
READ_SCOPE = trust_service_pb2.PROVENANCE_LINK_READ_SCOPE
EXTENDS = trust_service_pb2.PROVENANCE_LINK_EXTENDS
ASKED = trust_service_pb2.PROVENANCE_LINK_ASKED

Step = tuple[str, "trust_service_pb2.ProvenanceLink.ValueType", str]


def steps(answer: trust_service_pb2.TraceProvenanceResponse) -> list[Step]:
    """Give of each state its path, how it is tied, and the path that it was met from."""
    states = answer.states
    return [(state.key.path, state.link, states[getattr(state, "from")].key.path) for state in states]


async def told(running: Running) -> None:
    """Have a page go through a declared summary, a session that read it, and a list that is added to."""
    agent, reader = running.agent, await running.join("reader-1")
    page = await agent.commit(put("page", provenance=of_source()))
    await agent.commit(put("summary", provenance=made_of(("page", page))))
    await reader.agent.asked("summary", session=reader.session)
    await reader.agent.commit(append("list", "a"), session=reader.session)
    await agent.commit(append("list", "b"))


async def test_it_is_traced_both_ways(on_any_store: Running) -> None:
    await told(on_any_store)
    back = await on_any_store.agent.trace("list")
    assert steps(back) == [
        ("list", ASKED, "list"),
        ("list", EXTENDS, "list"),
        ("summary", READ_SCOPE, "list"),
        ("page", DECLARED, "summary"),
    ]
    assert [state.depth for state in back.states] == [0, 1, 2, 3]
    page = back.states[3]
    assert (page.source.uri, page.trust) == ("https://example.com/page", trust_pb2.TRUST_LEVEL_EXTERNAL)
    assert (page.agent, page.kept, page.present) == ("writer-1", True, True)
    assert (back.states[1].agent, back.states[1].kept, back.states[1].present) == ("reader-1", True, False)
    on = await on_any_store.agent.trace("page", descends=True)
    assert steps(on) == [
        ("page", ASKED, "page"),
        ("summary", DECLARED, "page"),
        ("list", READ_SCOPE, "summary"),
        ("list", EXTENDS, "list"),
    ]
    assert not back.truncated
    assert not on.truncated


async def test_a_state_of_the_past_is_traced_as_it_was(each: Agent) -> None:
    page = await each.commit(put("page", provenance=of_source()))
    first = await each.commit(put("a", provenance=made_of(("page", page))))
    await each.commit(put("a", "my own", at(first)))
    assert steps(await each.trace("a")) == [("a", ASKED, "a")]
    assert [one[0] for one in steps(await each.trace("a", at=first.revision))] == ["a", "page"]
    with refused("NOT_FOUND"):
        await each.trace("a", at=entry_pb2.Revision(number=first.revision.number + 7, epoch=first.revision.epoch))
    with refused("NOT_FOUND"):
        await each.trace("none")


async def test_what_is_forgotten_between_does_not_cut_the_way(running: Running) -> None:
    """Of a state that is not kept any more it is known where it came from, and not what it said."""
    await running.as_agent("ops-1", "operator").set_policy(rule(REGION, history_revisions_max=1))
    page = await running.agent.commit(put("page", provenance=of_source()))
    middle = await running.agent.commit(put("middle", provenance=made_of(("page", page))))
    child = await running.agent.commit(put("child", provenance=made_of(("middle", middle))))
    latest = await running.agent.commit(put("middle", "my own", at(middle)))
    await running.agent.commit(put("middle", "my own 2", at(latest)))
    back = await running.agent.trace("child", at=child.revision)
    assert [one[0] for one in steps(back)] == ["child", "middle", "page"]
    assert (back.states[1].kept, back.states[1].revision) == (False, middle.revision)
    assert back.states[1].trust == trust_pb2.TRUST_LEVEL_EXTERNAL
    on = await running.agent.trace("page", descends=True)
    assert [one[0] for one in steps(on)] == ["page", "middle", "child"]


async def test_what_the_caller_may_not_read_is_left_out_without_a_word(running: Running) -> None:
    agent, other = running.agent, running.as_agent("writer-2")
    page = await agent.commit(put("page", provenance=of_source()))
    secret = await agent.commit(put("secret", region="agent:writer-1", provenance=made_of(("page", page))))
    named = entry_pb2.EntryAt(key=key("secret", "agent:writer-1"), at=secret.revision)
    await agent.commit(put("open", provenance=entry_pb2.Provenance(derived_from=[named])))
    assert [one[0] for one in steps(await agent.trace("open"))] == ["open", "secret", "page"]
    seen = await other.trace("open")
    assert [one[0] for one in steps(seen)] == ["open"]
    assert not seen.truncated
    assert [one[0] for one in steps(await other.trace("page", descends=True))] == ["page"]
    with refused("NOT_FOUND"):
        await other.trace("secret", region="agent:writer-1")


async def test_a_trace_is_bounded_and_says_so(running: Running) -> None:
    page = await running.agent.commit(put("page", provenance=of_source()))
    for number in range(5):
        await running.agent.commit(put(f"child/{number}", provenance=made_of(("page", page))))
    few = await running.agent.trace("page", descends=True, max_states=5)
    assert (len(few.states), few.truncated) == (5, True)
    all_of_them = await running.agent.trace("page", descends=True, max_states=6)
    assert (len(all_of_them.states), all_of_them.truncated) == (6, False)
    state = page
    for number in range(3):
        state = await running.agent.commit(
            put(f"hand/{number}", provenance=made_of((f"hand/{number - 1}" if number else "page", state)))
        )
    near = await running.agent.trace("hand/2", max_depth=2)
    assert ([one[0] for one in steps(near)], near.truncated) == (["hand/2", "hand/1", "hand/0"], True)


async def test_reading_what_overseers_may_read_is_recorded(running: Running) -> None:
    """A trace reads as any other read does: another agent's memory only where it is written down first."""
    operator = running.as_agent("ops-1", "member,operator")
    await operator.set_policy(rule("agent:*", readers=["acting", "role:operator"]))
    await running.agent.commit(put("secret", region="agent:writer-1", provenance=of_source()))
    await operator.trace("secret", region="agent:writer-1")
    assert [record.target for record in await audit_records(running, act="region.read")] == ["agent:writer-1"]


async def swept(running: Running, clock: SettableClock) -> None:
    """Have everything that is superfluous go: it is found at one walk, and goes at the next."""
    sweep = running.server._removal_upkeep._origins
    for _ in range(2):
        clock.pass_ms(3_600_000)
        for _ in range(3):
            await sweep.turn()


async def origins(running: Running) -> list[str]:
    """Give the entries of whose states it is known what they were made of."""
    return sorted(
        keys.parse_head(origin.head)[2].path
        for record in await records(running.server._store, keys.ORIGIN)
        for origin in decode_origins(record.key, record.value, record.revision)
    )


async def test_where_a_state_came_from_is_known_as_long_as_anything_holds_a_part_of_it(
    running: Running, clock: SettableClock
) -> None:
    await running.as_agent("ops-1", "operator").set_policy(rule(REGION, history_revisions_max=1))
    agent = running.agent
    page = await agent.commit(put("page", provenance=of_source()))
    child = await agent.commit(put("child", provenance=made_of(("page", page))))
    listed = append("list", "a")
    listed.append_to_list.provenance.CopyFrom(of_source())
    await agent.commit(listed, put("gone", provenance=of_source()))
    await agent.commit(put("page", "my own", at(page)), append("list", "b"))
    gone = await agent.asked("gone")
    await agent.commit(put("gone", "my own", at(gone)))
    await swept(running, clock)
    assert await origins(running) == ["child", "list", "page"]
    await agent.commit(put("child", "my own", at(child)), request_id=new_id(clock.now_ms()))
    await swept(running, clock)
    await swept(running, clock)  # what only the child named is superfluous from then on
    assert await origins(running) == ["list"]
    assert steps(await agent.trace("list"))[0] == ("list", ASKED, "list")


async def test_a_read_scope_is_forgotten_when_it_is_over_and_nothing_of_it_is_left(
    running: Running, clock: SettableClock
) -> None:
    await running.agent.commit(put("page", provenance=of_source()))
    idle, busy, living = [await running.join(f"reader-{number}") for number in range(3)]
    for member in (idle, busy, living):
        await member.agent.asked("page", session=member.session)
    await busy.agent.commit(put("notes"), session=busy.session)
    for member in (idle, busy):
        await member.agent.close(member.session)
    await swept(running, clock)
    left = {keys.name_on_board(record.key) for record in await records(running.server._store, keys.SCOPE)}
    assert left == {busy.session, living.session}
    with refused("SESSION_LOST"):
        await idle.agent.commit(put("late"), session=idle.session, request_id=new_id(clock.now_ms()))
