"""An order in parts that older rules have let in is found when other rules judge again: its last part is withheld."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from kokuban.v1 import trust_pb2
from kokuban_server.app import rescreening
from kokuban_server.core import limits
from tests.wire.calls import Kept, at, refused, rule, until
from tests.wire.screening_calls import HARMLESS, page
from tests.wire.test_rescreening import EXTERNAL, chief, judged_again, successor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.core.screening.screening import Screening
    from kokuban_server.core.trust import Source
    from kokuban_server.ports.board_store import BoardStore
    from tests.wire.calls import Agent, SettableClock
    from tests.wire.conftest import Running, Started
    from tests.wire.screening_calls import Rules

PHRASE = "grave bring the grey zebra over the crossing"
ONE, TWO = "First of all, bring the grey", "zebra over the crossing, please."
TOGETHER = limits.SCREENED_TOGETHER_TEXTS_ENTRIES_MAX


def parts_of(count: int) -> list[str]:
    """Give the phrase in so many parts of at least a word each."""
    words = PHRASE.removeprefix("grave ").split()
    return [*words[: count - 1], " ".join(words[count - 1 :])]


class Writing:
    """What agents write from outside, one text after another, each at a time of its own."""

    def __init__(self, running: Running, clock: SettableClock) -> None:
        self._running = running
        self.clock = clock
        self._names = map("p{:03d}".format, itertools.count(999, -1))
        """In the order of their keys the last text comes first."""

    async def by(self, name: str, *texts: str, at: Running | None = None) -> list[str]:
        """Write texts as an agent, at a server; give their paths."""
        paths = []
        for text in texts:
            self.clock.pass_ms(1)
            paths.append(next(self._names))
            await (at or self._running).as_agent(name).commit(page(paths[-1], text))
        return paths


@pytest.fixture
async def first(start: Started) -> Running:
    """A server with the rules of before."""
    return await start()


@pytest.fixture
def writing(first: Running, clock: SettableClock) -> Writing:
    return Writing(first, clock)


async def withheld(agent: Agent, paths: Sequence[str]) -> list[bool]:
    """Say of each entry whether it is withheld from who asks for external text."""
    found = {entry.key.path: entry.withheld for entry in (await agent.page(floor=EXTERNAL)).entries}
    return [found[path] for path in paths]


@pytest.mark.parametrize("count", range(2, TOGETHER + 2))
async def test_the_last_of_as_many_parts_as_are_judged_together_is_withheld(
    start: Started, first: Running, writing: Writing, rules: Rules, count: int
) -> None:
    paths = await writing.by("fetcher", *parts_of(count))
    after = await writing.by("fetcher", HARMLESS)
    rules.phrases = PHRASE
    running = await successor(start, first)
    done = await judged_again(running)
    assert (done.kept, done.lowered, done.withheld, done.waiting) == (count, 0, 1, 0)
    assert await withheld(running.agent, paths + after) == [False] * (count - 1) + [True, False]
    with refused("WITHHELD", trust="SUSPECT"):
        await running.agent.asked(paths[-1])


async def test_more_parts_than_are_judged_together_are_not_found(
    start: Started, first: Running, writing: Writing, rules: Rules
) -> None:
    await writing.by("fetcher", *parts_of(TOGETHER + 2))
    rules.phrases = PHRASE
    assert (await judged_again(await successor(start, first))).withheld == 0


async def test_only_what_one_agent_wrote_on_one_board_is_judged_together(
    start: Started, first: Running, writing: Writing, rules: Rules
) -> None:
    await writing.by("fetcher", ONE)
    await writing.by("another", TWO)
    with_another = await start(boards=["main", "other"])
    await with_another.as_agent("fetcher").commit(page("p", TWO), board="other")
    rules.phrases = PHRASE
    done = await judged_again(await successor(start, first))
    assert (done.kept, done.withheld) == (3, 0)


async def test_of_an_order_that_is_whole_nothing_that_comes_after_it_is_withheld(
    start: Started, first: Running, writing: Writing, rules: Rules
) -> None:
    """Also where only its end is looked at with what comes next."""
    [whole, after] = await writing.by("fetcher", f"{'x' * 600} {ONE} {TWO}", HARMLESS)
    rules.phrases = PHRASE
    running = await successor(start, first)
    await judged_again(running)
    assert await withheld(running.agent, [whole, after]) == [True, False]


async def test_a_part_that_was_written_over_is_its_last_writers(
    start: Started, first: Running, writing: Writing, rules: Rules, clock: SettableClock
) -> None:
    [part] = await writing.by("fetcher", HARMLESS)
    await writing.by("fetcher", TWO)
    clock.pass_ms(1)
    over = page(part, ONE, precondition=at(await first.agent.asked(part)))
    await first.as_agent("another").commit(over)
    [last] = await writing.by("another", TWO)
    rules.phrases = PHRASE
    running = await successor(start, first)
    assert (await judged_again(running)).withheld == 1
    assert await withheld(running.agent, [part, last]) == [False, True]


async def test_a_part_that_newer_rules_have_let_in_is_judged_with_those_of_before(
    start: Started, first: Running, writing: Writing, rules: Rules
) -> None:
    """Who lets it in has seen nothing else of its agent's."""
    [one] = await writing.by("fetcher", ONE)
    rules.phrases = PHRASE
    other = await start()
    [two] = await writing.by("fetcher", TWO, at=other)
    assert (await other.agent.asked(two)).label.screened_by.startswith("own-")
    running = await successor(start, first)
    await judged_again(running)
    assert await withheld(running.agent, [one, two]) == [False, True]


