"""Requests to domain values: the only parser. What is malformed is refused here, with its field named, and goes no further."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kokuban.v1 import commit_pb2
from kokuban_server.app.commits import CommitRequest
from kokuban_server.app.endorsements import EndorseRequest
from kokuban_server.app.lineage import NO_ORIGINS, Origins
from kokuban_server.app.lock_guards import FenceGiven
from kokuban_server.app.reads import UNSAID, AskAtLeast, AskLocal, AskSnapshot, AskStrong, Freshness, Trusting
from kokuban_server.app.watches import StartAfter, StartNow, StartSnapshot, WatchStart
from kokuban_server.core import json_values, limits
from kokuban_server.core.commit import (
    AddToSet,
    AppendToList,
    At,
    Delete,
    ExpireAt,
    Expiry,
    Increment,
    MergePatch,
    MetadataChange,
    MustNotExist,
    Mutation,
    Never,
    Precondition,
    Provenance,
    Put,
    RecordEvent,
    TimeToLive,
    Unconditional,
)
from kokuban_server.core.names import EntryKey, Region, RegionKind, parse_board, parse_path, parse_region
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.revision import is_epoch
from kokuban_server.core.tasks import is_reserved
from kokuban_server.core.trust import UNDECLARED, Source, SourceKind
from kokuban_server.wire import decode_tasks
from kokuban_server.wire.fields import (
    NANOS_PER_MS,
    entry_key,
    fence_given,
    fences_given,
    page_size,
    page_token,
    parse_message,
    request_id,
    retry_given,
    session_given,
    time_ms,
    too_many,
    trust_level,
    words,
)
from kokuban_server.wire.values import parse_json
from kokuban_server.wire.values import value as parse_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.field_mask_pb2 import FieldMask
    from google.protobuf.timestamp_pb2 import Timestamp

    from kokuban.v1 import admin_service_pb2 as admin_pb
    from kokuban.v1 import board_service_pb2 as board_pb
    from kokuban.v1 import entry_pb2, lock_pb2, task_service_pb2, trust_pb2, trust_service_pb2
    from kokuban_server.core.entry import Value

# Names of fields are given from where a function stands, and completed further up only when something is refused.


def commit_request(
    message: commit_pb2.CommitRequest, digest: Callable[[bytes], bytes], traceparent: str
) -> CommitRequest:
    """Give the commit that a message asks for."""
    board = parse_board(message.board)
    id_time_ms = request_id(message.request_id)
    retry_of = retry_given(message.retry_of)
    reason = message.reason
    if len(reason) > limits.REASON_BYTES_MAX or len(reason.encode()) > limits.REASON_BYTES_MAX:
        raise InvalidRequest("FIELD_INVALID", "reason", f"at most {limits.REASON_BYTES_MAX} bytes")
    count = len(message.mutations)
    if not count:
        raise InvalidRequest("FIELD_REQUIRED", "mutations", "a commit has at least one mutation")
    if count > limits.MUTATIONS_MAX:
        raise too_many("mutations", limits.MUTATIONS_MAX, count)
    mutations: list[tuple[EntryKey, Mutation, int]] = []
    releases: list[tuple[int, str]] = []
    provenance: dict[int, Provenance] = {}
    fences = fences_given(message.fences, "fences") if message.fences else []
    for index, item in enumerate(message.mutations):
        if item.WhichOneof("kind") == "release_lock":
            releases.append((index, _release(item.release_lock.fence, index, fences, releases)))
        else:
            key, mutation, claimed = _mutation(item, index)
            mutations.append((key, mutation, index))
            if claimed is not None:
                provenance[index] = claimed
    if count > 1:
        _distinct(mutations, message.mutations)
    size = _size(message)
    if size > limits.COMMIT_BYTES_MAX:
        raise InvalidRequest(
            "COMMIT_TOO_LARGE",
            "mutations",
            f"values, items, patches and metadata together are at most {limits.COMMIT_BYTES_MAX} bytes",
            {"limit": str(limits.COMMIT_BYTES_MAX), "actual": str(size)},
        )
    raw = message.SerializeToString(deterministic=True)
    return CommitRequest(
        board,
        message.request_id,
        id_time_ms,
        digest(raw),
        _beliefs(message.preconditions) if message.preconditions else (),
        tuple(mutations),
        reason,
        retry_of,
        traceparent,
        tuple(fences),
        tuple(releases),
        Origins(provenance, session_given(message.session)) if provenance or message.session else NO_ORIGINS,
        raw=raw,
    )


def decode_again(digest: Callable[[bytes], bytes], raw: bytes) -> CommitRequest:
    """Give a commit that was kept as it had been sent."""
    return commit_request(parse_message(commit_pb2.CommitRequest, raw), digest, "")


def _release(message: lock_pb2.Fence, index: int, fences: list[FenceGiven], releases: Sequence[tuple[int, str]]) -> str:
    """Give the lock that a mutation releases; its fence joins those of the commit."""
    field = f"mutations[{index}].release_lock.fence"
    fence = fence_given(message, field)
    if any(lock_id == fence.lock_id for _, lock_id in releases):
        raise InvalidRequest("DUPLICATE_KEY", field, "a commit releases each lock by at most one mutation")
    if fence not in [given.fence for given in fences]:
        fences.append(FenceGiven(field, fence))
    return fence.lock_id


def _distinct(mutations: Sequence[tuple[EntryKey, Mutation, int]], messages: Sequence[commit_pb2.Mutation]) -> None:
    seen: set[EntryKey] = set()
    for key, mutation, index in mutations:
        if isinstance(mutation, RecordEvent):  # each becomes an entry of its own
            continue
        if key in seen:
            field = f"mutations[{index}].{messages[index].WhichOneof('kind')}.key"
            raise InvalidRequest("DUPLICATE_KEY", field, "a commit changes each entry by at most one mutation")
        seen.add(key)


def _size(message: commit_pb2.CommitRequest) -> int:
    """Give what counts against a commit's size: the bytes of its values, items, patches and metadata."""
    if message.ByteSize() <= limits.COMMIT_BYTES_MAX:  # what counts is a part of this, so need not be added up
        return 0
    total = 0
    for mutation in message.mutations:
        kind = mutation.WhichOneof("kind")
        if kind == "put":
            put = mutation.put
            value = put.value
            texts = [value.text, value.json, *put.metadata.keys(), *put.metadata.values()]
            total += len(value.binary.data)
        elif kind == "append_to_list":
            texts = list(mutation.append_to_list.items)
        elif kind == "add_to_set":
            texts = list(mutation.add_to_set.items)
        elif kind in decode_tasks.KINDS:
            data = decode_tasks.data_of(kind, getattr(mutation, kind))
            texts = [data.text, data.json]
            total += len(data.binary.data)
        else:  # a delete, an increment or a release has none
            texts = [mutation.merge_patch.patch]
        total += sum(len(text.encode()) for text in texts)
    return total


