"""Which waiting change sets may travel together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kokuban_server.core.change_set import DeleteKey, NoneBelow, TimeBefore
from kokuban_server.core.keys import prefix_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kokuban_server.core.change_set import ChangeSet

Range: TypeAlias = tuple[bytes, bytes]
"""From a key up to and without another; an empty end is none."""


class Footprint(NamedTuple):
    """What a change set touches. Taken once, however often a batch is asked to take the set in."""

    size_bytes: int
    reads: list[bytes]
    """The keys that guards look at. Store time is apart: every batch with puts moves it forward."""
    writes: list[bytes]
    read_ranges: list[Range]
    written_ranges: list[Range]


def footprint(change: ChangeSet) -> Footprint:
    """Give what a change set touches. Raises `ValueError` for one that would write a key twice."""
    reads: list[bytes] = []
    read_ranges: list[Range] = []
    for guard in change.guards:
        if isinstance(guard, NoneBelow):
            read_ranges.append((guard.prefix, prefix_end(guard.prefix)))
        elif not isinstance(guard, TimeBefore):
            reads.append(guard[0])
    writes = [put[0] for put in change.puts]
    written_ranges: list[Range] = []
    for delete in change.deletes:
        if isinstance(delete, DeleteKey):
            writes.append(delete.key)
        else:
            written_ranges.append((delete.start, delete.end))
    if len(set(writes)) < len(writes) and _clashes(change):
        raise ValueError("a change set writes a key twice")
    if written_ranges and _meets(written_ranges, [put[0] for put in change.puts]):
        raise ValueError("a change set writes a key twice: it puts into a range that it deletes")
    return Footprint(change.size_bytes, reads, writes, read_ranges, written_ranges)


class Group:
    """Change sets that are independent of each other.

    No member reads (by a guard) or writes a key that another member writes. A store that judges all guards against the
    state before the batch, as etcd does with nested transactions, then gives each member the answer it would get alone, in
    whatever order they apply. Several members may read the same key.
    """

    def __init__(self, *, members_max: int, bytes_max: int) -> None:
        self.size_bytes = 0
        self.full = False
        """The last change set asked about did not fit for size, so looking further is of little use."""
        self._members = 0
        self._members_max = members_max
        self._bytes_max = bytes_max
        self._read: set[bytes] = set()
        self._written: set[bytes] = set()
        self._read_ranges: list[Range] = []
        self._written_ranges: list[Range] = []

    def admit(self, touched: Footprint) -> bool:
        """Take the change set in if it fits and is independent of those inside; say whether. The first always fits."""
        size, reads, writes, read_ranges, written_ranges = touched
        if self._members:
            if self._members >= self._members_max or self.size_bytes + size > self._bytes_max:
                self.full = True
                return False
            if (
                not self._written.isdisjoint(reads)
                or not self._written.isdisjoint(writes)
                or not self._read.isdisjoint(writes)
            ):
                return False
            has_ranges = read_ranges or written_ranges or self._read_ranges or self._written_ranges
            if has_ranges and self._ranges_clash(touched):
                return False
        self._members += 1
        self.size_bytes += size
        self._read.update(reads)
        self._written.update(writes)
        self._read_ranges += read_ranges
        self._written_ranges += written_ranges
        return True

    def _ranges_clash(self, touched: Footprint) -> bool:
        """Say whether a range on one side meets a key or range on the other, one of them written."""
        _, reads, writes, read_ranges, written_ranges = touched
        return (
            _meets(self._written_ranges, reads)
            or _meets(self._written_ranges, writes)
            or _meets(self._read_ranges, writes)
            or _meets(written_ranges, self._read)
            or _meets(written_ranges, self._written)
            or _meets(read_ranges, self._written)
            or _overlap(self._written_ranges, read_ranges)
            or _overlap(self._written_ranges, written_ranges)
            or _overlap(self._read_ranges, written_ranges)
        )


def _clashes(change: ChangeSet) -> bool:
    """Say whether a key that is put is written again. Deleting a key twice is nothing."""
    put = [put.key for put in change.puts]
    deleted = {delete.key for delete in change.deletes if isinstance(delete, DeleteKey)}
    return len(set(put)) < len(put) or not deleted.isdisjoint(put)


def _meets(ranges: Sequence[Range], keys: Iterable[bytes]) -> bool:
    return bool(ranges) and any(start <= key and (not end or key < end) for key in keys for start, end in ranges)


def _overlap(left: Sequence[Range], right: Sequence[Range]) -> bool:
    return any((not b or c < b) and (not d or a < d) for a, b in left for c, d in right)
