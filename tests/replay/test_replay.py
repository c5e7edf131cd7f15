"""The replay of recorded runs, tried on three short made-up ones; and the judgement that it rests on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from kokuban_client import EventType, InDoubt, StepCounts, Task, TaskEvent, TaskStatus, TaskStep
from tests.replay.recorded_runs import NotARun, read
from tests.replay.replay import main
from tests.task_judgement import Declared, faults_of

if TYPE_CHECKING:
    from collections.abc import Sequence

RUNS = Path(__file__).parent / "synthetic_runs.json"


def test_an_action_is_named_by_what_it_is_for_and_not_by_the_models_id() -> None:
    first, second, third = read(RUNS)
    assert [run.customer for run in (first, second, third)] == ["ann_1", "ann_1", "nobody"]
    assert [len(turn.calls) for turn in first.turns] == [3, 4, 0]
    today, tomorrow, wine, more_wine = first.turns[1].calls
    assert (today.answer, tomorrow.answer) == ('{"booking": 17}', '{"booking": 18}')
    assert today.action != tomorrow.action
    assert more_wine.action == f"{wine.action}:2"
    assert [call.in_doubt for call in (*first.turns[0].calls, today)] == ["retry", "skip", "retry", "ask"]
    assert first.turns[1].answer == "Booked, with two bottles."


@pytest.mark.parametrize("content", ["", "{}", '[{"task_id": 1, "trial": 0}]', '[{"traj": [{"role": "user"}]}]'])
def test_what_are_no_runs_is_told_with_the_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "runs.json"
    path.write_text(content, encoding="utf-8")
    if content == "{}":
        assert read(path) == []
        return
    with pytest.raises(NotARun, match=r"runs\.json"):
        read(path)


def test_a_place_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "none")])
    assert ended.value.code == 2
    assert "none is not there" in capsys.readouterr().err


@pytest.mark.timeout(240)
def test_runs_whose_workers_are_killed_come_to_what_undisturbed_ones_come_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    assert main([str(RUNS), "--out", str(figures), "--seed", "3"]) == 0
    told = json.loads(figures.read_text(encoding="utf-8"))
    assert (told["customers"], told["runs"], told["faults"]) == (2, 3, [])
    assert told["actions"] == {"ask": 5, "retry": 3, "skip": 1}
    assert told["effects"]["ask"] == 5
    assert told["kills"] >= 2
    assert told["wishes"] >= 1
    assert "3 runs of 2 customers" in capsys.readouterr().out


STARTED, DONE, FAILED, SKIPPED = (
    *(EventType.ACTION_STARTED, EventType.ACTION_DONE, EventType.ACTION_FAILED, EventType.ACTION_SKIPPED),
)
CLAIMED = EventType.STEP_CLAIMED


def _faults(happened: Sequence[tuple[EventType, int]], in_doubt: InDoubt, attempts: Sequence[int]) -> list[str]:
    """Give what is wrong with a task of one step, in which one action happened so."""
    events = [
        TaskEvent(number, kind, "s", "" if kind is CLAIMED else "a", attempt, "", "", 0, 0, cast("Any", None))
        for number, (kind, attempt) in enumerate(happened, 1)
    ]
    step = cast("TaskStep", _Named())
    counts = StepCounts(0, 0, 1, 0)
    found = Task("t", TaskStatus.COMPLETED, (step,), {}, (), len(events), (), counts, counts)
    return list(faults_of(found, events, {("s", "a"): Declared(in_doubt, attempts)}))


class _Named:
    name = "s"


@pytest.mark.parametrize(
    ("happened", "in_doubt", "attempts", "fault"),
    [
        ([(CLAIMED, 1), (STARTED, 1), (DONE, 1)], InDoubt.ASK, [1], ""),
        ([(CLAIMED, 1), (STARTED, 1), (DONE, 1)], InDoubt.ASK, [], "and not done"),
        ([(CLAIMED, 1), (STARTED, 1), (DONE, 1), (CLAIMED, 2)], InDoubt.ASK, [1, 2], "done again"),
        ([(CLAIMED, 1), (STARTED, 1), (CLAIMED, 2), (STARTED, 2), (DONE, 2)], InDoubt.ASK, [2], "begun again"),
        ([(CLAIMED, 1), (STARTED, 1), (CLAIMED, 2), (STARTED, 2), (DONE, 2)], InDoubt.RETRY, [1, 2], ""),
        ([(CLAIMED, 1), (STARTED, 1), (FAILED, 1), (STARTED, 1), (DONE, 1)], InDoubt.ASK, [1, 1], "done 2 times"),
        ([(CLAIMED, 1), (STARTED, 1), (CLAIMED, 2), (SKIPPED, 2)], InDoubt.SKIP, [], ""),
        ([(CLAIMED, 1), (STARTED, 1), (CLAIMED, 3), (SKIPPED, 3)], InDoubt.SKIP, [], "of another"),
        ([(CLAIMED, 1), (DONE, 1)], InDoubt.ASK, [1], "not begun"),
        ([(CLAIMED, 1), (STARTED, 1), (DONE, 1), (DONE, 1)], InDoubt.ASK, [1], "not recorded once"),
    ],
)
def test_what_must_not_be_is_seen(
    happened: Sequence[tuple[EventType, int]], in_doubt: InDoubt, attempts: Sequence[int], fault: str
) -> None:
    faults = _faults(happened, in_doubt, attempts)
    assert any(fault in one for one in faults) if fault else faults == []
