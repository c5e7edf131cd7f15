"""The process that works on texts: answers each frame on its standard input with one on its output, until there are no more."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kokuban_server.adapters.screening.frames import LENGTH, answer, encode_fault
from kokuban_server.core.screening.classifying import classified, is_classified, reading
from kokuban_server.core.screening.phrases import PhrasesInvalidError, parse_phrases
from kokuban_server.core.screening.screening import judge, with_findings
from kokuban_server.core.screening.views import canonical

if TYPE_CHECKING:
    from kokuban_server.adapters.screening.classifier import Classifier
    from kokuban_server.core.screening.phrases import Phrases
    from kokuban_server.core.screening.screening import Screening
    from kokuban_server.core.trust import Source


class NotClassifiedError(Exception):
    """There is no classifier, or there are no phrases that there should be, and so no verdict on what comes from outside."""


class Worker:
    """Judges texts. It loads the classifier for the first one that needs it, and tries again for the next if that failed.

    The phrases of `phrases_file`, if there is one, are read once, likewise.
    """

    def __init__(self, phrases_file: Path | None = None) -> None:
        self._classifier: Classifier | None = None
        self._phrases_file = phrases_file
        self._phrases: Phrases | None = None

    def screen(self, text: str, source: Source) -> Screening:
        """Judge a text. Raises `NotClassifiedError`."""
        found = canonical(text)
        judged = judge(found, source)
        if is_classified(source):
            classifier = self._loaded()
            judged = classified(judged, classifier.scores(reading(found), judged), source, classifier.version)
        if self._phrases_file is None:
            return judged
        phrases = self._read(self._phrases_file)
        judged = with_findings(judged, list(phrases.findings(found)), source)
        return judged._replace(version=f"{judged.version}+{phrases.version}")

    def _read(self, phrases_file: Path) -> Phrases:
        if self._phrases is None:
            try:
                self._phrases = parse_phrases(phrases_file.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, PhrasesInvalidError) as fault:
                raise NotClassifiedError(f"the phrases cannot be read: {fault}") from fault
        return self._phrases

    def _loaded(self) -> Classifier:
        if self._classifier is None:
            try:
                # It takes a third of a second and 150 MB, which rules alone do not need.
                from kokuban_server.adapters.screening.classifier import Classifier  # noqa: PLC0415

                self._classifier = Classifier()
            except Exception as fault:  # of whatever library: without a classifier there is no verdict
                raise NotClassifiedError(f"{type(fault).__name__}: {fault}") from fault
        return self._classifier


def main() -> None:
    """Answer until the input ends: with the server."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    worker = Worker(*map(Path, sys.argv[1:]))
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(head)
        try:
            told = answer(source.read(length), worker.screen)
        except NotClassifiedError as fault:
            told = encode_fault(str(fault))
        sink.write(told)
        sink.flush()


if __name__ == "__main__":
    main()
