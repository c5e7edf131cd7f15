"""`python tests/bench/profile.py WORKLOAD`: shows where a server's time goes. `--help` says how."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # as in run.py
    runpy.run_module("bench.profiling", run_name="__main__", alter_sys=True)
