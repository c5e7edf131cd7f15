"""Screening of what is said of locks and sessions: others read it, and it may come from what its speaker has read outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_server.core.refusals import ContentRefused, NotHolder, ScreeningUnavailable, SessionLost
from kokuban_server.core.screening.rules import Severity
from kokuban_server.core.trust import Source, SourceKind, Trust
from kokuban_server.ports.screener import ScreenerError

if TYPE_CHECKING:
    from kokuban_server.app.read_scopes import ReadScopes
    from kokuban_server.app.screenings import Screenings
    from kokuban_server.core.access import Principal

_SOURCE = Source(SourceKind.EXTERNAL, "derived")


class WordScreening:
    """Has words looked at that are no part of a commit, so that none can be kept for a reviewer."""

    def __init__(self, screenings: Screenings, scopes: ReadScopes) -> None:
        self._screenings = screenings
        self._scopes = scopes

    async def judge(
        self, principal: Principal, board_id: str, session_id: str, field: str, words: str, deadline: float
    ) -> None:
        """Look at words if their speaker is trusted no more than what comes from outside, or its session was given such.

        Raises `ContentRefused`, `ScreeningUnavailable`, and what `Screenings.judge` raises.
        """
        if not words or not await self._may_be_from_outside(principal, board_id, session_id, deadline):
            return
        try:
            found = await self._screenings.judge(principal, words, _SOURCE, deadline)
        except ScreenerError as fault:
            raise ScreeningUnavailable(field) from fault
        grave = [finding for finding in found.findings if finding.severity is Severity.GRAVE]
        if grave:
            raise ContentRefused(field, grave[0].rule, found.version, "words")

    async def _may_be_from_outside(self, principal: Principal, board_id: str, session_id: str, deadline: float) -> bool:
        if principal.browses or principal.trust_ceiling < Trust.AGENT:
            return True
        if not session_id:
            return False
        try:
            scope = await self._scopes.known(principal, board_id, session_id, deadline)
        except (SessionLost, NotHolder):
            return False  # whoever asks is told of that by what they ask for
        return scope.watermark < Trust.AGENT
