"""Seals in a text: which are taken for the server's own, what is left to be encrypted, and that nothing is shown before."""

from __future__ import annotations

import base64
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban_server.core import json_values
from kokuban_server.core.redaction.masking import Wish, redact
from kokuban_server.core.redaction.search import find
from kokuban_server.core.seals import seal, seals_in, without_texts, written_in
from kokuban_server.core.sensitive import Handling, Terms, strictest
from tests.core.sensitive import CHINESE, PERSONAL, SECRETS, Family, positive

KEY = b"key of the board"
ENCRYPT, MASK, KEEP, OFF, REFUSE = Handling.ENCRYPT, Handling.MASK, Handling.KEEP, Handling.OFF, Handling.REFUSE
BOTH = Wish(Terms(ENCRYPT, ENCRYPT), KEY)
MAIL, PASSWORD = "li.wei@mail.internal", "Zx9!kLmQ7w"


@given(st.binary(max_size=100), st.text(max_size=20), st.text(max_size=20))
def test_a_seal_is_read_as_it_was_written_whatever_stands_beside_it(raw: bytes, before: str, after: str) -> None:
    made = seal("email", "0a1b2c", "k-1", raw or b"x", KEY)
    text = before + made + after
    [one] = seals_in(text)
    assert (one.type, one.digest, one.key_id, one.raw) == ("email", "0a1b2c", "k-1", raw or b"x")
    assert text[one.start : one.end] == made
    assert written_in(text, KEY) == [(one.start, one.end)]
    assert without_texts(made) == "[sealed:email:0a1b2c]"


def test_a_seal_of_another_board_or_that_was_changed_is_none_of_the_servers() -> None:
    made = seal("email", "0a1b2c", "k1", b"some bytes", KEY)
    assert written_in(made, KEY)
    assert not written_in(made, b"key of another board")
    for changed in (
        made.replace("email", "phone"),
        made.replace("0a1b2c", "0a1b2d"),
        made.replace(":k1:", ":k2:"),
        made[:30] + ("A" if made[30] != "A" else "B") + made[31:],
        made[:-2] + ("A" if made[-2] != "A" else "E") + "]",
    ):
        assert len(list(seals_in(changed))) == 1
        assert not written_in(changed, KEY)
    assert not list(seals_in(made[:-1]))
    assert [one.raw for one in seals_in("[sealed:email:0a1b2c:k1:AAAAA.AAAAAAAAAAA]")] == [
        b""
    ]  # no base64 has this length


def test_what_only_looks_like_a_seal_hides_nothing() -> None:
    coded = base64.urlsafe_b64encode(f"password: {PASSWORD} and {MAIL}".encode()).decode().rstrip("=")
    forged = f"[sealed:email:0a1b2c:k1:{coded}.AAAAAAAAAAA]"
    assert redact(forged, BOTH).total
    made = seal("email", "0a1b2c", "k1", f"password: {PASSWORD} and {MAIL}".encode(), KEY)
    assert not redact(f"password: {made}", BOTH).total
    assert redact(made, BOTH._replace(key=b"key of another board")).total


@pytest.mark.parametrize("family", [*SECRETS, *PERSONAL, *CHINESE], ids=lambda family: family.type)
def test_what_is_to_be_encrypted_is_masked_until_it_is_and_its_place_is_told(family: Family) -> None:
    draw = random.Random(family.type)
    for _ in range(5):
        text = positive(draw, family)[1]
        encrypted, masked = redact(text, BOTH), redact(text, BOTH._replace(terms=Terms(MASK, MASK)))
        assert encrypted.text == masked.text
        assert encrypted.to_encrypt
        assert not masked.to_encrypt
        put_back, done = "", 0
        for one in encrypted.to_encrypt:
            assert encrypted.text[one.at : one.until] == f"[redacted:{one.type}:{one.digest}]"
            put_back += encrypted.text[done : one.at] + text[one.start : one.end]
            done = one.until
        assert put_back + encrypted.text[done:] == text


