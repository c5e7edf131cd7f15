"""What is looked at together is bounded: writers, texts, and of each text its end."""

from __future__ import annotations

import pytest

from kokuban_server.core import limits
from kokuban_server.core.screening.joins import LastParts, Part, grave_together, joined
from kokuban_server.core.screening.rules import Severity
from kokuban_server.core.screening.screening import Finding

CHARACTERS = limits.SCREENED_TOGETHER_CHARACTERS_MAX


def found(rule: str, severity: Severity = Severity.GRAVE) -> Finding:
    return Finding(rule, severity, "plain", (1, 2), "x")


def test_of_each_part_its_end_is_joined_and_of_the_last_text_its_beginning() -> None:
    at_the_limit, over = "a" * CHARACTERS, "b" + "c" * CHARACTERS
    parts = [Part.of(at_the_limit), Part.of(over)]
    assert joined(parts, over) == "\n".join([at_the_limit, over[1:], over[:-1]])


def test_of_a_writer_the_newest_texts_are_remembered() -> None:
    parts = LastParts().of("writer")
    for number in range(limits.SCREENED_TOGETHER_TEXTS_ENTRIES_MAX + 1):
        parts.append(Part.of(str(number)))
    assert [part.end for part in parts] == ["1", "2", "3", "4"]


def test_whoever_was_asked_about_longest_ago_is_forgotten() -> None:
    last = LastParts()
    for number in range(limits.SCREENED_TOGETHER_AGENTS_ENTRIES_MAX):
        last.of(number).append(Part.of("x"))
    last.of(0)
    last.of("new").append(Part.of("x"))
    assert [len(last.of(name)) for name in ("new", 0, 2, 1)] == [1, 1, 1, 0]


@pytest.mark.parametrize("is_suspicious_alone", [False, True])
def test_only_what_is_grave_counts_and_a_score_only_beside_a_finding_of_its_own(*, is_suspicious_alone: bool) -> None:
    whole = [found("own-phrase"), found("classifier.text"), found("combined"), found("hidden", Severity.SUSPICIOUS)]
    counted = grave_together(whole, is_suspicious_alone=is_suspicious_alone)
    assert [finding.rule for finding in counted] == ["own-phrase", *["classifier.text"] * is_suspicious_alone]
    assert {finding.span for finding in counted} == {None}
