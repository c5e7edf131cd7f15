"""What a scope is and where it comes from: rows of the track record, on every store."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from typing import TYPE_CHECKING

import grpc
import pytest

from kokuban.v1 import admin_service_pb2, board_service_pb2, commit_pb2
from tests.leaks.probes import METHODS
from tests.leaks.serving import STORES, serving
from tests.wire.calls import (
    Agent,
    absent,
    acquire_request,
    commit_request,
    key,
    leaf,
    new_id,
    put,
    refused,
    whatever,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_PRINCIPALS = (
    ("chief", {"tenant": "acme", "agent": "chief", "roles": ["member", "operator"], "boards": "*"}),
    ("other-chief", {"tenant": "acme-1", "agent": "chief", "roles": ["member", "operator"], "boards": "*"}),
    ("ann", {"tenant": "acme", "agent": "worker", "users": ["ann"], "tasks": ["task_2"]}),
    ("bob", {"tenant": "acme", "agent": "helper", "users": ["bob"]}),
    ("first", {"tenant": "acme", "agent": "coder", "boards": ["main", "second"], "tasks": ["task_1"]}),
    ("second", {"tenant": "acme", "agent": "coder", "boards": ["main", "second"], "tasks": ["task_10"]}),
    ("stranger", {"tenant": "acme-1", "agent": "worker", "users": ["ann"], "tasks": ["task_2"]}),
)


def _token(name: str) -> str:
    return f"kk_{name}-{'x' * 40}"


@pytest.fixture(scope="module", params=STORES)
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server that knows everybody."""
    folder = tmp_path_factory.mktemp("scopes")
    principals = [
        {
            "roles": ["member"],
            "boards": ["main"],
            "token_sha256": hashlib.sha256(_token(name).encode()).hexdigest(),
            **fields,
            "name": name,
        }
        for name, fields in _PRINCIPALS
    ]
    (folder / "principals.json").write_text(json.dumps({"principals": principals}), encoding="utf-8")
    with serving(request.param, folder, folder / "principals.json", _token("chief")) as server:
        yield server.address


class Team:
    """Everybody's calls, over one connection."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def __getitem__(self, name: str) -> Agent:
        agent = Agent(self._channel, name)
        agent.metadata = (("authorization", f"Bearer {_token(name)}"),)
        return agent


@pytest.fixture
async def team(address: str) -> AsyncIterator[Team]:
    async with grpc.aio.insecure_channel(address) as channel:
        made = Team(channel)
        for name, board in (("chief", "main"), ("chief", "second"), ("other-chief", "main")):
            try:
                request = admin_service_pb2.CreateBoardRequest(board=board)
                await made[name].admin.CreateBoard(request, metadata=made[name].metadata)
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.ALREADY_EXISTS
        yield made


def _write(path: str, region: str, value: str = "x", board: str = "main") -> commit_pb2.CommitRequest:
    belief = absent() if region.startswith("shared:") else whatever()
    return commit_request(put(path, value, belief, region), board=board, request_id=_id())


def _id() -> str:
    return new_id(time.time_ns() // 1_000_000)


async def test_SC_05_a_scope_that_is_missing_or_unknown_is_an_error_and_none_means_all(team: Team) -> None:
    """No region, no kind, a wildcard, a tenant's region with an id: never a wider answer than was asked for."""
    agent = team["ann"]
    await agent.send(_write("mine", "user:ann"))
    for region, reason in (
        ("", "REGION_REQUIRED"),
        ("*", "REGION_INVALID"),
        ("user", "REGION_INVALID"),
        ("user:", "REGION_INVALID"),
        ("users:ann", "REGION_INVALID"),
        ("user:ann/mine", "REGION_INVALID"),
        ("tenant:acme", "REGION_INVALID"),
        ("global:*", "REGION_INVALID"),
        ("user:*", "NOT_FOUND"),
        ("user:%", "NOT_FOUND"),
    ):
        for call in (
            agent.get("mine", region),
            agent.page("", region),
            agent.history("mine", region),
            agent.list_locks("", region),
            agent.send(_write("mine", region)),
            agent.board.Watch(
                board_service_pb2.WatchRequest(
                    board="main", targets=[board_service_pb2.WatchTarget(region=region)], snapshot=True
                ),
                metadata=agent.metadata,
            ).read(),
        ):
            with refused(reason):
                await call
    for entry in (await agent.page("", "user:ann")).entries:
        assert entry.key.region == "user:ann"


def test_SC_06_no_request_has_a_field_for_the_tenant() -> None:
    """Nor for who calls: both come from the credential."""
    # Whose acts an auditor looks for, whose conflicts a reader, and whose words an operator removes.
    of_others = {
        "kokuban.v1.AuditFilter",
        "kokuban.v1.ConflictFilter",
        "kokuban.v1.SourceSelector",
        "kokuban.v1.EraseSubjectRequest",
    }
    names = {field.name for method in METHODS.values() for field in _fields(method.input_type, {*of_others})}
    assert {"board", "region", "path"} <= names  # these are looked into
    assert not names & {"tenant", "tenant_id", "agent", "agent_id", "user", "user_id", "author", "roles", "principal"}


