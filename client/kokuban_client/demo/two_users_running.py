"""Runs the second part: a server with credentials, tokens from the real commands, two agents. Nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import rich.console

import kokuban_client
from kokuban_client.demo import two_users_report
from kokuban_client.demo.command_line import kokuban
from kokuban_client.demo.supervisor import DemoFailedError
from kokuban_client.demo.two_users import BOARD, MEMBERS, TASK, TENANT, Told, work_together
from kokuban_client.demo.two_users_proof import prove
from kokuban_client.demo.two_users_report import TwoUsersOutcome
from kokuban_client.testing import ServerFailed, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_RUN_S_MAX = 120
_OPERATOR = "operator"


def run() -> TwoUsersOutcome:
    """Run the second part; raises DemoFailedError if it cannot be finished."""
    begun_s = time.monotonic()
    console = rich.console.Console(stderr=True)  # the report alone goes to standard output

    def tell(text: str) -> None:
        console.print(f"{time.monotonic() - begun_s:6.1f} s  {text}", highlight=False, markup=False, soft_wrap=True)

    with tempfile.TemporaryDirectory(prefix="kokuban-demo-") as folder:
        principals = Path(folder) / "principals.json"
        commands = {_OPERATOR: ["--role", "operator", "--board", "*"]}
        for member in MEMBERS:
            commands[member.agent] = ["--board", BOARD, "--user", member.user, "--task", TASK]
        for agent, grants in commands.items():
            commands[agent] = ["token", "create", "--tenant", TENANT, "--agent", agent, *grants]
        tokens = _made(commands, principals)
        tell(f"tokens for {', '.join(tokens)}, by `kokuban token create`")
        told = _served(Path(folder), principals, tokens, tell)
        content = principals.read_text(encoding="utf-8")
        kept_tokens = sum(token in content for token in tokens.values())
    checks = prove(told, kept_tokens=kept_tokens, left_behind=Path(folder).exists())
    shown = [shlex.join(["kokuban", *command]) for command in commands.values()]
    return TwoUsersOutcome(time.monotonic() - begun_s, shown, told, checks)


def print_report(outcome: TwoUsersOutcome, stream: TextIO) -> None:
    """Print the report for people."""
    two_users_report.show(outcome, rich.console.Console(file=stream, highlight=False, markup=False))


def _served(folder: Path, principals: Path, tokens: Mapping[str, str], tell: Callable[[str], None]) -> Told:
    server = ServerProcess(
        store=f"sqlite:{folder / 'store'}",
        arguments=["--identity", "credentials", "--principals", str(principals)],
        caller={"token": tokens[_OPERATOR]},
    )
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(server)
        except ServerFailed as error:
            raise DemoFailedError(str(error)) from error
        stack.callback(server.stop)
        caller = {"KOKUBAN_ADDRESS": server.address, "KOKUBAN_TOKEN": tokens[_OPERATOR]}
        kokuban(["board", "create", BOARD], caller)
        tell(f"a server with --identity credentials, and on it the board {BOARD}")
        return asyncio.run(_within(server.address, tokens, tell))


async def _within(address: str, tokens: Mapping[str, str], tell: Callable[[str], None]) -> Told:
    try:
        async with asyncio.timeout(_RUN_S_MAX):
            return await work_together(address, tokens, tell)
    except kokuban_client.KokubanError as error:
        raise DemoFailedError(f"the board answered {error}") from error
    except TimeoutError as error:
        raise DemoFailedError(f"the second part was not done in {_RUN_S_MAX} s") from error


def _made(commands: Mapping[str, Sequence[str]], principals: Path) -> dict[str, str]:
    """Have each agent's token made; give the tokens, which are printed once and kept nowhere."""
    return {
        agent: kokuban(command, {"KOKUBAN_PRINCIPALS_FILE": str(principals)}).strip()
        for agent, command in commands.items()
    }
