"""The table of the track record in tests/README.md and the names of the tests agree."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
ID = re.compile(r"(?<![A-Za-z0-9])([A-Z]{2}_[0-9]{2})(?=_)")
ROW = re.compile(r"^\| ([A-Z]{2}-[0-9]{2}) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def ids(name: str) -> set[str]:
    return {found.replace("_", "-") for found in ID.findall(name)}


@pytest.fixture(scope="module")
def table(root: Path) -> dict[str, set[str]]:
    """Give the files that the table names for each row."""
    rows = ROW.findall((root / "tests/README.md").read_text(encoding="utf-8"))
    assert len(rows) == len({row for row, _, _ in rows})
    return {row: set(re.findall(r"\]\(([^)]+)\)", files)) for row, _, files in rows}


@pytest.fixture(scope="module")
def tests(root: Path) -> dict[str, set[str]]:
    """Give the files that have a test with the row's id in its name, for each row."""
    found = defaultdict(set)
    for path in (root / "tests").rglob("*.py"):
        for name in TEST.findall(path.read_text(encoding="utf-8")):
            for row in ids(name):
                found[row].add(str(path.relative_to(root / "tests")))
    return dict(found)


def test_ids_are_read_from_names() -> None:
    assert ids("test_LU_01_RB_40_of_two") == {"LU-01", "RB-40"}
    assert ids("test_text_that_is_not_UTF_8_is_malformed") == set()
    assert ids("test_none") == set()


def test_every_row_has_the_tests_that_it_names_and_every_test_with_an_id_is_in_its_row(
    table: dict[str, set[str]], tests: dict[str, set[str]]
) -> None:
    assert len(table) > 40
    assert table == tests


def test_every_test_named_by_an_id_says_a_rule_as_well(root: Path) -> None:
    bare = [
        name
        for path in (root / "tests").rglob("*.py")
        for name in TEST.findall(path.read_text(encoding="utf-8"))
        if ids(name) and len(ID.sub("", name).removeprefix("test_").strip("_")) < 10
    ]
    assert bare == []
