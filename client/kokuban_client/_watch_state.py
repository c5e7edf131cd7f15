"""What a watch knows: pure, fed with the server's responses, asked where to go on when the stream breaks."""

from __future__ import annotations

from kokuban_client import _wire
from kokuban_client.types import (
    SNAPSHOT,
    Bookmark,
    EntryChange,
    Reset,
    SnapshotComplete,
    SnapshotEntry,
    WatchItem,
    WatchStart,
)


class WatchState:
    """Turns responses into items, each change once.

    Changes are held back until their revision is complete, so that a stream that breaks inside a revision can be resumed
    from its last token without giving a change twice.
    """

    def __init__(self, start: WatchStart | str, *, bookmarks: bool) -> None:
        self.start = start
        """Where the next stream is to begin."""
        self.going_away = False
        """The server has announced that it is about to stop."""
        self._bookmarks = bookmarks
        self._held: list[EntryChange] = []
        self._given_number = 0  # the highest complete revision given: a second guard against giving a change twice
        self._inside_snapshot = False

    def feed(self, response: _wire.WatchResponse) -> list[WatchItem]:
        """Give the items that a response completes, and move `start` on."""
        items: list[WatchItem] = []
        match response.WhichOneof("content"):
            case "snapshot":
                items += (SnapshotEntry(_wire.entry(message)) for message in response.snapshot.entries)
                self._inside_snapshot = not response.snapshot.complete
                if response.snapshot.complete:
                    items.append(SnapshotComplete(response.token))
            case "events":
                self._held += map(_wire.change, response.events.changes)
            case "bookmark" if self._bookmarks and response.token:
                items.append(Bookmark(response.token))
            case "going_away":
                self.going_away = True
            case _:
                pass  # a bookmark that nobody asked to see, or a newer server's word: its token counts all the same
        if response.token:
            # Held changes are older than anything else that a response with a token could complete.
            items[:0] = self._complete()
            self.start = response.token
        return items

    def _complete(self) -> list[EntryChange]:
        fresh = [change for change in self._held if change.entry.revision.number > self._given_number]
        self._held.clear()
        self._given_number = max((change.entry.revision.number for change in fresh), default=self._given_number)
        return fresh

    def resume(self) -> list[WatchItem]:
        """Prepare for the next stream. Gives a reset if a part of a snapshot was given that cannot be completed."""
        self._held.clear()
        self.going_away = False
        return self.relist("SNAPSHOT_INTERRUPTED") if self._inside_snapshot else []

    def relist(self, cause: str) -> list[WatchItem]:
        """Give up on going on without a gap: give a reset and begin with a new snapshot."""
        self._held.clear()
        self.going_away = False
        self._inside_snapshot = False
        self._given_number = 0  # a restored store counts from an older number
        self.start = SNAPSHOT
        return [Reset(cause)]
