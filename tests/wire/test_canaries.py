"""A secret that is written through any call is found nowhere afterwards: in no file, answer, event, span, log, metric or error.

Every text field of every method's request is tried, in several forms; the methods are those that the API describes. One that is
new fails here until it is among those that keep what they are told or those that do not, and a field of a request that is kept
until it is named in `wire.free_texts`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from collections import defaultdict
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from urllib.parse import quote

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.rpc import status_pb2

from kokuban.v1 import (
    admin_service_pb2,
    board_service_pb2,
    commit_pb2,
    conflict_service_pb2,
    entry_pb2,
    lock_service_pb2,
    policy_pb2,
    session_service_pb2,
    task_service_pb2,
    trust_pb2,
    trust_service_pb2,
)
from kokuban.v1.error_reason_pb2 import ErrorReason
from kokuban_server.adapters.encryption import key_line
from kokuban_server.adapters.sqlite import SqliteStore
from kokuban_server.bootstrap import Server
from kokuban_server.bootstrap.encryption import open_encryption
from kokuban_server.bootstrap.telemetry import open_tracer
from kokuban_server.settings import Settings, TracingSettings
from kokuban_server.wire.free_texts import IDENTIFIER, JSON, NAME, SKIPPED, TREATMENTS, free_text_fields
from tests.core.obfuscations import ORDERS_EN, hidden
from tests.telemetry.collector import Collector
from tests.wire.audit_calls import audit_records
from tests.wire.calls import (
    REGION,
    Agent,
    SettableClock,
    Watched,
    acquire_request,
    add,
    append,
    at,
    commit_request,
    connected,
    delete,
    increment,
    key,
    leaf,
    merge,
    new_id,
    of_source,
    put,
    put_json,
    refusal_of,
    rule,
    tree,
    whatever,
)
from tests.wire.conflict_calls import listed
from tests.wire.conftest import DIGEST_KEY, Running
from tests.wire.task_calls import create_request, new_step
from tests.wire.task_grounds import Grounds, mutations_of_tasks
from tests.wire.test_credentials import requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from google.protobuf.descriptor import MethodDescriptor
    from google.protobuf.message import Message

CANARY: Final = "ghp_" + "q7Wm2ZpX9cVb4NkL8tRy1sDf6GhJ3aKe5uQo"
BOARD_CANARY: Final = "sk-q7wm2zpx9cvb4nkl8try1sdf6gh3ja"
"""One that could be a board's name."""
FORMS: Final[dict[str, Callable[[str], str]]] = {
    "plain": str,
    "in words": lambda text: f"the token is {text}, keep it",
    "base64": lambda text: base64.b64encode(f"token {text}".encode()).decode(),
    "hexadecimal": lambda text: text.encode().hex(),
    "percent signs": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
}
SERVICES: Final = [
    service
    for module in (
        *(board_service_pb2, session_service_pb2, lock_service_pb2),
        *(conflict_service_pb2, admin_service_pb2, trust_service_pb2),
        task_service_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
]
METHODS: Final[dict[str, MethodDescriptor]] = {
    f"{service.name}.{method.name}": method for service in SERVICES for method in service.methods
}
KEEPS_NOTHING: Final = {
    **dict.fromkeys(
        (
            *("BoardService.GetEntry", "BoardService.BatchGetEntries", "BoardService.ListEntries"),
            *("BoardService.ListRevisions", "BoardService.Watch", "BoardService.CheckCurrent"),
            *("SessionService.ListSessions", "LockService.ListLocks", "ConflictService.ListConflicts"),
            *("ConflictService.WatchConflicts", "ConflictService.SummarizeConflicts", "AdminService.GetStatus"),
            *("AdminService.GetBoard", "AdminService.ListBoards", "AdminService.GetPolicy"),
            *("AdminService.ExplainAccess", "AdminService.ListAuditRecords", "AdminService.VerifyAudit"),
            *("TrustService.ListQuarantine", "TrustService.TraceProvenance", "TrustService.GetRemoval"),
            *("TrustService.ListRemovals", "TaskService.GetTask", "TaskService.ListTasks", "TaskService.ListEvents"),
            "TaskService.ExportTask",
        ),
        "it only reads; that it was refused is audited without secrets",
    ),
    **dict.fromkeys(
        (
            *("SessionService.KeepAlive", "SessionService.CloseSession", "LockService.DowngradeLock"),
            *("LockService.ReleaseLock", "AdminService.Compact", "AdminService.ExamineStore"),
        ),
        "it takes ids and tokens alone, which are given by the server and have one form",
    ),
    "TaskService.WaitForTask": "it names what is there, which was looked at when it was made",
    **dict.fromkeys(
        ("TaskService.ArchiveTask", "TaskService.RestoreTask"),
        "it takes the name of a task that is there, and lines that the server wrote: of any other nothing is kept",
    ),
    **dict.fromkeys(("TrustService.ScreenText", "TrustService.RedactText"), "it judges a text, and keeps nothing"),
    "TrustService.RevealEntry": "it gives what is encrypted to who asks, and keeps nothing of it",
}
"""Why a method's texts need not be masked. They are tried all the same."""


TAKEN_SHARE_MIN: Final = 1 / 8
"""Of the requests of each method and kind of mutation so many must be taken at least, or their words land nowhere."""
HOLD_NAMES_ALONE: Final = {"delete", "AdminService.CreateBoard"}
"""Each of their texts is a name, and a secret name is refused."""
_NO_ID: Final = "0" * 32
KEY: Final = " (key)"
PREFIXES: Final = {
    "EntryKey.region": "task:",
    "LockTarget.region": "task:",
    "RegionRule.pattern": "task:",
    "Subjects.subjects": "agent:",
    "FieldMask.paths": "metadata.",
}
"""What a field has to begin with."""


class Leaf(NamedTuple):
    """A text field of a message that is filled."""

    name: str
    """Message and field."""
    holder: Any
    slot: str | int

    def fill(self, text: str) -> None:
        text = f"{PREFIXES.get(self.name, '')}{text}"
        if self.name.endswith(KEY):
            self.holder[text] = self.holder.pop(self.slot)
        elif not hasattr(self.holder, "DESCRIPTOR"):
            self.holder[self.slot] = text
        else:
            is_bytes = self.holder.DESCRIPTOR.fields_by_name[self.slot].type == FieldDescriptor.TYPE_BYTES
            setattr(self.holder, str(self.slot), text.encode() if is_bytes else text)


def leaves(message: Message, found: list[Leaf] | None = None) -> list[Leaf]:
    """Give every text that a message holds, whatever the server makes of its field."""
    found = [] if found is None else found
    for field, value in message.ListFields():
        name = f"{message.DESCRIPTOR.name}.{field.name}"
        many = value if field.is_repeated else [value]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found.extend(Leaf(f"{name}{suffix}", value, one) for one in value for suffix in ("", KEY))
        elif field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
            found.extend(
                Leaf(name, value, place) if field.is_repeated else Leaf(name, message, field.name)
                for place, _ in enumerate(many)
            )
        elif field.message_type is not None:
            for one in many:
                leaves(one, found)
    return found


class World:
    """A board on which everything can be written, and everything that was said about it."""

    def __init__(self, running: Running, folder: Path, collector: Collector) -> None:
        self.running = running
        self.folder = folder
        self.collector = collector
        self.agent = running.as_agent("all", "member,operator,supervisor,system,auditor")
        self.said: list[bytes] = []
        self.tried: set[str] = set()
        self.taken: defaultdict[str, list[bool]] = defaultdict(list)
        """For each method, and each kind of mutation, which of its requests were taken."""
        self.grounds = Grounds(self.agent)
        self.stopped = False
        self._count = 0

    @property
    def regions(self) -> list[str]:
        """Where entries and events were written."""
        return [REGION, *[f"task:{name}" for name in self.grounds.names]]

    async def stop(self) -> None:
        """Stop the server, which sends its spans and writes what waits."""
        self.stopped = True
        await self.running.server.stop()

    async def try_all(self, method: str, base: Message) -> None:
        """Send a request once for each of its texts and each form, with the secret there; hold what becomes of it."""
        for place, one in enumerate(leaves(base)):
            for form, encode in FORMS.items():
                await self.try_one(method, base, place, one.name, encode(CANARY), form)

    async def try_one(self, method: str, base: Message, place: int, name: str, text: str, form: str) -> None:
        message = type(base)()
        message.CopyFrom(base)
        treatment = NAME if name.endswith(KEY) else TREATMENTS.get(name)
        if name == "CreateBoardRequest.board":
            text = BOARD_CANARY
        leaves(message)[place].fill(json.dumps(text) if treatment is JSON else text)
        await self.fresh(message, name)
        reason = await self.send(method, message)
        self.taken[_what(method, message)].append(not reason)
        if method in KEEPS_NOTHING or name in SKIPPED:
            return
        self.tried.add(name)
        assert treatment is not None, f"{name} is not named in wire.free_texts"
        if treatment in {NAME, IDENTIFIER}:
            # A name has its own form too, which an encoded one may not have.
            assert reason == "CONTENT_SENSITIVE" or (form != "plain" and reason != ""), (method, name, form, reason)
        else:
            assert not reason, (method, name, form, reason)

    async def fresh(self, message: Message, name: str) -> None:
        """Give a request an id and a path of its own, but for what is tried, and the newest revision."""
        self._count += 1
        commit: Any = getattr(message, "commit", message)
        if "request_id" in commit.DESCRIPTOR.fields_by_name and not name.endswith(".request_id"):
            commit.request_id = new_id()
        for mutation in getattr(commit, "mutations", ()):
            body = getattr(mutation, mutation.WhichOneof("kind"))
            if mutation.WhichOneof("kind") == "merge_patch":
                body.precondition.at.CopyFrom((await self.agent.get("patched")).revision)
            elif name != "EntryKey.path" and "key" in body.DESCRIPTOR.fields_by_name:
                body.key.path = f"{body.key.path.partition('~')[0]}~{self._count}"
        await self.grounds.prepare(message, name)
        prepare = self._PREPARED.get(type(message))
        if prepare is not None and name not in {"EntryKey.path", "LockTarget.path"}:
            await prepare(self, message)

    async def _endorsed(self, message: trust_service_pb2.EndorseRequest) -> None:
        message.key.path = f"endorsed~{self._count}"
        state = await self.agent.commit(put(message.key.path, precondition=whatever()))
        message.at.CopyFrom(state.revision)

    async def _locked(self, message: lock_service_pb2.AcquireLockRequest) -> None:
        message.targets[0].path = f"locked~{self._count}"

    async def _claimed(self, message: lock_service_pb2.ClaimEntryRequest) -> None:
        message.candidates[0].path = f"claimed~{self._count}"
        await self.agent.commit(put(message.candidates[0].path, precondition=whatever()))

    async def _broken(self, message: lock_service_pb2.BreakLockRequest) -> None:
        granted = await self.agent.grant(acquire_request(await self.agent.session(), leaf(f"broken~{self._count}")))
        if message.lock_id == _NO_ID:  # it is not what is tried
            message.lock_id = granted.lock.id

    async def _on_its_own_board(
        self, message: admin_service_pb2.DeleteBoardRequest | admin_service_pb2.SetPolicyRequest
    ) -> None:
        if message.board == "main":
            message.board = f"board-{self._count}"
        await self.send("AdminService.CreateBoard", admin_service_pb2.CreateBoardRequest(board=message.board))

    async def _reviewed(self, message: trust_service_pb2.ReviewQuarantineRequest) -> None:
        name = await self.held_back()
        if set(message.ids[0]) <= set("0-"):
            message.ids[0] = name

    _PREPARED: ClassVar[dict[type[Message], Callable[[World, Any], Awaitable[None]]]] = {
        trust_service_pb2.EndorseRequest: _endorsed,
        lock_service_pb2.AcquireLockRequest: _locked,
        lock_service_pb2.ClaimEntryRequest: _claimed,
        lock_service_pb2.BreakLockRequest: _broken,
        admin_service_pb2.DeleteBoardRequest: _on_its_own_board,
        admin_service_pb2.SetPolicyRequest: _on_its_own_board,
        trust_service_pb2.ReviewQuarantineRequest: _reviewed,
    }

    async def held_back(self) -> str:
        """Have a commit with the secret held back; give its id."""
        order = hidden("en", ORDERS_EN[0], "HTML comment")
        page = put(f"page~{self._count}", f"{order} {CANARY}", whatever(), provenance=of_source())
        request = commit_request(page, request_id=new_id(), reason=f"with {CANARY}")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.agent.send(request)
        return refusal_of(raised.value).facts["quarantine_id"]

    async def send(self, method: str, message: Message) -> str:
        """Send a request; give the reason of its refusal, or nothing. What is answered is kept, but for what was only asked."""
        described = METHODS[method]
        path = f"/{described.containing_service.full_name}/{described.name}"
        channel: Any = self.agent.channel
        raw = message.SerializeToString()
        kind = (described.client_streaming, described.server_streaming)
        try:
            if kind == (False, False):
                answer = await channel.unary_unary(path)(raw, metadata=self.agent.metadata, timeout=20)
                self.said += [answer] if method not in KEEPS_NOTHING else []
                return ""
            if kind == (False, True):
                call = channel.unary_stream(path)(raw, metadata=self.agent.metadata, timeout=20)
            else:
                call = channel.stream_stream(path)(metadata=self.agent.metadata, timeout=20)
                await call.write(raw)
            answer = await call.read()
            call.cancel()
            if method == "BoardService.CommitStream":  # by its id, whatever that is, a sender knows which answer it is
                answer = _without_id(answer)
            self.said += [answer] if method not in KEEPS_NOTHING else []
        except grpc.aio.AioRpcError as error:
            self.said += [str(error.details()).encode(), repr(error).encode(), *_trailers(error)]
            return refusal_of(error).reason
        if method == "BoardService.CommitStream":
            streamed = commit_pb2.CommitStreamResponse.FromString(answer)
            if streamed.WhichOneof("result") == "refused":
                return ErrorReason.Name(streamed.refused.reason).removeprefix("ERROR_REASON_")
        return ""


def _what(method: str, message: Message) -> str:
    """Name a request by its method, and by its last mutation if it has one."""
    mutations: Any = getattr(getattr(message, "commit", message), "mutations", ())
    return " ".join([method, *[one.WhichOneof("kind") for one in mutations[-1:]]])


def _without_id(raw: bytes) -> bytes:
    answer = commit_pb2.CommitStreamResponse.FromString(raw)
    answer.ClearField("request_id")
    return answer.SerializeToString()


def _trailers(error: grpc.aio.AioRpcError) -> Iterator[bytes]:
    for name, value in error.trailing_metadata() or ():
        raw = value if isinstance(value, bytes) else value.encode()
        yield raw
        if name == "grpc-status-details-bin":
            yield status_pb2.Status.FromString(raw).SerializeToString()


async def filled(world: World) -> dict[str, list[Message]]:
    """Give a request for each method, with everything filled in that can hold a text."""
    made: dict[str, list[Message]] = {method: [message] for method, message in requests("main").items()}
    agent = world.agent
    session = await agent.session()
    said: dict[str, Any] = {"metadata": {"kind": "note"}, "provenance": of_source("TOOL", "https://a.example", "grep")}
    binary = entry_pb2.Value(binary=entry_pb2.BinaryValue(data=b"x", media_type="text/plain"))
    masked = put("masked", "x", whatever(), **said)
    masked.put.update_mask.paths[:] = ["value", "metadata.kind"]
    everything = commit_request(
        put("text", "x", whatever(), **said),
        masked,
        put_json("json", {"a": 1}, whatever()),
        put("binary", binary, whatever()),
        increment("number"),
        append("list", "x"),
        add("set", '"x"'),
        reason="because",
        session=session,
        retry_of=new_id(),
        preconditions=[("none", entry_pb2.Precondition(must_not_exist=True))],
    )
    state = await agent.commit(put_json("patched", {}, whatever()))
    patch = commit_request(merge("patched", '{"a": 1}', at(state)))
    parent = await agent.commit(put("parent", "x", whatever()))
    child = put("child", "x", whatever())
    child.put.provenance.derived_from.add(key=key("parent"), at=parent.revision)
    gone = commit_request(delete("gone", whatever()))
    made["BoardService.Commit"] = [everything, patch, commit_request(child), gone]
    made["BoardService.Commit"] += [commit_request(one) for one in mutations_of_tasks()]
    made["BoardService.CommitStream"] = [
        commit_pb2.CommitStreamRequest(commit=commit)  # type: ignore[arg-type] # they are commits
        for commit in made["BoardService.Commit"]
    ]
    made["SessionService.OpenSession"][0].label = "worker"  # type: ignore[attr-defined] # as it is
    for method in ("LockService.AcquireLock", "LockService.ClaimEntry"):
        made[method][0].session_id = session  # type: ignore[attr-defined] # as they are
    for selector in (
        trust_service_pb2.SourceSelector(uri_pattern="https://b.example/*"),
        trust_service_pb2.SourceSelector(agent="reader-1"),
    ):
        purge = trust_service_pb2.PurgeSourceRequest(board="main", selector=selector, reason="because")
        made["TrustService.PurgeSource"].append(purge)
    made["TaskService.CreateTask"] = [
        create_request("x", new_step("before"), new_step("s", "before", labels=["writes"]))
    ]
    claim: Any = made["TaskService.ClaimNextStep"][0]
    claim.labels.append("writes")
    claim.config_fingerprint = "f1"
    cancel: Any = made["TaskService.CancelTask"][0]
    cancel.task.reason = "because"
    policy = policy_pb2.Policy(rules=[rule("task:*", readers=["agent:a"], writers=["agent:a"], lockers=["agent:a"])])
    policy.administrators.subjects.append("role:operator")
    policy.tools.add(name="grep", trust=trust_pb2.TRUST_LEVEL_EXTERNAL)
    made["AdminService.SetPolicy"] = [admin_service_pb2.SetPolicyRequest(board="main", policy=policy, reason="because")]
    return made


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A server on files, whose calls are all traced, with a board that takes everything."""
    keys_file = tmp_path / "keys"
    keys_file.write_text(key_line("k1"), encoding="utf-8")
    with Collector() as collector:
        settings = Settings(
            store="memory:",
            listen="127.0.0.1:0",
            drain_grace_s=0.0,
            upkeep_interval_s=60.0,
            bookmark_interval_s=0.05,
            metrics_listen="127.0.0.1:0",
            tracing=TracingSettings(endpoint=collector.endpoint, sample_ratio=1.0),
            principal_writes_per_s_max=0,
        )
        clock = SettableClock()
        store = await SqliteStore.open(tmp_path / "store", clock)
        tracer, encryption = open_tracer(settings.tracing, DIGEST_KEY), open_encryption(keys_file)
        server = Server(settings, store, clock, DIGEST_KEY, None, tracer, encryption)
        port = await server.start()
        async with connected(port) as channel:
            world = World(Running(server, port, Agent(channel)), tmp_path, collector)
            tools = [policy_pb2.ToolRule(name="grep", trust=trust_pb2.TRUST_LEVEL_USER)]
            tools[0].screening = trust_pb2.SCREENING_PROFILE_OFF
            await world.agent.set_policy(
                *(rule(pattern, allows_unconditional=True) for pattern in ("shared:*", "task:*")), tools=tools
            )
            yield world
        if not world.stopped:
            await server.stop()


def spellings(secret: str) -> list[bytes]:
    """Give what a secret could be found as."""
    raw = secret.encode()
    coded = [base64.b64encode(b"x" * shift + raw)[4:-4] for shift in range(3)]
    return [
        *(raw, raw.hex().encode(), raw.hex().upper().encode(), secret.encode("utf-16-le"), secret.encode("utf-16-be")),
        *(coded + [part.replace(b"+", b"-").replace(b"/", b"_") for part in coded]),
        *(
            "".join(f"%{byte:02x}" for byte in raw).encode(),
            base64.b32encode(raw)[:48],
            raw[::-1],
            quote(secret).encode(),
        ),
    ]


def _metrics(world: World) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{world.running.server.metrics_port}/metrics", timeout=10) as page:
        content: bytes = page.read()
        return content


async def _all(agent: Agent, region: str) -> list[entry_pb2.Entry]:
    found: list[entry_pb2.Entry] = []
    token = ""
    while True:
        page = await agent.page(region=region, page_token=token, floor=trust_pb2.TRUST_LEVEL_EXTERNAL)
        found += page.entries
        token = page.next_page_token
        if not token:
            return found


async def _lose(world: World) -> None:
    """Lose a commit and a request for a lock that speak of the secret; and ask for what is not there by its name."""
    agent = world.agent
    lost = commit_request(put("parent"), request_id=new_id(), reason=f"with {CANARY}")
    assert await world.send("BoardService.Commit", lost) == "ALREADY_EXISTS"
    holder, other = await agent.session(), await agent.session()
    await agent.grant(acquire_request(holder, tree("held"), purpose=f"holds {CANARY}"))
    wanted = acquire_request(other, tree("held"), purpose=f"wants {CANARY}")
    assert await world.send("LockService.AcquireLock", wanted) == "LOCKED_BY_OTHER"
    stranger = world.running.as_agent("stranger")
    for method, message in (
        ("GetEntry", board_service_pb2.GetEntryRequest(board="main", key=key("e", f"agent:{CANARY}"))),
        ("GetEntry", board_service_pb2.GetEntryRequest(board=BOARD_CANARY, key=key("e", f"agent:{CANARY}"))),
    ):
        with pytest.raises(grpc.aio.AioRpcError):
            await getattr(stranger.board, method)(message, metadata=stranger.metadata)


def test_every_method_keeps_nothing_or_has_its_texts_named() -> None:
    assert set(KEEPS_NOTHING) <= set(METHODS)
    kept = {name: method.input_type for name, method in METHODS.items() if name not in KEEPS_NOTHING}
    fields = {field for descriptor in kept.values() for field in free_text_fields(descriptor)}
    assert fields - TREATMENTS.keys() - SKIPPED.keys() == set(), "say in wire.free_texts what can be done with them"
    assert (TREATMENTS.keys() | SKIPPED.keys()) - fields == set(), "there are no such fields any more"
    assert not TREATMENTS.keys() & SKIPPED.keys()


async def test_SE_01_a_secret_that_is_written_through_any_call_is_found_nowhere(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = world.agent
    await world.grounds.hold()
    watches = [agent.watch(region, snapshot=True) for region in (REGION, f"task:{world.grounds.names[0]}")]
    requested = await filled(world)
    assert set(requested) == set(METHODS), "a method is new: say what it is asked"
    for method, bases in requested.items():
        for base in bases:
            await world.try_all(method, base)
    assert set(TREATMENTS) <= world.tried
    for what, taken in world.taken.items():
        if what.split()[0] not in KEEPS_NOTHING and what.split()[-1] not in HOLD_NAMES_ALONE:
            assert sum(taken) >= TAKEN_SHARE_MIN * len(taken), f"of {what} only {sum(taken)} of {len(taken)} were taken"
    await _lose(world)
    entries = [entry for region in world.regions for entry in (await _all(agent, region))]
    for below in ("", ".task/events/"):
        assert any("[redacted:github-token:" in str(entry) for entry in entries if entry.key.path.startswith(below))
    heap = await everything_said(world, watches, capsys)
    assert b"[redacted:" in heap
    for secret in (CANARY, BOARD_CANARY):
        assert_nowhere(secret, heap)


async def test_a_secret_that_is_encrypted_and_opened_is_found_nowhere_but_in_the_answer_that_opens_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, path = world.agent, "of-them"
    encrypt = trust_pb2.REDACTION_HANDLING_ENCRYPT
    rules = (rule(one, allows_unconditional=True, revealers=["agent:opener"]) for one in ("shared:*", "task:*"))
    await agent.set_policy(*rules, replaces=1, secrets=encrypt, personal_data=encrypt)
    await agent.commit(put("parent", "x", whatever()))
    watch = agent.watch(snapshot=True)
    method, opener = "TrustService.RevealEntry", world.running.as_agent("opener")
    for form, encode in FORMS.items():
        text = encode(CANARY)
        for value in (entry_pb2.Value(text=text), entry_pb2.Value(json=json.dumps({"key": [text]}))):
            mutations = (put(path, value, whatever(), metadata={"note": text}), append("many", {"note": text}))
            request = commit_request(*mutations, request_id=new_id(), reason=f"with {text}")
            assert await world.send("BoardService.Commit", request) == "", form
            revealed = await opener.reveal(path)
            assert revealed.entry.value == value
            assert revealed.entry.metadata["note"] == text
            assert CANARY not in str(await agent.get(path))
    asked = trust_service_pb2.RevealEntryRequest(board="main", key=key(path))
    assert await world.send(method, asked) == "REVEAL_FORBIDDEN"
    assert (await opener.reveal("many")).texts[0].opened == 2 * len(FORMS)
    await _lose(world)
    await world.held_back()
    heap = await everything_said(world, [watch], capsys)
    assert b"[sealed:github-token:" in heap
    assert b"entry.reveal" in heap
    for secret in (CANARY, (world.folder / "keys").read_text(encoding="utf-8").split()[1]):
        assert_nowhere(secret, heap)


async def everything_said(world: World, watches: list[Watched], capsys: pytest.CaptureFixture[str]) -> bytes:
    """Stop the server; give all that it said and kept."""
    agent = world.agent
    world.said += [one.SerializeToString() for one in await listed(world.running, agent)]
    world.said += [one.SerializeToString() for one in await audit_records(world.running)]
    world.said += [one.SerializeToString() for one in await agent.quarantine(show_texts=True)]
    world.said += [one.SerializeToString() for one in await agent.presence()]
    entries = [entry for region in world.regions for entry in (await _all(agent, region))]
    for entry in entries:
        world.said += [entry.SerializeToString()]
        changes = await agent.history(entry.key.path, entry.key.region)
        world.said += [change.SerializeToString() for change in changes]
    token = (await agent.page()).token
    for watch in watches:
        world.said += [part.SerializeToString() for part in await watch.until(token)]
        watch.cancel()
    world.said.append(await asyncio.to_thread(_metrics, world))
    files = [path for path in (world.folder / "store").rglob("*") if path.is_file()]
    world.said += [path.read_bytes() for path in files]
    await world.stop()
    world.said += [path.read_bytes() for path in (world.folder / "store").rglob("*") if path.is_file()]
    written = capsys.readouterr()
    world.said += [written.out.encode(), written.err.encode()]
    spans = [span.SerializeToString() for span in world.collector.spans]
    assert len(spans) > len(METHODS)
    world.said += spans
    return b"\n".join(world.said)


def assert_nowhere(secret: str, heap: bytes) -> None:
    for spelling in spellings(secret):
        place = heap.find(spelling)
        assert place < 0, heap[max(0, place - 200) : place + 200]
