"""Boards and policies from the library and the command line."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import (
    BoardState,
    Decision,
    LockRequirement,
    Policy,
    RedactionHandling,
    RegionRule,
    StaleScreening,
    Verb,
    WithoutVerdict,
    errors,
)
from kokuban_client._wire import policies

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kokuban_client import Client
    from kokuban_client.testing import ServerProcess
    from tests.client.commands import Answer

RULES = (
    RegionRule(
        "shared:plan",
        readers=("anyone",),
        writers=("role:supervisor", "agent:planner"),
        lockers=(),
        allows_unconditional=False,
        lock_requirement=LockRequirement.REQUIRED,
        history_revisions_max=5,
        history_age_max_s=90.5,
        default_ttl_s=0.0,
        stale_screening=StaleScreening.WITHHOLD,
        without_verdict=WithoutVerdict.HOLD,
        revealers=("role:auditor",),
    ),
    RegionRule("task:*", default_ttl_s=60.0, secrets=RedactionHandling.REFUSE, personal_data=RedactionHandling.MASK),
)


@pytest.fixture
async def chief(server: ServerProcess) -> AsyncIterator[Client]:
    async with kokuban_client.connect(server.address, agent="chief", roles=["member", "operator"]) as client:
        yield client


@pytest.fixture
async def board(chief: Client, request: pytest.FixtureRequest) -> str:
    """A board of the test's own."""
    name: str = request.node.name.replace("_", "-").lower()[:60].strip("-")
    await chief.create_board(name)
    return name


async def test_a_policy_is_laid_down_read_and_replaced(chief: Client, board: str) -> None:
    assert (await chief.get_policy(board)).version.number == 0
    policy = Policy(
        RULES, administrators=("agent:chief",), secrets=RedactionHandling.KEEP, unsearched=RedactionHandling.KEEP
    )
    first = await chief.set_policy(board, policy, replaces=0, reason="a start")
    assert (first.number, first.author, first.reason) == (1, "chief", "a start")
    found = await chief.get_policy(board)
    assert found.version == first
    assert found.policy == policy
    assert (await chief.get_board(board)).policy_number == 1
    with pytest.raises(errors.PolicyChanged) as changed:
        await chief.set_policy(board, Policy(), replaces=0)
    assert changed.value.facts["actual"] == "1"
    with pytest.raises(errors.PolicyLocksOut):
        await chief.set_policy(board, Policy(administrators=[]), replaces=1)
    assert (await chief.set_policy(board, Policy(), replaces=1)).number == 2
    assert (await chief.get_policy(board)).policy == Policy()


async def test_access_is_explained(server: ServerProcess, chief: Client, board: str) -> None:
    await chief.set_policy(board, Policy([RegionRule("shared:plan", writers=["agent:chief"])]), replaces=0)
    access = await chief.explain_access(board, "shared:plan", Verb.WRITE)
    assert (access.decision, access.rule, access.subject, access.policy_number) == (
        Decision.ALLOWED,
        "shared:plan",
        "agent:chief",
        1,
    )
    async with kokuban_client.connect(server.address, agent="other") as other:
        assert (await other.explain_access(board, "shared:plan", "write")).decision is Decision.FORBIDDEN
        assert (await other.explain_access(board, "agent:chief", "read")).decision is Decision.NOT_READABLE
        with pytest.raises(errors.WriteForbidden):
            await other.board(board).put("shared:plan", "a", 1, must_not_exist=True)
        with pytest.raises(ValueError, match="erase"):
            await other.explain_access(board, "shared:plan", "erase")


async def test_a_board_is_deleted_and_its_receipt_tells_what_it_held(chief: Client, board: str) -> None:
    await chief.board(board).put("shared:plan", "a", 1, must_not_exist=True)
    gone = await chief.delete_board(board, "it is over")
    assert (gone.state, gone.deleter, gone.delete_reason) == (BoardState.DELETED, "chief", "it is over")
    with pytest.raises(errors.NotFound):
        await chief.board(board).get("shared:plan", "a")
    async with asyncio.timeout(30):
        while (purged := await chief.get_board(board)).state is not BoardState.PURGED:
            pass
    assert purged.receipt is not None
    assert (purged.receipt.entries, purged.receipt.revisions) == (1, 1)
    assert board not in {one.id for one in await chief.boards()}
    assert purged in await chief.boards(show_deleted=True)


