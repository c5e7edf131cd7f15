"""The examination of the store: whatever is planted is found and put right, and what real servers write is left alone."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from kokuban.v1 import examination_pb2 as pb
from kokuban_server.adapters.memory import MemoryStore
from kokuban_server.adapters.sqlite import SqliteStore
from kokuban_server.app.access import Access
from kokuban_server.app.audit import AuditLog
from kokuban_server.app.audit_reading import AuditReading
from kokuban_server.app.boards import Boards
from kokuban_server.app.doctor import Doctor
from kokuban_server.app.request_ids import RequestIds
from kokuban_server.app.store_classes import CLASSES
from kokuban_server.app.store_time import StoreTime
from kokuban_server.core import keys, limits
from kokuban_server.core.access import EVERYBODY, Grants, Principal, Role
from kokuban_server.core.boards import BoardRecord
from kokuban_server.core.change_set import Absent, ChangeSet, Put
from kokuban_server.core.examination import FindingKind, FindingOutcome
from kokuban_server.core.locks import SessionRecord
from kokuban_server.core.refusals import RoleRequired, StoreFull
from kokuban_server.ports.board_store import STRONG
from kokuban_server.records.board_codec import encode_board
from kokuban_server.records.codec import encode_owner
from kokuban_server.records.lock_codec import encode_session
from tests.audit_harm import content
from tests.core.obfuscations import ORDERS_EN, hidden
from tests.store_harm import Planted, plant_all, plants
from tests.wire.calls import Kept, SettableClock, at, delete, eventually, lasting, of_source, put, refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

    from kokuban_server.core.examination import Finding
    from kokuban_server.ports.board_store import BoardStore, Consistency, Cut
    from tests.wire.calls import Asking
    from tests.wire.conftest import Running

OPERATOR = Principal("dev", "chief", frozenset({Role.OPERATOR}), boards=EVERYBODY)
KEPT_MS = limits.REQUEST_ID_WINDOW_MS + 5 * 60_000


def doctor_of(store: BoardStore, clock: SettableClock, second_look_s: float = 0.0) -> Doctor:
    """Give a doctor without a server, so that nobody else looks after the store."""
    access = Access(store, Boards(store), clock, frozenset())
    digest = RequestIds(StoreTime(store, clock), b"\x07" * 32).digest
    audit = AuditLog(store, StoreTime(store, clock), "doctor", lambda _job, fault: pytest.fail(str(fault)), bytes)
    return Doctor(store, access, audit, AuditReading(store, access), KEPT_MS, digest, second_look_s)


async def examined(doctor: Doctor, principal: Principal = OPERATOR, *, repair: bool = False) -> list[Finding]:
    """Give what is found in the whole store."""
    found: list[Finding] = []
    token = ""
    while True:
        deadline = asyncio.get_running_loop().time() + 10.0
        page = await doctor.examine(principal, token, deadline, repair=repair)
        found += page.findings
        token = page.next_page_token
        if not token:
            return found


def as_planted(found: Iterable[Finding]) -> Counter[Planted]:
    return Counter(
        Planted(one.record_class, one.kind, one.outcome is not FindingOutcome.NOT_REPAIRABLE) for one in found
    )


async def put_raw(store: BoardStore, name: bytes, value: bytes, lease: int | None = None) -> None:
    await store.commit(ChangeSet((), (Put(name, value, lease),)), 5.0)


@pytest.fixture
async def own_store(any_store: BoardStore, clock: SettableClock) -> BoardStore:
    """A store that no server has, with the board `main`."""
    await put_raw(any_store, keys.board("dev", "main"), encode_board(BoardRecord(clock.now_ms(), "chief")))
    return any_store


async def everything(store: BoardStore) -> dict[bytes, int]:
    """Give all records, and when each was written."""
    found: dict[bytes, int] = {}
    after, more = b"", True
    while more:
        page = await store.scan(b"", after, 1_000, limits.PAGE_BYTES_MAX, STRONG, 5.0)
        found |= {record.key: record.revision for record in page.records}
        after, more = page.records[-1].key if page.records else b"", page.more
    return found


async def work_of_all_kinds(running: Running) -> Asking:
    """Leave a record of each class that agents' work makes; give the request that waits."""
    agent, other = running.agent, running.as_agent("writer-2")
    first = await agent.commit(put("a"))
    await agent.commit(put("b", ttl=lasting(60)))
    gone = await agent.commit(put("c"))
    await agent.commit(delete("c", at(gone)))
    await agent.commit(put("a", "2", at(first)))
    with refused("REVISION_MISMATCH"):
        await other.commit(put("a", "3", at(first)))
    await running.as_agent("operator-1", "operator").commit(put("e", region="tenant"))
    await running.as_agent("system-1", "system").commit(put("e", region="global"))
    with refused("CONTENT_QUARANTINED"):
        await agent.commit(put("page", hidden("en", ORDERS_EN[0], "HTML comment"), provenance=of_source()))
    await agent.commit(put("weather", "It rains.", provenance=of_source()))
    member = await running.join()
    await agent.asked("weather", session=member.session)
    await member.acquire("a")
    waiting = await running.join("writer-2")
    return await waiting.queued("a")


