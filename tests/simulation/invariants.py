"""What must be true of every simulated run: the store's log against what was asked for, answered, read and told.

The expected values are computed here by rules of their own, not by the code under test.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from kokuban_server.app.reads import AskAtLeast, AskLocal, AskSnapshot
from kokuban_server.core import keys
from kokuban_server.core.commit import (
    AddToSet,
    AppendToList,
    At,
    Delete,
    ExpireAt,
    Increment,
    MergePatch,
    MustNotExist,
    Never,
    Put,
    RecordEvent,
    TimeToLive,
)
from kokuban_server.core.entry import EntryState
from kokuban_server.core.revision import revision_of
from kokuban_server.records.codec import decode_entry
from tests.simulation.journal import Fate, Seen
from tests.simulation.simulated_agents import ACCOUNTS, ACCOUNTS_TOTAL, head_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kokuban_server.app.commits import Committed
    from kokuban_server.core.commit import Mutation
    from kokuban_server.core.entry import Act, EntryRecord, Value
    from tests.simulation.journal import Journal, Observation, Operation, WatchRun
    from tests.simulation.simulated_store import Applied, RecordedStore

_UPKEEP = "kokuban"


def judge(store: RecordedStore, journal: Journal) -> None:
    """Add to the journal's problems whatever does not hold."""
    log = _Log(store, journal)
    log.replay()
    for operation in journal.operations.values():
        _judge_operation(operation, log, journal.problems)
    for observation in journal.observations:
        _judge_observation(observation, log, journal.problems, store.epoch)
    for watch_run in journal.watch_runs:
        _judge_watch(watch_run, log, journal.problems)


