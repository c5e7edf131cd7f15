"""What of a write is text that others will see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kokuban_server.core import json_values
from kokuban_server.core.commit import AddToSet, AppendToList, MergePatch, Put, RecordEvent
from kokuban_server.core.entry import Form

if TYPE_CHECKING:
    from kokuban_server.core.commit import Step
    from kokuban_server.core.entry import EntryRecord, Value


def text_of(step: Step, reason: str) -> str:
    """Give everything that a mutation says in words, one thing a line: so that what is spread over them is seen together."""
    mutation = step.mutation
    labels = []
    if isinstance(mutation, Put) and mutation.metadata is not None:
        labels = [f"{name}: {text}" for name, text in mutation.metadata.set.items()]
    elif isinstance(mutation, RecordEvent):
        event = mutation.event
        labels = [*mutation.words.values(), event.step, event.subject, event.fingerprint, event.snapshot]
    return "\n".join(filter(None, [words_of(step), *labels, step.target.key.path, reason]))


def text_of_state(state: EntryRecord, path: str) -> str:
    """Give everything that an entry's state says in words, likewise."""
    said = [words_of_state(state)]
    said += [f"{name}: {text}" for name, text in state.metadata.items()]
    event = state.event
    if event is not None:
        said += [event.step, event.subject, event.fingerprint, event.snapshot]
    reasons = dict.fromkeys(act.reason for act in state.acts)
    return "\n".join(filter(None, [*said, path, *reasons]))


def words_of(step: Step) -> str:
    """Give what a mutation puts into its entry's value."""
    mutation = step.mutation
    if isinstance(mutation, Put):
        return "" if mutation.value is None else _words(mutation.value)
    if isinstance(mutation, RecordEvent):
        return _words(mutation.value)
    if isinstance(mutation, AppendToList | AddToSet):
        return "\n".join([item if isinstance(item, str) else json_values.dump(item) for item in mutation.items])
    return json_values.dump(mutation.patch) if isinstance(mutation, MergePatch) else ""


def words_of_state(state: EntryRecord) -> str:
    """Give what an entry's value says."""
    return "" if state.value is None else _words(state.value)


def _words(value: Value) -> str:
    """Give what a value says. Bytes that are no UTF-8 say nothing."""
    if value.form is not Form.BINARY:
        return str(value.data)
    try:
        return bytes(value.data).decode()  # type: ignore[arg-type]  # bytes for BINARY
    except UnicodeDecodeError:
        return ""
