"""Encodings undone, where what comes out is text."""

from __future__ import annotations

import base64
import binascii
import html
import re
import sys
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Part: TypeAlias = tuple[str, int, int]
"""A text, and where it begins and ends in the one that it was taken from."""

_CHARACTERS_MIN: Final = 8
_TEXT_SHARE_MIN: Final = 0.9
_WORD_MAX: Final = 16

_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_\-])[A-Za-z0-9+/_\-]{16,}(?:\r?\n[A-Za-z0-9+/_\-]{4,})*")
_BASE32 = re.compile(r"(?<![A-Z2-7])[A-Z2-7]{24,}")
_HEX = re.compile(r"(?<![0-9A-Za-z])(?:(?:0x)?[0-9a-fA-F]{2}[ :,]{0,2}){12,}")
SHORT_BASE64: Final = re.compile(r"(?<![A-Za-z0-9+/_\-])[A-Za-z0-9+/_\-]{11,}(?:\r?\n[A-Za-z0-9+/_\-]{4,})*")
SHORT_BASE32: Final = re.compile(r"(?<![A-Z2-7])[A-Z2-7]{13,}")
SHORT_HEX: Final = re.compile(r"(?<![0-9A-Za-z])(?:(?:0x)?[0-9a-fA-F]{2}[ :,]{0,2}){8,}")
"""Long enough for a number. An order has more words."""
_NOT_HEX = re.compile(r"0x|[ :,]")
_URL_SAFE = str.maketrans("-_", "+/")

_ESCAPES = re.compile(
    r"&(?:#[0-9]{1,10}|#[xX][0-9a-fA-F]{1,8}|[A-Za-z][A-Za-z0-9]{1,31};);?"
    r"|(?:%[0-9a-fA-F]{2})+"
    r"|(?:\\x[0-9a-fA-F]{2})+"
    r"|(?:\\u[0-9a-fA-F]{4})+"
    r"|\\u\{[0-9a-fA-F]{1,6}\}|\\U[0-9a-fA-F]{8}"
    r"|\\[nrt]"
    r"|(?:\\[0-3][0-7]{2})+"
    r"|(?:=[0-9A-Fa-f]{2})+"
)

_QUOTED = re.compile(r"=[0-9A-F]{2}")
_SOFT_BREAK = re.compile(r"=\r?\n")
"""Of quoted-printable, where a line goes on in the next. Elsewhere base64 ends like that."""


def as_text(raw: bytes) -> str | None:
    """Give the text that the bytes are, in UTF-8 or in UTF-16 of mostly Latin letters, if they are one."""
    try:
        is_wide = raw.count(0) * 3 > len(raw)
        text = raw[: len(raw) & ~1].decode("utf-16-le") if is_wide else raw.decode()
    except UnicodeDecodeError as error:
        if is_wide or error.start < len(raw) * _TEXT_SHARE_MIN:
            return None
        text = raw[: error.start].decode()
    if len(text) < _CHARACTERS_MIN:
        return None
    good = sum(character.isalnum() or character.isspace() for character in text)
    printable = sum(character.isprintable() or character.isspace() for character in text)
    return text if printable >= len(text) * _TEXT_SHARE_MIN and good * 2 >= len(text) else None


def base64_parts(text: str, runs: re.Pattern[str] = _BASE64) -> Iterator[Part]:
    """Give each text that stands in base64, and where."""
    for match in runs.finditer(text):
        run = match.group()
        lines = run.split()
        for part in lines if len(lines) == 1 else dict.fromkeys(("".join(lines), *lines)):
            decoded = _base64(part)
            if decoded is not None:
                yield decoded, match.start(), match.end()
                break


def has_short_base64(text: str) -> bool:
    """Say whether `base64_parts` finds anything with `SHORT_BASE64`; faster where no line can go on in the next."""
    if "\n" in text:
        return next(base64_parts(text, SHORT_BASE64), None) is not None
    words = [word for word in text.encode().translate(_WITHOUT_OTHERS).split() if len(word) >= _SHORT_BASE64_MIN]
    return any(_base64(word.decode()) is not None for word in words)


_SHORT_BASE64_MIN: Final = 11
_BASE64_SIGNS: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-")
_WITHOUT_OTHERS: Final = bytes(byte if byte in _BASE64_SIGNS else 0x20 for byte in range(256))


def _base64(run: str) -> str | None:
    # Its first byte would go on with a character that has not begun; where every other byte is zero, there is an `A`.
    if "g" <= run[0] <= "v" and "A" not in run:
        return None
    if len(run) < _WORD_MAX and run[1:].islower() and run.isalpha():  # a word: such a code would hold no text
        return None
    run = run.translate(_URL_SAFE)
    run = run[: len(run) - (len(run) % 4 == 1)]
    try:
        return as_text(binascii.a2b_base64(run + "=" * (-len(run) % 4)))
    except binascii.Error:
        return None


def base32_parts(text: str, runs: re.Pattern[str] = _BASE32) -> Iterator[Part]:
    """Give each text that stands in base32, and where."""
    for match in runs.finditer(text):
        run = match.group()
        for spare in range(3):  # lengths that no encoding has end in letters that do not belong to it
            part = run[: len(run) - spare]
            try:
                decoded = as_text(base64.b32decode(part + "=" * (-len(part) % 8)))
            except binascii.Error:
                continue
            if decoded is not None:
                yield decoded, match.start(), match.end()
            break


def hex_parts(text: str, runs: re.Pattern[str] = _HEX) -> Iterator[Part]:
    """Give each text that stands in hexadecimal digits, and where."""
    for match in runs.finditer(text):
        decoded = as_text(bytes.fromhex(_NOT_HEX.sub("", match.group())))
        if decoded is not None:
            yield decoded, match.start(), match.end()


def escapes(text: str) -> Iterator[Part]:
    """Give what each run of entities, percent signs or backslashes stands for, and where."""
    for match in _ESCAPES.finditer(text):
        yield _unescaped(match), match.start(), match.end()


def is_quoted_printable(text: str) -> bool:
    """Whether a sign of equality at the end of a line may say that the line goes on."""
    return _QUOTED.search(text) is not None


def unescape(text: str) -> str:
    """Give the text with entities, percent signs and backslashes undone, once."""
    if is_quoted_printable(text):
        text = _SOFT_BREAK.sub("", text)
    return _ESCAPES.sub(_unescaped, text)


def _unescaped(match: re.Match[str]) -> str:
    run = match.group()
    if run[0] == "&":
        return _without_surrogates(html.unescape(run))
    raw = _bytes(run)
    return _characters(run) if raw is None else raw.decode(errors="replace")


def _bytes(run: str) -> bytes | None:
    """Give the bytes that are spelt out; nothing where the escapes stand for characters."""
    if run[0] in "%=":
        return bytes.fromhex(run.replace(run[0], ""))
    if run[1] == "x":
        return bytes.fromhex(run.replace("\\x", ""))
    if run[1] in "0123":
        return bytes(int(octal, 8) for octal in run[1:].split("\\"))
    return None


def _characters(run: str) -> str:
    kind = run[1]
    if kind in "nrt":
        return "\n" if kind == "n" else " "
    if kind == "u" and run[2] != "{":
        return bytes.fromhex(run.replace("\\u", "")).decode("utf-16-be", errors="replace")
    point = int(run[2:].strip("{}"), 16)
    return _without_surrogates(chr(point)) if point <= sys.maxunicode else "\ufffd"


def _without_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
