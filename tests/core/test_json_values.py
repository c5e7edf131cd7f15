"""JSON on the board: read strictly, numbers never touched, compared by what they mean."""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kokuban_server.core import limits
from kokuban_server.core.json_values import (
    NotJsonError,
    Number,
    TooDeepError,
    dump,
    identity,
    is_too_deep,
    merge_patch,
    parse,
)

if TYPE_CHECKING:
    from random import Random

    from kokuban_server.core.json_values import Json

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
NUMBER = st.from_regex(r"\A-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,6})?([eE][+-]?[0-9]{1,3})?\Z").map(Number)
SCALAR = st.none() | st.booleans() | NUMBER | TEXT
JSON: st.SearchStrategy[Json] = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)


def nested(levels: int, opening: str = "[", closing: str = "]", core: str = "") -> str:
    return opening * levels + core + closing * levels


def meaning(text: str) -> object:
    """The value of a JSON text with exact numbers; powers are small where this is used."""

    def pairs(found: list[tuple[str, object]]) -> tuple[str, frozenset[tuple[str, object]]]:
        return ("object", frozenset(found))

    def hashable(value: object) -> object:
        return tuple(map(hashable, value)) if isinstance(value, list) else value

    def number(spelling: str) -> tuple[str, Fraction]:
        return ("number", Fraction(spelling))

    decoder = json.JSONDecoder(
        object_pairs_hook=lambda found: pairs([(name, hashable(value)) for name, value in found]),
        parse_int=number,
        parse_float=number,
    )
    return hashable(decoder.decode(text))


# Reading.


@given(JSON)
def test_a_value_comes_back_from_its_text(value: Json) -> None:
    text = dump(value)
    assert parse(text) == value
    assert dump(parse(text)) == text


@given(JSON)
def test_the_text_of_a_value_is_json_as_others_read_it(value: Json) -> None:
    text = dump(value)
    text.encode()
    assert json.loads(text, parse_int=Number, parse_float=Number) == value
    assert "\n" not in text


@pytest.mark.parametrize(
    "spelling",
    [
        "0",
        "-0",
        "1.0",
        "1.50",
        "1E5",
        "1e+05",
        "1e-7",
        "123456789012345678901234567890",
        "0.1000000000000000055",
        "-1e999999999",
    ],
)
def test_a_number_keeps_its_spelling(spelling: str) -> None:
    assert dump(parse(f" [ {spelling} ] ")) == f"[{spelling}]"


@pytest.mark.parametrize(
    "text", ['"\\ud83d\\ude42"', '"\U0001f642"', '"\\u00e9"', '"\\u0000"', '"\\/"', "\t\n\r 1 ", "{}", '""']
)
def test_what_the_standard_allows_is_taken(text: str) -> None:
    assert parse(text) == json.loads(text, parse_int=Number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "NaN",
        "Infinity",
        "-Infinity",
        "[NaN]",
        "nan",
        "True",
        "undefined",
        "'a'",
        "{a:1}",
        "[1,]",
        '{"a":1,}',
        "01",
        "+1",
        ".5",
        "1.",
        "0x10",
        "1_000",
        "\u0661",
        "1 2",
        "[1] x",
        "// x\n1",
        "\ufeff1",
        "\xa01",
        '"a',
        '"a\nb"',
        '"a\x00b"',
        '"\\x41"',
        '"\\u12"',
        "[",
        "{",
        '{"a"}',
        '{"a":}',
        "\x00",
        "1\x00",
    ],
)
def test_what_is_not_one_json_text_is_refused(text: str) -> None:
    with pytest.raises(NotJsonError):
        parse(text)


@pytest.mark.parametrize("text", ['{"a":1,"a":1}', '{"a":1,"\\u0061":2}', '[{"b":{"":1,"":2}}]'])
def test_a_name_stands_once_in_an_object(text: str) -> None:
    with pytest.raises(NotJsonError):
        parse(text)


@pytest.mark.parametrize(
    "text", ['"\\ud800"', '["\\udfff"]', '{"\\ud800":1}', '"\\ude42\\ud83d"', '{"a":{"b":["\\ud83dx"]}}']
)
def test_half_of_a_surrogate_pair_is_refused(text: str) -> None:
    with pytest.raises(NotJsonError):
        parse(text)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
@pytest.mark.parametrize("core", ["1", "[]", "{}"])
def test_nesting_is_taken_up_to_the_limit(opening: str, closing: str, core: str) -> None:
    levels = opening.count("[") + opening.count("{")
    own = 0 if core == "1" else 1
    deepest = (limits.JSON_DEPTH_MAX - own) // levels
    odd = (limits.JSON_DEPTH_MAX - own) % levels
    at_limit = nested(odd, core=nested(deepest, opening, closing, core))
    assert not is_too_deep(parse(at_limit))
    with pytest.raises(TooDeepError):
        parse(f"[{at_limit}]")


