"""Screening over two servers of one etcd: what neither can screen is made once they can, and judged again by other rules."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import (
    External,
    Policy,
    RegionRule,
    Source,
    SourceKind,
    StaleScreening,
    Trust,
    WithoutVerdict,
    errors,
)
from tests.replicas.pair import Pair
from tests.wire.calls import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from kokuban_client import Client
    from kokuban_client.testing import ServerProcess
    from tests.etcd_server import EtcdServer

pytestmark = pytest.mark.etcd
BOUND_S = 60.0
REGION = "shared:web"
PAGES = {"ferries": "Ferries leave at nine.", "zebra": "Beware of the zebra crossing."}


class Phrases:
    """The file of an operator's phrases. Without it the process that screens gives no verdict."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def say(self, text: str) -> None:
        self.path.write_text(f"{text}\n", encoding="utf-8")

    def lose(self) -> None:
        self.path.unlink()


@pytest.fixture
def phrases(tmp_path: Path) -> Phrases:
    made = Phrases(tmp_path / "phrases")
    made.say("grave quiet harbour protocol")
    return made


@pytest.fixture
def screening_pair(etcd: EtcdServer, phrases: Phrases) -> Iterator[Pair]:
    store = f"etcd://{etcd.members[0].endpoint}/replicas/screening-{secrets.token_hex(4)}"
    pair = Pair(store, KOKUBAN_SCREENING_PHRASES_FILE=str(phrases.path), KOKUBAN_UPKEEP_INTERVAL_S="0.1")
    try:
        pair.start()
        yield pair
    finally:
        pair.close()


@pytest.fixture
async def clients() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def shows(client: Client, *paths: str) -> Callable[[], Awaitable[bool]]:
    """Whether just these entries are there and not withheld."""

    async def is_so() -> bool:
        listed = [entry async for entry in client.board("main").list(REGION, floor=Trust.EXTERNAL)]
        return {entry.path for entry in listed if not entry.withheld} == set(paths)

    return is_so


@pytest.mark.parametrize("end", ["stop", pytest.param("kill", marks=pytest.mark.faults)])
async def test_what_cannot_be_screened_is_made_once_and_judged_again_by_other_rules(
    screening_pair: Pair, clients: AsyncExitStack, phrases: Phrases, end: str
) -> None:
    async def chief(server: ServerProcess) -> Client:
        client = kokuban_client.connect(
            server.address, agent="chief", roles=["member", "operator"], wait_for_ready=True
        )
        return await clients.enter_async_context(client)

    at_a, at_b = await chief(screening_pair.a), await chief(screening_pair.b)
    rule = RegionRule("shared:*", without_verdict=WithoutVerdict.HOLD, stale_screening=StaleScreening.WITHHOLD)
    await at_a.board("main").put(REGION, "own", "our own word", must_not_exist=True)
    await at_a.set_policy("main", Policy([rule]), replaces=0)
    phrases.lose()
    for client, (path, text) in zip((at_a, at_b), PAGES.items(), strict=True):
        source = Source(SourceKind.EXTERNAL, f"https://web.example/{path}")
        with pytest.raises(errors.ContentPending):
            await client.board("main").put(REGION, path, text, must_not_exist=True, source=source)
    assert await shows(at_b, "own")()

    phrases.say("grave quiet harbour protocol")
    for client in (at_a, at_b):
        await eventually(shows(client, "own", *PAGES), BOUND_S)
    for path, text in PAGES.items():
        [change] = await at_a.board("main").history(REGION, path, floor=Trust.EXTERNAL)
        assert change.entry is not None
        assert isinstance(change.entry.content, External)
        assert change.entry.content.read() == text

    phrases.say("grave zebra crossing")
    for server in (screening_pair.a, screening_pair.b):
        getattr(server, end)()
    screening_pair.start()
    at_a, at_b = await chief(screening_pair.a), await chief(screening_pair.b)
    for client in (at_a, at_b):
        await eventually(shows(client, "own", "ferries"), BOUND_S)
    judged = (await at_a.status()).rescreening
    assert judged is not None
    assert (judged.kept, judged.lowered, judged.withheld, judged.waiting) == (1, 0, 1, 0)
