"""The lines of an archive: each names the one before it, so each is known from the last one's digest on."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.store.v1 import records_pb2 as pb
from kokuban_server.core.archives import (
    BEGINNING,
    Archive,
    ArchivePhase,
    LineKind,
    digest_of,
    read_line,
    write_line,
)
from kokuban_server.core.refusals import ArchiveInvalid, StoreCorrupt
from kokuban_server.records.archive_codec import (
    decode_archive,
    encode_archive,
    packed_record,
    spelled_record,
    stored_record,
)

KEY = b"e/t/b/task:t1/x/"


def written(*bodies: dict[str, object]) -> tuple[list[str], str]:
    """Give lines, and the last one's digest."""
    lines: list[str] = []
    digest = BEGINNING
    for number, body in enumerate(bodies, 1):
        lines.append(write_line(number, digest, LineKind.ENTRY, body))
        digest = digest_of(lines[-1])
    return lines, digest


TEXTS = st.text(alphabet=st.characters(codec="utf-8"), max_size=20)
BODIES = st.lists(st.dictionaries(st.sampled_from(["path", "record"]), TEXTS), min_size=1, max_size=8)


@given(BODIES)
def test_lines_are_read_from_the_last_to_the_first(bodies: list[dict[str, object]]) -> None:
    lines, digest = written(*bodies)
    for number in range(len(lines), 0, -1):
        line = read_line(lines[number - 1], number, digest, "lines[0]")
        assert line.number == number
        assert {name: line.body[name] for name in bodies[number - 1]} == bodies[number - 1]
        digest = line.previous
    assert digest == BEGINNING


@given(BODIES, st.data())
def test_a_text_that_differs_anywhere_is_not_the_line(bodies: list[dict[str, object]], data: st.DataObject) -> None:
    lines, digest = written(*bodies)
    text = lines[-1]
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda character: character != text[place]))
    with pytest.raises(ArchiveInvalid):
        read_line(text[:place] + other + text[place + 1 :], len(lines), digest, "lines[0]")


@given(st.permutations(["a", "b", "c", "line", "previous"]))
def test_a_line_is_the_same_for_the_same(names: list[str]) -> None:
    """Whatever the order of what is in it; and nothing in a record can stand in the place of its number."""
    body = {"record": {name: name for name in names}}
    line = write_line(7, BEGINNING, LineKind.EVENT, body)
    assert line == write_line(7, BEGINNING, LineKind.EVENT, {"record": {name: name for name in sorted(names)}})
    assert json.loads(line)["line"] == 7
    assert digest_of(line) == hashlib.sha256(line.encode()).hexdigest()
    assert "\n" not in line


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", '{"line":1}', '{"line":1,"previous":"","kind":"what"}', "[" * 9_999]
)
def test_what_is_no_line_is_refused_even_under_its_own_digest(text: str) -> None:
    with pytest.raises(ArchiveInvalid) as refused:
        read_line(text, 3, digest_of(text), "lines[2]")
    assert refused.value.field_path == "lines[2]"


def test_a_line_in_anothers_place_is_named_by_its_own_number() -> None:
    lines, digest = written({}, {}, {})
    with pytest.raises(ArchiveInvalid) as refused:
        read_line(lines[0], 3, digest, "lines[0]")
    assert (refused.value.line, refused.value.detail) == (1, "stands where line 3 should")


def test_fields_and_choices_that_come_later_travel() -> None:
    """An event of a type that this server does not know, and whatever else the message has."""
    record = pb.EntryRecord(
        state=pb.ENTRY_STATE_LIVE,
        sequence=3,
        text="line\none \u2028 „two“",
        metadata={"b": "2", "a": "1"},
        event=pb.TaskEventRecord(number=12, type=99, subject="x", terms=pb.StepTermsRecord(depends_on=["a"])),
        label=pb.LabelRecord(trust=2, holds=[1], source=pb.SourceRecord(content_sha256=b"\x00\xff")),
    )
    raw = record.SerializeToString()
    said = json.loads(json.dumps(spelled_record(LineKind.EVENT, KEY, raw)))
    assert pb.EntryRecord.FromString(stored_record(LineKind.EVENT, {"record": said})) == record
    assert said["event"]["type"] == 99
    assert stored_record(LineKind.EVENT, {"packed": packed_record(raw)}) == raw


@pytest.mark.parametrize("where", ["top", "event", "label"])
def test_what_a_newer_server_wrote_is_refused_and_not_lost(where: str) -> None:
    unknown = b"\xf8\x7f\x01"  # field 2047
    record = pb.EntryRecord(sequence=1)
    if where == "event":
        record.event.MergeFromString(unknown)
    elif where == "label":
        record.label.MergeFromString(unknown)
    else:
        record.MergeFromString(unknown)
    with pytest.raises(StoreCorrupt) as refused:
        spelled_record(LineKind.ENTRY, KEY, record.SerializeToString())
    assert refused.value.detail == "written by a newer server, which knows more of it"


@pytest.mark.parametrize(
    "body", [{}, {"record": 1}, {"record": {"what": 1}}, {"record": {"sequence": "x"}}, {"packed": "%"}, {"packed": 1}]
)
def test_what_is_no_record_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a record"):
        stored_record(LineKind.ENTRY, body)


@given(
    st.builds(
        Archive,
        st.sampled_from(ArchivePhase),
        TEXTS,
        st.integers(0, 2**62),
        TEXTS,
        *[st.integers(0, 2**62)] * 5,
        TEXTS,
        st.integers(0, 2**62),
    )
)
def test_what_stands_for_a_task_is_read_as_it_was_written(archive: Archive) -> None:
    assert decode_archive(b"j/t/", encode_archive(archive)) == archive


def test_what_does_not_stand_for_a_task_is_told_apart() -> None:
    for raw in (b"\xff", b"", pb.TaskArchiveRecord(phase=9).SerializeToString()):
        with pytest.raises(StoreCorrupt):
            decode_archive(b"j/t/", raw)