def _beliefs(messages: Sequence[commit_pb2.EntryPrecondition]) -> tuple[tuple[EntryKey, MustNotExist | At], ...]:
    if len(messages) > limits.PRECONDITIONS_MAX:
        raise too_many("preconditions", limits.PRECONDITIONS_MAX, len(messages))
    beliefs: dict[EntryKey, MustNotExist | At] = {}
    for index, message in enumerate(messages):
        field = f"preconditions[{index}]"
        key = entry_key(message.key, f"{field}.key")
        if key in beliefs:
            raise InvalidRequest("DUPLICATE_KEY", f"{field}.key", "each entry is named at most once")
        precondition = _precondition(message.precondition, f"{field}.precondition")
        if isinstance(precondition, Unconditional):
            raise InvalidRequest("PRECONDITION_INVALID", f"{field}.precondition.unconditional", "says nothing here")
        beliefs[key] = precondition
    return tuple(beliefs.items())


def _precondition(message: entry_pb2.Precondition, field: str) -> Precondition:
    kind = message.WhichOneof("condition")
    if kind == "at":
        return revision_at(message.at, f"{field}.at")
    if kind is None:
        raise InvalidRequest(
            "PRECONDITION_REQUIRED", field, "say must_not_exist, at or unconditional; there is no default"
        )
    if not getattr(message, kind):
        raise InvalidRequest("PRECONDITION_INVALID", f"{field}.{kind}", "may only be true")
    return MustNotExist() if kind == "must_not_exist" else Unconditional()


