"""Archives of tasks: what stands for an archived one to its stored message and back, and records to what a line says of them.

A record is written down by its own message's description, so that fields and kinds of events that come later travel as well.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from kokuban.store.v1 import records_pb2 as pb
from kokuban_server.core.archives import Archive, ArchivePhase, LineKind
from kokuban_server.core.refusals import StoreCorrupt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

_MESSAGES: Final[Mapping[LineKind, type[Message]]] = {
    LineKind.TASK: pb.TaskRecord,
    LineKind.ACTION: pb.TaskActionRecord,
    LineKind.EVENT: pb.EntryRecord,
    LineKind.ENTRY: pb.EntryRecord,
}


def encode_archive(archive: Archive) -> bytes:
    """Give the stored form of what stands for an archived task."""
    return pb.TaskArchiveRecord(
        phase=archive.phase,
        digest=archive.digest,
        lines=archive.lines,
        agent=archive.agent,
        time_ms=archive.time_ms,
        removals=archive.removals,
        until_ms=archive.until_ms,
        removed=archive.removed,
        next_line=archive.next_line,
        next_digest=archive.next_digest,
        left_out=archive.left_out,
    ).SerializeToString()


def decode_archive(key: bytes, raw: bytes) -> Archive:
    """Read what stands for an archived task."""
    try:
        message = pb.TaskArchiveRecord.FromString(raw)
        phase = ArchivePhase(message.phase)
    except (DecodeError, ValueError) as error:
        raise StoreCorrupt(key, f"not an archived task: {error}") from error
    return Archive(
        phase,
        message.digest,
        message.lines,
        message.agent,
        message.time_ms,
        message.removals,
        message.until_ms,
        message.removed,
        message.next_line,
        message.next_digest,
        message.left_out,
    )


def spelled_record(kind: LineKind, key: bytes, raw: bytes) -> dict[str, Any]:
    """Give what a line says of a record. Raises `StoreCorrupt` for one with anything that would be lost."""
    try:
        message = _MESSAGES[kind].FromString(raw)
    except DecodeError as error:
        raise StoreCorrupt(key, f"not a record: {error}") from error
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if known.ByteSize() != message.ByteSize():
        raise StoreCorrupt(key, "written by a newer server, which knows more of it")
    return _spelled(message)


def packed_record(raw: bytes) -> str:
    """Give a record for a line that would be too long otherwise."""
    return base64.b64encode(raw).decode()


def stored_record(kind: LineKind, body: Mapping[str, Any]) -> bytes:
    """Give the record of which a line speaks. Raises `ValueError` for what is none."""
    try:
        if "packed" in body:
            return base64.b64decode(body["packed"], validate=True)
        message = json_format.ParseDict(body["record"], _MESSAGES[kind]())
    except (json_format.ParseError, binascii.Error, KeyError, TypeError) as error:
        raise ValueError(f"not a record: {error}") from error
    return message.SerializeToString()


def spelled_origins(key: bytes, raw: bytes, path: str, region: str) -> list[dict[str, Any]]:
    """Give what a line says of where an entry's states came from, as one commit's record has it."""
    try:
        message = pb.OriginRecord.FromString(raw)
    except DecodeError as error:
        raise StoreCorrupt(key, f"not a record of origins: {error}") from error
    kept = [state for state in message.states if (state.region, state.path) == (region, path)]
    return [
        _spelled(pb.OriginRecord(agent=message.agent, session=message.session, time_ms=message.time_ms, states=[state]))
        for state in kept
    ]


def stored_origin(body: dict[str, Any]) -> bytes:
    """Give a record of origins of which a line speaks. Raises `ValueError`."""
    try:
        return json_format.ParseDict(body, pb.OriginRecord()).SerializeToString()
    except (json_format.ParseError, TypeError) as error:
        raise ValueError(f"not a record of origins: {error}") from error


def _spelled(message: Message) -> dict[str, Any]:
    spelled: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return spelled
