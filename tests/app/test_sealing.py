"""What is sealed in an entry opens as it was, to the character, on its board and in its region, and nowhere else."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kokuban_server.adapters.encryption import KeyRing
from kokuban_server.app.boards import Board
from kokuban_server.app.sealing import Opened, Sealing
from kokuban_server.core import json_values, keys, limits
from kokuban_server.core.boards import BoardRecord
from kokuban_server.core.entry import Form, Value
from kokuban_server.core.names import Region, RegionKind
from kokuban_server.core.redaction.masking import Wish, redact
from kokuban_server.core.refusals import EncryptionUnavailable, InvalidRequest
from kokuban_server.core.seals import seals_in
from kokuban_server.core.sensitive import Handling, Terms
from tests.core.test_redaction_masking import JSON, TEXTS

MAIL = "li.wei@mail.internal"
BOARD = Board(keys.board("acme", "main"), BoardRecord(1_000, "ops"), 1)
REGION = Region(RegionKind.SHARED, "plan")
ENCRYPT = Terms(Handling.ENCRYPT, Handling.ENCRYPT, Handling.KEEP)


def digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, key=b"of the store", digest_size=16).digest()


SEALING = Sealing(KeyRing({"k1": b"\x01" * 32}), digest)


def sealed(text: str, *, is_json: bool = False, board: Board = BOARD, sealing: Sealing = SEALING) -> str:
    redaction = redact(text, Wish(ENCRYPT, sealing.mask_key(board), is_json))
    return sealing.sealed(board, REGION, "value", text, redaction, is_json=is_json)


def opened(value: Value, board: Board = BOARD, region: Region = REGION, sealing: Sealing = SEALING) -> Opened:
    return sealing.opened(board, region, value, {})


@given(TEXTS)
def test_a_text_opens_as_it_was(text: str) -> None:
    assume(max(text, default="") < "\ud800" or text.encode(errors="ignore").decode() == text)
    stored = sealed(text)
    found = opened(Value(Form.TEXT, stored))
    assert found.value == Value(Form.TEXT, text)
    assert sum(one.opened for one in found.texts) == len(list(seals_in(stored)))
    assert not any(one.unknown_keys or one.unopened for one in found.texts)


@given(JSON, st.booleans())
def test_json_opens_as_it_was_spelt(value: object, escaped: bool) -> None:  # noqa: FBT001 - given
    source = json.dumps(value, ensure_ascii=escaped)
    try:
        json_values.parse(source)
    except json_values.NotJsonError:
        assume(False)
    assume(not redact(source, Wish(ENCRYPT, b"key", is_json=True)).named)  # which is refused
    stored = sealed(source, is_json=True)
    json_values.parse(stored)
    assert opened(Value(Form.JSON, stored)).value == Value(Form.JSON, source)
    for one in seals_in(stored):  # copied into a text
        [told] = opened(Value(Form.TEXT, stored[one.start : one.end])).texts
        assert told.opened == 1
    again = redact(stored, Wish(ENCRYPT, SEALING.mask_key(BOARD), is_json=True))
    assert (again.text, again.total) == (stored, 0)


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"region": Region(RegionKind.SHARED, "plan2")},
        {"region": Region(RegionKind.TASK, "plan")},
        {"board": Board(keys.board("acme", "main2"), BoardRecord(1_000, "ops"), 1)},
        {"board": Board(keys.board("acme", "main"), BoardRecord(2_000, "ops"), 1)},  # made again under the same id
        {"sealing": Sealing(KeyRing({"k1": b"\x02" * 32}), digest)},  # another key of the same name
    ],
    ids=["region", "kind", "board", "incarnation", "key"],
)
def test_it_opens_nowhere_else(elsewhere: dict[str, object]) -> None:
    stored = Value(Form.TEXT, sealed(MAIL))
    found = opened(stored, **elsewhere)  # type: ignore[arg-type] # as they are called
    assert found.value == stored
    assert [(one.opened, one.unknown_keys, one.unopened) for one in found.texts] == [(0, 0, 1)]
    assert not found.key_ids


def test_without_its_key_it_stays_and_is_counted() -> None:
    stored = Value(Form.TEXT, sealed(MAIL))
    for sealing in (Sealing(None, digest), Sealing(KeyRing({"k2": b"\x01" * 32}), digest)):
        found = opened(stored, sealing=sealing)
        assert (found.value, found.texts[0].unknown_keys) == (stored, 1)


def test_a_seal_does_not_tell_how_long_a_short_text_is() -> None:
    sizes = {len(sealed(f"password: {'Zx9!kLmQ7w'[:length]}")) for length in (8, 9, 10)}
    assert len(sizes) == 1


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    value = Value(Form.BINARY, b"\xff\x00", "application/x")
    assert opened(value) == Opened(value, {}, (), ())


def test_what_cannot_be_encrypted_is_refused_by_its_field() -> None:
    text = " ".join(f"user-{number}@mail.internal" for number in range(limits.ENCRYPTED_TEXTS_ENTRIES_MAX + 1))
    with pytest.raises(InvalidRequest) as too_many:
        sealed(text)
    assert (too_many.value.reason, too_many.value.field_path) == ("TOO_MANY_ITEMS", "value")
    with pytest.raises(EncryptionUnavailable):
        sealed(MAIL, sealing=Sealing(None, digest))
