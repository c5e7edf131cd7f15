"""A file that others change: read again when it is another one or was written."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SETTLED_NS = 2_000_000_000


class WatchedFile:
    """One file, followed by what the file system says of it."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._seen: tuple[int, ...] = ()

    def read_if_changed(self) -> bytes | None:
        """Give the content if it may be another than last time, else nothing. Raises OSError."""
        if self._state(self.path.stat()) == self._seen:
            return None
        with self.path.open("rb") as file:
            # Of the open file: what stands at the path may be another one by now, which the next look then finds.
            found = os.fstat(file.fileno())
            content = file.read(self._bytes_max + 1)
        # A file that is being written may change once more within one tick of the file system's clock, and look the same.
        is_settled = abs(time.time_ns() - found.st_mtime_ns) > _SETTLED_NS
        self._seen = self._state(found) if is_settled else ()
        if len(content) > self._bytes_max:
            raise OSError(f"has more than {self._bytes_max} bytes")
        return content

    @staticmethod
    def _state(found: os.stat_result) -> tuple[int, ...]:
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
