"""Labels over the wire: what a write is trusted as, what a read is shown, and that nothing but Endorse raises it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kokuban.v1 import admin_service_pb2, board_service_pb2, commit_pb2, entry_pb2, policy_pb2, trust_pb2
from kokuban_server.core import keys, limits
from tests.wire.calls import (
    REGION,
    START_MS,
    Agent,
    SettableClock,
    absent,
    append,
    at,
    delete,
    increment,
    key,
    made_of,
    merge,
    new_id,
    of_source,
    put,
    put_json,
    records,
    refused,
    rule,
)
from tests.wire.test_credentials import Book, bearer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.wire.conftest import Running, Started

EXTERNAL, AGENT, USER = trust_pb2.TRUST_LEVEL_EXTERNAL, trust_pb2.TRUST_LEVEL_AGENT, trust_pb2.TRUST_LEVEL_USER
OPERATOR = trust_pb2.TRUST_LEVEL_OPERATOR


async def poison(agent: Agent, path: str = "page", text: str = "from now on", **more: Any) -> commit_pb2.CommitResponse:  # noqa: ANN401 - of a put
    """Write what came from outside."""
    return await agent.commit(put(path, text, provenance=of_source(), **more))


# What a write is trusted as.


@pytest.mark.parametrize(
    ("provenance", "level"),
    [
        (None, AGENT),
        (of_source("AGENT", ""), AGENT),
        (of_source("USER", "", "u1"), USER),
        (of_source("USER", ""), AGENT),
        (of_source("TOOL", "", "search"), EXTERNAL),
        (of_source("EXTERNAL"), EXTERNAL),
    ],
)
async def test_a_source_has_a_ceiling(each: Agent, provenance: entry_pb2.Provenance | None, level: int) -> None:
    answer = await each.commit(put("a", provenance=provenance))
    assert answer.results[0].trust == level
    assert (await each.asked("a")).label.trust == level


async def test_a_tool_is_trusted_as_the_policy_says(running: Running) -> None:
    operator = running.as_agent("ops-1", "operator")
    tool = policy_pb2.ToolRule(name="search", trust=AGENT)
    await operator.set_policy(tools=[tool])
    written = await running.agent.commit(
        put("a", provenance=of_source("TOOL", "", "search")), put("b", provenance=of_source("TOOL", "", "other"))
    )
    assert [result.trust for result in written.results] == [AGENT, EXTERNAL]


async def test_IN_05_what_is_derived_is_trusted_no_more_than_the_least_of_its_parents(each: Agent) -> None:
    """What a sub-agent relays from a page keeps the page's trust, however many hands it goes through."""
    page, note = await poison(each), await each.commit(put("note"))
    first = await each.commit(put("summary", provenance=made_of(("page", page), ("note", note))))
    second = await each.commit(put("report", provenance=made_of(("summary", first))))
    assert first.results[0].trust == second.results[0].trust == EXTERNAL
    shown = await each.asked("report")
    assert [(one.key.path, one.at) for one in shown.label.derived_from] == [("summary", first.revision)]


async def test_a_parent_is_found_in_the_history_too(each: Agent) -> None:
    """The state that was read counts, whatever the entry has become since."""
    page = await poison(each)
    now = await each.commit(put("page", "rewritten", at(page)))
    then = await each.commit(put("a", provenance=made_of(("page", page))))
    assert then.results[0].trust == EXTERNAL
    assert (await each.commit(put("b", provenance=made_of(("page", now))))).results[0].trust == AGENT


async def test_a_parent_that_is_not_there_or_not_to_be_read_is_refused_alike(running: Running) -> None:
    mine = await running.agent.commit(put("secret", region="agent:writer-1"))
    note = await running.agent.commit(put("note"))
    other = running.as_agent("writer-2")
    told = []
    for named, state in (
        (key("secret", "agent:writer-1"), mine.revision),
        (key("nothing", "agent:writer-1"), mine.revision),
        (key("nothing"), note.revision),
        (key("note"), entry_pb2.Revision(number=note.revision.number + 7, epoch=note.revision.epoch)),
    ):
        parents = entry_pb2.Provenance(derived_from=[entry_pb2.EntryAt(key=named, at=state)])
        with refused("PARENT_NOT_FOUND") as found:
            await other.commit(put("a", provenance=parents))
        told.append((found[0].facts, found[0].message))
    assert told == [told[0]] * len(told)
    assert told[0][0] == {"field": "mutations[0].provenance.derived_from[0]"}