class _Log:
    """The store's log, replayed: each entry's states, and which requests made them."""

    def __init__(self, store: RecordedStore, journal: Journal) -> None:
        self._log = store.log
        self._operations = journal.operations
        self._problems = journal.problems
        self.applied: dict[str, list[tuple[bytes, Seen]]] = defaultdict(list)
        """For each request id, the states it made."""
        self.states: dict[bytes, list[tuple[int, EntryRecord | None]]] = defaultdict(list)
        """For each head, revisions and what it held from each on."""
        self.changes: list[tuple[bytes, Seen]] = []
        """What watchers of everything are to be told, in order."""
        self._now: dict[bytes, Seen] = {}
        self._born: dict[bytes, int] = {}

    def at(self, head: bytes, revision: int) -> Seen | None:
        """Give what an entry's head held at a revision."""
        states = self.states.get(head, [])
        place = bisect_right(states, revision, key=lambda state: state[0])
        if place == 0:
            return None
        at, record = states[place - 1]
        return Seen(at, record) if record is not None else None

    def replay(self) -> None:
        """Check every state against the one before it and the requests that made it."""
        for revision, batch in _by_revision(self._log):
            before = dict(self._now)
            history = {applied.event.key: applied.event.value for applied in batch if _is_history(applied)}
            for applied in batch:
                event = applied.event
                if not event.key.startswith(keys.HEAD):
                    continue
                if event.value is None:
                    self._swept(event.key, revision)
                    continue
                record = decode_entry(event.key, event.value)
                in_history = history.get(keys.history_record(event.key, record.sequence))
                if in_history != (None if record.is_at_head_alone else event.value):
                    self._wrong(event.key, revision, "a state is not in the history as it is at the head")
                self._check_state(event.key, Seen(revision, record), before, applied.judged_at_ms)
                self._now[event.key] = Seen(revision, record)
                self.states[event.key].append((revision, record))
                self.changes.append((event.key, Seen(revision, record)))
            self._check_sum(revision)

    def _wrong(self, head: bytes, revision: int, what: str) -> None:
        self._problems.append(f"at {revision}, {head.decode(errors='replace')}: {what}")

    def _swept(self, head: bytes, revision: int) -> None:
        before = self._now.pop(head, None)
        if before is None or before.record.state is EntryState.LIVE:
            self._wrong(head, revision, f"swept away while it held {before}")
        self.states[head].append((revision, None))

    def _check_state(self, head: bytes, after: Seen, states: dict[bytes, Seen], judged_at_ms: int) -> None:
        before = states.get(head)
        record = after.record
        if record.sequence != (before.record.sequence + 1 if before else 1):
            self._wrong(head, after.revision, f"sequence {record.sequence} after {before}")
        if record.previous_revision != (before.revision if before else 0):
            self._wrong(head, after.revision, f"previous revision {record.previous_revision} after {before}")
        live = before if before is not None and before.record.is_live(judged_at_ms) else None
        if record.acts[0].agent == _UPKEEP:
            self._check_burial(head, after, before, judged_at_ms)
            return
        value = live.record.value if live is not None else None
        mutations = [self._check_act(act, head, after, states, live) for act in record.acts]
        for mutation in mutations:
            if mutation is None:
                return
            value = _value_after(mutation, value)
        mutation = mutations[-1]
        assert mutation is not None
        if record.state is EntryState.LIVE and _meaning(record.value) != _meaning(value):
            self._wrong(head, after.revision, f"holds {record.value}, not {value}, by {record.acts}")
        if (record.state is EntryState.DELETED) != isinstance(mutation, Delete):
            self._wrong(head, after.revision, f"is {record.state} by {mutation}")
        self._check_life(head, after, live, mutation)

    def _check_burial(self, head: bytes, after: Seen, before: Seen | None, judged_at_ms: int) -> None:
        """Check what upkeep wrote: only the end of what has expired."""
        if after.record.state is not EntryState.EXPIRED or before is None or before.record.state is not EntryState.LIVE:
            self._wrong(head, after.revision, f"upkeep made {after.record} of {before}")
        elif before.record.is_live(judged_at_ms):
            self._wrong(head, after.revision, f"buried at store time {judged_at_ms}, before its end: {before}")

    def _check_act(
        self, act: Act, head: bytes, after: Seen, states: dict[bytes, Seen], live: Seen | None
    ) -> Mutation | None:
        """Check that what made a state was asked for and held; give the mutation."""
        operation = self._operations.get(act.request_id)
        if operation is None or operation.agent != act.agent:
            self._wrong(head, after.revision, f"made by {act}, which nobody asked for")
            return None
        mutation = {head_of(key): wanted for key, wanted, _ in operation.request.mutations}[head]
        self._check_precondition(head, after.revision, mutation, live)
        for key, belief in operation.request.beliefs:
            believed = states.get(head_of(key))
            if believed is None or not isinstance(belief, At) or believed.revision != belief.number:
                self._wrong(head, after.revision, f"{act.request_id} believed {belief} of {key}, it was {believed}")
        self.applied[act.request_id].append((head, after))
        return mutation

    def _check_precondition(self, head: bytes, revision: int, mutation: Mutation, live: Seen | None) -> None:
        if isinstance(mutation, (Increment, AppendToList, AddToSet, RecordEvent)):
            return
        precondition = mutation.precondition
        holds = (
            live is not None and live.revision == precondition.number
            if isinstance(precondition, At)
            else live is None
            if isinstance(precondition, MustNotExist)
            else live is not None or isinstance(mutation, Put)
        )
        if not holds:
            self._wrong(head, revision, f"{mutation} was applied to {live}")

    def _check_life(self, head: bytes, after: Seen, live: Seen | None, mutation: Mutation) -> None:
        """Check where the entry's life began and when it ends."""
        record = after.record
        if live is None:
            self._born[head] = after.revision
        if (record.create_revision or after.revision) != self._born[head]:
            self._wrong(head, after.revision, f"began at {record.create_revision}, not at {self._born[head]}")
        expected = live.record.expire_time_ms if live is not None else 0
        if isinstance(mutation, Delete):
            expected = 0
        elif isinstance(mutation, Put):
            if isinstance(mutation.expiry, TimeToLive):
                expected = record.update_time_ms + mutation.expiry.ttl_ms
            elif isinstance(mutation.expiry, ExpireAt):
                expected = mutation.expiry.time_ms
            elif isinstance(mutation.expiry, Never):
                expected = 0
        if record.expire_time_ms != expected:
            self._wrong(head, after.revision, f"expires at {record.expire_time_ms}, not at {expected}")

    def _check_sum(self, revision: int) -> None:
        balances = [self._now.get(head_of(account)) for account in ACCOUNTS]
        if any(balances) and sum(_balance(seen) for seen in balances) != ACCOUNTS_TOTAL:
            self._problems.append(f"at {revision} the accounts hold {balances}")


