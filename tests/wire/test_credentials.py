"""Who calls is what the credential says: every method, every kind of credential."""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest

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
from kokuban_server.wire.rules import RULES
from tests.wire.calls import (
    REGION,
    START_MS,
    commit_request,
    end_of,
    eventually,
    is_lost_status,
    key,
    lasting,
    leaf,
    new_id,
    put,
    refusal_of,
)
from tests.wire.task_calls import create_request

if TYPE_CHECKING:
    from pathlib import Path

    from google.protobuf.message import Message

    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started

_NO_ID = "0" * 32
_NO_EPOCH = "0" * 16
_FENCE = lock_pb2.Fence(lock_id=_NO_ID, revision=1, epoch=_NO_EPOCH)


def requests(board: str, region: str = REGION) -> dict[str, Message]:
    """A well-formed request for each method that names a board, and for each that does not."""
    return {
        "BoardService.Commit": commit_request(put("a", region=region), board=board),
        "BoardService.CommitStream": commit_pb2.CommitStreamRequest(
            commit=commit_request(put("a", region=region), board=board)
        ),
        "BoardService.GetEntry": board_service_pb2.GetEntryRequest(board=board, key=key("a", region)),
        "BoardService.BatchGetEntries": board_service_pb2.BatchGetEntriesRequest(board=board, keys=[key("a", region)]),
        "BoardService.ListEntries": board_service_pb2.ListEntriesRequest(board=board, region=region),
        "BoardService.ListRevisions": board_service_pb2.ListRevisionsRequest(board=board, key=key("a", region)),
        "BoardService.Watch": board_service_pb2.WatchRequest(
            board=board, targets=[board_service_pb2.WatchTarget(region=region)], now=True
        ),
        "BoardService.CheckCurrent": board_service_pb2.CheckCurrentRequest(board=board, fences=[_FENCE]),
        "SessionService.OpenSession": session_service_pb2.OpenSessionRequest(
            board=board, request_id=new_id(), ttl=lasting(30)
        ),
        "SessionService.KeepAlive": session_service_pb2.KeepAliveRequest(board=board, session_id=_NO_ID),
        "SessionService.CloseSession": session_service_pb2.CloseSessionRequest(board=board, session_id=_NO_ID),
        "SessionService.ListSessions": session_service_pb2.ListSessionsRequest(board=board),
        "LockService.AcquireLock": lock_service_pb2.AcquireLockRequest(
            board=board,
            session_id=_NO_ID,
            request_id=new_id(),
            targets=[leaf("x", region)],
            mode=lock_pb2.LOCK_MODE_EXCLUSIVE,
            purpose="try",
        ),
        "LockService.ClaimEntry": lock_service_pb2.ClaimEntryRequest(
            board=board,
            session_id=_NO_ID,
            request_id=new_id(),
            candidates=[key("a", region)],
            scope=lock_pb2.LOCK_SCOPE_ENTRY,
            purpose="try",
        ),
        "LockService.DowngradeLock": lock_service_pb2.DowngradeLockRequest(board=board, fence=_FENCE),
        "LockService.ReleaseLock": lock_service_pb2.ReleaseLockRequest(board=board, fence=_FENCE),
        "LockService.ListLocks": lock_service_pb2.ListLocksRequest(board=board, region=region),
        "LockService.BreakLock": lock_service_pb2.BreakLockRequest(board=board, lock_id=_NO_ID, reason="try"),
        "TaskService.CreateTask": create_request("x", board=board),
        "TaskService.GetTask": task_service_pb2.GetTaskRequest(board=board, task="x"),
        "TaskService.ListTasks": task_service_pb2.ListTasksRequest(board=board),
        "TaskService.ListEvents": task_service_pb2.ListEventsRequest(board=board, task="x"),
        "TaskService.ClaimNextStep": task_service_pb2.ClaimNextStepRequest(
            board=board, session_id=_NO_ID, request_id=new_id(), task="x", purpose="try"
        ),
        "TaskService.WaitForTask": task_service_pb2.WaitForTaskRequest(
            board=board, session_id=_NO_ID, request_id=new_id(), task="x", wait=lasting(1)
        ),
        "TaskService.ResumeTask": task_service_pb2.ResumeTaskRequest(
            board=board,
            request_id=new_id(),
            task="x",
            answers=[task_service_pb2.InterruptAnswer(id="a", answer=entry_pb2.Value(text="b"))],
        ),
        "TaskService.CancelTask": task_service_pb2.CancelTaskRequest(
            board=board, request_id=new_id(), task=task_pb2.CancelTask(task="x")
        ),
        "TaskService.ExportTask": task_service_pb2.ExportTaskRequest(board=board, task="x"),
        "TaskService.ArchiveTask": task_service_pb2.ArchiveTaskRequest(
            board=board, request_id=new_id(), task="x", digest="0" * 64
        ),
        "TaskService.RestoreTask": task_service_pb2.RestoreTaskRequest(
            board=board, request_id=new_id(), task="x", digest="0" * 64
        ),
        "ConflictService.ListConflicts": conflict_service_pb2.ListConflictsRequest(
            board=board, filter=conflict_pb2.ConflictFilter(region=region)
        ),
        "ConflictService.WatchConflicts": conflict_service_pb2.WatchConflictsRequest(
            board=board, filter=conflict_pb2.ConflictFilter(region=region)
        ),
        "ConflictService.SummarizeConflicts": conflict_service_pb2.SummarizeConflictsRequest(
            board=board, filter=conflict_pb2.ConflictFilter(region=region)
        ),
        "AdminService.GetStatus": admin_service_pb2.GetStatusRequest(),
        "AdminService.CreateBoard": admin_service_pb2.CreateBoardRequest(board="new"),
        "AdminService.GetBoard": admin_service_pb2.GetBoardRequest(board=board),
        "AdminService.ListBoards": admin_service_pb2.ListBoardsRequest(),
        "AdminService.DeleteBoard": admin_service_pb2.DeleteBoardRequest(board=board, reason="try"),
        "AdminService.GetPolicy": admin_service_pb2.GetPolicyRequest(board=board),
        "AdminService.SetPolicy": admin_service_pb2.SetPolicyRequest(board=board, policy=policy_pb2.Policy()),
        "AdminService.ExplainAccess": admin_service_pb2.ExplainAccessRequest(
            board=board, region=region, verb=policy_pb2.VERB_READ
        ),
        "AdminService.Compact": admin_service_pb2.CompactRequest(before="x"),
        "AdminService.ListAuditRecords": audit_pb2.ListAuditRecordsRequest(),
        "AdminService.VerifyAudit": audit_pb2.VerifyAuditRequest(),
        "AdminService.ExamineStore": examination_pb2.ExamineStoreRequest(),
        "TrustService.Endorse": trust_service_pb2.EndorseRequest(
            board=board,
            request_id=new_id(),
            key=key("a", region),
            at=entry_pb2.Revision(number=1, epoch="0" * 16),
            trust=trust_pb2.TRUST_LEVEL_USER,
            reason="try",
        ),
        "TrustService.ListQuarantine": trust_service_pb2.ListQuarantineRequest(board=board),
        "TrustService.ReviewQuarantine": trust_service_pb2.ReviewQuarantineRequest(
            board=board,
            ids=[f"{'0' * 15}-{'0' * 32}"],
            decision=trust_service_pb2.QUARANTINE_DECISION_REJECT,
            reason="try",
        ),
        "TrustService.ScreenText": trust_service_pb2.ScreenTextRequest(board=board, text="try"),
        "TrustService.RedactText": trust_service_pb2.RedactTextRequest(board=board, text="try"),
        "TrustService.RevealEntry": trust_service_pb2.RevealEntryRequest(board=board, key=key("a", region)),
        "TrustService.TraceProvenance": trust_service_pb2.TraceProvenanceRequest(
            board=board,
            key=key("a", region),
            direction=trust_service_pb2.PROVENANCE_DIRECTION_ANCESTORS,
        ),
        "TrustService.PurgeSource": trust_service_pb2.PurgeSourceRequest(
            board=board, selector=trust_service_pb2.SourceSelector(uri="https://example.com"), reason="try"
        ),
        "TrustService.EraseSubject": trust_service_pb2.EraseSubjectRequest(board=board, user="u1", reason="try"),
        "TrustService.GetRemoval": trust_service_pb2.GetRemovalRequest(board=board, id=f"{'0' * 15}-{'0' * 16}"),
        "TrustService.ListRemovals": trust_service_pb2.ListRemovalsRequest(board=board),
    }


