"""Provenance, purges and erasures by the library, against a server: what is shown, what goes, and who may not write on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import (
    ErasureStatus,
    External,
    ProvenanceLink,
    ReadScopePurged,
    RemovalFate,
    RemovalState,
    Source,
    SourceKind,
    SourcePurged,
    SourceSelector,
    Trust,
    errors,
    sync,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kokuban_client import Board, Written
    from kokuban_client.testing import ServerProcess

LIE = "the bridge is closed on Mondays"


@pytest.fixture
async def operators_board(server: ServerProcess) -> AsyncIterator[Board]:
    async with kokuban_client.connect(server.address, agent="op", roles=["member", "operator"]) as client:
        yield client.board("main")


@pytest.fixture
async def readers_board(server: ServerProcess) -> AsyncIterator[Board]:
    async with kokuban_client.connect(server.address, agent="reader") as client:
        yield client.board("main")


@pytest.fixture
def uri(region: str) -> str:
    """A source of the test's own: a purge is for good."""
    return f"https://{region.partition(':')[2]}.example/page"


def from_page(uri: str) -> Source:
    return Source(SourceKind.EXTERNAL, uri)


async def spread(board: Board, readers_board: Board, region: str, uri: str) -> tuple[Written, Written, Written]:
    """Have a page read, noted, and made into a brief: once as read, once as declared."""
    page = await board.put(region, "page", LIE, must_not_exist=True, source=from_page(uri))
    await readers_board.get(region, "page", floor=Trust.EXTERNAL)
    note = await readers_board.put(region, "note", "closed on Mondays", must_not_exist=True)
    brief = await board.put(region, "brief", "take the ferry", must_not_exist=True, derived_from=[note])
    return page, note, brief


async def test_a_trace_walks_both_ways_over_what_was_read_and_what_was_declared(
    board: Board, readers_board: Board, region: str, uri: str
) -> None:
    page, note, brief = await spread(board, readers_board, region, uri)
    back = await board.trace_provenance(region, "brief", direction="ancestors")
    assert [(state.key.path, state.revision, state.link, state.met_from, state.depth) for state in back.states] == [
        ("brief", brief.revision, ProvenanceLink.ASKED, 0, 0),
        ("note", note.revision, ProvenanceLink.DECLARED, 0, 1),
        ("page", page.revision, ProvenanceLink.READ_SCOPE, 1, 2),
    ]
    assert [state.agent for state in back.states] == ["writer-1", "reader", "writer-1"]
    assert all(state.kept and state.present and state.trust is Trust.EXTERNAL for state in back.states)
    assert (back.states[2].source, back.truncated) == (from_page(uri), False)
    on = await board.trace_provenance(region, "page", direction="descendants")
    assert [(state.key.path, state.link) for state in on.states[1:]] == [
        ("note", ProvenanceLink.READ_SCOPE),
        ("brief", ProvenanceLink.DECLARED),
    ]
    short = await board.trace_provenance(region, "page", direction="descendants", max_depth=1)
    assert ([state.key.path for state in short.states], short.truncated) == (["page", "note"], True)
    few = await board.trace_provenance(region, "brief", direction="ancestors", max_states=2)
    assert ([state.key.path for state in few.states], few.truncated) == (["brief", "note"], True)


async def test_an_earlier_state_is_traced_by_its_revision(board: Board, region: str, uri: str) -> None:
    page = await board.put(region, "page", LIE, must_not_exist=True, source=from_page(uri))
    await board.put(region, "page", "the bridge is open", at=page.revision, source=from_page(f"{uri}/other"))
    traced = await board.trace_provenance(region, "page", at=page.revision, direction="descendants")
    assert (traced.states[0].revision, traced.states[0].present, traced.states[0].kept) == (page.revision, False, True)
    assert traced.states[0].source == from_page(uri)
    with pytest.raises(errors.NotFound):
        await board.trace_provenance(region, "nothing", direction="ancestors")


