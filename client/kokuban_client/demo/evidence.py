"""What the board holds when a run is over, read back entry by entry: the proof judges this, and nobody's word."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import kokuban_client
from kokuban_client.demo import layout
from kokuban_client.demo.layout import Conflict, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kokuban_client import Board, ConflictRecord, EntryChange, Revision
    from kokuban_client.demo.sources import SourceFile

_READS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Step:
    """One state in an entry's history: where it stands, what it replaced, who wrote it (as the server knows), and what."""

    revision: Revision
    previous_revision: int
    author: str
    value: Any


@dataclass(frozen=True, slots=True)
class Told:
    """The findings of one file, as they stand on the board. `states` is how often the entry was written."""

    revision: Revision
    states: int
    author: str
    sha256: str
    totals: dict[str, int]
    findings: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Crash:
    """The death of an agent: which file it held, and how its process ended."""

    agent: str
    label: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Handover:
    """How a lock went from an agent that was paused to who waited for it: what the server said of the lock in the way."""

    holder: str
    purpose: str
    lock_id: str
    fence_revision: int
    heir: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class Peek:
    """One agent's attempt at another's private notes: how many the owner itself sees, and what the other was answered."""

    owner: str
    other: str
    own_notes: int
    answer: str
    answer_for_nothing: str
    """What the other is answered where nothing ever was."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the proof rests on. Histories are oldest first."""

    planned: Mapping[str, str]
    """The digest of each planned file."""
    histories: Mapping[str, Sequence[Step]]
    told: Mapping[str, Told]
    totals: Mapping[str, int]
    work: Mapping[str, Mapping[str, int]]
    race: Sequence[Step]
    barrier: Sequence[Mapping[str, str]]
    conflicts: Sequence[Conflict]
    restructuring: Sequence[Step]
    summary: Sequence[Step]
    refusals: Sequence[Step]
    """Each note of a write that a lock kept out."""
    handover: Handover
    crash: Crash
    peeks: Sequence[Peek]
    changes_watched: int
    """How many states of the plan's entries the supervisor's watch has told."""
    log: Sequence[ConflictRecord] = ()
    """The server's log of conflicts, oldest first."""

    @property
    def outcomes(self) -> dict[tuple[str, str, int], str]:
        """What became of conflicts, as the log has it: by path, loser, and the revision that was there."""
        return {
            (one.path, one.loser.agent, one.actual.number): one.outcome.value
            for one in self.log
            if one.actual is not None
        }


async def collect(
    board: Board,
    run: Run,
    *,
    files: Sequence[SourceFile],
    agents: Sequence[str],
    address: str,
    crash: Crash,
    handover: Handover,
    changes_watched: int,
) -> Evidence:
    """Read a finished run back from the board."""
    totals: dict[str, int] = {}
    async for entry in board.list(run.region, layout.TOTALS, consistent=True):
        totals[entry.path.removeprefix(f"{layout.TOTALS}/")] = entry.value
    work: dict[str, dict[str, int]] = {agent: {} for agent in agents}
    async for entry in board.list(run.region, layout.WORK, consistent=True):
        _, agent, name = entry.path.split("/")
        work[agent][name] = entry.value
    told: dict[str, Told] = {}
    async for entry in board.list(run.findings, consistent=True):
        value = entry.value
        told[entry.path] = Told(
            entry.revision,
            entry.sequence,
            entry.author,
            value["sha256"],
            value["totals"],
            tuple(value["findings"]),
        )
    return Evidence(
        planned={file.label: file.sha256 for file in files},
        histories=await _histories(board, run, [file.label for file in files]),
        told=told,
        totals=totals,
        work=work,
        race=_oldest_first(await board.history(run.region, layout.RACE)),
        barrier=(await board.get(run.region, layout.BARRIER)).value,
        conflicts=[
            Conflict.from_json(entry.value, entry.author) async for entry in board.list(run.region, layout.CONFLICTS)
        ],
        restructuring=_oldest_first(await board.history(run.region, layout.RESTRUCTURING)),
        summary=_oldest_first(await board.history(run.region, layout.SUMMARY)),
        refusals=[
            Step(entry.revision, 0, entry.author, entry.value)
            async for entry in board.list(run.region, layout.REFUSALS)
        ],
        handover=handover,
        crash=crash,
        peeks=await _peeks(address, run, agents),
        changes_watched=changes_watched,
        log=[one async for one in board.conflicts(region=run.region)][::-1],
    )


async def _histories(board: Board, run: Run, labels: Iterable[str]) -> dict[str, list[Step]]:
    turns = asyncio.Semaphore(_READS_AT_ONCE)

    async def read(label: str) -> tuple[str, list[Step]]:
        async with turns:
            return label, _oldest_first(await board.history(run.region, layout.plan_path(label)))

    return dict(await asyncio.gather(*map(read, labels)))


def _oldest_first(changes: Sequence[EntryChange]) -> list[Step]:
    return [
        Step(change.entry.revision, change.previous_revision, change.entry.author, change.entry.value)
        for change in reversed(changes)
    ]


async def _peeks(address: str, run: Run, agents: Sequence[str]) -> list[Peek]:
    """Let every agent try to read a private note of every other."""
    peeks: list[Peek] = []
    async with contextlib.AsyncExitStack() as stack:
        boards: dict[str, Board] = {}
        for agent in agents:
            client = await stack.enter_async_context(kokuban_client.connect(address, agent=agent, roles=[]))
            boards[agent] = client.board(layout.BOARD)
        for owner in agents:
            region = layout.private(owner)
            notes = [entry.path async for entry in boards[owner].list(region, run.prefix, omit_values=True)]
            for other in agents:
                if other != owner:
                    answer = await _answer(boards[other], region, notes[-1] if notes else run.began)
                    nothing = await _answer(boards[other], layout.private(other), run.note("nothing was ever here"))
                    peeks.append(Peek(owner, other, len(notes), answer, nothing))
    return peeks


async def _answer(board: Board, region: str, path: str) -> str:
    try:
        await board.get(region, path)
    except kokuban_client.KokubanError as error:
        return f"{error.reason}: {error.message}"
    return "the note"
