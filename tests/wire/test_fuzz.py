"""Random messages and broken bytes to every method: an answer or a refusal with its reason, and the server lives on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from hypothesis import given, settings
from hypothesis import strategies as st

from kokuban.v1.session_service_pb2 import CloseSessionRequest, OpenSessionRequest
from kokuban.v1.session_service_pb2_grpc import SessionServiceStub
from kokuban_server.app.page_tokens import read_page_token
from kokuban_server.core import json_values
from kokuban_server.core.names import parse_board, parse_path, parse_region
from kokuban_server.core.refusals import InvalidRequest, Refusal
from kokuban_server.core.revision import revision_of
from tests.wire.calls import new_id, refusal_of_metadata
from tests.wire.test_bad_input import FULL

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tests.wire.conftest import ServerProcess

NAMES = ["", "main", "shared:plan", "agent:writer-1", "agent:other", "tenant", "global", "task:1", "a", "a/b", "a/b/c"]
ODD = ["..", "x" * 1025, "\x00", "e\u0301", "value", "metadata.k", "*", "expire_time", "image/png", "0123456789abcdef"]
JSONS = ["{}", "[]", "1", "-0", "1e400", "9" * 30, '{"a":{"b":null}}', '["x"]', "[[[]]]", "null", '"\\ud800"', "NaN"]
LONG = ["1e" + "9" * 5000, "[" * 5000, "[1e" + "9" * 4500 + "]", "SwEjRWeJq83vAAAAAAAAAAH_"]
TEXTS = st.one_of(
    st.sampled_from(NAMES + ODD + JSONS + LONG),
    st.text(max_size=20),
    st.builds(lambda: new_id(time.time_ns() // 1_000_000)),
)
NUMBERS = {
    FieldDescriptor.TYPE_INT32: st.one_of(
        st.sampled_from([0, 1, -1, 1000, 1001, 2**31 - 1, -(2**31)]), st.integers(-(2**31), 2**31 - 1)
    ),
    FieldDescriptor.TYPE_INT64: st.one_of(
        st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1)
    ),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_ENUM: st.sampled_from([0, 1, 2, 3, 100, -1]),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=30),
    FieldDescriptor.TYPE_STRING: TEXTS,
}


def fill(draw: st.DrawFn, message: Any, depth: int = 0) -> None:  # noqa: ANN401 - any message, or any field of one
    """Change some of a message's fields at random."""
    for field in message.DESCRIPTOR.fields:
        how = draw(st.integers(0, 9))
        if how > 3 + depth or (field.name == "board" and how):
            continue
        if how == 0:
            message.ClearField(field.name)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name).update(
                draw(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
            )
        elif field.is_repeated and field.message_type is not None:
            for _ in range(draw(st.integers(0, 2))):
                fill(draw, getattr(message, field.name).add(), depth + 1)
            for item in getattr(message, field.name):
                fill(draw, item, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(NUMBERS[field.type], max_size=3)))
        elif field.message_type is not None:
            fill(draw, getattr(message, field.name), depth + 1)
        else:
            setattr(message, field.name, draw(NUMBERS[field.type]))


