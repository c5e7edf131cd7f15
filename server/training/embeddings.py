"""What the encoder makes of many texts, kept in a file so that it is made once."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import numpy as np

from kokuban_server.adapters.screening.encoder import (
    DIGESTS,
    DIMENSIONS,
    STRIDE_TOKENS,
    WINDOW_TOKENS,
    Encoded,
    Encoder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_KEPT_EVERY: Final = 1_000


class Embeddings:
    """Vectors by text, in a folder. Texts that are not there yet are encoded, and kept for the next run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        made_by = f"{DIGESTS['model_quantized.onnx'][:12]}-{WINDOW_TOKENS}-{STRIDE_TOKENS}"
        self._file = folder / f"embeddings-{made_by}.npz"
        self._encoder: Encoder | None = None
        self._known: dict[bytes, Encoded] = {}
        if self._file.exists():
            with np.load(self._file, allow_pickle=False) as kept:
                keys, ends = kept["keys"], kept["ends"]
                vectors, logits = kept["vectors"], kept["logits"]
            begin = 0
            for key, end in zip(keys, ends.tolist(), strict=True):
                self._known[key.tobytes()] = Encoded(vectors[begin:end], logits[begin:end])
                begin = end

    def of(self, texts: Iterable[str], say: Callable[[str], None]) -> list[Encoded]:
        """Give what the encoder makes of each text."""
        texts = list(texts)
        missing = {_key(text): text for text in texts if _key(text) not in self._known}
        for number, (key, text) in enumerate(missing.items(), 1):
            if self._encoder is None:
                self._encoder = Encoder()
            self._known[key] = self._encoder.encode(text)
            if number % _KEPT_EVERY == 0 or number == len(missing):
                self._keep()
                say(f"encoded {number} of {len(missing)} texts")
        return [self._known[_key(text)] for text in texts]

    def _keep(self) -> None:
        all_ = list(self._known.values())
        partial = self._file.with_suffix(".part.npz")
        np.savez(
            partial,
            keys=np.frombuffer(b"".join(self._known), dtype=np.uint8).reshape(-1, hashlib.sha256().digest_size),
            ends=np.cumsum([len(encoded.vectors) for encoded in all_]),
            vectors=np.concatenate([encoded.vectors for encoded in all_]) if all_ else np.empty((0, DIMENSIONS)),
            logits=np.concatenate([encoded.logits for encoded in all_]) if all_ else np.empty((0, 2)),
        )
        partial.replace(self._file)


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
