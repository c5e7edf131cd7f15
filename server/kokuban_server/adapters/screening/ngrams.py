"""Runs of characters, hashed: what a text is made of, without a vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


BUCKETS: Final = 1 << 16
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_FACTOR: Final = np.uint64(1_000_003)
_SHIFT: Final = np.uint64(48)
"""Leaves sixteen bits: one of the buckets."""


def counted(text: str, lengths: range) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Give which buckets a text falls into, and the weight of each: one plus the logarithm of its count, all of length one."""
    codes = np.frombuffer(f" {text.lower()} ".encode("utf-32-le", errors="replace"), dtype=np.uint32).astype(np.uint64)
    found = []
    for length in lengths:
        hashed = np.full(max(0, len(codes) - length + 1), length, dtype=np.uint64)
        for place in range(length):
            hashed = hashed * _FACTOR + codes[place : place + len(hashed)]
        found.append(hashed * _SPREAD >> _SHIFT)
    buckets, counts = np.unique(np.concatenate(found).astype(np.intp), return_counts=True)
    weights = 1 + np.log(counts)
    return buckets, (weights / max(1e-9, float(np.linalg.norm(weights)))).astype(np.float32)