def _mutation(message: commit_pb2.Mutation, index: int) -> tuple[EntryKey, Mutation, Provenance | None]:
    kind = message.WhichOneof("kind")
    if kind is None:
        raise InvalidRequest(
            "FIELD_REQUIRED", f"mutations[{index}].kind", "a mutation of a kind that this server knows"
        )
    body = getattr(message, kind)
    try:
        if kind in decode_tasks.KINDS:
            of = decode_tasks.provenance_of(kind, body)
            return *decode_tasks.event(kind, body), None if of is None else _provenance(of)
        claimed = None
        if kind != "delete" and body.HasField("provenance"):
            claimed = _provenance(body.provenance)
        return _free_key(body.key, "key"), _MUTATIONS[kind](body), claimed
    except InvalidRequest as refusal:
        raise refusal.under(f"mutations[{index}].{kind}") from None


def _free_key(message: entry_pb2.EntryKey, field: str) -> EntryKey:
    """Give the entry that a key names, unless only mutations of tasks write it."""
    key = entry_key(message, field)
    if key.region.kind is RegionKind.TASK and is_reserved(key.path):
        raise InvalidRequest("TASK_PATH_RESERVED", field, "is written by the mutations of tasks only")
    return key


def _provenance(message: entry_pb2.Provenance) -> Provenance:
    declared = UNDECLARED
    if message.HasField("source"):
        declared = source(message.source, "provenance.source")
        if declared.kind is SourceKind.EXTERNAL and not declared.uri:
            raise InvalidRequest(
                "FIELD_REQUIRED", "provenance.source.uri", "what is external could not be traced to it"
            )
    if len(message.derived_from) > limits.DERIVED_FROM_ENTRIES_MAX:
        raise too_many("provenance.derived_from", limits.DERIVED_FROM_ENTRIES_MAX, len(message.derived_from))
    parents: dict[tuple[EntryKey, At], None] = {}
    for index, item in enumerate(message.derived_from):
        field = f"provenance.derived_from[{index}]"
        parent = _entry_at(item, field)
        if parent in parents:
            raise InvalidRequest("DUPLICATE_KEY", field, "each state is named at most once")
        parents[parent] = None
    return Provenance(declared, tuple(parents))


def source(message: trust_pb2.DeclaredSource, field: str) -> Source:
    """Give what is said of where something comes from."""
    kind = _SOURCE_KINDS.get(message.kind)
    if kind is None:
        raise InvalidRequest("FIELD_INVALID", f"{field}.kind", "AGENT, USER, TOOL or EXTERNAL")
    uri = words(message.uri, f"{field}.uri", limits.SOURCE_URI_BYTES_MAX, required=False)
    name = words(message.name, f"{field}.name", limits.SOURCE_NAME_BYTES_MAX, required=False)
    if name and kind not in {SourceKind.USER, SourceKind.TOOL}:
        raise InvalidRequest("FIELD_INVALID", f"{field}.name", "of users and tools only")
    digest = message.content_sha256
    if digest and not SHA256.fullmatch(digest):
        raise InvalidRequest("FIELD_INVALID", f"{field}.content_sha256", "64 lower-case hexadecimal digits")
    fetch_time_ms = time_ms(message.fetch_time, f"{field}.fetch_time")
    if message.HasField("fetch_time") and not fetch_time_ms:
        raise InvalidRequest("FIELD_INVALID", f"{field}.fetch_time", "whole milliseconds after 1970")
    return Source(kind, uri, name, bytes.fromhex(digest), fetch_time_ms)


_SOURCE_KINDS = {kind.value: kind for kind in SourceKind if kind is not SourceKind.UNDECLARED}
SHA256 = re.compile(r"[0-9a-f]{64}")


