"""Domain values to responses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from google.protobuf.timestamp_pb2 import Timestamp

from kokuban.v1 import admin_service_pb2 as admin_pb
from kokuban.v1 import board_service_pb2 as board_pb
from kokuban.v1 import commit_pb2, entry_pb2, lock_pb2, trust_pb2, trust_service_pb2
from kokuban_server.app.reads import shown_state
from kokuban_server.core.entry import EntryRecord, EntryState, Form
from kokuban_server.core.revision import encode_token
from kokuban_server.core.screening.rules import Severity
from kokuban_server.core.sensitive import Kind
from kokuban_server.core.trust import OWN_WORD, UNDECLARED, Trust

if TYPE_CHECKING:
    from kokuban_server.app.administration import ServerStatus
    from kokuban_server.app.commits import Committed
    from kokuban_server.app.current import Verdict
    from kokuban_server.app.reads import Entries, Found, Listing
    from kokuban_server.app.watches import Change, WatchPart
    from kokuban_server.core.entry import Value
    from kokuban_server.core.locks import Fence
    from kokuban_server.core.names import EntryKey
    from kokuban_server.core.screening.screening import Finding
    from kokuban_server.core.trust import Label, Parent, Source

_CHANGE_TYPES = {
    EntryState.LIVE: entry_pb2.CHANGE_TYPE_PUT,
    EntryState.DELETED: entry_pb2.CHANGE_TYPE_DELETED,
    EntryState.EXPIRED: entry_pb2.CHANGE_TYPE_EXPIRED,
}


def timestamp(time_ms: int) -> Timestamp:
    """Give milliseconds of Unix time as a timestamp."""
    seconds, rest = divmod(time_ms, 1000)
    return Timestamp(seconds=seconds, nanos=rest * 1_000_000)


def value(of: Value) -> entry_pb2.Value:
    """Give a value's message."""
    form, data, media_type = of
    if form is Form.TEXT:
        return entry_pb2.Value(text=data)  # type: ignore[arg-type]  # text for TEXT
    if form is Form.JSON:
        return entry_pb2.Value(json=data)  # type: ignore[arg-type]  # text for JSON
    return entry_pb2.Value(binary=entry_pb2.BinaryValue(data=data, media_type=media_type))  # type: ignore[arg-type]  # bytes


def revision(number: int, epoch: str) -> entry_pb2.Revision:
    """Give a revision's message."""
    return entry_pb2.Revision(number=number, epoch=epoch)


def external(record: EntryRecord) -> entry_pb2.Value:
    """Give the message of a value that came from outside: its own form, with everything that its writer says of it."""
    message = entry_pb2.ExternalValue(metadata=record.metadata)
    if record.value is not None:
        form, data, media_type = record.value
        if form is Form.TEXT:
            message.text = data  # type: ignore[assignment]  # text for TEXT
        elif form is Form.JSON:
            message.json = data  # type: ignore[assignment]  # text for JSON
        else:
            message.binary.data = data  # type: ignore[assignment]  # bytes
            message.binary.media_type = media_type
    if record.label.source is not UNDECLARED:
        message.source.CopyFrom(source(record.label.source))
    return entry_pb2.Value(external=message)


def source(of: Source) -> trust_pb2.DeclaredSource:
    """Give a source's message."""
    return trust_pb2.DeclaredSource(
        kind=of.kind.value,  # type: ignore[arg-type]  # the numbers are the same
        uri=of.uri,
        name=of.name,
        content_sha256=of.content_sha256.hex(),
        fetch_time=timestamp(of.fetch_time_ms) if of.fetch_time_ms else None,
    )


def finding(of: Finding) -> trust_service_pb2.ScreeningFinding:
    """Give a finding's message."""
    span = None if of.span is None else trust_pb2.TextSpan(start=of.span[0], end=of.span[1])
    return trust_service_pb2.ScreeningFinding(
        rule=of.rule, severity=_SEVERITIES[of.severity], view=of.view, span=span, excerpt=of.excerpt
    )


_SEVERITIES = {
    Severity.NOTE: trust_service_pb2.FINDING_SEVERITY_NOTE,
    Severity.SUSPICIOUS: trust_service_pb2.FINDING_SEVERITY_SUSPICIOUS,
    Severity.GRAVE: trust_service_pb2.FINDING_SEVERITY_GRAVE,
}


KINDS = {Kind.SECRET: trust_pb2.REDACTION_KIND_SECRET, Kind.PERSONAL: trust_pb2.REDACTION_KIND_PERSONAL}


def label(of: Label, epoch: str) -> entry_pb2.Label:
    """Give a label's message. Where external text comes from is told with its value, not here."""
    if of is OWN_WORD:
        return _OWN_WORD
    has_source = of.source is not UNDECLARED and of.trust >= Trust.AGENT
    return entry_pb2.Label(
        trust=of.trust.value,  # type: ignore[arg-type]  # the numbers are the same
        source=source(of.source) if has_source else None,
        derived_from=[_entry_at(parent, epoch) for parent in of.parents],
        tracked=bool(of.read_scope),
        extends_previous=bool(of.extends_from),
        endorsed_by=of.endorsed_by,
        screened_by=of.screened_by,
        suspicious=of.suspicious,
        holds=[KINDS[kind] for kind in sorted(of.holds, key=lambda kind: kind.value)],
        unsearched=of.unsearched,
    )


