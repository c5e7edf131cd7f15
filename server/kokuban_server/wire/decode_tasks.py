"""Requests about tasks to domain values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kokuban.v1 import commit_pb2, task_pb2
from kokuban_server.app.archives import ArchiveRequest
from kokuban_server.app.lock_asked import LockRequest
from kokuban_server.app.task_claims import ClaimRequest
from kokuban_server.core import limits
from kokuban_server.core.commit import RecordEvent
from kokuban_server.core.entry import Form, Value
from kokuban_server.core.locks import LockTarget, Mode
from kokuban_server.core.names import EntryKey, Region, parse_board, parse_path, parse_region
from kokuban_server.core.refusals import InvalidRequest
from kokuban_server.core.tasks import (
    EVENTS_PATH,
    ConfigPolicy,
    DeadReason,
    EventType,
    InDoubt,
    StepTerms,
    TaskEvent,
    TokenUsage,
    is_reserved,
)
from kokuban_server.wire.fields import duration_ms, lock_name, page_size, page_token, request_id, too_many, words
from kokuban_server.wire.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.protobuf.message import Message

    from kokuban.v1 import entry_pb2
    from kokuban.v1 import task_service_pb2 as service_pb

_NAME = re.compile(r"[A-Za-z0-9_.:@/=+,~-]{1,128}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NOTHING = Value(Form.TEXT, "")
_SUBJECTS: Final = {
    task_pb2.EVENT_TYPE_ACTION_STARTED: EventType.ACTION_STARTED,
    task_pb2.EVENT_TYPE_ACTION_DONE: EventType.ACTION_DONE,
    task_pb2.EVENT_TYPE_ACTION_FAILED: EventType.ACTION_FAILED,
    task_pb2.EVENT_TYPE_ACTION_SKIPPED: EventType.ACTION_SKIPPED,
    task_pb2.EVENT_TYPE_CONSTRAINT_SET: EventType.CONSTRAINT_SET,
    task_pb2.EVENT_TYPE_CONSTRAINT_WITHDRAWN: EventType.CONSTRAINT_WITHDRAWN,
    task_pb2.EVENT_TYPE_INTERRUPT_OPENED: EventType.INTERRUPT_OPENED,
    task_pb2.EVENT_TYPE_INTERRUPT_ANSWERED: EventType.INTERRUPT_ANSWERED,
}
"""What is appended by an agent and names something."""
_NAMED: Final = {
    task_pb2.EVENT_TYPE_NOTE: EventType.NOTE,
    task_pb2.EVENT_TYPE_SUBTASK_RESULT: EventType.SUBTASK_RESULT,
    task_pb2.EVENT_TYPE_SUBTASK_LESSON: EventType.SUBTASK_LESSON,
}
"""What is appended by an agent under a name of its own or none."""
_OF_SUBTASKS: Final = frozenset({EventType.SUBTASK_RESULT, EventType.SUBTASK_LESSON})
_OF_STEPS: Final = frozenset(
    {EventType.ACTION_STARTED, EventType.ACTION_DONE, EventType.ACTION_FAILED, EventType.ACTION_SKIPPED}
)
_OF_TASKS: Final = _OF_SUBTASKS | {
    EventType.CONSTRAINT_SET,
    EventType.CONSTRAINT_WITHDRAWN,
    EventType.INTERRUPT_ANSWERED,
}
_OUTCOMES: Final = {
    task_pb2.STEP_OUTCOME_DONE: (EventType.STEP_COMPLETED, DeadReason.NONE),
    task_pb2.STEP_OUTCOME_FAILED: (EventType.STEP_FAILED, DeadReason.NONE),
    task_pb2.STEP_OUTCOME_GIVEN_UP: (EventType.STEP_DEAD, DeadReason.GIVEN_UP),
    task_pb2.STEP_OUTCOME_YIELDED: (EventType.STEP_YIELDED, DeadReason.NONE),
}


def task_region(task: str, field: str = "task") -> Region:
    """Give the region of a task."""
    if not task:
        raise InvalidRequest("FIELD_REQUIRED", field, "a task must be named")
    return parse_region(f"task:{task}", field)


def _step(text: str, field: str) -> str:
    path = parse_path(text, field)
    if len(path.encode()) > limits.TASK_NAME_BYTES_MAX or is_reserved(path):
        raise InvalidRequest("FIELD_INVALID", field, f"at most {limits.TASK_NAME_BYTES_MAX} bytes, and not below .task")
    return path


def _name(text: str, field: str, *, required: bool = True) -> str:
    if not text:
        if required:
            raise InvalidRequest("FIELD_REQUIRED", field, "a name")
        return ""
    if not _NAME.fullmatch(text):
        raise InvalidRequest("FIELD_INVALID", field, "1 to 128 of letters, digits and _.:@/=+,~-")
    return text


def _names(texts: Sequence[str], field: str, most: int) -> list[str]:
    if len(texts) > most:
        raise too_many(field, most, len(texts))
    return [_name(text, f"{field}[{index}]") for index, text in enumerate(texts)]


def _terms(message: task_pb2.StepTerms, field: str) -> StepTerms:
    if len(message.depends_on) > limits.STEP_DEPENDENCIES_ENTRIES_MAX:
        raise too_many(f"{field}.depends_on", limits.STEP_DEPENDENCIES_ENTRIES_MAX, len(message.depends_on))
    depends_on = [_step(name, f"{field}.depends_on[{index}]") for index, name in enumerate(message.depends_on)]
    if not -limits.STEP_PRIORITY_POINTS_MAX <= message.priority <= limits.STEP_PRIORITY_POINTS_MAX:
        raise InvalidRequest("FIELD_INVALID", f"{field}.priority", "-1,000 to 1,000")
    attempts = message.attempts_max or limits.STEP_ATTEMPTS_DEFAULT
    if not 1 <= attempts <= limits.STEP_ATTEMPTS_MAX:
        raise InvalidRequest("FIELD_INVALID", f"{field}.attempts_max", "1 to 100")
    return StepTerms(
        tuple(dict.fromkeys(depends_on)),
        frozenset(_names(message.labels, f"{field}.labels", limits.STEP_LABELS_ENTRIES_MAX)),
        message.priority,
        attempts,
        duration_ms(message.back_off, f"{field}.back_off", 0, limits.STEP_BACK_OFF_MS_MAX),
    )


def _required(message: entry_pb2.Value, field: str, *, is_given: bool) -> Value:
    if not is_given:
        raise InvalidRequest("FIELD_REQUIRED", field, "a value")
    return value(message, field)


def _created(message: task_pb2.CreateTask) -> tuple[TaskEvent, Value, dict[str, str]]:
    policy = message.config_policy or task_pb2.CONFIG_POLICY_WARN
    try:
        config_policy = ConfigPolicy(policy)
    except ValueError:
        raise InvalidRequest("FIELD_INVALID", "config_policy", "WARN or REFUSE") from None
    goal = _required(message.goal, "goal", is_given=message.HasField("goal"))
    return TaskEvent(EventType.TASK_CREATED, config_policy=config_policy), goal, {}


def _added(message: task_pb2.AddStep) -> tuple[TaskEvent, Value, dict[str, str]]:
    new = message.step
    name = _step(new.step, "step.step")
    terms = _terms(new.terms, "step.terms")
    given = _required(new.input, "step.input", is_given=new.HasField("input"))
    return TaskEvent(EventType.STEP_ADDED, name, terms=terms), given, {}


def _appended(message: task_pb2.AppendEvent) -> tuple[TaskEvent, Value, dict[str, str]]:
    if not message.type:
        raise InvalidRequest("FIELD_REQUIRED", "type", "what happened")
    kind = _SUBJECTS.get(message.type) or _NAMED.get(message.type)
    if kind is None:
        raise InvalidRequest(
            "FIELD_INVALID", "type", "an action, a constraint, an interrupt, a note, or a result or lesson of a subtask"
        )
    step = _step(message.step, "step") if message.step or kind in _OF_STEPS else ""
    if step and kind in _OF_TASKS:
        raise InvalidRequest("FIELD_INVALID", "step", "constraints, answers, results and lessons are of no step")
    subject = _subject(message, kind)
    if message.name and kind in _SUBJECTS.values():
        raise InvalidRequest("FIELD_INVALID", "name", "of notes, results and lessons only")
    event = TaskEvent(
        kind,
        step,
        subject,
        in_doubt=_in_doubt(message, kind),
        usage=_usage(message.usage) if message.HasField("usage") else None,
        snapshot=_name(message.snapshot, "snapshot", required=False),
    )
    said = {}
    if message.error:
        said["error"] = words(message.error, "error", limits.EVENT_ERROR_BYTES_MAX)
    if message.name:
        said["name"] = words(message.name, "name", limits.TASK_NAME_BYTES_MAX)
    return event, _data(message.data, "data", is_given=message.HasField("data")), said


def _subject(message: task_pb2.AppendEvent, kind: EventType) -> str:
    """Give what an event is about: what its id names, or a subtask."""
    if kind in _OF_SUBTASKS:
        subject = _step(message.subtask, "subtask")
    elif message.subtask:
        raise InvalidRequest("FIELD_INVALID", "subtask", "of results and lessons only")
    elif kind is EventType.NOTE:
        subject = ""
    else:
        return _name(message.id, "id")
    if message.id:
        raise InvalidRequest("FIELD_INVALID", "id", "of actions, constraints and interrupts only")
    return subject


def _data(message: entry_pb2.Value, field: str, *, is_given: bool) -> Value:
    return value(message, field) if is_given else _NOTHING


def _in_doubt(message: task_pb2.AppendEvent, kind: EventType) -> InDoubt:
    if kind is not EventType.ACTION_STARTED:
        if message.if_in_doubt:
            raise InvalidRequest("FIELD_INVALID", "if_in_doubt", "of actions that begin only")
        return InDoubt.NONE
    if not message.if_in_doubt:
        raise InvalidRequest("FIELD_REQUIRED", "if_in_doubt", "RETRY, ASK or SKIP")
    try:
        return InDoubt(message.if_in_doubt)
    except ValueError:
        raise InvalidRequest("FIELD_INVALID", "if_in_doubt", "RETRY, ASK or SKIP") from None


def _usage(message: task_pb2.TokenUsage) -> TokenUsage:
    if message.input_tokens < 0 or message.output_tokens < 0:
        raise InvalidRequest("FIELD_INVALID", "usage", "0 or more")
    return TokenUsage(message.input_tokens, message.output_tokens)


def _saved(message: task_pb2.SaveCheckpoint) -> tuple[TaskEvent, Value, dict[str, str]]:
    if message.step and message.subtask:
        raise InvalidRequest("FIELD_INVALID", "subtask", "a checkpoint is of a step or of a subtask, not of both")
    fingerprint = _name(message.config_fingerprint, "config_fingerprint", required=False)
    state = _required(message.state, "state", is_given=message.HasField("state"))
    if message.subtask:
        subtask = _step(message.subtask, "subtask")
        return TaskEvent(EventType.SUBTASK_CHECKPOINT_SAVED, "", subtask, fingerprint=fingerprint), state, {}
    return TaskEvent(EventType.CHECKPOINT_SAVED, _step(message.step, "step"), fingerprint=fingerprint), state, {}


def _opened(message: task_pb2.OpenSubtask) -> tuple[TaskEvent, Value, dict[str, str]]:
    subtask = _step(message.subtask, "subtask")
    step = _step(message.step, "step") if message.step else ""
    goal = _required(message.goal, "goal", is_given=message.HasField("goal"))
    return TaskEvent(EventType.SUBTASK_OPENED, step, subtask), goal, {}


def _closed(message: task_pb2.CompleteSubtask) -> tuple[TaskEvent, Value, dict[str, str]]:
    subtask = _step(message.subtask, "subtask")
    summary = _required(message.summary, "summary", is_given=message.HasField("summary"))
    notes_ms = limits.SUBTASK_NOTES_MS_DEFAULT
    if message.HasField("notes_ttl"):
        notes_ms = duration_ms(message.notes_ttl, "notes_ttl", limits.EXPIRY_MS_MIN, limits.EXPIRY_MS_MAX)
    return TaskEvent(EventType.SUBTASK_COMPLETED, "", subtask, notes_expire_ms=notes_ms), summary, {}


def _revived(message: task_pb2.ReviveStep) -> tuple[TaskEvent, Value, dict[str, str]]:
    step = _step(message.step, "step")
    attempts = message.attempts or limits.STEP_ATTEMPTS_DEFAULT
    if not 1 <= attempts <= limits.STEP_ATTEMPTS_MAX:
        raise InvalidRequest("FIELD_INVALID", "attempts", "1 to 100")
    reason = words(message.reason, "reason", limits.REASON_BYTES_MAX)
    terms = StepTerms(attempts_max=attempts)
    return TaskEvent(EventType.STEP_REVIVED, step, terms=terms), Value(Form.TEXT, reason), {}


def _completed(message: task_pb2.CompleteStep) -> tuple[TaskEvent, Value, dict[str, str]]:
    name = _step(message.step, "step")
    if not message.outcome:
        raise InvalidRequest("FIELD_REQUIRED", "outcome", "DONE, FAILED, GIVEN_UP or YIELDED")
    found = _OUTCOMES.get(message.outcome)
    if found is None:
        raise InvalidRequest("FIELD_INVALID", "outcome", "DONE, FAILED, GIVEN_UP or YIELDED")
    kind, dead_reason = found
    said = {"error": words(message.error, "error", limits.EVENT_ERROR_BYTES_MAX)} if message.error else {}
    result = _data(message.result, "result", is_given=message.HasField("result"))
    return TaskEvent(kind, name, dead_reason=dead_reason), result, said


def _cancelled(message: task_pb2.CancelTask) -> tuple[TaskEvent, Value, dict[str, str]]:
    reason = words(message.reason, "reason", limits.REASON_BYTES_MAX, required=False)
    return TaskEvent(EventType.TASK_CANCELLED), Value(Form.TEXT, reason), {}


KINDS: Final[dict[str, Callable[[Any], tuple[TaskEvent, Value, dict[str, str]]]]] = {
    "create_task": _created,
    "add_step": _added,
    "append_event": _appended,
    "save_checkpoint": _saved,
    "complete_step": _completed,
    "cancel_task": _cancelled,
    "open_subtask": _opened,
    "complete_subtask": _closed,
    "revive_step": _revived,
}
"""The mutations of tasks."""
_DATA: Final = {
    "create_task": "goal",
    "append_event": "data",
    "save_checkpoint": "state",
    "complete_step": "result",
    "open_subtask": "goal",
    "complete_subtask": "summary",
}
_OWN_WORDS: Final = frozenset({"cancel_task", "revive_step"})
"""Those of which nothing is said but why."""


def event(kind: str, body: Any) -> tuple[EntryKey, RecordEvent]:  # noqa: ANN401 - the message of that mutation
    """Give the event that a mutation appends. Where it comes to lie is not known yet: the key names all events of its task."""
    region = task_region(body.task)
    happened, data, said = KINDS[kind](body)
    return EntryKey(region, EVENTS_PATH), RecordEvent(happened, data, said, kind)


def data_of(kind: str, body: Any) -> entry_pb2.Value:  # noqa: ANN401 - as above
    """Give the value that a mutation's event holds."""
    if kind in _OWN_WORDS:
        return commit_pb2.Put().value
    found: entry_pb2.Value = body.step.input if kind == "add_step" else getattr(body, _DATA[kind])
    return found


