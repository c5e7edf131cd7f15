from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client.testing import ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(store="memory:") as process:
        yield process


@pytest.fixture
def durable_server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(store=f"sqlite:{tmp_path / 'store'}") as process:
        yield process


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[kokuban_client.Client]:
    async with kokuban_client.connect(server.address, agent="writer-1") as client:
        yield client


@pytest.fixture
def board(client: kokuban_client.Client) -> kokuban_client.Board:
    return client.board("main")


@pytest.fixture
def region(request: pytest.FixtureRequest) -> str:
    """A shared region of the test's own, so that tests on one server do not meet."""
    name = "".join(character if character.isalnum() else "-" for character in request.node.name)
    return f"shared:{request.node.path.stem}-{name}"


@pytest.fixture
async def their_board(server: ServerProcess) -> AsyncIterator[kokuban_client.Board]:
    """The same board, as another agent sees it."""
    async with kokuban_client.connect(server.address, agent="writer-2") as client:
        yield client.board("main")


@pytest.fixture
async def supervisors_board(server: ServerProcess) -> AsyncIterator[kokuban_client.Board]:
    """The same board, as one with the right to break locks sees it."""
    async with kokuban_client.connect(server.address, agent="boss", roles=["member", "supervisor"]) as client:
        yield client.board("main")
