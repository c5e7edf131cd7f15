"""Quarantine by the library and on the command line: held back, looked at, released, rejected."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kokuban_client import ContentQuarantined, External, QuarantineState, Source, SourceKind, Trust, errors
from tests.core.obfuscations import ORDERS_EN, hidden

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_client import Board
    from tests.client.commands import Answer

ORDER = hidden("en", ORDERS_EN[0], "HTML comment")


@pytest.fixture
def roles() -> str:
    return "member,supervisor"


def page(uri: str) -> Source:
    return Source(SourceKind.EXTERNAL, uri)


async def test_what_is_held_back_is_found_by_its_source_and_released_as_data(
    board: Board, supervisors_board: Board, region: str
) -> None:
    with pytest.raises(ContentQuarantined) as caught:
        await board.put(region, "page", ORDER, must_not_exist=True, source=page(region))
    [held] = await supervisors_board.quarantine(uri=region, show_texts=True)
    assert held.id == caught.value.quarantine_id
    assert (held.agent, held.state, [key.path for key in held.keys]) == ("writer-1", QuarantineState.WAITING, ["page"])
    [text] = held.texts
    assert isinstance(text, External)
    assert text.read() == ORDER
    assert ORDER not in repr(held)
    [review] = await supervisors_board.review_quarantine([held.id], release=True, reason="about attacks")
    assert review.state is QuarantineState.RELEASED
    entry = await board.get(region, "page", floor=Trust.EXTERNAL)
    assert entry.revision == review.revision
    assert entry.label is not None
    assert entry.label.trust is Trust.EXTERNAL


async def test_an_agent_reviews_nothing(board: Board) -> None:
    with pytest.raises(errors.AccessRefused):
        await board.quarantine()


async def test_what_is_not_there_has_no_state(supervisors_board: Board) -> None:
    [review] = await supervisors_board.review_quarantine([f"{'0' * 15}-{'0' * 32}"], release=True, reason="x")
    assert (review.state, review.revision) == (QuarantineState.UNKNOWN, None)


def test_the_command_line_lists_and_rejects_a_source(kokuban: Callable[..., Answer], region: str) -> None:
    written = ["put", region, "page", f"\x1b[2J{ORDER}", "--new", "--source", "external", "--uri", region]
    code, _, complaint = kokuban(*written)
    assert code != 0
    assert "CONTENT_QUARANTINED" in complaint
    code, out, _ = kokuban("trust", "quarantine", "ls", "--uri", region, "--texts")
    assert code == 0
    assert "\x1b" not in out
    assert "override.en" in out
    [line] = kokuban("--json", "trust", "quarantine", "ls", "--uri", region)[1].splitlines()
    name = json.loads(line)["id"]
    code, out, _ = kokuban("trust", "quarantine", "reject", name, "--reason", "poison")
    assert (code, "rejected" in out) == (0, True)
    assert kokuban("trust", "quarantine", "release", name, "--reason", "oops")[0] == 1
    assert kokuban("trust", "quarantine", "ls", "--uri", region)[1] == ""
