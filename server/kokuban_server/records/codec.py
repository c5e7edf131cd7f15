"""Domain values to stored messages and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from kokuban.store.v1 import records_pb2 as pb
from kokuban_server.core.entry import Act, EntryRecord, EntryState, Form, OperationAnswer, Value
from kokuban_server.core.refusals import StoreCorrupt
from kokuban_server.core.rescreening import Progress
from kokuban_server.core.trust import OWN_WORD, Label
from kokuban_server.records.task_codec import encode_event, read_event
from kokuban_server.records.trust_codec import encode_label, read_label

if TYPE_CHECKING:
    from kokuban_server.core.tasks import TaskEvent

_STORED_STATES = {
    EntryState.LIVE: pb.ENTRY_STATE_LIVE,
    EntryState.DELETED: pb.ENTRY_STATE_DELETED,
    EntryState.EXPIRED: pb.ENTRY_STATE_EXPIRED,
}
_STATES = {stored: state for state, stored in _STORED_STATES.items()}


def _encode_act(act: Act) -> pb.ActRecord:
    agent, request_id, reason, traceparent, retry_of, unconditional, session = act
    return pb.ActRecord(
        agent=agent,
        request_id=request_id,
        reason=reason,
        traceparent=traceparent,
        retry_of=retry_of,
        unconditional=unconditional,
        session=session,
    )


def encode_entry(record: EntryRecord) -> bytes:
    """Give the stored form of an entry's state."""
    message = pb.EntryRecord(
        state=_STORED_STATES[record.state],
        sequence=record.sequence,
        create_revision=record.create_revision,
        previous_revision=record.previous_revision,
        create_time_ms=record.create_time_ms,
        update_time_ms=record.update_time_ms,
        expire_time_ms=record.expire_time_ms,
        sweep_time_ms=record.sweep_time_ms,
        metadata=record.metadata,
        acts=[_encode_act(act) for act in record.acts],
        event=None if record.event is None else encode_event(record.event),
        written_revision=record.written_revision,
    )
    value = record.value
    if value is not None:
        form, data, media_type = value
        if form is Form.TEXT:
            message.text = data  # type: ignore[assignment]
        elif form is Form.JSON:
            message.json = data  # type: ignore[assignment]
        else:
            message.binary = data  # type: ignore[assignment]
            message.media_type = media_type
    if record.label is not OWN_WORD:
        message.label.CopyFrom(encode_label(record.label))
    return message.SerializeToString()


def decode_entry(key: bytes, raw: bytes) -> EntryRecord:
    """Read an entry's state; what cannot be read is a fault of the store, never an empty answer."""
    try:
        message = pb.EntryRecord.FromString(raw)
        state = _STATES[message.state]
    except (DecodeError, KeyError) as error:
        raise StoreCorrupt(key, f"not an entry record: {error}") from error
    value: Value | None = None
    form = message.WhichOneof("value")
    if form == "text":
        value = Value(Form.TEXT, message.text)
    elif form == "json":
        value = Value(Form.JSON, message.json)
    elif form == "binary":
        value = Value(Form.BINARY, message.binary, message.media_type)
    elif state is EntryState.LIVE:
        raise StoreCorrupt(key, "a live entry record without a value")
    return EntryRecord(
        state,
        message.sequence,
        message.create_revision,
        message.previous_revision,
        message.create_time_ms,
        message.update_time_ms,
        message.expire_time_ms,
        message.sweep_time_ms,
        value,
        dict(message.metadata),
        tuple([_act(act) for act in message.acts]),
        _label(key, message.label) if message.HasField("label") else OWN_WORD,
        _event(key, message.event) if message.HasField("event") else None,
        message.written_revision,
    )


def _act(message: pb.ActRecord) -> Act:
    return Act(
        message.agent,
        message.request_id,
        message.reason,
        message.traceparent,
        message.retry_of,
        message.unconditional,
        message.session,
    )


def _label(key: bytes, message: pb.LabelRecord) -> Label:
    try:
        return read_label(message)
    except ValueError as error:
        raise StoreCorrupt(key, f"not a label: {error}") from error


def _event(key: bytes, message: pb.TaskEventRecord) -> TaskEvent:
    try:
        return read_event(message)
    except ValueError as error:
        raise StoreCorrupt(key, f"not an event of a task: {error}") from error


def encode_operation(answer: OperationAnswer) -> bytes:
    """Give the stored form of an operation record."""
    return pb.OperationRecord(
        digest=answer.digest,
        commit_time_ms=answer.commit_time_ms,
        sequences=answer.sequences,
        quarantine_id=answer.quarantine_id,
        event_numbers=answer.event_numbers,
    ).SerializeToString()


def decode_operation(key: bytes, raw: bytes) -> OperationAnswer:
    """Read an operation record."""
    try:
        message = pb.OperationRecord.FromString(raw)
    except DecodeError as error:
        raise StoreCorrupt(key, f"not an operation record: {error}") from error
    return OperationAnswer(
        message.digest,
        message.commit_time_ms,
        tuple(message.sequences),
        message.quarantine_id,
        tuple(message.event_numbers),
    )


def encode_owner(server_id: str) -> bytes:
    """Give the stored form of a background work's owner."""
    return pb.OwnerRecord(server_id=server_id).SerializeToString()


def encode_mark(time_ms: int, revision: int) -> bytes:
    """Give the stored form of a compaction mark."""
    return pb.CompactionMark(time_ms=time_ms, revision=revision).SerializeToString()


def decode_mark(key: bytes, raw: bytes) -> tuple[int, int]:
    """Read a compaction mark: its time in milliseconds and its revision."""
    try:
        message = pb.CompactionMark.FromString(raw)
    except DecodeError as error:
        raise StoreCorrupt(key, f"not a compaction mark: {error}") from error
    return message.time_ms, message.revision


def encode_progress(progress: Progress) -> bytes:
    """Give the stored form of how far a rule set has come."""
    return pb.RescreeningRecord(**progress._asdict()).SerializeToString()


def decode_progress(key: bytes, raw: bytes) -> Progress:
    """Read how far a rule set has come."""
    try:
        message = pb.RescreeningRecord.FromString(raw)
    except DecodeError as error:
        raise StoreCorrupt(key, f"not how far a rule set has come: {error}") from error
    return Progress(*(getattr(message, name) for name in Progress._fields))


def encode_board_size(size_bytes: int, revision: int) -> bytes:
    """Give the stored form of what a board takes."""
    return pb.BoardSizeRecord(size_bytes=size_bytes, revision=revision).SerializeToString()


def decode_board_size(key: bytes, raw: bytes) -> tuple[int, int]:
    """Read what a board took when it was last counted: its bytes, and the revision at which the count began."""
    try:
        message = pb.BoardSizeRecord.FromString(raw)
    except DecodeError as error:
        raise StoreCorrupt(key, f"not a board's size: {error}") from error
    return message.size_bytes, message.revision
