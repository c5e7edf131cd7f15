"""The demo as it is run: real processes, a real server, and a proof at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.etcd_server import EtcdServer

KOKUBAN = [sys.executable, "-c", "import sys; from kokuban_client.cli import main; sys.exit(main())"]
AGENT = "kokuban_client.demo.agent"
BOUND_S = 60.0


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KOKUBAN, "demo", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


def report(*arguments: str) -> dict[str, Any]:
    done = run("--json", "--pace", "0", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)  # the report is all there is on standard output
    return told


def check_report(told: dict[str, Any], totals: dict[str, int]) -> None:
    assert told["proved"] is True
    assert len(told["checks"]) == 11
    assert all(check["holds"] for check in told["checks"])
    assert told["totals"] == told["recount"] == totals
    assert sum(agent.get("files", 0) for agent in told["agents"]) == totals["files"]
    assert (told["crash"]["agent"], told["crash"]["exit_code"]) == ("reviewer-2", -signal.SIGKILL)
    assert told["crash"]["finished_by"] not in {"reviewer-2", "supervisor", ""}
    (race,) = [one for one in told["conflicts"] if one["path"] == "race/charter"]
    assert {race["winner"], race["loser"]} == {"reviewer-1", "reviewer-3"}
    claim, late = told["locks"]["refusals"]
    assert (claim["agent"], claim["reason"], claim["holder"]) == ("reviewer-1", "LOCKED_BY_OTHER", "reviewer-4")
    assert claim["purpose"] == "put the largest files first"
    assert (late["agent"], late["reason"], late["path"]) == ("sleeper", "LOCK_LOST", "summary")
    assert (told["locks"]["handover"]["holder"], told["locks"]["handover"]["heir"]) == ("sleeper", "supervisor")
    logged = {(one["loser"], one["winner"], one["reason"]) for one in told["conflict_log"]}
    assert logged >= {
        (race["loser"], race["winner"], "REVISION_MISMATCH"),
        ("reviewer-1", "reviewer-4", "LOCKED_BY_OTHER"),
    }
    [(winner, _)] = [(heir, loser) for loser, heir, reason in logged if reason == "LOCK_LOST"]
    assert winner in {"supervisor", ""}  # the heir, if it still held the lock
    assert told["top_findings"][0]["kind"] == "unreadable-file"
    assert told["two_users"]["proved"] is True
    assert len(told["two_users"]["checks"]) == 7
    assert len(told["two_users"]["looks"]) == 56
    check_bad_source(told["bad_source"])
    check_interrupted_task(told["interrupted_task"])


def check_bad_source(told: dict[str, Any]) -> None:
    assert told["proved"] is True
    assert len(told["checks"]) == 9
    assert told["held_back"] == ["https://tips.example/backups/checklist"]
    assert sorted(told["removed"]) == ["shared:brief/backups", "shared:notes/retention", "shared:pages/retention"]
    assert list(told["refused"].values()) == ["READ_SCOPE_PURGED", "SOURCE_PURGED"]
    assert "three days" not in json.dumps(told["result"])
    assert [one for one in told["result"] if one["path"] == "backups"]  # made again, of the notes that were left
    assert told["result"] == told["expected"]
    assert len(told["result"]) == 2 + 2 + 1 + 41  # pages, notes, the brief, machines and their count


def check_interrupted_task(told: dict[str, Any]) -> None:
    assert told["proved"] is True
    assert len(told["checks"]) == 8
    assert told["exit_codes"] == {"courier-1": -signal.SIGKILL, "courier-2": -signal.SIGKILL}
    assert "  not again: mail:acme (event 12)" in told["explained"]
    effects = [(one["courier"], one["effect"]) for one in told["result"]["outbox"]]
    assert [effect for courier, effect in effects if courier == "courier-1"] == ["write"]
    assert sorted(effect for _, effect in effects) == sorted(
        [*(one["effect"] for one in told["expected"]["outbox"]), "publish"]
    )
    assert told["result"]["work"] == told["expected"]["work"]
    assert told["result"]["work"]["work/invited"] == ["acme", "birch"]
    assert [event["number"] for event in told["events"]] == list(range(1, len(told["events"]) + 1))


def test_a_run_in_memory_is_proved(code: Path, totals: dict[str, int]) -> None:
    told = report("--store", "memory:", str(code))
    check_report(told, totals)
    assert len(told["agents"]) == 4


def test_a_run_on_a_store_used_before_is_not_confused_by_it(code: Path, totals: dict[str, int], tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'store'}"
    first = report("--store", store, str(code))
    second = report("--store", store, "--agents", "6", str(code))
    check_report(first, totals)
    check_report(second, totals)
    assert first["run"] != second["run"]
    assert len(second["agents"]) == 6


@pytest.mark.etcd
def test_a_run_on_etcd_is_proved(code: Path, totals: dict[str, int], etcd: EtcdServer) -> None:
    store = f"etcd://{etcd.members[0].endpoint}/demo"
    first = report("--store", store, str(code))
    check_report(first, totals)
    assert first["store"].startswith("etcd")
    check_report(report("--store", store, str(code)), totals)


def test_one_file_is_enough(code: Path) -> None:
    told = report("--store", "memory:", str(code / "imports.py"))
    assert told["totals"]["unused-import"] == 1
    assert told["crash"]["label"] == "imports.py"


def test_the_report_for_people_shows_each_check(code: Path, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'store'}"
    done = run("--pace", "0", "--store", store, str(code), NO_COLOR="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == 11 + 7 + 9 + 8
    assert "✗" not in done.stdout
    assert "Proved: all 11 checks hold" in done.stdout
    assert "Proved: all 7 checks hold" in done.stdout
    _, last = done.stdout.split("In the end: who lost to whom")
    assert "sleeper lost to " in last
    assert "Proved: all 9 checks hold" in done.stdout
    assert "Proved: all 8 checks hold" in done.stdout
    assert "mail would go on from checkpoint 10" in done.stdout
    assert "read scope: shared:pages/retention@" in done.stdout
    assert f"kokuban serve --store {store}" in done.stdout
    assert "reviewer-2 killed (SIGKILL)" in done.stderr
    assert "reviewer-4 locked plan/code/inner: put the largest files first" in done.stderr
    assert "reviewer-1 refused (LOCKED_BY_OTHER), reviewer-4's lock: put the largest files first" in done.stderr
    assert "sleeper paused (SIGSTOP), held the lock: write the summary" in done.stderr
    assert "sleeper refused (LOCK_LOST), its lock: write the summary" in done.stderr
    assert "the user, while courier-2 is in the middle of 4 calls" in done.stderr
    assert "courier-2 killed (SIGKILL) in the middle of them" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_the_second_part_shows_no_token_and_leaves_no_file(code: Path, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    done = run("--pace", "0", "--store", "memory:", str(code), TMPDIR=str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kokuban token create --tenant acme --agent writer --board launch --user ann" in done.stdout
    assert "kk_" not in done.stdout + done.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "said",
    ["a server with --identity credentials", "a board that the poison never reaches", "courier-1 killed (SIGKILL)"],
)
def test_an_interrupted_later_part_leaves_neither_file_nor_process(code: Path, tmp_path: Path, said: str) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    process = subprocess.Popen(
        [*KOKUBAN, "demo", "--pace", "0", "--store", "memory:", str(code)],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while said.encode() not in (line := process.stderr.readline()):
            assert line, "the demo has ended"
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(running(children, "serve")) == 1
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(20) == 130
        wait_until_gone(children)
        assert list(folder.iterdir()) == []
    finally:
        process.kill()
        process.communicate()


def test_what_cannot_be_run_is_said_at_once(tmp_path: Path) -> None:
    nothing = run(str(tmp_path))
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "no Python file in" in nothing.stderr
    few = run("--agents", "3")
    assert (few.returncode, few.stdout) == (2, "")


def test_a_server_that_does_not_start_is_said(code: Path) -> None:
    done = run("--store", "no-such-store:", str(code))
    assert (done.returncode, done.stdout) == (1, "")
    assert "the server ended while it started" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def working(code: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A demo whose agents are at work, and will be for a minute; the sleeper is paused, or was a moment ago."""
    process = subprocess.Popen(
        [*KOKUBAN, "demo", "--pace", "60", "--store", "memory:", str(code)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        awaited = {b"was faster than", b"sleeper paused"}  # two agents at least are at work
        while awaited:
            line = process.stderr.readline()
            assert line, "the demo has ended"
            awaited = {words for words in awaited if words not in line}
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until_gone(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=20)
    for process in left:
        process.kill()
    assert left == []


def running(processes: list[psutil.Process], *words: str) -> list[psutil.Process]:
    """Give those with one of these words on their command line. The sleeper may end at any moment."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if not {*words}.isdisjoint(process.cmdline()):
                found.append(process)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(working: subprocess.Popen[bytes], number: signal.Signals) -> None:
    children = psutil.Process(working.pid).children(recursive=True)
    assert len(running(children, AGENT, "serve")) == 5  # four agents and a server
    working.send_signal(number)
    assert working.wait(20) == 130
    wait_until_gone(children)


def test_no_agent_outlives_a_supervisor_that_is_killed(working: subprocess.Popen[bytes]) -> None:
    children = psutil.Process(working.pid).children(recursive=True)
    (server,) = running(children, "serve")
    serving = [server, *server.children()]  # it may have begun to screen, which is a process of its own
    assert len(running(children, AGENT)) == 4
    working.kill()
    try:
        wait_until_gone([process for process in children if process not in serving])  # also one that is stopped
    finally:
        server.kill()  # it is a server like any other, and serves on


def test_an_agent_that_fails_ends_the_run_with_its_last_words(working: subprocess.Popen[bytes]) -> None:
    children = psutil.Process(working.pid).children(recursive=True)
    (agent,) = running(children, "reviewer-4")
    agent.kill()
    assert working.stderr is not None
    said = working.stderr.read()
    assert working.wait(20) == 1
    assert b"reviewer-4 ended by itself (-9)" in said
    wait_until_gone(children)


def test_a_run_without_its_server_can_still_be_interrupted(working: subprocess.Popen[bytes]) -> None:
    children = psutil.Process(working.pid).children(recursive=True)
    (server,) = running(children, "serve")
    server.kill()
    working.send_signal(signal.SIGINT)
    assert working.wait(20) == 130
    wait_until_gone(children)
