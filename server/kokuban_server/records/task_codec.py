"""Tasks and their events to stored messages and back."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from kokuban.store.v1 import records_pb2 as pb
from kokuban_server.core.refusals import StoreCorrupt
from kokuban_server.core.subtasks import Subtask
from kokuban_server.core.tasks import (
    ConfigPolicy,
    DeadReason,
    EventType,
    InDoubt,
    Interrupt,
    OpenAction,
    RecordedAction,
    StepStatus,
    StepTerms,
    TaskEvent,
    TaskState,
    TaskStatus,
    TaskStep,
    TokenUsage,
)


def encode_event(event: TaskEvent) -> pb.TaskEventRecord:
    """Give the stored form of an event, beside the words in it."""
    message = pb.TaskEventRecord(
        number=event.number,
        type=event.type,
        step=event.step,
        subject=event.subject,
        attempt=event.attempt,
        lock_id=event.lock_id,
        in_doubt=event.in_doubt,
        config_policy=event.config_policy,
        fingerprint=event.fingerprint,
        not_before_ms=event.not_before_ms,
        dead_reason=event.dead_reason,
        snapshot=event.snapshot,
        notes_expire_ms=event.notes_expire_ms,
    )
    if event.terms is not None:
        message.terms.CopyFrom(_encode_terms(event.terms))
    if event.usage is not None:
        message.has_usage = True
        message.input_tokens, message.output_tokens = event.usage
    return message


def read_event(message: pb.TaskEventRecord) -> TaskEvent:
    """Give an event. Raises `ValueError`."""
    return TaskEvent(
        EventType(message.type),
        message.step,
        message.subject,
        message.number,
        message.attempt,
        message.lock_id,
        InDoubt(message.in_doubt),
        _terms(message.terms) if message.HasField("terms") else None,
        ConfigPolicy(message.config_policy),
        message.fingerprint,
        message.not_before_ms,
        DeadReason(message.dead_reason),
        TokenUsage(message.input_tokens, message.output_tokens) if message.has_usage else None,
        message.snapshot,
        message.notes_expire_ms,
    )


def _encode_terms(terms: StepTerms) -> pb.StepTermsRecord:
    depends_on, labels, priority, attempts_max, back_off_ms = terms
    return pb.StepTermsRecord(
        depends_on=depends_on,
        labels=sorted(labels),
        priority=priority,
        attempts_max=attempts_max,
        back_off_ms=back_off_ms,
    )


def _terms(message: pb.StepTermsRecord) -> StepTerms:
    return StepTerms(
        tuple(message.depends_on),
        frozenset(message.labels),
        message.priority,
        message.attempts_max,
        message.back_off_ms,
    )


def encode_log(last_event: int) -> bytes:
    """Give the stored form of the end of a task's log."""
    return pb.TaskLogRecord(last_event=last_event).SerializeToString()


def decode_log(key: bytes, raw: bytes) -> int:
    """Read the number of a task's last event."""
    try:
        return pb.TaskLogRecord.FromString(raw).last_event
    except DecodeError as error:
        raise StoreCorrupt(key, f"not the end of a log: {error}") from error


def encode_action(action: RecordedAction) -> bytes:
    """Give the stored form of what says that an action was recorded."""
    return pb.TaskActionRecord(event=action.event, type=action.type).SerializeToString()


def decode_action(key: bytes, raw: bytes) -> RecordedAction:
    """Read what says that an action was recorded."""
    try:
        message = pb.TaskActionRecord.FromString(raw)
        return RecordedAction(message.event, EventType(message.type))
    except (DecodeError, ValueError) as error:
        raise StoreCorrupt(key, f"not an action: {error}") from error


def encode_task(state: TaskState) -> bytes:
    """Give the stored form of how a task stands."""
    return pb.TaskRecord(
        status=state.status,
        config_policy=state.config_policy,
        steps=[_encode_step(name, step) for name, step in state.steps.items()],
        constraints=state.constraints,
        interrupts=[
            pb.TaskInterruptRecord(id=name, step=one.step, opened_event=one.opened, answered_event=one.answered)
            for name, one in state.interrupts.items()
        ],
        subtasks=[
            pb.TaskSubtaskRecord(
                subtask=name,
                step=one.step,
                opened_event=one.opened,
                checkpoint_event=one.checkpoint,
                fingerprint=one.fingerprint,
                completed_event=one.completed,
                result_events=one.results,
                lesson_events=one.lessons,
                notes_expire_ms=one.notes_expire_ms,
            )
            for name, one in state.subtasks.items()
        ],
    ).SerializeToString()


def _encode_step(name: str, step: TaskStep) -> pb.TaskStepRecord:
    return pb.TaskStepRecord(
        step=name,
        terms=_encode_terms(step.terms),
        status=step.status,
        attempts=step.attempts,
        lock_id=step.lock_id,
        not_before_ms=step.not_before_ms,
        added_event=step.added,
        claimed_event=step.claimed,
        checkpoint_event=step.checkpoint,
        fingerprint=step.fingerprint,
        ended_event=step.ended,
        dead_reason=step.dead_reason,
        actions={
            action: pb.OpenActionRecord(event=one.event, attempt=one.attempt, in_doubt=one.in_doubt)
            for action, one in step.actions.items()
        },
    )


def decode_task(key: bytes, raw: bytes) -> TaskState:
    """Read how a task stands."""
    try:
        message = pb.TaskRecord.FromString(raw)
        return TaskState(
            TaskStatus(message.status),
            ConfigPolicy(message.config_policy),
            {step.step: _step(step) for step in message.steps},
            dict(message.constraints),
            {one.id: Interrupt(one.step, one.opened_event, one.answered_event) for one in message.interrupts},
            {one.subtask: _subtask(one) for one in message.subtasks},
        )
    except (DecodeError, ValueError) as error:
        raise StoreCorrupt(key, f"not a task: {error}") from error


def _step(message: pb.TaskStepRecord) -> TaskStep:
    return TaskStep(
        _terms(message.terms),
        message.added_event,
        StepStatus(message.status),
        message.attempts,
        message.lock_id,
        message.not_before_ms,
        message.claimed_event,
        message.checkpoint_event,
        message.fingerprint,
        message.ended_event,
        DeadReason(message.dead_reason),
        {name: OpenAction(one.event, one.attempt, InDoubt(one.in_doubt)) for name, one in message.actions.items()},
    )


def _subtask(message: pb.TaskSubtaskRecord) -> Subtask:
    return Subtask(
        message.opened_event,
        message.step,
        message.checkpoint_event,
        message.fingerprint,
        message.completed_event,
        tuple(message.result_events),
        tuple(message.lesson_events),
        message.notes_expire_ms,
    )


def encode_notes(expire_time_ms: int) -> bytes:
    """Give the stored form of what says that working notes are to be given an expiry."""
    return pb.TaskNotesRecord(expire_time_ms=expire_time_ms).SerializeToString()


def decode_notes(key: bytes, raw: bytes) -> int:
    """Read when working notes are to end."""
    try:
        expire_time_ms = pb.TaskNotesRecord.FromString(raw).expire_time_ms
    except DecodeError as error:
        raise StoreCorrupt(key, f"not about notes: {error}") from error
    if not expire_time_ms:
        raise StoreCorrupt(key, "notes without a time")
    return expire_time_ms
