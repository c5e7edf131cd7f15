"""Bad input to every method: the right code, the right reason, the right field, and never a fault of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor import FieldDescriptor

from kokuban.v1 import (
    admin_service_pb2,
    audit_pb2,
    board_service_pb2,
    commit_pb2,
    conflict_pb2,
    conflict_service_pb2,
    entry_pb2,
    error_reason_pb2,
    examination_pb2,
    lock_pb2,
    lock_service_pb2,
    policy_pb2,
    session_service_pb2,
    task_pb2,
    task_service_pb2,
    trust_pb2,
    trust_service_pb2,
)
from kokuban_server.core import limits, names
from kokuban_server.core.revision import encode_token
from kokuban_server.wire.free_texts import texts_of, words_of
from kokuban_server.wire.status import CODE_BY_REASON
from tests.wire.calls import (
    REGION,
    Agent,
    Refused,
    absent,
    acquire_request,
    is_lost_status,
    key,
    lasting,
    leaf,
    new_id,
    put,
    put_json,
    refusal_of,
    refused,
    release,
    rule,
    tree,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.message import Message

    from tests.wire.conftest import Running

    Row: TypeAlias = tuple[str, Callable[[Any], None], str, str, dict[str, str]]
    """What is changed, how, and the reason, the field and the facts that it is refused with."""

BOARD, ADMIN = "/kokuban.v1.BoardService/", "/kokuban.v1.AdminService/"
TRUST = "/kokuban.v1.TrustService/"
CONFLICTS = "/kokuban.v1.ConflictService/"
TASKS = "/kokuban.v1.TaskService/"
SESSIONS, LOCKS = "/kokuban.v1.SessionService/", "/kokuban.v1.LockService/"
TOKEN = encode_token("0123456789abcdef", 1)
FOREIGN = "0123456789abcdef"
"""The epoch of no store here."""
TRUE_AT = entry_pb2.Precondition(at=entry_pb2.Revision(number=1, epoch=FOREIGN))
NAME = "0123456789abcdef" * 2
"""Of no session and no lock."""


def fence(lock_id: str = NAME) -> lock_pb2.Fence:
    return lock_pb2.Fence(lock_id=lock_id, revision=1, epoch=FOREIGN)


def full_provenance() -> entry_pb2.Provenance:
    """A provenance with every field in it."""
    source = trust_pb2.DeclaredSource(
        kind=trust_pb2.SOURCE_KIND_TOOL, uri="https://x.example", name="search", content_sha256="ab" * 32
    )
    source.fetch_time.FromMilliseconds(1)
    return entry_pb2.Provenance(source=source, derived_from=[entry_pb2.EntryAt(key=key("d"), at=TRUE_AT.at)])


def full_commit() -> commit_pb2.CommitRequest:
    """A commit with every field and every kind of mutation in it."""
    whole = commit_pb2.Put(key=key("p"), precondition=absent(), value=entry_pb2.Value(text="x"), metadata={"a": "b"})
    whole.update_mask.paths.append("*")
    whole.ttl.seconds = 10
    whole.provenance.CopyFrom(full_provenance())
    binary = entry_pb2.Value(binary=entry_pb2.BinaryValue(data=b"x", media_type="image/png"))
    return commit_pb2.CommitRequest(
        board="main",
        request_id=new_id(),
        preconditions=[commit_pb2.EntryPrecondition(key=key("b"), precondition=TRUE_AT)],
        mutations=[
            commit_pb2.Mutation(put=whole),
            commit_pb2.Mutation(delete=commit_pb2.Delete(key=key("d"), precondition=TRUE_AT)),
            commit_pb2.Mutation(increment=commit_pb2.Increment(key=key("i"), by=1)),
            commit_pb2.Mutation(append_to_list=commit_pb2.AppendToList(key=key("l"), items=["1"])),
            commit_pb2.Mutation(add_to_set=commit_pb2.AddToSet(key=key("s"), items=["1"])),
            commit_pb2.Mutation(merge_patch=commit_pb2.MergePatch(key=key("m"), precondition=TRUE_AT, patch="{}")),
            put("v", binary),
            put_json("j", "{}"),
            release(fence("f" * 32)),
            *task_mutations(),
        ],
        reason="why",
        retry_of=new_id(),
        fences=[fence()],
        session=NAME,
    )


def full_step() -> task_pb2.NewStep:
    """A new step with every field in it."""
    terms = task_pb2.StepTerms(depends_on=["s1"], labels=["web"], priority=1, attempts_max=2, back_off=lasting(1))
    return task_pb2.NewStep(step="s2", terms=terms, input=entry_pb2.Value(text="do"), provenance=full_provenance())


def task_mutations() -> list[commit_pb2.Mutation]:
    """Every mutation of tasks, with every field in it that goes together."""
    text = entry_pb2.Value(text="x")
    appended: dict[str, Any] = {
        "task": "t1",
        "data": text,
        "error": "e",
        "snapshot": "t",
        "provenance": full_provenance(),
    }
    started = task_pb2.AppendEvent(
        step="s1",
        type=task_pb2.EVENT_TYPE_ACTION_STARTED,
        id="mail:1",
        if_in_doubt=task_pb2.IN_DOUBT_POLICY_ASK,
        usage=task_pb2.TokenUsage(input_tokens=1, output_tokens=2),
        **appended,
    )
    note = task_pb2.AppendEvent(type=task_pb2.EVENT_TYPE_NOTE, name="finding", **appended)
    return [
        commit_pb2.Mutation(
            create_task=task_pb2.CreateTask(
                task="t1",
                goal=text,
                config_policy=task_pb2.CONFIG_POLICY_REFUSE,
                provenance=full_provenance(),
            )
        ),
        commit_pb2.Mutation(add_step=task_pb2.AddStep(task="t1", step=full_step())),
        commit_pb2.Mutation(append_event=started),
        commit_pb2.Mutation(append_event=note),
        commit_pb2.Mutation(
            save_checkpoint=task_pb2.SaveCheckpoint(
                task="t1", step="s1", state=text, config_fingerprint="v1", provenance=full_provenance()
            )
        ),
        commit_pb2.Mutation(
            complete_step=task_pb2.CompleteStep(
                task="t1",
                step="s1",
                outcome=task_pb2.STEP_OUTCOME_FAILED,
                result=text,
                error="e",
                provenance=full_provenance(),
            )
        ),
        commit_pb2.Mutation(cancel_task=task_pb2.CancelTask(task="t1", reason="why")),
        commit_pb2.Mutation(
            append_event=task_pb2.AppendEvent(
                type=task_pb2.EVENT_TYPE_SUBTASK_LESSON, name="lesson", subtask="u1", **appended
            )
        ),
        commit_pb2.Mutation(
            save_checkpoint=task_pb2.SaveCheckpoint(
                task="t1", subtask="u1", state=text, config_fingerprint="v1", provenance=full_provenance()
            )
        ),
        commit_pb2.Mutation(
            open_subtask=task_pb2.OpenSubtask(
                task="t1", subtask="u1", step="s1", goal=text, provenance=full_provenance()
            )
        ),
        commit_pb2.Mutation(
            complete_subtask=task_pb2.CompleteSubtask(
                task="t1", subtask="u1", summary=text, notes_ttl=lasting(60), provenance=full_provenance()
            )
        ),
        commit_pb2.Mutation(
            revive_step=task_pb2.ReviveStep(task="t1", step="s1", attempts=2, reason="the page is back")
        ),
    ]


_TRUSTING: dict[str, Any] = {"floor": trust_pb2.TRUST_LEVEL_EXTERNAL, "session": NAME}


def fresh(name: str = "strong") -> entry_pb2.ReadConsistency:
    return entry_pb2.ReadConsistency(**{name: TOKEN if name in {"at_least", "snapshot"} else True})  # type: ignore[arg-type]  # by name


def wanted_conflicts() -> conflict_pb2.ConflictFilter:
    return conflict_pb2.ConflictFilter(
        region=REGION,
        path="e",
        agent="writer-1",
        reason=error_reason_pb2.ERROR_REASON_DEADLOCK,
        begin_time=timestamp_pb2.Timestamp(seconds=1),
        end_time=timestamp_pb2.Timestamp(seconds=2),
    )


NO_REMOVAL = f"{'0' * 15}-{'0' * 16}"
FULL: dict[str, Callable[[], Message]] = {
    BOARD + "Commit": full_commit,
    BOARD + "CommitStream": lambda: commit_pb2.CommitStreamRequest(commit=full_commit()),
    BOARD + "GetEntry": lambda: board_service_pb2.GetEntryRequest(
        board="main", key=key("e"), consistency=fresh("at_least"), **_TRUSTING
    ),
    BOARD + "BatchGetEntries": lambda: board_service_pb2.BatchGetEntriesRequest(
        board="main",
        keys=[key("e"), key("f")],
        consistency=fresh("snapshot"),
        prompt=board_service_pb2.PromptOptions(per_source_max=1),
        **_TRUSTING,
    ),
    BOARD + "ListEntries": lambda: board_service_pb2.ListEntriesRequest(
        board="main",
        region=REGION,
        path="e",
        page_size=1,
        page_token="x",  # noqa: S106 - no password
        consistency=fresh("at_least"),
        prompt=board_service_pb2.PromptOptions(per_source_max=1),
        **_TRUSTING,
    ),
    BOARD + "ListRevisions": lambda: board_service_pb2.ListRevisionsRequest(
        board="main",
        key=key("e"),
        page_size=1,
        page_token="x",  # noqa: S106 - no password
        **_TRUSTING,
    ),
    BOARD + "Watch": lambda: board_service_pb2.WatchRequest(
        board="main", targets=[board_service_pb2.WatchTarget(region=REGION, path="e")], after=TOKEN
    ),
    BOARD + "CheckCurrent": lambda: board_service_pb2.CheckCurrentRequest(
        board="main", entries=[entry_pb2.EntryAt(key=key("e"), at=TRUE_AT.at)], fences=[fence()]
    ),
    SESSIONS + "OpenSession": lambda: session_service_pb2.OpenSessionRequest(
        board="main", request_id=new_id(), ttl=lasting(10), label="label"
    ),
    SESSIONS + "KeepAlive": lambda: session_service_pb2.KeepAliveRequest(board="main", session_id=NAME),
    SESSIONS + "CloseSession": lambda: session_service_pb2.CloseSessionRequest(board="main", session_id=NAME),
    SESSIONS + "ListSessions": lambda: session_service_pb2.ListSessionsRequest(
        board="main",
        page_size=1,
        page_token="x",  # noqa: S106 - no password
    ),
    LOCKS + "AcquireLock": lambda: acquire_request(
        NAME, "e", tree("t"), wait_s=1, hold_s=10, delay_s=1, retry_of=new_id()
    ),
    LOCKS + "ClaimEntry": lambda: lock_service_pb2.ClaimEntryRequest(
        board="main",
        session_id=NAME,
        request_id=new_id(),
        candidates=[key("e"), key("f")],
        scope=lock_pb2.LOCK_SCOPE_ENTRY,
        purpose="to test",
        hold_max=lasting(10),
        lock_delay=lasting(1),
        retry_of=new_id(),
    ),
    LOCKS + "DowngradeLock": lambda: lock_service_pb2.DowngradeLockRequest(board="main", fence=fence()),
    LOCKS + "ReleaseLock": lambda: lock_service_pb2.ReleaseLockRequest(board="main", fence=fence()),
    LOCKS + "ListLocks": lambda: lock_service_pb2.ListLocksRequest(
        board="main",
        region=REGION,
        path="e",
        page_size=1,
        page_token="x",  # noqa: S106 - no password
    ),
    LOCKS + "BreakLock": lambda: lock_service_pb2.BreakLockRequest(
        board="main", lock_id=NAME, reason="why", skip_lock_delay=True
    ),
    TASKS + "CreateTask": lambda: task_service_pb2.CreateTaskRequest(
        board="main",
        request_id=new_id(),
        task=task_mutations()[0].create_task,
        steps=[full_step()],
        session=NAME,
    ),
    TASKS + "GetTask": lambda: task_service_pb2.GetTaskRequest(board="main", task="t1"),
    TASKS + "ListTasks": lambda: task_service_pb2.ListTasksRequest(
        board="main",
        page_size=1,
        page_token="x",  # noqa: S106 - no password
    ),
    TASKS + "ListEvents": lambda: task_service_pb2.ListEventsRequest(
        board="main",
        task="t1",
        after_event=1,
        page_size=1,
        page_token="x",  # noqa: S106 - no password
        **_TRUSTING,
    ),
    TASKS + "ClaimNextStep": lambda: task_service_pb2.ClaimNextStepRequest(
        board="main",
        session_id=NAME,
        request_id=new_id(),
        task="t1",
        labels=["web"],
        purpose="to test",
        hold_max=lasting(10),
        lock_delay=lasting(1),
        config_fingerprint="v1",
    ),
    TASKS + "WaitForTask": lambda: task_service_pb2.WaitForTaskRequest(
        board="main",
        session_id=NAME,
        request_id=new_id(),
        task="t1",
        part="s1",
        wait=lasting(5),
    ),
    TASKS + "ResumeTask": lambda: task_service_pb2.ResumeTaskRequest(
        board="main",
        request_id=new_id(),
        task="t1",
        answers=[
            task_service_pb2.InterruptAnswer(id="a", answer=entry_pb2.Value(text="b"), provenance=full_provenance())
        ],
        session=NAME,
    ),
    TASKS + "CancelTask": lambda: task_service_pb2.CancelTaskRequest(
        board="main", request_id=new_id(), task=task_pb2.CancelTask(task="t1", reason="why")
    ),
    TASKS + "ExportTask": lambda: task_service_pb2.ExportTaskRequest(
        board="main",
        task="t1",
        page_token="x",  # noqa: S106 - no password
    ),
    TASKS + "ArchiveTask": lambda: task_service_pb2.ArchiveTaskRequest(
        board="main", request_id=new_id(), task="t1", digest="0" * 64
    ),
    TASKS + "RestoreTask": lambda: task_service_pb2.RestoreTaskRequest(
        board="main", request_id=new_id(), task="t1", digest="0" * 64, lines=["{}"]
    ),
    CONFLICTS + "ListConflicts": lambda: conflict_service_pb2.ListConflictsRequest(
        board="main",
        filter=wanted_conflicts(),
        page_size=1,
        page_token="x",  # noqa: S106 - no password
    ),
    CONFLICTS + "WatchConflicts": lambda: conflict_service_pb2.WatchConflictsRequest(
        board="main", filter=wanted_conflicts(), after=TOKEN
    ),
    CONFLICTS + "SummarizeConflicts": lambda: conflict_service_pb2.SummarizeConflictsRequest(
        board="main", filter=wanted_conflicts(), top=1
    ),
    ADMIN + "GetStatus": admin_service_pb2.GetStatusRequest,
    ADMIN + "CreateBoard": lambda: admin_service_pb2.CreateBoardRequest(board="main"),
    ADMIN + "ListBoards": lambda: admin_service_pb2.ListBoardsRequest(page_size=1, page_token="x"),  # noqa: S106 - no password
    ADMIN + "GetBoard": lambda: admin_service_pb2.GetBoardRequest(board="main"),
    ADMIN + "DeleteBoard": lambda: admin_service_pb2.DeleteBoardRequest(board="main", reason="over"),
    ADMIN + "GetPolicy": lambda: admin_service_pb2.GetPolicyRequest(board="main"),
    ADMIN + "SetPolicy": lambda: admin_service_pb2.SetPolicyRequest(
        board="main",
        policy=policy_pb2.Policy(
            rules=[
                rule(
                    "task:*",
                    readers=["anyone"],
                    writers=["agent:a"],
                    lockers=["role:operator"],
                    allows_unconditional=False,
                    lock_requirement=policy_pb2.LOCK_REQUIREMENT_OFF,
                    history_revisions_max=5,
                    history_age_max=lasting(60),
                    default_ttl=lasting(60),
                    read_floor=trust_pb2.TRUST_LEVEL_USER,
                    taint_mode=policy_pb2.TAINT_MODE_ENFORCE,
                    allows_lowering=True,
                    screening=trust_pb2.SCREENING_PROFILE_FULL,
                    stale_screening=trust_pb2.STALE_SCREENING_WITHHOLD,
                    without_verdict=trust_pb2.WITHOUT_VERDICT_HOLD,
                    revealers=["role:auditor"],
                )
            ],
            tools=[
                policy_pb2.ToolRule(
                    name="search",
                    trust=trust_pb2.TRUST_LEVEL_AGENT,
                    screening=trust_pb2.SCREENING_PROFILE_OFF,
                    stale_screening=trust_pb2.STALE_SCREENING_RETURN,
                )
            ],
            administrators=policy_pb2.Subjects(subjects=["anyone"]),
        ),
        replaces=1,
        reason="why",
    ),
    ADMIN + "ExplainAccess": lambda: admin_service_pb2.ExplainAccessRequest(
        board="main", region=REGION, verb=policy_pb2.VERB_READ
    ),
    ADMIN + "Compact": lambda: admin_service_pb2.CompactRequest(before=TOKEN),
    ADMIN + "ListAuditRecords": lambda: audit_pb2.ListAuditRecordsRequest(
        filter=audit_pb2.AuditFilter(
            board="main",
            agent="writer-1",
            act="lock.break",
            begin_time=timestamp_pb2.Timestamp(seconds=1),
            end_time=timestamp_pb2.Timestamp(seconds=2),
        ),
        page_size=1,
        page_token="x",  # noqa: S106 - no password
    ),
    ADMIN + "VerifyAudit": lambda: audit_pb2.VerifyAuditRequest(anchor_hash="0" * 64),
    ADMIN + "ExamineStore": lambda: examination_pb2.ExamineStoreRequest(repair=True, page_token="x"),  # noqa: S106 - no password
    TRUST + "Endorse": lambda: trust_service_pb2.EndorseRequest(
        board="main",
        key=key("e"),
        at=TRUE_AT.at,
        trust=trust_pb2.TRUST_LEVEL_USER,
        reason="why",
        request_id=new_id(),
        fences=[fence()],
    ),
    TRUST + "ListQuarantine": lambda: trust_service_pb2.ListQuarantineRequest(
        board="main",
        state=trust_service_pb2.QUARANTINE_STATE_WAITING,
        sent_by="writer-1",
        uri="https://x.example",
        show_texts=True,
        page_size=1,
        page_token="x",  # noqa: S106 - no password
    ),
    TRUST + "ReviewQuarantine": lambda: trust_service_pb2.ReviewQuarantineRequest(
        board="main",
        ids=[f"{'0' * 15}-{'0' * 32}"],
        decision=trust_service_pb2.QUARANTINE_DECISION_REJECT,
        reason="why",
    ),
    TRUST + "ScreenText": lambda: trust_service_pb2.ScreenTextRequest(
        board="main",
        text="text",
        source=trust_pb2.DeclaredSource(kind=trust_pb2.SOURCE_KIND_EXTERNAL, uri="https://x.example"),
        show_views=True,
    ),
    TRUST + "RedactText": lambda: trust_service_pb2.RedactTextRequest(
        board="main", text="[1]", json=True, network_addresses=True
    ),
    TRUST + "RevealEntry": lambda: trust_service_pb2.RevealEntryRequest(
        board="main", key=key("e"), at=TRUE_AT.at, **_TRUSTING
    ),
    TRUST + "TraceProvenance": lambda: trust_service_pb2.TraceProvenanceRequest(
        board="main",
        key=key("e"),
        at=TRUE_AT.at,
        direction=trust_service_pb2.PROVENANCE_DIRECTION_DESCENDANTS,
        max_depth=1,
        max_states=1,
    ),
    TRUST + "PurgeSource": lambda: trust_service_pb2.PurgeSourceRequest(
        board="main",
        selector=trust_service_pb2.SourceSelector(
            uri="https://x.example",
            uri_pattern="https://*",
            content_sha256="0" * 64,
            agent="writer-1",
            session="0" * 32,
            from_time=timestamp_pb2.Timestamp(seconds=1),
            before_time=timestamp_pb2.Timestamp(seconds=2),
        ),
        reason="why",
        allows_reingest=True,
    ),
    TRUST + "EraseSubject": lambda: trust_service_pb2.EraseSubjectRequest(
        board="main", user="u1", reason="why", allows_reingest=True
    ),
    TRUST + "GetRemoval": lambda: trust_service_pb2.GetRemovalRequest(board="main", id=NO_REMOVAL),
    TRUST + "ListRemovals": lambda: trust_service_pb2.ListRemovalsRequest(
        board="main",
        page_size=1,
        page_token="x",  # noqa: S106 - no password
    ),
}
"""Every method, with a request in which every field is filled in."""


_NOTHING_REQUIRED = {
    ADMIN + "GetStatus",
    ADMIN + "ListBoards",
    ADMIN + "ListAuditRecords",
    ADMIN + "VerifyAudit",
    ADMIN + "ExamineStore",
}


async def call(agent: Agent, method: str, raw: bytes, metadata: Any = None) -> Refused | None:  # noqa: ANN401 - any message, or any field of one
    """Send bytes to a method; give the refusal, or nothing if there was none."""
    while True:
        try:
            return await _call_once(agent, method, raw, metadata)
        except grpc.aio.AioRpcError as error:
            if not is_lost_status(error):
                return refusal_of(error)


async def _call_once(agent: Agent, method: str, raw: bytes, metadata: Any) -> Refused | None:  # noqa: ANN401 - as above
    metadata = agent.metadata if metadata is None else metadata
    channel: Any = agent.channel  # bytes in, bytes out: no type of the stubs fits

    async def once() -> Any:  # noqa: ANN401 - any message, or any field of one
        yield raw

    if method.endswith("/CommitStream"):
        stream: Any = channel.stream_stream(method)(once(), metadata=metadata)
        answer = await stream.read()
        if answer is grpc.aio.EOF:
            return None
        response = commit_pb2.CommitStreamResponse.FromString(answer)
        if response.WhichOneof("result") != "refused":
            return None
        told = response.refused
        reason = error_reason_pb2.ErrorReason.Name(told.reason).removeprefix("ERROR_REASON_")
        code = next(code for code in grpc.StatusCode if code.value[0] == told.code)
        field = told.metadata.get("field")
        return Refused(code, reason, dict(told.metadata), told.message, [field] if field else [], None)
    if method.endswith(("/KeepAlive", "/Watch", "/WatchConflicts", "/AcquireLock", "/WaitForTask")):
        many = method.endswith("/KeepAlive")
        listening: Any = (channel.stream_stream if many else channel.unary_stream)(method)(
            once() if many else raw, metadata=metadata
        )
        await listening.read()
        listening.cancel()
        return None
    await channel.unary_unary(method)(raw, metadata=metadata, timeout=10)
    return None


def check(refusal: Refused | None, reason: str, field: str | None, **facts: str) -> None:
    assert refusal is not None
    assert (refusal.reason, refusal.facts.get("field")) == (reason, field), refusal
    assert refusal.code is CODE_BY_REASON[reason]
    if field is not None and refusal.code is grpc.StatusCode.INVALID_ARGUMENT and field:
        assert refusal.fields == [field]
    assert {name: refusal.facts.get(name) for name in facts} == facts


# Broken bytes.


def strings_of(message: Message) -> Iterator[tuple[Message, FieldDescriptor, int | None]]:
    """Give every string field that is filled in, at any depth."""
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        for index, item in enumerate(value) if field.is_repeated else ((None, value),):
            if field.type == FieldDescriptor.TYPE_STRING:
                yield message, field, index
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                yield from strings_of(item)


def broken_texts(method: str) -> list[bytes]:
    """Give the method's request once for each of its texts, with half of a surrogate pair in that text."""
    made = []
    count = len(list(strings_of(FULL[method]())))
    for place in range(count):
        message = FULL[method]()
        owner, field, index = list(strings_of(message))[place]
        if index is None:
            setattr(owner, field.name, "LONESURR")
        else:
            getattr(owner, field.name)[index] = "LONESURR"
        made.append(message.SerializeToString().replace(b"LONESURR", b"a\xed\xa0\x80b\xed\xbf\xbf"))
    return made


