"""Requests and answers about where things come from, and about removals."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kokuban.v1 import trust_service_pb2 as pb
from kokuban_server.app.provenance_trace import TraceRequest
from kokuban_server.core import limits
from kokuban_server.core.names import parse_agent, parse_board, parse_region
from kokuban_server.core.provenance import Selector
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.trust import UNDECLARED
from kokuban_server.wire import encode
from kokuban_server.wire.decode import SHA256, revision_at
from kokuban_server.wire.fields import entry_key, lock_name, time_ms, words

if TYPE_CHECKING:
    from kokuban_server.app.provenance_trace import Trace, TracedState
    from kokuban_server.app.removals import Finding, KnownRemoval, RemovalPlan
    from kokuban_server.core.removals import StoreReceipt

_REMOVAL = re.compile(r"[0-9]{15}-[0-9a-f]{16}")


def trace_request(message: pb.TraceProvenanceRequest) -> TraceRequest:
    """Give what is traced."""
    board, key = parse_board(message.board), entry_key(message.key, "key")
    at = revision_at(message.at, "at") if message.HasField("at") else None
    if not message.direction:
        raise InvalidRequest("FIELD_REQUIRED", "direction", "ANCESTORS or DESCENDANTS")
    if message.direction not in {pb.PROVENANCE_DIRECTION_ANCESTORS, pb.PROVENANCE_DIRECTION_DESCENDANTS}:
        raise InvalidRequest("FIELD_INVALID", "direction", "ANCESTORS or DESCENDANTS")
    descends = message.direction == pb.PROVENANCE_DIRECTION_DESCENDANTS
    depth = _within(message.max_depth, "max_depth", limits.TRACE_DEPTH_MAX) or limits.TRACE_DEPTH_MAX
    states = _within(message.max_states, "max_states", limits.TRACE_ENTRIES_MAX) or limits.TRACE_ENTRIES_DEFAULT
    return TraceRequest(board, key, at, descends, depth, states)


def _within(number: int, field: str, most: int) -> int:
    if not 0 <= number <= most:
        raise InvalidRequest("FIELD_INVALID", field, f"0 to {most}")
    return number


def trace(of: Trace, epoch: str) -> list[pb.ProvenanceState]:
    """Give the messages of what was met."""
    return [_traced(state, epoch) for state in of.states]


def _traced(state: TracedState, epoch: str) -> pb.ProvenanceState:
    label = state.label
    declared = None if label is None or label.source is UNDECLARED else encode.source(label.source)
    return pb.ProvenanceState(
        key=encode.entry_key(state.key),
        revision=encode.revision(state.revision, epoch) if state.revision else None,
        link=state.link.value,  # type: ignore[arg-type]  # the numbers are the same
        **{"from": state.from_place},
        depth=state.depth,
        trust=0 if label is None else label.trust.value,  # type: ignore[arg-type]  # as above
        source=declared,
        agent=state.agent,
        kept=state.is_kept,
        present=state.is_present,
    )


def selector(message: pb.SourceSelector) -> Selector:
    """Give which states come from a source."""
    uri = words(message.uri, "selector.uri", limits.SOURCE_URI_BYTES_MAX, required=False)
    pattern = words(message.uri_pattern, "selector.uri_pattern", limits.SOURCE_URI_BYTES_MAX, required=False)
    if pattern.count("*") > limits.URI_PATTERN_STARS_TIMES_MAX:
        raise InvalidRequest(
            "FIELD_INVALID", "selector.uri_pattern", f"at most {limits.URI_PATTERN_STARS_TIMES_MAX} stars"
        )
    if message.content_sha256 and not SHA256.fullmatch(message.content_sha256):
        raise InvalidRequest("FIELD_INVALID", "selector.content_sha256", "64 lower-case hexadecimal digits")
    if message.agent and parse_agent(message.agent) is None:
        raise InvalidRequest("FIELD_INVALID", "selector.agent", "1 to 128 printable ASCII characters without spaces")
    session = lock_name(message.session, "selector.session") if message.session else ""
    begin_ms = time_ms(message.from_time, "selector.from_time")
    before_ms = time_ms(message.before_time, "selector.before_time")
    if before_ms and before_ms <= begin_ms:
        raise InvalidRequest("FIELD_INVALID", "selector.before_time", "after from_time")
    digest = bytes.fromhex(message.content_sha256)
    made = Selector(uri, pattern, digest, message.agent, session, begin_ms, before_ms)
    if made == Selector():
        raise InvalidRequest("FIELD_REQUIRED", "selector", "at least one of its fields")
    return made


def user(text: str) -> Selector:
    """Give which states are a person's."""
    try:
        parse_region(f"user:{text}")
    except InvalidRequest as refusal:
        raise InvalidRequest("FIELD_INVALID", "user", f"not the id of a user's region: {refusal}") from None
    return Selector(user=text)


def removal_id(text: str, field: str) -> str:
    """Give the id of a removal."""
    if not text:
        raise InvalidRequest("FIELD_REQUIRED", field, "the id of a removal")
    if not _REMOVAL.fullmatch(text):
        raise InvalidRequest("FIELD_INVALID", field, "an id as PurgeSource or EraseSubject gives it")
    return text


def removal(known: KnownRemoval, epoch: str) -> pb.Removal:
    """Give a removal's message."""
    name, _, of = known
    chosen = of.selector
    return pb.Removal(
        id=name,
        state=of.state.value,  # type: ignore[arg-type]  # the numbers are the same
        selector=None if of.is_erasure else _selector(chosen),
        user=chosen.user,
        reason=of.reason,
        allows_reingest=of.allows_reingest,
        author=of.author,
        create_time=encode.timestamp(of.create_time_ms),
        started_by=of.started_by,
        start_time=encode.timestamp(of.start_time_ms) if of.start_time_ms else None,
        end_time=encode.timestamp(of.end_time_ms) if of.end_time_ms else None,
        receipts=[_receipt(receipt, epoch) for receipt in of.receipts] if of.end_time_ms else (),
    )


def _selector(of: Selector) -> pb.SourceSelector:
    return pb.SourceSelector(
        uri=of.uri,
        uri_pattern=of.uri_pattern,
        content_sha256=of.content_sha256.hex(),
        agent=of.agent,
        session=of.session,
        from_time=encode.timestamp(of.from_ms) if of.from_ms else None,
        before_time=encode.timestamp(of.before_ms) if of.before_ms else None,
    )


def _receipt(of: StoreReceipt, epoch: str) -> pb.StoreReceipt:
    return pb.StoreReceipt(
        store=of.store,
        status=of.status.value,  # type: ignore[arg-type]  # the numbers are the same
        count=of.records,
        revision=encode.revision(of.revision, epoch) if of.revision else None,
        note=of.note,
    )


def plan(of: RemovalPlan, epoch: str) -> pb.RemovalPlan:
    """Give the message of what would be removed."""
    return pb.RemovalPlan(
        findings=[_finding(finding, epoch) for finding in of.findings],
        removed_count=of.removed,
        deleted_count=of.deleted,
        attested_count=of.attested,
        undecided_count=of.undecided,
        quarantined_count=of.quarantined,
        session_count=of.sessions,
        other_boards=of.other_boards,
    )


def _finding(of: Finding, epoch: str) -> pb.RemovalFinding:
    return pb.RemovalFinding(
        key=encode.entry_key(of.key),
        revision=encode.revision(of.revision, epoch),
        fate=of.fate.value,  # type: ignore[arg-type]  # the numbers are the same
        present=of.is_present,
    )