def _entry_at(message: entry_pb2.EntryAt, field: str) -> tuple[EntryKey, At]:
    """Give an entry and the state in which it is meant."""
    key = entry_key(message.key, f"{field}.key")
    return key, revision_at(message.at, f"{field}.at")


def revision_at(message: entry_pb2.Revision, field: str) -> At:
    """Give the state that a revision names."""
    if message.number <= 0:
        raise InvalidRequest("PRECONDITION_INVALID", f"{field}.number", "a revision's number is above 0")
    if not is_epoch(message.epoch):
        raise InvalidRequest("TOKEN_INVALID", f"{field}.epoch", "16 lower-case hexadecimal digits")
    return At(message.number, message.epoch)


def _put(message: commit_pb2.Put) -> Put:
    precondition = _precondition(message.precondition, "precondition")
    value = parse_value(message.value, "value") if message.HasField("value") else None
    metadata = _metadata(message.metadata, "metadata") if message.metadata else {}
    expiry = _expiry(message)
    if message.HasField("update_mask"):
        return _masked(message.update_mask, precondition, value, metadata, expiry, "update_mask")
    change = MetadataChange(replace=True, set=metadata) if metadata else None
    return Put(precondition, value, change, expiry)


def _masked(
    mask: FieldMask,
    precondition: Precondition,
    value: Value | None,
    metadata: dict[str, str],
    expiry: Expiry | None,
    field: str,
) -> Put:
    """Give the put that changes just what its mask names."""
    paths = set(mask.paths)
    if not paths:
        raise InvalidRequest("MASK_INVALID", field, "a mask names at least one field")
    if "*" in paths:
        if len(paths) > 1:
            raise InvalidRequest("MASK_INVALID", field, "`*` stands alone")
        paths = {"value", "metadata", "expire_time"}
    names = {path.removeprefix("metadata.") for path in paths if path.startswith("metadata.")}
    unknown = [
        path for path in paths if path not in {"value", "metadata", "expire_time"} and not path.startswith("metadata.")
    ]
    if unknown or "" in names:
        raise InvalidRequest("MASK_INVALID", field, "names value, metadata, metadata.KEY, expire_time or *")
    if "value" in paths and value is None:
        raise InvalidRequest("VALUE_REQUIRED", field, "the mask names the value, which is not given")
    change = None
    if "metadata" in paths:
        change = MetadataChange(replace=True, set=metadata)
    elif names:
        given = {name: metadata[name] for name in names if name in metadata}
        change = MetadataChange(replace=False, set=given, remove=frozenset(names - given.keys()))
    return Put(
        precondition,
        value if "value" in paths else None,
        change,
        (expiry or Never()) if "expire_time" in paths else None,
    )


def _metadata(pairs: Mapping[str, str], field: str) -> dict[str, str]:
    if len(pairs) > limits.METADATA_PAIRS_MAX:
        raise InvalidRequest(
            "METADATA_INVALID", field, f"at most {limits.METADATA_PAIRS_MAX} pairs, these are {len(pairs)}"
        )
    for name, value in pairs.items():
        if not 0 < len(name.encode()) <= limits.METADATA_KEY_BYTES_MAX:
            raise InvalidRequest("METADATA_INVALID", field, f"a key has 1 to {limits.METADATA_KEY_BYTES_MAX} bytes")
        if len(value.encode()) > limits.METADATA_VALUE_BYTES_MAX:
            raise InvalidRequest(
                "METADATA_INVALID", field, f"a value has at most {limits.METADATA_VALUE_BYTES_MAX} bytes"
            )
    return dict(pairs)


