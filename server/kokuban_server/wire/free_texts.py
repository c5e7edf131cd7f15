"""The texts of a request, found by its message's own description, and put back masked.

Every field that can carry a text is named here, with what can be done with it. A field that is not is taken for a name, so that
what is found in it is refused: a new field is never forgotten, at worst it is treated too strictly. A test wants it named.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from google.protobuf.descriptor import FieldDescriptor

from kokuban_server.app.redactions import FreeText, Treatment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

WORDS, CONTENT, JSON = Treatment.WORDS, Treatment.CONTENT, Treatment.JSON
NAME, IDENTIFIER = Treatment.NAME, Treatment.IDENTIFIER

TREATMENTS: Final = {
    "AcquireLockRequest.purpose": WORDS,
    "AddStep.task": IDENTIFIER,
    "AddToSet.items": JSON,
    "AppendEvent.error": WORDS,
    "AppendEvent.id": NAME,
    "AppendEvent.name": NAME,
    "AppendEvent.snapshot": NAME,
    "AppendEvent.step": NAME,
    "AppendEvent.subtask": NAME,
    "AppendEvent.task": IDENTIFIER,
    "AppendToList.items": JSON,
    "BinaryValue.data": CONTENT,  # where it is UTF-8
    "BinaryValue.media_type": NAME,
    "BreakLockRequest.reason": WORDS,
    "CancelTask.reason": WORDS,
    "CancelTask.task": IDENTIFIER,
    "ClaimEntryRequest.purpose": WORDS,
    "ClaimNextStepRequest.config_fingerprint": NAME,
    "ClaimNextStepRequest.labels": NAME,
    "ClaimNextStepRequest.purpose": WORDS,
    "ClaimNextStepRequest.task": IDENTIFIER,
    "CommitRequest.reason": WORDS,
    "CompleteStep.error": WORDS,
    "CompleteStep.step": NAME,
    "CompleteStep.task": IDENTIFIER,
    "CompleteSubtask.subtask": NAME,
    "CompleteSubtask.task": IDENTIFIER,
    "CreateBoardRequest.board": IDENTIFIER,
    "CreateTask.task": IDENTIFIER,
    "DeclaredSource.name": IDENTIFIER,
    "DeclaredSource.uri": WORDS,
    "DeleteBoardRequest.reason": WORDS,
    "EndorseRequest.reason": WORDS,
    "EntryKey.path": NAME,
    "EntryKey.region": IDENTIFIER,
    "EraseSubjectRequest.reason": WORDS,
    "EraseSubjectRequest.user": IDENTIFIER,
    "FieldMask.paths": NAME,
    "InterruptAnswer.id": NAME,
    "LockTarget.path": NAME,
    "LockTarget.region": IDENTIFIER,
    "MergePatch.patch": JSON,
    "NewStep.step": NAME,
    "OpenSessionRequest.label": WORDS,
    "OpenSubtask.step": NAME,
    "OpenSubtask.subtask": NAME,
    "OpenSubtask.task": IDENTIFIER,
    "PurgeSourceRequest.reason": WORDS,
    "Put.metadata": CONTENT,  # the values; what they are called are names
    "RegionRule.pattern": IDENTIFIER,
    "ResumeTaskRequest.task": IDENTIFIER,
    "ReviewQuarantineRequest.reason": WORDS,
    "ReviveStep.reason": WORDS,
    "ReviveStep.step": NAME,
    "ReviveStep.task": IDENTIFIER,
    "SaveCheckpoint.config_fingerprint": NAME,
    "SaveCheckpoint.step": NAME,
    "SaveCheckpoint.subtask": NAME,
    "SaveCheckpoint.task": IDENTIFIER,
    "SetPolicyRequest.reason": WORDS,
    "SourceSelector.agent": IDENTIFIER,
    "SourceSelector.uri": WORDS,
    "SourceSelector.uri_pattern": NAME,
    "StepTerms.depends_on": NAME,
    "StepTerms.labels": NAME,
    "Subjects.subjects": IDENTIFIER,
    "ToolRule.name": IDENTIFIER,
    "Value.json": JSON,
    "Value.text": CONTENT,
}
"""What can be done with what a field carries, by message and field."""

SKIPPED: Final = {
    # They name a board that is there, under a name that was looked at when it was made. What is not there is kept nowhere
    # but in the audit log, which masks by itself.
    **dict.fromkeys(
        (
            *("AcquireLockRequest.board", "BreakLockRequest.board", "ClaimEntryRequest.board", "CommitRequest.board"),
            *("DeleteBoardRequest.board", "EndorseRequest.board", "OpenSessionRequest.board"),
            *("ReviewQuarantineRequest.board", "SetPolicyRequest.board", "PurgeSourceRequest.board"),
            *("EraseSubjectRequest.board", "CreateTaskRequest.board", "ClaimNextStepRequest.board"),
            *("ResumeTaskRequest.board", "CancelTaskRequest.board"),
        ),
        "a board's id",
    ),
    # Hexadecimal digits in a fixed number and form, or else refused: no text has room there.
    **dict.fromkeys(
        (
            *("AcquireLockRequest.request_id", "ClaimEntryRequest.request_id", "CommitRequest.request_id"),
            *("AcquireLockRequest.retry_of", "ClaimEntryRequest.retry_of"),
            *("CommitRequest.retry_of", "EndorseRequest.request_id", "OpenSessionRequest.request_id"),
            *("AcquireLockRequest.session_id", "ClaimEntryRequest.session_id", "CommitRequest.session"),
            *("BreakLockRequest.lock_id", "DeclaredSource.content_sha256", "Fence.epoch", "Fence.lock_id"),
            *("ReviewQuarantineRequest.ids", "Revision.epoch", "SourceSelector.content_sha256"),
            *("SourceSelector.session", "PurgeSourceRequest.plan", "EraseSubjectRequest.plan"),
            *("CreateTaskRequest.request_id", "CreateTaskRequest.session", "ClaimNextStepRequest.request_id"),
            *("ClaimNextStepRequest.session_id", "ResumeTaskRequest.request_id", "ResumeTaskRequest.session"),
            "CancelTaskRequest.request_id",
        ),
        "digits of one form",
    ),
    # `Value.external` is refused in a write.
    **dict.fromkeys(("ExternalValue.json", "ExternalValue.metadata", "ExternalValue.text"), "never in a write"),
}
"""Why a field is not looked at."""

_TEXTUAL: Final = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
_OF_MUTATION = re.compile(r"mutations\[([0-9]+)\]")


def texts_of(message: Message) -> list[FreeText]:
    """Give the texts of a request that could be kept or seen."""
    found: list[FreeText] = []
    _gather(message, _plan(message.DESCRIPTOR), "", None, found)
    return found


def words_of(message: Message) -> list[str]:
    """Give what `texts_of` gives, each text as it is searched, without saying where it stands: in half the time."""
    found: list[str] = []
    _gather_words(message, _plan(message.DESCRIPTOR), found)
    return found


def put_back(free: FreeText, text: str) -> None:
    """Put a text, masked or not, in the place of one that `texts_of` gave."""
    holder, slot = cast("tuple[Any, str | int]", free.origin)
    if hasattr(holder, "DESCRIPTOR"):
        is_bytes = isinstance(getattr(holder, str(slot)), bytes)
        setattr(holder, str(slot), text.encode() if is_bytes else text)
    else:
        holder[slot] = text


def free_text_fields(descriptor: Descriptor) -> set[str]:
    """Give each field of a request, or within it, that can carry a text, by message and field."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [descriptor]
    while waiting:
        message = waiting.pop()
        if message.full_name in seen or message.full_name in _NUMBERS:
            continue
        seen.add(message.full_name)
        for field in message.fields:
            if _is_map(field) or field.type in _TEXTUAL:
                found.add(f"{message.name}.{field.name}")
            elif field.message_type is not None:
                waiting.append(field.message_type)
    return found