async def test_what_a_reviewer_has_let_out_stays_out(
    start: Started, first: Running, writing: Writing, rules: Rules
) -> None:
    [one, two] = await writing.by("fetcher", ONE, TWO)
    rules.phrases = PHRASE
    second = await successor(start, first)
    await judged_again(second)
    await chief(second).endorse(two, await chief(second).asked(two, "SUSPECT"), "EXTERNAL")
    rules.phrases = f"{PHRASE}\ngrave unicorn"
    third = await successor(start, second)
    await judged_again(third)
    assert await withheld(third.agent, [one, two]) == [False, False]


async def test_what_a_policy_leaves_unscreened_is_not_withheld(
    start: Started, first: Running, writing: Writing, rules: Rules
) -> None:
    paths = await writing.by("fetcher", ONE, TWO)
    off = rule("shared:*", screening=trust_pb2.SCREENING_PROFILE_OFF)
    await first.as_agent("ops-1", "operator").set_policy(off)
    rules.phrases = PHRASE
    running = await successor(start, first)
    assert (await judged_again(running)).withheld == 0
    assert await withheld(running.agent, paths) == [False, False]


async def test_a_server_that_goes_on_knows_the_parts_that_the_one_before_has_judged(
    start: Started, store: BoardStore, first: Running, writing: Writing, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was judged is read again and not judged again."""
    monkeypatch.setattr(rescreening, "_WALKED_AT_ONCE", 2)
    await writing.by("fetcher", ONE)
    await writing.by("other", "Ferry 0 leaves.", "Ferry 1 leaves.", HARMLESS, "Ferry 3 is late.")
    last = await writing.by("fetcher", TWO)
    rules.phrases = PHRASE
    screens = rules.screen

    async def down_with_it(text: str, source: Source) -> Screening:
        rules.is_down = rules.is_down or "Ferry 3" in text
        return await screens(text, source)

    monkeypatch.setattr(rules, "screen", down_with_it)
    running = await successor(start, first, Kept(store))
    await until(lambda: rules.is_down)
    await running.server.stop()
    monkeypatch.setattr(rules, "screen", screens)
    rules.is_down = False
    rules.asked.clear()
    second = await start()
    assert (await judged_again(second)).withheld == 1
    assert await withheld(second.agent, last) == [True]
    assert "Ferry 0 leaves.\nFerry 1 leaves." not in rules.asked


async def test_nothing_is_judged_together_where_nothing_is_left_to_judge(
    start: Started, first: Running, writing: Writing, rules: Rules, clock: SettableClock
) -> None:
    """Another walk looks for what came late, and judges nothing twice."""
    await writing.by("fetcher", ONE, HARMLESS)
    rules.phrases = PHRASE
    walks = (await successor(start, first, upkeep_interval_s=0.05)).server._rescreening
    for _ in range(2):
        await until(lambda: walks._next_walk_ms > clock.now_ms())
        asked = list(filter(None, rules.asked))
        clock.pass_ms(rescreening._WALK_PAUSE_MS)
    assert asked == list(filter(None, rules.asked))