@st.composite
def requests(draw: st.DrawFn, method: str, session: str, epoch: str) -> bytes:
    """Give a request that is nearly right, sometimes with some of its bytes changed."""
    message: Message = FULL[method]()
    inner: Any = message.commit if method.endswith("CommitStream") else message  # type: ignore[attr-defined]  # that one's field
    if hasattr(inner, "request_id"):
        inner.request_id = new_id(time.time_ns() // 1_000_000)
    if hasattr(inner, "mutations"):
        del inner.mutations[draw(st.integers(0, 8)) :]
    if hasattr(inner, "session_id") and draw(st.integers(0, 3)):
        inner.session_id = session
    if hasattr(inner, "fence") and draw(st.booleans()):
        inner.fence.epoch = epoch
    for name in ("consistency", "page_token", "preconditions", "fences", "entries", "wait"):
        if hasattr(inner, name) and draw(st.booleans()):
            inner.ClearField(name)
    fill(draw, message)
    raw = bytearray(message.SerializeToString())
    if draw(st.integers(0, 2)) == 0:
        for _ in range(draw(st.integers(1, 4))):
            place = draw(st.integers(0, len(raw)))
            raw[place : place + draw(st.integers(0, 3))] = draw(st.binary(max_size=4))
    return bytes(raw)


def send(channel: Any, method: str, raw: bytes) -> None:  # noqa: ANN401 - bytes in, bytes out: no type of the stubs fits
    """Send one request over a channel; fail if the answer is one of those that a fault gives."""
    more = {"metadata": (("kokuban-agent", "writer-1"),), "timeout": 20}
    try:
        if method.endswith(("/CommitStream", "/KeepAlive")):
            list(channel.stream_stream(method)(iter([raw]), **more))
        elif method.endswith(("/Watch", "/WatchConflicts", "/AcquireLock", "/WaitForTask")):
            call = channel.unary_stream(method)(raw, **more)
            next(call)
            call.cancel()
        else:
            channel.unary_unary(method)(raw, **more)
    except grpc.RpcError as error:
        code, reason = error.code(), refusal_of_metadata(error.trailing_metadata())
        if reason == "LOCK_WAIT_EXPIRED":  # an answer to what is well-formed
            return
        assert code not in {
            grpc.StatusCode.UNKNOWN,
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DATA_LOSS,
        }, (reason, raw)
        assert reason, (code, raw)


def check_method(process: ServerProcess, method: str, examples: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{process.port()}") as channel:
        sessions = SessionServiceStub(channel)
        who = (("kokuban-agent", "writer-1"),)
        opening = OpenSessionRequest(
            board="main", request_id=new_id(time.time_ns() // 1_000_000), ttl=Duration(seconds=3_600)
        )
        opened = sessions.OpenSession(opening, metadata=who)

        @settings(max_examples=examples)
        @given(requests(method, opened.session.id, opened.epoch))
        def property_of_the_method(raw: bytes) -> None:
            send(channel, method, raw)

        property_of_the_method()
        ending = CloseSessionRequest(board="main", session_id=opened.session.id)
        sessions.CloseSession(ending, metadata=who)  # with all the locks that it got
    assert process.lives()
    assert "rpc.fault" not in process.log.read_text(encoding="utf-8")


@pytest.mark.parametrize("method", FULL)
def test_no_message_makes_a_fault(shared_process: ServerProcess, method: str) -> None:
    check_method(shared_process, method, 150 if method.endswith(("Commit", "CommitStream")) else 60)


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", FULL)
def test_no_message_makes_a_fault_however_many(shared_process: ServerProcess, method: str) -> None:
    check_method(shared_process, method, 5_000)


@given(st.one_of(TEXTS, st.text(), st.text('[]{}",:0123456789eE+-.\\u tfn', max_size=40)))
def test_a_text_is_JSON_or_is_refused_and_what_is_dumped_means_the_same(text: str) -> None:
    try:
        value = json_values.parse(text)
    except (json_values.NotJsonError, json_values.TooDeepError):
        return
    again = json_values.parse(json_values.dump(value))
    assert again == value
    try:
        assert json_values.identity(again) == json_values.identity(value)
    except json_values.NotJsonError:
        assert "e" in text.lower()


@given(st.one_of(TEXTS, st.text()))
def test_names_and_tokens_are_read_or_refused(text: str) -> None:
    for parse in (parse_board, parse_path, parse_region):
        try:
            assert str(parse(text)) == text
        except InvalidRequest as refusal:
            assert refusal.reason
    for read in (lambda: revision_of(text, "0" * 16, "after"), lambda: read_page_token(text, b"listing", b"h/")):
        try:
            read()
        except Refusal as refusal:
            assert refusal.reason
