"""Locks: what overlaps, who conflicts, who waits for whom; each held against a plainer way to say the same."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kokuban_server.core import keys, limits
from kokuban_server.core.locks import (
    Claims,
    LockRecord,
    LockTarget,
    Mode,
    SessionRecord,
    find_cycle,
    shortened,
)
from kokuban_server.core.names import Region, RegionKind, parse_path
from kokuban_server.core.refusals import InvalidRequest, StoreCorrupt
from kokuban_server.records.lock_codec import (
    decode_generation,
    decode_lock,
    decode_session,
    encode_generation,
    encode_lock,
    encode_session,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_REGIONS = (Region(RegionKind.SHARED, "plan"), Region(RegionKind.TASK, "plan"))
_SEGMENTS = ("a", "b", "ab")
_PATHS = tuple("/".join(segments) for depth in range(1, 4) for segments in product(_SEGMENTS, repeat=depth))
_DEEPER = (*_PATHS, *[f"{path}/x" for path in _PATHS])
"""Every entry there is: below each path that a target names there is one more."""
TARGET = st.builds(LockTarget, st.sampled_from(_REGIONS), st.sampled_from(_PATHS), st.booleans()) | st.builds(
    LockTarget, st.sampled_from(_REGIONS), st.just(""), st.just(value=True)
)
TARGETS = st.lists(TARGET, min_size=1, max_size=3, unique=True).map(tuple)
MODE = st.sampled_from(Mode)


def taken(target: LockTarget) -> set[tuple[Region, str]]:
    """Give every entry that a target takes, one by one."""
    found = set()
    for path in _DEEPER:
        above = ["", *["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 2)]]
        if path == target.path or (target.subtree and target.path in above):
            found.add((target.region, path))
    return found


def all_taken(targets: tuple[LockTarget, ...]) -> set[tuple[Region, str]]:
    return set().union(*[taken(target) for target in targets])


# Targets.


@given(TARGET, st.sampled_from(_REGIONS), st.sampled_from(_DEEPER))
def test_a_target_covers_the_entries_that_it_takes(target: LockTarget, region: Region, path: str) -> None:
    assert target.covers(region, path) == ((region, path) in taken(target))


@given(TARGET, TARGET)
def test_LE_13_targets_overlap_exactly_if_they_have_an_entry_in_common(one: LockTarget, other: LockTarget) -> None:
    assert one.overlaps(other) == bool(taken(one) & taken(other))
    assert one.overlaps(other) == other.overlaps(one)
    assert one.overlaps(one)


def test_LE_13_siblings_stay_parallel() -> None:
    region = _REGIONS[0]
    docs = LockTarget(region, "docs", subtree=True)
    readme, guide = (LockTarget(region, f"docs/{name}.md", subtree=False) for name in ("readme", "guide"))
    assert docs.overlaps(readme)
    assert readme.overlaps(docs)
    assert not readme.overlaps(guide)
    assert not docs.overlaps(LockTarget(region, "docs2", subtree=True))
    assert not LockTarget(region, "docs", subtree=False).overlaps(readme)


# Claims.


class Claim(NamedTuple):
    mode: Mode
    targets: tuple[LockTarget, ...]
    version: int = 0


NAME = st.sampled_from([f"lock{number}" for number in range(6)])
ACT = st.tuples(st.just("put"), NAME, st.builds(Claim, MODE, TARGETS)) | st.tuples(
    st.sampled_from(["remove", "replace"]), NAME, st.none()
)


def built(acts: list[tuple[str, str, Claim | None]]) -> tuple[Claims[Claim], dict[str, Claim]]:
    """Do the acts on claims and on a plain dictionary."""
    claims: Claims[Claim] = Claims()
    model: dict[str, Claim] = {}
    for act, name, claim in acts:
        if act == "remove":
            claims.remove(name)
            model.pop(name, None)
        elif name in model:  # replaced, with the same targets
            model[name] = model[name]._replace(version=model[name].version + 1)
            claims.put(name, model[name])
        elif claim is not None:
            claims.put(name, claim)
            model[name] = claim
    return claims, model


@given(st.lists(ACT, max_size=20), TARGETS, MODE)
def test_claims_find_what_looking_at_each_would_find(
    acts: list[tuple[str, str, Claim | None]], targets: tuple[LockTarget, ...], mode: Mode
) -> None:
    claims, model = built(acts)
    entries = all_taken(targets)
    overlapping = {name: claim for name, claim in model.items() if entries & all_taken(claim.targets)}
    found = list(claims.overlapping(targets))
    assert len(found) == len(overlapping)
    assert dict(found) == overlapping
    conflicting = {name: claim for name, claim in overlapping.items() if Mode.EXCLUSIVE in {mode, claim.mode}}
    assert dict(claims.conflicting(mode, targets)) == conflicting
    assert dict(claims.conflicting(mode, targets, latest_first=True)) == conflicting


@given(st.lists(ACT, max_size=20))
def test_claims_are_given_in_the_order_in_which_they_were_added(acts: list[tuple[str, str, Claim | None]]) -> None:
    claims, model = built(acts)
    assert list(claims) == list(model)
    assert len(claims) == len(model)
    for name in {name for _, name, _ in acts}:
        assert (name in claims) == (name in model)
        assert claims.get(name) == model.get(name)


@given(st.lists(NAME, min_size=1, unique=True), st.lists(NAME), st.booleans())
def test_at_one_place_the_order_is_kept_over_replacement(names: list[str], again: list[str], subtree: bool) -> None:  # noqa: FBT001 - an example
    target = LockTarget(_REGIONS[0], "a", subtree)
    claims: Claims[Claim] = Claims()
    for name in names:
        claims.put(name, Claim(Mode.EXCLUSIVE, (target,)))
    for name in again:
        if name in names:
            claims.put(name, Claim(Mode.SHARED, (target,), 1))
    assert [name for name, _ in claims.overlapping((target,))] == names
    exclusive = [name for name, _ in claims.conflicting(Mode.EXCLUSIVE, (target,), latest_first=True)]
    assert exclusive == names[::-1]


@given(st.lists(ACT, max_size=20))
def test_claims_that_are_removed_leave_nothing_behind(acts: list[tuple[str, str, Claim | None]]) -> None:
    claims, model = built(acts)
    for name in model:
        claims.remove(name)
    assert not any((claims._claims, claims._at, claims._subtrees, claims._below))


# Deadlocks.


class Wait(NamedTuple):
    age: int
    session: str


class Graph(NamedTuple):
    """Waits, the oldest first, and for which sessions each of them waits."""

    waits: tuple[Wait, ...]
    needs: tuple[frozenset[str], ...]

    def blocked_by(self, wait: Wait) -> set[str]:
        return set(self.needs[wait.age])

    def older_that_block(self, start: Wait) -> Callable[[Wait], list[Wait]]:
        return lambda wait: [
            other for other in self.waits if other.age < start.age and other.session in self.needs[wait.age]
        ]

    def is_circle(self, waits: list[Wait]) -> bool:
        return all(
            following.session in self.needs[wait.age]
            for wait, following in zip(waits, [*waits[1:], waits[0]], strict=True)
        )

    def circles(self, start: Wait) -> bool:
        """Say whether there is a circle of which a wait is the youngest, by walking every path without repetition."""

        def walk(path: list[Wait]) -> bool:
            return self.is_circle(path) or any(
                walk([*path, other])
                for other in self.waits
                if other.age < start.age and other not in path and other.session in self.needs[path[-1].age]
            )

        return walk([start])


SESSION = st.sampled_from("ABCD")
GRAPH = st.lists(st.tuples(SESSION, st.frozensets(SESSION, max_size=2)), min_size=1, max_size=6).map(
    lambda drawn: Graph(
        tuple(Wait(age, session) for age, (session, _) in enumerate(drawn)), tuple(needs for _, needs in drawn)
    )
)


@given(GRAPH)
def test_LE_20_a_wait_closes_a_circle_exactly_if_it_is_the_youngest_of_one(graph: Graph) -> None:
    for start in graph.waits:
        found = find_cycle(start, graph.older_that_block(start), lambda wait: wait.session, graph.blocked_by)
        assert (found is not None) == graph.circles(start)
        if found is not None:
            assert found[0] == start
            assert graph.is_circle(found)
            assert all(wait.age < start.age for wait in found[1:])
            assert len(set(found)) == len(found)


@given(st.integers(1, 60))
def test_a_long_circle_is_told_without_its_middle(length: int) -> None:
    told = shortened(list(range(length)))
    assert len(told) == min(length, limits.CYCLE_ENTRIES_MAX)
    assert told[0] == 0
    assert told[-1] == length - 1
    assert told == sorted(told)


# Policies.

# Keys.

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
HEX_NAME = st.text("0123456789abcdef", min_size=1, max_size=32)


@given(st.sampled_from([keys.SESSION, keys.LOCK, keys.MARKER, keys.WAIT]), TEXT, TEXT, HEX_NAME)
def test_keys_of_a_board_are_told_apart_again(kind: bytes, tenant: str, board: str, name: str) -> None:
    prefix = keys.board_prefix(tenant, board)
    key = keys.on_board(kind, prefix, name)
    assert key.startswith(keys.LOCKING)
    assert keys.parse_locking(key) == (kind, prefix, name)


@given(TEXT, TEXT, TEXT)
def test_a_generation_names_its_board(tenant: str, board: str, region_id: str) -> None:
    region = Region(RegionKind.TASK, region_id)
    for kind in (keys.LOCK_GENERATION, keys.QUEUE_GENERATION):
        key = kind + keys.region_prefix(tenant, board, region)
        assert keys.board_of_generation(key) == keys.board_prefix(tenant, board)
        assert keys.parse_locking(key)[0] == kind


@given(HEX_NAME)
def test_a_servers_key_names_it(server_id: str) -> None:
    kind, _, name = keys.parse_locking(keys.server(server_id))
    assert (kind, name) == (keys.SERVER, server_id)


@given(st.lists(st.tuples(TEXT, TEXT, HEX_NAME), min_size=2, max_size=2, unique=True))
def test_no_two_locks_share_a_key(names: list[tuple[str, str, str]]) -> None:
    one, other = (keys.on_board(keys.LOCK, keys.board_prefix(tenant, board), name) for tenant, board, name in names)
    assert one != other
    assert not one.startswith(other)


# Stored records.

NUMBER = st.integers(0, 2**63 - 1)


def _is_path(text: str) -> bool:
    try:
        return bool(parse_path(text))
    except InvalidRequest:
        return False


STORED_TARGET = st.builds(
    LockTarget, st.sampled_from(_REGIONS), st.just("") | st.sampled_from(_PATHS) | TEXT.filter(_is_path), st.booleans()
)
LOCK = st.builds(
    LockRecord,
    HEX_NAME,
    TEXT,
    TEXT,
    MODE,
    st.lists(STORED_TARGET, min_size=1, max_size=limits.LOCK_TARGETS_MAX).map(tuple),
    TEXT,
    NUMBER,
    NUMBER,
    st.integers(0, 60_000),
    st.text("0123456789abcdef-", max_size=55),
    NUMBER,
    HEX_NAME,
    NUMBER,
    TEXT,
    TEXT,
)


@given(LOCK)
def test_a_lock_comes_back_as_it_was_stored(lock: LockRecord) -> None:
    assert decode_lock(b"key", encode_lock(lock)) == lock
    assert set(lock.regions) == {target.region for target in lock.targets}
    assert len(lock.regions) == len(set(lock.regions))


@given(st.builds(SessionRecord, TEXT, TEXT, NUMBER, st.integers(0, 3_600_000), NUMBER))
def test_a_session_comes_back_as_it_was_stored(session: SessionRecord) -> None:
    assert decode_session(b"key", encode_session(session)) == session


@given(HEX_NAME)
def test_a_generation_comes_back_as_it_was_stored(name: str) -> None:
    assert decode_generation(b"key", encode_generation(name)) == name


@pytest.mark.parametrize("decode", [decode_lock, decode_session, decode_generation])
@given(junk=st.binary(max_size=40))
def test_junk_is_told_as_what_cannot_be_read(decode: Callable[[bytes, bytes], object], junk: bytes) -> None:
    try:
        decode(b"key", junk)
    except StoreCorrupt as corrupt:
        assert corrupt.key == b"key"


@pytest.mark.parametrize("decode", [decode_lock, decode_session, decode_generation])
@pytest.mark.parametrize("junk", [b"\x0a\xff", b"\xff\xff", b"\x0a\x02\xff\xfe"])
def test_what_is_no_record_is_never_told_as_an_empty_one(decode: Callable[[bytes, bytes], object], junk: bytes) -> None:
    with pytest.raises(StoreCorrupt):
        decode(b"key", junk)


@given(LOCK, st.sampled_from(["nothing", "task:", "", "shared:a/b"]))
def test_a_lock_on_what_is_no_region_cannot_be_read(lock: LockRecord, region: str) -> None:
    raw = encode_lock(lock)
    named = str(lock.targets[0].region).encode()
    assume(raw.count(named) == 1)
    pieces = raw.split(named)
    assume(len(named) >= len(region.encode()))
    # The same length, so that only the region is wrong.
    with pytest.raises(StoreCorrupt):
        decode_lock(b"key", pieces[0] + region.encode().ljust(len(named), b"/") + pieces[1])


def test_a_lock_without_targets_cannot_be_read() -> None:
    with pytest.raises(StoreCorrupt, match="STORE_CORRUPT"):
        decode_lock(b"key", b"")
