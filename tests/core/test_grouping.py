"""Which change sets may travel together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban_server.core.change_set import (
    Absent,
    AtRevision,
    ChangeSet,
    CreatedAt,
    DeleteKey,
    DeleteRange,
    Guard,
    NoneBelow,
    Put,
    TimeBefore,
)
from kokuban_server.core.grouping import Group, footprint

if TYPE_CHECKING:
    import random

State = dict[bytes, tuple[bytes, int]]
"""What each key holds, and since which revision."""

_keys = st.sampled_from([b"a", b"a/", b"a/b", b"a\xff", b"b", b"\xff", b"\xff\xff", b"\xff\xffa"])
_guards: st.SearchStrategy[Guard] = st.one_of(
    st.builds(Absent, _keys),
    st.builds(AtRevision, _keys, st.integers(1, 2)),
    st.builds(CreatedAt, _keys, st.integers(1, 2)),
    st.builds(NoneBelow, _keys),
    st.builds(TimeBefore, st.integers(0, 2)),
)
_ranges = st.tuples(_keys, _keys).filter(lambda pair: pair[0] < pair[1]).map(lambda pair: DeleteRange(*pair))


def _sound(change: ChangeSet) -> bool:
    try:
        footprint(change)
    except ValueError:
        return False
    return True


_change_sets = st.builds(
    ChangeSet,
    st.lists(_guards, max_size=2).map(tuple),
    st.lists(st.builds(Put, _keys, st.binary(max_size=1)), max_size=2).map(tuple),
    st.lists(st.one_of(st.builds(DeleteKey, _keys), _ranges), max_size=2).map(tuple),
).filter(_sound)
_states = st.dictionaries(_keys, st.tuples(st.just(b"old"), st.integers(1, 2)), max_size=6)


def _holds(guard: Guard, state: State) -> bool:
    if isinstance(guard, TimeBefore):
        return guard.instant_ms > 1
    if isinstance(guard, NoneBelow):
        return not any(key.startswith(guard.prefix) for key in state)
    if isinstance(guard, Absent):
        return guard.key not in state
    return guard.key in state and state[guard.key][1] == guard.revision


def _apply(change: ChangeSet, state: State) -> None:
    for delete in change.deletes:
        start, end = (delete.key, delete.key + b"\0") if isinstance(delete, DeleteKey) else delete
        for key in [key for key in state if start <= key < end]:
            del state[key]
    for put in change.puts:
        state[put.key] = (put.value, 3)


@given(_states, st.lists(_change_sets, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_a_group_judged_against_one_state_equals_its_members_one_after_the_other(
    start: State, sets: list[ChangeSet], chooser: random.Random
) -> None:
    group = Group(members_max=10, bytes_max=1 << 20)
    members = [change for change in sets if group.admit(footprint(change))]
    together = dict(start)
    answers = [all(_holds(guard, start) for guard in change.guards) for change in members]
    for change, holds in zip(members, answers, strict=True):
        if holds:
            _apply(change, together)
    order = list(range(len(members)))
    chooser.shuffle(order)
    one_by_one = dict(start)
    for place in order:
        assert all(_holds(guard, one_by_one) for guard in members[place].guards) == answers[place]
        if answers[place]:
            _apply(members[place], one_by_one)
    assert one_by_one == together


def _together(*sets: ChangeSet) -> bool:
    group = Group(members_max=10, bytes_max=1 << 20)
    admitted = [group.admit(footprint(change)) for change in sets]
    return all(admitted)


_PUT = ChangeSet((), (Put(b"p/k", b""),))


@pytest.mark.parametrize(
    ("other", "may"),
    [
        (ChangeSet((), (Put(b"p/l", b""),)), True),
        (ChangeSet((), (Put(b"p/k", b""),)), False),
        (ChangeSet((Absent(b"p/k"),)), False),
        (ChangeSet((AtRevision(b"p/k", 1),)), False),
        (ChangeSet((CreatedAt(b"p/k", 1),)), False),
        (ChangeSet((Absent(b"p/l"),)), True),
        (ChangeSet((NoneBelow(b"p/"),)), False),
        (ChangeSet((NoneBelow(b"p0"),)), True),
        (ChangeSet((NoneBelow(b"p/k/"),)), True),
        (ChangeSet((), (), (DeleteKey(b"p/k"),)), False),
        (ChangeSet((), (), (DeleteRange(b"p/", b"p/k"),)), True),
        (ChangeSet((), (), (DeleteRange(b"p/k", b"p/l"),)), False),
        (ChangeSet((TimeBefore(1),)), True),
    ],
)
def test_what_may_travel_with_a_put(other: ChangeSet, may: bool) -> None:  # noqa: FBT001 - the expectation
    assert _together(_PUT, other) == may
    assert _together(other, _PUT) == may


def test_several_may_read_what_none_writes() -> None:
    reads = ChangeSet((AtRevision(b"policy", 1), NoneBelow(b"gone/")))
    assert _together(reads, reads, reads)


def test_ranges_that_overlap_do_not_travel_together_if_one_is_written() -> None:
    deletes = ChangeSet((), (), (DeleteRange(b"a", b"c"),))
    assert not _together(deletes, ChangeSet((), (), (DeleteRange(b"b", b"d"),)))
    assert not _together(deletes, ChangeSet((NoneBelow(b"b/"),)))
    assert not _together(ChangeSet((NoneBelow(b"b/"),)), deletes)
    assert not _together(ChangeSet((Absent(b"b"),)), deletes)
    assert not _together(deletes, ChangeSet((Absent(b"b"),)))
    assert _together(deletes, ChangeSet((), (), (DeleteRange(b"c", b"d"),)))
    assert _together(ChangeSet((NoneBelow(b"b"),)), ChangeSet((NoneBelow(b"b/"),)))


def test_the_first_always_fits_and_a_full_group_says_so() -> None:
    large = footprint(ChangeSet((), (Put(b"large", b"x" * 1000),)))
    group = Group(members_max=3, bytes_max=100)
    assert group.admit(large)
    assert not group.admit(footprint(ChangeSet((), (Put(b"k", b""),))))
    assert group.full
    group = Group(members_max=2, bytes_max=100)
    assert group.admit(footprint(ChangeSet((), (Put(b"a", b""),))))
    assert not group.admit(footprint(ChangeSet((Absent(b"a"),))))
    assert not group.full  # it clashes, it is not too much
    assert group.admit(footprint(ChangeSet((), (Put(b"b", b""),))))
    assert not group.admit(footprint(ChangeSet((), (Put(b"c", b""),))))
    assert group.full


@pytest.mark.parametrize(
    "change",
    [
        ChangeSet((), (Put(b"k", b"1"), Put(b"k", b"2"))),
        ChangeSet((), (Put(b"k", b"1"),), (DeleteKey(b"k"),)),
        ChangeSet((), (Put(b"k", b"1"),), (DeleteRange(b"k", b"l"),)),
    ],
)
def test_a_set_that_writes_a_key_twice_is_refused(change: ChangeSet) -> None:
    with pytest.raises(ValueError, match="twice"):
        footprint(change)


def test_deleting_a_key_twice_is_nothing() -> None:
    footprint(ChangeSet((), (), (DeleteKey(b"k"), DeleteKey(b"k"), DeleteRange(b"a", b"z"))))