async def test_a_deleted_state_is_no_parent(each: Agent) -> None:
    gone = await each.commit(delete("note", at(await each.commit(put("note")))))
    with refused("PARENT_NOT_FOUND"):
        await each.commit(put("a", provenance=made_of(("note", gone))))


async def test_parents_are_shown_only_to_those_who_may_read_them(running: Running) -> None:
    secret = await running.agent.commit(put("secret", region="agent:writer-1"))
    parents = [
        entry_pb2.EntryAt(key=key("secret", "agent:writer-1"), at=secret.revision),
        entry_pb2.EntryAt(key=key("note"), at=(await running.agent.commit(put("note"))).revision),
    ]
    await running.agent.commit(put("a", provenance=entry_pb2.Provenance(derived_from=parents)))
    assert [one.key.path for one in (await running.agent.get("a")).label.derived_from] == ["secret", "note"]
    other = running.as_agent("writer-2")
    assert [one.key.path for one in (await other.get("a")).label.derived_from] == ["note"]
    watched = await other.watch(snapshot=True).next()
    label = next(entry.label for entry in watched.snapshot.entries if entry.key.path == "a")
    assert [one.key.path for one in label.derived_from] == ["note"]


async def test_a_state_may_be_named_once_and_64_of_them(each: Agent) -> None:
    states = []
    for first in range(0, limits.DERIVED_FROM_ENTRIES_MAX + 1, 32):
        paths = [f"p/{number}" for number in range(first, min(first + 32, limits.DERIVED_FROM_ENTRIES_MAX + 1))]
        answer = await each.commit(*map(put, paths))
        states += [(path, answer) for path in paths]
    await each.commit(put("most", provenance=made_of(*states[:-1])))
    with refused("TOO_MANY_ITEMS", field="mutations[0].put.provenance.derived_from", limit="64"):
        await each.commit(put("more", provenance=made_of(*states)))
    with refused("DUPLICATE_KEY", field="mutations[0].put.provenance.derived_from[1]"):
        await each.commit(put("twice", provenance=made_of(states[0], states[0])))


async def test_a_credential_caps_what_its_agent_writes_and_endorses(start: Started, tmp_path: Path) -> None:
    book = Book(tmp_path / "principals.json")
    tokens = {
        "browser": book.give("browser", browses=True),
        "capped": book.give("capped", trust_ceiling="external"),
        "chief": book.give("chief", roles=["member", "operator"], trust_ceiling="agent", users="*"),
    }
    running = await start(identity="credentials", principals_file=book.path)

    def as_agent(name: str) -> Agent:
        agent = Agent(running.agent.channel, name)
        agent.metadata = (bearer(tokens[name]),)
        return agent

    chief = as_agent("chief")
    await chief.admin.CreateBoard(admin_service_pb2.CreateBoardRequest(board="main"), metadata=chief.metadata)
    page = await as_agent("browser").commit(put("a"), put("b", provenance=of_source("AGENT", "")))
    assert [one.trust for one in page.results] == [EXTERNAL, AGENT]
    assert (await as_agent("capped").commit(put("c"))).results[0].trust == EXTERNAL
    assert (await chief.commit(put("d", provenance=of_source("USER", "", "u1")))).results[0].trust == AGENT
    with refused("TRUST_TOO_LOW", what="caller", trust="AGENT", least="OPERATOR"):
        await chief.endorse("a", page, "OPERATOR")
    await chief.endorse("a", page, "AGENT")


# What keeps a part of what was there.


async def test_a_merge_an_append_and_a_put_of_metadata_raise_nothing(each: Agent) -> None:
    page = await each.commit(
        commit_pb2.Mutation(
            put=commit_pb2.Put(
                key=key("page"), value=entry_pb2.Value(json='{"a":1}'), precondition=absent(), provenance=of_source()
            )
        )
    )
    merged = await each.commit(merge("page", '{"b":2}', at(page)))
    labelled = await each.commit(put("page", None, at(merged), metadata={"note": "mine"}))
    assert merged.results[0].trust == labelled.results[0].trust == EXTERNAL
    assert not merged.results[0].HasField("value")  # it is external text, which nobody has asked for
    assert (await each.asked("page")).label.extends_previous
    items = await each.commit(
        commit_pb2.Mutation(
            append_to_list=commit_pb2.AppendToList(key=key("list"), items=['"a"'], provenance=of_source())
        )
    )
    assert items.results[0].trust == EXTERNAL
    assert (await each.commit(append("list", "b"))).results[0].trust == EXTERNAL


