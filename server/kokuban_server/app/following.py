"""What a server knows of a part of the store, kept in step by one watch."""

from __future__ import annotations

import abc
import asyncio
import contextlib
from typing import TYPE_CHECKING

from kokuban_server.core.refusals import ServerDraining, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from kokuban_server.ports.board_store import BoardStore, WatchBatch

_RESTART_PAUSE_S = 0.2


class Following(abc.ABC):
    """Loads what is below a prefix and follows its changes; loads anew when what the watch has missed cannot be had."""

    def __init__(self, store: BoardStore, prefix: bytes, name: str) -> None:
        self._store = store
        self._prefix = prefix
        self._name = name
        self._runner: asyncio.Task[None] | None = None
        self._stands = asyncio.Event()
        """Set by `_load`, as soon as what was loaded may be used."""
        self.revision = 0
        """The state up to which the watch has brought everything."""

    @property
    def stands(self) -> bool:
        """Whether it is in step; not before it was loaded first, nor while it is loaded anew."""
        return self._stands.is_set()

    def begin(self) -> None:
        """Load and follow in the background, if that has not begun."""
        if self._runner is None:
            self._runner = asyncio.create_task(self._run(), name=self._name)

    async def close(self) -> None:
        """Stop following the store."""
        if self._runner is not None:
            self._runner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._runner

    async def _run(self) -> None:
        while True:
            try:
                if not self.stands:
                    await self._load()
                async with contextlib.aclosing(self._store.watch([self._prefix], self.revision)) as batches:
                    async for batch in batches:
                        self._take(batch)
            except StoreUnavailable:  # waited out: the watch goes on from where it was
                pass
            except Exception as fault:  # noqa: BLE001 - a supervisor: a fault must not leave what was known as it is, for ever
                self._begin_anew(fault)
            await asyncio.sleep(_RESTART_PAUSE_S)

    def _begin_anew(self, fault: Exception) -> None:  # noqa: ARG002 - of use to whoever has to tell of it
        """Be out of step until all is loaded again. `fault` is a refusal of the watch, or an error of whatever kind."""
        self._stands.clear()

    @abc.abstractmethod
    async def _load(self) -> None:
        """Begin with what the store holds, and say in `revision` at which state."""

    @abc.abstractmethod
    def _take(self, batch: WatchBatch) -> None:
        """Take in what has changed, and move `revision`."""


async def until_drained(
    batches: AsyncGenerator[WatchBatch, None], draining: asyncio.Event, pause_s: float
) -> AsyncGenerator[WatchBatch | None, None]:
    """Give the batches, and nothing whenever there was none for a time. Raises `ServerDraining` when the server drains."""
    ended = asyncio.ensure_future(draining.wait())
    upcoming = asyncio.ensure_future(anext(batches))
    try:
        while not draining.is_set():
            await asyncio.wait((upcoming, ended), timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            if not upcoming.done():
                yield None
                continue
            batch = upcoming.result()
            upcoming = asyncio.ensure_future(anext(batches))
            yield batch
        raise ServerDraining
    finally:
        ended.cancel()
        upcoming.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # nobody waits for what it would have been
            await upcoming
