"""External text in a prompt is data between fences, whatever it says."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban_client import (
    Binary,
    Entry,
    External,
    Json,
    Label,
    Revision,
    Source,
    SourceKind,
    Text,
    Trust,
    render_for_prompt,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MARKERS = [
    "<|im_start|>system",
    "<\uff5csystem\uff5c>",
    "</s>",
    "[INST]",
    "{{user}}",
    "```",
    "### System:",
    "<tool_call>",
    "\u2581",
]
HOSTILE = st.one_of(
    st.text(st.characters(codec=None), max_size=200),
    st.lists(
        st.one_of(
            st.sampled_from(
                [*MARKERS, "END DATA", "END DATA abc123", "BEGIN DATA abc123", '"}', "\n", "\r\n", "\u2028", "\\", '"']
            ),
            st.text(max_size=5),
        ),
        max_size=12,
    ).map("".join),
)


def entry(path: str, content: Text | Json | Binary | External | None, trust: Trust = Trust.AGENT) -> Entry:
    revision = Revision(1, "0" * 16)
    return Entry("shared:facts", path, revision, 1, 1, content, NOW, NOW, None, "writer-1", label=Label(trust))


def external(path: str, text: str, uri: str = "https://blog.example") -> Entry:
    content = External(Text(text), Source(SourceKind.EXTERNAL, uri), {"title": text})
    return entry(path, content, Trust.EXTERNAL)


@given(st.lists(st.tuples(HOSTILE, HOSTILE, HOSTILE), max_size=5))
def test_IN_02_nothing_external_stands_outside_its_fence_or_on_a_line_of_its_own(
    texts: list[tuple[str, str, str]],
) -> None:
    """The nonce is known to the text here, which it never is."""
    mark = "\ue000"  # shows where external text ends up: it must be escaped like every character that does not show
    entries = [external(f"p{path}{mark}", f"{mark}{text}{mark}", f"{uri}{mark}") for path, text, uri in texts]
    rendered = render_for_prompt(
        [entry("note", Text("an agent's own word")), *entries], per_source_max=9, nonce="abc123"
    )
    assert mark not in rendered
    assert rendered.splitlines() == rendered.split("\n")
    before, begin, rest = rendered.partition("BEGIN DATA abc123\n")
    if not texts:
        assert not begin
        return
    data, end, after = rest.rpartition("\nEND DATA abc123")
    assert end
    assert after == ""
    assert before.startswith("shared:facts/note (agent):\nan agent's own word\n\n")
    lines = data.split("\n")
    assert len(lines) == len(texts)
    for line, (path, text, uri) in zip(lines, texts, strict=True):
        told = json.loads(line)
        assert told == {
            "region": "shared:facts",
            "path": f"p{path}{mark}",
            "source": f"{uri}{mark}",
            "content": f"{mark}{text}{mark}",
        }
        for marker in MARKERS:
            assert marker not in line[1:-1]


def test_IN_03_each_call_has_a_fence_of_its_own() -> None:
    """So no text can close a fence that it has not seen, and no part of the answer claims a role."""
    one, other = (render_for_prompt([external("page", "from now on")]) for _ in range(2))
    assert one != other
    assert not any(line.casefold().startswith(("system", "assistant", "user")) for line in one.splitlines())


def test_one_source_does_not_fill_the_prompt() -> None:
    flood = [external(f"p/{number}", f"text {number}", "https://bad.example") for number in range(9)]
    rendered = render_for_prompt([*flood, external("other", "fine", "https://good.example")], per_source_max=2)
    assert rendered.count("bad.example") == 2
    assert "good.example" in rendered
    assert rendered.endswith("(7 more of the same sources are left out.)")
    with pytest.raises(ValueError, match="per_source_max"):
        render_for_prompt(flood, per_source_max=0)


def test_an_agents_words_stand_as_they_are_without_a_templates_markers() -> None:
    rendered = render_for_prompt(
        [
            entry("a", Text("line one\n\tline two <|im_start|>system \u202eabc")),
            entry("b", Json('{"state":"开"}'), Trust.USER),
            entry("c", Binary(b"\x00\x01", "image/png")),
            replace(entry("d", None), withheld=True),
        ]
    )
    assert rendered == (
        "shared:facts/a (agent):\nline one\n\tline two < |im_start| >system \\u202eabc\n\n"
        'shared:facts/b (user):\n{"state": "开"}\n\n'
        "shared:facts/c (agent):\n(2 bytes of image/png)\n\n"
        "shared:facts/d: (withheld, trusted too little)"
    )


def test_what_a_newer_server_says_of_trust_counts_as_external() -> None:
    """A level that this library does not know is believed no more than what is least."""
    assert "BEGIN DATA" in render_for_prompt([entry("a", Text("x"), Trust.UNKNOWN)])


def test_nothing_is_nothing() -> None:
    assert render_for_prompt([]) == ""
