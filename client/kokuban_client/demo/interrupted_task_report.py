"""The report of the fourth part, in the manner of the others: for people, and as JSON."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kokuban_client.demo.interrupted_task import COURIERS, EXPLAIN, RESUME
from kokuban_client.demo.report import grid, heading, proof, verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from kokuban_client.demo.interrupted_task import Ended, Told
    from kokuban_client.demo.proof import Check


@dataclass(frozen=True, slots=True)
class InterruptedTaskOutcome:
    """The fourth part as it ended."""

    seconds: float
    told: Told
    checks: Sequence[Check]

    @property
    def is_proved(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Give the report for programs."""
        told = self.told
        return {
            "proved": self.is_proved,
            "checks": [asdict(check) for check in self.checks],
            "seconds": round(self.seconds, 2),
            "exit_codes": dict(told.exit_codes),
            "explained": list(told.explained),
            "events": [
                {
                    "number": event.number,
                    "type": event.type.value,
                    "step": event.step,
                    "id": event.id,
                    "attempt": event.attempt,
                    "author": event.entry.author,
                }
                for event in told.ended.events
            ],
            "result": _left_behind(told.ended),
            "expected": _left_behind(told.expected),
        }


def _left_behind(ended: Ended) -> dict[str, Any]:
    return {"work": dict(ended.work), "outbox": [asdict(sent) for sent in ended.outbox]}


def show(outcome: InterruptedTaskOutcome, console: Console) -> None:
    """Print the report for people."""
    from rich.text import Text  # noqa: PLC0415 - loaded only where the demo runs

    title = f"  {len(outcome.told.exit_codes)} of {len(COURIERS)} workers killed, in {outcome.seconds:.1f} s"
    console.print(Text.assemble(("\nFourth part: an interrupted task", "bold"), title))
    console.print(heading(f"How the task stood when the second was dead: {shlex.join(['kokuban', *EXPLAIN])}"))
    for line in outcome.told.explained:
        console.print(f"  {line}", soft_wrap=True)
    for part in (
        heading(f"What was caused outside the board, before and after {shlex.join(['kokuban', *RESUME])}"),
        _caused(outcome.told.ended),
        heading("Proof, from the task's events, the outbox, and a task that nobody disturbed"),
        proof(outcome.checks, console.width),
        verdict(outcome.checks),
    ):
        console.print(part)


def _caused(ended: Ended) -> RenderableType:
    table = grid("<", "<")
    for courier in COURIERS:
        table.add_row("", courier, ", ".join(sent.effect for sent in ended.outbox if sent.courier == courier))
    return table
