"""Whether a session lives, judged by its client's own clock. Pure: the clock's readings are given."""

from __future__ import annotations

import sys
import time

from kokuban_client.types import SessionState

_JEOPARDY_SHARE = 2 / 3
RENEWALS_IN_A_TTL = 3


def clock_s() -> float:
    """Read a clock that steps of the wall clock do not touch, and that goes on while the machine sleeps where it can."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Lease:
    """What a client may believe of its session.

    The time to live counts from the moment at which the renewal that was answered had been *sent*: the server cannot have
    renewed earlier, so it cannot end the session earlier than this. Once lost, a lease stays lost, whatever arrives later.
    """

    def __init__(self, ttl_s: float, sent_s: float) -> None:
        self._ttl_s = ttl_s
        self._since_s = sent_s
        self._endangered = False
        self._lost = False

    @property
    def ttl_s(self) -> float:
        """How long the session lives without renewal."""
        return self._ttl_s

    @property
    def renew_every_s(self) -> float:
        """How long to wait from one renewal to the next, and for the answer to one."""
        return self._ttl_s / RENEWALS_IN_A_TTL

    def renewed(self, sent_s: float, ttl_s: float | None = None) -> None:
        """Take the answer to a renewal that was sent at that moment."""
        self._since_s = max(self._since_s, sent_s)
        self._endangered = False
        if ttl_s:
            self._ttl_s = ttl_s

    def endanger(self) -> None:
        """Take a server's word that the session may be lost soon. The next answered renewal takes it back."""
        self._endangered = True

    def end(self) -> None:
        """Take a server's word that the session is over."""
        self._lost = True

    def state(self, now_s: float) -> SessionState:
        """Judge. Who has been told once that the session is lost is never told anything else."""
        self._lost = self._lost or now_s >= self._since_s + self._ttl_s
        if self._lost:
            return SessionState.LOST
        if self._endangered or now_s >= self._since_s + self._ttl_s * _JEOPARDY_SHARE:
            return SessionState.IN_JEOPARDY
        return SessionState.LIVE

    def changes_at_s(self, now_s: float) -> float:
        """Give the moment at which the state changes if nothing is heard."""
        jeopardy_s = self._since_s + self._ttl_s * _JEOPARDY_SHARE
        return jeopardy_s if now_s < jeopardy_s and not self._endangered else self._since_s + self._ttl_s
