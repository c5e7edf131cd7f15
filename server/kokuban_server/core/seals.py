"""What stands in the place of what is encrypted: the form of its seals, and which of a text the server has written."""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_BEGIN: Final = "[sealed:"
_SEAL: Final = re.compile(
    r"\[sealed:([a-z0-9\-]{1,32}):([0-9a-f]{6}):([a-z0-9][a-z0-9_\-]{0,31}):([A-Za-z0-9_\-]+)\.([A-Za-z0-9_\-]{11})\]"
)
_MARK_BYTES: Final = 8
_PERSON: Final = b"kokuban sealed"


class Seal(NamedTuple):
    """A seal, and where it stands."""

    start: int
    end: int
    type: str
    """Of what is encrypted: `email`."""
    digest: str
    """Equal for equal values of one board, as that of a mask."""
    key_id: str
    sealed: str
    """What is encrypted, in base64."""
    mark: str
    """Says that the server has written the seal."""

    @property
    def raw(self) -> bytes:
        """What is encrypted; nothing where that is no base64."""
        try:
            return urlsafe_b64decode(self.sealed + "=" * (-len(self.sealed) % 4))
        except ValueError:
            return b""


def seal(type_: str, digest: str, key_id: str, sealed: bytes, key: bytes) -> str:
    """Give a seal, marked with the key of the board's masks."""
    told = f"{type_}:{digest}:{key_id}:{_base64(sealed)}"
    return f"{_BEGIN}{told}.{_mark(told, key)}]"


def seals_in(text: str) -> Iterator[Seal]:
    """Give what has the form of a seal, whoever wrote it."""
    if _BEGIN in text:
        for match in _SEAL.finditer(text):
            yield Seal(*match.span(), *match.groups())


def written_in(text: str, key: bytes) -> list[tuple[int, int]]:
    """Say where seals stand that were written on the board whose masks have this key.

    They are not searched. What only looks like a seal is, as any text, or a secret could be written as one.
    """
    return [
        (one.start, one.end)
        for one in seals_in(text)
        if hmac.compare_digest(one.mark, _mark(text[one.start + len(_BEGIN) : one.end - len(one.mark) - 2], key))
    ]


def without_texts(text: str) -> str:
    """Give a text with its seals cut down to type and digest: equal for values that are told to be equal."""
    return _SEAL.sub(r"[sealed:\1:\2]", text) if _BEGIN in text else text


def _mark(told: str, key: bytes) -> str:
    return _base64(hashlib.blake2b(told.encode(), key=key, digest_size=_MARK_BYTES, person=_PERSON).digest())


def _base64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")
