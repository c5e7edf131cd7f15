"""What judges the encoder's vectors and a text's characters: logistic regressions, whose weights are plain arrays in a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from kokuban_server.adapters.screening.encoder import DIMENSIONS, Encoded
from kokuban_server.adapters.screening.ngrams import BUCKETS, counted

Array = NDArray[np.float32]

WEIGHTS: Final = Path(__file__).with_name("weights.npz")
EN_NGRAMS: Final = range(2, 6)
ZH_NGRAMS: Final = range(1, 4)
ZH_WINDOW_CHARACTERS: Final = 160
ZH_STEP_CHARACTERS: Final = 100
EN_PARTS: Final = 5
ZH_PARTS: Final = 2
KINDS_OF_SIGNS: Final = 6


class WeightsError(Exception):
    """The file of weights cannot be read, or is not what is expected: nothing can be classified."""


class Linear(NamedTuple):
    """One regression: the sum of what is weighed, and a constant."""

    weights: Array
    constant: float

    def of(self, values: Array) -> Array:
        """Weigh each row."""
        weighed: Array = values @ self.weights + self.constant
        return weighed

    def of_text(self, text: str, lengths: range) -> float:
        """Weigh a text's runs of characters."""
        buckets, counts = counted(text, lengths)
        return float(counts @ self.weights[buckets]) + self.constant


class Language(NamedTuple):
    """What one language's texts are judged by at last."""

    stack: Linear
    """Over the parts and the rules' signs."""
    suspicious: float
    grave: float


class Heads(NamedTuple):
    """Everything that was trained."""

    version: str
    rules: tuple[str, ...]
    """The rules whose findings are weighed, in order."""
    vectors: Linear
    en_ngrams: Linear
    zh_ngrams: Linear
    en: Language
    zh: Language

    def en_parts(self, text: str, encoded: Encoded) -> list[float]:
        """Give what speaks for an order in an English text, without the rules."""
        by_window = self.vectors.of(encoded.vectors)
        return [
            float(self.vectors.of(encoded.vectors.mean(axis=0))),
            float(by_window.max()),
            self.en_ngrams.of_text(text, EN_NGRAMS),
            *encoded.logits.mean(axis=0).tolist(),
        ]

    def zh_parts(self, text: str) -> list[float]:
        """Give the same for a Chinese text: of all of it, and of the window that most of all is one."""
        windows = zh_windows(text)
        whole = self.zh_ngrams.of_text(text, ZH_NGRAMS)
        if len(windows) == 1:
            return [whole, whole]
        return [whole, max(self.zh_ngrams.of_text(window, ZH_NGRAMS) for window in windows)]


def zh_windows(text: str) -> list[str]:
    """Give the parts of a Chinese text that are looked at one by one."""
    last = max(1, len(text) - ZH_WINDOW_CHARACTERS + ZH_STEP_CHARACTERS)
    return [text[start : start + ZH_WINDOW_CHARACTERS] for start in range(0, last, ZH_STEP_CHARACTERS)]


def load(file: Path = WEIGHTS) -> Heads:
    """Read the weights. Raises `WeightsError`."""
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as kept:
            arrays = dict(kept)
        rules = tuple(arrays["rules"].tolist())
        signs = KINDS_OF_SIGNS + len(rules)
        return Heads(
            str(arrays["version"]),
            rules,
            _linear(arrays, "vectors", DIMENSIONS),
            _linear(arrays, "en_ngrams", BUCKETS),
            _linear(arrays, "zh_ngrams", BUCKETS),
            Language(_linear(arrays, "en_stack", EN_PARTS + signs), *arrays["en_bands"].tolist()),
            Language(_linear(arrays, "zh_stack", ZH_PARTS + signs), *arrays["zh_bands"].tolist()),
        )
    except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile) as fault:
        raise WeightsError(f"the classifier's weights cannot be used: {fault}") from fault


def save(heads: Heads, file: Path) -> None:
    """Write the weights, the many in half precision."""
    np.savez_compressed(
        file,
        version=np.array(heads.version),
        rules=np.array(heads.rules),
        en_bands=np.array(heads.en[1:]),
        zh_bands=np.array(heads.zh[1:]),
        **_arrays("vectors", heads.vectors, np.float32),
        **_arrays("en_ngrams", heads.en_ngrams, np.float16),
        **_arrays("zh_ngrams", heads.zh_ngrams, np.float16),
        **_arrays("en_stack", heads.en.stack, np.float32),
        **_arrays("zh_stack", heads.zh.stack, np.float32),
    )


def _linear(arrays: dict[str, Any], name: str, size: int) -> Linear:
    weights = arrays[name].astype(np.float32)
    if weights.shape != (size,) or not np.isfinite(weights).all():
        raise ValueError(f"{name} should be {size} finite numbers, and has the shape {weights.shape}")
    return Linear(weights, float(arrays[f"{name}_constant"]))


def _arrays(name: str, linear: Linear, kind: type) -> dict[str, Any]:
    return {name: linear.weights.astype(kind), f"{name}_constant": np.array(linear.constant)}
