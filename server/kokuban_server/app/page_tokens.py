"""Where the next page of a listing begins, as an opaque text."""

from __future__ import annotations

import base64
import binascii
import hashlib

from kokuban_server.core.refusals import InvalidRequest


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


def _digest(listing: bytes) -> bytes:
    return hashlib.blake2b(listing, digest_size=8, person=b"kokubanpage").digest()
