"""SQLite's own errors end here."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kokuban_server.core.refusals import Refusal, StoreCorrupt, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

_PRIMARY = 0xFF
"""The part of an error code that says its kind."""

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_MISMATCH})


def refusal(error: sqlite3.Error) -> Refusal:
    """Give the refusal that an error of the driver means. None of it changed anything."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY
    if code == sqlite3.SQLITE_FULL:
        return StoreFull()
    if code in _DAMAGED:
        return StoreCorrupt(b"", str(error))
    return StoreUnavailable(str(error))


@contextmanager
def translated() -> Iterator[None]:
    """Raise the driver's errors as refusals."""
    try:
        yield
    except sqlite3.Error as error:
        raise refusal(error) from error
