"""What differs between event loops and threads: channels, waiting, cancelling. The other half of `_channel.py`."""

from __future__ import annotations

import inspect
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from kokuban_client._channel_options import credentials_of, options_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from kokuban_client._credentials import Tls

now_s = time.monotonic
LocallyCancelled = grpc.FutureCancelledError
Stream: TypeAlias = "grpc._CallIterator[Any]"  # noqa: SLF001 - the hints have no public name for it


_LOOK_AGAIN_S = 0.02
_UNANSWERED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})


def open_channel(address: str, tls: Tls | None) -> grpc.Channel:
    """Give a channel of its own, not connected yet."""
    options = options_for(address, tls)
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, credentials_of(tls), options=options)


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


Mutex = threading.Lock
"""What keeps two users of one client from doing the same thing at once."""


class Background:
    """Work that goes on beside its caller: a task, or a thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="kokuban", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the work has ended."""
        return not self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until it has ended, or for that long. Work does not wait for itself."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


class Inbox:
    """What others leave for one who waits, in the order in which it came."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, item: object) -> None:
        """Leave something."""
        self._items.put(item)

    def get(self, timeout_s: float) -> Any:  # noqa: ANN401 - whatever was left
        """Give the next thing, or None if nothing comes in time."""
        try:
            return self._items.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None


class Duplex:
    """A stream in both directions. What arrives is put into an inbox as `(this, response)`.

    Its end is put there too: as `(this, RpcError)`, or as `(this, None)` where it ended without one.
    """

    def __init__(
        self,
        method: grpc.StreamStreamMultiCallable[Any, Any],
        metadata: tuple[tuple[str, str], ...],
        inbox: Inbox,
    ) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # gRPC reads the requests in a thread of its own, until None tells it that there are no more.
        self._call = method(iter(self._requests.get, None), metadata=metadata)
        self._inbox = inbox
        self._reader = Background(self._read)

    def send(self, request: object, timeout_s: float) -> None:  # noqa: ARG002 - nothing waits here
        """Send a request. If that fails, the stream ends, and the inbox says so."""
        self._requests.put(request)

    def _read(self) -> None:
        end: grpc.RpcError | None = None
        try:
            for response in self._call:
                self._inbox.put((self, response))
        except grpc.RpcError as failure:
            end = failure
        finally:
            self._requests.put(None)
            self._inbox.put((self, end))

    def close(self) -> None:
        """Cancel the stream and wait until nothing more can arrive."""
        self._requests.put(None)
        self._call.cancel()
        self._reader.join()


class Block:
    """The code under `with`. A thread cannot be stopped from outside: it must ask (`check`)."""

    @property
    def is_running_here(self) -> bool:
        """Say no: nothing will be stopped here."""
        return False

    def interrupt(self) -> None:
        """Do nothing."""

    def leave(self, kind: type[BaseException] | None) -> bool:  # noqa: ARG002 - as its other half
        """Say that no interruption ended the block."""
        return False
