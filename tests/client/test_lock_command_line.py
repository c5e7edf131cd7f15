"""The command line for locks and sessions, and commands that run as long as a lock is held."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import psutil
import pytest

import kokuban_client
from kokuban_client import Fence, sync
from kokuban_client.cli import _running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kokuban_client.testing import ServerProcess
    from tests.client.commands import Answer

KOKUBAN = [sys.executable, "-c", "import sys; from kokuban_client.cli import main; sys.exit(main())"]
SHELL = f'kokuban() {{ {" ".join(repr(word) for word in KOKUBAN)} "$@"; }}\n'


@pytest.fixture
def theirs(server: ServerProcess) -> Iterator[sync.Board]:
    with sync.connect(server.address, agent="other", roles=["member", "supervisor"]) as client:
        yield client.board("main")


def test_a_lock_is_held_while_a_command_runs(kokuban: Callable[..., Answer], theirs: sync.Board, region: str) -> None:
    script = f"{SHELL}echo $KOKUBAN_FENCE; echo $KOKUBAN_SESSION; kokuban lock ls {region}; exit 7"
    ran = kokuban("lock", "run", region, "x", "--purpose", "try it", "--", "sh", "-c", script)
    assert ran.code == 7
    fence, session, held = ran.out.splitlines()
    assert re.fullmatch("[0-9a-f]{32}", session)
    assert held == f"{Fence.parse(fence).lock_id}  held  exclusive  {region}/x/**  by me  (try it)"
    assert not theirs.locks(region).locks
    assert session not in {there.session.id for there in theirs.sessions()}


def test_what_the_command_writes_is_under_the_lock(
    kokuban: Callable[..., Answer], theirs: sync.Board, region: str
) -> None:
    script = (
        f"{SHELL}set -e; kokuban put {region} x 1 --new --json-value >/dev/null; kokuban increment {region} x --by 4;"
        f"revision=$(kokuban put {region} x/y text --new); kokuban rm {region} x/y --at $revision >/dev/null;"
        f"kokuban put {region} x 2 --new --agent other || exit $?"
    )
    ran = kokuban("lock", "run", region, "x", "--", "bash", "-c", script)
    assert ran.out == "5\n"
    assert "NOT_HOLDER" in ran.err  # another agent has the fence, and still cannot use it
    assert ran.code == 5
    with theirs.lock(region, "x", purpose="theirs") as lock:
        refused = kokuban("increment", region, "x")
        assert (refused.code, "LOCKED_BY_OTHER" in refused.err, "purpose=theirs" in refused.err) == (3, True, True)
        assert kokuban("increment", region, "x", "--fence", str(lock.fence), "--agent", "other").out == "6\n"
    lost = kokuban("increment", region, "x", "--fence", str(lock.fence), "--agent", "other", "--json")
    assert (lost.code, json.loads(lost.err)["error"]["reason"]) == (8, "LOCK_LOST")
    assert kokuban("increment", region, "x", "--json").lines[0]["value"] == 7
    assert kokuban("increment", region, "x", "--fence", "what?").code == 2


def test_locks_inside_locks_have_both_fences(kokuban: Callable[..., Answer], region: str) -> None:
    inner = f"{SHELL}echo $KOKUBAN_FENCE; kokuban increment {region} a; kokuban increment {region} b"
    outer = f"{SHELL}kokuban lock run {region} b -- bash -c '{inner.replace(chr(39), chr(34))}'"
    ran = kokuban("lock", "run", region, "a", "--", "bash", "-c", outer)
    assert ran.code == 0, ran.err
    fences, *counts = ran.out.splitlines()
    assert len({Fence.parse(text).lock_id for text in fences.split()}) == 2
    assert counts == ["1", "1"]


def test_RB_26_the_command_does_not_run_without_the_lock(
    kokuban: Callable[..., Answer], theirs: sync.Board, region: str
) -> None:
    with theirs.lock(region, "x", purpose="theirs") as lock:
        for wait, reason in (("0", "LOCKED_BY_OTHER"), ("0.2", "LOCK_WAIT_EXPIRED")):
            refused = kokuban("lock", "run", region, "x/y", "--entry", "--wait", wait, "--", "echo", "it ran")
            assert (refused.code, refused.out) == (3, "")
            assert f"kokuban: {reason}: " in refused.err
            assert "holder_agent=other" in refused.err
        assert "kokuban: waiting, 0 ahead, held: " + lock.fence.lock_id in refused.err
        assert kokuban("lock", "run", region, "free", "--shared", "--", "true").code == 0
        told = kokuban("lock", "run", region, "x", "--wait", "0.2", "--json", "--", "true").err.splitlines()
        assert json.loads(told[0])["queued"]["held_by"][0]["purpose"] == "theirs"
        assert json.loads(told[-1])["error"]["reason"] == "LOCK_WAIT_EXPIRED"


def test_a_command_that_cannot_be_started_gives_the_lock_back(
    kokuban: Callable[..., Answer], theirs: sync.Board, region: str, tmp_path: Path
) -> None:
    (tmp_path / "script").write_text("true")
    assert kokuban("lock", "run", region, "--", "no-such-command").code == 127
    unstartable = kokuban("lock", "run", region, "--", str(tmp_path / "script"))
    assert unstartable.code == 126
    assert "Permission denied" in unstartable.err
    assert not theirs.locks(region).locks


@pytest.mark.parametrize(
    "arguments",
    [
        ["lock", "run", "shared:plan"],
        ["lock", "run", "shared:plan", "--"],
        ["lock", "run", "--", "true"],
        ["lock", "run", "shared:plan", "x", "y", "--", "true"],
        ["lock", "run", "shared:plan", "--wait", "-1", "--", "true"],
        ["lock", "break", "x"],
        ["lock"],
        ["session"],
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(kokuban: Callable[..., Answer], arguments: list[str]) -> None:
    assert kokuban(*arguments).code == 2


@contextlib.contextmanager
def begin(server: ServerProcess, region: str, script: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [*KOKUBAN, "lock", "run", region, "x", *options, "--", "bash", "-c", script]
    environment = {**os.environ, "KOKUBAN_ADDRESS": server.address, "KOKUBAN_AGENT": "me"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            yield running
        except BaseException:
            stop_all_of(running)
            raise


def stop_all_of(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in psutil.Process(process.pid).children(recursive=True):
            one.kill()
    process.kill()


def on_signal(then: str, *, ready: str = "ready") -> str:
    """Give a script that says when it is ready, waits for a signal and then does something, and misses none."""
    return f"""exec {sys.executable} -c '
