"""The encoder that turns English text into vectors: a small MiniLM that the package `stackone-defender` ships.

Only the two files of the package are used, none of its code. The heads that judge the vectors belong to exactly these files, so
others are refused.
"""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from kokuban_server.adapters.screening import graph

# As it is shipped it sends to its maker how it is used, and leaves a file behind for that. It looks for this when it is loaded.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime

Vector = NDArray[np.float32]

PACKAGE: Final = "stackone_defender"
FOLDER: Final = Path("models", "minilm-multihead-v5")
DIGESTS: Final = {
    "model_quantized.onnx": "3d4a1ba798c395c140202992c50e6c8de02fb1b9bd5aba6540848705b9c1e92c",
    "tokenizer.json": "0d3aef594edd5f9b53e7f814277a9171dc70ff93eb66bda6e01f7aa53997d963",
}
"""SHA-256 of each file that is used, as in stackone-defender 0.9.4."""
DIMENSIONS: Final = 384
WINDOW_TOKENS: Final = 254
STRIDE_TOKENS: Final = 222
_FIRST, _LAST = 101, 102
"""The tokens that the encoder was trained to find around a text."""
_POOLED: Final = "/Div_output_0"
"""The mean over a window's tokens, inside the graph, before the package's own heads."""
_SLOWER: Final = ["SkipLayerNormFusion"]
"""What the runtime would put in the place of two steps that together take a third of its time."""


class EncoderMissingError(Exception):
    """The encoder's files are not there, or are others: nothing can be classified."""


class Encoded(NamedTuple):
    """What the encoder makes of a text, one row for each window. A text without a token has one window."""

    vectors: Vector
    """Of 384 numbers."""
    logits: Vector
    """The package's own two: an attack, and a text about attacks."""


class Encoder:
    """Reads windows of 254 tokens, each of which has the first 32 in common with the one before."""

    def __init__(self, folder: Path | None = None) -> None:
        """Load from the package, or from a folder. Raises `EncoderMissingError`."""
        folder = folder or _shipped()
        model, tokens = (_checked(folder / name) for name in DIGESTS)
        self._tokenizer = Tokenizer.from_buffer(tokens)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False  # it would keep as much as the longest window ever took
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(
            graph.with_output(graph.with_whole_attention(model), _POOLED),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=_SLOWER,
        )

    def encode(self, text: str) -> Encoded:
        """Give the vectors of a text. Each window goes by itself: beside others it would be rounded otherwise."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        last = max(1, len(ids) - WINDOW_TOKENS + STRIDE_TOKENS)
        windows = [self._run(ids[start : start + WINDOW_TOKENS]) for start in range(0, last, STRIDE_TOKENS)]
        vectors, logits = zip(*windows, strict=True)
        return Encoded(np.concatenate(vectors), np.concatenate(logits))

    def _run(self, ids: list[int]) -> tuple[Vector, Vector]:
        tokens = np.array([[_FIRST, *ids, _LAST]], dtype=np.int64)
        vector, logits = self._session.run(
            [_POOLED, self._session.get_outputs()[0].name],
            {"input_ids": tokens, "attention_mask": np.ones_like(tokens)},
        )
        return vector, logits


def _shipped() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EncoderMissingError("stackone-defender is not installed")
    return Path(spec.submodule_search_locations[0]) / FOLDER


def _checked(file: Path) -> bytes:
    try:
        content = file.read_bytes()
    except OSError as fault:
        raise EncoderMissingError(f"{file.name} of stackone-defender cannot be read") from fault
    if hashlib.sha256(content).hexdigest() != DIGESTS[file.name]:
        raise EncoderMissingError(
            f"{file.name} of stackone-defender is not the one that the classifier was trained with"
        )
    return content
