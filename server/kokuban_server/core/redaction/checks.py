"""What tells a number or a word that only looks like a secret or like personal data from one that is.

A check takes the searched bytes and where a pattern matched in them; it gives where in them the value stands, which may be less
or more than that, or nothing. It looks at a bounded part around the match.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from kokuban_server.core.redaction import mailboxes

if TYPE_CHECKING:
    from collections.abc import Callable

Span: TypeAlias = tuple[int, int]
Check: TypeAlias = "Callable[[bytes, int, int], Span | None]"

_DISTINCT_MIN: Final = 6
_NAME_BYTES: Final = 24


def digits(raw: bytes) -> str:
    """Give the digits that stand there."""
    return "".join(chr(byte) for byte in raw if 0x30 <= byte <= 0x39)  # noqa: PLR2004 - 0 to 9


def is_varied(value: bytes) -> bool:
    """Whether it could be drawn by lot: `xxxxxxxx` was not."""
    return len(set(value)) >= _DISTINCT_MIN


def varied(raw: bytes, start: int, end: int) -> Span | None:
    """Take what could be drawn by lot."""
    return (start, end) if is_varied(raw[start:end]) else None


def varied_with_digit(raw: bytes, start: int, end: int) -> Span | None:
    """Take what could be drawn by lot and has a digit, as names joined by hyphens have not."""
    value = raw[start:end]
    return (start, end) if is_varied(value) and any(map(_is_digit, value)) else None


def _is_digit(byte: int) -> bool:
    return 0x30 <= byte <= 0x39  # noqa: PLR2004 - 0 to 9


# Numbers.


def stands_alone(raw: bytes, start: int, end: int) -> bool:
    """Whether a number is not a part of another one, of a decimal fraction or of a word."""
    before, after = raw[max(0, start - 2) : start], raw[end : end + 2]
    if before[-1:].isalnum() or after[:1].isalnum() or b"_" in (before[-1:], after[:1]):
        return False
    joined_before = before[-1:] in {b".", b"-"} and before[:1].isdigit() and len(before) > 1
    return not joined_before and not (after[:1] in {b".", b"-"} and after[1:].isdigit())


def luhn(number: str) -> bool:
    """Whether a number's last digit is the one that Luhn's formula gives."""
    doubled = (int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(number)))
    return sum(value - 9 * (value > 9) for value in doubled) % 10 == 0  # noqa: PLR2004 - the sum of its digits


_CARD_LENGTHS: Final = (
    (re.compile(r"4"), {13, 16, 19}),
    (re.compile(r"5[1-5]|2(?:22[1-9]|2[3-9]|[3-6]|7[01]|720)"), {16}),
    (re.compile(r"3[47]"), {15}),
    (re.compile(r"3(?:0[0-5]|[689])"), {14, 16}),
    (re.compile(r"35"), {16}),
    (re.compile(r"62"), {16, 17, 18, 19}),
    (re.compile(r"6(?:011|4[4-9]|5)"), {16, 19}),
    (re.compile(r"5[0678]|6[0137]"), {16, 18, 19}),
)
"""Who gives out cards, by how their numbers begin, and of which lengths."""


def card(raw: bytes, start: int, end: int) -> Span | None:
    """Take the number of a payment or bank card."""
    number = digits(raw[start:end])
    if not stands_alone(raw, start, end) or len(set(number)) == 1 or not luhn(number):
        return None
    known = any(begin.match(number) and len(number) in lengths for begin, lengths in _CARD_LENGTHS)
    return (start, end) if known else None


_ID_WEIGHTS: Final = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
_MONTH_DAYS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def cn_id(raw: bytes, start: int, end: int) -> Span | None:
    """Take the number of a Chinese resident identity card: ISO 7064, MOD 11-2, and a day that there is."""
    number = raw[start:end].decode().upper()
    month, day = int(number[10:12]), int(number[12:14])
    if (
        not stands_alone(raw, start, end)
        or not 1 <= month <= len(_MONTH_DAYS)
        or not 1 <= day <= _MONTH_DAYS[month - 1]
    ):
        return None
    total = sum(weight * int(digit) for weight, digit in zip(_ID_WEIGHTS, number, strict=False))
    return (start, end) if "10X98765432"[total % 11] == number[17] else None


_IBAN_LENGTHS: Final = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BR": 29, "BY": 28, "CH": 21,
    "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FO": 18, "FR": 27,
    "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26,
    "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "MC": 27, "MD": 24, "ME": 22,
    "MK": 19, "MR": 27, "MT": 31, "MU": 30, "NL": 18, "NO": 15, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24,
    "RS": 22, "SA": 24, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "TN": 24, "TR": 26, "UA": 29, "VG": 24, "XK": 20,
}  # fmt: skip


def iban(raw: bytes, start: int, end: int) -> Span | None:
    """Take an international bank account number: of its country's length, and 1 modulo 97."""
    country = raw[start : start + 2].decode()
    length = _IBAN_LENGTHS.get(country, 0)
    seen = 0
    for at in range(start, end):
        seen += raw[at] != ord(" ")
        if seen == length:
            end = at + 1
            break
    number = raw[start:end].decode().replace(" ", "")
    if len(number) != length or raw[end : end + 1].isalnum() or raw[max(0, start - 1) : start].isalnum():
        return None
    moved = number[4:] + number[:4]
    return (start, end) if int("".join(str(int(sign, 36)) for sign in moved)) % 97 == 1 else None


