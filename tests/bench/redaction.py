"""What redaction finds, what it tells wrongly, and its time: `python tests/bench/redaction.py [FOLDER]`.

Positives are made by lot (tests/core/sensitive.py). FOLDER holds benign texts as JSON Lines (`ben_*.jsonl`, each line with
`text`); they are no part of this project, and without them only our own few are counted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from kokuban_server.core.redaction.search import find
from tests.core.sensitive import BENIGN, CHINESE, PERSONAL, SECRETS, VIEWS, positive, recall

EACH = 500
EACH_VIEW = 100
SEED = 20_261
TIMED_BYTES = 256 * 1024
FLOODS = (
    "4111 ",
    "1.1.1.",
    "a@b.cc ",
    "13800138000 ",
    "password=abc123xyz ",
    "%41a",
    "61 ",
    "a\u200b",
    "-----BEGIN PRIVATE KEY-----",
)
"""Kinds of texts made to be slow; the first ones are the slowest that were found."""


def figures(folder: Path | None = None) -> dict[str, Any]:
    """Give every figure by its name; shares of 1, findings for each document, microseconds of processor time for each KiB."""
    ours = list(BENIGN)
    by_source = _texts(folder) if folder is not None else {}
    theirs = [text for texts in by_source.values() for text in texts]
    return {
        "recall": {
            name: recall(families, EACH, SEED, _is_found)
            for name, families in (("secrets", SECRETS), ("personal", PERSONAL), ("chinese", CHINESE))
        },
        "recall_by_view": {view: _recall_in(view) for view in VIEWS},
        "benign": _benign(theirs) if theirs else "no folder of benign texts was given",
        "benign_by_source": {source: _benign(texts) for source, texts in by_source.items()},
        "benign_own": _benign(ours),
        "microseconds_per_kib_ordinary": _time(theirs or ours * 100),
        "microseconds_per_kib_worst": max(_time([text]) for text in _floods()),
    }


def _is_found(kind: str, text: str) -> bool:
    return any(finding.type == kind for finding in find(text).findings)


def _recall_in(view: str) -> float:
    draw = random.Random(f"{SEED} {view}")
    families = (*SECRETS, *PERSONAL, *CHINESE)
    found = 0
    for family in families:
        for _ in range(EACH_VIEW):
            found += _is_found(family.type, VIEWS[view](draw, positive(draw, family)[1]))
    return found / (EACH_VIEW * len(families))


def _texts(folder: Path) -> dict[str, list[str]]:
    texts = defaultdict(list)
    for file in sorted(folder.glob("ben_*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                told = json.loads(line)
                texts[told.get("source", file.stem)].append(told["text"])
    return texts


def _benign(texts: list[str]) -> dict[str, Any]:
    """Give what is told of benign texts. Mail addresses are counted apart: in mails they are what they are told to be."""
    types: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for text in texts:
        for finding in find(text).findings:
            types[finding.type] += 1
            kinds[finding.kind.name.lower()] += 1
    count = len(texts)
    return {
        "documents": count,
        "findings_per_document": types.total() / count,
        "secrets_per_document": kinds["secret"] / count,
        "personal_per_document_without_email": (kinds["personal"] - types["email"]) / count,
        "email_per_document": types["email"] / count,
        "types": dict(types),
    }


def _floods() -> list[str]:
    draw = random.Random(SEED)
    noise = "".join(draw.choices("abcdefghijklmnop0123456789  .@:/=-_+%&\\", k=TIMED_BYTES))
    return [*(flood * (TIMED_BYTES // len(flood.encode())) for flood in FLOODS), noise]


def _time(texts: list[str]) -> float:
    kib = sum(len(text.encode()) for text in texts) / 1024
    began = time.process_time()
    for text in texts:
        find(text)
    return round((time.process_time() - began) / kib * 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="holds benign texts")
    sys.stdout.write(json.dumps(figures(parser.parse_args().folder), indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