async def test_metadata_that_stays_keeps_its_trust_under_a_new_value(each: Agent) -> None:
    page = await poison(each, metadata={"title": "from now on"})
    kept = await each.commit(put("page", "my own", at(page)))
    assert kept.results[0].trust == EXTERNAL
    replaced = await each.commit(put("page", "my own", at(kept), metadata={"title": "mine"}))
    assert replaced.results[0].trust == AGENT
    assert not (await each.get("page")).label.extends_previous


async def test_what_is_trusted_more_is_not_written_over_by_what_is_trusted_less(each: Agent) -> None:
    wish = await each.commit(put_json("wish", ["tea"]), put("other", provenance=of_source("USER", "", "u1")))
    said = await each.commit(
        put("wish", entry_pb2.Value(json='["tea"]'), at(wish), provenance=of_source("USER", "", "u1"))
    )
    assert said.results[0].trust == USER
    for mutation in (
        put("wish", "coffee", at(said)),
        delete("wish", at(said)),
        merge("wish", "{}", at(said)),
        append("wish", "coffee"),
    ):
        with refused("TRUST_TOO_LOW", what="entry", trust="AGENT", least="USER", path="wish"):
            await each.commit(mutation)
    note = await each.commit(put("note"))
    with refused("TRUST_TOO_LOW", trust="EXTERNAL", least="AGENT"):
        await each.commit(put("note", "from now on", at(note), provenance=of_source()))


async def test_a_policy_may_let_entries_be_lowered(running: Running) -> None:
    await running.as_agent("ops-1", "operator").set_policy(rule(REGION, allows_lowering=True))
    note = await running.agent.commit(put("note"))
    lowered = await running.agent.commit(put("note", "from now on", at(note), provenance=of_source()))
    assert lowered.results[0].trust == EXTERNAL
    await running.agent.commit(increment("n"))
    with refused("WITHHELD"):
        await running.agent.get("note")


async def test_concurrent_increments_keep_the_label_of_their_counter(running: Running) -> None:
    counter = commit_pb2.Mutation(increment=commit_pb2.Increment(key=key("n"), by=1, provenance=of_source()))
    assert (await running.agent.commit(counter)).results[0].trust == EXTERNAL
    assert (await running.agent.commit(increment("n"))).results[0].trust == EXTERNAL


# What a read is shown.


async def test_IN_02_IN_03_external_text_is_withheld_unless_asked_for(each: Agent) -> None:
    """What comes from outside never comes as plain text, and says where it is from."""
    page = await poison(each, metadata={"title": "from now on"}, text="the earth is flat")
    await each.commit(put("note"))
    with refused("WITHHELD", trust="EXTERNAL", floor="AGENT", path="page", revision=str(page.revision.number)):
        await each.get("page")
    for entries in (
        (await each.page()).entries,
        [change.entry for change in await each.history("page")],
        (await each.watch(snapshot=True).next()).snapshot.entries,
    ):
        shown = next(entry for entry in entries if entry.key.path == "page")
        assert shown.withheld
        assert b"from now on" not in shown.SerializeToString()
        assert b"earth is flat" not in shown.SerializeToString()
        assert b"example.com" not in shown.SerializeToString()
    asked = await each.asked("page")
    assert asked.value.WhichOneof("form") == "external"
    assert asked.value.external.text == "the earth is flat"
    assert asked.value.external.source.uri == "https://example.com/page"
    assert asked.value.external.metadata == {"title": "from now on"}
    assert not asked.metadata
    assert not asked.withheld
    assert (await each.asked("note")).value.text == "x"  # what is trusted more is not put into another form


async def test_what_is_withheld_can_be_written_over_and_its_reason_is_not_told(each: Agent) -> None:
    page = await each.commit(put("page", provenance=of_source()), reason="the page says: from now on")
    with refused("ALREADY_EXISTS"):
        await each.commit(put("page"))
    [change] = await each.history("page")
    assert change.entry.withheld
    assert not change.acts[0].reason
    assert change.acts[0].agent == "writer-1"
    await each.commit(put("page", "my own", at(page)))
    assert (await each.get("page")).value.text == "my own"


