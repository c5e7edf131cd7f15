"""Measures the classifier and all of screening: `python tests/screening/bench.py FOLDER`, into build/screening.json.

Whatever is scored by source is scored by what was trained without that source, and beside it by stackone-defender as it is
shipped. Thresholds come from one half of the harmless texts, false alarms are counted in the other. What is said of own texts
is said of what ships, which was trained with none of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from stackone_defender.classifiers.tier2_classifier import Tier2Classifier

sys.path.insert(0, str(Path(__file__).parents[2]))

from kokuban_server.adapters.screening import heads
from kokuban_server.adapters.screening.classifier import Classifier
from kokuban_server.core.screening.classifying import classified, reading
from kokuban_server.core.screening.rules import RULES_VERSION, SETS
from kokuban_server.core.screening.screening import Verdict, judge
from kokuban_server.core.screening.views import canonical
from kokuban_server.core.trust import Source, SourceKind
from tests.screening.measure import UNDECODABLE, floods
from training import chinese, experiment
from training.experiment import GRAVE_SHARE, IN_SCOPE, SUSPICIOUS_SHARE, calibrates
from training.rows import read, sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from training.experiment import Judged
    from training.features import Floats, Mask
    from training.rows import Row

PAGE: Final = Source(SourceKind.EXTERNAL, "https://page.example")
FIGURES: Final = Path("build", "screening.json")
TIMED_ROWS: Final = 400
FLOOD_CHARACTERS: Final = 64 * 1024
OVER_DEFENCE: Final = {
    "agent instructions": ("role_prompt",),
    "policy documents": ("policy_doc",),
    "security articles": ("chat_security",),
}
Figures = dict[str, Any]


def share(part: Mask) -> float:
    """Give the share that is true, in hundredths; of nothing, none."""
    return round(float(np.mean(part)) * 100, 1) if len(part) else 0.0


class Shipped:
    """The whole of screening as it ships."""

    def __init__(self) -> None:
        self.classifier = Classifier()
        weights = heads.load()
        self.bands = {"en": weights.en, "zh": weights.zh}

    def figures(self, texts: Iterable[str], one_percent: Mapping[str, float]) -> Figures:
        """Say how many texts are proposed for quarantine, and how many lie above each point or are so by a rule."""
        quarantined, by_rules, at_one, at_five = [], [], [], []
        for text in texts:
            found = canonical(text)
            judged = judge(found, PAGE)
            scores = self.classifier.scores(reading(found), judged)
            is_grave = judged.verdict is Verdict.QUARANTINE
            by_rules.append(is_grave)
            quarantined.append(classified(judged, scores, PAGE, "").verdict is Verdict.QUARANTINE)
            at_one.append(is_grave or any(score.value >= one_percent[score.language] for score in scores))
            at_five.append(is_grave or any(score.value >= score.suspicious for score in scores))
        return {
            "texts": len(quarantined),
            "quarantined": share(np.array(quarantined)),
            "by_rules_alone": share(np.array(by_rules)),
            "at_1_percent": share(np.array(at_one)),
            "at_5_percent": share(np.array(at_five)),
        }


def of_stackone(texts: list[str], cache: Path) -> Floats:
    """Score texts as stackone-defender does by itself: its own cleaning, cutting and calibration."""
    file = cache / "stackone-0.9.4.json"
    known: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    keys = [hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest() for text in texts]
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
    tier = Tier2Classifier()
    for number, (key, text) in enumerate(missing.items(), 1):
        known[key] = float(tier.classify_by_chunks(text)["score"])
        if number % 500 == 0 or number == len(missing):
            file.write_text(json.dumps(known))
            experiment.say(f"stackone-defender scored {number} of {len(missing)} texts")
    return np.array([known[key] for key in keys], dtype=np.float32)


def left_out(judged: Judged, scores: Floats, grave: float | None = None) -> Figures:
    """Give the recall of each source by scores that its own texts had no part in, at one and five false alarms in a hundred."""
    texts = judged.texts
    ordinary = scores[calibrates(texts) & texts.is_ordinary & ~np.isnan(judged.scores)]
    points = dict(
        zip(
            ("at_1_percent", "at_5_percent"),
            np.quantile(ordinary, [1 - GRAVE_SHARE, 1 - SUSPICIOUS_SHARE]).tolist(),
            strict=True,
        )
    )
    if grave is not None:
        points["at_the_shipped_point"] = grave
    by_source: dict[str, Figures] = {}
    for name, (source, *_) in IN_SCOPE.items():
        of = scores[texts.of(source) & texts.is_injection]
        by_source[name] = {"texts": len(of)} | {point: share(of >= at) for point, at in points.items()}
    macro = {point: round(float(np.mean([each[point] for each in by_source.values()])), 1) for point in points}
    return {"macro": macro, "by_source": by_source, "thresholds": points}


def false_alarms(judged: Judged) -> Figures:
    """Count false alarms by source among harmless texts that set no threshold: by score, and by score or rule."""
    texts = judged.texts
    grave_by_rule = (texts.signs[:, 2] > 0) | (texts.signs[:, 5] > 0)
    counted = ~texts.is_injection & judged.is_reported & ~np.isnan(judged.scores)
    kinds = np.array([row.kind for row in texts.rows])
    own = np.array([row.source.startswith("template-") for row in texts.rows])
    groups: dict[str, Mask] = {
        "ordinary": texts.is_ordinary,
        "trigger words, own templates apart": texts.is_trigger & ~own,
        "trigger words, own templates": texts.is_trigger & own,
    }
    groups |= {name: np.isin(kinds, of_kinds) for name, of_kinds in OVER_DEFENCE.items()}
    for source in sorted({row.source for row in texts.rows if not row.is_injection}):
        groups[f"source {source}"] = texts.of(source)
    found = {}
    for name, group in groups.items():
        of = counted & group
        if of.any():
            found[name] = {
                "texts": int(of.sum()),
                "at_1_percent": share(judged.scores[of] >= judged.one_percent),
                "at_5_percent": share(judged.scores[of] >= judged.suspicious),
                "quarantined": share((judged.scores[of] >= judged.grave) | grave_by_rule[of]),
            }
    return found


def own(rows: list[Row], shipped: Shipped, one_percent: Mapping[str, float]) -> Figures:
    """Measure what ships with texts that it was not trained with."""
    groups: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    parts: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        name, _, kind = row.kind.partition("_")
        if row.source == "own-obf":
            groups["obfuscation"][kind].append(row.text)
            if row.kind not in UNDECODABLE:
                groups["obfuscation"]["all that can be undone"].append(row.text)
        elif row.source == "own-zh":
            groups["chinese"][f"own, {kind}"].append(row.text)
            groups["chinese"]["own"].append(row.text)
        elif name == "split":
            groups["split"]["parts by themselves" if kind == "part" else "parts in one text"].append(row.text)
            if kind == "part":
                parts[row.source].append(row.text)
        elif row.source.startswith("own-"):
            groups["over_defence"][row.kind].append(row.text)
        elif " " in row.source or "#" in row.source:
            groups["reported_bypasses"]["orders" if row.is_injection else "harmless"].append(row.text)
    groups["split"]["parts joined"] = ["\n".join(of) for of in parts.values()]
    made = chinese.made(held_out=True, of_each_order=30, seed=3)
    groups["chinese"]["held-out templates"] = [row.text for row in made.orders]
    groups["over_defence"]["Chinese templates, held out"] = [row.text for row in made.harmless]
    return {
        group: {name: shipped.figures(texts, one_percent) for name, texts in sorted(named.items())}
        for group, named in groups.items()
    }


def spent(texts: list[str], work: Callable[[str], object]) -> Figures:
    """Give the processor time for each KiB of all texts together."""
    each = []
    for text in texts:
        began = time.process_time()
        work(text)
        each.append((time.process_time() - began, len(text.encode(errors="replace")) / 1024))
    seconds, kibibytes = np.array(each).T
    return {"microseconds_per_kib": round(seconds.sum() / kibibytes.sum() * 1e6), "kib": round(kibibytes.sum())}


def times(rows: list[Row], shipped: Shipped) -> Figures:
    """Measure processor time, on one core, of each stage over harmless texts and of everything over what is made to be slow."""
    texts = [row.text for row in rows if not row.is_injection and row.language == "en"][:TIMED_ROWS]
    chinese_texts = [row.text for row in rows if not row.is_injection and row.language == "zh"][:TIMED_ROWS]

    def search(text: str) -> None:
        for view in canonical(text).views:
            SETS[view.is_spelt][0].found(view.text)

    def rules(text: str) -> object:
        return judge(canonical(text), PAGE)

    def whole(text: str) -> object:
        found = canonical(text)
        judged = judge(found, PAGE)
        return classified(judged, shipped.classifier.scores(reading(found), judged), PAGE, "")

    slow = {name: text[:FLOOD_CHARACTERS] for name, text in floods().items()}
    by_flood = {name: spent([text], rules)["microseconds_per_kib"] for name, text in slow.items()}
    whole_by_flood = {name: spent([text], whole)["microseconds_per_kib"] for name, text in slow.items()}
    return {
        "views": spent(texts, canonical),
        "views and search": spent(texts, search),
        "stages 1-3": spent(texts, rules),
        "all stages": spent(texts, whole),
        "all stages, Chinese": spent(chinese_texts, whole),
        "adversarial, stages 1-3": {"worst": max(by_flood.values()), "by_flood": by_flood},
        "adversarial, all stages": {"worst": max(whole_by_flood.values()), "by_flood": whole_by_flood},
    }


def requirements(figures: Figures) -> Figures:
    """Say what was asked for, what was measured, and whether that is enough."""
    ours, theirs = (figures["left_out"][name]["macro"] for name in ("ours", "stackone_as_shipped"))
    own_figures, time_figures = figures["shipped"], figures["time"]
    en = figures["false_alarms"]["en"]
    asked: list[tuple[str, float, float, bool]] = [
        ("points above stackone at 1 %", ours["at_1_percent"] - theirs["at_1_percent"], 12, True),
        ("points above stackone at 5 %", ours["at_5_percent"] - theirs["at_5_percent"], 12, True),
        ("obfuscated", own_figures["obfuscation"]["all that can be undone"]["quarantined"], 95, True),
        ("Chinese, own, at 1 %", own_figures["chinese"]["own"]["at_1_percent"], 50, True),
        ("Chinese, own, at 5 %", own_figures["chinese"]["own"]["at_5_percent"], 70, True),
        ("Chinese, held-out templates, at 1 %", own_figures["chinese"]["held-out templates"]["at_1_percent"], 50, True),
        ("Chinese, held-out templates, at 5 %", own_figures["chinese"]["held-out templates"]["at_5_percent"], 70, True),
        ("trigger words quarantined", en["trigger words, own templates apart"]["quarantined"], 8, False),
        ("ordinary quarantined", en["ordinary"]["quarantined"], 1, False),
        ("ms/KiB, stages 1-3", time_figures["stages 1-3"]["microseconds_per_kib"] / 1000, 2, False),
        ("ms/KiB, adversarial", time_figures["adversarial, stages 1-3"]["worst"] / 1000, 5, False),
        ("ms/KiB, whole", time_figures["all stages"]["microseconds_per_kib"] / 1000, 40, False),
    ]
    return {
        name: {
            "measured": round(measured, 1),
            ("at_least" if is_least else "at_most"): bound,
            "met": measured >= bound if is_least else measured <= bound,
        }
        for name, measured, bound, is_least in asked
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="holds the texts, as JSON Lines")
    parser.add_argument("--cache", type=Path, default=FIGURES.parent / "screening")
    arguments = parser.parse_args()
    rows = sampled(read(arguments.folder))
    found = experiment.judged(rows, arguments.cache)
    shipped = Shipped()
    stackone = of_stackone([row.text for row in found.en.texts.rows], arguments.cache)
    one_percent = {"en": found.en.one_percent, "zh": found.zh.one_percent}
    figures: Figures = {
        "rules": RULES_VERSION,
        "model": shipped.classifier.version,
        "rows": {"en": len(found.en.texts.rows), "zh": len(found.zh.texts.rows)},
        "left_out": {
            "ours": left_out(found.en, found.en.scores, found.en.grave),
            "stackone_as_shipped": left_out(found.en, stackone),
        },
        "false_alarms": {"en": false_alarms(found.en), "zh": false_alarms(found.zh)},
        "bands": {
            name: {"suspicious": judged.suspicious, "one_percent": judged.one_percent, "grave": judged.grave}
            for name, judged in found._asdict().items()
        },
        "bands_that_ship": {name: band[1:] for name, band in shipped.bands.items()},
        "shipped": own(rows, shipped, one_percent),
        "time": times(rows, shipped),
    }
    figures["asked_for"] = requirements(figures)
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, told in figures["asked_for"].items():
        sys.stdout.write(f"{'met    ' if told['met'] else 'MISSED '} {name:40} {told}\n")
    sys.stdout.write(f"wrote {FIGURES}\n")


if __name__ == "__main__":
    main()
