"""Makes the client for threads out of the one for event loops. `--check` fails if what stands differs."""  # noqa: INP001 - a script

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent / "kokuban_client"
MODULES = (
    "_calls",
    "_watch",
    "_sessions",
    "_locks",
    "_audit",
    "_conflicts",
    "_examination",
    "_removals",
    "_task_waits",
    "_tasks",
    "_board",
)

# In this order: longer forms first.
WORDS = (
    (r"import grpc\nimport grpc\.aio\n", "import grpc\n"),
    (r"grpc\.aio\.", "grpc."),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\b__aiter__\b", "__iter__"),
    (r"\b__anext__\b", "__next__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\baclose\b", "close"),
    (r"object \| Awaitable\[object\]", "object"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (
        r"from kokuban_client import _channel, (_tracing, )?_wire\n",
        r"from kokuban_client import \1_wire\nfrom kokuban_client.sync import _channel\n",
    ),
    (r"from kokuban_client import _channel\n", "from kokuban_client.sync import _channel\n"),
    (rf"from kokuban_client\.({'|'.join(MODULES)}) import", r"from kokuban_client.sync.\1 import"),
    (r"`async (with|for)`", r"`\1`"),
)


def main() -> int:
    """Write the modules, or say which differ."""
    check = "--check" in sys.argv[1:]
    stale = []
    for module in MODULES:
        made = _tidied(_translated((HOME / f"{module}.py").read_text()), HOME / "sync" / f"{module}.py")
        target = HOME / "sync" / f"{module}.py"
        if target.exists() and target.read_text() == made:
            continue
        stale.append(str(target))
        if not check:
            target.write_text(made)
    sys.stdout.writelines(f"{'differs' if check else 'written'}: {name}\n" for name in stale)
    return 1 if check and stale else 0


def _translated(source: str) -> str:
    for pattern, replacement in WORDS:
        source = re.sub(pattern, replacement, source)
    return f"# Made by client/unasync.py from the asynchronous module of the same name. Do not edit.\n{source}"


def _tidied(source: str, name: Path) -> str:
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or "ruff"
    for command in (["check", "--select", "I", "--fix-only", "--quiet"], ["format", "--quiet"]):
        done = subprocess.run(  # noqa: S603 - our own tool on our own text
            [ruff, *command, "--stdin-filename", str(name), "-"],
            input=source,
            capture_output=True,
            text=True,
            check=True,
        )
        source = done.stdout
    return source


if __name__ == "__main__":
    sys.exit(main())
