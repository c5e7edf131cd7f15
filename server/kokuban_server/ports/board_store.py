"""The store: everything that must be true together goes through here.

A small part of what etcd does, so that etcd itself is the reference. Keys and values are bytes; what they mean is the
business of `core.keys` and `records`. The conformance suite for every adapter is tests/conformance/board_store_suite.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from kokuban_server.core.change_set import ChangeSet, GuardFailure
    from kokuban_server.ports.group_commit import BatchCounts


class Strong(NamedTuple):
    """Everything that was committed before the read was asked for."""


class AtLeast(NamedTuple):
    """At least as fresh as this revision."""

    revision: int


class Snapshot(NamedTuple):
    """Exactly the state at this revision."""

    revision: int


class Local(NamedTuple):
    """Whatever is at hand; may be stale; answers without a quorum."""


Consistency: TypeAlias = Strong | AtLeast | Snapshot | Local
STRONG = Strong()
LOCAL = Local()


class Record(NamedTuple):
    """What a key holds."""

    key: bytes
    value: bytes
    revision: int
    """When the key was last written."""
    create_revision: int
    """When the key's present life began."""
    lease: int | None = None


class Cut(NamedTuple):
    """Several keys in one consistent cut."""

    revision: int
    """The state that was read. Never below what the consistency asked for; for a snapshot exactly that."""
    store_time_ms: int
    """The store's present time (also for a snapshot of an older state)."""
    records: tuple[Record | None, ...]
    """In the order of the keys asked for; nothing where a key holds nothing."""


class Page(NamedTuple):
    """A run of keys in one consistent cut."""

    revision: int
    store_time_ms: int
    records: tuple[Record, ...]
    """In order of their keys' bytes."""
    more: bool
    """There are keys of the prefix behind the last one here."""


class Event(NamedTuple):
    """One key's change."""

    key: bytes
    value: bytes | None
    """What was put, or nothing for a deletion (also one by a lapsed lease)."""
    revision: int
    create_revision: int
    """When the key's life began; for a deletion, 0."""
    previous_revision: int
    """When the key was written before this, or 0: a reader that holds another number has missed a change. 0 too where the
    store does not know: etcd tells it of keys that the same watch told of lately, and of no others."""


class WatchBatch(NamedTuple):
    """Everything of the watched prefixes up to a revision that was not in a batch before."""

    revision: int
    """The state up to which nothing is outstanding."""
    events: tuple[Event, ...]
    """In order of revision; a revision is never spread over two batches. Empty in a batch that only says how far the
    watch has come."""


class Lease(NamedTuple):
    """A life that keys can hang on."""

    id: int
    ttl_ms: int
    """How long it lives without renewal; may be more than was asked for."""


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """How a store is."""

    kind: str
    version: str
    revision: int
    compacted_revision: int
    store_time_ms: int
    size_bytes: int
    size_bytes_max: int
    """0 where there is no limit."""
    leader: str
    """Empty where there is none."""


class CommitRefused(Exception):  # noqa: N818 - an answer, not an error
    """Some guards do not hold. Nothing was written."""

    def __init__(self, failures: tuple[GuardFailure, ...]) -> None:
        super().__init__(failures)
        self.failures = failures
        """Every guard that does not hold, in the order of the change set, judged against one state."""


class LeaseLost(Exception):  # noqa: N818 - an answer, not an error
    """The lease has lapsed or was revoked; its keys are gone."""


