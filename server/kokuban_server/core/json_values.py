"""JSON as the board treats it: checked strictly, numbers kept as they were spelled, compared by value."""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias

from kokuban_server.core import limits


class Number(str):
    """A JSON number in the spelling it arrived in, so that nothing is lost to a float."""

    __slots__ = ()

    @property
    def as_integer(self) -> int | None:
        """The number if it is spelled as an integer of at most 64 bits signed, else nothing."""
        if len(self) > 20 or not _INTEGER.fullmatch(self):  # noqa: PLR2004 - "-9223372036854775808" has 20
            return None
        value = int(self)
        return value if INT64_MIN <= value <= INT64_MAX else None


_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

Json: TypeAlias = "dict[str, Json] | list[Json] | str | Number | bool | None"


class NotJsonError(ValueError):
    """The text is not one JSON text, or has a name twice in one object."""


class TooDeepError(ValueError):
    """The JSON is nested deeper than `limits.JSON_DEPTH_MAX`."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise NotJsonError("a name stands twice in one object")
    return made


def _no_constant(name: str) -> Json:
    raise NotJsonError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=Number, parse_float=Number, parse_constant=_no_constant, strict=True
)


def parse(text: str) -> Json:
    """Give the value of a JSON text. Raises `NotJsonError` or `TooDeepError`.

    Strict in what RFC 8259 leaves open: no duplicate names, no lone surrogates from escapes, at most 32 levels (a scalar is
    level 0, `[]` level 1).
    """
    try:
        value: Json = _DECODER.decode(text)
    except RecursionError:
        raise TooDeepError from None
    except NotJsonError:
        raise
    except ValueError as error:
        raise NotJsonError(str(error)) from None
    _check(value, "\\u" in text)
    return value


def _check(value: Json, has_escapes: bool) -> None:  # noqa: FBT001 - spares a second pass over texts without escapes
    """Walk the value level by level: refuse what is nested too deep, and, where escapes stand, halves of surrogate pairs."""
    level: list[Json] = [value]
    depth = 0
    while level:
        if has_escapes:
            for item in level:
                _no_surrogate(item)
        containers = [item for item in level if isinstance(item, dict | list)]
        if containers and depth == limits.JSON_DEPTH_MAX:
            raise TooDeepError
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]
        depth += 1


def _no_surrogate(item: Json) -> None:
    texts = [item] if isinstance(item, str) else item if isinstance(item, dict) else []
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError:
        raise NotJsonError("a string holds half of a surrogate pair") from None


_encode_string = json.encoder.encode_basestring


def dump(value: Json) -> str:
    """Give the compact JSON text of a value, numbers as they were spelled. UTF-8 stands as it is."""
    parts: list[str] = []
    _dump(value, parts)
    return "".join(parts)


def _dump(value: Json, parts: list[str]) -> None:
    if isinstance(value, Number):
        parts.append(str(value))
    elif isinstance(value, str):
        parts.append(_encode_string(value))
    elif isinstance(value, dict):
        separator = "{"
        for name, item in value.items():
            parts += (separator, _encode_string(name), ":")
            _dump(item, parts)
            separator = ","
        parts.append("}" if value else "{}")
    elif isinstance(value, list):
        separator = "["
        for item in value:
            parts.append(separator)
            _dump(item, parts)
            separator = ","
        parts.append("]" if value else "[]")
    else:
        parts.append({True: "true", False: "false", None: "null"}[value])


def identity(value: Json) -> str:
    """Give a text that two values share exactly if they are the same JSON value.

    Names are sorted; numbers are compared by what they denote (1, 1.0 and 10e-1 are one), without ever computing a power.
    Raises `NotJsonError` for a number whose exponent has thousands of digits.
    """
    if isinstance(value, Number):
        return _number_identity(value)
    if isinstance(value, str):
        return _encode_string(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_encode_string(name)}:{identity(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(identity, value)) + "]"
    return {True: "true", False: "false", None: "null"}[value]


def _number_identity(number: Number) -> str:
    found = _NUMBER.fullmatch(number)
    if found is None:  # the decoder lets nothing else through
        raise NotJsonError(f"not a number: {number}")
    sign, whole, fraction, exponent = found.groups(default="")
    digits = (whole + fraction).lstrip("0")
    stripped = digits.rstrip("0")
    if not stripped:
        return "0"
    power = _exponent(exponent) - len(fraction) + len(digits) - len(stripped)
    return f"{sign}{stripped}e{power}"


def _exponent(text: str) -> int:
    """Give the exponent; refuse one of thousands of digits, as no number that anybody means.

    Python itself neither reads nor writes more than 4,300.
    """
    if len(text) > _EXPONENT_DIGITS_MAX:
        raise NotJsonError("an exponent has too many digits")
    return int(text or "0")


_EXPONENT_DIGITS_MAX = 4_000


def merge_patch(target: Json, patch: Json) -> Json:
    """Give the target changed by a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, item in patch.items():
        if item is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), item)
    return merged


def is_too_deep(value: Json) -> bool:
    """Say whether a computed value is nested deeper than the limit."""
    try:
        _check(value, has_escapes=False)
    except TooDeepError:
        return True
    return False