METHODS = sorted(name.removeprefix("kokuban.v1.") for name in RULES)
_WITHOUT_BOARD = {
    "AdminService.GetStatus",
    "AdminService.CreateBoard",
    "AdminService.ListBoards",
    "AdminService.Compact",
    "AdminService.ListAuditRecords",
    "AdminService.VerifyAudit",
    "AdminService.ExamineStore",
}


class Caller(NamedTuple):
    """A connection, and how its calls are signed."""

    channel: Any  # bytes in, bytes out, which the type stubs do not know of

    async def reason(self, method: str, request: Message, *metadata: tuple[str, str]) -> str:
        """Make a call; give the reason it is refused with, or an empty text."""
        while True:
            try:
                return await self._reason(method, request, *metadata)
            except grpc.aio.AioRpcError as error:
                if not is_lost_status(error):
                    return refusal_of(error).reason

    async def _reason(self, method: str, request: Message, *metadata: tuple[str, str]) -> str:
        service, name = method.split(".")
        path = f"/kokuban.v1.{service}/{name}"
        raw = request.SerializeToString()
        if name in {"CommitStream", "KeepAlive"}:
            call = self.channel.stream_stream(path)(metadata=metadata)
            await call.write(raw)
            answer = await call.read()
            if name == "CommitStream" and answer is not grpc.aio.EOF:
                call.cancel()
                return _name(commit_pb2.CommitStreamResponse.FromString(answer).refused.reason)
        elif name in {"Watch", "AcquireLock", "WatchConflicts", "WaitForTask"}:
            call = self.channel.unary_stream(path)(raw, metadata=metadata)
            await call.read()
        else:
            await self.channel.unary_unary(path)(raw, metadata=metadata)
            return ""
        call.cancel()
        return ""


