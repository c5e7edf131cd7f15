"""Tasks as they travel: requests are built here, and answers turned into plain types."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

from kokuban.v1 import commit_pb2, task_pb2, task_service_pb2, task_service_pb2_grpc
from kokuban_client import types
from kokuban_client._wire import Mutation, duration, entry, time, value_message

if TYPE_CHECKING:
    import enum
    from collections.abc import Iterable, Mapping, Sequence

    from kokuban_client._wire import Provenance, Trusting

TaskServiceStub = task_service_pb2_grpc.TaskServiceStub
ClaimNextStepRequest: TypeAlias = task_service_pb2.ClaimNextStepRequest
ClaimNextStepResponse: TypeAlias = task_service_pb2.ClaimNextStepResponse
WaitForTaskRequest: TypeAlias = task_service_pb2.WaitForTaskRequest
WaitForTaskResponse: TypeAlias = task_service_pb2.WaitForTaskResponse
RestoreTaskResponse: TypeAlias = task_service_pb2.RestoreTaskResponse

_Enum = TypeVar("_Enum", bound="enum.StrEnum")


def _word(kind: type[_Enum], names: Mapping[int, str], prefix: str, number: int) -> _Enum:
    """Give the word for a choice; what a newer server says is unknown."""
    name = names.get(number, "").removeprefix(prefix)
    found = kind.__members__.get(name)
    return found if found is not None else kind["UNKNOWN"]


_STATUSES: Mapping[int, str] = {number: name for name, number in task_pb2.TaskStatus.items()}
_SUBTASK_STATUSES: Mapping[int, str] = {number: name for name, number in task_pb2.SubtaskStatus.items()}
_STEP_STATUSES: Mapping[int, str] = {number: name for name, number in task_pb2.StepStatus.items()}
_EVENT_TYPES: Mapping[int, str] = {number: name for name, number in task_pb2.EventType.items()}
_DEAD_REASONS: Mapping[int, str] = {number: name for name, number in task_pb2.DeadReason.items()}
_IN_DOUBT = {
    task_pb2.IN_DOUBT_POLICY_RETRY: types.InDoubt.RETRY,
    task_pb2.IN_DOUBT_POLICY_SKIP: types.InDoubt.SKIP,
}
"""What is not known is asked about."""


def new_step(step: types.NewStep | str) -> task_pb2.NewStep:
    """Give a step that is to be added; a bare name is also what to do."""
    if isinstance(step, str):
        step = types.NewStep(step, step)
    return task_pb2.NewStep(
        step=step.name,
        input=value_message(types.content_of(step.input)),
        terms=task_pb2.StepTerms(
            depends_on=step.depends_on,
            labels=step.labels,
            priority=step.priority,
            attempts_max=step.attempts_max,
            back_off=duration(step.back_off_s, "back_off_s") if step.back_off_s else None,
        ),
    )


def create_request(
    board: str, identity: str, task: str, goal: object, steps: Iterable[types.NewStep | str], *, refuses_config: bool
) -> task_service_pb2.CreateTaskRequest:
    """Give a request to begin a task."""
    policy = task_pb2.CONFIG_POLICY_REFUSE if refuses_config else task_pb2.CONFIG_POLICY_WARN
    made = task_pb2.CreateTask(task=task, goal=value_message(types.content_of(goal)), config_policy=policy)
    return task_service_pb2.CreateTaskRequest(
        board=board, request_id=identity, task=made, steps=[new_step(step) for step in steps]
    )


def get_request(board: str, task: str) -> task_service_pb2.GetTaskRequest:
    """Give a question how a task stands."""
    return task_service_pb2.GetTaskRequest(board=board, task=task)


def list_request(board: str, *, page_token: str) -> task_service_pb2.ListTasksRequest:
    """Give a question which tasks there are."""
    return task_service_pb2.ListTasksRequest(board=board, page_token=page_token)


def events_request(
    board: str, task: str, after_event: int, *, page_size: int, page_token: str, trusting: Trusting
) -> task_service_pb2.ListEventsRequest:
    """Give a question what happened."""
    return task_service_pb2.ListEventsRequest(
        board=board,
        task=task,
        after_event=after_event,
        page_size=page_size,
        page_token=page_token,
        floor=trusting.level,
        session=trusting.session,
    )


def claim_request(
    board: str,
    task: str,
    *,
    labels: Sequence[str],
    purpose: str,
    config_fingerprint: str,
    hold_max_s: float | None,
    lock_delay_s: float | None,
) -> ClaimNextStepRequest:
    """Give a request for a step; session and request id are filled in when it is sent."""
    return ClaimNextStepRequest(
        board=board,
        task=task,
        labels=labels,
        purpose=purpose,
        config_fingerprint=config_fingerprint,
        hold_max=None if hold_max_s is None else duration(hold_max_s, "hold_max_s"),
        lock_delay=None if lock_delay_s is None else duration(lock_delay_s, "lock_delay_s"),
    )


def resume_request(
    board: str, identity: str, task: str, answers: Mapping[str, object]
) -> task_service_pb2.ResumeTaskRequest:
    """Give answers to questions."""
    return task_service_pb2.ResumeTaskRequest(
        board=board,
        request_id=identity,
        task=task,
        answers=[
            task_service_pb2.InterruptAnswer(id=name, answer=value_message(types.content_of(answer)))
            for name, answer in answers.items()
        ],
    )


def cancel_request(board: str, identity: str, task: str, reason: str) -> task_service_pb2.CancelTaskRequest:
    """Give a request to end a task."""
    ended = task_pb2.CancelTask(task=task, reason=reason)
    return task_service_pb2.CancelTaskRequest(board=board, request_id=identity, task=ended)


def wait_request(named: tuple[str, str, str], session: str, identity: str, wait_s: float) -> WaitForTaskRequest:
    """Give a request to wait for a part of a task: board, task and part are named."""
    board, task, part = named
    return WaitForTaskRequest(
        board=board,
        session_id=session,
        request_id=identity,
        task=task,
        part=part,
        wait=duration(round(wait_s, 3), "wait_s"),
    )


def task_part(message: WaitForTaskResponse) -> types.TaskPart:
    """Give how a part of a task stands."""
    step, subtask = message.step_status, message.subtask_status
    return types.TaskPart(
        over=message.over,
        task_status=_word(types.TaskStatus, _STATUSES, "TASK_STATUS_", message.task_status),
        step_status=_word(types.StepStatus, _STEP_STATUSES, "STEP_STATUS_", step) if step else None,
        subtask_status=_word(types.SubtaskStatus, _SUBTASK_STATUSES, "SUBTASK_STATUS_", subtask) if subtask else None,
        ended_event=message.ended_event,
    )


def export_request(board: str, task: str, *, page_token: str) -> task_service_pb2.ExportTaskRequest:
    """Give a request for a part of a task's archive."""
    return task_service_pb2.ExportTaskRequest(board=board, task=task, page_token=page_token)


