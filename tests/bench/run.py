"""`python tests/bench/run.py`: measures the figures of server/README.md into build/bench.json. `--help` says how."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # The folder above, so that this folder is a package, and its profile.py does not hide Python's own.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module("bench.suite", run_name="__main__", alter_sys=True)
