"""The store that settings name: opened, copied, restored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from kokuban_server.adapters.system import SystemClock
from kokuban_server.core.refusals import Refusal

if TYPE_CHECKING:
    from kokuban_server.adapters.etcd import EtcdSettings
    from kokuban_server.ports.board_store import BoardStore
    from kokuban_server.ports.clock import Clock
    from kokuban_server.settings import Settings


class StartError(Exception):
    """What was asked for on the command line cannot be done; the text says why, for the person who asked."""


def _place(settings: Settings) -> tuple[str, Path]:
    """Give the kind of store, and the folder of one that has a folder."""
    kind, _, rest = settings.store.partition(":")
    return kind, Path(rest).expanduser() if kind == "sqlite" else Path()


def _why(error: OSError | Refusal) -> str:
    """Give an error's text with the detail that clients are not told, for the person who asked on the command line."""
    detail = getattr(error, "detail", "")
    return f"{error}: {detail}" if detail else str(error)


def _refuse_existing(file: Path) -> None:
    if file.exists():
        raise StartError(f"{file} exists; a backup never overwrites")


# Adapters are imported only when they are asked for: the embedded server needs nothing of etcd's.


async def open_store(settings: Settings, clock: Clock) -> BoardStore:
    """Open the store. Raises `StartError`."""
    kind, folder = _place(settings)
    try:
        if kind == "memory":
            from kokuban_server.adapters.memory import MemoryStore  # noqa: PLC0415 - see above

            return MemoryStore(clock)
        if kind == "sqlite":
            return await _open_sqlite(folder, clock)
        return await _open_etcd(settings, clock)
    except (OSError, Refusal) as error:
        raise StartError(f"cannot open {settings.store}: {_why(error)}") from error


async def _open_sqlite(folder: Path, clock: Clock) -> BoardStore:
    from kokuban_server.adapters.sqlite import FolderRefused, SqliteStore  # noqa: PLC0415 - see above

    try:
        return await SqliteStore.open(folder, clock)
    except FolderRefused as error:
        raise StartError(str(error)) from error


async def _open_etcd(settings: Settings, clock: Clock) -> BoardStore:
    from kokuban_server.adapters.etcd import EtcdStore, SchemaTooNew  # noqa: PLC0415 - see above

    try:
        return await EtcdStore.open(_etcd_settings(settings), clock)
    except SchemaTooNew as error:
        raise StartError(str(error)) from error


def _etcd_settings(settings: Settings) -> EtcdSettings:
    from kokuban_server.adapters.etcd import EtcdSettings  # noqa: PLC0415 - see above

    given = settings.etcd
    try:
        return EtcdSettings.from_url(
            settings.store,
            ca_file=given.ca_file,
            cert_file=given.cert_file,
            key_file=given.key_file,
            server_name=given.server_name,
            user=given.user,
            password=given.password_file.read_text(encoding="utf-8").strip() if given.password_file else None,
        )
    except (ValueError, OSError) as error:
        raise StartError(f"{settings.store}: {error}") from error


async def backup(settings: Settings, file: Path) -> None:
    """Copy the store into a new file, also while a server works on it. Raises `StartError`."""
    kind, folder = _place(settings)
    _refuse_existing(file)
    try:
        if kind == "sqlite":
            await _backup_sqlite(folder, file)
        elif kind == "etcd":
            from kokuban_server.adapters import etcd  # noqa: PLC0415 - see above

            await etcd.snapshot(_etcd_settings(settings), file)
        else:
            raise StartError("a store in memory cannot be backed up")
    except (OSError, Refusal) as error:
        raise StartError(f"cannot back up {settings.store}: {_why(error)}") from error


async def _backup_sqlite(folder: Path, file: Path) -> None:
    from kokuban_server.adapters.sqlite import CopyRefused, FolderRefused, backup  # noqa: PLC0415 - see above

    try:
        await asyncio.to_thread(backup, folder, file)
    except (CopyRefused, FolderRefused) as error:
        raise StartError(str(error)) from error


async def restore(settings: Settings, file: Path | None) -> str:
    """Make a store of a backup, or begin a new epoch in a restored etcd; give the epoch. Raises `StartError`."""
    kind, folder = _place(settings)
    try:
        if kind == "sqlite":
            if file is None:
                raise StartError("name the backup to restore")
            return await _restore_sqlite(file, folder)
        if kind == "etcd":
            from kokuban_server.adapters import etcd  # noqa: PLC0415 - see above

            if file is not None:
                raise StartError("restore the snapshot with etcd's own tools, then run this without a file")
            return await etcd.new_epoch(_etcd_settings(settings))
    except (OSError, Refusal) as error:
        source = f" from {file}" if file is not None else ""
        raise StartError(f"cannot restore {settings.store}{source}: {_why(error)}") from error
    raise StartError("a store in memory cannot be restored")


async def _restore_sqlite(file: Path, folder: Path) -> str:
    from kokuban_server.adapters.sqlite import CopyRefused, FolderRefused, restore  # noqa: PLC0415 - see above

    try:
        await asyncio.to_thread(restore, file, folder)
    except (CopyRefused, FolderRefused) as error:
        raise StartError(str(error)) from error
    store = await _open_sqlite(folder, SystemClock())
    await store.close()
    return store.epoch