@pytest.mark.parametrize("method", FULL)
async def test_text_that_is_not_UTF_8_is_malformed_wherever_it_stands(agent: Agent, method: str) -> None:
    texts = broken_texts(method)
    assert texts or method.endswith("GetStatus")
    for raw in texts:
        check(await call(agent, method, raw), "MALFORMED_REQUEST", "")
    assert await agent.paths() == []


@pytest.mark.parametrize("method", FULL)
@pytest.mark.parametrize(
    "raw", [b"\xff", b"\x0a", b"\x0a\x05ab", b"\x0a\xff\xff\xff\xff\x7f", b"\x08", b"\x0b", b"\x07", bytes(range(256))]
)
async def test_bytes_that_are_no_message_are_malformed(agent: Agent, method: str, raw: bytes) -> None:
    refusal = await call(agent, method, raw)
    if method.endswith("GetStatus") and refusal is None:
        return  # a message without fields takes what can be skipped
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", FULL)
async def test_a_field_of_another_wire_type_counts_as_not_given(agent: Agent, method: str) -> None:
    """Field 1, a text or message nearly everywhere, as a number: protobuf keeps it apart as unknown."""
    if method in _NOTHING_REQUIRED:
        return
    refusal = await call(agent, method, b"\x08\x01")
    field = {BOARD + "CommitStream": "board", ADMIN + "Compact": "before"}.get(method, "board")
    check(refusal, "FIELD_REQUIRED", field)