@pytest.mark.parametrize("levels", [33, 500, 5_000, 200_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_no_depth_breaks_the_reader(levels: int, opening: str, closing: str) -> None:
    with pytest.raises(TooDeepError):
        parse(nested(levels, opening, closing, "1"))
    with pytest.raises((TooDeepError, NotJsonError)):
        parse(opening * levels)


def test_depth_of_a_computed_value_is_judged_alike() -> None:
    value: Json = []
    for _ in range(limits.JSON_DEPTH_MAX - 1):
        value = [value]
    assert not is_too_deep(value)
    assert is_too_deep({"a": value})


@given(st.text(alphabet='{}[]:,"\\/ue0d8019-+.Ef tra\x00é\ud800\n', max_size=24) | st.text())
@example('{"a":' * 40)
def test_any_text_is_taken_or_refused_and_never_breaks_the_reader(text: str) -> None:
    try:
        value = parse(text)
    except (NotJsonError, TooDeepError):
        return
    assert identity(parse(dump(value))) == identity(value)


# Integers.


@pytest.mark.parametrize(
    ("spelling", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("41", 41),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775808", None),
        ("-9223372036854775809", None),
        ("99999999999999999999", None),
        ("1.0", None),
        ("1e3", None),
        ("1" * 5_000, None),
    ],
)
def test_an_integer_is_one_that_fits_and_is_spelled_as_one(spelling: str, value: int | None) -> None:
    number = parse(spelling)
    assert isinstance(number, Number)
    assert number.as_integer == value


# Sameness.


@pytest.mark.parametrize(
    "spellings",
    [
        ["1", "1.0", "1.000", "10e-1", "0.1e1", "1e0", "1E+0", "100e-2"],
        ["0", "-0", "0.0", "0e5", "-0.0e-9"],
        ["-12.5", "-125e-1", "-0.125e2", "-1.250e+1"],
        ["1e400", "10e399", "0.1e401"],
        ["100000000000000000000000000000001", "1.00000000000000000000000000000001e32"],
    ],
)
def test_numbers_are_the_same_if_they_mean_the_same(spellings: list[str]) -> None:
    assert len({identity(parse(spelling)) for spelling in spellings}) == 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1", '"1"'),
        ("1", "true"),
        ("0", "false"),
        ("0", "null"),
        ("null", "false"),
        ('""', "null"),
        ("[]", "{}"),
        ("1", "-1"),
        ("1", "10"),
        ("9007199254740992", "9007199254740993"),
        ("1e400", "1e401"),
        ("[1,2]", "[2,1]"),
        ("[1,[2]]", "[[1],2]"),
        ('["1,2"]', '["1","2"]'),
        ('{"a":1}', '{"a":1,"b":null}'),
        ('"1e0"', "1"),
        ('"é"', '"e\u0301"'),
    ],
)
def test_values_of_different_meaning_are_told_apart(left: str, right: str) -> None:
    assert identity(parse(left)) != identity(parse(right))


@given(JSON, JSON)
def test_two_values_share_an_identity_exactly_if_they_are_the_same(left: Json, right: Json) -> None:
    assert (identity(left) == identity(right)) == (meaning(dump(left)) == meaning(dump(right)))


@given(st.dictionaries(TEXT, JSON, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_names_does_not_count(value: dict[str, Json], order: Random) -> None:
    items = list(value.items())
    order.shuffle(items)
    assert identity(dict(items)) == identity(value)


@given(JSON)
def test_an_identity_is_json_of_the_same_value(value: Json) -> None:
    assert identity(parse(identity(value))) == identity(value)


def test_a_power_is_never_computed() -> None:
    assert identity(parse("1e999999999999")) != identity(parse("1e999999999998"))
    with pytest.raises(NotJsonError):
        identity(parse("1e" + "9" * 5_000))


# Merging.


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [  # the cases of RFC 7396, appendix A
        ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
        ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
        ('{"a":"b"}', '{"a":null}', "{}"),
        ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
        ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
        ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
        ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
        ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
        ('["a","b"]', '["c","d"]', '["c","d"]'),
        ('{"a":"b"}', '["c"]', '["c"]'),
        ('{"a":"foo"}', "null", "null"),
        ('{"a":"foo"}', '"bar"', '"bar"'),
        ('{"e":null}', '{"a":1}', '{"e":null,"a":1}'),
        ("[1,2]", '{"a":"b","c":null}', '{"a":"b"}'),
        ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
    ],
)
def test_a_merge_patch_does_what_its_standard_says(target: str, patch: str, merged: str) -> None:
    assert dump(merge_patch(parse(target), parse(patch))) == merged


@given(JSON, JSON)
def test_a_patch_changes_neither_what_it_is_given_nor_anything_twice(target: Json, patch: Json) -> None:
    before = copy.deepcopy((target, patch))
    once = merge_patch(target, patch)
    assert (target, patch) == before
    assert merge_patch(once, patch) == once


@given(JSON, st.dictionaries(TEXT, JSON, max_size=3))
def test_a_patch_removes_what_it_names_null_and_leaves_what_it_does_not_name(
    target: Json, patch: dict[str, Json]
) -> None:
    merged = merge_patch(target, patch)
    assert isinstance(merged, dict)
    kept = target if isinstance(target, dict) else {}
    assert set(merged) == {*kept, *patch} - {name for name, value in patch.items() if value is None}
    assert all(merged[name] == kept[name] for name in set(kept) - set(patch))
