"""The README's first lines of Python run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from kokuban_client.testing import ServerProcess

README = Path(__file__).parents[2] / "README.md"


def test_the_first_example_runs_as_it_stands() -> None:
    example = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    with ServerProcess() as server:
        ran = subprocess.run(
            [sys.executable, "-c", example[1]],
            env={**os.environ, "KOKUBAN_ADDRESS": server.address},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    assert "'state': 'done'" in ran.stdout
    assert "writer-1" in ran.stdout
