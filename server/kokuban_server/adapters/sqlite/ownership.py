"""One process owns a store's folder for as long as it lives."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LOCK_FILE = "lock"


class FolderRefused(Exception):  # noqa: N818 - an answer for the person who starts the server
    """The folder cannot be used as a store; the text says why and what to do."""


class StoreInUse(FolderRefused):
    """Another process works on the folder."""

    def __init__(self, folder: Path, owner: str) -> None:
        who = f"process {owner}" if owner else "another process"
        super().__init__(f"the store in {folder} is in use by {who}; a folder belongs to one server at a time")
        self.folder = folder
        self.owner = owner


class Ownership:
    """The exclusive right to a folder, held through a locked file. The system ends it with the process, however that ends.

    The file stays when the right is given back: removing it would let two processes lock two files of one name.
    """

    def __init__(self, folder: Path) -> None:
        """Take the folder, which is made if it is not there. Raises `StoreInUse`, or `FolderRefused` if it cannot be made."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FolderRefused(f"the folder {folder} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._file, 32).decode("ascii", "replace").strip()
            os.close(self._file)
            raise StoreInUse(folder, owner) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Give the folder back. Twice is nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
