"""How the heads are trained, and how a row is scored by heads that never saw its source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from kokuban_server.adapters.screening.heads import Linear
from training.features import balance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from training.features import Floats, Texts

Indexes = NDArray[np.intp]
Folds = NDArray[np.intp]
"""Which part each row belongs to; -1 for those that are only trained with."""

VECTORS_C: Final = 1e-3
EN_NGRAMS_C: Final = 1.0
ZH_NGRAMS_C: Final = 3.0
STACK_C: Final = 3e-4
INNER_PARTS: Final = 5
_SPREAD_MIN: Final = 1e-3


class Parts(Protocol):
    """What the regressions below the stack make of rows."""

    def __call__(self, texts: Texts) -> Floats:
        """Give a row of numbers for each row."""
        ...


Fitted = TypeVar("Fitted", bound=Parts)
Fitter = Callable[["Texts", Indexes], Fitted]
"""Trains what lies below the stack, with some of the rows."""


class English(NamedTuple):
    """The regressions over an English text's vectors and characters."""

    vectors: Linear
    ngrams: Linear

    def __call__(self, texts: Texts) -> Floats:
        """Give the parts in the order in which the server weighs them."""
        by_window = self.vectors.of(texts.vectors)
        found: Floats = np.column_stack(
            [
                self.vectors.of(texts.means),
                np.maximum.reduceat(by_window, texts.windows),
                texts.ngrams @ self.ngrams.weights + self.ngrams.constant,
                texts.logits,
            ]
        ).astype(np.float32)
        return found


class Chinese(NamedTuple):
    """The regression over a Chinese text's characters."""

    ngrams: Linear

    def __call__(self, texts: Texts) -> Floats:
        """Give the parts in the order in which the server weighs them."""
        by_window = texts.window_ngrams @ self.ngrams.weights + self.ngrams.constant
        found: Floats = np.column_stack(
            [
                texts.ngrams @ self.ngrams.weights + self.ngrams.constant,
                np.maximum.reduceat(by_window, texts.windows),
            ]
        ).astype(np.float32)
        return found


def english(texts: Texts, of: Indexes) -> English:
    """Train with these rows."""
    weights = balance(texts.rows, of)
    labels = texts.is_injection[of]
    return English(_scaled(texts.means[of], labels, weights, VECTORS_C), _sparse(texts, of, weights, EN_NGRAMS_C))


def chinese(texts: Texts, of: Indexes) -> Chinese:
    """Train with these rows."""
    return Chinese(_sparse(texts, of, balance(texts.rows, of), ZH_NGRAMS_C))


def apart(texts: Texts, is_tested: NDArray[np.bool_], among: Indexes) -> Indexes:
    """Give those of the rows that may be trained with when others are tested: none of these, and none that is nearly one."""
    near = set(np.flatnonzero(is_tested).tolist())
    for index in list(near):
        near |= texts.alike[index]
    return np.array([index for index in among.tolist() if index not in near], dtype=np.intp)


def stacked(texts: Texts, fit: Fitter[Fitted], folds: Folds, of: Indexes) -> tuple[Fitted, Linear]:
    """Train everything with these rows: the stack sees only what the parts make of rows of sources that they never saw."""
    inner = _inner(texts, folds, of)
    unseen = np.zeros((len(texts.rows), 0), dtype=np.float32)
    for part in range(INNER_PARTS):
        is_tested = np.zeros(len(texts.rows), dtype=np.bool_)
        is_tested[of] = inner[of] == part
        made = fit(texts, apart(texts, is_tested, of))(texts)
        if not unseen.shape[1]:
            unseen = np.zeros_like(made)
        unseen[is_tested] = made[is_tested]
    values = np.concatenate([unseen, texts.signs], axis=1)
    stack = _scaled(values[of], texts.is_injection[of], balance(texts.rows, of), STACK_C)
    return fit(texts, of), stack


def unseen_scores(texts: Texts, fit: Fitter[Fitted], folds: Folds) -> Floats:
    """Score each row by what was trained without its part. Rows that are only trained with have no score (NaN)."""
    scores = np.full(len(texts.rows), np.nan, dtype=np.float32)
    for fold in sorted(set(folds.tolist()) - {-1}):
        is_tested = folds == fold
        parts, stack = stacked(texts, fit, folds, apart(texts, is_tested, np.arange(len(texts.rows))))
        scores[is_tested] = scored(texts, parts, stack)[is_tested]
    return scores


def scored(texts: Texts, parts: Parts, stack: Linear) -> Floats:
    """Score each row."""
    return stack.of(np.concatenate([parts(texts), texts.signs], axis=1))


def _inner(texts: Texts, folds: Folds, of: Indexes) -> Folds:
    """Spread the sources that are trained with over a few parts, those of one fold together."""
    names = [f"{folds[index]}" if folds[index] >= 0 else texts.rows[index].source for index in range(len(texts.rows))]
    order = {name: place % INNER_PARTS for place, name in enumerate(sorted({names[index] for index in of}))}
    return np.array([order.get(name, -1) for name in names], dtype=np.intp)


def _scaled(values: Floats, labels: NDArray[np.bool_], weights: Floats, c: float) -> Linear:
    """Train on values of which each has the same spread, and give weights for the values as they are."""
    middle, spread = values.mean(axis=0), values.std(axis=0) + _SPREAD_MIN
    trained = LogisticRegression(C=c, max_iter=500).fit((values - middle) / spread, labels, sample_weight=weights)
    slopes = (trained.coef_[0] / spread).astype(np.float32)
    return Linear(slopes, float(trained.intercept_[0] - middle @ slopes))


def _sparse(texts: Texts, of: Indexes, weights: Floats, c: float) -> Linear:
    trained = LogisticRegression(C=c, max_iter=100, tol=1e-3).fit(
        texts.ngrams[of], texts.is_injection[of], sample_weight=weights
    )
    return Linear(trained.coef_[0].astype(np.float32), float(trained.intercept_[0]))


def spread_over(sources: Sequence[tuple[str, int]], folds: int) -> dict[str, int]:
    """Spread sources over so many parts of about the same size, the largest first."""
    sizes = [0] * folds
    found = {}
    for source, size in sorted(sources, key=lambda item: (-item[1], item[0])):
        found[source] = min(range(folds), key=sizes.__getitem__)
        sizes[found[source]] += size
    return found
