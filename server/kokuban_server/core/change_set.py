"""What is asked of a store: guards that must hold and writes that then happen, all at one revision or not at all."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Absent(NamedTuple):
    """The key holds nothing."""

    key: bytes


class AtRevision(NamedTuple):
    """The key was last written at exactly this revision, which is above 0."""

    key: bytes
    revision: int


class CreatedAt(NamedTuple):
    """The key exists and its present life began at this revision: it was not deleted since. What fencing compares."""

    key: bytes
    revision: int


class NoneBelow(NamedTuple):
    """No key begins with this prefix, which is not empty."""

    prefix: bytes


class TimeBefore(NamedTuple):
    """Store time has not reached this instant, in milliseconds of Unix time."""

    instant_ms: int


Guard: TypeAlias = Absent | AtRevision | CreatedAt | NoneBelow | TimeBefore


class Put(NamedTuple):
    """Write a value. `lease` attaches the key to a lease; without one a key that had a lease is detached from it."""

    key: bytes
    value: bytes
    lease: int | None = None


class DeleteKey(NamedTuple):
    """Remove one key. Removing what is not there is nothing."""

    key: bytes


class DeleteRange(NamedTuple):
    """Remove every key from `start` up to and without `end`, both not empty."""

    start: bytes
    end: bytes


Delete: TypeAlias = DeleteKey | DeleteRange


class ChangeSet(NamedTuple):
    """Guards and writes that stand or fall together. No key is put twice, nor put inside a range that is deleted."""

    guards: tuple[Guard, ...]
    puts: tuple[Put, ...] = ()
    deletes: tuple[Delete, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What the set takes in a request, about: keys and values, and 16 bytes of envelope for each part."""
        total = 16 * (len(self.guards) + len(self.puts) + len(self.deletes))
        for put in self.puts:
            total += len(put[0]) + len(put[1])
        for guard in self.guards:
            if not isinstance(guard, TimeBefore):
                total += 2 * len(guard[0])  # once compared, once read back when the guard fails
        for delete in self.deletes:
            total += len(delete[0])
        return total

    @property
    def operations(self) -> int:
        """How many operations the set takes at the level of a transaction that holds it alone."""
        return max(len(self.guards), len(self.puts) + len(self.deletes))


class GuardFailure(NamedTuple):
    """A guard that does not hold, and what the store has in its place."""

    place: int
    """The guard's index in the change set."""

    revision: int
    """When the key was last written, or 0 if it holds nothing. For `NoneBelow`, of some key below the prefix. For
    `TimeBefore`, the store time in milliseconds."""

    create_revision: int
    """When the key's present life began, or 0."""
