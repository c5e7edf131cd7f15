"""What a commit asks for, and the pure planning that turns it into guards and new states."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from kokuban_server.core import json_values, keys, limits
from kokuban_server.core.change_set import Absent, AtRevision, DeleteKey, Guard, TimeBefore
from kokuban_server.core.change_set import Put as StorePut
from kokuban_server.core.entry import EntryRecord, EntryState, Form, Value
from kokuban_server.core.refusals import (
    AlreadyExists,
    InvalidRequest,
    NotFound,
    RevisionMismatch,
    StateUnfit,
    TrustTooLow,
    Winner,
)
from kokuban_server.core.seals import without_texts
from kokuban_server.core.trust import OWN_WORD, Label, TaintMode, Trust

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kokuban_server.core.access import RegionRules
    from kokuban_server.core.entry import Act, Current
    from kokuban_server.core.names import EntryKey
    from kokuban_server.core.tasks import TaskEvent
    from kokuban_server.core.trust import Source


class MustNotExist(NamedTuple):
    """There is no such entry, or only a dead one."""


class At(NamedTuple):
    """The entry exists in exactly this state."""

    number: int
    epoch: str


class Unconditional(NamedTuple):
    """The writer declines to say."""


Precondition: TypeAlias = MustNotExist | At | Unconditional


class Never(NamedTuple):
    """The entry no longer expires."""


class ExpireAt(NamedTuple):
    """The entry expires at an instant."""

    time_ms: int


class TimeToLive(NamedTuple):
    """The entry expires after a time from the commit."""

    ttl_ms: int


Expiry: TypeAlias = Never | ExpireAt | TimeToLive


class MetadataChange(NamedTuple):
    """What becomes of the labels: replaced as a whole, or some set and some removed."""

    replace: bool
    set: Mapping[str, str]
    remove: frozenset[str] = frozenset()


class Put(NamedTuple):
    """Write an entry; what is `None` stays as it is."""

    precondition: Precondition
    value: Value | None
    metadata: MetadataChange | None
    expiry: Expiry | None


class Delete(NamedTuple):
    """Remove an entry."""

    precondition: Precondition


class Increment(NamedTuple):
    """Add to a JSON integer."""

    by: int


class AppendToList(NamedTuple):
    """Append to a JSON array."""

    items: tuple[json_values.Json, ...]


class AddToSet(NamedTuple):
    """Add what is not yet there to a JSON array."""

    items: tuple[json_values.Json, ...]


class MergePatch(NamedTuple):
    """Merge into a JSON value."""

    precondition: At
    patch: json_values.Json


class Provenance(NamedTuple):
    """What a writer says of where that which it writes comes from."""

    source: Source
    derived_from: tuple[tuple[EntryKey, At], ...]
    """The states that it was made of, each once."""


class Endorse(NamedTuple):
    """Trust an entry more, as it is."""

    precondition: At
    trust: Trust


class RecordEvent(NamedTuple):
    """Append an event to a task's log: it becomes an entry of its own."""

    event: TaskEvent
    """As it was asked for, and in a plan as it happens."""
    value: Value
    words: Mapping[str, str]
    """What else is said of it, as the entry's metadata."""
    kind: str
    """The mutation's field in the proto."""


Commuting: TypeAlias = Increment | AppendToList | AddToSet
Mutation: TypeAlias = Put | Delete | Commuting | MergePatch | Endorse | RecordEvent

FIELD: Final[dict[type[Mutation], str]] = {
    Put: "put",
    Delete: "delete",
    Increment: "increment",
    AppendToList: "append_to_list",
    AddToSet: "add_to_set",
    MergePatch: "merge_patch",
    Endorse: "endorse",
}
"""Each mutation's field in the proto; an endorsement is no mutation there, but a request of its own. Events have several."""


def field_of(mutation: Mutation) -> str:
    """Give a mutation's field in the proto."""
    return mutation.kind if isinstance(mutation, RecordEvent) else FIELD[type(mutation)]


class Target(NamedTuple):
    """An entry that a commit may touch: its name, its key in the store, and the rules of its region."""

    key: EntryKey
    head: bytes
    rules: RegionRules
    generation: bytes
    """The key of its region's lock generation."""


class Step(NamedTuple):
    """One mutation of one entry."""

    target: Target
    mutation: Mutation
    place: int
    """The mutation's place in the request."""
    label: Label = OWN_WORD
    """Of what it writes."""


class Belief(NamedTuple):
    """A precondition on an entry that need not be written."""

    target: Target
    precondition: MustNotExist | At


