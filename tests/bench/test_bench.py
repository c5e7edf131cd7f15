"""The benchmark harness works: what comes out has the form that is documented. Nothing here judges a speed."""

from __future__ import annotations

import importlib
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


def test_callers_with_credentials_are_measured(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    names = ["auth_overhead_mtls", "auth_overhead_jwt", "echo_overhead_mtls", "hidden_vs_absent_time"]
    arguments = ["--only", *names, "--pairs", "1", "--seconds", "0.05", "--quick", "--output", str(output)]
    subprocess.run([sys.executable, str(_RUN), *arguments], capture_output=True, text=True, timeout=120, check=True)
    figures = json.loads(output.read_text())
    assert [figure["name"] for figure in figures] == names
    assert all(figure["value"] > 0 for figure in figures), [figure.get("fault") for figure in figures]


def test_telemetry_is_measured(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    names = ["telemetry_overhead", "telemetry_overhead_full"]
    arguments = ["--only", *names, "--pairs", "1", "--seconds", "0.05", "--quick", "--output", str(output)]
    subprocess.run([sys.executable, str(_RUN), *arguments], capture_output=True, text=True, timeout=120, check=True)
    figures = json.loads(output.read_text())
    assert [figure["name"] for figure in figures] == names
    assert all(figure["value"] > 0 for figure in figures), [figure.get("fault") for figure in figures]
    assert set(figures[0]["ours"]["runs"][0]["cpu_us_per_operation"]) == {"server", "collector", "client"}


def test_what_guards_a_board_is_measured(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    arguments = ["--only", "internal_write_overhead", "--pairs", "1", "--seconds", "0.05", "--quick"]
    done = [sys.executable, str(_RUN), *arguments, "--output", str(output)]
    subprocess.run(done, capture_output=True, text=True, timeout=120, check=True)
    (figure,) = json.loads(output.read_text())
    assert figure["value"] > 0, figure.get("fault")


def test_tasks_are_measured(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    names = ["event_append_vs_commit", "resume_growth"]
    arguments = ["--only", *names, "--pairs", "1", "--seconds", "0.05", "--quick", "--output", str(output)]
    subprocess.run([sys.executable, str(_RUN), *arguments], capture_output=True, text=True, timeout=120, check=True)
    figures = json.loads(output.read_text())
    assert [figure["name"] for figure in figures] == names
    assert all(figure["value"] > 0 for figure in figures), [figure.get("fault") for figure in figures]


def test_what_is_to_be_equal_may_be_neither_much_more_nor_much_less() -> None:
    sys.path.insert(0, str(_RUN.parents[1]))  # as run.py does
    (figure,) = [one for one in importlib.import_module("bench.figures").FIGURES if one.better == "equal"]
    assert [figure.reaches(value, 1.1) for value in (0.9, 1 / 1.1, 1.0, 1.1, 1.11)] == [False, True, True, True, False]


def test_a_figure_that_is_not_known_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(_RUN), "--only", "nonsense"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "commit_growth_1m" in done.stderr
