"""What older rules have let in is judged again by those of now: it may become worse, never better."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kokuban.v1 import admin_service_pb2, entry_pb2, policy_pb2, trust_pb2
from kokuban_server.app import rescreening
from kokuban_server.core import keys
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.records.codec import decode_entry
from tests.wire.calls import (
    REGION,
    Agent,
    Kept,
    append,
    at,
    eventually,
    made_of,
    of_source,
    put,
    records,
    refused,
    rule,
    until,
)
from tests.wire.screening_calls import HARMLESS, PHRASES, STRIPES, ZEBRA, page

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from kokuban_server.core.rescreening import Progress
    from kokuban_server.core.screening.screening import Screening
    from kokuban_server.core.trust import Source
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.conftest import Running, Started
    from tests.wire.screening_calls import Rules

EXTERNAL, AGENT, SUSPECT = (
    trust_pb2.TRUST_LEVEL_EXTERNAL,
    trust_pb2.TRUST_LEVEL_AGENT,
    trust_pb2.TRUST_LEVEL_SUSPECT,
)
WITHHOLD = trust_pb2.STALE_SCREENING_WITHHOLD


def progress_of(running: Running) -> Progress | None:
    return running.server._judged.ours


async def judged_again(running: Running) -> Progress:
    """Come back when the server has judged everything."""

    def is_done() -> bool:
        progress = progress_of(running)
        return progress is not None and bool(progress.judged_revision) and not progress.walk_revision

    await until(is_done, within_s=30.0)
    progress = progress_of(running)
    assert progress is not None
    return progress


async def successor(start: Started, running: Running, on: BoardStore | None = None, **settings: Any) -> Running:  # noqa: ANN401 - of any setting's type
    """Start a server that takes over another one's background work; that one goes on answering."""
    await running.server._rescreening._ownership.let_go()
    return await start(on, **settings)


async def status(running: Running, role: str) -> admin_service_pb2.GetStatusResponse:
    asking = running.as_agent("x", role)
    answer: admin_service_pb2.GetStatusResponse = await asking.admin.GetStatus(
        admin_service_pb2.GetStatusRequest(), metadata=asking.metadata
    )
    return answer


def chief(running: Running) -> Agent:
    return running.as_agent("chief-1", "member,supervisor")


async def pages(running: Running, *texts: str) -> None:
    """Write texts, each as an agent of its own: so none is judged together with another."""
    for number, text in enumerate(texts):
        await running.as_agent(f"writer-{number}").commit(page(f"p{number}", text))


# What becomes of what was let in.


async def test_what_new_rules_find_is_withheld_or_lowered_and_all_else_stays_as_it_was(
    start: Started, any_store: BoardStore, tmp_path: Path
) -> None:
    """By the process that screens, with its classifier; the second server has phrases of an operator's own besides."""
    first = await start(any_store)
    agent = first.agent
    await first.as_agent("ops-1", "operator").set_policy(tools=[policy_pb2.ToolRule(name="search", trust=AGENT)])
    await agent.commit(page("fine", HARMLESS), page("zebra", ZEBRA), put("own", ZEBRA))
    await agent.commit(put("tool", STRIPES, provenance=of_source("TOOL", "", "search")))
    before = {path: await agent.asked(path) for path in ("fine", "zebra", "own", "tool")}
    snapshot = (await agent.page()).token
    phrases = tmp_path / "phrases"
    phrases.write_text(PHRASES, encoding="utf-8")

    second = await successor(start, first, any_store, screening_phrases_file=phrases)
    done = await judged_again(second)
    assert (done.kept, done.lowered, done.withheld, done.waiting) == (1, 1, 1, 0)
    told = await status(second, "operator")
    assert (told.rescreening.kept_count, told.rescreening.withheld_count, told.rescreening.waiting_count) == (1, 1, 0)
    assert "own-" in told.rescreening.rule_set
    assert not (await status(second, "member")).HasField("rescreening")
    agent = second.agent
    assert await agent.asked("fine") == before["fine"]
    assert await agent.get("own") == before["own"]
    with refused("WITHHELD", trust="SUSPECT") as found:
        await agent.asked("zebra")
    tool = await agent.asked("tool")
    assert (tool.label.trust, tool.label.suspicious) == (EXTERNAL, True)
    assert tool.value.external.text == STRIPES
    assert int(found[0].facts["revision"]) > before["zebra"].revision.number
    # Nor does the past show what is withheld now.
    history = await agent.history("zebra", floor=EXTERNAL)
    assert [change.entry.withheld for change in history] == [True, True]
    past = await agent.page(consistency=entry_pb2.ReadConsistency(snapshot=snapshot), floor=EXTERNAL)
    shown = {entry.key.path: entry.withheld for entry in past.entries}
    assert shown == {"fine": False, "zebra": True, "own": False, "tool": True}
    late = await agent.watch("zebra", after=snapshot).changes(1)
    assert [change.entry.withheld for change in late] == [True]
    assert ZEBRA.encode() not in b"".join(change.SerializeToString() for change in [*history, *late])