async def test_a_plan_removes_nothing_and_the_purge_everything_that_came_of_the_source(
    board: Board, operators_board: Board, readers_board: Board, region: str, uri: str
) -> None:
    states = await spread(board, readers_board, region, uri)
    await board.put(region, "own", "the ferry leaves at noon", must_not_exist=True)
    plan = await operators_board.purge_source(SourceSelector(uri=uri), reason="it lies")
    assert {(finding.key.path, finding.revision, finding.fate) for finding in plan.findings} == {
        (state.path, state.revision, RemovalFate.REMOVED) for state in states
    }
    assert (plan.removed_count, plan.deleted_count, plan.session_count) == (3, 3, 1)
    assert (plan.removal.state, plan.removal.selector) == (RemovalState.PLANNED, SourceSelector(uri=uri))
    assert (await operators_board.get(region, "page", floor=Trust.EXTERNAL)).revision == states[0].revision
    with pytest.raises(ValueError, match="begin it first"):
        await operators_board.wait_for_removal(plan.id)

    begun = await operators_board.purge(plan.id)
    assert begun.state in {RemovalState.RUNNING, RemovalState.DONE}
    done = await operators_board.wait_for_removal(plan.id)
    assert (done.state, done.author, done.starter, done.reason) == (RemovalState.DONE, "op", "op", "it lies")
    assert {receipt.store: receipt.status for receipt in done.receipts}["entries"] is ErasureStatus.ERASED
    assert [entry.path async for entry in board.list(region, floor=Trust.EXTERNAL)] == ["own"]
    again = await operators_board.purge(plan.id)
    assert again == done
    assert next(one for one in await operators_board.removals() if one.id == plan.id) == done


async def test_who_was_given_what_is_purged_is_told_so_and_only_a_new_client_writes_on(
    server: ServerProcess, board: Board, operators_board: Board, readers_board: Board, region: str, uri: str
) -> None:
    """What the agent has in mind may hold it: the library does not begin anew for it."""
    await spread(board, readers_board, region, uri)
    plan = await operators_board.purge_source(SourceSelector(uri=uri), reason="it lies")
    await operators_board.purge(plan.id)
    await operators_board.wait_for_removal(plan.id)
    for _ in range(2):
        with pytest.raises(ReadScopePurged) as purged:
            await readers_board.put(region, "more", "closed, they say", must_not_exist=True)
        assert purged.value.session_id
    async with kokuban_client.connect(server.address, agent="reader") as anew:
        await anew.board("main").put(region, "more", "the ferry it is", must_not_exist=True)


async def test_a_purged_source_is_refused_until_it_may_be_written_again(
    board: Board, operators_board: Board, region: str, uri: str
) -> None:
    await board.put(region, "page", LIE, must_not_exist=True, source=from_page(f"{uri}/1"))
    plan = await operators_board.purge_source(SourceSelector(uri_pattern=f"{uri}/*"), reason="it lies")
    await operators_board.purge(plan.id)
    with pytest.raises(SourcePurged) as refused:
        await board.put(region, "again", LIE, must_not_exist=True, source=from_page(f"{uri}/2"))
    assert refused.value.removal_id == plan.id
    assert refused.value.field == "mutations[0].put.provenance.source"
    once = Source(SourceKind.EXTERNAL, f"{uri}/3", content_sha256="ab" * 32)
    with pytest.raises(SourcePurged):
        await board.put(region, "again", LIE, must_not_exist=True, source=once)
    other = Source(SourceKind.EXTERNAL, f"{uri}-else", content_sha256="cd" * 32)
    await board.put(region, "other", LIE, must_not_exist=True, source=other)
    mild = await operators_board.purge_source(
        SourceSelector(content_sha256="cd" * 32), reason="clean up", allows_reingest=True
    )
    await operators_board.purge(mild.id)
    await operators_board.wait_for_removal(mild.id)
    assert mild.removal.allows_reingest
    await board.put(region, "other", LIE, must_not_exist=True, source=other)


async def test_what_another_source_says_too_is_kept_on_its_word(
    board: Board, operators_board: Board, region: str, uri: str
) -> None:
    first = await board.put(region, "page", LIE, must_not_exist=True, source=from_page(f"{uri}/paper"))
    second = await board.put(region, "page", LIE, at=first.revision, source=from_page(uri))
    plan = await operators_board.purge_source(SourceSelector(uri=uri), reason="it copies")
    assert {(finding.revision, finding.fate) for finding in plan.findings} == {(second.revision, RemovalFate.ATTESTED)}
    assert (plan.attested_count, plan.deleted_count) == (1, 0)
    await operators_board.purge(plan.id)
    await operators_board.wait_for_removal(plan.id)
    kept = await board.get(region, "page", floor=Trust.EXTERNAL)
    assert isinstance(kept.value, External)
    assert kept.value.read() == LIE


async def test_what_an_agent_wrote_in_a_time_is_selected_by_both(
    board: Board, their_board: Board, operators_board: Board, region: str
) -> None:
    await their_board.put(region, "theirs", "x", must_not_exist=True)
    await board.put(region, "ours", "x", must_not_exist=True)
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    before = SourceSelector(agent="writer-2", end=an_hour_ago)
    assert (await operators_board.purge_source(before, reason="test")).removed_count == 0
    since = SourceSelector(agent="writer-2", begin=an_hour_ago)
    plan = await operators_board.purge_source(since, reason="test")
    assert "theirs" in [finding.key.path for finding in plan.findings if finding.key.region == region]
    assert "ours" not in [finding.key.path for finding in plan.findings if finding.key.region == region]
    selector = plan.removal.selector
    assert selector is not None
    assert selector.agent == "writer-2"
    assert selector.begin is not None
    assert abs(selector.begin - an_hour_ago) < timedelta(milliseconds=1)


