"""By profile, what cannot be screened is kept until it can be: readable to nobody before, and made once."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from kokuban.v1 import admin_service_pb2, trust_pb2, trust_service_pb2
from kokuban_server.adapters.encryption import key_line
from kokuban_server.core import keys, limits
from tests.wire.calls import (
    Agent,
    Kept,
    at,
    commit_request,
    eventually,
    new_id,
    put,
    records,
    refused,
    rule,
    until,
)
from tests.wire.screening_calls import HARMLESS, PHRASES, ZEBRA, page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from kokuban.v1 import commit_pb2
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import SettableClock
    from tests.wire.conftest import Running, Started
    from tests.wire.screening_calls import Rules

HOLD = trust_pb2.WITHOUT_VERDICT_HOLD
PENDING, RELEASED, WAITING = (
    trust_service_pb2.QUARANTINE_STATE_PENDING,
    trust_service_pb2.QUARANTINE_STATE_RELEASED,
    trust_service_pb2.QUARANTINE_STATE_WAITING,
)


@pytest.fixture
async def holding(start: Started, rules: Rules) -> Running:
    """A server that keeps what it cannot screen, and screens nothing. What is kept is looked at twenty times a second."""
    running = await start(upkeep_interval_s=0.05)
    await let_hold(running)
    rules.phrases, rules.is_down = PHRASES, True
    return running


async def let_hold(running: Running, *more: Any) -> None:  # noqa: ANN401 - rules of a policy
    await running.as_agent("ops-1", "operator").set_policy(rule("shared:*", without_verdict=HOLD), *more)


async def set_aside(agent: Agent, *mutations: commit_pb2.Mutation, **more: Any) -> str:  # noqa: ANN401 - of a commit
    """Send a commit that is kept; give the id under which it waits."""
    with refused("CONTENT_PENDING") as found:
        await agent.commit(*mutations, **more)
    return found[0].facts["quarantine_id"]


def chief(running: Running) -> Agent:
    return running.as_agent("chief-1", "member,supervisor")


def listed(running: Running, state: int) -> Callable[[], Awaitable[bool]]:
    async def is_listed() -> bool:
        return bool(await chief(running).quarantine(state=state))

    return is_listed


def nothing_left(running: Running) -> Callable[[], Awaitable[bool]]:
    async def is_empty() -> bool:
        return not await records(running.server._store, keys.PENDING)

    return is_empty


async def test_it_is_readable_to_nobody_until_there_is_a_verdict_and_then_made_once(
    holding: Running, rules: Rules
) -> None:
    agent, identity = holding.agent, new_id()
    asked = {"request_id": identity, "reason": "fetched"}
    name = await set_aside(agent, put("note"), page("p", HARMLESS), **asked)
    assert await set_aside(agent, put("note"), page("p", HARMLESS), **asked) == name
    assert await agent.paths() == []
    with refused("REQUEST_ID_REUSED"):
        await agent.commit(page("other", HARMLESS), request_id=identity)
    [item] = await chief(holding).quarantine(state=PENDING)
    assert (item.id, item.agent, list(item.findings), item.rule_set) == (name, "writer-1", [], "")
    [review] = await chief(holding).review(name)
    assert review.state == PENDING
    await agent.commit(put("own"))  # nobody else waits

    rules.is_down = False
    await eventually(listed(holding, RELEASED))
    entry = await agent.asked("p")
    assert (entry.value.external.text, entry.author) == (HARMLESS, "writer-1")
    assert entry.label.screened_by.startswith("own-")
    again = await agent.commit(put("note"), page("p", HARMLESS), **asked)
    assert again.replayed
    assert [one.sequence for one in again.results] == [1, 1]
    assert (await agent.get("note")).revision.number == again.revision.number
    [made] = await chief(holding).quarantine(state=RELEASED, show_texts=True)
    assert (made.reviewer, len(made.texts)) == ("", 0)
    assert not await records(holding.server._store, keys.PENDING)


async def test_what_would_have_been_held_back_then_is(holding: Running, rules: Rules) -> None:
    identity = new_id()
    name = await set_aside(holding.agent, page("p", ZEBRA), request_id=identity)
    rules.is_down = False
    await eventually(listed(holding, WAITING))
    with refused("CONTENT_QUARANTINED", quarantine_id=name, rule="own-phrase"):
        await holding.agent.commit(page("p", ZEBRA), request_id=identity)
    assert await holding.agent.paths() == []
    [result] = await chief(holding).review(name)
    assert result.state == RELEASED
    assert (await holding.agent.asked("p")).value.external.text == ZEBRA


async def test_a_text_over_which_only_the_screener_fails_waits_for_a_reviewer(holding: Running, rules: Rules) -> None:
    await set_aside(holding.agent, page("p", "breaks it"))
    await set_aside(holding.agent, page("q", HARMLESS))
    rules.is_down, rules.fails_over = False, "breaks it"
    await eventually(listed(holding, WAITING))
    await eventually(listed(holding, RELEASED))
    [item] = await chief(holding).quarantine()
    assert [finding.rule for finding in item.findings] == ["no-verdict"]


async def test_while_screening_is_slow_a_writer_does_not_wait_to_its_deadline(holding: Running, rules: Rules) -> None:
    rules.is_down = False
    rules.may_judge.clear()
    request = commit_request(page("p", HARMLESS))
    with refused("CONTENT_PENDING"):
        await holding.agent.board.Commit(request, metadata=holding.agent.metadata, timeout=2.0)
    rules.may_judge.set()
    await eventually(listed(holding, RELEASED))


async def test_in_a_region_that_does_not_say_so_it_is_refused(holding: Running) -> None:
    elsewhere = page("p", HARMLESS, region="agent:writer-1")
    for mutations in ([elsewhere], [page("p", HARMLESS), elsewhere]):
        with refused("SCREENING_UNAVAILABLE"):
            await holding.agent.commit(*mutations)
    assert await chief(holding).quarantine(state=PENDING) == []


async def test_what_does_not_hold_any_more_is_dropped_and_its_repeat_says_why(holding: Running, rules: Rules) -> None:
    agent, identity = holding.agent, new_id()
    note = await agent.commit(put("note"))
    mutations = (put("note", "new", at(note)), page("p", HARMLESS))
    await set_aside(agent, *mutations, request_id=identity)
    await agent.commit(put("note", "newer", at(note)))
    rules.is_down = False
    await eventually(nothing_left(holding))
    assert await agent.paths() == ["note"]
    assert await records(holding.server._store, keys.QUARANTINE) == []
    assert await records(holding.server._store, keys.QUARANTINE_DUE) == []
    with refused("REVISION_MISMATCH"):
        await agent.commit(*mutations, request_id=identity)


async def test_what_the_policy_wants_screened_meanwhile_is_screened_before_it_is_made(
    holding: Running, rules: Rules
) -> None:
    raw = rule("shared:raw", without_verdict=HOLD, screening=trust_pb2.SCREENING_PROFILE_OFF)
    operator = holding.as_agent("ops-1", "operator")
    await operator.set_policy(raw, rule("shared:*", without_verdict=HOLD), replaces=1)
    await set_aside(holding.agent, page("p", HARMLESS), page("q", ZEBRA, region="shared:raw"))
    rules.asked.clear()
    rules.may_judge.clear()
    rules.is_down = False
    await until(lambda: rules.judged(HARMLESS) == 1)
    await operator.set_policy(rule("shared:*", without_verdict=HOLD), replaces=2)
    rules.may_judge.set()
    await eventually(listed(holding, WAITING))
    assert await holding.agent.paths() == []


async def test_a_restarted_server_makes_what_the_one_before_has_kept(
    start: Started, store: BoardStore, rules: Rules
) -> None:
    first = await start(Kept(store))
    await let_hold(first)
    rules.is_down = True
    await set_aside(first.agent, page("p", HARMLESS))
    await first.server.stop()
    rules.is_down = False
    second = await start(upkeep_interval_s=0.05)
    await eventually(listed(second, RELEASED))
    assert (await second.agent.asked("p")).value.external.text == HARMLESS


async def test_of_two_servers_one_makes_it(start: Started, rules: Rules) -> None:
    servers = [await start(upkeep_interval_s=0.05) for _ in range(2)]
    await let_hold(servers[0])
    rules.is_down = True
    for number, running in enumerate(servers * 3):
        await set_aside(running.agent, page(f"p/{number}", HARMLESS))
    rules.is_down = False
    await eventually(nothing_left(servers[0]))
    for number in range(6):
        [state] = await servers[1].agent.history(f"p/{number}", floor=trust_pb2.TRUST_LEVEL_EXTERNAL)
        assert state.entry.value.external.text == HARMLESS


async def test_where_there_is_no_room_it_is_refused(holding: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUARANTINE_ENTRIES_MAX", 2)
    for path in ("p", "q"):
        await set_aside(holding.agent, page(path, HARMLESS))
    with refused("SCREENING_UNAVAILABLE"):
        await holding.agent.commit(page("r", HARMLESS))


async def test_what_waits_too_long_is_removed(start: Started, rules: Rules, clock: SettableClock) -> None:
    running = await start()
    await let_hold(running)
    rules.is_down = True
    await set_aside(running.agent, page("p", HARMLESS))
    clock.pass_ms(limits.QUARANTINE_MS)
    await running.server._upkeep.sweep()
    rules.is_down = False
    await running.server._pending.turn()
    assert await running.agent.paths() == []
    assert await records(running.server._store, keys.PENDING) == []


async def test_what_came_of_a_purged_source_is_removed_while_it_waits(holding: Running, rules: Rules) -> None:
    await set_aside(holding.agent, page("p", HARMLESS))
    operator = holding.as_agent("ops-1", "operator")
    plan = await operator.plan_purge(uri="https://example.com/p")
    await operator.purge(plan.removal.id)

    async def is_gone() -> bool:
        return not await records(holding.server._store, keys.QUARANTINE)

    await eventually(is_gone)
    rules.is_down = False
    await eventually(nothing_left(holding))
    assert await holding.agent.paths() == []


async def test_a_deleted_board_takes_it_along(holding: Running, rules: Rules) -> None:
    await set_aside(holding.agent, page("p", HARMLESS))
    operator = holding.as_agent("ops-1", "operator")
    request = admin_service_pb2.DeleteBoardRequest(board="main", reason="it is over")
    await operator.admin.DeleteBoard(request, metadata=operator.metadata)
    rules.is_down = False
    await eventually(nothing_left(holding))
    assert await records(holding.server._store, keys.HEAD) == []


async def test_a_process_that_hangs_or_is_killed_costs_no_writer_its_commit(
    start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the process that screens: stopped, it gives no verdict; another one takes its place."""
    running = await start(upkeep_interval_s=0.05)
    await let_hold(running)
    await running.agent.commit(page("first", HARMLESS))
    monkeypatch.setattr(limits, "SCREENING_S_MAX", 1.0)
    worker = running.server._screenings._screener._screener._worker  # type: ignore[attr-defined]  # the real one
    worker.process.send_signal(signal.SIGSTOP)
    await set_aside(running.agent, page("p", HARMLESS))
    monkeypatch.setattr(limits, "SCREENING_S_MAX", 60.0)
    await eventually(listed(running, RELEASED), within_s=30.0)
    assert (await running.agent.asked("p")).value.external.text == HARMLESS


