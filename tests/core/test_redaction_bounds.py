"""Redaction takes any text, within its bounds: depth, size, findings told, and work that grows no faster than the text."""

from __future__ import annotations

import base64
import random
from typing import TYPE_CHECKING, Any

import pytest

from kokuban_server.core import limits
from kokuban_server.core.redaction import search
from kokuban_server.core.redaction.masking import Wish, redact
from kokuban_server.core.redaction.search import find
from kokuban_server.core.screening.patterns import Pattern
from kokuban_server.core.sensitive import Handling, Terms

if TYPE_CHECKING:
    from collections.abc import Callable

WISH = Wish(Terms(Handling.MASK, Handling.MASK), b"key")
SECRET = "the password is Zx9!kLmQ7w"  # noqa: S105 - made up


def encoded(times: int) -> str:
    raw = SECRET.encode()
    for _ in range(times):
        raw = base64.b64encode(raw)
    return raw.decode()


def test_codes_are_undone_to_the_depth_and_what_lies_deeper_is_told_not_to_be_known() -> None:
    at, over = find(encoded(limits.REDACTED_DEPTH_MAX)), find(encoded(limits.REDACTED_DEPTH_MAX + 1))
    assert [finding.type for finding in at.findings] == ["password"]
    assert at.findings[0].reading == "base64+base64+base64"
    assert at.is_whole
    assert (over.findings, over.is_whole) == ((), False)


def test_more_characters_than_the_bound_are_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    text = encoded(1)
    monkeypatch.setattr(limits, "REDACTED_TIMES_MAX", 0)
    monkeypatch.setattr(limits, "REDACTED_CHARACTERS_MIN", len(text) + len(SECRET))
    assert find(text).findings
    monkeypatch.setattr(limits, "REDACTED_CHARACTERS_MIN", len(text) + len(SECRET) - 1)
    assert (find(text).findings, find(text).is_whole) == ((), False)


def test_a_search_that_finds_more_each_time_it_is_asked_is_told_not_to_be_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find(SECRET).is_whole
    monkeypatch.setattr(search, "_ROUNDS_MAX", 1)  # none that finds nothing any more
    assert (len(find(SECRET).findings), find(SECRET).is_whole) == (1, False)


def test_more_findings_than_are_told_are_masked_all_the_same() -> None:
    most = limits.REDACTED_FINDINGS_SHOWN_ENTRIES_MAX
    for count in (most, most + 1):
        redaction = redact(" ".join(f"user-{number}@mail.internal" for number in range(count)), WISH)
        assert (len(redaction.places), redaction.total) == (most, count)
        assert redaction.text.count("[redacted:email:") == count
        assert "@" not in redaction.text


def test_one_secret_more_than_are_looked_for_again_is_masked_only_where_words_tell_it() -> None:
    most = limits.REDACTED_REPEATED_ENTRIES_MAX
    values = [f"Zx9!kLmQ{number:03}w" for number in range(most + 1)]
    told = "\n".join(f"password: {value}" for value in values)
    at = find(f"{told}\n{values[most - 1]}")
    over = find(f"{told}\n{values[most]}")
    assert len(at.findings) == most + 2
    assert len(over.findings) == most + 1


FLOODS = [
    "4111 ", "4111111111111112 ", "13800138000 ", "password: ", "pass pass to ", "password=abc123xyz ", "a@", "a@b.cc ",
    "abuse@a.bc ", "message-id: <a@b.cc>\n ", "://a@b.cc/", "ssh -a a ", "ssh a@b.cc ",
    "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\nAAAAAAAAAAAAAAAAAAAAAAAA\n", "http://a:", "a://b:c@",
    "eyJabcdefgh-", "eyJabcdefgh.ab.", "aws AKIA", "DE12 3456 ", "token=", "secret: aaaaaaaaaaaaaaaaaaaaa", "SWdub3JlIGFsbA== ",
    "61 ", "%41a", "%2525", "&amp;amp;", "a\u200b", "ａ", "\U000e0041", "[redacted:email:123456]", "\\u0041", "京A12",
    "+12 34 ", "bearer aaaaaaaaaaaaaaaa",
]  # fmt: skip


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("is_json", [False, True])
def test_the_work_grows_no_faster_than_the_text(flood: str, is_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 - both
    """Counted: how often a pattern is looked for, how many bytes matches take, how many characters readings have."""
    work = 0
    look, search_ = Pattern.next_part, search._Search._search

    def counting(pattern: Pattern, raw: bytes, start: int) -> tuple[int, int] | None:
        nonlocal work
        part = look(pattern, raw, start)
        work += 1 + (len(raw) if part is None else part[1]) - start
        return part

    def reading(self: Any, one: Any) -> Any:  # noqa: ANN401 - as they are inside
        nonlocal work
        work += len(one.text)
        return search_(self, one)

    monkeypatch.setattr(Pattern, "next_part", counting)
    monkeypatch.setattr(search._Search, "_search", reading)

    def spent(size: int) -> int:
        nonlocal work
        work = 0
        find(flood * (size // len(flood)), is_json=is_json)
        return work

    small, large = spent(4_000), spent(32_000)
    assert large <= 12 * small


@pytest.mark.parametrize(
    "make",
    [
        lambda draw: "".join(map(chr, draw.choices(range(0x80), k=400))),
        lambda draw: "".join(map(chr, draw.choices([*range(0x20, 0x3000), *range(0xD800, 0xE100)], k=400))),
        lambda draw: "".join(map(chr, draw.choices([*range(0x20, 0x80), *range(0xFE00, 0xFFFF)], k=400))),
        lambda draw: "".join(draw.choices("password: =%41\\u0&#;@./0123456789abcdefABCDEF+-_ \n", k=600)),
    ],
)  # fmt: skip
def test_any_text_is_searched(make: Callable[[random.Random], str]) -> None:
    draw = random.Random(5)
    for _ in range(200):
        text = make(draw)
        for finding in find(text, addresses=True).findings:
            assert 0 <= finding.start < finding.end <= len(text)
