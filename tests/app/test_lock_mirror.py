"""A server's picture of locks: in step with its store, however late or early it hears of a change."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from kokuban_server.app.lock_mirror import BoardLocks, LockMirror, Loss
from kokuban_server.core import keys
from kokuban_server.core.change_set import ChangeSet, DeleteKey, Put
from kokuban_server.core.locks import LockRecord, LockTarget, Mode, SessionRecord
from kokuban_server.core.names import parse_region
from kokuban_server.core.refusals import StoreUnavailable, WatchGap
from kokuban_server.ports.board_store import Event, WatchBatch
from kokuban_server.records.lock_codec import encode_generation, encode_lock, encode_server, encode_session

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from kokuban_server.adapters.memory import MemoryStore
    from kokuban_server.ports.board_store import BoardStore

BOARD = keys.board_prefix("dev", "main")
TASK = parse_region("task:t1")
GENERATION = keys.LOCK_GENERATION + keys.region_prefix("dev", "main", TASK)
SESSION = SessionRecord("agent", "", 1, 60_000, 1)


def lock(session_id: str = "s1", mode: Mode = Mode.EXCLUSIVE) -> LockRecord:
    return LockRecord(session_id, "agent", "r", mode, (LockTarget(TASK, "a", subtree=True),), "p", 1, 2, 3, "", 1)


def key(kind: bytes, name: str) -> bytes:
    return keys.on_board(kind, BOARD, name)


def granted(name: str, record: LockRecord | None = None) -> ChangeSet:
    """Give what a grant writes."""
    raw = encode_lock(record or lock())
    puts = (Put(key(keys.LOCK, name), raw), Put(key(keys.MARKER, name), raw), Put(GENERATION, encode_generation(name)))
    return ChangeSet((), puts)


def released(name: str) -> ChangeSet:
    return ChangeSet((), (), (DeleteKey(key(keys.LOCK, name)), DeleteKey(key(keys.MARKER, name))))


def opened(session_id: str = "s1") -> ChangeSet:
    return ChangeSet((), (Put(key(keys.SESSION, session_id), encode_session(SESSION)),))


def waiting(name: str, session_id: str = "s1") -> ChangeSet:
    return ChangeSet((), (Put(key(keys.WAIT, name), encode_lock(lock(session_id))),))


@contextlib.asynccontextmanager
async def mirror_of(store: BoardStore) -> AsyncIterator[LockMirror]:
    mirror = LockMirror(store)
    await mirror.stand(5)
    try:
        yield mirror
    finally:
        await mirror.close()


async def commit(store: BoardStore, change: ChangeSet) -> int:
    return await store.commit(change, 5)


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not fact():  # noqa: ASYNC110 - looked at, not told
            await asyncio.sleep(0)


def follow(board: BoardLocks) -> list[list[Loss]]:
    """Give what a follower of a board is told, as it is told."""
    told: list[list[Loss]] = []
    board.followers[told.append] = None
    return told


class _Doctored:
    """A store whose watch can be held back and shows what a test makes of it."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.gate = asyncio.Event()
        self.gate.set()
        self.doctor: Callable[[Sequence[Event]], Sequence[Event]] = lambda events: events

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def watch(self, prefixes: Sequence[bytes], after_revision: int) -> AsyncGenerator[WatchBatch, None]:
        async for batch in self._store.watch(prefixes, after_revision):
            await self.gate.wait()
            yield WatchBatch(batch.revision, tuple(self.doctor(batch.events)))


# In step.


async def test_what_was_there_before_and_what_comes_later_is_in_the_picture(store: MemoryStore) -> None:
    await commit(store, opened())
    at = await commit(store, granted("l1"))
    async with mirror_of(store) as mirror:
        board = mirror.picture(BOARD)
        assert board.locks["l1"].create_revision == at
        assert board.claims.get("l1") is not None
        later = await commit(store, waiting("w1", "s2"))
        await mirror.reach(later, 5)
        wait = mirror.picture(BOARD).waits.get("w1")
        assert wait is not None
        assert wait.create_revision == later
        assert mirror.picture(BOARD).names("s1") == {"l1"}
        assert mirror.picture(BOARD).names("s2") == {"w1"}


async def test_a_picture_can_be_begun_although_the_last_lock_of_a_region_was_released(store: MemoryStore) -> None:
    await commit(store, granted("l1"))
    await commit(store, released("l1"))
    async with mirror_of(store) as mirror:
        assert mirror.reloads == 0
        assert mirror.board(BOARD) is None
        assert mirror.revision_of(GENERATION) > 0


