"""What a member says is left of a lease, and what that means: also where a real one says it only for an instant."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest

from kokuban.etcd.v1 import etcd_pb2 as pb
from kokuban_server.adapters.etcd import EtcdSettings
from kokuban_server.adapters.etcd.channel import EtcdChannel
from kokuban_server.adapters.etcd.errors import EtcdError, Verdict
from kokuban_server.adapters.etcd.leases import Leases, _Line
from kokuban_server.ports.board_store import LeaseLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BOUND_S = 5.0
_WITHOUT_END_S = 9_223_372_036
"""What a leader that does not count yet tells."""

_Context = grpc.aio.ServicerContext[pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse]


@asynccontextmanager
async def member(answer: pb.LeaseTimeToLiveResponse | tuple[grpc.StatusCode, str]) -> AsyncIterator[Leases]:
    """Run a member that answers like this when it is asked what is left of lease 7; give the leases on it."""

    async def time_to_live(request: pb.LeaseTimeToLiveRequest, context: _Context) -> pb.LeaseTimeToLiveResponse:
        assert request.id == 7
        if isinstance(answer, tuple):
            await context.abort(*answer)
        return answer

    handler = grpc.unary_unary_rpc_method_handler(
        time_to_live,
        request_deserializer=pb.LeaseTimeToLiveRequest.FromString,
        response_serializer=pb.LeaseTimeToLiveResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("etcdserverpb.Lease", {"LeaseTimeToLive": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = EtcdChannel(EtcdSettings((f"127.0.0.1:{port}",)))
    leases = Leases(channel)
    try:
        yield leases
    finally:
        await leases.close()
        await channel.close()
        await server.stop(None)


@pytest.mark.parametrize(("ttl", "left_ms"), [(1, 1_000), (4, 4_000), (5, 5_000), (9, 5_000), (_WITHOUT_END_S, 5_000)])
async def test_no_more_is_left_of_a_lease_than_its_length(ttl: int, left_ms: int) -> None:
    async with member(pb.LeaseTimeToLiveResponse(id=7, ttl=ttl, granted_ttl=5)) as leases:
        assert await leases.left(7, BOUND_S) == left_ms


@pytest.mark.parametrize(
    "answer",
    [
        pb.LeaseTimeToLiveResponse(id=7, ttl=-1),
        pb.LeaseTimeToLiveResponse(id=7, ttl=0, granted_ttl=5),
        pb.LeaseTimeToLiveResponse(id=7, ttl=-3, granted_ttl=5),
        (grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found"),
    ],
)
async def test_a_lease_without_a_whole_second_is_lost(
    answer: pb.LeaseTimeToLiveResponse | tuple[grpc.StatusCode, str],
) -> None:
    async with member(answer) as leases:
        with pytest.raises(LeaseLost):
            await leases.left(7, BOUND_S)


async def test_a_member_that_cannot_tell_has_not_said_that_the_lease_is_lost() -> None:
    async with member((grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")) as leases:
        with pytest.raises(EtcdError) as caught:
            await leases.left(7, BOUND_S)
    assert caught.value.verdict is Verdict.NOT_DONE


class _SilentStream:
    """A stream on which requests can be written; what answers them is up to the test."""

    async def write(self, request: pb.LeaseKeepAliveRequest) -> None:
        """Take a request."""

    def cancel(self) -> None:
        """End."""


async def test_the_answer_to_a_renewal_that_was_given_up_is_not_that_of_the_next() -> None:
    line = _Line(cast("Any", _SilentStream()))
    given_up = asyncio.ensure_future(line.renew(7))
    await asyncio.sleep(0)
    given_up.cancel()
    following = asyncio.ensure_future(line.renew(7))
    await asyncio.sleep(0)
    line.answered(7, -1)
    await asyncio.sleep(0)
    assert not following.done()
    line.answered(7, 5)
    assert await following == 5


async def test_all_who_wait_on_a_broken_stream_hear_of_it() -> None:
    line = _Line(cast("Any", _SilentStream()))
    waiting = [asyncio.ensure_future(line.renew(lease)) for lease in (1, 1, 2)]
    await asyncio.sleep(0)
    line.failed(EtcdError(Verdict.UNKNOWN, "broken"))
    for renewal in waiting:
        with pytest.raises(EtcdError):
            await renewal
