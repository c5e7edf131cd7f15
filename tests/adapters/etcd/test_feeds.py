"""What one etcd watch delivers: whole revisions, in order, once, and a lost change is noticed."""

from __future__ import annotations

import asyncio
import random

import pytest

from kokuban.etcd.v1 import etcd_pb2 as pb
from kokuban_server.adapters.etcd.feeds import Feed, Reader
from kokuban_server.core import limits
from kokuban_server.core.refusals import WatchGap


def put(key: bytes, revision: int, version: int = 1, *, value: bytes = b"v") -> pb.Event:
    kv = pb.KeyValue(key=b"d/" + key, value=value, mod_revision=revision, create_revision=revision, version=version)
    return pb.Event(kv=kv)


def gone(key: bytes, revision: int) -> pb.Event:
    return pb.Event(type=pb.Event.DELETE, kv=pb.KeyValue(key=b"d/" + key, mod_revision=revision))


def message(*events: pb.Event, fragment: bool = False, header: int = 0) -> pb.WatchResponse:
    return pb.WatchResponse(events=events, fragment=fragment, header=pb.ResponseHeader(revision=header))


def feed_and_reader(position: int = 10, prefixes: tuple[bytes, ...] = (b"",)) -> tuple[Feed, Reader]:
    feed = Feed(b"d/", prefixes, (b"d/", b"d0"), position)
    return feed, Reader(feed, position)


def told(reader: Reader) -> list[tuple[int, list[int]]]:
    batches = []
    while (batch := reader.take()) is not None:
        batches.append((batch.revision, [event.revision for event in batch.events]))
    return batches


async def test_RB_24_a_revision_that_comes_in_pieces_is_told_whole() -> None:
    feed, reader = feed_and_reader()
    feed.take(message(put(b"a", 11), put(b"a", 12, 2), put(b"b", 12), fragment=True))
    assert told(reader) == [(11, [11])]
    assert feed.position == 11  # a stream that is cut here is resumed before revision 12
    feed.take(message(put(b"c", 12), put(b"d", 12), fragment=True))
    assert told(reader) == []
    feed.take(message(put(b"e", 12), put(b"a", 13, 3)))
    assert told(reader) == [(13, [12, 12, 12, 12, 12, 13])]


async def test_RB_24_what_came_of_a_cut_revision_is_not_told_twice() -> None:
    feed, reader = feed_and_reader()
    feed.take(message(put(b"a", 11), put(b"b", 12), fragment=True))
    feed.begin(2)
    feed.take(message(put(b"b", 12), put(b"c", 12)))
    assert told(reader) == [(11, [11]), (12, [12, 12])]


async def test_RB_12_the_header_does_not_move_the_place_to_resume_from() -> None:
    feed, reader = feed_and_reader()
    feed.take(message(put(b"a", 11), header=5_000))
    feed.take(message(header=6_000))
    assert feed.position == 11
    assert told(reader) == [(11, [11])]


async def test_RB_13_what_was_told_before_is_dropped_and_counted() -> None:
    feed, reader = feed_and_reader()
    feed.take(message(put(b"a", 11), put(b"a", 12, 2)))
    feed.take(message(put(b"a", 9), put(b"a", 11), put(b"a", 12, 2), put(b"a", 13, 3)))
    assert told(reader) == [(12, [11, 12]), (13, [13])]
    assert feed.duplicates == 3


@pytest.mark.parametrize(
    "events",
    [
        [put(b"a", 11), put(b"a", 13, 3)],
        [put(b"a", 11), gone(b"a", 12), put(b"a", 13, 2)],
        [put(b"a", 11), gone(b"a", 12), gone(b"a", 13)],
        [put(b"a", 11), put(b"a", 12)],
        [put(b"a", 12), put(b"b", 11)],
    ],
    ids=["a write", "a creation", "a creation before a removal", "a removal", "order"],
)
async def test_a_change_that_is_missing_between_two_of_a_key_ends_the_feed(events: list[pb.Event]) -> None:
    feed, _ = feed_and_reader()
    for event in events:
        feed.take(message(event) if events[0].kv.mod_revision < events[1].kv.mod_revision else message(*events))
    assert feed.failure is not None
    assert isinstance(feed.failure(), WatchGap)


