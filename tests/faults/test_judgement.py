"""The judgement sees each kind of fault in what agents noted and a server kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kokuban.v1 import entry_pb2
from tests.faults.judgement import judge
from tests.faults.traffic import PUBLISHED, REGION, Look, Records, Traffic, Write
from tests.linearizability.checker import Add, Create, Overwrite, Replace

if TYPE_CHECKING:
    from collections.abc import Callable

_TYPES = entry_pb2.ChangeType


def _change(path: str, sequence: int, revision: int, previous: int, request: str, text: str) -> entry_pb2.EntryChange:
    return entry_pb2.EntryChange(
        type=_TYPES.CHANGE_TYPE_PUT,
        entry=entry_pb2.Entry(
            key=entry_pb2.EntryKey(region=REGION, path=path),
            revision=entry_pb2.Revision(number=revision, epoch="0" * 16),
            sequence=sequence,
            value=entry_pb2.Value(text=text),
        ),
        previous_revision=previous,
        acts=[entry_pb2.Act(agent="a", request_id=request)],
    )


class Kept(Traffic):
    """Traffic that has ended, and whose server is only what it kept."""

    def __init__(self) -> None:
        self.records = Records(
            writes=[
                Write("r1", {"n": Create("one")}, start=1, end=2, revision=5, tries=1),
                Write("r2", {"n": Replace("one", "two")}, start=3, end=4, revision=6, tries=2),
                Write("r3", {path: Overwrite("all") for path in PUBLISHED}, start=5, end=6, revision=7, tries=1),
                Write("r4", {"n": Replace("one", "late")}, start=5, end=6, refused="REVISION_MISMATCH", tries=1),
                Write("r5", {"n": Replace("two", "five")}, start=7, end=8, tries=1),
                Write("r6", {"c": Add(2)}, start=9, end=10, tries=1),
            ],
            looks=[Look("n", 4.5, 4.6, "two", 6), Look("n", 11, 12, "five", 8)],
            changes=[
                _change("n", 1, 5, 0, "r1", "one"),
                _change("n", 2, 6, 5, "r2", "two"),
                *[_change(path, 1, 7, 0, "r3", "all") for path in PUBLISHED],
                _change("n", 3, 8, 6, "r5", "five"),
            ],
        )

    async def state(self) -> dict[str, entry_pb2.Entry]:
        return {change.entry.key.path: change.entry for change in self.records.changes}

    async def history(self, path: str) -> list[entry_pb2.EntryChange]:
        return [change for change in reversed(self.records.changes) if change.entry.key.path == path]


async def test_a_sound_run_has_no_faults() -> None:
    summary = await judge(Kept())
    assert not summary.faults
    assert (summary.acknowledged, summary.refused, summary.unknown, summary.unknown_applied) == (3, 1, 2, 1)


def _lose(kept: Kept) -> None:
    kept.records.changes.pop(1)


def _double(kept: Kept) -> None:
    kept.records.changes.append(_change("n", 4, 9, 8, "r5", "five"))


def _tear(kept: Kept) -> None:
    kept.records.changes.pop(3)


def _apply_refused(kept: Kept) -> None:
    kept.records.changes.append(_change("n", 4, 9, 8, "r4", "late"))


def _read_old(kept: Kept) -> None:
    kept.records.looks.append(Look("n", 13, 14, "two", 6))


def _tell_twice(kept: Kept) -> None:
    kept.records.changes.append(kept.records.changes[-1])


@pytest.mark.parametrize(
    ("worsen", "symptom"),
    [
        (_lose, "acknowledged and not there"),
        (_double, "applied more than once"),
        (_tear, "applied in part"),
        (_apply_refused, "refused and applied"),
        (_read_old, "not linearizable"),
        (_tell_twice, "the watch told"),
    ],
)
async def test_each_fault_is_seen(worsen: Callable[[Kept], None], symptom: str) -> None:
    kept = Kept()
    worsen(kept)
    faults = (await judge(kept)).faults
    assert any(symptom in fault for fault in faults), faults


async def test_revisions_against_the_order_of_time_are_seen() -> None:
    kept = Kept()
    kept.records.writes.append(Write("r7", {"n": Overwrite("x")}, start=20, end=21, revision=4, tries=1))
    assert any("was answered" in fault for fault in (await judge(kept)).faults)