@dataclass(slots=True)
class Moment:
    """When and in which store a commit is planned."""

    now_ms: int
    """The server's clock, or store time if that is ahead: what the commit is stamped with."""
    store_time_ms: int
    epoch: str


class Outcome(NamedTuple):
    """What a planned step will answer."""

    sequence: int
    value: Value | None
    trust: Trust | None = None
    """Of what was written; nothing for a delete."""
    is_shown: bool = True
    """The value may be shown to whoever wrote: it is not below the region's read floor."""
    event_number: int = 0
    """Of the event that was appended to a task."""


@dataclass(slots=True)
class Plan:
    """What a commit would do to the entries it names. Operation records are added by the use case."""

    guards: list[Guard] = field(default_factory=list)
    states: list[tuple[bytes, EntryRecord]] = field(default_factory=list)
    """Head keys and what they are to hold, and mostly the history too."""
    past: list[tuple[bytes, EntryRecord]] = field(default_factory=list)
    """Head keys and the states that stood at these alone, which go into the history."""
    reminders: list[bytes] = field(default_factory=list)
    """Keys of reminders for the sweeper."""
    clean_ups: list[DeleteKey] = field(default_factory=list)
    """Deletions that may also be left to the sweeper."""
    outcomes: list[Outcome] = field(default_factory=list)
    more: list[StorePut] = field(default_factory=list)
    """What else is written: how tasks stand behind what happens in them."""
    event_numbers: tuple[int, ...] = ()
    """Of the events that are appended to tasks, in the order of the mutations."""


def plan(
    steps: Sequence[Step], beliefs: Sequence[Belief], states: Mapping[bytes, Current], act: Act, moment: Moment
) -> Plan:
    """Plan a commit on the given states of every entry it names.

    Judges preconditions and computes new values. Raises the refusal of the first step or belief that does not hold, steps
    first, in the order given. Every state that was looked at is guarded, so the plan applies to these states or not at all.
    """
    made = Plan()
    expiries: list[int] = []
    guarded: set[bytes] = set()
    for step in steps:
        target = step.target
        current = states[target.head]
        live = current.live(moment.store_time_ms)
        record, value = _stepped(step, current, live, act, moment)
        _guard(made, target.head, current, live, expiries)
        guarded.add(target.head)
        if live is not None and live.is_at_head_alone:
            made.past.append((target.head, replace(live, written_revision=current.revision)))
        _write(made, target.head, target.rules, current, record)
        made.outcomes.append(outcome_of(record, value, target.rules))
    for index, (target, precondition) in enumerate(beliefs):
        current = states[target.head]
        live = current.live(moment.store_time_ms)
        _judge(precondition, target, current, live, f"preconditions[{index}].precondition", moment)
        if target.head not in guarded:
            _guard(made, target.head, current, live, expiries)
    _finish(made, expiries, operations_reserved=1)
    return made


def _stepped(
    step: Step, current: Current, live: EntryRecord | None, act: Act, moment: Moment
) -> tuple[EntryRecord, Value | None]:
    """Give the state that a step makes, and the value that it computes, if it computes one."""
    target, mutation, number, label = step
    place = f"mutations[{number}].{field_of(mutation)}"
    if isinstance(mutation, Put | Delete | MergePatch | Endorse):
        _judge(mutation.precondition, target, current, live, f"{place}.precondition", moment)
    _refuse_lowering(label, live, target, place)
    record = _successor(current, live, moment.now_ms, target.rules)
    value = None
    if isinstance(mutation, Put):
        _put(record, mutation, target, live, place)
    elif isinstance(mutation, Delete):
        if live is None:
            raise NotFound
        _bury(record, EntryState.DELETED, target.rules)
    elif isinstance(mutation, Endorse):
        _endorse(record, mutation, act)
    elif isinstance(mutation, RecordEvent):
        record.value, record.metadata, record.event = mutation.value, dict(mutation.words), mutation.event
    else:
        value = record.value = compute(mutation, record.value, target, place)
    if not isinstance(mutation, Delete | Endorse):
        _label(record, label, mutation, target, live, place)
    if isinstance(mutation, Put | Delete) and isinstance(mutation.precondition, Unconditional):
        act = act._replace(unconditional=True)
    record.acts = (act,)
    return record, value


