"""Requests as an agent would make them with raw stubs, and refusals as it would read them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from kokuban.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    board_service_pb2,
    board_service_pb2_grpc,
    commit_pb2,
    conflict_service_pb2_grpc,
    entry_pb2,
    lock_pb2,
    lock_service_pb2,
    lock_service_pb2_grpc,
    policy_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
    trust_pb2,
    trust_service_pb2,
    trust_service_pb2_grpc,
)
from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.core import keys
from kokuban_server.core.refusals import OutcomeUnknown
from kokuban_server.ports.board_store import STRONG

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.board_store import BoardStore, Consistency, Cut, Page, Record, StoreStatus, WatchBatch
    from tests.wire.task_calls import TaskWait

REGION = "shared:plan"
PRIVATE = "agent:writer-1"
START_MS = 1_800_000_000_000
"""When a test's clock begins."""
OWNED_WORKS = 4
"""What one server at a time does in the background, each under a lease of its own."""

_count = itertools.count(1)


class Kept:
    """A store that its servers do not close, so that others can go on with it."""

    def __init__(self, store: BoardStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - of the store
        return getattr(self._store, name)

    async def close(self) -> None:
        return


class Deaf(Kept):
    """A store whose watches bring nothing while `hears` is not set: what a server knows stands still."""

    def __init__(self, store: BoardStore) -> None:
        super().__init__(store)
        self.hears = asyncio.Event()
        self.hears.set()

    async def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async with contextlib.aclosing(self._store.watch(prefixes, after_revision)) as batches:
            async for batch in batches:
                await self.hears.wait()
                yield batch


class SettableClock:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.ms = START_MS

    def now_ms(self) -> int:
        return self.ms

    def pass_ms(self, ms: int) -> None:
        self.ms += ms


async def until(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    """Come back when something holds; fail if it does not in time."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - what is waited for is inside a server, which sets no event for tests
            await asyncio.sleep(0)


async def outcome(call: Awaitable[Any]) -> Any:  # noqa: ANN401 - what the call gives
    """Give what a call gives, or its refusal."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return refusal_of(error)


async def eventually(holds: Callable[[], Awaitable[bool]], within_s: float = 10.0) -> None:
    """Come back when something holds that has to be asked for; fail if it does not in time."""
    async with asyncio.timeout(within_s):
        while not await holds():  # noqa: ASYNC110 - what is waited for is asked of a server
            await asyncio.sleep(0)


class HeldStore(MemoryStore):
    """A memory store whose commits can be held up, and that can fail as a broken adapter would."""

    def __init__(self, clock: SettableClock) -> None:
        super().__init__(clock)
        self._free = asyncio.Event()
        self._free.set()
        self.fault: Exception | None = None
        self.fault_in_watch: Exception | None = None
        self.fault_in_commit: Exception | None = None
        """Of commits that have guards."""
        self.faults_in_commit = 0
        self.loses_answers = False
        """Commits that have guards stand, and their answers do not arrive."""
        self.lost = 0
        self.deadline_s = 0.0
        """What the last commit was given."""
        self.faults = 0
        """How often it has failed."""

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        self.deadline_s = deadline_s
        await self._free.wait()
        self._fail()
        if self.fault_in_commit is not None and change.guards:
            self.faults_in_commit += 1
            raise self.fault_in_commit
        revision = await super().commit(change, deadline_s)
        if self.loses_answers and change.guards:
            self.lost += 1
            raise OutcomeUnknown
        return revision

    async def read(self, keys: Sequence[bytes], consistency: Consistency, deadline_s: float) -> Cut:
        self._fail()
        return await super().read(keys, consistency, deadline_s)

    async def scan(
        self, prefix: bytes, after: bytes, limit: int, bytes_max: int, consistency: Consistency, deadline_s: float
    ) -> Page:
        self._fail()
        return await super().scan(prefix, after, limit, bytes_max, consistency, deadline_s)

    async def status(self, deadline_s: float) -> StoreStatus:
        self._fail()
        return await super().status(deadline_s)

    async def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async with contextlib.aclosing(super().watch(prefixes, after_revision)) as batches:
            async for batch in batches:
                if self.fault_in_watch is not None:
                    raise self.fault_in_watch
                yield batch

    def _fail(self) -> None:
        if self.fault is not None:
            self.faults += 1
            raise self.fault


def new_id(time_ms: int = START_MS) -> str:
    """Give a request id of its own, made at the given time."""
    text = f"{time_ms:012x}7{next(_count) & 0xFFF:03x}8{secrets.token_hex(8)[:15]}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def key(path: str, region: str = REGION) -> entry_pb2.EntryKey:
    return entry_pb2.EntryKey(region=region, path=path)


def absent() -> entry_pb2.Precondition:
    return entry_pb2.Precondition(must_not_exist=True)


def whatever() -> entry_pb2.Precondition:
    return entry_pb2.Precondition(unconditional=True)


def at(revision: entry_pb2.Revision | commit_pb2.CommitResponse | entry_pb2.Entry) -> entry_pb2.Precondition:
    named = revision if isinstance(revision, entry_pb2.Revision) else revision.revision
    return entry_pb2.Precondition(at=named)


def put(
    path: str,
    value: str | entry_pb2.Value | None = "x",
    precondition: entry_pb2.Precondition | None = None,
    region: str = REGION,
    **more: Any,  # noqa: ANN401 - any message, or any field of one
) -> commit_pb2.Mutation:
    """Put a text (or a value) that must not exist, unless told otherwise."""
    given = entry_pb2.Value(text=value) if isinstance(value, str) else value
    return commit_pb2.Mutation(
        put=commit_pb2.Put(key=key(path, region), value=given, precondition=precondition or absent(), **more)
    )


def put_json(
    path: str,
    value: object,
    precondition: entry_pb2.Precondition | None = None,
    region: str = REGION,
) -> commit_pb2.Mutation:
    text = value if isinstance(value, str) else json.dumps(value)
    return put(path, entry_pb2.Value(json=text), precondition, region)


def delete(path: str, precondition: entry_pb2.Precondition, region: str = REGION) -> commit_pb2.Mutation:
    return commit_pb2.Mutation(delete=commit_pb2.Delete(key=key(path, region), precondition=precondition))


def increment(path: str, by: int = 1, region: str = REGION) -> commit_pb2.Mutation:
    return commit_pb2.Mutation(increment=commit_pb2.Increment(key=key(path, region), by=by))


def append(path: str, *items: object, region: str = REGION) -> commit_pb2.Mutation:
    texts = [json.dumps(item) for item in items]
    return commit_pb2.Mutation(append_to_list=commit_pb2.AppendToList(key=key(path, region), items=texts))


def add(path: str, *texts: str, region: str = REGION) -> commit_pb2.Mutation:
    """Add JSON texts, as they are spelled, to a set."""
    return commit_pb2.Mutation(add_to_set=commit_pb2.AddToSet(key=key(path, region), items=texts))


def merge(path: str, patch: str, precondition: entry_pb2.Precondition, region: str = REGION) -> commit_pb2.Mutation:
    return commit_pb2.Mutation(
        merge_patch=commit_pb2.MergePatch(key=key(path, region), precondition=precondition, patch=patch)
    )


def commit_request(
    *mutations: commit_pb2.Mutation,
    request_id: str = "",
    board: str = "main",
    reason: str = "",
    retry_of: str = "",
    preconditions: Sequence[tuple[str, entry_pb2.Precondition]] = (),
    fences: Sequence[lock_pb2.Fence] = (),
    session: str = "",
) -> commit_pb2.CommitRequest:
    return commit_pb2.CommitRequest(
        board=board,
        request_id=request_id or new_id(),
        mutations=mutations,
        preconditions=[
            commit_pb2.EntryPrecondition(key=key(path), precondition=belief) for path, belief in preconditions
        ],
        reason=reason,
        retry_of=retry_of,
        fences=fences,
        session=session,
    )


def of_source(kind: str = "EXTERNAL", uri: str = "https://example.com/page", name: str = "") -> entry_pb2.Provenance:
    """Give a provenance that names a source."""
    declared = trust_pb2.DeclaredSource(kind=trust_pb2.SourceKind.Value(f"SOURCE_KIND_{kind}"), uri=uri, name=name)
    return entry_pb2.Provenance(source=declared)


def made_of(*states: tuple[str, commit_pb2.CommitResponse | entry_pb2.Entry]) -> entry_pb2.Provenance:
    """Give a provenance that names states of the shared region's entries."""
    return entry_pb2.Provenance(
        derived_from=[entry_pb2.EntryAt(key=key(path), at=state.revision) for path, state in states]
    )


def rule(
    pattern: str,
    *,
    readers: Sequence[str] | None = None,
    writers: Sequence[str] | None = None,
    lockers: Sequence[str] | None = None,
    revealers: Sequence[str] | None = None,
    **more: Any,  # noqa: ANN401 - any field of a rule
) -> policy_pb2.RegionRule:
    """Give what a policy says of some regions."""
    made = policy_pb2.RegionRule(pattern=pattern, **more)
    for field, subjects in (
        (made.readers, readers),
        (made.writers, writers),
        (made.lockers, lockers),
        (made.revealers, revealers),
    ):
        if subjects is not None:
            field.CopyFrom(policy_pb2.Subjects(subjects=subjects))
    return made


EXCLUSIVE, SHARED = lock_pb2.LOCK_MODE_EXCLUSIVE, lock_pb2.LOCK_MODE_SHARED


def leaf(path: str, region: str = REGION) -> lock_pb2.LockTarget:
    """Give one entry as a lock's target."""
    return lock_pb2.LockTarget(region=region, path=path, scope=lock_pb2.LOCK_SCOPE_ENTRY)


def tree(path: str = "", region: str = REGION) -> lock_pb2.LockTarget:
    """Give a subtree as a lock's target; without a path all of the region."""
    return lock_pb2.LockTarget(region=region, path=path, scope=lock_pb2.LOCK_SCOPE_SUBTREE)


def lasting(seconds: float) -> Duration:
    """Give a time in whole milliseconds."""
    made = Duration()
    made.FromMilliseconds(round(seconds * 1000))
    return made


def acquire_request(
    session: str,
    *targets: str | lock_pb2.LockTarget,
    mode: lock_pb2.LockMode.ValueType = EXCLUSIVE,
    purpose: str = "to test",
    wait_s: float | None = None,
    hold_s: float | None = None,
    delay_s: float | None = None,
    request_id: str = "",
    board: str = "main",
    retry_of: str = "",
) -> lock_service_pb2.AcquireLockRequest:
    """Give a request for a lock. A text stands for the entry at that path; times not given are not sent."""
    return lock_service_pb2.AcquireLockRequest(
        board=board,
        session_id=session,
        request_id=request_id or new_id(),
        targets=[leaf(target) if isinstance(target, str) else target for target in targets],
        mode=mode,
        purpose=purpose,
        wait=None if wait_s is None else lasting(wait_s),
        hold_max=None if hold_s is None else lasting(hold_s),
        lock_delay=None if delay_s is None else lasting(delay_s),
        retry_of=retry_of,
    )


def release(fence: lock_pb2.Fence) -> commit_pb2.Mutation:
    """Give a lock back as a part of a commit."""
    return commit_pb2.Mutation(release_lock=commit_pb2.ReleaseLock(fence=fence))


class Refused(NamedTuple):
    """A refusal as a client reads it."""

    code: grpc.StatusCode
    reason: str
    facts: dict[str, str]
    message: str
    fields: list[str]
    """Of `BadRequest`."""
    retry_ms: int | None


def refusal_of(error: grpc.aio.AioRpcError) -> Refused:
    """Read the rich status of an error; a status without an `ErrorInfo` has no reason."""
    reason, facts, fields, retry_ms = "", {}, [], None
    for name, raw in error.trailing_metadata() or ():
        if name != "grpc-status-details-bin":
            continue
        status = status_pb2.Status.FromString(raw if isinstance(raw, bytes) else raw.encode())
        assert status.code == error.code().value[0]
        for detail in status.details:
            info, bad, retry = (
                error_details_pb2.ErrorInfo(),
                error_details_pb2.BadRequest(),
                error_details_pb2.RetryInfo(),
            )
            if detail.Unpack(info):
                assert info.domain == "kokuban"
                reason, facts = info.reason, dict(info.metadata)
            elif detail.Unpack(bad):
                fields = [violation.field for violation in bad.field_violations]
            elif detail.Unpack(retry):
                retry_ms = retry.retry_delay.ToMilliseconds()
    return Refused(error.code(), reason, facts, error.details() or "", fields, retry_ms)


PROMPTLY_S = 1.5
"""Within a second, and what a busy machine takes."""


async def deadlock(asking: Asking | TaskWait, within_s: float = PROMPTLY_S) -> tuple[Refused, lock_pb2.DeadlockCycle]:
    """Expect a request to be ended for a deadlock; give the refusal and the circle that it names."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await asyncio.wait_for(asking.ended(), within_s)
    refusal = refusal_of(raised.value)
    assert refusal.reason == "DEADLOCK", refusal
    assert refusal.code is grpc.StatusCode.ABORTED
    cycle = lock_pb2.DeadlockCycle()
    for name, raw in raised.value.trailing_metadata() or ():
        if name == "grpc-status-details-bin":
            assert len(raw) < 8 * 1024  # what all that lies between will carry
            details = status_pb2.Status.FromString(raw if isinstance(raw, bytes) else raw.encode()).details
            assert any(detail.Unpack(cycle) for detail in details)
    return refusal, cycle


def is_lost_status(error: grpc.aio.AioRpcError) -> bool:
    """Say whether grpc's client has lost a stream's status: it does if the server ends the stream while it writes."""
    return error.code() is grpc.StatusCode.INTERNAL and "Internal error from Core" in (error.details() or "")


def refusal_of_metadata(trailers: Any) -> str:  # noqa: ANN401 - any message, or any field of one
    """Give the reason that a call's trailing metadata names, or nothing."""
    for name, raw in trailers or ():
        if name == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(raw).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.domain == "kokuban":
                    return str(info.reason)
    return ""


@contextlib.contextmanager
def refused(reason: str, **facts: str) -> Iterator[list[Refused]]:
    """Expect a refusal with this reason and these facts; gives a list that holds it afterwards."""
    found: list[Refused] = []
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        yield found
    refusal = refusal_of(raised.value)
    assert refusal.reason == reason, refusal
    assert {name: refusal.facts.get(name) for name in facts} == facts
    found.append(refusal)


async def end_of(call: Any) -> str:  # noqa: ANN401 - as grpc types it
    """Give the reason that a stream ends with."""
    try:
        async with asyncio.timeout(10):
            while await call.read() is not grpc.aio.EOF:
                pass
    except grpc.aio.AioRpcError as error:
        return refusal_of(error).reason
    return ""


class Agent:
    """One agent's calls. `metadata` is what it says about itself."""

    def __init__(self, channel: grpc.aio.Channel, name: str = "writer-1", roles: str = "") -> None:
        self.name = name
        self.metadata: tuple[tuple[str, str], ...] = (("kokuban-agent", name),)
        if roles:
            self.metadata += (("kokuban-roles", roles),)
        self.channel = channel
        self.board = board_service_pb2_grpc.BoardServiceStub(channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        self.sessions = session_service_pb2_grpc.SessionServiceStub(channel)
        self.locks = lock_service_pb2_grpc.LockServiceStub(channel)
        self.conflicts = conflict_service_pb2_grpc.ConflictServiceStub(channel)
        self.trust = trust_service_pb2_grpc.TrustServiceStub(channel)

    async def send(self, request: commit_pb2.CommitRequest, *more: tuple[str, str]) -> commit_pb2.CommitResponse:
        answer: commit_pb2.CommitResponse = await self.board.Commit(request, metadata=(*self.metadata, *more))
        return answer

    async def commit(self, *mutations: commit_pb2.Mutation, **more: Any) -> commit_pb2.CommitResponse:  # noqa: ANN401 - any message, or any field of one
        return await self.send(commit_request(*mutations, **more))

    async def screen(self, text: str, **more: Any) -> trust_service_pb2.ScreenTextResponse:  # noqa: ANN401 - as above
        request = trust_service_pb2.ScreenTextRequest(board="main", text=text, **more)
        answer: trust_service_pb2.ScreenTextResponse = await self.trust.ScreenText(request, metadata=self.metadata)
        return answer

    async def reveal(
        self,
        path: str,
        region: str = REGION,
        board: str = "main",
        **more: Any,  # noqa: ANN401 - any other field of the request
    ) -> trust_service_pb2.RevealEntryResponse:
        request = trust_service_pb2.RevealEntryRequest(board=board, key=key(path, region), **more)
        answer: trust_service_pb2.RevealEntryResponse = await self.trust.RevealEntry(request, metadata=self.metadata)
        return answer

    async def redact(self, text: str, **more: Any) -> trust_service_pb2.RedactTextResponse:  # noqa: ANN401 - as above
        request = trust_service_pb2.RedactTextRequest(board="main", text=text, **more)
        answer: trust_service_pb2.RedactTextResponse = await self.trust.RedactText(request, metadata=self.metadata)
        return answer

    async def get(
        self, path: str, region: str = REGION, consistency: entry_pb2.ReadConsistency | None = None
    ) -> entry_pb2.Entry:
        return (await self.read(path, region, consistency)).entry

    async def read(
        self, path: str, region: str = REGION, consistency: entry_pb2.ReadConsistency | None = None
    ) -> board_service_pb2.GetEntryResponse:
        request = board_service_pb2.GetEntryRequest(board="main", key=key(path, region), consistency=consistency)
        answer: board_service_pb2.GetEntryResponse = await self.board.GetEntry(request, metadata=self.metadata)
        return answer

    async def set_policy(
        self,
        *rules: policy_pb2.RegionRule,
        replaces: int = 0,
        administrators: Sequence[str] | None = None,
        board: str = "main",
        reason: str = "",
        tools: Sequence[policy_pb2.ToolRule] = (),
        **more: Any,  # noqa: ANN401 - any other field of a policy
    ) -> admin_service_pb2.SetPolicyResponse:
        """Lay down a policy, as an operator."""
        policy = policy_pb2.Policy(rules=rules, tools=tools, **more)
        if administrators is not None:
            policy.administrators.subjects.extend(administrators)
        request = admin_service_pb2.SetPolicyRequest(board=board, policy=policy, replaces=replaces, reason=reason)
        answer: admin_service_pb2.SetPolicyResponse = await self.admin.SetPolicy(request, metadata=self.metadata)
        return answer

    async def explain(self, region: str, verb: policy_pb2.Verb.ValueType) -> admin_service_pb2.ExplainAccessResponse:
        request = admin_service_pb2.ExplainAccessRequest(board="main", region=region, verb=verb)
        answer: admin_service_pb2.ExplainAccessResponse = await self.admin.ExplainAccess(
            request, metadata=self.metadata
        )
        return answer

    async def asked(
        self, path: str, floor: str = "EXTERNAL", session: str = "", region: str = REGION
    ) -> entry_pb2.Entry:
        """Read an entry with a floor, in a session's read scope."""
        request = board_service_pb2.GetEntryRequest(
            board="main",
            key=key(path, region),
            floor=trust_pb2.TrustLevel.Value(f"TRUST_LEVEL_{floor}"),
            session=session,
        )
        answer: board_service_pb2.GetEntryResponse = await self.board.GetEntry(request, metadata=self.metadata)
        return answer.entry

    async def endorse(
        self,
        path: str,
        state: commit_pb2.CommitResponse | entry_pb2.Entry,
        level: str = "USER",
        reason: str = "read it",
        region: str = REGION,
        **more: Any,  # noqa: ANN401 - any field of the request
    ) -> trust_service_pb2.EndorseResponse:
        request = trust_service_pb2.EndorseRequest(
            **{"board": "main", "request_id": new_id(), **more},
            key=key(path, region),
            at=state.revision,
            trust=trust_pb2.TrustLevel.Value(f"TRUST_LEVEL_{level}"),
            reason=reason,
        )
        answer: trust_service_pb2.EndorseResponse = await self.trust.Endorse(request, metadata=self.metadata)
        return answer

    async def quarantine(self, **more: Any) -> list[trust_service_pb2.QuarantinedCommit]:  # noqa: ANN401 - any field of the request
        request = trust_service_pb2.ListQuarantineRequest(board="main", **more)
        return list((await self.trust.ListQuarantine(request, metadata=self.metadata)).commits)

    async def review(
        self, *ids: str, release: bool = True, reason: str = "read it"
    ) -> list[trust_service_pb2.ReviewResult]:
        decision = (
            trust_service_pb2.QUARANTINE_DECISION_RELEASE if release else trust_service_pb2.QUARANTINE_DECISION_REJECT
        )
        request = trust_service_pb2.ReviewQuarantineRequest(board="main", ids=ids, decision=decision, reason=reason)
        return list((await self.trust.ReviewQuarantine(request, metadata=self.metadata)).results)

    async def trace(
        self,
        path: str,
        *,
        descends: bool = False,
        region: str = REGION,
        **more: Any,  # noqa: ANN401 - any field of the request
    ) -> trust_service_pb2.TraceProvenanceResponse:
        direction = trust_service_pb2.PROVENANCE_DIRECTION_ANCESTORS
        if descends:
            direction = trust_service_pb2.PROVENANCE_DIRECTION_DESCENDANTS
        request = trust_service_pb2.TraceProvenanceRequest(
            board="main", key=key(path, region), direction=direction, **more
        )
        answer: trust_service_pb2.TraceProvenanceResponse = await self.trust.TraceProvenance(
            request, metadata=self.metadata
        )
        return answer

    async def plan_purge(self, *, again: bool = False, **selector: Any) -> trust_service_pb2.PurgeSourceResponse:  # noqa: ANN401 - any field of it
        request = trust_service_pb2.PurgeSourceRequest(
            board="main",
            selector=trust_service_pb2.SourceSelector(**selector),
            reason="it lies",
            allows_reingest=again,
        )
        answer: trust_service_pb2.PurgeSourceResponse = await self.trust.PurgeSource(request, metadata=self.metadata)
        return answer

    async def purge(self, plan: str) -> trust_service_pb2.Removal:
        request = trust_service_pb2.PurgeSourceRequest(board="main", plan=plan)
        return (await self.trust.PurgeSource(request, metadata=self.metadata)).removal

    async def plan_erasure(self, user: str, *, again: bool = False) -> trust_service_pb2.EraseSubjectResponse:
        request = trust_service_pb2.EraseSubjectRequest(
            board="main", user=user, reason="asked to", allows_reingest=again
        )
        answer: trust_service_pb2.EraseSubjectResponse = await self.trust.EraseSubject(request, metadata=self.metadata)
        return answer

    async def erase(self, plan: str) -> trust_service_pb2.Removal:
        request = trust_service_pb2.EraseSubjectRequest(board="main", plan=plan)
        return (await self.trust.EraseSubject(request, metadata=self.metadata)).removal

    async def removal(self, name: str) -> trust_service_pb2.Removal:
        request = trust_service_pb2.GetRemovalRequest(board="main", id=name)
        return (await self.trust.GetRemoval(request, metadata=self.metadata)).removal

    async def json(self, path: str, region: str = REGION) -> str:
        return (await self.get(path, region)).value.json

    async def page(self, path: str = "", region: str = REGION, **more: Any) -> board_service_pb2.ListEntriesResponse:  # noqa: ANN401 - any message, or any field of one
        request = board_service_pb2.ListEntriesRequest(board="main", region=region, path=path, **more)
        answer: board_service_pb2.ListEntriesResponse = await self.board.ListEntries(request, metadata=self.metadata)
        return answer

    async def paths(self, path: str = "", region: str = REGION) -> list[str]:
        """Give every path at and below `path`, over as many pages as there are."""
        found: list[str] = []
        token = ""
        while True:
            page = await self.page(path, region, page_token=token, page_size=1000)
            found += [entry.key.path for entry in page.entries]
            token = page.next_page_token
            if not token:
                return found

    async def history(self, path: str, region: str = REGION, **more: Any) -> list[entry_pb2.EntryChange]:  # noqa: ANN401 - any message, or any field of one
        request = board_service_pb2.ListRevisionsRequest(
            board="main", key=key(path, region), **{"page_size": 1000, **more}
        )
        answer = await self.board.ListRevisions(request, metadata=self.metadata)
        return list(answer.revisions)

    def watch(self, *targets: str, **start: Any) -> Watched:  # noqa: ANN401 - any message, or any field of one
        """Watch paths of the shared region; none watches all of it."""
        request = board_service_pb2.WatchRequest(
            board="main",
            targets=[board_service_pb2.WatchTarget(region=REGION, path=path) for path in targets or ("",)],
            **start,
        )
        return Watched(self.board.Watch(request, metadata=self.metadata))

    # Sessions.

    async def open_session(
        self, ttl_s: float = 60.0, label: str = "", request_id: str = "", board: str = "main"
    ) -> session_service_pb2.OpenSessionResponse:
        request = session_service_pb2.OpenSessionRequest(
            board=board, request_id=request_id or new_id(), ttl=lasting(ttl_s), label=label
        )
        answer: session_service_pb2.OpenSessionResponse = await self.sessions.OpenSession(
            request, metadata=self.metadata
        )
        return answer

    async def session(self, ttl_s: float = 60.0) -> str:
        """Open a session; give its id."""
        return (await self.open_session(ttl_s)).session.id

    async def close(self, session: str) -> bool:
        """Close a session; say whether it was there."""
        request = session_service_pb2.CloseSessionRequest(board="main", session_id=session)
        return not (await self.sessions.CloseSession(request, metadata=self.metadata)).already_gone

    async def presence(self, **more: Any) -> list[session_service_pb2.SessionPresence]:  # noqa: ANN401 - any field of the request
        request = session_service_pb2.ListSessionsRequest(board="main", **more)
        return list((await self.sessions.ListSessions(request, metadata=self.metadata)).sessions)

    async def keep_alive(self, session: str) -> Pulse:
        """Begin to keep a session alive; comes back after the first renewal."""
        pulse = Pulse(self, session)
        await pulse.renew()
        return pulse

    # Locks.

    def ask(self, request: lock_service_pb2.AcquireLockRequest, timeout_s: float | None = None) -> Asking:
        """Send a request for a lock, and give its stream."""
        return Asking(self.locks.AcquireLock(request, metadata=self.metadata, timeout=timeout_s))

    async def grant(self, request: lock_service_pb2.AcquireLockRequest) -> lock_service_pb2.LockGranted:
        """Send a request for a lock; give its grant, however long it waits."""
        return await self.ask(request).granted()

    async def acquire(self, session: str, *targets: str | lock_pb2.LockTarget, **more: Any) -> lock_pb2.Fence:  # noqa: ANN401 - of `acquire_request`
        """Get a lock; give its fence."""
        return (await self.grant(acquire_request(session, *targets, **more))).fence

    async def claim(
        self,
        session: str,
        *candidates: str,
        scope: lock_pb2.LockScope.ValueType = lock_pb2.LOCK_SCOPE_ENTRY,
        purpose: str = "to test",
        request_id: str = "",
        **more: Any,  # noqa: ANN401 - any field of the request
    ) -> lock_service_pb2.ClaimEntryResponse:
        request = lock_service_pb2.ClaimEntryRequest(
            board="main",
            session_id=session,
            request_id=request_id or new_id(),
            candidates=[key(path) for path in candidates],
            scope=scope,
            purpose=purpose,
            **more,
        )
        answer: lock_service_pb2.ClaimEntryResponse = await self.locks.ClaimEntry(request, metadata=self.metadata)
        return answer

    async def release(self, fence: lock_pb2.Fence) -> bool:
        """Give a lock back; say whether it was held until now."""
        request = lock_service_pb2.ReleaseLockRequest(board="main", fence=fence)
        outcome = (await self.locks.ReleaseLock(request, metadata=self.metadata)).outcome
        assert outcome in {lock_service_pb2.RELEASE_OUTCOME_RELEASED, lock_service_pb2.RELEASE_OUTCOME_ALREADY_GONE}
        return outcome == lock_service_pb2.RELEASE_OUTCOME_RELEASED

    async def downgrade(self, fence: lock_pb2.Fence) -> lock_pb2.Lock:
        request = lock_service_pb2.DowngradeLockRequest(board="main", fence=fence)
        return (await self.locks.DowngradeLock(request, metadata=self.metadata)).lock

    async def break_lock(
        self,
        lock_id: str,
        reason: str = "because",
        *,
        skip_lock_delay: bool = False,
    ) -> lock_pb2.Lock:
        request = lock_service_pb2.BreakLockRequest(
            board="main", lock_id=lock_id, reason=reason, skip_lock_delay=skip_lock_delay
        )
        return (await self.locks.BreakLock(request, metadata=self.metadata)).lock

    async def list_locks(self, path: str = "", region: str = REGION, **more: Any) -> lock_service_pb2.ListLocksResponse:  # noqa: ANN401 - any field of the request
        request = lock_service_pb2.ListLocksRequest(board="main", region=region, path=path, **more)
        answer: lock_service_pb2.ListLocksResponse = await self.locks.ListLocks(request, metadata=self.metadata)
        return answer

    async def lock_ids(self) -> list[str]:
        """Give the ids of the locks of the shared region."""
        return [lock.id for lock in (await self.list_locks()).locks]

    async def check_current(
        self,
        *fences: lock_pb2.Fence,
        entries: Sequence[tuple[entry_pb2.EntryKey, entry_pb2.Revision]] = (),
    ) -> board_service_pb2.CheckCurrentResponse:
        request = board_service_pb2.CheckCurrentRequest(
            board="main",
            entries=[entry_pb2.EntryAt(key=named, at=revision) for named, revision in entries],
            fences=fences,
        )
        answer: board_service_pb2.CheckCurrentResponse = await self.board.CheckCurrent(request, metadata=self.metadata)
        return answer


class Asking:
    """A request for a lock, on its stream."""

    def __init__(self, call: Any) -> None:  # noqa: ANN401 - no type of the stubs fits
        self.call = call

    async def next(self) -> lock_service_pb2.AcquireLockResponse:
        response = await self.call.read()
        if response is grpc.aio.EOF:
            raise StopAsyncIteration
        assert isinstance(response, lock_service_pb2.AcquireLockResponse)
        return response

    async def queued(self) -> lock_service_pb2.LockQueued:
        """Read where it stands, which must be in the queue."""
        response = await self.next()
        assert response.WhichOneof("progress") == "queued", response
        return response.queued

    async def granted(self) -> lock_service_pb2.LockGranted:
        """Read until the grant, which must be the end of the stream."""
        while True:
            response = await self.next()
            if response.WhichOneof("progress") == "granted":
                assert await self.call.read() is grpc.aio.EOF
                return response.granted

    async def ended(self) -> None:
        """Read until the refusal, and raise it."""
        while True:
            response = await self.next()
            assert response.WhichOneof("progress") == "queued", response

    def cancel(self) -> None:
        self.call.cancel()


class Pulse:
    """A stream that keeps a session alive."""

    def __init__(self, agent: Agent, session: str) -> None:
        self.session = session
        self.call: Any = agent.sessions.KeepAlive(metadata=agent.metadata)

    async def send(self, board: str = "main", session: str | None = None) -> None:
        named = self.session if session is None else session
        await self.call.write(session_service_pb2.KeepAliveRequest(board=board, session_id=named))

    async def next(self) -> session_service_pb2.KeepAliveResponse:
        response = await self.call.read()
        if response is grpc.aio.EOF:
            raise StopAsyncIteration
        assert isinstance(response, session_service_pb2.KeepAliveResponse)
        return response

    async def renew(self) -> session_service_pb2.KeepAliveResponse:
        """Renew, and read the next answer, which must say that it is so."""
        await self.send()
        response = await self.next()
        assert response.state == session_service_pb2.SESSION_STATE_RENEWED, response
        return response

    async def news(self) -> session_service_pb2.KeepAliveResponse:
        """Read the next message."""
        return await self.next()

    def cancel(self) -> None:
        self.call.cancel()


class Watched:
    """A watch that is read response by response."""

    def __init__(self, call: Any) -> None:  # noqa: ANN401 - any message, or any field of one
        self.call = call
        self.token = ""
        """Where to resume."""

    async def next(self) -> board_service_pb2.WatchResponse:
        response = await self.call.read()
        if response is grpc.aio.EOF:
            raise StopAsyncIteration
        assert isinstance(response, board_service_pb2.WatchResponse)
        self.token = response.token or self.token
        return response

    async def begun(self) -> Watched:
        """Read the first bookmark: the watch stands."""
        assert (await self.next()).WhichOneof("content") == "bookmark"
        return self

    async def changes(self, count: int) -> list[entry_pb2.EntryChange]:
        """Read until so many changes have come."""
        found: list[entry_pb2.EntryChange] = []
        while len(found) < count:
            found += (await self.next()).events.changes
        return found

    async def until(self, token: str) -> list[board_service_pb2.WatchResponse]:
        """Read until everything up to a token has come."""
        wanted = base64.urlsafe_b64decode(token)[9:17]
        found: list[board_service_pb2.WatchResponse] = []
        while not self.token or base64.urlsafe_b64decode(self.token)[9:17] < wanted:
            found.append(await self.next())
        return found

    def cancel(self) -> None:
        self.call.cancel()


class Member:
    """An agent with a session of its own."""

    def __init__(self, agent: Agent, session: str) -> None:
        self.agent = agent
        self.session = session

    def ask(self, *targets: str | lock_pb2.LockTarget, **more: Any) -> Asking:  # noqa: ANN401 - of `acquire_request`
        """Send a request for a lock, and give its stream."""
        return self.agent.ask(acquire_request(self.session, *targets, **more))

    async def acquire(self, *targets: str | lock_pb2.LockTarget, **more: Any) -> lock_pb2.Fence:  # noqa: ANN401 - as above
        """Get a lock; give its fence."""
        return await self.agent.acquire(self.session, *targets, **more)

    async def queued(self, *targets: str | lock_pb2.LockTarget, **more: Any) -> Asking:  # noqa: ANN401 - as above
        """Ask for a lock that is to be waited for; comes back when the request stands in the queue."""
        asking = self.ask(*targets, **{"wait_s": 60, **more})
        await asking.queued()
        return asking


async def records(store: BoardStore, prefix: bytes = keys.LOCKING) -> list[Record]:
    """Give what a store holds below a prefix."""
    return list((await store.scan(prefix, b"", 10_000, 2**26, STRONG, 10.0)).records)


async def names(store: BoardStore, kind: bytes) -> list[str]:
    """Give the names of all records of a kind: sessions, locks, markers or waits."""
    return [keys.parse_locking(record.key)[2] for record in await records(store, kind)]


async def waits(agent: Agent, count: int) -> bool:
    """Say whether so many requests wait in the shared region."""
    return len((await agent.list_locks()).waits) == count


async def lapse(store: BoardStore, session: str) -> None:
    """End a session as if nobody had renewed it."""
    for record in await records(store, keys.SESSION):
        if keys.parse_locking(record.key)[2] == session:
            assert record.lease is not None
            await store.revoke_lease(record.lease, 10.0)
            return
    raise AssertionError("there is no such session")


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", options=(("grpc.use_local_subchannel_pool", 1),)
    ) as channel:
        yield channel
