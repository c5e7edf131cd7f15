"""Requests and answers about commits in quarantine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kokuban.v1 import commit_pb2, entry_pb2, error_reason_pb2
from kokuban.v1 import trust_service_pb2 as pb
from kokuban_server.app.quarantine_review import QuarantineFilter
from kokuban_server.core import limits
from kokuban_server.core.names import parse_agent, parse_board
from kokuban_server.core.quarantine import QuarantineState
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.trust import SourceKind
from kokuban_server.wire import encode
from kokuban_server.wire.fields import page_size, page_token, parse_message, too_many, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kokuban_server.app.quarantine_review import Reviewed
    from kokuban_server.core.quarantine import Quarantined

_NAME = re.compile(r"[0-9]{15}-[0-9a-f]{32}")


def list_request(message: pb.ListQuarantineRequest) -> tuple[str, QuarantineFilter, int, str]:
    """Give board, filter, page size and page token."""
    board = parse_board(message.board)
    try:
        state = QuarantineState(message.state or QuarantineState.WAITING)
    except ValueError:
        raise InvalidRequest("FIELD_INVALID", "state", "WAITING, RELEASED or REJECTED") from None
    if message.sent_by and parse_agent(message.sent_by) is None:
        raise InvalidRequest("FIELD_INVALID", "sent_by", "1 to 128 printable ASCII characters without spaces")
    uri = words(message.uri, "uri", limits.SOURCE_URI_BYTES_MAX, required=False)
    size = page_size(message.page_size, limits.QUARANTINE_PAGE_ENTRIES_MAX)
    return board, QuarantineFilter(state, message.sent_by, uri), size, page_token(message.page_token)


def review_request(message: pb.ReviewQuarantineRequest) -> tuple[str, list[str], bool, str]:
    """Give board, ids, whether they are released, and why."""
    board = parse_board(message.board)
    if not message.ids:
        raise InvalidRequest("FIELD_REQUIRED", "ids", "at least one")
    if len(message.ids) > limits.QUARANTINE_PAGE_ENTRIES_MAX:
        raise too_many("ids", limits.QUARANTINE_PAGE_ENTRIES_MAX, len(message.ids))
    for index, name in enumerate(message.ids):
        if not _NAME.fullmatch(name):
            raise InvalidRequest("FIELD_INVALID", f"ids[{index}]", "an id as ListQuarantine gives it")
        if name in message.ids[:index]:
            raise InvalidRequest("DUPLICATE_KEY", f"ids[{index}]", "each is named at most once")
    if not message.decision:
        raise InvalidRequest("FIELD_REQUIRED", "decision", "RELEASE or REJECT")
    if message.decision not in {pb.QUARANTINE_DECISION_RELEASE, pb.QUARANTINE_DECISION_REJECT}:
        raise InvalidRequest("FIELD_INVALID", "decision", "RELEASE or REJECT")
    release = message.decision == pb.QUARANTINE_DECISION_RELEASE
    return board, list(message.ids), release, words(message.reason, "reason", limits.REASON_BYTES_MAX)


def commit(name: str, item: Quarantined, *, show_texts: bool) -> pb.QuarantinedCommit:
    """Give a commit's message."""
    declared = item.source.kind is not SourceKind.UNDECLARED
    return pb.QuarantinedCommit(
        id=name,
        agent=item.agent,
        create_time=encode.timestamp(item.create_time_ms),
        expire_time=encode.timestamp(item.create_time_ms + limits.QUARANTINE_MS),
        keys=map(encode.entry_key, item.keys),
        source=encode.source(item.source) if declared else None,
        findings=map(encode.finding, item.findings),
        rule_set=item.rule_set,
        state=item.state.value,  # type: ignore[arg-type]  # the numbers are the same
        reviewer=item.reviewer,
        review_reason=item.review_reason,
        texts=_texts(item.request) if show_texts and item.request else (),
    )


def _texts(request: bytes) -> Iterator[entry_pb2.ExternalValue]:
    """Give what a commit would write, in the form in which nothing can be taken for an agent's word."""
    for mutation in parse_message(commit_pb2.CommitRequest, request).mutations:
        kind = mutation.WhichOneof("kind")
        if kind == "put":
            value = mutation.put.value
            shown = entry_pb2.ExternalValue(metadata=mutation.put.metadata)
            form = value.WhichOneof("form")
            if form == "text":
                shown.text = value.text
            elif form == "json":
                shown.json = value.json
            elif form == "binary":
                shown.binary.CopyFrom(value.binary)
            yield shown
        elif kind == "append_to_list":
            yield entry_pb2.ExternalValue(json=f"[{','.join(mutation.append_to_list.items)}]")
        elif kind == "add_to_set":
            yield entry_pb2.ExternalValue(json=f"[{','.join(mutation.add_to_set.items)}]")
        elif kind == "merge_patch":
            yield entry_pb2.ExternalValue(json=mutation.merge_patch.patch)
        else:
            yield entry_pb2.ExternalValue()


def result(of: Reviewed, epoch: str) -> pb.ReviewResult:
    """Give what became of one commit."""
    refusal = error_reason_pb2.ErrorReason.Value(f"ERROR_REASON_{of.refusal or 'UNSPECIFIED'}")
    return pb.ReviewResult(
        id=of.name,
        state=0 if of.state is None else of.state.value,  # type: ignore[arg-type]  # the numbers are the same
        refusal=refusal,
        revision=encode.revision(of.revision, epoch) if of.revision else None,
    )
