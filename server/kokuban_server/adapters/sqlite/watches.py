"""Watches: what is committed is handed to those who wait for it, and kept for a while for those who are a little behind.

Watches of the same prefixes share a channel, which keeps the latest events in a bounded tail. A reader that is behind the
tail reads from the database, from where it is. So a commit costs the same however many watch, but for waking them, and a
reader that does not read costs nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, Final

from kokuban_server.adapters.sqlite.rows import Row, event, revision_of
from kokuban_server.ports.board_store import WatchBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.ports.board_store import Event

_TAIL_EVENTS_MAX: Final = 2_048
_TAIL_BYTES_MAX: Final = 4 * 1024 * 1024
_PROGRESS_S: Final = 5.0
"""How often a watch without events says how far it has come."""


class Channel:
    """The watches of the same prefixes."""

    def __init__(self, prefixes: tuple[bytes, ...], revision: int) -> None:
        self.prefixes = prefixes
        self.floor = revision
        """Everything after this revision is in the tail."""
        self.readers = 0
        self.ticks = 0
        """How often the readers were told to say how far they have come."""
        self.changed = asyncio.Event()  # a new one after each change
        self._tail: deque[tuple[int, tuple[Event, ...], int]] = deque()
        self._events = 0
        self._bytes = 0

    def add(self, revision: int, events: tuple[Event, ...]) -> None:
        """Take in what a revision changed."""
        size = sum(len(event.key) + len(event.value or b"") for event in events)
        self._tail.append((revision, events, size))
        self._events += len(events)
        self._bytes += size
        while self._events > _TAIL_EVENTS_MAX or self._bytes > _TAIL_BYTES_MAX:
            self.floor, dropped, size = self._tail.popleft()
            self._events -= len(dropped)
            self._bytes -= size

    def after(self, reached: int, revision: int) -> WatchBatch:
        """Give what came after a revision that is not below the floor."""
        new: list[tuple[Event, ...]] = []
        for at, events, _ in reversed(self._tail):
            if at <= reached:
                break
            new.append(events)
        if len(new) == 1:
            return WatchBatch(revision, new[0])
        return WatchBatch(revision, tuple(event for events in reversed(new) for event in events))

    def wake(self) -> None:
        """Have the readers look again."""
        self.changed.set()
        self.changed = asyncio.Event()


class Watches:
    """All watches of a store."""

    def __init__(self) -> None:
        self._channels: dict[tuple[bytes, ...], Channel] = {}
        self._by_prefix: dict[bytes, list[Channel]] = {}
        self._lengths: tuple[int, ...] = ()
        self._timer: asyncio.TimerHandle | None = None

    def join(self, prefixes: Sequence[bytes], revision: int) -> Channel:
        """Give the channel of the prefixes, from the present revision on at the latest. `leave` ends it."""
        wanted = tuple(sorted(set(prefixes)))
        channel = self._channels.get(wanted)
        if channel is None:
            channel = self._channels[wanted] = Channel(wanted, revision)
            for prefix in wanted:
                self._by_prefix.setdefault(prefix, []).append(channel)
            self._lengths = tuple({len(prefix) for prefix in self._by_prefix})
        channel.readers += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PROGRESS_S, self._tick)
        return channel

    def leave(self, channel: Channel) -> None:
        """Take a reader away; the channel goes with its last one."""
        channel.readers -= 1
        if channel.readers:
            return
        del self._channels[channel.prefixes]
        for prefix in channel.prefixes:
            self._by_prefix[prefix].remove(channel)
            if not self._by_prefix[prefix]:
                del self._by_prefix[prefix]
        self._lengths = tuple({len(prefix) for prefix in self._by_prefix})

    def publish(self, rows: Sequence[Row]) -> None:
        """Hand on what was committed."""
        if not self._channels:
            return
        touched: set[Channel] = set()
        for revision, of_revision in groupby(rows, lambda row: revision_of(row[0])):
            found: dict[Channel, list[Event]] = {}
            for row in of_revision:
                key, change = row[1], None
                for length in self._lengths:
                    for channel in self._by_prefix.get(key[:length], ()):
                        change = change or event(row)
                        events = found.setdefault(channel, [])
                        if not events or events[-1] is not change:  # else it has come by another prefix
                            events.append(change)
            for channel, events in found.items():
                channel.add(revision, tuple(events))
            touched.update(found)
        for channel in touched:
            channel.wake()

    def _tick(self) -> None:
        self._timer = None
        if self._channels:
            for channel in self._channels.values():
                channel.ticks += 1
                channel.wake()
            self._timer = asyncio.get_running_loop().call_later(_PROGRESS_S, self._tick)

    def close(self) -> None:
        """Wake everybody, so that they find the store closed."""
        if self._timer is not None:
            self._timer.cancel()
        for channel in self._channels.values():
            channel.wake()
