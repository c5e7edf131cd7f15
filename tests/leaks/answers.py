"""Answers as they arrive, whole: what must not be in them, and when two of them say the same."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from kokuban.v1 import commit_pb2, entry_pb2, error_reason_pb2, lock_pb2, lock_service_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MARK = re.compile(rb"mk[0-9a-f]{12}km")
ID = re.compile(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
REQUEST_ID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAYBE_TOKEN = re.compile(rb"[A-Za-z0-9_-]{12,}={0,2}")
_VOLATILE = re.compile("token|epoch|revision|number|.*_time|.*_time_ms|since_ms|.*_revision|.*_age")
"""Facts that move by themselves, or with everybody's writes: that they are there is compared, not what they say."""
_DETAILS: tuple[type[Message], ...] = (
    error_details_pb2.ErrorInfo,
    error_details_pb2.BadRequest,
    error_details_pb2.RetryInfo,
    lock_pb2.DeadlockCycle,
)


@dataclass
class Answer:
    """Everything that a call gave: messages, status, and metadata of both ends."""

    code: str = "OK"
    text: str = ""
    messages: list[Message] = field(default_factory=list)
    initial: list[tuple[str, str | bytes]] = field(default_factory=list)
    trailing: list[tuple[str, str | bytes]] = field(default_factory=list)

    @property
    def is_queued(self) -> bool:
        """Say whether the last message was that a request for a lock waits."""
        last = self.messages[-1] if self.messages else None
        return isinstance(last, lock_service_pb2.AcquireLockResponse) and last.HasField("queued")

    @property
    def raw(self) -> bytes:
        """All of it as bytes, with what its opaque tokens are made of."""
        parts = [message.SerializeToString() for message in self.messages]
        parts += [value if isinstance(value, bytes) else value.encode() for _, value in self.initial + self.trailing]
        whole = b"\n".join([self.text.encode(), *parts])
        return b"\n".join([whole, *_decoded(whole)])

    @property
    def status(self) -> status_pb2.Status:
        for name, value in self.trailing:
            if name == "grpc-status-details-bin":
                return status_pb2.Status.FromString(value if isinstance(value, bytes) else value.encode())
        return status_pb2.Status()

    @property
    def reason(self) -> str:
        for message in self.messages:
            if isinstance(message, commit_pb2.CommitStreamResponse) and message.HasField("refused"):
                return str(error_reason_pb2.ErrorReason.Name(message.refused.reason)).removeprefix("ERROR_REASON_")
        for detail in self.status.details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                return str(info.reason)
        return ""

    def said(self, names: Mapping[str, str]) -> object:
        """Give what it says when the names that its request named are taken out of it, and what moves by itself."""
        status = self.status
        details = [_unpacked(detail) for detail in status.details]
        return (
            self.code,
            _plain(self.text, names),
            _plain(status.message, names),
            [(type(detail).__name__, _plain(json_format.MessageToDict(detail), names)) for detail in details],
            [_plain(_as_dict(message), names) for message in self.messages],
            sorted(name for name, _ in self.initial),
            sorted((name, value) for name, value in self.trailing if name != "grpc-status-details-bin"),
        )

    def named(self) -> Iterator[tuple[str, str]]:
        """Give every entry and lock target that it names, as region and path."""
        for message in self._within():
            if isinstance(message, entry_pb2.EntryKey | lock_pb2.LockTarget):
                yield message.region, message.path

    def writers(self) -> Iterator[tuple[str, str]]:
        """Give the region of every state that it shows, with each agent that wrote it."""
        for message in self._within():
            if isinstance(message, entry_pb2.Entry) and message.author:
                yield message.key.region, message.author
            elif isinstance(message, entry_pb2.EntryChange):
                yield from ((message.entry.key.region, act.agent) for act in message.acts)

    def _within(self) -> Iterator[Message]:
        for message in (*self.messages, *map(_unpacked, self.status.details)):
            yield from _walk(message)


def _decoded(whole: bytes) -> Iterator[bytes]:
    for found in _MAYBE_TOKEN.findall(whole):
        stripped = found.rstrip(b"=")
        # The length that stands before a text in a message may look like its first letter.
        for text in (stripped, stripped[1:]):
            try:
                yield base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
            except (binascii.Error, ValueError):
                continue


def _unpacked(detail: Any) -> Message:  # noqa: ANN401 - google.protobuf.Any
    for kind in _DETAILS:
        found = kind()
        if detail.Unpack(found):
            return found
    raise AssertionError(f"a detail of another kind: {detail.type_url}")


def _as_dict(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _plain(said: Any, names: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
    if isinstance(said, dict):
        return {
            name: f"<{name}>" if _VOLATILE.fullmatch(name) and value else _plain(value, names)
            for name, value in said.items()
        }
    if isinstance(said, list):
        return [_plain(one, names) for one in said]
    if isinstance(said, str):
        for name in sorted(names, key=len, reverse=True):
            said = said.replace(name, names[name])
    return said


def _walk(message: Message) -> Iterator[Message]:
    """Give a message and all that are in it."""
    yield message
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        inner: Iterable[Message] = [value] if isinstance(value, Message) else value
        for one in inner:
            yield from _walk(one)
