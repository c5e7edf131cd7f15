"""Which states the rules of now have not judged: what older ones have let in, and no walk has come to yet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kokuban_server.core.rescreening import is_withheld_meanwhile
from kokuban_server.core.trust import StaleScreening

if TYPE_CHECKING:
    from kokuban_server.app.access import OpenRegion
    from kokuban_server.app.screenings import Screenings
    from kokuban_server.core.rescreening import Progress
    from kokuban_server.core.trust import Label


class JudgedStates:
    """What this server knows of it. What is not known is taken not to be judged."""

    def __init__(self, screenings: Screenings, epoch: str) -> None:
        self._screenings = screenings
        self._epoch = epoch
        self.progress: Progress | None = None
        """As it was last read, or written."""
        self.asked = asyncio.Event()
        """Somebody reads what can only be shown when it is known which rules this server has."""

    @property
    def rule_set(self) -> str:
        """The rules of this server, or nothing while they are not known."""
        return self._screenings.rule_set

    @property
    def ours(self) -> Progress | None:
        """How far this server's rules have come in this store; nothing if they have not begun."""
        progress = self.progress
        if progress is None or (progress.rule_set, progress.epoch) != (self.rule_set, self._epoch):
            return None
        return progress

    def may_withhold(self, region: OpenRegion) -> bool:
        """Say whether anything of a region is withheld for that."""
        is_said = region.rules.stale_screening is StaleScreening.WITHHOLD
        return is_said or bool(region.board.policy.tool_stale_screening)

    def is_withheld(self, region: OpenRegion, label: Label, head: bytes, revision: int) -> bool:
        """Say whether a state is withheld because it is not judged. `head` is empty for what may be a state of the past."""
        if not self.may_withhold(region) or not is_withheld_meanwhile(label, region.rules, region.board.policy):
            return False
        if not self.rule_set:
            self.asked.set()
        elif label.screened_by == self.rule_set:
            return False
        ours = self.ours
        return not head or ours is None or not ours.has_judged(head, revision)