class BoardStore(Protocol):
    """A store of keys with revisions.

    The revision is one counter for the whole store: it grows with every commit that writes, never repeats, and survives
    restarts. Store time is a clock in the store that never goes back: every batch of commits that contains puts moves it
    up to the writing server's own clock, if that is ahead.

    Any method may raise `StoreUnavailable`: the store does not answer (in time), and nothing was changed. `StoreCorrupt`:
    something that was stored cannot be read back; it is never told as an empty answer. After `close` every method raises
    `StoreUnavailable`. Cancelling a call never leaves half of it.
    """

    @property
    def epoch(self) -> str:
        """Name the store's present life: 16 lower-case hexadecimal digits, random, new after a restore."""
        ...

    @property
    def batches(self) -> BatchCounts:
        """Count the batches in which commits were sent since the store was opened, by this process."""
        ...

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        """Apply every write at one new revision if every guard holds; give the revision. Durable when this returns.

        Guards are judged against the very state the writes are applied to: no other commit falls between. A set without
        writes only judges its guards, and gives a revision at which they held. Commits that wait at the same moment may
        share a revision if they are independent (`core.grouping`).

        Raises `CommitRefused` if a guard does not hold; nothing was written. `LeaseLost` if a put names a lease that is
        gone; nothing was written. `StoreFull` if there is no room; sets that only delete still work. `OutcomeUnknown` if
        the answer did not come: the set may or may not stand, and the caller sends the same set again, which is safe
        exactly if one of its guards is undone by its own writes. `deadline_s` is how long to try, from now.

        A caller that is cancelled while waiting does not take its commit back.
        """
        ...

    async def read(self, keys: Sequence[bytes], consistency: Consistency, deadline_s: float) -> Cut:
        """Give what the keys hold (1 to 256 of them), in one consistent cut.

        Raises `HistoryCompacted` for a snapshot below what is kept. A snapshot or `AtLeast` of a revision that the store
        has not reached raises `TokenAheadOfStore` (an empty `field_path` in it: the caller knows which field it was).
        """
        ...

    async def scan(
        self, prefix: bytes, after: bytes, limit: int, bytes_max: int, consistency: Consistency, deadline_s: float
    ) -> Page:
        """Give up to `limit` keys of the prefix in one consistent cut, in byte order, behind `after` (empty: from the start).

        A page also ends before its keys and values pass `bytes_max`, but holds at least one record if there is one.
        Raises as `read` does.
        """
        ...

    def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Give every change to keys with these prefixes after a revision: once, in order, without gaps, until closed.

        A first batch comes as soon as the watch stands, empty if nothing has changed since; later, empty batches say now
        and then how far it has come. Never ends by itself. Store outages are waited out. Raises `HistoryCompacted` if the
        start, or what has not been read yet, is no longer kept; `TokenAheadOfStore` for a start the store has not
        reached; `WatchGap` if the adapter finds that the store lost a change. A reader that does not read does not make
        the adapter's memory grow without bound: the adapter may buffer up to `limits.WATCH_BUFFER_EVENTS_MAX` and must
        then hold back or read again from where the reader is.
        """
        ...

    async def grant_lease(self, ttl_ms: int, deadline_s: float) -> Lease:
        """Begin a lease that lives at least `ttl_ms` from when this returns, without renewal.

        How much longer is the store's affair (etcd: whole seconds, and anew after a change of leader).
        """
        ...

    async def renew_lease(self, lease: int, deadline_s: float) -> int:
        """Begin the lease's time anew; give its length in milliseconds. Raises `LeaseLost` if it is gone."""
        ...

    async def lease_left(self, lease: int, deadline_s: float) -> int:
        """Give how long the lease lives if nobody renews it, in milliseconds. Raises `LeaseLost` if it is gone.

        Never more than its whole time, and above zero. It changes nothing, and it promises nothing either: the store tells
        what it believed when it answered. It may round down (etcd: to whole seconds, so that a lease in its last second is
        told as lost before its keys are gone), and a lease may live longer than told (etcd: after a change of leader).
        """
        ...

    async def revoke_lease(self, lease: int, deadline_s: float) -> None:
        """End the lease and delete the keys that hang on it, at one revision. Ending one that is gone is nothing."""
        ...

    async def compact(self, before_revision: int, deadline_s: float) -> int:
        """Forget states older than this revision; give the revision up to which history is forgotten.

        The state at `before_revision` itself can still be read, and a watch can begin after it. Never above the present
        revision. Compacting to less than before is nothing.
        """
        ...

    async def status(self, deadline_s: float) -> StoreStatus:
        """Say how the store is."""
        ...

    async def close(self) -> None:
        """Finish what is under way and let go of the store. Closing twice is nothing."""
        ...