@pytest.mark.parametrize("method", FULL)
async def test_an_empty_message_names_the_first_field_it_lacks(agent: Agent, method: str) -> None:
    refusal = await call(agent, method, b"")
    if method in _NOTHING_REQUIRED:
        assert refusal is None or refusal.reason == "ROLE_REQUIRED"
    else:
        check(refusal, "FIELD_REQUIRED", "before" if method.endswith("Compact") else "board")


@pytest.mark.parametrize("method", FULL)
async def test_unknown_fields_are_passed_over(agent: Agent, method: str) -> None:
    """A newer client may send more than this server knows."""
    message = FULL[method]()
    plain = await call(agent, method, message.SerializeToString())
    if method.endswith("OpenSession"):
        message = FULL[method]()  # one id is for one request, whatever of it is understood
    raw = message.SerializeToString() + b"\xfa\xff\x03\x03abc" + b"\x80\xf8\x03\x01"
    more = await call(agent, method, raw)
    if plain is None or more is None:
        assert plain == more
    else:
        assert (plain.reason, plain.facts.get("field")) == (more.reason, more.facts.get("field"))


@pytest.mark.parametrize("method", FULL)
async def test_a_message_of_more_than_1_MiB_is_refused(agent: Agent, method: str) -> None:
    filler = limits.REQUEST_BYTES_MAX + 1 - 5
    raw = b"\xfa\x3f" + _varint(filler) + b"x" * filler
    refusal = await call(agent, method, raw)
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    fits = limits.REQUEST_BYTES_MAX - 5
    raw = b"\xfa\x3f" + _varint(fits) + b"x" * fits
    assert len(raw) == limits.REQUEST_BYTES_MAX
    refusal = await call(agent, method, raw)
    assert refusal is None or refusal.reason in {"FIELD_REQUIRED", "ROLE_REQUIRED"}


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


async def test_deeply_nested_bytes_are_malformed(agent: Agent) -> None:
    """Groups within groups in an unknown field: the parser's own bound, and no crash."""
    for method in FULL:
        check(await call(agent, method, b"\xa3\x06" * 10_000 + b"\xa4\x06" * 10_000), "MALFORMED_REQUEST", "")


# Each field.

BAD_BOARDS = [
    ("", "FIELD_REQUIRED"),
    *[(text, "FIELD_INVALID") for text in ("Main", "-a", "a-", "a/b", "a\x00", "é", "a" * 64, "a b", "x" * 100_000)],
]
BAD_REGIONS = [
    ("", "REGION_REQUIRED"),
    *[
        (text, "REGION_INVALID")
        for text in (
            "shared",
            "shared:",
            "other:x",
            "*",
            "shared:*/",
            "shared:a/b",
            "shared:a\x00",
            "shared:e\u0301",
            "tenant:",
            "tenant:x",
            "Shared:a",
            "shared:" + "a" * 257,
            "x" * 100_000,
            "shared:\u2028",
        )
    ],
]
BAD_PATHS = [
    ("", "PATH_REQUIRED"),
    *[
        (text, "PATH_INVALID")
        for text in ("/", "a/", "/a", "a//b", ".", "..", "a/../b", "a/.", "a\x00b", "a\nb", "e\u0301", "\x7f", "\u2029")
    ],
    ("a" * 1025, "PATH_TOO_LONG"),
    ("é" * 513, "PATH_TOO_LONG"),
    ("/".join("a" * 17), "PATH_TOO_DEEP"),
    ("a" * 500_000, "PATH_TOO_LONG"),
]
KEYS: dict[str, list[tuple[str, Callable[[Any], Any]]]] = {
    BOARD + "GetEntry": [("key", lambda message: message.key)],
    BOARD + "ListRevisions": [("key", lambda message: message.key)],
    TRUST + "RevealEntry": [("key", lambda message: message.key)],
    BOARD + "BatchGetEntries": [("keys[1]", lambda message: message.keys[1])],
    BOARD + "CheckCurrent": [("entries[0].key", lambda message: message.entries[0].key)],
    LOCKS + "ClaimEntry": [("candidates[1]", lambda message: message.candidates[1])],
    BOARD + "Commit": [
        *[
            (
                f"mutations[{place}].{kind}.key",
                lambda message, place=place, kind=kind: getattr(message.mutations[place], kind).key,
            )
            for place, kind in enumerate(["put", "delete", "increment", "append_to_list", "add_to_set", "merge_patch"])
        ],
        ("preconditions[0].key", lambda message: message.preconditions[0].key),
    ],
}


