"""Plants records with which something is wrong into a store, behind the servers' backs, and says what has to be found."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kokuban_server.core import keys, limits
from kokuban_server.core.access import Role
from kokuban_server.core.archives import Archive, ArchivePhase
from kokuban_server.core.boards import BoardRecord, BoardState, PurgeCount
from kokuban_server.core.change_set import ChangeSet, Put
from kokuban_server.core.conflicts import Conflict, ConflictKind, Party
from kokuban_server.core.entry import EntryRecord, EntryState, Form, OperationAnswer, Value
from kokuban_server.core.examination import FindingKind
from kokuban_server.core.locks import LockRecord, LockTarget, Mode, SessionRecord
from kokuban_server.core.names import EntryKey, parse_region
from kokuban_server.core.provenance import Selector
from kokuban_server.core.quarantine import HeldAuthor, Quarantined, QuarantineState
from kokuban_server.core.read_scopes import ReadScope
from kokuban_server.core.removals import Removal, RemovalState
from kokuban_server.core.rescreening import Progress
from kokuban_server.core.screening.rules import Severity
from kokuban_server.core.screening.screening import Finding
from kokuban_server.core.trust import OWN_WORD, UNDECLARED
from kokuban_server.records.archive_codec import encode_archive
from kokuban_server.records.board_codec import encode_board, encode_purge
from kokuban_server.records.codec import (
    encode_board_size,
    encode_entry,
    encode_mark,
    encode_operation,
    encode_owner,
    encode_progress,
)
from kokuban_server.records.conflict_codec import encode_conflict
from kokuban_server.records.lock_codec import encode_generation, encode_lock, encode_server, encode_session
from kokuban_server.records.provenance_codec import encode_origins, encode_removal
from kokuban_server.records.quarantine_codec import encode_quarantined
from kokuban_server.records.task_codec import encode_notes
from kokuban_server.records.trust_codec import encode_read_scope

if TYPE_CHECKING:
    from kokuban_server.ports.board_store import BoardStore

TENANT = "dev"
BOARD = "main"
GONE = "gone"
"""A board that never was."""
HALF_DELETED = "half-deleted"
"""A board that nothing has the content removed of."""
_HOUR_MS = 3_600 * 1_000
_DAY_MS = 24 * _HOUR_MS


class Planted(NamedTuple):
    """What has to be found: a class of records, what is wrong, and whether a repair puts it right."""

    record_class: str
    kind: FindingKind
    is_repairable: bool = True


class Plant(NamedTuple):
    """A harm: what is written, and what that is found as."""

    name: str
    puts: tuple[Put, ...]
    found_as: tuple[Planted, ...]
    is_undone_by_servers: bool = False
    """Running servers put it right, or harm more by it, before anybody can look."""


async def plant_all(store: BoardStore, now_ms: int, *, beside_servers: bool) -> list[Planted]:
    """Plant every harm; give what has to be found."""
    lease = (await store.grant_lease(_HOUR_MS, 5.0)).id
    found: list[Planted] = []
    for plant in plants(now_ms, lease, (await store.status(5.0)).revision):
        if not (beside_servers and plant.is_undone_by_servers):
            await store.commit(ChangeSet((), plant.puts), 5.0)
            found += plant.found_as
    return found


def plants(now_ms: int, lease: int, revision: int) -> list[Plant]:
    """Give every harm. What is written on no lease would stay for ever; `lease` lives."""
    return [
        *_entries(now_ms),
        *_boards_and_work(now_ms, revision),
        *_locking(now_ms, lease),
        *_trust_and_conflicts(now_ms),
        *_archives(now_ms),
        Plant("of no class", (Put(b"~/a newer server's/", b"x"),), (Planted("unknown", FindingKind.UNKNOWN, False),)),
        Plant("beside the digest key", (Put(b"s/other", b"x"),), (Planted("digest key", FindingKind.UNKNOWN, False),)),
    ]


def _entries(now_ms: int) -> list[Plant]:
    live = EntryRecord(EntryState.LIVE, 1, 0, 0, now_ms, now_ms, value=Value(Form.TEXT, "x"))
    dead = EntryRecord(EntryState.DELETED, 1, 0, 0, now_ms, now_ms, sweep_time_ms=now_ms + _DAY_MS)

    def head(name: str, board: str = BOARD) -> bytes:
        return keys.head(keys.region_prefix(TENANT, board, parse_region("shared:planted")), name)

    def state(key: bytes, record: EntryRecord, *, history: int = 1) -> tuple[Put, ...]:
        raw = encode_entry(record)
        return (Put(key, raw), Put(keys.history_record(key, history), raw))

    ends, dies, lives = replace(live, expire_time_ms=now_ms + _HOUR_MS), dead, live
    long_ago = replace(live, expire_time_ms=now_ms - 2 * _HOUR_MS)
    return [
        Plant(
            "history of nothing",
            (Put(keys.history_record(head("a"), 3), encode_entry(live)),),
            (Planted("history", FindingKind.ORPHANED),),
        ),
        Plant(
            "history ahead",
            (*state(head("b"), live), Put(keys.history_record(head("b"), 7), encode_entry(replace(live, sequence=7)))),
            (Planted("history", FindingKind.IMPOSSIBLE),),
        ),
        Plant("unreminded expiry", state(head("c"), ends), (Planted("entry", FindingKind.INCOMPLETE),)),
        Plant("unreminded tombstone", state(head("d"), dies), (Planted("entry", FindingKind.INCOMPLETE),)),
        Plant(
            "no history",
            (Put(head("e"), encode_entry(live)),),
            (Planted("entry", FindingKind.INCOMPLETE, False),),
        ),
        Plant(
            "on a board that is gone",
            state(head("f", GONE), live),
            (Planted("entry", FindingKind.ORPHANED), Planted("history", FindingKind.ORPHANED)),
        ),
        Plant(
            "reminder of nothing",
            (Put(keys.due(now_ms + _DAY_MS, head("g")), b""),),
            (Planted("reminder", FindingKind.ORPHANED),),
        ),
        Plant(
            "reminder of another time",
            (*state(head("h"), lives), Put(keys.due(now_ms + _DAY_MS, head("h")), b"")),
            (Planted("reminder", FindingKind.ORPHANED),),
        ),
        Plant(
            "reminder overdue",
            (*state(head("i"), long_ago), Put(keys.due(now_ms - 2 * _HOUR_MS, head("i")), b"")),
            (Planted("reminder", FindingKind.OVERDUE, False),),
            is_undone_by_servers=True,
        ),
        Plant(
            "unreadable entry",
            (Put(head("j"), b"\xff"),),
            (Planted("entry", FindingKind.UNREADABLE, False),),
        ),
        Plant(
            "operation overdue",
            (Put(keys.operation(now_ms - _DAY_MS, TENANT, BOARD, "a", "1"), encode_operation(_ANSWER)),),
            (Planted("operation", FindingKind.OVERDUE),),
            is_undone_by_servers=True,
        ),
        Plant(
            "operation of a time to come",
            (Put(keys.operation(now_ms + _DAY_MS, TENANT, BOARD, "a", "2"), encode_operation(_ANSWER)),),
            (Planted("operation", FindingKind.IMPOSSIBLE),),
        ),
    ]


_ANSWER = OperationAnswer(b"digest", 1, (1,))


def _boards_and_work(now_ms: int, revision: int) -> list[Plant]:
    deleted = BoardRecord(now_ms, "op", state=BoardState.DELETED, delete_time_ms=now_ms, deleted_by="op")
    of_gone = keys.board_prefix(TENANT, GONE)
    return [
        Plant(
            "deletion stuck",
            (Put(keys.board(TENANT, HALF_DELETED), encode_board(deleted)),),
            (Planted("board", FindingKind.INCOMPLETE),),
        ),
        Plant(
            "purge of a board that lives",
            (Put(keys.purge(TENANT, BOARD), encode_purge(PurgeCount())),),
            (Planted("purge", FindingKind.ORPHANED),),
            is_undone_by_servers=True,
        ),
        Plant(
            "size of no board",
            (Put(keys.size(of_gone), encode_board_size(1, 1)),),
            (Planted("board size", FindingKind.ORPHANED),),
        ),
        Plant(
            "mark of a state to come",
            (Put(keys.mark(now_ms), encode_mark(now_ms, revision + 1_000_000)),),
            (Planted("compaction mark", FindingKind.IMPOSSIBLE),),
        ),
        Plant(
            "judged in a state to come",
            (Put(keys.RESCREENING, encode_progress(Progress("1", "", judged_revision=revision + 1_000_000))),),
            (Planted("rescreening", FindingKind.IMPOSSIBLE),),
            is_undone_by_servers=True,
        ),
        Plant(
            "owner for ever",
            (Put(keys.owner("painting"), encode_owner("dead")),),
            (Planted("owner", FindingKind.UNLEASED),),
        ),
        Plant(
            "server for ever",
            (Put(keys.server("dead"), encode_server(now_ms)),),
            (Planted("server", FindingKind.UNLEASED),),
        ),
    ]


def _locking(now_ms: int, lease: int) -> list[Plant]:
    main, gone = keys.board_prefix(TENANT, BOARD), keys.board_prefix(TENANT, GONE)
    session = SessionRecord("planter", "", now_ms, _HOUR_MS, lease)

    def lock(place: str, session_id: str = "planted-session") -> LockRecord:
        target = LockTarget(parse_region("shared:planted-locks"), place, subtree=False)
        return LockRecord(
            session_id,
            "planter",
            place,
            Mode.EXCLUSIVE,
            (target,),
            "planted",
            now_ms,
            now_ms + _HOUR_MS,
            limits.LOCK_DELAY_MS_MAX,
            "",
            lease,
        )

    def at(kind: bytes, name: str, raw: bytes, on: int | None = None, board: bytes = main) -> Put:
        return Put(keys.on_board(kind, board, name), raw, on)

    held, orphan = encode_lock(lock("b")), encode_lock(lock("c", "no-session"))
    long_lost = encode_lock(lock("e")._replace(lost_time_ms=now_ms - _HOUR_MS))
    return [
        Plant(
            "session for ever",
            (at(keys.SESSION, "unleased-session", encode_session(session)),),
            (Planted("session", FindingKind.UNLEASED),),
        ),
        Plant(
            "session of no board",
            (at(keys.SESSION, "session-of-gone", encode_session(session), lease, gone),),
            (Planted("session", FindingKind.ORPHANED),),
        ),
        Plant("a session for what follows", (at(keys.SESSION, "planted-session", encode_session(session), lease),), ()),
        Plant(
            "lock for ever",
            (at(keys.LOCK, "lock-a", encode_lock(lock("a"))), at(keys.MARKER, "lock-a", encode_lock(lock("a")))),
            (Planted("lock", FindingKind.UNLEASED),),
        ),
        Plant(
            "lock that nobody sees",
            (at(keys.LOCK, "lock-b", held, lease),),
            (Planted("lock", FindingKind.INCOMPLETE),),
        ),
        Plant(
            "lock of no session",
            (at(keys.LOCK, "lock-c", orphan, lease), at(keys.MARKER, "lock-c", orphan)),
            (Planted("lock", FindingKind.ORPHANED),),
        ),
        Plant(
            "loss that nobody noted",
            (at(keys.MARKER, "lock-d", encode_lock(lock("d"))),),
            (Planted("lock marker", FindingKind.INCOMPLETE),),
            is_undone_by_servers=True,
        ),
        Plant(
            "lock delay for ever",
            (at(keys.MARKER, "lock-e", long_lost),),
            (Planted("lock marker", FindingKind.OVERDUE),),
        ),
        Plant(
            "wait of no session",
            (at(keys.WAIT, "wait-a", encode_lock(lock("f", "no-session")), lease),),
            (Planted("wait", FindingKind.ORPHANED),),
            is_undone_by_servers=True,
        ),
        Plant(
            "wait for ever",
            (at(keys.WAIT, "wait-b", encode_lock(lock("g"))),),
            (Planted("wait", FindingKind.UNLEASED),),
            is_undone_by_servers=True,
        ),
        Plant(
            "task wait of no session",
            (at(keys.TASK_WAIT, "task-wait-a", encode_lock(lock("h", "no-session")), lease),),
            (Planted("task wait", FindingKind.ORPHANED),),
        ),
        Plant(
            "task wait for ever",
            (at(keys.TASK_WAIT, "task-wait-b", encode_lock(lock("i"))),),
            (Planted("task wait", FindingKind.UNLEASED),),
        ),
        Plant(
            "generations of no board",
            (
                Put(keys.LOCK_GENERATION + gone + b"shared:x/", encode_generation("lock")),
                Put(keys.QUEUE_GENERATION + gone + b"shared:x/", encode_generation("lock")),
            ),
            (
                Planted("lock generation", FindingKind.ORPHANED),
                Planted("queue generation", FindingKind.ORPHANED),
            ),
        ),
    ]


def _removal(state: RemovalState, now_ms: int) -> Removal:
    """Give a removal of what nobody has written."""
    return Removal(Selector(uri="https://planted.example"), "planted", "planter", now_ms, state=state)


def _trust_and_conflicts(now_ms: int) -> list[Plant]:
    main, gone = keys.board_prefix(TENANT, BOARD), keys.board_prefix(TENANT, GONE)
    scope = encode_read_scope(ReadScope("planter"))
    item = Quarantined(
        b"request",
        "planter",
        now_ms,
        (EntryKey(parse_region("shared:planted"), "q"),),
        ((0, OWN_WORD),),
        (Finding("rule", Severity.GRAVE, "as written", None, ""),),
        "rules",
        "mutations[0]",
        UNDECLARED,
        keys.operation(now_ms, TENANT, BOARD, "planter", "q"),
    )
    author = HeldAuthor(frozenset({Role.MEMBER}), is_development=True, acting=(), expires_ms=0)
    pending = replace(item, state=QuarantineState.PENDING, findings=(), author=author)
    name = f"{now_ms:015d}-planted"
    nothing = keys.on_board(keys.QUARANTINE, main, f"{now_ms:015d}-nothing")
    unmarked = keys.on_board(keys.QUARANTINE, main, f"{now_ms:015d}-unmarked")

    def conflict() -> Conflict:
        party = Party("planter", request_id="1")
        return Conflict(
            secrets.token_hex(16),
            now_ms,
            ConflictKind.COMMIT,
            "REVISION_MISMATCH",
            "shared:planted",
            "a",
            "0" * 16,
            1,
            2,
            party,
            None,
        )

    lost, twice, nowhere, away = (conflict() for _ in range(4))
    twice_key, twice_at = keys.conflict(main, now_ms, twice.id), keys.conflict(main, now_ms + 1, twice.id)
    return [
        Plant(
            "scope of no board",
            (Put(keys.on_board(keys.SCOPE, gone, "s"), scope),),
            (Planted("read scope", FindingKind.ORPHANED),),
        ),
        Plant(
            "origins of no board",
            (Put(keys.origin(gone, now_ms, "planted"), encode_origins("planter", "", now_ms, ())),),
            (Planted("origin", FindingKind.ORPHANED),),
        ),
        Plant(
            "removal that nothing goes on with",
            (Put(keys.on_board(keys.REMOVAL, main, "stuck"), encode_removal(_removal(RemovalState.RUNNING, now_ms))),),
            (Planted("removal", FindingKind.INCOMPLETE),),
        ),
        Plant(
            "nothing to go on with",
            (Put(keys.on_board(keys.REMOVAL_RUNNING, main, "nothing"), b""),),
            (Planted("running removal", FindingKind.ORPHANED),),
            is_undone_by_servers=True,
        ),
        Plant(
            "going on with what is done",
            (
                Put(keys.on_board(keys.REMOVAL, main, "done"), encode_removal(_removal(RemovalState.DONE, now_ms))),
                Put(keys.on_board(keys.REMOVAL_RUNNING, main, "done"), b""),
            ),
            (Planted("running removal", FindingKind.ORPHANED),),
            is_undone_by_servers=True,
        ),
        Plant(
            "unreminded quarantine",
            (Put(keys.on_board(keys.QUARANTINE, main, name), encode_quarantined(item)),),
            (Planted("quarantine", FindingKind.INCOMPLETE),),
        ),
        Plant(
            "unmarked commit that waits for what screens",
            (
                Put(unmarked, encode_quarantined(pending)),
                Put(keys.quarantine_due(now_ms + limits.QUARANTINE_MS, unmarked), b""),
            ),
            (Planted("quarantine", FindingKind.INCOMPLETE),),
        ),
        Plant(
            "nothing that waits for what screens",
            (Put(keys.on_board(keys.PENDING, main, f"{now_ms:015d}-nothing"), b""),),
            (Planted("pending commit", FindingKind.ORPHANED),),
            is_undone_by_servers=True,
        ),
        Plant(
            "reminder of no quarantine",
            (Put(keys.quarantine_due(now_ms + _DAY_MS, nothing), b""),),
            (Planted("quarantine reminder", FindingKind.ORPHANED),),
        ),
        Plant(
            "notes of no task",
            (Put(keys.task_notes(keys.region_prefix(TENANT, BOARD, parse_region("task:none")), "s"), encode_notes(1)),),
            (Planted("task notes", FindingKind.ORPHANED),),
            is_undone_by_servers=True,
        ),
        Plant(
            "conflict without a place",
            (Put(keys.conflict(main, now_ms, lost.id), encode_conflict(lost)),),
            (Planted("conflict", FindingKind.INCOMPLETE),),
        ),
        Plant(
            "conflict that stands twice",
            (
                Put(twice_key, encode_conflict(twice)),
                Put(twice_at, encode_conflict(twice)),
                Put(keys.conflict_place(main, twice.id), twice_key),
            ),
            (Planted("conflict", FindingKind.ORPHANED),),
        ),
        Plant(
            "place of no conflict",
            (Put(keys.conflict_place(main, nowhere.id), keys.conflict(main, now_ms, nowhere.id)),),
            (Planted("conflict place", FindingKind.ORPHANED),),
        ),
        Plant(
            "conflict of no board",
            (
                Put(keys.conflict(gone, now_ms, away.id), encode_conflict(away)),
                Put(keys.conflict_place(gone, away.id), keys.conflict(gone, now_ms, away.id)),
            ),
            (Planted("conflict", FindingKind.ORPHANED), Planted("conflict place", FindingKind.ORPHANED)),
        ),
    ]


def _archives(now_ms: int) -> list[Plant]:
    def of(task: str, kind: bytes, raw: bytes = b"") -> Put:
        return Put(kind + keys.region_prefix(TENANT, BOARD, parse_region(f"task:{task}")), raw)

    archive = Archive(ArchivePhase.ARCHIVED, "0" * 64, 3, "planted", now_ms)
    begun = encode_archive(replace(archive, phase=ArchivePhase.PREPARING, until_ms=now_ms + _DAY_MS))
    return [
        Plant(
            "an archive that nothing goes on with",
            (of("planted-a", keys.TASK_ARCHIVE, begun),),
            (Planted("task archive", FindingKind.INCOMPLETE),),
        ),
        Plant(
            "an archive of what is there",
            (of("planted-b", keys.TASK_ARCHIVE, encode_archive(archive)), of("planted-b", keys.TASK, b"")),
            (Planted("task archive", FindingKind.IMPOSSIBLE, False),),
        ),
        Plant(
            "the archiving of nothing",
            (of("planted-c", keys.ARCHIVING),),
            (Planted("archiving", FindingKind.ORPHANED),),
            is_undone_by_servers=True,
        ),
        Plant(
            "an archive of no form",
            (of("planted-d", keys.TASK_ARCHIVE, b"\xff"),),
            (Planted("task archive", FindingKind.UNREADABLE, False),),
        ),
    ]
