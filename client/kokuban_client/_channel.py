"""What differs between event loops and threads: channels, waiting, cancelling. `sync/_channel.py` is its other half."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import grpc.aio

from kokuban_client._channel_options import options_for

if TYPE_CHECKING:
    from collections.abc import Awaitable

now_s = time.monotonic
LocallyCancelled = asyncio.CancelledError
Stream: TypeAlias = "grpc.aio.UnaryStreamCall[Any, Any]"


def open_channel(address: str) -> grpc.aio.Channel:
    """Give a channel of its own, not connected yet. Must run inside the event loop that will use it."""
    return grpc.aio.insecure_channel(address, options=options_for(address))


async def close_channel(channel: grpc.aio.Channel) -> None:
    """Close a channel and cancel its calls."""
    await channel.close()


async def reach(channel: grpc.aio.Channel, timeout_s: float, *, patient: bool) -> bool:
    """Connect, and say whether that worked in time. Impatient means to give up at the first refused attempt."""
    until_s, pause_s = now_s() + timeout_s, 0.001
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
        if state is grpc.ChannelConnectivity.SHUTDOWN:
            return False
        if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not patient:
            return False
        left_s = until_s - now_s()
        if left_s <= 0:
            return False
        # Not wait_for_state_change: a wait that is abandoned at a deadline stays registered until the state changes, so
        # calls that time out one after another during an outage would pile up.
        await asyncio.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 2, 0.05)
    return True


async def pause(delay_s: float) -> None:
    """Wait before another attempt."""
    await asyncio.sleep(delay_s)


async def settled(outcome: Any) -> Any:  # noqa: ANN401 - whatever a caller's function gives
    """Give the outcome of a caller's function, awaited if the function was asynchronous."""
    if inspect.isawaitable(outcome):
        waiting: Awaitable[Any] = outcome
        return await waiting
    return outcome


async def next_response(call: Stream) -> Any:  # noqa: ANN401 - whatever the stream carries
    """Give the stream's next response, or None at its end."""
    response = await call.read()
    return None if response is grpc.aio.EOF else response


def being_cancelled() -> bool:
    """Say whether the running task itself is being cancelled, rather than a call that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
