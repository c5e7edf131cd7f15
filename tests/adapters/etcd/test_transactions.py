"""Change sets as transactions: etcd's bounds are kept, and nothing is asked that etcd cannot answer safely."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from kokuban_server.adapters.etcd import reads
from kokuban_server.adapters.etcd.layout import Layout, encode_time
from kokuban_server.adapters.etcd.reads import Span
from kokuban_server.adapters.etcd.transactions import OPERATIONS_MAX, REQUEST_BYTES_MAX, Transactions, split
from kokuban_server.core.change_set import (
    Absent,
    AtRevision,
    ChangeSet,
    CreatedAt,
    DeleteKey,
    DeleteRange,
    NoneBelow,
    Put,
    TimeBefore,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kokuban.etcd.v1 import etcd_pb2 as pb

LAYOUT = Layout.below("kokuban")
TRANSACTIONS = Transactions(LAYOUT, "0123456789abcdef")

_keys = st.binary(min_size=1, max_size=40)
_revisions = st.integers(1, 2**62)
_guards = st.one_of(
    st.builds(Absent, _keys),
    st.builds(AtRevision, _keys, _revisions),
    st.builds(CreatedAt, _keys, _revisions),
    st.builds(NoneBelow, _keys),
    st.builds(TimeBefore, st.integers(0, 2**45)),
)
_change_sets = st.builds(
    ChangeSet,
    st.lists(_guards, max_size=6).map(tuple),
    st.lists(st.builds(Put, _keys, st.binary(max_size=50), st.one_of(st.none(), _revisions)), max_size=4).map(tuple),
    st.lists(st.one_of(st.builds(DeleteKey, _keys), st.builds(DeleteRange, _keys, _keys)), max_size=3).map(tuple),
)


def _levels(request: pb.TxnRequest, depth: int = 0) -> Iterator[tuple[int, pb.TxnRequest]]:
    yield depth, request
    for operation in (*request.success, *request.failure):
        if operation.HasField("request_txn"):
            yield from _levels(operation.request_txn, depth + 1)


def _used(request: pb.TxnRequest) -> int:
    """Count as etcd does: what a level uses is taken off what the levels inside may use."""
    own = max(len(request.compare), len(request.success), len(request.failure))
    inner = [_used(op.request_txn) for op in (*request.success, *request.failure) if op.HasField("request_txn")]
    return own + max(inner, default=0)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100), st.integers(0, 200_000)), max_size=60))
def test_a_batch_is_spread_so_that_every_transaction_is_within_the_bounds(shapes: list[tuple[int, int, int]]) -> None:
    changes = [
        ChangeSet(
            tuple(Absent(b"g/%d/%d" % (place, n)) for n in range(guards)),
            tuple(Put(b"p/%d/%d" % (place, n), b"x" * (size if n == 0 else 1)) for n in range(puts)),
        )
        for place, (guards, puts, size) in enumerate(shapes)
    ]
    parts = split(changes, len(LAYOUT.data))
    assert [change for part in parts for change in part] == changes
    for part in parts:
        request = TRANSACTIONS.encode(part, 1)
        assert _used(request) <= OPERATIONS_MAX
        assert request.ByteSize() <= REQUEST_BYTES_MAX


def test_the_largest_set_that_the_api_admits_fits_one_request() -> None:
    half = 640 * 1024
    change = ChangeSet(
        tuple(Absent(b"k" * 1100 + b"%d" % n) for n in range(100)),
        (
            Put(b"k" * 1100, b"x" * half),
            Put(b"h" * 1100, b"x" * half),
            *(Put(b"o" * 300 + b"%d" % n, b"") for n in range(98)),
        ),
    )
    request = TRANSACTIONS.encode([change], 1)
    assert request.ByteSize() < 1_572_864
    assert _used(request) <= OPERATIONS_MAX


@given(st.lists(_change_sets, min_size=1, max_size=5), st.booleans())
def test_every_operation_and_every_compare_is_one_that_etcd_knows(changes: list[ChangeSet], moves_time: bool) -> None:  # noqa: FBT001 - drawn
    request = TRANSACTIONS.encode(changes, 1 if moves_time else None)
    for _, level in _levels(request):
        for compare in level.compare:
            # A number that etcd does not know would count as true: the guard would be open.
            assert compare.result in {0, 2}
            assert compare.target in {0, 1, 2, 3}
            assert compare.key
            assert (
                compare.WhichOneof("target_union")
                == {0: "version", 1: "create_revision", 2: "mod_revision", 3: "value"}[compare.target]
            )
        for operation in (*level.success, *level.failure):
            assert operation.WhichOneof("request") is not None


@given(st.lists(_change_sets, min_size=1, max_size=5))
def test_nothing_happens_in_another_life_of_the_store(changes: list[ChangeSet]) -> None:
    request = TRANSACTIONS.encode(changes, 1)
    assert request.compare[0].key == LAYOUT.epoch
    assert request.compare[0].value == b"0123456789abcdef"
    for operation in request.failure:
        assert not operation.HasField("request_delete_range")
        assert not operation.HasField("request_txn")
        assert operation.request_put.key in {b"", LAYOUT.weight}


@given(st.lists(_change_sets, min_size=1, max_size=5))
def test_RB_48_etcd_sees_at_the_outermost_level_whether_there_are_puts(changes: list[ChangeSet]) -> None:
    """It counts only those towards its bound on size: puts inside nested transactions went through on a full store."""
    request = TRANSACTIONS.encode(changes, None)
    seen = any(op.HasField("request_put") for op in (*request.success, *request.failure))
    assert seen == any(change.puts for change in changes)


@given(st.lists(_change_sets, min_size=1, max_size=5))
def test_failure_branches_read_keys_but_no_values(changes: list[ChangeSet]) -> None:
    for _, level in _levels(TRANSACTIONS.encode(changes, 1)):
        for operation in level.failure:
            read = operation.request_range
            assert read.keys_only or read.key in {LAYOUT.epoch, LAYOUT.time, b""}
            assert not read.range_end or read.limit == 1


@given(st.lists(_change_sets, min_size=1, max_size=5))
def test_RB_16_no_transaction_reads_an_older_state(changes: list[ChangeSet]) -> None:
    asks = [[Span(b"k%d" % n) for n in range(count)] for count in (1, 3, 256)]
    for request in (TRANSACTIONS.encode(changes, 1), reads.encode(TRANSACTIONS, LAYOUT, asks)):
        for _, level in _levels(request):
            assert all(op.request_range.revision == 0 for op in (*level.success, *level.failure))


def test_strong_reads_are_flat_and_hold_a_linearizable_range() -> None:
    request = reads.encode(TRANSACTIONS, LAYOUT, [[Span(b"a")], [Span(b"b", b"c", 5)], []])
    assert all(op.HasField("request_range") and not op.request_range.serializable for op in request.success)
    local = reads.encode(TRANSACTIONS, LAYOUT, [[Span(b"a")]], serializable=True)
    assert all(op.request_range.serializable for op in local.success)


def test_a_set_without_writes_still_reads_so_that_a_quorum_answers() -> None:
    for change in (ChangeSet(()), ChangeSet((Absent(b"k"),))):
        request = TRANSACTIONS.encode([change], None)
        assert request.success[0].HasField("request_range")
        assert not request.success[0].request_range.serializable


@given(_keys)
def test_the_ports_keys_never_reach_the_stores_own(key: bytes) -> None:
    for own in (LAYOUT.epoch, LAYOUT.time, LAYOUT.schema, LAYOUT.weight):
        start, end = LAYOUT.range(key)
        assert not start <= own < end
        start, end = LAYOUT.range(b"")
        assert not start <= own < end


@given(st.integers(0, 2**45), st.integers(0, 2**45))
def test_order_of_stored_instants_is_order_of_time(a: int, b: int) -> None:
    assert (encode_time(a) < encode_time(b)) == (a < b)
