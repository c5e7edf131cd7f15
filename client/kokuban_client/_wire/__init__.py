"""The one place where the generated stubs are touched: requests are built here, and answers turned into plain types."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from google.protobuf import duration_pb2, field_mask_pb2, timestamp_pb2

from kokuban.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    board_service_pb2,
    board_service_pb2_grpc,
    commit_pb2,
    conflict_service_pb2,
    entry_pb2,
    error_reason_pb2,
    lock_pb2,
    lock_service_pb2,
    session_service_pb2,
    task_service_pb2,
    trust_pb2,
    trust_service_pb2,
)
from kokuban_client import types
from kokuban_client._wire import labels
from kokuban_client.errors import Deadlock, KokubanError, error_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import grpc
    from google.protobuf.message import Message

Mutation: TypeAlias = commit_pb2.Mutation
EntryPrecondition: TypeAlias = commit_pb2.EntryPrecondition
CommitRequest: TypeAlias = commit_pb2.CommitRequest
CommitResponse: TypeAlias = commit_pb2.CommitResponse
GetEntryResponse: TypeAlias = board_service_pb2.GetEntryResponse
ListEntriesResponse: TypeAlias = board_service_pb2.ListEntriesResponse
ReadConsistency: TypeAlias = entry_pb2.ReadConsistency
Provenance: TypeAlias = entry_pb2.Provenance
WatchRequest: TypeAlias = board_service_pb2.WatchRequest
WatchResponse: TypeAlias = board_service_pb2.WatchResponse

BoardServiceStub = board_service_pb2_grpc.BoardServiceStub
AdminServiceStub = admin_service_pb2_grpc.AdminServiceStub

REASONS: tuple[str, ...] = tuple(
    name.removeprefix("ERROR_REASON_") for name, number in error_reason_pb2.ErrorReason.items() if number
)
"""Every reason that the API documents."""

_METHODS = {
    method.input_type.full_name: f"{service.full_name}/{method.name}"
    for file in (
        board_service_pb2,
        admin_service_pb2,
        conflict_service_pb2,
        lock_service_pb2,
        session_service_pb2,
        task_service_pb2,
        trust_service_pb2,
    )
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}

_DOMAIN = "kokuban"
_DETAILS = "grpc-status-details-bin"
_CHANGE_TYPES = {
    entry_pb2.CHANGE_TYPE_PUT: types.ChangeType.PUT,
    entry_pb2.CHANGE_TYPE_DELETED: types.ChangeType.DELETED,
    entry_pb2.CHANGE_TYPE_EXPIRED: types.ChangeType.EXPIRED,
}


# Requests


def entry_key(region: str, path: str) -> entry_pb2.EntryKey:
    """Give the name of an entry."""
    return entry_pb2.EntryKey(region=region, path=path)


def precondition(
    *, at: types.Revision | None = None, must_not_exist: bool = False, unconditional: bool = False
) -> entry_pb2.Precondition:
    """Give what the writer believes; raises TypeError unless exactly one belief is given."""
    if (at is not None) + bool(must_not_exist) + bool(unconditional) != 1:
        raise TypeError("say what you believe: exactly one of at=…, must_not_exist=True, unconditional=True")
    if at is not None:
        if not isinstance(at, types.Revision):
            raise TypeError(f"at takes a Revision, for instance entry.revision, not {type(at).__name__}")
        return entry_pb2.Precondition(at=entry_pb2.Revision(number=at.number, epoch=at.epoch))
    if must_not_exist:
        return entry_pb2.Precondition(must_not_exist=True)
    return entry_pb2.Precondition(unconditional=True)


def value_message(content: types.PlainContent) -> entry_pb2.Value:
    """Give a value as it travels; raises ValueError for text that is not valid Unicode."""
    match content:
        case types.Text():
            return entry_pb2.Value(text=_unicode(content.text))
        case types.Json():
            return entry_pb2.Value(json=_unicode(content.raw))
        case types.Binary():
            return entry_pb2.Value(binary=entry_pb2.BinaryValue(data=content.data, media_type=content.media_type))


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("text is not valid Unicode: it holds half of a surrogate pair") from error
    return text


def put(
    region: str,
    path: str,
    value: object,
    *,
    at: types.Revision | None = None,
    must_not_exist: bool = False,
    unconditional: bool = False,
    metadata: Mapping[str, str] | None = None,
    ttl: float | timedelta | None = None,
    expire_time: datetime | None = None,
    mask: Sequence[str] | None = None,
    provenance: Provenance | None = None,
) -> Mutation:
    """Give a put; raises TypeError or ValueError for what the wire could not say.

    `value` may be `KEEP`. Without a mask the put changes what is given here and nothing else.
    """
    if ttl is not None and expire_time is not None:
        raise TypeError("give ttl or expire_time, not both")
    return commit_pb2.Mutation(
        put=commit_pb2.Put(
            key=entry_key(region, path),
            precondition=precondition(at=at, must_not_exist=must_not_exist, unconditional=unconditional),
            value=None if value is types.KEEP else value_message(types.content_of(value)),
            metadata=metadata,
            ttl=None if ttl is None else duration(ttl, "ttl"),
            expire_time=None if expire_time is None else _timestamp(expire_time),
            update_mask=None if mask is None else field_mask_pb2.FieldMask(paths=mask),
            provenance=provenance,
        )
    )


def duration(length: float | timedelta, name: str) -> duration_pb2.Duration:
    """Give a length of time; raises ValueError for one without end."""
    message = duration_pb2.Duration()
    if not isinstance(length, timedelta):
        if not math.isfinite(length):
            raise ValueError(f"{name} must be a finite number of seconds")
        # The wire takes whole milliseconds; a float's stray digits are not meant.
        length = timedelta(milliseconds=round(length * 1000))
    message.FromTimedelta(length)
    return message


def _timestamp(instant: datetime) -> timestamp_pb2.Timestamp:
    if instant.tzinfo is None:
        raise ValueError("a time needs a time zone, else nobody knows which instant is meant")
    message = timestamp_pb2.Timestamp()
    message.FromDatetime(instant.astimezone(UTC))
    return message


def delete(region: str, path: str, *, at: types.Revision | None = None, unconditional: bool = False) -> Mutation:
    """Give a delete."""
    return commit_pb2.Mutation(
        delete=commit_pb2.Delete(
            key=entry_key(region, path), precondition=precondition(at=at, unconditional=unconditional)
        )
    )


def increment(region: str, path: str, by: int) -> Mutation:
    """Give an increment."""
    return commit_pb2.Mutation(increment=commit_pb2.Increment(key=entry_key(region, path), by=by))


def append_to_list(region: str, path: str, items: Iterable[object], provenance: Provenance | None = None) -> Mutation:
    """Give an append to a list."""
    return commit_pb2.Mutation(
        append_to_list=commit_pb2.AppendToList(
            key=entry_key(region, path), items=_json_items(items), provenance=provenance
        )
    )


def add_to_set(region: str, path: str, items: Iterable[object], provenance: Provenance | None = None) -> Mutation:
    """Give an addition to a set."""
    return commit_pb2.Mutation(
        add_to_set=commit_pb2.AddToSet(key=entry_key(region, path), items=_json_items(items), provenance=provenance)
    )


def merge_patch(
    region: str, path: str, patch: object, at: types.Revision, provenance: Provenance | None = None
) -> Mutation:
    """Give a JSON merge patch."""
    return commit_pb2.Mutation(
        merge_patch=commit_pb2.MergePatch(
            key=entry_key(region, path), precondition=precondition(at=at), patch=_json(patch), provenance=provenance
        )
    )


def _json_items(items: Iterable[object]) -> list[str]:
    return [_json(item) for item in items]


def _json(value: object) -> str:
    return _unicode(value.raw if isinstance(value, types.Json) else types.json_text(value))


def requirement(
    region: str, path: str, *, at: types.Revision | None = None, must_not_exist: bool = False
) -> EntryPrecondition:
    """Give a belief about an entry that the commit need not write."""
    return commit_pb2.EntryPrecondition(
        key=entry_key(region, path), precondition=precondition(at=at, must_not_exist=must_not_exist)
    )


def commit_request(
    board: str,
    request_id: str,
    mutations: Sequence[Mutation],
    preconditions: Sequence[EntryPrecondition] = (),
    *,
    reason: str = "",
    retry_of: str = "",
    fences: Sequence[types.Fence] = (),
    session: str = "",
) -> CommitRequest:
    """Give a commit."""
    return commit_pb2.CommitRequest(
        board=board,
        request_id=request_id,
        mutations=mutations,
        preconditions=preconditions,
        reason=reason,
        retry_of=retry_of,
        fences=map(fence_message, fences),
        session=session,
    )


def fence_message(fence: types.Fence) -> lock_pb2.Fence:
    """Give the proof of a grant."""
    return lock_pb2.Fence(lock_id=fence.lock_id, revision=fence.revision, epoch=fence.epoch)


def release_lock(fence: types.Fence) -> Mutation:
    """Give the release of a lock as a part of a commit."""
    return commit_pb2.Mutation(release_lock=commit_pb2.ReleaseLock(fence=fence_message(fence)))


def consistency_message(consistency: types.Consistency, carried: str) -> entry_pb2.ReadConsistency:
    """Give how fresh a read must be; `carried` is the token of the client's own last write, or empty."""
    match consistency:
        case types.AtLeast():
            return entry_pb2.ReadConsistency(at_least=consistency.token)
        case types.Snapshot():
            return entry_pb2.ReadConsistency(snapshot=consistency.token)
        case types.Freshness.LOCAL:
            return entry_pb2.ReadConsistency(local=True)
        case types.Freshness.SESSION if carried:
            return entry_pb2.ReadConsistency(at_least=carried)
        # A session that has written nothing has nothing to see, but must not be shown less than a strong read.
        case types.Freshness.STRONG | types.Freshness.SESSION:
            return entry_pb2.ReadConsistency(strong=True)
    raise TypeError(f"not a consistency: {consistency!r}")


