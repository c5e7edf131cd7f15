"""A sub-agent, as a process of its own: it takes files from the plan, reviews them, and tells the team what it found."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import kokuban_client
from kokuban_client.demo import layout, lifeline
from kokuban_client.demo.findings import worst_first
from kokuban_client.demo.layout import PlanItem, Refusal, Restructuring, Run, State
from kokuban_client.demo.restructuring import restructure
from kokuban_client.demo.review import review_file
from kokuban_client.demo.waiting import entry_that

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_client import Board, Revision, Watch
    from kokuban_client.demo.findings import Review

_FINDINGS_LISTED_MAX = 500
"""How many of one file's findings are written out; the counts are of all."""
_FILES_BEFORE_KEPT_ONE = 3
_RACERS = 2


@dataclass(frozen=True, slots=True)
class Orders:
    """What an agent is started with."""

    name: str
    run: Run
    pace_s: float
    races: bool
    stops_at: str
    """The file whose review never ends; empty for none."""
    restructures: str
    """The part of the plan to put in order; empty for none."""
    disregards_lock: bool


class Reviewer:
    """One agent at work."""

    def __init__(self, board: Board, orders: Orders) -> None:
        self._board = board
        self._orders = orders
        self._name = orders.name
        self._region = orders.run.region
        self._private = layout.private(orders.name)
        self._plan: dict[str, tuple[PlanItem, Revision]] = {}
        self._plan_is_whole = False
        self._restructuring: Restructuring | None = None
        self._news = asyncio.Event()
        self._conflicts = 0
        self._finished = 0

    async def work(self) -> None:
        """Race, lock, or run into a lock if told to; then review files until the plan is done."""
        followed = (self._region, layout.PLAN), (self._region, layout.RESTRUCTURING)
        async with (
            self._board.watch(*followed, start=kokuban_client.SNAPSHOT) as changes,
            asyncio.TaskGroup() as group,
        ):
            following = group.create_task(self._follow(changes))
            await self._board.append(self._private, self._orders.run.began, {"note": "began"})
            if self._orders.races:
                await self._race()
            if self._orders.restructures:
                await restructure(self._board, self._region, self._orders.restructures)
            await self._until_told_what_is_locked()
            if self._orders.disregards_lock:
                await self._review(next(filter(self._is_locked, self._plan)))
            while (label := await self._next()) is not None:
                await self._review(label)
            following.cancel()

    async def _follow(self, changes: Watch) -> None:
        """Keep our picture of the plan as it is on the board."""
        async for item in changes:
            match item:
                case kokuban_client.SnapshotEntry(entry) | kokuban_client.EntryChange(entry=entry):
                    label = layout.label_of(entry.path)
                    if label is not None:
                        self._learn(label, PlanItem.from_json(entry.value), entry.revision)
                    else:
                        self._restructuring = Restructuring.from_json(entry.value)
                case kokuban_client.SnapshotComplete():
                    self._plan_is_whole = True
                case kokuban_client.Reset():
                    self._plan.clear()
                    self._plan_is_whole = False
                case _:
                    pass
            self._news.set()

    def _learn(self, label: str, item: PlanItem, revision: Revision) -> None:
        known = self._plan.get(label)
        if known is None or known[1].number <= revision.number:  # our own writes are known before the watch tells them
            self._plan[label] = item, revision

    async def _until_told_what_is_locked(self) -> None:
        while not self._plan_is_whole or self._restructuring is None:
            self._news.clear()
            await self._news.wait()

    def _is_locked(self, label: str) -> bool:
        """Say whether a file is in the part of the plan that is being restructured.

        To know it saves a try; it is the lock that keeps us out.
        """
        told = self._restructuring
        return told is not None and not told.done and told.takes(layout.plan_path(label))

    async def _next(self) -> str | None:
        """Give a file to try for, as soon as there is one; nothing once all are done."""
        while True:
            self._news.clear()
            if self._plan_is_whole:
                if all(item.state is State.DONE for item, _ in self._plan.values()):
                    return None
                label = self._choice()
                if label is not None:
                    return label
            await self._news.wait()

    def _choice(self) -> str | None:
        waiting = [
            (label, item)
            for label, (item, _) in self._plan.items()
            if item.state is State.OPEN and not self._is_locked(label)
        ]
        waiting.sort(key=lambda one: -one[1].priority)
        free = [label for label, item in waiting if not item.kept_for]
        kept = [label for label, item in waiting if item.kept_for == self._name]
        if kept and (self._finished >= _FILES_BEFORE_KEPT_ONE or not free):
            return kept[0]
        # The first few, but not all agents the very same one.
        return random.choice(free[:8]) if free else None  # noqa: S311 - no secret

    async def _review(self, label: str) -> None:
        claim = await self._claim(label)
        if claim is None:
            return
        item, at = claim
        review = await asyncio.to_thread(review_file, Path(item.file))
        await asyncio.sleep(self._orders.pace_s)
        note = {"note": "found", **review.totals}
        await self._board.append(self._private, self._orders.run.note(label), note)
        if label == self._orders.stops_at:
            await self._stop_halfway(label, item, at)
        await self._tell(label, item, at, review)

    async def _claim(self, label: str) -> tuple[PlanItem, Revision] | None:
        """Try for a file by compare-and-swap: of all who saw it open, one gets it."""
        item, at = self._plan[label]
        claimed = replace(item, state=State.CLAIMED, agent=self._name, attempt=item.attempt + 1)
        try:
            async with self._board.commit(reason="claim") as commit:
                commit.put(self._region, layout.plan_path(label), claimed.to_json(), at=at)
                commit.append(self._private, self._orders.run.note(label), {"note": "took", "attempt": claimed.attempt})
        except kokuban_client.LockedByOther as refused:
            await self._refused(refused, claimed)
            return None
        except kokuban_client.Conflict as lost:
            await self._lost(lost)
            self._learn(label, claimed, at)  # not open any more; the watch will tell whose it is
            return None
        self._learn(label, claimed, commit.result.revision)
        return claimed, commit.result.revision

    async def _tell(self, label: str, item: PlanItem, at: Revision, review: Review) -> None:
        """Tell the team what was found, and close the file, in one act.

        One commit, or a crash could fall in between: findings told and the file still open would be counted again by the
        next agent, and a file closed without its totals would never be counted. `at` is our claim: if it was taken from
        us meanwhile, nothing of this is written.
        """
        done = replace(item, state=State.DONE, reviewed=True)
        listed = worst_first(review.findings)[:_FINDINGS_LISTED_MAX]
        findings = {
            "sha256": review.sha256,
            "totals": review.totals,
            "listed": len(listed),
            "findings": [
                {"kind": one.kind, "line": one.line, "name": one.name, "text": one.text, "weight": round(one.weight, 2)}
                for one in listed
            ],
        }
        try:
            async with self._board.commit(reason="review") as commit:
                commit.put(self._region, layout.plan_path(label), done.to_json(), at=at)
                commit.put(self._orders.run.findings, label, findings, must_not_exist=True)
                for name, count in review.totals.items():
                    commit.increment(self._region, f"{layout.TOTALS}/{name}", count)
                commit.increment(self._region, f"{layout.WORK}/{self._name}/files", 1)
                commit.increment(self._region, f"{layout.WORK}/{self._name}/findings", len(review.findings))
                commit.append(self._private, self._orders.run.note(label), {"note": "told"})
        except kokuban_client.Conflict as lost:
            await self._lost(lost)
            return
        self._finished += 1
        self._learn(label, done, commit.result.revision)

    async def _stop_halfway(self, label: str, item: PlanItem, at: Revision) -> None:
        """Hang like a call that never returns: the file is claimed and reviewed, and nothing of it is told.

        Told on the board first, so that the supervisor knows for certain, and not by timing, where we are.
        """
        stuck = replace(item, reviewed=True)
        await self._board.put(self._region, layout.plan_path(label), stuck.to_json(), at=at, reason="reviewed")
        await asyncio.Event().wait()

    async def _race(self) -> None:
        """Write one entry at the same time as another agent, on top of the same revision that both have read."""
        board, region = self._board, self._region
        seen = await board.get(region, layout.RACE)
        await board.add_to_set(region, layout.BARRIER, {"agent": self._name, "read": str(seen.revision)})
        await entry_that(board, region, layout.BARRIER, lambda entry: len(entry.value) >= _RACERS)
        try:
            await board.put(region, layout.RACE, self._signed(seen.value), at=seen.revision, reason="race")
        except kokuban_client.Conflict as lost:
            await self._lost(lost)
            now = await board.get(region, layout.RACE)
            await board.put(
                region,
                layout.RACE,
                self._signed(now.value),
                at=now.revision,
                reason="race, second try",
                retry_of=lost.request_id,
            )

    def _signed(self, value: dict[str, list[str]]) -> dict[str, list[str]]:
        return {"signed": [*value["signed"], self._name]}

    async def _lost(self, lost: kokuban_client.Conflict) -> None:
        """Note down for the report who was faster, as the refusal says."""
        conflict = layout.Conflict(lost.path, self._name, lost.winner_agent, lost.expected, lost.actual)
        path = f"{layout.CONFLICTS}/{self._name}/{self._conflicts}"
        self._conflicts += 1
        await self._board.put(self._region, path, conflict.to_json(), must_not_exist=True)

    async def _refused(self, refused: kokuban_client.LockedByOther, tried: PlanItem) -> None:
        """Note down for the report who holds the lock and what for, as the refusal says; the list of locks adds its fence."""
        listed = await self._board.locks(refused.region, refused.path)
        fence_revision = next((lock.fence_revision for lock in listed.locks if lock.id == refused.lock_id), 0)
        noted = Refusal(
            refused.path,
            refused.reason,
            refused.holder_agent,
            refused.purpose,
            refused.lock_id,
            fence_revision,
            tried.to_json(),
        )
        await self._board.put(self._region, f"{layout.REFUSALS}/{self._name}", noted.to_json(), must_not_exist=True)


async def _work(address: str, orders: Orders) -> None:
    async with kokuban_client.connect(address, agent=orders.name, roles=[]) as client:
        await Reviewer(client.board(layout.BOARD), orders).work()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an agent until the plan is done."""
    parser = argparse.ArgumentParser(prog="python -m kokuban_client.demo.agent", description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--pace", type=float, required=True)
    parser.add_argument("--race", action="store_true")
    parser.add_argument("--stop-at", default="")
    parser.add_argument("--restructure", default="")
    parser.add_argument("--disregard-lock", action="store_true")
    told = parser.parse_args(arguments)
    orders = Orders(told.name, Run(told.run), told.pace, told.race, told.stop_at, told.restructure, told.disregard_lock)
    return lifeline.run(_work(told.address, orders))


if __name__ == "__main__":
    sys.exit(main())