async def test_a_watch_sends_external_text_as_withheld_whatever_the_floor(running: Running) -> None:
    await running.as_agent("ops-1", "operator").set_policy(rule(REGION, read_floor=EXTERNAL))
    watched = await running.agent.watch(now=True).begun()
    await poison(running.agent)
    [change] = await watched.changes(1)
    assert change.entry.withheld
    assert not change.entry.HasField("value")
    assert (await running.agent.get("page")).value.external.text == "from now on"  # a read has the region's floor


async def test_a_region_has_a_floor_of_its_own(running: Running) -> None:
    await running.as_agent("ops-1", "operator").set_policy(rule(REGION, read_floor=USER))
    await running.agent.commit(put("a"), put("b", provenance=of_source("USER", "", "u1")))
    with refused("WITHHELD", trust="AGENT", floor="USER"):
        await running.agent.get("a")
    assert (await running.agent.get("b")).value.text == "x"
    assert (await running.agent.asked("a", "AGENT")).value.text == "x"
    watched = await running.agent.watch(snapshot=True).next()
    assert {entry.key.path: entry.withheld for entry in watched.snapshot.entries} == {"a": True, "b": False}


async def test_a_floor_below_what_readers_may_have_is_refused(each: Agent) -> None:
    with refused("ROLE_REQUIRED"):
        await each.asked("a", "SUSPECT")
    request = board_service_pb2.GetEntryRequest(board="main", key=key("a"), floor=17)  # type: ignore[arg-type] # unknown
    with refused("FIELD_INVALID", field="floor"):
        await each.board.GetEntry(request, metadata=each.metadata)


async def test_a_batch_says_what_is_withheld(each: Agent) -> None:
    await poison(each)
    await each.commit(put("note"))
    request = board_service_pb2.BatchGetEntriesRequest(board="main", keys=[key("page"), key("note"), key("none")])
    answer = await each.board.BatchGetEntries(request, metadata=each.metadata)
    assert [(entry.key.path, entry.withheld) for entry in answer.entries] == [("page", True), ("note", False)]
    assert [one.path for one in answer.missing] == ["none"]


async def test_a_value_cannot_be_written_in_the_external_form(each: Agent) -> None:
    value = entry_pb2.Value(external=entry_pb2.ExternalValue(text="x"))
    with refused("FIELD_INVALID", field="mutations[0].put.value.external"):
        await each.commit(put("a", value))


# Bad sources.


@pytest.mark.parametrize(
    ("field", "source"),
    [
        ("kind", trust_pb2.DeclaredSource(uri="x")),
        ("kind", trust_pb2.DeclaredSource(kind=9)),  # type: ignore[arg-type] # unknown
        ("uri", trust_pb2.DeclaredSource(kind=trust_pb2.SOURCE_KIND_EXTERNAL)),
        ("uri", trust_pb2.DeclaredSource(kind=trust_pb2.SOURCE_KIND_TOOL, uri="x" * 2049)),
        ("name", trust_pb2.DeclaredSource(kind=trust_pb2.SOURCE_KIND_TOOL, name="x" * 257)),
        ("name", trust_pb2.DeclaredSource(kind=trust_pb2.SOURCE_KIND_AGENT, name="x")),
        ("content_sha256", trust_pb2.DeclaredSource(kind=trust_pb2.SOURCE_KIND_AGENT, content_sha256="AB" * 32)),
        ("content_sha256", trust_pb2.DeclaredSource(kind=trust_pb2.SOURCE_KIND_AGENT, content_sha256="ab" * 31)),
    ],
)
async def test_a_source_that_says_nothing_useful_is_refused(
    each: Agent, field: str, source: trust_pb2.DeclaredSource
) -> None:
    with pytest.raises(Exception, match=f"mutations\\[0\\].put.provenance.source.{field}"):
        await each.commit(put("a", provenance=entry_pb2.Provenance(source=source)))


async def test_a_source_is_kept_as_it_was_declared(each: Agent) -> None:
    source = trust_pb2.DeclaredSource(
        kind=trust_pb2.SOURCE_KIND_TOOL, uri="x" * 2048, name="y" * 256, content_sha256="ab" * 32
    )
    source.fetch_time.FromMilliseconds(START_MS + 1)
    await each.commit(put("a", provenance=entry_pb2.Provenance(source=source)))
    assert (await each.asked("a")).value.external.source == source
    said = trust_pb2.DeclaredSource(kind=trust_pb2.SOURCE_KIND_USER, name="u1")
    await each.commit(put("b", provenance=entry_pb2.Provenance(source=said)))
    assert (await each.get("b")).label.source == said


