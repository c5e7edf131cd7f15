"""Board tokens: opaque, told from anything else, and good for one life of the store."""

from __future__ import annotations

import base64
import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kokuban_server.core.refusals import InvalidRequest, TokenFromAnotherStore
from kokuban_server.core.revision import BoardToken, encode_token, is_epoch, revision_of

EPOCH = st.binary(min_size=8, max_size=8).map(bytes.hex)
REVISION = st.integers(0, 2**64 - 1)
BASE64URL = string.ascii_letters + string.digits + "-_"


@given(EPOCH, REVISION)
@example("0" * 16, 0)
@example("f" * 16, 2**63 - 1)
def test_a_token_reads_back(epoch: str, revision: int) -> None:
    token = BoardToken(epoch, revision)
    text = token.encode()
    assert BoardToken.decode(text, "after") == token
    assert text == encode_token(epoch, revision)
    assert set(text) <= set(BASE64URL)  # fits a header and a URL as it is


@given(EPOCH, REVISION, st.integers(0, 23), st.sampled_from(BASE64URL + "+/= é\x00"))
def test_a_token_with_one_wrong_character_is_refused(epoch: str, revision: int, place: int, wrong: str) -> None:
    text = encode_token(epoch, revision)
    assume(text[place] != wrong)
    with pytest.raises(InvalidRequest) as caught:
        BoardToken.decode(text[:place] + wrong + text[place + 1 :], "consistency.at_least")
    assert (caught.value.reason, caught.value.facts) == ("TOKEN_INVALID", {"field": "consistency.at_least"})


def test_every_single_wrong_character_is_refused() -> None:
    text = encode_token("0123456789abcdef", 41)
    for place, right in enumerate(text):
        for wrong in BASE64URL:
            if wrong != right:
                with pytest.raises(InvalidRequest):
                    BoardToken.decode(text[:place] + wrong + text[place + 1 :], "after")


@given(
    st.text()
    | st.text(BASE64URL, min_size=24, max_size=24)
    | st.binary(max_size=40).map(lambda raw: base64.b64encode(raw).decode())
)
@example("")
@example("\ud800")
@example("é" * 24)
@example("A" * 10_000)
def test_what_no_server_gave_out_is_refused(text: str) -> None:
    try:
        token = BoardToken.decode(text, "after")
    except InvalidRequest as refused:
        assert refused.reason == "TOKEN_INVALID"
    else:
        assert token.encode() == text  # a form of its own that happened to be ours


@given(EPOCH, REVISION)
def test_a_token_cut_short_or_made_longer_is_refused(epoch: str, revision: int) -> None:
    text = encode_token(epoch, revision)
    for changed in (
        *(text[:length] for length in range(24)),
        text + "A",
        text + "AAAA",
        " " + text,
        text + "\n",
        text + "=",
    ):
        with pytest.raises(InvalidRequest):
            BoardToken.decode(changed, "after")


@given(EPOCH, EPOCH, REVISION)
def test_a_token_of_another_life_is_refused_by_name(epoch: str, other: str, revision: int) -> None:
    assume(epoch != other)
    text = encode_token(epoch, revision)
    assert revision_of(text, epoch, "after") == revision
    with pytest.raises(TokenFromAnotherStore) as caught:
        revision_of(text, other, "after")
    assert caught.value.facts == {"field": "after"}


@pytest.mark.parametrize("text", ["0123456789abcdef", "0" * 16])
def test_an_epoch_is_sixteen_lower_case_hexadecimal_digits(text: str) -> None:
    assert is_epoch(text)


@pytest.mark.parametrize(
    "text", ["", "0" * 15, "0" * 17, "0123456789ABCDEF", "g" * 16, "0" * 15 + "\n", "0" * 16 + "\n", "٣" * 16]
)
def test_nothing_else_is_an_epoch(text: str) -> None:
    assert not is_epoch(text)


def test_a_revision_that_does_not_fit_is_a_fault_of_ours_not_a_wrong_token() -> None:
    for revision in (-1, 2**64):
        with pytest.raises(OverflowError):
            encode_token("0" * 16, revision)


@given(st.integers(0, 255), EPOCH, REVISION)
def test_a_well_formed_text_of_another_kind_is_no_board_token(kind: int, epoch: str, revision: int) -> None:
    """Tokens of other kinds may come to look alike but for their first byte; one is never taken for another."""
    own = base64.urlsafe_b64decode(encode_token(epoch, revision))
    assume(kind != own[0])
    raw = bytes((kind,)) + own[1:17]
    text = base64.urlsafe_b64encode(raw + bytes((sum(raw) & 0xFF,))).decode()
    with pytest.raises(InvalidRequest):
        BoardToken.decode(text, "after")
