"""Change sets that wait together are sent together, and every waiter hears what became of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.core.refusals import OutcomeUnknown, StoreUnavailable
from kokuban_server.ports.group_commit import Answer, GroupCommit

if TYPE_CHECKING:
    from collections.abc import Sequence


class Gate:
    """Sends batches when it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.answers: dict[bytes, Exception] = {}
        self.open = asyncio.Event()
        self.error: BaseException | None = None

    async def send(self, batch: Sequence[ChangeSet]) -> Sequence[Answer]:
        self.batches.append([change.puts[0].key for change in batch])
        await self.open.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return [self.answers.get(change.puts[0].key, len(self.batches)) for change in batch]


def change(key: bytes, *, reads: bytes | None = None, size: int = 0) -> ChangeSet:
    return ChangeSet((Absent(reads),) if reads else (), (Put(key, b"x" * size),))


def waiting(group: GroupCommit, *sets: ChangeSet, deadline_s: float | None = None) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(group.commit(one, deadline_s)) for one in sets]


async def turns(count: int = 5) -> None:
    """Let everything that can go on without outside help go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_arrives_while_a_batch_is_on_its_way_is_the_next() -> None:
    gate = Gate()
    group = GroupCommit(gate.send, members_max=10, bytes_max=1000)
    first = waiting(group, change(b"a"))
    await turns()
    rest = waiting(group, change(b"b"), change(b"c"), change(b"d"))
    await turns()
    assert gate.batches == [[b"a"]]
    gate.open.set()
    assert await asyncio.gather(*first, *rest) == [1, 2, 2, 2]
    assert gate.batches == [[b"a"], [b"b", b"c", b"d"]]


async def test_dependent_sets_go_one_after_the_other_and_independent_ones_pass_them() -> None:
    gate = Gate()
    gate.open.set()
    group = GroupCommit(gate.send, members_max=10, bytes_max=1000)
    tasks = waiting(group, change(b"a"), change(b"b", reads=b"a"), change(b"c"), change(b"a"))
    await asyncio.gather(*tasks)
    assert gate.batches == [[b"a", b"c"], [b"b"], [b"a"]]


async def test_a_batch_is_bounded_in_members_and_bytes() -> None:
    gate = Gate()
    gate.open.set()
    group = GroupCommit(gate.send, members_max=2, bytes_max=500)
    await asyncio.gather(*waiting(group, *(change(b"%d" % n) for n in range(5))))
    assert [len(batch) for batch in gate.batches] == [2, 2, 1]
    gate.batches.clear()
    await asyncio.gather(*waiting(group, change(b"a", size=300), change(b"b", size=300), change(b"c", size=2000)))
    assert gate.batches == [[b"a"], [b"b"], [b"c"]]


async def test_each_waiter_hears_its_own_answer() -> None:
    gate = Gate()
    gate.open.set()
    gate.answers[b"b"] = StoreUnavailable("b alone")
    group = GroupCommit(gate.send, members_max=10, bytes_max=1000)
    answers = await asyncio.gather(*waiting(group, change(b"a"), change(b"b"), change(b"c")), return_exceptions=True)
    assert answers == [1, gate.answers[b"b"], 1]


async def test_an_error_of_the_whole_batch_reaches_everybody_in_it_and_nobody_else() -> None:
    gate = Gate()
    lost = gate.error = RuntimeError("lost")
    group = GroupCommit(gate.send, members_max=2, bytes_max=1000)
    tasks = waiting(group, change(b"a"), change(b"b"), change(b"c"))
    await turns()
    gate.open.set()
    assert list(await asyncio.gather(*tasks[:2], return_exceptions=True)) == [lost] * 2
    assert await tasks[2] == 2
    assert await group.commit(change(b"d")) == 3


async def test_a_cancelled_waiter_does_not_take_its_set_back() -> None:
    gate = Gate()
    group = GroupCommit(gate.send, members_max=10, bytes_max=1000)
    tasks = waiting(group, change(b"a"), change(b"b"), change(b"c"))
    await turns(2)
    late = waiting(group, change(b"d"), change(b"e"))
    await turns()
    tasks[1].cancel()  # on its way
    late[0].cancel()  # still waiting
    gate.open.set()
    assert await tasks[0] == await tasks[2]
    await late[1]
    assert [key for batch in gate.batches for key in batch] == [b"a", b"b", b"c", b"d", b"e"]


async def test_the_deadline_takes_back_what_waits_and_leaves_open_what_was_sent() -> None:
    gate = Gate()
    group = GroupCommit(gate.send, members_max=10, bytes_max=1000)
    (sent,) = waiting(group, change(b"a"), deadline_s=0.01)
    await turns()
    (unsent,) = waiting(group, change(b"b"), deadline_s=0.01)
    with pytest.raises(StoreUnavailable):
        await unsent
    with pytest.raises(OutcomeUnknown):
        await sent
    gate.open.set()
    assert await group.commit(change(b"c"), 10.0) == 2
    assert gate.batches == [[b"a"], [b"c"]]


async def test_too_many_waiting_are_refused_at_once() -> None:
    gate = Gate()
    group = GroupCommit(gate.send, members_max=10, bytes_max=1000, waiting_max=2)
    first = waiting(group, change(b"a"))
    await turns()
    rest = waiting(group, change(b"b"), change(b"c"))
    await turns()
    with pytest.raises(StoreUnavailable):
        await group.commit(change(b"d"))
    gate.open.set()
    await asyncio.gather(*first, *rest)
    await group.commit(change(b"d"))


async def test_closing_finishes_what_was_taken_and_takes_nothing_more() -> None:
    gate = Gate()
    group = GroupCommit(gate.send, members_max=1, bytes_max=1000)
    tasks = waiting(group, change(b"a"), change(b"b"))
    await turns()
    closing = asyncio.create_task(group.close())
    await turns()
    with pytest.raises(StoreUnavailable):
        await group.commit(change(b"c"))
    gate.open.set()
    await closing
    assert [task.result() for task in tasks] == [1, 2]


async def test_whoever_waits_for_a_batch_that_is_stopped_hears_that_nobody_knows() -> None:
    gate = Gate()
    gate.error = asyncio.CancelledError()
    gate.open.set()
    group = GroupCommit(gate.send, members_max=10, bytes_max=1000)
    with pytest.raises(OutcomeUnknown):
        await group.commit(change(b"a"))