class Trusting(NamedTuple):
    """How much trust a reader wants, and in whose read scope it reads."""

    floor: types.Trust | None = None
    session: str = ""

    @property
    def level(self) -> trust_pb2.TrustLevel.ValueType:
        """The floor as it travels."""
        return trust_pb2.TRUST_LEVEL_UNSPECIFIED if self.floor is None else labels.trust_number(self.floor)


def get_request(
    board: str, region: str, path: str, consistency: entry_pb2.ReadConsistency, trusting: Trusting
) -> board_service_pb2.GetEntryRequest:
    """Give a read of one entry."""
    return board_service_pb2.GetEntryRequest(
        board=board,
        key=entry_key(region, path),
        consistency=consistency,
        floor=trusting.level,
        session=trusting.session,
    )


def batch_get_request(
    board: str,
    keys: Iterable[types.EntryKey | tuple[str, str]],
    consistency: entry_pb2.ReadConsistency,
    trusting: Trusting,
) -> board_service_pb2.BatchGetEntriesRequest:
    """Give a read of several entries."""
    named = ((key.region, key.path) if isinstance(key, types.EntryKey) else key for key in keys)
    return board_service_pb2.BatchGetEntriesRequest(
        board=board,
        keys=[entry_key(region, path) for region, path in named],
        consistency=consistency,
        floor=trusting.level,
        session=trusting.session,
    )


