"""Watching: one feed of the store's changes, shared by every watcher of this server."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kokuban_server.app.archived import archive_keys, refuse_archived
from kokuban_server.app.deadlines import left_s, of_one_act
from kokuban_server.app.following import Following
from kokuban_server.app.kept_states import PastState, gone, has_removals
from kokuban_server.core import keys, limits
from kokuban_server.core.access import Verb
from kokuban_server.core.refusals import Refusal, StoreUnavailable, TokenAheadOfStore, WatchGap, WatchTooSlow
from kokuban_server.core.revision import encode_token, revision_of
from kokuban_server.core.trust import Trust
from kokuban_server.ports.board_store import STRONG, Snapshot
from kokuban_server.records.codec import decode_entry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

    from kokuban_server.app.access import Access, OpenRegion
    from kokuban_server.app.judged_states import JudgedStates
    from kokuban_server.app.store_time import StoreTime
    from kokuban_server.core.access import Principal
    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.core.names import EntryKey, Region
    from kokuban_server.ports.board_store import BoardStore, Event, WatchBatch


class StartAfter(NamedTuple):
    """With the first change after a token."""

    token: str


class StartSnapshot(NamedTuple):
    """With what is there."""


class StartNow(NamedTuple):
    """With the first change after this moment."""


WatchStart: TypeAlias = StartAfter | StartSnapshot | StartNow


class Change:
    """One change of an entry, shared by all who watch it."""

    __slots__ = ("encoded", "head", "key", "record", "revision", "size_bytes")

    def __init__(self, event: Event, key: EntryKey, record: EntryRecord) -> None:
        self.head = event.key
        self.key = key
        self.record = record
        self.revision = event.revision
        self.size_bytes = len(event.key) + len(event.value or b"")
        self.encoded: dict[tuple[bool, bool], bytes] = {}
        """The wire's memory of what it made of this, by whether values are left out and whether it is withheld."""


class WatchPart:
    """What a watch sends next."""

    __slots__ = ("changes", "entries", "floors", "going_away", "removed", "revision", "snapshot_complete")

    def __init__(
        self,
        *,
        changes: Sequence[Change] = (),
        entries: Sequence[tuple[EntryKey, EntryRecord, int]] | None = None,
        snapshot_complete: bool = False,
        revision: int | None = None,
        going_away: bool = False,
    ) -> None:
        self.changes = changes
        self.entries = entries
        """What was there, for a watch that began with a snapshot."""
        self.snapshot_complete = snapshot_complete
        self.revision = revision
        """The state up to which nothing is outstanding; nothing while a snapshot or a revision is incomplete."""
        self.going_away = going_away
        self.floors: Mapping[Region, Trust] = {}
        """The least trusted that is shown of each region; what is below is withheld."""
        self.removed: frozenset[tuple[EntryKey, int]] = frozenset()
        """States that were removed since, or are not judged, by key and revision: they are withheld."""


def _changes_of(batch: WatchBatch) -> list[Change]:
    """Give the batch's changes. That a dead entry's record is swept away is not news."""
    changes = []
    for event in batch.events:
        if event.value is not None:
            _, _, key = keys.parse_head(event.key)
            changes.append(Change(event, key, decode_entry(event.key, event.value)))
    return changes


