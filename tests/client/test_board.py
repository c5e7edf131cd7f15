"""The client against a real server."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import kokuban_client
import kokuban_client.testing
from kokuban_client import (
    KEEP,
    AtLeast,
    Binary,
    ChangeType,
    EntryKey,
    Freshness,
    Json,
    Revision,
    Snapshot,
    errors,
)

if TYPE_CHECKING:
    from kokuban_client import Board, Client
    from kokuban_client.testing import ServerProcess


async def test_what_is_written_is_read(board: Board, region: str) -> None:
    written = await board.put(
        region, "task_1", {"state": "open"}, must_not_exist=True, metadata={"k": "v"}, reason="why"
    )
    entry = await board.get(region, "task_1")
    assert entry.value == {"state": "open"} == written.value
    assert entry.json_text == '{"state":"open"}'
    assert entry.revision == written.revision
    assert (entry.author, entry.metadata, entry.sequence) == ("writer-1", {"k": "v"}, 1)
    assert entry.key == EntryKey(region, "task_1")
    assert entry.token


async def test_every_form_of_value_survives(board: Board, region: str) -> None:
    values = [
        "text\n\x1b[31m",
        Json('{"exact": 1.10}'),
        Binary(b"\x00\xff", "image/png"),
        [1, None, "日本"],
        0,
        None,
        "",
    ]
    for index, value in enumerate(values):
        await board.put(region, f"v{index}", value, must_not_exist=True)
    read = [(await board.get(region, f"v{index}")) for index in range(len(values))]
    assert [entry.value for entry in read] == [
        "text\n\x1b[31m",
        {"exact": 1.1},
        Binary(b"\x00\xff", "image/png"),
        [1, None, "日本"],
        0,
        None,
        "",
    ]
    assert read[1].json_text == '{"exact": 1.10}'
    with pytest.raises(TypeError):
        _ = read[0].json_text


async def test_what_is_not_there_is_told(board: Board, region: str) -> None:
    with pytest.raises(errors.NotFound):
        await board.get(region, "nothing")
    assert await board.find(region, "nothing") is None
    batch = await board.get_many([(region, "nothing"), EntryKey(region, "nor_this")])
    assert batch.entries == ()
    assert batch.missing == (EntryKey(region, "nothing"), EntryKey(region, "nor_this"))


async def test_LU_01_of_many_writers_at_one_revision_one_succeeds(board: Board, region: str) -> None:
    base = await board.put(region, "notes", [], must_not_exist=True)

    async def write(number: int) -> kokuban_client.Written:
        return await board.put(region, "notes", [number], at=base.revision)

    outcomes = await asyncio.gather(*(write(number) for number in range(20)), return_exceptions=True)
    kinds = Counter(type(outcome) for outcome in outcomes)
    assert kinds == {kokuban_client.Written: 1, errors.RevisionMismatch: 19}

    async def add(number: int) -> None:
        await board.update(region, "notes", lambda notes: [*notes, number])

    await asyncio.gather(*(add(number) for number in range(100, 120)))
    notes = (await board.get(region, "notes")).value
    assert sorted(notes[1:]) == list(range(100, 120))


async def test_LU_07_the_loser_is_told_who_won(server: ServerProcess, board: Board, region: str) -> None:
    base = await board.put(region, "a", 1, must_not_exist=True)
    async with kokuban_client.connect(server.address, agent="writer-2") as other:
        winner = await other.board("main").put(region, "a", 2, at=base.revision)
    with pytest.raises(errors.RevisionMismatch) as lost:
        await board.put(region, "a", 3, at=base.revision)
    conflict = lost.value
    assert (conflict.expected, conflict.actual) == (base.revision, winner.revision)
    assert (conflict.winner_agent, conflict.winner_request_id) == ("writer-2", winner.request_id)
    assert conflict.exists is True
    assert conflict.request_id
    assert conflict.request_id != winner.request_id
    with pytest.raises(errors.AlreadyExists) as existed:
        await board.put(region, "a", 3, must_not_exist=True)
    assert existed.value.actual == winner.revision


async def test_LU_19_parallel_updates_of_one_key_converge_and_other_keys_are_untouched(
    board: Board, region: str
) -> None:
    await board.put(region, "registry", {}, must_not_exist=True)
    other = await board.put(region, "other", "calm", must_not_exist=True)

    async def register(name: str) -> None:
        await board.update(region, "registry", lambda registry: {**registry, name: True}, attempts=40)

    await asyncio.gather(*(register(f"tool-{number}") for number in range(20)))
    assert len((await board.get(region, "registry")).value) == 20
    assert (await board.get(region, "other")).revision == other.revision


async def test_LU_20_fifty_writers_of_one_key_all_finish(board: Board, region: str) -> None:
    async def bump() -> None:
        await board.update(region, "hot", lambda state: {"n": state["n"] + 1}, create={"n": 0}, timeout_s=20)

    await asyncio.gather(*(bump() for _ in range(50)))
    entry = await board.get(region, "hot")
    assert (entry.value, entry.sequence) == ({"n": 50}, 50)


async def test_LU_21_writing_without_a_belief_is_said_aloud_and_recorded(board: Board, region: str) -> None:
    with pytest.raises(TypeError, match="what you believe"):
        await board.put(region, "a", 1)
    with pytest.raises(errors.PreconditionRequired):
        await board.put(region, "a", 1, unconditional=True)
    await board.put("agent:writer-1", region.replace(":", "-"), 1, unconditional=True)
    (change,) = await board.history("agent:writer-1", region.replace(":", "-"))
    assert [act.unconditional for act in change.acts] == [True]


async def test_RE_06_fifty_first_writes_make_one_entry_with_fifty_items(board: Board, region: str) -> None:
    done = await asyncio.gather(*(board.append(region, "turns", {"turn": number}) for number in range(50)))
    entry = await board.get(region, "turns")
    assert sorted(item["turn"] for item in entry.value) == list(range(50))
    assert entry.create_revision == min(one.revision.number for one in done)


async def test_RE_06_items_taken_by_many_are_taken_once(board: Board, region: str) -> None:
    await board.put(region, "queue", list(range(24)), must_not_exist=True)

    async def take() -> list[int]:
        taken: list[int] = []
        for _ in range(3):
            seen: dict[str, int] = {}

            def rest(queue: list[int], seen: dict[str, int] = seen) -> list[int]:
                seen["first"] = queue[0]
                return queue[1:]

            await board.update(region, "queue", rest)
            taken.append(seen["first"])
        return taken

    taken = await asyncio.gather(*(take() for _ in range(8)))
    assert sorted(item for some in taken for item in some) == list(range(24))


async def test_an_update_needs_an_entry_or_a_beginning(board: Board, region: str) -> None:
    with pytest.raises(errors.NotFound):
        await board.update(region, "a", lambda state: state)
    beginning: dict[str, list[int]] = {"seen": []}

    def add(state: dict[str, list[int]]) -> dict[str, list[int]]:
        state["seen"].append(1)
        return state

    written = await board.update(region, "a", add, create=beginning)
    assert written.value == {"seen": [1]}
    assert beginning == {"seen": []}


async def test_a_costly_function_runs_once_and_merge_does_the_rest(board: Board, region: str) -> None:
    await board.put(region, "a", {"n": 0}, must_not_exist=True)
    computed: list[Any] = []
    merged: list[Any] = []

    async def compute(state: dict[str, int]) -> dict[str, int]:
        computed.append(dict(state))
        if len(computed) == 1:
            await board.update(region, "a", lambda now: {**now, "theirs": 1})
        state["mine"] = 1
        return state

    def merge(base: dict[str, int], theirs: dict[str, int], mine: dict[str, int]) -> dict[str, int]:
        merged.append((base, dict(theirs), dict(mine)))
        return {**theirs, "mine": mine["mine"]}

    written = await board.update(region, "a", compute, merge=merge)
    assert computed == [{"n": 0}]
    assert merged == [({"n": 0}, {"n": 0, "theirs": 1}, {"n": 0, "mine": 1})]
    assert written.value == {"n": 0, "theirs": 1, "mine": 1}
    assert (await board.get(region, "a")).value == written.value


async def test_an_update_gives_up_after_its_attempts_and_what_its_function_raises_ends_it(
    board: Board, region: str
) -> None:
    await board.put(region, "a", 0, must_not_exist=True)
    calls = 0

    async def always_late(state: int) -> int:
        nonlocal calls
        calls += 1
        await board.update(region, "a", lambda now: now + 1)
        return state

    with pytest.raises(errors.RevisionMismatch):
        await board.update(region, "a", always_late, attempts=3)
    assert calls == 3

    def fail(state: int) -> int:
        raise LookupError(state)

    with pytest.raises(LookupError):
        await board.update(region, "a", fail)
    assert (await board.get(region, "a")).value == 3


async def test_an_update_keeps_labels_and_expiry(board: Board, region: str) -> None:
    await board.put(region, "a", 1, must_not_exist=True, metadata={"k": "v"}, ttl=3600)
    await board.update(region, "a", lambda state: state + 1)
    entry = await board.get(region, "a")
    assert (entry.value, entry.metadata) == (2, {"k": "v"})
    assert entry.expire_time is not None


async def test_labels_change_without_the_value(board: Board, region: str) -> None:
    first = await board.put(region, "a", "value", must_not_exist=True)
    second = await board.put(region, "a", KEEP, at=first.revision, metadata={"k": "v"})
    assert second.content is None
    entry = await board.get(region, "a")
    assert (entry.value, entry.metadata) == ("value", {"k": "v"})


async def test_mutations_that_compute_answer_with_what_they_made(board: Board, region: str) -> None:
    assert (await board.increment(region, "n", 3)).value == 3
    assert (await board.increment(region, "n")).value == 4
    assert (await board.append(region, "list", 1, {"a": None})).value == [1, {"a": None}]
    assert (await board.add_to_set(region, "list", 1, 2)).value == [1, {"a": None}, 2]
    base = await board.put(region, "o", {"a": 1, "b": 2}, must_not_exist=True)
    patched = await board.merge_patch(region, "o", {"a": None, "c": 3}, at=base.revision)
    assert patched.value == {"b": 2, "c": 3}


async def test_a_deleted_entry_is_gone_and_its_old_revision_is_dead(board: Board, region: str) -> None:
    first = await board.put(region, "a", 1, must_not_exist=True)
    gone = await board.delete(region, "a", at=first.revision, reason="done with it")
    assert gone.content is None
    with pytest.raises(errors.RevisionMismatch) as late:
        await board.put(region, "a", 2, at=first.revision)
    assert late.value.exists is False
    again = await board.put(region, "a", 3, must_not_exist=True)
    assert again.revision.number > gone.revision.number
    kinds = [change.type for change in await board.history(region, "a")]
    assert kinds == [ChangeType.PUT, ChangeType.DELETED, ChangeType.PUT]
    latest = await board.history(region, "a", limit=1)
    assert [change.entry.value for change in latest] == [3]
    assert (await board.history(region, "a"))[1].acts[0].reason == "done with it"


async def test_a_commit_holds_together(board: Board, region: str) -> None:
    base = await board.put(region, "base", 1, must_not_exist=True)
    async with board.commit(reason="step done") as tx:
        tx.require(region, "base", at=base.revision)
        tx.require(region, "absent", must_not_exist=True)
        tx.put(region, "result", "r", must_not_exist=True)
        tx.increment(region, "count", 2)
        tx.append(region, "log", "line")
    assert tx.result.results[1].value == 2
    entries = [await board.get(region, path) for path in ("result", "count", "log")]
    assert {entry.revision for entry in entries} == {tx.result.revision}
    with pytest.raises(RuntimeError):
        tx.put(region, "late", 1, must_not_exist=True)


async def test_a_commit_that_loses_or_is_left_by_an_error_changes_nothing(board: Board, region: str) -> None:
    base = await board.put(region, "base", 1, must_not_exist=True)
    await board.put(region, "base", 2, at=base.revision)
    losing = board.commit()
    losing.put(region, "result", "r", must_not_exist=True)
    losing.require(region, "base", at=base.revision)
    with pytest.raises(errors.RevisionMismatch):
        async with losing:
            pass
    with pytest.raises(RuntimeError):
        _ = losing.result
    left = board.commit()
    left.put(region, "result", "r", must_not_exist=True)
    with pytest.raises(LookupError):
        async with left:
            raise LookupError
    assert await board.find(region, "result") is None
    believing = board.commit()
    believing.require(region, "base", at=base.revision)
    with pytest.raises(ValueError, match="change something"):
        async with believing:
            pass
    async with board.commit():
        pass  # nothing asked, nothing sent


async def test_the_same_request_id_commits_once(board: Board, region: str) -> None:
    first = await board.increment(region, "n", 5)
    again = await board.increment(region, "n", 5, request_id=first.request_id)
    assert (again.replayed, again.revision) == (True, first.revision)
    assert (await board.get(region, "n")).value == 5
    with pytest.raises(errors.RequestIdReused):
        await board.increment(region, "n", 6, request_id=first.request_id)


async def test_a_clock_that_is_wrong_by_hours_does_not_stop_a_writer(client: Client, board: Board, region: str) -> None:
    # White box: the client's id source is the one place where its own clock counts.
    client._calls.ids._now_ms = lambda: 1_000_000_000_000
    written = await board.put(region, "a", 1, must_not_exist=True)
    assert (await board.get(region, "a")).revision == written.revision
    await board.put(region, "a", 2, at=written.revision)


async def test_a_listing_gives_every_entry_in_order_page_by_page(board: Board, region: str) -> None:
    paths = ["task_1", "task_1/a", "task_1/b", "task_10", "task_2"]
    for path in reversed(paths):
        await board.put(region, path, path, must_not_exist=True)
    assert [entry.path async for entry in board.list(region, page_size=2)] == paths
    assert [entry.path async for entry in board.list(region, "task_1")] == paths[:3]
    assert [entry.value async for entry in board.list(region, "task_1", omit_values=True)] == [None] * 3
    assert [entry async for entry in board.list(region, "nothing")] == []


async def test_a_consistent_listing_shows_one_state(board: Board, region: str) -> None:
    for number in range(4):
        await board.put(region, f"a{number}", "old", must_not_exist=True)
    listing = board.list(region, page_size=1, consistent=True)
    first = await anext(listing)
    async with board.commit() as tx:
        for entry in [entry async for entry in board.list(region)]:
            tx.put(region, entry.path, "new", at=entry.revision)
    assert [first.value, *[entry.value async for entry in listing]] == ["old"] * 4
    assert listing.token
    loose = [entry.value async for entry in board.list(region, page_size=1)]
    assert loose == ["new"] * 4


async def test_reads_are_as_fresh_as_asked(board: Board, region: str) -> None:
    first = await board.put(region, "a", 1, must_not_exist=True)
    second = await board.put(region, "a", 2, at=first.revision)
    assert board.token == second.token
    assert (await board.get(region, "a", consistency=Freshness.SESSION)).value == 2
    assert (await board.get(region, "a", consistency=AtLeast(second.token))).value == 2
    assert (await board.get(region, "a", consistency=Snapshot(first.token))).value == 1
    with pytest.raises(errors.TokenInvalid):
        await board.get(region, "a", consistency=AtLeast("made up"))


async def test_a_session_reads_on_when_the_store_was_replaced(client: Client, board: Board, region: str) -> None:
    with_other_store = kokuban_client.testing.ServerProcess(store="memory:")
    async with (
        with_other_store,
        kokuban_client.connect(with_other_store.address, agent="writer-1") as other,
    ):
        foreign = await other.board("main").put(region, "a", 1, must_not_exist=True)
    await board.put(region, "a", "here", must_not_exist=True)
    client._calls.tokens.wrote("main", foreign.revision, foreign.token)
    assert (await board.get(region, "a", consistency=Freshness.SESSION)).value == "here"
    assert board.token == ""
    with pytest.raises(errors.TokenFromAnotherStore):
        await board.get(region, "a", consistency=AtLeast(foreign.token))
    with pytest.raises(errors.TokenFromAnotherStore):
        await board.put(region, "a", 2, at=Revision(1, foreign.revision.epoch))


async def test_SC_08_two_clients_in_one_process_share_nothing(server: ServerProcess, region: str) -> None:
    async with (
        kokuban_client.connect(server.address, agent="one") as one,
        kokuban_client.connect(server.address, agent="two") as two,
    ):

        async def write(client: Client, number: int) -> None:
            await client.board("main").put(region, f"{client.agent}-{number}", client.agent, must_not_exist=True)

        await asyncio.gather(*(write(client, number) for client in (one, two) for number in range(20)))
        entries = [entry async for entry in one.board("main").list(region)]
        assert len(entries) == 40
        assert all(entry.author == entry.value for entry in entries)
        newest_of_two = two.board("main").token
        await write(one, 20)
        assert one.board("main").token != newest_of_two
        assert two.board("main").token == newest_of_two  # what one has written is not two's own
        with pytest.raises(errors.NotFound):
            await two.board("main").get("agent:one", "private")
        await one.board("main").put("agent:one", region.replace(":", "-"), 1, must_not_exist=True)
        assert await two.board("main").find("agent:one", region.replace(":", "-")) is None


async def test_the_server_tells_its_state_and_forgets_on_an_operators_order(
    server: ServerProcess, board: Board
) -> None:
    async with kokuban_client.connect(server.address, agent="op", roles=["operator"]) as operator:
        status = await operator.status()
        assert status.store_kind == "memory"
        assert status.revision.number >= 1
        assert status.store_time is not None
        assert await operator.compact(status.token) >= 0
    async with kokuban_client.connect(server.address, agent="op", roles=["member"]) as member:
        with pytest.raises(errors.RoleRequired):
            await member.compact(status.token)


async def test_an_operator_makes_boards_and_everybody_is_told_of_those_that_are_theirs(server: ServerProcess) -> None:
    async with kokuban_client.connect(server.address, agent="chief", roles=["operator"]) as chief:
        made = await chief.create_board("second-board")
        assert (made.id, made.creator) == ("second-board", "chief")
        with pytest.raises(errors.BoardExists):
            await chief.create_board("second-board")
        assert made in await chief.boards()
        assert await chief.board("second-board").find("shared:plan", "a") is None
    async with kokuban_client.connect(server.address, agent="member") as member:
        assert made in await member.boards()
        with pytest.raises(errors.RoleRequired):
            await member.create_board("third-board")
