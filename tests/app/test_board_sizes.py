"""What a server knows of the boards' sizes: the last count, and what it has put since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kokuban_server.app.board_census import BoardCensus, _Disowned
from kokuban_server.app.board_sizes import BoardSizes, growth_of
from kokuban_server.core import keys
from kokuban_server.core.boards import BoardRecord
from kokuban_server.core.change_set import Absent, AtRevision, ChangeSet, DeleteKey, Put
from kokuban_server.core.names import parse_region
from kokuban_server.core.refusals import BoardFull
from kokuban_server.core.tasks import event_path
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.board_codec import encode_board
from kokuban_server.records.codec import encode_board_size

if TYPE_CHECKING:
    from kokuban_server.adapters.memory import MemoryStore
    from kokuban_server.ports.board_store import BoardStore

BOARD = keys.board_prefix("dev", "main")
REGION = parse_region("shared:plan")
FAR = 1e9


def head(path: str, tenant: str = "dev", board: str = "main", region: str = "shared:plan") -> bytes:
    return keys.head(keys.region_prefix(tenant, board, parse_region(region)), path)


def written(at: bytes, sequence: int, value: bytes, revision: int = 0) -> ChangeSet:
    """Give what a commit of one entry writes: a new state over the one of a revision, and the clean-up of its 64th ago."""
    guard = AtRevision(at, revision) if revision else Absent(at)
    gone = (DeleteKey(keys.history_record(at, sequence - 64)),) if sequence > 64 else ()
    return ChangeSet((guard,), (Put(at, value), Put(keys.history_record(at, sequence), value)), gone)


async def taken(store: BoardStore, board: bytes) -> int:
    """Add up what stands in the store below a board's heads and histories."""
    size = 0
    for prefix in (keys.HEAD, keys.HISTORY):
        page = await store.scan(prefix + board, b"", 100_000, 2**28, STRONG, 10.0)
        size += sum(len(record.key) + len(record.value) for record in page.records)
    return size


async def apply(store: BoardStore, sizes: BoardSizes, change: ChangeSet) -> int:
    growth = sizes.begin(BOARD, change)
    revision = await store.commit(change, 10.0)
    sizes.end(BOARD, growth, revision)
    return revision


def silent(job: str, fault: Exception) -> None:
    raise AssertionError(f"{job}: {fault}")


def census_of(store: BoardStore) -> BoardCensus:
    return BoardCensus(store, "server-1", silent, 60.0)


# What a commit adds.


async def test_a_new_entry_adds_exactly_what_it_takes(store: MemoryStore) -> None:
    sizes = BoardSizes(store, 10**6, 60.0)
    for number in range(5):
        await apply(store, sizes, written(head(f"e{number}"), 1, b"x" * 100 * number))
        assert sizes.size_bytes(BOARD) == await taken(store, BOARD)


async def test_an_event_adds_what_it_takes_and_is_counted_as_that(store: MemoryStore) -> None:
    """Whether it stands at its head alone, as an agent's own, or in the history too."""
    await make_board(store, "main")
    sizes = BoardSizes(store, 10**6, 60.0)
    once, twice = head(event_path(1), region="task:t1"), head(event_path(2), region="task:t1")
    await apply(store, sizes, ChangeSet((Absent(once),), (Put(once, b"x" * 100),)))
    await apply(store, sizes, written(twice, 1, b"x" * 100))
    await apply(store, sizes, written(head("notes/1", region="task:t1"), 1, b"x" * 100))
    assert sizes.size_bytes(BOARD) == await taken(store, BOARD)
    await census_of(store).take()
    await sizes.read(FAR)
    assert sizes.size_bytes(BOARD) == await taken(store, BOARD)


async def test_an_entry_that_is_overwritten_for_ever_grows_no_further_than_its_history(store: MemoryStore) -> None:
    """As a counter that everybody increments: only the first 64 states make the board larger."""
    sizes = BoardSizes(store, 10**6, 60.0)
    revision = 0
    for sequence in range(1, 500):
        revision = await apply(store, sizes, written(head("n"), sequence, b"x" * 100, revision))
        assert sizes.size_bytes(BOARD) == await taken(store, BOARD)


