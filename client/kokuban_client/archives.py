"""Archives of tasks in files: written line by line, verified when they are read, and given back from their last line on."""

from __future__ import annotations

import hashlib
import json
import os
from typing import IO, TYPE_CHECKING, Any

from kokuban_client.errors import ArchiveInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

_FORMAT = "kokuban.task-archive/1"
_BEGINNING = "0" * 64
_PART_BYTES_MAX = 512 * 1024
_PART_LINES_MAX = 1_000


class TaskArchive:
    """A task's archive in a file, verified: each line is the one that the next says is before it, up to the manifest.

    Raises ArchiveInvalid, with the number of the first line that is not.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts: list[int] = []
        digest, last, start = _BEGINNING, b"", 0
        with path.open("rb") as file:
            for line in file:
                if self._starts:
                    self._verify(last, len(self._starts), digest)
                    digest = hashlib.sha256(last.removesuffix(b"\n")).hexdigest()
                self._starts.append(start)
                start += len(line)
                last = line
        manifest = _parsed(last, len(self._starts))
        if manifest.get("kind") != "manifest":
            raise _invalid(len(self._starts), "the manifest is missing: the file was cut")
        if manifest.get("format") != _FORMAT:
            raise _invalid(len(self._starts), "a format that this library does not know")
        self._starts.pop()
        self.manifest: dict[str, Any] = manifest
        if (manifest.get("lines"), manifest.get("digest")) != (len(self._starts), digest):
            raise _invalid(len(self._starts), "the last line is not that of the manifest")

    def _verify(self, line: bytes, number: int, previous: str) -> None:
        said = _parsed(line, number)
        if said.get("line") != number:
            raise _invalid(number, "stands where another line should")
        if said.get("previous") != previous:
            raise _invalid(max(1, number - 1), "is not the one that the next line says is before it")

    @property
    def task(self) -> str:
        """The task's id."""
        return str(self.manifest.get("task", ""))

    @property
    def board(self) -> str:
        """The board's id."""
        return str(self.manifest.get("board", ""))

    @property
    def digest(self) -> str:
        """What stands for all lines."""
        return str(self.manifest["digest"])

    @property
    def lines(self) -> int:
        """How many there are, without the manifest."""
        return len(self._starts)

    def backwards(self, number: int) -> Iterator[list[str]]:
        """Give the lines from a number down to the first, so many at once as fit a request."""
        part: list[str] = []
        size = 0
        with self._path.open("rb") as file:
            for start in reversed(self._starts[:number]):
                file.seek(start)
                line = file.readline().removesuffix(b"\n")
                if part and (size + len(line) > _PART_BYTES_MAX or len(part) >= _PART_LINES_MAX):
                    yield part
                    part, size = [], 0
                part.append(line.decode())
                size += len(line)
        if part:
            yield part


class NewArchive:
    """A file that an archive is written to: there under its name, on disk, once all of it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        self._file = self._part.open("wb")
        return self

    def write(self, line: str) -> None:
        """Write a line."""
        assert self._file is not None  # noqa: S101 - for the type checker: inside `with`
        self._file.write(line.encode() + b"\n")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None  # noqa: S101 - as above
        with self._file:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
        if kind is not None:
            self._part.unlink()
            return
        self._part.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # what is removed next must not be in a file whose name is lost
        finally:
            os.close(folder)


def _parsed(line: bytes, number: int) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise _invalid(number, "is no line of an archive")
    return said


def _invalid(number: int, words: str) -> ArchiveInvalid:
    return ArchiveInvalid(words, facts={"line": str(number)})