@pytest.mark.parametrize("method", [method for method in FULL if not method.startswith(ADMIN)])
async def test_every_method_wants_a_well_formed_board(agent: Agent, method: str) -> None:
    for board, reason in BAD_BOARDS:
        message: Any = FULL[method]()
        (message.commit if method.endswith("CommitStream") else message).board = board
        check(await call(agent, method, message.SerializeToString()), reason, "board")


@pytest.mark.parametrize("method", KEYS)
async def test_every_entry_key_wants_a_region_and_a_path(agent: Agent, method: str) -> None:
    for field, find in KEYS[method]:
        for part, table in (("region", BAD_REGIONS), ("path", BAD_PATHS)):
            for text, reason in table:
                message: Any = FULL[method]()
                setattr(find(message), part, text)
                facts = {}
                if reason == "PATH_TOO_LONG":
                    facts = {"limit": "1024", "actual": str(len(text.encode()))}
                if reason == "PATH_TOO_DEEP":
                    facts = {"limit": "16", "actual": "17"}
                check(await call(agent, method, message.SerializeToString()), reason, f"{field}.{part}", **facts)
        message = FULL[method]()
        find(message).Clear()
        check(await call(agent, method, message.SerializeToString()), "REGION_REQUIRED", f"{field}.region")


@pytest.mark.parametrize("method", [LOCKS + "AcquireLock", LOCKS + "ClaimEntry"])
async def test_a_request_for_a_lock_replaces_one_with_an_id(agent: Agent, method: str) -> None:
    for text in BAD_IDS:
        asking: Any = FULL[method]()
        asking.retry_of = text
        check(await call(agent, method, asking.SerializeToString()), "FIELD_INVALID", "retry_of")


async def test_the_places_that_take_a_region_and_perhaps_a_path(agent: Agent) -> None:
    for text, reason in BAD_REGIONS:
        listing: Any = FULL[BOARD + "ListEntries"]()
        listing.region = text
        check(await call(agent, BOARD + "ListEntries", listing.SerializeToString()), reason, "region")
        watch: Any = FULL[BOARD + "Watch"]()
        watch.targets[0].region = text
        check(await call(agent, BOARD + "Watch", watch.SerializeToString()), reason, "targets[0].region")
        locks: Any = FULL[LOCKS + "ListLocks"]()
        locks.region = text
        check(await call(agent, LOCKS + "ListLocks", locks.SerializeToString()), reason, "region")
        for place in range(2):
            asking: Any = FULL[LOCKS + "AcquireLock"]()
            asking.targets[place].region = text
            field = f"targets[{place}].region"
            check(await call(agent, LOCKS + "AcquireLock", asking.SerializeToString()), reason, field)
    for text, reason in BAD_PATHS[1:]:
        listing = FULL[BOARD + "ListEntries"]()
        listing.path = text
        check(await call(agent, BOARD + "ListEntries", listing.SerializeToString()), reason, "path")
        watch = FULL[BOARD + "Watch"]()
        watch.targets[0].path = text
        check(await call(agent, BOARD + "Watch", watch.SerializeToString()), reason, "targets[0].path")
        locks = FULL[LOCKS + "ListLocks"]()
        locks.path = text
        check(await call(agent, LOCKS + "ListLocks", locks.SerializeToString()), reason, "path")
        for place in range(2):
            asking = FULL[LOCKS + "AcquireLock"]()
            asking.targets[place].path = text
            field = f"targets[{place}].path"
            check(await call(agent, LOCKS + "AcquireLock", asking.SerializeToString()), reason, field)
    asking = FULL[LOCKS + "AcquireLock"]()
    asking.targets[0].path = ""
    check(await call(agent, LOCKS + "AcquireLock", asking.SerializeToString()), "PATH_REQUIRED", "targets[0].path")


def _set(path: str, value: object) -> Callable[[Any], None]:
    """Give a change of one field, named as a refusal would name it."""

    def change(message: Any) -> None:  # noqa: ANN401 - any message, or any field of one
        *parents, last = path.split(".")
        for part in parents:
            name, _, index = part.partition("[")
            message = getattr(message, name)
            if index:
                message = message[int(index.rstrip("]"))]
        if value is None:
            message.ClearField(last)
        elif isinstance(value, list):
            del getattr(message, last)[:]
            getattr(message, last).extend(value)
        elif isinstance(value, dict):
            getattr(message, last).clear()
            getattr(message, last).update(value)
        else:
            setattr(message, last, value)

    return change


def _all(*changes: Callable[[Any], None]) -> Callable[[Any], None]:
    def change(message: Any) -> None:  # noqa: ANN401 - any message, or any field of one
        for each in changes:
            each(message)

    return change


def _alone(message: Any) -> None:  # noqa: ANN401 - any message, or any field of one
    """Leave the put alone: what is judged last is not hidden by foreign revisions beside it."""
    del message.mutations[1:]
    message.mutations[0].put.ClearField("provenance")
    del message.preconditions[:]
    del message.fences[:]
    message.session = ""


def _raw(path: str, raw: bytes) -> Callable[[Any], None]:
    """Give a change that leaves a message with nothing but an unknown field in it."""

    def change(message: Any) -> None:  # noqa: ANN401 - any message, or any field of one
        for part in path.split("."):
            name, _, index = part.partition("[")
            message = getattr(message, name)
            if index:
                message = message[int(index.rstrip("]"))]
        message.Clear()
        message.MergeFromString(raw)

    return change


UNKNOWN_BRANCH = b"\xa2\x06\x02\x08\x01"  # field 100, a message
PUT = "mutations[0].put"
BIG = "x" * (limits.VALUE_BYTES_MAX + 1)
ID = "01890a5d-ac96-774b-bcce-b302099a8057"
BAD_IDS = [
    ID.upper(),
    ID[:-1],
    ID + "0",
    "{" + ID + "}",
    ID.replace("-", ""),
    ID.replace("774b", "474b"),
    ID.replace("bcce", "ccce"),
    "x",
    " " + ID,
    ID + "\n",
    "0" * 36,
    "\x00",
]