async def test_a_reviewer_sees_what_is_withheld_and_may_endorse_it_for_good(start: Started, rules: Rules) -> None:
    first = await start()
    await pages(first, ZEBRA)
    rules.phrases = PHRASES
    running = await successor(start, first)
    await judged_again(running)
    for roles in ("member", "member,auditor"):
        with refused("ROLE_REQUIRED"):
            await running.as_agent("x", roles).asked("p0", "SUSPECT")
        with refused("ROLE_REQUIRED"):
            await running.as_agent("x", roles).page(floor=SUSPECT)
    held = await chief(running).asked("p0", "SUSPECT")
    assert (held.value.external.text, held.label.trust, held.label.suspicious) == (ZEBRA, SUSPECT, True)
    await chief(running).endorse("p0", held, "EXTERNAL")
    assert (await running.agent.asked("p0")).value.external.text == ZEBRA
    rules.phrases = f"{PHRASES}grave unicorn"
    again = await successor(start, running)
    assert (await judged_again(again)).withheld == 0
    assert (await again.agent.asked("p0")).value.external.text == ZEBRA


async def test_states_before_that_older_rules_let_in_are_withheld_with_it(start: Started, rules: Rules) -> None:
    first = await start()
    old = await first.agent.commit(page("p", f"{ZEBRA} (1)"))
    await first.agent.commit(page("p", f"{ZEBRA} (2)", precondition=at(old)))
    rules.phrases = PHRASES
    running = await successor(start, first)
    assert (await judged_again(running)).withheld == 1
    history = await running.agent.history("p", floor=EXTERNAL)
    assert [change.entry.withheld for change in history] == [True, True, True]
    texts = [change.entry.value.external.text for change in await chief(running).history("p", floor=SUSPECT)]
    assert texts == [f"{ZEBRA} (2)", f"{ZEBRA} (2)", f"{ZEBRA} (1)"]


async def test_what_an_agent_adds_to_it_does_not_hide_it(start: Started, rules: Rules) -> None:
    """Nor does it have what a reviewer has endorsed judged again."""
    first = await start()
    for path in ("list", "endorsed"):
        mutation = append(path, ZEBRA)
        mutation.append_to_list.provenance.CopyFrom(of_source())
        await first.agent.commit(mutation)
    await chief(first).endorse("endorsed", await first.agent.asked("endorsed"), "AGENT")
    for path in ("list", "endorsed"):
        await first.agent.commit(append(path, "our own words"))
    rules.phrases = PHRASES
    running = await successor(start, first)
    assert (await judged_again(running)).withheld == 1
    with refused("WITHHELD", trust="SUSPECT"):
        await running.agent.asked("list")
    assert ZEBRA in await running.agent.json("endorsed")


async def test_it_never_becomes_more_trusted(start: Started, rules: Rules) -> None:
    rules.phrases = "suspicious seven stripes"
    first = await start()
    await first.as_agent("ops-1", "operator").set_policy(tools=[policy_pb2.ToolRule(name="search", trust=AGENT)])
    before = await first.agent.commit(put("tool", STRIPES, provenance=of_source("TOOL", "", "search")))
    rules.phrases = "suspicious unicorn"
    running = await successor(start, first)
    assert (await judged_again(running)).kept == 1
    entry = await running.agent.asked("tool")
    assert (entry.label.trust, entry.label.suspicious) == (EXTERNAL, True)
    assert entry.revision.number == before.revision.number


async def test_what_is_withheld_is_purged_with_its_source(start: Started, rules: Rules) -> None:
    first = await start()
    source = await first.agent.commit(page("p0", ZEBRA))
    await first.agent.commit(put("summary", ZEBRA, provenance=made_of(("p0", source))))
    rules.phrases = PHRASES
    running = await successor(start, first, upkeep_interval_s=0.05)
    assert (await judged_again(running)).withheld == 2
    operator = running.as_agent("ops-1", "operator")
    plan = await operator.plan_purge(uri="https://example.com/p0")
    await operator.purge(plan.removal.id)
    await until(lambda: not running.server._removal_upkeep._asked.is_set())
    for _ in range(200):
        if (await operator.removal(plan.removal.id)).state == 3:
            break
        await asyncio.sleep(0.05)
    left = [decode_entry(one.key, one.value).value for one in await records(running.server._store, keys.HEAD)]
    assert left == [None, None]