def archive_request(board: str, identity: str, task: str, digest: str) -> task_service_pb2.ArchiveTaskRequest:
    """Give a request to remove a task that was exported."""
    return task_service_pb2.ArchiveTaskRequest(board=board, request_id=identity, task=task, digest=digest)


def restore_request(
    board: str, identity: str, task: str, digest: str, lines: Sequence[str]
) -> task_service_pb2.RestoreTaskRequest:
    """Give a request to bring back a part of a task."""
    return task_service_pb2.RestoreTaskRequest(board=board, request_id=identity, task=task, digest=digest, lines=lines)


def event(
    kind: types.EventType,
    task: str,
    *,
    step: str = "",
    subject: str = "",
    data: object = "",
    if_in_doubt: types.InDoubt | None = None,
    name: str = "",
    error: str = "",
    subtask: str = "",
    provenance: Provenance | None = None,
) -> Mutation:
    """Give the mutation that records that something happened."""
    policy = "UNSPECIFIED" if if_in_doubt is None else if_in_doubt.name
    return commit_pb2.Mutation(
        append_event=task_pb2.AppendEvent(
            task=task,
            step=step,
            type=task_pb2.EventType.Value(f"EVENT_TYPE_{kind.name}"),
            id=subject,
            data=value_message(types.content_of(data)),
            if_in_doubt=task_pb2.InDoubtPolicy.Value(f"IN_DOUBT_POLICY_{policy}"),
            name=name,
            error=error,
            subtask=subtask,
            provenance=provenance,
        )
    )


def add_step(task: str, step: types.NewStep | str) -> Mutation:
    """Give the mutation that adds a step."""
    return commit_pb2.Mutation(add_step=task_pb2.AddStep(task=task, step=new_step(step)))


def checkpoint(task: str, step: str, state: object, config_fingerprint: str, *, subtask: str = "") -> Mutation:
    """Give the mutation that saves a checkpoint, of a step or of a subtask."""
    return commit_pb2.Mutation(
        save_checkpoint=task_pb2.SaveCheckpoint(
            task=task,
            step=step,
            state=value_message(types.content_of(state)),
            config_fingerprint=config_fingerprint,
            subtask=subtask,
        )
    )


def open_subtask(task: str, subtask: str, goal: object, *, step: str = "") -> Mutation:
    """Give the mutation that begins a subtask."""
    opened = task_pb2.OpenSubtask(task=task, subtask=subtask, step=step, goal=value_message(types.content_of(goal)))
    return commit_pb2.Mutation(open_subtask=opened)


def complete_subtask(task: str, subtask: str, summary: object, *, notes_ttl_s: float | None) -> Mutation:
    """Give the mutation that ends a subtask."""
    return commit_pb2.Mutation(
        complete_subtask=task_pb2.CompleteSubtask(
            task=task,
            subtask=subtask,
            summary=value_message(types.content_of(summary)),
            notes_ttl=None if notes_ttl_s is None else duration(notes_ttl_s, "notes_ttl_s"),
        )
    )


