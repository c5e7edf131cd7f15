"""Names are parsed once: what they may be, and what each refusal says."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban_server.core import limits
from kokuban_server.core.names import (
    WITHOUT_ID,
    EntryKey,
    Region,
    RegionKind,
    parse_agent,
    parse_board,
    parse_path,
    parse_region,
)
from kokuban_server.core.refusals import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

# Text of every kind that reaches a parser: plain, any Unicode, lone surrogates, and what names are made of.
ANY_TEXT = st.text() | st.text(st.characters()) | st.text(alphabet="aZ09_-.:/*%\\\x00\ud800\u0301é 界", max_size=40)
LINE_BREAKS_AND_CONTROLS = [
    "\x00",
    "\x01",
    "\t",
    "\n",
    "\r",
    "\x1f",
    "\x7f",
    "\x80",
    "\x85",
    "\x9f",
    "\u2028",
    "\u2029",
]
LONE_SURROGATES = [chr(0xD800), chr(0xDBFF), chr(0xDC00), chr(0xDFFF), chr(0xD83D) + chr(0xDE42)]
DECOMPOSED = "e\u0301"  # é in two code points: valid Unicode, but not in normal form C


def refusal(parse: Callable[[str], object], text: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(text)
    return caught.value


# Boards.


@pytest.mark.parametrize("text", ["a", "0", "main", "a-b", "a--b", "9z", "b" * limits.BOARD_ID_BYTES_MAX])
def test_a_board_id_is_lower_case_letters_digits_and_inner_hyphens(text: str) -> None:
    assert parse_board(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "-a",
        "a-",
        "-",
        "A",
        "a_b",
        "a.b",
        "a/b",
        "a b",
        "a\n",
        "é",
        "٣",
        "*",
        "a\x00",
        "\ud800",
        "b" * (limits.BOARD_ID_BYTES_MAX + 1),
    ],
)
def test_any_other_board_id_is_refused(text: str) -> None:
    refused = refusal(parse_board, text)
    assert (refused.reason, refused.facts) == ("FIELD_INVALID", {"field": "board"})


def test_a_board_has_no_default() -> None:
    assert refusal(parse_board, "").reason == "FIELD_REQUIRED"


# Agents.


@pytest.mark.parametrize("text", ["a", "writer-7", "a@b.c/d:e", "!", "~", "x" * limits.AGENT_ID_BYTES_MAX])
def test_an_agent_id_is_printable_ascii(text: str) -> None:
    assert parse_agent(text) == text


@pytest.mark.parametrize(
    "text", ["", " ", "a b", "a\n", "\ta", "\x7f", "\x00", "é", "\ud800", "x" * (limits.AGENT_ID_BYTES_MAX + 1)]
)
def test_any_other_agent_id_is_refused(text: str) -> None:
    assert parse_agent(text) is None


# Regions.


@pytest.mark.parametrize("kind", sorted(set(RegionKind) - WITHOUT_ID))
def test_a_region_of_these_kinds_has_an_id(kind: RegionKind) -> None:
    assert parse_region(f"{kind}:x") == Region(kind, "x")
    assert refusal(parse_region, kind).reason == "REGION_INVALID"
    assert refusal(parse_region, f"{kind}:").reason == "REGION_INVALID"


@pytest.mark.parametrize("kind", sorted(WITHOUT_ID))
def test_a_region_of_these_kinds_has_no_id(kind: RegionKind) -> None:
    assert parse_region(kind) == Region(kind, "")
    assert refusal(parse_region, f"{kind}:").reason == "REGION_INVALID"
    assert refusal(parse_region, f"{kind}:x").reason == "REGION_INVALID"


def test_a_region_has_no_default() -> None:
    refused = refusal(parse_region, "")
    assert (refused.reason, refused.facts) == ("REGION_REQUIRED", {"field": "region"})


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "x:y",
        ":",
        ":x",
        "SHARED:x",
        "Shared:x",
        " shared:x",
        "shared :x",
        "shared",
        "*",
        "*:x",
        "shared\x00:x",
        "\ud800",
    ],
)
def test_a_region_of_an_unknown_kind_is_refused(text: str) -> None:
    assert refusal(parse_region, text).reason == "REGION_INVALID"


@pytest.mark.parametrize("bad", [*LINE_BREAKS_AND_CONTROLS, *LONE_SURROGATES, DECOMPOSED, "/"])
@pytest.mark.parametrize("form", ["{}", "x{}", "{}x", "x{}x"])
def test_a_region_id_is_one_line_of_unicode_in_normal_form_without_slash(bad: str, form: str) -> None:
    assert refusal(parse_region, "shared:" + form.format(bad)).reason == "REGION_INVALID"


@pytest.mark.parametrize("text", ["*", "?", "%", "a:b", ":", "..", ".", "[a-z]", " ", "é", "界", "\U0001f642"])
def test_no_character_of_a_region_id_is_a_wildcard(text: str) -> None:
    assert parse_region(f"shared:{text}") == Region(RegionKind.SHARED, text)


@pytest.mark.parametrize("unit", ["x", "é", "界", "\U0001f642"])
def test_a_region_id_is_measured_in_bytes(unit: str) -> None:
    longest = unit * (limits.REGION_ID_BYTES_MAX // len(unit.encode()))
    longest += "x" * (limits.REGION_ID_BYTES_MAX - len(longest.encode()))
    assert parse_region(f"task:{longest}").id == longest
    assert refusal(parse_region, f"task:{longest}x").reason == "REGION_INVALID"


@given(ANY_TEXT | ANY_TEXT.map("shared:{}".format))
def test_a_region_that_parses_is_spelled_as_it_was_given(text: str) -> None:
    try:
        region = parse_region(text, "key.region")
    except InvalidRequest as refused:
        assert refused.reason in {"REGION_REQUIRED", "REGION_INVALID"}
        assert refused.facts == {"field": "key.region"}
        assert text not in refused.detail or len(text) < 10  # what was sent does not come back in words
    else:
        assert str(region) == text
        assert parse_region(str(region)) == region


# Paths.


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "task_123/sub_02/step_05",
        "a.b",
        ".a",
        "..a",
        "...",
        "a/.hidden",
        "a..",
        "é",
        "界/\U0001f642",
        "a b",
        " ",
        "%2F",
        "a%00",
        "\\",
        "\ufffd",
        "\xa0",
        "a:b@c=d+e,f~g-h",
    ],
)
def test_a_path_is_segments_of_any_printable_text(text: str) -> None:
    assert parse_path(text) == text


@pytest.mark.parametrize(
    "text", ["*", "a/*", "**", "a?", "[ab]", "%", "_", "a/%", "{a,b}", "$", "^a", "'; --", '"', "$ne"]
)
def test_no_character_of_a_path_is_a_wildcard(text: str) -> None:
    assert parse_path(text) == text


@pytest.mark.parametrize(
    "text", ["/", "/a", "a/", "a//b", "//", ".", "..", "a/.", "./a", "a/../b", "../a", "a/..", "é/..", "é//"]
)
def test_a_segment_is_not_empty_and_does_not_climb(text: str) -> None:
    refused = refusal(parse_path, text)
    assert (refused.reason, refused.facts) == ("PATH_INVALID", {"field": "path"})


@pytest.mark.parametrize("bad", [*LINE_BREAKS_AND_CONTROLS, *LONE_SURROGATES, DECOMPOSED])
@pytest.mark.parametrize("form", ["{}", "a{}", "{}a", "a/{}/b"])
def test_a_path_is_one_line_of_unicode_in_normal_form(bad: str, form: str) -> None:
    assert refusal(parse_path, form.format(bad)).reason == "PATH_INVALID"


def test_a_path_has_no_default() -> None:
    refused = refusal(parse_path, "")
    assert (refused.reason, refused.facts) == ("PATH_REQUIRED", {"field": "path"})


@pytest.mark.parametrize("unit", ["x", "é", "界", "\U0001f642"])
def test_a_path_is_measured_in_bytes(unit: str) -> None:
    longest = unit * (limits.PATH_BYTES_MAX // len(unit.encode()))
    longest += "x" * (limits.PATH_BYTES_MAX - len(longest.encode()))
    assert parse_path(longest) == longest
    refused = refusal(parse_path, longest + "x")
    assert refused.reason == "PATH_TOO_LONG"
    assert refused.facts == {"field": "path", "limit": "1024", "actual": "1025"}


@pytest.mark.parametrize("segment", ["x", "é"])
def test_a_path_has_a_bounded_number_of_segments(segment: str) -> None:
    deepest = "/".join([segment] * limits.PATH_SEGMENTS_MAX)
    assert parse_path(deepest) == deepest
    refused = refusal(parse_path, f"{deepest}/{segment}")
    assert refused.reason == "PATH_TOO_DEEP"
    assert refused.facts == {"field": "path", "limit": "16", "actual": "17"}


def is_a_path(text: str) -> bool:
    """Say what parse_path should, in the slowest and plainest way."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    segments = text.split("/")
    return (
        size <= limits.PATH_BYTES_MAX
        and len(segments) <= limits.PATH_SEGMENTS_MAX
        and not {"", ".", ".."}.intersection(segments)
        and unicodedata.normalize("NFC", text) == text
        and not any(unicodedata.category(character) in {"Cc", "Zl", "Zp"} for character in text)
    )


