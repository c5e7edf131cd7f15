"""What a read promises: how fresh, in what order, in how many pages, and never beyond what was asked for."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.v1 import admin_service_pb2, board_service_pb2, entry_pb2
from kokuban_server.core import limits
from kokuban_server.core.keys import region_prefix
from kokuban_server.core.names import parse_path, parse_region
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.revision import encode_token
from tests.wire.calls import PRIVATE, REGION, absent, at, commit_request, delete, increment, key, new_id, put, refused

if TYPE_CHECKING:
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import Agent, SettableClock
    from tests.wire.conftest import Running, Started

HOSTILE = [
    "'; DROP TABLE x; --",
    "%",
    "_",
    "*",
    "a%2Fb",
    "[a]",
    "a\\b",
    "a?b",
    "$where",
    "é",
    "\U0010ffff",
    "a b",
    "~",
    "%00",
]


def level(**chosen: str | bool) -> entry_pb2.ReadConsistency:
    return entry_pb2.ReadConsistency(**chosen)  # type: ignore[arg-type]  # one of the levels


# Paths and prefixes.


async def test_SC_01_a_listing_is_by_whole_segments(each: Agent) -> None:
    inside = ["task_1", "task_1/sub_0", "task_1/sub_0/step", "task_1/sub_01"]
    outside = ["task_10", "task_10/sub_0", "task_1:sub_0", "task_1.x", "task_", "task_1 x"]
    for path in inside + outside:
        await each.commit(put(path))
    assert await each.paths("task_1") == inside
    assert await each.paths("task_1/sub_0") == ["task_1/sub_0", "task_1/sub_0/step"]
    assert await each.paths("task_1/sub") == []
    assert len(await each.paths()) == len(inside + outside)


async def test_SC_01_a_region_is_not_a_prefix_of_another(each: Agent) -> None:
    regions = ["task:1", "task:10", "task:1:0", "task:1%", "conversation:1", "user:1", "shared:1"]
    for region in regions:
        await each.commit(put("e", region, region=region))
    for region in regions:
        page = await each.page(region=region)
        assert [entry.value.text for entry in page.entries] == [region]


@pytest.mark.parametrize("name", HOSTILE)
async def test_SC_03_a_hostile_name_is_only_a_name(each: Agent, name: str) -> None:
    for path in ("plain", "plain/below", name, f"{name}/below"):
        await each.commit(put(path, path))
    assert await each.paths(name) == [name, f"{name}/below"]
    assert (await each.get(name)).value.text == name
    assert len(await each.history(name)) == 1
    assert len(await each.paths()) == 4
    region = f"task:{name}" if "/" not in name else "task:x"
    await each.commit(put(name, region=region))
    assert await each.paths(region=region) == [name]


@given(st.text(max_size=40), st.text(max_size=40))
def test_SC_03_no_two_names_meet_whatever_they_are(one: str, other: str) -> None:
    try:
        regions = [parse_region(f"task:{text}") for text in (one, other)]
        paths = [parse_path(text) for text in (one, other)]
    except InvalidRequest:
        return
    prefixes = [region_prefix("t", "b", region) for region in regions]
    assert (prefixes[0] == prefixes[1]) == (one == other)
    assert prefixes[0].startswith(prefixes[1]) == (one == other)
    assert (paths[0] == paths[1]) == (one == other)


# Freshness and tokens.


async def test_a_read_answers_the_state_it_was_asked_for(each: Agent) -> None:
    first = await each.commit(put("e", "1"))
    second = await each.commit(put("e", "2", at(first)))
    assert (await each.read("e", consistency=level(snapshot=first.token))).entry.value.text == "1"
    for consistency in (
        None,
        level(),
        level(strong=True),
        level(at_least=first.token),
        level(at_least=second.token),
        level(local=True),
        level(snapshot=second.token),
    ):
        read = await each.read("e", consistency=consistency)
        assert read.entry.value.text == "2"
        assert read.token >= second.token
    batch = await each.board.BatchGetEntries(
        board_service_pb2.BatchGetEntriesRequest(
            board="main", keys=[key("e"), key("f")], consistency=level(snapshot=first.token)
        ),
        metadata=each.metadata,
    )
    assert ([entry.value.text for entry in batch.entries], list(batch.missing)) == (["1"], [key("f")])
    assert batch.token == first.token
    page = await each.page(consistency=level(snapshot=first.token))
    assert ([entry.value.text for entry in page.entries], page.token) == (["1"], first.token)


async def test_RB_42_a_read_at_least_as_fresh_as_a_token_never_goes_back(start: Started, any_store: BoardStore) -> None:
    """Also where another server did the writing."""
    writer, reader = (await start(any_store)).agent, (await start(any_store)).agent
    made = await writer.commit(put("e", "0"))
    for number in range(1, 30):
        made = await writer.commit(put("e", str(number), at(made)))
        read = await reader.read("e", consistency=level(at_least=made.token))
        assert int(read.entry.value.text) == number
        page = await reader.page(consistency=level(at_least=made.token))
        assert page.entries[0].revision == made.revision


@pytest.mark.parametrize("name", ["at_least", "snapshot"])
async def test_a_token_that_is_not_ours_is_told_from_one_that_is_too_new(each: Agent, name: str) -> None:
    made = await each.commit(put("e"))
    field = f"consistency.{name}"
    raw = bytearray(base64.urlsafe_b64decode(made.token))
    raw[-2] ^= 1
    broken = base64.urlsafe_b64encode(raw).decode()
    for token in (
        "",
        "x",
        "é" * 24,
        broken,
        made.token[:-1],
        made.token + "=",
        made.token + "AAAA",
        "A" * 24,
        "A" * 100_000,
    ):
        with refused("TOKEN_INVALID", field=field):
            await each.read("e", consistency=level(**{name: token}))
    with refused("TOKEN_FROM_ANOTHER_STORE", field=field):
        await each.read("e", consistency=level(**{name: encode_token("0" * 16, 1)}))
    for ahead in (made.revision.number + 1_000, 2**62, 2**63 - 1, 2**63, 2**64 - 1):
        with refused("TOKEN_AHEAD_OF_STORE", field=field) as found:
            await each.read("e", consistency=level(**{name: encode_token(made.revision.epoch, ahead)}))
        assert found[0].code is grpc.StatusCode.OUT_OF_RANGE


async def test_a_snapshot_below_what_is_kept_is_refused_and_entries_are_not_touched(on_any_store: Running) -> None:
    agent = on_any_store.agent
    old = await agent.commit(put("e", "1"))
    new = await agent.commit(put("e", "2", at(old)))
    operator = on_any_store.as_agent("keeper", "operator")
    request = admin_service_pb2.CompactRequest(before=new.token)
    with refused("ROLE_REQUIRED", role="operator"):
        await agent.admin.Compact(request, metadata=agent.metadata)
    answer = await operator.admin.Compact(request, metadata=operator.metadata)
    assert answer.compacted_revision == new.revision.number
    with refused("HISTORY_COMPACTED", compacted_revision=str(new.revision.number)) as found:
        await agent.read("e", consistency=level(snapshot=old.token))
    assert found[0].code is grpc.StatusCode.OUT_OF_RANGE
    assert (await agent.read("e", consistency=level(snapshot=new.token))).entry.value.text == "2"
    assert [change.entry.value.text for change in await agent.history("e")] == ["2", "1"]
    ahead = admin_service_pb2.CompactRequest(before=encode_token(new.revision.epoch, new.revision.number + 1_000))
    with refused("TOKEN_AHEAD_OF_STORE", field="before"):
        await operator.admin.Compact(ahead, metadata=operator.metadata)


async def test_a_snapshot_does_not_show_what_has_expired_since(each: Agent, clock: SettableClock) -> None:
    made = await each.commit(put("e", ttl={"seconds": 5}))
    clock.pass_ms(5_000)
    with refused("NOT_FOUND"):
        await each.read("e", consistency=level(snapshot=made.token))
    assert not (await each.page(consistency=level(snapshot=made.token))).entries


# Pages.


async def test_pages_over_a_snapshot_are_one_cut_whatever_is_written_meanwhile(each: Agent) -> None:
    made = [await each.commit(put(f"e{number:03}", "old")) for number in range(0, 50, 2)]
    page = await each.page(page_size=7)
    seen = list(page.entries)
    first = page.token
    step = 0
    while page.next_page_token:
        await each.commit(put(f"e{step * 2 + 1:03}"), put(f"e{step * 2:03}", "new", at(made[step])))
        step += 1
        page = await each.page(page_size=7, page_token=page.next_page_token, consistency=level(snapshot=first))
        seen += page.entries
    assert [entry.key.path for entry in seen] == [f"e{number:03}" for number in range(0, 50, 2)]
    assert {entry.value.text for entry in seen} == {"old"}


async def test_strong_pages_neither_skip_nor_repeat_what_stays(each: Agent) -> None:
    await each.commit(*[put(f"e{number:02}") for number in range(30)])
    page = await each.page(page_size=4)
    seen = [entry.key.path for entry in page.entries]
    while page.next_page_token:
        await each.commit(put(f"{seen[-1]}/below"), put(f"{seen[0]}/{len(seen)}"))
        page = await each.page(page_size=4, page_token=page.next_page_token)
        seen += [entry.key.path for entry in page.entries]
    stayed = [path for path in seen if "/" not in path]
    assert stayed == [f"e{number:02}" for number in range(30)]
    assert len(set(seen)) == len(seen)


async def test_a_page_token_is_of_one_listing(each: Agent) -> None:
    await each.commit(*[put(f"a/{number}") for number in range(5)], *[put(f"b/{number}") for number in range(5)])
    token = (await each.page("a", page_size=2)).next_page_token
    for path, region in (("b", REGION), ("", REGION), ("a/1", REGION), ("a", PRIVATE)):
        with refused("PAGE_TOKEN_INVALID", field="page_token"):
            await each.page(path, region, page_token=token)
    with refused("PAGE_TOKEN_INVALID", field="page_token"):
        await each.history("a/1", page_token=token)
    for text in ("x", "é", "=" * 5, token[:-2], "A" * 10_000):
        with refused("PAGE_TOKEN_INVALID", field="page_token"):
            await each.page("a", page_token=text)


async def test_a_crafted_page_token_cannot_leave_its_prefix(each: Agent) -> None:
    await each.commit(*[put(f"a/{number}") for number in range(5)], *[put(f"b/{number}") for number in range(5)])
    token = (await each.page("a", page_size=2)).next_page_token
    digest = base64.urlsafe_b64decode(token)[:8]
    for rest in (b"", b"\x00", b"\xff" * 20, b"../b/", b"/", b"2/", b"\xff\xff/zz"):
        crafted = base64.urlsafe_b64encode(digest + rest).decode()
        page = await each.page("a", page_token=crafted)
        assert {entry.key.path.split("/")[0] for entry in page.entries} <= {"a"}


async def test_a_page_behind_many_tombstones_comes_in_the_end(each: Agent) -> None:
    for start in range(0, 640, 32):
        made = await each.commit(*[put(f"e{number:04}") for number in range(start, start + 32)])
        await each.commit(*[delete(f"e{number:04}", at(made)) for number in range(start, start + 32)])
    await each.commit(put("last"))
    token, seen, pages = "", [], 0
    while True:
        page = await each.page(page_size=10, page_token=token)
        seen += [entry.key.path for entry in page.entries]
        token = page.next_page_token
        pages += 1
        if not token:
            break
    assert seen == ["last"]
    assert pages < 20


async def test_a_page_ends_before_it_is_too_large(each: Agent) -> None:
    for number in range(8):
        await each.commit(put(f"e{number}", "x" * limits.VALUE_BYTES_MAX))
    page = await each.page()
    assert 5 <= len(page.entries) < 8
    assert page.ByteSize() < 4 * 1024 * 1024
    rest = await each.page(page_token=page.next_page_token)
    assert len(page.entries) + len(rest.entries) == 8
    without = await each.page(omit_values=True)
    assert not any(entry.HasField("value") for entry in without.entries)
    keys = [key(f"e{number}") for number in range(8)]
    request = board_service_pb2.BatchGetEntriesRequest(board="main", keys=keys)
    with refused("RESPONSE_TOO_LARGE", limit="3145728") as found:
        await each.board.BatchGetEntries(request, metadata=each.metadata)
    assert found[0].code is grpc.StatusCode.RESOURCE_EXHAUSTED


# History.


async def test_history_keeps_the_newest_64_states_newest_first(each: Agent) -> None:
    for _ in range(70):
        await each.commit(increment("n"))
    changes = await each.history("n")
    assert [change.entry.value.json for change in changes] == [str(number) for number in range(70, 6, -1)]
    request = board_service_pb2.ListRevisionsRequest(board="main", key=key("n"), page_size=10)
    seen: list[int] = []
    while True:
        answer = await each.board.ListRevisions(request, metadata=each.metadata)
        seen += [change.entry.sequence for change in answer.revisions]
        request.page_token = answer.next_page_token
        if not answer.next_page_token:
            break
    assert seen == list(range(70, 6, -1))


async def test_history_is_bounded_also_where_commits_have_no_room_to_clean_up(
    running: Running, clock: SettableClock
) -> None:
    """A full commit of entries that expire leaves its clean-ups to the sweeper."""
    agent = running.agent
    made = await agent.commit(*[put(f"e{number}", ttl={"seconds": 100_000}) for number in range(32)])
    for _ in range(70):
        clock.pass_ms(1)
        made = await agent.commit(
            *[put(f"e{number}", "x", at(made), ttl={"seconds": 100_000}) for number in range(32)],
            request_id=new_id(clock.ms),
        )
    clock.pass_ms(3_600_000)
    for _ in range(12):
        await running.server._upkeep.sweep()
    assert {len(await agent.history(f"e{number}")) for number in range(32)} == {64}


async def test_history_shows_no_value_whose_time_has_run_out(each: Agent, clock: SettableClock) -> None:
    made = await each.commit(put("e", "1", ttl={"seconds": 10}, metadata={"a": "1"}))
    await each.commit(put("e", "2", at(made), ttl={"seconds": 100}))
    clock.pass_ms(10_000)
    newest, oldest = await each.history("e")
    assert newest.entry.value.text == "2"
    assert not oldest.entry.HasField("value")
    assert not oldest.entry.metadata


async def test_history_of_what_never_was_is_not_found(each: Agent) -> None:
    with refused("NOT_FOUND"):
        await each.history("e")


# What may not be read.


async def test_SC_17_another_agents_private_region_is_told_alike_whether_or_not_there_is_anything(
    on_any_store: Running,
) -> None:
    owner, other = on_any_store.as_agent("owner"), on_any_store.as_agent("other")
    made = await owner.commit(put("there", "secret", region="agent:owner"))
    seen = []
    for path in ("there", "absent"):
        calls = [
            other.get(path, "agent:owner"),
            other.page(path, "agent:owner"),
            other.history(path, "agent:owner"),
            other.commit(put(path, "x", region="agent:owner")),
            other.commit(put(path, "x", at(made), region="agent:owner")),
            other.commit(increment(path, region="agent:owner")),
            other.commit(delete(path, at(made), "agent:owner")),
            other.board.Watch(
                board_service_pb2.WatchRequest(
                    board="main", targets=[board_service_pb2.WatchTarget(region="agent:owner", path=path)], now=True
                ),
                metadata=other.metadata,
            ).read(),
        ]
        told = []
        for call in calls:
            with refused("NOT_FOUND") as found:
                await call
            facts = {name: "" if name == "token" else fact for name, fact in found[0].facts.items()}  # upkeep moves it
            told.append(found[0]._replace(facts=facts))
        batch = await other.board.BatchGetEntries(
            board_service_pb2.BatchGetEntriesRequest(board="main", keys=[key(path, "agent:owner")]),
            metadata=other.metadata,
        )
        assert list(batch.missing) == [key(path, "agent:owner")]
        seen.append(told)
    assert seen[0] == seen[1]
    for region in ("agent:owner", "agent:other"):  # nor does one's own region, where there is nothing, sound different
        calls = [other.get("absent", region), other.history("absent", region)]
        for call in calls:
            with refused("NOT_FOUND") as found:
                await call
            assert set(found[0].facts) == {"token"}


async def test_SC_17_a_belief_does_not_reach_into_another_agents_region(on_any_store: Running) -> None:
    owner, other = on_any_store.as_agent("owner"), on_any_store.as_agent("other")
    await owner.commit(put("there", "secret", region="agent:owner"))
    for path in ("there", "absent"):
        request = commit_request(put("e"))
        belief = request.preconditions.add()
        belief.key.CopyFrom(key(path, "agent:owner"))
        belief.precondition.CopyFrom(absent())
        with refused("NOT_FOUND"):
            await other.send(request)


async def test_an_auditor_reads_and_never_writes(running: Running) -> None:
    auditor = running.as_agent("auditor-1", "auditor")
    await running.agent.commit(put("e"))
    assert (await auditor.get("e")).value.text == "x"
    for region in (REGION, "agent:auditor-1", "task:1", "tenant", "global"):
        with refused("WRITE_FORBIDDEN", region=region) as found:
            await auditor.commit(put("f", region=region))
        assert found[0].code is grpc.StatusCode.PERMISSION_DENIED
    await running.as_agent("both", "auditor, member").commit(put("f"))


async def test_who_writes_beyond_a_board(start: Started) -> None:
    running = await start(boards=["main", "second"])
    operator, system = running.as_agent("o", "operator"), running.as_agent("s", "system")
    for agent, region in ((operator, "tenant"), (system, "global")):
        await agent.commit(put("e", region, region=region))
        assert (await running.agent.get("e", region)).value.text == region
    for agent, region in (
        (running.agent, "tenant"),
        (running.agent, "global"),
        (operator, "global"),
        (system, "tenant"),
    ):
        with refused("WRITE_FORBIDDEN", region=region):
            await agent.commit(put("f", region=region))
    other = board_service_pb2.GetEntryRequest(board="second", key=key("e", "tenant"))
    assert (await running.agent.board.GetEntry(other, metadata=running.agent.metadata)).entry.value.text == "tenant"


async def test_boards_are_apart_and_an_unknown_one_is_not_found(start: Started) -> None:
    agent = (await start(boards=["main", "second"])).agent
    await agent.commit(put("e", "of main"))
    await agent.commit(put("e", "of second"), board="second")
    assert (await agent.get("e")).value.text == "of main"
    with refused("NOT_FOUND"):
        await agent.commit(put("e"), board="third")
    calls: list[tuple[Any, Any]] = [
        (board_service_pb2.GetEntryRequest(board="third", key=key("e")), agent.board.GetEntry),
        (board_service_pb2.BatchGetEntriesRequest(board="third", keys=[key("e")]), agent.board.BatchGetEntries),
        (board_service_pb2.ListEntriesRequest(board="third", region=REGION), agent.board.ListEntries),
        (board_service_pb2.ListRevisionsRequest(board="third", key=key("e")), agent.board.ListRevisions),
    ]
    for request, call in calls:
        with refused("NOT_FOUND"):
            await call(request, metadata=agent.metadata)
