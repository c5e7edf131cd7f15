"""What encrypts texts and opens them, with keys that are not in the store."""

from __future__ import annotations

from typing import Protocol


class Sealer(Protocol):
    """Encrypts with its newest key, and opens with each that it has. Nothing that it raises tells what was encrypted."""

    def seal(self, plain: bytes, bound: bytes) -> tuple[str, bytes]:
        """Encrypt; give the key's id and what can be opened only with that key and what it is `bound` to.

        The same again gives something else.
        """
        ...

    def open(self, key_id: str, sealed: bytes, bound: bytes) -> bytes:
        """Give what was encrypted. Raises `KeyUnknownError`, and `NotOpenedError` for whatever `seal` has not given so."""
        ...


class KeyUnknownError(Exception):
    """There is no key of that name."""


class NotOpenedError(Exception):
    """It was encrypted with another key, is bound to something else, or was changed."""