def _expiry(message: commit_pb2.Put) -> Expiry | None:
    kind = message.WhichOneof("expiry")
    if kind is None:
        return None
    given: Timestamp | Duration = getattr(message, kind)
    if given.nanos % NANOS_PER_MS or not -999_999_999 <= given.nanos <= 999_999_999:  # noqa: PLR2004 - a second's nanoseconds
        raise InvalidRequest("EXPIRY_INVALID", kind, "whole milliseconds")
    time_ms = given.seconds * 1000 + given.nanos // NANOS_PER_MS
    if kind == "expire_time":
        if time_ms <= 0:
            raise InvalidRequest("EXPIRY_INVALID", "expire_time", "must be after now")
        return ExpireAt(time_ms)
    if not limits.EXPIRY_MS_MIN <= time_ms <= limits.EXPIRY_MS_MAX:
        raise InvalidRequest("EXPIRY_INVALID", "ttl", "1 second to 3,650 days")
    return TimeToLive(time_ms)


def _delete(message: commit_pb2.Delete) -> Delete:
    precondition = _precondition(message.precondition, "precondition")
    if isinstance(precondition, MustNotExist):
        raise InvalidRequest(
            "PRECONDITION_INVALID", "precondition.must_not_exist", "what does not exist cannot be deleted"
        )
    return Delete(precondition)


def _increment(message: commit_pb2.Increment) -> Increment:
    return Increment(message.by)


def _items(texts: Sequence[str], field: str) -> tuple[json_values.Json, ...]:
    if not texts:
        raise InvalidRequest("FIELD_REQUIRED", field, "at least one item")
    if len(texts) > limits.LIST_ITEMS_MAX:
        raise too_many(field, limits.LIST_ITEMS_MAX, len(texts))
    return tuple([parse_json(text, f"{field}[{index}]") for index, text in enumerate(texts)])


def _append_to_list(message: commit_pb2.AppendToList) -> AppendToList:
    return AppendToList(_items(message.items, "items"))


def _add_to_set(message: commit_pb2.AddToSet) -> AddToSet:
    return AddToSet(_items(message.items, "items"))


def _merge_patch(message: commit_pb2.MergePatch) -> MergePatch:
    precondition = _precondition(message.precondition, "precondition")
    if not isinstance(precondition, At):
        raise InvalidRequest("PRECONDITION_INVALID", "precondition", "a merge patch does not commute: it needs at")
    if not message.patch:
        raise InvalidRequest("FIELD_REQUIRED", "patch", "a JSON merge patch")
    return MergePatch(precondition, parse_json(message.patch, "patch"))


_MUTATIONS: dict[str, Callable[..., Mutation]] = {
    "put": _put,
    "delete": _delete,
    "increment": _increment,
    "append_to_list": _append_to_list,
    "add_to_set": _add_to_set,
    "merge_patch": _merge_patch,
}


def freshness(message: entry_pb2.ReadConsistency) -> Freshness:
    """Give how fresh a read must be."""
    level = message.WhichOneof("level")
    if level is None:
        return AskStrong()
    if level == "at_least":
        return AskAtLeast(message.at_least)
    if level == "snapshot":
        return AskSnapshot(message.snapshot)
    if not getattr(message, level):
        raise InvalidRequest("FIELD_INVALID", f"consistency.{level}", "may only be true")
    return AskStrong() if level == "strong" else AskLocal()


def trusting(
    message: board_pb.GetEntryRequest
    | board_pb.BatchGetEntriesRequest
    | board_pb.ListEntriesRequest
    | board_pb.ListRevisionsRequest
    | task_service_pb2.ListEventsRequest
    | trust_service_pb2.RevealEntryRequest,
) -> Trusting:
    """Give how much trust a read wants, and where it is noted what it was given of less."""
    floor = trust_level(message.floor, "floor") if message.floor else None
    return Trusting(floor, session_given(message.session)) if floor is not None or message.session else UNSAID


def get_entry(message: board_pb.GetEntryRequest) -> tuple[str, EntryKey, Freshness]:
    """Give board, entry and freshness."""
    return parse_board(message.board), entry_key(message.key, "key"), freshness(message.consistency)


