"""What a writer must say it believes, and that the belief is judged with the write."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from kokuban.v1 import admin_service_pb2, commit_pb2, entry_pb2
from tests.wire.calls import (
    PRIVATE,
    REGION,
    absent,
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
    whatever,
)

if TYPE_CHECKING:
    from tests.wire.calls import Agent, SettableClock
    from tests.wire.conftest import Running

STATES = ("never", "live", "deleted", "expired")


async def bring_into(agent: Agent, state: str, path: str, clock: SettableClock, region: str) -> entry_pb2.Revision:
    """Bring an entry into a state; give the revision of its last life, or one that it never had."""
    if state == "never":
        other = await agent.commit(put(f"{path}-other", region=region), request_id=new_id(clock.ms))
        return other.revision
    ttl: dict[str, Any] = {"ttl": {"seconds": 5}} if state == "expired" else {}
    made = await agent.commit(put(path, region=region, **ttl), request_id=new_id(clock.ms))
    if state == "deleted":
        await agent.commit(delete(path, at(made), region), request_id=new_id(clock.ms))
    if state == "expired":
        clock.pass_ms(5_000)
    return made.revision


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("belief", ["must_not_exist", "at", "unconditional"])
@pytest.mark.parametrize("kind", ["put", "delete"])
async def test_AB_03_each_precondition_on_each_state_alone_and_among_others(
    each: Agent, clock: SettableClock, kind: str, belief: str, state: str
) -> None:
    """AB-01, AB-02, AB-03: the same answers alone, first, and last in a commit of several; a refused one writes nothing."""
    if (kind, belief) == ("delete", "must_not_exist"):
        return  # refused as bad input whatever the state
    exists = state == "live"
    holds = {"must_not_exist": not exists, "at": exists, "unconditional": kind == "put" or exists}[belief]
    for place in ("alone", "first", "last"):
        path = f"e-{place}"
        revision = await bring_into(each, state, path, clock, PRIVATE)
        precondition = {"must_not_exist": absent(), "at": at(revision), "unconditional": whatever()}[belief]
        tested = put(path, "new", precondition, PRIVATE) if kind == "put" else delete(path, precondition, PRIVATE)
        other = put(f"beside-{place}", region=PRIVATE)
        mutations = {"alone": [tested], "first": [tested, other], "last": [other, tested]}[place]
        request = commit_request(*mutations, request_id=new_id(clock.ms))
        if holds:
            answer = await each.send(request)
            if kind == "put":
                assert (await each.get(path, PRIVATE)).revision == answer.revision
            else:
                with refused("NOT_FOUND"):
                    await each.get(path, PRIVATE)
            continue
        reason = {"must_not_exist": "ALREADY_EXISTS", "at": "REVISION_MISMATCH", "unconditional": "NOT_FOUND"}[belief]
        with refused(reason) as found:
            await each.send(request)
        if reason != "NOT_FOUND":
            index = 1 if place == "last" else 0
            assert found[0].facts["field"] == f"mutations[{index}].{kind}.precondition"
            assert (found[0].facts["region"], found[0].facts["path"]) == (PRIVATE, path)
        if reason == "REVISION_MISMATCH":
            assert found[0].facts["exists"] == "false"
            assert (int(found[0].facts["actual_revision"]) == 0) == (state == "never")
        with refused("NOT_FOUND"):
            await each.get(f"beside-{place}", PRIVATE)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("belief", ["must_not_exist", "at"])
async def test_a_belief_about_an_entry_that_is_not_written_is_judged_alike(
    each: Agent, clock: SettableClock, belief: str, state: str
) -> None:
    revision = await bring_into(each, state, "read", clock, REGION)
    precondition = absent() if belief == "must_not_exist" else at(revision)
    request = commit_request(put("written"), preconditions=[("read", precondition)], request_id=new_id(clock.ms))
    if (belief == "at") == (state == "live"):
        await each.send(request)
        return
    with refused(
        "ALREADY_EXISTS" if belief == "must_not_exist" else "REVISION_MISMATCH", field="preconditions[0].precondition"
    ):
        await each.send(request)
    with refused("NOT_FOUND"):
        await each.get("written")


async def test_AB_01_create_if_absent_over_an_existing_entry_is_refused(each: Agent) -> None:
    first = await each.commit(put("e", "mine"))
    with refused("ALREADY_EXISTS", actual_revision=str(first.revision.number), winner_agent="writer-1") as found:
        await each.commit(put("e", "yours"))
    assert found[0].code is grpc.StatusCode.ALREADY_EXISTS
    assert (await each.get("e")).value.text == "mine"


@pytest.mark.parametrize(
    ("precondition", "reason", "field"),
    [
        (None, "PRECONDITION_REQUIRED", ""),
        (entry_pb2.Precondition(), "PRECONDITION_REQUIRED", ""),
        (entry_pb2.Precondition(at=entry_pb2.Revision()), "PRECONDITION_INVALID", ".at.number"),
        (entry_pb2.Precondition(at=entry_pb2.Revision(number=-1)), "PRECONDITION_INVALID", ".at.number"),
        (entry_pb2.Precondition(at=entry_pb2.Revision(number=1)), "TOKEN_INVALID", ".at.epoch"),
        (entry_pb2.Precondition(must_not_exist=False), "PRECONDITION_INVALID", ".must_not_exist"),
        (entry_pb2.Precondition(unconditional=False), "PRECONDITION_INVALID", ".unconditional"),
    ],
)
async def test_AB_02_RB_40_nothing_said_zero_and_false_are_never_any(
    each: Agent, precondition: entry_pb2.Precondition | None, reason: str, field: str
) -> None:
    """RB-40: unset, 0 and empty are told apart from "must not exist", and none of them overwrites."""
    await each.commit(put("e", "kept"))
    mutation = commit_pb2.Mutation(
        put=commit_pb2.Put(
            key=entry_pb2.EntryKey(region=REGION, path="e"),
            precondition=precondition,
            value=entry_pb2.Value(text="lost"),
        )
    )
    with refused(reason, field=f"mutations[0].put.precondition{field}") as found:
        await each.commit(mutation)
    assert found[0].fields == [f"mutations[0].put.precondition{field}"]
    with refused(reason, field=f"mutations[1].put.precondition{field}"):
        await each.commit(put("beside"), mutation)
    assert (await each.get("e")).value.text == "kept"


async def test_LU_01_of_many_writers_that_saw_one_state_one_wins_and_the_others_learn_who(
    on_any_store: Running,
) -> None:
    writers = [on_any_store.as_agent(f"writer-{number}") for number in range(20)]
    base = await writers[0].commit(put_json("e", []))
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def attempt(writer: Agent) -> commit_pb2.CommitResponse | grpc.aio.AioRpcError:
        try:
            request = commit_request(put_json("e", [writer.name], at(base)))
            return await writer.send(request, ("traceparent", trace))
        except grpc.aio.AioRpcError as error:
            return error

    answers = await asyncio.gather(*map(attempt, writers))
    won = [pair for pair in zip(writers, answers, strict=True) if isinstance(pair[1], commit_pb2.CommitResponse)]
    lost = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert (len(won), len(lost)) == (1, 19)
    winner, answer = won[0]
    assert isinstance(answer, commit_pb2.CommitResponse)
    act = (await winner.history("e"))[0].acts[0]
    for error in lost:
        refusal = refusal_of(error)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.ABORTED, "REVISION_MISMATCH")
        assert refusal.facts == {
            "field": "mutations[0].put.precondition",
            "region": REGION,
            "path": "e",
            "expected_revision": str(base.revision.number),
            "actual_revision": str(answer.revision.number),
            "epoch": base.revision.epoch,
            "exists": "true",
            "winner_agent": winner.name,
            "winner_request_id": act.request_id,
            "winner_time_ms": str(answer.commit_time.ToMilliseconds()),
            "winner_traceparent": trace,
        }


async def test_LU_01_writers_that_read_again_all_get_through(on_any_store: Running) -> None:
    writers = [on_any_store.as_agent(f"writer-{number}") for number in range(10)]
    await writers[0].commit(put("e", ""))

    async def contribute(writer: Agent) -> None:
        for _ in range(100):
            seen = await writer.get("e")
            try:
                await writer.commit(put("e", f"{seen.value.text} {writer.name}", at(seen)))
            except grpc.aio.AioRpcError as error:
                assert refusal_of(error).reason in {"REVISION_MISMATCH", "CONTENDED"}
            else:
                return
        raise AssertionError("starved")

    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(contribute(writer))
    text = (await writers[0].get("e")).value.text
    assert sorted(text.split()) == sorted(writer.name for writer in writers)


async def test_LU_05_a_write_on_a_stale_read_is_refused_with_what_is_current(each: Agent) -> None:
    stale = await each.commit(put("file", "v1"))
    current = await each.commit(put("file", "v2 of a colleague", at(stale)))
    with refused("REVISION_MISMATCH", actual_revision=str(current.revision.number)):
        await each.commit(put("file", "v1 with my line", at(stale)))
    assert (await each.get("file")).value.text == "v2 of a colleague"


async def test_LU_15_compaction_and_reads_leave_an_entrys_revision_alone(
    on_any_store: Running, clock: SettableClock
) -> None:
    agent = on_any_store.agent
    made = await agent.commit(put("quiet", "v1"))
    for number in range(20):
        await agent.commit(put(f"busy-{number}"))
    latest = (await agent.read("quiet")).token
    operator = on_any_store.as_agent("keeper", "operator")
    await operator.admin.Compact(admin_service_pb2.CompactRequest(before=latest), metadata=operator.metadata)
    await on_any_store.server._upkeep.sweep()
    assert (await agent.get("quiet")).revision == made.revision
    await agent.commit(put("quiet", "v2", at(made)))


async def test_LU_16_a_conflict_is_an_answer_and_not_a_fault_in_the_log(
    agent: Agent, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    made = await agent.commit(put("e"))
    await agent.commit(put("e", "y", at(made)))
    with caplog.at_level(logging.DEBUG):
        for _ in range(5):
            with refused("REVISION_MISMATCH"):
                await agent.commit(put("e", "z", at(made)))
            with refused("ALREADY_EXISTS"):
                await agent.commit(put("e"))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    written = "".join(capfd.readouterr())
    assert "Traceback" not in written
    assert "error" not in written.lower()


async def test_LU_21_overwriting_blindly_must_be_said_may_be_refused_and_is_recorded(each: Agent) -> None:
    with refused("PRECONDITION_REQUIRED", field="mutations[0].put.precondition"):
        await each.commit(put("e", "x", whatever()))
    with refused("PRECONDITION_REQUIRED"):
        await each.commit(delete("e", whatever()))
    await each.commit(put("mine", "1", region=PRIVATE))
    await each.commit(put("mine", "2", whatever(), PRIVATE))
    await each.commit(delete("mine", whatever(), PRIVATE))
    acts = [change.acts[0].unconditional for change in await each.history("mine", PRIVATE)]
    assert acts == [True, True, False]


@pytest.mark.parametrize("end", ["delete", "expire"])
async def test_LU_23_a_revision_never_comes_back_with_a_new_life(each: Agent, clock: SettableClock, end: str) -> None:
    """The ABA fault: delete or expiry resets the count, and a stale writer's number fits again."""
    old = await each.commit(put("e", "first life", ttl={"seconds": 2}))
    if end == "delete":
        await each.commit(delete("e", at(old)))
    else:
        clock.pass_ms(2_000)
    again = await each.commit(put("e", "second life"), request_id=new_id(clock.ms))
    assert again.revision.number > old.revision.number
    with refused("REVISION_MISMATCH", actual_revision=str(again.revision.number), exists="true"):
        await each.commit(put("e", "stale", at(old)), request_id=new_id(clock.ms))
    assert (await each.get("e")).create_revision == again.revision.number


