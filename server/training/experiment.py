"""What is trained with what, which sources are held out together, and where the bands begin."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from training import chinese, english, fitting
from training.embeddings import Embeddings
from training.features import prepared
from training.rows import read, sampled

if TYPE_CHECKING:
    from pathlib import Path

    from training.features import Floats, Mask, Texts
    from training.fitting import Folds
    from training.rows import Row

IN_SCOPE: Final = {
    "bipia": ("bipia", "bipia-ctx"),
    "gandalf": ("gandalf",),
    "giskard": ("giskard",),
    "hackaprompt": ("hackaprompt",),
    "inthewild": ("in-the-wild",),
    "neuralchemy": ("neuralchemy",),
    "promptarmor_bench": ("prompt-armor-bench",),
    "promptwl": ("promptwl",),
    "pyrit": ("pyrit",),
    "satml_ctf": ("satml-ctf-2024",),
    "spikee": ("spikee", "spikee-docs"),
}
"""What is measured by what was trained without it, and its sources: orders first, then where they were put."""
UNTRAINED_PREFIXES: Final = ("own-", "template-zh-held-out")
"""Sources that nothing is ever trained with."""
TRAINED_ONLY: Final = ("cyberseceval", "jackhhao", "yanismiraoui", "skilljack")
"""Orders that are not measured: role play, other languages, and what is no instruction at all."""
LEFT_OUT: Final = ("jailbench",)
"""Harmful questions, which are no orders to whoever reads them."""
ORDERS_OF_EACH_TEMPLATE: Final = 60
CHINESE_FOLDS: Final = 8
SUSPICIOUS_SHARE: Final = 0.05
GRAVE_SHARE: Final = 0.01
GRAVE_TRIGGER_SHARE: Final = 0.05
"""Of harmless texts that use an attack's words: the point for quarantine is set higher where more would lie above it."""


class Judged(NamedTuple):
    """One language: its rows, and how each was scored by what never saw its source."""

    texts: Texts
    folds: Folds
    scores: Floats
    one_percent: float
    """One in a hundred of the ordinary harmless texts in the half that is kept for this lies above it."""
    suspicious: float
    grave: float

    @property
    def is_reported(self) -> Mask:
        """Say which rows no threshold was set by."""
        return ~calibrates(self.texts)


class Experiment(NamedTuple):
    """What came of it."""

    en: Judged
    zh: Judged


def run(folder: Path, cache: Path) -> Experiment:
    """Prepare the rows of a folder and score each one. Says on the error output how far it is."""
    return judged(sampled(read(folder)), cache)


def judged(rows: list[Row], cache: Path) -> Experiment:
    """Score each of these rows, and own ones besides."""
    kept = [row for row in rows if _is_trained_with(row)]
    for made in (chinese.made(held_out=False, of_each_order=ORDERS_OF_EACH_TEMPLATE, seed=1), english.made(seed=1)):
        kept += [*made.orders, *made.harmless]
    en, zh = prepared(kept, Embeddings(cache), say)
    return Experiment(
        _scored("English", en, fitting.english, _english_folds(en)),
        _scored("Chinese", zh, fitting.chinese, _chinese_folds(zh)),
    )


def say(line: str) -> None:
    """Say how far it is."""
    sys.stderr.write(f"{line}\n")


def calibrates(texts: Texts) -> Mask:
    """Say which harmless rows thresholds are set by: half of them. False alarms are counted in the other half."""
    odd = [hashlib.sha256(row.text.encode(errors="surrogatepass")).digest()[0] % 2 == 1 for row in texts.rows]
    found: Mask = ~texts.is_injection & np.array(odd)
    return found


def _is_trained_with(row: Row) -> bool:
    is_public = not row.source.startswith((*UNTRAINED_PREFIXES, *LEFT_OUT))
    # Reports of bypasses name a place in a repository.
    return is_public and "#" not in row.source and " " not in row.source


def _scored(name: str, texts: Texts, fit: fitting.Fitter[fitting.Fitted], folds: Folds) -> Judged:
    say(f"{name}: scoring {int((folds >= 0).sum())} rows by what never saw their source")
    scores = fitting.unseen_scores(texts, fit, folds)
    set_by = calibrates(texts) & ~np.isnan(scores)
    ordinary = scores[set_by & texts.is_ordinary]
    triggers = scores[set_by & texts.is_trigger]
    one_percent, suspicious = np.quantile(ordinary, [1 - GRAVE_SHARE, 1 - SUSPICIOUS_SHARE]).tolist()
    grave = max(one_percent, float(np.quantile(triggers, 1 - GRAVE_TRIGGER_SHARE)))
    return Judged(texts, folds, scores, one_percent, suspicious, grave)


def _english_folds(texts: Texts) -> Folds:
    """Give one part for each source in scope; harmless sources are spread over them."""
    of_source = {source: place for place, sources in enumerate(IN_SCOPE.values()) for source in sources}
    harmless = Counter(row.source for row in texts.rows if not row.is_injection and row.source not in of_source)
    of_source |= fitting.spread_over(list(harmless.items()), len(IN_SCOPE))
    return np.array(
        [-1 if row.source.startswith(TRAINED_ONLY) else of_source.get(row.source, -1) for row in texts.rows],
        dtype=np.intp,
    )


def _chinese_folds(texts: Texts) -> Folds:
    sources = Counter(row.source for row in texts.rows)
    of_source = fitting.spread_over(list(sources.items()), CHINESE_FOLDS)
    return np.array([of_source[row.source] for row in texts.rows], dtype=np.intp)