async def test_the_former_revision_of_what_was_told_lately_is_known() -> None:
    feed, reader = feed_and_reader()
    feed.take(message(put(b"a", 11), put(b"a", 12, 2), gone(b"a", 13), put(b"a", 14), put(b"b", 15, 7)))
    batch = reader.take()
    assert batch is not None
    assert [event.previous_revision for event in batch.events] == [0, 11, 12, 0, 0]


async def test_only_the_prefixes_are_told_though_the_watch_spans_what_lies_between() -> None:
    feed, reader = feed_and_reader(prefixes=(b"a/", b"c/"))
    feed.take(message(put(b"a/1", 11), put(b"b/1", 12), put(b"c/1", 13), put(b"c", 14)))
    assert told(reader) == [(14, [11, 13])]


async def test_a_single_reader_that_does_not_read_holds_back_the_watch() -> None:
    feed, reader = feed_and_reader()
    for revision in range(11, 11 + limits.WATCH_BUFFER_EVENTS_MAX + 1):
        assert not feed.paused
        feed.take(message(put(b"%d" % revision, revision)))
    assert feed.paused
    assert len(told(reader)) == limits.WATCH_BUFFER_EVENTS_MAX + 1
    feed.trim()
    assert not feed.paused


async def test_bytes_are_bounded_too() -> None:
    feed, _ = feed_and_reader()
    revision = 10
    while not feed.paused:
        revision += 1
        feed.take(message(put(b"%d" % revision, revision, value=b"x" * 500_000)))
    assert revision - 10 == -(-limits.WATCH_BUFFER_BYTES_MAX // 500_000)


async def test_one_slow_reader_does_not_hold_back_the_others() -> None:
    feed, slow = feed_and_reader()
    quick = Reader(feed, 10)
    seen = []
    for revision in range(11, 11 + 3 * limits.WATCH_BUFFER_EVENTS_MAX):
        feed.take(message(put(b"%d" % revision, revision)))
        batch = quick.take()
        assert batch is not None
        seen.append(batch.revision)
        feed.trim()
    assert seen == list(range(11, 11 + 3 * limits.WATCH_BUFFER_EVENTS_MAX))
    assert not feed.paused
    assert slow.behind  # it must read again from where it is
    assert slow.revision == 10


async def test_a_reader_may_join_where_the_feed_still_remembers() -> None:
    feed, reader = feed_and_reader()
    for revision in range(11, 21):
        feed.take(message(put(b"a", revision, revision - 10)))
    assert len(told(reader)) == 10
    assert feed.covers(10)
    assert not feed.covers(9)
    assert [revision for revision, _ in told(Reader(feed, 15))] == [16, 17, 18, 19, 20]
    assert told(Reader(feed, 25)) == []


async def test_any_cut_of_any_stream_gives_every_event_once_and_in_order() -> None:
    """Random streams, cut into random messages and resumed at random places, against what was written."""
    chooser = random.Random(5)
    for _ in range(50):
        log: list[pb.Event] = []
        versions: dict[bytes, int] = {}
        for revision in range(11, 31):
            for key in chooser.sample([b"a", b"b", b"c", b"d"], chooser.randint(1, 4)):
                if versions.get(key) and chooser.random() < 0.3:
                    log.append(gone(key, revision))
                    versions[key] = 0
                else:
                    versions[key] = versions.get(key, 0) + 1
                    log.append(put(key, revision, versions[key]))
        feed, reader = feed_and_reader()
        seen: list[tuple[bytes, int]] = []
        place = 0
        while place < len(log):
            step = min(chooser.randint(1, 5), len(log) - place)
            whole = (
                place + step == len(log) or log[place + step].kv.mod_revision != log[place + step - 1].kv.mod_revision
            )
            feed.take(message(*log[place : place + step], fragment=not whole))
            place += step
            if (
                chooser.random() < 0.2
            ):  # the stream is cut, and a new one begins behind the position, or repeats a little
                feed.begin(feed.watch_id + 1)
                start = feed.position + 1 - chooser.randint(0, 2)
                place = next((n for n, event in enumerate(log) if event.kv.mod_revision >= start), len(log))
            while (batch := reader.take()) is not None:
                seen += [(event.key, event.revision) for event in batch.events]
        assert feed.failure is None
        assert seen == [(event.kv.key[2:], event.kv.mod_revision) for event in log]
    await asyncio.sleep(0)
