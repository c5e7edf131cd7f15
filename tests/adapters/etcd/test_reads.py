"""Strong reads that are sent together: each is sent, whenever it comes."""

from __future__ import annotations

import asyncio

import pytest

from kokuban.etcd.v1 import etcd_pb2 as pb
from kokuban_server.adapters.etcd.layout import Layout
from kokuban_server.adapters.etcd.reads import Reads, Span
from kokuban_server.adapters.etcd.transactions import Transactions

LAYOUT = Layout.below("test")


class Etcd:
    """Answers transactions, and notes how many reads each holds."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()

    async def send(self, request: pb.TxnRequest) -> pb.TxnResponse:
        self.sizes.append(len(request.success) - 1)
        self.asked.set()
        await self.answers.wait()
        response = pb.TxnResponse(succeeded=True)
        response.header.revision = len(self.sizes)
        response.responses.add().response_range.kvs.add(value=b"1")
        for _ in range(self.sizes[-1]):
            response.responses.add().response_range.SetInParent()
        return response


@pytest.fixture
def etcd() -> Etcd:
    return Etcd()


@pytest.fixture
def reads(etcd: Etcd) -> Reads:
    return Reads(LAYOUT, Transactions(LAYOUT, "0123456789abcdef"), etcd.send)


async def test_a_read_right_after_the_answer_to_another_is_sent(reads: Reads, etcd: Etcd) -> None:
    """By the same caller, with nobody else reading: there is nothing else that would send it."""
    async with asyncio.timeout(2):
        for number in range(1, 4):
            assert (await reads.read([Span(b"k")])).revision == number
    assert etcd.sizes == [1, 1, 1]
    await reads.close()


async def test_what_arrives_while_a_transaction_is_on_its_way_is_sent_together_after_it(
    reads: Reads, etcd: Etcd
) -> None:
    async with asyncio.timeout(2):
        etcd.answers.clear()
        first = asyncio.ensure_future(reads.read([Span(b"k")]))
        await etcd.asked.wait()
        others = [asyncio.ensure_future(reads.read([Span(b"k")])) for _ in range(5)]
        await asyncio.sleep(0)
        etcd.answers.set()
        assert (await first).revision == 1
        assert {answer.revision for answer in await asyncio.gather(*others)} == {2}
    assert etcd.sizes == [1, 5]
    await reads.close()