async def test_a_wait_that_became_a_lock_stays_with_its_session(store: MemoryStore) -> None:
    await commit(store, waiting("l1"))
    async with mirror_of(store) as mirror:
        change = granted("l1")
        at = await commit(store, change._replace(deletes=(DeleteKey(key(keys.WAIT, "l1")),)))
        await mirror.reach(at, 5)
        assert mirror.picture(BOARD).names("s1") == {"l1"}
        await mirror.reach(await commit(store, released("l1")), 5)
        assert mirror.picture(BOARD).names("s1") == frozenset()


async def test_who_lives_is_known(store: MemoryStore) -> None:
    gone: list[int] = []
    async with mirror_of(store) as mirror:
        mirror.on_server_gone = lambda: gone.append(1)
        lease = await store.grant_lease(60_000, 5)
        put = Put(keys.server("one"), encode_server(1), lease.id)
        await mirror.reach(await commit(store, ChangeSet((), (put,))), 5)
        assert mirror.servers == {"one"}
        await store.revoke_lease(lease.id, 5)
        await until(lambda: not mirror.servers)
        assert gone == [1]


async def test_a_board_without_content_is_forgotten(store: MemoryStore) -> None:
    async with mirror_of(store) as mirror:
        await commit(store, opened())
        await mirror.reach(await commit(store, granted("l1")), 5)
        assert mirror.board(BOARD) is not None
        await commit(store, released("l1"))
        end = ChangeSet((), (), (DeleteKey(key(keys.SESSION, "s1")),))
        await mirror.reach(await commit(store, end), 5)
        assert mirror.board(BOARD) is None
        assert list(mirror.boards) == []


async def test_a_board_that_somebody_follows_is_kept(store: MemoryStore) -> None:
    async with mirror_of(store) as mirror:
        board = mirror.followed(BOARD)
        told = follow(board)
        await commit(store, granted("l1"))
        await mirror.reach(await commit(store, released("l1")), 5)
        assert mirror.board(BOARD) is board
        assert told
        assert not any(told)  # nothing was lost


async def test_a_store_that_cannot_be_read_is_said_to_be_so(store: MemoryStore) -> None:
    await store.close()
    mirror = LockMirror(store)
    with pytest.raises(StoreUnavailable):
        await mirror.stand(0.05)
    assert not mirror.stands
    await mirror.close()


# Losses.


async def test_a_lock_that_goes_without_its_marker_is_told_as_lost(store: MemoryStore) -> None:
    async with mirror_of(store) as mirror:
        await mirror.reach(await commit(store, granted("l1")), 5)
        told = follow(mirror.followed(BOARD))
        gone = ChangeSet((), (), (DeleteKey(key(keys.LOCK, "l1")),))
        await mirror.reach(await commit(store, gone), 5)
        losses = [loss for losses in told for loss in losses]
        assert [loss.lock_id for loss in losses] == ["l1"]
        assert losses[0].lock == lock()
        assert "l1" in mirror.picture(BOARD).claims
        assert "l1" not in mirror.picture(BOARD).locks


async def test_beginning_anew_tells_what_was_lost_meanwhile(store: MemoryStore) -> None:
    async with mirror_of(store) as mirror:
        await commit(store, granted("l1"))
        await mirror.reach(await commit(store, granted("l2", lock("s2"))), 5)
        told = follow(mirror.followed(BOARD))
        mirror._begin_anew(WatchGap())
        await commit(store, ChangeSet((), (), (DeleteKey(key(keys.LOCK, "l1")),)))
        await commit(store, released("l2"))
        await mirror._load()
        assert [loss.lock_id for losses in told for loss in losses] == ["l1"]  # l2 was released
        assert set(mirror.picture(BOARD).claims) == {"l1"}


# Missed changes.


async def test_a_grant_that_was_missed_is_noticed(store: MemoryStore) -> None:
    """The generation names a lock that is not there."""
    doctored = _Doctored(store)
    doctored.doctor = lambda events: [event for event in events if event.key == GENERATION]
    async with mirror_of(doctored) as mirror:  # type: ignore[arg-type]  # it has every method of the port
        await commit(store, granted("l1"))
        await until(lambda: mirror.reloads > 0)
        doctored.doctor = lambda events: events
        await until(lambda: mirror.stands)
        assert "l1" in mirror.picture(BOARD).locks


async def test_a_change_that_was_missed_is_noticed_at_the_next_of_the_key(store: MemoryStore) -> None:
    doctored = _Doctored(store)
    async with mirror_of(doctored) as mirror:  # type: ignore[arg-type]  # as above
        await mirror.reach(await commit(store, granted("l1")), 5)
        doctored.doctor = lambda events: ()
        await mirror.reach(await commit(store, granted("l1", lock(mode=Mode.SHARED))), 5)
        doctored.doctor = lambda events: events
        await commit(store, granted("l1", lock()))
        await until(lambda: mirror.reloads == 1)
        await until(lambda: mirror.stands)


