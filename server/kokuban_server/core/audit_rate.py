"""How many refused attempts are recorded: so many of each principal, and so many of all of them."""

from __future__ import annotations

from kokuban_server.core import limits
from kokuban_server.core.access import Principal


class Bucket:
    """Lets a burst through, and then one thing in each interval."""

    __slots__ = ("_burst", "_interval_s", "_left", "_seen_s")

    def __init__(self, burst: int, interval_ms: int, now_s: float) -> None:
        self._burst = float(burst)
        self._interval_s = interval_ms / 1000
        self._left = self._burst
        self._seen_s = now_s

    def has(self, now_s: float) -> bool:
        """Say whether one more may pass."""
        self._left = min(self._burst, self._left + (now_s - self._seen_s) / self._interval_s)
        self._seen_s = now_s
        return self._left >= 1

    def take(self) -> None:
        """Have one pass, after `has`."""
        self._left -= 1


class _Attempts(Bucket):
    """One principal's attempts."""

    __slots__ = ("principal", "suppressed")

    def __init__(self, principal: Principal, now_s: float) -> None:
        burst, interval_ms = limits.AUDIT_REFUSED_BURST_ENTRIES_MAX, limits.AUDIT_REFUSED_INTERVAL_MS
        super().__init__(burst, interval_ms, now_s)
        self.principal = principal
        self.suppressed = 0


class RefusalRate:
    """Says which refused attempts are recorded, and counts the others, so that a later record can tell of them.

    Remembers so many principals. When there are more it forgets the one it has known longest, and keeps its count as one of
    its tenant's.
    """

    def __init__(self, now_s: float) -> None:
        burst, interval_ms = limits.AUDIT_REFUSED_SERVER_BURST_ENTRIES_MAX, limits.AUDIT_REFUSED_SERVER_INTERVAL_MS
        self._all = Bucket(burst, interval_ms, now_s)
        self._of: dict[tuple[str, str], _Attempts] = {}
        self._forgotten: dict[str, int] = {}

    def admit(self, principal: Principal, now_s: float) -> int | None:
        """Give how many attempts of the principal were suppressed before this one; or nothing if this one is."""
        attempts = self._of.get((principal.tenant, principal.agent)) or self._first(principal, now_s)
        if not (attempts.has(now_s) and self._all.has(now_s)):
            attempts.suppressed += 1
            return None
        attempts.take()
        self._all.take()
        suppressed, attempts.suppressed = attempts.suppressed, 0
        return suppressed

    def suppress(self, principal: Principal, count: int, now_s: float) -> None:
        """Count attempts that were admitted and left no record after all."""
        attempts = self._of.get((principal.tenant, principal.agent)) or self._first(principal, now_s)
        attempts.suppressed += count

    def untold(self, now_s: float) -> list[tuple[Principal, int]]:
        """Give whose attempts were suppressed, and how many, each once, as far as the rate of all allows it now."""
        told = [(Principal(tenant, "", frozenset()), count) for tenant, count in self._forgotten.items()]
        self._forgotten.clear()
        for attempts in self._of.values():
            if attempts.suppressed:
                if not self._all.has(now_s):
                    break
                self._all.take()
                told.append((attempts.principal, attempts.suppressed))
                attempts.suppressed = 0
        return told

    def _first(self, principal: Principal, now_s: float) -> _Attempts:
        if len(self._of) >= limits.AUDIT_PRINCIPALS_ENTRIES_MAX:
            oldest = next(iter(self._of))
            suppressed = self._of.pop(oldest).suppressed
            if suppressed:
                self._forgotten[oldest[0]] = self._forgotten.get(oldest[0], 0) + suppressed
        attempts = self._of[principal.tenant, principal.agent] = _Attempts(principal, now_s)
        return attempts
