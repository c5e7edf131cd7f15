"""Replays recorded runs of agents as tasks: `python tests/replay/replay.py DATA`, into build/replay.json.

Every run is a task, every turn of its user a step, every tool call an action against a recorder of effects. All runs of one
customer go on at once in one worker, which is killed in the middle, again and again; others go on. What comes of it must be
what comes of it undisturbed, with each action done once, or as was declared where its end was not recorded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import kokuban_client
from kokuban_client import EventType, NewStep, errors
from kokuban_client.testing import ServerProcess
from tests.boundaries import Effects, Strike
from tests.replay.recorded_runs import NotARun, read
from tests.replay.replay_worker import Errand
from tests.task_judgement import Declared, Outcome, faults_of, outcome_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_client import Board
    from tests.replay.recorded_runs import RecordedRun

ROOT: Final = Path(__file__).parents[2]
FIGURES: Final = Path("build", "replay.json")
KILLS: Final = 2
"""Of the workers on one customer's runs."""
_ATTEMPTS_MAX: Final = 50


class Replayed(NamedTuple):
    """What came of the runs of one customer."""

    customer: str
    runs: int
    struck: Counter[str]
    """At which boundaries workers were killed."""
    actions: Counter[str]
    """By what was declared of them."""
    effects: Counter[str]
    """The same for their effects."""
    skipped: int
    """Actions that were left as they were, as declared."""
    wishes: int
    """Constraints that the user set while the work went on."""
    faults: list[str]


