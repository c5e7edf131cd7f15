"""Judges what agents noted against what the server kept: nothing lost, nothing twice, nothing out of order."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core import limits
from tests.faults.traffic import PUBLISHED
from tests.linearizability.checker import REFUSED, Add, Call, Read, check

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

    from kokuban.v1 import entry_pb2
    from tests.faults.traffic import Records, Traffic, Write

_NEVER = float("inf")


class Summary(NamedTuple):
    """What a run came to."""

    acknowledged: int
    refused: int
    unknown: int
    unknown_applied: int
    """Of those without an answer, how many had happened."""
    replayed: int
    """Acknowledged at a later try than the first."""
    slowest_s: float
    """How long a write has waited that was acknowledged."""
    reads: int
    changes: int
    lost: int
    twice: int
    faults: list[str]

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} writes acknowledged ({self.replayed} after several tries), {self.refused} refused, "
            f"{self.unknown} unknown ({self.unknown_applied} of them applied), slowest {self.slowest_s:.1f} s, "
            f"{self.reads} reads, {self.changes} changes told; lost {self.lost}, twice {self.twice}"
        )


async def judge(traffic: Traffic) -> Summary:
    """Give the summary; a sound run has no faults. The traffic must be finished."""
    records = traffic.records
    faults = list(records.faults)
    faults += _faults_of_changes(records.changes)
    faults += [fault async for fault in _faults_of_state(traffic)]
    faults += _faults_in_order(records)
    applied = _applied_by(records.changes)
    lost = [write for write in records.writes if _is_lost(write, applied)]
    twice = [write for write in records.writes if len(applied.get(write.request_id, [])) > len(write.acts)]
    faults += [f"acknowledged and not there: {write}" for write in lost]
    faults += [f"applied more than once: {write}, {applied[write.request_id]}" for write in twice]
    for write in records.writes:
        made = applied.get(write.request_id, [])
        if made and {path for path, _ in made} != write.acts.keys():
            faults.append(f"applied in part: {write}, {made}")
        if write.refused and made:
            faults.append(f"refused and applied: {write}, {made}")
    verdict = check(_calls(records, applied))
    if not verdict:
        faults.append(f"{verdict.key} is not linearizable; stuck at {verdict.stuck}")
    unknown = [write for write in records.writes if not write.refused and not write.revision]
    return Summary(
        acknowledged=traffic.acknowledged,
        refused=sum(bool(write.refused) for write in records.writes),
        unknown=len(unknown),
        unknown_applied=sum(write.request_id in applied for write in unknown),
        replayed=sum(write.revision > 0 and write.tries > 1 for write in records.writes),
        slowest_s=max(write.end - write.start for write in records.writes if write.revision),
        reads=len(records.looks),
        changes=len(records.changes),
        lost=len(lost),
        twice=len(twice),
        faults=faults,
    )


def _is_lost(write: Write, applied: Mapping[str, Sequence[tuple[str, int]]]) -> bool:
    """Say whether a write was acknowledged and is not what the server kept."""
    made = applied.get(write.request_id, [])
    return write.revision > 0 and not {(path, write.revision) for path in write.acts} <= set(made)


async def _faults_of_state(traffic: Traffic) -> AsyncIterator[str]:
    """Compare what the watch told with what is there, and with the histories that are kept."""
    told: dict[str, list[entry_pb2.EntryChange]] = defaultdict(list)
    for change in traffic.records.changes:
        told[change.entry.key.path].append(change)
    state = await traffic.state()
    for path, changes in told.items():
        newest = changes[-1].entry
        if state.get(path, newest if not newest.HasField("value") else None) != newest:
            yield f"{path} is {state.get(path)}, the watch ended with {newest}"
        kept = await traffic.history(path)
        if list(reversed(kept)) != changes[-len(kept) :] or len(kept) < min(len(changes), limits.HISTORY_REVISIONS_MAX):
            yield f"the history of {path} is not what the watch told: {kept}"
    if state.keys() - told.keys():
        yield f"the watch told nothing of {state.keys() - told.keys()}"


def _faults_of_changes(changes: list[entry_pb2.EntryChange]) -> Iterator[str]:
    """Check that a watch told every state of every entry once and in order, and commits whole."""
    last: dict[str, entry_pb2.EntryChange] = {}
    reached = 0
    published: dict[int, list[str]] = defaultdict(list)
    for change in changes:
        path = change.entry.key.path
        before = last.get(path)
        expected = (before.entry.sequence + 1, before.entry.revision.number) if before else (1, 0)
        if (change.entry.sequence, change.previous_revision) != expected:
            yield f"the watch told {change} of {path} after {before}"
        if change.entry.revision.number < reached:
            yield f"the watch went back to {change} from {reached}"
        reached = change.entry.revision.number
        last[path] = change
        if path in PUBLISHED:
            published[reached].append(change.entry.value.text)
    for revision, values in published.items():
        if len(values) != len(PUBLISHED) or len(set(values)) != 1:
            yield f"at {revision} only {values} were published together"


def _applied_by(changes: Iterable[entry_pb2.EntryChange]) -> dict[str, list[tuple[str, int]]]:
    """Give, for each request id, which entries it changed at which revisions."""
    applied: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for change in changes:
        for act in change.acts:
            applied[act.request_id].append((change.entry.key.path, change.entry.revision.number))
    return applied


def _faults_in_order(records: Records) -> Iterator[str]:
    """Check that what began after something else was answered has a higher revision, over all entries."""
    ended = sorted((write.end, write.revision) for write in records.writes if write.revision)
    highest = [(0.0, 0)]
    for end, revision in ended:
        highest.append((end, max(revision, highest[-1][1])))
    place = 0
    for write in sorted(records.writes, key=lambda write: write.start):
        while place + 1 < len(highest) and highest[place + 1][0] < write.start:
            place += 1
        if 0 < write.revision <= highest[place][1]:
            yield f"{write} began after {highest[place][1]} was answered"


def _calls(records: Records, applied: dict[str, list[tuple[str, int]]]) -> Iterator[Call]:
    """Give the history for the checker. What became of unanswered writes is taken from what the server kept."""
    for look in records.looks:
        yield Call(look.path, look.start, look.end, Read(), look.value)
    for write in records.writes:
        made = write.request_id in applied
        if not made and not write.refused:
            continue  # it never happened
        if write.refused and write.refused not in {"ALREADY_EXISTS", "REVISION_MISMATCH"}:
            continue  # it was not judged
        for path, act in write.acts.items():
            end = write.end if write.revision or write.refused else _NEVER
            yield Call(path, write.start, end, act, REFUSED if write.refused else None)
            if isinstance(act, Add) and path in write.answers:
                # Additions that travelled together are answered with the sum of all: a later state, but of the same time.
                yield Call(path, write.start, end, Read(), write.answers[path])
