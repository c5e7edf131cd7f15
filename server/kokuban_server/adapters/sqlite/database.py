"""The database file: its form, its connections, and whether it is sound."""

from __future__ import annotations

import os
import secrets
import sqlite3
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.adapters.sqlite.ownership import FolderRefused
from kokuban_server.adapters.sqlite.rows import revision_of
from kokuban_server.core.refusals import StoreCorrupt
from kokuban_server.core.revision import is_epoch

if TYPE_CHECKING:
    from pathlib import Path

DATABASE_FILE: Final = "kokuban.db"
RESTORING_FILE: Final = "kokuban.db.restoring"

APPLICATION_ID: Final = 0x4B4B424E
SCHEMA_VERSION: Final = 1
SQLITE_VERSION_MIN: Final = (3, 37, 0)  # STRICT tables

CHECKED_WHOLE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Up to here a start compares every index with its table; it takes about a second."""
CHECKED_QUICKLY_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Up to here a start looks at every page. Beyond, damage is found where it is read: every row has a checksum."""

_CHECKPOINT_PAGES: Final = 2_000
_WAL_BYTES_KEPT_MAX: Final = 64 * 1024 * 1024
_STATEMENTS_CACHED: Final = 64
_CACHE_KIB: Final = 64 * 1024

_SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE log (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    create_revision INTEGER NOT NULL,
    previous_id INTEGER NOT NULL,
    lease INTEGER,
    crc INTEGER NOT NULL,
    value BLOB
) STRICT;
CREATE INDEX log_by_key ON log (key, id, create_revision);
CREATE INDEX log_by_lease ON log (lease) WHERE lease IS NOT NULL;
CREATE TABLE lease (id INTEGER PRIMARY KEY, ttl_ms INTEGER NOT NULL) STRICT;
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch TEXT NOT NULL,
    revision INTEGER NOT NULL,
    store_time_ms INTEGER NOT NULL,
    compacted_revision INTEGER NOT NULL,
    walked_id INTEGER NOT NULL,
    crc INTEGER NOT NULL
) STRICT;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""


class State(NamedTuple):
    """What the store knows of itself. Written in the transaction of whatever changes it."""

    epoch: str
    revision: int
    store_time_ms: int
    compacted_revision: int
    walked_id: int
    """Up to which row compaction has removed what was superseded."""

    def write(self, connection: sqlite3.Connection) -> None:
        """Store it inside the transaction that is open."""
        connection.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?, ?, ?, ?, ?)", (*self, self._crc()))

    def _crc(self) -> int:
        return zlib.crc32(repr(tuple(self)).encode())

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> State:
        """Read it, or raise `StoreCorrupt`."""
        row = connection.execute(
            "SELECT epoch, revision, store_time_ms, compacted_revision, walked_id, crc FROM state"
        ).fetchone()
        if row is None:
            raise StoreCorrupt(b"", "the store's own record is missing")
        state = cls(*row[:5])
        if row[5] != state._crc() or not is_epoch(state.epoch):
            raise StoreCorrupt(b"", "the store's own record is not what was written")
        (highest,) = connection.execute("SELECT coalesce(max(id), 0) FROM log").fetchone()
        if revision_of(highest) > state.revision:
            raise StoreCorrupt(b"", "the log is ahead of the store's own record")
        return state


def new_epoch() -> str:
    """Give a name for a new life of the store."""
    return secrets.token_hex(8)


def open_writer(file: Path) -> sqlite3.Connection:
    """Open the one connection that writes and checkpoints; make the file if it is not there."""
    if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
        raise FolderRefused(f"SQLite {sqlite3.sqlite_version} is too old; 3.37 or newer is needed")
    os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its other files the mode of this one
    connection = _connect(file.as_uri() + "?mode=rw")
    try:
        version = _version(connection, file)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # What is removed is gone from the file too, whatever SQLite was built with: a receipt for an erasure says so.
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_KEPT_MAX}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        if version == 0:
            connection.executescript(_SCHEMA)
            State(new_epoch(), 0, 0, 0, 0).write(connection)
            connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(file: Path) -> sqlite3.Connection:
    """Open a connection that never writes, nor checkpoints when it closes."""
    connection = _connect(file.as_uri() + "?mode=ro")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    return connection


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(
        uri,
        uri=True,
        isolation_level=None,
        cached_statements=_STATEMENTS_CACHED,
        check_same_thread=False,  # the writer commits in a thread of its own, one user at a time
        timeout=5.0,
    )


def _version(connection: sqlite3.Connection, file: Path) -> int:
    """Give the schema's version, 0 for an empty file. Raises `FolderRefused` for what is not ours to read."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if (application, version, tables) == (0, 0, 0):
        return 0
    if application != APPLICATION_ID:
        raise FolderRefused(f"{file} is a database of another program")
    if version != SCHEMA_VERSION:
        raise FolderRefused(
            f"{file} has format {version}, and this server reads format {SCHEMA_VERSION}; "
            f"use the server that wrote it, or restore a backup that this one wrote"
        )
    return SCHEMA_VERSION


def check_version(connection: sqlite3.Connection, file: Path) -> None:
    """Raise `FolderRefused` unless the file is a store of this version."""
    if _version(connection, file) == 0:
        raise FolderRefused(f"{file} holds no store")


def check(connection: sqlite3.Connection, size_bytes: int) -> None:
    """Raise `StoreCorrupt` if the file is seen to be damaged: as thoroughly as its size lets a start wait for."""
    if size_bytes <= CHECKED_WHOLE_BYTES_MAX:
        pragma = "integrity_check"
    elif size_bytes <= CHECKED_QUICKLY_BYTES_MAX:
        pragma = "quick_check"
    else:
        return
    (answer,) = connection.execute(f"PRAGMA {pragma}(1)").fetchone()
    if answer != "ok":
        raise StoreCorrupt(b"", answer)
