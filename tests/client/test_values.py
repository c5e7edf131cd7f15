from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban_client import KEEP, Binary, Fence, Freshness, Json, LockScope, LockTarget, Revision, Text, _wire
from kokuban_client.types import Consistency, content_of, json_text

EPOCH = "00c0ffee00c0ffee"
AT = Revision(41, EPOCH)


@given(st.integers(min_value=0, max_value=2**63 - 1), st.text("0123456789abcdef", min_size=16, max_size=16))
def test_a_revision_survives_its_spelling(number: int, epoch: str) -> None:
    assert Revision.parse(str(Revision(number, epoch))) == Revision(number, epoch)


@pytest.mark.parametrize(
    "text", ["", "41", "@", f"-1@{EPOCH}", f"4.1@{EPOCH}", f"²@{EPOCH}", "41@00C0FFEE00C0FFEE", "41@"]
)
def test_what_is_not_a_revision_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a revision"):
        Revision.parse(text)


def test_a_value_takes_the_form_of_its_type() -> None:
    assert content_of("text") == Text("text")
    assert content_of({"a": [1, True, None, 0.5]}) == Json('{"a":[1,true,null,0.5]}')
    assert content_of(None) == Json("null")
    assert content_of(Json("1.10")) == Json("1.10")
    assert content_of(Binary(b"x", "image/png")) == Binary(b"x", "image/png")


def test_what_would_be_changed_silently_is_refused() -> None:
    with pytest.raises(TypeError, match="media type"):
        content_of(b"bytes")
    with pytest.raises(TypeError, match="must be a string"):
        content_of({"a": [{1: "one"}]})
    with pytest.raises(ValueError, match="JSON"):
        content_of([math.nan])
    with pytest.raises(ValueError, match="Unicode"):
        _wire.value_message(Text("\ud800"))
    with pytest.raises(TypeError):
        content_of({1, 2})


def test_the_exact_digits_of_json_survive() -> None:
    raw = '{"big":123456789012345678901234567890,"spelled":1.10,"tiny":1e-400}'
    message = _wire.value_message(Json(raw))
    content = _wire.content(message)
    assert content == Json(raw)
    assert isinstance(content, Json)
    assert content.parse()["big"] == 123456789012345678901234567890


def test_json_is_parsed_anew_for_each_reader() -> None:
    content = Json('{"a":[]}')
    content.parse()["a"].append(1)
    assert content.parse() == {"a": []}


def test_a_belief_must_be_given_and_only_one() -> None:
    beliefs: list[dict[str, object]] = [
        {},
        {"at": AT, "must_not_exist": True},
        {"must_not_exist": True, "unconditional": True},
        {"at": AT, "unconditional": True},
        {"must_not_exist": False},
        {"at": f"41@{EPOCH}"},
        {"at": 41},
    ]
    for belief in beliefs:
        with pytest.raises(TypeError):
            _wire.put("shared:plan", "a", 1, **belief)  # type: ignore[arg-type] # wrong on purpose


def test_a_put_says_only_what_it_was_given() -> None:
    message = _wire.put("shared:plan", "a", KEEP, at=AT, metadata={"k": "v"}).put
    assert not message.HasField("value")
    assert not message.HasField("update_mask")
    assert message.WhichOneof("expiry") is None
    assert dict(message.metadata) == {"k": "v"}
    assert message.precondition.at.number == 41
    assert message.precondition.at.epoch == EPOCH


def test_times_are_unmistakable() -> None:
    assert _wire.put("r:a", "a", 1, at=AT, ttl=0.1 + 0.2).put.ttl.nanos == 300_000_000
    assert _wire.put("r:a", "a", 1, at=AT, ttl=timedelta(minutes=2)).put.ttl.seconds == 120
    instant = datetime(2030, 1, 2, tzinfo=UTC)
    assert _wire.put("r:a", "a", 1, at=AT, expire_time=instant).put.expire_time.ToDatetime(UTC) == instant
    with pytest.raises(ValueError, match="time zone"):
        _wire.put("r:a", "a", 1, at=AT, expire_time=datetime(2030, 1, 2))  # noqa: DTZ001 - wrong on purpose
    with pytest.raises(TypeError, match="not both"):
        _wire.put("r:a", "a", 1, at=AT, ttl=1, expire_time=instant)
    with pytest.raises(ValueError, match="finite"):
        _wire.put("r:a", "a", 1, at=AT, ttl=math.inf)


@pytest.mark.parametrize(
    ("consistency", "carried", "level"),
    [
        (Freshness.STRONG, "t", "strong"),
        (Freshness.SESSION, "t", "at_least"),
        (Freshness.SESSION, "", "strong"),
        (Freshness.LOCAL, "t", "local"),
    ],
)
def test_a_session_reads_at_its_own_last_write(consistency: Consistency, carried: str, level: str) -> None:
    assert _wire.consistency_message(consistency, carried).WhichOneof("level") == level


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda e: st.lists(e) | st.dictionaries(st.text(), e)
    )
)
def test_json_comes_back_as_it_was(value: object) -> None:
    assert Json(json_text(value)).parse() == value


def test_a_fence_is_spelled_and_read_back() -> None:
    fence = Fence("0a" * 16, 41, "00c0ffee00c0ffee")
    assert str(fence) == f"{'0a' * 16}:41@00c0ffee00c0ffee"
    assert Fence.parse(str(fence)) == fence


@pytest.mark.parametrize(
    "text",
    [
        "",
        "41@00c0ffee00c0ffee",
        f"{'0a' * 16}:41",
        f"{'0A' * 16}:41@00c0ffee00c0ffee",
        f"{'0a' * 15}:41@00c0ffee00c0ffee",
    ],
)
def test_what_is_no_fence_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a fence"):
        Fence.parse(text)


def test_a_part_of_a_board_is_spelled_as_people_would() -> None:
    assert str(LockTarget("shared:plan")) == "shared:plan/**"
    assert str(LockTarget("shared:plan", "a")) == "shared:plan/a/**"
    assert str(LockTarget("shared:plan", "a", LockScope.ENTRY)) == "shared:plan/a"
