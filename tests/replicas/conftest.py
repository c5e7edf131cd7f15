"""Two servers, each a process of its own, on one real etcd."""

from __future__ import annotations

import asyncio
import itertools
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(
    0, str(Path(__file__).parents[2])
)  # tests are not an installed package; its modules are imported by name

import kokuban_client
from tests.etcd_server import EtcdServer
from tests.replicas.pair import Pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from kokuban_client import Board
    from kokuban_client.testing import ServerProcess

_numbers = itertools.count(1)


class Connections:
    """Boards as agents see them through one server or the other, each over a connection of its own."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def __call__(self, server: ServerProcess | str, agent: str = "writer-1", *, wait: bool = True) -> Board:
        address = server if isinstance(server, str) else server.address
        client = kokuban_client.connect(address, agent=agent, wait_for_ready=wait)
        return (await self._stack.enter_async_context(client)).board("main")


@pytest.fixture(scope="package")
def etcd() -> Iterator[EtcdServer]:
    """One member that is never harmed; each store has a prefix of its own."""
    server = EtcdServer()
    try:
        asyncio.run(server.start_all())
        yield server
    finally:
        server.close()


def _pair(etcd: EtcdServer) -> Iterator[Pair]:
    pair = Pair(f"etcd://{etcd.members[0].endpoint}/replicas/{next(_numbers)}")
    try:
        pair.start()
        yield pair
    finally:
        pair.close()


@pytest.fixture(scope="package")
def pair(etcd: EtcdServer) -> Iterator[Pair]:
    """Two servers that no test harms."""
    yield from _pair(etcd)


@pytest.fixture
def fragile_pair(etcd: EtcdServer) -> Iterator[Pair]:
    """Two servers that the test may harm."""
    yield from _pair(etcd)


@pytest.fixture
async def connect() -> AsyncIterator[Connections]:
    async with AsyncExitStack() as stack:
        yield Connections(stack)


@pytest.fixture
async def a(pair: Pair, connect: Connections) -> Board:
    """The board through one server."""
    return await connect(pair.a, "writer-a")


@pytest.fixture
async def b(pair: Pair, connect: Connections) -> Board:
    """The same board through the other server."""
    return await connect(pair.b, "writer-b")


@pytest.fixture
def region(request: pytest.FixtureRequest) -> str:
    """A shared region of the test's own, so that tests on one store do not meet."""
    name = "".join(character if character.isalnum() else "-" for character in request.node.name)
    return f"shared:{request.node.path.stem}-{name}"
