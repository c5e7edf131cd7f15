"""A server of its own for a test, on each kind of store, which knows its callers by their tokens."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from kokuban_client.testing import ServerProcess
from tests.etcd_server import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STORES = ["memory", "sqlite", pytest.param("etcd", marks=pytest.mark.etcd)]


@contextmanager
def serving(kind: str, folder: Path, principals: Path, token: str) -> Iterator[ServerProcess]:
    """Start a server for these principals; the token is one of theirs."""
    flags = ["--identity", "credentials", "--principals", str(principals), "--log-level", "error"]
    token_file = folder / "token"
    token_file.write_text(token, encoding="utf-8")
    with (
        _store(kind, folder) as store,
        ServerProcess(store=store, arguments=flags, caller={"token_file": token_file}) as server,
    ):
        yield server


@contextmanager
def _store(kind: str, folder: Path) -> Iterator[str]:
    if kind != "etcd":
        yield "memory:" if kind == "memory" else f"sqlite:{folder / 'store'}"
        return
    etcd = EtcdServer()
    try:
        asyncio.run(etcd.start_all())
        yield f"etcd://{etcd.endpoints[0]}/leaks"
    finally:
        etcd.close()
