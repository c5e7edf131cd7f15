"""How many refused attempts are recorded: so many of each principal, and so many of all of them."""

from __future__ import annotations

from typing import Final

from kokuban_server.core import limits
from kokuban_server.core.access import Principal
from kokuban_server.core.rates import Bucket, Rate

_OF_EACH: Final = Rate(limits.AUDIT_REFUSED_INTERVAL_MS / 1000, limits.AUDIT_REFUSED_BURST_ENTRIES_MAX)
_OF_ALL: Final = Rate(limits.AUDIT_REFUSED_SERVER_INTERVAL_MS / 1000, limits.AUDIT_REFUSED_SERVER_BURST_ENTRIES_MAX)


class _Attempts(Bucket):
    """One principal's attempts."""

    __slots__ = ("principal", "suppressed")

    def __init__(self, principal: Principal) -> None:
        super().__init__(_OF_EACH)
        self.principal = principal
        self.suppressed = 0


class RefusalRate:
    """Says which refused attempts are recorded, and counts the others, so that a later record can tell of them.

    Remembers so many principals. When there are more it forgets the one it has known longest, and keeps its count as one of
    its tenant's.
    """

    def __init__(self) -> None:
        self._all = Bucket(_OF_ALL)
        self._of: dict[tuple[str, str], _Attempts] = {}
        self._forgotten: dict[str, int] = {}

    def admit(self, principal: Principal, now_s: float) -> int | None:
        """Give how many attempts of the principal were suppressed before this one; or nothing if this one is."""
        attempts = self._of.get((principal.tenant, principal.agent)) or self._first(principal)
        if attempts.wait_s(now_s) or self._all.wait_s(now_s):
            attempts.suppressed += 1
            return None
        attempts.take(now_s)
        self._all.take(now_s)
        suppressed, attempts.suppressed = attempts.suppressed, 0
        return suppressed

    def suppress(self, principal: Principal, count: int) -> None:
        """Count attempts that were admitted and left no record after all."""
        attempts = self._of.get((principal.tenant, principal.agent)) or self._first(principal)
        attempts.suppressed += count

    def untold(self, now_s: float) -> list[tuple[Principal, int]]:
        """Give whose attempts were suppressed, and how many, each once, as far as the rate of all allows it now."""
        told = [(Principal(tenant, "", frozenset()), count) for tenant, count in self._forgotten.items()]
        self._forgotten.clear()
        for attempts in self._of.values():
            if attempts.suppressed:
                if self._all.wait_s(now_s):
                    break
                self._all.take(now_s)
                told.append((attempts.principal, attempts.suppressed))
                attempts.suppressed = 0
        return told

    def _first(self, principal: Principal) -> _Attempts:
        if len(self._of) >= limits.AUDIT_PRINCIPALS_ENTRIES_MAX:
            oldest = next(iter(self._of))
            suppressed = self._of.pop(oldest).suppressed
            if suppressed:
                self._forgotten[oldest[0]] = self._forgotten.get(oldest[0], 0) + suppressed
        attempts = self._of[principal.tenant, principal.agent] = _Attempts(principal)
        return attempts