class _Subscriber:
    """One watcher's place at the feed: what it has not been sent yet, within bounds."""

    def __init__(self, prefixes: tuple[bytes, ...], after: int, events_max: int, bytes_max: int) -> None:
        self.prefixes = prefixes
        self.after = after
        self.waiting: deque[Change] = deque()
        self.ended: Refusal | None = None
        self.overflowed = False
        self._bytes = 0
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._waiter: asyncio.Future[None] | None = None

    def push(self, change: Change) -> None:
        if change.revision <= self.after:
            return
        self._bytes += change.size_bytes
        if len(self.waiting) >= self._events_max or (self.waiting and self._bytes > self._bytes_max):
            self.overflowed = True
            self.waiting.clear()
        if not self.overflowed:
            self.waiting.append(change)
        self.wake()

    def take(self) -> list[Change]:
        """Give what fits one message, in order."""
        taken: list[Change] = []
        size = 0
        while self.waiting and (not taken or size + self.waiting[0].size_bytes <= limits.WATCH_MESSAGE_BYTES_MAX):
            change = self.waiting.popleft()
            size += change.size_bytes
            taken.append(change)
        self._bytes -= size
        return taken

    def is_idle(self) -> bool:
        return not (self.waiting or self.overflowed or self.ended)

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Come back when there is something, or after the time."""
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self.wake)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None


class Feed(Following):
    """The store's changes of all entries, read once, with the newest kept for those who come late.

    Every change names the revision before it. One whose predecessor the feed should have seen and has not is a gap: the
    store lost something. All watchers are then told, and the feed begins anew.
    """

    def __init__(self, store: BoardStore, events_max: int, bytes_max: int) -> None:
        super().__init__(store, keys.HEAD, "watch-feed")
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._recent: deque[Change] = deque()
        self._recent_bytes = 0
        self._last: dict[bytes, int] = {}
        self._by_prefix: dict[bytes, set[_Subscriber]] = {}
        self.floor = 0
        """Every change after this revision, up to `revision`, is kept here."""
        self.gaps = 0
        """How often a change turned out to be missing."""
        self.on_batch: Callable[[Change], None] | None = None
        """Called with the newest change of each batch that has some."""

    @property
    def subscribers(self) -> set[_Subscriber]:
        """Everybody who is joined."""
        return {subscriber for joined in self._by_prefix.values() for subscriber in joined}

    async def start(self) -> None:
        """Begin to read, if that has not begun; come back when the feed stands."""
        self.begin()
        await self._stands.wait()

    def join(self, subscriber: _Subscriber) -> bool:
        """Take the subscriber in from its revision on; not if the feed no longer keeps what it needs."""
        if subscriber.after < self.floor or not self.stands:
            return False
        for change in self._recent:
            if change.revision > subscriber.after and change.head.startswith(subscriber.prefixes):
                subscriber.push(change)
        for prefix in subscriber.prefixes:
            self._by_prefix.setdefault(prefix, set()).add(subscriber)
        return True

    def leave(self, subscriber: _Subscriber) -> None:
        """Send the subscriber nothing more."""
        for prefix in subscriber.prefixes:
            joined = self._by_prefix.get(prefix)
            if joined is not None:
                joined.discard(subscriber)
                if not joined:
                    del self._by_prefix[prefix]

    async def _load(self) -> None:
        """Begin with what changes from now on."""
        cut = await self._store.read([keys.SECRET], STRONG, limits.DEADLINE_S_DEFAULT)
        self.floor = self.revision = cut.revision
        self._recent.clear()
        self._recent_bytes = 0
        self._last.clear()
        self._stands.set()

    def _begin_anew(self, fault: Exception) -> None:
        """Tell everybody too: what was missed cannot be had again, and watchers must not wait for a feed that is no more."""
        super()._begin_anew(fault)
        refusal: Refusal
        if isinstance(fault, Refusal):
            refusal = fault
        else:
            refusal = WatchGap()
            refusal.__cause__ = fault  # for the log
        for subscriber in self.subscribers:
            subscriber.ended = refusal
            subscriber.wake()
            self.leave(subscriber)

    def _take(self, batch: WatchBatch) -> None:
        changes = _changes_of(batch)
        last: dict[bytes, int] = {}
        for change in changes:
            before = change.record.previous_revision
            if before > self.floor and last.get(change.head, self._last.get(change.head)) != before:
                self.gaps += 1
                raise WatchGap
            last[change.head] = change.revision
        for change in changes:
            self._keep(change)
            if self._by_prefix:
                self._deliver(change)
        self.revision = batch.revision
        if self.on_batch is not None and changes:
            self.on_batch(changes[-1])

    def _keep(self, change: Change) -> None:
        self._recent.append(change)
        self._recent_bytes += change.size_bytes
        self._last[change.head] = change.revision
        while len(self._recent) > self._events_max or self._recent_bytes > self._bytes_max:
            dropped = self._recent.popleft()
            self._recent_bytes -= dropped.size_bytes
            self.floor = dropped.revision
            if self._last[dropped.head] == dropped.revision:
                del self._last[dropped.head]

    def _deliver(self, change: Change) -> None:
        head = change.head
        end = head.find(b"/", len(keys.HEAD))
        met: set[_Subscriber] = set()
        while end >= 0:
            joined = self._by_prefix.get(head[: end + 1])
            if joined:
                met |= joined
            end = head.find(b"/", end + 1)
        for subscriber in met:
            subscriber.push(change)


class Watches:
    """Answers watches."""

    def __init__(
        self,
        store: BoardStore,
        access: Access,
        time: StoreTime,
        judged: JudgedStates,
        bookmark_s: float = 10.0,
        buffer_events_max: int = limits.WATCH_BUFFER_EVENTS_MAX,
        buffer_bytes_max: int = limits.WATCH_BUFFER_BYTES_MAX,
    ) -> None:
        self._store = store
        self._access = access
        self._time = time
        self._judged = judged
        self._bookmark_s = bookmark_s
        self._buffer_events_max = buffer_events_max
        self._buffer_bytes_max = buffer_bytes_max
        self._draining = False
        self.feed = Feed(store, buffer_events_max, buffer_bytes_max)

    def drain(self) -> None:
        """Have every watch send what it holds, say that the server is going away, and end."""
        self._draining = True
        self.stir()

    def stir(self) -> None:
        """Have every watch that waits say where it stands, and look again whether it still may."""
        for subscriber in self.feed.subscribers:
            subscriber.wake()

    async def close(self) -> None:
        """Stop reading the store."""
        await self.feed.close()

    async def follow(
        self,
        principal: Principal,
        board: str,
        targets: Sequence[tuple[Region, str]],
        start: WatchStart,
        deadline: float,
    ) -> AsyncGenerator[WatchPart, None]:
        """Give what a watch sends: the snapshot if asked for, then every change once and in order, until closed.

        Raises `NotFound` for a region that the caller may not read, or no longer; `HistoryCompacted`, `TokenAheadOfStore` or
        `WatchGap` where the promise cannot be kept; `WatchTooSlow`, with the last token that was given, when the buffer is
        full. `deadline` is for what comes before the first part.
        """
        deadline = of_one_act(deadline)
        await self._access.enter(principal, board, deadline)
        wait_s = left_s(deadline)
        opened = _apart([(self._access.open(principal, board, region, Verb.READ), path) for region, path in targets])
        regions = [region for region, _ in opened]
        await self._access.account(principal, regions, deadline)
        archives = archive_keys(regions)
        if archives:
            refuse_archived((await self._store.read(archives, STRONG, left_s(deadline))).records, writes=False)
        async with contextlib.aclosing(self._followed(opened, start, wait_s)) as parts:
            async for part in parts:
                self._access.recheck(principal, regions)
                now = self._now(principal, board, regions)
                part.floors = _floors(now)
                part.removed = await self._removed(part, now) | self._unjudged(part, now)
                yield part

    def _now(self, principal: Principal, board: str, regions: Iterable[OpenRegion]) -> dict[Region, OpenRegion]:
        """Give the regions under the policy of now."""
        return {
            region: self._access.open(principal, board, region, Verb.READ) for region in {one.region for one in regions}
        }

    async def _removed(self, part: WatchPart, regions: Mapping[Region, OpenRegion]) -> frozenset[tuple[EntryKey, int]]:
        """Give what is in a part though it was removed since."""
        if not any(map(has_removals, regions.values())):
            return frozenset()
        states = [(change.key, change.record, change.revision) for change in part.changes] + list(part.entries or ())
        past = [PastState(regions[key.region], key, record, revision) for key, record, revision in states]
        deadline = asyncio.get_running_loop().time() + limits.DEADLINE_S_DEFAULT
        return await gone(self._store, past, deadline)

    def _unjudged(self, part: WatchPart, regions: Mapping[Region, OpenRegion]) -> frozenset[tuple[EntryKey, int]]:
        """Give what is in a part that only older rules have let in, where that is withheld. A change may be long past."""
        if not any(map(self._judged.may_withhold, regions.values())):
            return frozenset()
        found = [(change.key, change.record.label, b"", change.revision) for change in part.changes]
        found += [
            (key, record.label, keys.head(regions[key.region].prefix, key.path), revision)
            for key, record, revision in part.entries or ()
        ]
        return frozenset(
            (key, revision)
            for key, label, head, revision in found
            if label.screened_by and self._judged.is_withheld(regions[key.region], label, head, revision)
        )

    async def _followed(
        self, opened: Sequence[tuple[OpenRegion, str]], start: WatchStart, wait_s: float
    ) -> AsyncGenerator[WatchPart, None]:
        prefixes = tuple([keys.heads(region.prefix, path) for region, path in opened])
        await self._stand(wait_s)
        if isinstance(start, StartAfter):
            after = revision_of(start.token, self._store.epoch, "after")
            if after > self.feed.revision:
                cut = await self._store.read([keys.SECRET], STRONG, wait_s)
                if after > cut.revision:
                    raise TokenAheadOfStore("after")
        else:
            after = (await self._store.read([keys.SECRET], STRONG, wait_s)).revision
        if isinstance(start, StartSnapshot):
            async for part in self._snapshot(opened, after, wait_s):
                yield part
        else:
            yield WatchPart(revision=after)
        subscriber = _Subscriber(prefixes, after, self._buffer_events_max, self._buffer_bytes_max)
        try:
            if not self.feed.join(subscriber):
                async for part in self._catch_up(subscriber):
                    yield part
            async for part in self._joined(subscriber):
                yield part
        finally:
            self.feed.leave(subscriber)

    async def _stand(self, wait_s: float) -> None:
        """Come back when the feed stands. Raises what is wrong with the store, or that it does not answer in time."""
        if self.feed.stands:
            return
        await self._store.read([keys.SECRET], STRONG, wait_s)
        try:
            async with asyncio.timeout(wait_s):
                await self.feed.start()
        except TimeoutError:
            raise StoreUnavailable("its changes cannot be read") from None

    async def _snapshot(
        self, opened: Sequence[tuple[OpenRegion, str]], revision: int, deadline_s: float
    ) -> AsyncGenerator[WatchPart, None]:
        """Give what is at and below the targets at a revision, page by page."""
        consistency = Snapshot(revision)
        for region, path in opened:
            prefix = keys.heads(region.prefix, path)
            after = b""
            more = True
            while more:
                page = await self._store.scan(
                    prefix, after, limits.PAGE_ENTRIES_MAX, limits.WATCH_MESSAGE_BYTES_MAX, consistency, deadline_s
                )
                self._time.saw(page.store_time_ms)
                now_ms = self._time.now_ms()
                states = [decode_entry(record.key, record.value) for record in page.records]
                due = any(page.store_time_ms < state.expire_time_ms <= now_ms for state in states)
                if due and await self._time.tick(deadline_s):  # as in any other read
                    continue
                entries = []
                for record, state in zip(page.records, states, strict=True):
                    if state.is_live(page.store_time_ms):
                        entries.append((keys.parse_head(record.key)[2], state, record.revision))
                    after = record.key
                more = page.more
                if entries:
                    yield WatchPart(entries=entries)
        yield WatchPart(entries=(), snapshot_complete=True, revision=revision)

    async def _catch_up(self, subscriber: _Subscriber) -> AsyncGenerator[WatchPart, None]:
        """Read from the store what the feed no longer keeps, at the reader's pace, until the feed can take over."""
        async with contextlib.aclosing(self._store.watch(subscriber.prefixes, subscriber.after)) as batches:
            async for batch in batches:
                subscriber.after = batch.revision
                for part in _parts(_changes_of(batch), batch.revision):
                    yield part
                if self.feed.join(subscriber):
                    return

    async def _joined(self, subscriber: _Subscriber) -> AsyncGenerator[WatchPart, None]:
        sent = subscriber.after
        while True:
            if subscriber.overflowed:
                raise WatchTooSlow(encode_token(self._store.epoch, sent))
            if subscriber.waiting:
                changes = subscriber.take()
                rest = subscriber.waiting
                if rest and rest[0].revision == changes[-1].revision:
                    complete = None
                elif rest or subscriber.ended is not None:
                    # A feed that has ended for this watch may have begun anew since, beyond what was missed.
                    complete = changes[-1].revision
                else:
                    complete = max(sent, self.feed.revision, changes[-1].revision)
                sent = complete or sent
                yield WatchPart(changes=changes, revision=complete)
            elif subscriber.ended is not None:
                ended = subscriber.ended
                raise _with_token(ended, encode_token(self._store.epoch, sent)) from ended.__cause__
            elif self._draining:
                yield WatchPart(revision=max(sent, self.feed.revision), going_away=True)
                return
            else:
                await subscriber.wait(self._bookmark_s)
                if subscriber.is_idle() and not self._draining:
                    sent = max(sent, self.feed.revision)
                    yield WatchPart(revision=sent)


