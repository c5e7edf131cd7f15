"""A file that servers follow, changed in one step."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TURN_S: Final = 30.0
"""For how long an edit waits for those before it, which take milliseconds each."""
_ASK_AGAIN_S: Final = 0.01


def edit_file(path: Path, change: Callable[[bytes | None], bytes], wait_s: float = TURN_S) -> None:
    """Put what `change` makes of a file's content in its place, in one step: whoever reads it sees the old or the new.

    `change` is given nothing where there is no file; what it raises leaves all as it was. Edits of files in one folder take
    turns, so that none is lost. A new file is its owner's alone; an old one keeps its owner and mode, or the server that it
    belongs to could not read it any more. Raises OSError, and `TimeoutError`, which is one, where the others take too long.
    """
    path = path.resolve()  # what a link points to is changed, not the link
    with _turn(path.parent, wait_s) as folder:
        before, known = _read(path)
        _replace(path, change(known), before)
        os.fsync(folder)  # or the old file could be back after a crash


@contextlib.contextmanager
def _turn(folder: Path, wait_s: float) -> Iterator[int]:
    """Give the folder, locked: its own lock leaves nothing behind, however an edit ends."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        give_up_s = time.monotonic() + wait_s
        while not _locked(handle):
            if time.monotonic() >= give_up_s:
                raise TimeoutError("is being changed by somebody else")
            time.sleep(_ASK_AGAIN_S)  # noqa: TID251 - waiting inside flock has no bound
        yield handle
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> tuple[os.stat_result | None, bytes | None]:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()), file.read()
    except FileNotFoundError:
        return None, None


def _replace(path: Path, content: bytes, before: os.stat_result | None) -> None:
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