def ssn(raw: bytes, start: int, end: int) -> Span | None:
    """Take a number of the United States' social security, of those that are given out."""
    area, group, serial = raw[start:end].split(b"-")
    is_given = area not in {b"000", b"666"} and area < b"900" and group != b"00" and serial != b"0000"
    return (start, end) if is_given and stands_alone(raw, start, end) else None


_PHONE_DIGITS_MIN: Final = 8
_PHONE_DIGITS_MAX: Final = 15
_FICTIONAL = re.compile(r"1?[2-9][0-9]{2}55501[0-9]{2}")
"""Numbers of North America that are kept free for films and examples (ATIS-0300115, 555-0100 to 555-0199)."""


def phone(raw: bytes, start: int, end: int) -> Span | None:
    """Take a telephone number: 8 to 15 digits, not a part of a longer number, and not one that nobody has."""
    number = digits(raw[start:end])
    parted = b" " in raw[start:end] and (
        raw[max(0, start - 2) : start - 1].isdigit() or raw[end + 1 : end + 2].isdigit()
    )
    is_phone = not parted and _PHONE_DIGITS_MIN <= len(number) <= _PHONE_DIGITS_MAX
    return (start, end) if is_phone and stands_alone(raw, start, end) and not _FICTIONAL.fullmatch(number) else None


def plate(raw: bytes, start: int, end: int) -> Span | None:
    """Take a Chinese number plate: after the place's letter at least two digits, and no more letters or digits."""
    serial = raw[start + 4 : end]
    return (start, end) if len(digits(serial)) > 1 and not raw[end : end + 1].isalnum() else None


def address(raw: bytes, start: int, end: int) -> Span | None:
    """Take a network address, of numbers that one can have."""
    parts = raw[start:end].split(b".")
    return (start, end) if stands_alone(raw, start, end) and all(int(part) < 256 for part in parts) else None  # noqa: PLR2004


# Words.

_OF_USER: Final = frozenset({b".", b"_", b"%", b"+", b"-"})


def email(raw: bytes, start: int, end: int) -> Span | None:
    """Take a mail address that may be a person's, and is not a part of a longer one."""
    neighbour = raw[max(0, start - 1) : start]
    is_part = neighbour.isalnum() or neighbour in _OF_USER
    return (start, end) if not is_part and mailboxes.is_persons(raw, start, end) else None


_PLACEHOLDER = re.compile(
    rb"(?i)<[^>]*>|\{\{|\{\w+\}|[\[(]\w|\*{3}|\$[{(a-z_]|%(?:[sd(]|\w+%)|x{4}|\.{3}|/\w|https?:|(?:os|env|process|config|settings|self)\."
    rb"|(?:your|the|some|example|change|dummy|fake|sample|placeholder|insert|enter)[_\-]?(?:pass|pwd|secret|token|key|api|me\b|$)"
    rb"|(?:password|passwd|passphrase|pwd|pass|secret|token|null|none|true|false|undefined|string|redacted|masked|hidden)(?![a-z0-9!@#$%^&*])"
    rb"|[a-z_.]+[(\[]|(?:sha|md|base|utf|aes|bcrypt)-?\d+$|\d{1,2}-[a-z]+$|\d+\s?(?:characters|digits|chars)"
)
"""How a value begins that only stands for one: `<your password>`, `${SECRET}`, `get_secret(`."""
_CUT = re.compile(rb"[;&](?=[A-Za-z]\w{2,20}=)|<(?:/|br)|\\n|[,;](?=[\"'])|`")
_TRAILING: Final = b".,;:!?)]}>\"'*`"
_SYMBOLS: Final = frozenset(b"!@#$%^&*+?~=|")
_PASSWORD_MIN: Final = 6


def password(raw: bytes, start: int, end: int) -> Span | None:
    """Take what is given as a password and is no word: it has a digit or a sign in it, and is not said to be made up."""
    value = raw[start:end]
    cut = _CUT.search(value)
    value = value[: cut.start()] if cut else value
    bare = value.rstrip(_TRAILING)
    # An ending that belongs to it is not told from one of the sentence: `!` does, as the last of several signs.
    if value[len(bare) : len(bare) + 1] in {b"!", b"?", b"*"}:
        bare = value[: len(bare) + 1]
    if len(bare) < _PASSWORD_MIN or _PLACEHOLDER.match(bare) or len(set(bare)) < 4:  # noqa: PLR2004 - `******`, `111111`
        return None
    has_digit = any(map(_is_digit, bare))
    has_sign = not _SYMBOLS.isdisjoint(bare[:-1])
    return (start, start + len(bare)) if has_digit or has_sign else None