LEFT_BY_WORK = {
    "board",
    "entry",
    "history",
    "reminder",
    "operation",
    "session",
    "lock",
    "lock marker",
    "wait",
    "lock generation",
    "queue generation",
    "read scope",
    "quarantine",
    "quarantine reminder",
    "origin",
    "conflict",
    "conflict place",
    "server",
    "owner",
    "compaction mark",
}
LEFT_BY_OTHERS = {
    "purge",
    "board size",
    "digest key",
    "removal",
    "running removal",
    "tick",
    "task log",
    "task",
    "task action",
    "pending commit",
    "rescreening",
    "task notes",
    "task wait",
    "task archive",
    "archiving",
}
"""Of these classes there is nothing in a board's every-day life, or only what the making of a server leaves."""


UNHARMED = {"tick", "task log", "task", "task action"}
"""Of these only an orphan could be planted, as of any class that goes with its board."""


async def test_what_agents_and_servers_leave_in_the_store_is_left_alone(on_any_store: Running) -> None:
    store = on_any_store.server._store
    asking = await work_of_all_kinds(on_any_store)
    await on_any_store.server._conflicts.settle(asyncio.get_running_loop().time() + 10.0)
    await eventually(lambda: _has(store, keys.MARK))
    before = await everything(store)
    left = {row.name for row in CLASSES for name in before if name.startswith(row.prefix)}
    assert left == LEFT_BY_WORK
    assert left | LEFT_BY_OTHERS == {row.name for row in CLASSES}
    pages = await examined_by_rpc(on_any_store, repair=True)
    assert [finding for page in pages for finding in page.findings] == []
    assert {page.record_class for page in pages if page.examined_count} >= LEFT_BY_WORK
    assert await everything(store) == before
    asking.cancel()


async def _has(store: BoardStore, prefix: bytes) -> bool:
    return bool((await store.scan(prefix, b"", 1, 1, STRONG, 5.0)).records)


async def examined_by_rpc(
    running: Running, agent: str = "chief", roles: str = "operator", *, repair: bool = False
) -> list[pb.ExamineStoreResponse]:
    """Give all pages."""
    chief = running.as_agent(agent, roles)
    pages: list[pb.ExamineStoreResponse] = []
    request = pb.ExamineStoreRequest(repair=repair)
    while not pages or request.page_token:
        pages.append(await chief.admin.ExamineStore(request, metadata=chief.metadata))
        request.page_token = pages[-1].next_page_token
    return pages


async def test_each_thing_that_is_planted_is_found_and_put_right_and_then_nothing_is_found(
    own_store: BoardStore, clock: SettableClock
) -> None:
    planted = await plant_all(own_store, clock.now_ms(), beside_servers=False)
    doctor = doctor_of(own_store, clock)
    before = await everything(own_store)
    found = await examined(doctor)
    assert as_planted(found) == Counter(planted)
    assert {finding.record_class for finding in found} >= {row.name for row in CLASSES} - {
        "tick",
        "task log",
        "task",
        "task action",
    }
    assert await everything(own_store) == before  # it was only looked at
    repaired = await examined(doctor, repair=True)
    # What removes a lock leaves its marker: a loss, which is noted so that its lock delay begins.
    losses = Counter({Planted("lock marker", FindingKind.INCOMPLETE): 2})
    assert as_planted(repaired) == Counter(planted) + losses
    assert {finding.outcome for finding in repaired} == {FindingOutcome.REPAIRED, FindingOutcome.NOT_REPAIRABLE}
    left = await examined(doctor, repair=True)
    assert as_planted(left) == Counter(one for one in planted if not one.is_repairable)


