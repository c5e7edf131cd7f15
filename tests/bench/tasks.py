"""Tasks: events of steps that are worked on, and going on with a step behind a log of a certain length."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration

from kokuban.v1 import commit_pb2, entry_pb2, session_service_pb2, task_pb2, task_service_pb2

from .measurement import Measurement, closed_loop, measured
from .messages import BOARD, COMMIT, METADATA, new_request_id, text

if TYPE_CHECKING:
    import grpc

    from kokuban.v1 import lock_pb2

_LONG = Duration(seconds=3_600)
_STEP = "step"
_EVENTS_AT_ONCE = 31


class Worker:
    """A task of one step, and who works on it."""

    def __init__(self, channel: grpc.aio.Channel, task: str) -> None:
        self._open: Any = channel.unary_unary("/kokuban.v1.SessionService/OpenSession")  # bytes in, bytes out
        self._create: Any = channel.unary_unary("/kokuban.v1.TaskService/CreateTask")
        self._claim: Any = channel.unary_unary("/kokuban.v1.TaskService/ClaimNextStep")
        self._commit: Any = channel.unary_unary(COMMIT)
        self._task = task
        self._session = ""
        self._fence: lock_pb2.Fence | None = None
        self._count = 0

    async def begin(self) -> None:
        """Create the task, and claim its step."""
        opened = session_service_pb2.OpenSessionRequest(board=BOARD, request_id=new_request_id(), ttl=_LONG)
        raw = await self._open(opened.SerializeToString(), metadata=METADATA)
        self._session = session_service_pb2.OpenSessionResponse.FromString(raw).session.id
        words = entry_pb2.Value(text="to be measured")
        created = task_service_pb2.CreateTaskRequest(
            board=BOARD,
            request_id=new_request_id(),
            task=task_pb2.CreateTask(task=self._task, goal=words),
            steps=[task_pb2.NewStep(step=_STEP, input=words)],
        )
        await self._create(created.SerializeToString(), metadata=METADATA)
        await self.claim()

    async def claim(self) -> None:
        """Be given the step, with from where to go on."""
        claimed = task_service_pb2.ClaimNextStepRequest(
            board=BOARD,
            session_id=self._session,
            request_id=new_request_id(),
            task=self._task,
            purpose="to be measured",
        )
        raw = await self._claim(claimed.SerializeToString(), metadata=METADATA)
        self._fence = task_service_pb2.ClaimNextStepResponse.FromString(raw).granted.fence

    async def note(self) -> None:
        """Append one event."""
        await self.record(self._noted())

    async def work(self, events: int) -> None:
        """Append many events, with a checkpoint in each commit."""
        for begin in range(0, events, _EVENTS_AT_ONCE + 1):
            notes = min(_EVENTS_AT_ONCE, events - begin - 1)
            await self.record(*[self._noted("a short note") for _ in range(notes)], self._saved())

    async def give_back(self) -> None:
        """Save a checkpoint and give the step back."""
        end = task_pb2.CompleteStep(task=self._task, step=_STEP, outcome=task_pb2.STEP_OUTCOME_YIELDED)
        await self.record(self._saved(), commit_pb2.Mutation(complete_step=end))

    def _noted(self, words: str = "") -> commit_pb2.Mutation:
        self._count += 1
        note = task_pb2.AppendEvent(
            task=self._task,
            step=_STEP,
            type=task_pb2.EVENT_TYPE_NOTE,
            data=entry_pb2.Value(text=words or text(self._count)),
        )
        return commit_pb2.Mutation(append_event=note)

    def _saved(self) -> commit_pb2.Mutation:
        state = entry_pb2.Value(text=text(self._count))
        return commit_pb2.Mutation(save_checkpoint=task_pb2.SaveCheckpoint(task=self._task, step=_STEP, state=state))

    async def record(self, *mutations: commit_pb2.Mutation) -> None:
        """Commit something under the step's fence."""
        request = commit_pb2.CommitRequest(
            board=BOARD,
            request_id=new_request_id(),
            mutations=mutations,
            fences=[] if self._fence is None else [self._fence],
        )
        await self._commit(request.SerializeToString(), metadata=METADATA)


class TaskEvents:
    """Workers that each append events to a task of their own, one at a time, under the fence of its step."""

    def __init__(self, channel: grpc.aio.Channel, workers: int = 64) -> None:
        self._workers = [Worker(channel, f"events-{number}") for number in range(workers)]

    async def prepare(self) -> None:
        """Create the tasks, and claim their steps."""
        for worker in self._workers:
            await worker.begin()

    async def run(self, operations: int) -> Measurement:
        """Append."""
        return await closed_loop([partial(worker.note) for worker in self._workers], operations)


class Resumptions:
    """A worker that is given a step again and again, behind a log of so many events with checkpoints among them."""

    def __init__(self, channel: grpc.aio.Channel, events: int) -> None:
        self._events = events
        self._worker = Worker(channel, f"resume-{events}")

    async def prepare(self) -> None:
        """Claim the step. The work before the first measurement takes longer than a preparation may."""
        await self._worker.begin()

    async def run(self, operations: int) -> Measurement:
        """Claim the step, and give it back, which is not measured; at first, fill the log."""
        if self._events:
            await self._worker.work(self._events)
            await self._worker.give_back()
            self._events = 0
        latencies = []
        for _ in range(operations):
            begun = time.perf_counter()
            await self._worker.claim()
            latencies.append(time.perf_counter() - begun)
            await self._worker.give_back()
        return measured(operations, sum(latencies), latencies)