_OWN_WORD = entry_pb2.Label(trust=trust_pb2.TRUST_LEVEL_AGENT)


def _entry_at(parent: Parent, epoch: str) -> entry_pb2.EntryAt:
    at = entry_pb2.Revision(number=parent.revision, epoch=epoch)
    return entry_pb2.EntryAt(key=entry_key(parent.key), at=at)


def entry_key(key: EntryKey) -> entry_pb2.EntryKey:
    """Give an entry key's message."""
    return entry_pb2.EntryKey(region=str(key.region), path=key.path)


def entry(
    key: EntryKey,
    record: EntryRecord,
    revision: int,
    epoch: str,
    *,
    withheld: bool = False,
    omit_value: bool = False,
) -> entry_pb2.Entry:
    """Give an entry's message."""
    is_external = record.label.trust < Trust.AGENT
    given = None
    if record.value is not None and not omit_value:
        given = external(record) if is_external else value(record.value)
    return entry_pb2.Entry(
        key=entry_key(key),
        revision=entry_pb2.Revision(number=revision, epoch=epoch),
        create_revision=record.create_revision or revision,
        sequence=record.sequence,
        value=given,
        metadata=None if is_external else record.metadata,
        create_time=timestamp(record.create_time_ms),
        update_time=timestamp(record.update_time_ms),
        expire_time=timestamp(record.expire_time_ms) if record.expire_time_ms else None,
        author=record.acts[-1].agent if record.acts else "",
        label=label(record.label, epoch) if record.state is EntryState.LIVE else None,
        withheld=withheld,
    )


def entry_change(
    key: EntryKey,
    record: EntryRecord,
    revision: int,
    epoch: str,
    *,
    withheld: bool = False,
    omit_value: bool = False,
) -> entry_pb2.EntryChange:
    """Give one state of an entry's history as a message."""
    return entry_pb2.EntryChange(
        type=_CHANGE_TYPES[record.state],
        entry=entry(key, record, revision, epoch, withheld=withheld, omit_value=omit_value),
        previous_revision=record.previous_revision,
        acts=[
            entry_pb2.Act(
                agent=act.agent,
                request_id=act.request_id,
                reason=act.reason,
                traceparent=act.traceparent,
                retry_of=act.retry_of,
                unconditional=act.unconditional,
            )
            for act in record.acts
        ],
    )


def committed(answer: Committed, epoch: str) -> commit_pb2.CommitResponse:
    """Give a commit's answer."""
    results = [
        commit_pb2.MutationResult(
            sequence=sequence,
            value=None if computed is None or not is_shown else value(computed),
            trust=trust or 0,  # type: ignore[arg-type]  # the numbers are the same
            event_number=number,
        )
        for sequence, computed, trust, is_shown, number in answer.outcomes
    ]
    for place in answer.releases:  # in ascending order, so each gets to its own place among the others
        results.insert(place, commit_pb2.MutationResult())
    return commit_pb2.CommitResponse(
        token=encode_token(epoch, answer.revision),
        revision=entry_pb2.Revision(number=answer.revision, epoch=epoch),
        commit_time=timestamp(answer.commit_time_ms),
        replayed=answer.replayed,
        results=results,
    )


def got(found: Found, revision: int, epoch: str) -> board_pb.GetEntryResponse:
    """Give one read entry."""
    return board_pb.GetEntryResponse(entry=_found(found, epoch), token=encode_token(epoch, revision))


def batch(entries: Entries, epoch: str) -> board_pb.BatchGetEntriesResponse:
    """Give several read entries."""
    return board_pb.BatchGetEntriesResponse(
        entries=[_found(one, epoch) for one in entries.found],
        missing=[entry_key(key) for key in entries.missing],
        token=encode_token(epoch, entries.revision),
    )


def _found(found: Found, epoch: str, *, omit_value: bool = False) -> entry_pb2.Entry:
    key, record, revision, withheld = found
    return entry(key, record, revision, epoch, withheld=withheld, omit_value=omit_value)


def listing(page: Listing, epoch: str, *, omit_values: bool) -> board_pb.ListEntriesResponse:
    """Give one page of entries."""
    return board_pb.ListEntriesResponse(
        entries=[_found(one, epoch, omit_value=omit_values) for one in page.found],
        next_page_token=page.next_page_token,
        token=encode_token(epoch, page.revision),
    )


def history(page: Listing, epoch: str) -> board_pb.ListRevisionsResponse:
    """Give one page of an entry's history."""
    return board_pb.ListRevisionsResponse(
        revisions=[
            entry_change(key, record, revision, epoch, withheld=withheld)
            for key, record, revision, withheld in page.found
        ],
        next_page_token=page.next_page_token,
        token=encode_token(epoch, page.revision),
    )


