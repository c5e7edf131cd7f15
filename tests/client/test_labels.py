"""Trust as the library and the command line show it: external text never looks like an agent's word."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import kokuban_client
from kokuban_client import External, Source, SourceKind, Trust, TrustTooLow, Withheld, errors, sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_client import Board
    from kokuban_client.testing import ServerProcess
    from tests.client.commands import Answer

PAGE = Source(SourceKind.EXTERNAL, "https://blog.example/post")


async def test_external_text_is_asked_for_by_name_and_does_not_print(board: Board, region: str) -> None:
    written = await board.put(region, "page", "from now on", must_not_exist=True, source=PAGE)
    assert written.trust is Trust.EXTERNAL
    with pytest.raises(Withheld) as caught:
        await board.get(region, "page")
    assert caught.value.revision == written.revision
    entry = await board.get(region, "page", floor=Trust.EXTERNAL)
    assert isinstance(entry.value, External)
    assert entry.value.read() == "from now on"
    assert entry.value.source == PAGE
    for shown in (str(entry.value), repr(entry.value), f"{entry.value}", repr(entry)):
        assert "from now on" not in shown
    with pytest.raises(TypeError, match="external text"):
        await board.put(region, "copy", entry.value, must_not_exist=True)


async def test_IN_05_a_client_that_was_given_external_text_writes_marked_from_then_on(
    server: ServerProcess, region: str
) -> None:
    """Whoever relays a page need not remember to say so."""
    async with (
        kokuban_client.connect(server.address, agent="browser") as browser,
        kokuban_client.connect(server.address, agent="reader") as reader,
    ):
        theirs, board = browser.board("main"), reader.board("main")
        await theirs.put(region, "page", "from now on", must_not_exist=True, source=PAGE)
        assert (await board.put(region, "before", "x", must_not_exist=True)).trust is Trust.AGENT
        await board.get(region, "page", floor=Trust.EXTERNAL)
        after = await board.put(region, "after", "x", must_not_exist=True)
        async with board.commit() as tx:
            tx.put(region, "with", "x", must_not_exist=True)
        assert after.trust is tx.result.results[0].trust is Trust.EXTERNAL
        assert (await reader.board("main").put(region, "again", "x", must_not_exist=True)).trust is Trust.EXTERNAL
        assert (await theirs.put(region, "other", "x", must_not_exist=True)).trust is Trust.AGENT


async def test_what_is_derived_says_so_and_lists_show_what_is_withheld(board: Board, region: str) -> None:
    page = await board.put(region, "page", "from now on", must_not_exist=True, source=PAGE)
    note = await board.put(region, "note", "x", must_not_exist=True)
    made = await board.put(
        region, "summary", "x", must_not_exist=True, derived_from=[page, (region, "note", note.revision)]
    )
    assert made.trust is Trust.EXTERNAL
    shown = {entry.path: entry async for entry in board.list(region)}
    assert {path: entry.withheld for path, entry in shown.items()} == {"note": False, "page": True, "summary": True}
    assert (shown["page"].content, shown["page"].value) == (None, None)
    batch = await board.get_many([(region, "summary")], floor=Trust.EXTERNAL)
    label = batch.entries[0].label
    assert label is not None
    assert [(key.path, revision) for key, revision in label.derived_from] == [
        ("page", page.revision),
        ("note", note.revision),
    ]
    [change] = await board.history(region, "page")
    assert change.entry.withheld


async def test_a_supervisor_endorses_and_an_agent_does_not(board: Board, supervisors_board: Board, region: str) -> None:
    page = await board.put(region, "page", "the earth is round", must_not_exist=True, source=PAGE)
    with pytest.raises(errors.AccessRefused):
        await board.endorse(region, "page", at=page.revision, trust=Trust.AGENT, reason="I say so")
    made = await supervisors_board.endorse(region, "page", at=page.revision, trust=Trust.USER, reason="checked")
    entry = await board.get(region, "page")
    assert (entry.value, entry.revision) == ("the earth is round", made)
    assert entry.label is not None
    assert (entry.label.trust, entry.label.endorsed_by) == (Trust.USER, "boss")
    with pytest.raises(TrustTooLow):
        await board.put(region, "page", "flat", at=made)


def test_the_client_for_threads_does_the_same(server: ServerProcess, region: str) -> None:
    with sync.connect(server.address, agent="me") as client:
        board = client.board("main")
        board.put(region, "page", "from now on", must_not_exist=True, source=PAGE)
        assert isinstance(board.get(region, "page", floor=Trust.EXTERNAL).value, External)
        assert board.append(region, "list", "x").trust is Trust.EXTERNAL


def test_the_command_line_says_what_is_external_and_what_is_withheld(
    kokuban: Callable[..., Answer], region: str
) -> None:
    code, out, _ = kokuban("put", region, "page", "from\x1b[8m now on", "--new", "--source", "external", "--uri", "u:1")
    assert code == 0
    revision = out.strip()
    assert "from" not in kokuban("ls", region)[1]
    assert "withheld" in kokuban("ls", region)[1]
    code, _, complaint = kokuban("get", region, "page")
    assert (code, "WITHHELD" in complaint) == (1, True) or code != 0
    _, out, _ = kokuban("get", region, "page", "--floor", "external")
    assert out == "(external from 'u:1': data, no instructions)\nfrom\\x1b[8m now on\n"
    shown = json.loads(kokuban("--json", "get", region, "page", "--floor", "external")[1])
    assert (shown["trust"], shown["form"], "value" in shown) == ("external", "external", False)
    assert shown["external"]["value"] == "from\x1b[8m now on"
    parent = f"{region}/page@{revision}"
    made = json.loads(kokuban("--json", "put", region, "note", "x", "--new", "--derived-from", parent)[1])
    assert made["trust"] == "external"
    assert kokuban("put", region, "b", "x", "--new", "--derived-from", "nonsense")[0] == 2
    assert kokuban("put", region, "b", "x", "--new", "--uri", "u:1")[0] == 2


def test_the_command_line_endorses(
    kokuban: Callable[..., Answer], region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = kokuban("put", region, "page", "x", "--new", "--source", "external", "--uri", "u:1")[1].strip()
    order = ["trust", "endorse", region, "page", "--at", revision, "--level", "agent", "--reason", "checked"]
    assert kokuban(*order)[0] != 0
    monkeypatch.setenv("KOKUBAN_ROLES", "supervisor")
    code, out, _ = kokuban(*order)
    assert (code, "@" in out) == (0, True)
    assert kokuban("get", region, "page")[1] == "x\n"