def provenance_of(kind: str, body: Any) -> entry_pb2.Provenance | None:  # noqa: ANN401 - as above
    """Give what is said of where that comes from."""
    if kind in _OWN_WORDS:
        return None
    holder = body.step if kind == "add_step" else body
    return holder.provenance if holder.HasField("provenance") else None


# The requests of TaskService. Those that write are shorthand for a commit.


def created(message: service_pb.CreateTaskRequest) -> commit_pb2.CommitRequest:
    """Give the commit that creates a task."""
    parse_board(message.board)
    if len(message.steps) > limits.TASK_STEPS_AT_ONCE_ENTRIES_MAX:
        raise too_many("steps", limits.TASK_STEPS_AT_ONCE_ENTRIES_MAX, len(message.steps))
    added = [task_pb2.AddStep(task=message.task.task, step=step) for step in message.steps]
    mutations = [
        commit_pb2.Mutation(create_task=message.task),
        *[commit_pb2.Mutation(add_step=step) for step in added],
    ]
    return commit_pb2.CommitRequest(
        board=message.board, request_id=message.request_id, mutations=mutations, session=message.session
    )


def resumed(message: service_pb.ResumeTaskRequest) -> commit_pb2.CommitRequest:
    """Give the commit that answers interrupts."""
    parse_board(message.board)
    if not message.answers:
        raise InvalidRequest("FIELD_REQUIRED", "answers", "at least one answer")
    if len(message.answers) > limits.TASK_STEPS_AT_ONCE_ENTRIES_MAX:
        raise too_many("answers", limits.TASK_STEPS_AT_ONCE_ENTRIES_MAX, len(message.answers))
    mutations = []
    for index, answer in enumerate(message.answers):
        if not answer.HasField("answer"):
            raise InvalidRequest("FIELD_REQUIRED", f"answers[{index}].answer", "a value")
        event = task_pb2.AppendEvent(
            task=message.task, type=task_pb2.EVENT_TYPE_INTERRUPT_ANSWERED, id=answer.id, data=answer.answer
        )
        if answer.HasField("provenance"):
            event.provenance.CopyFrom(answer.provenance)
        mutations.append(commit_pb2.Mutation(append_event=event))
    return commit_pb2.CommitRequest(
        board=message.board, request_id=message.request_id, mutations=mutations, session=message.session
    )


