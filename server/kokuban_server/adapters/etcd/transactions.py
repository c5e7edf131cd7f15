"""Change sets to etcd transactions, and their answers back.

Several change sets travel as nested transactions of one. etcd then judges every comparison against the state before all of
them, which is right because the members of a batch are independent (`core.grouping`). Store time is the exception: it moves
in a nested transaction of its own, the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kokuban.etcd.v1 import etcd_pb2 as pb
from kokuban_server.adapters.etcd.layout import encode_time
from kokuban_server.core.change_set import (
    Absent,
    AtRevision,
    CreatedAt,
    DeleteKey,
    GuardFailure,
    NoneBelow,
    TimeBefore,
)
from kokuban_server.ports.board_store import CommitRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban_server.adapters.etcd.layout import Layout
    from kokuban_server.core.change_set import ChangeSet, Guard
    from kokuban_server.ports.group_commit import Answer

OPERATIONS_MAX: Final = 128
"""etcd's `--max-txn-ops`: what a level uses is taken off what the levels inside may use."""
REQUEST_BYTES_MAX: Final = 1_500_000
"""Below etcd's limit of 1.5 MiB, with room for what the cluster wraps around a request."""

_PART_BYTES: Final = 16
_EQUAL, _LESS = pb.Compare.EQUAL, pb.Compare.LESS
_VERSION, _CREATE, _MOD, _VALUE = pb.Compare.VERSION, pb.Compare.CREATE, pb.Compare.MOD, pb.Compare.VALUE


class EpochChanged(Exception):  # noqa: N818 - an answer, not an error
    """The cluster is in another life of the store than this server: it was restored."""


def split(changes: Sequence[ChangeSet], prefix_bytes: int) -> list[list[ChangeSet]]:
    """Spread a batch over as few transactions as etcd's bounds need, in order."""
    parts: list[list[ChangeSet]] = []
    deepest = size = 0
    for change in changes:
        operations = change.operations
        own = _request_bytes(change, prefix_bytes)
        if (
            not parts
            or len(parts[-1]) + 2 + max(deepest, operations) > OPERATIONS_MAX  # this member, and store time
            or size + own > REQUEST_BYTES_MAX
        ):
            parts.append([])
            deepest = size = 0
        parts[-1].append(change)
        deepest = max(deepest, operations)
        size += own
    return parts


def _request_bytes(change: ChangeSet, prefix_bytes: int) -> int:
    """Give an upper bound of what the set takes in a request: each guard's key stands there twice."""
    parts = 2 * len(change.guards) + len(change.puts) + 2 * len(change.deletes)
    return change.size_bytes + parts * (_PART_BYTES + prefix_bytes)


