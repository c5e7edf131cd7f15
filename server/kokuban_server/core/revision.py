"""Revisions and board tokens: which state is meant, and in which life of the store."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from functools import lru_cache

from kokuban_server.core.refusals import InvalidRequest, TokenFromAnotherStore

_EPOCH = re.compile(r"[0-9a-f]{16}")
_KIND = 0x4B  # the first byte of every board token, so that other base64 is told apart
_TEXT_LENGTH = 24  # 18 bytes, which base64 writes without padding


def is_epoch(text: str) -> bool:
    """Say whether the text has an epoch's form: 16 lower-case hexadecimal digits."""
    return _EPOCH.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class BoardToken:
    """At least as fresh as `revision` in the life `epoch` of the store."""

    epoch: str
    revision: int

    def encode(self) -> str:
        """Give the opaque text: base64url of kind, epoch (8 bytes), revision (8 bytes) and a sum of them (1 byte)."""
        return encode_token(self.epoch, self.revision)

    @classmethod
    def decode(cls, text: str, field: str) -> BoardToken:
        """Read the opaque text, or refuse it as not one of ours."""
        try:  # of one length only: the decoder would let padding follow that no token has
            raw = base64.b64decode(text, altchars=b"-_", validate=True) if len(text) == _TEXT_LENGTH else b""
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) != 18 or raw[0] != _KIND or _sum(raw[:17]) != raw[17]:  # noqa: PLR2004 - the form in encode
            raise InvalidRequest("TOKEN_INVALID", field, "not a token that a server gave out")
        return cls(raw[1:9].hex(), int.from_bytes(raw[9:17], "big"))


@lru_cache(maxsize=1024)  # the commits of a batch share a revision
def encode_token(epoch: str, revision: int) -> str:
    """Give the text of a board token."""
    raw = bytes((_KIND,)) + bytes.fromhex(epoch) + revision.to_bytes(8, "big")
    return base64.urlsafe_b64encode(raw + bytes((_sum(raw),))).decode()


def _sum(raw: bytes) -> int:
    return sum(raw) & 0xFF


def revision_of(token_text: str, epoch: str, field: str) -> int:
    """Give the revision that a token of this store names, or refuse the token."""
    token = BoardToken.decode(token_text, field)
    if token.epoch != epoch:
        raise TokenFromAnotherStore(field)
    return token.revision
