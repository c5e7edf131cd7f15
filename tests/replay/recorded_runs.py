"""Runs of agents that somebody recorded: what the user said, which tools were called, and what they answered.

The files are JSON: a list of runs `{"task_id", "trial", "traj"}`, whose trajectory is a list of messages as chat models
exchange them, with roles `system`, `user`, `assistant` (perhaps with `tool_calls`) and `tool`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from kokuban_client import InDoubt

if TYPE_CHECKING:
    from pathlib import Path

_HARMLESS = ("get_", "search_", "list_", "calculate")
"""Tools that only look."""
_THOUGHTS = frozenset({"think"})
NOBODY = "nobody"


class Call(NamedTuple):
    """A tool that was called."""

    tool: str
    action: str
    """What it was called for, as an action's id. A model's own id for the call is another each time it is asked."""
    arguments: Any
    answer: str

    @property
    def in_doubt(self) -> InDoubt:
        """What is to be done about it if nobody knows whether it happened."""
        if self.tool in _THOUGHTS:
            return InDoubt.SKIP
        return InDoubt.RETRY if self.tool.startswith(_HARMLESS) else InDoubt.ASK


class Turn(NamedTuple):
    """What the user said, what was done about it, and what was answered."""

    said: str
    calls: tuple[Call, ...]
    answer: str


class RecordedRun(NamedTuple):
    """One run."""

    name: str
    customer: str
    """Whose run it is, by the first `user_id` in it."""
    turns: tuple[Turn, ...]


class NotARun(ValueError):  # noqa: N818 - what a file holds
    """The file holds something else; the message says where."""


def read(place: Path) -> list[RecordedRun]:
    """Give the runs of a file, or of all `*.json` of a folder. Raises `NotARun`."""
    runs = []
    for path in sorted(place.glob("*.json")) if place.is_dir() else [place]:
        try:
            runs += [_run(one) for one in json.loads(path.read_text(encoding="utf-8"))]
        except (KeyError, TypeError, ValueError) as error:
            raise NotARun(f"{path}: {error!r}") from error
    return runs


def _run(one: dict[str, Any]) -> RecordedRun:
    messages = one["traj"]
    answers: defaultdict[str, list[str]] = defaultdict(list)  # a model may give two calls the same id
    for message in messages:
        if message["role"] == "tool":
            answers[message["tool_call_id"]].append(message["content"])
    turns: list[Turn] = []
    seen: Counter[str] = Counter()
    for message in messages:
        if message["role"] == "user":
            turns.append(Turn(message["content"], (), ""))
            seen.clear()
        elif message["role"] == "assistant" and turns:
            calls = [_call(call, answers, seen) for call in message.get("tool_calls") or ()]
            turn = turns[-1]
            turns[-1] = Turn(turn.said, (*turn.calls, *calls), message["content"] or turn.answer)
    return RecordedRun(f"{one['task_id']}-{one['trial']}", _customer(turns), tuple(turns))


def _call(call: dict[str, Any], answers: defaultdict[str, list[str]], seen: Counter[str]) -> Call:
    tool, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
    said = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    action = f"{tool}:{hashlib.blake2b(said.encode(), digest_size=8).hexdigest()}"
    seen[action] += 1
    if seen[action] > 1:  # meant again, in the same turn
        action = f"{action}:{seen[action]}"
    given = answers[call["id"]]
    return Call(tool, action, arguments, given.pop(0) if given else "")


def _customer(turns: list[Turn]) -> str:
    for turn in turns:
        for call in turn.calls:
            answer = call.answer if call.answer.startswith("{") else "{}"
            for told in (call.arguments, json.loads(answer)):
                if isinstance(told, dict) and "user_id" in told:
                    return str(told["user_id"])
    return NOBODY
