"""The report of a finished run: for people, and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kokuban_client.demo import layout
from kokuban_client.demo.findings import TOTALS, Kind, added_up
from kokuban_client.types import ConflictOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

    from kokuban_client.demo.evidence import Evidence
    from kokuban_client.demo.proof import Check

_TOP = 8
_CONFLICTS_SHOWN = 5
_LOG_SHOWN = 20
_WIDE = 112
_KIND_NAMES = {
    Kind.COMPLEX_FUNCTION: "complex functions",
    Kind.LONG_FUNCTION: "long functions",
    Kind.BROAD_EXCEPT: "broad excepts",
    Kind.UNUSED_IMPORT: "unused imports",
    Kind.MISSING_DOCSTRING: "missing docstrings",
    Kind.UNREADABLE_FILE: "unreadable files",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run, and what was proved of it."""

    run: str
    store: str
    seconds: float
    agents: Sequence[str]
    evidence: Evidence
    recounted: Mapping[str, int]
    checks: Sequence[Check]

    @property
    def is_proved(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def top_findings(self, count: int) -> list[dict[str, Any]]:
        """Give the heaviest findings of all files, each with its file."""
        found = [{"file": label, **one} for label, told in self.evidence.told.items() for one in told.findings]
        found.sort(key=lambda one: (-one["weight"], one["file"], one["line"]))
        # One for each place: a function that is too long is mostly too complex as well.
        places = {(one["file"], one["line"]): one for one in reversed(found)}
        return [one for one in found if places[one["file"], one["line"]] is one][:count]

    def to_json(self) -> dict[str, Any]:
        """Give the report for programs."""
        evidence = self.evidence
        return {
            "proved": self.is_proved,
            "checks": [asdict(check) for check in self.checks],
            "run": self.run,
            "region": layout.Run(self.run).region,
            "store": self.store,
            "seconds": round(self.seconds, 2),
            "files": len(evidence.planned),
            "totals": added_up([dict(evidence.totals)]),
            "recount": dict(self.recounted),
            "agents": [{"name": agent, **evidence.work.get(agent, {})} for agent in self.agents],
            "conflicts": [{**one.to_json(), "loser": one.loser} for one in evidence.conflicts],
            "conflict_log": [
                {
                    "loser": one.loser.agent,
                    "winner": one.winner.agent if one.winner is not None else "",
                    "path": one.path,
                    "reason": one.reason,
                    "outcome": one.outcome.value,
                }
                for one in evidence.log
            ],
            "locks": {
                "restructuring": [{"author": step.author, **step.value} for step in evidence.restructuring],
                "handover": asdict(evidence.handover),
                "refusals": [{"agent": step.author, **step.value} for step in evidence.refusals],
            },
            "crash": {
                **asdict(evidence.crash),
                "finished_by": evidence.told[evidence.crash.label].author
                if evidence.crash.label in evidence.told
                else "",
            },
            "top_findings": self.top_findings(_TOP),
        }


def show(outcome: Outcome, console: Console) -> None:
    """Print the report for people."""
    from rich.text import Text  # noqa: PLC0415 - loaded only where the demo runs

    title = Text.assemble(
        ("Kokuban demo", "bold"),
        f"  run {outcome.run} · {outcome.store} · {len(outcome.evidence.planned)} files in {outcome.seconds:.1f} s",
    )
    for part in (
        title,
        heading("Worth a look first"),
        _top(outcome),
        heading("Findings"),
        _totals(outcome),
        heading("Who did what"),
        _agents(outcome),
        heading(f"Conflicts: {len(outcome.evidence.conflicts)}, each with one winner"),
        _conflicts(outcome),
        heading("Refused by locks: who, why, and who held the lock to do what"),
        _locks(outcome),
        heading("Proof, from the board's own history and a recount without the board"),
        proof(outcome.checks, console.width),
        verdict(outcome.checks),
    ):
        console.print(part)


def show_conflicts(outcome: Outcome, console: Console) -> None:
    """Print who lost to whom, on what, and what became of it, as the server's log of conflicts has it."""
    log = outcome.evidence.log
    console.print(
        heading(f"In the end: who lost to whom, {len(log)} of them, by the server's log (`kokuban conflict ls`)")
    )
    table = grid("<", "<", "<", "<")
    for one in log[:_LOG_SHOWN]:
        winner = one.winner.agent if one.winner is not None else "nobody who is known"
        path = _tail(one.path.removeprefix(f"{layout.PLAN}/"), 18)
        table.add_row(
            "",
            f"{one.loser.agent} lost to {winner}",
            path,
            one.reason,
            "" if one.outcome is ConflictOutcome.OPEN else one.outcome.value,
        )
    if len(log) > _LOG_SHOWN:
        table.add_row("", f"and {len(log) - _LOG_SHOWN} more", "", "", "")
    console.print(table)


def heading(text: str) -> RenderableType:
    """Give a heading."""
    from rich.text import Text  # noqa: PLC0415 - as above

    return Text(f"\n{text}", style="bold")


def grid(*justify: str) -> Table:
    """Give a table without lines. The last column takes the room that is left, and is cut where there is too little."""
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(width=0)
    for place, one in enumerate(justify, start=1):
        last = place == len(justify)
        table.add_column(
            justify="right" if one == ">" else "left", no_wrap=True, overflow="ellipsis", ratio=1 if last else None
        )
    return table


def _top(outcome: Outcome) -> RenderableType:
    table = grid(">", "<")
    for one in outcome.top_findings(_TOP):
        said = one["text"].partition(";")[0]
        name = f"  {one['name']}" if one["name"] else ""
        table.add_row("", said, f"{_tail(one['file'], 40)}:{one['line']}{name}")
    return table


def _totals(outcome: Outcome) -> RenderableType:
    totals = added_up([dict(outcome.evidence.totals)])
    table = grid(">", "<", ">", "<", ">", "<")  # number and name, three times
    cells: list[str] = []
    for name in TOTALS:
        cells += [f"{totals[name]:,}", _KIND_NAMES[name] if isinstance(name, Kind) else name]
    for start in range(0, len(cells), 6):
        table.add_row("", *cells[start : start + 6])
    return table


def _agents(outcome: Outcome) -> RenderableType:
    evidence = outcome.evidence
    told = evidence.told.get(evidence.crash.label)
    table = grid("<", ">", ">", "<")
    for agent in outcome.agents:
        counts = evidence.work.get(agent, {})
        what = ""
        if agent == evidence.crash.agent:
            what = f"killed, held {_tail(evidence.crash.label, 28)}"
        elif told is not None and told.author == agent:
            what = f"finished what {evidence.crash.agent} held"
        table.add_row("", agent, f"{counts.get('files', 0)} files", f"{counts.get('findings', 0):,} findings", what)
    return table


_BECAME = {"won": "who then wrote", "merged": "who then wrote on top", "lost again": "who then lost again"}
"""What the server's log of conflicts says of the loser."""


def _conflicts(outcome: Outcome) -> RenderableType:
    table = grid("<", "<", "<")
    # The race first: it is the one that was meant.
    shown = sorted(outcome.evidence.conflicts, key=lambda one: one.path != layout.RACE)[:_CONFLICTS_SHOWN]
    for one in shown:
        believed = one.expected.number if one.expected else "nothing"
        found = one.actual.number if one.actual else "nothing"
        path = _tail(one.path.removeprefix(f"{layout.PLAN}/"), 26)
        became = outcome.evidence.outcomes.get((one.path, one.loser, one.actual.number)) if one.actual else None
        told = _BECAME.get(became or "", "")
        table.add_row("", path, f"{one.winner} before {one.loser} (saw {believed}, is {found})", told)
    rest = len(outcome.evidence.conflicts) - len(shown)
    if rest > 0:
        table.add_row("", f"and {rest} more", "", "")
    return table


def _locks(outcome: Outcome) -> RenderableType:
    table = grid("<", "<", "<", "<")
    for step in outcome.evidence.refusals:
        refusal = layout.Refusal.from_json(step.value)
        held = f"{refusal.holder} to {refusal.purpose}"
        if step.author == refusal.holder:
            held += f"; paused {outcome.evidence.handover.waited_s:.1f} s"
        path = _tail(refusal.path.removeprefix(f"{layout.PLAN}/"), 24)
        table.add_row("", path, step.author, refusal.reason, held)
    return table


def proof(checks: Sequence[Check], width: int) -> RenderableType:
    """Give each check with its numbers: beside it where there is room, else below it."""
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=0)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=width >= _WIDE)
    if width >= _WIDE:
        table.add_column()
    for check in checks:
        mark = Text("✓", style="green") if check.holds else Text("✗", style="bold red")
        numbers = Text(check.numbers, style="dim")
        if width >= _WIDE:
            table.add_row("", mark, check.name, numbers)
        else:
            table.add_row("", mark, Text.assemble(check.name, "\n", numbers))
    return table


def verdict(checks: Sequence[Check]) -> RenderableType:
    """Say whether all of it is proved."""
    from rich.text import Text  # noqa: PLC0415 - as above

    failed = sum(not check.holds for check in checks)
    if failed:
        return Text(f"\nNOT PROVED: {failed} of {len(checks)} checks do not hold", style="bold red")
    return Text(f"\nProved: all {len(checks)} checks hold", style="bold green")


def _tail(path: str, length: int) -> str:
    """Give a path that fits, by its end."""
    if len(path) <= length:
        return path
    parts = path.split("/")
    while len(parts) > 1 and len("/".join(parts)) + 2 > length:
        parts.pop(0)
    return "…/" + "/".join(parts) if len(parts) > 1 or "/" in path else path[: length - 1] + "…"