def list_request(
    board: str,
    region: str,
    path: str,
    *,
    page_size: int,
    page_token: str,
    consistency: entry_pb2.ReadConsistency,
    omit_values: bool,
    trusting: Trusting,
) -> board_service_pb2.ListEntriesRequest:
    """Give a read of one page of entries."""
    return board_service_pb2.ListEntriesRequest(
        board=board,
        region=region,
        path=path,
        page_size=page_size,
        page_token=page_token,
        consistency=consistency,
        omit_values=omit_values,
        floor=trusting.level,
        session=trusting.session,
    )


def revisions_request(
    board: str, region: str, path: str, *, page_size: int, page_token: str, trusting: Trusting
) -> board_service_pb2.ListRevisionsRequest:
    """Give a read of one page of an entry's history."""
    return board_service_pb2.ListRevisionsRequest(
        board=board,
        key=entry_key(region, path),
        page_size=page_size,
        page_token=page_token,
        floor=trusting.level,
        session=trusting.session,
    )


def watch_request(
    board: str, targets: Iterable[tuple[str, str]], start: types.WatchStart | str, *, omit_values: bool
) -> WatchRequest:
    """Give a watch that begins now, with a snapshot, or after a token."""
    request = board_service_pb2.WatchRequest(
        board=board,
        targets=[board_service_pb2.WatchTarget(region=region, path=path) for region, path in targets],
        omit_values=omit_values,
    )
    if start is types.NOW:
        request.now = True
    elif start is types.SNAPSHOT:
        request.snapshot = True
    elif isinstance(start, str):
        request.after = start
    else:
        raise TypeError(f"a watch starts at NOW, SNAPSHOT or after a token, not at {start!r}")
    return request


