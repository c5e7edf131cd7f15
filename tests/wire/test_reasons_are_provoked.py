"""Every reason that the API documents is provoked over the wire by a test here, or it says why not."""

from __future__ import annotations

import ast
from pathlib import Path

from kokuban_server.wire.status import CODE_BY_REASON

NOT_PROVOKED = {
    "DEADLINE_TOO_SHORT": "the client's own deadline ends the call before the server's answer can arrive",
}


def test_every_reason_is_provoked_over_the_wire() -> None:
    named: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        if path.name != Path(__file__).name:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            named |= {
                node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
    assert set(CODE_BY_REASON) - named == set(NOT_PROVOKED)
