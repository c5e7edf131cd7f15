"""The requests that the load generators send, cheap to make again for each operation."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from kokuban.v1 import commit_pb2, entry_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

BOARD = "main"
REGION = "shared:bench"
VALUE_BYTES = 512
METADATA = (("kokuban-agent", "bench"),)
COMMIT = "/kokuban.v1.BoardService/Commit"
COMMIT_STREAM = "/kokuban.v1.BoardService/CommitStream"
GET_ENTRY = "/kokuban.v1.BoardService/GetEntry"
CREATE_BOARD = "/kokuban.v1.AdminService/CreateBoard"
SET_POLICY = "/kokuban.v1.AdminService/SetPolicy"
WATCH = "/kokuban.v1.BoardService/Watch"

_FILLER = "the quick brown fox jumps over the lazy dog; " * 12
_getrandbits = random.getrandbits


def new_request_id() -> str:
    """Give a UUID of version 7."""
    chance = _getrandbits(74)
    number = (time.time_ns() // 1_000_000 << 80) | 7 << 76 | (chance >> 62) << 64 | 2 << 62 | chance & (1 << 62) - 1
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def text(number: int) -> str:
    """Give a text of 512 bytes that is not the one before."""
    return f"{number:012d} {_FILLER}"[:VALUE_BYTES]


_FOUND = (
    "looked at core/lexer.py after agent-7: split_tokens() is called twice, so escapes are undone once too often",
    "the retry budget of 3 attempts was spent on 2026-11-30 at 10:15; next is PR #4821 (commit 9f3c1e77ab)",
    "build 20261130.4 failed in tests/parser/test_unescape.py::test_nested, 2 of 118 cases; log kept under runs/4821",
    "api_token is read from the environment in settings/local.py, never from the file; documented in README.md",
    "asked reviewer-2 to confirm before the schema of shared:plan/task_12/step_03 is changed for everybody",
)


def note(number: int) -> str:
    """Give a text of 512 bytes as agents write them, with names, numbers and dates, that is not the one before."""
    turned = number % len(_FOUND)
    return f"{number:06d} {'. '.join(_FOUND[turned:] + _FOUND[:turned])}"[:VALUE_BYTES]


def page(number: int) -> str:
    """Give a text of 1024 bytes that is not the one before."""
    return f"{note(number)} {note(number + 1)}"[: 2 * VALUE_BYTES]


class Puts:
    """The commits of one writer, which keeps entries of its own and writes each on top of its last revision."""

    def __init__(self, paths: list[str], region: str = REGION, value: Callable[[int], str] = text) -> None:
        self._value = value
        self.message = commit_pb2.CommitRequest(board=BOARD)
        for path in paths:
            key = entry_pb2.EntryKey(region=region, path=path)
            put = commit_pb2.Put(key=key, precondition=entry_pb2.Precondition(must_not_exist=True))
            self.message.mutations.append(commit_pb2.Mutation(put=put))
        self._puts = [mutation.put for mutation in self.message.mutations]
        self._count = 0

    def next(self) -> commit_pb2.CommitRequest:
        """Give the next commit: a new id and new values."""
        self._count += 1
        value = self._value(self._count)
        self.message.request_id = new_request_id()
        for put in self._puts:
            put.value.text = value
        return self.message

    def committed(self, revision: entry_pb2.Revision) -> None:
        """Take note that the last commit holds."""
        for put in self._puts:
            at = put.precondition.at
            at.number = revision.number
            at.epoch = revision.epoch
