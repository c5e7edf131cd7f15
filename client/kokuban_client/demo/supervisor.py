"""The supervisor: puts the plan on the board, starts the agents, pauses one, kills one, and gives its work to the others."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import kokuban_client
from kokuban_client.demo import layout
from kokuban_client.demo.evidence import Crash, Evidence, Handover, collect
from kokuban_client.demo.handover import take_over
from kokuban_client.demo.layout import SLEEPER, PlanItem, Refusal, Restructuring, State
from kokuban_client.demo.processes import Workforce

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kokuban_client import Board, Client, Entry, Watch
    from kokuban_client.demo.layout import Run
    from kokuban_client.demo.processes import Worker
    from kokuban_client.demo.progress import Progress
    from kokuban_client.demo.sources import SourceFile

AGENTS_MIN, AGENTS_MAX = 4, 16

_STALL_S = 60.0
_LEAVE_S = 20.0


class DemoFailedError(Exception):
    """The run cannot go on. The message says why."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a run does: which files, with which agents, and how long an agent takes for a file at least."""

    run: Run
    files: tuple[SourceFile, ...]
    agents: tuple[str, ...]
    pace_s: float

    @property
    def racers(self) -> tuple[str, str]:
        """The two that race for one entry."""
        return self.agents[0], self.agents[2]

    @property
    def restructurer(self) -> str:
        """The one that locks a part of the plan while it puts it in order."""
        return self.agents[3]

    @property
    def refused(self) -> str:
        """The one that tries to claim a file there meanwhile."""
        return self.agents[0]

    @property
    def restructured(self) -> str:
        """That part: the folder with the most files, but not with all of them, so that there is work elsewhere."""
        folders = Counter(str(folder) for file in self.files for folder in PurePosixPath(file.label).parents)
        del folders["."]
        several = [folder for folder, count in folders.items() if count < len(self.files)]
        chosen = several or list(folders) or [self.victim_file]
        return layout.plan_path(max(chosen, key=lambda folder: (folders[folder], folder)))

    @property
    def victim(self) -> str:
        """The one that is killed."""
        return self.agents[1]

    @property
    def victim_file(self) -> str:
        """The file that it is killed over: the largest, kept for it so that nobody else takes it before."""
        return max(self.files, key=lambda file: (file.size_bytes, file.label)).label