def plan_fold(
    target: Target, mutations: Sequence[Commuting], acts: tuple[Act, ...], current: Current, moment: Moment
) -> Plan:
    """Plan several commuting mutations of one entry, all of agents' own word, as one new state that names all their acts.

    Every mutation is answered with the final value. Raises the refusal of the first that cannot be computed; the caller
    then plans each alone.
    """
    made = Plan()
    expiries: list[int] = []
    live = current.live(moment.store_time_ms)
    record = _successor(current, live, moment.now_ms, target.rules)
    value = record.value
    for mutation in mutations:
        value = compute(mutation, value, target, f"mutations[0].{FIELD[type(mutation)]}")
    record.value = value
    record.acts = acts
    place = f"mutations[0].{FIELD[type(mutations[0])]}"
    _refuse_lowering(OWN_WORD, live, target, place)
    _label(record, OWN_WORD, mutations[0], target, live, place)
    _guard(made, target.head, current, live, expiries)
    _write(made, target.head, target.rules, current, record)
    made.outcomes.extend([outcome_of(record, value, target.rules)] * len(mutations))
    _finish(made, expiries, operations_reserved=len(mutations))
    return made


def plan_expiry(head: bytes, rules: RegionRules, current: Current, act: Act, moment: Moment) -> Plan:
    """Plan the burial of an entry whose time has run out: an `EXPIRED` tombstone, as if an agent had deleted it."""
    made = Plan()
    record = _successor(current, current.record, moment.now_ms, rules)
    _bury(record, EntryState.EXPIRED, rules)
    record.acts = (act,)
    made.guards.append(AtRevision(head, current.revision))
    _write(made, head, rules, current, record)
    return made


def plan_removal(head: bytes, rules: RegionRules, current: Current, act: Act, moment: Moment) -> Plan:
    """Plan the end of an entry whose present state is removed: a tombstone, as if an agent had deleted it."""
    made = Plan()
    record = _successor(current, current.live(moment.store_time_ms), moment.now_ms, rules)
    _bury(record, EntryState.DELETED, rules)
    record.acts = (act,)
    made.guards.append(AtRevision(head, current.revision))
    _write(made, head, rules, current, record)
    return made


def plan_lowered(head: bytes, rules: RegionRules, current: Current, label: Label, act: Act, moment: Moment) -> Plan:
    """Plan the present state anew under a lower label: the same content, so what it was made of stays known."""
    made = Plan()
    before = current.record
    record = _successor(current, before, moment.now_ms, rules)
    if before is not None:
        record.label = label._replace(extends_from=label.extends_from or before.sequence)
        record.acts = (*before.acts, act)
    made.guards.append(AtRevision(head, current.revision))
    _write(made, head, rules, current, record)
    return made


def plan_end(
    head: bytes, rules: RegionRules, current: Current, expire_time_ms: int, act: Act, moment: Moment
) -> Plan | None:
    """Plan that an entry ends at a time; nothing if there is none, or it ends by then anyway. What it says stays as it is."""
    live = current.live(moment.store_time_ms)
    if live is None or 0 < live.expire_time_ms <= expire_time_ms:
        return None
    made = Plan()
    record = _successor(current, live, moment.now_ms, rules)
    record.expire_time_ms = expire_time_ms
    record.label = live.label._replace(extends_from=live.label.extends_from or live.sequence)
    record.acts = (act,)
    made.guards.append(AtRevision(head, current.revision))
    _write(made, head, rules, current, record)
    return made


def plan_attested(
    head: bytes, rules: RegionRules, current: Current, witness: EntryRecord, act: Act, moment: Moment
) -> Plan:
    """Plan the present state anew as what another state of the entry says, word for word: on that one's label."""
    made = Plan()
    record = _successor(current, current.record, moment.now_ms, rules)
    record.label = witness.label
    record.acts = (*witness.acts, act)
    made.guards.append(AtRevision(head, current.revision))
    _write(made, head, rules, current, record)
    return made


def _judge(
    precondition: Precondition, target: Target, current: Current, live: EntryRecord | None, place: str, moment: Moment
) -> None:
    """Raise the refusal of a precondition that does not hold."""
    if isinstance(precondition, At):
        if live is None or current.revision != precondition.number:
            raise RevisionMismatch(
                place,
                str(target.key.region),
                target.key.path,
                precondition.number,
                current.revision,
                live is not None,
                moment.epoch,
                winner_of(current),
            )
    elif isinstance(precondition, MustNotExist):
        if live is not None:
            raise AlreadyExists(
                place,
                str(target.key.region),
                target.key.path,
                current.revision,
                moment.epoch,
                winner_of(current) or Winner("", "", 0, ""),
            )
    elif target.rules.needs_precondition:
        raise InvalidRequest(
            "PRECONDITION_REQUIRED", place, f"region {target.key.region} takes no unconditional writes"
        )


