"""The benchmark harness works: what comes out has the form that is documented. Nothing here judges a speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_RUN = Path(__file__).with_name("run.py")


def test_a_quick_run_of_one_figure_writes_what_is_documented(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    arguments = ["--only", "hot_counter", "--pairs", "2", "--seconds", "0.1", "--quick", "--output", str(output)]
    done = subprocess.run(
        [sys.executable, str(_RUN), *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    assert "hot_counter" in done.stdout.splitlines()[-3]
    (figure,) = json.loads(output.read_text())
    assert figure["name"] == "hot_counter"
    assert (figure["must"], figure["aim"], figure["better"]) == (0.5, 1.0, "higher")
    assert len(figure["pairs"]) == 2
    assert min(figure["pairs"]) <= figure["value"] <= max(figure["pairs"])
    assert figure["met"] is (figure["value"] >= 0.5)
    for side in (figure["ours"], figure["theirs"]):
        assert len(side["runs"]) == 2
        for run in side["runs"]:
            assert run["operations"] == side["operations"] > 0
            assert run["rate"] > 0
            assert set(run["cpu_us_per_operation"]) == {"server", "client"}
    assert figure["machine"]["processors"] > 0


def test_a_figure_that_is_not_known_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(_RUN), "--only", "nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "commit_growth_1m" in done.stderr
