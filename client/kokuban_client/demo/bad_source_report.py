"""The report of the third part, in the manner of the others: for people, and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kokuban_client.demo.bad_source import BAD_URIS, BRIEF, EDITION, GOOD_PAGES, LIE
from kokuban_client.demo.report import grid, heading, proof, verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from kokuban_client.demo.bad_source import Told
    from kokuban_client.demo.proof import Check


@dataclass(frozen=True, slots=True)
class BadSourceOutcome:
    """The third part as it ended."""

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
            "held_back": [commit.source.uri if commit.source else "" for commit in told.held_back],
            "trace": list(told.tree),
            "removed": [f"{finding.key}" for finding in told.plan.findings],
            "receipts": {receipt.store: f"{receipt.count} {receipt.status}" for receipt in told.removal.receipts},
            "refused": dict(told.refused),
            "result": [asdict(content) for content in told.result],
            "expected": [asdict(content) for content in told.expected],
        }


def show(outcome: BadSourceOutcome, console: Console) -> None:
    """Print the report for people."""
    from rich.text import Text  # noqa: PLC0415 - loaded only where the demo runs

    pages = len(GOOD_PAGES) + 2
    title = f"  {pages} pages, 2 of them poisoned, in {outcome.seconds:.1f} s"
    console.print(Text.assemble(("\nThird part: a bad source", "bold"), title))
    console.print(heading("What the filter did"))
    console.print(_filtered(outcome.told))
    console.print(heading(f"Where the brief comes from: kokuban trust trace {BRIEF} {EDITION}"))
    for line in outcome.told.tree:
        console.print(f"  {line}", soft_wrap=True)
    for part in (
        heading(f"What was removed: kokuban trust purge --uri-pattern '{BAD_URIS}' …"),
        _removed(outcome.told),
        heading("Proof, from the board, and from a board that the poison never reached"),
        proof(outcome.checks, console.width),
        verdict(outcome.checks),
    ):
        console.print(part)


def _filtered(told: Told) -> RenderableType:
    table = grid("<", "<")
    for commit in told.held_back:
        name = ", ".join(key.path for key in commit.keys)
        rules = ", ".join(dict.fromkeys(finding.rule for finding in commit.findings))
        table.add_row("", name, f"held back: {rules}")
    table.add_row("", LIE.name, "let in as data: it gives no order, and is wrong")
    return table


def _removed(told: Told) -> RenderableType:
    table = grid("<", ">", "<")
    for receipt in told.removal.receipts:
        table.add_row("", receipt.store, str(receipt.count), f"{receipt.status}  {receipt.note}")
    return table
