"""The classifier: how much a text from outside is like an order to whoever reads it."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from kokuban_server.adapters.screening import heads
from kokuban_server.adapters.screening.encoder import Encoder
from kokuban_server.core import limits
from kokuban_server.core.screening.classifying import Score, segments, signs

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_server.core.screening.classifying import Reading
    from kokuban_server.core.screening.screening import Screening


class Classifier:
    """Judges texts by what was trained. What it made of parts that it saw lately is kept, a bounded number of them."""

    def __init__(self) -> None:
        """Load everything. Raises `EncoderMissingError`, `WeightsError`."""
        self._heads = heads.load()
        self._encoder = Encoder()
        self._kept: OrderedDict[bytes, list[float]] = OrderedDict()

    @property
    def version(self) -> str:
        """What it was trained to, by name: under the same name a text has the same scores."""
        return self._heads.version

    def scores(self, read: Reading, screening: Screening) -> list[Score]:
        """Give a score for each language that there is something to read in: that of the part which is most like an order."""
        found = signs(screening, self._heads.rules)
        scores = []
        for name, text, judged, parts in (
            ("en", read.en, self._heads.en, self._en_parts),
            ("zh", read.zh, self._heads.zh, self._heads.zh_parts),
        ):
            if text.strip():
                values = [self._remembered(name, part, parts) + found for part in segments(text)]
                value = float(judged.stack.of(np.array(values, dtype=np.float32)).max())
                scores.append(Score(name, value, judged.suspicious, judged.grave))
        return scores

    def _en_parts(self, text: str) -> list[float]:
        return self._heads.en_parts(text, self._encoder.encode(text))

    def _remembered(self, language: str, text: str, parts: Callable[[str], list[float]]) -> list[float]:
        key = hashlib.sha256(f"{language} {text}".encode(errors="surrogatepass")).digest()
        found = self._kept.pop(key, None)
        if found is None:
            found = parts(text)
        self._kept[key] = found
        if len(self._kept) > limits.CLASSIFIED_SEGMENTS_KEPT_ENTRIES_MAX:
            self._kept.popitem(last=False)
        return found
