"""Locks: what they take, when two of them conflict, and who waits for whom."""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from kokuban_server.core import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kokuban_server.core.names import Region


class Mode(enum.StrEnum):
    """What a lock permits."""

    EXCLUSIVE = "EXCLUSIVE"
    """Its holder may write under it, and nobody else."""
    SHARED = "SHARED"
    """Nobody may write under it; other shared locks may stand beside it."""


class LockPolicy(enum.StrEnum):
    """What a region asks of writes."""

    IF_LOCKED = "if_locked"
    """A write to a locked path needs the lock's fence."""
    REQUIRED = "required"
    """Every write needs the fence of a lock that covers its path."""
    OFF = "off"
    """Locks are advice: writes are not held against them."""


class LockTarget(NamedTuple):
    """A part of a board: an entry, or with `subtree` also everything below it. An empty path is the whole region."""

    region: Region
    path: str
    subtree: bool

    def covers(self, region: Region, path: str) -> bool:
        """Say whether an entry belongs to it."""
        if region != self.region:
            return False
        if path == self.path:
            return True
        return self.subtree and (not self.path or path.startswith(f"{self.path}/"))

    def overlaps(self, other: LockTarget) -> bool:
        """Say whether some entry belongs to both."""
        return self.covers(other.region, other.path) or other.covers(self.region, self.path)


class Fence(NamedTuple):
    """The proof of a grant: which lock, granted when, in which life of the store."""

    lock_id: str
    revision: int
    epoch: str


class SessionRecord(NamedTuple):
    """A session as it is stored."""

    agent: str
    label: str
    open_time_ms: int
    ttl_ms: int
    lease: int


class LockRecord(NamedTuple):
    """A lock, its marker, or a request that waits, as it is stored."""

    session_id: str
    agent: str
    request_id: str
    mode: Mode
    targets: tuple[LockTarget, ...]
    purpose: str
    time_ms: int
    """When it was granted, or when the wait began."""
    end_time_ms: int
    """When it ends at the latest; of a request that waits, how long it may hold, in milliseconds."""
    lock_delay_ms: int
    traceparent: str
    lease: int
    """The session's."""
    server_id: str = ""
    """The server whose stream waits; only of a request that waits."""
    lost_time_ms: int = 0
    """When its loss was noted; only of a marker."""
    broken_by: str = ""
    broken_reason: str = ""
    broken_traceparent: str = ""

    @property
    def regions(self) -> list[Region]:
        """The regions of its targets, each once."""
        return list(dict.fromkeys(target.region for target in self.targets))


class _Claim(Protocol):
    @property
    def mode(self) -> Mode: ...

    @property
    def targets(self) -> tuple[LockTarget, ...]: ...


_C = TypeVar("_C", bound=_Claim)
_Place = tuple["Region", str]


def _above(path: str) -> Iterator[str]:
    """Give every path above one, the nearest first, down to the empty one."""
    while path:
        path = path.rpartition("/")[0]
        yield path