def winner_of(current: Current) -> Winner | None:
    """Give who wrote a state: of folded acts the last."""
    record = current.record
    if record is None or not record.acts:
        return None
    act = record.acts[-1]
    return Winner(act.agent, act.request_id, record.update_time_ms, act.traceparent)


def _successor(current: Current, live: EntryRecord | None, now_ms: int, rules: RegionRules) -> EntryRecord:
    """Give the state after `current`, with everything as it was; a fresh life, as long as the region gives one, if none."""
    before = current.record
    sequence = before.sequence + 1 if before is not None else 1
    if live is None:
        expire_time_ms = now_ms + rules.default_ttl_ms if rules.default_ttl_ms else 0
        return EntryRecord(EntryState.LIVE, sequence, 0, current.revision, now_ms, now_ms, expire_time_ms)
    return EntryRecord(
        EntryState.LIVE,
        sequence,
        live.create_revision or current.revision,
        current.revision,
        live.create_time_ms,
        now_ms,
        live.expire_time_ms,
        0,
        live.value,
        live.metadata,
        (),
        live.label,
        live.event,
    )


def outcome_of(record: EntryRecord, computed: Value | None, rules: RegionRules) -> Outcome:
    """Give what a step that wrote a state answers."""
    if record.state is not EntryState.LIVE:
        return Outcome(record.sequence, computed)
    trust = record.label.trust
    number = 0 if record.event is None else record.event.number
    return Outcome(record.sequence, computed, trust, trust >= rules.read_floor, number)


def _refuse_lowering(label: Label, live: EntryRecord | None, target: Target, place: str) -> None:
    """Raise `TrustTooLow` for a change of what is trusted more, unless the region allows it."""
    if live is not None and label.trust < live.label.trust and not target.rules.allows_lowering:
        raise _too_low(place, target, label.trust, live.label.trust)


def _label(
    record: EntryRecord, label: Label, mutation: Mutation, target: Target, live: EntryRecord | None, place: str
) -> None:
    """Say how far a new state may be believed: what keeps a part of the state before, no more than that was.

    Raises `TrustTooLow` where the region wants more.
    """
    if live is not None and not (isinstance(mutation, Put) and _replaces_all(mutation, record)):
        label = label.onto(live.label, live.sequence)
    rules = target.rules
    if label.trust < rules.read_floor and rules.taint_mode is TaintMode.ENFORCE:
        raise _too_low(place, target, label.trust, rules.read_floor, "region")
    record.label = label


def _replaces_all(put: Put, record: EntryRecord) -> bool:
    """Say whether nothing of the state before is left: neither the value nor anything in the metadata."""
    if put.value is None:
        return False
    given = put.metadata.set if put.metadata is not None else {}
    return all(name in given for name in record.metadata)


def _endorse(record: EntryRecord, mutation: Endorse, act: Act) -> None:
    before = record.label
    if mutation.trust <= before.trust:
        raise InvalidRequest("FIELD_INVALID", "trust", f"the entry is trusted as {before.trust.name} already")
    # The same content, so what it was made of stays known: its sources and parents, and the states it extends.
    record.label = before._replace(
        trust=mutation.trust, endorsed_by=act.agent, extends_from=before.extends_from or record.sequence - 1
    )


def _too_low(place: str, target: Target, trust: Trust, least: Trust, what: str = "entry") -> TrustTooLow:
    return TrustTooLow(place, what, trust.name, least.name, str(target.key.region), target.key.path)


def _put(record: EntryRecord, put: Put, target: Target, live: EntryRecord | None, place: str) -> None:
    if put.value is not None:
        record.value = put.value
    elif live is None:
        raise InvalidRequest("VALUE_REQUIRED", f"{place}.value", "a put that creates an entry needs a value")
    change = put.metadata
    if change is not None:
        kept = {} if change.replace else {k: v for k, v in record.metadata.items() if k not in change.remove}
        record.metadata = {**kept, **change.set}
        if len(record.metadata) > limits.METADATA_PAIRS_MAX:
            more = {"limit": str(limits.METADATA_PAIRS_MAX)}
            raise _unfit("VALUE_FULL", f"{place}.metadata", target, more)
    expiry = put.expiry
    now_ms = record.update_time_ms
    if isinstance(expiry, TimeToLive):
        record.expire_time_ms = now_ms + expiry.ttl_ms
    elif isinstance(expiry, ExpireAt):
        if not now_ms < expiry.time_ms <= now_ms + limits.EXPIRY_MS_MAX:
            raise InvalidRequest(
                "EXPIRY_INVALID", f"{place}.expire_time", "must be after now and at most 3,650 days away"
            )
        record.expire_time_ms = expiry.time_ms
    elif expiry is not None:
        record.expire_time_ms = 0


