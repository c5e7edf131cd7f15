from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from kokuban_client.demo import display
from kokuban_client.demo.layout import PlanItem, State
from kokuban_client.demo.progress import AgentLine, Progress

LONG = "a/" * 60 + "very_long_name.py"


def progress(agents: int = 4) -> Progress:
    names = [f"reviewer-{number}" for number in range(1, agents + 1)]
    made = Progress(
        "0101-000000-abcd", 2_000, {name: AgentLine(name, 4_194_304) for name in names}, store="sqlite 3.40.1"
    )
    made.stage = "recounting without the board"
    for number in range(10):
        made.tell(f"news {number} about {LONG}")
    return made


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_the_picture_fits_the_terminal(size: tuple[int, int]) -> None:
    made = progress()
    made.saw(LONG, PlanItem("f", "d", State.CLAIMED, "reviewer-1"))
    console = Console(width=size[0], height=size[1], file=io.StringIO(), record=True)
    console.print(display.picture(made))
    lines = console.export_text().splitlines()
    assert len(lines) <= size[1] - 4
    assert max(map(len, lines)) <= size[0]
    assert any("reviewer-4" in line for line in lines)
    assert any("news 9" in line for line in lines)
    assert not any("news 3" in line for line in lines)


def test_progress_follows_the_plan() -> None:
    made = progress()
    made.saw("a.py", PlanItem("f", "d"))
    made.saw("a.py", PlanItem("f", "d", State.CLAIMED, "reviewer-2", 1))
    assert (made.done, made.agents["reviewer-2"].doing) == (0, "a.py")
    for _ in range(2):
        made.saw("a.py", PlanItem("f", "d", State.DONE, "reviewer-2", 1))
    assert (made.done, made.agents["reviewer-2"].doing) == (1, "looking for work")


async def test_without_a_terminal_all_news_are_told_as_lines() -> None:
    made = progress()
    out = io.StringIO()
    showing = asyncio.create_task(display.show(made, Console(file=out, width=80)))
    await asyncio.sleep(0)
    made.tell("the last news")
    showing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await showing
    lines = out.getvalue().splitlines()
    assert lines[-1].endswith("s  the last news")
    assert all(" s  " in line for line in lines)
    assert len(lines) == 11