class Claims(Generic[_C]):
    """Claims by what they take, so that what overlaps is found without looking at the rest.

    Those at one place are given in the order in which they were added; replacing one keeps its place.
    """

    def __init__(self) -> None:
        self._claims: dict[str, _C] = {}
        self._at: dict[_Place, dict[str, None]] = {}
        self._subtrees: dict[_Place, dict[str, None]] = {}
        self._below: dict[_Place, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, name: str) -> bool:
        return name in self._claims

    def get(self, name: str) -> _C | None:
        """Give a claim by its name."""
        return self._claims.get(name)

    def __iter__(self) -> Iterator[str]:
        """Give the names of all claims, in the order in which they were added."""
        return iter(self._claims)

    def put(self, name: str, claim: _C) -> None:
        """Add a claim, or replace the one of that name, whose targets must be the same."""
        known = name in self._claims
        self._claims[name] = claim
        if not known:
            for places, place in self._places(claim):
                places.setdefault(place, {})[name] = None

    def remove(self, name: str) -> None:
        """Take a claim out, if it is there."""
        claim = self._claims.pop(name, None)
        if claim is None:
            return
        for places, place in self._places(claim):
            names = places.get(place)
            if names is not None:
                names.pop(name, None)
                if not names:
                    del places[place]

    def _places(self, claim: _C) -> Iterator[tuple[dict[_Place, dict[str, None]], _Place]]:
        for region, path, subtree in claim.targets:
            yield self._at, (region, path)
            if subtree:
                yield self._subtrees, (region, path)
            for above in _above(path):
                yield self._below, (region, above)

    def overlapping(self, targets: Iterable[LockTarget], *, latest_first: bool = False) -> Iterator[tuple[str, _C]]:
        """Give each claim that takes an entry that one of the targets takes, once; at one place in order."""
        if not self._claims:
            return
        met: set[str] = set()
        for region, path, subtree in targets:
            groups = [self._at.get((region, path))]
            groups += [self._subtrees.get((region, above)) for above in _above(path)]
            if subtree:
                groups.append(self._below.get((region, path)))
            for names in groups:
                for name in (reversed(names) if latest_first else names) if names else ():
                    if name not in met:
                        met.add(name)
                        yield name, self._claims[name]

    def conflicting(
        self, mode: Mode, targets: Iterable[LockTarget], *, latest_first: bool = False
    ) -> Iterator[tuple[str, _C]]:
        """Give each claim that cannot stand beside a lock of this mode on these targets: two shared ones can."""
        for name, claim in self.overlapping(targets, latest_first=latest_first):
            if mode is Mode.EXCLUSIVE or claim.mode is Mode.EXCLUSIVE:
                yield name, claim


_Wait = TypeVar("_Wait")


def find_cycle(
    start: _Wait,
    older_that_block: Callable[[_Wait], Iterable[_Wait]],
    session: Callable[[_Wait], str],
    blocked_by: Callable[[_Wait], set[str]],
) -> list[_Wait] | None:
    """Give a circle of waits through `start`, `start` first, in which it is the youngest; nothing if there is none.

    A wait is for sessions: `blocked_by` names those that a wait waits for, whatever for (a lock, a place in a queue, a
    task), and `older_that_block` gives the waits, older than `start`, of those sessions. Every circle of waits has one
    youngest, and is complete from the moment at which that one began: so it alone need be looked at, and is the victim.
    """
    goal = session(start)
    came_from: dict[int, tuple[_Wait, _Wait | None]] = {id(start): (start, None)}
    frontier = deque([start])
    while frontier:
        wait = frontier.popleft()
        if goal in blocked_by(wait):
            path: list[_Wait] = []
            step: _Wait | None = wait
            while step is not None:
                path.append(step)
                step = came_from[id(step)][1]
            return path[::-1]
        for following in older_that_block(wait):
            if id(following) not in came_from:
                came_from[id(following)] = (following, wait)
                frontier.append(following)
    return None


def shortened(cycle: Sequence[_Wait]) -> list[_Wait]:
    """Give a circle without its middle, if it is longer than what is told."""
    if len(cycle) <= limits.CYCLE_ENTRIES_MAX:
        return list(cycle)
    half = limits.CYCLE_ENTRIES_MAX // 2
    return [*cycle[:half], *cycle[-half:]]


class Known(NamedTuple, Generic[_C]):
    """A stored record of a claim, with when it was written and when its life began."""

    record: _C
    revision: int
    create_revision: int

    @property
    def mode(self) -> Mode:
        """The claim's mode."""
        return self.record.mode

    @property
    def targets(self) -> tuple[LockTarget, ...]:
        """The claim's targets."""
        return self.record.targets


class KnownSession(NamedTuple):
    """A stored session."""

    record: SessionRecord
    revision: int