_OTHER_TOKENS = re.compile(
    rb"(?i)(?:page|next|continuation|cursor|csrf|xsrf|max|sync|snapshot|revision|fencing|public)[_\- ]?$"
)
_ASSIGNED_MIN: Final = 16
_BITS_MIN: Final = 3.0
_DIGITS_MIN: Final = 2


def assigned(raw: bytes, start: int, end: int) -> Span | None:
    """Take what is given as a key or token and could be drawn by lot."""
    value = raw[start:end].rstrip(b".,;-_")
    if len(value) < _ASSIGNED_MIN or _PLACEHOLDER.match(value) or len(digits(value)) < _DIGITS_MIN:
        return None
    return (start, start + len(value)) if not value.isdigit() and _bits(value) >= _BITS_MIN else None


def bare_token(raw: bytes, start: int, end: int) -> Span | None:
    """Likewise after the word "token" alone, which is also the name of what pages and cursors have."""
    before = raw[max(0, start - _NAME_BYTES) : start].lower()
    name = before[: max(0, before.rfind(b"token"))]
    return None if _OTHER_TOKENS.search(name) else assigned(raw, start, end)


def _bits(value: bytes) -> float:
    """Give how much each of its signs says."""
    return -sum(times / len(value) * math.log2(times / len(value)) for times in Counter(value).values())


_HEXADECIMAL: Final = frozenset(b"0123456789abcdefABCDEF")
_OF_LONGER: Final = frozenset({b"-", b"_", b"."})
_AWS_SECRET_BYTES: Final = 40
_AWS_CONTEXT_BYTES: Final = 100
_AWS_PAIR_BYTES: Final = 250
_AWS_CONTEXT = re.compile(rb"(?i)aws|secret|amazon|" + "密钥|秘钥|密鑰".encode())
_AWS_ID = re.compile(rb"(?:AKIA|ASIA)[A-Z0-9]{16}")


def aws_secret(raw: bytes, start: int, end: int) -> Span | None:
    """Take an AWS secret access key: forty signs of base64 that are called one, or stand near the id of an access key."""
    value, around = raw[start:end], (raw[max(0, start - 1) : start], raw[end : end + 1])
    if (
        not _OF_LONGER.isdisjoint(around)
        or len(value) != _AWS_SECRET_BYTES
        or _HEXADECIMAL.issuperset(value)
        or not _has_all_cases(value)
    ):
        return None
    if _AWS_CONTEXT.search(raw, max(0, start - _AWS_CONTEXT_BYTES), start):
        return start, end
    is_paired = _AWS_ID.search(raw, max(0, start - _AWS_PAIR_BYTES), end + _AWS_PAIR_BYTES)
    return (start, end) if is_paired else None


def sk_key(raw: bytes, start: int, end: int) -> Span | None:
    """Take a key that begins with `sk-`: letters and digits by lot, unlike a name joined by hyphens."""
    value = raw[start:end]
    is_name = value.startswith(b"sk-ant-") or not digits(value) or _bits(value) < _BITS_MIN
    words = value[3:].split(b"-")
    return None if is_name or max(map(len, words)) < _ASSIGNED_MIN else (start, end)


def _has_all_cases(value: bytes) -> bool:
    return any(map(_is_digit, value)) and value.lower() != value and value.upper() != value


def jwt(raw: bytes, start: int, end: int) -> Span | None:
    """Take a JSON Web Token: its first part says by which algorithm it is signed."""
    head = raw[start:end].partition(b".")[0]
    try:
        told = json.loads(base64.urlsafe_b64decode(head + b"=" * (-len(head) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return (start, end) if isinstance(told, dict) and "alg" in told else None


_PRIVATE_KEY_BYTES_MAX: Final = 16 * 1024
_BODY = re.compile(rb"[A-Za-z0-9+/=]{16}")
_BODY_WITHOUT_END = re.compile(
    rb"(?:\s{0,4}+[A-Za-z\-]{3,20}+: [^\n]{0,200}+\n){0,8}+"
    rb"(?:\s{0,4}+[A-Za-z0-9+/=]{16,}+)++(?:\s{0,4}[A-Za-z0-9+/]{1,64}={1,2})?"
)


def private_key(raw: bytes, start: int, end: int) -> Span | None:
    """Take a private key from its first line to its last; where that is missing, to the end of what may belong to it."""
    most = min(len(raw), end + _PRIVATE_KEY_BYTES_MAX)
    ends = raw[start:end].replace(b"BEGIN", b"END")
    last = raw.find(ends, end, most)
    if last >= 0:
        return (start, last + len(ends)) if _BODY.search(raw, end, last) else None
    body = _BODY_WITHOUT_END.match(raw, end, most)
    return (start, body.end()) if body else None


def url_password(raw: bytes, start: int, end: int) -> Span | None:
    """Take what stands for a password in a URL and is not said to be made up."""
    value = raw[start:end]
    return None if _PLACEHOLDER.match(value) else (start, end)
