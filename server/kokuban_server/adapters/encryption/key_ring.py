"""The keys that texts are encrypted with: AES-256 in Galois/counter mode."""

from __future__ import annotations

import asyncio
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kokuban_server.adapters.files import Rereading
from kokuban_server.core import limits
from kokuban_server.ports.sealer import KeyUnknownError, NotOpenedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_LINE: Final = re.compile(r"([a-z0-9][a-z0-9_\-]{0,31})[ \t]+([A-Za-z0-9_\-]{43})")


class KeysInvalidError(Exception):
    """A file of keys cannot be used. The text names the line, and nothing of a key."""


def key_line(key_id: str) -> str:
    """Give a line for a file of keys, with a key that was made just now. Raises `KeysInvalidError` for what is no id."""
    line = f"{key_id} {urlsafe_b64encode(os.urandom(_KEY_BYTES)).decode().rstrip('=')}"
    if _LINE.fullmatch(line) is None:
        raise KeysInvalidError("an id is 1 to 32 lower-case letters, digits, - and _; no sign is the first")
    return line


def parse_keys(content: bytes) -> dict[str, bytes]:
    """Give the keys of a file by their ids, in its order. Raises `KeysInvalidError`.

    A line is an id and 43 characters of base64: the URL alphabet, without padding. Empty lines, and those that begin with `#`,
    are passed over.
    """
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise KeysInvalidError("is no UTF-8") from None
    keys: dict[str, bytes] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise KeysInvalidError(f"line {number}: not an id and a key of 256 bits in base64")
        key = urlsafe_b64decode(match[2] + "=")
        if match[1] in keys:
            raise KeysInvalidError(f"line {number}: the id {match[1]} stands there twice")
        if key in keys.values():
            raise KeysInvalidError(f"line {number}: the same key as under another id")
        keys[match[1]] = key
    if not 0 < len(keys) <= limits.ENCRYPTION_KEYS_ENTRIES_MAX:
        raise KeysInvalidError(f"holds {len(keys)} keys; 1 to {limits.ENCRYPTION_KEYS_ENTRIES_MAX}")
    return keys


class KeyRing:
    """Some keys, of which the first encrypts."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys: list[tuple[str, bytes]] = []
        self.replace(keys)

    def replace(self, keys: Mapping[str, bytes]) -> bool:
        """Use these from now on; say whether they are others."""
        if self._keys == list(keys.items()):
            return False
        self._keys = list(keys.items())
        self._ciphers = {key_id: AESGCM(key) for key_id, key in self._keys}
        self._newest = self._keys[0][0]
        return True

    @property
    def newest(self) -> str:
        """The id of the key that encrypts."""
        return self._newest

    def seal(self, plain: bytes, bound: bytes) -> tuple[str, bytes]:
        """See the port."""
        nonce = os.urandom(_NONCE_BYTES)
        return self._newest, nonce + self._ciphers[self._newest].encrypt(nonce, plain, bound)

    def open(self, key_id: str, sealed: bytes, bound: bytes) -> bytes:
        """See the port."""
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise KeyUnknownError
        try:
            return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound)
        except (InvalidTag, ValueError):  # the latter for what is too short
            raise NotOpenedError from None


class KeyFile(KeyRing):
    """The keys of a file. A newer file that cannot be used leaves the older keys in force, and is reported once."""

    def __init__(self, read_if_changed: Callable[[], bytes | None], report: Callable[[str], None]) -> None:
        """Read the file: what is given gives its content if that may be another than last time.

        Raises `KeysInvalidError` and OSError.
        """
        self._read_if_changed = read_if_changed
        self._rereading = Rereading(
            lambda: asyncio.to_thread(self._keys_if_changed), (OSError, KeysInvalidError), report
        )
        super().__init__(parse_keys(read_if_changed() or b""))

    async def refresh(self) -> bool:
        """Read the file again if it has changed; say whether there are other keys now."""
        keys = await self._rereading.read()
        return keys is not None and self.replace(keys)

    def _keys_if_changed(self) -> dict[str, bytes] | None:
        content = self._read_if_changed()
        return None if content is None else parse_keys(content)