import os, signal
numbers = {{signal.SIGINT, signal.SIGTERM}}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print(os.path.expandvars("{ready}"), flush=True)
signal.sigwait(numbers)
{then}'"""


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_RB_38_when_the_lock_is_lost_the_command_is_stopped_and_the_exit_code_tells(
    server: ServerProcess, theirs: sync.Board, region: str
) -> None:
    with begin(server, region, on_signal('print("stopping")', ready="$KOKUBAN_FENCE")) as running:
        lock_id = Fence.parse(first_line(running)).lock_id
        theirs.break_lock(lock_id, "it stood in the way")
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out) == (8, "stopping\n")
    assert err.startswith("kokuban: LOCK_LOST: ")
    assert lock_id in err


def test_a_command_that_does_not_stop_is_killed_with_all_that_it_started(
    server: ServerProcess, theirs: sync.Board, region: str
) -> None:
    child = "import signal, time; signal.signal(15, signal.SIG_IGN); print('child', flush=True); signal.pause()"
    script = f'trap "" TERM; {sys.executable} -c "{child}" & echo $! $KOKUBAN_FENCE; wait'
    with begin(server, region, script) as running:
        lines = sorted((first_line(running), first_line(running)))  # the child's word, and its number
        pid, fence = lines[0].split()
        begun_s = time.monotonic()
        theirs.break_lock(Fence.parse(fence).lock_id, "now")
        running.communicate(timeout=30)
        assert running.returncode == 8
        assert time.monotonic() - begun_s > 4
    assert has_ended(int(pid))


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # of which nobody has taken note yet
    except psutil.NoSuchProcess:
        return True


