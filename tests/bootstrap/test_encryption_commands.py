"""`kokuban keys add`, as an operator runs it."""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING

from kokuban_server.adapters.encryption import parse_keys
from tests.bootstrap.test_credential_commands import kokuban, refused

if TYPE_CHECKING:
    from pathlib import Path


def test_a_key_is_made_and_the_next_comes_before_it(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    done = kokuban("keys", "add", "--keys", file)
    assert (done.returncode, done.stdout) == (0, "")
    [(today, first)] = parse_keys(file.read_bytes()).items()
    assert re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", today)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text(encoding="utf-8").split()[1] not in done.stderr
    file.chmod(0o640)
    assert kokuban("keys", "add", "--keys", file, "--id", "next").returncode == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    keys = parse_keys(file.read_bytes())
    assert list(keys) == ["next", today]
    assert keys[today] == first != keys["next"]
    assert [one.name for one in tmp_path.iterdir()] == ["keys"]


def test_what_a_server_would_refuse_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    refused("an id is", "keys", "add", "--keys", file, "--id", "Not an id")
    assert not file.exists()
    file.write_text("broken", encoding="utf-8")
    refused("line 2", "keys", "add", "--keys", file)
    assert file.read_text(encoding="utf-8") == "broken"
    absent = tmp_path / "none" / "keys"
    refused(f"{absent}: ", "keys", "add", "--keys", absent)
    assert not absent.parent.exists()
