"""Servers whose rules a test holds, and what they let in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kokuban_server.core.screening.phrases import parse_phrases
from kokuban_server.core.screening.screening import judge, with_findings
from kokuban_server.core.screening.views import canonical
from kokuban_server.ports.screener import ScreenerError
from tests.wire.calls import of_source, put

if TYPE_CHECKING:
    from kokuban.v1 import commit_pb2
    from kokuban_server.core.screening.screening import Screening
    from kokuban_server.core.trust import Source

HARMLESS, ZEBRA, STRIPES = "Ferries leave at nine.", "Beware of the zebra crossing.", "A flag with seven stripes."
PHRASES = "grave zebra crossing\nsuspicious seven stripes\n"


class Rules:
    """The rules of the servers that are started: those of the project and some phrases, judged in the test's own process."""

    def __init__(self) -> None:
        self.phrases = ""
        self.asked: list[str] = []
        self.fails_over = ""
        self.is_down = False
        self.may_judge = asyncio.Event()
        self.may_judge.set()

    async def screen(self, text: str, source: Source) -> Screening:
        self.asked.append(text)
        if text:
            await self.may_judge.wait()
        if self.is_down or (self.fails_over and self.fails_over in text):
            raise ScreenerError("no verdict")
        found = canonical(text)
        judged = judge(found, source)
        if not self.phrases:
            return judged
        phrases = parse_phrases(self.phrases)
        judged = with_findings(judged, list(phrases.findings(found)), source)
        return judged._replace(version=phrases.version)

    def judged(self, text: str) -> int:
        """Give how often a text was judged."""
        return sum(text in asked for asked in self.asked)


def page(path: str, text: str, **more: Any) -> commit_pb2.Mutation:  # noqa: ANN401 - of a put
    return put(path, text, **{"provenance": of_source(uri=f"https://example.com/{path}"), **more})
