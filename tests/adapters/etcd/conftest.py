"""Real etcd processes, and what the tests here ask of stores."""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(
    0, str(Path(__file__).parents[3])
)  # tests are not an installed package; its modules are imported by name

from tests.etcd_server import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[EtcdServer]:
    """One member that is never harmed; each test uses a prefix of its own."""
    server = EtcdServer()
    try:
        asyncio.run(server.start_all())
        yield server
    finally:
        server.close()


@pytest.fixture
def prefix() -> str:
    return f"test/{next(_numbers)}"


@pytest.fixture
def own_server() -> Iterator[EtcdServer]:
    """One member that the test may harm. The test starts it."""
    server = EtcdServer()
    yield server
    server.close()


@pytest.fixture
def cluster() -> Iterator[EtcdServer]:
    """Three members that the test may harm. The test starts them."""
    server = EtcdServer(3)
    yield server
    server.close()
