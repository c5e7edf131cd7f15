"""Settings: flags over the environment over a TOML file over defaults; what cannot be used is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kokuban_server.bootstrap import Server, StartError
from kokuban_server.core import limits
from kokuban_server.settings import Settings, SettingsError, load

if TYPE_CHECKING:
    from pydantic import BaseModel


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KOKUBAN_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kokuban.toml"


def test_flags_come_before_the_environment_before_the_file_before_the_default(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load({}, None).drain_grace_s == 10.0
    file.write_text("drain_grace_s = 1.5\nstreams_max = 11\nboards = ['one', 'two']\n")
    assert load({}, file).drain_grace_s == 1.5
    monkeypatch.setenv("KOKUBAN_DRAIN_GRACE_S", "2.5")
    assert load({}, file).drain_grace_s == 2.5
    found = load({"drain_grace_s": 3.5, "store": None}, file)
    assert (found.drain_grace_s, found.streams_max, found.boards) == (3.5, 11, ["one", "two"])
    assert found.store.startswith("sqlite:")  # a flag that was not given decides nothing


def test_nested_settings_and_lists_come_from_every_source(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("[etcd]\nuser = 'from the file'\nca_file = '/ca.pem'\n")
    assert load({}, file).etcd.user == "from the file"
    monkeypatch.setenv("KOKUBAN_ETCD__USER", "from the environment")
    monkeypatch.setenv("KOKUBAN_BOARDS", "one, two")
    found = load({}, file)
    assert (found.etcd.user, found.etcd.ca_file) == ("from the environment", Path("/ca.pem"))
    assert found.boards == ["one", "two"]
    assert load({"boards": "three"}, file).boards == ["three"]


def test_the_defaults_are_those_of_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    found = load({}, None)
    assert (found.store, found.listen, found.boards) == ("sqlite:/data/kokuban", "127.0.0.1:7420", ["main"])
    assert found.request_id_window_s * 1000 == limits.REQUEST_ID_WINDOW_MS
    assert found.store_history_s * 1000 == limits.STORE_HISTORY_MS
    assert found.reflection is False


BAD: list[tuple[str, Any]] = [
    ("store", ""),
    ("store", "sqlite:"),
    ("store", "etcd://"),
    ("store", "redis://localhost"),
    ("store", "memory"),
    ("listen", "7420"),
    ("listen", "127.0.0.1:65536"),
    ("listen", "127.0.0.1:-1"),
    ("listen", "0.0.0.0:7420"),
    ("listen", "[::]:7420"),
    ("listen", "example.org:7420"),
    ("reflection", "perhaps"),
    ("drain_grace_s", -1),
    ("drain_grace_s", 601),
    ("drain_grace_s", "nan"),
    ("request_id_window_s", 59),
    ("request_id_window_s", 604_801),
    ("store_history_s", 0),
    ("bookmark_interval_s", 0),
    ("upkeep_interval_s", 0),
    ("upkeep_interval_s", "soon"),
    ("cache_bytes_max", -1),
    ("cache_bytes_max", 0.5),
    ("unary_calls_max", 0),
    ("streams_max", 0),
    ("principal_calls_max", 0),
    ("principal_streams_max", 0),
    ("principal_writes_per_s_max", -1),
    ("principal_writes_per_s_max", 0.5),
    ("principal_writes_burst_max", -1),
    ("board_bytes_max", -1),
    ("board_bytes_max", 0.5),
    ("board_census_interval_s", 0),
    ("board_census_interval_s", 86_401),
    ("log_format", "xml"),
    ("log_level", "loud"),
    ("boards", "main,"),
    ("boards", "Not A Board"),
    ("boards", ""),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={value}" for name, value in BAD])
def test_what_cannot_be_used_is_refused_by_name_from_every_source(
    name: str, value: object, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=name):
        load({name: value}, None)
    file.write_text(f"{name} = {value!r}\n")
    with pytest.raises(SettingsError, match=name):
        load({}, file)
    monkeypatch.setenv(f"KOKUBAN_{name.upper()}", str(value))
    with pytest.raises(SettingsError, match=name):
        load({}, None)


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as refused:
        load({"streams_max": 0, "log_level": "loud"}, None)
    assert "streams_max: " in str(refused.value)
    assert "log_level: " in str(refused.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("drain_grace = 1\n", "drain_grace"),
        ("[etcd]\npassword = 'secret'\n", "etcd.password"),
        ("[server]\nlisten = '127.0.0.1:1'\n", "server"),
    ],
)
def test_a_key_that_is_not_a_setting_is_refused(file: Path, text: str, name: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError, match=name) as refused:
        load({}, file)
    assert "secret" not in str(refused.value)


def test_a_file_that_is_not_there_or_not_toml_is_refused_by_name(file: Path) -> None:
    with pytest.raises(SettingsError, match=str(file)):
        load({}, file)
    file.write_text("store = \n")
    with pytest.raises(SettingsError, match=str(file)):
        load({}, file)
    file.write_bytes(b"store = '\xff'\n")
    with pytest.raises(SettingsError, match=str(file)):
        load({}, file)


def test_every_setting_has_a_description() -> None:
    def bare(model: type[BaseModel]) -> list[str]:
        return [name for name, field in model.model_fields.items() if not field.description]

    assert bare(Settings) == []


@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        (["--store", "redis://localhost"], {}, "store: "),
        (["--listen", "0.0.0.0:1"], {}, "loopback"),
        ([], {"KOKUBAN_STREAMS_MAX": "none"}, "streams_max: "),
        (["--config", "/there/is/none.toml"], {}, "/there/is/none.toml"),
    ],
)
def test_a_server_that_cannot_use_its_settings_does_not_start_and_says_why_in_one_line(
    arguments: list[str], environment: dict[str, str], told: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kokuban_server", "serve", *arguments],
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert told in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "kokuban").exists()


@pytest.mark.parametrize(("text", "told"), [(None, "No such file"), ("bad line\n", "line 1"), ("", "no phrase")])
async def test_a_server_without_the_phrases_that_it_should_look_for_does_not_start(
    text: str | None, told: str, tmp_path: Path
) -> None:
    phrases = tmp_path / "phrases"
    if text is not None:
        phrases.write_text(text, encoding="utf-8")
    with pytest.raises(StartError, match=f"screening_phrases_file: .*{told}"):
        await Server.open(Settings(store="memory:", screening_phrases_file=phrases))


SAFE: list[dict[str, object]] = [
    {"identity": "credentials", "principals_file": "p.json"},
    {"identity": "credentials", "principals_file": "p.json", "listen": "0.0.0.0:0", "plaintext": True},
    {
        "identity": "credentials",
        "principals_file": "p.json",
        "listen": "0.0.0.0:0",
        "tls": {"cert_file": "c", "key_file": "k"},
    },
    {"quickstart": True, "listen": "0.0.0.0:0"},
    {"quickstart": True, "quick_token": "kk_x"},
]
UNSAFE: list[tuple[str, dict[str, object]]] = [
    ("listen", {"listen": "0.0.0.0:0"}),
    ("listen", {"listen": "0.0.0.0:0", "plaintext": True}),
    ("identity", {"identity": "credentials"}),
    ("listen", {"identity": "credentials", "principals_file": "p.json", "listen": "0.0.0.0:0"}),
    ("identity", {"principals_file": "p.json"}),
    ("identity", {"jwt": [{"issuer": "i", "audience": "a", "keys": "k"}]}),
    ("tls", {"tls": {"cert_file": "c"}}),
    ("tls", {"tls": {"client_ca_file": "c"}}),
    ("identity", {"tls": {"cert_file": "c", "key_file": "k", "client_ca_file": "a"}}),
    ("quick_token", {"quick_token": "kk_x"}),
    ("quickstart", {"quickstart": True, "identity": "credentials", "principals_file": "p.json"}),
]


@pytest.mark.parametrize("flags", SAFE, ids=map(str, SAFE))
def test_identities_that_are_safe_are_taken(flags: dict[str, object]) -> None:
    load(flags, None)


@pytest.mark.parametrize(("name", "flags"), UNSAFE, ids=map(str, UNSAFE))
def test_what_would_let_anybody_in_or_secrets_out_is_refused(name: str, flags: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=name):
        load(flags, None)


def test_the_quick_token_does_not_show_in_a_settings_text() -> None:
    assert "kk_x" not in repr(load({"quickstart": True, "quick_token": "kk_x"}, None))
