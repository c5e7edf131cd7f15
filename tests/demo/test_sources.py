from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from kokuban_client.demo import sources
from kokuban_client.demo.sources import NothingToReviewError, choose

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str = "x = 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_folder_gives_its_python_files_and_nothing_hidden_or_compiled(tmp_path: Path) -> None:
    home = tmp_path / "code"
    for name in ("b.py", "a/c.py", "a/notes.txt", ".hidden/d.py", "a/__pycache__/e.py"):
        write(home / name)
    files = choose([home])
    assert [file.label for file in files] == ["code/b.py", "code/a/c.py"]
    assert files[0].sha256 == hashlib.sha256(b"x = 1\n").hexdigest()


def test_a_file_counts_once_and_equal_names_are_told_apart(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one/a.py"), write(tmp_path / "two/a.py")
    files = choose([one, tmp_path / "one", two, one])
    assert [(file.label, file.path) for file in files] == [("a.py", one.resolve()), ("2~a.py", two.resolve())]


def test_a_file_that_is_named_need_not_end_in_py(tmp_path: Path) -> None:
    assert [file.label for file in choose([write(tmp_path / "tool")])] == ["tool"]


def test_names_that_a_board_does_not_take_become_numbers(tmp_path: Path) -> None:
    write(tmp_path / "n" / "/".join("abcdefghijklmnop") / "deep.py")
    write(tmp_path / "n/new\nline.py")
    write(tmp_path / "n/cafe\u0301.py")
    assert sorted(file.label for file in choose([tmp_path / "n"])) == ["file-1.py", "file-2.py", "n/caf\u00e9.py"]


def test_what_cannot_be_reviewed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NothingToReviewError, match=r"there is no .*absent"):
        choose([tmp_path / "absent"])
    with pytest.raises(NothingToReviewError, match="no Python file in"):
        choose([tmp_path])
    for number in range(3):
        write(tmp_path / f"{number}.py")
    monkeypatch.setattr(sources, "FILES_MAX", 3)
    assert len(choose([tmp_path])) == 3
    monkeypatch.setattr(sources, "FILES_MAX", 2)
    with pytest.raises(NothingToReviewError, match="more than 2 Python files: name smaller folders"):
        choose([tmp_path])


def test_without_paths_it_is_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    files = choose([])
    assert 100 < len(files) < sources.FILES_MAX
    assert len({file.label for file in files}) == len(files)
    assert {"json/decoder.py", "email/parser.py"} <= {file.label for file in files}
