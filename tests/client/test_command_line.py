from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kokuban_client
from kokuban_client import Json, Rescreening, Revision, Status, errors
from kokuban_client.cli import _main, _printing, main
from kokuban_client.cli._connection import EXIT_CODES, exit_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_client.testing import ServerProcess
    from tests.client.commands import Answer

KOKUBAN = [sys.executable, "-c", "import sys; from kokuban_client.cli import main; sys.exit(main())"]


def test_an_entry_is_written_shown_changed_listed_and_removed(kokuban: Callable[..., Answer], region: str) -> None:
    made = kokuban("put", region, "task_1", "hello", "--new", "--reason", "a beginning", "--metadata", "k=v")
    assert made.code == 0
    assert re.fullmatch(r"\d+@[0-9a-f]{16}\n", made.out)
    assert kokuban("get", region, "task_1").out == "hello\n"
    changed = kokuban("put", region, "task_1", '{"exact": 1.10}', "--json-value", "--at", made.out.strip())
    assert changed.code == 0
    assert kokuban("ls", region).out == f'{changed.out.strip()}  task_1  me  {{"exact": 1.10}}\n'
    shown = kokuban("get", region, "task_1", "--json")
    assert '"value":{"exact":1.10}' in shown.out
    assert (shown.one["revision"], shown.one["metadata"]) == (changed.out.strip(), {"k": "v"})
    assert kokuban("rm", region, "task_1", "--at", changed.out.strip()).code == 0
    assert kokuban("ls", region).out == ""
    history = kokuban("history", region, "task_1")
    assert [line.split("  ")[1] for line in history.out.splitlines()] == ["deleted", "put", "put"]
    assert "(a beginning)" in history.out
    assert [line["type"] for line in kokuban("history", region, "task_1", "--limit", "2", "--json").lines] == [
        "deleted",
        "put",
    ]


def test_values_come_from_files_and_go_out_exactly(
    kokuban: Callable[..., Answer], server: ServerProcess, region: str, tmp_path: Path
) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG\r\n\x00\xff")
    assert kokuban("put", region, "p", "--file", str(picture), "--new").code == 2
    assert kokuban("put", region, "p", "--file", str(picture), "--media-type", "image/png", "--new").code == 0
    assert kokuban("get", region, "p").out == "(8 bytes of image/png; --raw gives them)\n"
    raw = subprocess.run([*KOKUBAN, "get", region, "p", "--raw"], capture_output=True, check=True)
    assert raw.stdout == picture.read_bytes()
    subprocess.run([*KOKUBAN, "put", region, "stdin", "-", "--new"], input="zwei\nZeilen\n", text=True, check=True)
    assert kokuban("get", region, "stdin", "--json").one["value"] == "zwei\nZeilen\n"


def test_options_stand_before_or_after_the_command_and_the_later_wins(
    kokuban: Callable[..., Answer], region: str
) -> None:
    assert kokuban("--agent", "one", "put", region, "a", "1", "--new").code == 0
    assert kokuban("--agent", "one", "put", region, "b", "1", "--new", "--agent", "two").code == 0
    assert [line["author"] for line in kokuban("--json", "ls", region).lines] == ["one", "two"]
    assert kokuban("--json", "ls", region, "--no-json").out.count("\n") == 2


def test_a_watch_shows_changes_and_where_to_go_on(kokuban: Callable[..., Answer], region: str) -> None:
    kokuban("put", region, "a", "1", "--new")
    seen = kokuban("watch", region, "--snapshot", "--count", "2", "--json").lines
    assert [line["kind"] for line in seen] == ["snapshot_entry", "snapshot_complete"]
    token = seen[1]["resume_token"]
    assert isinstance(token, str)
    kokuban("put", region, "b", "2", "--new", "--reason", "more")
    later = kokuban("watch", region, "--after", token, "--count", "1", "--json").one
    assert later["kind"] == "change"
    assert later["entry"]["path"] == "b"
    shown = kokuban("watch", region, "--after", token, "--count", "1").out
    assert re.fullmatch(rf"\d+@[0-9a-f]+  put  {region}/b  by me  \(more\)  2\n", shown)