async def test_SC_06_the_tenant_comes_from_the_credential_and_nothing_a_caller_says_changes_it(team: Team) -> None:
    """Two tenants with boards, agents, users and tasks of the same names: each has its own."""
    ann, stranger = team["ann"], team["stranger"]
    regions = ("shared:plan", "agent:worker", "user:ann", "task:task_2")
    for agent, value in ((ann, "of acme"), (stranger, "of acme-1")):
        for region in regions:
            await agent.send(_write("same", region, value))
    stranger.metadata += (
        ("kokuban-tenant", "acme"),
        ("tenant", "acme"),
        ("kokuban-agent", "chief"),
        ("kokuban-roles", "operator"),
    )
    for region in regions:
        assert (await ann.get("same", region)).value.text == "of acme"
        assert (await stranger.get("same", region)).value.text == "of acme-1"
    with refused("NOT_FOUND"):  # a board that only the other tenant has
        await stranger.board.GetEntry(
            board_service_pb2.GetEntryRequest(board="second", key=key("same")), metadata=stranger.metadata
        )


async def test_SC_07_two_tasks_with_agents_of_the_same_name_never_see_each_other(team: Team) -> None:
    """Neither by reading nor by watching, and `task_1` is not `task_10`."""
    first, second = team["first"], team["second"]
    for agent, region in ((first, "task:task_1"), (second, "task:task_10")):
        for path in ("notes", "step_1/notes"):
            await agent.send(_write(path, region, f"of {region}"))
    for agent, own, other in ((first, "task:task_1", "task:task_10"), (second, "task:task_10", "task:task_1")):
        assert {entry.value.text for entry in (await agent.page("", own)).entries} == {f"of {own}"}
        for call in (
            agent.get("notes", other),
            agent.page("", other),
            agent.history("notes", other),
            agent.list_locks("", other),
            agent.send(_write("notes", other)),
        ):
            with refused("NOT_FOUND"):
                await call
        batch = await agent.board.BatchGetEntries(
            board_service_pb2.BatchGetEntriesRequest(board="main", keys=[key("notes", own), key("notes", other)]),
            metadata=agent.metadata,
        )
        assert [entry.key.region for entry in batch.entries] == [own]
        assert [missing.region for missing in batch.missing] == [other]


async def test_SC_14_who_calls_is_decided_anew_for_every_call_on_one_connection(team: Team) -> None:
    """Hundreds of calls of two agents at once, on one connection: none is taken for the other's."""
    agents = (team["ann"], team["bob"])

    async def work(agent: Agent, user: str, number: int) -> None:
        path = f"note_{number}"
        await agent.send(_write(path, f"user:{user}", user))
        entry = await agent.get(path, f"user:{user}")
        assert (entry.author, entry.value.text) == ({"ann": "worker", "bob": "helper"}[user], user)
        with refused("NOT_FOUND"):
            await agent.get(path, f"user:{'bob' if user == 'ann' else 'ann'}")

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            for agent, user in zip(agents, ("ann", "bob"), strict=True):
                group.create_task(work(agent, user, number))


async def test_RB_20_each_part_of_a_call_is_authorised_and_one_that_is_hidden_hides_all(team: Team) -> None:
    """Mutations, beliefs, targets of watches and of locks, candidates, pages: none travels along with what is allowed."""
    ann, bob = team["ann"], team["bob"]
    hidden = await bob.send(_write("kept", "user:bob", "secret"))
    for path in ("a", "b"):
        await ann.send(_write(path, "user:ann"))
    page = await ann.page("", "user:ann", page_size=1)
    assert page.next_page_token
    session = (await ann.open_session(request_id=_id())).session.id
    both = commit_request(
        put("beside", "x", whatever(), "user:ann"), put("beside", "x", whatever(), "user:bob"), request_id=_id()
    )
    believing = _write("beside", "user:ann")
    belief = believing.preconditions.add()
    belief.key.CopyFrom(key("kept", "user:bob"))
    belief.precondition.at.CopyFrom(hidden.revision)
    watch = board_service_pb2.WatchRequest(
        board="main", targets=[board_service_pb2.WatchTarget(region=f"user:{one}") for one in ("ann", "bob")], now=True
    )
    locks = acquire_request(session, leaf("beside", "user:ann"), leaf("kept", "user:bob"), request_id=_id())
    for call in (
        ann.send(both),
        ann.send(believing),
        ann.board.Watch(watch, metadata=ann.metadata).read(),
        ann.grant(locks),
        ann.page("", "user:bob", page_token=page.next_page_token),
    ):
        with refused("NOT_FOUND"):
            await call
    with refused("NOT_FOUND"):
        await ann.get("beside", "user:ann")
    assert not (await ann.list_locks("", "user:ann")).locks


def _fields(of: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    """Give every field of a message and of those within it."""
    if of.full_name in seen:
        return
    seen.add(of.full_name)
    for field in of.fields:
        yield field
        if field.message_type is not None:
            yield from _fields(field.message_type, seen)
