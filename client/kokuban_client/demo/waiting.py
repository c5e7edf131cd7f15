"""Waiting for something to be told on the board. This is how agents meet: by what stands there, never by the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kokuban_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_client import Board, Entry


async def entry_that(board: Board, region: str, path: str, holds: Callable[[Entry], bool] = lambda _: True) -> Entry:
    """Give the first entry at or below a path that is as asked for, as soon as there is one."""
    async with board.watch((region, path), start=kokuban_client.SNAPSHOT) as changes:
        async for item in changes:
            match item:
                case kokuban_client.SnapshotEntry(entry) | kokuban_client.EntryChange(entry=entry) if holds(entry):
                    return entry
                case _:
                    pass
    raise AssertionError("a watch does not end by itself")  # pragma: no cover - see above