def batch_get(message: board_pb.BatchGetEntriesRequest) -> tuple[str, list[EntryKey], Freshness]:
    """Give board, entries and freshness."""
    board = parse_board(message.board)
    if not message.keys:
        raise InvalidRequest("FIELD_REQUIRED", "keys", "at least one entry")
    if len(message.keys) > limits.BATCH_KEYS_MAX:
        raise too_many("keys", limits.BATCH_KEYS_MAX, len(message.keys))
    named: dict[EntryKey, None] = {}
    for index, item in enumerate(message.keys):
        key = entry_key(item, f"keys[{index}]")
        if key in named:
            raise InvalidRequest("DUPLICATE_KEY", f"keys[{index}]", "each entry is named at most once")
        named[key] = None
    return board, list(named), freshness(message.consistency)


def list_entries(message: board_pb.ListEntriesRequest) -> tuple[str, Region, str, int, str, Freshness]:
    """Give board, region, path (empty: all of the region), page size, page token and freshness."""
    board = parse_board(message.board)
    region = parse_region(message.region)
    path = parse_path(message.path) if message.path else ""
    size = page_size(message.page_size)
    return board, region, path, size, page_token(message.page_token), freshness(message.consistency)


def list_revisions(message: board_pb.ListRevisionsRequest) -> tuple[str, EntryKey, int, str]:
    """Give board, entry, page size and page token."""
    board = parse_board(message.board)
    return board, entry_key(message.key, "key"), page_size(message.page_size), page_token(message.page_token)


def watch(message: board_pb.WatchRequest) -> tuple[str, list[tuple[Region, str]], WatchStart]:
    """Give board, targets and start."""
    board = parse_board(message.board)
    if not message.targets:
        raise InvalidRequest("FIELD_REQUIRED", "targets", "at least one region to watch")
    if len(message.targets) > limits.WATCH_TARGETS_MAX:
        raise too_many("targets", limits.WATCH_TARGETS_MAX, len(message.targets))
    targets = []
    for index, target in enumerate(message.targets):
        region = parse_region(target.region, f"targets[{index}].region")
        targets.append((region, parse_path(target.path, f"targets[{index}].path") if target.path else ""))
    start = message.WhichOneof("start")
    if start is None:
        raise InvalidRequest("FIELD_REQUIRED", "start", "say after, snapshot or now; there is no default")
    if start == "after":
        return board, targets, StartAfter(message.after)
    if not getattr(message, start):
        raise InvalidRequest("FIELD_INVALID", start, "may only be true")
    return board, targets, StartSnapshot() if start == "snapshot" else StartNow()


def compact(message: admin_pb.CompactRequest) -> str:
    """Give the token before which history is to be forgotten."""
    if not message.before:
        raise InvalidRequest("FIELD_REQUIRED", "before", "the token of the oldest state to keep")
    return message.before


def endorse(
    message: trust_service_pb2.EndorseRequest, digest: Callable[[bytes], bytes], traceparent: str
) -> EndorseRequest:
    """Give the endorsement that a message asks for."""
    return EndorseRequest(
        parse_board(message.board),
        message.request_id,
        request_id(message.request_id),
        digest(b"endorse\x00" + message.SerializeToString(deterministic=True)),
        entry_key(message.key, "key"),
        revision_at(message.at, "at"),
        trust_level(message.trust, "trust"),
        words(message.reason, "reason", limits.REASON_BYTES_MAX),
        traceparent,
        tuple(fences_given(message.fences, "fences")),
    )


def check_current(
    message: board_pb.CheckCurrentRequest,
) -> tuple[str, list[tuple[EntryKey, At]], list[FenceGiven]]:
    """Give board, entries with the states they were seen in, and fences."""
    board = parse_board(message.board)
    if len(message.entries) > limits.BATCH_KEYS_MAX:
        raise too_many("entries", limits.BATCH_KEYS_MAX, len(message.entries))
    entries: dict[EntryKey, At] = {}
    for index, item in enumerate(message.entries):
        field = f"entries[{index}]"
        key, at = _entry_at(item, field)
        if key in entries:
            raise InvalidRequest("DUPLICATE_KEY", f"{field}.key", "each entry is named at most once")
        entries[key] = at
    fences = fences_given(message.fences, "fences")
    if not entries and not fences:
        raise InvalidRequest("FIELD_REQUIRED", "entries", "at least one entry or fence to check")
    return board, list(entries.items()), fences