def test_subjects_are_a_list_and_not_a_text() -> None:
    with pytest.raises(TypeError, match="list of texts"):
        policies.policy_message(Policy([RegionRule("shared:plan", readers="anyone")]))


def test_a_policy_file_is_read_as_it_was_printed() -> None:
    policy = Policy(RULES, administrators=("anyone",))
    shown = policies.policy_json(policy)
    assert policies.read_policy_json(json.dumps(shown)) == (policy, None)
    assert policies.read_policy_json(json.dumps({"number": 7, "policy": shown})) == (policy, 7)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Expecting value"),
        ("[]", "a JSON object"),
        ('{"policy": [], "number": 1}', "a JSON object"),
        ('{"policy": {}}', "number"),
        ('{"policy": {}, "number": "1"}', "number"),
        ('{"rulez": []}', "rulez"),
        ('{"rules": [{"patern": "task:*"}]}', "patern"),
        ('{"rules": [{"pattern": "task:*", "default_ttl": "a day"}]}', "default_ttl|a day"),
        ('{"rules": [{"pattern": "task:*", "lock_requirement": "SOMETIMES"}]}', "SOMETIMES"),
    ],
)
def test_a_policy_file_that_makes_no_sense_is_refused_with_what_is_wrong(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        policies.read_policy_json(text)


def test_a_policy_is_kept_in_a_file_from_the_command_line(tmp_path: Path, kokuban: Callable[..., Answer]) -> None:
    def run(*arguments: str) -> Answer:
        return kokuban("--roles", "member,operator", "--board", "by-file", *arguments)

    assert run("board", "create", "by-file")[0] == 0
    file = tmp_path / "policy.json"
    code, shown, _ = run("policy", "show")
    assert (code, json.loads(shown)) == (0, {"number": 0, "policy": {}})
    file.write_text(shown.replace("{}", '{"rules": [{"pattern": "shared:plan", "writers": {"subjects": []}}]}'))
    code, told, _ = run("policy", "set", str(file), "--reason", "evil \x1b[2J")
    assert code == 0
    assert told.startswith("policy 1  ")
    assert told.endswith("  by me  (evil \\x1b[2J)\n")
    assert run("policy", "explain", "shared:plan", "write")[1] == "forbidden  rule shared:plan\n"
    assert run("policy", "explain", "shared:plan", "read")[1] == "allowed  as anyone  what holds without a policy\n"
    assert run("policy", "explain", "user:u", "read", "--json")[1] == (
        '{"decision":"allowed","rule":"","subject":"acting","policy_number":1}\n'
    )
    assert json.loads(run("policy", "show", "--json")[1])["number"] == 1
    file.write_text("{}")
    code, _, told = run("policy", "set", str(file))
    assert (code, "--replaces" in told) == (2, True)
    code, _, told = run("policy", "set", str(file), "--replaces", "0")
    assert (code, "POLICY_CHANGED" in told) == (3, True)
    assert run("policy", "set", str(file), "--replaces", "1", "--json")[0] == 0
    file.write_text('{"rules": [{"pattern": "x"}]}')
    code, _, told = run("policy", "set", str(file), "--replaces", "2")
    assert (code, "policy.rules[0].pattern" in told) == (5, True)
    file.write_text('{"rulez": 1}')
    assert run("policy", "set", str(file), "--replaces", "2")[0] == 2
    assert run("board", "show", "by-file")[1].endswith("  me  policy 2\n")
    assert run("board", "rm", "by-file", "--reason", "over", "--yes")[0] == 0
    assert run("board", "rm", "by-file", "--yes")[0] == 2  # a reason is asked for
    assert "(over)" in run("board", "ls", "--deleted")[1]
    assert "by-file" not in run("board", "ls")[1]
