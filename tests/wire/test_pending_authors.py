"""A commit that waits for a verdict is made by its author's right: as that is when the verdict comes, not as it was before."""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from kokuban.v1 import admin_service_pb2, audit_pb2, trust_pb2, trust_service_pb2
from kokuban_server.core import keys
from tests.wire.calls import REGION, START_MS, Agent, Kept, eventually, new_id, put, records, refused, rule, until
from tests.wire.screening_calls import HARMLESS, page
from tests.wire.test_credentials import Book, bearer

if TYPE_CHECKING:
    from pathlib import Path

    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started
    from tests.wire.screening_calls import Rules

HOLD = trust_pb2.WITHOUT_VERDICT_HOLD
TASK = "task:t1"
_ENDS = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((START_MS + 60_000) // 1000))
_OTHER_TOKEN = f"kk_other-{'x' * 40}"
_OTHER_SHA256 = hashlib.sha256(_OTHER_TOKEN.encode()).hexdigest()
_FIELDS: dict[str, dict[str, Any]] = {
    "keeper": {"roles": ["member", "operator", "auditor", "supervisor"]},
    "writer": {"tasks": ["t1"]},
    "brief": {"expires": _ENDS},
    "lasting": {},
}


class Team:
    """Agents that a server knows by their credentials. What it cannot screen is kept."""

    running: Running

    def __init__(self, start: Started, store: BoardStore, book: Book) -> None:
        self._start = start
        self._store = store
        self._book = book
        self._tokens = {name: book.give(name, **fields) for name, fields in _FIELDS.items()}

    async def begin(self) -> None:
        await self.serve()
        keeper, request = self.agent("keeper"), admin_service_pb2.CreateBoardRequest(board="main")
        await keeper.admin.CreateBoard(request, metadata=keeper.metadata)
        await keeper.set_policy(*[rule(pattern, without_verdict=HOLD) for pattern in ("shared:*", "task:*")])

    async def serve(self, **settings: Any) -> None:  # noqa: ANN401 - of any setting's type
        """Start a server on the store."""
        chosen = settings or {"identity": "credentials", "principals_file": self._book.path}
        self.running = await self._start(Kept(self._store), **chosen)

    def agent(self, name: str, token: str = "") -> Agent:
        agent = Agent(self.running.agent.channel)
        agent.metadata = (bearer(token or self._tokens[name]),)
        return agent

    def revoke(self, name: str) -> None:
        self._book.revoke(name)

    def change(self, name: str, **fields: Any) -> None:  # noqa: ANN401 - any field of a principal
        """Enter a principal anew, with other fields."""
        self._book.revoke(name)
        self._book.give(name, **{**_FIELDS[name], **fields})

    async def settle(self) -> None:
        """Have what waits settled, by the book as it is now."""

        async def is_settled() -> bool:
            await self.running.server._pending.turn()
            return not await records(self._store, keys.PENDING)

        await self.reread()
        await eventually(is_settled)

    async def reread(self) -> None:
        await self.running.server._wire._calls._identity._credentials.refresh()  # type: ignore[attr-defined]  # the real one

    async def dropped(self) -> list[tuple[str, str, str, str]]:
        """Give what the audit log says was dropped: of whom, by which credential, which commit, and why."""
        keeper = self.agent("keeper")
        request = audit_pb2.ListAuditRecordsRequest(filter=audit_pb2.AuditFilter(act="quarantine.drop"))
        found = (await keeper.admin.ListAuditRecords(request, metadata=keeper.metadata)).records
        return [(one.agent, one.credential.partition("#")[0], one.target, one.outcome) for one in found]

    async def kept(self) -> list[bytes]:
        """Give the keys of what waits, and of what says so."""
        kinds = (keys.PENDING, keys.QUARANTINE, keys.QUARANTINE_DUE)
        return [record.key for kind in kinds for record in await records(self._store, kind)]


@pytest.fixture
async def team(start: Started, store: BoardStore, rules: Rules, tmp_path: Path) -> Team:
    """What they write from outside waits."""
    return await begun(start, store, rules, tmp_path)


async def begun(start: Started, store: BoardStore, rules: Rules, folder: Path) -> Team:
    made = Team(start, store, Book(folder / "principals.json"))
    await made.begin()
    rules.is_down = True
    return made


async def set_aside(agent: Agent, path: str, region: str = REGION, **more: Any) -> str:  # noqa: ANN401 - of a commit
    """Send a commit that is kept; give the id under which it waits."""
    with refused("CONTENT_PENDING") as found:
        await agent.commit(page(path, HARMLESS, region=region), **more)
    return found[0].facts["quarantine_id"]


@pytest.mark.parametrize("restarts", [False, True], ids=["same server", "restarted"])
async def test_a_revoked_credential_makes_nothing(
    start: Started, any_store: BoardStore, rules: Rules, tmp_path: Path, *, restarts: bool
) -> None:
    """What was sent with it is refused, audited, and gone. What others wait for is made."""
    team = await begun(start, any_store, rules, tmp_path)
    name = await set_aside(team.agent("writer"), "p")
    await set_aside(team.agent("lasting"), "q")
    if restarts:
        await team.running.server.stop()
    team.revoke("writer")
    if restarts:
        await team.serve()
    rules.is_down = False
    await team.settle()
    assert await team.agent("lasting").paths() == ["q"]
    assert await team.dropped() == [("writer", "token:writer", f"commit {name} of writer", "CREDENTIAL_INVALID")]
    keeper = team.agent("keeper")
    assert await keeper.quarantine(state=trust_service_pb2.QUARANTINE_STATE_PENDING) == []
    [made] = await keeper.quarantine(state=trust_service_pb2.QUARANTINE_STATE_RELEASED)
    assert made.agent == "lasting"
    with refused("CREDENTIAL_INVALID"):
        await team.agent("writer").commit(page("p", HARMLESS))


@pytest.mark.parametrize(
    ("changed", "region", "reason"),
    [
        ({"token_sha256": _OTHER_SHA256}, REGION, "CREDENTIAL_INVALID"),
        ({"agent": "writer-2"}, REGION, "CREDENTIAL_INVALID"),
        ({"tenant": "other"}, REGION, "CREDENTIAL_INVALID"),
        ({"boards": ["another"]}, REGION, "NOT_FOUND"),
        ({"tasks": []}, TASK, "NOT_FOUND"),
    ],
    ids=["token replaced", "given to another agent", "given to another tenant", "board withdrawn", "task withdrawn"],
)
async def test_a_changed_credential_makes_what_it_may_now(
    team: Team, rules: Rules, changed: dict[str, Any], region: str, reason: str
) -> None:
    name = await set_aside(team.agent("writer"), "p", region)
    team.change("writer", **changed)
    rules.is_down = False
    await team.settle()
    assert [(target, outcome) for _, _, target, outcome in await team.dropped()] == [
        (f"commit {name} of writer", reason)
    ]
    assert await team.kept() == []


async def test_a_changed_credential_still_makes_what_it_still_may(team: Team, rules: Rules) -> None:
    await set_aside(team.agent("writer"), "p", TASK)
    team.change("writer", tasks=["t1", "t2"], roles=["member", "supervisor"])
    rules.is_down = False
    await team.settle()
    assert await team.agent("writer").paths(region=TASK) == ["p"]
    assert await team.dropped() == []


async def test_who_asks_with_a_new_credential_is_judged_anew(team: Team, rules: Rules) -> None:
    """The id is not used up: nothing was made of it."""
    identity = new_id()
    await set_aside(team.agent("writer"), "p", request_id=identity)
    team.change("writer", token_sha256=_OTHER_SHA256)
    await team.settle()
    assert await team.kept() == []
    again = team.agent("writer", _OTHER_TOKEN)
    await set_aside(again, "p", request_id=identity)
    rules.is_down = False
    await team.settle()
    answer = await again.commit(page("p", HARMLESS), request_id=identity)
    assert answer.replayed
    assert await again.paths() == ["p"]


async def test_a_right_that_goes_while_the_screener_is_at_work_is_gone(team: Team, rules: Rules) -> None:
    await set_aside(team.agent("writer"), "p")
    rules.is_down = False
    rules.may_judge.clear()
    rules.asked.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(team.settle())
        await until(lambda: rules.judged(HARMLESS) == 1)
        team.revoke("writer")
        await team.reread()
        rules.may_judge.set()
    assert [outcome for *_, outcome in await team.dropped()] == ["CREDENTIAL_INVALID"]
    assert await team.agent("lasting").paths() == []


async def test_a_right_that_the_policy_has_withdrawn_is_gone(team: Team, rules: Rules) -> None:
    identity = new_id()
    name = await set_aside(team.agent("writer"), "p", request_id=identity)
    await set_aside(team.agent("lasting"), "q")
    allowed = rule(REGION, without_verdict=HOLD, writers=["agent:lasting"])
    await team.agent("keeper").set_policy(allowed, replaces=1)
    rules.is_down = False
    await team.settle()
    assert await team.agent("writer").paths() == ["q"]
    assert await team.dropped() == [("writer", "token:writer", f"commit {name} of writer", "WRITE_FORBIDDEN")]
    with refused("WRITE_FORBIDDEN"):
        await team.agent("writer").commit(page("p", HARMLESS), request_id=identity)


async def test_a_credential_that_has_ended_makes_nothing(team: Team, rules: Rules, clock: SettableClock) -> None:
    await set_aside(team.agent("brief"), "p")
    await set_aside(team.agent("lasting"), "q")
    clock.pass_ms(60_000)
    rules.is_down = False
    await team.settle()
    assert await team.agent("lasting").paths() == ["q"]
    assert [(agent, outcome) for agent, *_, outcome in await team.dropped()] == [("brief", "CREDENTIAL_EXPIRED")]


async def test_nobody_is_trusted_more_than_their_credential_says_now(team: Team, rules: Rules) -> None:
    """Of a commit that holds its author's own word too."""
    with refused("CONTENT_PENDING"):
        await team.agent("writer").commit(put("own", "my word"), page("p", HARMLESS))
    team.change("writer", trust_ceiling="external")
    rules.is_down = False
    await team.settle()
    entry = await team.agent("lasting").asked("own")
    assert entry.label.trust == trust_pb2.TRUST_LEVEL_EXTERNAL
    assert entry.label.screened_by
    assert rules.judged("my word")


async def test_a_session_that_ended_meanwhile_takes_no_right_along(team: Team, rules: Rules) -> None:
    """Who has sent its commit may go; what is protected by a session's locks is judged by their fences."""
    writer = team.agent("writer")
    session = await writer.session(60.0)
    await set_aside(writer, "p", session=session)
    await writer.close(session)
    rules.is_down = False
    await team.settle()
    assert await writer.paths() == ["p"]


async def test_what_a_believed_agent_has_sent_is_not_made_where_credentials_are_asked_for(
    start: Started, store: BoardStore, rules: Rules, tmp_path: Path
) -> None:
    believing = await start(Kept(store))
    await believing.as_agent("ops-1", "operator").set_policy(rule("shared:*", without_verdict=HOLD))
    rules.is_down = True
    await set_aside(believing.agent, "p")
    await believing.server.stop()
    book = Book(tmp_path / "principals.json")
    book.give("writer-1", tenant="dev", agent="writer-1")
    asking = await start(identity="credentials", principals_file=book.path)
    rules.is_down = False

    async def is_settled() -> bool:
        await asking.server._pending.turn()
        return not await records(store, keys.PENDING)

    await eventually(is_settled)
    assert await records(store, keys.HEAD) == []
