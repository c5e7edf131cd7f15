"""Trains what judges texts from outside: `python -m training.train FOLDER`. The same folder gives the same weights."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kokuban_server.adapters.screening.heads import WEIGHTS, Heads, Language, save
from training import experiment, fitting
from training.features import SIGNS

if TYPE_CHECKING:
    from training.experiment import Experiment

VERSION = "c2"
"""Of what is trained; goes up with every change to it. It stands in the name of the rule set that a text is judged by."""


def trained(found: Experiment) -> Heads:
    """Train with every row, and take the bands from where no row's source was seen."""
    en, en_stack = fitting.stacked(found.en.texts, fitting.english, found.en.folds, np.arange(len(found.en.texts.rows)))
    zh, zh_stack = fitting.stacked(found.zh.texts, fitting.chinese, found.zh.folds, np.arange(len(found.zh.texts.rows)))
    return Heads(
        VERSION,
        SIGNS,
        en.vectors,
        en.ngrams,
        zh.ngrams,
        Language(en_stack, found.en.suspicious, found.en.grave),
        Language(zh_stack, found.zh.suspicious, found.zh.grave),
    )


def main() -> None:
    """Train and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="holds the texts, as JSON Lines")
    parser.add_argument("--cache", type=Path, default=Path("build", "screening"), help="keeps what the encoder made")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="the file to write")
    arguments = parser.parse_args()
    found = experiment.run(arguments.folder, arguments.cache)
    save(trained(found), arguments.weights)
    for name, judged in found._asdict().items():
        bands = (
            f"suspicious from {judged.suspicious:.3f}, grave from {judged.grave:.3f} (1 %: {judged.one_percent:.3f})"
        )
        experiment.say(f"{name}: {bands}")
    experiment.say(f"wrote {arguments.weights}, {arguments.weights.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
