"""Which files a run reviews: those that are named, or some packages of Python's own library."""

from __future__ import annotations

import os
import sysconfig
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kokuban_client.demo.review import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FILES_MAX = 2_000

_LIBRARY_PACKAGES = (
    "asyncio",
    "collections",
    "concurrent",
    "dbm",
    "email",
    "html",
    "http",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "re",
    "sqlite3",
    "tomllib",
    "unittest",
    "urllib",
    "wsgiref",
    "xml",
    "xmlrpc",
    "zoneinfo",
)
_LABEL_BYTES_MAX = 900  # the board takes paths of 1,024 bytes and 16 segments
_LABEL_SEGMENTS_MAX = 14


class NothingToReviewError(Exception):
    """The paths name nothing that can be reviewed, or too much. The message says what to do."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to review: what it is called on the board, where it is, and the state it was in when it was planned."""

    label: str
    path: Path
    sha256: str
    size_bytes: int


def choose(paths: Sequence[Path]) -> tuple[SourceFile, ...]:
    """Give the files to review, each once; raises NothingToReviewError."""
    roots = list(paths) or _library()
    files: dict[Path, SourceFile] = {}
    labels: set[str] = set()
    for root in roots:
        found = False
        for path, label in _python_files(root):
            found = True
            resolved = path.resolve()
            if resolved in files:
                continue
            if len(files) >= FILES_MAX:
                raise NothingToReviewError(f"there are more than {FILES_MAX:,} Python files: name smaller folders")
            name = _free(_board_name(label, len(files)), labels)
            labels.add(name)
            files[resolved] = _planned(name, resolved)
        if not found:
            raise NothingToReviewError(f"no Python file in {root}")
    if not files:
        raise NothingToReviewError("Python's own library is not here as files: name a folder of Python code")
    return tuple(files.values())


def _library() -> list[Path]:
    home = Path(sysconfig.get_path("stdlib"))
    return [home / name for name in _LIBRARY_PACKAGES if (home / name).is_dir()]


def _python_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Give the files at or below a path, each with a name. A file that is named itself is believed to be Python."""
    if root.is_file():
        yield root, root.name
        return
    if not root.is_dir():
        raise NothingToReviewError(f"there is no {root}")
    above = root.resolve().name
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(".py") and path.is_file():
                yield path, "/".join((above, *path.relative_to(root).parts)).lstrip("/")


def _planned(label: str, path: Path) -> SourceFile:
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise NothingToReviewError(f"a file's name is not text, and cannot stand on a board: {path!r}") from error
    try:
        data = path.read_bytes()
    except OSError:  # the review will say so
        return SourceFile(label, path, "", 0)
    return SourceFile(label, path, digest(data), len(data))


def _board_name(label: str, number: int) -> str:
    """Give the name as a path that the board takes: as it is, or a number where it is too long, too deep, or unprintable."""
    plain = unicodedata.normalize("NFC", label)
    fits = len(plain.encode("utf-8", "replace")) <= _LABEL_BYTES_MAX and plain.count("/") < _LABEL_SEGMENTS_MAX
    return plain if fits and plain.isprintable() else f"file-{number}.py"


def _free(name: str, taken: Iterable[str]) -> str:
    """Give the name, or with a number before it where it is taken or would be lie below or above another."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{number}~{name}"
    return free
