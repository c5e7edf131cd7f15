"""What locks mean, said a second time and in the plainest way: the simulation is judged by this, not by the code under test."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core import keys
from kokuban_server.core.locks import LockRecord, LockTarget, Mode
from kokuban_server.records.lock_codec import decode_lock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kokuban_server.core.names import Region
    from kokuban_server.ports.board_store import Event


def _parts(path: str) -> list[str]:
    return path.split("/") if path else []


def takes(target: LockTarget, region: Region, path: str) -> bool:
    """Say whether an entry belongs to a target."""
    parts = _parts(target.path)
    if region != target.region:
        return False
    return _parts(path)[: len(parts)] == parts if target.subtree else path == target.path


def meet(one: LockTarget, other: LockTarget) -> bool:
    """Say whether two targets have an entry in common."""
    return takes(one, other.region, other.path) or takes(other, one.region, one.path)


def clash(one: LockRecord, other: LockRecord) -> bool:
    """Say whether two locks cannot stand beside each other."""
    if one.mode is Mode.SHARED and other.mode is Mode.SHARED:
        return False
    return any(meet(mine, yours) for mine in one.targets for yours in other.targets)


class Held(NamedTuple):
    """A lock, marker or wait in the store."""

    record: LockRecord
    created: int
    revision: int


class LockState:
    """Everything about locks that the store holds at one revision."""

    def __init__(self) -> None:
        self.sessions: dict[str, int] = {}
        self.servers: set[str] = set()
        self.locks: dict[str, Held] = {}
        self.markers: dict[str, Held] = {}
        self.waits: dict[str, Held] = {}

    def take(self, event: Event) -> None:
        """Go on by one event."""
        kind, _, name = keys.parse_locking(event.key)
        if kind == keys.SESSION:
            if event.value is None:
                self.sessions.pop(name, None)
            else:
                self.sessions[name] = event.create_revision
        elif kind == keys.SERVER:
            (self.servers.discard if event.value is None else self.servers.add)(name)
        elif kind in (keys.LOCK, keys.MARKER, keys.WAIT):
            held = {keys.LOCK: self.locks, keys.MARKER: self.markers, keys.WAIT: self.waits}[kind]
            if event.value is None:
                held.pop(name, None)
            else:
                held[name] = Held(decode_lock(event.key, event.value), event.create_revision, event.revision)

    def before(self, name: str) -> Iterable[tuple[str, Held]]:
        """Give the waits that clash with a wait and began before it."""
        mine = self.waits[name]
        for other, wait in self.waits.items():
            if (wait.created, other) < (mine.created, name) and clash(wait.record, mine.record):
                yield other, wait

    def is_free(self, name: str) -> bool:
        """Say whether nothing stands in the way of a wait."""
        mine = self.waits[name].record
        return not any(clash(marker.record, mine) for marker in self.markers.values()) and not any(self.before(name))

    def waits_for(self, name: str) -> set[str]:
        """Give the sessions that a wait waits for."""
        mine = self.waits[name].record
        holders = {lock.record.session_id for lock in self.locks.values() if clash(lock.record, mine)}
        return holders | {wait.record.session_id for _, wait in self.before(name)}

    def victims(self) -> set[str]:
        """Give the waits that are the youngest of a circle of waits."""
        age = {name: (wait.created, name) for name, wait in self.waits.items()}
        of = {name: wait.record.session_id for name, wait in self.waits.items()}
        needs = {name: self.waits_for(name) for name in self.waits}
        found = set()
        for victim in self.waits:
            reached, news = set(needs[victim]), True
            while news and of[victim] not in reached:
                fresh = {
                    session
                    for name in self.waits
                    if age[name] < age[victim] and of[name] in reached
                    for session in needs[name]
                }
                news = not fresh <= reached
                reached |= fresh
            if of[victim] in reached:
                found.add(victim)
        return found
