"""Room on the disk that is set aside, so that a full disk still takes deletes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

BALLAST_FILE: Final = "ballast"
_BYTES: Final = 16 * 1024 * 1024
"""Enough to take the write-ahead log into the file once more, which the log's own room then follows: it is checkpointed
from 8 MiB on, so on a full disk it holds that and the last batches."""
_RETRY_S: Final = 1.0


class Ballast:
    """A file of some megabytes that is thrown off when the disk is full, and taken in again when there is room.

    It is there while the store is open, and after a crash; a store that was closed takes no more than its data.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / BALLAST_FILE
        self._tried_at = 0.0
        self.held = False
        """While it is not, the store is taken to be full."""
        self.take_in()

    def recovered(self) -> bool:
        """Say whether it is held, trying now and then to take it in again."""
        if not self.held and time.monotonic() - self._tried_at >= _RETRY_S:
            self.take_in()
        return self.held

    def throw_off(self) -> None:
        """Make room."""
        self.held = False
        self._tried_at = time.monotonic()
        self._file.unlink(missing_ok=True)

    def take_in(self) -> None:
        """Set the room aside if it is there."""
        self._tried_at = time.monotonic()
        try:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, _BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            self._file.unlink(missing_ok=True)
        else:
            self.held = True