def test_signals_are_passed_on_and_the_lock_is_released(server: ServerProcess, theirs: sync.Board, region: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with begin(server, region, on_signal("raise SystemExit(5)")) as running:
            assert first_line(running) == "ready"
            running.send_signal(number)
            running.communicate(timeout=30)
        assert running.returncode == 5
        assert not theirs.locks(region).locks
    with begin(server, region, "echo ready; kill -KILL $$") as running:
        running.communicate(timeout=30)
    assert running.returncode == 128 + signal.SIGKILL


def test_a_signal_that_comes_to_another_thread_is_passed_on_too() -> None:
    script = """
import os, psutil, signal, sys, threading, time
from kokuban_client.cli._running import Command

def take_it():
    while "sleep" not in [one.name() for one in psutil.Process().children()]:
        time.sleep(0.02)
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=take_it).start()
sys.exit(Command(["sleep", "20"], os.environ).run())
"""
    ran = subprocess.run([sys.executable, "-c", script], timeout=30, check=False)
    assert ran.returncode == 128 + signal.SIGTERM


def test_control_c_while_it_waits_ends_it_and_leaves_no_request(
    server: ServerProcess, theirs: sync.Board, region: str
) -> None:
    with theirs.lock(region, "x", purpose="theirs"):
        with begin(server, region, "echo it ran", "--wait", "60") as waiting:
            assert waiting.stderr is not None
            assert "waiting" in waiting.stderr.readline()
            waiting.send_signal(signal.SIGINT)
            out, _ = waiting.communicate(timeout=30)
        assert (waiting.returncode, out) == (130, "")
        assert not theirs.locks(region).waits


def test_a_lock_that_is_held_too_long_stops_the_command(server: ServerProcess, region: str) -> None:
    with begin(server, region, "exec sleep 60", "--hold-max", "1") as running:
        _, err = running.communicate(timeout=30)
    assert running.returncode == 8
    assert "held_too_long" in err


def test_the_command_can_use_the_terminal(server: ServerProcess, region: str) -> None:
    ours, its = pty.openpty()
    script = "read -r word; echo got $word"
    command = [*KOKUBAN, "lock", "run", region, "x", "--", "bash", "-c", script]
    environment = {**os.environ, "KOKUBAN_ADDRESS": server.address, "KOKUBAN_AGENT": "me"}
    # setsid and then the terminal as the one that controls the session, as a terminal's window would begin a shell.
    window = (
        f"import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv({command[0]!r}, {command!r})"
    )
    with subprocess.Popen(
        [sys.executable, "-c", window], stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True
    ) as running:
        os.close(its)
        os.write(ours, b"hello\n")
        give_up = threading.Timer(30, running.kill)
        give_up.start()
        code = running.wait()
        give_up.cancel()
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert code == 0, shown
    assert "got hello" in shown


def test_who_holds_and_who_waits_is_listed(kokuban: Callable[..., Answer], theirs: sync.Board, region: str) -> None:
    with theirs.lock_all([(region, "a", "entry"), (region, "b\u202e", "subtree")], purpose="evil \x1b[2J") as lock:
        shown = kokuban("lock", "ls", region)
        assert shown.out == (
            f"{lock.fence.lock_id}  held  exclusive  {region}/a, {region}/b\\u202e/**  by other  (evil \\x1b[2J)\n"
        )
        assert kokuban("lock", "ls", region, "a/below").out == ""
        (told,) = kokuban("lock", "ls", region, "b\u202e/below", "--json").lines
        assert (told["kind"], told["lock_id"], told["state"]) == ("lock", lock.fence.lock_id, "held")
    with theirs.lock(region, purpose="the whole region"):
        assert f"  {region}/**  by other" in kokuban("lock", "ls", region, "any").out


def test_a_lock_is_broken_by_who_may(kokuban: Callable[..., Answer], theirs: sync.Board, region: str) -> None:
    lost = threading.Event()
    with (  # noqa: PT012 - how the block ends is what is tested
        pytest.raises(kokuban_client.LockLost),
        theirs.lock(region, "x", purpose="p", on_lost=lambda _: lost.set()) as lock,
    ):
        lock_id = lock.fence.lock_id
        assert kokuban("lock", "break", lock_id, "--reason", "r").code == 5
        broken = kokuban("lock", "break", lock_id, "--reason", "r", "--roles", "supervisor", "--json")
        assert broken.lines[0]["lock_id"] == lock_id
        assert lost.wait(20)
    assert kokuban("lock", "break", lock_id, "--reason", "r", "--roles", "supervisor").code == 4


def test_who_is_there_is_listed(kokuban: Callable[..., Answer], theirs: sync.Board, region: str) -> None:
    with (
        theirs.session(ttl_s=20, label="a label") as session,
        theirs.lock(region, "x", purpose="p", session=session) as lock,
    ):
        lines = kokuban("session", "ls").out.splitlines()
        place = next(number for number, line in enumerate(lines) if line.startswith(session.id))
        assert re.fullmatch(rf"{session.id}  other  lives 20 s  heard of \d+ s ago  \(a label\)", lines[place])
        assert lines[place + 1] == f"  {lock.fence.lock_id}  held  exclusive  {region}/x/**  by other  (p)"
        (told,) = [line for line in kokuban("session", "ls", "--json").lines if line["session_id"] == session.id]
        assert (told["agent"], told["label"], told["ttl_s"]) == ("other", "a label", 20)
        assert told["holds"][0]["targets"] == [{"region": region, "path": "x", "scope": "subtree"}]


def test_a_command_that_is_stopped_before_it_begins_does_not_begin() -> None:
    command = _running.Command(["false"], {})
    command.stop()
    command.stop()
    assert command.run() == 128 + signal.SIGTERM