def cancelled(message: service_pb.CancelTaskRequest) -> commit_pb2.CommitRequest:
    """Give the commit that cancels a task."""
    mutation = commit_pb2.Mutation(cancel_task=message.task)
    return commit_pb2.CommitRequest(board=message.board, request_id=message.request_id, mutations=[mutation])


def get_task(message: service_pb.GetTaskRequest) -> tuple[str, Region]:
    """Give board and region."""
    return parse_board(message.board), task_region(message.task)


def list_tasks(message: service_pb.ListTasksRequest) -> tuple[str, int, str]:
    """Give board, page size and page token."""
    board = parse_board(message.board)
    return board, page_size(message.page_size, limits.TASK_PAGE_ENTRIES_MAX), page_token(message.page_token)


def list_events(message: service_pb.ListEventsRequest) -> tuple[str, Region, int, int, str]:
    """Give board, region, the number after which events are wanted, page size and page token."""
    board, region = parse_board(message.board), task_region(message.task)
    if not 0 <= message.after_event < 10**12:
        raise InvalidRequest("FIELD_INVALID", "after_event", "the number of an event, or 0")
    return board, region, message.after_event, page_size(message.page_size), page_token(message.page_token)


def export_task(message: service_pb.ExportTaskRequest) -> tuple[str, Region, str]:
    """Give board, region and page token."""
    return parse_board(message.board), task_region(message.task), page_token(message.page_token)