def _floors(regions: Mapping[Region, OpenRegion]) -> dict[Region, Trust]:
    """Give the regions' floors. External text is for those who ask for it by name, which a watch does not."""
    return {region: max(now.rules.read_floor, Trust.AGENT) for region, now in regions.items()}


def _apart(opened: Sequence[tuple[OpenRegion, str]]) -> list[tuple[OpenRegion, str]]:
    """Give the targets without those that lie inside another, so that a snapshot shows nothing twice."""
    by_prefix = {keys.heads(region.prefix, path): (region, path) for region, path in opened}
    return [
        target
        for prefix, target in by_prefix.items()
        if not any(prefix.startswith(other) and prefix != other for other in by_prefix)
    ]


def _with_token(refusal: Refusal, token: str) -> Refusal:
    return WatchGap(token) if isinstance(refusal, WatchGap) else refusal


def _parts(changes: list[Change], revision: int) -> list[WatchPart]:
    """Cut a batch into messages. Only the last names the revision, as the others may end inside one."""
    parts = []
    start = 0
    size = 0
    for index, change in enumerate(changes):
        if index > start and size + change.size_bytes > limits.WATCH_MESSAGE_BYTES_MAX:
            parts.append(WatchPart(changes=changes[start:index]))
            start, size = index, 0
        size += change.size_bytes
    parts.append(WatchPart(changes=changes[start:], revision=revision))
    return parts