@pytest.mark.parametrize(
    "other",
    [head("e", tenant="dev2"), head("e", board="main2"), head("e", board="mai"), head("e", region="tenant")],
    ids=["tenant", "longer", "shorter", "beyond"],
)
def test_what_is_put_elsewhere_does_not_count(other: bytes) -> None:
    assert growth_of(written(other, 1, b"x"), BOARD) is None
    assert growth_of(ChangeSet((), (Put(keys.OPERATION + b"x/", b"x"),)), BOARD) is None
    both = ChangeSet((), written(other, 1, b"x").puts + written(head("e"), 1, b"x").puts)
    assert growth_of(both, BOARD) == growth_of(ChangeSet((), written(head("e"), 1, b"x").puts), BOARD)


def test_what_is_on_its_way_takes_room_until_it_has_failed(store: MemoryStore) -> None:
    first, second = written(head("a"), 1, b"x" * 100), written(head("b"), 1, b"x" * 100)
    size = growth_of(first, BOARD)
    assert size is not None
    sizes = BoardSizes(store, 2 * size - 1, 60.0)
    sizes.admit(BOARD, "main", first)
    growth = sizes.begin(BOARD, first)
    with pytest.raises(BoardFull) as full:
        sizes.admit(BOARD, "main", second)
    assert full.value.facts == {"board": "main", "limit": str(2 * size - 1), "actual": str(size)}
    assert full.value.retry_ms == 60_000
    sizes.end(BOARD, growth, None)
    assert sizes.size_bytes(BOARD) == 0
    sizes.admit(BOARD, "main", second)


# The count.


async def count(store: BoardStore, size: int, revision: int) -> None:
    put = Put(keys.size(BOARD), encode_board_size(size, revision))
    await store.commit(ChangeSet((), (put,)), 10.0)


async def test_a_count_replaces_what_was_put_before_it_and_not_what_was_put_after(store: MemoryStore) -> None:
    sizes = BoardSizes(store, 10**9, 60.0)
    revisions = [await apply(store, sizes, written(head(f"e{number}"), 1, b"x" * 100)) for number in range(4)]
    one = sizes.size_bytes(BOARD) // 4
    await count(store, 5_000, revisions[1])
    await sizes.read(FAR)
    assert sizes.size_bytes(BOARD) == 5_000 + 2 * one
    await count(store, 1, revisions[0])  # of a server that has lost the work, and came late
    await sizes.read(FAR)
    assert sizes.size_bytes(BOARD) == 5_000 + 2 * one
    await count(store, 4 * one, revisions[3])
    await sizes.read(FAR)
    assert sizes.size_bytes(BOARD) == 4 * one
    await store.commit(ChangeSet((), (), (DeleteKey(keys.size(BOARD)),)), 10.0)
    await sizes.read(FAR)
    assert sizes.size_bytes(BOARD) == 0


async def test_a_commit_whose_count_is_known_before_its_answer_counts_once(store: MemoryStore) -> None:
    sizes = BoardSizes(store, 10**9, 60.0)
    change = written(head("e"), 1, b"x" * 100)
    growth = sizes.begin(BOARD, change)
    revision = await store.commit(change, 10.0)
    await count(store, growth, revision)
    await sizes.read(FAR)
    sizes.end(BOARD, growth, revision)
    assert sizes.size_bytes(BOARD) == growth


async def test_what_was_put_since_a_count_is_remembered_in_bounded_memory(store: MemoryStore) -> None:
    """Coarser where it is much: after the next count some of it counts twice, and none of it is forgotten too early."""
    sizes = BoardSizes(store, 10**9, 60.0)
    change = written(head("e"), 1, b"x" * 100)
    many = 10_000
    for revision in range(1, many + 1):
        sizes.end(BOARD, sizes.begin(BOARD, change), revision)
    one = growth_of(change, BOARD)
    assert one is not None
    assert sizes.size_bytes(BOARD) == many * one
    assert len(sizes._boards[BOARD]._added) <= 1_024
    await count(store, 0, many - 3_000)
    await sizes.read(FAR)
    assert 3_000 * one <= sizes.size_bytes(BOARD) <= 3_200 * one


