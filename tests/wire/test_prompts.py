"""Entries as a part of a prompt, made by the server: the same as the Python client makes of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kokuban_client
from kokuban.v1 import board_service_pb2, entry_pb2, trust_pb2
from kokuban_client import _wire
from kokuban_server.core import limits
from kokuban_server.wire.prompts import render_for_prompt
from tests.wire.calls import REGION, Agent, key, of_source, put, put_json, refused, rule

if TYPE_CHECKING:
    from tests.wire.conftest import Running

EXTERNAL, AGENT, USER = trust_pb2.TRUST_LEVEL_EXTERNAL, trust_pb2.TRUST_LEVEL_AGENT, trust_pb2.TRUST_LEVEL_USER
SUSPECT = trust_pb2.TRUST_LEVEL_SUSPECT
MARKERS = ["<|im_start|>system", "<\uff5csystem\uff5c>", "</s>", "[INST]", "{{user}}", "```", "### System:", "\u2581"]
SIGNS = ["END DATA abc123", "BEGIN DATA abc123", '"}', "\n", "\r\n", "\u2028", "\\", '"', "\u202e", "\x00", "😀"]
HOSTILE = st.lists(st.one_of(st.sampled_from(MARKERS + SIGNS), st.text(max_size=5)), max_size=8).map("".join)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), HOSTILE),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(HOSTILE, inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def entries(draw: st.DrawFn) -> entry_pb2.Entry:
    """Give an entry as the server sends it."""
    entry = entry_pb2.Entry(key=entry_pb2.EntryKey(region="shared:facts", path=draw(HOSTILE)))
    entry.revision.epoch = "0" * 16
    entry.label.trust = draw(st.sampled_from([SUSPECT, EXTERNAL, AGENT, USER]))
    if draw(st.integers(0, 5)) == 0:
        entry.withheld = True
        return entry
    is_external = entry.label.trust < AGENT
    holder = entry.value.external if is_external else entry.value
    kind = draw(st.sampled_from(["text", "json", "binary"]))
    if kind == "text":
        holder.text = draw(HOSTILE)
    elif kind == "json":
        holder.json = json.dumps(draw(JSON), ensure_ascii=draw(st.booleans()))
    else:
        holder.binary.CopyFrom(entry_pb2.BinaryValue(data=draw(st.binary(max_size=4)), media_type="image/png"))
    if is_external:
        entry.value.external.source.kind = trust_pb2.SOURCE_KIND_EXTERNAL
        entry.value.external.source.uri = draw(st.sampled_from(["", "https://a.example", "https://b.example/\n<|"]))
    return entry


@given(st.lists(entries(), max_size=6), st.integers(1, 3))
def test_the_server_makes_of_entries_what_the_client_makes_of_them(made: list[entry_pb2.Entry], most: int) -> None:
    theirs = kokuban_client.render_for_prompt(map(_wire.entry, made), per_source_max=most, nonce="abc123")
    assert render_for_prompt(made, most, "abc123") == theirs


@given(st.lists(entries(), min_size=1, max_size=6))
def test_IN_02_nothing_external_stands_outside_its_fence_or_begins_a_line(made: list[entry_pb2.Entry]) -> None:
    """The nonce is known to the text here, which it never is. What agents write themselves may say anything."""
    shown = [entry for entry in made if entry.value.HasField("external")]
    for entry in made:
        if not entry.value.HasField("external"):
            entry.key.path, entry.value.text, entry.label.trust = "note", "an agent's own word", AGENT
    rendered = render_for_prompt(made, 9, "abc123")
    assert rendered.splitlines() == rendered.split("\n")
    head, begin, fenced = rendered.partition("BEGIN DATA abc123\n")
    assert bool(begin) == bool(shown)
    data, end, after = fenced.rpartition("\nEND DATA abc123")
    assert (bool(end), after) == (bool(shown), "" if shown else fenced)
    told = [json.loads(line) for line in data.split("\n")] if shown else []
    assert [(one["path"], one["source"]) for one in told] == [
        (entry.key.path, entry.value.external.source.uri) for entry in shown
    ]
    for marker in MARKERS:
        assert all(marker not in line[1:-1] for line in data.split("\n"))
        assert marker not in head


async def filled(agent: Agent) -> None:
    await agent.commit(put("note", "our own <|im_start|>"), put_json("state", {"a": [1, "开"]}))
    for number in range(5):
        await agent.commit(put(f"p/{number}", f"Ferries <b> {number}", provenance=of_source(uri="https://bad.example")))
    await agent.commit(put("q", "fine", provenance=of_source(uri="https://good.example")))


async def page(agent: Agent, **options: int) -> board_service_pb2.ListEntriesResponse:
    return await agent.page(floor=EXTERNAL, prompt=board_service_pb2.PromptOptions(**options))


async def test_a_listing_comes_as_a_part_of_a_prompt_and_without_values(running: Running) -> None:
    await filled(running.agent)
    one, other = await page(running.agent), await page(running.agent)
    assert one.prompt.startswith(f"{REGION}/note (agent):\nour own < |im_start| >\n\n")
    assert f'{REGION}/state (agent):\n{{"a": [1, "开"]}}' in one.prompt
    assert (one.prompt.count("bad.example"), one.prompt.count("good.example")) == (3, 1)
    assert one.prompt.endswith("(2 more of the same sources are left out.)")
    assert "<b>" not in one.prompt
    assert one.prompt != other.prompt  # each has a fence of its own
    assert not any(entry.HasField("value") for entry in one.entries)
    assert [entry.label.trust for entry in one.entries] == [AGENT, *[EXTERNAL] * 6, AGENT]
    assert (await page(running.agent, per_source_max=100)).prompt.count("bad.example") == 5
    assert (await page(running.agent, per_source_max=1)).prompt.count("bad.example") == 1


async def test_external_text_is_in_it_only_where_it_was_asked_for(running: Running) -> None:
    await filled(running.agent)
    answer = await running.agent.page(prompt=board_service_pb2.PromptOptions())
    assert "BEGIN DATA" not in answer.prompt
    assert f"{REGION}/q: (withheld, trusted too little)" in answer.prompt


async def test_named_entries_come_likewise(running: Running) -> None:
    await filled(running.agent)
    request = board_service_pb2.BatchGetEntriesRequest(
        board="main",
        keys=[key("q"), key("note"), key("nothing")],
        floor=EXTERNAL,
        prompt=board_service_pb2.PromptOptions(),
    )
    answer = await running.agent.board.BatchGetEntries(request, metadata=running.agent.metadata)
    assert answer.prompt.startswith(f"{REGION}/note (agent):")
    assert "good.example" in answer.prompt
    assert [entry.HasField("value") for entry in answer.entries] == [False, False]
    assert [one.path for one in answer.missing] == ["nothing"]


async def test_what_is_given_so_is_noted_in_the_read_scope(running: Running) -> None:
    await filled(running.agent)
    session = await running.agent.session()
    await running.agent.page("q", floor=EXTERNAL, session=session, prompt=board_service_pb2.PromptOptions())
    answer = await running.agent.commit(put("summary", "of it"), session=session)
    assert answer.results[0].trust == EXTERNAL


@pytest.mark.parametrize("most", [-1, limits.PROMPT_PER_SOURCE_ENTRIES_MAX + 1])
async def test_a_share_out_of_bounds_is_refused(running: Running, most: int) -> None:
    with refused("FIELD_INVALID", field="prompt.per_source_max"):
        await page(running.agent, per_source_max=most)
    request = board_service_pb2.BatchGetEntriesRequest(
        board="main", keys=[key("q")], prompt=board_service_pb2.PromptOptions(per_source_max=most)
    )
    with refused("FIELD_INVALID", field="prompt.per_source_max"):
        await running.agent.board.BatchGetEntries(request, metadata=running.agent.metadata)


async def test_values_cannot_be_left_out_of_it(running: Running) -> None:
    with refused("FIELD_INVALID", field="omit_values"):
        await running.agent.page(omit_values=True, prompt=board_service_pb2.PromptOptions())


async def test_a_part_that_is_larger_than_a_page_is_refused(running: Running) -> None:
    """What is escaped takes more than what it stands for."""
    operator = running.as_agent("ops-1", "operator")
    await operator.set_policy(rule("shared:*", screening=trust_pb2.SCREENING_PROFILE_OFF))
    for number in range(2):
        text = "\x01" * (limits.VALUE_BYTES_MAX - 10)
        await running.agent.commit(put(f"big/{number}", text, provenance=of_source()))
    with refused("RESPONSE_TOO_LARGE"):
        await page(running.agent)
