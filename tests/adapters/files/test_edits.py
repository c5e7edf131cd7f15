"""A file is changed in one step, one edit after another, and stays whose it was."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from kokuban_server.adapters.files import edit_file


def one_more(line: bytes, content: bytes | None) -> bytes:
    return (content or b"") + line + b"\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"first\n")
    return path


def test_a_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new"
    given: list[bytes | None] = []

    def change(content: bytes | None) -> bytes:
        given.append(content)
        return b"text"

    edit_file(path, change)
    edit_file(path, change)
    assert given == [None, b"text"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_edit_is_one_step_and_keeps_mode_and_link(path: Path) -> None:
    path.chmod(0o640)
    link = path.with_name("link")
    link.symlink_to(path.name)
    before = path.stat().st_ino
    with path.open("rb") as opened:
        edit_file(link, lambda content: one_more(b"second", content))
        assert opened.read() == b"first\n"  # who has begun to read reads the old one to its end
    assert path.read_bytes() == b"first\nsecond\n"
    assert link.is_symlink()
    assert path.stat().st_ino != before
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_an_edit_that_fails_changes_nothing_and_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: bytes | None) -> bytes:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        edit_file(path, refuses)

    def fails(_: object, __: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="No space left"):
        edit_file(path, lambda _: b"second")
    assert path.read_bytes() == b"first\n"
    assert list(path.parent.iterdir()) == [path]


def test_what_was_put_in_place_is_on_the_disk_when_an_edit_is_done(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        steps.append("folder synced" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file synced")
        sync(handle)

    def replaced(partial: Path, target: Path) -> Path:
        steps.append("replaced")
        return replace(partial, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    edit_file(path, lambda _: b"second")
    assert steps == ["file synced", "replaced", "folder synced"]


def test_no_edit_is_lost_when_many_are_made_at_once(path: Path) -> None:
    def add(number: int) -> None:
        edit_file(path, lambda content: one_more(b"%d" % number, content))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(path.read_bytes().split()) == {b"first", *(b"%d" % number for number in range(16))}


def test_who_waits_too_long_for_its_turn_is_refused(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="is being changed"):
            edit_file(path, lambda _: b"second", wait_s=0)
        assert path.read_bytes() == b"first\n"
    finally:
        os.close(folder)
    edit_file(path, lambda _: b"second", wait_s=0)
    assert path.read_bytes() == b"second"


def test_what_an_edit_left_that_was_killed_is_in_nobodys_way(path: Path) -> None:
    """The lock ends with the process that holds it, and no two edits write to the same file."""
    left = path.with_name(f".{path.name}.abcdefgh")
    left.write_bytes(b"half")
    edit_file(path, lambda _: b"second", wait_s=0)
    assert (path.read_bytes(), left.read_bytes()) == (b"second", b"half")
