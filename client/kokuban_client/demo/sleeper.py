"""An agent that is paused past its lease, as a process of its own: it wakes, writes late, and is refused.

It holds the lock on the summary when the supervisor stops its process. A stopped process renews nothing: its lease runs out,
and whoever waits gets the lock. What it writes when it goes on carries a fence that is dead.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

import kokuban_client
from kokuban_client.demo import layout, lifeline
from kokuban_client.demo.layout import SLEEPER, Refusal, Run, Summary
from kokuban_client.demo.waiting import entry_that

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_client import Board, Fence

PURPOSE = "write the summary"

_LEASE_S = 2.0


async def fall_asleep(board: Board, region: str) -> None:
    """Hold the lock until it is lost, then write all the same, and note what that was answered."""
    fence = await _hold_until_lost(board, region)
    # What we believe of the entry is true, so nothing but the dead fence can keep this write out.
    now = await entry_that(board, region, layout.SUMMARY, lambda entry: entry.author != SLEEPER)
    late = Summary("the sleeper's last words", fence).to_json()
    try:
        await board.put(region, layout.SUMMARY, late, at=now.revision, fences=[fence], reason="late")
    except kokuban_client.LockLost as refused:
        noted = Refusal(
            layout.SUMMARY, refused.reason, SLEEPER, PURPOSE, refused.lock_id, fence_revision=fence.revision, tried=late
        )
        await board.put(region, f"{layout.REFUSALS}/{SLEEPER}", noted.to_json(), must_not_exist=True)


async def _hold_until_lost(board: Board, region: str) -> Fence:
    async with board.session(ttl_s=_LEASE_S, label="falls asleep") as session:
        lock = board.lock(region, layout.SUMMARY, purpose=PURPOSE, lock_delay_s=0, session=session)
        # The library tells us of the loss as soon as we are awake. An agent that asked nobody would find out by its write.
        with contextlib.suppress(kokuban_client.LockLost):
            async with lock:
                summary = Summary("the sleeper's first words", lock.fence)
                await lock.board.put(region, layout.SUMMARY, summary.to_json(), must_not_exist=True)
                await asyncio.Event().wait()  # at work, for longer than the lease
        return lock.fence


async def _work(address: str, run: Run) -> None:
    async with kokuban_client.connect(address, agent=SLEEPER, roles=[]) as client:
        await fall_asleep(client.board(layout.BOARD), run.region)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until the late write has been answered."""
    parser = argparse.ArgumentParser(prog="python -m kokuban_client.demo.sleeper", description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--run", required=True)
    told = parser.parse_args(arguments)
    return lifeline.run(_work(told.address, Run(told.run)))


if __name__ == "__main__":
    sys.exit(main())
