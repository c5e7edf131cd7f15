"""An entry and its states."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core.trust import OWN_WORD, Label

if TYPE_CHECKING:
    from kokuban_server.core.tasks import TaskEvent


class Form(enum.IntEnum):
    """How a value is meant."""

    TEXT = 1
    JSON = 2
    BINARY = 3


class Value(NamedTuple):
    """What an entry holds: `data` is text for `TEXT` and `JSON`, bytes for `BINARY`, which alone has a media type."""

    form: Form
    data: str | bytes
    media_type: str = ""

    @property
    def size_bytes(self) -> int:
        """The value's own size, without its media type."""
        data = self.data
        return len(data) if type(data) is bytes or data.isascii() else len(data.encode())  # type: ignore[union-attr]


class EntryState(enum.IntEnum):
    """Whether an entry is there."""

    LIVE = 1
    DELETED = 2
    EXPIRED = 3


class Act(NamedTuple):
    """Who made a state, and why."""

    agent: str
    request_id: str
    reason: str = ""
    traceparent: str = ""
    retry_of: str = ""
    unconditional: bool = False
    session: str = ""
    """The session that was named, or nothing."""


@dataclass(slots=True)  # treated as immutable; frozen would cost the write path two microseconds an entry
class EntryRecord:
    """One state of an entry as it is stored: at the entry's head, in its history, or in both."""

    state: EntryState
    sequence: int
    create_revision: int
    """Where the present life began; 0 means at the record's own revision, which is not known before it is written."""
    previous_revision: int
    create_time_ms: int
    update_time_ms: int
    expire_time_ms: int = 0
    """0 for an entry that does not expire."""
    sweep_time_ms: int = 0
    """When a dead entry may be removed for good; 0 for a live one."""
    value: Value | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    acts: tuple[Act, ...] = ()
    label: Label = OWN_WORD
    """How far it may be believed."""
    event: TaskEvent | None = None
    """What an event of a task says beside its value; no word of its writer's is in it."""
    written_revision: int = 0
    """When the state was written, if it was moved from the head to the history later; else 0."""

    @property
    def is_at_head_alone(self) -> bool:
        """Whether, while it is the present state, it does not stand in the history too: what an agent says itself in an event.

        That are most events, and next to none of them is ever written over.
        """
        return self.event is not None and self.label is OWN_WORD

    def withheld(self) -> EntryRecord:
        """Give the state as it is shown to whoever wants more trust: that it is there, and no word of its writers'."""
        acts = tuple([act._replace(reason="") for act in self.acts])
        return replace(self, value=None, metadata={}, acts=acts, label=Label(self.label.trust))

    def is_live(self, store_time_ms: int) -> bool:
        """Say whether the entry is there at a store time."""
        return self.state is EntryState.LIVE and not 0 < self.expire_time_ms <= store_time_ms


class Current(NamedTuple):
    """An entry's state as read: the record, and the revision at which it was written; or that there is none."""

    record: EntryRecord | None
    revision: int

    def live(self, store_time_ms: int) -> EntryRecord | None:
        """Give the record if the entry is there at a store time."""
        record = self.record
        return record if record is not None and record.is_live(store_time_ms) else None


NOTHING = Current(None, 0)


class OperationAnswer(NamedTuple):
    """What a commit was answered, as its operation record keeps it."""

    digest: bytes
    commit_time_ms: int
    sequences: tuple[int, ...]
    """Of the written entries, in the order of the mutations."""
    quarantine_id: str = ""
    """What was kept instead of committing, or nothing."""
    event_numbers: tuple[int, ...] = ()
    """Of the events that were appended to tasks, in the order of the mutations."""
