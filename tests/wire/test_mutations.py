"""What each mutation makes of an entry."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from kokuban.v1 import commit_pb2, entry_pb2
from tests.wire.calls import (
    REGION,
    START_MS,
    HeldStore,
    add,
    append,
    at,
    commit_request,
    delete,
    increment,
    merge,
    new_id,
    put,
    put_json,
    refusal_of,
    refused,
)

if TYPE_CHECKING:
    from tests.wire.calls import Agent, SettableClock
    from tests.wire.conftest import Running, Started

RFC_7396_EXAMPLES = [
    ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
    ('{"a":"b"}', '{"a":null}', "{}"),
    ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
    ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
    ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
    ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
    ('["a","b"]', '["c","d"]', '["c","d"]'),
    ('{"a":"b"}', '["c"]', '["c"]'),
    ('{"a":"foo"}', "null", "null"),
    ('{"a":"foo"}', '"bar"', '"bar"'),
    ('{"e":null}', '{"a":1}', '{"e":null,"a":1}'),
    ("[1,2]", '{"a":"b","c":null}', '{"a":"b"}'),
    ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
]
"""Appendix A of the RFC."""

SPELLINGS = ["1.0", "1e400", "12345678901234567890", "-0", "1E+2", "0.10", "-1.5e-300"]


# Put: what it changes is what it names.


@pytest.mark.parametrize(
    "names",
    [c for n in range(1, 5) for c in itertools.combinations(("value", "metadata", "metadata.a", "expire_time"), n)],
)
@pytest.mark.parametrize("given", [True, False])
async def test_a_put_changes_what_its_mask_names_and_nothing_else(
    agent: Agent,
    names: tuple[str, ...],
    given: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    made = await agent.commit(put("e", "old", metadata={"a": "old", "b": "old"}, ttl={"seconds": 100}))
    fields: dict[str, Any] = {"metadata": {"a": "new", "c": "new"}, "ttl": {"seconds": 200}} if given else {}
    value = "new" if given or "value" in names else None
    await agent.commit(put("e", value, at(made), update_mask=FieldMask(paths=names), **fields))
    entry = await agent.get("e")
    assert entry.value.text == ("new" if "value" in names else "old")
    expected = {"a": "old", "b": "old"}
    if "metadata" in names:
        expected = {"a": "new", "c": "new"} if given else {}
    elif "metadata.a" in names:
        expected = {"a": "new", "b": "old"} if given else {"b": "old"}
    assert dict(entry.metadata) == expected
    if "expire_time" in names:
        assert entry.expire_time.ToMilliseconds() == (START_MS + 200_000 if given else 0)
    else:
        assert entry.expire_time.ToMilliseconds() == START_MS + 100_000


async def test_a_put_without_a_mask_keeps_what_it_does_not_fill_in(each: Agent) -> None:
    """A client that does not know metadata and expiry cannot erase them."""
    made = await each.commit(put("e", "old", metadata={"a": "1"}, ttl={"seconds": 100}))
    made = await each.commit(put("e", "new", at(made)))
    entry = await each.get("e")
    assert (entry.value.text, dict(entry.metadata)) == ("new", {"a": "1"})
    assert entry.expire_time.ToMilliseconds() == START_MS + 100_000
    made = await each.commit(put("e", None, at(made), metadata={"b": "2"}))
    entry = await each.get("e")
    assert (entry.value.text, dict(entry.metadata)) == ("new", {"b": "2"})
    await each.commit(put("e", None, at(made), ttl={"seconds": 300}))
    entry = await each.get("e")
    assert (entry.value.text, dict(entry.metadata)) == ("new", {"b": "2"})
    assert entry.expire_time.ToMilliseconds() == START_MS + 300_000


async def test_the_star_mask_names_everything(agent: Agent) -> None:
    made = await agent.commit(put("e", "old", metadata={"a": "1"}, ttl={"seconds": 100}))
    await agent.commit(put("e", "new", at(made), update_mask=FieldMask(paths=["*"])))
    entry = await agent.get("e")
    assert (entry.value.text, dict(entry.metadata), entry.HasField("expire_time")) == ("new", {}, False)


@pytest.mark.parametrize("paths", [[], ["valu"], ["*", "value"], ["metadata."], ["key"], ["value.text"], [""]])
async def test_a_mask_that_names_what_a_put_has_not_is_refused(agent: Agent, paths: list[str]) -> None:
    with refused("MASK_INVALID", field="mutations[0].put.update_mask"):
        await agent.commit(put("e", "x", update_mask=FieldMask(paths=paths)))


async def test_a_put_that_creates_needs_a_value(agent: Agent) -> None:
    with refused("VALUE_REQUIRED", field="mutations[0].put.value"):
        await agent.commit(put("e", None, metadata={"a": "1"}))
    with refused("VALUE_REQUIRED", field="mutations[0].put.update_mask"):
        await agent.commit(put("e", None, update_mask=FieldMask(paths=["value"])))
    with refused("VALUE_REQUIRED", field="mutations[0].put.value"):
        await agent.commit(put("e", "unnamed", update_mask=FieldMask(paths=["metadata"])))


@pytest.mark.parametrize(
    "text", [*SPELLINGS, ' { "b" : 1.0 ,\t"a":[1e400]}\n', '"\\u0041\\ud83d\\ude00"', '{"é":"\u2028"}']
)
async def test_json_is_kept_byte_for_byte(each: Agent, text: str) -> None:
    await each.commit(put_json("e", text))
    assert await each.json("e") == text


async def test_every_form_of_value_comes_back_as_it_was(each: Agent) -> None:
    for number, value in enumerate(
        [
            entry_pb2.Value(text=""),
            entry_pb2.Value(text="a\x00b\u2028é"),
            entry_pb2.Value(binary=entry_pb2.BinaryValue(data=bytes(range(256)), media_type="image/png")),
            entry_pb2.Value(binary=entry_pb2.BinaryValue(media_type="a b")),
        ]
    ):
        await each.commit(put(f"e{number}", value))
        assert (await each.get(f"e{number}")).value == value


# Expiry.


async def test_TT_01_what_has_expired_is_gone_before_any_sweep_and_no_touch_revives_it(
    each: Agent, clock: SettableClock
) -> None:
    made = await each.commit(put_json("e", [], None), put_json("n", 1), put_json("o", {}))
    held = await each.commit(*[put(path, None, at(made), ttl={"seconds": 10}) for path in ("e", "n", "o")])
    clock.pass_ms(9_999)
    assert (await each.get("e")).revision == held.revision
    clock.pass_ms(1)
    touches = [
        put("e", "x", at(held)),
        put("e", None, at(held), ttl={"seconds": 100}),
        put("e", None, at(held), update_mask=FieldMask(paths=["expire_time"])),
        delete("e", at(held)),
        merge("o", '{"a":1}', at(held)),
    ]
    for touch in touches:
        with refused("REVISION_MISMATCH", exists="false"):
            await each.commit(touch, request_id=new_id(clock.ms))
    with refused("NOT_FOUND"):
        await each.get("e")
    assert await each.paths() == []
    assert [change.entry.HasField("value") for change in await each.history("e")] == [False, True]
    await each.commit(increment("n"), request_id=new_id(clock.ms))
    assert await each.json("n") == "1"  # a new life, from 0
    assert not (await each.get("n")).HasField("expire_time")


async def test_RB_13_a_clock_that_steps_back_revives_nothing(each: Agent, clock: SettableClock) -> None:
    await each.commit(put("e", ttl={"seconds": 10}))
    clock.pass_ms(10_000)
    with refused("NOT_FOUND"):
        await each.get("e")
    clock.pass_ms(-9_000)
    with refused("NOT_FOUND"):
        await each.get("e")
    assert await each.paths() == []


async def test_expiry_is_set_kept_moved_and_cleared(each: Agent, clock: SettableClock) -> None:
    made = await each.commit(put("e", ttl={"seconds": 10}))
    made = await each.commit(put("e", "y", at(made)))
    assert (await each.get("e")).expire_time.ToMilliseconds() == START_MS + 10_000
    made = await each.commit(put("e", None, at(made), expire_time={"seconds": START_MS // 1000 + 20}))
    clock.pass_ms(15_000)
    assert (await each.get("e")).expire_time.ToMilliseconds() == START_MS + 20_000
    await each.commit(
        put("e", None, at(made), update_mask=FieldMask(paths=["expire_time"])), request_id=new_id(clock.ms)
    )
    clock.pass_ms(10**9)
    assert not (await each.get("e")).HasField("expire_time")


async def test_an_expired_entry_can_be_created_anew(each: Agent, clock: SettableClock) -> None:
    old = await each.commit(put("e", "old", metadata={"a": "1"}, ttl={"seconds": 1}))
    clock.pass_ms(1_000)
    new = await each.commit(put("e", "new"), request_id=new_id(clock.ms))
    entry = await each.get("e")
    assert (entry.value.text, dict(entry.metadata), entry.HasField("expire_time")) == ("new", {}, False)
    assert entry.create_revision == new.revision.number
    assert entry.create_time.ToMilliseconds() == clock.ms
    assert (await each.history("e"))[0].previous_revision == old.revision.number


async def test_the_sweeper_buries_what_expired_once(on_any_store: Running, clock: SettableClock) -> None:
    agent = on_any_store.agent
    for number in range(100):
        await agent.commit(put(f"e{number}", ttl={"seconds": 1 + number % 2}))
    clock.pass_ms(1_000)
    for _ in range(3):
        await on_any_store.server._upkeep.sweep()
    assert len(await agent.paths()) == 50
    changes = await agent.history("e0")
    assert [change.type for change in changes] == [entry_pb2.CHANGE_TYPE_EXPIRED, entry_pb2.CHANGE_TYPE_PUT]
    assert changes[0].entry.author == "kokuban"


# Merge patches.


@pytest.mark.parametrize(("target", "patch", "result"), RFC_7396_EXAMPLES)
async def test_a_merge_patch_does_what_RFC_7396_shows(agent: Agent, target: str, patch: str, result: str) -> None:
    made = await agent.commit(put_json("e", target))
    answer = await agent.commit(merge("e", patch, at(made)))
    assert await agent.json("e") == result
    assert answer.results[0].value.json == result


async def test_numbers_keep_their_spelling_through_computing_mutations(each: Agent) -> None:
    numbers = "[" + ",".join(SPELLINGS) + "]"
    made = await each.commit(put_json("o", f'{{"n": {numbers}}}'), put_json("l", numbers), put_json("s", numbers))
    await each.commit(merge("o", '{"m":1.0}', at(made)), add("s", "2"), append("l"[:1], 7))
    assert await each.json("o") == f'{{"n":{numbers},"m":1.0}}'
    assert await each.json("l") == f"{numbers[:-1]},7]"
    assert await each.json("s") == f"{numbers[:-1]},2]"


@pytest.mark.parametrize("mutation", [increment("e"), append("e", 1), add("e", "1")])
@pytest.mark.parametrize(
    "value",
    [
        entry_pb2.Value(text="1"),
        entry_pb2.Value(json='{"a":1}'),
        entry_pb2.Value(json='"1"'),
        entry_pb2.Value(json="null"),
    ],
)
async def test_a_mutation_that_computes_wants_its_kind_of_value(
    agent: Agent, mutation: commit_pb2.Mutation, value: entry_pb2.Value
) -> None:
    await agent.commit(put("e", value))
    kind = mutation.WhichOneof("kind")
    with refused("VALUE_TYPE_MISMATCH", field=f"mutations[0].{kind}", region=REGION, path="e") as found:
        await agent.commit(mutation)
    assert found[0].facts["wanted"].startswith("a JSON")
    assert found[0].code is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_merge_patch_of_a_text_is_refused(agent: Agent) -> None:
    made = await agent.commit(put("e", "text"))
    with refused("VALUE_TYPE_MISMATCH", field="mutations[0].merge_patch"):
        await agent.commit(merge("e", "{}", at(made)))


# Sets.


async def test_a_set_tells_items_apart_as_json_values(each: Agent) -> None:
    items = ["1", '{"a":1,"b":[2]}', '"x"', "null", "true", "0", "[]"]
    same = ["1.0", "10e-1", '{"b":[2.0],"a":1}', '"\\u0078"', "null", "true", "-0", "0e9", "[ ]", "100E-2"]
    other = ["2", '{"a":1}', '"X"', "false", "1e1", "[[]]", '"1"', "1e400", "1e401"]
    await each.commit(add("e", *items))
    await each.commit(add("e", *same))
    assert await each.json("e") == "[" + ",".join(items) + "]"
    await each.commit(add("e", *other, *other))
    assert await each.json("e") == "[" + ",".join(items + other) + "]"


async def test_ID_01_concurrent_identical_additions_make_one_element(on_any_store: Running) -> None:
    writers = [on_any_store.as_agent(f"writer-{number}") for number in range(20)]
    answers = await asyncio.gather(*(writer.commit(add("e", '{"fact":1}')) for writer in writers))
    assert await writers[0].json("e") == '[{"fact":1}]'
    named = {act.agent for change in await writers[0].history("e") for act in change.acts}
    assert named == {writer.name for writer in writers}
    assert {answer.results[0].value.json for answer in answers} == {'[{"fact":1}]'}


@pytest.mark.parametrize(
    "spelled", ["1e" + "9" * 4_299, "1e" + "9" * 4_300, "10e" + "9" * 4_300, "1e" + "9" * 5_000, "1e-" + "9" * 5_000]
)
async def test_a_number_with_an_endless_exponent_is_an_answer_and_not_a_fault(agent: Agent, spelled: str) -> None:
    try:
        await agent.commit(add("e", spelled, "1"))
    except grpc.aio.AioRpcError as error:
        assert refusal_of(error).reason in {"VALUE_TYPE_MISMATCH", "VALUE_NOT_JSON"}
    await agent.commit(put_json("f", f"[{spelled}]"))
    assert await agent.json("f") == f"[{spelled}]"
    try:
        await agent.commit(add("f", "1"))
    except grpc.aio.AioRpcError as error:
        assert refusal_of(error).reason == "VALUE_TYPE_MISMATCH"


# Commuting mutations are folded.


async def test_RE_06_ID_03_concurrent_first_appends_make_one_list_with_every_item(on_any_store: Running) -> None:
    """LU-02, LU-13 too: no append that was answered is missing."""
    writers = [on_any_store.as_agent(f"writer-{number}") for number in range(50)]
    answers = await asyncio.gather(*(writer.commit(append("e", writer.name)) for writer in writers))
    items = json.loads(await writers[0].json("e"))
    assert sorted(items) == sorted(writer.name for writer in writers)
    assert await writers[0].paths() == ["e"]
    for writer, answer in zip(writers, answers, strict=True):
        assert writer.name in json.loads(answer.results[0].value.json)
    assert len({change.entry.create_revision for change in await writers[0].history("e")}) == 1


async def test_LU_13_sub_agents_that_set_distinct_keys_are_all_seen(on_any_store: Running) -> None:
    subs = [on_any_store.as_agent(f"sub-{number}") for number in range(4)]
    await asyncio.gather(*(sub.commit(put(f"task/{sub.name}", sub.name)) for sub in subs))
    assert await subs[0].paths("task") == [f"task/sub-{number}" for number in range(4)]


async def test_each_of_many_concurrent_increments_counts_and_is_answered_with_what_stands_at_its_revision(
    on_any_store: Running,
) -> None:
    writers = [on_any_store.as_agent(f"writer-{number}") for number in range(100)]
    watched = await writers[0].watch("n", now=True).begun()
    answers = await asyncio.gather(*(writer.commit(increment("n", 3)) for writer in writers))
    assert await writers[0].json("n") == "300"
    for answer in answers:
        then = entry_pb2.ReadConsistency(snapshot=answer.token)
        entry = await writers[0].get("n", consistency=then)
        assert answer.results[0].value == entry.value
        assert answer.results[0].sequence == entry.sequence
    latest = max(answers, key=lambda answer: answer.revision.number)
    changes = [change for part in await watched.until(latest.token) for change in part.events.changes]
    named = [act.agent for change in changes for act in change.acts]
    assert sorted(named) == sorted(writer.name for writer in writers)


async def test_what_waits_for_one_entry_is_written_together_and_every_act_is_named(
    start: Started, clock: SettableClock
) -> None:
    store = HeldStore(clock)
    running = await start(store)
    await running.agent.commit(increment("n"))
    writers = [running.as_agent(f"writer-{number}") for number in range(100)]
    store.hold()
    sent = [asyncio.ensure_future(writer.commit(increment("n"))) for writer in writers]
    await running.has_in_hand(100)
    store.release()
    answers = await asyncio.gather(*sent)
    changes = await writers[0].history("n")
    assert [len(change.acts) for change in changes] == [3, 32, 32, 32, 1, 1]
    named = [act.agent for change in changes[:-1] for act in change.acts]
    assert sorted(named) == sorted(writer.name for writer in writers)
    at_revision = {change.entry.revision.number: change.entry for change in changes}
    for answer in answers:
        entry = at_revision[answer.revision.number]
        assert (answer.results[0].value, answer.results[0].sequence) == (entry.value, entry.sequence)


async def test_what_cannot_be_computed_in_the_middle_of_a_fold_is_refused_alone(
    start: Started, clock: SettableClock
) -> None:
    store = HeldStore(clock)
    running = await start(store)
    agent = running.agent
    await agent.commit(put_json("n", 2**63 - 1 - 10))
    store.hold()
    sent = [asyncio.ensure_future(agent.commit(increment("n", by))) for by in (1, 2, 100, 3, 4, -(2**63))]
    await running.has_in_hand(6)
    store.release()
    answers = await asyncio.gather(*sent, return_exceptions=True)
    assert isinstance(answers[2], grpc.aio.AioRpcError)
    refusal = refusal_of(answers[2])
    assert refusal.reason == "NUMBER_OUT_OF_RANGE"
    assert refusal.facts == {"field": "mutations[0].increment.by", "region": REGION, "path": "n"}
    assert [type(answer) for answer in answers].count(commit_pb2.CommitResponse) == 5
    assert await agent.json("n") == str(-1 - 10 + 10)


async def test_a_replay_inside_a_fold_is_told_its_first_answer(start: Started, clock: SettableClock) -> None:
    store = HeldStore(clock)
    running = await start(store)
    agent = running.agent
    first = commit_request(increment("n", 1))
    held = await agent.send(first)
    store.hold()
    requests = [commit_request(increment("n", 10)), first, commit_request(increment("n", 100)), first]
    sent = [asyncio.ensure_future(agent.send(request)) for request in requests]
    await running.has_in_hand(4)
    store.release()
    answers = await asyncio.gather(*sent)
    assert [answer.replayed for answer in answers] == [False, True, False, True]
    assert answers[1].results == held.results
    assert await agent.json("n") == "111"


async def test_one_request_sent_twice_at_once_is_done_once(on_any_store: Running) -> None:
    """ID-02: a client that did not wait for the first answer."""
    agent = on_any_store.agent
    for mutation in (increment("n"), append("l", 1), put("p")):
        request = commit_request(mutation)
        answers = await asyncio.gather(*(agent.send(request) for _ in range(10)))
        assert sorted(answer.replayed for answer in answers) == [False] + [True] * 9
        assert len({answer.revision.number for answer in answers}) == 1
    assert (await agent.json("n"), await agent.json("l")) == ("1", "[1]")


@pytest.mark.parametrize(("first", "by"), [(2**63 - 1, 1), (-(2**63), -1), (0, -(2**63)), (5, 2**63 - 6)])
async def test_a_sum_stays_within_64_bits_signed(each: Agent, first: int, by: int) -> None:
    await each.commit(put_json("n", first))
    if -(2**63) <= first + by < 2**63:
        await each.commit(increment("n", by))
        assert await each.json("n") == str(first + by)
    else:
        with refused("NUMBER_OUT_OF_RANGE", field="mutations[0].increment.by"):
            await each.commit(increment("n", by))
        assert await each.json("n") == str(first)


# Several mutations, deletion and a second life.


async def test_a_commit_may_hold_every_kind_of_mutation(each: Agent) -> None:
    made = await each.commit(put("p"), put("d"), put_json("m", {}))
    answer = await each.commit(
        put("p", "new", at(made)),
        delete("d", at(made)),
        increment("n"),
        append("l", 1),
        add("s", "1"),
        merge("m", '{"a":1}', at(made)),
    )
    assert [result.sequence for result in answer.results] == [2, 2, 1, 1, 1, 2]
    assert [result.value.json for result in answer.results] == ["", "", "1", "[1]", "[1]", '{"a":1}']
    assert await each.paths() == ["l", "m", "n", "p", "s"]


async def test_deletion_leaves_a_trace_and_a_new_life_goes_on_counting(each: Agent, clock: SettableClock) -> None:
    first = await each.commit(put("e", "1", metadata={"a": "1"}), reason="begin")
    clock.pass_ms(1_000)
    await each.commit(delete("e", at(first)), reason="done", request_id=new_id(clock.ms))
    with refused("REVISION_MISMATCH", exists="false"):
        await each.commit(delete("e", at(first)), request_id=new_id(clock.ms))
    third = await each.commit(put("e", "2"), request_id=new_id(clock.ms))
    changes = await each.history("e")
    assert [change.entry.sequence for change in changes] == [3, 2, 1]
    assert [change.type for change in changes] == [
        entry_pb2.CHANGE_TYPE_PUT,
        entry_pb2.CHANGE_TYPE_DELETED,
        entry_pb2.CHANGE_TYPE_PUT,
    ]
    assert [change.acts[0].reason for change in changes] == ["", "done", "begin"]
    assert not changes[1].entry.HasField("value")
    numbers = [change.entry.revision.number for change in changes]
    assert [change.previous_revision for change in changes] == [numbers[1], numbers[2], 0]
    entry = await each.get("e")
    assert (entry.create_revision, dict(entry.metadata)) == (third.revision.number, {})
    assert entry.create_time.ToMilliseconds() == START_MS + 1_000


async def test_retry_of_reason_and_trace_stand_in_the_history(each: Agent) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    lost, request_id = new_id(), new_id()
    request = commit_request(put("e"), reason="why é", retry_of=lost, request_id=request_id)
    await each.send(request, ("traceparent", trace))
    act = (await each.history("e"))[0].acts[0]
    assert act == entry_pb2.Act(
        agent="writer-1", request_id=request_id, reason="why é", traceparent=trace, retry_of=lost
    )


@pytest.mark.parametrize("trace", ["00-xyz", "", "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01", "x" * 5000])
async def test_a_malformed_trace_context_is_not_kept_and_not_held_against_the_caller(agent: Agent, trace: str) -> None:
    await agent.send(commit_request(put("e")), ("traceparent", trace))
    assert (await agent.history("e"))[0].acts[0].traceparent == ""