def status_request() -> admin_service_pb2.GetStatusRequest:
    """Give a question for the server's state."""
    return admin_service_pb2.GetStatusRequest()


def compact_request(before: str) -> admin_service_pb2.CompactRequest:
    """Give an order to forget history."""
    return admin_service_pb2.CompactRequest(before=before)


# Answers


def method_of(request: Message) -> str:
    """Give the method that a request is of, as `package.Service/Method`: each has a request of its own."""
    return _METHODS[request.DESCRIPTOR.full_name]


def time(message: timestamp_pb2.Timestamp) -> datetime:
    """Give an instant."""
    return message.ToDatetime(UTC)


def instant(given: datetime | None) -> timestamp_pb2.Timestamp | None:
    """Give an instant as it travels: in whole milliseconds. Raises ValueError for a time without a zone."""
    if given is None:
        return None
    if given.tzinfo is None:
        raise ValueError("a time needs a zone: it would mean another instant elsewhere")
    message = timestamp_pb2.Timestamp()
    message.FromMilliseconds(int(given.timestamp() * 1000))
    return message


def content(message: entry_pb2.Value) -> types.Content | None:
    """Give a value's content, or None if it has no form that this library knows."""
    if message.WhichOneof("form") == "external":
        return external_content(message.external)
    return _plain(message)


def external_content(message: entry_pb2.ExternalValue) -> types.External | None:
    """Give a value that came from outside, or None if it has no form that this library knows."""
    inner = _plain(message)
    return None if inner is None else labels.external(message, inner)


def _plain(message: entry_pb2.Value | entry_pb2.ExternalValue) -> types.PlainContent | None:
    match message.WhichOneof("form"):
        case "text":
            return types.Text(message.text)
        case "json":
            return types.Json(message.json)
        case "binary":
            return types.Binary(message.binary.data, message.binary.media_type)
        case _:
            return None


def revision(message: entry_pb2.Revision) -> types.Revision:
    """Give a revision."""
    return types.Revision(message.number, message.epoch)


def entry(message: entry_pb2.Entry, token: str = "") -> types.Entry:
    """Give an entry as it was read at a token."""
    return types.Entry(
        region=message.key.region,
        path=message.key.path,
        revision=revision(message.revision),
        create_revision=message.create_revision,
        sequence=message.sequence,
        content=content(message.value) if message.HasField("value") else None,
        create_time=time(message.create_time),
        update_time=time(message.update_time),
        expire_time=time(message.expire_time) if message.HasField("expire_time") else None,
        author=message.author,
        metadata=dict(message.metadata),
        token=token,
        label=labels.label(message.label) if message.HasField("label") else None,
        withheld=message.withheld,
    )


def change(message: entry_pb2.EntryChange) -> types.EntryChange:
    """Give one state in an entry's history."""
    return types.EntryChange(
        type=_CHANGE_TYPES.get(message.type, types.ChangeType.UNKNOWN),
        entry=entry(message.entry),
        previous_revision=message.previous_revision,
        acts=tuple(
            types.Act(act.agent, act.request_id, act.reason, act.traceparent, act.unconditional) for act in message.acts
        ),
    )


def batch(message: board_service_pb2.BatchGetEntriesResponse) -> types.Batch:
    """Give the answer to a read of several entries."""
    return types.Batch(
        entries=tuple(entry(one, message.token) for one in message.entries),
        missing=tuple(types.EntryKey(key.region, key.path) for key in message.missing),
        token=message.token,
    )


