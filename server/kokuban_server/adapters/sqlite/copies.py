"""Backup and restore: a store's file copied while it is in use, and a copy made a store again."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from kokuban_server.adapters.sqlite import queries
from kokuban_server.adapters.sqlite.database import (
    DATABASE_FILE,
    RESTORING_FILE,
    State,
    check_version,
    new_epoch,
    open_reader,
)
from kokuban_server.adapters.sqlite.faults import translated
from kokuban_server.adapters.sqlite.ownership import LOCK_FILE, Ownership
from kokuban_server.adapters.sqlite.rows import COLUMNS, first_id, sealed, verify
from kokuban_server.core.refusals import StoreCorrupt


class CopyRefused(Exception):  # noqa: N818 - an answer for the person who asked
    """The backup or the restore would overwrite something, or there is nothing to copy."""


def backup(folder: Path | str, target: Path | str) -> int:
    """Copy the store in a folder into one new file, consistently, also while a server works on it; give its revision.

    Blocks until the copy is on disk; run it in a thread or a process of its own. Raises `CopyRefused` if the target is
    there, or the folder holds no store; `StoreCorrupt` if the store is damaged: a copy is checked before it gets its name.
    """
    source = Path(folder).resolve() / DATABASE_FILE
    file = Path(target).resolve()
    if not source.exists():
        raise CopyRefused(f"{folder} holds no store")
    if file.exists():
        raise CopyRefused(f"{file} exists; a backup never overwrites")
    unfinished = file.with_name(file.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        with translated():
            _copy(source, unfinished)
            revision = _verify(unfinished)
        _sync(unfinished)
        try:
            os.link(unfinished, file)  # unlike a renaming, it fails where something is
        except FileExistsError:
            raise CopyRefused(f"{file} exists; a backup never overwrites") from None
    finally:
        unfinished.unlink(missing_ok=True)
    _sync(file.parent)
    return revision


def restore(source: Path | str, folder: Path | str) -> int:
    """Make a store of a backup, in a folder that is empty or not there; give its revision.

    The store begins a new life: it has another epoch, so tokens of the old one are refused, and no leases: what hung on
    them is removed. Blocks. Raises `CopyRefused` if the folder is not empty, `FolderRefused` or `StoreCorrupt` if the file
    is not a sound store of this version. Nothing is installed then.
    """
    backup_file = Path(source).resolve()
    into = Path(folder).resolve()
    if not backup_file.is_file():
        raise CopyRefused(f"{backup_file} is not there")
    if into.exists() and any(entry.name != LOCK_FILE for entry in into.iterdir()):
        raise CopyRefused(f"{into} is not empty; a restore never overwrites")
    ownership = Ownership(into)
    unfinished = into / RESTORING_FILE
    try:
        # Whoever came in between the look and the lock has left a trace.
        if {entry.name for entry in into.iterdir()} != {LOCK_FILE}:
            raise CopyRefused(f"{into} is not empty; a restore never overwrites")
        with translated():
            _copy(backup_file, unfinished)
            _verify(unfinished)
            revision = _begin_anew(unfinished)
        _sync(unfinished)
        unfinished.rename(into / DATABASE_FILE)
        _sync(into)
    finally:
        unfinished.unlink(missing_ok=True)
        ownership.release()
    return revision


def _copy(source: Path, target: Path) -> None:
    """Copy a database into a file that stands alone, without a log beside it."""
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(open_reader(source)) as reading, closing(sqlite3.connect(target, isolation_level=None)) as writing:
        check_version(reading, source)
        reading.backup(writing, pages=-1)  # in one transaction: a server that writes meanwhile is not waited for
        writing.execute("PRAGMA journal_mode = DELETE")


def _verify(file: Path) -> int:
    """Raise `StoreCorrupt` unless every page and every row of a copy is sound; give its revision."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        check_version(connection, file)
        (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if answer != "ok":
            raise StoreCorrupt(b"", answer)
        for row in connection.execute(f"SELECT {COLUMNS} FROM log"):  # noqa: S608 - put together from constants
            verify(row)
        return State.read(connection).revision


def _begin_anew(file: Path) -> int:
    """Give a copy another epoch and remove what hung on leases; give the revision it then has."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        state = State.read(connection)
        revision = state.revision + 1
        attached = [
            key_and_id
            for (lease,) in connection.execute("SELECT DISTINCT lease FROM log WHERE lease IS NOT NULL").fetchall()
            for key_and_id in queries.keys_of_lease(connection, lease)
        ]
        rows = [
            sealed(first_id(revision) + place, key, None, 0, row_id, None)
            for place, (key, row_id) in enumerate(attached)
        ]
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        connection.execute("DELETE FROM lease")
        state._replace(epoch=new_epoch(), revision=revision).write(connection)
        connection.execute("COMMIT")
    return revision


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
