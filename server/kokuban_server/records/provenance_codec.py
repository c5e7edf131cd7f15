"""Origins of states, removals, and what boards refuse since, to stored messages and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from kokuban.store.v1 import records_pb2 as pb
from kokuban_server.core import keys
from kokuban_server.core.names import EntryKey, parse_region
from kokuban_server.core.provenance import Bar, Origin, Reach, Selector
from kokuban_server.core.refusals import InvalidRequest, StoreCorrupt
from kokuban_server.core.removals import ErasureStatus, Removal, RemovalState, StoreReceipt
from kokuban_server.records.trust_codec import encode_label, read_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kokuban_server.core.provenance import StateName
    from kokuban_server.core.trust import Label, Parent


def encode_origins(agent: str, session: str, time_ms: int, states: Iterable[tuple[EntryKey, int, Label]]) -> bytes:
    """Give the stored form of what the states of a commit were made of: each entry's key, sequence and label."""
    return pb.OriginRecord(
        agent=agent,
        session=session,
        time_ms=time_ms,
        states=[
            pb.StateOriginRecord(region=str(key.region), path=key.path, sequence=sequence, label=encode_label(label))
            for key, sequence, label in states
        ],
    ).SerializeToString()


def decode_origins(key: bytes, raw: bytes, revision: int) -> list[Origin]:
    """Read what the states of a commit were made of, from a record of a revision."""
    board = keys.board_of_origin(key)
    try:
        message = pb.OriginRecord.FromString(raw)
        origins = []
        for state in message.states:
            label = read_label(state.label)
            scope = keys.on_board(keys.SCOPE, board, label.read_scope) if label.read_scope else b""
            head = _head(board, EntryKey(parse_region(state.region), state.path))
            parents = tuple(reach_of_parent(board, parent) for parent in label.parents)
            origins.append(
                Origin(
                    board,
                    head,
                    state.sequence,
                    key,
                    revision,
                    message.agent,
                    message.session,
                    message.time_ms,
                    label,
                    parents,
                    scope,
                )
            )
    except (DecodeError, ValueError, InvalidRequest) as error:
        raise StoreCorrupt(key, f"not a record of origins: {error}") from error
    return origins


def reworded(key: bytes, raw: bytes, labels: Mapping[StateName, Label | None]) -> bytes:
    """Give the record with other labels of some states; without those that have none. Empty if no state is left."""
    board = keys.board_of_origin(key)
    message = pb.OriginRecord.FromString(raw)
    kept = []
    for state in message.states:
        name = _head(board, EntryKey(parse_region(state.region), state.path)), state.sequence
        label = labels.get(name)
        if label is not None:
            state.label.CopyFrom(encode_label(label))
        if name not in labels or label is not None:
            kept.append(state)
    rest = pb.OriginRecord(agent=message.agent, session=message.session, time_ms=message.time_ms, states=kept)
    return rest.SerializeToString() if kept else b""


def reach_of_parent(board: bytes, parent: Parent) -> Reach:
    """Give a state that is named on a board, with what it keeps of those before."""
    return Reach(_head(board, parent.key), parent.extends_from or parent.sequence, parent.sequence)


def _head(board: bytes, key: EntryKey) -> bytes:
    return keys.head_of(*keys.parse_board(keys.BOARD + board), key)


def _encode_selector(selector: Selector) -> pb.SelectorRecord:
    uri, uri_pattern, content_sha256, agent, session, from_ms, before_ms, user = selector
    return pb.SelectorRecord(
        uri=uri,
        uri_pattern=uri_pattern,
        content_sha256=content_sha256,
        agent=agent,
        session=session,
        from_ms=from_ms,
        before_ms=before_ms,
        user=user,
    )


def _selector(message: pb.SelectorRecord) -> Selector:
    return Selector(
        message.uri,
        message.uri_pattern,
        message.content_sha256,
        message.agent,
        message.session,
        message.from_ms,
        message.before_ms,
        message.user,
    )


def encode_bar(bar: Bar) -> pb.BarRecord:
    """Give the stored form of what a board refuses."""
    selector = None if bar.selector is None else _encode_selector(bar.selector)
    return pb.BarRecord(removal=bar.removal, selector=selector, pseudonym=bar.pseudonym)


def read_bar(message: pb.BarRecord) -> Bar:
    """Give what a board refuses."""
    selector = _selector(message.selector) if message.HasField("selector") else None
    return Bar(message.removal, selector, message.pseudonym)


def encode_removal(removal: Removal) -> bytes:
    """Give the stored form of a removal."""
    return pb.RemovalRecord(
        state=removal.state,
        selector=_encode_selector(removal.selector),
        reason=removal.reason,
        allows_reingest=removal.allows_reingest,
        author=removal.author,
        create_time_ms=removal.create_time_ms,
        started_by=removal.started_by,
        start_time_ms=removal.start_time_ms,
        end_time_ms=removal.end_time_ms,
        receipts=_stored_receipts(removal.receipts),
        is_erasure=removal.is_erasure,
    ).SerializeToString()


def _stored_receipts(receipts: Sequence[StoreReceipt]) -> list[pb.StoreReceiptRecord]:
    return [
        pb.StoreReceiptRecord(store=store, status=status, count=count, revision=revision, note=note)
        for store, status, count, revision, note in receipts
    ]


def decode_removal(key: bytes, raw: bytes) -> Removal:
    """Read a removal."""
    try:
        message = pb.RemovalRecord.FromString(raw)
        receipts = tuple(
            StoreReceipt(one.store, ErasureStatus(one.status), one.count, one.revision, one.note)
            for one in message.receipts
        )
        state = RemovalState(message.state)
    except (DecodeError, ValueError) as error:
        raise StoreCorrupt(key, f"not a removal: {error}") from error
    return Removal(
        _selector(message.selector),
        message.reason,
        message.author,
        message.create_time_ms,
        message.allows_reingest,
        state,
        message.started_by,
        message.start_time_ms,
        message.end_time_ms,
        receipts,
        message.is_erasure,
    )