class Supervisor:
    """One run, seen from above."""

    def __init__(self, client: Client, assignment: Assignment, progress: Progress) -> None:
        self._client = client
        self._board: Board = client.board(layout.BOARD)
        self._assignment = assignment
        self._run = assignment.run
        self._progress = progress
        self._plan: dict[str, PlanItem] = {}
        self._changes_watched = 0
        self._finished = False
        self._killed: set[str] = set()
        self._news = asyncio.Event()

    async def run(self) -> Evidence:
        """Run from the empty plan to the last file, and read everything back; raises DemoFailedError."""
        async with (
            self._board.watch(self._run.region, start=kokuban_client.NOW) as changes,
            asyncio.TaskGroup() as group,
        ):
            following = group.create_task(self._follow(changes))
            self._progress.stage = "putting the plan on the board"
            await self._lay_out_plan()
            async with Workforce() as workforce:
                crash, handover = await self._lead(workforce)
            # The watch tells in order: once it tells this, it has told everything before.
            await self._board.put(self._run.region, layout.FINISHED, "finished", must_not_exist=True)
            await self._until(lambda: self._finished)
            following.cancel()
        self._progress.stage = "reading the board back"
        return await collect(
            self._board,
            self._run,
            files=self._assignment.files,
            agents=self._assignment.agents,
            address=self._client.address,
            crash=crash,
            handover=handover,
            changes_watched=self._changes_watched,
        )

    async def _lay_out_plan(self) -> None:
        """Put one entry for each file, in atomic commits as large as a commit may be."""
        board, assignment = self._board, self._assignment
        await board.put(self._run.region, layout.RACE, {"signed": []}, must_not_exist=True)
        files = deque(assignment.files)
        while files:
            async with board.commit(reason="plan") as commit:
                for file in [files.popleft() for _ in range(min(layout.COMMIT_MAX, len(files)))]:
                    kept_for = assignment.victim if file.label == assignment.victim_file else ""
                    item = PlanItem(str(file.path), file.sha256, kept_for=kept_for, size_bytes=file.size_bytes)
                    commit.put(self._run.region, layout.plan_path(file.label), item.to_json(), must_not_exist=True)
        self._progress.tell(f"plan: {len(assignment.files)} files, {len(assignment.agents)} agents")

    async def _lead(self, workforce: Workforce) -> tuple[Crash, Handover]:
        """Start the agents, pause one, kill one in the middle of its work, and stay until everything is done."""
        assignment = self._assignment
        workers = [await self._start(workforce, name) for name in assignment.agents]
        sleeper = await self._start_sleeper(workforce)
        self._progress.stage = "reviewing"
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(self._see_to(worker)) for worker in (*workers, sleeper)]
            handover = group.create_task(take_over(self._board, self._run.region, sleeper, self._progress))
            await self._until(lambda: self._holds(assignment.victim, assignment.victim_file))
            victim = workers[assignment.agents.index(assignment.victim)]
            # It has claimed this file and reviewed it, has told nothing of it, and never will: this is no lucky moment.
            self._killed.add(victim.name)
            victim.kill()
            exit_code = await victim.ended()
            self._progress.tell(f"{victim.name} killed (SIGKILL), held {_short(assignment.victim_file)}")
            await self._give_back(victim.name)
            await self._until(lambda: all(item.state is State.DONE for item in self._plan.values()))
            self._progress.tell("all files reviewed")
            _, left = await asyncio.wait([*watching, handover], timeout=_LEAVE_S)
            if left:
                raise DemoFailedError("an agent does not end although the plan is done")
        return Crash(victim.name, assignment.victim_file, exit_code), handover.result()

    async def _start(self, workforce: Workforce, name: str) -> Worker:
        assignment = self._assignment
        arguments = ["--address", self._client.address, "--name", name, "--run", self._run.id]
        arguments += ["--pace", str(assignment.pace_s)]
        if name in assignment.racers:
            arguments.append("--race")
        if name == assignment.victim:
            arguments += [f"--stop-at={assignment.victim_file}"]
        if name == assignment.restructurer:
            arguments += [f"--restructure={assignment.restructured}"]
        if name == assignment.refused:
            arguments.append("--disregard-lock")
        worker = await workforce.start(name, "agent", arguments)
        self._progress.agents[name].pid = worker.pid
        return worker

    async def _start_sleeper(self, workforce: Workforce) -> Worker:
        worker = await workforce.start(SLEEPER, "sleeper", ["--address", self._client.address, "--run", self._run.id])
        self._progress.agents[SLEEPER].pid = worker.pid
        return worker

    async def _see_to(self, worker: Worker) -> None:
        """Wait for an agent's end. One that ends badly without having been killed by us is the end of the run."""
        code = await worker.ended()
        line = self._progress.agents[worker.name]
        line.alive = False
        line.doing = "killed" if worker.name in self._killed else "done"
        if code and worker.name not in self._killed:
            raise DemoFailedError(f"{worker.name} ended by itself ({code}):\n{worker.last_words()}")

    async def _give_back(self, agent: str) -> None:
        """Open again what a dead agent had claimed, by compare-and-swap on its very claim.

        That the agent is dead is known here because its process has ended on this machine. Across machines nobody can know
        that; there a claim is better a lock, whose lease runs out by itself.
        """
        claims = [
            entry
            async for entry in self._board.list(self._run.region, layout.PLAN)
            if (item := PlanItem.from_json(entry.value)).agent == agent and item.state is State.CLAIMED
        ]
        for entry in claims:
            item = replace(PlanItem.from_json(entry.value), state=State.OPEN, agent="", kept_for="", reviewed=False)
            await self._board.put(
                self._run.region, entry.path, item.to_json(), at=entry.revision, reason=f"{agent} has died"
            )
            self._progress.tell(f"{_short(layout.label_of(entry.path) or '')} is open again")

    def _holds(self, agent: str, label: str) -> bool:
        item = self._plan.get(label)
        return item is not None and item.agent == agent and item.state is State.CLAIMED and item.reviewed

    async def _follow(self, changes: Watch) -> None:
        async for item in changes:
            if isinstance(item, kokuban_client.EntryChange):
                self._take(item.entry)
                self._news.set()

    def _take(self, entry: Entry) -> None:
        progress = self._progress
        match entry.path.split("/"):
            case [layout.PLAN, *_]:
                label = layout.label_of(entry.path) or ""
                self._changes_watched += 1
                self._plan[label] = item = PlanItem.from_json(entry.value)
                progress.saw(label, item)
                if label == self._assignment.victim_file and item.state is State.DONE:
                    progress.tell(f"{item.agent} finished what {self._assignment.victim} held")
            case [layout.TOTALS, "findings"]:
                progress.findings = entry.value
            case [layout.WORK, agent, "files"]:
                progress.agents[agent].files = entry.value
            case [layout.WORK, agent, "findings"]:
                progress.agents[agent].findings = entry.value
            case [layout.CONFLICTS, *_]:
                conflict = layout.Conflict.from_json(entry.value, entry.author)
                progress.conflicts += 1
                progress.tell(f"{_short(conflict.path)}: {conflict.winner} was faster than {conflict.loser}")
            case [layout.RESTRUCTURING]:
                told = Restructuring.from_json(entry.value)
                did = f"has ordered and released {told.place}" if told.done else f"locked {told.place}: {told.purpose}"
                progress.tell(f"{entry.author} {did}")
            case [layout.REFUSALS, _]:
                refusal = Refusal.from_json(entry.value)
                whose = "its" if refusal.holder == entry.author else f"{refusal.holder}'s"
                progress.tell(f"{entry.author} refused ({refusal.reason}), {whose} lock: {refusal.purpose}")
            case [layout.FINISHED]:
                self._finished = True
            case _:
                pass

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is true of what the board tells; raises DemoFailedError if the board falls silent."""
        patience_s = _STALL_S + 4 * self._assignment.pace_s
        while not holds():
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), patience_s)
            except TimeoutError:
                raise DemoFailedError(f"nothing has changed on the board for {patience_s:.0f} s") from None


def agent_names(count: int) -> Sequence[str]:
    """Give that many names of agents."""
    return tuple(f"reviewer-{number}" for number in range(1, count + 1))


def _short(path: str) -> str:
    parts = path.removeprefix(f"{layout.PLAN}/").split("/")
    return "/".join(parts) if len(parts) <= 2 else "/".join(("…", *parts[-2:]))  # noqa: PLR2004 - folder and file