def _by_revision(log: Sequence[Applied]) -> Iterator[tuple[int, list[Applied]]]:
    start = 0
    while start < len(log):
        revision = log[start].event.revision
        end = start
        while end < len(log) and log[end].event.revision == revision:
            end += 1
        yield revision, list(log[start:end])
        start = end


def _is_history(applied: Applied) -> bool:
    return applied.event.key.startswith(keys.HISTORY)


def _balance(seen: Seen | None) -> int:
    return int(str(seen.record.value.data)) if seen is not None and seen.record.value is not None else 0


def _meaning(value: Value | Any) -> Any:  # noqa: ANN401 - any JSON
    """Give a value so that equal meanings are equal, whatever their spelling."""
    if value is None or not hasattr(value, "data"):
        return value
    return json.loads(value.data) if value.form.name == "JSON" else value


def _value_after(mutation: Mutation, value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Give the value that a mutation makes, as plain Python."""
    value = _meaning(value)
    if isinstance(mutation, Put):
        return _meaning(mutation.value) if mutation.value is not None else value
    if isinstance(mutation, Delete):
        return None
    if isinstance(mutation, Increment):
        return (value or 0) + mutation.by
    if isinstance(mutation, AppendToList):
        return [*(value or []), *mutation.items]
    if isinstance(mutation, MergePatch):
        assert isinstance(mutation.patch, dict)
        return {**value, **mutation.patch}
    assert isinstance(mutation, AddToSet)
    return [*(value or []), *[item for item in dict.fromkeys(mutation.items) if item not in (value or [])]]


def _judge_operation(operation: Operation, log: _Log, problems: list[str]) -> None:
    """Check that a request was applied wholly and once or not at all, as its agent was told."""
    request = operation.request
    made = log.applied.get(request.request_id, [])
    wanted = {head_of(key) for key, _, _ in request.mutations}
    if made and (
        {head for head, _ in made} != wanted or len(made) != len(wanted) or len({s.revision for _, s in made}) != 1
    ):
        problems.append(f"{request.request_id} was applied in part or more than once: {made}")
        return
    if operation.fate is Fate.ACKNOWLEDGED and not made:
        problems.append(f"{request.request_id} was acknowledged and is lost: {operation.answers}")
    if operation.fate in {Fate.REFUSED, Fate.NOT_DONE} and made:
        problems.append(f"{request.request_id} was told to be {operation.fate.value} and was applied: {made}")
    if not made:
        return
    if sum(not answer.replayed for answer, _ in operation.answers) > 1:
        problems.append(f"{request.request_id} was answered as new more than once")
    for answer, ceiling in operation.answers:
        if not operation.floor < answer.revision <= ceiling:
            problems.append(f"{request.request_id} at {answer.revision}, outside {operation.floor}..{ceiling}")
        problems.extend(_faults_of_answer(operation, answer, dict(made)))


def _faults_of_answer(operation: Operation, answer: Committed, states: dict[bytes, Seen]) -> Iterator[str]:
    """Give how an answer differs from the first one, or from what the commit did."""
    request = operation.request
    first = operation.answers[0][0]
    if answer._replace(replayed=False) != first._replace(replayed=False):
        yield f"{request.request_id} was answered {first} and {answer}"
    for (key, mutation, _), outcome in zip(request.mutations, answer.outcomes, strict=True):
        state = states[head_of(key)]
        if (state.revision, state.record.sequence) != (answer.revision, outcome.sequence):
            yield f"{request.request_id} was answered {answer}, and made {state}"
        if not isinstance(mutation, (Put, Delete)) and outcome.value != state.record.value:
            yield f"{request.request_id} was answered {outcome}, and made {state}"


def _judge_observation(observation: Observation, log: _Log, problems: list[str], epoch: str) -> None:
    """Check that a read was of one state, fresh enough, and of nothing that had expired."""
    revision = observation.revision
    freshness = observation.freshness
    lowest, highest = _bounds(observation, epoch)
    where = f"{observation.agent} read at {revision} with {type(freshness).__name__}"
    if not lowest <= revision <= highest:
        problems.append(f"{where}, not in {lowest}..{highest}")
    asked = observation.asked or {head for head in log.states if head.startswith(observation.prefix)}
    if not asked >= observation.found.keys():
        problems.append(f"{where} what it did not ask for: {observation.found.keys() - asked}")
    for head in asked:
        fault = _fault_of_found(observation, observation.found.get(head), log.at(head, revision))
        if fault:
            problems.append(f"{where} {fault}")
    accounts = {head_of(account) for account in ACCOUNTS}
    if accounts <= observation.found.keys():
        balances = [_balance(observation.found[head]) for head in accounts]
        if sum(balances) != ACCOUNTS_TOTAL:
            problems.append(f"{where} a wrong sum: {balances}")


def _bounds(observation: Observation, epoch: str) -> tuple[int, int]:
    """Give between which revisions a read must be."""
    freshness = observation.freshness
    if isinstance(freshness, AskAtLeast):
        return revision_of(freshness.token, epoch, "token"), observation.ceiling
    if isinstance(freshness, AskSnapshot):
        revision = revision_of(freshness.token, epoch, "token")
        return revision, revision
    return (0 if isinstance(freshness, AskLocal) else observation.floor), observation.ceiling


def _fault_of_found(observation: Observation, found: Seen | None, held: Seen | None) -> str:
    """Say what is wrong with what a read gave for an entry whose head held that, if anything is."""
    promises_expiry = not isinstance(observation.freshness, AskLocal)
    if found is None:
        if promises_expiry and held is not None and held.record.is_live(observation.time_ceiling_ms):
            return f"nothing where {held} was, at store time {observation.time_ceiling_ms}"
        return ""
    if found != held or found.record.state is not EntryState.LIVE:
        return f"{found} where {held} was"
    if promises_expiry and not found.record.is_live(observation.time_floor_ms):
        return f"{found}, which had expired before store time {observation.time_floor_ms}"
    return ""


def _judge_watch(run: WatchRun, log: _Log, problems: list[str]) -> None:
    """Check that a watch was told what was there, and then every change once and in order."""
    where = f"{run.watcher} from {run.start} to {run.reached}"
    expected = [
        (head, seen)
        for head, seen in log.changes
        if run.start < seen.revision <= run.reached and head.startswith(run.prefixes)
    ]
    if run.changes != expected:
        told = [(head, seen.revision) for head, seen in run.changes]
        wanted = [(head, seen.revision) for head, seen in expected]
        problems.append(
            f"{where} missed {[each for each in wanted if each not in told]},"
            f" was told in vain {[each for each in told if each not in wanted]}; {len(told)} for {len(wanted)}"
        )
    if run.snapshot is None:
        return
    for head in log.states:
        if not head.startswith(run.prefixes):
            continue
        held = log.at(head, run.start)
        shown = run.snapshot.get(head)
        if shown is not None and shown != held:
            problems.append(f"{where} began with {shown}, where {held} was")
        if shown is None and held is not None and held.record.is_live(run.snapshot_ceiling_ms):
            problems.append(f"{where} began without {held}, at store time {run.snapshot_ceiling_ms}")
