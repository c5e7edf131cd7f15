"""A commit happens once, however often it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kokuban.v1 import commit_pb2
from tests.wire.calls import (
    START_MS,
    Agent,
    append,
    at,
    commit_request,
    delete,
    increment,
    merge,
    new_id,
    put,
    put_json,
    refused,
)

if TYPE_CHECKING:
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started

HOUR_MS = 3_600_000


def like(answer: commit_pb2.CommitResponse, replayed: bool) -> commit_pb2.CommitResponse:  # noqa: FBT001 - a parameter of the test
    copy = commit_pb2.CommitResponse()
    copy.CopyFrom(answer)
    copy.replayed = replayed
    return copy


async def test_ID_02_a_repeat_is_told_the_first_answer_by_any_server(
    start: Started, any_store: BoardStore, clock: SettableClock
) -> None:
    """ID-07 too: ids do not come from a counter of one server."""
    one, other = (await start(any_store)).agent, (await start(any_store)).agent
    made = await one.commit(put_json("o", {}), put("d"))
    request = commit_request(
        put("p"), delete("d", at(made)), increment("n", 2), append("l", 1), merge("o", '{"a":1}', at(made))
    )
    first = await one.send(request)
    await one.commit(increment("n", 40), append("l", 2))
    clock.pass_ms(HOUR_MS - 1)
    for agent in (one, other, Agent(one.channel)):
        assert await agent.send(request) == like(first, replayed=True)
    assert (await one.json("n"), await one.json("l")) == ("42", "[1,2]")
    assert len(await one.history("p")) == 1


async def test_ID_05_a_repeat_makes_no_copy_and_the_id_is_the_writers_own(on_any_store: Running) -> None:
    """The same id from another agent, or on another board, is another request."""
    one, other = on_any_store.agent, on_any_store.as_agent("writer-2")
    request = commit_request(increment("n"))
    for agent in (one, other, one, other):
        await agent.send(request)
    assert await one.json("n") == "2"


async def test_the_same_id_with_other_arguments_is_refused_and_writes_nothing(each: Agent) -> None:
    request = commit_request(put("e", "1"), reason="a")
    await each.send(request)
    others = [
        commit_request(put("e", "2"), reason="a", request_id=request.request_id),
        commit_request(put("f", "1"), reason="a", request_id=request.request_id),
        commit_request(put("e", "1"), reason="b", request_id=request.request_id),
        commit_request(increment("n"), request_id=request.request_id),
        commit_request(put("e", "1"), put("f", "1"), reason="a", request_id=request.request_id),
        commit_request(put("e", "1"), reason="a", request_id=request.request_id, retry_of=new_id()),
    ]
    for other in others:
        with refused("REQUEST_ID_REUSED", request_id=request.request_id):
            await each.send(other)
    assert await each.paths() == ["e"]
    assert (await each.send(request)).replayed


async def test_a_refused_commit_is_judged_again(each: Agent) -> None:
    made = await each.commit(put("e"))
    request = commit_request(put("e", "again"))
    for _ in range(2):
        with refused("ALREADY_EXISTS"):
            await each.send(request)
    await each.commit(delete("e", at(made)))
    assert not (await each.send(request)).replayed


@pytest.mark.parametrize(
    ("offset_ms", "fits"), [(-HOUR_MS, False), (-HOUR_MS + 1, True), (300_000, True), (300_001, False)]
)
async def test_an_id_outside_the_window_is_refused_and_not_run(
    each: Agent,
    offset_ms: int,
    fits: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    request_id = new_id(START_MS + offset_ms)
    request = commit_request(put("e"), request_id=request_id)
    if fits:
        await each.send(request)
        return
    with refused("REQUEST_ID_EXPIRED", request_id=request_id, window_s="3600", store_time_ms=str(START_MS)):
        await each.send(request)
    assert await each.paths() == []


async def test_a_repeat_after_the_window_is_refused_also_where_the_record_still_stands(
    each: Agent, clock: SettableClock
) -> None:
    request = commit_request(put("e"))
    await each.send(request)
    clock.pass_ms(HOUR_MS)
    with refused("REQUEST_ID_EXPIRED"):
        await each.send(request)


async def test_the_window_is_a_setting(start: Started, clock: SettableClock) -> None:
    agent = (await start(request_id_window_s=60)).agent
    request = commit_request(put("e"))
    await agent.send(request)
    clock.pass_ms(60_000)
    with refused("REQUEST_ID_EXPIRED", window_s="60"):
        await agent.send(request)


async def test_a_repeat_holds_while_the_sweeper_works(on_any_store: Running, clock: SettableClock) -> None:
    agent = on_any_store.agent
    request = commit_request(increment("n"))
    await agent.send(request)
    for _ in range(59):
        clock.pass_ms(60_000)
        await on_any_store.server._upkeep.sweep()
        assert (await agent.send(request)).replayed
    assert await agent.json("n") == "1"


async def test_a_repeat_whose_history_was_trimmed_has_no_value(on_any_store: Running) -> None:
    agent = on_any_store.agent
    request = commit_request(increment("n"))
    await agent.send(request)
    for _ in range(64):
        await agent.commit(increment("n"))
    answer = await agent.send(request)
    assert answer.replayed
    assert not answer.results[0].HasField("value")
    assert answer.results[0].sequence == 1