async def test_LU_23_a_revision_never_comes_back_after_the_tombstone_was_swept(
    on_any_store: Running, clock: SettableClock
) -> None:
    agent = on_any_store.agent
    old = await agent.commit(put("e", "first life"))
    await agent.commit(delete("e", at(old)))
    clock.pass_ms(7 * 24 * 3_600_000)
    await on_any_store.server._upkeep.sweep()
    with refused("NOT_FOUND"):
        await agent.history("e")
    again = await agent.commit(put("e", "second life"), request_id=new_id(clock.ms))
    with refused("REVISION_MISMATCH", actual_revision=str(again.revision.number)):
        await agent.commit(put("e", "stale", at(old)), request_id=new_id(clock.ms))


async def test_LU_24_a_commit_of_several_holds_together_or_not_at_all(each: Agent) -> None:
    made = [await each.commit(put(f"part-{number}", "old")) for number in range(5)]
    moved = await each.commit(put("part-3", "moved", at(made[3])))
    everything = [put(f"part-{number}", "new", at(each_made)) for number, each_made in enumerate(made)]
    with refused("REVISION_MISMATCH", path="part-3", field="mutations[3].put.precondition"):
        await each.commit(*everything)
    texts = [(await each.get(f"part-{number}")).value.text for number in range(5)]
    assert texts == ["old", "old", "old", "moved", "old"]
    everything[3] = put("part-3", "new", at(moved))
    answer = await each.commit(*everything)
    entries = [await each.get(f"part-{number}") for number in range(5)]
    assert {entry.revision.number for entry in entries} == {answer.revision.number}
    assert {entry.value.text for entry in entries} == {"new"}


