"""Which etcd keys the store uses: the port's keys below one prefix, the store's own below another that those never reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SCHEMA: Final = 1
"""How this version lays out what it keeps. A cluster with a higher number is left alone."""

_TIME_DIGITS: Final = 20


class SchemaTooNew(Exception):  # noqa: N818 - an answer, not an error
    """A newer server has laid out what the cluster holds; this one must not touch it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The keys of one store."""

    data: bytes
    """What every key of the port begins with."""
    epoch: bytes
    time: bytes
    schema: bytes
    weight: bytes
    """Holds nothing of meaning: a put of it makes etcd weigh a transaction."""

    @classmethod
    def below(cls, prefix: str) -> Layout:
        """Give the layout below a prefix."""
        root = prefix.encode() + b"/"
        return cls(root + b"d/", root + b"s/epoch", root + b"s/time", root + b"s/schema", root + b"s/weight")

    def range(self, prefix: bytes) -> tuple[bytes, bytes]:
        """Give the first key of a port prefix, and the least key above all of them."""
        start = self.data + prefix
        stem = start.rstrip(b"\xff")  # never empty: `data` ends in a slash
        return start, stem[:-1] + bytes((stem[-1] + 1,))


def encode_time(time_ms: int) -> bytes:
    """Give the stored form of an instant: digits of one width, so that order of bytes is order of time."""
    return b"%0*d" % (_TIME_DIGITS, max(time_ms, 0))
