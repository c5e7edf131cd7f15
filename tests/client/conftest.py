from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client.cli import main
from kokuban_client.testing import ServerProcess
from tests.client.commands import Answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
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


@pytest.fixture
def roles() -> str:
    """The roles that commands are run with; none is named unless a module says which."""
    return ""


@pytest.fixture
def kokuban(
    server: ServerProcess, roles: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    """The command line as the agent `me` uses it, in the test's own process."""
    for name in ("ROLES", "BOARD", "TIMEOUT", "JSON", "FENCE", "SESSION"):
        monkeypatch.delenv(f"KOKUBAN_{name}", raising=False)
    monkeypatch.setenv("KOKUBAN_ADDRESS", server.address)
    monkeypatch.setenv("KOKUBAN_AGENT", "me")
    if roles:
        monkeypatch.setenv("KOKUBAN_ROLES", roles)

    def run(*arguments: str) -> Answer:
        capfd.readouterr()  # what the test's own processes have printed is none of its answer
        code = main(arguments)
        captured = capfd.readouterr()
        return Answer(code, captured.out, captured.err)

    return run