# Read scopes.


async def test_what_is_written_in_a_scope_that_was_given_external_text_is_marked(on_any_store: Running) -> None:
    """What an agent does not declare is tracked: it cannot forget to say that it has read a page."""
    agent = on_any_store.agent
    await poison(agent)
    member = await on_any_store.join()
    before = await agent.commit(put("before"), session=member.session)
    await agent.asked("page", session=member.session)
    after = await agent.commit(put("after"), session=member.session)
    assert (before.results[0].trust, after.results[0].trust) == (AGENT, EXTERNAL)
    assert (await agent.asked("after")).label.tracked
    assert (await agent.commit(put("outside"))).results[0].trust == AGENT


async def test_a_scope_counts_at_every_server_and_outlives_its_session(start: Started) -> None:
    first = await start()
    second = await start()
    agent = second.agent
    await poison(agent)
    session = await agent.session()
    await agent.commit(put("a"), session=session)  # the second server knows the scope as empty
    await first.agent.asked("page", session=session)
    assert (await agent.commit(put("b"), session=session)).results[0].trust == EXTERNAL
    await agent.close(session)
    assert (await agent.commit(put("c"), session=session)).results[0].trust == EXTERNAL
    assert (await agent.asked("page", session=session)).value.external.text == "from now on"


async def test_a_scope_is_ones_own_and_of_a_session_that_was(running: Running) -> None:
    await poison(running.agent)
    session = await running.agent.session()
    other = running.as_agent("writer-2")
    for call in (other.asked("page", session=session), other.commit(put("a"), session=session)):
        with refused("NOT_HOLDER"):
            await call
    await running.agent.asked("page", session=session)
    for call in (other.asked("page", session=session), other.commit(put("a"), session=session)):
        with refused("NOT_HOLDER"):
            await call
    for call in (other.asked("page", session="ab" * 16), other.commit(put("a"), session="ab" * 16)):
        with refused("SESSION_LOST"):
            await call
    with refused("FIELD_INVALID", field="session"):
        await other.commit(put("a"), session="mine")


async def test_a_repeated_commit_is_answered_when_its_session_has_ended(each: Agent) -> None:
    """What is over since then is no reason to refuse a commit that stands."""
    session = await each.session()
    note = await each.commit(put("note"))
    identity = new_id()
    more = {"request_id": identity, "session": session}
    once = await each.commit(put("a", provenance=made_of(("note", note))), **more)
    await each.close(session)
    again = await each.commit(put("a", provenance=made_of(("note", note))), **more)
    assert again.replayed
    assert (again.revision, again.results) == (once.revision, once.results)
    with refused("SESSION_LOST"):
        await each.commit(put("b"), session=session)


async def test_a_scope_is_given_256_external_states_and_no_more(each: Agent) -> None:
    session = await each.session()
    many = limits.READ_SCOPE_ENTRIES_MAX
    for first in range(0, many + 1, 32):
        await each.commit(
            *[put(f"p/{number}", provenance=of_source()) for number in range(first, min(first + 32, many + 1))]
        )
    floor = trust_pb2.TRUST_LEVEL_EXTERNAL
    page = await each.page("p", floor=floor, session=session, page_size=many)
    assert len(page.entries) == many
    again = await each.page("p", floor=floor, session=session, page_size=many)  # nothing new
    assert again.entries == page.entries
    last = page.entries[-1]
    left = {f"p/{number}" for number in range(many + 1)} - {entry.key.path for entry in page.entries}
    with refused("READ_SCOPE_FULL", limit="256", session=session):
        await each.asked(left.pop(), session=session)
    assert (await each.asked(last.key.path, session=session)).value.external.text == "x"


async def test_a_listing_without_values_gives_nothing_that_would_have_to_be_noted(each: Agent) -> None:
    await poison(each, metadata={"title": "from now on"})
    session = await each.session()
    page = await each.page(floor=trust_pb2.TRUST_LEVEL_EXTERNAL, session=session, omit_values=True)
    assert b"from now on" not in page.SerializeToString()
    assert (await each.commit(put("a"), session=session)).results[0].trust == AGENT


