"""All watches of a store on one etcd stream."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import random
from typing import TYPE_CHECKING, Final

from kokuban.etcd.v1 import etcd_pb2 as pb
from kokuban_server.adapters.etcd.errors import EtcdError, Verdict
from kokuban_server.adapters.etcd.feeds import Feed, Reader
from kokuban_server.adapters.etcd.methods import RANGE, WATCH
from kokuban_server.core.refusals import (
    HistoryCompacted,
    Refusal,
    StoreCorrupt,
    StoreUnavailable,
    TokenAheadOfStore,
    WatchGap,
)
from kokuban_server.ports.board_store import WatchBatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from kokuban_server.adapters.etcd.channel import EtcdChannel, Stream
    from kokuban_server.adapters.etcd.layout import Layout

log = logging.getLogger(__name__)

_CATCH_UP_S: Final = 0.5
"""How long a first batch waits for what happened before: etcd looks after late watches every 100 ms."""
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
_CHECK_TIMEOUT_S: Final = 30.0
_CHECK_SHARE: Final = 20
"""A check rests this many times as long as it took, so that on a large range it stays a small part of etcd's work."""


class Watches:
    """The watches of one store.

    Watches of the same prefixes share an etcd watch as long as they keep up with each other. etcd's own promise not to lose
    events is broken by several of its releases, so what was delivered is compared with what the store holds now and then;
    a difference ends the watch with `WatchGap`.
    """

    def __init__(
        self,
        channel: EtcdChannel,
        layout: Layout,
        *,
        present: Callable[[], Awaitable[int]],
        floor: Callable[[], Awaitable[int]],
        timeout_s: float,
        reconcile_s: float,
    ) -> None:
        """Take `present`, which gives the present revision by a strong read, or raises `StoreUnavailable`.

        `floor` gives the oldest state that is kept, or raises `EtcdError`.
        """
        self.gaps_found = 0
        """How often a check found a lost event."""
        self._channel = channel
        self._layout = layout
        self._present = present
        self._floor = floor
        self._timeout_s = timeout_s
        self._reconcile_s = reconcile_s
        self._feeds: list[Feed] = []
        self._filling: dict[int, Feed] = {}
        self._ids = itertools.count(1)
        self._stream: Stream[pb.WatchRequest, pb.WatchResponse] | None = None
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: StoreUnavailable | None = None
        channel.on_move(self._cut)

    async def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Give every change; see the port."""
        present = await self._present_when_there()
        if after_revision > present:
            raise TokenAheadOfStore("")
        reader = Reader(self._feed(prefixes, after_revision), after_revision)
        try:
            await reader.feed.standing.wait()
            yield await self._first(reader, present)
            while True:
                yield await self._next(reader)
        finally:
            self._leave(reader)

    def end(self, reason: StoreUnavailable) -> None:
        """End every watch with this."""
        self._ended = reason
        for feed in self._feeds:
            feed.fail(functools.partial(StoreUnavailable, reason.detail))
        self._changed.set()
        self._cut()

    async def close(self, reason: StoreUnavailable) -> None:
        """End every watch with this, and what works for them."""
        self.end(reason)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def check(self) -> None:
        """Compare what was delivered with what the store holds, feed by feed; end a feed that lost something.

        Raises `EtcdError` or `StoreUnavailable` when it cannot be compared now.
        """
        for feed in list(self._feeds):
            if feed.watch_id and not feed.paused and feed.failure is None:
                await self._check(feed)

    # Reading.

    async def _present_when_there(self) -> int:
        """Give the present revision, waiting out an outage."""
        pause_s = _PAUSE_S_MIN
        while True:
            try:
                return await self._present()
            except StoreUnavailable:
                if self._ended is not None:
                    raise
            pause_s = await _rest(pause_s)

    async def _first(self, reader: Reader, present: int) -> WatchBatch:
        """Give what has happened since the reader's start, or an empty batch when there is nothing."""
        start = reader.revision
        if start == present:
            return reader.take() or WatchBatch(start, ())
        try:
            async with asyncio.timeout(_CATCH_UP_S):
                return await self._next(reader)
        except TimeoutError:
            return WatchBatch(start, ())

    async def _next(self, reader: Reader) -> WatchBatch:
        while True:
            feed = reader.feed
            if reader.behind:
                self._leave(reader)
                reader.join(self._new_feed(feed.prefixes, reader.revision))
                continue
            if (batch := reader.take()) is not None:
                feed.trim()
                if not feed.paused and not feed.watch_id:
                    self._changed.set()
                return batch
            if feed.failure is not None:
                raise feed.failure()
            reader.wake.clear()
            await reader.wake.wait()

    def _feed(self, prefixes: Sequence[bytes], after: int) -> Feed:
        """Give a feed that serves these prefixes after a revision: one that others read, where that is possible."""
        wanted = tuple(prefixes)
        for feed in self._feeds:
            if feed.prefixes == wanted and feed.covers(after):
                return feed
        return self._new_feed(wanted, after)

    def _new_feed(self, prefixes: Sequence[bytes], after: int) -> Feed:
        spans = [self._layout.range(prefix) for prefix in prefixes]
        span = (min(start for start, _ in spans), max(end for _, end in spans))
        # One etcd watch over everything between the prefixes: with one for each, the parts of a revision would come apart.
        feed = Feed(self._layout.data, prefixes, span, after)
        if self._ended is not None:
            feed.fail(functools.partial(StoreUnavailable, self._ended.detail))
            return feed
        self._feeds.append(feed)
        self._changed.set()
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._run(), name="etcd-watches"),
                asyncio.create_task(self._check_now_and_then(), name="etcd-watch-checks"),
            ]
        return feed

    def _leave(self, reader: Reader) -> None:
        feed = reader.feed
        feed.readers.discard(reader)
        if feed.readers:
            feed.trim()
        elif feed in self._feeds:
            self._feeds.remove(feed)
            self._changed.set()

    # Filling.

    def _cut(self) -> None:
        """End the stream; what reads it begins another."""
        if self._stream is not None:
            self._stream.cancel()

    async def _run(self) -> None:
        pause_s = _PAUSE_S_MIN
        while self._ended is None:
            if not self._feeds:
                self._changed.clear()
                await self._changed.wait()
                continue
            try:
                pause_s = await self._fill_feeds(pause_s)
            except StoreUnavailable as error:
                log.info("etcd.watches_wait reason=%s", error.detail)
            except StoreCorrupt as corrupt:
                for feed in self._feeds:
                    feed.fail(functools.partial(StoreCorrupt, corrupt.key, corrupt.detail))
            pause_s = await _rest(pause_s)

    async def _fill_feeds(self, pause_s: float) -> float:
        """Fill the feeds from one stream until it breaks; give how long to wait before the next."""
        present = await self._present()
        for feed in self._feeds:
            feed.watch_id = 0
            if feed.position > present:
                feed.fail(WatchGap)  # the store went back without a new epoch: what we told may not be true
        self._filling.clear()
        stream = None
        begun_s = asyncio.get_running_loop().time()
        try:
            stream = self._stream = await self._channel.stream(WATCH, self._timeout_s)
            await self._serve(stream)
        except EtcdError as error:
            if stream is not None:
                self._channel.failed(stream.connection, error)
            log.info("etcd.watch_stream_lost reason=%s", error)
        finally:
            self._stream = None
            if stream is not None:
                stream.cancel()
        return pause_s if asyncio.get_running_loop().time() - begun_s < _PAUSE_S_MAX else _PAUSE_S_MIN

    async def _serve(self, stream: Stream[pb.WatchRequest, pb.WatchResponse]) -> None:
        # Not a task group: in Python 3.11 one that ends by a failure leaves its task marked as cancelled.
        tasks = [asyncio.create_task(self._arrange(stream)), asyncio.create_task(self._read(stream))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    async def _arrange(self, stream: Stream[pb.WatchRequest, pb.WatchResponse]) -> None:
        """Begin and end etcd watches as feeds come, pause, go on and go."""
        self._changed.set()
        while True:
            await self._changed.wait()
            self._changed.clear()
            for watch_id, feed in list(self._filling.items()):
                if feed.paused or feed not in self._feeds or feed.failure is not None:
                    del self._filling[watch_id]
                    feed.watch_id = 0
                    await stream.write(pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=watch_id)))
            for feed in list(self._feeds):
                if not feed.watch_id and not feed.paused and feed.failure is None:
                    await self._begin(stream, feed)

    async def _begin(self, stream: Stream[pb.WatchRequest, pb.WatchResponse], feed: Feed) -> None:
        """Begin the etcd watch that fills a feed, behind its position.

        Whether the state at the position is still kept is asked first: a watch that begins at the very revision that was
        compacted to is served, but some releases then leave out that revision's deletions.
        """
        probe = pb.RangeRequest(key=self._layout.epoch, keys_only=True, revision=max(feed.position, 1))
        try:
            await self._channel.call(RANGE, probe, self._timeout_s)
        except EtcdError as error:
            if error.verdict is not Verdict.COMPACTED:
                raise
            floor = await self._floor()
            feed.fail(functools.partial(HistoryCompacted, floor))
            return
        watch_id = next(self._ids)
        self._filling[watch_id] = feed
        feed.begin(watch_id)
        create = pb.WatchCreateRequest(
            key=feed.span[0],
            range_end=feed.span[1],
            start_revision=feed.position + 1,
            watch_id=watch_id,
            fragment=True,
        )
        await stream.write(pb.WatchRequest(create_request=create))

    async def _read(self, stream: Stream[pb.WatchRequest, pb.WatchResponse]) -> None:
        while True:
            response = await stream.read()
            feed = self._filling.get(response.watch_id)
            if response.canceled and (feed is not None or response.created):
                # The stream stays open and silent after this: whoever only waits for it to break waits for ever.
                if feed is None or not response.compact_revision:
                    raise EtcdError(Verdict.UNKNOWN, f"the watch was ended: {response.cancel_reason}")
                del self._filling[response.watch_id]
                feed.watch_id = 0
                feed.fail(functools.partial(HistoryCompacted, response.compact_revision))
            elif feed is None:
                continue  # the last words of a watch that was ended
            elif response.created:
                feed.standing.set()
            else:
                feed.take(response)
                if feed.paused or feed.failure is not None:
                    del self._filling[response.watch_id]
                    feed.watch_id = 0
                    cancel = pb.WatchCancelRequest(watch_id=response.watch_id)
                    await stream.write(pb.WatchRequest(cancel_request=cancel))

    # Checking.

    async def _check_now_and_then(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = self._reconcile_s
        while True:
            await asyncio.sleep(pause_s)
            begun_s = loop.time()
            try:
                await self.check()
            except (EtcdError, Refusal) as error:
                log.info("etcd.watch_check_failed reason=%s", error)
            pause_s = max(self._reconcile_s, _CHECK_SHARE * (loop.time() - begun_s))

    async def _check(self, feed: Feed) -> None:
        """Compare one feed's deliveries with the store.

        Certain: a key last written between the last check and the feed's position was delivered at that revision, and
        the range grew by as many keys as deliveries say. What is outstanding behind the position may be on its way; if the
        position has not moved by the next check, it is lost. When nothing is outstanding, the position at which that was
        seen is passed on at the next check, a whole interval later, so that nothing that was still on its way is skipped.
        """
        position = feed.position
        checked = feed.checked
        present = await self._present()
        key, end = feed.span
        request = pb.RangeRequest(
            key=key, range_end=end, revision=present, keys_only=True, min_mod_revision=checked + 1
        )
        written = await self._channel.call(RANGE, request, _CHECK_TIMEOUT_S)
        count = await self._count(feed, position)
        lost = any(
            kv.mod_revision > feed.seen.get(kv.key, (0, 0))[0]
            for kv in written.kvs
            if checked < kv.mod_revision <= position
        )
        if position > checked and count is not None and (before := await self._count(feed, checked)) is not None:
            grown = sum(growth for revision, growth in feed.growth if checked < revision <= position)
            lost = lost or count - before != grown
        outstanding = any(kv.mod_revision > position for kv in written.kvs) or (
            count is not None and count != await self._count(feed, present)
        )
        if feed.checked != checked:
            return  # too much happened meanwhile to remember it all
        if lost or (outstanding and feed.stuck_at == position):
            self.gaps_found += 1
            log.error("etcd.watch_lost_event position=%d", position)
            feed.fail(WatchGap)
            self._changed.set()
            return
        feed.confirm(position, stuck=outstanding, quiet_to=0 if outstanding else present)

    async def _count(self, feed: Feed, revision: int) -> int | None:
        """Give how many keys the range held at a revision, or nothing where that is forgotten."""
        if revision <= 0:
            return 0
        key, end = feed.span
        request = pb.RangeRequest(key=key, range_end=end, revision=revision, count_only=True)
        try:
            return (await self._channel.call(RANGE, request, _CHECK_TIMEOUT_S)).count
        except EtcdError as error:
            if error.verdict is Verdict.COMPACTED:
                return None
            raise


async def _rest(pause_s: float) -> float:
    """Wait a while, not all at the same time; give how long the next wait shall be."""
    await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - spreads load, guards nothing
    return min(pause_s * 2, _PAUSE_S_MAX)