class Transactions:
    """Makes the transactions of one store."""

    def __init__(self, layout: Layout, epoch: str) -> None:
        self._layout = layout
        self._data = layout.data
        self._epoch = epoch.encode()

    def begin(self) -> pb.TxnRequest:
        """Give a transaction that does nothing unless the store is in the life this server knows."""
        request = pb.TxnRequest()
        request.compare.add(result=_EQUAL, target=_VALUE, key=self._layout.epoch, value=self._epoch)
        return request

    def encode(self, changes: Sequence[ChangeSet], now_ms: int | None) -> pb.TxnRequest:
        """Give the transaction of independent change sets, moving store time up to `now_ms` if that is given."""
        request = self.begin()
        operations = request.success.add
        request.failure.add().request_range.key = self._layout.epoch
        if len(changes) == 1:
            self._fill(request, changes[0])
        else:
            for change in changes:
                nested = operations().request_txn
                nested.SetInParent()  # a set that asks for nothing is a member all the same
                self._fill(nested, change)
            if any(change.puts for change in changes):
                # etcd counts puts towards its bound on size only at the outermost level, but there in both branches. This
                # one would be done only in another life of the store, where the key means nothing either.
                put = request.failure.add().request_put
                put.key = self._layout.weight
        if now_ms is not None:
            time = encode_time(now_ms)
            nested = operations().request_txn
            nested.compare.add(result=_LESS, target=_VALUE, key=self._layout.time, value=time)
            put = nested.success.add().request_put
            put.key = self._layout.time
            put.value = time
        if len(changes) == 1 and not request.success:
            # A transaction that only compares is answered by a member without its quorum; with a read in it, it is not.
            operations().request_range.key = self._layout.epoch
        return request

    def decode(self, changes: Sequence[ChangeSet], response: pb.TxnResponse) -> list[Answer]:
        """Give each set's answer. Raises `EpochChanged`."""
        revision = response.header.revision
        if response.succeeded:
            if len(changes) == 1:
                return [revision]
            answers: list[Answer] = []
            for change, operation in zip(changes, response.responses, strict=False):  # store time's answer is left over
                inner = operation.response_txn
                answers.append(revision if inner.succeeded else self._refusal(change, inner.responses))
            return answers
        found = response.responses[0].response_range.kvs
        if len(changes) != 1 or not found or found[0].value != self._epoch:
            raise EpochChanged  # above several sets, the epoch is all that is compared
        return [self._refusal(changes[0], response.responses[1:])]

    def _fill(self, request: pb.TxnRequest, change: ChangeSet) -> None:
        data = self._data
        compare = request.compare.add
        failure = request.failure.add
        for guard in change.guards:
            kind = type(guard)
            if kind is AtRevision:
                key = data + guard[0]  # type: ignore[operator] # the kind says so; indexing is faster than a name here
                compare(target=_MOD, key=key, mod_revision=guard[1])  # type: ignore[misc] # as above
            elif kind is Absent:
                key = data + guard[0]  # type: ignore[operator] # as above
                compare(target=_VERSION, key=key, version=0)
            elif kind is CreatedAt:
                key = data + guard[0]  # type: ignore[operator] # as above
                compare(target=_CREATE, key=key, create_revision=guard[1])  # type: ignore[misc] # as above
            else:
                self._fill_rare(request, guard)
                continue
            read = failure().request_range
            read.key = key
            read.keys_only = True
        success = request.success.add
        for put_key, value, lease in change.puts:
            put = success().request_put
            put.key = data + put_key
            put.value = value
            if lease is not None:
                put.lease = lease
        for delete in change.deletes:
            remove = success().request_delete_range
            if isinstance(delete, DeleteKey):
                remove.key = data + delete.key
            else:
                remove.key = data + delete.start
                remove.range_end = data + delete.end

    def _fill_rare(self, request: pb.TxnRequest, guard: Guard) -> None:
        read = request.failure.add().request_range
        if isinstance(guard, TimeBefore):
            request.compare.add(result=_LESS, target=_VALUE, key=self._layout.time, value=encode_time(guard.instant_ms))
            read.key = self._layout.time
        elif isinstance(guard, NoneBelow):
            start, end = self._layout.range(guard.prefix)
            request.compare.add(target=_VERSION, key=start, range_end=end, version=0)
            read.key = start
            read.range_end = end
            read.limit = 1
            read.keys_only = True

    @staticmethod
    def _refusal(change: ChangeSet, responses: Sequence[pb.ResponseOp]) -> CommitRefused:
        """Find every guard that does not hold from what the failure branch read."""
        failures = []
        for place, (guard, operation) in enumerate(zip(change.guards, responses, strict=True)):
            found = operation.response_range.kvs
            if isinstance(guard, TimeBefore):
                time_ms = int(found[0].value) if found else 0
                if time_ms >= guard.instant_ms:
                    failures.append(GuardFailure(place, time_ms, found[0].create_revision))
                continue
            revision, created = (found[0].mod_revision, found[0].create_revision) if found else (0, 0)
            if isinstance(guard, AtRevision):
                holds = revision == guard.revision
            elif isinstance(guard, CreatedAt):
                holds = created == guard.revision
            else:
                holds = not found
            if not holds:
                failures.append(GuardFailure(place, revision, created))
        return CommitRefused(tuple(failures))
