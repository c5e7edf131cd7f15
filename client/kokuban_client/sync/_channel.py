"""What differs between event loops and threads: channels, waiting, cancelling. The other half of `_channel.py`."""

from __future__ import annotations

import inspect
import threading
import time
from typing import Any, TypeAlias

import grpc

from kokuban_client._channel_options import options_for

now_s = time.monotonic
LocallyCancelled = grpc.FutureCancelledError
Stream: TypeAlias = "grpc._CallIterator[Any]"  # noqa: SLF001 - the hints have no public name for it


_LOOK_AGAIN_S = 0.02
_UNANSWERED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})


def open_channel(address: str) -> grpc.Channel:
    """Give a channel of its own, not connected yet."""
    return grpc.insecure_channel(address, options=options_for(address))


def close_channel(channel: grpc.Channel) -> None:
    """Close a channel and cancel its calls."""
    channel.close()


def reach(channel: grpc.Channel, timeout_s: float, *, patient: bool) -> bool:
    """Connect, and say whether that worked in time. Impatient means to give up at the first refused attempt.

    A blocking channel tells its state only to a thread that looks around every 200 ms, and closing waits for that thread. So
    the server is asked for its health instead: whatever it answers, it answers over a connection that stands.
    """
    until_s = now_s() + timeout_s
    ask = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=bytes, response_deserializer=bytes)
    while (left_s := until_s - now_s()) > 0:
        try:
            ask(b"", timeout=left_s, wait_for_ready=patient)
        except grpc.RpcError as failure:
            if failure.code() is grpc.StatusCode.UNAVAILABLE and patient:
                pause(min(_LOOK_AGAIN_S, left_s))
                continue
            return failure.code() not in _UNANSWERED
        except ValueError:
            return False  # another thread has closed the channel
        return True
    return False


def pause(delay_s: float) -> None:
    """Wait before another attempt."""
    threading.Event().wait(delay_s)


def settled(outcome: Any) -> Any:  # noqa: ANN401 - whatever a caller's function gives
    """Give the outcome of a caller's function; raises TypeError if it would have to be awaited."""
    if inspect.isawaitable(outcome):
        if inspect.iscoroutine(outcome):
            outcome.close()
        raise TypeError("an asynchronous function needs the asynchronous client")
    return outcome


def next_response(call: Stream) -> Any:  # noqa: ANN401 - whatever the stream carries
    """Give the stream's next response, or None at its end."""
    return next(call, None)


def being_cancelled() -> bool:
    """Say no: threads are not cancelled."""
    return False