async def test_two_commits_on_each_others_reads_do_not_both_hold(on_any_store: Running) -> None:
    """Write skew: each reads both and writes one."""
    agent = on_any_store.agent
    for number in range(10):
        left, right = f"left-{number}", f"right-{number}"
        made = await agent.commit(put(left, "on call"), put(right, "on call"))
        requests = [
            commit_request(put(mine, "off", at(made)), preconditions=[(other, at(made))])
            for mine, other in itertools.permutations((left, right))
        ]
        answers = await asyncio.gather(*map(agent.send, requests), return_exceptions=True)
        refusals = [refusal_of(answer) for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
        assert [refusal.reason for refusal in refusals] == ["REVISION_MISMATCH"]
        assert refusals[0].facts["field"].startswith(("preconditions[0]", "mutations[0].put"))


async def test_a_belief_and_a_mutation_may_name_the_same_entry(each: Agent) -> None:
    made = await each.commit(put("e", "1"))
    await each.send(commit_request(put("e", "2", at(made)), preconditions=[("e", at(made))]))
    with refused("ALREADY_EXISTS", field="preconditions[0].precondition"):
        await each.send(commit_request(increment("n"), preconditions=[("e", absent())]))


async def test_a_revision_of_another_store_is_refused_instead_of_matching_by_accident(each: Agent) -> None:
    made = await each.commit(put("e", "1"))
    foreign = entry_pb2.Precondition(at=entry_pb2.Revision(number=made.revision.number, epoch="0123456789abcdef"))
    with refused("TOKEN_FROM_ANOTHER_STORE", field="mutations[0].put.precondition.at"):
        await each.commit(put("e", "2", foreign))
    with refused("TOKEN_FROM_ANOTHER_STORE", field="mutations[1].merge_patch.precondition.at"):
        await each.commit(put("f"), merge("e", "{}", foreign))
    with refused("TOKEN_FROM_ANOTHER_STORE", field="preconditions[0].precondition.at"):
        await each.send(commit_request(put("f"), preconditions=[("e", foreign)]))


async def test_ID_08_concurrent_first_writes_of_one_key_make_one_entry(on_any_store: Running) -> None:
    """ID-03 too: there is one active state of an entry, whoever writes."""
    writers = [on_any_store.as_agent(f"writer-{number}") for number in range(20)]
    answers = await asyncio.gather(
        *(writer.commit(put("e", writer.name)) for writer in writers), return_exceptions=True
    )
    held = [answer for answer in answers if isinstance(answer, commit_pb2.CommitResponse)]
    reasons = [refusal_of(answer).reason for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert len(held) == 1
    assert reasons == ["ALREADY_EXISTS"] * 19
    assert await writers[0].paths() == ["e"]
    assert len(await writers[0].history("e")) == 1