def test_control_c_ends_a_watch_cleanly(kokuban: Callable[..., Answer], region: str) -> None:
    kokuban("put", region, "a", "1", "--new")
    command = [*KOKUBAN, "watch", region, "--snapshot"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        give_up = threading.Timer(20, watching.kill)
        give_up.start()
        assert watching.stdout is not None
        assert "there" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, complaints = watching.communicate(timeout=20)
        give_up.cancel()
    assert (watching.returncode, complaints) == (0, "")


def test_a_reader_that_has_seen_enough_is_no_error(kokuban: Callable[..., Answer], region: str) -> None:
    for number in range(3):
        kokuban("put", region, f"a{number}", "x", "--new")
    command = [*KOKUBAN, "watch", region, "--snapshot"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        give_up = threading.Timer(20, watching.kill)
        give_up.start()
        assert watching.stdout is not None
        watching.stdout.readline()
        watching.stdout.close()
        kokuban("put", region, "b", "x", "--new")
        kokuban("put", region, "c", "x", "--new")
        assert watching.wait(20) == 0
        give_up.cancel()
        assert watching.stderr is not None
        assert watching.stderr.read() == ""


def test_the_exit_codes_are_these() -> None:
    assert EXIT_CODES == {
        "ok": 0,
        "anything else": 1,
        "usage": 2,
        "conflict": 3,
        "missing": 4,
        "refused": 5,
        "unavailable": 6,
        "outcome unknown": 7,
        "lock lost": 8,
        "audit log broken": 9,
        "text is data": 10,
        "text for quarantine": 11,
        "text has secrets": 12,
        "store has findings": 13,
    }
    expected = {
        errors.RevisionMismatch: 3,
        errors.AlreadyExists: 3,
        errors.Contended: 3,
        errors.LockedByOther: 3,
        errors.LockWaitExpired: 3,
        errors.Deadlock: 3,
        errors.NothingToClaim: 3,
        errors.NotFound: 4,
        errors.ValueTooLarge: 5,
        errors.WriteForbidden: 5,
        errors.LockShared: 5,
        errors.NotHolder: 5,
        errors.LockLost: 8,
        errors.SessionLost: 8,
        errors.HistoryCompacted: 5,
        errors.StoreUnavailable: 6,
        errors.Unreachable: 6,
        errors.DeadlineExceeded: 6,
        errors.OutcomeUnknown: 7,
        errors.InternalFault: 1,
        errors.KokubanError: 1,
    }
    assert {kind: exit_code(kind("m")) for kind in expected} == expected


def test_LU_07_a_loser_exits_with_the_code_of_a_conflict(kokuban: Callable[..., Answer], region: str) -> None:
    first = kokuban("put", region, "a", "1", "--new")
    kokuban("put", region, "a", "2", "--at", first.out.strip())
    lost = kokuban("put", region, "a", "3", "--at", first.out.strip())
    assert (lost.code, lost.out) == (3, "")
    assert lost.err.startswith("kokuban: REVISION_MISMATCH: ")
    assert "winner_agent=me" in lost.err
    assert lost.err.count("\n") == 1
    told = json.loads(kokuban("put", region, "a", "3", "--new", "--json").err)
    assert (told["error"]["reason"], told["error"]["facts"]["path"]) == ("ALREADY_EXISTS", "a")


def test_other_failures_have_codes_of_their_own(kokuban: Callable[..., Answer], region: str) -> None:
    assert kokuban("get", region, "nothing").code == 4
    assert kokuban("put", region, "a", "{", "--json-value", "--new").code == 5
    assert kokuban("put", region, "a", "1", "--unconditional").code == 5
    with socket.socket() as placeholder:
        placeholder.bind(("127.0.0.1", 0))
        away = kokuban("status", "--address", f"127.0.0.1:{placeholder.getsockname()[1]}")
    assert away.code == 6
    assert away.err.startswith("kokuban: UNAVAILABLE: no server answers at 127.0.0.1:")


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["put", "shared:plan", "a", "1"],
        ["put", "shared:plan", "a", "1", "--new", "--unconditional"],
        ["put", "shared:plan", "a", "--new"],
        ["put", "shared:plan", "a", "1", "--at", "41"],
        ["put", "shared:plan", "a", "1", "--new", "--metadata", "k"],
        ["rm", "shared:plan", "a"],
        ["get", "shared:plan", "a", "--local", "--at-least", "t"],
        ["watch", "shared:plan", "--snapshot", "--after", "t"],
        ["--timeout", "0", "status"],
        ["--agent", "two words", "status"],
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(kokuban: Callable[..., Answer], arguments: list[str]) -> None:
    answer = kokuban(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert "Error" in answer.err


def test_an_agent_must_be_named(kokuban: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KOKUBAN_AGENT")
    answer = kokuban("status")
    assert answer.code == 2
    assert "KOKUBAN_AGENT" in answer.err


def test_the_state_of_the_server_is_told(kokuban: Callable[..., Answer], server: ServerProcess) -> None:
    assert kokuban("status", "--json").one["store_kind"] == "memory"
    assert kokuban("status", "--json").one["rescreening"] is None
    assert f"at {server.address}" in kokuban("status").out


def test_how_far_screening_has_come_is_told() -> None:
    judged = Rescreening("1+2", datetime(2026, 1, 1, tzinfo=UTC), 7, 1, 2, 3)
    status = Status("1", "memory", "", "t", Revision(1, "0" * 16), 0, None, 0, 0, "", judged)
    told = "screening rules 1+2; of what others let in 7 to judge, 1 kept, 2 lowered, 3 withheld"
    assert _printing.status_lines(status, "here")[-1] == told
    assert json.loads(_printing.status_json(status, "here"))["rescreening"]["withheld"] == 3


def test_help_tells_the_exit_codes_and_loads_neither_grpc_nor_protobuf() -> None:
    code = (
        "import sys; from kokuban_client.cli import main; main(['--help']);"
        "print([m for m in sys.modules if m.split('.')[0] in ('grpc', 'google', 'kokuban', 'kokuban_server')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    help_text = " ".join(done.stdout.split())
    assert all(f"{code} {kind}" in help_text for kind, code in EXIT_CODES.items())
    assert "serve" in help_text


def test_a_server_verb_without_the_server_parts_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = EntryPoint("serve", "a_module_that_is_not_there:serve", "kokuban.commands")
    monkeypatch.setattr(_main, "_plugins", lambda: {"serve": missing})
    assert main(["serve"]) == 1
    assert "pip install 'kokuban[server]'" in capsys.readouterr().err


@given(st.text())
def test_text_from_the_board_cannot_steer_a_terminal(text: str) -> None:
    for line in (_printing.escaped(text), _printing.escaped(text, keep_lines=True).replace("\n", "").replace("\t", "")):
        assert line.isprintable() or not any(c for c in line if not c.isprintable() and not c.isspace())
        assert "\x1b" not in line
        assert "\u202e" not in line


def test_escapes_are_spelled_out(kokuban: Callable[..., Answer], region: str) -> None:
    evil = "a\x1b]0;title\x07\x9b2Jb\u202ec\nd"
    assert _printing.escaped(evil) == r"a\x1b]0;title\x07\x9b2Jb\u202ec\nd"
    # JSON text may hold some of these characters as they are, and so may labels and reasons.
    kokuban("put", region, "a", f'"{chr(0x9B)}2J"', "--json-value", "--new", "--reason", "r\u202e")
    for shown in (kokuban("get", region, "a"), kokuban("ls", region), kokuban("history", region, "a")):
        assert "\x9b" not in shown.out
        assert "\u202e" not in shown.out
    assert kokuban("get", region, "a", "--json").out.isascii()


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
        lambda e: st.lists(e) | st.dictionaries(st.text(), e),
    )
)
def test_json_on_one_line_is_the_same_json(value: object) -> None:
    spread = json.dumps(value, indent=1, ensure_ascii=False)
    line = _printing._one_line(spread)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == value
    assert Json(line).parse() == value


def test_the_readme_tells_the_same_exit_codes() -> None:
    readme = Path(kokuban_client.__file__).parent.parent / "README.md"
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", readme.read_text(), re.MULTILINE)
    assert {kind: int(code) for code, kind in rows} == EXIT_CODES


def test_boards_are_made_and_named(kokuban: Callable[..., Answer]) -> None:
    assert kokuban("board", "create", "made-here").code != 0  # a member may not
    made = kokuban("--roles", "operator", "board", "create", "made-here", "--json")
    assert made.one["id"] == "made-here"
    assert kokuban("--roles", "operator", "board", "create", "made-here").code != 0
    assert "made-here" in [line.split()[0] for line in kokuban("board", "ls").out.splitlines()]