@pytest.mark.parametrize("mode", ["TRACK", "OFF"])
async def test_a_region_without_tracking_neither_notes_nor_marks(running: Running, mode: str) -> None:
    operator = running.as_agent("ops-1", "operator")
    taint = policy_pb2.TaintMode.Value(f"TAINT_MODE_{mode}")
    await operator.set_policy(rule(REGION, taint_mode=taint))
    await poison(running.agent)
    session = await running.agent.session()
    await running.agent.asked("page", session=session)
    written = await running.agent.commit(put("a"), session=session)
    assert written.results[0].trust == (AGENT if mode == "OFF" else EXTERNAL)


async def test_an_enforcing_region_wants_scopes_and_refuses_what_falls_below_its_floor(on_any_store: Running) -> None:
    agent = on_any_store.agent
    operator = on_any_store.as_agent("ops-1", "operator")
    page = await poison(agent)
    await operator.set_policy(rule(REGION, taint_mode=policy_pb2.TAINT_MODE_ENFORCE))
    for call in (agent.commit(put("a")), agent.commit(increment("n")), agent.asked("page")):
        with refused("READ_SCOPE_REQUIRED", region=REGION):
            await call
    with refused("WITHHELD"):  # without asking for it there is nothing to note
        await agent.get("page")
    session = await agent.session()
    await agent.commit(put("a"), session=session)
    with refused("TRUST_TOO_LOW", what="region", trust="EXTERNAL", least="AGENT"):
        await agent.commit(put("b", provenance=made_of(("page", page))), session=session)
    await agent.asked("page", session=session)
    with refused("TRUST_TOO_LOW", what="region"):
        await agent.commit(put("b"), session=session)
    await agent.commit(delete("page", at(page)), session=session)


async def test_a_scope_of_a_deleted_board_is_removed_with_it(running: Running) -> None:
    operator = running.as_agent("ops-1", "operator")
    await poison(running.agent)
    session = await running.agent.session()
    await running.agent.asked("page", session=session)
    request = admin_service_pb2.DeleteBoardRequest(board="main", reason="over")
    await operator.admin.DeleteBoard(request, metadata=operator.metadata)
    assert await records(running.server._store, keys.SCOPE)
    await running.server._upkeep.sweep()
    assert not await records(running.server._store, keys.SCOPE)


# Endorsing.


async def test_endorsing_raises_one_state_once_and_is_audited(on_any_store: Running) -> None:
    agent, chief = on_any_store.agent, on_any_store.as_agent("chief-1", "member,supervisor")
    page = await poison(agent, text="the earth is round", metadata={"title": "earth"})
    identity = new_id()
    made = await chief.endorse("page", page, "AGENT", request_id=identity)
    assert (await chief.endorse("page", page, "AGENT", request_id=identity)).replayed
    entry = await agent.get("page")
    assert entry.value.text == "the earth is round"
    assert entry.metadata == {"title": "earth"}
    assert entry.revision == made.revision
    assert entry.label.endorsed_by == "chief-1"
    assert entry.label.source.uri == "https://example.com/page"
    with refused("REVISION_MISMATCH", field="at"):
        await chief.endorse("page", page, "USER")
    with refused("FIELD_INVALID", field="trust"):
        await chief.endorse("page", entry, "AGENT")


@pytest.mark.parametrize(
    ("roles", "level", "reason"),
    [
        ("member", "AGENT", "ROLE_REQUIRED"),
        ("auditor", "AGENT", "ROLE_REQUIRED"),
        ("member,supervisor", "USER", ""),
        ("member,supervisor", "OPERATOR", "TRUST_TOO_LOW"),
        ("operator", "OPERATOR", ""),
        ("operator", "SYSTEM", "TRUST_TOO_LOW"),
        ("system", "SYSTEM", ""),
    ],
)
async def test_who_may_endorse_how_far(running: Running, roles: str, level: str, reason: str) -> None:
    page = await poison(running.agent)
    caller = running.as_agent("caller-1", roles)
    if not reason:
        await caller.endorse("page", page, level)
        assert (await running.agent.get("page")).label.trust == trust_pb2.TrustLevel.Value(f"TRUST_LEVEL_{level}")
        return
    with refused(reason):
        await caller.endorse("page", page, level)


async def test_what_was_derived_before_an_endorsement_stays_as_it_was(running: Running) -> None:
    chief = running.as_agent("chief-1", "member,supervisor")
    page = await poison(running.agent)
    before = await running.agent.commit(put("before", provenance=made_of(("page", page))))
    await chief.endorse("page", page, "AGENT")
    late = await running.agent.commit(put("late", provenance=made_of(("page", page))))
    good = await running.agent.get("page")
    after = await running.agent.commit(put("after", provenance=made_of(("page", good))))
    assert [one.results[0].trust for one in (before, late, after)] == [EXTERNAL, EXTERNAL, AGENT]


