"""`kokuban trust trace|purge|erase|removals`: nothing goes without --plan or --yes, and nothing printed steers a terminal."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.client.commands import Answer


@pytest.fixture
def roles() -> str:
    return "member,operator"


@pytest.fixture
def uri(region: str) -> str:
    return f"https://{region.partition(':')[2]}.example/\x1b[2J"


@pytest.fixture
def page(kokuban: Callable[..., Answer], region: str, uri: str) -> str:
    """A page and what was made of it; gives the page's revision."""
    source = ("--source", "external", "--uri", uri)
    revision = kokuban("put", region, "page", "the bridge is closed", "--new", *source)[1].strip()
    derived = ("--derived-from", f"{region}/page@{revision}")
    assert kokuban("put", region, "note", "take the ferry", "--new", *derived)[0] == 0
    return revision


def test_a_trace_is_printed_as_a_tree(kokuban: Callable[..., Answer], region: str, uri: str, page: str) -> None:
    code, out, _ = kokuban("trust", "trace", region, "note")
    note, parent = out.splitlines()
    shown = uri.replace("\x1b", "\\x1b")
    assert (code, note.startswith(f"{region}/note@")) == (0, True)
    assert parent == f"└─ declared: {region}/page@{page}  external  by me  from external {shown}"
    _, out, _ = kokuban("trust", "trace", region, "page", "--at", page, "--descendants")
    assert out.splitlines()[1].startswith(f"└─ declared: {region}/note@")
    told = json.loads(kokuban("--json", "trust", "trace", region, "note", "--depth", "1")[1])
    assert [(state["path"], state["link"], state["from"]) for state in told["states"]] == [
        ("note", "asked", 0),
        ("page", "declared", 0),
    ]
    assert told["states"][1]["source"]["uri"] == uri
    assert kokuban("trust", "trace", region, "nothing")[0] == 4


def test_a_purge_is_shown_first_and_begun_by_its_plan(
    kokuban: Callable[..., Answer], region: str, uri: str, page: str
) -> None:
    purge = ("trust", "purge", "--uri", uri, "--reason", "it lies")
    code, out, _ = kokuban(*purge)
    assert code == 0
    assert "\x1b" not in out
    first, *findings, last = out.splitlines()
    assert first.endswith("would be: 2 states removed, 2 entries deleted")
    assert f"  removed  {region}/page@{page}" in findings
    found = re.fullmatch(r"nothing is removed yet\. .* kokuban trust purge --plan (\S+)", last)
    assert found
    assert kokuban("get", region, "page", "--floor", "external")[0] == 0
    code, out, _ = kokuban("trust", "purge", "--plan", found[1], "--wait")
    assert code == 0
    head, *receipts = out.splitlines()
    assert head.startswith(f"{found[1]}  done  purge of uri ")
    assert "  entries  2 erased" in receipts
    assert kokuban("get", region, "page", "--floor", "external")[0] == 4
    assert kokuban("trust", "removals", found[1])[1] == out
    assert head in kokuban("trust", "removals")[1].splitlines()
    code, _, complaint = kokuban("put", region, "page", "x", "--new", "--source", "external", "--uri", uri)
    assert (code, "SOURCE_PURGED" in complaint) == (5, True)


@pytest.mark.usefixtures("page")
def test_yes_begins_at_once(kokuban: Callable[..., Answer], region: str, uri: str) -> None:
    purge = ("trust", "purge", "--uri", uri, "--reason", "it lies", "--allow-reingest", "--yes", "--wait")
    code, out, _ = kokuban("--json", *purge)
    plan, removal = map(json.loads, out.splitlines())
    assert code == 0
    assert (plan["plan"], plan["removed_count"], plan["removal"]["state"]) == (removal["id"], 2, "planned")
    assert {(finding["path"], finding["fate"]) for finding in plan["findings"]} == {
        ("page", "removed"),
        ("note", "removed"),
    }
    assert (removal["state"], removal["allows_reingest"], removal["selector"]["uri"]) == ("done", True, uri)
    assert kokuban("ls", region, "--floor", "external")[1] == ""
    [line] = kokuban("--json", "trust", "removals", removal["id"])[1].splitlines()
    assert json.loads(line) == removal


def test_a_user_is_erased(kokuban: Callable[..., Answer], region: str) -> None:
    user = region.partition(":")[2].lower()
    assert kokuban("put", region, "wish", "no nuts", "--new", "--source", "user", "--source-name", user)[0] == 0
    code, out, _ = kokuban("trust", "erase", user, "--reason", "asked for")
    assert code == 0
    assert out.startswith(f"erase of user {user} would be: 1 state removed, 1 entry deleted")
    plan = out.rsplit(maxsplit=1)[1]
    assert out.endswith(f"kokuban trust erase --plan {plan}\n")
    code, out, _ = kokuban("trust", "erase", "--plan", plan, "--wait")
    assert (code, user in out, "erase of a user" in out) == (0, False, True)
    assert kokuban("ls", region)[1] == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("purge", "--reason", "x"),
        ("purge", "--uri", "u:1"),
        ("purge", "--plan", "1", "--uri", "u:1"),
        ("purge", "--plan", "1", "--reason", "x"),
        ("purge", "--plan", "1", "--allow-reingest"),
        ("purge", "--uri", "u:1", "--reason", "x", "--wait"),
        ("purge", "--by", "x", "--since", "yesterday", "--reason", "x"),
        ("erase", "--reason", "x"),
        ("erase", "ann"),
        ("erase", "ann", "--plan", "1"),
        ("erase", "ann", "--reason", "x", "--wait"),
        ("trace", "shared:x", "y", "--at", "1"),
        ("trace", "shared:x", "y", "--depth", "33"),
        ("trace", "shared:x", "y", "--states", "1001"),
    ],
)
def test_what_cannot_be_meant_is_not_sent(kokuban: Callable[..., Answer], arguments: tuple[str, ...]) -> None:
    code, out, complaint = kokuban("trust", *arguments)
    assert (code, out) == (2, "")
    assert "Error: " in complaint


def test_who_may_not_purge_is_told_so(kokuban: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOKUBAN_ROLES", "member")
    code, _, complaint = kokuban("trust", "purge", "--uri", "u:1", "--reason", "x")
    assert (code, "ROLE_REQUIRED" in complaint) == (5, True)
    assert kokuban("trust", "removals")[0] == 5
