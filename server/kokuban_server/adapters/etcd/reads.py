"""Strong reads that arrive together, answered by one linearizable transaction."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from kokuban_server.adapters.etcd.errors import EtcdError, Verdict
from kokuban_server.adapters.etcd.transactions import EpochChanged
from kokuban_server.core.refusals import StoreCorrupt

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from kokuban.etcd.v1 import etcd_pb2 as pb
    from kokuban_server.adapters.etcd.layout import Layout
    from kokuban_server.adapters.etcd.transactions import Transactions

_OPERATIONS_MAX: Final = 120
"""Reads in one level of a transaction: etcd's 128, less store time and some room."""


class Span(NamedTuple):
    """One key, or the keys from `start` up to and without `end`, as etcd knows them."""

    start: bytes
    end: bytes = b""
    limit: int = 0


class Found(NamedTuple):
    """What one transaction read."""

    revision: int
    store_time_ms: int
    ranges: tuple[pb.RangeResponse, ...]
    """In the order of the spans asked for."""


class _Ask(NamedTuple):
    spans: Sequence[Span]
    answer: asyncio.Future[Found]


def encode(
    transactions: Transactions, layout: Layout, asks: Sequence[Sequence[Span]], *, serializable: bool = False
) -> pb.TxnRequest:
    """Give the transaction that reads store time and all spans. Flat, unless one ask is too long for that."""
    request = transactions.begin()
    operations = request.success.add
    time = operations().request_range
    time.key = layout.time
    time.serializable = serializable
    for spans in asks:
        nested = len(spans) > _OPERATIONS_MAX
        for first in range(0, len(spans), _OPERATIONS_MAX):
            add = operations().request_txn.success.add if nested else operations
            for start, end, limit in spans[first : first + _OPERATIONS_MAX]:
                read = add().request_range
                read.key = start
                if end:
                    read.range_end = end
                    read.limit = limit
                if serializable:
                    read.serializable = True
    return request


def decode(layout: Layout, response: pb.TxnResponse, counts: Sequence[int]) -> list[Found]:
    """Give each ask's answer; `counts` are how many spans each asked for. Raises `EpochChanged`, `StoreCorrupt`."""
    if not response.succeeded:
        raise EpochChanged
    revision = response.header.revision
    time = response.responses[0].response_range.kvs
    if not time or not time[0].value.isdigit():
        raise StoreCorrupt(layout.time, "store time is missing or not a number")
    store_time_ms = int(time[0].value)
    found = []
    place = 1
    for count in counts:
        if count > _OPERATIONS_MAX:
            levels = -(-count // _OPERATIONS_MAX)
            inner = (op.response_txn.responses for op in response.responses[place : place + levels])
            ranges = tuple(op.response_range for level in inner for op in level)
            place += levels
        else:
            ranges = tuple(op.response_range for op in response.responses[place : place + count])
            place += count
        found.append(Found(revision, store_time_ms, ranges))
    return found


class Reads:
    """Collects reads and sends them together, one transaction at a time: with two, each would hold half as many.

    A read joins only a transaction that is sent after it arrived: one that is under way may have been judged before.
    """

    def __init__(
        self, layout: Layout, transactions: Transactions, send: Callable[[pb.TxnRequest], Awaitable[pb.TxnResponse]]
    ) -> None:
        self._layout = layout
        self._transactions = transactions
        self._send = send
        self._waiting: deque[_Ask] = deque()
        self._flight: asyncio.Task[None] | None = None

    async def read(self, spans: Sequence[Span]) -> Found:
        """Read in one consistent cut that holds everything acknowledged before. Raises what `send` raises."""
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Ask(spans, answer))
        if self._flight is None:
            self._flight = asyncio.create_task(self._fly(), name="etcd-reads")
        return await answer

    async def close(self) -> None:
        """Give up on what is under way: whoever waits gets an `EtcdError`."""
        if self._flight is not None:
            flight = self._flight
            flight.cancel()
            await asyncio.wait([flight])
        _fail(self._waiting, EtcdError(Verdict.REFUSED, "closed"))

    async def _fly(self) -> None:
        try:
            while asks := self._next():
                await self._carry(asks)
        finally:  # in the same turn as the last look, so that no read arrives unseen in between
            self._flight = None

    async def _carry(self, asks: list[_Ask]) -> None:
        try:
            request = encode(self._transactions, self._layout, [ask.spans for ask in asks])
            answers = decode(self._layout, await self._send(request), [len(ask.spans) for ask in asks])
        except asyncio.CancelledError:
            _fail(asks, EtcdError(Verdict.REFUSED, "closed"))
            raise
        except Exception as error:  # noqa: BLE001 - every waiter must hear of it, whatever it is
            _fail(asks, error)
            return
        for (_, answer), found in zip(asks, answers, strict=True):
            if not answer.done():
                answer.set_result(found)

    def _next(self) -> list[_Ask]:
        asks: list[_Ask] = []
        operations = 0
        while self._waiting:
            spans, answer = self._waiting[0]
            if answer.done():
                self._waiting.popleft()
                continue
            size = min(len(spans), _OPERATIONS_MAX)
            if asks and operations + size > _OPERATIONS_MAX:
                break
            asks.append(self._waiting.popleft())
            operations += size
        return asks


def _fail(asks: Iterable[_Ask], error: Exception) -> None:
    for _, answer in asks:
        if not answer.done():
            answer.set_exception(error)
