"""Puts what several folders of tests use within reach."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(
    0, str(Path(__file__).parents[2])
)  # tests are not an installed package; its modules are imported by name

from tests.etcd_server import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = {
    "plain.py": '"""Fine."""\n',
    "broken.py": "def f(:\n",
    "imports.py": '"""Imports."""\nimport os\nimport sys\nprint(sys.path)\n',
    "inner/__init__.py": "",
    "inner/catches.py": '"""Catches."""\ntry:\n    pass\nexcept Exception:\n    pass\n',
    "inner/forks.py": '"""Forks."""\ndef f(a):\n    "doc"\n' + "    if a: pass\n" * 12,
    "inner/silent.py": "class A:\n    def b(self): pass\n",
    "inner/long.py": '"""Long."""\ndef f():\n    "doc"\n' + "    f()\n" * 70,
}
TOTALS = {
    "files": 8,
    "lines": 4 + 1 + 5 + 15 + 73 + 2,
    "functions": 3,
    "findings": 1 + 1 + 1 + 1 + 3 + 1,
    "complex-function": 1,
    "long-function": 1,
    "broad-except": 1,
    "unused-import": 1,
    "missing-docstring": 3,
    "unreadable-file": 1,
}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder of code with one finding of each kind at least."""
    for name, text in SOURCES.items():
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "code"


@pytest.fixture
def totals() -> dict[str, int]:
    """What a review of that folder adds up to, counted by hand."""
    return TOTALS


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    server = EtcdServer()
    try:
        asyncio.run(server.start_all())
        yield server
    finally:
        server.close()
