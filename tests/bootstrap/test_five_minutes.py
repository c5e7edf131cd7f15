"""The commands of deploy/README.md about who may call and do what work as they stand there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.etcd_server import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_TEXT = (Path(__file__).parents[2] / "deploy/README.md").read_text(encoding="utf-8")


def _section(heading: str) -> str:
    return _TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


_CONTAINER, _SERVER, _CLIENT = _BLOCK.findall(_section("Who may call"))
_SHOW, _SET = _BLOCK.findall(_section("What callers may do"))
(_POLICY,) = re.findall(r"```json\n(.*?)```", _section("What callers may do"), re.DOTALL)


class Shell:
    """Shells in one folder, with `kokuban` on their path and a port in the place of the usual one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = str(free_ports(1)[0])
        commands = folder / "bin"
        commands.mkdir()
        program = "import sys; from kokuban_client.cli import main; sys.exit(main())"
        (commands / "kokuban").write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{program}" "$@"\n', encoding="utf-8")
        (commands / "kokuban").chmod(0o755)
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("KOKUBAN_")}
        self._environment |= {
            "PATH": f"{commands}:{self._environment['PATH']}",
            "KOKUBAN_STORE": f"sqlite:{folder / 'store'}",
            "KOKUBAN_ADDRESS": f"127.0.0.1:{self._port}",
        }
        self.started: list[subprocess.Popen[str]] = []

    def serve(self, commands: str) -> str:
        """Run commands of which the last serves; give what it printed until it listened."""
        process = subprocess.Popen(
            ["bash", "-euc", self._here(commands)],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        assert process.stdout is not None
        said: list[str] = []
        ending = threading.Timer(30, self.close)  # a server that never listens
        ending.start()
        try:
            for line in process.stdout:
                said.append(line)
                if "server.listening" in line:
                    return "".join(said)
        finally:
            ending.cancel()
        raise AssertionError("".join(said))

    def run(self, commands: str) -> str:
        """Run commands that must succeed; give what they print."""
        done = subprocess.run(
            ["bash", "-euc", self._here(commands)],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self, name: str) -> str:
        return (self._folder / name).read_text(encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text, encoding="utf-8")

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.started:
            process.wait()

    def _here(self, commands: str) -> str:
        return commands.replace(":7420", f":{self._port}")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()
    for process in made.started:
        assert process.stdout is not None
        process.stdout.close()


def test_from_development_to_mutual_TLS(shell: Shell) -> None:
    shell.serve(_SERVER)
    said = shell.run(_CLIENT)
    assert "launch" in said
    assert "notes/today" in said
    with pytest.raises(AssertionError, match="NOT_FOUND"):
        shell.run(_CLIENT.splitlines()[0] + "\nkokuban ls --board launch user:u1")  # which the planner does not act for
    as_planner = _CLIENT.splitlines()[0] + "\n"
    shell.run(as_planner + _SHOW)
    assert json.loads(shell.read("policy.json")) == json.loads(_SHOW.partition("# ")[2])
    shell.write("policy.json", _POLICY)
    said = shell.run(as_planner + _SET)
    assert "policy 1  " in said
    assert "allowed  as agent:planner  rule shared:plan\n" in said
    assert "deleted" in said


def test_the_quick_start_of_a_container(shell: Shell) -> None:
    inside, outside = _CONTAINER.splitlines()
    (token,) = re.findall("^token: (kk_.*)$", shell.serve(inside), re.MULTILINE)
    assert "sqlite" in shell.run(outside.replace("kk_…", token))
    with pytest.raises(AssertionError, match="CREDENTIAL_INVALID"):
        shell.run(outside.replace("kk_…", "kk_another"))
