"""The texts that a classifier is trained and measured with: read from a folder, sampled, near-duplicates known."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from kokuban_server.core.screening.folding import fold, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

OF_A_KIND_MAX: Final = 220
"""Rows of one kind of one source: a large source must not drown the small ones."""
TEXT_CHARACTERS_MAX: Final = 6_000
"""Of a row; what follows is left out, in training and in measuring alike."""
OF_A_CHINESE_KIND_MAX: Final = 880
"""There are few Chinese sources, and they need no encoder."""
_SHINGLE: Final = 5
_PERMUTATIONS: Final = 64
_BANDS: Final = 16
_ALIKE_MIN: Final = 0.6
_PRIME: Final = (1 << 61) - 1


class Row(NamedTuple):
    """One text."""

    text: str
    is_injection: bool
    language: str
    kind: str
    source: str


def read(folder: Path) -> list[Row]:
    """Read every row that has a label. Ends the program if the folder is absent or has none."""
    files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
    if not files:
        sys.exit(f"no texts to train with: {folder} has no .jsonl files. DATA=… names the folder that has them.")
    found = []
    for file in files:
        for line in file.read_text(encoding="utf-8").split("\n"):
            if not line:
                continue
            told: dict[str, Any] = json.loads(line)
            if told["label"] in {0, 1} and told["text"].strip():
                text = told["text"][:TEXT_CHARACTERS_MAX]
                found.append(Row(text, told["label"] == 1, told.get("lang", ""), told["kind"], told["source"]))
    return found


def sampled(rows: Iterable[Row]) -> list[Row]:
    """Give at most so many rows of each kind of each source, each text once. Which, depends on the texts alone."""
    unique = {row.text: row for row in rows}
    taken: Counter[tuple[str, str]] = Counter()
    found = []
    for row in sorted(unique.values(), key=lambda row: hashlib.sha256(row.text.encode(errors="replace")).digest()):
        kind = row.source, row.kind
        if taken[kind] < (OF_A_CHINESE_KIND_MAX if row.language == "zh" else OF_A_KIND_MAX):
            taken[kind] += 1
            found.append(row)
    return found


def alike(texts: Sequence[str]) -> list[set[int]]:
    """Give for each text which others are nearly the same, by MinHash over runs of five characters."""
    draw = np.random.default_rng(1)
    factors, terms = draw.integers(1, _PRIME, size=(2, _PERMUTATIONS, 1), dtype=np.uint64)
    signatures = np.empty((len(texts), _PERMUTATIONS), dtype=np.uint64)
    for index, text in enumerate(texts):
        shingles = _shingles(text)
        signatures[index] = (shingles[None, :] * factors + terms).min(axis=1)  # modulo 2**64
    buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    width = _PERMUTATIONS // _BANDS
    for index, signature in enumerate(signatures):
        for band in range(_BANDS):
            buckets[band, signature[band * width : (band + 1) * width].tobytes()].append(index)
    found: list[set[int]] = [set() for _ in texts]
    for members in buckets.values():
        for place, one in enumerate(members):
            others = np.array(members[place + 1 :], dtype=np.int64)
            if len(others):
                near = others[(signatures[others] == signatures[one]).mean(axis=1) >= _ALIKE_MIN]
                for other in near.tolist():
                    found[one].add(other)
                    found[other].add(one)
    return found


def _shingles(text: str) -> np.ndarray[Any, np.dtype[np.uint64]]:
    plain = re.sub(r"\W+", " ", fold(whole(text)).lower())
    codes = np.frombuffer(plain.encode("utf-32-le", errors="replace"), dtype=np.uint32).astype(np.uint64)
    if len(codes) < _SHINGLE:
        codes = np.pad(codes, (0, _SHINGLE - len(codes)))
    windows = np.lib.stride_tricks.sliding_window_view(codes, _SHINGLE)
    powers = np.uint64(1_000_003) ** np.arange(_SHINGLE, dtype=np.uint64)
    return np.unique((windows * powers).sum(axis=1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