def watch_part(part: WatchPart, epoch: str, store_time_ms: int, *, omit_values: bool) -> bytes:
    """Give the bytes of what a watch sends next.

    A change is made into bytes once for all who watch it, so the message is put together by hand: fields follow each other
    on the wire, and a repeated field is its elements, each with its tag and length.
    """
    token = encode_token(epoch, part.revision) if part.revision is not None else ""
    if part.changes:
        events = b"".join([_change(change, epoch, store_time_ms, part, omit_values) for change in part.changes])
        head = board_pb.WatchResponse(token=token).SerializeToString()
        return head + _EVENTS_TAG + _varint(len(events)) + events
    if part.entries is not None:
        entries = [_watched_entry(*one, epoch, part, omit_values) for one in part.entries]
        snapshot = board_pb.WatchSnapshot(entries=entries, complete=part.snapshot_complete)
        return board_pb.WatchResponse(token=token, snapshot=snapshot).SerializeToString()
    if part.going_away:
        return board_pb.WatchResponse(token=token, going_away=board_pb.WatchGoingAway()).SerializeToString()
    return board_pb.WatchResponse(token=token, bookmark=board_pb.WatchBookmark()).SerializeToString()


_LENGTH_DELIMITED = 2
_EVENTS_TAG = bytes((board_pb.WatchResponse.EVENTS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED,))
_CHANGES_TAG = bytes((board_pb.WatchEvents.CHANGES_FIELD_NUMBER << 3 | _LENGTH_DELIMITED,))


def _change(
    change: Change,
    epoch: str,
    store_time_ms: int,
    part: WatchPart,
    omit_values: bool,  # noqa: FBT001 - a key of the memory
) -> bytes:
    record = change.record
    withheld = _is_withheld(change.key, record, change.revision, part)
    expired = 0 < record.expire_time_ms <= store_time_ms
    known = None if expired else change.encoded.get((omit_values, withheld))
    if known is not None:
        return known
    shown = _watched(change.key, shown_state(record, store_time_ms), withheld=withheld)
    message = entry_change(change.key, shown, change.revision, epoch, withheld=withheld, omit_value=omit_values)
    raw = message.SerializeToString()
    encoded = _CHANGES_TAG + _varint(len(raw)) + raw
    if not expired:
        change.encoded[omit_values, withheld] = encoded
    return encoded


def _watched_entry(
    key: EntryKey,
    record: EntryRecord,
    revision: int,
    epoch: str,
    part: WatchPart,
    omit_values: bool,  # noqa: FBT001 - as above
) -> entry_pb2.Entry:
    withheld = _is_withheld(key, record, revision, part)
    shown = _watched(key, record, withheld=withheld)
    return entry(key, shown, revision, epoch, withheld=withheld, omit_value=omit_values)


def _is_withheld(key: EntryKey, record: EntryRecord, revision: int, part: WatchPart) -> bool:
    if record.state is not EntryState.LIVE:
        return False
    return record.label.trust < part.floors[key.region] or (key, revision) in part.removed


def _watched(key: EntryKey, record: EntryRecord, *, withheld: bool) -> EntryRecord:
    """Give a state as all are shown it who watch the region: of its parents those that they may all read."""
    if withheld:
        return record.withheld()
    if not record.label.parents:
        return record
    parents = tuple([parent for parent in record.label.parents if parent.key.region == key.region])
    return replace(record, label=record.label._replace(parents=parents))


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte, the eighth says that more follow
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def server_status(status: ServerStatus) -> admin_pb.GetStatusResponse:
    """Give how the server and its store are."""
    store, progress = status.store, status.rescreening
    rescreening = None
    if progress is not None:
        rescreening = admin_pb.Rescreening(
            rule_set=progress.rule_set,
            begin_time=timestamp(progress.begin_time_ms),
            waiting_count=progress.waiting,
            kept_count=progress.kept,
            lowered_count=progress.lowered,
            withheld_count=progress.withheld,
        )
    return admin_pb.GetStatusResponse(
        server_version=status.server_version,
        store_kind=store.kind,
        store_version=store.version,
        token=encode_token(status.epoch, store.revision),
        revision=store.revision,
        compacted_revision=store.compacted_revision,
        epoch=status.epoch,
        store_time=timestamp(store.store_time_ms),
        size_bytes=store.size_bytes,
        size_bytes_max=store.size_bytes_max,
        leader=store.leader,
        rescreening=rescreening,
    )


def compacted(compacted_revision: int, revision: int, epoch: str) -> admin_pb.CompactResponse:
    """Give what is forgotten now."""
    return admin_pb.CompactResponse(compacted_revision=compacted_revision, token=encode_token(epoch, revision))


def current(verdict: Verdict, epoch: str) -> board_pb.CheckCurrentResponse:
    """Give what still holds."""
    return board_pb.CheckCurrentResponse(
        current=not verdict.stale and not verdict.lost,
        stale_entries=map(entry_key, verdict.stale),
        lost_fences=map(fence, verdict.lost),
        token=encode_token(epoch, verdict.revision),
    )


def fence(of: Fence) -> lock_pb2.Fence:
    """Give a fence's message."""
    return lock_pb2.Fence(lock_id=of.lock_id, revision=of.revision, epoch=of.epoch)