# Meanwhile.


async def test_by_profile_it_is_withheld_until_it_is_judged(start: Started, rules: Rules) -> None:
    first = await start()
    operator = first.as_agent("ops-1", "operator")
    await operator.set_policy(
        rule(REGION, stale_screening=WITHHOLD),
        tools=[policy_pb2.ToolRule(name="search", trust=AGENT)],
    )
    begin = await first.agent.commit(put("first"))
    await first.agent.commit(page("p", HARMLESS), page("p", HARMLESS, region="shared:web"))
    await first.agent.commit(put("tool", HARMLESS, provenance=of_source("TOOL", "", "search")))
    assert (await first.agent.asked("p")).value.external.text == HARMLESS
    rules.phrases = PHRASES
    rules.may_judge.clear()
    running = await successor(start, first)
    agent = running.agent
    assert (await agent.asked("p", region="shared:web")).value.external.text == HARMLESS
    for path in ("p", "tool"):
        with refused("WITHHELD"):
            await agent.asked(path)
    listed = {entry.key.path: entry.withheld for entry in (await agent.page(floor=EXTERNAL)).entries}
    assert listed == {"first": False, "p": True, "tool": True}
    assert [change.entry.withheld for change in await agent.history("tool")] == [True]
    at_start = await agent.watch("tool", snapshot=True).next()
    assert [entry.withheld for entry in at_start.snapshot.entries] == [True]
    changes = await agent.watch("tool", after=begin.token).changes(1)
    assert [change.entry.withheld for change in changes] == [True]

    rules.may_judge.set()
    assert (await judged_again(running)).kept == 3
    assert (await agent.asked("p")).value.external.text == HARMLESS
    assert (await agent.get("tool")).value.text == HARMLESS
    assert not any(entry.withheld for entry in (await agent.page(floor=EXTERNAL)).entries)
    at_start = await agent.watch("tool", snapshot=True).next()
    assert [entry.withheld for entry in at_start.snapshot.entries] == [False]
    # What is past was not judged.
    snapshot = entry_pb2.ReadConsistency(snapshot=(await agent.page()).token)
    assert [entry.withheld for entry in (await agent.page("tool", consistency=snapshot)).entries] == [True]


async def test_a_server_that_has_screened_nothing_learns_its_rules_when_it_has_to(start: Started, rules: Rules) -> None:
    first, second = await start(), await start()
    await first.as_agent("ops-1", "operator").set_policy(rule(REGION, stale_screening=WITHHOLD))
    await first.agent.commit(page("p", HARMLESS))

    async def is_shown() -> bool:
        return not (await second.agent.page(floor=EXTERNAL)).entries[0].withheld

    assert second.server._judged.rule_set == ""
    await eventually(is_shown)


async def test_a_tool_may_have_a_profile_of_its_own(start: Started, rules: Rules) -> None:
    first = await start()
    tools = [policy_pb2.ToolRule(name="search", trust=AGENT, stale_screening=WITHHOLD)]
    await first.as_agent("ops-1", "operator").set_policy(tools=tools)
    of_tool = of_source("TOOL", "", "search")
    await first.agent.commit(page("p", HARMLESS), put("tool", HARMLESS, provenance=of_tool))
    rules.phrases = PHRASES
    rules.may_judge.clear()
    running = await successor(start, first)
    assert (await running.agent.asked("p")).value.external.text == HARMLESS
    with refused("WITHHELD"):
        await running.agent.get("tool")
    rules.may_judge.set()
    await judged_again(running)
    assert (await running.agent.get("tool")).value.text == HARMLESS


async def test_what_is_written_meanwhile_stays(start: Started, rules: Rules) -> None:
    first = await start()
    old = await first.agent.commit(page("p", ZEBRA))
    rules.phrases = PHRASES
    rules.may_judge.clear()
    running = await successor(start, first)
    await until(lambda: rules.judged(ZEBRA) == 2)
    await first.as_agent("ops-1", "operator").set_policy(rule(REGION, allows_lowering=True))
    new = await running.agent.commit(put("p", "our own words", at(old)))
    rules.may_judge.set()
    assert (await judged_again(running)).withheld == 0
    entry = await running.agent.get("p")
    assert (entry.value.text, entry.revision.number) == ("our own words", new.revision.number)


