"""Screening of what is written from outside, before it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core import limits
from kokuban_server.core.commit import Delete, Endorse
from kokuban_server.core.refusals import ScreeningUnavailable
from kokuban_server.core.screening.joins import LastParts, Part, grave_together, joined
from kokuban_server.core.screening.rules import Severity
from kokuban_server.core.screening.screening import worst_of
from kokuban_server.core.screening.writes import text_of, words_of
from kokuban_server.core.trust import ScreeningProfile, Source, SourceKind, Trust
from kokuban_server.ports.screener import ScreenerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kokuban_server.app.screenings import Screenings
    from kokuban_server.core.access import Principal
    from kokuban_server.core.commit import Step
    from kokuban_server.core.policy import Policy
    from kokuban_server.core.screening.screening import Finding, Screening

_FROM_OUTSIDE = (SourceKind.TOOL, SourceKind.EXTERNAL)


class Admitted(NamedTuple):
    """What screening made of a mutation that it lets in."""

    rule_set: str
    suspicious: bool


class HeldBack(Exception):  # noqa: N818 - not told to anybody: what comes of it is
    """A commit that a reviewer should see first."""

    def __init__(self, field: str, source: Source, findings: tuple[Finding, ...], rule_set: str) -> None:
        super().__init__(field)
        self.field = field
        self.source = source
        self.findings = findings
        """The gravest first."""
        self.rule_set = rule_set


def is_screened(step: Step, policy: Policy) -> bool:
    """Say whether a mutation has to be screened: it comes from outside or a tool, or is trusted no more than that."""
    if isinstance(step.mutation, Delete | Endorse) or step.target.rules.screening is ScreeningProfile.OFF:
        return False
    source = step.label.source
    if source.kind is SourceKind.TOOL and policy.tool_screening.get(source.name) is ScreeningProfile.OFF:
        return False
    return step.label.trust < Trust.AGENT or source.kind in _FROM_OUTSIDE


class WriteScreening:
    """Has what commits write looked at, each mutation alone and together with what its agent has written just before."""

    def __init__(self, screenings: Screenings) -> None:
        self._screenings = screenings
        self._earlier = LastParts()

    async def judge(
        self, principal: Principal, board_id: str, steps: Iterable[Step], reason: str, deadline: float
    ) -> Mapping[int, Admitted]:
        """Give what was made of each mutation, by its place.

        Raises `HeldBack`; `ScreeningUnavailable` where there is no verdict; and what `Screenings.judge` raises.
        """
        admitted = {}
        for step in steps:
            field = f"mutations[{step.place}]"
            declared = step.label.source
            kind = declared.kind if declared.kind in _FROM_OUTSIDE else SourceKind.EXTERNAL
            source = Source(kind, declared.uri or "derived")
            text = text_of(step, reason)
            try:
                found = await self._screenings.judge(principal, text, source, deadline)
                said = words_of(step)
                worst, findings = await self._together(principal, board_id, said, source, found, deadline)
            except ScreenerError as fault:
                raise ScreeningUnavailable(field) from fault
            if worst is Severity.GRAVE:
                raise HeldBack(field, declared, findings, found.version)
            admitted[step.place] = Admitted(found.version, worst is Severity.SUSPICIOUS)
        return admitted

    async def _together(
        self, principal: Principal, board_id: str, text: str, source: Source, found: Screening, deadline: float
    ) -> tuple[Severity, tuple[Finding, ...]]:
        """Judge a text with those that the agent has written before it; give the gravest of what is found, and that."""
        earlier = self._earlier.of((principal.tenant, board_id, principal.agent))
        findings = list(found.findings)
        if earlier and worst_of(findings) is not Severity.GRAVE:
            whole = await self._screenings.judge(principal, joined(earlier, text), source, deadline)
            findings += grave_together(whole.findings, is_suspicious_alone=bool(findings))
        worst = worst_of(findings)
        if worst is Severity.GRAVE:
            # Others do not read what is held back; and what was written before shall not hold back all that follows.
            earlier.clear()
        else:
            earlier.append(Part.of(text))
        findings.sort(key=lambda finding: -finding.severity.value)
        return worst, tuple(findings[: limits.QUARANTINE_FINDINGS_ENTRIES_MAX])