async def test_a_person_is_erased_and_the_record_does_not_name_them(
    board: Board, operators_board: Board, region: str
) -> None:
    user = region.partition(":")[2].lower()
    said = await board.put(
        region, "wish", "no nuts, please", must_not_exist=True, source=Source(SourceKind.USER, name=user)
    )
    await board.put(region, "menu", "without nuts", must_not_exist=True, derived_from=[said])
    plan = await operators_board.erase_subject(user, reason="asked for")
    assert (plan.removal.user, plan.removal.selector, plan.deleted_count) == (user, None, 2)
    with pytest.raises(errors.NotFound):
        await operators_board.purge(plan.id)  # an erasure is begun as one
    await operators_board.erase(plan.id)
    done = await operators_board.wait_for_removal(plan.id)
    assert (done.state, done.user) == (RemovalState.DONE, "")
    assert user not in repr(await operators_board.get_removal(plan.id))
    assert [entry.path async for entry in board.list(region)] == []


async def test_removing_is_for_operators(board: Board, supervisors_board: Board, uri: str) -> None:
    for one in (board, supervisors_board):
        with pytest.raises(errors.AccessRefused):
            await one.purge_source(SourceSelector(uri=uri), reason="test")
        with pytest.raises(errors.AccessRefused):
            await one.erase_subject("ann", reason="test")
        with pytest.raises(errors.AccessRefused):
            await one.removals()


async def test_what_is_not_there_cannot_be_begun(operators_board: Board) -> None:
    nothing = f"{'0' * 15}-{'0' * 16}"
    for call in (operators_board.purge, operators_board.erase, operators_board.get_removal):
        with pytest.raises(errors.NotFound):
            await call(nothing)


async def test_what_selects_nothing_is_not_sent(operators_board: Board) -> None:
    with pytest.raises(ValueError, match="at least one thing"):
        await operators_board.purge_source(SourceSelector(), reason="test")
    with pytest.raises(ValueError, match="zone"):
        await operators_board.purge_source(SourceSelector(begin=datetime(2026, 11, 30)), reason="test")  # noqa: DTZ001 - what is refused
    with pytest.raises(ValueError, match="sideways"):
        await operators_board.trace_provenance("shared:x", "y", direction="sideways")


async def test_a_purge_goes_on_after_its_server_was_killed_while_a_client_waits(durable_server: ServerProcess) -> None:
    bad, states = from_page("https://bad.example/page"), 60
    async with kokuban_client.connect(durable_server.address, agent="op", roles=["member", "operator"]) as client:
        board = client.board("main")
        last = await board.put("shared:facts", "000", LIE, must_not_exist=True, source=bad)
        for number in range(1, states):
            last = await board.put("shared:facts", f"{number:03}", LIE, must_not_exist=True, derived_from=[last])
        plan = await board.purge_source(SourceSelector(uri=bad.uri), reason="it lies")
        assert plan.removed_count == states
        await board.purge(plan.id)
        durable_server.kill()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(board.wait_for_removal(plan.id))
            group.create_task(asyncio.to_thread(durable_server.start))
        assert waiting.result().state is RemovalState.DONE
        assert [entry.path async for entry in board.list("shared:facts", floor=Trust.EXTERNAL)] == []
        with pytest.raises(SourcePurged):
            await board.put("shared:facts", "again", LIE, must_not_exist=True, source=bad)


def test_the_client_for_threads_does_the_same(server: ServerProcess, region: str, uri: str) -> None:
    with sync.connect(server.address, agent="op", roles=["member", "operator"]) as client:
        board = client.board("main")
        page = board.put(region, "page", LIE, must_not_exist=True, source=from_page(uri))
        board.put(region, "brief", "take the ferry", must_not_exist=True, derived_from=[page])
        assert [state.key.path for state in board.trace_provenance(region, "page", direction="descendants").states] == [
            "page",
            "brief",
        ]
        plan = board.purge_source(SourceSelector(uri=uri), reason="it lies")
        board.purge(plan.id)
        assert board.wait_for_removal(plan.id).state is RemovalState.DONE
        assert board.find(region, "brief", floor=Trust.EXTERNAL) is None
