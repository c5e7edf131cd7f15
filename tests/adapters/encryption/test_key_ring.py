"""Keys out of a file: read strictly, and what they encrypt opens with the same key and what it is bound to, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban_server.adapters.encryption import KeyFile, KeyRing, KeysInvalidError, key_line, parse_keys
from kokuban_server.core import limits
from kokuban_server.ports.sealer import KeyUnknownError, NotOpenedError

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST, SECOND = b"\x01" * 32, b"\x02" * 32
TEXT_OF_FIRST = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE"


@given(st.binary(max_size=200), st.binary(max_size=50))
def test_what_was_encrypted_opens_as_it_was(plain: bytes, bound: bytes) -> None:
    ring = KeyRing({"new": SECOND, "old": FIRST})
    key_id, sealed = ring.seal(plain, bound)
    assert key_id == "new"
    assert ring.open(key_id, sealed, bound) == plain
    assert ring.seal(plain, bound)[1] != sealed


@given(st.binary(max_size=50), st.data())
def test_nothing_else_opens(plain: bytes, data: st.DataObject) -> None:
    ring = KeyRing({"k": FIRST, "other": SECOND})
    _, sealed = ring.seal(plain, b"here")
    place = data.draw(st.integers(0, len(sealed) - 1))
    changed = sealed[:place] + bytes([sealed[place] ^ data.draw(st.integers(1, 255))]) + sealed[place + 1 :]
    short = sealed[: data.draw(st.integers(0, len(sealed) - 1))]
    attempts: list[Callable[[], bytes]] = [
        lambda: ring.open("k", changed, b"here"),
        lambda: ring.open("k", short, b"here"),
        lambda: ring.open("k", sealed + b"x", b"here"),
        lambda: ring.open("k", sealed, b"there"),
        lambda: ring.open("other", sealed, b"here"),
    ]
    for attempt in attempts:
        with pytest.raises(NotOpenedError):
            attempt()
    with pytest.raises(KeyUnknownError):
        ring.open("gone", sealed, b"here")


def test_the_first_key_encrypts_and_all_open() -> None:
    ring = KeyRing({"old": FIRST})
    _, sealed = ring.seal(b"text", b"")
    assert not ring.replace({"old": FIRST})
    assert ring.replace({"new": SECOND, "old": FIRST})
    assert ring.seal(b"text", b"")[0] == "new"
    assert ring.open("old", sealed, b"") == b"text"
    assert ring.replace({"old": FIRST, "new": SECOND})  # the same keys, and another encrypts
    assert ring.seal(b"text", b"")[0] == "old"


def test_a_file_is_read_with_its_order_and_comments() -> None:
    made = key_line("k-2_b")
    keys = parse_keys(f"# ours\n\n{made}\n  k1\t{TEXT_OF_FIRST}\r\n".encode())
    assert list(keys) == ["k-2_b", "k1"]
    assert keys["k1"] == FIRST
    assert len(keys["k-2_b"]) == 32
    assert made != key_line("k-2_b")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "holds 0 keys"),
        (b"# none", "holds 0 keys"),
        (b"k1", "line 1:"),
        (b"k1 AQEB", "line 1:"),
        (f"k1 {TEXT_OF_FIRST}=".encode(), "line 1:"),
        (f"k1 {TEXT_OF_FIRST} more".encode(), "line 1:"),
        (f"K1 {TEXT_OF_FIRST}".encode(), "line 1:"),
        (f"{'k' * 33} {TEXT_OF_FIRST}".encode(), "line 1:"),
        (f"k:1 {TEXT_OF_FIRST}".encode(), "line 1:"),
        (f"k1 {TEXT_OF_FIRST}\nk1 {'A' * 43}".encode(), "line 2: the id k1"),
        (f"k1 {TEXT_OF_FIRST}\nk2 {TEXT_OF_FIRST}".encode(), "line 2: the same key"),
        (f"k1 {TEXT_OF_FIRST[:-1]}\xe9".encode("latin-1"), "UTF-8"),
    ],
)
def test_a_file_that_is_none_is_refused_without_a_word_of_a_key(content: bytes, told: str) -> None:
    with pytest.raises(KeysInvalidError, match=told) as refused:
        parse_keys(content)
    assert "AQEB" not in str(refused.value)


def test_a_file_has_so_many_keys_and_no_more() -> None:
    lines = [key_line(f"k{number}") for number in range(limits.ENCRYPTION_KEYS_ENTRIES_MAX + 1)]
    assert len(parse_keys("\n".join(lines[:-1]).encode())) == limits.ENCRYPTION_KEYS_ENTRIES_MAX
    with pytest.raises(KeysInvalidError, match="holds"):
        parse_keys("\n".join(lines).encode())


@pytest.mark.parametrize("name", ["", "a b", "K", "-a", "a" * 33, "a\n"])
def test_a_key_has_an_id_of_one_form(name: str) -> None:
    with pytest.raises(KeysInvalidError, match="an id is"):
        key_line(name)


async def test_a_changed_file_is_taken_up_and_a_fault_is_told_once() -> None:
    told: list[str] = []
    given: list[bytes | OSError | None] = [key_line("k1").encode()]

    def read() -> bytes | None:
        content = given.pop()
        if isinstance(content, OSError):
            raise content
        return content

    file = KeyFile(read, told.append)
    for content, taken, newest, reports in (
        (None, False, "k1", 0),
        (b"broken", False, "k1", 1),
        (None, False, "k1", 1),
        (OSError("gone"), False, "k1", 2),
        (OSError("gone"), False, "k1", 2),
        (key_line("k2").encode(), True, "k2", 2),
        (b"broken", False, "k2", 3),
    ):
        given.append(content)
        assert await file.refresh() is taken
        assert (file.newest, len(told)) == (newest, reports)