class Replay:
    """The runs of one customer: undisturbed, and with workers that are killed."""

    def __init__(
        self, server: ServerProcess, board: Board, data: Path, runs: Sequence[RecordedRun], folder: Path
    ) -> None:
        self._server = server
        self._board = board
        self._data = data
        self._runs = runs
        self._customer = runs[0].customer
        self._folder = folder
        self._wishes: dict[str, set[str]] = defaultdict(set)
        self._struck: Counter[str] = Counter()
        self._actions: Counter[str] = Counter()
        self._effects: Counter[str] = Counter()
        self._skipped = 0
        self._faults: list[str] = []

    async def replayed(self, draw: random.Random, kills: int) -> Replayed:
        """Have all of it done; give what came of it."""
        await self._begin("even")
        passes = await self._work("even", Strike())
        even = [await self._outcome("even", run) for run in self._runs]
        await self._begin("cut")
        for kill in range(kills):
            (what,) = draw.choices(list(passes), list(passes.values()))
            await self._work("cut", Strike(what, draw.randint(1, max(1, passes[what] * 3 // (4 * kills)))))
            for run in self._runs:
                await self._free(f"cut-{run.name}")
                await self._wish(f"cut-{run.name}", f"wish-{kill}")
        await self._work("cut", Strike())
        cut = [await self._outcome("cut", run) for run in self._runs]
        for run, undisturbed, interrupted in zip(self._runs, even, cut, strict=True):
            if interrupted != undisturbed:
                self._faults.append(f"{run.name} has come to {interrupted}, not {undisturbed}")
        return Replayed(
            self._customer,
            len(self._runs),
            self._struck,
            self._actions,
            self._effects,
            self._skipped,
            sum(map(len, self._wishes.values())),
            self._faults,
        )

    async def _begin(self, kind: str) -> None:
        for run in self._runs:
            names = [f"turn-{number:02}" for number in range(1, len(run.turns) + 1)]
            steps = [
                NewStep(name, turn.said, tuple(names[:place][-1:]), attempts_max=_ATTEMPTS_MAX)
                for place, (name, turn) in enumerate(zip(names, run.turns, strict=True))
            ]
            await self._board.create_task(f"{kind}-{run.name}", "see to what the user wants", steps)

    async def _work(self, kind: str, strike: Strike) -> dict[str, int]:
        """Have one worker work on all runs until it is done or killed; give which boundaries it passed, if it was not."""
        errand = Errand(
            *(self._server.address, str(self._data), self._customer, kind),
            str(self._folder / f"{kind}-{self._customer}"),
            strike,
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.replay.replay_worker", json.dumps(errand)),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
        passes: dict[str, int] = {}
        for line in map(json.loads, said.splitlines()):
            if "struck" in line:
                self._struck[line["struck"]] += 1
            elif "claimed" in line:
                missed = self._wishes[line["claimed"]] - set(line["constraints"])
                self._faults += [f"{line['claimed']}: who went on was not told of {missed}"] if missed else []
            else:
                passes = line["passes"]
        if process.returncode != (0 if passes else -signal.SIGKILL):
            raise RuntimeError(f"the worker for {self._customer} ended with {process.returncode}")
        return passes

    async def _free(self, task: str) -> None:
        """Take the locks of killed workers at once, instead of waiting for their leases."""
        for lock in (await self._board.locks(f"task:{task}")).locks:
            with suppress(errors.NotFound):  # its lease has ended meanwhile
                await self._board.break_lock(lock.id, "its worker was killed", skip_lock_delay=True)

    async def _wish(self, task: str, name: str) -> None:
        """Want something more of a task, unless it is over."""
        with suppress(errors.TaskOver):
            async with self._board.commit() as commit:
                commit.constrain(task, name, f"please see to {name}")
            self._wishes[task].add(name)

    async def _outcome(self, kind: str, run: RecordedRun) -> Outcome:
        task = f"{kind}-{run.name}"
        found, events = await self._board.task(task), await self._board.task_events(task)
        effects = [line.split() for line in Effects(self._folder / f"{kind}-{self._customer}").lines]
        actions: dict[tuple[str, str], Declared] = {}
        for number, turn in enumerate(run.turns, 1):
            for call in turn.calls:
                place = [task, f"turn-{number:02}", call.action]
                attempts = [int(attempt) for *where, attempt in effects if where == place]
                actions[place[1], place[2]] = Declared(call.in_doubt, attempts)
        self._faults += faults_of(found, events, actions)
        if lost := self._wishes[task] - found.constraints.keys():
            self._faults.append(f"{task}: wishes are lost: {lost}")
        if kind == "cut":
            for declared in actions.values():
                self._actions[declared.in_doubt] += 1
                self._effects[declared.in_doubt] += len(declared.attempts)
            self._skipped += sum(event.type is EventType.ACTION_SKIPPED for event in events)
        return await outcome_of(self._board, found, events)


async def replay(data: Path, draw: random.Random, kills: int = KILLS) -> list[Replayed]:
    """Replay all runs of a file or folder, customer by customer, on a server of their own."""
    of: dict[str, list[RecordedRun]] = defaultdict(list)
    for run in read(data):
        if run.turns:
            of[run.customer].append(run)
    with tempfile.TemporaryDirectory(prefix="kokuban-replay-") as name:
        folder = Path(name)
        async with (
            ServerProcess(store=f"sqlite:{folder / 'store'}", start_timeout_s=60) as server,
            kokuban_client.connect(server.address, agent="boss", roles=["member", "supervisor"]) as client,
        ):
            board = client.board("main")
            return [await Replay(server, board, data, runs, folder).replayed(draw, kills) for runs in of.values()]


def figures(done: Sequence[Replayed], seed: int) -> dict[str, Any]:
    """Give what came of it in numbers, and everything that was not as it must be."""
    struck, actions, effects = Counter[str](), Counter[str](), Counter[str]()
    for one in done:
        struck += one.struck
        actions += one.actions
        effects += one.effects
    return {
        "seed": seed,
        "customers": len(done),
        "runs": sum(one.runs for one in done),
        "kills": struck.total(),
        "kills_at": dict(sorted(struck.items())),
        "actions": dict(sorted(actions.items())),
        "effects": dict(sorted(effects.items())),
        "skipped": sum(one.skipped for one in done),
        "wishes": sum(one.wishes for one in done),
        "faults": [fault for one in done for fault in one.faults],
    }


def table(told: dict[str, Any]) -> str:
    """Give the figures for people."""
    lines = [
        f"{told['runs']} runs of {told['customers']} customers, {told['kills']} workers killed (seed {told['seed']})",
        f"{'declared':<10}{'actions':>9}{'effects':>9}",
        *(f"{word:<10}{count:>9}{told['effects'].get(word, 0):>9}" for word, count in told["actions"].items()),
        f"left as they were: {told['skipped']}; wishes meanwhile: {told['wishes']}",
    ]
    faults = told["faults"]
    return "\n".join([*lines, f"not as it must be: {len(faults)}", *faults[:20]])


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay what is named on the command line; give the exit code."""
    parser = argparse.ArgumentParser(description="Replays recorded runs of agents as tasks whose workers are killed.")
    parser.add_argument("data", type=Path, help="a file of recorded runs, or a folder of such files")
    parser.add_argument("--out", type=Path, default=FIGURES, help="where the figures go (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="draws where workers are killed")
    given = parser.parse_args(arguments)
    if not given.data.exists():
        parser.exit(2, f"{given.data} is not there: name a file of recorded runs; none is part of this project\n")
    try:
        done = asyncio.run(replay(given.data, random.Random(given.seed)))
    except NotARun as error:
        parser.exit(2, f"these are no recorded runs: {error}\n")
    told = figures(done, given.seed)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(table(told))  # noqa: T201 - what the command is for
    return 1 if told["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