@given(ANY_TEXT)
def test_a_path_is_taken_as_it_is_or_refused_and_never_mended(text: str) -> None:
    """The fast way for plain ASCII and the careful way agree with the rule."""
    try:
        parsed = parse_path(text, "key.path")
    except InvalidRequest as refused:
        assert not is_a_path(text)
        assert refused.reason in {"PATH_REQUIRED", "PATH_INVALID", "PATH_TOO_LONG", "PATH_TOO_DEEP"}
        assert refused.facts["field"] == "key.path"
    else:
        assert is_a_path(text)
        assert parsed == text


@given(ANY_TEXT)
def test_a_refusal_can_be_told_to_a_client(text: str) -> None:
    """The detail and the facts of a refusal are valid Unicode whatever was sent."""
    for parse in (parse_board, parse_region, parse_path):
        try:
            parse(text)
        except InvalidRequest as refused:
            for told in (refused.detail, str(refused), *refused.facts.values()):
                told.encode()


def test_a_refusal_names_its_field_from_further_up() -> None:
    refused = refusal(lambda text: parse_path(text, "key.path"), "a" * 1025).under("mutations[3].put")
    assert refused.facts == {"field": "mutations[3].put.key.path", "limit": "1024", "actual": "1025"}


def test_an_entry_key_reads_as_region_and_path() -> None:
    assert str(EntryKey(parse_region("shared:plan"), "a/b")) == "shared:plan/a/b"
    assert str(EntryKey(parse_region("tenant"), "a")) == "tenant/a"
