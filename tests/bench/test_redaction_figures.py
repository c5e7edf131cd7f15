"""The figures of redaction are all there, and measure what they say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.bench import redaction
from tests.core.sensitive import VIEWS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_figures_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "EACH", 5)
    monkeypatch.setattr(redaction, "EACH_VIEW", 1)
    monkeypatch.setattr(redaction, "TIMED_BYTES", 4_096)
    texts = ["The build is green.", "password: Zx9!kLmQ7w", "mail li@mail.internal or call 13800138000"]
    rows = [{"text": text, "source": f"source-{number // 2}"} for number, text in enumerate(texts)]
    (tmp_path / "ben_ours.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    told = redaction.figures(tmp_path)
    assert len(told["recall"]["secrets"]) == 14
    assert all(0.8 <= share <= 1 for shares in told["recall"].values() for share in shares.values())
    assert set(told["recall_by_view"]) == set(VIEWS)
    benign = told["benign"]
    assert (benign["documents"], benign["types"]) == (3, {"password": 1, "email": 1, "cn-phone": 1})
    assert benign["secrets_per_document"] == benign["email_per_document"] == 1 / 3
    assert benign["findings_per_document"] == 1
    by_source = {source: (of["documents"], of["types"]) for source, of in told["benign_by_source"].items()}
    assert by_source == {"source-0": (2, {"password": 1}), "source-1": (1, {"email": 1, "cn-phone": 1})}
    assert told["microseconds_per_kib_worst"] > 0
    assert "no folder" in redaction.figures()["benign"]
