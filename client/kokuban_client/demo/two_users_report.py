"""The report of the second part, in the manner of the first: for people, and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kokuban_client.demo.report import grid, heading, proof, verdict
from kokuban_client.demo.two_users import MEMBERS, SHARED, TOGETHER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from kokuban_client.demo.proof import Check
    from kokuban_client.demo.two_users import Told

_ANSWER_SHOWN = 24


@dataclass(frozen=True, slots=True)
class TwoUsersOutcome:
    """The second part as it ended."""

    seconds: float
    commands: Sequence[str]
    told: Told
    checks: Sequence[Check]

    @property
    def is_proved(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Give the report for programs."""
        return {
            "proved": self.is_proved,
            "checks": [asdict(check) for check in self.checks],
            "seconds": round(self.seconds, 2),
            "looks": [asdict(look) for look in self.told.looks],
            "plan": self.told.plan,
            "strangers": self.told.strangers,
        }


def show(outcome: TwoUsersOutcome, console: Console) -> None:
    """Print the report for people."""
    from rich.text import Text  # noqa: PLC0415 - loaded only where the demo runs

    names = ", ".join(f"{member.agent} for {member.user}" for member in MEMBERS)
    console.print(Text.assemble(("\nSecond part: two users", "bold"), f"  {names}, in {outcome.seconds:.1f} s"))
    console.print(heading("How the server knows them: by tokens, which say for whom each may act"))
    for command in outcome.commands:
        console.print(f"  {command}", soft_wrap=True)  # to be copied whole
    for part in (
        heading("Who uses which region"),
        _regions(),
        heading("What each was told of the other's regions, asking by the right path and revision"),
        _looks(outcome),
        heading("Proof, from histories and from answers beside those about nothing"),
        proof(outcome.checks, console.width),
        verdict(outcome.checks),
    ):
        console.print(part)


def _regions() -> RenderableType:
    table = grid("<", "<")
    everybody = " and ".join(member.agent for member in MEMBERS)
    for region in (SHARED, TOGETHER):
        table.add_row("", region, everybody)
    for member in MEMBERS:
        for region in member.own:
            table.add_row("", region, f"{member.agent} alone")
    return table


def _looks(outcome: TwoUsersOutcome) -> RenderableType:
    """Give each answer with the ways to it, and how often it was the same where nothing ever was."""
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (0, None, None, None):
        table.add_column(width=width)
    ways: dict[str, dict[str, list[bool]]] = {}
    for look in outcome.told.looks:
        answer = look.answer.partition(":")[0].partition("(")[0][:_ANSWER_SHOWN] or "something"
        ways.setdefault(answer, {}).setdefault(look.way, []).append(look.answer == look.answer_for_nothing)
    for answer, told in ways.items():
        alike = [one for each in told.values() for one in each]
        table.add_row("", answer, f"{sum(alike)} of {len(alike)} as where nothing is", ", ".join(told))
    return table
