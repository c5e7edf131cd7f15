"""The questions asked of the log. A revision bounds every one of them, so an answer is a consistent cut by itself.

What was written later, or is being written, has higher ids and is not seen; what compaction removes was superseded at the
floor or before, and nobody may ask below the floor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kokuban_server.adapters.sqlite.rows import COLUMNS, Row, last_id, record, verify
from kokuban_server.core.keys import prefix_end
from kokuban_server.core.refusals import StoreCorrupt

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Generator, Sequence

    from kokuban_server.ports.board_store import Record

_HEAD: Final = "SELECT id, create_revision FROM log WHERE key = ? ORDER BY id DESC LIMIT 1"

_ROW_AT: Final = f"SELECT {COLUMNS} FROM log WHERE key = ? AND id <= ? ORDER BY id DESC LIMIT 1"  # noqa: S608 - put together from constants

_ROWS_AFTER: Final = f"SELECT {COLUMNS} FROM log WHERE id > ? AND id <= ? ORDER BY id"  # noqa: S608 - put together from constants


def _keys(end: str) -> str:
    """Give the keys from a bound on, one after the other, by a seek for each: however many versions a key has."""
    return f"""
        WITH RECURSIVE each(key) AS (
            SELECT (SELECT key FROM log WHERE key >= :start {end} ORDER BY key LIMIT 1)
            UNION ALL
            SELECT (SELECT key FROM log WHERE key > each.key {end} ORDER BY key LIMIT 1) FROM each WHERE each.key IS NOT NULL
        )
    """  # noqa: S608 - put together from constants


def _with_end(query: str) -> tuple[str, str]:
    """Give the query for a range without an end, and for one with: no bound is above all blobs, so two are needed."""
    return _keys("") + query, _keys("AND key < :end") + query


_ROWS_BETWEEN: Final = _with_end(
    f"""
    SELECT each.key, {", ".join(f"log.{column}" for column in COLUMNS.split(", "))}
    FROM each LEFT JOIN log ON log.id = (SELECT max(id) FROM log WHERE log.key = each.key AND log.id <= :highest)
    WHERE each.key IS NOT NULL
    LIMIT :limit
    """  # noqa: S608 - put together from constants
)

# CROSS JOIN keeps SQLite from making the list of all keys first.
_HEADS_BETWEEN: Final = _with_end(
    """
    SELECT each.key, log.id, log.create_revision
    FROM each CROSS JOIN log INDEXED BY log_by_key
        ON log.key = each.key AND log.id = (SELECT max(id) FROM log WHERE log.key = each.key)
    LIMIT :limit
    """
)


def head(connection: sqlite3.Connection, key: bytes) -> tuple[int, int]:
    """Give the id of a key's latest row, or 0, and its create revision, 0 if the key holds nothing."""
    return connection.execute(_HEAD, (key,)).fetchone() or (0, 0)


def heads_between(connection: sqlite3.Connection, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, int, int]]:
    """Give the first keys from `start` up to and without `end` (empty: none) with their heads, as `head` gives them."""
    query = _HEADS_BETWEEN[bool(end)]
    return connection.execute(query, {"start": start, "end": end, "limit": limit}).fetchall()


def record_at(connection: sqlite3.Connection, key: bytes, highest_id: int) -> Record | None:
    """Give what a key held when this was the highest id. Raises `StoreCorrupt` for what cannot be read."""
    row: Row | None = connection.execute(_ROW_AT, (key, highest_id)).fetchone()
    if row is None:
        return None
    if row[1] != key:
        raise StoreCorrupt(key, f"row {row[0]} is of another key than its index says")
    return record(row)


def records_below(
    connection: sqlite3.Connection, prefix: bytes, after: bytes, revision: int, visit_max: int
) -> Generator[tuple[bytes, Record | None], None, None]:
    """Give up to `visit_max` keys of a prefix behind a key, with what they held at a revision: often nothing.

    The reading ends when the iterator is closed; it must not be left open.
    """
    bounds = {
        "start": max(prefix, after + b"\0") if after else prefix,
        "end": prefix_end(prefix),
        "highest": last_id(revision),
        "limit": visit_max,
    }
    cursor = connection.execute(_ROWS_BETWEEN[bool(bounds["end"])], bounds)
    try:
        for key, *columns in cursor:
            if columns[0] is None:
                yield key, None
            elif columns[1] != key:
                raise StoreCorrupt(key, f"row {columns[0]} is of another key than its index says")
            else:
                row: Row = tuple(columns)
                yield key, record(row)
    finally:
        cursor.close()


def rows_after(connection: sqlite3.Connection, after_id: int, revision: int) -> Generator[Row, None, None]:
    """Give the rows behind an id up to a revision, in order. The iterator must not be left open."""
    cursor = connection.execute(_ROWS_AFTER, (after_id, last_id(revision)))
    try:
        row: Row
        for row in cursor:
            verify(row)
            yield row
    finally:
        cursor.close()


def keys_of_lease(connection: sqlite3.Connection, lease: int) -> list[tuple[bytes, int]]:
    """Give the keys that hang on a lease now, with the ids of their heads."""
    rows: Sequence[tuple[bytes, int]] = connection.execute(
        "SELECT key, id FROM log WHERE lease = ?", (lease,)
    ).fetchall()
    return [(key, row_id) for key, row_id in rows if head(connection, key)[0] == row_id]
