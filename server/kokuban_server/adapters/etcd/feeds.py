"""One etcd watch, what it delivered lately, and who reads it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.refusals import WatchGap
from kokuban_server.ports.board_store import Event, WatchBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kokuban.etcd.v1 import etcd_pb2 as pb

_TAIL_EVENTS: Final = 512
_TAIL_BYTES: Final = 1024 * 1024
"""What is kept though everybody has read it, so that a new reader that begins near the end can join."""
_EVENT_BYTES: Final = 128
"""What an event takes besides its key and value, about."""
_SEEN_MAX: Final = 200_000
"""How many keys' last changes are remembered for the next check. With more, that check is given up."""
_TELL_S: Final = 1.0


class _Held(NamedTuple):
    """A batch in the buffer."""

    batch: WatchBatch
    size_bytes: int


class Feed:
    """What one etcd watch delivers, buffered once for all its readers.

    `position` is the last revision of which nothing is outstanding, so the place to resume from. It moves with events
    only, never with a header's revision: that one runs ahead of what was sent.
    """

    def __init__(self, data: bytes, prefixes: Sequence[bytes], span: tuple[bytes, bytes], position: int) -> None:
        self.prefixes = tuple(prefixes)
        self.span = span
        self.position = position
        self.floor = position
        """Everything after it is in the buffer, or was never to be told."""
        self.readers: set[Reader] = set()
        self.watch_id = 0
        """The etcd watch that fills this feed now; 0 for none."""
        self.paused = False
        """The only reader does not keep up: the etcd watch is ended until it has made room."""
        self.failure: Callable[[], Exception] | None = None
        self.standing = asyncio.Event()
        """The watch has been created, or has failed."""
        self.duplicates = 0
        self.checked = position
        """Up to here deliveries were compared with the store."""
        self.seen: dict[bytes, tuple[int, int]] = {}
        """Of each key that changed after `checked`, the last delivered revision, and its version there (gone: 0)."""
        self.growth: deque[tuple[int, int]] = deque()
        """By how many keys the range grew at each delivered revision after `checked`."""
        self.stuck_at = -1
        """Where the position stood when the last check found something outstanding behind it."""
        self._quiet_to = 0
        """Up to here the last check found nothing outstanding."""
        self._data_bytes = len(data)
        self._wanted = tuple(data + prefix for prefix in self.prefixes)
        self._whole = len(self._wanted) == 1
        self._begun: list[pb.Event] = []
        """What came of a revision that goes on in the next message."""
        self._held: deque[_Held] = deque()
        self._first = 0
        self._events = 0
        self._bytes = 0
        self._told_s = 0.0

    @property
    def next(self) -> int:
        """The number that the next batch will get."""
        return self._first + len(self._held)

    @property
    def first(self) -> int:
        """The number of the oldest batch in the buffer."""
        return self._first

    def batch(self, number: int) -> WatchBatch:
        """Give a batch of the buffer."""
        return self._held[number - self._first].batch

    def number_after(self, revision: int) -> int:
        """Give the number of the first batch that tells of something after the revision."""
        for place in range(len(self._held) - 1, -1, -1):
            if self._held[place].batch.revision <= revision:
                return self._first + place + 1
        return self._first

    def covers(self, revision: int) -> bool:
        """Say whether a reader that stands at the revision can be served from here."""
        return self.failure is None and not self.paused and self.floor <= revision

    def begin(self, watch_id: int) -> None:
        """Be filled by this etcd watch from now on."""
        self.watch_id = watch_id
        self._begun = []

    def fail(self, make: Callable[[], Exception]) -> None:
        """Tell the readers, once they have read what is here. Each gets an exception of its own."""
        if self.failure is None:
            self.failure = make
        self.standing.set()
        self._wake()

    def take(self, response: pb.WatchResponse) -> None:
        """Take in a message. Of one that goes on in the next, whatever is complete."""
        position = reached = self.position
        data = self._data_bytes
        told = []
        size = 0
        for event in self._complete(response):
            kv = event.kv
            revision, key, version = kv.mod_revision, kv.key, kv.version
            if revision <= position:
                self.duplicates += 1  # etcd 3.4 repeats itself at times, and goes back after it installed a snapshot
                continue
            before = self.seen.get(key)
            if revision < reached or not _follows(version, before):
                self.fail(WatchGap)
                return
            reached = revision
            self._remember(key, revision, version)
            if self._whole or key.startswith(self._wanted):
                value = kv.value if version else None
                # etcd would look the former state up for each event, which costs it more than all else that a watch does,
                # and gives nothing where a compaction was faster: so our own memory serves.
                previous = before[0] if before is not None and before[1] else 0
                told.append(Event(key[data:], value, revision, kv.create_revision if version else 0, previous))
                size += _EVENT_BYTES + len(key) + len(value or b"")
        if reached > position:
            self.position = reached
            self._hold(WatchBatch(reached, tuple(told)), size)

    def _complete(self, response: pb.WatchResponse) -> Sequence[pb.Event]:
        """Give the events of revisions that have come whole; keep those of one that has not for the next message."""
        if not self._begun and not response.fragment:
            return response.events
        events = self._begun + list(response.events)
        cut = len(events)
        if response.fragment and events:
            last = events[-1].kv.mod_revision
            while cut and events[cut - 1].kv.mod_revision == last:
                cut -= 1
        self._begun = events[cut:]
        return events[:cut]

    def mark(self, revision: int) -> None:
        """Move on to a revision up to which nothing was to be told."""
        if revision > self.position:
            self.position = revision
            self._told_s = 0.0
            self._hold(WatchBatch(revision, ()), 0)

    def confirm(self, position: int, *, stuck: bool, quiet_to: int) -> None:
        """Note that deliveries up to a position agree with the store, and pass on what the check before had seen."""
        self.checked = position
        self.seen = {key: last for key, last in self.seen.items() if last[0] > position}
        while self.growth and self.growth[0][0] <= position:
            self.growth.popleft()
        self.stuck_at = position if stuck else -1
        self.mark(self._quiet_to)
        self._quiet_to = quiet_to

    def trim(self) -> None:
        """Let go of what all have read, but for a tail; then hold the bounds.

        With one reader the watch is ended until it has read; with several, those that fall behind must read again.
        """
        if self._events <= _TAIL_EVENTS and self._bytes <= _TAIL_BYTES:
            self.paused = False
            return
        slowest = min((reader.number for reader in self.readers), default=self.next)
        while self._first < slowest and (self._events > _TAIL_EVENTS or self._bytes > _TAIL_BYTES):
            self._drop()
        if len(self.readers) > 1:
            while self._over and len(self._held) > 1:
                self._drop()  # whoever falls behind by this notices when next it reads
        elif self.paused:
            self.paused = self._events > limits.WATCH_BUFFER_EVENTS_MAX // 2 or (
                self._bytes > limits.WATCH_BUFFER_BYTES_MAX // 2
            )
        else:
            self.paused = self._over

    @property
    def _over(self) -> bool:
        return self._events > limits.WATCH_BUFFER_EVENTS_MAX or self._bytes > limits.WATCH_BUFFER_BYTES_MAX

    def _drop(self) -> None:
        batch, size = self._held.popleft()
        self._first += 1
        self._events -= len(batch.events)
        self._bytes -= size
        self.floor = batch.revision

    def _hold(self, batch: WatchBatch, size: int) -> None:
        """Keep a batch for the readers. Of those without events, one now and then is enough."""
        now = asyncio.get_running_loop().time()
        if not batch.events and now - self._told_s < _TELL_S:
            return
        self._told_s = now
        self._held.append(_Held(batch, size))
        self._events += len(batch.events)
        self._bytes += size
        self.trim()
        self._wake()

    def _remember(self, key: bytes, revision: int, version: int) -> None:
        if len(self.seen) >= _SEEN_MAX:
            self.seen.clear()
            self.growth.clear()
            self.checked = revision
        self.seen[key] = (revision, version)
        if version <= 1:
            self.growth.append((revision, 1 if version else -1))

    def _wake(self) -> None:
        for reader in self.readers:
            reader.wake.set()