# The census.


async def make_board(store: BoardStore, name: str, tenant: str = "dev") -> None:
    await store.commit(ChangeSet((), (Put(keys.board(tenant, name), encode_board(BoardRecord(1, "a"))),)), 10.0)


async def counted(store: BoardStore) -> dict[bytes, int]:
    sizes = BoardSizes(store, 1, 60.0)
    await sizes.read(FAR)
    return {board: sizes.size_bytes(board) for board in sizes._boards}


async def test_a_census_counts_every_board_of_every_tenant_by_itself(store: MemoryStore) -> None:
    """Also over many pages, and entries whose history ends on one and goes on on the next."""
    boards = [("dev", "main"), ("dev", "main-2"), ("dev2", "main"), ("dev", "empty")]
    for tenant, name in boards:
        await make_board(store, name, tenant)
    for tenant, name, entries in (("dev", "main", 40), ("dev", "main-2", 3), ("dev2", "main", 5)):
        for number in range(entries):
            revision = 0
            for sequence in range(1, 21):
                change = written(head(f"e{number}", tenant, name), sequence, b"x" * number * sequence, revision)
                revision = await store.commit(change, 10.0)
    await store.commit(written(head("e", region="tenant"), 1, b"beyond any board"), 10.0)
    await census_of(store).take()
    assert await counted(store) == {
        keys.board_prefix(*board): await taken(store, keys.board_prefix(*board)) for board in boards
    }


async def test_a_census_forgets_boards_that_are_gone_and_writes_nothing_where_nothing_happened(
    store: MemoryStore,
) -> None:
    for name in ("main", "gone"):
        await make_board(store, name)
        await store.commit(written(head("e", board=name), 1, b"x"), 10.0)
    census = census_of(store)
    await census.take()
    assert set(await counted(store)) == {BOARD, keys.board_prefix("dev", "gone")}
    await store.commit(ChangeSet((), (), (DeleteKey(keys.board("dev", "gone")),)), 10.0)
    await census.take()
    assert set(await counted(store)) == {BOARD}
    before = (await store.read([keys.SECRET], STRONG, 10.0)).revision
    await census.take()
    assert (await store.read([keys.SECRET], STRONG, 10.0)).revision == before


async def test_what_was_put_while_a_board_was_counted_is_in_the_next_count_once(store: MemoryStore) -> None:
    """Even if nothing happens afterwards: until then it may stand in the count and in what a server has put since."""
    sizes = BoardSizes(store, 10**9, 60.0)
    await make_board(store, "main")
    await apply(store, sizes, written(head("a"), 1, b"x"))
    census = census_of(store)
    plain = store.scan
    raced = False

    async def scan(prefix: bytes, *more: object) -> object:
        nonlocal raced
        page = await plain(prefix, *more)  # type: ignore[arg-type]  # as it came
        if prefix == keys.HISTORY + BOARD and not raced:
            raced = True
            await apply(store, sizes, written(head("b"), 1, b"x"))
            return page._replace(records=(await plain(prefix, *more)).records)  # type: ignore[arg-type]  # as above
        return page

    store.scan = scan  # type: ignore[method-assign, assignment]  # a write falls between
    await census.take()
    assert raced
    await sizes.read(FAR)
    assert sizes.size_bytes(BOARD) > await taken(store, BOARD)
    await census.take()
    await sizes.read(FAR)
    assert sizes.size_bytes(BOARD) == await taken(store, BOARD)


async def test_one_server_counts_at_a_time(store: MemoryStore) -> None:
    first, second = census_of(store), census_of(store)
    assert await first._ownership.hold()
    await make_board(store, "main")
    with pytest.raises(_Disowned):
        await second.take()
    assert await counted(store) == {}
    await first._ownership.let_go()
    await second.take()
    assert set(await counted(store)) == {BOARD}