def archive_task(message: service_pb.ArchiveTaskRequest, digest: Callable[[bytes], bytes]) -> ArchiveRequest:
    """Give the request to archive a task."""
    return _archive_request(message, b"archive", digest)


def restore_task(message: service_pb.RestoreTaskRequest, digest: Callable[[bytes], bytes]) -> ArchiveRequest:
    """Give the request to bring back a part of a task. All parts are one request."""
    if len(message.lines) > limits.ARCHIVE_LINES_ENTRIES_MAX:
        raise too_many("lines", limits.ARCHIVE_LINES_ENTRIES_MAX, len(message.lines))
    return _archive_request(message, b"restore", digest)._replace(lines=message.lines)


def _archive_request(
    message: service_pb.ArchiveTaskRequest | service_pb.RestoreTaskRequest,
    act: bytes,
    digest: Callable[[bytes], bytes],
) -> ArchiveRequest:
    board = parse_board(message.board)
    id_time_ms = request_id(message.request_id)
    region = task_region(message.task)
    if not _DIGEST.fullmatch(message.digest):
        raise InvalidRequest("FIELD_INVALID", "digest", "64 hexadecimal digits, of the archive's manifest")
    asked = digest(b"\x00".join([act, board.encode(), region.id.encode(), message.digest.encode()]))
    return ArchiveRequest(board, message.request_id, id_time_ms, asked, region, message.digest)


