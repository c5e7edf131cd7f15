"""Secrets and personal data are found, in English and Chinese texts, in codes too; what only looks like them is not told."""

from __future__ import annotations

import base64
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kokuban_server.core.redaction.masking import Wish, redact
from kokuban_server.core.redaction.readings import HOLE
from kokuban_server.core.redaction.rules import RULES
from kokuban_server.core.redaction.search import find, is_clean
from kokuban_server.core.screening import decoding
from kokuban_server.core.sensitive import Handling, Kind, Terms
from tests.core import sensitive
from tests.core.sensitive import BENIGN, CHINESE, PERSONAL, SECRETS, TEMPLATES, VIEWS, positive

if TYPE_CHECKING:
    from tests.core.sensitive import Family

EACH = 300
EACH_VIEW = 60
ALL = (*SECRETS, *PERSONAL, *CHINESE)


def is_found(kind: str, text: str) -> bool:
    return kind in {finding.type for finding in find(text).findings}


def families(of: tuple[Family, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", of, ids=lambda family: family.type)


@families(ALL)
def test_ninety_nine_of_a_hundred_are_found(family: Family) -> None:
    shares = sensitive.recall([family], EACH, 7, is_found)
    assert shares[family.type] >= 0.99


@pytest.mark.parametrize("view", VIEWS)
def test_they_are_found_in_codes_and_under_disguise(view: str) -> None:
    draw = random.Random(view)
    texts = [(family.type, positive(draw, family)[1]) for family in ALL for _ in range(EACH_VIEW)]
    missed = [text for kind, text in texts if len(text) >= 8 and not is_found(kind, VIEWS[view](draw, text))]
    assert len(missed) <= len(texts) // 100, missed[:5]


@pytest.mark.parametrize("view", ["plain", *VIEWS])
def test_no_text_is_taken_for_clean_in_which_anything_is_found(view: str) -> None:
    """Neither alone nor beside others: nearly every write is only asked this."""
    draw = random.Random(view)
    for _ in range(EACH_VIEW // 4):
        for family in ALL:
            text = positive(draw, family)[1]
            told = text if view == "plain" else VIEWS[view](draw, text)
            for written in (told, f"{draw.choice(BENIGN)} {HOLE} {told} {HOLE} shared:plan"):
                if find(told).findings:
                    assert not is_clean(written), written


def test_plain_texts_are_taken_for_clean() -> None:
    texts = [text for text in BENIGN if is_clean(text)]
    assert len(texts) * 2 > len(BENIGN)
    assert is_clean("looked at core/lexer.py on 2026-11-30: split_tokens() runs twice")
    assert is_clean("")


@given(
    st.text(alphabet=st.sampled_from("aZ19+/_-= \n.:%ü")), st.lists(st.sampled_from(["dGhlIHRva2VuIGlz", "aGk", "\n"]))
)
def test_codes_are_seen_by_the_short_look_as_by_the_long_one(text: str, pieces: list[str]) -> None:
    whole = text + "".join(pieces)
    parts = list(decoding.base64_parts(whole, decoding.SHORT_BASE64))
    assert decoding.has_short_base64(whole) == bool(parts)


@given(
    st.binary(min_size=9)
    | st.text(min_size=9).map(str.encode)
    | st.text(min_size=5).map(lambda text: text.encode("utf-16-le", "replace"))
)
def test_what_is_text_in_base64_is_taken_for_text(raw: bytes) -> None:
    code = base64.b64encode(raw).decode().rstrip("=")
    assume(len(code) >= 16)
    told = [text for text, _, _ in decoding.base64_parts(code, decoding.SHORT_BASE64)]
    assert told == ([] if decoding.as_text(raw) is None else [decoding.as_text(raw)])


@families(SECRETS)
def test_SE_01_a_secret_in_a_text_for_memory_is_found_in_every_sentence(family: Family) -> None:
    """Keys and tokens came to lie in clear text in memories. Here they are found and masked."""
    draw = random.Random(family.type)
    for template in family.templates or TEMPLATES:
        value = family.make(draw)
        text = template.format(value)
        (finding, *_) = [one for one in find(text).findings if one.type == family.type]
        assert finding.kind is Kind.SECRET
        assert finding.value in value
        assert text[finding.start : finding.end] == finding.value
        assert finding.value not in redact(text, Wish(Terms(), b"key")).text


@pytest.mark.parametrize("text", BENIGN)
def test_what_only_looks_like_them_is_not_told(text: str) -> None:
    assert find(text).findings == ()


@pytest.mark.parametrize("family", [PERSONAL[1], PERSONAL[2], CHINESE[1], CHINESE[2]], ids=lambda family: family.type)
def test_a_number_whose_check_digit_is_wrong_is_not_told(family: Family) -> None:
    draw = random.Random(3)
    for _ in range(100):
        value = family.make(draw)
        at = draw.choice([place for place, sign in enumerate(value) if sign.isdigit() and place > 5])
        # One digit changed: each of these formulas notices that.
        wrong = value[:at] + str((int(value[at]) + draw.randrange(1, 9)) % 10) + value[at + 1 :]
        assert family.type not in {finding.type for finding in find(f"number {wrong}, noted").findings}, wrong


@pytest.mark.parametrize(
    "text",
    [
        "000-12-3456", "666-12-3456", "900-12-3456", "123-00-4567", "123-45-0000",  # none of these is given out
        "11010119900231002X", "110101199013310025",  # no such day, no such month
        "4111111111111111.5", "x4111111111111111", "1.4111111111111111", "0000000000000000",
        "see eyJhbGciOm51bGx9x.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "git@github.com:team/project.git", "logo@2x.png", "1.2.3.4",
        "password: <your password>", "PASSWORD=${DB_PASSWORD}", "密码是 ********", "密码是什么",
    ],
)  # fmt: skip
def test_what_cannot_be_one_is_not_told(text: str) -> None:
    assert find(text).findings == ()


def test_addresses_of_networks_are_told_only_if_asked_for() -> None:
    text = "db at 10.20.30.40, version 1.2.3, 300.1.1.1"
    assert find(text).findings == ()
    (finding,) = find(text, addresses=True).findings
    assert (finding.type, text[finding.start : finding.end]) == ("ip-address", "10.20.30.40")


def test_a_finding_does_not_print_what_it_found() -> None:
    (finding,) = find("password: Zx9!kLmQ7w").findings
    assert finding.value == "Zx9!kLmQ7w"
    assert "Zx9" not in repr(finding)


def test_what_words_told_to_be_secret_is_found_where_no_words_tell_it() -> None:
    text = "password: Zx9!kLmQ7w. I typed Zx9!kLmQ7w and it worked."
    assert [text[one.start : one.end] for one in find(text).findings] == ["Zx9!kLmQ7w"] * 2


@pytest.mark.parametrize(
    "text",
    [
        "<password>{}</password>", "password -> {}", "Server=db;User Id=sa;Password={};Timeout=5", "password for admin is {}.",
        "The passphrase was: `{}`", "redis://:{}@cache:6379/0", "您的密码为：{}。", "口令 {}", '{{"db": {{"pwd":"{}"}}}}',
    ],
)  # fmt: skip
def test_what_is_said_to_be_a_password_is_found_to_its_end(text: str) -> None:
    told = text.format("Xy12kk!9")
    assert [told[one.start : one.end] for one in find(told).findings] == ["Xy12kk!9"]


def test_a_word_that_is_somebodys_password_stays_a_word_elsewhere() -> None:
    text = "postgresql://postgres:postgres@db/postgres is how postgres is reached"
    assert [text[one.start : one.end] for one in find(text).findings] == ["postgres"]


def test_in_json_a_name_tells_of_its_value_and_escapes_hide_nothing() -> None:
    source = r'{"db": {"password": "Zx9!\u006bLmQ7w"}, "note": "line\nAKIAQ3EGRT5XW7BN2LKP"}'
    found = {one.type: source[one.start : one.end] for one in find(source, is_json=True).findings}
    assert found == {"password": r"Zx9!\u006bLmQ7w", "aws-access-key-id": "AKIAQ3EGRT5XW7BN2LKP"}


def test_every_rule_has_a_name_that_a_mask_can_hold() -> None:
    for rule in RULES:
        assert rule.type.replace("-", "").isalnum()
        assert len(rule.type) <= 32
    assert {family.type for family in ALL} <= {rule.type for rule in RULES}


def test_secrets_are_masked_and_personal_data_kept_unless_a_policy_says_otherwise() -> None:
    assert Terms().of(Kind.SECRET) is Handling.MASK
    assert Terms().of(Kind.PERSONAL) is Handling.KEEP
    assert Terms(personal=Handling.REFUSE).of(Kind.PERSONAL) is Handling.REFUSE


def test_benign_texts_of_others_hold_next_to_nothing() -> None:
    """Mail addresses aside: mails have them, and they are what they are told to be."""
    folder = os.environ.get("KOKUBAN_BENIGN_TEXTS")
    if not folder:
        pytest.skip(
            "KOKUBAN_BENIGN_TEXTS names no folder of benign texts (JSON Lines, ben_*.jsonl); they are not part of the project"
        )
    files = [file.read_text(encoding="utf-8") for file in Path(folder).glob("ben_*.jsonl")]
    texts = [json.loads(line)["text"] for file in files for line in file.split("\n") if line]
    assert texts, "the folder has no such files"
    told = Counter(finding.type for text in texts for finding in find(text).findings)
    del told["email"]
    assert told.total() <= 0.05 * len(texts), told
