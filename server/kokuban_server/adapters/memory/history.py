"""Keys with all their versions, in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core.change_set import Absent, AtRevision, CreatedAt, GuardFailure, NoneBelow, TimeBefore
from kokuban_server.core.keys import prefix_end
from kokuban_server.ports.board_store import Event, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kokuban_server.core.change_set import Guard


class Version(NamedTuple):
    """What a key held from a revision on."""

    revision: int
    value: bytes | None
    """Nothing where the key was deleted."""
    create_revision: int
    lease: int | None


_NEVER = Version(0, None, 0, None)


class History:
    """Every key's versions and the log of changes, from the compacted revision on."""

    def __init__(self) -> None:
        self.revision = 0
        """The last one that was used."""
        self.events: list[Event] = []
        """In order of revision."""
        self.size_bytes = 0
        self._versions: dict[bytes, list[Version]] = {}
        self._keys: list[bytes] = []  # of everything in _versions, sorted

    def put(self, revision: int, key: bytes, value: bytes, lease: int | None) -> None:
        """Write a value at a revision that is the present one or the next."""
        before = self.head(key)
        created = before.create_revision or revision
        self._add(key, Version(revision, value, created, lease), before)

    def delete(self, revision: int, key: bytes) -> None:
        """Remove a key; nothing if it is not there."""
        before = self.head(key)
        if before.value is not None:
            self._add(key, Version(revision, None, 0, None), before)

    def _add(self, key: bytes, version: Version, before: Version) -> None:
        if key not in self._versions:
            self._versions[key] = []
            insort(self._keys, key)
        self._versions[key].append(version)
        previous = before.revision if before.value is not None else 0
        self.events.append(Event(key, version.value, version.revision, version.create_revision, previous))
        self.size_bytes += len(key) + len(version.value or b"")
        self.revision = version.revision

    def head(self, key: bytes) -> Version:
        """Give what the key holds now."""
        return self._versions[key][-1] if key in self._versions else _NEVER

    def record(self, key: bytes, revision: int) -> Record | None:
        """Give what the key held at a revision."""
        versions = self._versions.get(key, [])
        place = bisect_right(versions, revision, key=lambda version: version.revision)
        if place == 0:
            return None
        at, value, created, lease = versions[place - 1]
        return Record(key, value, at, created, lease) if value is not None else None

    def records_below(self, prefix: bytes, after: bytes, revision: int) -> Iterator[Record]:
        """Give the records of a prefix at a revision, in order, behind a key."""
        place = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        while place < len(self._keys) and self._keys[place].startswith(prefix):
            if (record := self.record(self._keys[place], revision)) is not None:
                yield record
            place += 1

    def keys_between(self, start: bytes, end: bytes) -> list[bytes]:
        """Give the keys from `start` to before `end` (to the last if it is empty) that hold something now."""
        stop = bisect_left(self._keys, end) if end else len(self._keys)
        return [key for key in self._keys[bisect_left(self._keys, start) : stop] if self.head(key).value is not None]

    def keys_of_lease(self, lease: int) -> list[bytes]:
        """Give the keys that hang on the lease now."""
        return [key for key in self._keys if self.head(key).lease == lease]

    def judge(self, place: int, guard: Guard, store_time_ms: int) -> GuardFailure | None:
        """Say what stands against a guard, or nothing."""
        if isinstance(guard, TimeBefore):
            return None if store_time_ms < guard.instant_ms else GuardFailure(place, store_time_ms, 0)
        if isinstance(guard, NoneBelow):
            below = self.keys_between(guard.prefix, prefix_end(guard.prefix))
            head = self.head(below[0]) if below else _NEVER
        else:
            head = self.head(guard.key)
        revision = head.revision if head.value is not None else 0
        holds = (
            (isinstance(guard, Absent | NoneBelow) and revision == 0)
            or (isinstance(guard, AtRevision) and revision == guard.revision)
            or (isinstance(guard, CreatedAt) and head.create_revision == guard.revision)
        )
        return None if holds else GuardFailure(place, revision, head.create_revision)

    def compact(self, floor: int) -> None:
        """Forget what was superseded at `floor` or before."""
        for key in list(self._versions):
            versions = self._versions[key]
            keep_from = bisect_right(versions, floor, key=lambda version: version.revision) - 1
            if keep_from >= 0 and versions[keep_from].value is None:
                keep_from += 1
            for version in versions[: max(0, keep_from)]:
                self.size_bytes -= len(key) + len(version.value or b"")
            versions[: max(0, keep_from)] = []
            if not versions:
                del self._versions[key]
                del self._keys[bisect_left(self._keys, key)]
        del self.events[: bisect_right(self.events, floor, key=lambda event: event.revision)]
