"""A watched file is read again when it may have changed, and else left alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kokuban_server.adapters.files import WatchedFile

if TYPE_CHECKING:
    from pathlib import Path

HOUR_NS = 3_600_000_000_000


def age(path: Path) -> None:
    """Have the file look as if it was written an hour ago."""
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - HOUR_NS))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"first")
    return path


def test_a_file_that_rests_is_read_once_until_it_changes(path: Path) -> None:
    age(path)
    file = WatchedFile(path, 100)
    assert [file.read_if_changed() for _ in range(3)] == [b"first", None, None]
    path.write_bytes(b"other")
    age(path)
    assert [file.read_if_changed() for _ in range(3)] == [b"other", None, None]


def test_a_file_that_was_just_written_is_read_again_since_it_may_be_half_of_one(path: Path) -> None:
    file = WatchedFile(path, 100)
    assert [file.read_if_changed() for _ in range(2)] == [b"first", b"first"]
    age(path)
    assert [file.read_if_changed() for _ in range(2)] == [b"first", None]


def test_a_file_is_read_up_to_its_bound(path: Path) -> None:
    assert WatchedFile(path, 5).read_if_changed() == b"first"
    with pytest.raises(OSError, match="more than 4 bytes"):
        WatchedFile(path, 4).read_if_changed()