def claim_next_step(
    message: service_pb.ClaimNextStepRequest, digest: Callable[[bytes], bytes], traceparent: str
) -> ClaimRequest:
    """Give the claim that is asked for."""
    board = parse_board(message.board)
    session_id = lock_name(message.session_id, "session_id")
    id_time_ms = request_id(message.request_id)
    region = task_region(message.task)
    labels = frozenset(_names(message.labels, "labels", limits.WORKER_LABELS_ENTRIES_MAX))
    purpose = words(message.purpose, "purpose", limits.LOCK_PURPOSE_BYTES_MAX)
    hold_ms, delay_ms = limits.LOCK_HOLD_MS_MAX, limits.LOCK_DELAY_MS_DEFAULT
    if message.HasField("hold_max"):
        hold_ms = duration_ms(message.hold_max, "hold_max", limits.LOCK_HOLD_MS_MIN, limits.LOCK_HOLD_MS_MAX)
    if message.HasField("lock_delay"):
        delay_ms = duration_ms(message.lock_delay, "lock_delay", 0, limits.LOCK_DELAY_MS_MAX)
    fingerprint = _name(message.config_fingerprint, "config_fingerprint", required=False)
    return ClaimRequest(
        board,
        session_id,
        message.request_id,
        id_time_ms,
        _digest(b"ClaimNextStep", message, digest),
        region,
        labels,
        purpose,
        hold_ms,
        delay_ms,
        fingerprint,
        traceparent,
    )


def wait_for_task(message: service_pb.WaitForTaskRequest, traceparent: str) -> LockRequest:
    """Give the wait that is asked for, as if it were for a lock on its part of the task's region."""
    board = parse_board(message.board)
    session_id = lock_name(message.session_id, "session_id")
    id_time_ms = request_id(message.request_id)
    target = LockTarget(task_region(message.task), _step(message.part, "part") if message.part else "", subtree=True)
    wait_ms = duration_ms(message.wait, "wait", limits.TASK_WAIT_MS_MIN, limits.LOCK_WAIT_MS_MAX)
    digest, mode = b"", Mode.EXCLUSIVE  # of a request that is not repeated, and holds nobody up
    return LockRequest(
        board, session_id, message.request_id, id_time_ms, digest, (target,), mode, "", wait_ms, 0, 0, traceparent
    )


def _digest(kind: bytes, message: Message, digest: Callable[[bytes], bytes]) -> bytes:
    return digest(kind + b"\x00" + message.SerializeToString(deterministic=True))