def commit_result(message: CommitResponse, request_id: str) -> types.CommitResult:
    """Give the answer to a commit."""
    return types.CommitResult(
        token=message.token,
        revision=revision(message.revision),
        commit_time=time(message.commit_time),
        replayed=message.replayed,
        request_id=request_id,
        results=tuple(
            types.MutationResult(
                one.sequence, content(one.value) if one.HasField("value") else None, labels.trust_level(one.trust)
            )
            for one in message.results
        ),
        redactions=tuple(map(labels.redaction, message.redactions)),
        unsearched_fields=tuple(message.unsearched_fields),
    )


def written(result: types.CommitResult, region: str, path: str, sent: types.Content | None = None) -> types.Written:
    """Give the answer to a commit of one mutation, with the content that was sent or, failing that, computed."""
    only = result.results[0]
    masked = any(
        one.handling is not types.RedactionHandling.KEEP and one.field.startswith("mutations[0].put.value")
        for one in result.redactions
    )
    return types.Written(
        region=region,
        path=path,
        revision=result.revision,
        sequence=only.sequence,
        content=only.content if sent is None or masked else sent,
        commit_time=result.commit_time,
        replayed=result.replayed,
        request_id=result.request_id,
        token=result.token,
        trust=only.trust,
        redactions=result.redactions,
    )


def status(message: admin_service_pb2.GetStatusResponse) -> types.Status:
    """Give the server's state."""
    return types.Status(
        server_version=message.server_version,
        store_kind=message.store_kind,
        store_version=message.store_version,
        token=message.token,
        revision=types.Revision(message.revision, message.epoch),
        compacted_revision=message.compacted_revision,
        store_time=time(message.store_time) if message.HasField("store_time") else None,
        size_bytes=message.size_bytes,
        size_bytes_max=message.size_bytes_max,
        leader=message.leader,
        rescreening=_rescreening(message.rescreening) if message.HasField("rescreening") else None,
    )


def _rescreening(message: admin_service_pb2.Rescreening) -> types.Rescreening:
    return types.Rescreening(
        message.rule_set,
        time(message.begin_time),
        message.waiting_count,
        message.kept_count,
        message.lowered_count,
        message.withheld_count,
    )


# Refusals


def error_of(failure: grpc.RpcError) -> KokubanError:
    """Give the error that a failed call ended with: by its reason where it carries one of ours, else by its code."""
    code = failure.code().name
    message = failure.details() or ""
    # The hints of the two kinds of failed call, of threads and of event loops, disagree on what both are: pairs.
    pairs = cast("Iterable[tuple[str, bytes]]", failure.trailing_metadata() or ())
    for name, value in pairs:
        if name == _DETAILS:
            return _error_with_details(code, message, value)
    return error_for(code, message)


def _error_with_details(code: str, message: str, packed: bytes) -> KokubanError:
    # Imported when first needed: most runs of the command line never are refused anything.
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - see above
    from google.rpc import error_details_pb2, status_pb2  # noqa: PLC0415 - see above

    reason, facts, retry_after_s, cycle = "", dict[str, str](), None, None
    try:
        details = status_pb2.Status.FromString(packed).details
        for detail in details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo.FromString(detail.value)
                if info.domain == _DOMAIN:
                    reason, facts = info.reason, dict(info.metadata)
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
                retry_after_s = max(0.0, delay.seconds + delay.nanos / 1e9)
            elif detail.Is(lock_pb2.DeadlockCycle.DESCRIPTOR):
                cycle = lock_pb2.DeadlockCycle.FromString(detail.value)
    except DecodeError:
        # Somebody between us and the server spoiled the details. The status code still stands.
        return error_for(code, message)
    error = error_for(code, message, reason=reason, facts=facts, retry_after_s=retry_after_s)
    if cycle is not None and isinstance(error, Deadlock):
        from kokuban_client._wire.locks import wait_edge  # noqa: PLC0415 - most calls have nothing to do with locks

        error.cycle = tuple(map(wait_edge, cycle.edges))
    return error
