"""The rows of the log: how a revision becomes an id, and how damage is seen."""

from __future__ import annotations

import struct
import zlib
from typing import Final, TypeAlias

from kokuban_server.core.refusals import StoreCorrupt
from kokuban_server.ports.board_store import Event, Record

_PLACE_BITS: Final = 20
ROWS_PER_REVISION_MAX: Final = 1 << _PLACE_BITS
"""How many keys one revision can change. A revision then has 43 bits: a thousand a second for 278 years."""

COLUMNS: Final = "id, key, create_revision, previous_id, lease, crc, value"
"""In the order of `Row`. The value is last, so that the rest is read without walking through a long value's pages."""

Row: TypeAlias = tuple[int, bytes, int, int, int | None, int, bytes | None]

_numbers = struct.Struct("<qqqq?").pack


def first_id(revision: int) -> int:
    """Give the id of the first row of a revision."""
    return revision << _PLACE_BITS


def last_id(revision: int) -> int:
    """Give the highest id that a row of this revision or an earlier one can have."""
    return ((revision + 1) << _PLACE_BITS) - 1


def revision_of(row_id: int) -> int:
    """Give the revision at which a row was written; 0 for no row."""
    return row_id >> _PLACE_BITS


def sealed(
    row_id: int, key: bytes, value: bytes | None, create_revision: int, previous_id: int, lease: int | None
) -> Row:
    """Give the row with its checksum."""
    numbers = _numbers(row_id, create_revision, previous_id, lease or 0, value is None)
    return (
        row_id,
        key,
        create_revision,
        previous_id,
        lease,
        zlib.crc32(value or b"", zlib.crc32(key, zlib.crc32(numbers))),
        value,
    )


def verify(row: Row) -> None:
    """Raise `StoreCorrupt` unless the row is as it was written."""
    row_id, key, create_revision, previous_id, lease, crc, value = row
    try:
        if crc == sealed(row_id, key, value, create_revision, previous_id, lease)[5]:
            return
    except (TypeError, struct.error) as error:  # a column came back as something it was never written as
        raise StoreCorrupt(b"", f"row {row_id} is not what was written") from error
    raise StoreCorrupt(key, f"row {row_id} is not what was written")


def record(row: Row) -> Record | None:
    """Give what the key holds by its latest row; nothing for a deletion."""
    verify(row)
    row_id, key, create_revision, _, lease, _, value = row
    return None if value is None else Record(key, value, row_id >> _PLACE_BITS, create_revision, lease)


def event(row: Row) -> Event:
    """Give the row as a change. It must have been verified, or just made."""
    row_id, key, create_revision, previous_id, _, _, value = row
    return Event(key, value, row_id >> _PLACE_BITS, create_revision, previous_id >> _PLACE_BITS)
