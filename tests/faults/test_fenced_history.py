"""The judgement of writes under locks sees each kind of fault, and none where there is none."""

from __future__ import annotations

import random

import pytest

from tests.faults.fenced_history import ProtectedWrite, faults_of

SOUND = [
    ProtectedWrite(0, 3),
    ProtectedWrite(4, 5, "a"),
    ProtectedWrite(4, 9, "a"),
    ProtectedWrite(0, 11),
    ProtectedWrite(12, 13, "b"),
    ProtectedWrite(14, 16, "a"),
]


def test_writes_of_one_lock_after_the_other_are_sound() -> None:
    assert faults_of([]) == []
    shuffled = [*SOUND]
    random.Random(1).shuffle(shuffled)
    assert faults_of(shuffled) == []


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (ProtectedWrite(4, 17, "a"), "was granted while"),
        (ProtectedWrite(4, 15, "a"), "stands between"),
        (ProtectedWrite(6, 7, "b"), "stands between"),
        (ProtectedWrite(6, 10, "b"), "was granted while"),
        (ProtectedWrite(0, 8), "stands between"),
        (ProtectedWrite(0, 4), "stands between"),
        (ProtectedWrite(12, 12, "b"), "before its grant"),
        (ProtectedWrite(18, 17, "b"), "before its grant"),
        (ProtectedWrite(4, 6, "b"), "several wrote with"),
    ],
)
def test_LE_17_one_write_too_many_is_seen(write: ProtectedWrite, said: str) -> None:
    """A late one of a former holder, one of a second holder, one without a fence, one before its grant, a stolen fence."""
    found = faults_of([*SOUND, write])
    assert any(said in fault for fault in found), found


def test_LE_16_a_write_after_the_end_of_its_lock_is_seen() -> None:
    assert faults_of(SOUND, {4: 10, 12: 14, 14: 20}) == []  # one is passed on by the act that ends it
    assert any("after the end" in fault for fault in faults_of(SOUND, {4: 9}))
    assert any("stands between" in fault for fault in faults_of(SOUND, {4: 11}))
    assert any("granted while" in fault for fault in faults_of(SOUND, {12: 15}))


def test_a_swapped_pair_is_seen_wherever_it_is() -> None:
    """Two holders' writes whose revisions are exchanged are a fault in any history of several holds."""
    draw = random.Random(2)
    for _ in range(200):
        writes, revision = [], 0
        for holder in "abcd":
            fence = revision = revision + draw.randint(1, 3)
            for _ in range(draw.randint(1, 3)):
                revision += draw.randint(1, 3)
                writes.append(ProtectedWrite(fence, revision, holder))
        assert faults_of(writes) == []
        one, other = draw.sample(range(len(writes)), 2)
        if writes[one].fence == writes[other].fence:
            continue
        swapped = [*writes]
        swapped[one] = writes[one]._replace(revision=writes[other].revision)
        swapped[other] = writes[other]._replace(revision=writes[one].revision)
        assert faults_of(swapped)
