"""Tasks as a worker would call them with raw stubs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from kokuban.v1 import commit_pb2, entry_pb2, task_pb2, task_service_pb2, task_service_pb2_grpc, trust_pb2
from tests.wire.calls import lasting, new_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kokuban.v1 import lock_pb2
    from tests.wire.calls import Agent, Member

STARTED, DONE = task_pb2.EVENT_TYPE_ACTION_STARTED, task_pb2.EVENT_TYPE_ACTION_DONE
FAILED, SKIPPED = task_pb2.EVENT_TYPE_ACTION_FAILED, task_pb2.EVENT_TYPE_ACTION_SKIPPED
WANTED, UNWANTED = task_pb2.EVENT_TYPE_CONSTRAINT_SET, task_pb2.EVENT_TYPE_CONSTRAINT_WITHDRAWN
ASKED, ANSWERED = task_pb2.EVENT_TYPE_INTERRUPT_OPENED, task_pb2.EVENT_TYPE_INTERRUPT_ANSWERED
NOTE = task_pb2.EVENT_TYPE_NOTE
RESULT, LESSON = task_pb2.EVENT_TYPE_SUBTASK_RESULT, task_pb2.EVENT_TYPE_SUBTASK_LESSON
RETRY, ASK, SKIP = task_pb2.IN_DOUBT_POLICY_RETRY, task_pb2.IN_DOUBT_POLICY_ASK, task_pb2.IN_DOUBT_POLICY_SKIP


def text(words: str) -> entry_pb2.Value:
    return entry_pb2.Value(text=words)


def new_step(
    step: str,
    *depends_on: str,
    labels: Sequence[str] = (),
    back_off_s: float | None = None,
    **terms: Any,  # noqa: ANN401 - any term
) -> task_pb2.NewStep:
    made = task_pb2.StepTerms(depends_on=depends_on, labels=labels, **terms)
    if back_off_s is not None:
        made.back_off.CopyFrom(lasting(back_off_s))
    return task_pb2.NewStep(step=step, terms=made, input=text(f"do {step}"))


def create_request(
    task: str,
    *steps: str | task_pb2.NewStep,
    request_id: str = "",
    board: str = "main",
    **more: Any,  # noqa: ANN401 - any field of the task
) -> task_service_pb2.CreateTaskRequest:
    return task_service_pb2.CreateTaskRequest(
        board=board,
        request_id=request_id or new_id(),
        task=task_pb2.CreateTask(task=task, **{"goal": text("get it done"), **more}),
        steps=[new_step(step) if isinstance(step, str) else step for step in steps],
    )


def happened(
    task: str,
    kind: task_pb2.EventType.ValueType,
    subject: str = "",
    step: str = "",
    data: str | None = None,
    **more: Any,  # noqa: ANN401 - any field of the event
) -> commit_pb2.Mutation:
    """Append an event; an action that begins is retried if in doubt unless told otherwise."""
    if kind == STARTED:
        more.setdefault("if_in_doubt", RETRY)
    return commit_pb2.Mutation(
        append_event=task_pb2.AppendEvent(
            task=task, step=step, type=kind, id=subject, data=None if data is None else text(data), **more
        )
    )


def checkpoint(task: str, step: str, state: str, fingerprint: str = "", subtask: str = "") -> commit_pb2.Mutation:
    return commit_pb2.Mutation(
        save_checkpoint=task_pb2.SaveCheckpoint(
            task=task, step=step, state=text(state), config_fingerprint=fingerprint, subtask=subtask
        )
    )


def complete(task: str, step: str, outcome: str = "DONE", **more: Any) -> commit_pb2.Mutation:  # noqa: ANN401 - any field
    return commit_pb2.Mutation(
        complete_step=task_pb2.CompleteStep(
            task=task, step=step, outcome=task_pb2.StepOutcome.Value(f"STEP_OUTCOME_{outcome}"), **more
        )
    )


def add_step(task: str, step: str | task_pb2.NewStep) -> commit_pb2.Mutation:
    added = new_step(step) if isinstance(step, str) else step
    return commit_pb2.Mutation(add_step=task_pb2.AddStep(task=task, step=added))


def open_subtask(task: str, subtask: str, step: str = "", goal: str = "a part of it") -> commit_pb2.Mutation:
    return commit_pb2.Mutation(
        open_subtask=task_pb2.OpenSubtask(task=task, subtask=subtask, step=step, goal=text(goal))
    )


def complete_subtask(
    task: str, subtask: str, summary: str = "all of it", notes_s: float | None = None
) -> commit_pb2.Mutation:
    ended = task_pb2.CompleteSubtask(task=task, subtask=subtask, summary=text(summary))
    if notes_s is not None:
        ended.notes_ttl.CopyFrom(lasting(notes_s))
    return commit_pb2.Mutation(complete_subtask=ended)


def revive(task: str, step: str, attempts: int = 0, reason: str = "the page is back") -> commit_pb2.Mutation:
    return commit_pb2.Mutation(revive_step=task_pb2.ReviveStep(task=task, step=step, attempts=attempts, reason=reason))


class TaskWait:
    """A wait for a part of a task, on its stream."""

    def __init__(self, call: Any) -> None:  # noqa: ANN401 - no type of the stubs fits
        self.call = call

    async def next(self) -> task_service_pb2.WaitForTaskResponse:
        response = await self.call.read()
        if response is grpc.aio.EOF:
            raise StopAsyncIteration
        assert isinstance(response, task_service_pb2.WaitForTaskResponse)
        return response

    async def over(self) -> task_service_pb2.WaitForTaskResponse:
        """Read until it is over, which must be the end of the stream."""
        while True:
            response = await self.next()
            if response.over:
                assert await self.call.read() is grpc.aio.EOF
                return response

    async def ended(self) -> None:
        """Read until the refusal, and raise it."""
        while True:
            assert not (await self.next()).over

    def cancel(self) -> None:
        self.call.cancel()


class Tasks:
    """One agent's calls of tasks, with its session if it has one."""

    def __init__(self, agent: Agent, session: str = "") -> None:
        self.agent = agent
        self.session = session
        self.stub = task_service_pb2_grpc.TaskServiceStub(agent.channel)

    @classmethod
    def of(cls, member: Member) -> Tasks:
        return cls(member.agent, member.session)

    async def create(
        self,
        task: str,
        *steps: str | task_pb2.NewStep,
        **more: Any,  # noqa: ANN401 - as above
    ) -> task_service_pb2.CreateTaskResponse:
        answer: task_service_pb2.CreateTaskResponse = await self.stub.CreateTask(
            create_request(task, *steps, **more), metadata=self.agent.metadata
        )
        return answer

    async def get(self, task: str) -> task_pb2.Task:
        request = task_service_pb2.GetTaskRequest(board="main", task=task)
        return (await self.stub.GetTask(request, metadata=self.agent.metadata)).task

    async def step(self, task: str, step: str) -> task_pb2.Step:
        return next(one for one in (await self.get(task)).steps if one.step == step)

    async def page(self, **more: Any) -> task_service_pb2.ListTasksResponse:  # noqa: ANN401 - any field of the request
        request = task_service_pb2.ListTasksRequest(board="main", **more)
        answer: task_service_pb2.ListTasksResponse = await self.stub.ListTasks(request, metadata=self.agent.metadata)
        return answer

    async def events(self, task: str, after_event: int = 0, **more: Any) -> list[task_pb2.TaskEvent]:  # noqa: ANN401 - as above
        """Give every event behind one, over as many pages as there are."""
        found: list[task_pb2.TaskEvent] = []
        request = task_service_pb2.ListEventsRequest(board="main", task=task, after_event=after_event, **more)
        while True:
            page = await self.stub.ListEvents(request, metadata=self.agent.metadata)
            found += page.events
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return found

    async def claim(
        self,
        task: str,
        *labels: str,
        request_id: str = "",
        **more: Any,  # noqa: ANN401 - as above
    ) -> task_service_pb2.ClaimNextStepResponse:
        request = task_service_pb2.ClaimNextStepRequest(
            board="main",
            session_id=self.session,
            request_id=request_id or new_id(),
            task=task,
            labels=labels,
            **{"purpose": "to test", **more},
        )
        answer: task_service_pb2.ClaimNextStepResponse = await self.stub.ClaimNextStep(
            request, metadata=self.agent.metadata
        )
        return answer

    def wait_for(self, task: str, part: str = "", wait_s: float = 60, **more: Any) -> TaskWait:  # noqa: ANN401 - as above
        """Ask to wait, and give the stream."""
        request = task_service_pb2.WaitForTaskRequest(
            board="main",
            task=task,
            part=part,
            wait=lasting(wait_s),
            **{"session_id": self.session, "request_id": new_id(), **more},
        )
        return TaskWait(self.stub.WaitForTask(request, metadata=self.agent.metadata))

    async def waits_for(self, task: str, part: str = "", **more: Any) -> TaskWait:  # noqa: ANN401 - as above
        """Wait; comes back when it is known that somebody does."""
        waiting = self.wait_for(task, part, **more)
        assert not (await waiting.next()).over
        return waiting

    async def resume(self, task: str, **answers: str) -> task_pb2.Task:
        request = task_service_pb2.ResumeTaskRequest(
            board="main",
            request_id=new_id(),
            task=task,
            answers=[task_service_pb2.InterruptAnswer(id=name, answer=text(words)) for name, words in answers.items()],
        )
        return (await self.stub.ResumeTask(request, metadata=self.agent.metadata)).task

    async def cancel(self, task: str, reason: str = "no longer wanted") -> task_service_pb2.CancelTaskResponse:
        request = task_service_pb2.CancelTaskRequest(
            board="main", request_id=new_id(), task=task_pb2.CancelTask(task=task, reason=reason)
        )
        answer: task_service_pb2.CancelTaskResponse = await self.stub.CancelTask(request, metadata=self.agent.metadata)
        return answer

    async def record(self, fence: lock_pb2.Fence | None, *mutations: commit_pb2.Mutation, **more: Any) -> list[int]:  # noqa: ANN401 - of a commit
        """Commit mutations under a step's fence; give the numbers of their events."""
        answer = await self.agent.commit(*mutations, fences=[] if fence is None else [fence], **more)
        return [result.event_number for result in answer.results]


EXTERNAL = trust_pb2.TRUST_LEVEL_EXTERNAL
