"""Judges writes under locks: while one lock has its path, nobody else's write there succeeds.

All that is needed are pairs of a fence's revision and the revision of a write that succeeded under it. A lock whose fence has
revision f and under which something was written at w was held all the time from f to w: so no write of another fence, and
none without any, may stand between. Where the end of a lock is known too, nothing is written under it afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ProtectedWrite(NamedTuple):
    """A write that succeeded at a path that locks take."""

    fence: int
    """The revision of the grant it was made under; 0 for a write under none."""
    revision: int
    holder: str = ""


def faults_of(writes: Iterable[ProtectedWrite], ends: Mapping[int, int] | None = None) -> list[str]:
    """Say what is wrong with a history of writes that the same locks protect; a sound one has no faults.

    `ends` are the revisions at which locks were released or broken, by their fences, as far as they are known.
    """
    found = []
    ordered = sorted(set(writes), key=lambda write: (write.revision, write.fence))
    held_until = dict(ends or {})
    holders: defaultdict[int, set[str]] = defaultdict(set)
    for write in ordered:
        if not write.fence:
            continue
        holders[write.fence].add(write.holder)
        if write.revision <= write.fence:
            found.append(f"{write} came before its grant")
        if write.fence not in (ends or {}):
            held_until[write.fence] = write.revision
        elif write.revision >= held_until[write.fence]:
            found.append(f"{write} came after the end of its lock at {held_until[write.fence]}")
    found += [f"several wrote with the fence {fence}: {names}" for fence, names in holders.items() if len(names) > 1]
    held = (0, 0)
    for fence, last in sorted(held_until.items()):
        if fence < held[1] or (fence == held[1] and held[0] not in (ends or {})):  # one act may pass a lock on
            found.append(f"the lock of {fence} was granted while that of {held[0]} was held until {held[1]}")
        held = max(held, (fence, last), key=lambda span: span[1])
    for write in ordered:
        found += [
            f"{write} stands between the grant of {fence} and its last sign of life at {last}"
            for fence, last in held_until.items()
            if write.fence != fence and fence <= write.revision <= last
        ]
    return found
