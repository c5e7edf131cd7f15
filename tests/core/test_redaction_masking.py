"""Masks: nothing of what was found is left, nothing else is changed, JSON stays JSON, and masking twice is masking once."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kokuban_server.core import json_values
from kokuban_server.core.redaction.masking import Wish, keyed, mask, redact
from kokuban_server.core.redaction.search import find, merged
from kokuban_server.core.sensitive import Handling, Kind, Terms, strictest
from tests.core.sensitive import CHINESE, PERSONAL, SECRETS, VIEWS, positive

ALL = (*SECRETS, *PERSONAL, *CHINESE)
BOTH = Terms(Handling.MASK, Handling.MASK)
WISH = Wish(BOTH, b"key", addresses=True)
MASK = re.compile(r"\[redacted:[a-z\-]+:[0-9a-f]{6}\]")


@st.composite
def sensitive(drawing: st.DrawFn) -> str:
    """Give a sentence that holds something, as it is or in a code."""
    draw = random.Random(drawing(st.integers(0, 2**32)))
    text = positive(draw, drawing(st.sampled_from(ALL)))[1]
    view = drawing(st.sampled_from([None, None, *VIEWS]))
    return text if view is None else VIEWS[view](draw, text)


PIECES = [
    "password: ",
    "密码是",
    "4111 1111 1111 1111",
    "[redacted:email:0a1b2c]",
    "%41",
    "\\n",
    "&#",
    "://a:b1@",
    "\u200b",
    "sk-",
    "\x00",
]
NOISE = st.one_of(st.text(st.characters(codec=None), max_size=20), st.sampled_from(PIECES))
TEXTS = st.lists(st.one_of(sensitive(), NOISE), max_size=6).map("".join)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.just(4111111111111111), st.text(max_size=10), sensitive()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.just("password"), sensitive()), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(TEXTS)
@example("13800138000ghp_" + "aB3" * 12)
@example("password: [redacted:password:0a1b2c] Zx9!kLmQ7w")
def test_masking_twice_is_masking_once(text: str) -> None:
    once = redact(text, WISH).text
    again = redact(once, WISH)
    assert (again.text, again.total) == (once, 0)


@given(TEXTS)
def test_nothing_but_the_spans_is_changed(text: str) -> None:
    findings = find(text).findings
    spans = merged((one.start, one.end) for one in findings)
    pieces: list[str] = []
    at = 0
    for start, end in spans:
        assert 0 <= start < end <= len(text)
        pieces += (re.escape(text[at:start]), MASK.pattern)
        at = end
    assert re.fullmatch("".join(pieces) + re.escape(text[at:]), mask(text, findings, keyed(b"key")).text)


@given(st.lists(st.sampled_from(ALL), min_size=1, max_size=4), st.integers(0, 2**32))
def test_no_found_value_is_left(families: list[object], seed: int) -> None:
    draw = random.Random(seed)
    made = [positive(draw, family) for family in families]  # type: ignore[arg-type] # of families
    text = "\n".join(sentence for _, sentence in made)
    left = redact(text, WISH).text
    for finding in find(text, addresses=True).findings:
        assert text[finding.start : finding.end] not in left
        assert finding.value not in left


@given(JSON)
def test_json_stays_json_of_the_same_shape(value: object) -> None:
    source = json.dumps(value, ensure_ascii=len(str(value)) % 2 == 0)
    wish = WISH._replace(is_json=True)
    once = redact(source, wish)
    json_values.parse(once.text)
    assert _shape(json.loads(once.text)) == _shape(value)
    assert redact(once.text, wish).total == 0


def _shape(value: object) -> object:
    if isinstance(value, dict):
        return [_shape(item) for item in value.values()]
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return "leaf"


def test_a_number_in_json_becomes_a_string_and_a_string_keeps_what_was_around() -> None:
    source = r'{"card": 4111111111111111, "text": "a\t\"4111 1111 1111 1111\"\u00e9", "n": [1, -2.5e3]}'
    redacted = redact(source, WISH._replace(is_json=True)).text
    told = json.loads(redacted)
    assert MASK.fullmatch(told["card"])
    assert told["text"] == f'a\t"{told["card"]}"é'  # the same number, the same digest
    assert redacted.startswith('{"card": "[redacted:bank-card:')
    assert redacted.endswith(r'\u00e9", "n": [1, -2.5e3]}')


def test_names_of_one_object_stay_apart_when_they_are_the_same_value() -> None:
    source = json.dumps(
        {"4111 1111 1111 1111": 1, "4111111111111111": 2, "in": {"4111-1111-1111-1111": 3}, "a": {"b": 4}}
    )
    redacted = redact(source, WISH._replace(is_json=True)).text
    json_values.parse(redacted)
    first, second, *_ = told = json.loads(redacted)
    assert (MASK.fullmatch(first) is not None, second) == (True, f"{first}~2")
    assert told["in"] == {first: 3}  # another object
    spelt = dict.fromkeys(gap.join(["4111", "1111", "1111", "1111"]) for gap in ("", " ", "-", "\u200b"))
    numbered = [first, *(f"{first}~{number}" for number in range(2, 5))]
    assert list(json.loads(redact(json.dumps(spelt), WISH._replace(is_json=True)).text)) == numbered
    assert redact(redacted, WISH._replace(is_json=True)).text == redacted


def test_a_key_over_several_strings_is_masked_in_each() -> None:
    lines = ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "-----END PRIVATE KEY-----"]
    told = json.loads(redact(json.dumps(["before", *lines, "after"]), WISH._replace(is_json=True)).text)
    assert (told[0], told[-1]) == ("before", "after")
    assert all(MASK.fullmatch(line) for line in told[1:-1])


def test_equal_values_have_equal_masks_under_one_key_and_others_under_another() -> None:
    text = "4111 1111 1111 1111 or 4111111111111111, not 5555555555554444"
    first, second, third = MASK.findall(redact(text, WISH).text)
    assert first == second != third
    assert first not in redact(text, WISH._replace(key=b"other")).text


def test_a_key_has_up_to_64_bytes() -> None:
    assert redact("a@b.cc", WISH._replace(key=bytes(64))).total == 1
    with pytest.raises(ValueError, match="key"):
        redact("a@b.cc", WISH._replace(key=bytes(65)))


def test_what_is_encoded_is_masked_with_the_whole_of_its_code() -> None:
    text = VIEWS["base64"](random.Random(1), "the password is Zx9!kLmQ7w")
    redaction = redact(f"see {text} there", WISH)
    assert re.fullmatch(rf"see {MASK.pattern}=* there", redaction.text)
    assert redaction.places[0].reading == "base64"


@pytest.mark.parametrize(
    ("terms", "left", "is_refused"),
    [
        (Terms(), {"a@b.example"}, False),
        (BOTH, set(), False),
        (Terms(Handling.REFUSE, Handling.KEEP), {"a@b.example"}, True),
        (Terms(Handling.KEEP, Handling.KEEP), {"a@b.example", "Zx9!kLmQ7w"}, False),
        (Terms(Handling.MASK, Handling.REFUSE), set(), True),
        (Terms(Handling.MASK, Handling.OFF), {"a@b.example"}, False),
    ],
)
def test_each_kind_is_handled_by_its_terms(terms: Terms, left: set[str], is_refused: bool) -> None:  # noqa: FBT001 - expected
    redaction = redact("mail a@b.example, password: Zx9!kLmQ7w", Wish(terms, b"key"))
    assert {value for value in ("a@b.example", "Zx9!kLmQ7w") if value in redaction.text} == left
    assert redaction.is_refused is is_refused
    sought = {kind for kind in Kind if terms.of(kind) is not Handling.OFF}
    assert redaction.kinds == sought
    assert {place.kind for place in redaction.places} == sought
    assert redaction.counts == {one.type: 1 for one in redaction.places}


def test_the_strictest_of_several_is_as_strict_as_each() -> None:
    keeps, masks, off = Handling.KEEP, Handling.MASK, Handling.OFF
    one, other = Terms(keeps, masks, Handling.REFUSE), Terms(masks, off, keeps)
    assert strictest([one, other]) == Terms(masks, masks, Handling.REFUSE)
    assert strictest([other]) == other
    assert Terms(off, off).is_off
    assert not Terms(off).is_off


def test_what_is_kept_does_not_keep_a_secret_that_overlaps_it() -> None:
    text = "https://user:Zx9!kLmQ7w@host.example/path"
    assert "Zx9" not in redact(text, Wish(Terms(), b"key")).text