@pytest.mark.parametrize(
    ("missed", "following"),
    [(granted("l1"), released("l1")), (released("l1"), granted("l1"))],
    ids=["a beginning", "an end"],
)
async def test_a_life_that_was_missed_is_noticed_where_the_store_does_not_know_what_was_before(
    store: MemoryStore, missed: ChangeSet, following: ChangeSet
) -> None:
    doctored = _Doctored(store)
    if missed.deletes:
        await commit(store, following)
    async with mirror_of(doctored) as mirror:  # type: ignore[arg-type]  # as above
        doctored.doctor = lambda events: ()
        await mirror.reach(await commit(store, missed), 5)
        doctored.doctor = lambda events: [event._replace(previous_revision=0) for event in events]
        await commit(store, following)
        await until(lambda: mirror.reloads == 1)
        await until(lambda: mirror.stands)
        assert ("l1" in mirror.picture(BOARD).locks) == bool(following.puts)


async def test_a_change_in_a_life_that_was_missed_is_noticed(store: MemoryStore) -> None:
    doctored = _Doctored(store)
    async with mirror_of(doctored) as mirror:  # type: ignore[arg-type]  # as above
        doctored.doctor = lambda events: ()
        await mirror.reach(await commit(store, opened()), 5)
        doctored.doctor = lambda events: [event._replace(previous_revision=0) for event in events]
        await commit(store, opened())
        await until(lambda: mirror.reloads == 1)
        await until(lambda: mirror.stands)
        assert "s1" in mirror.picture(BOARD).sessions


async def test_nobody_stands_on_a_picture_that_is_being_begun_anew(store: MemoryStore) -> None:
    async with mirror_of(store) as mirror:
        mirror._begin_anew(WatchGap())
        assert not mirror.stands
        with pytest.raises(StoreUnavailable):
            await mirror.reach(0, 0.01)


# This server's own doing.


async def test_what_was_learnt_before_the_watch_brings_it_is_not_taken_twice(store: MemoryStore) -> None:
    doctored = _Doctored(store)
    async with mirror_of(doctored) as mirror:  # type: ignore[arg-type]  # as above
        doctored.gate.clear()
        at = await commit(store, granted("l1"))
        mirror.learn(granted("l1"), at)
        board = mirror.picture(BOARD)
        assert board.locks["l1"].create_revision == at
        assert mirror.revision_of(GENERATION) == at
        assert mirror.revision < at
        version = board.version
        doctored.gate.set()
        await mirror.reach(at, 5)
        assert board.version == version
        assert mirror.reloads == 0


async def test_what_the_watch_has_brought_is_not_learnt_again(store: MemoryStore) -> None:
    async with mirror_of(store) as mirror:
        grant = await commit(store, granted("l1"))
        await mirror.reach(await commit(store, released("l1")), 5)
        mirror.learn(granted("l1"), grant)  # the answer came later than both
        assert mirror.board(BOARD) is None
        assert mirror.revision_of(key(keys.LOCK, "l1")) == 0


async def test_what_was_deleted_here_does_not_come_back_with_a_late_event(store: MemoryStore) -> None:
    doctored = _Doctored(store)
    async with mirror_of(doctored) as mirror:  # type: ignore[arg-type]  # as above
        doctored.gate.clear()
        grant = await commit(store, granted("l1"))
        mirror.learn(granted("l1"), grant)
        release = await commit(store, released("l1"))
        mirror.learn(released("l1"), release)
        assert mirror.board(BOARD) is None
        doctored.gate.set()
        await mirror.reach(release, 5)
        assert mirror.board(BOARD) is None
        assert mirror.reloads == 0
        assert not mirror._removed


async def test_what_a_read_says_is_gone_does_not_come_back_with_a_late_event(store: MemoryStore) -> None:
    doctored = _Doctored(store)
    async with mirror_of(doctored) as mirror:  # type: ignore[arg-type]  # as above
        await mirror.reach(await commit(store, granted("l1")), 5)
        doctored.gate.clear()
        await commit(store, granted("l1", lock(mode=Mode.SHARED)))
        release = await commit(store, released("l1"))
        for kind in (keys.MARKER, keys.LOCK):
            mirror.forget(key(kind, "l1"), release)
        assert mirror.board(BOARD) is None
        doctored.gate.set()
        await mirror.reach(release, 5)
        assert mirror.board(BOARD) is None
        assert mirror.reloads == 0


async def test_an_older_read_does_not_forget_what_is_newer(store: MemoryStore) -> None:
    async with mirror_of(store) as mirror:
        at = await commit(store, granted("l1"))
        await mirror.reach(at, 5)
        mirror.forget(key(keys.LOCK, "l1"), at - 1)
        assert "l1" in mirror.picture(BOARD).locks
