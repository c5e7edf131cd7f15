"""What each agent takes of this server: calls in hand, open streams, writes a second; and the limits of one agent."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core.rates import Bucket, Rate
from kokuban_server.core.refusals import PrincipalLimitReached

if TYPE_CHECKING:
    from kokuban_server.core.access import Principal

_CALLS_RETRY_MS = 200
_STREAMS_RETRY_MS = 1_000
_KNOWN_MIN = 4_096


class PrincipalLimits(NamedTuple):
    """What one agent may take of a server."""

    calls_max: int
    streams_max: int
    """Of streams that keep sessions alive, as many again: what watches take can never cost an agent its locks."""
    writes_per_s_max: int = 0
    """0 for no limit."""
    writes_burst_max: int = 0
    """0 for the writes of a second."""


class _Count:
    """How many of something are in hand. `with` takes one more, or raises, and gives it back."""

    __slots__ = ("_limit", "_retry_ms", "_what", "in_hand")

    def __init__(self, what: str, limit: int, retry_ms: int) -> None:
        self._what = what
        self._limit = limit
        self._retry_ms = retry_ms
        self.in_hand = 0

    def __enter__(self) -> None:
        if self.in_hand >= self._limit:
            raise PrincipalLimitReached(self._what, self._limit, self._retry_ms)
        self.in_hand += 1

    def __exit__(self, *_: object) -> None:
        self.in_hand -= 1


class Usage:
    """What one agent has in hand."""

    __slots__ = ("_per_s_max", "_writes", "calls", "keep_alives", "streams")

    def __init__(self, limits: PrincipalLimits, rate: Rate | None) -> None:
        self.calls = _Count("calls", limits.calls_max, _CALLS_RETRY_MS)
        """Unary calls, and commits of streams."""
        self.streams = _Count("streams", limits.streams_max, _STREAMS_RETRY_MS)
        self.keep_alives = _Count("keep_alives", limits.streams_max, _STREAMS_RETRY_MS)
        """Streams that keep sessions alive."""
        self._per_s_max = limits.writes_per_s_max
        self._writes = Bucket(rate) if rate is not None else None

    def write(self) -> None:
        """Count a write. Raises `PrincipalLimitReached`, which says when the next one may be made."""
        writes = self._writes
        if writes is None:
            return
        now_s = asyncio.get_running_loop().time()
        wait_s = writes.wait_s(now_s)
        if wait_s:
            raise PrincipalLimitReached("writes", self._per_s_max, math.ceil(wait_s * 1000))
        writes.take(now_s)

    def is_nothing(self, now_s: float) -> bool:
        """Say whether a new one would be the same."""
        in_hand = self.calls.in_hand + self.streams.in_hand + self.keep_alives.in_hand
        return not in_hand and (self._writes is None or self._writes.is_full(now_s))


class Usages:
    """The usage of every agent that has called, by tenant and agent: all credentials of an agent count together."""

    def __init__(self, limits: PrincipalLimits) -> None:
        self._limits = limits
        per_s = limits.writes_per_s_max
        self._rate = Rate(1 / per_s, limits.writes_burst_max or per_s) if per_s else None
        self._known: dict[tuple[str, str], Usage] = {}
        self._known_max = _KNOWN_MIN

    def of(self, principal: Principal) -> Usage:
        """Give the usage of the principal's agent."""
        name = (principal.tenant, principal.agent)
        usage = self._known.get(name)
        if usage is None:
            if len(self._known) >= self._known_max:
                self._sweep()
            usage = self._known[name] = Usage(self._limits, self._rate)
        return usage

    def _sweep(self) -> None:
        """Forget agents that take nothing; those that do are as many as the server has calls in hand, or wrote just now."""
        now_s = asyncio.get_running_loop().time()
        self._known = {name: usage for name, usage in self._known.items() if not usage.is_nothing(now_s)}
        self._known_max = max(_KNOWN_MIN, 2 * len(self._known))
