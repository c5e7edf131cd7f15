from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from kokuban.v1 import board_service_pb2, entry_pb2
from kokuban_client import NOW, SNAPSHOT, Bookmark, EntryChange, Reset, SnapshotComplete, SnapshotEntry
from kokuban_client._watch_state import WatchState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_client.types import WatchItem

EPOCH = "00c0ffee00c0ffee"


def entry(number: int, path: str = "a") -> entry_pb2.Entry:
    return entry_pb2.Entry(
        key=entry_pb2.EntryKey(region="shared:plan", path=path),
        revision=entry_pb2.Revision(number=number, epoch=EPOCH),
    )


def events(token: str, *changes: tuple[int, str]) -> board_service_pb2.WatchResponse:
    return board_service_pb2.WatchResponse(
        token=token,
        events=board_service_pb2.WatchEvents(
            changes=[
                entry_pb2.EntryChange(type=entry_pb2.CHANGE_TYPE_PUT, entry=entry(number, path))
                for number, path in changes
            ]
        ),
    )


def snapshot(token: str, *numbers: int) -> board_service_pb2.WatchResponse:
    part = board_service_pb2.WatchSnapshot(entries=[entry(number) for number in numbers], complete=bool(token))
    return board_service_pb2.WatchResponse(token=token, snapshot=part)


def bookmark(token: str) -> board_service_pb2.WatchResponse:
    return board_service_pb2.WatchResponse(token=token, bookmark=board_service_pb2.WatchBookmark())


def given_changes(items: Sequence[WatchItem]) -> list[tuple[int, str]]:
    return [(item.entry.revision.number, item.entry.path) for item in items if isinstance(item, EntryChange)]


def test_changes_are_held_back_until_their_revision_is_complete() -> None:
    state = WatchState("t4", bookmarks=False)
    assert state.feed(events("", (5, "a"))) == []
    assert state.start == "t4"
    assert given_changes(state.feed(events("t5", (5, "b")))) == [(5, "a"), (5, "b")]
    assert state.start == "t5"


def test_RB_24_a_stream_that_breaks_inside_a_revision_gives_nothing_twice() -> None:
    state = WatchState("t4", bookmarks=False)
    state.feed(events("", (5, "a")))
    assert state.resume() == []
    assert state.start == "t4"
    assert given_changes(state.feed(events("t5", (5, "a"), (5, "b")))) == [(5, "a"), (5, "b")]


def test_a_change_that_comes_again_is_not_given_again() -> None:
    state = WatchState("t4", bookmarks=False)
    state.feed(events("t5", (5, "a")))
    state.resume()
    assert given_changes(state.feed(events("t6", (5, "a"), (6, "a")))) == [(6, "a")]


def test_a_snapshot_ends_with_its_token() -> None:
    state = WatchState(SNAPSHOT, bookmarks=False)
    first = state.feed(snapshot("", 3))
    assert [type(item) for item in first] == [SnapshotEntry]
    last = state.feed(snapshot("t9", 4))
    assert [type(item) for item in last] == [SnapshotEntry, SnapshotComplete]
    assert state.start == "t9"
    assert state.resume() == []


def test_a_snapshot_that_breaks_off_is_taken_back() -> None:
    state = WatchState(SNAPSHOT, bookmarks=False)
    state.feed(snapshot("", 3))
    assert state.resume() == [Reset("SNAPSHOT_INTERRUPTED")]
    assert state.start is SNAPSHOT
    assert state.resume() == []


def test_after_a_reset_older_numbers_are_given_again() -> None:
    state = WatchState("t4", bookmarks=False)
    state.feed(events("t5", (5, "a")))
    assert state.relist("HISTORY_COMPACTED") == [Reset("HISTORY_COMPACTED")]
    assert state.start is SNAPSHOT
    state.feed(snapshot("n2"))
    assert given_changes(state.feed(events("n3", (3, "a")))) == [(3, "a")]


def test_bookmarks_move_the_token_and_are_given_on_request() -> None:
    quiet, curious = WatchState(NOW, bookmarks=False), WatchState(NOW, bookmarks=True)
    assert quiet.feed(bookmark("t1")) == []
    assert curious.feed(bookmark("t1")) == [Bookmark("t1")]
    assert quiet.start == curious.start == "t1"


def test_a_server_that_leaves_says_where_to_go_on() -> None:
    state = WatchState(NOW, bookmarks=False)
    leaving = bookmark("t7")
    leaving.going_away.SetInParent()
    assert state.feed(leaving) == []
    assert state.going_away
    state.resume()
    assert (state.start, state.going_away) == ("t7", False)


def test_a_word_of_a_newer_server_is_passed_over_with_its_token() -> None:
    state = WatchState(NOW, bookmarks=True)
    newer = bookmark("t8")
    newer.ClearField("bookmark")
    assert state.feed(newer) == []
    assert state.start == "t8"


@given(st.data())
def test_whatever_breaks_every_change_is_given_once_and_in_order(data: st.DataObject) -> None:
    revisions = [(number, data.draw(st.integers(1, 3))) for number in range(1, data.draw(st.integers(1, 8)) + 1)]
    log = [(number, f"p{index}") for number, count in revisions for index in range(count)]
    state = WatchState("t0", bookmarks=False)
    given_so_far: list[tuple[int, str]] = []
    while len(given_so_far) < len(log):
        assert isinstance(state.start, str)
        after = int(state.start[1:])
        left = [change for change in log if change[0] > after]
        for index, change in enumerate(left):
            last_of_revision = index + 1 == len(left) or left[index + 1][0] != change[0]
            given_so_far += given_changes(state.feed(events(f"t{change[0]}" if last_of_revision else "", change)))
            if data.draw(st.integers(0, 3)) == 0:
                break
        state.resume()
    assert given_so_far == log
