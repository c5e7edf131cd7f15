"""Judging again what older rules have let in: which states that is, and how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core.trust import ScreeningProfile, StaleScreening

if TYPE_CHECKING:
    from kokuban_server.core.access import RegionRules
    from kokuban_server.core.policy import Policy
    from kokuban_server.core.trust import Label


class Progress(NamedTuple):
    """How far a rule set has come. It goes over all entries in the order of their keys, and again for what came late.

    Before that it goes over the records of origins, by board and time, for what says something only together. Nothing is
    written of a state that stays as it was.
    """

    rule_set: str
    epoch: str
    """Of the store whose revisions are meant."""
    judged_revision: int = 0
    """Every present state up to this revision was judged, by a walk that has ended."""
    walk_revision: int = 0
    """Where the walk began that is under way; 0 for none."""
    after: bytes = b""
    """The key up to which that has come."""
    waiting: int = 0
    """How many states are left for it, about."""
    kept: int = 0
    lowered: int = 0
    withheld: int = 0
    begin_time_ms: int = 0
    joined_after: bytes = b""
    """The key of the record of origins up to which the walk has come that is under way."""

    def has_judged(self, head: bytes, revision: int) -> bool:
        """Say whether an entry's present state was judged."""
        return revision <= self.judged_revision or (revision <= self.walk_revision and head <= self.after)

    def ended(self) -> Progress:
        """Give it after a walk has come to its end."""
        return self._replace(
            judged_revision=self.walk_revision, walk_revision=0, after=b"", waiting=0, joined_after=b""
        )


def is_judged_again(label: Label, rules: RegionRules, policy: Policy) -> bool:
    """Say whether another rule set judges a state anew.

    It does where one has let it in and a policy of now would have it screened. A reviewer's word is not undone by rules.
    """
    if not label.screened_by or label.endorsed_by or rules.screening is ScreeningProfile.OFF:
        return False
    return policy.tool_screening.get(label.source.name) is not ScreeningProfile.OFF


def is_withheld_meanwhile(label: Label, rules: RegionRules, policy: Policy) -> bool:
    """Say whether a state that another rule set has let in is withheld until it is judged."""
    stale = policy.tool_stale_screening.get(label.source.name, rules.stale_screening)
    return stale is StaleScreening.WITHHOLD and is_judged_again(label, rules, policy)
