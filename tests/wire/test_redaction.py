"""RedactText: what is secret or personal is told by its place, the text comes back without it, and nothing is kept."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

from kokuban.v1 import trust_pb2
from kokuban.v1 import trust_service_pb2 as pb
from kokuban_server.core import limits
from kokuban_server.core.redaction.rules import RULES_VERSION
from kokuban_server.ports.screener import ScreenerError
from tests.wire.calls import put, refused, until

if TYPE_CHECKING:
    from kokuban_server.core.redaction.masking import Redaction, Wish
    from kokuban_server.core.screening.screening import Screening
    from kokuban_server.core.trust import Source
    from tests.wire.calls import Agent
    from tests.wire.conftest import Running, Started

SECRET = "Zx9!kLmQ7w"  # noqa: S105 - made up


async def test_what_was_found_is_told_by_its_place_and_the_text_comes_back_without_it(agent: Agent) -> None:
    text = f"写信给 li@mail.internal; 密码是 {SECRET}"
    found = await agent.redact(text)
    mail, password = found.findings
    assert (mail.type, mail.kind, mail.view) == ("email", trust_pb2.REDACTION_KIND_PERSONAL, "plain")
    assert (password.type, password.kind) == ("password", trust_pb2.REDACTION_KIND_SECRET)
    assert text[mail.span.start : mail.span.end] == "li@mail.internal"
    assert text[password.span.start : password.span.end] == SECRET
    pattern = r"写信给 \[redacted:email:[0-9a-f]{6}\]; 密码是 \[redacted:password:[0-9a-f]{6}\]"
    assert re.fullmatch(pattern, found.redacted_text)
    assert (found.finding_count, found.incomplete, found.rule_set) == (2, False, RULES_VERSION)
    assert found.token
    assert SECRET.encode() not in found.SerializeToString()


async def test_json_stays_json(agent: Agent) -> None:
    found = await agent.redact(json.dumps({"password": SECRET, "card": 4111111111111111, "n": 1}), json=True)
    told = json.loads(found.redacted_text)
    assert told["password"].startswith("[redacted:password:")
    assert told["card"].startswith("[redacted:bank-card:")
    assert told["n"] == 1


async def test_addresses_of_networks_are_told_only_if_asked_for(agent: Agent) -> None:
    assert not (await agent.redact("10.2.3.4")).finding_count
    assert (await agent.redact("10.2.3.4", network_addresses=True)).findings[0].type == "ip-address"


async def test_masks_of_two_answers_say_nothing_of_each_other(agent: Agent) -> None:
    """Or what a mask in an entry stands for could be tried out here."""
    first, second = [(await agent.redact(f"password: {SECRET}")).redacted_text for _ in range(2)]
    assert first != second


async def test_more_is_masked_than_is_told(agent: Agent) -> None:
    most = limits.REDACTED_FINDINGS_SHOWN_ENTRIES_MAX
    found = await agent.redact(" ".join(f"user-{number}@mail.internal" for number in range(most + 1)))
    assert (len(found.findings), found.finding_count) == (most, most + 1)
    assert "@" not in found.redacted_text


async def test_the_largest_text_full_of_addresses_is_answered(agent: Agent) -> None:
    found = await agent.redact("a@b.cc " * (limits.SCREENED_TEXT_BYTES_MAX // 7))
    assert found.finding_count == limits.SCREENED_TEXT_BYTES_MAX // 7


async def test_redacting_keeps_nothing(running: Running) -> None:
    before = (await running.agent.commit(put("page"))).revision.number
    await running.agent.redact(f"password: {SECRET}")
    assert await running.agent.paths() == ["page"]
    assert (await running.agent.commit(put("next", "x"))).revision.number == before + 1


async def test_a_board_that_is_not_there_is_not_found(start: Started) -> None:
    running = await start()
    with refused("NOT_FOUND"):
        request = pb.RedactTextRequest(board="elsewhere", text="text")
        await running.agent.trust.RedactText(request, metadata=running.agent.metadata)


class Held:
    """Gives nothing before it is told to: no real process can be held at a known point."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.asked = 0

    async def screen(self, text: str, source: Source) -> Screening:
        return await self._wait(text)  # type: ignore[no-any-return] # as above

    async def redact(self, text: str, wish: Wish) -> Redaction:
        return await self._wait(text)  # type: ignore[no-any-return] # as above

    async def close(self) -> None:
        self.open.set()

    async def _wait(self, text: str) -> Any:  # noqa: ANN401 - it never gives anything
        self.asked += 1
        await self.open.wait()
        raise ScreenerError(text)


async def test_both_methods_share_what_may_wait_and_a_failure_is_no_answer(running: Running) -> None:
    held = running.server._screenings._screener = Held()
    most = limits.SCREENINGS_OF_PRINCIPAL_ENTRIES_MAX
    waiting = [
        asyncio.create_task(running.agent.redact(SECRET) if number % 2 else running.agent.screen(SECRET))
        for number in range(most)
    ]
    await until(lambda: held.asked == most)
    with refused("PRINCIPAL_LIMIT_REACHED", what="screenings"):
        await running.agent.redact("one more")
    held.open.set()
    with refused("INTERNAL") as found:
        await waiting[1]
    assert SECRET not in found[0].message
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not running.server._screenings._waiting