def _follows(version: int, before: tuple[int, int] | None) -> bool:
    """Say whether a key's change can be the next after the one remembered: versions count a key's writes, 0 is gone."""
    if before is None:
        return True
    return version == before[1] + 1 if version else before[1] > 0


class Reader:
    """One reader's place in a feed."""

    def __init__(self, feed: Feed, revision: int) -> None:
        self.wake = asyncio.Event()
        self.revision = revision
        """What the reader has been told up to."""
        self.feed = feed
        self.number = 0
        self.join(feed)

    def join(self, feed: Feed) -> None:
        """Go on in this feed."""
        self.feed = feed
        self.number = feed.number_after(self.revision)
        feed.readers.add(self)

    @property
    def behind(self) -> bool:
        """What comes next is no longer in the buffer."""
        return self.number < self.feed.first

    def take(self) -> WatchBatch | None:
        """Give the next batch if it is there. What the reader already knows is left out."""
        feed = self.feed
        while self.number < feed.next:
            batch = feed.batch(self.number)
            self.number += 1
            if batch.revision <= self.revision:
                continue
            if batch.events and batch.events[0].revision <= self.revision:
                batch = WatchBatch(batch.revision, tuple(e for e in batch.events if e.revision > self.revision))
            self.revision = batch.revision
            return batch
        return None
