"""Measures the figures, each as the median of pairs that alternate, and writes what came out.

    python tests/bench/run.py                                  # all, into build/bench.json; about ten minutes
    python tests/bench/run.py --only hot_counter --pairs 3 --quick    # while developing, into build/bench-part.json

The exit status is 1 if a figure does not reach what it must, except with --quick, whose values mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .figures import FIGURES, Figure, Scale, Side
from .processes import ROOT, Workplace, cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .measurement import Measurement

_WARM_UP_S = 1.0
_OPERATIONS_AT_FIRST = 128
_SIGNS = {"higher": "≥", "lower": "≤", "equal": "≈"}
FULL = Scale(few_entries=1_000, many_entries=1_000_000)
QUICK = Scale(few_entries=320, many_entries=3_200)


class Result:
    """One side's measurements."""

    def __init__(self, side: Side, operations: int) -> None:
        self.side = side
        self.operations = operations
        self.runs: list[dict[str, Any]] = []

    async def measure(self) -> Measurement:
        """Measure once, and keep what it took."""
        clients = [("client", self.side.load.process)]
        processes = [(program.role, program.process) for program in self.side.programs] + clients
        before = [cpu_seconds(process) for _, process in processes]
        measurement = await self.side.load.run(self.operations)
        spent = [cpu_seconds(process) - start for (_, process), start in zip(processes, before, strict=True)]
        self.runs.append(
            {
                "operations": measurement.operations,
                "seconds": round(measurement.seconds, 4),
                "rate": round(measurement.rate, 1),
                "median_ms": round(measurement.median_s * 1000, 3),
                "slow_ms": round(measurement.slow_s * 1000, 3),
                "cpu_us_per_operation": {
                    role: round(cpu_s / measurement.operations * 1e6, 1)
                    for (role, _), cpu_s in zip(processes, spent, strict=True)
                },
            }
        )
        return measurement

    def facts(self) -> dict[str, Any]:
        """Give what is kept of this side."""
        return {"what": self.side.what, "operations": self.operations, "runs": self.runs}

    def middle(self, name: str) -> float:
        """Give the median of one of the facts of a run."""
        values: list[float] = [run[name] for run in self.runs]
        return statistics.median(values)

    def costs(self) -> str:
        """Say what an operation costs each process, in microseconds of processor time."""
        costs = {
            role: statistics.median(run["cpu_us_per_operation"][role] for run in self.runs)
            for role in self.runs[0]["cpu_us_per_operation"]
        }
        return ", ".join(f"{role} {cost:.0f}" for role, cost in costs.items())


async def warmed_up(side: Side, duration_s: float) -> Result:
    """Run a side until it is warm; give it with the number of operations that takes about `duration_s`."""
    operations = _OPERATIONS_AT_FIRST
    warm_up_s = min(_WARM_UP_S, duration_s)
    while (measurement := await side.load.run(operations)).seconds < warm_up_s:
        operations = min(max(operations * 2, int(measurement.rate * warm_up_s * 1.2)), operations * 16)
    return Result(side, max(1, int(measurement.rate * duration_s)))


async def measure(figure: Figure, folder: Path, scale: Scale, pairs: int, duration_s: float) -> dict[str, Any]:
    """Measure one figure; give the object that is written for it."""
    begun = time.monotonic()
    async with Workplace(folder / figure.name) as place:
        results = [await warmed_up(side, duration_s) for side in await figure.sides(place, scale)]
        ratios = []
        for number in range(pairs):
            # Every other pair the other way round, so that a machine that slows down favours neither.
            order = results if number % 2 == 0 else results[::-1]
            values = {id(result): getattr(await result.measure(), figure.measure) for result in order}
            ratios.append(values[id(results[0])] / values[id(results[1])])
    value = statistics.median(ratios)
    print_result(figure, value, ratios, results)
    return {
        "name": figure.name,
        "value": round(value, 4),
        "must": figure.must,
        "aim": figure.aim,
        "met": figure.reaches(value, figure.must),
        "aim_met": figure.reaches(value, figure.aim),
        "better": figure.better,
        "what": figure.what,
        "pairs": [round(ratio, 4) for ratio in ratios],
        "ours": results[0].facts(),
        "theirs": results[1].facts(),
        "took_seconds": round(time.monotonic() - begun, 1),
    }