def _bury(record: EntryRecord, state: EntryState, rules: RegionRules) -> None:
    """Make the state a tombstone."""
    record.state = state
    record.value = None
    record.metadata = {}
    record.label = OWN_WORD
    record.expire_time_ms = 0
    record.sweep_time_ms = record.update_time_ms + rules.tombstone_ms


def compute(mutation: Commuting | MergePatch, value: Value | None, target: Target, place: str) -> Value:
    """Give the value that a computing mutation makes of `value` (`None`: there is no entry).

    Raises `StateUnfit`: `VALUE_TYPE_MISMATCH`, `NUMBER_OUT_OF_RANGE` or `VALUE_FULL`.
    """
    if value is not None and value.form is not Form.JSON:
        raise _unfit("VALUE_TYPE_MISMATCH", place, target, {"wanted": "a JSON value"})
    if isinstance(mutation, Increment):
        # The commonest case by far is a plain integer, which needs no JSON parser.
        text = "0" if value is None else str(value.data).strip(" \t\r\n")
        number = json_values.Number(text).as_integer
        if number is None:
            raise _unfit("VALUE_TYPE_MISMATCH", place, target, {"wanted": "a JSON integer of 64 bits"})
        if not json_values.INT64_MIN <= number + mutation.by <= json_values.INT64_MAX:
            raise _unfit("NUMBER_OUT_OF_RANGE", f"{place}.by", target)
        return Value(Form.JSON, str(number + mutation.by))
    before = json_values.parse(str(value.data)) if value is not None else []
    after: json_values.Json
    if isinstance(mutation, MergePatch):
        after = json_values.merge_patch(before, mutation.patch)
    elif not isinstance(before, list):
        raise _unfit("VALUE_TYPE_MISMATCH", place, target, {"wanted": "a JSON array"})
    elif isinstance(mutation, AppendToList):
        after = [*before, *mutation.items]
    else:
        try:
            after = _united(before, mutation.items)
        except json_values.NotJsonError:
            wanted = {"wanted": "a JSON array of numbers that can be compared"}
            raise _unfit("VALUE_TYPE_MISMATCH", place, target, wanted) from None
    made = Value(Form.JSON, json_values.dump(after))
    if made.size_bytes > limits.VALUE_BYTES_MAX or json_values.is_too_deep(after):
        raise _unfit("VALUE_FULL", place, target, {"limit": str(limits.VALUE_BYTES_MAX)})
    return made


def _united(before: list[json_values.Json], items: Sequence[json_values.Json]) -> list[json_values.Json]:
    present = {without_texts(json_values.identity(item)) for item in before}
    after = list(before)
    for item in items:
        identity = without_texts(json_values.identity(item))
        if identity not in present:
            present.add(identity)
            after.append(item)
    return after


def _unfit(code: str, place: str, target: Target, more: dict[str, str] | None = None) -> StateUnfit:
    return StateUnfit(code, place, str(target.key.region), target.key.path, more or {})


def _guard(made: Plan, head: bytes, current: Current, live: EntryRecord | None, expiries: list[int]) -> None:
    """Tie the plan to the state it looked at, and to a live entry's still being alive."""
    made.guards.append(AtRevision(head, current.revision) if current.revision else Absent(head))
    if live is not None and live.expire_time_ms:
        expiries.append(live.expire_time_ms)


def _write(made: Plan, head: bytes, rules: RegionRules, current: Current, record: EntryRecord) -> None:
    """Add the new state, its reminder, and the clean-up of what it makes superfluous."""
    made.states.append((head, record))
    before = current.record
    old_reminder = (before.expire_time_ms or before.sweep_time_ms) if before is not None else 0
    new_reminder = record.expire_time_ms or record.sweep_time_ms
    if new_reminder != old_reminder:
        if new_reminder:
            made.reminders.append(keys.due(new_reminder, head))
        if old_reminder:
            made.clean_ups.append(DeleteKey(keys.due(old_reminder, head)))
    if record.sequence > rules.history_revisions_max:
        superfluous = record.sequence - rules.history_revisions_max
        made.clean_ups.append(DeleteKey(keys.history_record(head, superfluous)))


def _finish(made: Plan, expiries: list[int], operations_reserved: int) -> None:
    """Add the guard on time, and leave to the sweeper those clean-ups that would not fit beside what must be done."""
    if expiries:
        made.guards.append(TimeBefore(min(expiries)))
    taken = 2 * len(made.states) + len(made.reminders) + operations_reserved
    del made.clean_ups[max(0, limits.STORE_OPERATIONS_MAX - taken) :]
