"""Texts that principals ask about."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from kokuban_server.app.deadlines import left_s
from kokuban_server.core import limits
from kokuban_server.core.access import Principal
from kokuban_server.core.redaction.masking import Wish
from kokuban_server.core.refusals import DeadlineTooShort, PrincipalLimitReached, TooManyRequests
from kokuban_server.core.screening.classifying import is_classified
from kokuban_server.core.sensitive import Handling, Terms
from kokuban_server.core.trust import Source, SourceKind
from kokuban_server.ports.screener import ScreenerError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from kokuban_server.app.access import Access
    from kokuban_server.app.boards import Board
    from kokuban_server.core.redaction.masking import Redaction
    from kokuban_server.core.screening.screening import Screening
    from kokuban_server.ports.screener import Screener

_RETRY_MS = 1_000
_KEY_BYTES = 32
VERDICT_ATTEMPTS = 2
"""So often a text is tried over which the screener fails while it judges others: it may have been slow but once."""
OURSELVES = Principal("", "kokuban", frozenset())
"""Who has texts judged that nobody has just written."""
_ANY_PAGE = Source(SourceKind.EXTERNAL, "none")


_Judged = TypeVar("_Judged")


class Screenings:
    """Has texts worked on one after another, a bounded number of them waiting."""

    def __init__(self, access: Access, screener: Screener) -> None:
        self._access = access
        self._screener = screener
        self._waiting: Counter[tuple[str, str]] = Counter()
        self._judging: set[asyncio.Task[Any]] = set()
        self.rule_set = ""
        """What judged last what came from outside; nothing while that is not known."""

    @property
    def waiting_count(self) -> int:
        """How many texts wait or are being worked on."""
        return self._waiting.total()

    async def screen(
        self, principal: Principal, board_id: str, text: str, source: Source, deadline: float
    ) -> tuple[Board, Screening]:
        """Say what is in a text.

        Raises `NotFound` for a board, `TooManyRequests` and `PrincipalLimitReached` where too many wait, and
        `DeadlineTooShort`.
        """
        board = await self._access.live(principal, board_id, deadline)
        return board, await self.judge(principal, text, source, deadline)

    async def judge(self, principal: Principal, text: str, source: Source, deadline: float) -> Screening:
        """Judge a text for a principal.

        Raises `TooManyRequests` and `PrincipalLimitReached` where too many wait, `DeadlineTooShort`, and `ScreenerError`.
        """
        found = await self._in_turn(principal, deadline, lambda: self._screener.screen(text, source))
        if is_classified(source):
            self.rule_set = found.version
        return found

    async def is_judging(self) -> bool:
        """Say whether texts from outside are judged at all now; if so, by which rules is known then.

        Raises `TooManyRequests` and `DeadlineTooShort`.
        """
        deadline = asyncio.get_running_loop().time() + 2 * limits.SCREENING_S_MAX
        try:
            await self.judge(OURSELVES, "", _ANY_PAGE, deadline)
        except ScreenerError:
            return False
        return True

    async def redact(
        self, principal: Principal, board_id: str, text: str, deadline: float, *, is_json: bool, addresses: bool
    ) -> tuple[Board, Redaction]:
        """Say what is secret or personal in a text, and give the text with all of that masked. Raises as `screen`."""
        board = await self._access.live(principal, board_id, deadline)
        # A key for this text alone: under a key of the board's, whoever sees a mask could try here what it stands for.
        wish = Wish(Terms(Handling.MASK, Handling.MASK), secrets.token_bytes(_KEY_BYTES), is_json, addresses)
        return board, await self._in_turn(principal, deadline, lambda: self._screener.redact(text, wish))

    async def close(self) -> None:
        """Work on no more."""
        for judging in self._judging:
            judging.cancel()
        await asyncio.gather(*self._judging, return_exceptions=True)
        await self._screener.close()

    async def _in_turn(
        self, principal: Principal, deadline: float, work: Callable[[], Coroutine[Any, Any, _Judged]]
    ) -> _Judged:
        agent = (principal.tenant, principal.agent)
        if self._waiting[agent] >= limits.SCREENINGS_OF_PRINCIPAL_ENTRIES_MAX:
            raise PrincipalLimitReached("screenings", limits.SCREENINGS_OF_PRINCIPAL_ENTRIES_MAX, _RETRY_MS)
        if self._waiting.total() >= limits.SCREENINGS_WAITING_ENTRIES_MAX:
            raise TooManyRequests
        self._waiting[agent] += 1
        judging = asyncio.create_task(work(), name="screening")
        self._judging.add(judging)
        judging.add_done_callback(functools.partial(self._done, agent))
        # A text is judged to its end also when nobody waits any more: to break off is dearer than to go on, and could be asked
        # for again and again.
        done, _ = await asyncio.wait((judging,), timeout=left_s(deadline))
        if not done:
            raise DeadlineTooShort
        return judging.result()

    def _done(self, agent: tuple[str, str], judging: asyncio.Task[Any]) -> None:
        self._judging.discard(judging)
        if not judging.cancelled():
            judging.exception()  # who asked is told, if they still wait
        self._waiting[agent] -= 1
        if not self._waiting[agent]:
            del self._waiting[agent]
