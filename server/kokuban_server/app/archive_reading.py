"""A task as the lines of an archive, all of one state of the store."""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kokuban_server.app.deadlines import left_s
from kokuban_server.app.mirrored_store import records_below
from kokuban_server.core import keys, limits
from kokuban_server.core.archives import BEGINNING, LineKind, digest_of, spelled, write_line
from kokuban_server.core.provenance import has_origin
from kokuban_server.core.refusals import ArchiveTooLarge, InvalidRequest, NotFound, StoreCorrupt
from kokuban_server.core.tasks import is_reserved
from kokuban_server.ports.board_store import Snapshot
from kokuban_server.records.archive_codec import packed_record, spelled_origins, spelled_record
from kokuban_server.records.codec import decode_entry
from kokuban_server.records.provenance_codec import decode_origins
from kokuban_server.records.task_codec import decode_log

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from kokuban_server.app.access import OpenRegion
    from kokuban_server.core.entry import EntryRecord
    from kokuban_server.ports.board_store import BoardStore, Record

_PARTS: Final = (keys.TASK, keys.TASK_ACTION, keys.HEAD)
"""Of what a task consists, in the order of its lines. How it stands comes first, as it is restored last."""
_READ_AT_ONCE: Final = 200
_PLACE: Final = struct.Struct(">QBQQQQ32s")


class Place(NamedTuple):
    """How far a task has been written down."""

    revision: int
    """Of the state of which all lines are."""
    part: int = 0
    after: bytes = b""
    """What the last record's key says behind its region."""
    line: int = 0
    actions: int = 0
    events: int = 0
    entries: int = 0
    digest: str = BEGINNING
    """Of the last line."""

    def packed(self) -> bytes:
        """Give it as bytes."""
        counts = self.line, self.actions, self.events, self.entries
        return _PLACE.pack(self.revision, self.part, *counts, bytes.fromhex(self.digest)) + self.after


def read_place(raw: bytes) -> Place:
    """Undo `Place.packed`. Raises `PAGE_TOKEN_INVALID`."""
    try:
        revision, part, line, actions, events, entries, digest = _PLACE.unpack_from(raw)
    except struct.error:
        part = len(_PARTS)
    if part >= len(_PARTS):
        raise InvalidRequest("PAGE_TOKEN_INVALID", "page_token", "not a token of this export")
    return Place(revision, part, raw[_PLACE.size :], line, actions, events, entries, digest.hex())


class Written(NamedTuple):
    """A line, how far the task is written down with it, and what it is of."""

    text: str
    place: Place
    entry: EntryRecord | None
    """Nothing for a line that is of no entry."""


class ArchiveReading:
    """Writes tasks down."""

    def __init__(self, store: BoardStore) -> None:
        self._store = store

    async def lines(self, opened: OpenRegion, place: Place, deadline: float) -> AsyncGenerator[Written, None]:
        """Give the lines of a task behind a place. Raises `NotFound`, `ArchiveTooLarge`, `HistoryCompacted`."""
        origins: Mapping[bytes, Sequence[Record]] | None = None
        while place.part < len(_PARTS):
            prefix = _PARTS[place.part] + opened.prefix
            after = prefix + place.after if place.after else b""
            page = await self._store.scan(
                prefix, after, _READ_AT_ONCE, limits.PAGE_BYTES_MAX, Snapshot(place.revision), left_s(deadline)
            )
            if not page.records and not place.part:
                raise NotFound
            for record in page.records:
                entry = None
                if _PARTS[place.part] == keys.HEAD:
                    entry = decode_entry(record.key, record.value)
                    if origins is None and (has_origin(entry.label) or entry.label.extends_from):
                        origins = await self._origins(opened, place.revision, deadline)
                kind, body = await self._body(opened, record, place, origins or {}, deadline)
                text = _line(opened, place, kind, body, record)
                place = place._replace(
                    after=record.key[len(prefix) :],
                    line=place.line + 1,
                    actions=place.actions + (kind is LineKind.ACTION),
                    events=place.events + (kind is LineKind.EVENT),
                    entries=place.entries + (kind is LineKind.ENTRY),
                    digest=digest_of(text),
                )
                yield Written(text, place, entry)
            if not page.more:
                place = place._replace(part=place.part + 1, after=b"")
            await asyncio.sleep(0)  # others have their turn

    async def _body(
        self,
        opened: OpenRegion,
        record: Record,
        place: Place,
        origins: Mapping[bytes, Sequence[Record]],
        deadline: float,
    ) -> tuple[LineKind, dict[str, Any]]:
        """Give what a line says of a record."""
        part = _PARTS[place.part]
        names = keys.names_in(opened.prefix, record.key, part)
        if part == keys.TASK:
            log_key = keys.TASK_LOG + opened.prefix
            log = (await self._store.read([log_key], Snapshot(place.revision), left_s(deadline))).records[0]
            if log is None:
                raise StoreCorrupt(log_key, "a task without the end of its log")
            return LineKind.TASK, {"last_event": decode_log(log_key, log.value)}
        if part == keys.TASK_ACTION:
            return LineKind.ACTION, {"step": names[0], "action": names[1]}
        path = "/".join(names)
        body: dict[str, Any] = {"path": path}
        said = {  # once each, in an order of their own: after a restore the same may be recorded twice
            spelled(one): one
            for origin in origins.get(record.key, ())
            for one in spelled_origins(origin.key, origin.value, path, str(opened.region))
        }
        if said:
            body["origins"] = [said[text] for text in sorted(said)]
        return LineKind.EVENT if is_reserved(path) else LineKind.ENTRY, body

    async def _origins(self, opened: OpenRegion, revision: int, deadline: float) -> Mapping[bytes, Sequence[Record]]:
        """Give the records of where the states of the region's entries came from, by the entries' head keys."""
        found: dict[bytes, dict[bytes, Record]] = defaultdict(dict)
        board = keys.board_prefix(opened.board.tenant, opened.board.id)
        below = keys.HEAD + opened.prefix
        async for record in records_below(self._store, keys.ORIGIN + board, deadline, consistency=Snapshot(revision)):
            for origin in decode_origins(record.key, record.value, record.revision):
                if origin.head.startswith(below):
                    found[origin.head][record.key] = record
        return {head: list(records.values()) for head, records in found.items()}


def _line(opened: OpenRegion, place: Place, kind: LineKind, body: dict[str, Any], record: Record) -> str:
    """Give a line with the record in it: in a form that can be read, unless it would be too long."""
    said = {"record": spelled_record(kind, record.key, record.value)}
    text = write_line(place.line + 1, place.digest, kind, {**body, **said})
    if len(text.encode()) > limits.ARCHIVE_LINE_BYTES_MAX:
        text = write_line(place.line + 1, place.digest, kind, {**body, "packed": packed_record(record.value)})
    size = len(text.encode())
    if size > limits.ARCHIVE_LINE_BYTES_MAX:
        raise ArchiveTooLarge(opened.region.id, body.get("path", ""), limits.ARCHIVE_LINE_BYTES_MAX, size)
    return text
