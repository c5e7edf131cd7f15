"""Says whether a history of concurrent calls on one entry is linearizable: Wing and Gong's search, with Lowe's memory.

A history is linearizable if every call can be given one instant between its start and its end, such that the calls in the
order of their instants are what one agent alone would see. A call without an answer may have happened at any instant after
its start, or never.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence


class Read(NamedTuple):
    """Gives the state."""


class Create(NamedTuple):
    """Writes if there is nothing."""

    value: Hashable


class Replace(NamedTuple):
    """Writes if the state is still the one that a write made."""

    before: Hashable
    """The value that was seen; values are unique, so it names the state."""
    value: Hashable


class Overwrite(NamedTuple):
    """Writes whatever there is."""

    value: Hashable


class Remove(NamedTuple):
    """Deletes if the state is still the one that was seen."""

    before: Hashable


class Add(NamedTuple):
    """Adds to a number; nothing counts as 0."""

    amount: int


Act: TypeAlias = Read | Create | Replace | Overwrite | Remove | Add

NOTHING = None
"""The state in which there is no entry."""


class Refused(NamedTuple):
    """The answer of an act whose precondition did not hold."""


class Unknown(NamedTuple):
    """The answer that did not come."""


REFUSED = Refused()
UNKNOWN = Unknown()


class Call(NamedTuple):
    """One act of one client, with when it began, when it ended, and what it was answered.

    The answer of a read is the state; of `Add` the new number, or nothing if that is not to be judged (additions that travel
    together are all answered with the last one's number); of other acts nothing; or `REFUSED` or `UNKNOWN`. The end of a call
    without an answer does not count.
    """

    key: str
    start: float
    end: float
    act: Act
    answer: Hashable


class Undecided(Exception):  # noqa: N818 - an answer: neither yes nor no
    """The search has taken as many steps as it may. Says nothing about the history."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the search found."""

    is_linearizable: bool
    key: str = ""
    """The first entry whose calls have no order."""
    stuck: tuple[Call, ...] = ()
    """Of the longest order that was found, what could not be put next."""

    def __bool__(self) -> bool:
        return self.is_linearizable


def check(
    history: Iterable[Call], initial: Mapping[str, Hashable] | None = None, steps_max: int = 2_000_000
) -> Verdict:
    """Judge a history, each entry on its own (which is enough: linearizability is local).

    `initial` names states to begin with, where that is not nothing. Raises `Undecided` after `steps_max` steps on one entry.
    """
    by_key: dict[str, list[Call]] = defaultdict(list)
    for call in history:
        by_key[call.key].append(call)
    for key, calls in sorted(by_key.items()):
        stuck = _search(calls, (initial or {}).get(key, NOTHING), steps_max)
        if stuck is not None:
            return Verdict(is_linearizable=False, key=key, stuck=stuck)
    return Verdict(is_linearizable=True)


def _apply(act: Act, state: Hashable, answer: Hashable) -> tuple[bool, Hashable]:  # noqa: PLR0911 - one for each act
    """Say whether the answer is possible in the state, and give the state after. An answer that did not come is possible."""
    unknown = answer is UNKNOWN
    if isinstance(act, Read):
        return unknown or answer == state, state
    if isinstance(act, Add):
        assert state is None or isinstance(state, int)
        if answer is REFUSED:
            return False, state  # nothing refuses an addition
        total = (state or 0) + act.amount
        return unknown or answer is None or answer == total, total
    if isinstance(act, Overwrite):
        return answer is not REFUSED, act.value
    holds = state is NOTHING if isinstance(act, Create) else state is not NOTHING and state == act.before
    after = NOTHING if isinstance(act, Remove) else act.value
    if unknown:
        return True, after if holds else state
    if answer is REFUSED:
        return not holds, state
    return holds, after


class _Node:
    """A start or an end in the list of what is left to put in order."""

    __slots__ = ("call", "match", "next", "number", "previous")

    def __init__(self, call: Call, number: int) -> None:
        self.call = call
        self.number = number
        self.match: _Node | None = None  # a start's end; an end has none
        self.next: _Node | None = None
        self.previous: _Node | None = None


def _list_of(calls: Sequence[Call]) -> _Node:
    """Give the starts and ends in order of time, behind a first node that is neither."""
    events: list[tuple[float, int, int, _Node]] = []
    for number, call in enumerate(calls):
        start, end = _Node(call, number), _Node(call, number)
        start.match = end
        # A start comes before an end of the same instant: the calls may have overlapped.
        events.append((call.start, 0, number, start))
        events.append((float("inf") if call.answer is UNKNOWN else call.end, 1, number, end))
    first = last = _Node(calls[0], -1)
    for *_, node in sorted(events, key=lambda event: event[:3]):
        last.next, node.previous = node, last
        last = node
    return first


def _lift(start: _Node) -> None:
    """Take a call's start and end out of the list."""
    for node in (start, start.match):
        assert node is not None
        assert node.previous is not None
        node.previous.next = node.next
        if node.next is not None:
            node.next.previous = node.previous


def _unlift(start: _Node) -> None:
    """Undo `_lift`, which must be the last one that is not undone."""
    for node in (start.match, start):
        assert node is not None
        assert node.previous is not None
        node.previous.next = node
        if node.next is not None:
            node.next.previous = node


def _search(calls: Sequence[Call], initial: Hashable, steps_max: int) -> tuple[Call, ...] | None:
    """Look for an order; give nothing if there is one, else the calls at which the longest attempt was stuck."""
    first = _list_of(calls)
    known = sum(call.answer is not UNKNOWN for call in calls)  # the others may be left out
    state = initial
    done = 0  # which calls are put in order, as bits
    placed = 0
    tried: set[tuple[int, Hashable]] = set()
    path: list[tuple[_Node, Hashable]] = []
    longest = -1
    stuck: tuple[Call, ...] = ()
    node = first.next
    for _ in range(steps_max):
        if placed == known:
            return None
        assert node is not None  # an end stands behind every start that is left
        if node.match is not None:
            possible, after = _apply(node.call.act, state, node.call.answer)
            bits = done | (1 << node.number)
            if possible and (bits, after) not in tried:
                tried.add((bits, after))
                path.append((node, state))
                state, done = after, bits
                placed += node.call.answer is not UNKNOWN
                _lift(node)
                node = first.next
            else:
                node = node.next
            continue
        if placed > longest:
            longest, stuck = placed, _open_calls(first)
        if not path:
            return stuck
        node, state = path.pop()
        done &= ~(1 << node.number)
        placed -= node.call.answer is not UNKNOWN
        _unlift(node)
        node = node.next
    raise Undecided(f"{len(calls)} calls on {calls[0].key}: no answer in {steps_max} steps")


def _open_calls(first: _Node) -> tuple[Call, ...]:
    """Give the calls that could come next: those that began before the first end that is left."""
    found = []
    node = first.next
    while node is not None and node.match is not None:
        found.append(node.call)
        node = node.next
    return tuple(found)
