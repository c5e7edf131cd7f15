"""Every method for every role in every kind of region, own and others': what is answered is what the rules say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kokuban.v1 import admin_service_pb2, board_service_pb2, entry_pb2
from kokuban_server.core.access import EVERYBODY, Decision, Grants, Principal, Role, Verb
from kokuban_server.core.names import WITHOUT_ID, parse_region
from kokuban_server.wire import policies
from kokuban_server.wire.rules import RULES
from tests.wire.calls import commit_request, key, put, rule
from tests.wire.test_credentials import METHODS, Book, Caller, bearer, requests

if TYPE_CHECKING:
    from pathlib import Path

    from tests.wire.conftest import Started

POLICY = admin_service_pb2.SetPolicyRequest(board="main")
POLICY.policy.rules.extend(
    [
        rule("shared:hidden", readers=["role:supervisor", "agent:keeper"]),
        rule("shared:frozen", writers=["agent:keeper"], lockers=["role:supervisor", "agent:keeper"]),
        rule("shared:readable", writers=[], revealers=["role:member", "role:auditor"]),
        rule("agent:*", readers=["acting", "role:supervisor"]),
        rule("conversation:*", readers=["anyone"], writers=["acting"]),
        rule("user:*", revealers=["acting"]),
        rule("task:t2", readers=["agent:keeper"], writers=["agent:keeper"]),
    ]
)
REGIONS = [
    "shared:open",
    "shared:hidden",
    "shared:frozen",
    "shared:readable",
    "task:t1",
    "task:t10",
    "task:t2",
    "conversation:c1",
    "conversation:c2",
    "user:u1",
    "user:u10",
    "agent:keeper",
    "agent:member",
    "tenant",
    "global",
]
OWN: dict[str, list[str]] = {"users": ["u1"], "conversations": ["c1"], "tasks": ["t1", "t2"]}
CAST: dict[str, dict[str, Any]] = {
    **{str(role): {"roles": [str(role)], **OWN} for role in Role},
    "stranger": {"roles": ["member"]},
    "keeper": {
        "roles": ["member", "operator", "system"],
        "boards": "*",
        "users": "*",
        "conversations": "*",
        "tasks": "*",
    },
}
"""One with each role alone, who acts for a user, a conversation and two tasks; one who acts for nobody; one for all."""
ANSWERED_ALL_THE_SAME = {"BoardService.BatchGetEntries", "BoardService.CheckCurrent"}
"""Of what is hidden these say that it is not there, in an answer that is no refusal."""


def principal(name: str) -> Principal:
    """Give a member of the cast as the server knows it."""
    given = CAST[name]

    def grants(field: str) -> Grants:
        ids = given.get(field, [])
        return EVERYBODY if ids == "*" else Grants(frozenset(ids))

    return Principal(
        "acme",
        name,
        frozenset(map(Role, given["roles"])),
        users=grants("users"),
        conversations=grants("conversations"),
        tasks=grants("tasks"),
    )


def is_as_expected(method: str, name: str, region: str, reason: str) -> bool:
    """Say whether a call was answered as the method's rule and the board's policy have it."""
    caller, its_rule = principal(name), RULES[f"kokuban.v1.{method}"]
    if its_rule.roles.isdisjoint(caller.roles) and its_rule.roles:
        return reason == "ROLE_REQUIRED"
    if its_rule.verb is None:
        return reason not in {"ROLE_REQUIRED", "WRITE_FORBIDDEN"}
    is_of_task = method.startswith("TaskService.")  # which says itself which region that is
    place = parse_region("task:x" if is_of_task else region)
    if its_rule.verb is Verb.LOCK and place.kind in WITHOUT_ID:
        return reason == "LOCK_TARGETS_INVALID"  # beyond a board there are no locks
    policy = policies.decode(POLICY.policy, "policy")
    decision = policy.rule(caller, place, its_rule.verb).decision
    if decision is Decision.HIDDEN:
        return reason == ("" if method in ANSWERED_ALL_THE_SAME else "NOT_FOUND")
    if decision is Decision.FORBIDDEN:
        return reason == ("REVEAL_FORBIDDEN" if its_rule.verb is Verb.REVEAL else "WRITE_FORBIDDEN")
    return reason not in {"ROLE_REQUIRED", "WRITE_FORBIDDEN", "REVEAL_FORBIDDEN"} and (
        is_of_task or reason != "NOT_FOUND"
    )


@pytest.mark.parametrize("method", METHODS)
async def test_every_role_is_answered_in_every_region_as_the_rules_say(
    method: str, start: Started, tmp_path: Path
) -> None:
    book = Book(tmp_path / "principals.json")
    tokens = {name: book.give(name, **given) for name, given in CAST.items()}
    running = await start(identity="credentials", principals_file=book.path)
    caller = Caller(running.agent.channel)

    async def ask(name: str, of: str, request: Any) -> str:  # noqa: ANN401 - any message
        return await caller.reason(of, request, bearer(tokens[name]))

    assert await ask("keeper", "AdminService.CreateBoard", admin_service_pb2.CreateBoardRequest(board="main")) == ""
    for region in REGIONS:
        writer = region.removeprefix("agent:") if region.startswith("agent:") else "keeper"
        assert await ask(writer, "BoardService.Commit", commit_request(put("a", region=region))) == ""
    assert await ask("keeper", "AdminService.SetPolicy", POLICY) == ""
    for region in REGIONS:
        for name in CAST:
            request = requests("main", region)[method]
            if isinstance(request, board_service_pb2.CheckCurrentRequest):
                at = entry_pb2.Revision(number=1, epoch=running.server._store.epoch)
                del request.fences[:]
                request.entries.add(key=key("a", region), at=at)
            reason = await ask(name, method, request)
            assert is_as_expected(method, name, region, reason), (name, region, reason)


def test_the_matrix_meets_every_decision_for_every_verb() -> None:
    policy = policies.decode(POLICY.policy, "policy")
    met = {
        (verb, policy.rule(principal(name), parse_region(region), verb).decision)
        for verb in Verb
        for name in CAST
        for region in REGIONS
    }
    assert met == {(verb, decision) for verb in Verb for decision in Decision} - {(Verb.READ, Decision.FORBIDDEN)}
