"""The registry in a file: followed by servers, changed by commands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from kokuban_server.adapters.credentials.registry import (
    Entry,
    Registry,
    RegistryRefused,
    checked,
    parse_registry,
    render_registry,
)
from kokuban_server.adapters.files import Rereading, WatchedFile, edit_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from kokuban_server.ports.clock import Clock

FILE_BYTES_MAX: Final = 64 * 1024 * 1024


class RegistryFile(Registry):
    """The entries of a file. A newer file that cannot be used leaves the older entries in force, and is reported once."""

    def __init__(self, path: Path, clock: Clock, report: Callable[[str], None]) -> None:
        """Read the file. Raises `RegistryRefused`."""
        self._file = WatchedFile(path, FILE_BYTES_MAX)
        self._rereading = Rereading(
            lambda: asyncio.to_thread(self._read_if_changed),
            RegistryRefused,
            lambda fault: report(f"{fault}; what it said before stays in force"),
        )
        super().__init__(self._read_if_changed() or (), clock)

    async def refresh(self) -> None:
        """Read the file again if it has changed."""
        entries = await self._rereading.read()
        if entries is not None:
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
    """Change a file's entries as `edit_file` does. Raises `RegistryRefused`."""

    def changed(content: bytes | None) -> bytes:
        if content is None and not may_make:
            raise RegistryRefused(f"{path} cannot be read: there is no such file")
        entries = () if content is None else _parse(path, content)
        try:
            rendered = render_registry(checked(change(entries)))
        except RegistryRefused as refused:
            raise RegistryRefused(f"{path}: {refused}") from None
        parse_registry(rendered)  # nothing is written that a server would refuse
        return rendered.encode()

    try:
        edit_file(path, changed)
    except OSError as error:
        raise RegistryRefused(f"{path} cannot be changed: {error.strerror or error}") from None


def _parse(path: Path, content: bytes) -> tuple[Entry, ...]:
    try:
        return parse_registry(content.decode())
    except UnicodeDecodeError:
        raise RegistryRefused(f"{path}: is not UTF-8") from None
    except RegistryRefused as refused:
        raise RegistryRefused(f"{path}: {refused}") from None


def _unreadable(path: Path, error: OSError) -> RegistryRefused:
    return RegistryRefused(f"{path} cannot be read: {error.strerror or error}")