async def test_a_policy_that_does_not_screen_has_nothing_judged_again(start: Started, rules: Rules) -> None:
    first = await start()
    await pages(first, ZEBRA)
    off = trust_pb2.SCREENING_PROFILE_OFF
    await first.as_agent("ops-1", "operator").set_policy(rule(REGION, screening=off, stale_screening=WITHHOLD))
    rules.phrases = PHRASES
    running = await successor(start, first)
    assert (await judged_again(running)).withheld == 0
    assert (await running.agent.asked("p0")).value.external.text == ZEBRA


# Faults.


async def test_an_entry_that_cannot_be_read_holds_nothing_up(start: Started, store: BoardStore, rules: Rules) -> None:
    first = await start()
    await pages(first, HARMLESS, ZEBRA)
    head = (await records(store, keys.HEAD))[0].key
    await store.commit(ChangeSet((), (Put(head, b"\xff"),)), 1.0)
    rules.phrases = PHRASES
    done = await judged_again(await successor(start, first))
    assert (done.kept, done.withheld) == (0, 1)


async def test_without_verdicts_nothing_is_decided_and_it_goes_on_when_there_are(start: Started, rules: Rules) -> None:
    first = await start()
    await pages(first, ZEBRA, HARMLESS)
    rules.phrases, rules.is_down = PHRASES, True
    running = await successor(start, first, upkeep_interval_s=0.05)
    await until(lambda: rules.asked.count("") >= 3)
    assert progress_of(running) is None
    assert (await running.agent.asked("p0")).value.external.text == ZEBRA
    rules.is_down = False
    assert (await judged_again(running)).withheld == 1


async def test_a_text_over_which_only_the_screener_fails_is_withheld(start: Started, rules: Rules) -> None:
    first = await start()
    await pages(first, HARMLESS, "breaks it")
    rules.phrases, rules.fails_over = PHRASES, "breaks it"
    running = await successor(start, first)
    done = await judged_again(running)
    assert (done.kept, done.withheld) == (1, 1)
    with refused("WITHHELD"):
        await running.agent.asked("p1")


async def test_a_restarted_server_goes_on_where_the_one_before_was(
    start: Started, store: BoardStore, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescreening, "_WALKED_AT_ONCE", 2)
    texts = [f"Ferry {number} leaves." for number in range(6)]
    first = await start()
    await pages(first, *texts)
    rules.phrases, rules.fails_over = PHRASES, "Ferry 3"
    screens = rules.screen

    async def down_with_it(text: str, source: Source) -> Screening:
        rules.is_down = rules.is_down or rules.fails_over in text
        return await screens(text, source)

    monkeypatch.setattr(rules, "screen", down_with_it)
    running = await successor(start, first, Kept(store))
    await until(lambda: rules.is_down)
    await running.server.stop()
    monkeypatch.setattr(rules, "screen", screens)
    rules.is_down, rules.fails_over = False, ""
    rules.asked.clear()
    done = await judged_again(await start())
    assert done.kept == 6
    assert [rules.judged(text) for text in texts] == [0, 0, 1, 1, 1, 1]


async def test_of_two_servers_one_judges_and_both_know(start: Started, rules: Rules) -> None:
    first = await start()
    await first.as_agent("ops-1", "operator").set_policy(rule(REGION, stale_screening=WITHHOLD))
    texts = [f"Ferry {number} leaves." for number in range(5)]
    await pages(first, *texts)
    await first.server._rescreening._ownership.let_go()
    rules.asked.clear()
    rules.phrases = PHRASES
    servers = await asyncio.gather(start(upkeep_interval_s=0.05), start(upkeep_interval_s=0.05))
    for running in servers:
        assert (await judged_again(running)).kept == 5
        assert (await running.agent.asked("p0")).value.external.text == texts[0]
    assert [rules.judged(text) for text in texts] == [1] * 5


async def test_what_a_server_with_older_rules_writes_late_is_found_later(
    start: Started,
    rules: Rules,
    clock: Any,  # noqa: ANN401 - the settable clock
) -> None:
    """Servers are replaced one by one."""
    first = await start()
    await first.as_agent("ops-1", "operator").set_policy(rule(REGION, stale_screening=WITHHOLD))
    await pages(first, HARMLESS)
    rules.phrases = PHRASES
    second = await successor(start, first, upkeep_interval_s=0.05)
    await judged_again(second)
    rules.phrases = ""
    await first.agent.commit(page("late", ZEBRA))
    rules.phrases = PHRASES
    with refused("WITHHELD"):
        await second.agent.asked("late")
    clock.pass_ms(rescreening._WALK_PAUSE_MS)
    await until(lambda: (progress := progress_of(second)) is not None and progress.withheld == 1)
    with refused("WITHHELD", trust="SUSPECT"):
        await second.agent.asked("late")
