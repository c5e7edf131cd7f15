"""Puts the tests' own modules within reach: they are no installed package, and are imported as `tests.replay.name`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
