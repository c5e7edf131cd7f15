"""What is known of each row before anything is trained."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from kokuban_server.adapters.screening import ngrams
from kokuban_server.adapters.screening.heads import EN_NGRAMS, ZH_NGRAMS, zh_windows
from kokuban_server.core.screening.classifying import reading, signs
from kokuban_server.core.screening.rules import RULES
from kokuban_server.core.screening.screening import judge
from kokuban_server.core.screening.views import canonical
from kokuban_server.core.trust import Source
from training.rows import alike

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from training.embeddings import Embeddings
    from training.rows import Row

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

SIGNS: Final = (
    *sorted(rule.id for rule in RULES),
    "combined",
    "concealed.tags",
    "concealed.variation-selectors",
    "concealed.zero-width-bits",
    "sign.direction-override",
    "sign.mixed-scripts-in-word",
    "sign.terminal-conceal",
    "sign.zero-width-in-word",
)
"""The rules whose findings are weighed."""
TRIGGER_KINDS: Final = ("hard_short", "chat_trigger", "notinject", "lookalike")
"""Kinds of harmless texts that use an attack's words."""
HARD_KINDS: Final = (*TRIGGER_KINDS, "chat_security", "role_prompt", "policy_doc")
"""Those, texts about attacks, and texts that are instructions themselves; all other harmless ones are ordinary."""


class Texts(NamedTuple):
    """Rows in one language, by row: what all that is trained starts from."""

    rows: list[Row]
    texts: list[str]
    """What is read of each."""
    is_injection: Mask
    is_ordinary: Mask
    """Harmless, and no trap."""
    is_trigger: Mask
    """Harmless, with an attack's words."""
    signs: Floats
    ngrams: scipy.sparse.csr_matrix
    windows: NDArray[np.intp]
    """Where each row's windows begin."""
    vectors: Floats
    """One row for each window; of Chinese texts none."""
    means: Floats
    logits: Floats
    """The encoder's own, the mean over the windows."""
    window_ngrams: scipy.sparse.csr_matrix
    """Of Chinese texts, one row for each window."""
    alike: list[set[int]]

    def of(self, *sources: str) -> Mask:
        """Say which rows are of one of these sources."""
        return np.array([row.source in sources for row in self.rows])


def prepared(rows: Sequence[Row], embeddings: Embeddings, say: Callable[[str], None]) -> tuple[Texts, Texts]:
    """Give what is known of the rows, apart by language: a row with both is among both."""
    found = [canonical(row.text) for row in rows]
    read = [reading(one) for one in found]
    signed = np.array([signs(judge(one, Source()), SIGNS) for one in found], dtype=np.float32)
    en = [index for index, one in enumerate(read) if one.en.strip()]
    zh = [index for index, one in enumerate(read) if one.zh.strip()]
    say(f"{len(en)} rows to read in English, {len(zh)} in Chinese")
    return (
        _english([rows[index] for index in en], [read[index].en for index in en], signed[en], embeddings, say),
        _chinese([rows[index] for index in zh], [read[index].zh for index in zh], signed[zh]),
    )


def _english(
    rows: list[Row], texts: list[str], signed: Floats, embeddings: Embeddings, say: Callable[[str], None]
) -> Texts:
    encoded = embeddings.of(texts, say)
    counts = np.array([len(one.vectors) for one in encoded])
    begins = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)
    vectors = np.concatenate([one.vectors for one in encoded]).astype(np.float32)
    logits = np.concatenate([one.logits for one in encoded]).astype(np.float32)
    per_row = counts[:, None]
    return Texts(
        **_common(rows, texts, signed),
        ngrams=_counted(texts, EN_NGRAMS),
        windows=begins,
        vectors=vectors,
        means=np.add.reduceat(vectors, begins) / per_row,
        logits=np.add.reduceat(logits, begins) / per_row,
        window_ngrams=scipy.sparse.csr_matrix((0, ngrams.BUCKETS)),
    )


def _chinese(rows: list[Row], texts: list[str], signed: Floats) -> Texts:
    windows = [zh_windows(text) for text in texts]
    begins = np.concatenate([[0], np.cumsum([len(one) for one in windows])[:-1]]).astype(np.intp)
    nothing = np.empty((0, 0), dtype=np.float32)
    return Texts(
        **_common(rows, texts, signed),
        ngrams=_counted(texts, ZH_NGRAMS),
        windows=begins,
        vectors=nothing,
        means=nothing,
        logits=nothing,
        window_ngrams=_counted([window for one in windows for window in one], ZH_NGRAMS),
    )


def _common(rows: list[Row], texts: list[str], signed: Floats) -> dict[str, Any]:
    is_injection = np.array([row.is_injection for row in rows])
    is_hard, is_trigger = (
        ~is_injection & np.array([row.kind.startswith(kinds) for row in rows]) for kinds in (HARD_KINDS, TRIGGER_KINDS)
    )
    return {
        "rows": rows,
        "texts": texts,
        "signs": signed,
        "is_injection": is_injection,
        "is_ordinary": ~is_injection & ~is_hard,
        "is_trigger": is_trigger,
        "alike": alike([row.text for row in rows]),
    }


def _counted(texts: Sequence[str], lengths: range) -> scipy.sparse.csr_matrix:
    each = [ngrams.counted(text, lengths) for text in texts]
    ends = np.concatenate([[0], np.cumsum([len(buckets) for buckets, _ in each])])
    buckets = np.concatenate([buckets for buckets, _ in each])
    counts = np.concatenate([counts for _, counts in each])
    return scipy.sparse.csr_matrix((counts, buckets, ends), shape=(len(texts), ngrams.BUCKETS))


def balance(rows: Sequence[Row], of: NDArray[np.intp]) -> Floats:
    """Weigh rows so that orders and harmless texts count alike, and large sources less than their size."""
    sizes = Counter((rows[index].source, rows[index].kind) for index in of)
    weights = np.array([sizes[rows[index].source, rows[index].kind] ** -0.5 for index in of])
    is_injection = np.array([rows[index].is_injection for index in of])
    for side in (is_injection, ~is_injection):
        weights[side] /= weights[side].sum()
    return (weights * len(of) / 2).astype(np.float32)