_NUMBERS: Final = {"google.protobuf.Timestamp", "google.protobuf.Duration"}


class _Step(NamedTuple):
    """What is done with one field."""

    name: str
    treatment: Treatment | None
    """Nothing for a message."""
    is_list: bool
    is_map: bool
    plan: Mapping[int, _Step]
    """Of the message."""


@cache
def _plan(descriptor: Descriptor) -> Mapping[int, _Step]:
    """Give what to do with each field of a message that a text can be in."""
    steps = {}
    for field in descriptor.fields:
        name = f"{descriptor.name}.{field.name}"
        is_map = _is_map(field)
        if is_map or field.type in _TEXTUAL:
            if name not in SKIPPED:
                treatment = TREATMENTS.get(name, NAME)
                steps[field.number] = _Step(field.name, treatment, field.is_repeated, is_map, {})
        elif field.message_type is not None and field.message_type.full_name not in _NUMBERS:
            plan = _plan(field.message_type)
            if plan:
                steps[field.number] = _Step(field.name, None, field.is_repeated, is_map, plan)
    return steps


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _gather(
    message: Any,  # noqa: ANN401 - its fields are looked up by name
    plan: Mapping[int, _Step],
    place: str,
    mutation: int | None,
    found: list[FreeText],
) -> None:
    for field, value in message.ListFields():
        step = plan.get(field.number)
        if step is None:
            continue
        where = place + step.name
        if step.treatment is not None and not step.is_list and isinstance(value, str):
            found.append(FreeText(where, value, step.treatment, "", mutation, (message, step.name)))
        elif step.treatment is not None:
            found += _texts(message, value, step, step.treatment, where, mutation)
        elif step.is_list:
            for index, one in enumerate(value):
                at = index if where == "mutations" else mutation
                _gather(one, step.plan, f"{where}[{index}].", at, found)
        else:
            _gather(value, step.plan, f"{where}.", mutation, found)


def _gather_words(message: Any, plan: Mapping[int, _Step], found: list[str]) -> None:  # noqa: ANN401 - as above
    for field, value in message.ListFields():
        step = plan.get(field.number)
        if step is None:
            continue
        _, treatment, is_list, _, inner = step
        if treatment is None:
            for one in value if is_list else (value,):
                _gather_words(one, inner, found)
        elif isinstance(value, str):
            found.append(value)
        else:
            found += [text.searched for text in _texts(message, value, step, treatment, "", None)]


def _texts(
    message: Any,  # noqa: ANN401 - as above
    value: Any,  # noqa: ANN401 - a text, bytes, a list or a map
    step: _Step,
    treatment: Treatment,
    where: str,
    mutation: int | None,
) -> Iterator[FreeText]:
    """Give the texts of one field."""
    if step.is_map:
        for key, text in value.items():
            yield FreeText(where, key, NAME, "", mutation)
            yield FreeText(f"{where}[{key}]", text, treatment, key, mutation, (value, key))
    elif step.is_list:
        for index, text in enumerate(value):
            yield FreeText(f"{where}[{index}]", text, treatment, "", mutation, (value, index))
    else:
        text = _decoded(value) if isinstance(value, bytes) else value
        if text is not None:
            yield FreeText(where, text, treatment, "", mutation, (message, step.name))


def _decoded(raw: bytes) -> str | None:
    """Give the text that bytes are; nothing where they are none."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