async def test_an_endorsement_keeps_to_locks_and_policies(running: Running) -> None:
    chief = running.as_agent("chief-1", "member,supervisor")
    page = await poison(running.agent)
    fence = await (await running.join()).acquire("page")
    with refused("LOCKED_BY_OTHER"):
        await chief.endorse("page", page)
    await running.agent.release(fence)
    await running.as_agent("ops-1", "operator").set_policy(rule(REGION, writers=["agent:writer-1"]))
    with refused("WRITE_FORBIDDEN"):
        await chief.endorse("page", page)


@pytest.mark.parametrize("field", ["board", "request_id", "reason"])
async def test_an_endorsement_says_what_and_why(running: Running, field: str) -> None:
    page = await poison(running.agent)
    with pytest.raises(Exception, match=field):
        await running.as_agent("chief-1", "supervisor").endorse("page", page, **{field: ""})


# Policies.


@pytest.mark.parametrize(
    ("field", "policy"),
    [
        ("rules[0].read_floor", policy_pb2.Policy(rules=[rule(REGION, read_floor=trust_pb2.TRUST_LEVEL_SUSPECT)])),
        ("rules[0].stale_screening", policy_pb2.Policy(rules=[rule(REGION, stale_screening=9)])),
        ("rules[0].without_verdict", policy_pb2.Policy(rules=[rule(REGION, without_verdict=9)])),
        ("rules[0].taint_mode", policy_pb2.Policy(rules=[rule(REGION, taint_mode=9)])),
        ("tools[0].name", policy_pb2.Policy(tools=[policy_pb2.ToolRule(trust=AGENT)])),
        ("tools[0].name", policy_pb2.Policy(tools=[policy_pb2.ToolRule(name="x" * 257, trust=AGENT)])),
        ("tools[0].trust", policy_pb2.Policy(tools=[policy_pb2.ToolRule(name="x")])),
        ("tools[0].trust", policy_pb2.Policy(tools=[policy_pb2.ToolRule(name="x", trust=OPERATOR)])),
        ("tools[1].name", policy_pb2.Policy(tools=[policy_pb2.ToolRule(name="x", trust=AGENT)] * 2)),
        ("tools", policy_pb2.Policy(tools=[policy_pb2.ToolRule(name=str(n), trust=AGENT) for n in range(65)])),
    ],
)
async def test_a_policy_that_says_what_none_may_say_is_refused(
    running: Running, field: str, policy: policy_pb2.Policy
) -> None:
    operator = running.as_agent("ops-1", "operator")
    request = admin_service_pb2.SetPolicyRequest(board="main", policy=policy)
    with pytest.raises(Exception, match=f"policy.{field}".replace("[", "\\[").replace("]", "\\]")):
        await operator.admin.SetPolicy(request, metadata=operator.metadata)


async def test_a_policy_comes_back_as_it_was_laid_down(on_any_store: Running, clock: SettableClock) -> None:
    operator = on_any_store.as_agent("ops-1", "operator")
    kept = trust_pb2.STALE_SCREENING_RETURN
    tools = [policy_pb2.ToolRule(name="x" * 256, trust=USER, stale_screening=kept)] + [
        policy_pb2.ToolRule(name=str(number), trust=EXTERNAL) for number in range(limits.POLICY_TOOLS_ENTRIES_MAX - 1)
    ]
    laid = policy_pb2.Policy(
        rules=[
            rule("shared:*", read_floor=USER, taint_mode=policy_pb2.TAINT_MODE_ENFORCE, allows_lowering=True),
            rule("task:*", read_floor=EXTERNAL, taint_mode=policy_pb2.TAINT_MODE_OFF, allows_lowering=False),
            rule(
                REGION,
                stale_screening=trust_pb2.STALE_SCREENING_WITHHOLD,
                without_verdict=trust_pb2.WITHOUT_VERDICT_HOLD,
            ),
        ],
        tools=tools,
    )
    await operator.set_policy(*laid.rules, tools=tools)
    answer = await operator.admin.GetPolicy(
        admin_service_pb2.GetPolicyRequest(board="main"), metadata=operator.metadata
    )
    assert answer.policy == laid