async def test_repairs_are_recorded_and_no_answer_names_a_path(own_store: BoardStore, clock: SettableClock) -> None:
    await plant_all(own_store, clock.now_ms(), beside_servers=False)
    doctor = doctor_of(own_store, clock)
    await examined(doctor)
    assert await content(own_store) == {}
    found = await examined(doctor, repair=True)
    assert await content(own_store)
    for finding in found:
        if finding.record_class in {"entry", "history", "reminder", "operation", "lock generation", "queue generation"}:
            assert finding.record.startswith("sha256:"), finding


async def test_nothing_of_another_tenant_or_of_a_board_beyond_the_credential_is_looked_at(
    own_store: BoardStore, clock: SettableClock
) -> None:
    await plant_all(own_store, clock.now_ms(), beside_servers=False)
    before = await everything(own_store)
    doctor = doctor_of(own_store, clock)
    stranger = Principal("acme", "chief", frozenset({Role.OPERATOR}), boards=EVERYBODY)
    of_stores = {"unknown", "digest key", "server", "owner", "compaction mark", "rescreening"}
    assert {finding.record_class for finding in await examined(doctor, stranger)} == of_stores
    of_other = Principal("dev", "chief", frozenset({Role.OPERATOR}), boards=Grants(frozenset({"other"})))
    assert {finding.record_class for finding in await examined(doctor, of_other)} == of_stores
    with pytest.raises(RoleRequired):
        await examined(doctor, Principal("dev", "writer-1", frozenset({Role.MEMBER})))
    assert {key: at for key, at in (await everything(own_store)).items() if not key.startswith(keys.AUDIT)} == before


class Meddling(Kept):
    """A store in which somebody acts between look and repair."""

    def __init__(self, store: BoardStore, acts: Callable[[], Awaitable[None]]) -> None:
        super().__init__(store)
        self._acts = acts
        self.is_armed = False

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        if self.is_armed and change.deletes:
            self.is_armed = False
            await self._acts()
        revision: int = await self._store.commit(change, deadline_s)
        return revision


async def test_what_comes_to_life_between_look_and_repair_is_left_alone(
    own_store: BoardStore, clock: SettableClock
) -> None:
    prefix = keys.board_prefix("dev", "main")
    lock, session = keys.on_board(keys.LOCK, prefix, "l"), keys.on_board(keys.SESSION, prefix, "no-session")
    lease = (await own_store.grant_lease(60_000, 5.0)).id
    record = next(plant for plant in plants(clock.now_ms(), lease, 1) if plant.name == "lock of no session")
    await own_store.commit(ChangeSet((), record.puts), 5.0)

    async def opens() -> None:
        raw = encode_session(SessionRecord("planter", "", clock.now_ms(), 60_000, lease))
        await own_store.commit(ChangeSet((Absent(session),), (Put(session, raw, lease),)), 5.0)

    meddling = Meddling(own_store, opens)
    doctor = doctor_of(meddling, clock)
    meddling.is_armed = True
    before = await everything(own_store)
    found = await examined(doctor, repair=True)
    assert [(one.record_class, one.outcome) for one in found] == [("lock", FindingOutcome.CHANGED)]
    after = await everything(own_store)
    assert {key for key in before if key not in after} == set()
    assert await examined(doctor, repair=True) == []
    assert lock not in after


class Noting(Kept):
    """A store in which a server notes a loss as soon as somebody has looked at its marker."""

    def __init__(self, store: BoardStore, marker: Put) -> None:
        super().__init__(store)
        self._marker = marker
        self.noted = 0

    async def read(self, named: Sequence[bytes], consistency: Consistency, deadline_s: float) -> Cut:
        cut: Cut = await self._store.read(named, consistency, deadline_s)
        if named[0] == self._marker.key:
            self.noted += 1
            await self._store.commit(ChangeSet((), (self._marker,)), deadline_s)
        return cut


