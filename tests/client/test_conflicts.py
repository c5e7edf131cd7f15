"""Who lost to whom, by the library and on the command line."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import ConflictOutcome, errors, sync
from kokuban_client.testing import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kokuban_client import Board
    from tests.client.commands import Answer

BOUND_S = 30.0


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A server of the test's own, because the log is the whole board's."""
    with ServerProcess(store="memory:") as process:
        yield process


async def lose(winner: Board, loser: Board, path: str) -> errors.Conflict:
    """Have one agent lose to another."""
    await winner.put("shared:plan", path, "first", must_not_exist=True)
    with pytest.raises(errors.AlreadyExists) as lost:
        await loser.put("shared:plan", path, "late", must_not_exist=True, reason="to be quick")
    return lost.value


async def test_conflicts_are_listed_followed_and_summed_up(server: ServerProcess) -> None:
    async with (
        kokuban_client.connect(server.address, agent="winner") as one,
        kokuban_client.connect(server.address, agent="loser") as two,
        asyncio.timeout(BOUND_S),
    ):
        winner, loser = one.board("main"), two.board("main")
        async with winner.watch_conflicts() as watch:
            for path in ("a", "b"):
                await lose(winner, loser, path)
            told = [await anext(watch), await anext(watch)]
            assert {(conflict.path, conflict.outcome) for conflict in told} == {
                ("a", ConflictOutcome.OPEN),
                ("b", ConflictOutcome.OPEN),
            }
            lost = told[0]
            entry = await loser.get("shared:plan", lost.path)
            await loser.put("shared:plan", lost.path, "both", at=entry.revision, retry_of=lost.loser.request_id)
            merged = await anext(watch)
            assert (merged.id, merged.outcome) == (lost.id, ConflictOutcome.MERGED)
        listed = [conflict async for conflict in winner.conflicts(page_size=1)]
        assert {conflict.id for conflict in listed} == {conflict.id for conflict in told}
        found = next(conflict for conflict in listed if conflict.id == lost.id)
        assert found == merged
        assert (found.loser.agent, found.loser.purpose) == ("loser", "to be quick")
        assert found.winner is not None
        assert found.winner.agent == "winner"
        assert [conflict.path async for conflict in winner.conflicts(region="shared:plan", path="b")] == ["b"]
        summary = await winner.conflict_summary()
        assert (summary.count, summary.pairs) == (2, (("loser", "winner", 2),))
        assert summary.lost_bytes == 2 * len("late")
        resumed = winner.watch_conflicts(after=watch.token)
        await lose(winner, loser, "c")
        assert (await anext(resumed)).path == "c"
        await resumed.aclose()
        with pytest.raises(ValueError, match="reason"):
            winner.conflicts(reason="BAD_LUCK")


async def test_a_watch_of_conflicts_goes_on_with_the_next_server(tmp_path: Path) -> None:
    async with asyncio.timeout(2 * BOUND_S):
        with ServerProcess(store=f"sqlite:{tmp_path}/store") as server:
            async with (
                kokuban_client.connect(server.address, agent="winner") as one,
                kokuban_client.connect(server.address, agent="loser") as two,
            ):
                winner, loser = one.board("main"), two.board("main")
                async with winner.watch_conflicts() as watch:
                    await lose(winner, loser, "before")
                    assert (await anext(watch)).path == "before"
                    await asyncio.to_thread(server.stop)
                    await asyncio.to_thread(server.start)
                    await lose(winner, loser, "after")
                    assert (await anext(watch)).path == "after"


def test_the_client_for_threads_does_the_same(server: ServerProcess) -> None:
    with (
        sync.connect(server.address, agent="winner") as one,
        sync.connect(server.address, agent="loser") as two,
    ):
        winner, loser = one.board("main"), two.board("main")
        with winner.watch_conflicts() as watch:
            winner.put("shared:plan", "a", "first", must_not_exist=True)
            with pytest.raises(errors.AlreadyExists):
                loser.put("shared:plan", "a", "late", must_not_exist=True)
            timer = threading.Timer(BOUND_S, watch.close)
            timer.start()
            told = next(watch)
            timer.cancel()
        assert list(winner.conflicts()) == [told]
        assert winner.conflict_summary().count == 1


async def test_the_command_line_shows_conflicts(server: ServerProcess, kokuban: Callable[..., Answer]) -> None:
    assert kokuban("conflict", "top")[:2] == (0, "no conflicts\n")
    async with (
        kokuban_client.connect(server.address, agent="winner") as one,
        kokuban_client.connect(server.address, agent="lo-ser") as two,
        asyncio.timeout(BOUND_S),
    ):
        winner, loser = one.board("main"), two.board("main")
        async with winner.watch_conflicts() as watch:
            for path in ("a/x", "a/y", "b"):
                await lose(winner, loser, path)
            told = [await anext(watch) for _ in range(3)]
    code, out, _ = kokuban("conflict", "ls")
    assert code == 0
    assert all(
        "lo-ser lost to winner" in line and "ALREADY_EXISTS" in line and "open" in line for line in out.splitlines()
    )
    assert len(out.splitlines()) == 3
    code, out, _ = kokuban("--json", "conflict", "ls", "shared:plan", "a", "--of", "winner", "--since", "1h")
    assert {json.loads(line)["path"] for line in out.splitlines()} == {"a/x", "a/y"}
    assert {json.loads(line)["id"] for line in out.splitlines()} <= {conflict.id for conflict in told}
    code, out, _ = kokuban("conflict", "top", "-n", "1")
    assert "3 conflicts" in out
    assert "3  lo-ser lost to winner" in out
    assert json.loads(kokuban("--json", "conflict", "top")[1])["reasons"] == {"ALREADY_EXISTS": 3}
    code, out, _ = kokuban("conflict", "timeline", "shared:plan", "b")
    assert ["was there" in line for line in out.splitlines()] == [True, False]
    assert "lost: ALREADY_EXISTS" in out
    acts = [json.loads(line)["act"] for line in kokuban("--json", "conflict", "timeline")[1].splitlines()]
    assert acts.count("was there") == acts.count("lost: ALREADY_EXISTS") == 3
    code, _, err = kokuban("conflict", "ls", "--reason", "bad-luck")
    assert (code, "not the reason" in err) == (2, True)
    assert kokuban("conflict", "ls", "--reason", "already-exists", "--until", "1h")[:2] == (0, "")
    before = await summary_token(server)
    async with kokuban_client.connect(server.address, agent="loser") as two:
        with pytest.raises(errors.AlreadyExists):
            await two.board("main").put("shared:plan", "b", "late", must_not_exist=True)
    code, out, _ = kokuban("conflict", "follow", "--after", before, "--count", "1")
    assert (code, "loser lost to winner" in out) == (0, True)


async def summary_token(server: ServerProcess) -> str:
    async with kokuban_client.connect(server.address, agent="onlooker") as client:
        return (await client.board("main").conflict_summary()).token
