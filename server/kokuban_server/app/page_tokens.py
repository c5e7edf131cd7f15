"""Where the next page of a listing begins, as an opaque text."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING

from kokuban_server.core.refusals import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable


def page_token(last_key: bytes, listing: bytes, prefix: bytes) -> str:
    """Give the text that says behind which key the next page begins. `listing` is what the token belongs to.

    Only what follows the prefix is in it, so a token tells nothing that the listing did not, and cannot reach beyond it.
    """
    return base64.urlsafe_b64encode(_digest(listing) + last_key[len(prefix) :]).decode()


def read_page_token(token: str, listing: bytes, prefix: bytes) -> bytes:
    """Give the key behind which a page begins; empty for the first. Raises `PAGE_TOKEN_INVALID`."""
    if not token:
        return b""
    try:
        raw = base64.b64decode(token, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    digest = _digest(listing)
    if not raw.startswith(digest):
        raise InvalidRequest("PAGE_TOKEN_INVALID", "page_token", "not a token of a listing with these fields")
    return prefix + raw[len(digest) :]


def concealed_page_token(last_key: bytes, listing: bytes, prefix: bytes, digest: Callable[[bytes], bytes]) -> str:
    """Give the same for a listing that does not show its keys: what it says can be read with the store's secret only."""
    rest = last_key[len(prefix) :]
    mark = digest(b"page\x00" + _digest(listing) + rest)
    return base64.urlsafe_b64encode(mark + _masked(rest, mark, digest)).decode()


def read_concealed_page_token(token: str, listing: bytes, prefix: bytes, digest: Callable[[bytes], bytes]) -> bytes:
    """Undo `concealed_page_token`; empty for the first page. Raises `PAGE_TOKEN_INVALID`."""
    if not token:
        return b""
    try:
        raw = base64.b64decode(token, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    mark, masked = raw[:_MARK_BYTES], raw[_MARK_BYTES:]
    rest = _masked(masked, mark, digest)
    if mark != digest(b"page\x00" + _digest(listing) + rest):
        raise InvalidRequest("PAGE_TOKEN_INVALID", "page_token", "not a token of a listing with these fields")
    return prefix + rest


_MARK_BYTES = 16
"""Of a keyed digest."""


def _masked(text: bytes, mark: bytes, digest: Callable[[bytes], bytes]) -> bytes:
    blocks = -(-len(text) // _MARK_BYTES)
    stream = b"".join([digest(b"mask\x00" + mark + number.to_bytes(4, "big")) for number in range(blocks)])
    return bytes(one ^ other for one, other in zip(text, stream, strict=False))


def _digest(listing: bytes) -> bytes:
    return hashlib.blake2b(listing, digest_size=8, person=b"kokubanpage").digest()
