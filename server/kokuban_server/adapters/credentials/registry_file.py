"""The registry in a file: followed by servers, changed by commands."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kokuban_server.adapters.credentials.registry import (
    Entry,
    Registry,
    RegistryRefused,
    checked,
    parse_registry,
    render_registry,
)
from kokuban_server.adapters.files import WatchedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kokuban_server.ports.clock import Clock

FILE_BYTES_MAX: Final = 64 * 1024 * 1024


class RegistryFile(Registry):
    """The entries of a file. A newer file that cannot be used leaves the older entries in force, and is reported once."""

    def __init__(self, path: Path, clock: Clock, report: Callable[[str], None]) -> None:
        """Read the file. Raises `RegistryRefused`."""
        self._file = WatchedFile(path, FILE_BYTES_MAX)
        self._report = report
        self._fault = ""
        super().__init__(self._read_if_changed() or (), clock)

    async def refresh(self) -> None:
        """Read the file again if it has changed."""
        try:
            entries = await asyncio.to_thread(self._read_if_changed)
        except RegistryRefused as refused:
            if str(refused) != self._fault:
                self._fault = str(refused)
                self._report(f"{refused}; what it said before stays in force")
            return
        if entries is not None:
            self._fault = ""
            self.replace(entries)

    def _read_if_changed(self) -> tuple[Entry, ...] | None:
        try:
            content = self._file.read_if_changed()
        except OSError as error:
            raise _unreadable(self._file.path, error) from None
        return None if content is None else _parse(self._file.path, content)


def read_entries(path: Path) -> tuple[Entry, ...]:
    """Give the entries of a file. Raises `RegistryRefused`."""
    try:
        return _parse(path, path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from None


def edit(path: Path, change: Callable[[tuple[Entry, ...]], Iterable[Entry]], *, may_make: bool = False) -> None:
    """Change a file's entries in one step: whoever reads it sees the old or the new ones. Raises `RegistryRefused`.

    Edits take turns, so that none is lost. A new file is its owner's alone; an old one keeps its owner and mode, or the
    server that it belongs to could not read it any more.
    """
    path = path.resolve()  # what a link points to is changed, not the link
    try:
        with _turn(path.parent):
            is_new = may_make and not path.exists()
            entries = () if is_new else read_entries(path)
            try:
                content = render_registry(checked(change(entries)))
            except RegistryRefused as refused:
                raise RegistryRefused(f"{path}: {refused}") from None
            parse_registry(content)  # nothing is written that a server would refuse
            _write(path, content.encode(), None if is_new else path.stat())
    except OSError as error:
        raise RegistryRefused(f"{path} cannot be written: {error.strerror or error}") from None


def _write(path: Path, content: bytes, before: os.stat_result | None) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            if before is not None:
                if (before.st_uid, before.st_gid) != (os.getuid(), os.getgid()):
                    os.fchown(handle, before.st_uid, before.st_gid)
                os.fchmod(handle, before.st_mode & 0o777)
            file.write(content)
            file.flush()
            os.fsync(handle)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Keep other edits in the folder waiting. The lock is the folder's own and leaves nothing behind."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _parse(path: Path, content: bytes) -> tuple[Entry, ...]:
    try:
        return parse_registry(content.decode())
    except UnicodeDecodeError:
        raise RegistryRefused(f"{path}: is not UTF-8") from None
    except RegistryRefused as refused:
        raise RegistryRefused(f"{path}: {refused}") from None


def _unreadable(path: Path, error: OSError) -> RegistryRefused:
    return RegistryRefused(f"{path} cannot be read: {error.strerror or error}")
