"""Redaction by the library and on the command line: places are told, and the text without what stood there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kokuban_client import RedactionHandling, RedactionKind, errors, sync
from kokuban_client.cli._connection import EXIT_CODES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import kokuban_client
    from kokuban_client.testing import ServerProcess
    from tests.client.commands import Answer

SECRET = "Zx9!kLmQ7w"  # noqa: S105 - made up


async def test_a_secret_is_told_by_its_place_and_is_not_in_the_text_that_comes_back(
    board: kokuban_client.Board,
) -> None:
    text = f"the password is {SECRET}; mail li@mail.internal"
    found = await board.redact_text(text)
    password, mail = found.findings
    assert (password.type, password.kind, text[slice(*password.span)]) == ("password", RedactionKind.SECRET, SECRET)
    assert (mail.type, mail.kind) == ("email", RedactionKind.PERSONAL)
    assert (found.finding_count, found.incomplete) == (2, False)
    assert SECRET not in repr(found)
    assert found.text.startswith("the password is [redacted:password:")


async def test_what_is_said_to_be_json_and_is_none_is_refused(board: kokuban_client.Board) -> None:
    assert json.loads((await board.redact_text('{"n": 13800138000}', is_json=True)).text)["n"].startswith("[redacted:")
    with pytest.raises(errors.Refused) as caught:
        await board.redact_text("{", is_json=True)
    assert caught.value.reason == "VALUE_NOT_JSON"


def test_the_client_for_threads_redacts_alike(server: ServerProcess) -> None:
    with sync.connect(server.address, agent="me") as client:
        found = client.board("main").redact_text("host 10.1.2.3", network_addresses=True)
    assert [finding.type for finding in found.findings] == ["ip-address"]


def test_the_exit_code_tells_whether_anything_was_found(kokuban: Callable[..., Answer], tmp_path: Path) -> None:
    file = tmp_path / "note"
    file.write_text("The build is green.", encoding="utf-8")
    code, out, _ = kokuban("trust", "redact", str(file))
    assert (code, out.splitlines()[-1]) == (0, "The build is green.")
    file.write_text(f"密码是 {SECRET}\x1b[2J, db at 10.1.2.3", encoding="utf-8")
    code, out, _ = kokuban("trust", "redact", str(file), "--addresses")
    assert code == EXIT_CODES["text has secrets"] == 12
    assert "secret  password  plain  4..14" in out
    assert "personal  ip-address  plain  " in out
    assert "\x1b" not in out
    assert SECRET not in out


def test_json_comes_back_as_json(kokuban: Callable[..., Answer], tmp_path: Path) -> None:
    file = tmp_path / "note"
    file.write_text(json.dumps({"password": SECRET, "n": 1}), encoding="utf-8")
    code, out, _ = kokuban("trust", "redact", str(file), "--json-text", "--json")
    told = json.loads(out)
    assert code == EXIT_CODES["text has secrets"]
    assert set(json.loads(told["text"])) == {"password", "n"}
    assert told["findings"] == [{"type": "password", "kind": "secret", "view": "plain", "span": [14, 24]}]
    file.write_text("{", encoding="utf-8")
    assert kokuban("trust", "redact", str(file), "--json-text")[0] == EXIT_CODES["refused"]
    file.write_bytes(b"\xff\xfe")
    assert kokuban("trust", "redact", str(file))[0] == EXIT_CODES["usage"]


async def test_a_write_tells_what_was_masked_and_what_is_kept(board: kokuban_client.Board) -> None:
    text = f"the password is {SECRET}; mail li@mail.internal"
    written = await board.put("shared:facts", "note", text, must_not_exist=True)
    told = {one.type: one for one in written.redactions}
    assert set(told) == {"password", "email"}
    password, mail = told["password"], told["email"]
    assert (password.field, password.mutation, password.count) == ("mutations[0].put.value.text", 0, 1)
    assert (password.kind, password.handling) == (RedactionKind.SECRET, RedactionHandling.MASK)
    assert [text[slice(*span)] for span in password.spans] == [SECRET]
    assert (mail.kind, mail.handling) == (RedactionKind.PERSONAL, RedactionHandling.KEEP)
    assert written.content is None  # it is not what was sent
    entry = await board.get("shared:facts", "note")
    assert SECRET not in entry.value
    assert entry.label is not None
    assert (set(entry.label.holds), entry.label.unsearched) == ({RedactionKind.PERSONAL}, False)
    plain = await board.put("shared:facts", "plain", "as it was sent", must_not_exist=True)
    assert (plain.redactions, plain.value) == ((), "as it was sent")


async def test_what_is_refused_names_what_was_found_and_not_what_it_is(board: kokuban_client.Board) -> None:
    token = "ghp_" + "wJ4kQ9zXc2VbN7mL5pRt8sYd1fGh3KjA6uEo"
    with pytest.raises(errors.ContentSensitive) as caught:
        await board.put("shared:facts", f"keys/{token}", "x", must_not_exist=True)
    assert (caught.value.field, caught.value.type) == ("mutations[0].put.key.path", "github-token")
    assert token not in str(caught.value)


def test_the_command_says_what_was_masked(kokuban: Callable[..., Answer], tmp_path: Path) -> None:
    note = tmp_path / "note"
    note.write_text(f"the password is {SECRET}")
    code, out, _ = kokuban("put", "shared:facts", "told", "--file", str(note), "--new")
    assert code == 0
    assert out.endswith("  masked: password in mutations[0].put.value.text\n")
    code, out, _ = kokuban("put", "shared:facts", "told-too", "--file", str(note), "--new", "--json")
    [told] = json.loads(out)["redactions"]
    assert told == {
        "field": "mutations[0].put.value.text",
        "type": "password",
        "kind": "secret",
        "handling": "mask",
        "count": 1,
    }
