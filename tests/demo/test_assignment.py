from __future__ import annotations

from pathlib import Path

import pytest

from kokuban_client.demo.layout import Run
from kokuban_client.demo.sources import SourceFile
from kokuban_client.demo.supervisor import AGENTS_MIN, Assignment, agent_names


def assignment(*labels: str) -> Assignment:
    files = tuple(SourceFile(label, Path("/code", label), "d", len(label)) for label in labels)
    return Assignment(Run("r"), files, tuple(agent_names(AGENTS_MIN)), 0)


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        (("a/1.py", "a/2.py", "b/3.py"), "plan/a"),
        (("code/1.py", "code/inner/2.py", "code/inner/3.py"), "plan/code/inner"),
        (("code/1.py", "code/2.py"), "plan/code"),
        (("1.py", "22.py"), "plan/22.py"),
    ],
)
def test_the_largest_folder_is_locked_that_leaves_work_elsewhere(labels: tuple[str, ...], place: str) -> None:
    assert assignment(*labels).restructured == place


def test_no_agent_waits_for_one_that_dies_or_that_waits_for_it() -> None:
    made = assignment("a/1.py")
    assert made.victim not in {*made.racers, made.restructurer, made.refused}  # the dead meet nobody
    assert made.restructurer not in {*made.racers, made.refused}