RELEASE = "mutations[8].release_lock.fence"
BAD_NAMES = [
    ("", "FIELD_REQUIRED"),
    *[
        (text, "FIELD_INVALID")
        for text in (
            NAME[:-1],
            NAME + "0",
            NAME.upper(),
            "g" * 32,
            "\x00" * 32,
            NAME[:-1] + "\n",
            "é" * 32,
            "x" * 100_000,
        )
    ],
]
BAD_FENCES: list[tuple[str, object, str]] = [
    *[("lock_id", text, reason) for text, reason in BAD_NAMES],
    ("revision", 0, "FIELD_INVALID"),
    ("revision", -1, "FIELD_INVALID"),
    ("revision", -(2**63), "FIELD_INVALID"),
    *[
        ("epoch", text, "TOKEN_INVALID")
        for text in ("", "x" * 16, FOREIGN.upper(), FOREIGN[1:], FOREIGN + "0", "\x00" * 16, "é" * 16)
    ],
]
FIELDS: list[tuple[str, str, Callable[[Any], None], str, str, dict[str, str]]] = [
    ("Commit", "no request id", _set("request_id", None), "REQUEST_ID_REQUIRED", "request_id", {}),
    *[
        ("Commit", f"request id {text!r}", _set("request_id", text), "REQUEST_ID_INVALID", "request_id", {})
        for text in BAD_IDS
    ],
    *[("Commit", f"retry of {text!r}", _set("retry_of", text), "FIELD_INVALID", "retry_of", {}) for text in BAD_IDS],
    ("Commit", "reason too long", _set("reason", "x" * 1025), "FIELD_INVALID", "reason", {}),
    ("Commit", "reason too long in bytes", _set("reason", "é" * 513), "FIELD_INVALID", "reason", {}),
    ("Commit", "no mutations", _set("mutations", []), "FIELD_REQUIRED", "mutations", {}),
    (
        "Commit",
        "33 mutations",
        _set("mutations", [put(f"e{n}") for n in range(33)]),
        "TOO_MANY_ITEMS",
        "mutations",
        {"limit": "32", "actual": "33"},
    ),
    (
        "Commit",
        "an entry twice",
        _set("mutations", [put("e"), put("f"), put("e", "y")]),
        "DUPLICATE_KEY",
        "mutations[2].put.key",
        {},
    ),
    ("Commit", "a mutation of no kind", _raw("mutations[2]", b""), "FIELD_REQUIRED", "mutations[2].kind", {}),
    (
        "Commit",
        "a mutation of an unknown kind",
        _raw("mutations[2]", UNKNOWN_BRANCH),
        "FIELD_REQUIRED",
        "mutations[2].kind",
        {},
    ),
    (
        "Commit",
        "33 beliefs",
        _set(
            "preconditions", [commit_pb2.EntryPrecondition(key=key(f"b{n}"), precondition=absent()) for n in range(33)]
        ),
        "TOO_MANY_ITEMS",
        "preconditions",
        {"limit": "32", "actual": "33"},
    ),
    (
        "Commit",
        "a belief twice",
        _set("preconditions", [commit_pb2.EntryPrecondition(key=key("b"), precondition=absent())] * 2),
        "DUPLICATE_KEY",
        "preconditions[1].key",
        {},
    ),
    (
        "Commit",
        "a belief of nothing",
        _raw("preconditions[0].precondition", b""),
        "PRECONDITION_REQUIRED",
        "preconditions[0].precondition",
        {},
    ),
    (
        "Commit",
        "an unknown belief",
        _raw("preconditions[0].precondition", UNKNOWN_BRANCH),
        "PRECONDITION_REQUIRED",
        "preconditions[0].precondition",
        {},
    ),
    (
        "Commit",
        "an unconditional belief",
        _set("preconditions[0].precondition.unconditional", True),
        "PRECONDITION_INVALID",
        "preconditions[0].precondition.unconditional",
        {},
    ),
    (
        "Commit",
        "no precondition",
        _set(f"{PUT}.precondition", None),
        "PRECONDITION_REQUIRED",
        f"{PUT}.precondition",
        {},
    ),
    (
        "Commit",
        "an unknown precondition",
        _raw(f"{PUT}.precondition", UNKNOWN_BRANCH),
        "PRECONDITION_REQUIRED",
        f"{PUT}.precondition",
        {},
    ),
    *[
        (
            "Commit",
            f"epoch {epoch!r}",
            _all(_set(f"{PUT}.precondition.at.number", 1), _set(f"{PUT}.precondition.at.epoch", epoch)),
            "TOKEN_INVALID",
            f"{PUT}.precondition.at.epoch",
            {},
        )
        for epoch in ("", "x" * 16, "0123456789ABCDEF", "0" * 15, "0" * 17, "é" * 16, "\x00" * 16)
    ],
    (
        "Commit",
        "a delete of what must not exist",
        _set("mutations[1].delete.precondition.must_not_exist", True),
        "PRECONDITION_INVALID",
        "mutations[1].delete.precondition.must_not_exist",
        {},
    ),
    (
        "Commit",
        "a delete without a precondition",
        _set("mutations[1].delete.precondition", None),
        "PRECONDITION_REQUIRED",
        "mutations[1].delete.precondition",
        {},
    ),
    (
        "Commit",
        "a merge that must not exist",
        _set("mutations[5].merge_patch.precondition.must_not_exist", True),
        "PRECONDITION_INVALID",
        "mutations[5].merge_patch.precondition",
        {},
    ),
    (
        "Commit",
        "an unconditional merge",
        _set("mutations[5].merge_patch.precondition.unconditional", True),
        "PRECONDITION_INVALID",
        "mutations[5].merge_patch.precondition",
        {},
    ),
    (
        "Commit",
        "a merge without precondition",
        _set("mutations[5].merge_patch.precondition", None),
        "PRECONDITION_REQUIRED",
        "mutations[5].merge_patch.precondition",
        {},
    ),
    (
        "Commit",
        "no patch",
        _set("mutations[5].merge_patch.patch", ""),
        "FIELD_REQUIRED",
        "mutations[5].merge_patch.patch",
        {},
    ),
    (
        "Commit",
        "a patch that is not JSON",
        _set("mutations[5].merge_patch.patch", "{"),
        "VALUE_NOT_JSON",
        "mutations[5].merge_patch.patch",
        {},
    ),
    (
        "Commit",
        "a patch that is too deep",
        _set("mutations[5].merge_patch.patch", "[" * 33 + "]" * 33),
        "JSON_TOO_DEEP",
        "mutations[5].merge_patch.patch",
        {"limit": "32"},
    ),
    *[
        (
            "Commit",
            f"no items {kind}",
            _set(f"mutations[{place}].{kind}.items", []),
            "FIELD_REQUIRED",
            f"mutations[{place}].{kind}.items",
            {},
        )
        for place, kind in ((3, "append_to_list"), (4, "add_to_set"))
    ],
    *[
        (
            "Commit",
            f"257 items {kind}",
            _set(f"mutations[{place}].{kind}.items", ["1"] * 257),
            "TOO_MANY_ITEMS",
            f"mutations[{place}].{kind}.items",
            {"limit": "256", "actual": "257"},
        )
        for place, kind in ((3, "append_to_list"), (4, "add_to_set"))
    ],
    *[
        (
            "Commit",
            f"item {text!r} {kind}",
            _set(f"mutations[{place}].{kind}.items", ["1", text]),
            "VALUE_NOT_JSON",
            f"mutations[{place}].{kind}.items[1]",
            {},
        )
        for place, kind in ((3, "append_to_list"), (4, "add_to_set"))
        for text in ("", "x", '"\\ud800"')
    ],
    ("Commit", "a value of no form", _raw(f"{PUT}.value", b""), "VALUE_REQUIRED", f"{PUT}.value", {}),
    (
        "Commit",
        "a value of an unknown form",
        _raw(f"{PUT}.value", UNKNOWN_BRANCH),
        "VALUE_REQUIRED",
        f"{PUT}.value",
        {},
    ),
    (
        "Commit",
        "a text too large",
        _set(f"{PUT}.value.text", BIG),
        "VALUE_TOO_LARGE",
        f"{PUT}.value.text",
        {"limit": "524288", "actual": "524289"},
    ),
    (
        "Commit",
        "a text too large in bytes",
        _set(f"{PUT}.value.text", "é" * (limits.VALUE_BYTES_MAX // 2 + 1)),
        "VALUE_TOO_LARGE",
        f"{PUT}.value.text",
        {"limit": "524288", "actual": "524290"},
    ),
    (
        "Commit",
        "a JSON too large",
        _set(f"{PUT}.value.json", f'"{BIG[2:]}"'),
        "VALUE_TOO_LARGE",
        f"{PUT}.value.json",
        {"limit": "524288", "actual": "524289"},
    ),
    (
        "Commit",
        "bytes too large",
        _all(_set(f"{PUT}.value.binary.data", BIG.encode()), _set(f"{PUT}.value.binary.media_type", "a/b")),
        "VALUE_TOO_LARGE",
        f"{PUT}.value.binary",
        {"limit": "524288", "actual": "524289"},
    ),
    *[
        (
            "Commit",
            f"media type {text[:20]!r}",
            _all(_set(f"{PUT}.value.binary.data", b"x"), _set(f"{PUT}.value.binary.media_type", text)),
            "FIELD_INVALID",
            f"{PUT}.value.binary.media_type",
            {},
        )
        for text in ("", " ", "é", "a\x00", "a\n", "a" * 256)
    ],
    *[
        ("Commit", f"JSON {text[:20]!r}", _set(f"{PUT}.value.json", text), "VALUE_NOT_JSON", f"{PUT}.value.json", {})
        for text in (
            "",
            " ",
            "{",
            "{}{}",
            "nul",
            "NaN",
            "-Infinity",
            "01",
            "1.",
            ".5",
            "+1",
            "'a'",
            '{"a":1,"a":2}',
            '{"a":1,"\\u0061":2}',
            '"\\ud800"',
            '{"\\udfff":1}',
            '"\x00"',
            '"a\nb"',
            "[1,]",
            "\ufeff1",
            "1 2",
            "\u0661",
            "// x",
            '"\\x41"',
        )
    ],
    *[
        (
            "Commit",
            f"JSON of {depth} levels {opening}",
            _set(f"{PUT}.value.json", opening * depth + "1" + closing * depth),
            "JSON_TOO_DEEP",
            f"{PUT}.value.json",
            {"limit": "32"},
        )
        for depth in (33, 1_000, 50_000)
        for opening, closing in (("[", "]"), ('{"a":', "}"))
    ],
    (
        "Commit",
        "65 pairs",
        _set(f"{PUT}.metadata", {f"k{n}": "v" for n in range(65)}),
        "METADATA_INVALID",
        f"{PUT}.metadata",
        {},
    ),
    ("Commit", "an empty metadata key", _set(f"{PUT}.metadata", {"": "v"}), "METADATA_INVALID", f"{PUT}.metadata", {}),
    (
        "Commit",
        "a metadata key too long",
        _set(f"{PUT}.metadata", {"é" * 65: "v"}),
        "METADATA_INVALID",
        f"{PUT}.metadata",
        {},
    ),
    (
        "Commit",
        "a metadata value too long",
        _set(f"{PUT}.metadata", {"k": "é" * 513}),
        "METADATA_INVALID",
        f"{PUT}.metadata",
        {},
    ),
    *[
        (
            "Commit",
            f"ttl {seconds} s {nanos} ns",
            _all(_set(f"{PUT}.ttl.seconds", seconds), _set(f"{PUT}.ttl.nanos", nanos)),
            "EXPIRY_INVALID",
            f"{PUT}.ttl",
            {},
        )
        for seconds, nanos in (
            (0, 0),
            (0, 999_000_000),
            (-1, 0),
            (315_360_000, 1_000_000),
            (315_360_001, 0),
            (2**62, 0),
            (10, 1),
            (10, 999_999),
            (10, 2_000_000_000),
            (10, -2_000_000_000),
        )
    ],
    *[
        (
            "Commit",
            f"expiry at {seconds} s {nanos} ns",
            _all(_alone, _set(f"{PUT}.expire_time.seconds", seconds), _set(f"{PUT}.expire_time.nanos", nanos)),
            "EXPIRY_INVALID",
            f"{PUT}.expire_time",
            {},
        )
        for seconds, nanos in (
            (0, 0),
            (-1, 0),
            (1_800_000_000, 0),
            (1_800_000_000 + 315_360_000, 1_000_000),
            (2**62, 0),
            (-(2**62), 0),
            (1_800_000_100, 1),
            (1_800_000_100, -1),
        )
    ],
    (
        "GetEntry",
        "a token of another store",
        lambda message: None,
        "TOKEN_FROM_ANOTHER_STORE",
        "consistency.at_least",
        {},
    ),
    *[
        (
            method,
            f"{level} is false {method}",
            _set(f"consistency.{level}", False),
            "FIELD_INVALID",
            f"consistency.{level}",
            {},
        )
        for level in ("strong", "local")
        for method in ("GetEntry", "BatchGetEntries", "ListEntries")
    ],
    *[
        (
            method,
            f"{level} {text!r} {method}",
            _set(f"consistency.{level}", text),
            "TOKEN_INVALID",
            f"consistency.{level}",
            {},
        )
        for level in ("at_least", "snapshot")
        for method in ("GetEntry", "BatchGetEntries")
        for text in ("", "x", "\x00", TOKEN + "A")
    ],
    ("BatchGetEntries", "no keys", _set("keys", []), "FIELD_REQUIRED", "keys", {}),
    (
        "BatchGetEntries",
        "101 keys",
        _set("keys", [key(f"e{n}") for n in range(101)]),
        "TOO_MANY_ITEMS",
        "keys",
        {"limit": "100", "actual": "101"},
    ),
    ("BatchGetEntries", "a key twice", _set("keys", [key("e"), key("f"), key("e")]), "DUPLICATE_KEY", "keys[2]", {}),
    *[
        (method, f"page size {size} {method}", _set("page_size", size), "FIELD_INVALID", "page_size", {})
        for method in ("ListEntries", "ListRevisions")
        for size in (-1, 1001, 2**31 - 1, -(2**31))
    ],
    *[
        (method, f"page token {text[:9]!r} {method}", _set("page_token", text), "PAGE_TOKEN_INVALID", "page_token", {})
        for method in ("ListEntries", "ListRevisions")
        for text in ("x", "\x00", "é", TOKEN, "A" * 8193)
    ],
    ("Watch", "no targets", _set("targets", []), "FIELD_REQUIRED", "targets", {}),
    (
        "Watch",
        "17 targets",
        _set("targets", [board_service_pb2.WatchTarget(region=REGION, path=f"e{n}") for n in range(17)]),
        "TOO_MANY_ITEMS",
        "targets",
        {"limit": "16", "actual": "17"},
    ),
    ("Watch", "no start", _set("after", None), "FIELD_REQUIRED", "start", {}),
    ("Watch", "snapshot is false", _set("snapshot", False), "FIELD_INVALID", "snapshot", {}),
    ("Watch", "now is false", _set("now", False), "FIELD_INVALID", "now", {}),
    ("Watch", "after nothing", _set("after", ""), "TOKEN_INVALID", "after", {}),
    ("Watch", "after a token of another store", lambda message: None, "TOKEN_FROM_ANOTHER_STORE", "after", {}),
    *[
        ("Commit", f"{name} of {place}", _set(f"{place}.{name}", value), reason, f"{place}.{name}", {})
        for place in ("fences[0]", "mutations[8].release_lock.fence")
        for name, value, reason in BAD_FENCES
    ],
    (
        "Commit",
        "a release without a fence",
        _raw("mutations[8].release_lock", b""),
        "FIELD_REQUIRED",
        f"{RELEASE}.lock_id",
        {},
    ),
    (
        "Commit",
        "17 fences",
        _set("fences", [fence(f"{number:032x}") for number in range(17)]),
        "TOO_MANY_ITEMS",
        "fences",
        {"limit": "16", "actual": "17"},
    ),
    ("Commit", "a fence twice", _set("fences", [fence(), fence("a" * 32), fence()]), "DUPLICATE_KEY", "fences[2]", {}),
    (
        "Commit",
        "a release twice",
        _set("mutations", [release(fence()), put("e"), release(fence())]),
        "DUPLICATE_KEY",
        "mutations[2].release_lock.fence",
        {},
    ),
    *[
        ("CheckCurrent", f"{name} {value!r}", _set(f"fences[0].{name}", value), reason, f"fences[0].{name}", {})
        for name, value, reason in BAD_FENCES
    ],
    *[
        (
            "CheckCurrent",
            f"state {name} {value!r}",
            _set(f"entries[0].at.{name}", value),
            reason,
            f"entries[0].at.{name}",
            {},
        )
        for name, value, reason in (
            ("number", 0, "PRECONDITION_INVALID"),
            ("number", -1, "PRECONDITION_INVALID"),
            ("epoch", "", "TOKEN_INVALID"),
            ("epoch", "x" * 16, "TOKEN_INVALID"),
            ("epoch", "\x00" * 16, "TOKEN_INVALID"),
        )
    ],
    ("CheckCurrent", "no state", _set("entries[0].at", None), "PRECONDITION_INVALID", "entries[0].at.number", {}),
    ("CheckCurrent", "nothing", _all(_set("entries", []), _set("fences", [])), "FIELD_REQUIRED", "entries", {}),
    ("CheckCurrent", "of another store", lambda message: None, "TOKEN_FROM_ANOTHER_STORE", "entries[0].at", {}),
    (
        "CheckCurrent",
        "a fence of another store",
        _set("entries", []),
        "TOKEN_FROM_ANOTHER_STORE",
        "fences[0].epoch",
        {},
    ),
]


@pytest.mark.parametrize(
    ("method", "change", "reason", "field", "facts"),
    [
        pytest.param(method, *rest, id=f"{place}-{method}-{name[:40]}".encode("ascii", "replace").decode())
        for place, (method, name, *rest) in enumerate(FIELDS)
    ],
)
async def test_a_bad_field_is_refused_by_name(
    agent: Agent, method: str, change: Callable[[Any], None], reason: str, field: str, facts: dict[str, str]
) -> None:
    message: Any = FULL[BOARD + method]()
    change(message)
    check(await call(agent, BOARD + method, message.SerializeToString()), reason, field, **facts)
    if method == "Commit":
        stream = commit_pb2.CommitStreamRequest(commit=message)
        check(await call(agent, BOARD + "CommitStream", stream.SerializeToString()), reason, field, **facts)


def _times(field: str, least_ms: int, most_ms: int) -> Iterator[Row]:
    """Give what no time may be: outside its bounds, finer than a millisecond, or no time at all."""
    for seconds, nanos in (
        ((least_ms - 1) // 1000, (least_ms - 1) % 1000 * 1_000_000),
        ((most_ms + 1) // 1000, (most_ms + 1) % 1000 * 1_000_000),
        (-1, 0),
        (2**62, 0),
        (-(2**62), 0),
        (least_ms // 1000 + 1, 1),
        (least_ms // 1000 + 1, 999_999),
        (least_ms // 1000 + 1, 2_000_000_000),
        (least_ms // 1000 + 1, -2_000_000_000),
    ):
        change = _all(_set(f"{field}.seconds", seconds), _set(f"{field}.nanos", nanos))
        yield f"{field} {seconds} s {nanos} ns", change, "DURATION_INVALID", field, {"limit": str(most_ms)}


def _texts(field: str, limit: int, *, required: bool = True) -> Iterator[Row]:
    """Give what no words may be: too long, in bytes, or missing."""
    for text in ("x" * (limit + 1), "é" * (limit // 2) + "x", "x" * 900_000):
        yield f"{field} too long", _set(field, text), "FIELD_INVALID", field, {}
    if required:
        yield f"no {field}", _set(field, ""), "FIELD_REQUIRED", field, {}


def _ids() -> Iterator[Row]:
    yield "no request id", _set("request_id", None), "REQUEST_ID_REQUIRED", "request_id", {}
    for text in BAD_IDS:
        yield f"request id {text!r}", _set("request_id", text), "REQUEST_ID_INVALID", "request_id", {}


def _names(field: str) -> Iterator[Row]:
    for text, reason in BAD_NAMES:
        yield f"{field} {text[:40]!r}", _set(field, text), reason, field, {}


def _pages(most: int) -> Iterator[Row]:
    for size in (-1, most + 1, 2**31 - 1, -(2**31)):
        yield f"page size {size}", _set("page_size", size), "FIELD_INVALID", "page_size", {}
    for text in ("x", "\x00", "é", TOKEN, "A" * 8193):
        yield f"page token {text[:9]!r}", _set("page_token", text), "PAGE_TOKEN_INVALID", "page_token", {}


def _choices(field: str) -> Iterator[Row]:
    """Give what no choice may be: not made, or one that this server does not know."""
    for number in (0, 3, 100, -1, 2**31 - 1):
        yield f"{field} {number}", _set(field, number), "FIELD_REQUIRED", field, {}


def _fence() -> Iterator[Row]:
    yield "no fence", _set("fence", None), "FIELD_REQUIRED", "fence", {}
    yield "a fence of another store", lambda message: None, "TOKEN_FROM_ANOTHER_STORE", "fence.epoch", {}
    for name, value, reason in BAD_FENCES:
        yield f"{name} {str(value)[:40]!r}", _set(f"fence.{name}", value), reason, f"fence.{name}", {}


def _targets(*targets: lock_pb2.LockTarget) -> Callable[[Any], None]:
    return _set("targets", list(targets))


LOCK_FIELDS: dict[str, list[Row]] = {
    SESSIONS + "OpenSession": [
        *_ids(),
        ("no ttl", _set("ttl", None), "FIELD_REQUIRED", "ttl", {}),
        *_times("ttl", 2_000, 3_600_000),
        *_texts("label", 256, required=False),
    ],
    SESSIONS + "KeepAlive": [*_names("session_id")],
    SESSIONS + "CloseSession": [*_names("session_id")],
    SESSIONS + "ListSessions": [*_pages(100)],
    LOCKS + "AcquireLock": [
        *_ids(),
        *_names("session_id"),
        *_choices("mode"),
        *_choices("targets[1].scope"),
        *_texts("purpose", 512),
        *_times("wait", 0, 3_600_000),
        *_times("hold_max", 1_000, 86_400_000),
        *_times("lock_delay", 0, 60_000),
        ("no targets", _targets(), "FIELD_REQUIRED", "targets", {}),
        (
            "17 targets",
            _targets(*[leaf(f"t{number}") for number in range(17)]),
            "TOO_MANY_ITEMS",
            "targets",
            {"limit": "16", "actual": "17"},
        ),
        ("a target twice", _targets(leaf("a"), leaf("b"), leaf("a")), "LOCK_TARGETS_INVALID", "targets[2]", {}),
        ("a target in another", _targets(tree("a"), leaf("a/b")), "LOCK_TARGETS_INVALID", "targets[1]", {}),
        ("a target around another", _targets(leaf("a/b"), tree("a")), "LOCK_TARGETS_INVALID", "targets[1]", {}),
        ("all and a part", _targets(tree(""), leaf("a")), "LOCK_TARGETS_INVALID", "targets[1]", {}),
        ("the tenant's region", _targets(leaf("a", "tenant")), "LOCK_TARGETS_INVALID", "targets[0].region", {}),
        ("the global region", _targets(tree("", "global")), "LOCK_TARGETS_INVALID", "targets[0].region", {}),
        ("an empty target", _targets(lock_pb2.LockTarget()), "REGION_REQUIRED", "targets[0].region", {}),
    ],
    LOCKS + "ClaimEntry": [
        *_ids(),
        *_names("session_id"),
        *_choices("scope"),
        *_texts("purpose", 512),
        *_times("hold_max", 1_000, 86_400_000),
        *_times("lock_delay", 0, 60_000),
        ("no candidates", _set("candidates", []), "FIELD_REQUIRED", "candidates", {}),
        (
            "65 candidates",
            _set("candidates", [key(f"c{number}") for number in range(65)]),
            "TOO_MANY_ITEMS",
            "candidates",
            {"limit": "64", "actual": "65"},
        ),
        ("a candidate twice", _set("candidates", [key("a"), key("a")]), "DUPLICATE_KEY", "candidates[1]", {}),
        (
            "another region",
            _set("candidates", [key("a"), key("a", "task:1")]),
            "LOCK_TARGETS_INVALID",
            "candidates[1].region",
            {},
        ),
    ],
    LOCKS + "DowngradeLock": [*_fence()],
    LOCKS + "ReleaseLock": [*_fence()],
    LOCKS + "ListLocks": [*_pages(1_000)],
    LOCKS + "BreakLock": [*_names("lock_id"), *_texts("reason", 1_024)],
}


@pytest.mark.parametrize("method", LOCK_FIELDS)
async def test_a_bad_field_about_sessions_and_locks_is_refused_by_name(agent: Agent, method: str) -> None:
    for name, change, reason, field, facts in LOCK_FIELDS[method]:
        message: Any = FULL[method]()
        change(message)
        refusal = await call(agent, method, message.SerializeToString())
        assert refusal is not None, name
        check(refusal, reason, field, **facts)
    assert await agent.presence() == []


async def test_a_choice_of_another_wire_type_counts_as_not_made(agent: Agent) -> None:
    """An enum as a text, a time as a number: protobuf keeps both apart as unknown."""
    message: Any = FULL[LOCKS + "AcquireLock"]()
    message.ClearField("mode")
    raw = message.SerializeToString() + b"\x2a\x01\x01"
    check(await call(agent, LOCKS + "AcquireLock", raw), "FIELD_REQUIRED", "mode")
    opening: Any = FULL[SESSIONS + "OpenSession"]()
    opening.ClearField("ttl")
    raw = opening.SerializeToString() + b"\x18\x0a"
    check(await call(agent, SESSIONS + "OpenSession", raw), "FIELD_REQUIRED", "ttl")


async def test_a_board_that_is_not_there_is_not_found_whatever_is_asked_about_it(running: Running) -> None:
    agent = running.as_agent("writer-1", "operator,supervisor")
    for method, make in FULL.items():
        if method.startswith(ADMIN):
            continue
        message: Any = make()
        (message.commit if method.endswith("CommitStream") else message).board = "nowhere"
        check(await call(agent, method, message.SerializeToString()), "NOT_FOUND", None)


async def test_a_region_that_is_far_too_long_is_not_remembered(agent: Agent) -> None:
    """What was parsed is kept to spare work; thousands of texts of a megabyte must not be."""
    kept = names._parse_region.cache_info().currsize
    for letter in "abc":
        with refused("REGION_INVALID", field="region"):
            await agent.page(region="shared:" + letter * 900_000)
    assert names._parse_region.cache_info().currsize == kept


async def test_compact_wants_a_token(running: Running) -> None:
    operator = running.as_agent("keeper", "operator")
    for before, reason in (("", "FIELD_REQUIRED"), ("x", "TOKEN_INVALID"), (TOKEN, "TOKEN_FROM_ANOTHER_STORE")):
        request = admin_service_pb2.CompactRequest(before=before)
        check(await call(operator, ADMIN + "Compact", request.SerializeToString()), reason, "before")


_BEFORE_1970 = timestamp_pb2.Timestamp(seconds=-1)
_AFTER_9999 = timestamp_pb2.Timestamp(seconds=253_402_300_800)
_TOO_FINE = timestamp_pb2.Timestamp(seconds=1, nanos=1)
_LONG = "x" * (limits.AGENT_ID_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("board", "Main"),
        ("agent", _LONG),
        ("act", _LONG),
        ("begin_time", _BEFORE_1970),
        ("begin_time", _TOO_FINE),
        ("end_time", _AFTER_9999),
    ],
)
async def test_a_filter_of_audit_records_that_can_match_nothing_is_refused(
    running: Running,
    field: str,
    value: Any,  # noqa: ANN401 - any field's
) -> None:
    request = audit_pb2.ListAuditRecordsRequest(filter=audit_pb2.AuditFilter(**{field: value}))
    refusal = await call(running.as_agent("keeper", "auditor"), ADMIN + "ListAuditRecords", request.SerializeToString())
    check(refusal, "FIELD_INVALID", f"filter.{field}")


@pytest.mark.parametrize("kept", ["0" * 63, "0" * 65, "A" * 64, "g" * 64])
async def test_an_anchors_hash_has_64_digits(running: Running, kept: str) -> None:
    raw = audit_pb2.VerifyAuditRequest(anchor_hash=kept).SerializeToString()
    check(await call(running.as_agent("keeper", "auditor"), ADMIN + "VerifyAudit", raw), "FIELD_INVALID", "anchor_hash")


async def test_a_page_of_audit_records_has_at_most_1000(running: Running) -> None:
    auditor = running.as_agent("keeper", "auditor")
    for size, field in ((limits.PAGE_ENTRIES_MAX, None), (limits.PAGE_ENTRIES_MAX + 1, "page_size"), (-1, "page_size")):
        raw = audit_pb2.ListAuditRecordsRequest(page_size=size).SerializeToString()
        refusal = await call(auditor, ADMIN + "ListAuditRecords", raw)
        if field is None:
            assert refusal is None
        else:
            check(refusal, "FIELD_INVALID", field)


@pytest.mark.parametrize(
    ("change", "reason", "field"),
    [
        (_set("text", "x" * limits.SCREENED_TEXT_BYTES_MAX), "", ""),
        (_set("text", "x" * (limits.SCREENED_TEXT_BYTES_MAX + 1)), "VALUE_TOO_LARGE", "text"),
        (_set("text", "é" * (limits.SCREENED_TEXT_BYTES_MAX // 2)), "", ""),
        (_set("text", "é" * (limits.SCREENED_TEXT_BYTES_MAX // 2) + "x"), "VALUE_TOO_LARGE", "text"),
        (_set("text", ""), "", ""),
        (_set("source.uri", "x" * limits.SOURCE_URI_BYTES_MAX), "", ""),
        (_set("source.uri", "x" * (limits.SOURCE_URI_BYTES_MAX + 1)), "FIELD_INVALID", "source.uri"),
        (_set("source.kind", 0), "FIELD_INVALID", "source.kind"),
        (_set("source.kind", 99), "FIELD_INVALID", "source.kind"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_text_to_be_screened_has_its_bounds(
    agent: Agent, change: Callable[[Any], None], reason: str, field: str
) -> None:
    message = FULL[TRUST + "ScreenText"]()
    change(message)
    refusal = await call(agent, TRUST + "ScreenText", message.SerializeToString())
    if reason:
        check(refusal, reason, field)
    else:
        assert refusal is None


@pytest.mark.parametrize(
    ("text", "form", "reason"),
    [
        ("x" * limits.SCREENED_TEXT_BYTES_MAX, "text", ""),
        ("x" * (limits.SCREENED_TEXT_BYTES_MAX + 1), "text", "VALUE_TOO_LARGE"),
        ("", "text", ""),
        ("{", "text", ""),
        ("{", "json", "VALUE_NOT_JSON"),
        ("[" * limits.JSON_DEPTH_MAX + "]" * limits.JSON_DEPTH_MAX, "json", ""),
        ("[" * (limits.JSON_DEPTH_MAX + 1) + "]" * (limits.JSON_DEPTH_MAX + 1), "json", "JSON_TOO_DEEP"),
    ],
    ids=["largest", "one byte more", "empty", "text", "no JSON", "deepest", "one level more"],
)
async def test_a_text_to_be_redacted_has_its_bounds(agent: Agent, text: str, form: str, reason: str) -> None:
    request = trust_service_pb2.RedactTextRequest(board="main", text=text, json=form == "json")
    refusal = await call(agent, TRUST + "RedactText", request.SerializeToString())
    if reason:
        check(refusal, reason, "text")
    else:
        assert refusal is None


_REVEAL = TRUST + "RevealEntry"
_PURGE, _ERASE, _TRACE = TRUST + "PurgeSource", TRUST + "EraseSubject", TRUST + "TraceProvenance"


@pytest.mark.parametrize(
    ("method", "change", "reason", "field"),
    [
        (_TRACE, _set("direction", 0), "FIELD_REQUIRED", "direction"),
        (_TRACE, _set("direction", 99), "FIELD_INVALID", "direction"),
        (_TRACE, _set("max_depth", limits.TRACE_DEPTH_MAX + 1), "FIELD_INVALID", "max_depth"),
        (_TRACE, _set("max_depth", -1), "FIELD_INVALID", "max_depth"),
        (_TRACE, _set("max_states", limits.TRACE_ENTRIES_MAX + 1), "FIELD_INVALID", "max_states"),
        (_TRACE, _set("at.number", 0), "PRECONDITION_INVALID", "at.number"),
        (_REVEAL, _set("at.number", 0), "PRECONDITION_INVALID", "at.number"),
        (_REVEAL, _set("at.epoch", "x"), "TOKEN_INVALID", "at.epoch"),
        (_REVEAL, _set("floor", 99), "FIELD_INVALID", "floor"),
        (_TRACE, _set("at.epoch", "f" * 16), "TOKEN_FROM_ANOTHER_STORE", "at.epoch"),
        (_PURGE, lambda message: message.ClearField("selector"), "FIELD_REQUIRED", "what"),
        (_PURGE, lambda message: message.selector.Clear(), "FIELD_REQUIRED", "selector"),
        (_PURGE, _set("plan", "x"), "FIELD_INVALID", "plan"),
        (_PURGE, _set("plan", ""), "FIELD_REQUIRED", "plan"),
        (_PURGE, _set("selector.uri", "x" * (limits.SOURCE_URI_BYTES_MAX + 1)), "FIELD_INVALID", "selector.uri"),
        (
            _PURGE,
            _set("selector.uri_pattern", "*" * (limits.URI_PATTERN_STARS_TIMES_MAX + 1)),
            "FIELD_INVALID",
            "selector.uri_pattern",
        ),
        (_PURGE, _set("selector.content_sha256", "0" * 63), "FIELD_INVALID", "selector.content_sha256"),
        (_PURGE, _set("selector.agent", "a b"), "FIELD_INVALID", "selector.agent"),
        (_PURGE, _set("selector.session", "x"), "FIELD_INVALID", "selector.session"),
        (_PURGE, _set("selector.from_time.seconds", 2), "FIELD_INVALID", "selector.before_time"),
        (_PURGE, _set("selector.from_time.nanos", 1), "FIELD_INVALID", "selector.from_time"),
        (_PURGE, _set("reason", ""), "FIELD_REQUIRED", "reason"),
        (_PURGE, _set("reason", "x" * (limits.REASON_BYTES_MAX + 1)), "FIELD_INVALID", "reason"),
        (_ERASE, lambda message: message.ClearField("user"), "FIELD_REQUIRED", "what"),
        (_ERASE, _set("user", ""), "FIELD_INVALID", "user"),
        (_ERASE, _set("user", "a\x00b"), "FIELD_INVALID", "user"),
        (_ERASE, _set("user", "x" * (limits.REGION_ID_BYTES_MAX + 1)), "FIELD_INVALID", "user"),
        (_ERASE, _set("reason", ""), "FIELD_REQUIRED", "reason"),
        (TRUST + "GetRemoval", _set("id", ""), "FIELD_REQUIRED", "id"),
        (TRUST + "GetRemoval", _set("id", "x"), "FIELD_INVALID", "id"),
        (TRUST + "ListRemovals", _set("page_size", 101), "FIELD_INVALID", "page_size"),
    ],
)
async def test_what_is_traced_or_removed_has_its_bounds(
    running: Running, method: str, change: Callable[[Any], None], reason: str, field: str
) -> None:
    operator = running.as_agent("ops-1", "member,operator")
    message = FULL[method]()
    change(message)
    check(await call(operator, method, message.SerializeToString()), reason, field)


async def test_the_largest_of_what_is_traced_or_removed_is_taken(running: Running) -> None:
    operator = running.as_agent("ops-1", "member,operator")
    message = trust_service_pb2.PurgeSourceRequest(
        board="main",
        selector=trust_service_pb2.SourceSelector(
            uri="x" * limits.SOURCE_URI_BYTES_MAX, uri_pattern="*" * limits.URI_PATTERN_STARS_TIMES_MAX
        ),
        reason="x" * limits.REASON_BYTES_MAX,
    )
    assert await call(operator, _PURGE, message.SerializeToString()) is None
    person = trust_service_pb2.EraseSubjectRequest(
        board="main", user="x" * limits.REGION_ID_BYTES_MAX, reason="x" * limits.REASON_BYTES_MAX
    )
    assert await call(operator, _ERASE, person.SerializeToString()) is None


async def test_a_watch_without_a_known_start_is_refused(agent: Agent) -> None:
    message = board_service_pb2.WatchRequest(board="main", targets=[board_service_pb2.WatchTarget(region=REGION)])
    raw = message.SerializeToString() + UNKNOWN_BRANCH
    check(await call(agent, BOARD + "Watch", raw), "FIELD_REQUIRED", "start")


# At each limit.


async def test_a_value_at_its_limit_works_in_every_form(agent: Agent) -> None:
    size = limits.VALUE_BYTES_MAX
    values = [
        entry_pb2.Value(text="é" * (size // 2)),
        entry_pb2.Value(json='"' + "x" * (size - 2) + '"'),
        entry_pb2.Value(binary=entry_pb2.BinaryValue(data=b"\x00" * size, media_type="a" * 255)),
    ]
    for number, value in enumerate(values):
        await agent.commit(put(f"e{number}", value))
        assert (await agent.get(f"e{number}")).value == value


async def test_a_commit_at_its_limit_works_and_one_byte_more_does_not(agent: Agent) -> None:
    half = limits.COMMIT_BYTES_MAX // 2
    metadata = {"k" * 28: "v" * 100}
    sized = [put("a", "x" * half), put("b", "x" * (half - 128), metadata=metadata)]
    await agent.commit(*sized)
    over = [put("c", "x" * half), put("d", "x" * (half - 127), metadata=metadata)]
    with refused("COMMIT_TOO_LARGE", field="mutations", limit="655360", actual="655361"):
        await agent.commit(*over)
    items = ['"' + "x" * 1022 + '"'] * 160
    lists = [
        commit_pb2.Mutation(append_to_list=commit_pb2.AppendToList(key=key(f"l{n}"), items=items)) for n in range(4)
    ]
    await agent.commit(*lists)
    for part in lists:
        part.append_to_list.key.path += "-more"
    lists[0].append_to_list.items.append("1")
    with refused("COMMIT_TOO_LARGE", limit="655360", actual="655361"):
        await agent.commit(*lists)


async def test_what_a_commit_stores_names_and_copies_included_has_a_limit(agent: Agent) -> None:
    long = "/".join(["é" * 30] * 16)  # each byte of an escaped name counts
    parts = [put(f"{long}{number:02}", "x" * 20_000) for number in range(32)]
    with refused("COMMIT_TOO_LARGE", field="mutations", limit="1400000") as found:
        await agent.commit(*parts)
    assert int(found[0].facts["actual"]) > 1_400_000
    await agent.commit(*parts[:30])


async def test_a_full_commit_works(agent: Agent) -> None:
    made = await agent.commit(*[put(f"b{number}") for number in range(32)])
    answer = await agent.commit(
        *[
            put(f"e{number}", ttl={"seconds": 1}, metadata={f"{n:0128}": "v" for n in range(10)})
            for number in range(32)
        ],
        preconditions=[(f"b{number}", entry_pb2.Precondition(at=made.revision)) for number in range(32)],
        reason="x" * 1024,
        retry_of=new_id(),
    )
    assert len(answer.results) == 32


async def test_names_at_their_limits_work(agent: Agent) -> None:
    for region, path in (
        ("shared:" + "é" * 128, "a"),
        (REGION, "a" * 1024),
        (REGION, "/".join("a" * 16)),
        (REGION, "é" * 512),
    ):
        await agent.commit(put(path, "x", region=region))
        entry = await agent.get(path, region)
        assert (entry.key.region, entry.key.path) == (region, path)
        assert await agent.paths(path, region) == [path]
        with refused("ALREADY_EXISTS", path=path, region=region):
            await agent.commit(put(path, "x", region=region))


async def test_other_fields_at_their_limits_work(agent: Agent, running: Running) -> None:
    full = {f"{number:0128}": "é" * 512 for number in range(64)}
    await agent.commit(put("m", "x", metadata=full))
    assert dict((await agent.get("m")).metadata) == full
    entry = await agent.get("m")
    more = put("m", None, entry_pb2.Precondition(at=entry.revision), metadata={"one more": "x"})
    more.put.update_mask.paths.append("metadata.one more")
    with refused("VALUE_FULL", field="mutations[0].put.metadata", limit="64"):
        await agent.commit(more)
    await agent.commit(put_json("deep", "[" * 32 + "]" * 32))
    await agent.commit(put("soon", ttl={"seconds": 1}), put("late", ttl={"seconds": 3_650 * 86_400}))
    await agent.commit(put("at", expire_time={"seconds": 1_800_000_000 + 3_650 * 86_400}))
    await agent.commit(put("after", expire_time={"seconds": 1_800_000_000, "nanos": 1_000_000}))
    for items in (["1"] * 256,):
        await agent.commit(commit_pb2.Mutation(append_to_list=commit_pb2.AppendToList(key=key("l"), items=items)))
    await agent.page(page_size=1000)
    keys = [key(f"k{number}") for number in range(100)]
    batch = board_service_pb2.BatchGetEntriesRequest(board="main", keys=keys)
    assert len((await agent.board.BatchGetEntries(batch, metadata=agent.metadata)).missing) == 100
    watch = await agent.watch(*[f"e{number}" for number in range(16)], now=True).begun()
    watch.cancel()
    assert (await running.as_agent("a" * 128).get("m")).metadata


async def test_a_computed_value_has_the_limits_of_any_value(agent: Agent) -> None:
    almost = '["' + "x" * (limits.VALUE_BYTES_MAX - 6) + '"]'
    await agent.commit(put_json("l", almost))
    with refused("VALUE_FULL", field="mutations[0].append_to_list", limit="524288"):
        await agent.commit(commit_pb2.Mutation(append_to_list=commit_pb2.AppendToList(key=key("l"), items=["12"])))
    await agent.commit(commit_pb2.Mutation(append_to_list=commit_pb2.AppendToList(key=key("l"), items=["1"])))
    assert len(await agent.json("l")) == limits.VALUE_BYTES_MAX
    deep = "[" * 31 + "]" * 31
    await agent.commit(commit_pb2.Mutation(add_to_set=commit_pb2.AddToSet(key=key("d"), items=[deep])))
    with refused("VALUE_FULL", field="mutations[0].add_to_set"):
        await agent.commit(commit_pb2.Mutation(add_to_set=commit_pb2.AddToSet(key=key("d"), items=[f"[{deep}]"])))


@pytest.mark.parametrize("method", FULL)
def test_the_short_look_at_a_request_has_every_text_of_the_long_one(method: str) -> None:
    """Here, as it needs a message of each kind with everything in it."""
    request = FULL[method]()
    texts = texts_of(request)
    assert words_of(request) == [text.searched for text in texts]
    assert len(texts) >= 8 or not method.endswith("/Commit")