def revive(task: str, step: str, reason: str, attempts: int) -> Mutation:
    """Give the mutation that gives a dead step further attempts."""
    revived = task_pb2.ReviveStep(task=task, step=step, attempts=attempts, reason=reason)
    return commit_pb2.Mutation(revive_step=revived)


def complete(task: str, step: str, outcome: str, *, result: object = "", error: str = "") -> Mutation:
    """Give the mutation that ends the work on a step: `DONE`, `FAILED`, `GIVEN_UP` or `YIELDED`."""
    return commit_pb2.Mutation(
        complete_step=task_pb2.CompleteStep(
            task=task,
            step=step,
            outcome=task_pb2.StepOutcome.Value(f"STEP_OUTCOME_{outcome}"),
            result=value_message(types.content_of(result)),
            error=error,
        )
    )


def step(message: task_pb2.Step) -> types.TaskStep:
    """Give a step."""
    terms = message.terms
    dead = message.dead_reason
    return types.TaskStep(
        name=message.step,
        status=_word(types.StepStatus, _STEP_STATUSES, "STEP_STATUS_", message.status),
        attempts=message.attempts,
        attempts_max=terms.attempts_max,
        depends_on=tuple(terms.depends_on),
        labels=tuple(terms.labels),
        priority=terms.priority,
        held=message.held,
        retry_time=time(message.retry_time) if message.HasField("retry_time") else None,
        added_event=message.added_event,
        claimed_event=message.claimed_event,
        checkpoint_event=message.checkpoint_event,
        ended_event=message.ended_event,
        config_fingerprint=message.config_fingerprint,
        dead_reason=_word(types.DeadReason, _DEAD_REASONS, "DEAD_REASON_", dead) if dead else None,
        open_actions=tuple(
            types.OpenAction(one.id, one.event, one.attempt, _IN_DOUBT.get(one.if_in_doubt, types.InDoubt.ASK))
            for one in message.open_actions
        ),
    )


def _interrupts(messages: Iterable[task_pb2.Interrupt]) -> tuple[types.Interrupt, ...]:
    return tuple(types.Interrupt(one.id, one.step, one.opened_event, one.answered_event) for one in messages)


def task(message: task_pb2.Task) -> types.Task:
    """Give a task."""
    return types.Task(
        id=message.task,
        status=_word(types.TaskStatus, _STATUSES, "TASK_STATUS_", message.status),
        steps=tuple(map(step, message.steps)),
        constraints={one.id: one.event for one in message.constraints},
        interrupts=_interrupts(message.interrupts),
        last_event=message.last_event,
        subtasks=tuple(map(_subtask, message.subtasks)),
        own_steps=_counts(message.own_steps),
        all_steps=_counts(message.all_steps),
    )


def _subtask(message: task_pb2.Subtask) -> types.Subtask:
    return types.Subtask(
        name=message.subtask,
        parent=message.parent,
        status=_word(types.SubtaskStatus, _SUBTASK_STATUSES, "SUBTASK_STATUS_", message.status),
        step=message.step,
        opened_event=message.opened_event,
        checkpoint_event=message.checkpoint_event,
        config_fingerprint=message.config_fingerprint,
        completed_event=message.completed_event,
        result_events=tuple(message.result_events),
        lesson_events=tuple(message.lesson_events),
        notes_expire_time=time(message.notes_expire_time) if message.HasField("notes_expire_time") else None,
        own_steps=_counts(message.own_steps),
        all_steps=_counts(message.all_steps),
    )


def _counts(message: task_pb2.StepCounts) -> types.StepCounts:
    return types.StepCounts(message.pending, message.running, message.done, message.dead)


def task_event(message: task_pb2.TaskEvent, token: str = "") -> types.TaskEvent:
    """Give an event."""
    return types.TaskEvent(
        number=message.number,
        type=_word(types.EventType, _EVENT_TYPES, "EVENT_TYPE_", message.type),
        step=message.step,
        id=message.id,
        attempt=message.attempt,
        snapshot=message.snapshot,
        config_fingerprint=message.config_fingerprint,
        input_tokens=message.usage.input_tokens,
        output_tokens=message.usage.output_tokens,
        if_in_doubt=_IN_DOUBT.get(message.if_in_doubt, types.InDoubt.ASK) if message.if_in_doubt else None,
        entry=entry(message.entry, token),
    )


def resume_state(message: task_service_pb2.ResumeState) -> types.ResumeState:
    """Give from where to go on."""
    return types.ResumeState(
        input=task_event(message.input) if message.HasField("input") else None,
        checkpoint=task_event(message.checkpoint) if message.HasField("checkpoint") else None,
        after_event=message.after_event,
        events=tuple(map(task_event, message.events)),
        more=message.more,
        constraints={one.id: one.event for one in message.constraints},
        interrupts=_interrupts(message.interrupts),
        config_changed=message.config_changed,
        subtask=task_event(message.subtask) if message.HasField("subtask") else None,
        subtask_checkpoint=task_event(message.subtask_checkpoint) if message.HasField("subtask_checkpoint") else None,
    )
