"""The moments around what a worker of a task writes, and the end of a process at one of them.

A worker is run as a process of its own. It says on its standard output, in lines of JSON, what a test has to know.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from kokuban.v1 import task_pb2

if TYPE_CHECKING:
    from pathlib import Path

    from kokuban_client import ClaimedStep


KINDS = (
    *("claimed", "effect"),
    *(f"{when} {what}" for what in ("action_started", "action_done") for when in ("before", "after")),
    *(f"{when} {what}" for what in ("save_checkpoint", "complete_step") for when in ("before", "after")),
)
"""The boundaries that every step passes that acts and is completed."""

LOOK_AGAIN_S = 0.1


class Strike(NamedTuple):
    """Which process is ended with SIGKILL, and when."""

    what: str = ""
    """The boundary; nothing for none."""
    turn: int = 1
    """When it is passed for the so manyth time."""
    late_s: float = 0.0
    """How long after it, so that the next write is struck in its middle."""
    pid: int = 0
    """0 is the worker itself."""


class Boundaries:
    """Counts the moments before and after each write and each effect, and ends a process at one of them."""

    def __init__(self, strike: Strike) -> None:
        self.passes: Counter[str] = Counter()
        self._strike = strike

    def passed(self, what: str) -> None:
        """Say that one of these moments has come. Called in the thread of the loop."""
        self.passes[what] += 1
        strike = self._strike
        if (what, self.passes[what]) != (strike.what, strike.turn):
            return
        if strike.late_s:
            asyncio.get_running_loop().call_later(strike.late_s, self._end)
        else:
            self._end()

    def _end(self) -> None:
        say(struck=self._strike.what)
        os.kill(self._strike.pid or os.getpid(), signal.SIGKILL)

    def around(self, step: ClaimedStep) -> None:
        """Count the moments around everything that is recorded of a step."""
        record = step._record

        async def recorded(mutations: list[Any], **more: Any) -> None:  # noqa: ANN401 - those of the original
            what = _kind(mutations[0])
            self.passed(f"before {what}")
            await record(mutations, **more)
            self.passed(f"after {what}")

        step._record = recorded


def _kind(mutation: Any) -> str:  # noqa: ANN401 - a mutation of the wire
    """Say in words what a mutation records."""
    kind: str = mutation.WhichOneof("kind")
    if kind == "append_event":
        kind = task_pb2.EventType.Name(mutation.append_event.type).removeprefix("EVENT_TYPE_").lower()
    return kind


def say(**facts: object) -> None:
    """Tell the test something."""
    print(json.dumps(facts), flush=True)  # noqa: T201 - read by the test


class Effects:
    """Something outside the board that cannot be undone: a file of lines, of which none is ever taken away."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def cause(self, line: str) -> None:
        """Add a line, for good."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())

    @property
    def lines(self) -> list[str]:
        """What was caused, in order."""
        return self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