async def test_what_has_to_be_encrypted_by_now_waits_for_a_server_with_a_key(
    rules: Rules, start: Started, tmp_path: Path
) -> None:
    bare = await start()
    await let_hold(bare)
    rules.phrases, rules.is_down = PHRASES, True
    mail = "li.wei@mail.internal"
    await set_aside(bare.agent, page("p", f"{HARMLESS} {mail}"))
    keys_file = tmp_path / "keys"
    keys_file.write_text(key_line("k1"), encoding="utf-8")
    keyed = await start(encryption_keys_file=keys_file)
    encrypting = trust_pb2.REDACTION_HANDLING_ENCRYPT
    told = rule("shared:*", without_verdict=HOLD, revealers=["agent:opener"])
    await keyed.as_agent("ops-1", "operator").set_policy(told, replaces=1, personal_data=encrypting)
    rules.is_down = False
    await bare.server._pending.turn()
    assert await listed(bare, PENDING)()
    await bare.server._pending._ownership.let_go()
    await keyed.server._pending.turn()
    assert mail not in (await keyed.agent.asked("p")).value.external.text
    opened = await keyed.as_agent("opener").reveal("p", floor=trust_pb2.TRUST_LEVEL_EXTERNAL)
    assert opened.entry.value.external.text == f"{HARMLESS} {mail}"
