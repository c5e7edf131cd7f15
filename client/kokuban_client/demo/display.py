"""Shows a run while it goes on: a small table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from kokuban_client.demo.progress import Progress

_REFRESH_S = 0.125
_LINE_EVERY_S = 5.0
_NEWS_SHOWN = 6


async def show(progress: Progress, console: Console) -> None:
    """Show the progress until cancelled."""
    if console.is_terminal and not console.is_dumb_terminal:
        await _live(progress, console)
    else:
        await _lines(progress, console)


async def _live(progress: Progress, console: Console) -> None:
    from rich.live import Live  # noqa: PLC0415 - loaded only where the demo runs

    # Refreshed from here, not from a thread of its own, so that nothing changes while it is drawn.
    with Live(picture(progress), console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(picture(progress), refresh=True)
            await asyncio.sleep(_REFRESH_S)


async def _lines(progress: Progress, console: Console) -> None:
    told, next_s = 0, _LINE_EVERY_S
    try:
        while True:
            told = _tell_news(progress, console, told)
            if progress.elapsed_s >= next_s:
                next_s += _LINE_EVERY_S
                console.print(_plain(progress), highlight=False, markup=False, soft_wrap=True)
            await asyncio.sleep(_REFRESH_S)
    finally:
        _tell_news(progress, console, told)


def _tell_news(progress: Progress, console: Console, told: int) -> int:
    for number, at_s, text in progress.news:
        if number > told:
            console.print(f"{at_s:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True)
    return progress.told


def _plain(progress: Progress) -> str:
    working = sum(agent.alive for agent in progress.agents.values())
    counts = f"{progress.done} of {progress.files} files, {progress.findings:,} findings, {working} agents"
    return f"{progress.elapsed_s:6.1f} s  {progress.stage}: {counts}"


def picture(progress: Progress) -> RenderableType:
    """Give the progress as it is now, in at most 80 columns and as few lines as there are agents, and eleven."""
    from rich.console import Group  # noqa: PLC0415 - as above
    from rich.progress_bar import ProgressBar  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    head = Text.assemble(
        ("Kokuban demo", "bold"),
        (f"  run {progress.run}", "dim"),
        (f"  {progress.store}" if progress.store else "", "dim"),
        f"  {progress.stage}",
        overflow="ellipsis",
        no_wrap=True,
    )
    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        ProgressBar(total=max(progress.files, 1), completed=progress.done, width=32),
        f"{progress.done}/{progress.files} files",
        f"{progress.findings:,} findings",
        f"{progress.elapsed_s:.0f} s",
    )
    agents = Table(box=None, padding=(0, 2, 0, 0), expand=True, header_style="dim")
    agents.add_column("agent", no_wrap=True)
    agents.add_column("process", justify="right", no_wrap=True)
    agents.add_column("files", justify="right", no_wrap=True)
    agents.add_column("findings", justify="right", no_wrap=True)
    agents.add_column("doing", ratio=1, no_wrap=True, overflow="ellipsis")
    for agent in progress.agents.values():
        style = "" if agent.alive else ("red" if agent.doing == "killed" else "dim")
        pid = str(agent.pid or "")
        agents.add_row(agent.name, pid, str(agent.files), f"{agent.findings:,}", Text(agent.doing), style=style)
    news = Table.grid(padding=(0, 2))
    news.add_column(justify="right", style="dim", no_wrap=True)
    news.add_column(no_wrap=True, overflow="ellipsis")
    for _, at_s, text in list(progress.news)[-_NEWS_SHOWN:]:
        news.add_row(f"{at_s:.1f} s", Text(text))
    return Group(head, bar, Text(), agents, Text(), news)