async def test_what_some_server_is_putting_right_is_looked_at_twice_and_left_to_it(
    own_store: BoardStore, clock: SettableClock
) -> None:
    loss = next(plant for plant in plants(clock.now_ms(), 1, 1) if plant.name == "loss that nobody noted")
    await own_store.commit(ChangeSet((), loss.puts), 5.0)
    noting = Noting(own_store, loss.puts[0])
    assert await examined(doctor_of(noting, clock), repair=True) == []
    assert noting.noted == 2  # at each look
    [found] = await examined(doctor_of(own_store, clock), repair=True)
    assert (found.record_class, found.outcome) == ("lock marker", FindingOutcome.REPAIRED)


async def test_a_record_on_a_lease_that_the_store_has_lost_is_found(tmp_path: Path, clock: SettableClock) -> None:
    store = await SqliteStore.open(tmp_path / "store", clock)
    lease = (await store.grant_lease(60_000, 5.0)).id
    await put_raw(store, keys.owner("upkeep"), encode_owner("dead"), lease)
    assert await examined(doctor_of(store, clock), repair=True) == []
    await store.close()
    [database] = (tmp_path / "store").glob("*.db")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("DELETE FROM lease")
        connection.commit()
    store = await SqliteStore.open(tmp_path / "store", clock)
    [found] = await examined(doctor_of(store, clock), repair=True)
    assert (found.record_class, found.kind, found.outcome) == (
        "owner",
        FindingKind.UNLEASED,
        FindingOutcome.REPAIRED,
    )
    assert await examined(doctor_of(store, clock), repair=True) == []
    await store.close()


async def test_a_broken_audit_log_is_told_and_never_repaired(own_store: BoardStore, clock: SettableClock) -> None:
    await put_raw(own_store, keys.audit_record("dev", clock.now_ms(), "chain", 1), b"forged")
    doctor = doctor_of(own_store, clock)
    for _ in range(2):
        found = await examined(doctor, repair=True)
        assert {(one.kind, one.outcome) for one in found} == {(FindingKind.AUDIT_BROKEN, FindingOutcome.NOT_REPAIRABLE)}


async def test_pages_go_on_where_the_one_before_ended(own_store: BoardStore, clock: SettableClock) -> None:
    most = limits.STORE_EXAMINED_ENTRIES_MAX
    places = [keys.conflict_place(keys.board_prefix("dev", "main"), f"{number:032x}") for number in range(most + 1)]
    for begin in range(0, len(places), 100):
        puts = tuple(Put(place, b"nowhere") for place in places[begin : begin + 100])
        await own_store.commit(ChangeSet((), puts), 5.0)
    doctor = doctor_of(own_store, clock)
    token, sizes = "", []
    while True:
        page = await doctor.examine(OPERATOR, token, asyncio.get_running_loop().time() + 10.0, repair=False)
        if page.record_class == "conflict place":
            sizes.append((page.examined, len(page.findings)))
        token = page.next_page_token
        # What a page ended at is of nobody's business: it may be an entry that the caller may not read.
        assert b"main" not in base64.urlsafe_b64decode(token.partition(".")[2])
        if not token:
            break
    assert sizes[:2] == [(most, most), (1, 1)]


@pytest.mark.parametrize("token", ["x", "1", "-1.", "999.", "0.x", "²."])
async def test_a_token_that_no_examination_gave_is_refused(running: Running, token: str) -> None:
    chief = running.as_agent("chief", "operator")
    with refused("PAGE_TOKEN_INVALID", field="page_token"):
        await chief.admin.ExamineStore(pb.ExamineStoreRequest(page_token=token), metadata=chief.metadata)


async def test_a_full_store_is_told(clock: SettableClock) -> None:
    store = MemoryStore(clock)
    await put_raw(store, keys.board("dev", "main"), encode_board(BoardRecord(clock.now_ms(), "chief")))
    unreminded = next(plant for plant in plants(clock.now_ms(), 1, 1) if plant.name == "unreminded expiry")
    await store.commit(ChangeSet((), unreminded.puts), 5.0)
    doctor = doctor_of(Full(store), clock)
    [found] = await examined(doctor, repair=True)
    assert found.outcome is FindingOutcome.STORE_FULL


class Full(Kept):
    """A store that has no room but for the audit log."""

    async def commit(self, change: ChangeSet, deadline_s: float) -> int:
        if any(not put.key.startswith(keys.AUDIT) for put in change.puts):
            raise StoreFull
        revision: int = await self._store.commit(change, deadline_s)
        return revision
