"""What taint is tracked by: what external text a session was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core.trust import Parent, Trust

if TYPE_CHECKING:
    from collections.abc import Iterable


class Given(NamedTuple):
    """A low-trust state that a scope was given."""

    state: Parent
    trust: Trust


class ReadScope(NamedTuple):
    """What a scope was given of what is trusted less than agents."""

    agent: str
    """Whose scope it is."""
    given: tuple[Given, ...] = ()
    """Each state once, in the order in which they were given."""
    purged_by: str = ""
    """The removal of something that it was given, if there was one: nothing is written in it any more."""

    @property
    def watermark(self) -> Trust:
        """The least trusted that it was given; `SYSTEM` where it was given nothing that counts."""
        return min((given.trust for given in self.given), default=Trust.SYSTEM)

    def given_more(self, states: Iterable[Given]) -> ReadScope:
        """Give the scope after it was given these; itself where it had been given all of them before."""
        known = set(self.given)
        new = tuple(dict.fromkeys(given for given in states if given not in known))
        return self._replace(given=self.given + new) if new else self
