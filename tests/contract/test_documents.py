"""The documents speak of what is there: files, make targets, settings, commands."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

from kokuban_server.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|^ {4}[^\n]*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
MAKE = re.compile(r"\bmake (?:[A-Z]+=\S+ )*([a-z-]+)")
VARIABLE = re.compile(r"\bKOKUBAN_[A-Z0-9_]+\b")


@pytest.fixture(scope="module")
def documents(root: Path) -> dict[Path, str]:
    paths = [*root.glob("*.md"), *(path for folder in FOLDERS for path in (root / folder).rglob("*.md"))]
    return {path: path.read_text(encoding="utf-8") for path in sorted(paths)}


FOLDERS = ("proto", "server", "client", "tests", "deploy")


def headings(text: str) -> set[str]:
    """The anchors of a document's headings, as they are made on the pages that show it."""
    found = re.findall(
        r"^#+ +(.+?)\s*$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def links(text: str) -> Iterator[str]:
    for target in LINK.findall(text):
        if "://" not in target and not target.startswith("mailto:"):
            yield target


@pytest.mark.parametrize(
    "name", ["README.md", "proto/README.md", "server/README.md", "tests/README.md", "deploy/README.md"]
)
def test_each_place_has_a_guide(root: Path, name: str) -> None:
    assert (root / name).read_text(encoding="utf-8").startswith("# ")


def test_every_link_leads_somewhere(documents: dict[Path, str]) -> None:
    broken = []
    for path, text in documents.items():
        for target in links(text):
            file, _, anchor = target.partition("#")
            place = (path.parent / file) if file else path
            if not place.exists() or (anchor and anchor not in headings(place.read_text(encoding="utf-8"))):
                broken.append(f"{path}: {target}")
    assert broken == []


def test_every_make_target_that_a_document_names_exists(root: Path, documents: dict[Path, str]) -> None:
    defined = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {target for text in documents.values() for code in CODE.findall(text) for target in MAKE.findall(code)}
    assert named
    assert named - defined == set()


def test_the_ways_in_are_all_told_to_a_newcomer(root: Path, documents: dict[Path, str]) -> None:
    """Each target that `make` alone lists is named in the README or in the guide to the tests."""
    listed = subprocess.run(
        ["make", "-s", "help"], cwd=root, capture_output=True, text=True, timeout=30, check=True
    ).stdout
    told = documents[root / "README.md"] + documents[root / "tests/README.md"]
    targets = re.findall(r"^make ([a-z-]+)", listed, re.MULTILINE)
    assert len(targets) > 5
    assert [target for target in targets if f"make {target}" not in told] == []


def test_every_folder_of_tests_says_what_it_proves(root: Path, documents: dict[Path, str]) -> None:
    folders = {path.name for path in (root / "tests").iterdir() if any(path.glob("*.py")) or any(path.glob("*/*.py"))}
    assert folders
    assert [
        name for name in sorted(folders) if f"| [{name}]({name}) |" not in documents[root / "tests/README.md"]
    ] == []


def variables(model: type[BaseModel], prefix: str, delimiter: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from variables(field.annotation, f"{prefix}{name}{delimiter}", delimiter)
        else:
            yield f"{prefix}{name}".upper()


def test_every_setting_is_documented_and_every_documented_setting_exists(
    root: Path, documents: dict[Path, str]
) -> None:
    config = Settings.model_config
    known = set(variables(Settings, config["env_prefix"], str(config["env_nested_delimiter"])))
    assert len(known) > 10
    assert known - set(VARIABLE.findall(documents[root / "deploy/README.md"])) == set()
    sources = [path for folder in FOLDERS for path in (root / folder).rglob("*.py")]
    elsewhere = {name for path in sources for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    told = {name for text in documents.values() for name in VARIABLE.findall(text)}
    assert told - known - elsewhere == set()