def _name(reason: error_reason_pb2.ErrorReason.ValueType) -> str:
    return error_reason_pb2.ErrorReason.Name(reason).removeprefix("ERROR_REASON_") if reason else ""


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


class Book:
    """The registry file of a test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.principals: list[dict[str, Any]] = []

    def give(self, name: str, **more: Any) -> str:  # noqa: ANN401 - any field of a principal
        """Enter a principal; give its token."""
        token = f"kk_{name}-{'x' * 40}"
        principal = {"name": name, "tenant": "acme", "agent": name, "roles": ["member"], "boards": ["main"]}
        digest = hashlib.sha256(token.encode()).hexdigest()
        fields = {**principal, "token_sha256": digest, **more}
        self.principals.append({field: value for field, value in fields.items() if value is not None})
        self.write()
        return token

    def revoke(self, name: str) -> None:
        self.principals = [one for one in self.principals if one["name"] != name]
        self.write()

    def write(self) -> None:
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"principals": self.principals}), encoding="utf-8")
        partial.chmod(0o600)
        partial.replace(self.path)


@pytest.fixture
def book(tmp_path: Path) -> Book:
    made = Book(tmp_path / "principals.json")
    made.write()
    return made


@pytest.fixture
def tokens(book: Book) -> dict[str, str]:
    """Principals that the server knows from its start."""
    all_roles = {"roles": ["member", "operator", "supervisor"]}
    return {
        "chief": book.give("chief", boards="*", **all_roles),
        "good": book.give("good"),
        "brief": book.give("brief", expires=_rfc3339(START_MS + 60_000)),
        "gone": book.give("gone"),
        "outsider": book.give("outsider", tenant="other", boards="*", **all_roles),
        "elsewhere": book.give("elsewhere", boards=["another"], **all_roles),
        "helper": book.give("helper", users=["u1"], conversations=["c1"], tasks="*"),
    }


@pytest.fixture
async def server(start: Started, book: Book, tokens: dict[str, str]) -> Running:
    running = await start(identity="credentials", principals_file=book.path)
    channel: Any = running.agent.channel
    await channel.unary_unary("/kokuban.v1.AdminService/CreateBoard")(
        admin_service_pb2.CreateBoardRequest(board="main").SerializeToString(), metadata=[bearer(tokens["chief"])]
    )
    return running


@pytest.fixture
def caller(server: Running) -> Caller:
    return Caller(server.agent.channel)


def test_there_is_a_request_for_every_method() -> None:
    assert set(requests("main")) == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
async def test_RB_21_no_method_answers_without_a_credential_that_is_good(
    method: str, caller: Caller, tokens: dict[str, str], clock: SettableClock
) -> None:
    """None, malformed, twice, unknown, of the development identity, expired: each is refused before anything else."""
    request = requests("main")[method]
    good, brief = tokens["good"], tokens["brief"]
    assert await _accepts(caller, brief)
    clock.pass_ms(61_000)
    cases: list[tuple[str, list[tuple[str, str]]]] = [
        ("CREDENTIAL_REQUIRED", []),
        ("CREDENTIAL_REQUIRED", [("kokuban-agent", "good"), ("kokuban-roles", "operator")]),
        ("CREDENTIAL_INVALID", [("authorization", good)]),
        ("CREDENTIAL_INVALID", [("authorization", f"Basic {good}")]),
        ("CREDENTIAL_INVALID", [("authorization", "Bearer ")]),
        ("CREDENTIAL_INVALID", [bearer(good), bearer(good)]),
        ("CREDENTIAL_INVALID", [bearer(good + "x")]),
        ("CREDENTIAL_EXPIRED", [bearer(brief)]),
    ]
    for expected, metadata in cases:
        assert await caller.reason(method, request, *metadata) == expected, metadata


async def test_RB_21_no_method_answers_to_a_credential_that_was_revoked(
    caller: Caller, book: Book, tokens: dict[str, str]
) -> None:
    gone = tokens["gone"]
    assert await _accepts(caller, gone)
    book.revoke("gone")
    await eventually(lambda: _refuses(caller, gone))
    for method, request in requests("main").items():
        assert await caller.reason(method, request, bearer(gone)) == "CREDENTIAL_INVALID", method


@pytest.mark.parametrize("method", [method for method in METHODS if method not in _WITHOUT_BOARD])
async def test_RB_20_another_tenants_board_and_one_that_the_credential_does_not_name_are_not_there(
    method: str, caller: Caller, tokens: dict[str, str]
) -> None:
    """Told exactly like a board that never was."""
    for name, board in (("outsider", "main"), ("elsewhere", "main"), ("chief", "never")):
        assert await caller.reason(method, requests(board)[method], bearer(tokens[name])) == "NOT_FOUND", name


async def test_regions_of_users_and_conversations_are_those_that_the_credential_names(
    caller: Caller, tokens: dict[str, str]
) -> None:
    """Look-alikes are others: of `u1` neither `u10`, nor `U1`, nor one with a letter of another script."""
    token = tokens["helper"]

    async def write(region: str) -> str:
        request = commit_request(put("note", region=region))
        return await caller.reason("BoardService.Commit", request, bearer(token))

    assert [await write(region) for region in ("user:u1", "conversation:c1", "task:any", "agent:helper")] == [""] * 4
    for foreign in (
        "user:u10",
        "user:U1",
        "user:u\u0661",
        "user:u",
        "conversation:c2",
        "agent:helper2",
        "agent:Helper",
    ):
        assert await write(foreign) == "NOT_FOUND", foreign


async def test_a_stream_ends_when_its_credential_is_revoked(caller: Caller, book: Book) -> None:
    token = book.give("leaver")
    await eventually(lambda: _accepts(caller, token))
    channel: Any = caller.channel
    call = channel.unary_stream("/kokuban.v1.BoardService/Watch")(
        requests("main")["BoardService.Watch"].SerializeToString(), metadata=[bearer(token)]
    )
    await call.read()
    book.revoke("leaver")
    assert await end_of(call) == "CREDENTIAL_INVALID"
    assert not await _accepts(caller, token)


async def test_a_stream_ends_when_its_credential_expires(
    caller: Caller, tokens: dict[str, str], clock: SettableClock
) -> None:
    token = tokens["brief"]
    channel: Any = caller.channel
    call = channel.unary_stream("/kokuban.v1.BoardService/Watch")(
        requests("main")["BoardService.Watch"].SerializeToString(), metadata=[bearer(token)]
    )
    await call.read()
    clock.pass_ms(61_000)
    assert await end_of(call) == "CREDENTIAL_EXPIRED"


async def test_boards_are_made_once_and_listed_for_those_who_may_know(caller: Caller, tokens: dict[str, str]) -> None:
    chief, member, stranger = tokens["chief"], tokens["good"], tokens["outsider"]
    create = admin_service_pb2.CreateBoardRequest(board="second")
    assert await caller.reason("AdminService.CreateBoard", create, bearer(chief)) == ""
    assert await caller.reason("AdminService.CreateBoard", create, bearer(chief)) == "BOARD_EXISTS"
    assert [await _boards(caller, token) for token in (chief, member, stranger)] == [["main", "second"], ["main"], []]


async def test_a_quick_start_wants_its_token_and_takes_the_name_behind_it(start: Started) -> None:
    running = await start(quickstart=True, quick_token="kk_quick")  # noqa: S106 - of a test
    caller = Caller(running.agent.channel)
    private = board_service_pb2.ListEntriesRequest(board="main", region="agent:writer-1")

    async def reason(*metadata: tuple[str, str]) -> str:
        return await caller.reason("BoardService.ListEntries", private, *metadata)

    assert await reason(("kokuban-agent", "writer-1")) == "CREDENTIAL_REQUIRED"
    assert await reason(bearer("kk_other.writer-1")) == "CREDENTIAL_INVALID"
    assert await reason(bearer("kk_quick.not an agent")) == "CREDENTIAL_INVALID"
    assert await reason(bearer("kk_quick.writer-1")) == ""
    assert await reason(bearer("kk_quick")) == "NOT_FOUND"
    assert await reason(bearer("kk_quick"), ("kokuban-agent", "writer-1")) == "NOT_FOUND"


async def _accepts(caller: Caller, token: str) -> bool:
    """Say whether the server knows a token by now: it looks at its file from time to time."""
    reason = await caller.reason("AdminService.GetStatus", admin_service_pb2.GetStatusRequest(), bearer(token))
    return not reason


async def _refuses(caller: Caller, token: str) -> bool:
    return not await _accepts(caller, token)


async def _boards(caller: Caller, token: str) -> list[str]:
    channel: Any = caller.channel
    raw = await channel.unary_unary("/kokuban.v1.AdminService/ListBoards")(
        admin_service_pb2.ListBoardsRequest().SerializeToString(), metadata=[bearer(token)]
    )
    return [board.id for board in admin_service_pb2.ListBoardsResponse.FromString(raw).boards]


def _rfc3339(time_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ms // 1000))
