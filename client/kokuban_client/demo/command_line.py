"""The command `kokuban`, run by the demo as a user would."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from kokuban_client.demo.supervisor import DemoFailedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COMMAND_S_MAX = 60


def kokuban(arguments: Sequence[str], variables: Mapping[str, str]) -> str:
    """Run the command with nothing but these variables of Kokuban's; give what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KOKUBAN_")}
    program = "import sys; from kokuban_client.cli import main; sys.exit(main())"
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", program, *arguments],
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMMAND_S_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise DemoFailedError(f"{shlex.join(['kokuban', *arguments])} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout
