"""A memory of entries' present states, to plan commits on without reading first. It may be wrong: guards find out."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kokuban_server.core.entry import Current

_OVERHEAD_BYTES = 512
"""What an entry in memory takes beside its value, about."""


class Heads:
    """The states that were written or read last, bounded by bytes; the least recently used go first.

    Never an authority: a plan made from here is guarded on what it assumed, and a refusal is only given after a strong
    read.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._states: OrderedDict[bytes, tuple[Current, int]] = OrderedDict()

    def get(self, head: bytes) -> Current | None:
        """Give what is remembered."""
        found = self._states.get(head)
        if found is None:
            return None
        self._states.move_to_end(head)
        return found[0]

    def learn(self, head: bytes, current: Current) -> None:
        """Remember a state, unless a later one is known."""
        known = self._states.get(head)
        if known is not None:
            if known[0].revision > current.revision > 0:
                return
            self._bytes -= known[1]
        value = current.record.value if current.record is not None else None
        size = _OVERHEAD_BYTES + len(head) + (len(value.data) if value is not None else 0)
        self._states[head] = (current, size)
        self._states.move_to_end(head)
        self._bytes += size
        while self._bytes > self._bytes_max:
            _, (_, dropped) = self._states.popitem(last=False)
            self._bytes -= dropped

    def forget(self, head: bytes) -> None:
        """Drop what turned out to be wrong."""
        known = self._states.pop(head, None)
        if known is not None:
            self._bytes -= known[1]
