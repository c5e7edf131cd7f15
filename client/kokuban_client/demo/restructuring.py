"""A part of the plan is put in order under a lock: nobody else can write there, and nobody builds on half of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kokuban_client.demo import layout
from kokuban_client.demo.layout import PlanItem, Refusal, Restructuring
from kokuban_client.demo.waiting import entry_that

if TYPE_CHECKING:
    from kokuban_client import Board, Entry

PURPOSE = "put the largest files first"

_COMMITS = 3


async def restructure(board: Board, region: str, place: str) -> None:
    """Give each file of a part of the plan its priority, in several commits under one lock.

    One commit is atomic by itself and needs no lock; a large part of a plan does not fit into one. The lock is kept until
    another agent has been refused: the only thing that is done here to be seen.
    """
    async with board.lock(region, place, purpose=PURPOSE) as lock:
        files = [entry async for entry in board.list(region, place)]
        files.sort(key=lambda entry: PlanItem.from_json(entry.value).size_bytes)
        largest_first = list(enumerate(files, start=1))[::-1]
        part = min(layout.COMMIT_MAX, -(-len(files) // _COMMITS))

        await _set_priorities(lock.board, largest_first[:part])
        told = Restructuring(place, PURPOSE, lock.fence)
        note = await lock.board.put(region, layout.RESTRUCTURING, told.to_json(), must_not_exist=True)
        await entry_that(board, region, layout.REFUSALS, lambda entry: told.takes(Refusal.from_json(entry.value).path))
        for start in range(part, len(files), part):
            await _set_priorities(lock.board, largest_first[start : start + part])

        # The news and the release are one act: whoever is told that the place is free finds it free.
        async with lock.board.commit(reason="in order") as commit:
            commit.put(region, layout.RESTRUCTURING, replace(told, done=True).to_json(), at=note.revision)
            commit.release(lock)


async def _set_priorities(board: Board, files: list[tuple[int, Entry]]) -> None:
    async with board.commit(reason=PURPOSE) as commit:
        for priority, entry in files:
            item = replace(PlanItem.from_json(entry.value), priority=priority)
            commit.put(entry.region, entry.path, item.to_json(), at=entry.revision)
