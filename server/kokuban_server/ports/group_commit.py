"""Group commit, which every adapter shares: one batch is on its way, and what arrives meanwhile is the next."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kokuban_server.core.distribution import DURATION_BOUNDS_S, MEMBERS_BOUNDS, Distribution
from kokuban_server.core.grouping import Footprint, Group, footprint
from kokuban_server.core.refusals import OutcomeUnknown, StoreUnavailable
from kokuban_server.ports.tracing import TRACED

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized

    from kokuban_server.core.change_set import ChangeSet
    from kokuban_server.ports.tracing import Span

_LOOK_AHEAD = 4
"""How many batches' worth of waiting sets are looked through for one batch: bounds the work behind a contended key."""

_DEADLINE_CHECK_S = 0.02
"""How late a deadline may be noticed."""

Answer: TypeAlias = int | Exception
"""The revision at which a change set stands, or why it does not."""


class SendBatch(Protocol):
    """What an adapter does with a batch."""

    async def __call__(self, batch: Sequence[ChangeSet]) -> Sequence[Answer]:
        """Try independent change sets together; give one answer for each, in order. Raising fails them all alike."""
        ...


class _Waiter:
    """A change set and who waits for its answer."""

    __slots__ = ("answer", "change", "deadline", "sent", "span", "touched")

    def __init__(self, change: ChangeSet, touched: Footprint, answer: asyncio.Future[int], deadline: float) -> None:
        self.change = change
        self.touched = touched
        self.answer = answer
        self.deadline = deadline
        self.sent = False
        self.span = TRACED.get()

    def give_up(self) -> None:
        """The time is over: what was not sent has not happened, what was sent may have."""
        if not self.answer.done():
            late = "no answer within the deadline"
            self.answer.set_exception(OutcomeUnknown(detail=late) if self.sent else StoreUnavailable(late))


class BatchCounts:
    """How many change sets travelled together, and how long that took: counted for each batch, not for each set."""

    __slots__ = ("_waiting", "durations", "members")

    def __init__(self, waiting: Sized) -> None:
        self._waiting = waiting
        self.members = Distribution(MEMBERS_BOUNDS)
        self.durations = Distribution(DURATION_BOUNDS_S)

    @property
    def waiting_count(self) -> int:
        """How many change sets wait for the next batch."""
        return len(self._waiting)


class GroupCommit:
    """Collects change sets while a batch is on its way and sends them as the next.

    Bounded by members and bytes for each batch; a set that is not independent of those already in the batch waits for a
    later one and is that one's first.
    """

    def __init__(self, send: SendBatch, *, members_max: int, bytes_max: int, waiting_max: int = 4096) -> None:
        self._send = send
        self._members_max = members_max
        self._bytes_max = bytes_max
        self._waiting_max = waiting_max
        self._waiting: deque[_Waiter] = deque()
        self.counts = BatchCounts(self._waiting)
        self._under_way: list[_Waiter] = []
        self._running: asyncio.Task[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._closed = False

    async def commit(self, change: ChangeSet, deadline_s: float | None = None) -> int:
        """Have the change set sent; give the revision at which it stands.

        Cancelling the caller does not take the set back. When the deadline passes, a set that still waits is taken back
        (`StoreUnavailable`), and one that was sent has an unknown outcome. Raises `ValueError` for a set that writes a
        key twice.
        """
        if self._closed:
            raise StoreUnavailable("closed")
        if len(self._waiting) >= self._waiting_max:
            raise StoreUnavailable(f"{self._waiting_max} commits are waiting")
        loop = asyncio.get_running_loop()
        deadline = math.inf if deadline_s is None else loop.time() + deadline_s
        waiter = _Waiter(change, footprint(change), loop.create_future(), deadline)
        self._waiting.append(waiter)
        if self._running is None:
            self._running = loop.create_task(self._run(), name="group-commit")
        if self._watchdog is None:
            self._watchdog = loop.call_later(_DEADLINE_CHECK_S, self._check_deadlines)
        return await waiter.answer

    def _check_deadlines(self) -> None:
        """End the wait of those whose time is over. One timer for all: a timer for each would cost more than its set."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for waiter in (*self._waiting, *self._under_way):
            if waiter.deadline <= now:
                waiter.give_up()
        self._watchdog = None
        if self._running is not None:
            self._watchdog = loop.call_later(_DEADLINE_CHECK_S, self._check_deadlines)

    async def close(self) -> None:
        """Finish what was accepted; accept nothing more."""
        self._closed = True
        if self._running is not None:
            await asyncio.wait([self._running])
        if self._watchdog is not None:
            self._watchdog.cancel()

    async def _run(self) -> None:
        try:
            while self._waiting:
                if members := self._next():
                    await self._send_to(members)
        finally:
            self._running = None

    def _next(self) -> list[_Waiter]:
        """Take the next batch off the queue: the first that waits, and what is independent of it and of each other.

        What is passed over keeps its place, so the next batch begins with it. A set whose time is over is dropped; one
        whose caller was cancelled is not.
        """
        group = Group(members_max=self._members_max, bytes_max=self._bytes_max)
        members = []
        passed_over = []
        waiting = self._waiting
        for _ in range(min(len(waiting), _LOOK_AHEAD * self._members_max)):
            waiter = waiting.popleft()
            if waiter.answer.done() and not waiter.answer.cancelled():
                continue
            if group.admit(waiter.touched):
                waiter.sent = True
                members.append(waiter)
            else:
                passed_over.append(waiter)
                if group.full:
                    break
        waiting.extendleft(reversed(passed_over))
        return members

    async def _send_to(self, members: list[_Waiter]) -> None:
        answers: Sequence[Answer] = [OutcomeUnknown(detail="stopped on the way")] * len(members)
        self._under_way = members
        batch = _begin_span(members)
        begun = time.perf_counter()
        try:
            answers = await self._send([waiter.change for waiter in members])
        except Exception as error:  # noqa: BLE001 - every waiter must hear of it, whatever it is
            answers = [error] * len(members)
        finally:  # also when this task is cancelled, so that nobody waits for ever
            self._under_way = []
            self.counts.members.add(len(members))
            self.counts.durations.add(time.perf_counter() - begun)
            if batch is not None:
                batch.end()
            for waiter, answer in zip(members, answers, strict=True):
                if waiter.answer.done():
                    continue
                if isinstance(answer, int):
                    waiter.answer.set_result(answer)
                else:
                    waiter.answer.set_exception(answer)


def _begin_span(members: list[_Waiter]) -> Span | None:
    """Begin the batch's span, if one of its members is traced and recorded."""
    spans = [waiter.span for waiter in members]
    recorded = next((span for span in spans if span is not None and span.traceparent), None)
    return None if recorded is None else recorded.begin_batch(spans)
