"""What differs between event loops and threads: channels, waiting, cancelling. `sync/_channel.py` is its other half."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import grpc.aio

from kokuban_client._channel_options import credentials_of, options_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from kokuban_client._credentials import Tls

now_s = time.monotonic
LocallyCancelled = asyncio.CancelledError
Stream: TypeAlias = "grpc.aio.UnaryStreamCall[Any, Any]"


def open_channel(address: str, tls: Tls | None) -> grpc.aio.Channel:
    """Give a channel of its own, not connected yet. Must run inside the event loop that will use it."""
    options = options_for(address, tls)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials_of(tls), options=options)


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


Mutex = asyncio.Lock
"""What keeps two users of one client from doing the same thing at once."""


class Background:
    """Work that goes on beside its caller: a task, or a thread."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.create_task(work())

    @property
    def is_over(self) -> bool:
        """Whether the work has ended."""
        return self._task.done()

    async def join(self, timeout_s: float | None = None) -> None:
        """Wait until it has ended, or for that long. Work does not wait for itself."""
        if self._task is not asyncio.current_task():
            await asyncio.wait([self._task], timeout=timeout_s)


class Inbox:
    """What others leave for one who waits, in the order in which it came."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, item: object) -> None:
        """Leave something."""
        self._items.put_nowait(item)

    async def get(self, timeout_s: float) -> Any:  # noqa: ANN401 - whatever was left
        """Give the next thing, or None if nothing comes in time."""
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                return await self._items.get()
        except TimeoutError:
            return None


class Duplex:
    """A stream in both directions. What arrives is put into an inbox as `(this, response)`.

    Its end is put there too: as `(this, RpcError)`, or as `(this, None)` where it ended without one.
    """

    def __init__(
        self,
        method: grpc.aio.StreamStreamMultiCallable[Any, Any],
        metadata: tuple[tuple[str, str], ...],
        inbox: Inbox,
    ) -> None:
        self._call = method(metadata=metadata)
        self._inbox = inbox
        self._reader = Background(self._read)

    async def send(self, request: object, timeout_s: float) -> None:
        """Send a request. If that fails, the stream ends, and the inbox says so."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._call.write(request)
        except (grpc.RpcError, asyncio.InvalidStateError, TimeoutError):
            self._call.cancel()
        except asyncio.CancelledError:
            if being_cancelled():
                raise
            self._call.cancel()  # grpc tells its own call's end as a cancellation of ours

    async def _read(self) -> None:
        end: grpc.RpcError | None = None
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                self._inbox.put((self, response))
        except grpc.RpcError as failure:
            end = failure
        except asyncio.CancelledError:
            if being_cancelled():
                raise
        finally:
            self._inbox.put((self, end))

    async def close(self) -> None:
        """Cancel the stream and wait until nothing more can arrive."""
        self._call.cancel()
        await self._reader.join()


class Block:
    """The code under `async with` that must be stopped when what it relies on is gone: the task that runs it."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lock is held by a task")
        self._task = task
        self._cancelling = task.cancelling()
        self._interrupted = False
        self._left = False

    @property
    def is_running_here(self) -> bool:
        """Whether it is this very code that asks."""
        return asyncio.current_task() is self._task

    def interrupt(self) -> None:
        """Cancel the block, once, unless it has been left."""
        if not self._left and not self._interrupted:
            self._interrupted = True
            self._task.cancel()

    async def leave(self, kind: type[BaseException] | None) -> bool:
        """Take an interruption back at the end of the block, and say whether it was all that ended the block.

        As with `asyncio.timeout`, a cancellation from outside goes on.
        """
        self._left = True
        if not self._interrupted:
            return False
        alone = self._task.uncancel() <= self._cancelling
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        if alone and not cancelled:
            # Asked for, but not delivered before the block ended by itself. Before Python 3.13 it would still come.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self._task.cancelling() > self._cancelling:
                    raise
        return alone and cancelled