def failed(figure: Figure, fault: Exception) -> dict[str, Any]:
    """Give the object of a figure that could not be measured."""
    say(f"{figure.name}: could not be measured: {fault!r}\n")
    return {
        "name": figure.name,
        "value": None,
        "must": figure.must,
        "aim": figure.aim,
        "met": False,
        "aim_met": False,
        "better": figure.better,
        "what": figure.what,
        "pairs": [],
        "fault": repr(fault),
    }


def machine() -> dict[str, Any]:
    """Give what the figures depend on beside the code."""
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    etcd = (
        subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True)
        if shutil.which("etcd")
        else None
    )
    return {
        "processors": os.cpu_count(),
        "processor": model[0].partition(":")[2].strip() if model else platform.processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "grpcio": metadata.version("grpcio"),
        "protobuf": metadata.version("protobuf"),
        "uvloop": metadata.version("uvloop"),
        "sqlite": sqlite3.sqlite_version,
        "etcd": etcd.stdout.splitlines()[0].partition(":")[2].strip() if etcd else None,
        "load_before": os.getloadavg()[0],
    }


def say(text: str) -> None:
    """Write a line for who waits."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_result(figure: Figure, value: float, ratios: Sequence[float], results: Sequence[Result]) -> None:
    """Write what came out for one figure, for people."""
    sign = _SIGNS[figure.better]
    verdict = (
        "aim met" if figure.reaches(value, figure.aim) else "met" if figure.reaches(value, figure.must) else "MISSED"
    )
    say(f"{figure.name}: {value:.2f}, must {sign} {figure.must}, aim {sign} {figure.aim}: {verdict}")
    say(f"  {figure.what}")
    say(f"  pairs {' '.join(f'{ratio:.2f}' for ratio in ratios)}")
    for result in results:
        median = ""
        if result.middle("median_ms"):
            median = f", median {result.middle('median_ms'):.2f} ms, 99 of 100 within {result.middle('slow_ms'):.2f} ms"
        say(
            f"  {result.side.what}: {result.middle('rate'):,.0f}/s{median};"
            f" processor µs per operation: {result.costs()}"
        )
    say("")


def print_table(results: Sequence[dict[str, Any]]) -> None:
    """Write all figures in one table."""
    say(f"{'figure':<29}{'value':>8}{'must':>8}{'aim':>8}  verdict")
    for result in results:
        sign = _SIGNS[result["better"]]
        value = "-" if result["value"] is None else f"{result['value']:.2f}"
        verdict = "aim met" if result["aim_met"] else "met" if result["met"] else "MISSED"
        say(f"{result['name']:<29}{value:>8}{sign + str(result['must']):>8}{sign + str(result['aim']):>8}  {verdict}")


async def run(figures: Sequence[Figure], scale: Scale, pairs: int, duration_s: float) -> list[dict[str, Any]]:
    """Measure these figures, one after the other."""
    facts = machine()
    say(f"{facts['processors']} processors, {facts['processor']}, load {facts['load_before']:.2f} before\n")
    results = []
    for figure in figures:
        try:
            result = await measure(figure, ROOT / "build" / "bench-data", scale, pairs, duration_s)
        except Exception as fault:  # noqa: BLE001 - the other figures are worth having
            result = failed(figure, fault)
        results.append(result | {"machine": facts})
    return results


def main() -> int:
    """Read the command line, measure, and write."""
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = [figure.name for figure in FIGURES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="these figures: " + ", ".join(names))
    parser.add_argument("--pairs", type=int, default=5, help="pairs of measurements for each figure (5)")
    parser.add_argument("--seconds", type=float, help="how long a measurement takes, about (3)")
    parser.add_argument("--quick", action="store_true", help="measurements of 0.3 s and small boards: does it work?")
    parser.add_argument("--output", type=Path, help="where the figures go (build/bench.json)")
    asked = parser.parse_args()
    part = asked.quick or asked.only
    output: Path = asked.output or ROOT / "build" / ("bench-part.json" if part else "bench.json")
    figures = [figure for figure in FIGURES if not asked.only or figure.name in asked.only]
    scale = QUICK if asked.quick else FULL
    duration_s: float = asked.seconds or (0.3 if asked.quick else 3.0)
    results = asyncio.run(run(figures, scale, asked.pairs, duration_s))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print_table(results)
    say(f"\nwritten to {output}")
    return 0 if asked.quick or all(result["met"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