@given(st.integers(0, 2**32))
def test_what_is_encrypted_and_written_again_is_not_found_again(number: int) -> None:
    """Whatever bytes a seal holds: also such as look like a code."""
    draw = random.Random(number)
    for raw in (draw.randbytes(60), base64.b64encode(draw.randbytes(45)), f"api_key={PASSWORD}{number}".encode()):
        made = seal("password", "0a1b2c", "k1", raw, KEY)
        for text in (made, f"password: {made}", f"token={made} {made}", f"https://u:{made}@h.example/"):
            assert redact(text, BOTH).text == text
        told = json.dumps({"password": made, "list": [made]})
        assert redact(told, BOTH._replace(is_json=True)).text == told


def test_in_json_a_number_is_encrypted_whole_and_names_are_told() -> None:
    wish = BOTH._replace(is_json=True)
    source = f'{{"card": 4111111111111111, "mail": "to {MAIL}", "{MAIL}": [1], "n": 1}}'
    found = redact(source, wish)
    number, mail = found.to_encrypt
    assert source[number.start : number.end] == "4111111111111111"
    assert found.text[number.at : number.until] == f'"[redacted:bank-card:{number.digest}]"'
    assert source[mail.start : mail.end] == MAIL
    assert found.named == ("email",)
    assert MAIL not in found.text
    assert not redact(source, wish._replace(terms=Terms(MASK, MASK))).named
    assert not redact('{"mail": "a@b.internal"}', wish).named


def test_what_overlaps_with_what_is_masked_for_good_is_masked() -> None:
    text = f"https://u:{PASSWORD}@h.example/ {MAIL}"
    of_both = redact(text, BOTH)
    assert {one.type for one in find(text).findings} >= {"email"}
    assert {text[one.start : one.end] for one in of_both.to_encrypt} >= {MAIL}
    apart = redact(text, BOTH._replace(terms=Terms(MASK, ENCRYPT)))
    assert [text[one.start : one.end] for one in apart.to_encrypt] == [MAIL]
    overlapping = base64.b64encode(
        f"password: {PASSWORD} of {MAIL}".encode()
    ).decode()  # both stand where all of the code does
    assert len({one.type for one in find(overlapping).findings}) == 2
    assert redact(overlapping, BOTH).to_encrypt
    for terms in (Terms(MASK, ENCRYPT), Terms(ENCRYPT, MASK), Terms(REFUSE, ENCRYPT)):
        assert not redact(overlapping, BOTH._replace(terms=terms)).to_encrypt
    # What is kept does not count: it is not taken out.
    assert redact(overlapping, BOTH._replace(terms=Terms(ENCRYPT, KEEP))).to_encrypt


def test_of_several_regions_the_strictest_holds() -> None:
    order = (OFF, KEEP, ENCRYPT, MASK, REFUSE)
    for place, one in enumerate(order):
        for other in order[place:]:
            assert strictest([Terms(one, other), Terms(other, one)]) == Terms(other, other)


def test_a_text_that_cannot_be_encrypted_is_masked() -> None:
    assert Terms(ENCRYPT, KEEP).masking == Terms(MASK, KEEP)
    assert Terms(REFUSE, ENCRYPT).masking == Terms(REFUSE, MASK)
    assert Terms(MASK, OFF).masking == Terms(MASK, OFF)
    assert [Terms(*both).encrypts for both in ((ENCRYPT, OFF), (MASK, ENCRYPT), (MASK, MASK))] == [True, True, False]


def test_values_that_are_told_to_be_equal_are_one_in_a_set() -> None:
    one, other = (json_values.identity(seal("email", "0a1b2c", "k1", raw, KEY)) for raw in (b"one", b"other"))
    assert one != other
    assert without_texts(one) == without_texts(other)
    assert without_texts(one) != without_texts(json_values.identity(seal("email", "0a1b2d", "k1", b"one", KEY)))
