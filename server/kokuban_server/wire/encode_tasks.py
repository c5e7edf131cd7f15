"""Tasks to responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban.v1 import task_pb2
from kokuban.v1 import task_service_pb2 as service_pb
from kokuban_server.core.revision import encode_token
from kokuban_server.core.subtasks import parent
from kokuban_server.core.task_progress import progress
from kokuban_server.core.tasks import StepStatus
from kokuban_server.wire.encode import entry, timestamp
from kokuban_server.wire.encode_locks import duration, granted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kokuban_server.app.reads import Found, Listing
    from kokuban_server.app.task_claims import Claimed
    from kokuban_server.app.task_reading import Standing
    from kokuban_server.core.task_progress import PartStanding, Progress
    from kokuban_server.core.tasks import Interrupt, TaskState, TaskStep

# The numbers of choices are the same on the wire and in the core.


def step(name: str, of: TaskStep, held: Collection[str]) -> task_pb2.Step:
    """Give a step."""
    terms = of.terms
    return task_pb2.Step(
        step=name,
        terms=task_pb2.StepTerms(
            depends_on=terms.depends_on,
            labels=sorted(terms.labels),
            priority=terms.priority,
            attempts_max=terms.attempts_max,
            back_off=duration(terms.back_off_ms) if terms.back_off_ms else None,
        ),
        status=of.status.value,  # type: ignore[arg-type]
        attempts=of.attempts,
        lock_id=of.lock_id,
        held=bool(of.lock_id) and of.lock_id in held,
        retry_time=timestamp(of.not_before_ms) if of.not_before_ms else None,
        added_event=of.added,
        claimed_event=of.claimed,
        checkpoint_event=of.checkpoint,
        config_fingerprint=of.fingerprint,
        ended_event=of.ended,
        dead_reason=of.dead_reason.value,  # type: ignore[arg-type]
        open_actions=[
            task_pb2.OpenAction(
                id=action,
                event=one.event,
                attempt=one.attempt,
                if_in_doubt=one.in_doubt.value,  # type: ignore[arg-type]
            )
            for action, one in sorted(of.actions.items())
        ],
    )


def _constraints(state: TaskState) -> list[task_pb2.Constraint]:
    return [task_pb2.Constraint(id=name, event=number) for name, number in sorted(state.constraints.items())]


def _interrupts(interrupts: Mapping[str, Interrupt]) -> list[task_pb2.Interrupt]:
    return [
        task_pb2.Interrupt(id=name, step=one.step, opened_event=one.opened, answered_event=one.answered)
        for name, one in interrupts.items()
    ]


def task(of: Standing) -> task_pb2.Task:
    """Give a task."""
    state = of.state
    counts = progress(state)
    return task_pb2.Task(
        task=of.region.id,
        status=state.status.value,  # type: ignore[arg-type]
        config_policy=state.config_policy.value,  # type: ignore[arg-type]
        steps=[step(name, one, of.held) for name, one in state.steps.items()],
        constraints=_constraints(state),
        interrupts=_interrupts(state.interrupts),
        last_event=of.last_event,
        subtasks=[_subtask(name, state, counts[name]) for name in state.subtasks],
        own_steps=_counts(counts[""].own),
        all_steps=_counts(counts[""].total),
    )


def _subtask(name: str, state: TaskState, counts: Progress) -> task_pb2.Subtask:
    of = state.subtasks[name]
    return task_pb2.Subtask(
        subtask=name,
        parent=parent(state.subtasks, name),
        status=task_pb2.SUBTASK_STATUS_COMPLETED if of.completed else task_pb2.SUBTASK_STATUS_OPEN,
        step=of.step,
        opened_event=of.opened,
        checkpoint_event=of.checkpoint,
        config_fingerprint=of.fingerprint,
        completed_event=of.completed,
        result_events=of.results,
        lesson_events=of.lessons,
        notes_expire_time=timestamp(of.notes_expire_ms) if of.notes_expire_ms else None,
        own_steps=_counts(counts.own),
        all_steps=_counts(counts.total),
    )


def _counts(of: Mapping[StepStatus, int]) -> task_pb2.StepCounts:
    return task_pb2.StepCounts(
        pending=of[StepStatus.PENDING],
        running=of[StepStatus.RUNNING],
        done=of[StepStatus.DONE],
        dead=of[StepStatus.DEAD],
    )


def event(found: Found, epoch: str) -> task_pb2.TaskEvent:
    """Give an event with the entry that it lies in."""
    key, record, revision, withheld = found
    lying = entry(key, record, revision, epoch, withheld=withheld)
    of = record.event
    if of is None:  # nothing that a task's mutation has written
        return task_pb2.TaskEvent(entry=lying)
    return task_pb2.TaskEvent(
        number=of.number,
        type=of.type.value,  # type: ignore[arg-type]
        step=of.step,
        id=of.subject,
        attempt=of.attempt,
        if_in_doubt=of.in_doubt.value,  # type: ignore[arg-type]
        usage=task_pb2.TokenUsage(input_tokens=of.usage[0], output_tokens=of.usage[1]) if of.usage else None,
        snapshot=of.snapshot,
        config_fingerprint=of.fingerprint,
        dead_reason=of.dead_reason.value,  # type: ignore[arg-type]
        entry=lying,
    )


def tasks(page: Sequence[Standing], next_page_token: str, revision: int, epoch: str) -> service_pb.ListTasksResponse:
    """Give a page of tasks."""
    return service_pb.ListTasksResponse(
        tasks=map(task, page), next_page_token=next_page_token, token=encode_token(epoch, revision)
    )


def events(page: Listing, epoch: str) -> service_pb.ListEventsResponse:
    """Give a page of events."""
    return service_pb.ListEventsResponse(
        events=[event(found, epoch) for found in page.found],
        next_page_token=page.next_page_token,
        token=encode_token(epoch, page.revision),
    )


def standing(of: PartStanding, revision: int, epoch: str) -> service_pb.WaitForTaskResponse:
    """Give how what somebody waits for stands."""
    subtask = task_pb2.SUBTASK_STATUS_UNSPECIFIED
    if of.is_completed is not None:
        subtask = task_pb2.SUBTASK_STATUS_COMPLETED if of.is_completed else task_pb2.SUBTASK_STATUS_OPEN
    return service_pb.WaitForTaskResponse(
        over=of.is_over,
        task_status=of.task.value,  # type: ignore[arg-type]
        step_status=of.step.value if of.step is not None else None,  # type: ignore[arg-type]
        subtask_status=subtask,
        ended_event=of.ended,
        token=encode_token(epoch, revision),
    )


def claimed(of: Claimed, epoch: str) -> service_pb.ClaimNextStepResponse:
    """Give a step that was given to a worker, and from where to go on."""
    resuming, state = of.resuming, of.state
    own = {name: one for name, one in state.interrupts.items() if one.step in {"", of.step}}
    below, last = resuming.subtask, resuming.subtask_checkpoint
    return service_pb.ClaimNextStepResponse(
        step=step(of.step, state.steps[of.step], {of.granted.lock_id}),
        granted=granted(of.granted, epoch),
        resume=service_pb.ResumeState(
            input=event(resuming.start, epoch) if resuming.start is not None else None,
            checkpoint=event(resuming.checkpoint, epoch) if resuming.checkpoint is not None else None,
            after_event=resuming.after_event,
            events=[event(found, epoch) for found in resuming.events],
            more=resuming.more,
            constraints=_constraints(state),
            interrupts=_interrupts(own),
            config_changed=of.config_changed,
            subtask=event(below, epoch) if below is not None else None,
            subtask_checkpoint=event(last, epoch) if last is not None else None,
        ),
    )
