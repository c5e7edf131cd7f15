"""Two servers, each a process of its own, on one store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from kokuban_client.testing import ServerProcess


class Pair:
    """Two servers of one store."""

    def __init__(self, store: str, **environment: str) -> None:
        self.store = store
        self.a = ServerProcess(store=store, environment=environment)
        self.b = ServerProcess(store=store, environment=environment)

    def start(self) -> None:
        """Start both at once."""
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(ServerProcess.start, (self.a, self.b)))

    def kill(self) -> None:
        self.a.kill()
        self.b.kill()

    def close(self) -> None:
        for server in (self.a, self.b):
            server._leave()  # a context manager closes so; here two are closed where one may not have started
