"""Taking over from a holder that is paused: the supervisor's side of what the sleeper goes through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_client.demo import layout
from kokuban_client.demo.evidence import Handover
from kokuban_client.demo.layout import SUPERVISOR, Summary
from kokuban_client.demo.waiting import entry_that

if TYPE_CHECKING:
    from kokuban_client import Board, Lock, Queued
    from kokuban_client.demo.processes import Worker
    from kokuban_client.demo.progress import Progress

_WAIT_S = 60.0


async def take_over(board: Board, region: str, sleeper: Worker, progress: Progress) -> Handover:
    """Wait for the lock that the sleeper holds, write under it, and let the sleeper go on.

    It is stopped once the server has put us into the queue behind it, and goes on once we have the lock: its pause is as long
    as its lease makes it, and no clock of ours is asked.
    """
    await entry_that(board, region, layout.SUMMARY)  # written under its lock
    line = progress.agents[sleeper.name]
    in_the_way: list[Lock] = []

    def pause(queued: Queued) -> None:
        if queued.held_by and not in_the_way:
            in_the_way.append(queued.held_by[0])
            sleeper.pause()
            line.doing = "paused (SIGSTOP)"
            progress.tell(f"{sleeper.name} paused (SIGSTOP), held the lock: {in_the_way[0].purpose}")

    async with board.lock(
        region, layout.SUMMARY, purpose="take over the summary", wait_s=_WAIT_S, on_queued=pause
    ) as lock:
        progress.tell(f"{SUPERVISOR} got the lock of {sleeper.name} after {lock.waited_s:.1f} s")
        seen = await board.get(region, layout.SUMMARY)
        summary = Summary("the supervisor's words", lock.fence)
        await lock.board.put(region, layout.SUMMARY, summary.to_json(), at=seen.revision)
        line.doing = "awake again"
        sleeper.resume()
    # There may be none if the sleeper was stalled by itself before we could stop it. Then the proof will say so.
    before = [(one.agent, one.purpose, one.id, one.fence_revision) for one in in_the_way] or [("", "", "", 0)]
    return Handover(*before[0], heir=SUPERVISOR, waited_s=lock.waited_s)
